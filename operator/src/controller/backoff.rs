//! When is something tried again that was refused? Less and less often, and at once when what it was refused for is another. Pure.

use std::time::Duration;

use millrace_api::dataset::spec::Dataset;
use serde_json::json;
use tokio::time::Instant;

use crate::build::hash_of;

/// How often something is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// From the first try to the second; doubled from try to try.
    pub first: Duration,
    /// At most.
    pub longest: Duration,
}

/// Tries of one thing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backoff {
    subject: String,
    tries: u32,
    last: Option<Instant>,
}

impl Backoff {
    /// How long to wait for the next try: zero, where it is due. `subject` is all that a refusal could depend on.
    pub fn left(&self, subject: &str, pace: Pace, now: Instant) -> Duration {
        match self.last {
            Some(last) if self.subject == subject => {
                let doublings = self.tries.saturating_sub(1).min(20);
                let pause = pace.first.saturating_mul(1 << doublings).min(pace.longest);
                pause.saturating_sub(now.saturating_duration_since(last))
            }
            Some(_) | None => Duration::ZERO,
        }
    }

    /// It was tried.
    pub fn tried(&mut self, subject: &str, now: Instant) {
        if self.subject != subject {
            *self = Self { subject: subject.to_owned(), ..Self::default() };
        }
        self.tries = self.tries.saturating_add(1);
        self.last = Some(now);
    }
}

/// All of a Dataset that its user writes. Who has cured something of which no watch tells has it tried at once by an annotation.
pub fn wish(dataset: &Dataset) -> String {
    let generation = dataset.metadata.generation.unwrap_or(0);
    format!("{generation} {}", hash_of(&json!(dataset.metadata.annotations)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Pace = Pace { first: Duration::from_secs(5), longest: Duration::from_secs(60) };

    #[test]
    fn it_is_tried_less_and_less_often_and_never_given_up() {
        let (mut backoff, mut now) = (Backoff::default(), Instant::now());
        assert_eq!(backoff.left("a", PACE, now), Duration::ZERO);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            backoff.tried("a", now);
            let left = backoff.left("a", PACE, now);
            pauses.push(left.as_secs());
            now += left;
            assert_eq!(backoff.left("a", PACE, now), Duration::ZERO);
        }
        assert_eq!(pauses, [5, 10, 20, 40, 60, 60]);
        (0..100).for_each(|_| backoff.tried("a", now));
        assert_eq!(backoff.left("a", PACE, now), PACE.longest);
    }

    #[test]
    fn another_subject_is_tried_at_once_and_begins_anew() {
        let (mut backoff, now) = (Backoff::default(), Instant::now());
        (0..5).for_each(|_| backoff.tried("a", now));
        assert_eq!(backoff.left("b", PACE, now), Duration::ZERO);
        backoff.tried("b", now);
        assert_eq!(backoff.left("b", PACE, now), PACE.first);
    }
}
