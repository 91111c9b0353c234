//! What is known of a worker, and which change of it matters at once?

use millrace_control::proto;
use tokio::time::Instant;

use super::orders::Told;

/// What is known of one worker.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Its pod's name: its name in the membership.
    pub name: String,
    /// UID of its pod.
    pub pod_uid: String,
    /// Its pod's address.
    pub ip: String,
    /// Its state: what it said last, while the connection stands.
    pub status: Option<proto::WorkerStatus>,
    /// When the connection came about or was lost; when it was first tried.
    pub since: Instant,
    /// Whether there ever was a connection.
    pub was_connected: bool,
    /// Why there is none, in words for a user.
    pub trouble: Option<Trouble>,
    /// What it was told.
    pub told: Told,
    /// What it says against the version that it was told to use.
    pub complaint: Option<String>,
    /// Paths of the last warm-up order that the version does not have.
    pub unknown_paths: Vec<String>,
}

/// Why there is no connection to a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trouble {
    /// It cannot be reached.
    Unreachable(String),
    /// It does not take our key, or does not prove that it has it.
    KeyRefused(String),
}

impl Seen {
    /// A worker that was not talked to yet.
    pub fn new(name: &str, pod_uid: &str, ip: &str) -> Self {
        Self {
            name: name.to_owned(),
            pod_uid: pod_uid.to_owned(),
            ip: ip.to_owned(),
            status: None,
            since: Instant::now(),
            was_connected: false,
            trouble: None,
            told: Told::default(),
            complaint: None,
            unknown_paths: Vec::new(),
        }
    }

    /// Whether it has the index of a version.
    pub fn has_index(&self, version: &str) -> bool {
        let versions = self.status.iter().flat_map(|status| &status.versions);
        versions.into_iter().any(|known| known.version == version && known.index_ready)
    }
}

/// Whether two states differ in more than numbers that move all the time. Those can wait.
pub fn matters(old: &proto::WorkerStatus, new: &proto::WorkerStatus) -> bool {
    let plain = |status: &proto::WorkerStatus| {
        let mut status = status.clone();
        status.connections = 0;
        status.origin = None;
        if let Some(store) = &mut status.store {
            *store = proto::StoreUsage {
                not_kept: store.not_kept.iter().filter(|reason| reason.count > 0).cloned().collect(),
                ..proto::StoreUsage::default()
            };
            store.not_kept.iter_mut().for_each(|reason| reason.count = 1);
        }
        for version in &mut status.versions {
            version.cached = None;
            if let Some(warm_up) = &mut version.warm_up {
                let (state, failed) = (warm_up.state, warm_up.failed.min(1));
                *warm_up = proto::WarmUp { state, failed, ..proto::WarmUp::default() };
            }
        }
        status
    };
    plain(old) != plain(new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moving_numbers_can_wait_and_states_cannot() {
        let with = |state: proto::WarmUpState, bytes: u64| {
            let warm_up = proto::WarmUp { state: state.into(), bytes_done: bytes, ..Default::default() };
            let cached = Some(proto::Cached { bytes, ..Default::default() });
            let version = proto::VersionStatus {
                version: "v".into(),
                warm_up: Some(warm_up),
                cached,
                ..Default::default()
            };
            proto::WorkerStatus { versions: vec![version], ..Default::default() }
        };
        let running = with(proto::WarmUpState::Running, 1);
        assert!(!matters(&running, &with(proto::WarmUpState::Running, 2)));
        assert!(matters(&running, &with(proto::WarmUpState::Done, 2)));
        let mut trouble = running.clone();
        trouble.origin_trouble = Some(proto::OriginTrouble::default());
        assert!(matters(&running, &trouble));
    }
}
