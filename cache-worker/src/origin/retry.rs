//! Is a failed request tried again, and when?
//!
//! This is the one layer that retries requests to S3; the SDK's own is off.

use std::time::Duration;

use tokio::time::Instant;

use super::error::OriginErrorKind as Kind;

/// The first pause is up to this long.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// No pause is longer, so that reads go on within a second or two of an outage's end.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// The same for a server that asks us to slow down: the window has already done what it asks for.
const LONGEST_PAUSE_OF_THROTTLED: Duration = Duration::from_millis(500);
/// A read's usual deadline of 120 s ends the tries long before this does.
const MAX_TRIES: u32 = 512;
/// A wrong answer is worth a second look (a proxy's mistake passes), no more.
const MAX_TRIES_OF_WRONG_ANSWERS: u32 = 4;

/// What can be done about a failure besides waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Remedy {
    /// We have gone to the region that the answer named.
    pub went_to_region: bool,
    /// There are other credentials than those that were refused.
    pub has_new_credentials: bool,
}

/// How a request has gone so far.
#[derive(Debug, Clone)]
pub(super) struct Retry {
    deadline: Instant,
    tries: u32,
    /// Failures since anything was received; decides how long the next pause is.
    in_a_row: u32,
    wrong_answers: u32,
    skews: u32,
    regions: u32,
    sent_with: u64,
    last: Option<(Kind, String)>,
}

impl Retry {
    pub(super) fn new(deadline: Instant) -> Self {
        Self {
            deadline,
            tries: 0,
            in_a_row: 0,
            wrong_answers: 0,
            skews: 0,
            regions: 0,
            sent_with: 0,
            last: None,
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// How often it was tried.
    pub(super) fn tries(&self) -> u32 {
        self.tries
    }

    /// How often it has failed since anything was received.
    pub(super) fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    /// Takes note of which credentials the next try is made with.
    pub(super) fn sent_with(&mut self, generation: u64) {
        self.sent_with = generation;
    }

    /// Which credentials the last try was made with.
    pub(super) fn was_sent_with(&self) -> u64 {
        self.sent_with
    }

    /// Takes note of bytes that arrived: what comes next is a new failure, not the same.
    pub(super) fn progressed(&mut self) {
        self.in_a_row = 0;
        self.last = None;
    }

    /// What to tell of a failure: a try that only the deadline cut off says less than the one before it.
    pub(super) fn cause(&mut self, kind: Kind, said: String, now: Instant) -> (Kind, String) {
        match self.last.take() {
            Some(last) if kind == Kind::TimedOut && now >= self.deadline => last,
            _ => {
                self.last = Some((kind, said.clone()));
                (kind, said)
            }
        }
    }

    /// Takes note of a failure and says how long to pause before the next try; `None` is the end of it.
    ///
    /// `chance` is a random number from 0 to 1.
    pub(super) fn pause(
        &mut self,
        kind: Kind,
        remedy: Remedy,
        chance: f64,
        now: Instant,
    ) -> Option<Duration> {
        self.tries += 1;
        self.in_a_row += 1;
        let pause = match kind {
            _ if kind.is_transient() => {
                let cap = if kind == Kind::Throttled { LONGEST_PAUSE_OF_THROTTLED } else { LONGEST_PAUSE };
                let longest = FIRST_PAUSE.saturating_mul(1 << self.in_a_row.min(8)).min(cap);
                // At least a quarter, so that a crowd of readers of a broken server does not turn into a busy loop.
                longest.mul_f64(0.25 + 0.75 * chance)
            }
            Kind::WrongRange | Kind::Unexpected => {
                self.wrong_answers += 1;
                (self.wrong_answers < MAX_TRIES_OF_WRONG_ANSWERS).then_some(FIRST_PAUSE)?
            }
            // The SDK has learned the server's time from its answer, and signs the next request by it.
            Kind::ClockSkew => {
                self.skews += 1;
                (self.skews < 2).then_some(Duration::ZERO)?
            }
            Kind::Region if remedy.went_to_region => {
                self.regions += 1;
                (self.regions < 3).then_some(Duration::ZERO)?
            }
            _ if kind.is_about_credentials() && remedy.has_new_credentials => Duration::ZERO,
            _ => return None,
        };
        (self.tries < MAX_TRIES && now + pause < self.deadline).then_some(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATER: Duration = Duration::from_secs(120);

    #[test]
    fn an_outage_is_waited_out_up_to_the_deadline_with_pauses_of_at_most_two_seconds() {
        let start = Instant::now();
        let mut retry = Retry::new(start + LATER);
        let mut now = start;
        while let Some(pause) = retry.pause(Kind::Refused, Remedy::default(), 1.0, now) {
            assert!(pause <= LONGEST_PAUSE);
            now += pause;
        }
        assert!(now > start + LATER - LONGEST_PAUSE, "{:?}", now - start);
    }

    #[test]
    fn what_waiting_does_not_cure_ends_at_once() {
        for kind in Kind::ALL.into_iter().filter(|kind| !kind.is_transient()) {
            let mut retry = Retry::new(Instant::now() + LATER);
            let tries =
                (1..).find(|_| retry.pause(kind, Remedy::default(), 0.5, Instant::now()).is_none()).unwrap();
            assert!(tries <= MAX_TRIES_OF_WRONG_ANSWERS, "{kind} {tries}");
        }
    }

    #[test]
    fn a_region_and_new_credentials_are_tried_at_once_but_not_for_ever() {
        let mut retry = Retry::new(Instant::now() + LATER);
        let region = Remedy { went_to_region: true, ..Remedy::default() };
        assert_eq!(retry.pause(Kind::Region, region, 1.0, Instant::now()), Some(Duration::ZERO));
        assert_eq!(retry.pause(Kind::Region, region, 1.0, Instant::now()), Some(Duration::ZERO));
        assert_eq!(retry.pause(Kind::Region, region, 1.0, Instant::now()), None);
        let keys = Remedy { has_new_credentials: true, ..Remedy::default() };
        assert_eq!(retry.pause(Kind::ExpiredToken, keys, 1.0, Instant::now()), Some(Duration::ZERO));
        assert_eq!(retry.pause(Kind::ExpiredToken, Remedy::default(), 1.0, Instant::now()), None);
    }

    #[test]
    fn progress_shortens_the_next_pause() {
        let mut retry = Retry::new(Instant::now() + LATER);
        for _ in 0..5 {
            retry.pause(Kind::Reset, Remedy::default(), 1.0, Instant::now());
        }
        retry.progressed();
        assert_eq!(retry.pause(Kind::Reset, Remedy::default(), 1.0, Instant::now()), Some(FIRST_PAUSE * 2));
    }
}
