//! Which conditions has a Dataset, why may they be so, and when has one changed?

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The spec has no problem.
pub const ACCEPTED: &str = "Accepted";
/// The buckets are listed: there is a version.
pub const INDEXED: &str = "Indexed";
/// The dataset can be mounted and read. Does not wait for the warm-up.
pub const READY: &str = "Ready";
/// The paths to warm are loaded.
pub const WARM: &str = "Warm";
/// Something is lost or slow, although the dataset can be read.
pub const DEGRADED: &str = "Degraded";

/// The Dataset is deleted, and waits for those who have it mounted.
pub const TERMINATING: &str = "Terminating";

/// Reasons of conditions. Part of the interface: a reason keeps its meaning.
pub mod reason {
    /// `Accepted`: no problem was found.
    pub const VALID: &str = "Valid";
    /// `Accepted`: a field has a value that cannot be; the message names it.
    pub const INVALID: &str = "Invalid";
    /// `Indexed`: the buckets are being listed.
    pub const LISTING: &str = "Listing";
    /// `Indexed`: the buckets were listed.
    pub const LISTED: &str = "Listed";
    /// `Indexed`: the buckets cannot be listed; the message says why.
    pub const LISTING_FAILED: &str = "ListingFailed";
    /// `Ready`: workers serve; the message says how many.
    pub const SERVING: &str = "Serving";
    /// `Ready`, `Indexed` and `Warm`: not enough workers serve yet.
    pub const WAITING_FOR_WORKERS: &str = "WaitingForWorkers";
    /// `Ready` and `Warm`: there is no version yet.
    pub const WAITING_FOR_INDEX: &str = "WaitingForIndex";
    /// `Warm`: the warm-up runs.
    pub const WARMING: &str = "Warming";
    /// `Warm`: all paths are loaded.
    pub const WARMED: &str = "Warmed";
    /// `Warm`: the warm-up ended without some of the objects.
    pub const OBJECTS_FAILED: &str = "ObjectsFailed";
    /// `Warm`: the spec asks for none.
    pub const NOT_ASKED_FOR: &str = "NotAskedFor";
    /// `Warm`: the quotas of all workers hold less than the paths to warm.
    pub const CACHE_TOO_SMALL: &str = "CacheTooSmall";
    /// `Degraded`: nothing is lost or slow.
    pub const HEALTHY: &str = "Healthy";
    /// `Degraded`: objects changed in the bucket since the listing; the message says how many.
    pub const OBJECTS_CHANGED: &str = "ObjectsChanged";
    /// `Degraded`: objects are as they were listed, and cannot be read: denied or archived; the message says how many and why.
    pub const OBJECTS_UNREADABLE: &str = "ObjectsUnreadable";
    /// `Degraded`: the bucket does not answer.
    pub const ORIGIN_UNAVAILABLE: &str = "OriginUnavailable";
    /// `Degraded`: a worker cannot write its tiers and serves without caching.
    pub const STORE_FAILED: &str = "StoreFailed";
    /// `Ready`: an object that we need has the name of one that is not ours; the message names it.
    pub const NAME_CONFLICT: &str = "NameConflict";
    /// `Ready`: a ResourceQuota of the namespace keeps workers from being created.
    pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
    /// `Ready`: a LimitRange of the namespace keeps workers from being created.
    pub const LIMIT_RANGE: &str = "LimitRange";
    /// `Ready`: Pod Security of the namespace keeps workers from being created.
    pub const POD_SECURITY: &str = "PodSecurity";
    /// `Ready`: the API server refuses workers, or an object of ours, for another reason.
    pub const REFUSED: &str = "Refused";
    /// `Ready`: no node takes a worker.
    pub const UNSCHEDULABLE: &str = "Unschedulable";
    /// `Ready`: a worker's image cannot be pulled.
    pub const IMAGE_PULL: &str = "ImagePull";
    /// `Ready`: a worker ends again and again, or its container cannot be made.
    pub const WORKER_CRASHES: &str = "WorkerCrashes";
    /// `Ready`: a worker does not take our key, or is none of ours.
    pub const KEY_REFUSED: &str = "KeyRefused";
    /// `Ready`: the claim is not bound to the volume yet.
    pub const WAITING_FOR_VOLUME: &str = "WaitingForVolume";
    /// `Ready`: the spec asks for no worker.
    pub const NO_WORKERS: &str = "NoWorkers";
    /// `Ready`: the Dataset is being deleted.
    pub const DELETING: &str = "Deleting";
    /// `Terminating`: pods have it mounted; the message says which.
    pub const WAITING_FOR_PODS: &str = "WaitingForPods";
    /// `Terminating`: what was made for it is being removed.
    pub const REMOVING: &str = "Removing";
    /// `Degraded`: a change waits for the user's word, since the workers' caches would go with their pods.
    pub const ROLL_PENDING: &str = "RollPending";
    /// `Degraded`: workers are restarted one at a time.
    pub const ROLLING: &str = "Rolling";
    /// `Degraded`: fewer workers serve than the spec asks for.
    pub const WORKERS_MISSING: &str = "WorkersMissing";
}

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// It does.
    True,
    /// It does not.
    False,
    /// It is not known.
    Unknown,
}

