//! Which objects cannot be read, and why?
//!
//! One changed, deleted or denied object must not be asked for again by every read. A *final* failure (the object of
//! this version no longer exists at the origin) holds for the life of the process; a *lasting* one (access denied,
//! archived) is tried again after 30 s, since a user can cure it. Transient failures are not remembered.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_api::ids::ContentId;

use super::error::FetchError;

/// How many failed objects are remembered; the oldest is forgotten first and would be asked for again.
/// A million objects all denied must not fill the memory: 65,536 entries with their reasons are about 16 MiB.
pub const MAX_FAILURES: usize = 65_536;

/// After this a lasting failure is tried again: a cured credential shows within half a minute, and a denied object
/// costs the origin two requests a minute at most.
pub const RETRY_AFTER: Duration = Duration::from_secs(30);

/// How long a failure holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Nothing will bring this version of the object back.
    Final,
    /// Someone may cure it: ask again after [`RETRY_AFTER`].
    Lasting,
}

/// One failed object.
#[derive(Debug, Clone)]
pub struct Failure {
    /// How long it holds.
    pub hold: Hold,
    /// What readers are told.
    pub error: Arc<FetchError>,
    /// As shown in the mount.
    pub path: Arc<str>,
    /// When it was seen.
    pub since: Instant,
    /// When it was seen, milliseconds since 1970.
    pub at_ms: u64,
}

/// The failed objects, bounded by [`MAX_FAILURES`].
#[derive(Debug, Default)]
pub struct Failures {
    by_object: HashMap<ContentId, Failure>,
    oldest_first: VecDeque<ContentId>,
    bound: Option<usize>,
}

impl Failures {
    /// Remembers a failure; true where the object was not known as failed.
    pub fn record(&mut self, object: ContentId, failure: Failure) -> bool {
        let is_new = self.by_object.insert(object, failure).is_none();
        if is_new {
            self.oldest_first.push_back(object);
            while self.by_object.len() > self.bound.unwrap_or(MAX_FAILURES) {
                let Some(oldest) = self.oldest_first.pop_front() else { break };
                self.by_object.remove(&oldest);
            }
        }
        is_new
    }

    /// Why a read of this object fails at once; `None` where it may be asked for.
    pub fn refusal(&self, object: &ContentId, now: Instant) -> Option<&Failure> {
        let failure = self.by_object.get(object)?;
        let is_over = failure.hold == Hold::Lasting && now.duration_since(failure.since) >= RETRY_AFTER;
        (!is_over).then_some(failure)
    }

    /// The last failure of an object, whether or not it may be asked for again.
    pub fn last(&self, object: &ContentId) -> Option<&Failure> {
        self.by_object.get(object)
    }

    /// Forgets an object's failure: it was read. True where there was one.
    pub fn clear(&mut self, object: &ContentId) -> bool {
        if self.by_object.remove(object).is_none() {
            return false;
        }
        self.oldest_first.retain(|other| other != object);
        true
    }

    /// Forgets the lasting failures of a reason. What is wrong with single objects (changed, gone) is final and stays.
    pub fn forget(&mut self, reason: &str) {
        let by_object = &mut self.by_object;
        by_object.retain(|_, failure| failure.hold == Hold::Final || failure.error.reason != reason);
        self.oldest_first.retain(|object| by_object.contains_key(object));
    }

    /// The newest failures, at most `most`, the newest last.
    pub fn newest(&self, most: usize) -> Vec<Failure> {
        let newest = self.oldest_first.iter().rev().filter_map(|id| self.by_object.get(id)).take(most);
        let mut newest: Vec<_> = newest.cloned().collect();
        newest.reverse();
        newest
    }

    /// How many objects are failed now.
    pub fn len(&self) -> usize {
        self.by_object.len()
    }

    /// Whether no object is failed.
    pub fn is_empty(&self) -> bool {
        self.by_object.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_api::wire::ErrorCode;

    fn failure(hold: Hold, since: Instant) -> Failure {
        let message = "etag differs".to_owned();
        let error =
            FetchError { code: ErrorCode::ObjectChanged, reason: "Changed", message, hold: Some(hold) };
        Failure { hold, error: Arc::new(error), path: "a".into(), since, at_ms: 0 }
    }

    #[test]
    fn a_changed_object_stays_failed_and_a_denied_one_is_tried_again() {
        let now = Instant::now();
        let (changed, denied) = (ContentId([1; 16]), ContentId([2; 16]));
        let mut failures = Failures::default();
        assert!(failures.record(changed, failure(Hold::Final, now)));
        assert!(failures.record(denied, failure(Hold::Lasting, now)));
        let later = now + RETRY_AFTER;
        assert!(failures.refusal(&denied, now + RETRY_AFTER / 2).is_some());
        assert!(failures.refusal(&denied, later).is_none());
        assert!(failures.refusal(&changed, later).is_some());
        assert!(failures.last(&denied).is_some(), "still shown until it is read");
        assert!(failures.clear(&denied) && !failures.clear(&denied));
    }

    #[test]
    fn what_is_cured_for_a_whole_source_is_forgotten_and_the_rest_is_not() {
        let now = Instant::now();
        let mut failures = Failures::default();
        failures.record(ContentId([1; 16]), failure(Hold::Final, now));
        failures.record(ContentId([2; 16]), failure(Hold::Lasting, now));
        failures.forget("AccessDenied");
        assert_eq!(failures.len(), 2);
        failures.forget("Changed");
        assert_eq!(failures.len(), 1);
        assert!(failures.last(&ContentId([1; 16])).is_some());
        assert_eq!(failures.newest(9).len(), 1);
    }

    #[test]
    fn the_oldest_failure_is_forgotten_at_the_bound() {
        let now = Instant::now();
        let mut failures = Failures { bound: Some(2), ..Failures::default() };
        for id in 1..=3 {
            failures.record(ContentId([id; 16]), failure(Hold::Final, now));
        }
        assert_eq!(failures.len(), 2);
        assert_eq!(failures.newest(20).len(), 2);
        assert!(failures.refusal(&ContentId([1; 16]), now).is_none());
        assert!(failures.refusal(&ContentId([3; 16]), now).is_some());
    }
}
