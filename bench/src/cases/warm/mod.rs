//! Which cases measure what a node or a worker already has, and what a mount takes?

mod first_byte;
mod large;
mod late_switch;
mod memory;
mod passing;
mod ten_million;

pub use first_byte::{local as first_byte_local, remote as first_byte_remote};
pub use large::run as large;
pub use late_switch::run as late_switch;
pub use memory::run as memory;
pub use ten_million::run as ten_million;
