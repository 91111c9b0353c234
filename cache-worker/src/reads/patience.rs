//! Is a read whose fetch has failed tried again?
//!
//! That goes by whether waiting can help:
//!
//! | what failed | tried again |
//! |---|---|
//! | The origin contradicts the index: the object changed, is gone, or archived. | No. The failure is remembered, so that the next read fails at once. |
//! | The origin refuses us: denied, unknown bucket, no trusted TLS. | No. Remembered for 30 s, since a user can cure it. |
//! | The origin cannot be had: no connection, cut off, silent, throttled, 5xx. | Until the reader's deadline. |
//! | The origin answers wrongly: another range or length than was asked for, or nothing that S3 says. | By the owner [`MAX_WRONG_ANSWERS`] times over some seconds, which a proxy's mistake does not outlast; by other workers, whom a reader asks after that, not again. Then remembered for 30 s. |
//! | This worker stops, or is itself at fault. | No: the reader asks another worker. |
//!
//! Each time is already several tries (see `origin::retry`).

use std::time::Duration;

use millrace_api::wire::ErrorCode;
use millrace_store::Class;

use super::error::FetchError;
use super::failures::Hold;

/// Requests of one read that may end with a wrong answer, each being four tries: a proxy that is wrong every other time fails
/// one read in a million.
pub const MAX_WRONG_ANSWERS: u32 = 5;

/// Between two tries of a read whose fetch failed for a reason that may pass. The origin has itself waited between its
/// tries; this only keeps a fault of ours from turning in circles.
const PAUSE: Duration = Duration::from_millis(100);

/// After the first wrong answer; doubled after each further one, 3.75 s in all.
const FIRST_PAUSE_OF_WRONG_ANSWERS: Duration = Duration::from_millis(250);

/// What becomes of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// It is tried again after this long.
    Again(Duration),
    /// It fails.
    Fail,
    /// It fails, and so do other reads of the object for a while.
    Hold(Hold),
}

/// How often the origin has answered one read wrongly since it was last right.
#[derive(Debug, Default)]
pub struct Patience {
    wrong_answers: u32,
}

impl Patience {
    /// Decides after a failure of a read whose block this worker keeps as `class`.
    pub fn next(&mut self, error: &FetchError, class: Class) -> Next {
        if error.hold.is_some() || matches!(error.code, ErrorCode::Stopping | ErrorCode::Internal) {
            return Next::Fail;
        }
        if !error.is_wrong_answer() {
            return Next::Again(PAUSE);
        }
        self.wrong_answers += 1;
        let most = match class {
            Class::Owned => MAX_WRONG_ANSWERS,
            Class::ReadThrough => 1,
        };
        if self.wrong_answers >= most {
            return Next::Hold(Hold::Lasting);
        }
        Next::Again(FIRST_PAUSE_OF_WRONG_ANSWERS * 2_u32.pow(self.wrong_answers - 1))
    }

    /// Takes note of chunks that came.
    pub fn progressed(&mut self) {
        self.wrong_answers = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: ErrorCode, reason: &'static str, hold: Option<Hold>) -> FetchError {
        FetchError { code, reason, message: String::new(), hold }
    }

    /// How often a read is tried again and how long that takes; `None` where there is no end to it.
    fn tried(error: &FetchError, class: Class) -> Option<(u32, Duration, Next)> {
        let (mut patience, mut times, mut whole) = (Patience::default(), 0, Duration::ZERO);
        while times < 1000 {
            match patience.next(error, class) {
                Next::Again(pause) => (times, whole) = (times + 1, whole + pause),
                end => return Some((times, whole, end)),
            }
        }
        None
    }

    #[test]
    fn an_outage_is_waited_for_and_what_waiting_does_not_cure_is_not() {
        let outage = error(ErrorCode::OriginUnavailable, "Refused", None);
        assert_eq!(tried(&outage, Class::Owned), None);
        assert_eq!(tried(&outage, Class::ReadThrough), None);
        for error in [
            error(ErrorCode::ObjectChanged, "Changed", Some(Hold::Final)),
            error(ErrorCode::OriginDenied, "AccessDenied", Some(Hold::Lasting)),
            FetchError::stopping(),
            FetchError::no_source("a"),
        ] {
            assert_eq!(tried(&error, Class::Owned), Some((0, Duration::ZERO, Next::Fail)), "{error:?}");
        }
    }

    #[test]
    fn wrong_answers_are_heard_out_for_some_seconds_by_the_owner_alone() {
        for reason in ["WrongRange", "Unexpected"] {
            let wrong = error(ErrorCode::OriginUnavailable, reason, None);
            let held = Next::Hold(Hold::Lasting);
            let owned = (MAX_WRONG_ANSWERS - 1, Duration::from_millis(3750), held);
            assert_eq!(tried(&wrong, Class::Owned), Some(owned));
            assert_eq!(tried(&wrong, Class::ReadThrough), Some((0, Duration::ZERO, held)));
        }
    }

    #[test]
    fn a_right_answer_makes_up_for_wrong_ones() {
        let wrong = error(ErrorCode::OriginUnavailable, "WrongRange", None);
        let mut patience = Patience::default();
        for _ in 0..100 {
            assert!(matches!(patience.next(&wrong, Class::Owned), Next::Again(_)));
            patience.progressed();
        }
    }
}
