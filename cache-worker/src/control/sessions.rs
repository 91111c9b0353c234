//! Who mounts the dataset, as the control port tells it?

use millrace_control::proto;
use millrace_transport::server::Session;

/// Sessions in a status: nodes of a large cluster.
const MAX_SESSIONS: usize = 1024;

/// Pods in a status, over all sessions; about 150 bytes each.
const MAX_PODS: usize = 4096;

/// The sessions of a status and how many there are in all.
pub(super) fn sessions(now: Vec<Session>) -> (Vec<proto::Session>, u32) {
    let count = now.len() as u32;
    let mut room = MAX_PODS;
    let told = now.into_iter().take(MAX_SESSIONS).map(|session| {
        let Session { node, version, pods, pod_count, since_ms } = session;
        let pods: Vec<_> = pods.iter().take(room).map(proto::Pod::from).collect();
        room -= pods.len();
        proto::Session { node, version: version.to_string(), pods, pod_count, since_ms }
    });
    (told.collect(), count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_api::ids::VersionId;
    use millrace_api::mount::Pod;

    #[test]
    fn what_is_listed_is_bounded_and_all_is_counted() {
        let pod = |number| Pod { namespace: "n".into(), name: format!("p{number}"), uid: "u".into() };
        let session = |number| Session {
            node: format!("node-{number:04}"),
            version: VersionId([1; 16]),
            pods: (0..5).map(pod).collect(),
            pod_count: 5,
            since_ms: 1,
        };
        let (told, count) = sessions((0..2000).map(session).collect());
        assert_eq!((told.len(), count), (MAX_SESSIONS, 2000));
        assert_eq!(told.iter().map(|session| session.pods.len()).sum::<usize>(), MAX_PODS);
        assert!(told.iter().all(|session| session.pod_count == 5));
    }
}
