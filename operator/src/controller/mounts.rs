//! Who has a Dataset mounted? Pure: what the workers say of the mount processes that are connected to them, all together.

use std::collections::{BTreeMap, BTreeSet};

use millrace_api::dataset::status::MountsStatus;
use millrace_control::proto;

/// Pods that are named in a message.
const NAMED: usize = 5;

/// Nodes, and the pods on each.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Mounts {
    nodes: BTreeMap<String, BTreeSet<(String, String)>>,
    pods: u64,
}

/// Merges what the workers say. A mount process is connected to every worker, and says the same to each.
pub fn merge<'a>(workers: impl IntoIterator<Item = &'a proto::WorkerStatus>) -> Mounts {
    let mut sessions: BTreeMap<(&str, &str), &proto::Session> = BTreeMap::new();
    for session in workers.into_iter().flat_map(|worker| &worker.sessions) {
        let place = sessions.entry((&session.node, &session.version)).or_insert(session);
        // The newest to be told is the one that knows most.
        if session.pod_count > place.pod_count {
            *place = session;
        }
    }
    let mut mounts = Mounts::default();
    for ((node, _), session) in sessions {
        mounts.pods += u64::from(session.pod_count);
        let pods = mounts.nodes.entry(node.to_owned()).or_default();
        pods.extend(session.pods.iter().map(|pod| (pod.namespace.clone(), pod.name.clone())));
    }
    mounts
}

impl Mounts {
    /// Numbers for the status.
    pub fn status(&self) -> MountsStatus {
        let small = |value: u64| i32::try_from(value).unwrap_or(i32::MAX);
        MountsStatus { nodes: small(self.nodes.len() as u64), pods: small(self.pods) }
    }

    /// Whether nobody has it mounted.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// `2 pods on 1 node: n1 (vision/a, vision/b)`.
    pub fn text(&self) -> String {
        let mut left = NAMED;
        let nodes: Vec<String> = self
            .nodes
            .iter()
            .take(NAMED)
            .map(|(node, pods)| {
                let named: Vec<String> =
                    pods.iter().take(left).map(|(namespace, name)| format!("{namespace}/{name}")).collect();
                left = left.saturating_sub(named.len());
                format!("{node} ({})", named.join(", "))
            })
            .collect();
        let count = self.nodes.len();
        let more = if count > NAMED { ", ..." } else { "" };
        format!(
            "{} pod{} on {count} node{}: {}{more}",
            self.pods,
            if self.pods == 1 { "" } else { "s" },
            if count == 1 { "" } else { "s" },
            nodes.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(node: &str, version: &str, pods: &[&str]) -> proto::Session {
        let pod =
            |name: &&str| proto::Pod { namespace: "ns".into(), name: (*name).into(), uid: String::new() };
        proto::Session {
            node: node.into(),
            version: version.into(),
            pods: pods.iter().map(pod).collect(),
            pod_count: pods.len() as u32,
            since_ms: 0,
        }
    }

    #[test]
    fn what_several_workers_say_of_one_mount_counts_once() {
        let worker = |sessions: Vec<proto::Session>| proto::WorkerStatus { sessions, ..Default::default() };
        let a = worker(vec![session("n1", "v", &["a", "b"]), session("n2", "v", &["c"])]);
        let b = worker(vec![session("n1", "v", &["a"]), session("n1", "old", &["d"])]);
        let mounts = merge([&a, &b]);
        assert_eq!(mounts.status(), MountsStatus { nodes: 2, pods: 4 });
        assert_eq!(mounts.text(), "4 pods on 2 nodes: n1 (ns/a, ns/b, ns/d), n2 (ns/c)");
        assert!(merge([]).is_empty());
    }
}
