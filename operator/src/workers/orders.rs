//! What are the workers of a Dataset to do, and what has one of them not been told yet? Pure.

use millrace_api::placement::Membership;
use millrace_control::proto;

/// Versions that a worker takes at once.
const MAX_VERSIONS: usize = 16;

/// What every worker of a Dataset is to do.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Orders {
    /// Who serves; epoch 0: nothing is said yet.
    pub membership: Membership,
    /// The version to show, and how; none: there is no version yet.
    pub version: Option<Show>,
    /// What to load ahead.
    pub warm_up: Warm,
}

/// The version that new mounts get.
#[derive(Debug, Clone, PartialEq)]
pub struct Show {
    /// Its id.
    pub version: String,
    /// Where its objects are.
    pub sources: Vec<proto::Source>,
    /// How nodes mount it.
    pub mount: proto::MountSettings,
}

/// What to load ahead.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Warm {
    /// Nothing is said: what runs goes on.
    #[default]
    Leave,
    /// Nothing: what runs is stopped.
    Stop,
    /// These paths. Another id is another order, even of the same paths.
    Load {
        /// Of the order.
        id: String,
        /// Files and folders of the mount.
        paths: Vec<String>,
    },
}

/// What one worker was told since the connection began.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Told {
    /// The latest epoch that it was told of, or said.
    pub epoch: u64,
    /// The last request to use versions that it took.
    pub used: Option<proto::UseVersionsRequest>,
    /// The warm-up that it took.
    pub warmed: Option<Warmed>,
}

/// A warm-up order that a worker took.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Warmed {
    /// Of which version.
    pub version: String,
    /// In which epoch: in another the worker owns other blocks.
    pub epoch: u64,
    /// The order.
    pub order: Warm,
}

/// The request to use versions that this worker must have taken: the one to show, and those that mounts connected to it show.
pub fn use_request(orders: &Orders, status: &proto::WorkerStatus) -> Option<proto::UseVersionsRequest> {
    let show = orders.version.as_ref()?;
    let mut versions = vec![show.version.clone()];
    for session in &status.sessions {
        if versions.len() < MAX_VERSIONS && !versions.contains(&session.version) {
            versions.push(session.version.clone());
        }
    }
    Some(proto::UseVersionsRequest {
        versions,
        sources: show.sources.clone(),
        mount: Some(show.mount.clone()),
    })
}

/// The warm-up order that this worker can take now and has not taken.
pub fn warm_request(
    orders: &Orders,
    status: &proto::WorkerStatus,
    told: &Told,
) -> Option<proto::WarmRequest> {
    use proto::warm_request::Action;
    let version = &orders.version.as_ref()?.version;
    let known = status.versions.iter().find(|known| known.version == *version && known.index_ready)?;
    // One that is no member, or does not know that it is, owns nothing that it could load.
    let is_member = orders.membership.workers.iter().any(|worker| worker.name == status.worker);
    if !is_member || status.epoch != orders.membership.epoch {
        return None;
    }
    let wanted = Warmed { version: version.clone(), epoch: status.epoch, order: orders.warm_up.clone() };
    if told.warmed.as_ref() == Some(&wanted) {
        return None;
    }
    let is_running = known.warm_up.as_ref().is_some_and(|now| now.state() == proto::WarmUpState::Running);
    match &orders.warm_up {
        Warm::Leave => None,
        Warm::Stop if is_running => Some(proto::WarmRequest {
            action: Action::Cancel.into(),
            version: version.clone(),
            paths: Vec::new(),
        }),
        Warm::Stop => None,
        Warm::Load { paths, .. } => Some(proto::WarmRequest {
            action: Action::Start.into(),
            version: version.clone(),
            paths: paths.clone(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_api::placement::Worker;

    fn orders(warm_up: Warm) -> Orders {
        let show = Show { version: "v2".into(), sources: Vec::new(), mount: proto::MountSettings::default() };
        let worker = Worker { name: "w".into(), address: "h:1".into(), weight: 1 };
        Orders { membership: Membership { epoch: 3, workers: vec![worker] }, version: Some(show), warm_up }
    }

    fn status(is_ready: bool, state: proto::WarmUpState, mounted: &[&str]) -> proto::WorkerStatus {
        let warm_up = proto::WarmUp { state: state.into(), ..Default::default() };
        let version = proto::VersionStatus {
            version: "v2".into(),
            index_ready: is_ready,
            warm_up: Some(warm_up),
            ..Default::default()
        };
        let session =
            |version: &&str| proto::Session { version: (*version).to_owned(), ..Default::default() };
        proto::WorkerStatus {
            worker: "w".into(),
            epoch: 3,
            versions: vec![version],
            sessions: mounted.iter().map(session).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn versions_that_are_mounted_stay_in_use_after_the_newest() {
        let status = status(true, proto::WarmUpState::Idle, &["v1", "v2", "v1"]);
        assert_eq!(use_request(&orders(Warm::Leave), &status).unwrap().versions, ["v2", "v1"]);
        assert_eq!(use_request(&Orders::default(), &status), None);
    }

    #[test]
    fn a_warm_up_is_ordered_once_and_only_with_the_index() {
        let load = |id: &str| Warm::Load { id: id.into(), paths: vec!["/".into()] };
        let (ready, not_ready) =
            (status(true, proto::WarmUpState::Idle, &[]), status(false, proto::WarmUpState::Idle, &[]));
        let orders = orders(load("a"));
        let mut told = Told::default();
        assert_eq!(warm_request(&orders, &not_ready, &told), None);
        assert!(warm_request(&orders, &ready, &told).is_some());
        let warmed = |order, epoch| Some(Warmed { version: "v2".into(), epoch, order });
        told.warmed = warmed(load("a"), 3);
        assert_eq!(warm_request(&orders, &ready, &told), None);
        told.warmed = warmed(load("b"), 3);
        assert!(warm_request(&orders, &ready, &told).is_some());
        told.warmed = warmed(load("a"), 2);
        assert!(warm_request(&orders, &ready, &told).is_some(), "it owns other blocks now");
    }

    #[test]
    fn only_a_member_that_knows_it_loads_ahead() {
        let mut orders = orders(Warm::Load { id: "a".into(), paths: vec!["/".into()] });
        let mut ready = status(true, proto::WarmUpState::Idle, &[]);
        ready.epoch = 2;
        assert_eq!(warm_request(&orders, &ready, &Told::default()), None);
        ready.epoch = 3;
        orders.membership.workers.clear();
        assert_eq!(warm_request(&orders, &ready, &Told::default()), None);
    }

    #[test]
    fn only_a_warm_up_that_runs_is_stopped() {
        let told = Told::default();
        let running = status(true, proto::WarmUpState::Running, &[]);
        let request = warm_request(&orders(Warm::Stop), &running, &told).unwrap();
        assert_eq!(request.action(), proto::warm_request::Action::Cancel);
        let done = status(true, proto::WarmUpState::Done, &[]);
        assert_eq!(warm_request(&orders(Warm::Stop), &done, &told), None);
        assert_eq!(warm_request(&orders(Warm::Leave), &running, &told), None);
    }
}
