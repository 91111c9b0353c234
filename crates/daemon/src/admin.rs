//! What does the admin port answer: metrics, health, readiness, build?
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | the registry in the Prometheus text format |
//! | `/healthz` | 200 while the runtime turns |
//! | `/readyz` | 200, or 503 with one line `name: reason` for each condition that is not met |
//! | `/buildinfo` | JSON `{"name", "version", "commit"}` |

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use prometheus::{IntGauge, Opts, Registry, TextEncoder};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::readiness::Readiness;

/// How long a connection has for the request it is in when the process ends: well within what the process has.
const LAST_REQUEST_DEADLINE: Duration = Duration::from_secs(1);

/// Connections at a time: a kubelet, a scraper or two and some people; more wait.
const MAX_CONNECTIONS: usize = 64;

/// How long a connection may take for the header of a request, idle time before it included. Longer than the usual 30 s between
/// two scrapes, so that a scraper keeps its connection.
const HEADER_DEADLINE: Duration = Duration::from_secs(60);

/// Which program this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildInfo {
    /// The program, as it is called.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The commit it was built from, where the build said so (`MILLRACE_COMMIT`).
    pub commit: &'static str,
}

impl BuildInfo {
    /// Describes the program `name`. All programs have the workspace's version.
    pub fn new(name: &'static str) -> Self {
        let commit = option_env!("MILLRACE_COMMIT").unwrap_or("unknown");
        Self { name, version: env!("CARGO_PKG_VERSION"), commit }
    }

    /// Adds the gauge `millrace_build_info`, always 1, to the registry.
    ///
    /// # Errors
    /// When the registry has it already.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        let opts = Opts::new("millrace_build_info", "Which program this is; always 1.")
            .const_label("program", self.name)
            .const_label("version", self.version)
            .const_label("commit", self.commit);
        let gauge = IntGauge::with_opts(opts)?;
        gauge.set(1);
        registry.register(Box::new(gauge))
    }
}

/// What can go wrong with the admin port.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address is in use, or not ours.
    #[error("listen on admin address {address}: choose another, or port 0 for a free one")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The listener ended.
    #[error("serve admin address {address}")]
    Serve {
        /// The address.
        address: SocketAddr,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

/// A bound admin port.
#[derive(Debug)]
pub struct AdminPort {
    listener: TcpListener,
    address: SocketAddr,
}

/// What the admin port tells about.
#[derive(Clone, Debug)]
pub struct Admin {
    /// The metrics.
    pub registry: Registry,
    /// The readiness.
    pub readiness: Readiness,
    /// The program.
    pub build: BuildInfo,
}

impl AdminPort {
    /// Listens on `address`; port 0 is a free port of the kernel's choice.
    ///
    /// # Errors
    /// [`AdminError::Listen`].
    pub async fn bind(address: SocketAddr) -> Result<Self, AdminError> {
        let listen = |source| AdminError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        Ok(Self { listener, address })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until the token is cancelled. Connections that are open then are closed after their request.
    ///
    /// # Errors
    /// [`AdminError::Serve`].
    pub async fn serve(self, admin: Admin, token: CancellationToken) -> Result<(), AdminError> {
        let Self { listener, address } = self;
        let router = router(admin);
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let connections = TaskTracker::new();
        let result = loop {
            let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
            let accepted = tokio::select! {
                () = token.cancelled() => break Ok(()),
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, _)) => {
                    let connection = answer(stream, router.clone(), token.clone());
                    connections.spawn(async move {
                        connection.await;
                        drop(permit);
                    });
                }
                Err(error) if is_passing(&error) => {
                    tracing::warn!(%address, %error, "accept on admin port");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                Err(source) => break Err(AdminError::Serve { address, source }),
            }
        };
        connections.close();
        connections.wait().await;
        result
    }
}

/// Answers the requests of one connection.
async fn answer(stream: TcpStream, router: Router, token: CancellationToken) {
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_DEADLINE)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = token.cancelled() => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(LAST_REQUEST_DEADLINE, connection).await {
                Ok(ended) => ended,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection to the admin port");
    }
}

