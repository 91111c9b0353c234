//! Is a worker there, and on which connection should it be asked?
//!
//! A link has a few connections, opened when the worker is first wanted and kept open from then on: one that breaks is
//! tried again in the background, so that no read waits for a worker known to be dead.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use millrace_api::mount::Announce;
use millrace_api::placement::Worker;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::connection::{Connection, Converse};
use super::greet::{self, Greet};
use super::receive::Receiver;
use super::{Inner, trouble};
use crate::Priority;

/// First wait after a connection that could not be opened; doubles each time.
const FIRST_BACKOFF: Duration = Duration::from_millis(100);

/// Longest wait between attempts: a worker that comes back is used within this.
const MAX_BACKOFF: Duration = Duration::from_secs(2);

/// A connection that lived this long was a good one: the next attempt comes at once.
const GOOD_LIFE: Duration = Duration::from_secs(1);

/// One worker and the connections to it.
#[derive(Debug)]
pub(super) struct Link {
    pub worker: Worker,
    pub name: Arc<str>,
    state: Mutex<State>,
    is_started: AtomicBool,
    retired: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    connections: Vec<Option<Arc<Connection>>>,
    /// What was last wrong; none before the first attempt has ended.
    trouble: Option<String>,
    /// UID of the worker's pod, as it said last; empty where it has not, or is none.
    pod_uid: String,
}

/// Whether a worker can be asked now.
#[derive(Debug)]
pub(super) enum Pick {
    /// On this connection.
    Ask(Arc<Connection>),
    /// Perhaps soon: it is being connected to for the first time, or has too many requests in flight.
    Wait,
    /// It cannot be reached; for the reader's last words.
    Down(String),
}

impl Link {
    pub(super) fn new(worker: Worker, connections: usize) -> Self {
        let name = worker.name.as_str().into();
        let state = State { connections: vec![None; connections.max(1)], ..State::default() };
        let (is_started, retired) = (AtomicBool::new(false), CancellationToken::new());
        Self { worker, name, state: Mutex::new(state), is_started, retired }
    }

    /// The least loaded connection that is alive.
    pub(super) fn pick(self: &Arc<Self>, client: &Arc<Inner>, priority: Priority) -> Pick {
        if self.start(client) {
            return Pick::Wait;
        }
        let state = self.state.lock();
        let up = state.connections.iter().flatten();
        let alive = up.clone().filter(|connection| !connection.is_silent());
        let Some(best) = alive.min_by_key(|connection| connection.load()) else {
            return match (&state.trouble, up.count()) {
                (_, 1..) => Pick::Down("it is silent".to_owned()),
                (Some(trouble), 0) => Pick::Down(trouble.clone()),
                (None, 0) => Pick::Wait,
            };
        };
        if best.has_room(priority) { Pick::Ask(Arc::clone(best)) } else { Pick::Wait }
    }

    /// Opens the connections, and keeps them open from then on; false where that has been done.
    pub(super) fn start(self: &Arc<Self>, client: &Arc<Inner>) -> bool {
        if self.is_started.load(Ordering::Relaxed) || self.is_started.swap(true, Ordering::Relaxed) {
            return false;
        }
        let slots = self.state.lock().connections.len();
        for slot in 0..slots {
            client.spawn(keep_connected(Arc::clone(self), slot, Arc::downgrade(client)));
        }
        true
    }

    /// Whether the worker was wanted and cannot be reached; `None` while nobody has wanted it.
    pub(super) fn is_down(&self) -> Option<bool> {
        if !self.is_started.load(Ordering::Relaxed) {
            return None;
        }
        let state = self.state.lock();
        let mut up = state.connections.iter().flatten().peekable();
        let has_failed = state.trouble.is_some() || up.peek().is_some();
        Some(has_failed && up.all(|connection| connection.is_silent()))
    }

    /// UID of the worker's pod, if it has said so and is one.
    pub(super) fn pod_uid(&self) -> Option<String> {
        let state = self.state.lock();
        (!state.pod_uid.is_empty()).then(|| state.pod_uid.clone())
    }

    /// Takes all connections for silent, if `connection` is one of them.
    pub(super) fn note_silence(&self, connection: &Connection) {
        let connections: Vec<_> = self.state.lock().connections.iter().flatten().cloned().collect();
        if connections.iter().any(|own| std::ptr::eq(&**own, connection)) {
            warn!(worker = &*self.name, "a worker is silent; reads go round it");
            connections.iter().for_each(|own| own.set_silent());
        }
    }

