//! Which faults does the server show, and when?

pub mod active;
pub mod pace;
pub mod plan;
pub mod rule;
