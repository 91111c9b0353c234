//! Is S3 in trouble, or is it only a failed request now and then?

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::error::{OriginError, Request};
use super::get::ObjectVersion;

/// A request has failed this often in a row: single failures are S3's everyday life.
const FAILURES: u32 = 4;
/// No request has been answered for this long: with many requests some fail often by mere chance.
const SILENCE: Duration = Duration::from_secs(1);

/// Why requests fail now, and since when.
#[derive(Debug, Clone)]
pub struct Troubled {
    /// The latest failure.
    pub why: OriginError,
    /// Milliseconds since 1970.
    pub since_ms: u64,
}

/// What was asked of S3, as far as asking again needs it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asked {
    /// A page of the keys that begin with this.
    List(String),
    /// A range of this object.
    Get(ObjectVersion),
}

impl Asked {
    /// Which request it was.
    pub(super) fn request(&self) -> Request {
        match self {
            Self::List(_) => Request::List,
            Self::Get(_) => Request::Get,
        }
    }

    /// The key of the object, or the prefix of the listing.
    pub(super) fn object(&self) -> &str {
        match self {
            Self::List(prefix) => prefix,
            Self::Get(object) => &object.key,
        }
    }
}

/// What requests are waiting for, if they are.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    now: Option<(Troubled, Asked)>,
    answered: Option<Instant>,
}

impl Trouble {
    /// Why requests have been failing lately.
    pub(super) fn now(&self) -> Option<Troubled> {
        self.now.as_ref().map(|(troubled, _)| troubled.clone())
    }

    /// The request that failed last, while there is trouble: only the same can show that it is over, since a source may
    /// be listed and not read, and the other way round.
    pub(super) fn asked(&self) -> Option<Asked> {
        self.now.as_ref().map(|(_, asked)| asked.clone())
    }

    /// Takes note of a failure, the `in_a_row`th of its request; `true` when trouble begins. One that waiting does not cure
    /// is trouble at once.
    pub(super) fn failed(&mut self, error: &OriginError, asked: &Asked, in_a_row: u32, now: Instant) -> bool {
        let is_silent = self.answered.is_none_or(|at| now.saturating_duration_since(at) >= SILENCE);
        if (error.is_transient() && in_a_row < FAILURES) || !is_silent {
            return false;
        }
        let before = self.now.take();
        let since_ms = before.as_ref().map_or_else(now_ms, |(before, _)| before.since_ms);
        self.now = Some((Troubled { why: error.clone(), since_ms }, asked.clone()));
        before.is_none()
    }

    /// Takes note of an answer; `true` when trouble ends.
    pub(super) fn answered(&mut self, now: Instant) -> bool {
        self.answered = Some(now);
        self.now.take().is_some()
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::super::error::{OriginErrorKind, Target};
    use super::*;

    #[test]
    fn trouble_begins_when_nothing_is_answered_and_ends_with_the_first_answer() {
        let error = error(OriginErrorKind::Refused);
        let mut trouble = Trouble::default();
        let now = Instant::now();
        assert!(!trouble.failed(&error, &asked(), 3, now));
        assert!(trouble.failed(&error, &asked(), 4, now), "nothing was ever answered");
        assert!(!trouble.failed(&error, &asked(), 5, now), "told once");
        assert!(trouble.answered(now) && trouble.now().is_none());
        assert!(!trouble.failed(&error, &asked(), 9, now), "others are answered");
        assert!(trouble.failed(&error, &asked(), 9, now + SILENCE));
    }

    #[test]
    fn what_waiting_does_not_cure_is_trouble_at_once_and_keeps_its_beginning() {
        let (mut trouble, now) = (Trouble::default(), Instant::now());
        assert!(trouble.failed(&error(OriginErrorKind::AccessDenied), &asked(), 1, now));
        let begun = trouble.now().unwrap().since_ms;
        assert!(!trouble.failed(&error(OriginErrorKind::Credentials), &asked(), 1, now));
        let later = trouble.now().unwrap();
        assert_eq!((later.why.kind(), later.since_ms), (OriginErrorKind::Credentials, begun));
    }

    fn asked() -> Asked {
        Asked::Get(ObjectVersion { key: "k".to_owned(), etag: String::new(), size: 1 })
    }

    fn error(kind: OriginErrorKind) -> OriginError {
        let target = Target { endpoint: "e".into(), bucket: "b".into(), key_id_tail: None };
        OriginError::new(kind, Request::Get, target, "k", String::new(), 1)
    }
}
