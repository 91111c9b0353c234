//! How does a worker serve its data port?

mod blocks;
mod sink;

pub use blocks::{Answer, Blocks, IndexSource, ReadError, ReadRequest, Unwanted};
pub use sink::AnswerSink;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use millrace_api::keys::Key;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// What a server needs besides its worker.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The data key.
    pub key: Key,
    /// Bounds and deadlines.
    pub limits: Limits,
    /// Where it counts.
    pub counters: Arc<ServerCounters>,
}

/// Bounds and deadlines of a server. The defaults are meant to be used.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at once; more are closed on arrival.
    pub connections: usize,
    /// Requests in flight of one connection; more wait in the socket.
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
            idle: Duration::from_secs(120),
            stall: Duration::from_secs(30),
            pending: Duration::from_millis(500),
            grace: Duration::from_secs(3),
        }
    }
}

/// What a server counts.
#[derive(Debug, Default)]
#[allow(missing_docs, reason = "stub")]
pub struct ServerCounters {
    pub connections: AtomicU64,
}

/// Serves a data port until `shutdown`, then ends what is in flight within [`Limits::grace`].
pub async fn serve<B: Blocks>(
    listener: TcpListener,
    config: ServerConfig,
    service: Arc<B>,
    shutdown: CancellationToken,
) {
    let _ = (listener, config, service, shutdown);
}
