//! Why was a request not answered with bytes, and what should the client do?

use std::fmt;

/// Why a read, an index request or a hello was refused. On the wire a `u16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    /// The version has no such file, or the file no such chunk.
    NotFound,
    /// The worker does not have the index of this version (yet).
    UnknownVersion,
    /// The object was overwritten after it was indexed.
    ObjectChanged,
    /// The object was deleted after it was indexed.
    ObjectGone,
    /// The object is in an archive and must be restored before it can be read.
    Archived,
    /// The origin refuses the worker's credentials.
    OriginDenied,
    /// The origin cannot be reached, or fails.
    OriginUnavailable,
    /// The request's deadline passed before the bytes came.
    DeadlinePassed,
    /// The request contradicts itself or the index.
    BadRequest,
    /// The worker has too much to do.
    Overloaded,
    /// The worker does not know this kind of frame or protocol version.
    Unsupported,
    /// The worker is stopping.
    Stopping,
    /// The client said that it no longer wants the answer.
    Cancelled,
    /// The peer does not know the key.
    WrongKey,
    /// The worker has a fault of its own.
    Internal,
    /// The dataset has no version yet: nothing can be mounted.
    NotIndexed,
    /// A code of a newer build.
    Unknown(u16),
}

impl ErrorCode {
    /// All codes that this build knows.
    pub const ALL: [ErrorCode; 16] = [
        ErrorCode::NotFound,
        ErrorCode::UnknownVersion,
        ErrorCode::ObjectChanged,
        ErrorCode::ObjectGone,
        ErrorCode::Archived,
        ErrorCode::OriginDenied,
        ErrorCode::OriginUnavailable,
        ErrorCode::DeadlinePassed,
        ErrorCode::BadRequest,
        ErrorCode::Overloaded,
        ErrorCode::Unsupported,
        ErrorCode::Stopping,
        ErrorCode::Cancelled,
        ErrorCode::WrongKey,
        ErrorCode::Internal,
        ErrorCode::NotIndexed,
    ];

    /// The number on the wire.
    pub fn to_wire(self) -> u16 {
        match self {
            ErrorCode::NotFound => 1,
            ErrorCode::UnknownVersion => 2,
            ErrorCode::ObjectChanged => 3,
            ErrorCode::ObjectGone => 4,
            ErrorCode::Archived => 5,
            ErrorCode::OriginDenied => 6,
            ErrorCode::OriginUnavailable => 7,
            ErrorCode::DeadlinePassed => 8,
            ErrorCode::BadRequest => 9,
            ErrorCode::Overloaded => 10,
            ErrorCode::Unsupported => 11,
            ErrorCode::Stopping => 12,
            ErrorCode::Cancelled => 13,
            ErrorCode::WrongKey => 14,
            ErrorCode::Internal => 15,
            ErrorCode::NotIndexed => 16,
            ErrorCode::Unknown(code) => code,
        }
    }

    /// Reads the number on the wire.
    pub fn from_wire(code: u16) -> Self {
        Self::ALL.into_iter().find(|known| known.to_wire() == code).unwrap_or(ErrorCode::Unknown(code))
    }

    /// Whether another worker may answer what this one could not.
    ///
    /// A fault of the object or of the request is the same everywhere; one of the worker, or of its way to the origin, is not.
    pub fn is_retryable_elsewhere(self) -> bool {
        match self {
            ErrorCode::UnknownVersion
            | ErrorCode::OriginUnavailable
            | ErrorCode::Overloaded
            | ErrorCode::Unsupported
            | ErrorCode::Stopping
            | ErrorCode::WrongKey
            | ErrorCode::Internal
            | ErrorCode::NotIndexed
            | ErrorCode::Unknown(_) => true,
            ErrorCode::NotFound
            | ErrorCode::ObjectChanged
            | ErrorCode::ObjectGone
            | ErrorCode::Archived
            | ErrorCode::OriginDenied
            | ErrorCode::DeadlinePassed
            | ErrorCode::BadRequest
            | ErrorCode::Cancelled => false,
        }
    }

    /// Whether the same worker may answer a little later: it starts, stops or is busy.
    ///
    /// An unavailable origin is not among these: the worker has itself waited for it until the deadline.
    pub fn is_passing(self) -> bool {
        matches!(
            self,
            ErrorCode::UnknownVersion | ErrorCode::Overloaded | ErrorCode::Stopping | ErrorCode::NotIndexed
        )
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            ErrorCode::NotFound => "not found",
            ErrorCode::UnknownVersion => "unknown version",
            ErrorCode::ObjectChanged => "object changed",
            ErrorCode::ObjectGone => "object gone",
            ErrorCode::Archived => "object archived",
            ErrorCode::OriginDenied => "origin denied",
            ErrorCode::OriginUnavailable => "origin unavailable",
            ErrorCode::DeadlinePassed => "deadline passed",
            ErrorCode::BadRequest => "bad request",
            ErrorCode::Overloaded => "overloaded",
            ErrorCode::Unsupported => "unsupported",
            ErrorCode::Stopping => "stopping",
            ErrorCode::Cancelled => "cancelled",
            ErrorCode::WrongKey => "wrong key",
            ErrorCode::Internal => "internal fault",
            ErrorCode::NotIndexed => "not indexed",
            ErrorCode::Unknown(code) => return write!(f, "unknown code {code}"),
        };
        f.write_str(text)
    }
}