/// Whether accepting may work again later: the peer went away, or files, memory or buffers are short.
fn is_passing(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let Some(errno) = Errno::from_io_error(error) else {
        return false;
    };
    [Errno::CONNABORTED, Errno::INTR, Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM, Errno::PROTO]
        .contains(&errno)
}

fn router(admin: Admin) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/buildinfo", get(build_info))
        .with_state(Arc::new(admin))
}

async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    // Collectors read files of /proc.
    let text =
        tokio::task::spawn_blocking(move || TextEncoder::new().encode_to_string(&admin.registry.gather()))
            .await;
    match text {
        Ok(Ok(text)) => ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response(),
        Ok(Err(error)) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("encode metrics: {error}\n")).into_response()
        }
        Err(_) => {
            (StatusCode::INTERNAL_SERVER_ERROR, "gather metrics: a collector panicked\n").into_response()
        }
    }
}

async fn ready(State(admin): State<Arc<Admin>>) -> Response {
    let unmet = admin.readiness.unmet();
    if unmet.is_empty() {
        return "ready\n".into_response();
    }
    let lines: String = unmet.iter().map(|unmet| format!("{}: {}\n", unmet.name, unmet.reason)).collect();
    (StatusCode::SERVICE_UNAVAILABLE, lines).into_response()
}

async fn build_info(State(admin): State<Arc<Admin>>) -> Response {
    let BuildInfo { name, version, commit } = admin.build;
    Json(std::collections::BTreeMap::from([("name", name), ("version", version), ("commit", commit)]))
        .into_response()
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    struct Served {
        address: SocketAddr,
        readiness: Readiness,
        token: CancellationToken,
        task: tokio::task::JoinHandle<Result<(), AdminError>>,
    }

    async fn serve() -> Served {
        let registry = Registry::new();
        let build = BuildInfo::new("test");
        build.register(&registry).unwrap();
        crate::process_metrics::register(&registry, "/".as_ref()).unwrap();
        let (readiness, token) = (Readiness::new(), CancellationToken::new());
        let port = AdminPort::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = port.address();
        let admin = Admin { registry, readiness: readiness.clone(), build };
        let task = tokio::spawn(port.serve(admin, token.clone()));
        Served { address, readiness, token, task }
    }

    async fn get(address: SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn metrics_health_and_build_are_answered() {
        let served = serve().await;
        let metrics = get(served.address, "/metrics").await;
        assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
        assert!(
            metrics.contains("millrace_build_info{") && metrics.contains("process_open_fds "),
            "{metrics}"
        );
        assert!(get(served.address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(get(served.address, "/buildinfo").await.contains(r#""name":"test""#));
        assert!(get(served.address, "/else").await.starts_with("HTTP/1.1 404"));
    }

    #[tokio::test]
    async fn readiness_names_what_is_waited_for() {
        let served = serve().await;
        let index = served.readiness.condition("index", "listing bucket");
        let answer = get(served.address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("index: listing bucket\n"), "{answer}");
        index.met();
        assert!(get(served.address, "/readyz").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn cancelled_token_ends_the_port() {
        let served = serve().await;
        served.token.cancel();
        served.task.await.unwrap().unwrap();
        assert!(tokio::net::TcpStream::connect(served.address).await.is_err());
    }

    #[tokio::test]
    async fn silent_connections_neither_fill_the_port_nor_hold_up_its_end() {
        let served = serve().await;
        let mut silent = Vec::new();
        for _ in 0..MAX_CONNECTIONS - 1 {
            silent.push(TcpStream::connect(served.address).await.unwrap());
        }
        silent[0].write_all(b"GET /heal").await.unwrap();
        assert!(get(served.address, "/healthz").await.starts_with("HTTP/1.1 200"));
        served.token.cancel();
        served.task.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn port_in_use_is_named() {
        let served = serve().await;
        let error = AdminPort::bind(served.address).await.unwrap_err().to_string();
        assert!(error.contains(&served.address.to_string()) && error.contains("choose another"), "{error}");
    }
}
