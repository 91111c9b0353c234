//! What is told of Datasets in a cluster, and how are they warmed? The commands of `kubectl millrace`.
//!
//! All that is read is what `kubectl` reads too: there is no other way into the cluster, and no right beside the user's own.

pub mod args;
mod claims;
mod complete;
mod connect;
mod cures;
mod evidence;
mod links;
mod status;
mod status_text;
mod warm;
mod why;
mod why_text;

pub use complete::complete;
pub use status::status;
pub use warm::warm;
pub use why::why;