impl Holds {
    /// As in [`Condition::status`].
    pub fn as_str(self) -> &'static str {
        match self {
            Holds::True => "True",
            Holds::False => "False",
            Holds::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Holds {
    fn from(holds: bool) -> Self {
        if holds { Holds::True } else { Holds::False }
    }
}

/// The reason of `Degraded` where objects cannot be read, by the kinds of their failures: where one has changed a new listing
/// helps, else it does not.
pub fn of_lost_objects<'a>(kinds: impl IntoIterator<Item = &'a str>) -> &'static str {
    let mut kinds = kinds.into_iter().peekable();
    let is_unknown = kinds.peek().is_none();
    if is_unknown || kinds.any(|kind| matches!(kind, "Changed" | "NoSuchKey" | "")) {
        return reason::OBJECTS_CHANGED;
    }
    reason::OBJECTS_UNREADABLE
}

/// What is to be said of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// One of the types above.
    pub kind: &'static str,
    /// Whether it holds.
    pub holds: Holds,
    /// One of [`reason`].
    pub reason: &'static str,
    /// For people.
    pub message: String,
}

/// Puts a verdict into the list of conditions, and says whether that changed anything. The time of transition is `now` only
/// where the condition is new or holds otherwise than before.
pub fn set(conditions: &mut Vec<Condition>, verdict: Verdict, generation: Option<i64>, now: &Time) -> bool {
    let Verdict { kind, holds, reason, message } = verdict;
    let old = conditions.iter().position(|condition| condition.type_ == kind);
    let last_transition_time = old
        .and_then(|at| conditions.get(at))
        .filter(|condition| condition.status == holds.as_str())
        .map_or_else(|| now.clone(), |condition| condition.last_transition_time.clone());
    let new = Condition {
        type_: kind.to_owned(),
        status: holds.as_str().to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: generation,
        last_transition_time,
    };
    match old.and_then(|at| conditions.get_mut(at)) {
        Some(old) if *old == new => false,
        Some(old) => {
            *old = new;
            true
        }
        None => {
            conditions.push(new);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Time {
        Time(k8s_openapi::jiff::Timestamp::from_second(second).unwrap())
    }

    fn ready(holds: Holds, message: &str) -> Verdict {
        Verdict { kind: READY, holds, reason: reason::WAITING_FOR_WORKERS, message: message.into() }
    }

    #[test]
    fn time_of_transition_moves_only_with_the_status() {
        let mut conditions = Vec::new();
        assert!(set(&mut conditions, ready(Holds::False, "0 of 3"), Some(1), &at(1)));
        assert!(set(&mut conditions, ready(Holds::False, "2 of 3"), Some(1), &at(2)));
        assert_eq!((conditions[0].message.as_str(), &conditions[0].last_transition_time), ("2 of 3", &at(1)));
        assert!(set(&mut conditions, ready(true.into(), ""), Some(2), &at(3)));
        assert_eq!((conditions[0].status.as_str(), &conditions[0].last_transition_time), ("True", &at(3)));
        assert_eq!((conditions.len(), conditions[0].observed_generation), (1, Some(2)));
    }

    #[test]
    fn only_where_an_object_changed_a_new_listing_is_what_helps() {
        for kinds in [&["Changed"][..], &["AccessDenied", "NoSuchKey"], &[""], &[]] {
            assert_eq!(of_lost_objects(kinds.iter().copied()), "ObjectsChanged", "{kinds:?}");
        }
        assert_eq!(of_lost_objects(["AccessDenied", "Archived"]), "ObjectsUnreadable");
    }

    #[test]
    fn the_same_verdict_twice_changes_nothing() {
        let mut conditions = Vec::new();
        set(&mut conditions, ready(Holds::Unknown, "x"), None, &at(1));
        let before = conditions.clone();
        assert!(!set(&mut conditions, ready(Holds::Unknown, "x"), None, &at(9)));
        assert_eq!(conditions, before);
    }

    #[test]
    fn conditions_of_others_are_left_alone() {
        let mut conditions = Vec::new();
        set(&mut conditions, ready(Holds::True, ""), None, &at(1));
        conditions[0].type_ = "Other".into();
        assert!(set(&mut conditions, ready(Holds::True, ""), None, &at(2)));
        assert_eq!(conditions.len(), 2);
    }
}
