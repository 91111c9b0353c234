//! Is S3 in trouble, or is it only a failed request now and then?

use std::time::{Duration, Instant};

use super::error::OriginError;

/// A request has failed this often in a row: single failures are S3's everyday life.
const FAILURES: u32 = 4;
/// No request has been answered for this long: with many requests some fail often by mere chance.
const SILENCE: Duration = Duration::from_secs(1);

/// What requests are waiting for, if they are.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    why: Option<OriginError>,
    answered: Option<Instant>,
}

impl Trouble {
    /// Why requests have been failing lately.
    pub(super) fn why(&self) -> Option<OriginError> {
        self.why.clone()
    }

    /// Takes note of a failure that may pass, the `in_a_row`th of its request; `true` when trouble begins.
    pub(super) fn failed(&mut self, error: &OriginError, in_a_row: u32, now: Instant) -> bool {
        let is_silent = self.answered.is_none_or(|at| now.saturating_duration_since(at) >= SILENCE);
        if in_a_row < FAILURES || !is_silent {
            return false;
        }
        self.why.replace(error.clone()).is_none()
    }

    /// Takes note of an answer; `true` when trouble ends.
    pub(super) fn answered(&mut self, now: Instant) -> bool {
        self.answered = Some(now);
        self.why.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::error::{OriginErrorKind, Request, Target};
    use super::*;

    #[test]
    fn trouble_begins_when_nothing_is_answered_and_ends_with_the_first_answer() {
        let target = Target { endpoint: "e".into(), bucket: "b".into(), key_id_tail: None };
        let error = OriginError::new(OriginErrorKind::Refused, Request::Get, target, "k", String::new(), 1);
        let mut trouble = Trouble::default();
        let now = Instant::now();
        assert!(!trouble.failed(&error, 3, now));
        assert!(trouble.failed(&error, 4, now), "nothing was ever answered");
        assert!(!trouble.failed(&error, 5, now), "told once");
        assert!(trouble.answered(now) && trouble.why().is_none());
        assert!(!trouble.failed(&error, 9, now), "others are answered");
        assert!(trouble.failed(&error, 9, now + SILENCE));
    }
}
