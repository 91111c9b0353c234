//! Why was a chunk not fetched, and what is the reader told?

use millrace_api::wire::ErrorCode;
use millrace_transport::server::ReadError;

use super::failures::Hold;
use crate::origin::error::{OriginError, OriginErrorKind};

/// Why a flight did not bring its chunks.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub struct FetchError {
    /// What the client should do about it.
    pub code: ErrorCode,
    /// A constant in CamelCase, as in a condition.
    pub reason: &'static str,
    /// For the user: names the object, the cause and the cure.
    pub message: String,
    /// How long reads of the object fail at once; `None` where the same read may succeed a moment later.
    pub hold: Option<Hold>,
}

impl FetchError {
    /// The worker is stopping.
    pub fn stopping() -> Self {
        let message = "the worker is stopping".to_owned();
        Self { code: ErrorCode::Stopping, reason: "Stopping", message, hold: None }
    }

    /// The worker was not told where the objects of a source are.
    pub fn no_source(path: &str) -> Self {
        let message = format!("source {path:?} is not configured at this worker");
        Self { code: ErrorCode::Internal, reason: "NoSource", message, hold: None }
    }

    /// The object was archived when it was indexed.
    pub fn archived(path: &str) -> Self {
        let message =
            format!("object of {path:?} is archived; restore the object, then index the dataset again");
        Self { code: ErrorCode::Archived, reason: "Archived", message, hold: Some(Hold::Lasting) }
    }

    /// The origin gave fewer bytes than asked for and called that the end.
    pub fn short(path: &str) -> Self {
        let message = format!("the origin's answer for {path:?} is too short");
        Self { code: ErrorCode::OriginUnavailable, reason: "Truncated", message, hold: None }
    }

    /// The index has no key or ETag for a file.
    pub fn damaged_index(path: &str) -> Self {
        let message = format!("the index has no key for {path:?}");
        Self { code: ErrorCode::Internal, reason: "DamagedIndex", message, hold: Some(Hold::Lasting) }
    }

    /// Maps what the origin said; the one place where its kinds become codes of the data port.
    pub fn from_origin(error: &OriginError) -> Self {
        let kind = error.kind();
        let (code, hold) = match kind {
            // The version that was indexed is no more: nothing brings it back.
            OriginErrorKind::Changed => (ErrorCode::ObjectChanged, Some(Hold::Final)),
            OriginErrorKind::NoSuchKey => (ErrorCode::ObjectGone, Some(Hold::Final)),
            // Someone can restore the object.
            OriginErrorKind::Archived => (ErrorCode::Archived, Some(Hold::Lasting)),
            // Someone can grant the right, or replace the credentials. Another worker has the same ones.
            OriginErrorKind::AccessDenied
            | OriginErrorKind::Kms
            | OriginErrorKind::RequesterPays
            | OriginErrorKind::InvalidAccessKey
            | OriginErrorKind::SignatureMismatch
            | OriginErrorKind::ExpiredToken
            | OriginErrorKind::Credentials => (ErrorCode::OriginDenied, Some(Hold::Lasting)),
            // This worker's clock or its way to the bucket: another worker may do better, waiting does not help.
            OriginErrorKind::ClockSkew
            | OriginErrorKind::Tls
            | OriginErrorKind::NoSuchBucket
            | OriginErrorKind::Region => (ErrorCode::OriginUnavailable, Some(Hold::Lasting)),
            // An outage, or a proxy that answers wrongly: see the module `patience`.
            OriginErrorKind::WrongRange
            | OriginErrorKind::Unexpected
            | OriginErrorKind::Dns
            | OriginErrorKind::Refused
            | OriginErrorKind::Unreachable
            | OriginErrorKind::Reset
            | OriginErrorKind::TimedOut
            | OriginErrorKind::Truncated
            | OriginErrorKind::Throttled
            | OriginErrorKind::Unavailable => (ErrorCode::OriginUnavailable, None),
        };
        Self { code, reason: kind.name(), message: error.to_string(), hold }
    }

    /// Whether the origin answered, and wrongly: that passes with a proxy's mood, or never.
    pub fn is_wrong_answer(&self) -> bool {
        [OriginErrorKind::WrongRange, OriginErrorKind::Unexpected]
            .iter()
            .any(|kind| kind.name() == self.reason)
    }

    /// What the reader is told.
    pub fn to_read_error(&self) -> ReadError {
        ReadError::new(self.code, self.message.clone())
    }
}

/// The code as a metric label.
pub(super) fn code_label(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::NotFound => "not_found",
        ErrorCode::UnknownVersion => "unknown_version",
        ErrorCode::ObjectChanged => "object_changed",
        ErrorCode::ObjectGone => "object_gone",
        ErrorCode::Archived => "archived",
        ErrorCode::OriginDenied => "origin_denied",
        ErrorCode::OriginUnavailable => "origin_unavailable",
        ErrorCode::DeadlinePassed => "deadline_passed",
        ErrorCode::BadRequest => "bad_request",
        ErrorCode::Overloaded => "overloaded",
        ErrorCode::Unsupported => "unsupported",
        ErrorCode::Stopping => "stopping",
        ErrorCode::Cancelled => "cancelled",
        ErrorCode::WrongKey => "wrong_key",
        ErrorCode::Internal | ErrorCode::NotIndexed | ErrorCode::Unknown(_) => "internal",
    }
}
