//! Which gRPC code does kubelet get, by what it does with it?
//!
//! Whatever the code, kubelet shows the message in an event of the pod (`FailedMount`) and tries again, with pauses that
//! double from half a second to about two minutes. The code decides what it believes about the target
//! (`isFinalError` in kubelet's pkg/volume/csi):
//!
//! - ABORTED, CANCELLED, DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, UNAVAILABLE: the call may have done something. Kubelet
//!   publishes again, or unpublishes before it lets go of the pod.
//! - all others: nothing is there. When the pod goes away, kubelet just removes the folder.

use millrace_daemon::causes::with_causes;
use tonic::{Code, Status};

use crate::publish::error::PublishError;

/// Gives the code for an error.
pub fn code(error: &PublishError) -> Code {
    match error {
        // Nothing was done, and a repetition helps only when somebody changes the volume.
        PublishError::Refuse { .. } => Code::InvalidArgument,
        // What the specification asks for when a call on the volume is pending.
        PublishError::Busy { .. } => Code::Aborted,
        // The specification's word for "published at the target, but incompatible".
        PublishError::OtherVolume { .. } => Code::AlreadyExists,
        // Nothing was done; somebody must do something on the node.
        PublishError::Foreign { .. } | PublishError::NoFuse { .. } => Code::FailedPrecondition,
        // Nothing was done; a repetition helps by itself, and there is nothing to unpublish if the pod goes away before.
        PublishError::NotIndexed { .. } => Code::FailedPrecondition,
        // A repetition helps by itself. Meanwhile a mount process may be coming up that an unpublish or the time ends.
        PublishError::AskWorkers { .. } | PublishError::MountProcess { .. } | PublishError::Stopping => {
            Code::Unavailable
        }
        // Something may be there still: an unpublish must follow.
        PublishError::Mount { .. } | PublishError::File { .. } => Code::Unavailable,
        // Of statistics only: kubelet logs it.
        PublishError::NotPublished { .. } => Code::NotFound,
    }
}

/// The answer for an error: its code, and its message with all causes.
pub fn status(error: &PublishError) -> Status {
    Status::new(code(error), with_causes(error))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::publish::request::RequestError;

    #[test]
    fn what_may_have_left_something_makes_kubelet_unpublish() {
        let not_final = [
            Code::Aborted,
            Code::Cancelled,
            Code::DeadlineExceeded,
            Code::ResourceExhausted,
            Code::Unavailable,
        ];
        let (step, target) = ("step", std::path::PathBuf::from("/t"));
        let source = std::io::Error::other("x");
        for error in [
            PublishError::File { step, target: target.clone(), source },
            PublishError::Busy { target, waited: Duration::ZERO },
            PublishError::Stopping,
        ] {
            assert!(not_final.contains(&code(&error)), "{error:?}");
        }
        assert!(!not_final.contains(&code(&PublishError::NoFuse {
            node: "n".into(),
            source: std::io::ErrorKind::NotFound.into()
        })));
    }

    #[test]
    fn a_message_has_the_cause() {
        let source = RequestError::Missing { field: "target_path" };
        let status = status(&PublishError::Refuse { volume_id: "v".into(), source });
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "request of volume \"v\" is refused: target_path is missing");
    }
}
