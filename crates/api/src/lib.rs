//! What two Millrace processes must agree on: CRD types, names, index format, block math, placement, wire messages.

pub mod block;
pub mod crc;
pub mod dataset;
pub mod ids;
pub mod index;
pub mod ino;
pub mod keys;
pub mod mount;
pub mod names;
pub mod pack;
pub mod placement;
pub mod pod_annotation;
pub mod wire;
