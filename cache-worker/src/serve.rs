//! How does the process run: ports, tasks, stop?

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use millrace_daemon::admin::{Admin, AdminError, AdminPort, BuildInfo};
use millrace_daemon::files::write_atomically;
use millrace_daemon::open_files::{self, OpenFilesError};
use millrace_daemon::readiness::Readiness;
use millrace_daemon::shutdown::{ShutdownError, Tasks};
use millrace_transport::server::{Limits, ServerConfig};
use prometheus::Registry;
use tokio::net::TcpListener;

use crate::config::Config;
use crate::control::ControlService;
use crate::worker::{OpenWorker, Worker};

/// Files that a worker needs open: 512 store files of two descriptors each, connections of nodes and to the origin, and
/// room beside them.
const OPEN_FILES: u64 = 4096;

/// Why a worker does not serve.
#[derive(Debug, thiserror::Error)]
pub enum Serve {
    /// Too few files may be open.
    #[error("prepare to open files")]
    OpenFiles(#[source] OpenFilesError),
    /// The worker's parts cannot be had.
    #[error("start the worker")]
    Open(#[source] OpenWorker),
    /// A port is in use, or not ours.
    #[error("listen on {port} address {address}: choose another, or port 0 for a free one")]
    Listen {
        /// Which port.
        port: &'static str,
        /// Where.
        address: SocketAddr,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The admin port.
    #[error("open the admin port")]
    Admin(#[source] AdminError),
    /// The addresses in use cannot be told.
    #[error("write addresses file {path:?}")]
    Addresses {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A metric is registered twice.
    #[error("register metrics")]
    Metrics(#[source] prometheus::Error),
    /// The process ended otherwise than asked.
    #[error("run")]
    Run(#[source] ShutdownError),
}

/// A worker that serves.
#[derive(Debug)]
pub struct Serving {
    /// Its parts.
    pub worker: Arc<Worker>,
    /// Where its ports are.
    pub addresses: Addresses,
}

/// Serves until told to stop.
///
/// # Errors
/// See [`Serve`]; each names what to change.
pub async fn serve(config: Config) -> Result<(), Serve> {
    let tasks = Tasks::new();
    start(&config, &tasks).await?;
    tasks.run_until_stopped().await.map_err(Serve::Run)
}

/// Starts to serve; `tasks` ends it.
///
/// # Errors
/// See [`Serve`]; each names what to change.
pub async fn start(config: &Config, tasks: &Tasks) -> Result<Serving, Serve> {
    open_files::raise(OPEN_FILES).map_err(Serve::OpenFiles)?;
    let registry = Registry::new();
    let build = BuildInfo::new("cache-worker");
    build.register(&registry).map_err(Serve::Metrics)?;
    millrace_daemon::process_metrics::register(&registry, std::path::Path::new("/"))
        .map_err(Serve::Metrics)?;
    let worker = Worker::open(config, &registry, tasks).map_err(Serve::Open)?;
    crate::observed::register(&registry, Arc::downgrade(&worker)).map_err(Serve::Metrics)?;
    let readiness = Readiness::new();
    let ports = Ports::bind(config).await?;
    let addresses = ports.addresses()?;
    worker.set_data_address(addresses.data);
    worker.start();
    let serving = readiness.condition("ports", "starting");
    ports.serve(config, &worker, tasks, Admin { registry, readiness, build });
    // Not when the index is there: without a version, or a peer to get it from, the control port is needed most.
    serving.met();
    if let Some(path) = &config.addresses_file {
        addresses.write(path)?;
    }
    let Addresses { data, control, admin } = addresses;
    tracing::info!(worker = config.name, %data, %control, %admin, "worker serves");
    Ok(Serving { worker, addresses })
}

/// The ports, bound and not yet served.
struct Ports {
    data: TcpListener,
    control: TcpListener,
    admin: AdminPort,
}

/// Where the ports are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// Data port.
    pub data: SocketAddr,
    /// Control port.
    pub control: SocketAddr,
    /// Admin port.
    pub admin: SocketAddr,
}

impl Ports {
    async fn bind(config: &Config) -> Result<Self, Serve> {
        Ok(Self {
            data: bind("data", config.data_address).await?,
            control: bind("control", config.control_address).await?,
            admin: AdminPort::bind(config.admin_address).await.map_err(Serve::Admin)?,
        })
    }

    fn addresses(&self) -> Result<Addresses, Serve> {
        let of = |port, listener: &TcpListener| {
            let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
            listener.local_addr().map_err(|source| Serve::Listen { port, address: unknown, source })
        };
        Ok(Addresses {
            data: of("data", &self.data)?,
            control: of("control", &self.control)?,
            admin: self.admin.address(),
        })
    }

    fn serve(self, config: &Config, worker: &Arc<Worker>, tasks: &Tasks, admin: Admin) {
        let token = tasks.token();
        let data = ServerConfig {
            key: config.data_key.clone(),
            limits: Limits::default(),
            counters: Arc::clone(&worker.server_counters),
            sessions: Arc::clone(&worker.sessions),
            pod_uid: config.pod_uid.clone(),
        };
        let service = Arc::clone(&worker.reads);
        let listener = self.data;
        tasks.spawn("data-port", {
            let token = token.clone();
            async move { millrace_transport::server::serve(listener, data, service, token).await }
        });
        let (control, key, listener) =
            (ControlService::new(Arc::clone(worker)), config.control_key.clone(), self.control);
        tasks.spawn_essential("control-port", {
            let token = token.clone();
            async move { Ok(millrace_control::server::serve(listener, key, control, token).await?) }
        });
        let port = self.admin;
        tasks.spawn_essential("admin-port", async move { Ok(port.serve(admin, token).await?) });
    }
}

async fn bind(port: &'static str, address: SocketAddr) -> Result<TcpListener, Serve> {
    TcpListener::bind(address).await.map_err(|source| Serve::Listen { port, address, source })
}

impl Addresses {
    /// Tells whoever composed this worker.
    fn write(&self, path: &std::path::Path) -> Result<(), Serve> {
        let text = serde_json::json!({
            "data": self.data.to_string(),
            "control": self.control.to_string(),
            "admin": self.admin.to_string(),
            "pid": std::process::id(),
        });
        write_atomically(path, text.to_string().as_bytes())
            .map_err(|source| Serve::Addresses { path: path.to_owned(), source })
    }
}
