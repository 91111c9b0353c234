//! How does a worker serve its data port?

mod answering;
mod blocks;
mod connection;
mod greet;
mod incoming;
mod outgoing;
mod sessions;
mod sink;
mod waiting;
mod writer;

pub use blocks::{Answer, Blocks, IndexSource, ReadError, ReadRequest, Unwanted};
pub use sessions::{Session, Sessions};
pub use sink::AnswerSink;

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use millrace_api::keys::Key;
use millrace_api::wire;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, warn};

use crate::counter::ServerCounters;
use connection::serve_connection;
use outgoing::Outgoing;
use sink::{Line, MEMORY_UNIT_BYTES};

/// What a server needs besides its worker.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The data key.
    pub key: Key,
    /// Bounds and deadlines.
    pub limits: Limits,
    /// Where it counts.
    pub counters: Arc<ServerCounters>,
    /// Where it notes who mounts the dataset.
    pub sessions: Arc<Sessions>,
    /// UID of the pod that serves, told to whoever holds the key; empty where it is none.
    pub pod_uid: String,
}

/// Bounds and deadlines of a server. The defaults are meant to be used.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at once; more are closed on arrival.
    pub connections: usize,
    /// Requests in flight of one connection; some more wait in memory, the rest in the socket.
    pub requests_per_connection: usize,
    /// Requests in flight of all connections; more wait in the socket.
    pub requests: usize,
    /// Bytes of chunks in memory that wait to be sent, over all connections.
    pub queued_bytes: usize,
    /// For the whole hello.
    pub hello: Duration,
    /// Without any frame from the client while it has no request open.
    pub idle: Duration,
    /// For the client to take one frame of at most 1 MiB.
    pub stall: Duration,
    /// How often a waiting request is said to be alive.
    pub pending: Duration,
    /// For answers in flight after a stop.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            requests_per_connection: 256,
            requests: 8192,
            queued_bytes: 32 << 20,
            hello: Duration::from_secs(5),
            // Six of the pings of an idle client: a node that vanished no longer counts as one that mounts.
            idle: Duration::from_secs(60),
            stall: Duration::from_secs(30),
            pending: Duration::from_millis(500),
            grace: Duration::from_secs(3),
        }
    }
}

/// What all connections of a server share.
struct Shared<B: Blocks> {
    key: Key,
    limits: Limits,
    counters: Arc<ServerCounters>,
    sessions: Arc<Sessions>,
    pod_uid: String,
    service: Arc<B>,
    shutdown: CancellationToken,
    requests: Arc<Semaphore>,
    memory: Arc<Semaphore>,
}

impl<B: Blocks> Shared<B> {
    fn memory_units(&self) -> usize {
        (self.limits.queued_bytes / MEMORY_UNIT_BYTES).max(1)
    }

    fn line(&self) -> Line {
        Line {
            outgoing: Outgoing::new(),
            memory: Arc::clone(&self.memory),
            memory_units: self.memory_units(),
            counters: Arc::clone(&self.counters),
            started: Instant::now(),
        }
    }
}

/// Protocol versions that this build speaks.
const VERSIONS: RangeInclusive<u16> = wire::OLDEST_VERSION..=wire::VERSION;

/// How long the accept loop rests when the system has no descriptor or memory for a connection.
const ACCEPT_REST: Duration = Duration::from_millis(50);

/// Serves a data port until `shutdown`, then ends what is in flight within [`Limits::grace`].
///
/// # Cancel safety
/// Dropping it closes all connections at once.
pub async fn serve<B: Blocks>(
    listener: TcpListener,
    config: ServerConfig,
    service: Arc<B>,
    shutdown: CancellationToken,
) {
    let ServerConfig { key, limits, counters, sessions, pod_uid } = config;
    let requests = Arc::new(Semaphore::new(limits.requests));
    let memory = Arc::new(Semaphore::new((limits.queued_bytes / MEMORY_UNIT_BYTES).max(1)));
    let places = Arc::new(Semaphore::new(limits.connections));
    let grace = limits.grace;
    let shared =
        Arc::new(Shared { key, limits, counters, sessions, pod_uid, service, shutdown, requests, memory });
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(ended) = connections.join_next() => {
                note_panic(ended);
                continue;
            }
            () = shared.shutdown.cancelled() => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let Ok(place) = Arc::clone(&places).try_acquire_owned() else {
                    warn!(limit = shared.limits.connections, "a connection is closed: there are too many");
                    continue;
                };
                shared.counters.accepted.add(1);
                let shared = Arc::clone(&shared);
                connections.spawn(async move {
                    let _place = place;
                    attend(shared, stream).await;
                });
            }
            Err(error) => {
                warn!(error = %error, "accept on the data port");
                tokio::time::sleep(ACCEPT_REST).await;
            }
        }
    }
    drop(listener);
    let all_ended = async {
        while let Some(ended) = connections.join_next().await {
            note_panic(ended);
        }
    };
    if timeout(grace + Duration::from_secs(1), all_ended).await.is_err() {
        debug!("connections are closed with answers in flight");
    }
    connections.shutdown().await;
}

/// Serves one connection from its first byte to its end.
async fn attend<B: Blocks>(shared: Arc<Shared<B>>, mut stream: TcpStream) {
    // Frames are written whole; waiting to fill segments would only delay them.
    if let Err(error) = stream.set_nodelay(true) {
        debug!(error = %error, "set TCP_NODELAY");
    }
    let address = stream.peer_addr().map(|address| address.to_string()).unwrap_or_default();
    let epoch = shared.service.membership().epoch;
    let hello = greet::greet(&mut stream, &shared.key, VERSIONS, epoch, &shared.pod_uid);
    let hello = tokio::select! {
        hello = timeout(shared.limits.hello, hello) => hello,
        () = shared.shutdown.cancelled() => return,
    };
    let hello = match hello {
        Ok(Ok(hello)) => hello,
        Ok(Err(error)) => {
            shared.counters.refused.add(1);
            let cause = std::error::Error::source(&error).map(|cause| cause.to_string());
            warn!(address, error = %error, cause, "a connection to the data port is refused");
            return;
        }
        Err(_) => {
            shared.counters.refused.add(1);
            debug!(address, "a connection said no hello in time");
            return;
        }
    };
    let peer: Arc<str> = if hello.name.is_empty() { address.into() } else { hello.name.into() };
    let counters = Arc::clone(&shared.counters);
    counters.connections.add(1);
    let ended = serve_connection(shared, stream, Arc::clone(&peer), hello.epoch).await;
    counters.connections.sub(1);
    if let Err(error) = ended {
        let cause = std::error::Error::source(&error).map(|cause| cause.to_string());
        debug!(peer = &*peer, error = %error, cause, "a connection of the data port ended");
    }
}

fn note_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(join) = ended
        && join.is_panic()
    {
        error!(error = %join, "a connection of the data port panicked");
    }
}
