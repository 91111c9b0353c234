//! Who has said on a connection that it mounts the dataset?

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use millrace_api::ids::VersionId;
use millrace_api::mount::{Announce, Pod};
use parking_lot::Mutex;

/// One mount process, as it has announced itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Session {
    /// Name of the node.
    pub node: String,
    /// The version that it shows.
    pub version: VersionId,
    /// Pods that have it mounted, as far as they are listed.
    pub pods: Vec<Pod>,
    /// All pods that have it mounted.
    pub pod_count: u32,
    /// When the oldest of its connections announced it, milliseconds since 1970.
    pub since_ms: u64,
}

/// What was announced on the connections that are open. Bounded by the number of connections.
#[derive(Debug, Default)]
pub struct Sessions {
    announced: Mutex<HashMap<u64, Announced>>,
    next: AtomicU64,
}

#[derive(Debug)]
struct Announced {
    announce: Announce,
    since_ms: u64,
    /// Grows with every announcement: the newest of a mount process holds.
    number: u64,
}

/// One connection's place in the table; leaves it when dropped.
#[derive(Debug)]
pub(super) struct Place {
    sessions: Arc<Sessions>,
    connection: u64,
}

impl Sessions {
    /// The mount processes connected now, sorted by node and version. One with several connections counts once.
    pub fn now(&self) -> Vec<Session> {
        let announced = self.announced.lock();
        let mut newest: BTreeMap<(&str, VersionId), (&Announced, u64)> = BTreeMap::new();
        for one in announced.values() {
            let key = (one.announce.node.as_str(), one.announce.version);
            let (best, since_ms) = newest.entry(key).or_insert((one, one.since_ms));
            *since_ms = one.since_ms.min(*since_ms);
            if one.number > best.number {
                *best = one;
            }
        }
        let session = |(one, since_ms): (&Announced, u64)| {
            let Announce { node, version, pods, pod_count } = one.announce.clone();
            Session { node, version, pods, pod_count, since_ms }
        };
        newest.into_values().map(session).collect()
    }

    pub(super) fn place(self: &Arc<Self>) -> Place {
        Place { sessions: Arc::clone(self), connection: self.next.fetch_add(1, Ordering::Relaxed) }
    }
}

impl Place {
    /// Takes what was announced on the connection, in place of what was before.
    pub(super) fn announce(&self, announce: Announce) {
        let number = self.sessions.next.fetch_add(1, Ordering::Relaxed);
        let mut announced = self.sessions.announced.lock();
        let before = announced.get(&self.connection).filter(|before| {
            before.announce.node == announce.node && before.announce.version == announce.version
        });
        let since_ms = before.map_or_else(now_ms, |before| before.since_ms);
        announced.insert(self.connection, Announced { announce, since_ms, number });
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.sessions.announced.lock().remove(&self.connection);
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announce(node: &str, pods: usize) -> Announce {
        let pod = |number| Pod { namespace: "n".into(), name: format!("p-{number}"), uid: "u".into() };
        Announce::new(node.into(), VersionId([1; 16]), (0..pods).map(pod).collect())
    }

    #[test]
    fn a_mount_process_with_two_connections_counts_once_and_its_newest_word_holds() {
        let sessions = Arc::new(Sessions::default());
        let (first, second, other) = (sessions.place(), sessions.place(), sessions.place());
        first.announce(announce("b", 1));
        second.announce(announce("b", 2));
        other.announce(announce("a", 7));
        let counts = |sessions: &Sessions| -> Vec<(String, u32)> {
            sessions.now().into_iter().map(|session| (session.node, session.pod_count)).collect()
        };
        assert_eq!(counts(&sessions), [("a".to_owned(), 7), ("b".to_owned(), 2)]);
        first.announce(announce("b", 3));
        assert_eq!(counts(&sessions)[1].1, 3);
        drop(first);
        assert_eq!(counts(&sessions)[1].1, 2, "the other connection's word is what is left");
        drop((second, other));
        assert!(sessions.now().is_empty());
    }
}