    /// Closes the connections once they have no request: the worker left the membership.
    pub(super) fn retire(&self) {
        self.retired.cancel();
    }
}

async fn keep_connected(link: Arc<Link>, slot: usize, client: Weak<Inner>) {
    let mut backoff = FIRST_BACKOFF;
    loop {
        let Some(open) = attempt(&link, &client).await else { return };
        let lived = match open {
            Ok(Opened { connection, receiver, timing, announced }) => {
                let since = Instant::now();
                if backoff > FIRST_BACKOFF {
                    info!(worker = &*link.name, "a worker can be reached again");
                }
                note(&link, slot, Some(Arc::clone(&connection)), None, &client);
                let ended = converse(&link, &connection, &client, receiver, &timing, announced).await;
                debug!(worker = &*link.name, ended = trouble(&ended), "a connection to a worker ended");
                if let Some(client) = client.upgrade() {
                    client.counters.lost.add(1);
                }
                note(&link, slot, None, Some(trouble(&ended)), &client);
                since.elapsed()
            }
            Err(error) => {
                if let Some(client) = client.upgrade() {
                    client.counters.not_connected.add(1);
                }
                if backoff == FIRST_BACKOFF && slot == 0 {
                    warn!(
                        worker = &*link.name,
                        address = link.worker.address,
                        error = trouble(&error),
                        "a worker cannot be reached"
                    );
                }
                note(&link, slot, None, Some(trouble(&error)), &client);
                Duration::ZERO
            }
        };
        if lived >= GOOD_LIFE {
            backoff = FIRST_BACKOFF;
            continue;
        }
        // Full jitter over the upper half, so that the nodes of a cluster do not come back in step.
        let wait = backoff.mul_f64(rand::random_range(0.5..1.0));
        tokio::select! {
            () = sleep(wait) => backoff = (backoff * 2).min(MAX_BACKOFF),
            () = link.retired.cancelled() => return,
        }
    }
}

/// A new connection and what it needs.
struct Opened {
    connection: Arc<Connection>,
    receiver: Receiver,
    timing: super::Timing,
    announced: watch::Receiver<Option<Announce>>,
}

/// Tries once to connect; `None` when nobody wants the link any more.
async fn attempt(link: &Arc<Link>, client: &Weak<Inner>) -> Option<Result<Opened, Greet>> {
    let (key, name, epoch, timing, buffers, announced) = {
        let client = client.upgrade()?;
        let (config, epoch, announced) = (&client.config, client.epoch(), client.announced.subscribe());
        let (key, name, timing) = (config.key.clone(), config.name.clone(), config.timing.clone());
        (key, name, epoch, timing, Arc::clone(&client.buffers), announced)
    };
    let connect = timeout(timing.connect, greet::connect(&link.worker.address, &key, &name, epoch));
    let connected = tokio::select! {
        connected = connect => connected.unwrap_or(Err(Greet::Silent)),
        () = link.retired.cancelled() => return None,
    };
    Some(connected.map(|(stream, ok)| {
        link.state.lock().pod_uid = ok.pod_uid;
        let (connection, receiver) = (Arc::new(Connection::new(stream)), Receiver::new(buffers));
        Opened { connection, receiver, timing, announced }
    }))
}

async fn converse(
    link: &Link,
    connection: &Connection,
    client: &Weak<Inner>,
    receiver: Receiver,
    timing: &super::Timing,
    announced: watch::Receiver<Option<Announce>>,
) -> Converse {
    let retired = async {
        link.retired.cancelled().await;
        while connection.load() > 0 {
            sleep(FIRST_BACKOFF).await;
        }
    };
    tokio::select! {
        ended = connection.run(client, receiver, timing) => ended,
        () = retired => Converse::Retired,
        () = announce(connection, announced) => Converse::Retired,
    }
}

/// Tells the worker what is mounted, now and on every change; ends with the client.
async fn announce(connection: &Connection, mut announced: watch::Receiver<Option<Announce>>) {
    loop {
        let now = announced.borrow_and_update().clone();
        if let Some(announce) = now {
            connection.announce(&announce);
        }
        if announced.changed().await.is_err() {
            return;
        }
    }
}

fn note(
    link: &Link,
    slot: usize,
    connection: Option<Arc<Connection>>,
    trouble: Option<String>,
    client: &Weak<Inner>,
) {
    let mut state = link.state.lock();
    state.connections[slot] = connection;
    if trouble.is_some() {
        state.trouble = trouble;
    }
    drop(state);
    if let Some(client) = client.upgrade() {
        client.note_change();
    }
}
