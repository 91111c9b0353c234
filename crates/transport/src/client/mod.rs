//! How does a reader get verified chunks, whichever worker has them?

mod buffers;
mod connection;
mod fetch_index;
mod greet;
mod link;
mod progress;
mod reading;
mod receive;
mod service;
mod settings;
mod want;

pub use fetch_index::FetchIndex;
pub use reading::{BatchStream, ChunkStream};
pub use service::Bootstrap;
pub use settings::GetMountSettings;
pub use want::{Chunk, ReadError, Want};

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millrace_api::ids::VersionId;
use millrace_api::keys::Key;
use millrace_api::mount::{Announce, MountSettings};
use millrace_api::placement::Membership;
use parking_lot::{Mutex, RwLock, RwLockWriteGuard};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::Priority;
use crate::counter::ClientCounters;
use buffers::Buffers;
use connection::Connection;
use link::Link;
use reading::Reading;

/// What a client needs.
#[derive(Debug, Clone)]
pub struct ClientConfig {
    /// The data key.
    pub key: Key,
    /// Who reads: node or worker name, for the workers' logs.
    pub name: String,
    /// The workers as known at the start.
    pub membership: Membership,
    /// TCP connections to each worker, opened when it is first asked. [`DEFAULT_CONNECTIONS`] if in doubt.
    pub connections_per_worker: usize,
    /// Deadlines.
    pub timing: Timing,
}

/// Connections to a worker where nothing else is said.
pub const DEFAULT_CONNECTIONS: usize = 2;

/// Deadlines of a client. The defaults are meant to be used.
#[derive(Debug, Clone)]
pub struct Timing {
    /// Without a byte from a worker that owes an answer: it is gone round.
    pub silence: Duration,
    /// For connecting and the hello.
    pub connect: Duration,
    /// Without a byte on an idle connection it is pinged: a dead worker is known before somebody needs it.
    pub ping: Duration,
    /// In silence for this long a connection is given up and opened anew: a host that vanished sends no reset.
    pub give_up: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        // Silence is four times what a server lets pass between signs of life; the others are guesses.
        let silence = Duration::from_secs(2);
        Self { silence, connect: silence, ping: Duration::from_secs(10), give_up: Duration::from_secs(60) }
    }
}

/// Reads from the workers of one dataset. Clones share everything; the last one closes the connections.
#[derive(Debug, Clone)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    config: ClientConfig,
    counters: Arc<ClientCounters>,
    buffers: Arc<Buffers>,
    roster: RwLock<Arc<Roster>>,
    membership: watch::Sender<Arc<Membership>>,
    /// Ticks when a worker may have become reachable.
    changes: watch::Sender<()>,
    /// What the workers are told of this process's mount.
    announced: watch::Sender<Option<Announce>>,
    /// Where to find workers when none can be reached, `host:port`.
    service: Option<String>,
    /// Why nobody was found there the last time.
    service_trouble: Mutex<String>,
    next_request: AtomicU64,
    runtime: Handle,
    /// Ended with the client.
    tasks: Mutex<JoinSet<()>>,
}

/// A membership and the links to its workers, in the same order.
#[derive(Debug)]
struct Roster {
    membership: Arc<Membership>,
    links: Vec<Arc<Link>>,
}

impl Client {
    /// A client whose tasks run on the current tokio runtime; nothing is connected yet.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new(config: ClientConfig) -> Self {
        Self::with_service(config, None)
    }

    /// A client that finds the workers by their service, `host:port` (or several, separated by commas), of which all
    /// addresses are asked: at the start where `config.membership` names none, and later whenever none can be reached.
    ///
    /// # Errors
    /// Where no worker has said by the deadline who serves the dataset.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub async fn bootstrap(
        config: ClientConfig,
        service: &str,
        deadline: Instant,
    ) -> Result<Self, Bootstrap> {
        let client = Self::with_service(config, Some(service.to_owned()));
        service::wait_for_membership(&client.inner, deadline).await?;
        Ok(client)
    }

    fn with_service(config: ClientConfig, service: Option<String>) -> Self {
        let membership = Arc::new(config.membership.clone());
        let links = membership.workers.iter();
        let links = links.map(|worker| Arc::new(Link::new(worker.clone(), config.connections_per_worker)));
        let roster = Roster { membership: Arc::clone(&membership), links: links.collect() };
        let inner = Inner {
            config,
            counters: Arc::default(),
            buffers: Arc::default(),
            roster: RwLock::new(Arc::new(roster)),
            membership: watch::Sender::new(membership),
            changes: watch::Sender::new(()),
            announced: watch::Sender::new(None),
            service,
            service_trouble: Mutex::new("no worker was asked yet".to_owned()),
            next_request: AtomicU64::new(1),
            runtime: Handle::current(),
            tasks: Mutex::default(),
        };
        let inner = Arc::new(inner);
        if let Some(service) = inner.service.clone() {
            inner.spawn(service::follow(service, Arc::downgrade(&inner)));
        }
        Self { inner }
    }

    /// The newest membership known; changes when a worker tells of a newer one.
    pub fn membership(&self) -> watch::Receiver<Arc<Membership>> {
        self.inner.membership.subscribe()
    }

    /// Takes a membership, if it is newer than the one known.
    pub fn set_membership(&self, membership: Membership) {
        self.inner.learn(membership);
    }

    /// Tells every worker what this process mounts, and keeps a connection to each of them from then on.
    pub fn announce(&self, announce: Announce) {
        self.inner.announced.send_if_modified(|announced| {
            let is_new = announced.as_ref() != Some(&announce);
            *announced = Some(announce);
            is_new
        });
        self.inner.roster().start_all(&self.inner);
    }

    /// UIDs of the workers' pods, of those that were connected to and are pods.
    pub fn worker_pods(&self) -> Vec<String> {
        self.inner.roster().links.iter().filter_map(|link| link.pod_uid()).collect()
    }

    /// Ticks when connections to workers came or went.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.inner.changes.subscribe()
    }

    /// How the dataset is to be mounted, from whichever worker answers first.
    ///
    /// # Errors
    /// [`GetMountSettings`] says what it was last waited for when the deadline passed.
    pub async fn mount_settings(&self, deadline: Instant) -> Result<MountSettings, GetMountSettings> {
        settings::mount_settings(&self.inner, deadline).await
    }

    /// What this client counts.
    pub fn counters(&self) -> Arc<ClientCounters> {
        Arc::clone(&self.inner.counters)
    }

    /// Reads chunks of one object; they come in any order, each once, verified. Where the worker is connected the request is
    /// sent at once, else by the first call of [`ChunkStream::next`].
    ///
    /// The owner is asked first, then the next in hash order when it is dead, silent for [`Timing::silence`], or says that
    /// another may know better; again and again until the deadline. An empty range ends at once.
    pub fn read(&self, version: VersionId, want: Want, deadline: Instant, priority: Priority) -> ChunkStream {
        ChunkStream::new(Reading::new(&self.inner, version, vec![want], deadline, priority))
    }

    /// Reads chunks of many objects with one request for each worker concerned.
    pub fn read_batch(
        &self,
        version: VersionId,
        wants: Vec<Want>,
        deadline: Instant,
        priority: Priority,
    ) -> BatchStream {
        BatchStream::new(Reading::new(&self.inner, version, wants, deadline, priority))
    }

    /// Writes the index of a version to a new file at `path`, asking one worker after the other and going on where the
    /// last one stopped; answers its length. The caller verifies it.
    ///
    /// # Errors
    /// The file is left as far as it came.
    pub async fn fetch_index(
        &self,
        version: VersionId,
        path: &Path,
        deadline: Instant,
    ) -> Result<u64, FetchIndex> {
        fetch_index::fetch_index(&self.inner, version, path, deadline).await
    }
}

