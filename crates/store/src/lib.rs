//! Blocks on local disk and mapped index files.

mod admit;
mod clock;
mod config;
mod evict;
pub mod index_file;
mod lock;
mod map;
mod open_file;
mod open_files;
mod opening;
mod pair;
mod read;
mod recount;
mod room;
mod sidecar;
mod stats;
mod store;
mod sweep;
mod tier;
mod usage;
mod write;

pub use clock::Clock;
pub use config::{Eviction, Limits, Medium, StoreConfig, TierConfig};
pub use stats::{NotKept, Stats, TierUsage, Usage};
pub use store::{Class, Hit, OpenStore, Presence, Store, Written};
