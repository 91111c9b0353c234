//! How is a worker steered?

mod make_index;
mod service;
mod sessions;
mod status;
mod why;

pub use service::ControlService;
