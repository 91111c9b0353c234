//! How is a worker steered?

mod make_index;
mod service;
mod sessions;
mod status;
mod why;

pub use service::ControlService;

/// An error with all its causes on one line, for answers and messages that travel.
pub fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
