//! What is a worker made of, and which versions does it serve?

mod in_use;
mod index;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use millrace_api::ids::VersionId;
use millrace_api::keys::Key;
use millrace_api::placement::Membership;
use millrace_daemon::causes::with_causes;
use millrace_daemon::memory::{MemoryError, MemoryLimit};
use millrace_daemon::shutdown::Tasks;
use millrace_store::serving_mark::ServingMark;
use millrace_store::{Limits, OpenStore, Store, StoreConfig};
use millrace_transport::ServerCounters;
use millrace_transport::server::Sessions;
use parking_lot::Mutex;
use prometheus::Registry;
use tokio_util::sync::CancellationToken;

use crate::cached::CachedCounts;
use crate::config::Config;
use crate::members::Members;
use crate::metrics::Metrics;
use crate::origin::Origin;
use crate::reads::Reads;
use crate::reads::background::Background;
use crate::reads::fetcher::Fetcher;
use crate::reads::room::Room;
use crate::recheck::recheck;
use crate::sources::{Access, SourceConfig, Sources, UseSources};
use crate::state::{KeepState, StateFile};
use crate::versions::Versions;
use crate::warm::WarmUps;

/// Share of the memory limit that chunks on their way may take: the rest is for the heap, sockets and page cache.
const MEMORY_SHARE: u64 = 8;

/// Most memory for chunks on their way, bytes: enough for 400 MB/s over a disk that pauses for 120 ms, and a worker then
/// stays below 192 MiB.
const MAX_CHUNK_MEMORY: u64 = 48 << 20;

/// Most versions in use: the one shown, its successor, and those that old mounts still read.
pub const MAX_VERSIONS: usize = 16;

/// Between two tries to use the sources of the state.
const SOURCES_PAUSE: Duration = Duration::from_secs(2);

