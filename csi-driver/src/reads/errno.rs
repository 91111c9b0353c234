//! Which error does a reader get when its bytes cannot be had?

use millrace_api::wire::ErrorCode;
use millrace_fuse_session::Errno;

/// Maps what a worker or the client says to the error of `read(2)`.
///
/// Programs know what EIO means and give up; nearly everything is EIO, and `millrace why` tells them apart.
pub fn errno_of(code: ErrorCode) -> Errno {
    match code {
        // Trouble with the object or the origin that outlasted the read's deadline or is final for this version.
        ErrorCode::ObjectChanged
        | ErrorCode::ObjectGone
        | ErrorCode::Archived
        | ErrorCode::OriginDenied
        | ErrorCode::OriginUnavailable
        | ErrorCode::DeadlinePassed
        | ErrorCode::Overloaded
        | ErrorCode::Stopping => Errno::IO,
        // Trouble between mount process and workers: a program cannot do more about it.
        ErrorCode::NotFound
        | ErrorCode::UnknownVersion
        | ErrorCode::BadRequest
        | ErrorCode::Unsupported
        | ErrorCode::WrongKey
        | ErrorCode::Internal
        | ErrorCode::NotIndexed
        | ErrorCode::Unknown(_) => Errno::IO,
        // Only after the reader itself was interrupted.
        ErrorCode::Cancelled => Errno::INTR,
    }
}
