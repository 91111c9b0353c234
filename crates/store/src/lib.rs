//! Blocks on local disk and mapped index files.
//!
//! [`Store`] keeps chunks of objects in the folders of its tiers: one sparse data file for each large object or pack,
//! with a sidecar beside it that says which chunks are there. Workers use it for their tiers, mount processes for the
//! node's store. What holds whatever happens to the disk or to the process:
//!
//! - A chunk is present only when its data and its checksum are written; entries prove themselves, and
//!   [`Store::read_into`] compares every checksum. [`Store::read`] leaves that to the receiver. Wrong bytes are dropped,
//!   counted, and fetched again by the caller.
//! - Tiers fill up in their order; something goes only when all are full (see the module `placing`). What is in a tier
//!   stays there until it goes: blocks are not moved between tiers.
//! - Nothing is synced: what a power failure loses is found by the checksums.
//! - Quota, number of files, and the floors of free space and inodes are never passed, over all processes that have the
//!   folder open. What cannot be kept is served all the same, and counted by reason.
//! - Files are never mapped, so that no fault of the disk is a signal. The exception is [`index_file`], which says why.
//! - A file that the kernel reads itself ([`Store::pin`]) was verified whole in this boot, and neither its bytes nor its name
//!   go as long as the kernel holds it.
//! - Files of a store that was [borrowed](Store::borrow) are read where they lie; what is wrong there is not mended, and not read.
//!
//! Deliberately absent: a database of what is there, a cache of decoded sidecars, and fsync.

mod admit;
mod borrowed;
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
mod placing;
mod presence;
mod read;
mod recount;
mod room;
mod scrub;
mod seal;
pub mod serving_mark;
mod sidecar;
mod stats;
mod store;
mod sweep;
mod tier;
mod tiers;
mod usage;
mod verify;
mod whole;
mod write;

pub use borrowed::BorrowedFolder;
pub use clock::Clock;
pub use config::{Eviction, Limits, Medium, StoreConfig, TierConfig};
pub use presence::{Hit, Presence};
pub use scrub::Scrubbed;
pub use seal::BootTag;
pub use stats::{NotKept, Stats, TierUsage, Usage};
pub use store::{Class, OpenStore, Store, Written};
pub use verify::Verification;
pub use whole::{Pin, Whole};
