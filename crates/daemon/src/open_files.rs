//! May this process open as many files as it needs?

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What can go wrong with the limit of open files.
#[derive(Debug, thiserror::Error)]
pub enum OpenFilesError {
    /// The hard limit is below what the process needs, and it may not raise it.
    #[error(
        "limit of open files is {limit}, but {needed} are needed: raise it with `ulimit -n {needed}`, LimitNOFILE={needed} in a systemd unit, or the container runtime's nofile limit"
    )]
    TooLow {
        /// Files that the process may open.
        limit: u64,
        /// Files that it needs.
        needed: u64,
    },
    /// The kernel refused to raise the soft limit to the hard limit.
    #[error("raise the soft limit of open files from {from} to {to}")]
    Raise {
        /// The soft limit before.
        from: u64,
        /// The hard limit.
        to: u64,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

/// Raises the soft limit of open files to the hard limit, and the hard limit to `needed` where the process may do so.
/// Returns the number of files that may now be open.
///
/// # Errors
/// [`OpenFilesError::TooLow`] when fewer than `needed` may be open.
pub fn raise(needed: u64) -> Result<u64, OpenFilesError> {
    let now = getrlimit(Resource::Nofile);
    let soft = now.current.unwrap_or(u64::MAX);
    let hard = now.maximum.unwrap_or(u64::MAX);
    if hard < needed {
        let both = Rlimit { current: Some(needed), maximum: Some(needed) };
        // Only a privileged process may, and only up to the kernel's nr_open; an unprivileged one is told below.
        return match setrlimit(Resource::Nofile, both) {
            Ok(()) => Ok(needed),
            Err(_) => Err(OpenFilesError::TooLow { limit: hard, needed }),
        };
    }
    if soft < hard {
        let raised = Rlimit { current: now.maximum, maximum: now.maximum };
        setrlimit(Resource::Nofile, raised).map_err(|source| OpenFilesError::Raise {
            from: soft,
            to: hard,
            source: source.into(),
        })?;
    }
    Ok(hard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limit_becomes_the_hard_limit() {
        let limit = raise(1).unwrap();
        let now = getrlimit(Resource::Nofile);
        assert_eq!(now.current, now.maximum);
        assert_eq!(now.current.unwrap_or(u64::MAX), limit);
    }

    #[test]
    fn a_limit_that_is_too_low_is_an_error_with_value_and_cure() {
        // Above the kernel's nr_open, which binds root too.
        let error = raise(u64::MAX - 1).unwrap_err().to_string();
        assert!(
            error.contains(&format!("{} are needed", u64::MAX - 1)) && error.contains("ulimit -n"),
            "{error}"
        );
    }
}
