//! What two Millrace processes must agree on: CRD types, names, index format, block math, placement, wire messages.

pub mod block;
pub mod ids;
pub mod keys;
pub mod placement;
