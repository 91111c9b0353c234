//! What can stop a reconcile, and when is it tried again?

use std::error::Error as _;
use std::time::Duration;

use kube::runtime::controller::Action;

use super::apply::Write;
use super::fault::Fault;

/// After a failure that may pass by itself.
const SOON: Duration = Duration::from_secs(2);

/// After a failure that needs somebody.
const LATER: Duration = Duration::from_secs(30);

/// Why a reconcile went no further. All that it had done holds, and the next one starts from there.
#[derive(Debug, thiserror::Error)]
pub enum ReconcileError {
    /// A Dataset without name, namespace or UID.
    #[error("the Dataset has no name, namespace or UID")]
    Nameless,
    /// Something could not be written.
    #[error("{0}")]
    Write(Write),
    /// Something could not be read.
    #[error("read {what}")]
    Read {
        /// What.
        what: String,
        /// The API server's answer.
        source: Box<kube::Error>,
    },
    /// A test asked for it.
    #[error("{0}")]
    Fault(Fault),
}

impl From<Fault> for ReconcileError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Write> for ReconcileError {
    fn from(write: Write) -> Self {
        Self::Write(write)
    }
}

impl ReconcileError {
    /// When to try again.
    pub fn action(&self) -> Action {
        match self {
            // No event will come for it that a retry would not see.
            Self::Nameless => Action::await_change(),
            Self::Write(Write::NotLeader | Write::Fault(_)) | Self::Fault(_) => Action::requeue(SOON),
            Self::Write(Write::Ask { source, .. }) | Self::Read { source, .. } => match source.as_ref() {
                // A conflict is a stale look: the watch brings the new one at once.
                kube::Error::Api(status) if status.code == 409 || status.code >= 500 => Action::requeue(SOON),
                kube::Error::Api(_) => Action::requeue(LATER),
                _ => Action::requeue(SOON),
            },
        }
    }

    /// A word for a metric's label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Nameless => "nameless",
            Self::Write(Write::NotLeader) => "not_leader",
            Self::Write(Write::Ask { .. }) => "write",
            Self::Read { .. } => "read",
            Self::Write(Write::Fault(_)) | Self::Fault(_) => "fault",
        }
    }

    /// With all its causes, in one line.
    pub fn text(&self) -> String {
        let mut text = self.to_string();
        let mut cause = match self {
            Self::Write(write) => write.source(),
            other => other.source(),
        };
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        text
    }
}