/// Why a worker could not start.
#[derive(Debug, thiserror::Error)]
pub enum OpenWorker {
    /// The memory limit cannot be found, or is too low for the tiers.
    #[error("bound the memory")]
    Memory(#[source] MemoryError),
    /// A tier cannot be used.
    #[error("open the store")]
    Store(#[source] OpenStore),
    /// The state folder cannot be used.
    #[error("open the state")]
    State(#[source] KeepState),
    /// The folder of indexes cannot be used.
    #[error("use folder {dir:?} for indexes")]
    Indexes {
        /// The folder.
        dir: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The sources file is no such.
    #[error("read sources file {path:?}")]
    SourcesFile {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The sources cannot be used.
    #[error("use the sources")]
    Sources(#[source] UseSources),
    /// A metric is registered twice.
    #[error("register metrics")]
    Metrics(#[source] prometheus::Error),
}

/// All parts of a worker.
#[derive(Debug)]
pub struct Worker {
    /// Brings chunks.
    pub fetcher: Arc<Fetcher>,
    /// Versions with their indexes.
    pub versions: Arc<Versions>,
    /// Who serves the dataset.
    pub members: Arc<Members>,
    /// The S3 sides.
    pub sources: Arc<Sources>,
    /// Warm-ups.
    pub warm_ups: Arc<WarmUps>,
    /// What is held.
    pub cached: Arc<CachedCounts>,
    /// The data port's service.
    pub reads: Arc<Reads>,
    /// What the data port counts.
    pub server_counters: Arc<ServerCounters>,
    /// Who mounts the dataset.
    pub sessions: Arc<Sessions>,
    /// Different after each start.
    pub start_id: String,
    /// The machine's boot id.
    pub boot_id: String,
    /// Milliseconds since 1970.
    pub started_ms: u64,
    /// Bound on store files of a tier.
    pub max_files: u64,
    background: Arc<Background>,
    state: StateFile,
    index_dir: PathBuf,
    mark: ServingMark,
    data_key: Key,
    data_address: Mutex<Option<SocketAddr>>,
    tasks: Tasks,
    /// Versions in use whose index is being fetched, and what was last wrong.
    fetching: Mutex<HashMap<VersionId, String>>,
}

impl Worker {
    /// Opens the store, takes up the state, and serves what it knows. Nothing runs yet.
    ///
    /// # Errors
    /// See [`OpenWorker`].
    pub fn open(config: &Config, registry: &Registry, tasks: &Tasks) -> Result<Arc<Self>, OpenWorker> {
        let limit =
            MemoryLimit::find(config.memory_limit_bytes, Path::new("/")).map_err(OpenWorker::Memory)?;
        let left = limit.less_tmpfs(config.memory_tier_bytes()).map_err(OpenWorker::Memory)?;
        let limits = Limits { free_space_floor_bytes: config.free_space_floor_bytes, ..Limits::default() };
        let store = StoreConfig {
            tiers: config.tiers.clone(),
            eviction: config.eviction,
            limits,
            ..StoreConfig::default()
        };
        let store = Store::open(store).map_err(OpenWorker::Store)?;
        let index_dir = config.state_dir.join("indexes");
        let state = StateFile::open(&config.state_dir, &config.dataset_uid).map_err(OpenWorker::State)?;
        let mark = ServingMark::leave(&index_dir)
            .and_then(|mark| crate::indexer::sweep(&index_dir).map(|()| mark))
            .map_err(|source| OpenWorker::Indexes { dir: index_dir.clone(), source })?;
        let metrics = Metrics::register(registry).map_err(OpenWorker::Metrics)?;
        let access =
            Access { credentials_dir: config.credentials_dir.clone(), profile: config.profile.clone() };
        let sources = Arc::new(Sources::new(access));
        let versions = Arc::new(Versions::default());
        let members = Arc::new(Members::new(config.name.clone(), state.now().membership));
        let memory = (left / MEMORY_SHARE).min(MAX_CHUNK_MEMORY);
        let fetcher = Fetcher::new(store.clone(), memory, metrics, tasks.clone());
        let room = Room::new(Arc::clone(&fetcher), Arc::clone(sources.window()));
        let background = Arc::new(Background::new(
            Arc::clone(&fetcher),
            Arc::clone(&versions),
            Arc::clone(&members),
            room.clone(),
        ));
        let reads = Reads::new(
            Arc::clone(&fetcher),
            Arc::clone(&versions),
            Arc::clone(&members),
            Arc::clone(&background),
        );
        let ledgers = config.state_dir.join("warm-up");
        let warm_ups = WarmUps::new(Arc::clone(&fetcher), Arc::clone(&members), room, ledgers, tasks.clone());
        let cached = CachedCounts::new(store, Arc::clone(&versions), Arc::clone(&members));
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let worker = Arc::new(Self {
            fetcher,
            versions,
            members,
            sources,
            warm_ups,
            cached,
            reads: Arc::new(reads),
            server_counters: Arc::default(),
            sessions: Arc::default(),
            start_id: format!("{:x}-{:x}", started.as_nanos(), std::process::id()),
            boot_id: std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
                .unwrap_or_default()
                .trim()
                .to_owned(),
            started_ms: started.as_millis() as u64,
            max_files: limits.max_files,
            background,
            state,
            index_dir,
            mark,
            data_key: config.data_key.clone(),
            data_address: Mutex::new(None),
            tasks: tasks.clone(),
            fetching: Mutex::default(),
        });
        worker.take_up(config.sources_file.as_deref())?;
        Ok(worker)
    }

    /// Starts what goes on beside the ports.
    pub fn start(self: &Arc<Self>) {
        let background = Arc::clone(&self.background);
        let stop = self.tasks.token();
        self.tasks.spawn("background", async move {
            tokio::select! {
                () = background.run() => {}
                () = stop.cancelled() => {}
            }
        });
        let (sources, fetcher) = (Arc::clone(&self.sources), Arc::clone(&self.fetcher));
        let stop = self.tasks.token();
        self.tasks.spawn("recheck", async move {
            tokio::select! {
                () = recheck(sources, |reason| fetcher.forget_failures(reason)) => {}
                () = stop.cancelled() => {}
            }
        });
        self.tasks.spawn("cached", Arc::clone(&self.cached).run(self.tasks.token()));
        for version in self.versions.all() {
            self.warm_ups.resume(&version);
        }
        for id in self.in_use() {
            self.fetch_index(id);
        }
        self.fetch_lost_indexes();
        if self.sources.in_use().is_empty() {
            self.use_known_sources_later();
        }
    }

    /// Takes the sources of the state into use as soon as they can be: the files of their credentials may come, or become
    /// sound, while this worker runs.
    fn use_known_sources_later(self: &Arc<Self>) {
        let (worker, stop) = (Arc::clone(self), self.tasks.token());
        self.tasks.spawn("known-sources", async move {
            loop {
                let known = worker.state.now().sources;
                if known.is_empty()
                    || !worker.sources.in_use().is_empty()
                    || worker.set_sources(known).is_ok()
                {
                    return;
                }
                tokio::select! {
                    () = tokio::time::sleep(SOURCES_PAUSE) => {}
                    () = stop.cancelled() => return,
                }
            }
        });
    }

    /// Runs a task of the worker.
    pub fn spawn(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(name, task);
    }

    /// Cancelled when the worker stops.
    pub fn stop_token(&self) -> CancellationToken {
        self.tasks.token()
    }

    /// The versions in use, the one to show first; some may still lack their index.
    pub fn in_use(&self) -> Vec<VersionId> {
        self.state.now().versions.iter().filter_map(|text| text.parse().ok()).collect()
    }

    /// Where indexes are installed.
    pub fn index_dir(&self) -> &Path {
        &self.index_dir
    }

    /// Why a version's index is not there yet.
    pub fn index_trouble(&self, version: &VersionId) -> Option<String> {
        self.fetching.lock().get(version).filter(|trouble| !trouble.is_empty()).cloned()
    }

    /// The data port as bound.
    pub fn data_address(&self) -> Option<SocketAddr> {
        *self.data_address.lock()
    }

    /// Notes the data port as bound.
    pub fn set_data_address(&self, address: SocketAddr) {
        *self.data_address.lock() = Some(address);
    }

    /// Takes the sources to use from now on.
    ///
    /// # Errors
    /// Those in use before stay.
    pub fn set_sources(&self, sources: Vec<SourceConfig>) -> Result<(), UseSources> {
        self.use_sources(self.sources.prepare(sources)?);
        Ok(())
    }

    /// Takes prepared sources into use.
    pub fn use_sources(&self, prepared: Vec<(SourceConfig, Arc<Origin>)>) {
        let configs = prepared.iter().map(|(config, _)| config.clone()).collect();
        self.sources.set(prepared);
        for version in self.versions.all() {
            self.sources.attach(&version);
        }
        self.remember(|state| state.sources = configs);
    }

    /// Takes a newer membership; returns the epoch in use.
    pub fn set_membership(&self, membership: Membership) -> u64 {
        if self.members.set(membership.clone()) {
            tracing::info!(
                epoch = membership.epoch,
                workers = membership.workers.len(),
                "membership changed"
            );
            self.remember(|state| state.membership = membership);
        }
        self.members.current().epoch
    }

    /// Takes up what the state says.
    fn take_up(self: &Arc<Self>, sources_file: Option<&Path>) -> Result<(), OpenWorker> {
        let mut sources = self.state.now().sources;
        let are_known = !sources.is_empty();
        if let (false, Some(path)) = (are_known, sources_file) {
            sources = read_sources(path)?;
        }
        if !sources.is_empty()
            && let Err(error) = self.set_sources(sources)
        {
            if !are_known {
                return Err(OpenWorker::Sources(error));
            }
            tracing::warn!(
                error = with_causes(&error),
                "sources cannot be used yet; stored blocks are served"
            );
        }
        self.versions.set_mount(self.state.now().mount);
        for id in self.in_use() {
            self.open_index(id);
        }
        Ok(())
    }

    fn remember(&self, change: impl FnOnce(&mut crate::state::State)) {
        if let Err(error) = self.state.update(change) {
            tracing::warn!(error = %error, "state not kept: a restart has to be told again");
        }
    }
}

fn read_sources(path: &Path) -> Result<Vec<SourceConfig>, OpenWorker> {
    #[derive(serde::Deserialize)]
    struct SourcesFile {
        sources: Vec<SourceConfig>,
    }
    let wrong = |source: Box<dyn std::error::Error + Send + Sync>| OpenWorker::SourcesFile {
        path: path.to_owned(),
        source,
    };
    let bytes = std::fs::read(path).map_err(|error| wrong(error.into()))?;
    let file: SourcesFile = serde_json::from_slice(&bytes).map_err(|error| wrong(error.into()))?;
    Ok(file.sources)
}