impl Roster {
    /// Opens connections to all workers that have none.
    fn start_all(&self, client: &Arc<Inner>) {
        for link in &self.links {
            link.start(client);
        }
    }
}

impl Inner {
    fn epoch(&self) -> u64 {
        self.membership.borrow().epoch
    }

    fn roster(&self) -> Arc<Roster> {
        Arc::clone(&self.roster.read())
    }

    fn next_request(&self) -> u64 {
        self.next_request.fetch_add(1, Ordering::Relaxed)
    }

    fn note_change(&self) {
        self.changes.send_replace(());
    }

    fn note_silence(&self, connection: &Connection) {
        self.roster().links.iter().for_each(|link| link.note_silence(connection));
        self.note_change();
    }

    /// Whether no worker is known, or none of those wanted can be reached.
    fn is_lost(&self) -> bool {
        let roster = self.roster();
        let mut wanted = roster.links.iter().filter_map(|link| link.is_down()).peekable();
        roster.links.is_empty() || (wanted.peek().is_some() && wanted.all(|is_down| is_down))
    }

    /// Takes over a newer membership; links to workers that stay are kept.
    fn learn(self: &Arc<Self>, membership: Membership) {
        let roster = self.roster.write();
        if membership.epoch > roster.membership.epoch {
            self.replace(roster, membership);
        }
    }

    /// Takes note that the only worker of epoch `epoch` is to be found elsewhere; false where there is no such or it is known
    /// to be there.
    fn found_at(self: &Arc<Self>, address: SocketAddr, epoch: u64) -> bool {
        let roster = self.roster.write();
        let mut membership = Membership::clone(&roster.membership);
        let address = address.to_string();
        let has_moved = match &mut membership.workers[..] {
            [only] if membership.epoch == epoch && only.address != address => {
                only.address = address;
                true
            }
            _ => false,
        };
        if has_moved {
            self.replace(roster, membership);
        }
        has_moved
    }

    fn replace(self: &Arc<Self>, mut roster: RwLockWriteGuard<'_, Arc<Roster>>, membership: Membership) {
        let membership = Arc::new(membership);
        let kept = |worker| roster.links.iter().find(|link| is_same(&link.worker, worker)).cloned();
        let links: Vec<Arc<Link>> = membership
            .workers
            .iter()
            .map(|worker| {
                kept(worker).unwrap_or_else(|| {
                    Arc::new(Link::new(worker.clone(), self.config.connections_per_worker))
                })
            })
            .collect();
        let gone = roster.links.iter().filter(|old| !links.iter().any(|link| Arc::ptr_eq(link, old)));
        gone.for_each(|link| link.retire());
        *roster = Arc::new(Roster { membership: Arc::clone(&membership), links });
        if self.announced.borrow().is_some() {
            roster.start_all(self);
        }
        drop(roster);
        self.counters.memberships.add(1);
        self.membership.send_replace(membership);
        self.note_change();
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock();
        while let Some(ended) = tasks.try_join_next() {
            if let Err(join) = ended
                && join.is_panic()
            {
                tracing::error!(error = %join, "a task of the data port's client panicked");
            }
        }
        tasks.spawn_on(task, &self.runtime);
    }
}

/// Whether connections to one worker serve for the other; the weight does not matter.
fn is_same(one: &millrace_api::placement::Worker, other: &millrace_api::placement::Worker) -> bool {
    one.name == other.name && one.address == other.address
}

/// An error and its causes in one line, for messages that name the last trouble.
fn trouble(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
