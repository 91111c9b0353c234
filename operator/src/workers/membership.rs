//! Who serves a Dataset? Pure.
//!
//! A worker is a member once it can answer for its share: it is connected and, where there is a version, has its index. A
//! member that is lost stays for a few seconds, since a process that starts again takes no longer, and moving its share costs
//! reads from S3. The last member never goes: reads wait for it.

use std::time::Duration;

use millrace_api::names;
use millrace_api::placement::{Membership, Worker};

/// How long a lost worker stays a member. A dead one is noticed within 5 s (a question every 2 s, 3 s for its answer), so that it
/// is out within 10 s.
pub const GRACE: Duration = Duration::from_secs(4);

/// A pod that runs a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The pod's name.
    pub name: String,
    /// The pod's address.
    pub ip: String,
    /// How we stand with it.
    pub state: State,
}

/// How we stand with a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It talks to us.
    Connected {
        /// Whether it has the index of the version, if there is one.
        has_index: bool,
    },
    /// It does not, and has not for this long.
    Silent(Duration),
    /// It is told to stop.
    Leaving,
}

/// What to do about the membership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// It is right.
    Keep,
    /// Too little is known; look again after this.
    Wait(Duration),
    /// The workers are others now.
    Change(Vec<Worker>),
}

/// Decides. `current` is what the workers were told last by us, `None` where we have told them nothing.
pub fn decide(current: Option<&Membership>, candidates: &[Candidate], weight: u32) -> Decision {
    let was_member = |candidate: &Candidate| {
        current.is_some_and(|current| {
            current
                .workers
                .iter()
                .any(|worker| worker.name == candidate.name && worker.address == address(candidate))
        })
    };
    let waits = candidates.iter().filter_map(|candidate| match candidate.state {
        State::Silent(since) if since < GRACE => Some(GRACE - since),
        State::Silent(_) | State::Connected { .. } | State::Leaving => None,
    });
    let wait = waits.min();
    let any_index =
        candidates.iter().any(|candidate| candidate.state == State::Connected { has_index: true });
    let members: Vec<Worker> = candidates
        .iter()
        .filter(|candidate| match candidate.state {
            // Where nobody has the index it is made, and for that they must know each other.
            State::Connected { has_index } => has_index || !any_index,
            State::Silent(since) => since < GRACE && was_member(candidate),
            State::Leaving => false,
        })
        .map(|candidate| Worker { name: candidate.name.clone(), address: address(candidate), weight })
        .collect();
    // After a start of ours: who is silent may be about to answer, and a membership without it would move its share.
    if let (None, Some(wait)) = (current, wait) {
        return Decision::Wait(wait);
    }
    let is_same = current.is_some_and(|current| same(&current.workers, &members));
    match (members.is_empty() || is_same, wait) {
        (true, Some(wait)) => Decision::Wait(wait),
        (true, None) => Decision::Keep,
        (false, _) => Decision::Change(members),
    }
}

fn address(candidate: &Candidate) -> String {
    if candidate.ip.contains(':') {
        format!("[{}]:{}", candidate.ip, names::WORKER_DATA_PORT)
    } else {
        format!("{}:{}", candidate.ip, names::WORKER_DATA_PORT)
    }
}

fn same(a: &[Worker], b: &[Worker]) -> bool {
    a.len() == b.len() && a.iter().all(|worker| b.contains(worker))
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: State = State::Connected { has_index: true };
    const BARE: State = State::Connected { has_index: false };

    fn candidates(states: &[State]) -> Vec<Candidate> {
        let candidate = |(at, state): (usize, &State)| Candidate {
            name: format!("w-{at}"),
            ip: format!("10.0.0.{at}"),
            state: *state,
        };
        states.iter().enumerate().map(candidate).collect()
    }

    fn names(decision: &Decision) -> Vec<String> {
        match decision {
            Decision::Change(workers) => workers.iter().map(|worker| worker.name.clone()).collect(),
            other => panic!("{other:?}"),
        }
    }

    fn current(states: &[State]) -> Membership {
        match decide(None, &candidates(states), 1) {
            Decision::Change(workers) => Membership { epoch: 1, workers },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn before_any_index_all_that_talk_are_members_and_later_those_that_have_it() {
        assert_eq!(names(&decide(None, &candidates(&[BARE, BARE]), 1)), ["w-0", "w-1"]);
        assert_eq!(names(&decide(None, &candidates(&[READY, BARE]), 1)), ["w-0"]);
        let one = current(&[READY]);
        assert_eq!(decide(Some(&one), &candidates(&[READY, BARE]), 1), Decision::Keep);
        assert_eq!(names(&decide(Some(&one), &candidates(&[READY, READY]), 1)), ["w-0", "w-1"]);
    }

    #[test]
    fn a_silent_member_stays_for_the_grace_and_then_goes() {
        let two = current(&[READY, READY]);
        let early = candidates(&[READY, State::Silent(Duration::from_secs(1))]);
        assert_eq!(decide(Some(&two), &early, 1), Decision::Wait(Duration::from_secs(3)));
        let late = candidates(&[READY, State::Silent(GRACE)]);
        assert_eq!(names(&decide(Some(&two), &late, 1)), ["w-0"]);
        assert_eq!(names(&decide(Some(&two), &candidates(&[READY, State::Leaving]), 1)), ["w-0"]);
    }

    #[test]
    fn the_last_member_never_goes() {
        let one = current(&[READY]);
        assert_eq!(decide(Some(&one), &candidates(&[State::Silent(GRACE)]), 1), Decision::Keep);
        assert_eq!(decide(Some(&one), &candidates(&[State::Leaving]), 1), Decision::Keep);
        assert_eq!(decide(Some(&one), &[], 1), Decision::Keep);
    }

    #[test]
    fn a_worker_that_comes_back_elsewhere_is_a_change() {
        let one = current(&[READY]);
        let mut moved = candidates(&[READY]);
        moved[0].ip = "fd00::1".into();
        match decide(Some(&one), &moved, 1) {
            Decision::Change(workers) => assert_eq!(workers[0].address, "[fd00::1]:7420"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn after_a_start_those_that_may_answer_yet_are_waited_for() {
        let silent = State::Silent(Duration::ZERO);
        assert_eq!(decide(None, &candidates(&[READY, silent]), 1), Decision::Wait(GRACE));
        assert_eq!(names(&decide(None, &candidates(&[READY, State::Silent(GRACE)]), 1)), ["w-0"]);
        assert_eq!(decide(None, &[], 1), Decision::Keep);
    }
}
