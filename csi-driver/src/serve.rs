//! How does a mount process come up, serve and end?

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use millrace_api::ids::VersionId;
use millrace_daemon::admin::{Admin, AdminPort, BuildInfo};
use millrace_daemon::files::write_atomically;
use millrace_daemon::readiness::Readiness;
use millrace_daemon::shutdown::Tasks;
use millrace_daemon::{open_files, process_metrics};
use millrace_fuse_session::{Capabilities, MetricsSnapshot, Running, Session, Wanted};
use millrace_store::index_file::{IncomingIndex, IndexFile};
use millrace_store::serving_mark::ServingMark;
use millrace_store::{Eviction, Limits, Medium, Store, StoreConfig, TierConfig};
use millrace_transport::client::{Client, ClientConfig, DEFAULT_CONNECTIONS, Timing};
use parking_lot::Mutex;
use prometheus::Registry;
use tokio::time::Instant;

use crate::announce;
use crate::config::mount::{Config, NodeStore};
use crate::dataset_fs::DatasetFs;
use crate::dataset_fs::begin::{Begun, begin};
use crate::dataset_fs::mode::{Choice, Served, Shape, choose};
use crate::local_workers;
use crate::members;
use crate::metrics::{ReadCounters, Snapshots, show_mode};
use crate::mount::attach::{DeadMount, Method, Mount, attach};
use crate::mount::options::MountOptions;
use crate::mount::read_ahead;
use crate::parent;
use crate::quota;
use crate::reads::look_ahead::{self, AheadCounters};
use crate::reads::{Reader, ReaderConfig};

/// Deadline of each mount syscall and of INIT; both take microseconds unless something is wedged. Guess.
const MOUNT_DEADLINE: Duration = Duration::from_secs(10);

/// Kernel read-ahead, KiB: one request of the largest size.
const KERNEL_READ_AHEAD_KIB: u32 = 1024;

/// Largest read-ahead window of one open file, bytes: six blocks of the default size in flight fill 400 MB/s at 130 ms.
const AHEAD_LIMIT_BYTES: u64 = 48 << 20;

/// Most bytes fetched ahead and not yet stored, over all open files: most of the 128 MiB that the process may use.
const AHEAD_BYTES: usize = 56 << 20;

/// Most bytes kept in memory where there is no node store or it is full.
const KEEP_BYTES: usize = 32 << 20;

/// Descriptors needed at least: the node store's open files, connections, and some to spare.
const OPEN_FILES: u64 = 2048;

/// Mounts and serves until told to stop, or until somebody else unmounts.
///
/// # Errors
/// With a message for the user: what could not be done, and the cause.
pub async fn serve(config: Config) -> anyhow::Result<()> {
    open_files::raise(OPEN_FILES)?;
    let registry = Registry::new();
    let readiness = Readiness::new();
    let mounted = readiness.condition("mounted", "starting");
    let build = BuildInfo::new("csi-driver");
    build.register(&registry)?;
    process_metrics::register(&registry, Path::new("/"))?;
    let tasks = Tasks::new();
    let admin = AdminPort::bind(config.admin_address).await?;
    let admin_address = admin.address();
    let (token, content) = (tasks.token(), Admin { registry: registry.clone(), readiness, build });
    tasks.spawn_essential("admin port", async move { Ok(admin.serve(content, token).await?) });

    if config.ends_with_stdin {
        parent::watch(tasks.token())?;
    }
    let client = find_workers(&config).await?;
    if let Some(path) = config.membership_file.clone() {
        tasks.spawn("membership file", members::follow(path, client.clone(), tasks.token()));
    }
    let mark = ServingMark::leave(&config.index_dir)
        .with_context(|| format!("use --index-dir {:?}", config.index_dir))?;
    let Opened { index, is_verified } = open_index(&client, &config, mark.is_after_death()).await?;
    let index = Arc::new(index);
    let store = config.node_store.as_ref().map(open_store).transpose()?;
    let quota_file = config.node_store.as_ref().and_then(|node_store| node_store.quota_file.clone());
    if let (Some(store), Some(file)) = (&store, quota_file) {
        tasks.spawn("node store's quota", quota::follow(store.clone(), file, tasks.token()));
    }
    let tiers = local_workers::register(&registry)?;
    if let (Some(store), Some(pods_dir)) = (&store, config.kubelet_pods_dir.clone()) {
        let follow = local_workers::follow(client.clone(), store.clone(), pods_dir, tiers, tasks.token());
        tasks.spawn("workers of this node", follow);
    }
    let session = Arc::new(Mutex::new(None::<Running>));
    let snapshot = session.clone();
    let snapshot = move || -> Option<MetricsSnapshot> { snapshot.lock().as_ref().map(Running::metrics) };
    Snapshots::register(&registry, snapshot, store.clone())?;
    let reader = Reader::new(ReaderConfig {
        index: index.clone(),
        store,
        client: client.clone(),
        deadline: config.read_deadline,
        ahead_bytes: AHEAD_BYTES,
        keep_bytes: KEEP_BYTES,
        runtime: tokio::runtime::Handle::current(),
        counters: ReadCounters::register(&registry)?,
        ahead_counters: AheadCounters::register(&registry)?,
        store_bytes: config.node_store.as_ref().map_or(0, |store| store.quota_bytes),
    });
    tasks.spawn("look ahead", look_ahead::run(reader.clone(), tasks.token()));
    let Mounted { mount, running, choice, begun } =
        mount(&config, index.clone(), reader.clone(), registry.clone()).await?;
    if let Some(Begun { verifier, asked, pass_through: _ }) = begun {
        tasks.spawn("verification", verifier.clone().run(asked, tasks.token()));
        tasks.spawn("scrub", verifier.scrub(config.scrub, tasks.token()));
    }
    *session.lock() = Some(running);
    show_mode(&registry, choice)?;
    mounted.met();
    if let Some(node) = config.node_name.clone() {
        let follow = announce::follow(client, node, config.version, config.pods_file.clone(), tasks.token());
        tasks.spawn("announcement", follow);
    }
    if !is_verified {
        tasks.spawn_essential(
            "index verification",
            verify_behind(index, config.index_dir.clone(), config.version),
        );
    }
    tracing::info!(dataset = config.dataset, version = %config.version, mount_point = %config.mount_point.display(), mode = choice.served.name(), because = choice.because.name(), "mounted");
    if let Some(path) = &config.addresses_file {
        let content = serde_json::json!({ "admin": admin_address.to_string(), "pid": std::process::id() });
        write_atomically(path, content.to_string().as_bytes())
            .with_context(|| format!("write --addresses-file {path:?}"))?;
    }

    let watched = session.clone();
    let token = tasks.token();
    tasks.spawn("unmount watch", async move {
        // The session's threads end by themselves when somebody unmounts; there is nothing to wait on but their end.
        let mut ticks = tokio::time::interval(Duration::from_millis(200));
        while !token.is_cancelled() {
            tokio::select! {
                _ = ticks.tick() => {}
                () = token.cancelled() => return,
            }
            if watched.lock().as_ref().is_none_or(Running::is_ended) {
                tracing::info!("unmounted by somebody else");
                token.cancel();
            }
        }
    });
    let stopped = tasks.run_until_stopped().await;
    tokio::task::spawn_blocking(move || unmount(mount, session.lock().take())).await??;
    // What is being fetched has no reader any more; what is being stored is safe to lose.
    drop(reader);
    drop(mark);
    Ok(stopped?)
}

/// A client of the workers that the file names, or else of those that their service tells of.
async fn find_workers(config: &Config) -> anyhow::Result<Client> {
    let client = ClientConfig {
        key: config.data_key.clone(),
        name: client_name(config),
        membership: config.membership.clone(),
        connections_per_worker: DEFAULT_CONNECTIONS,
        timing: Timing::default(),
    };
    Ok(match &config.workers_service {
        Some(service) => Client::bootstrap(client, service, Instant::now() + config.read_deadline).await?,
        None => Client::new(client),
    })
}

/// Who connects, as the workers log it.
fn client_name(config: &Config) -> String {
    let by_environment = || std::env::var("MILLRACE_NODE").or_else(|_| std::env::var("HOSTNAME")).ok();
    let node = config.node_name.clone().or_else(by_environment).unwrap_or_default();
    format!("mount/{}@{node}#{}", config.dataset, std::process::id())
}

/// The index, and whether all of it was read.
struct Opened {
    index: IndexFile,
    is_verified: bool,
}

/// Opens the index from the folder, or fetches it from the workers first.
async fn open_index(client: &Client, config: &Config, is_after_death: bool) -> anyhow::Result<Opened> {
    let Config { index_dir: dir, version, read_deadline, .. } = config;
    let version = *version;
    match open_installed(dir, version, is_after_death).await {
        Ok(opened) => return Ok(opened),
        Err(error) => {
            tracing::info!(%version, reason = %error, "index is not here yet, fetching it from the workers")
        }
    }
    let incoming = IncomingIndex::create(dir)?;
    client.fetch_index(version, incoming.path(), Instant::now() + *read_deadline).await?;
    let index = tokio::task::spawn_blocking(move || incoming.install(Some(version))).await??;
    Ok(Opened { index, is_verified: true })
}

/// What is quick to verify is: bits flip on disks. A read error under the map has killed the process that had it; its
/// successor must not serve before it has looked, however long that takes.
async fn open_installed(dir: &Path, version: VersionId, is_after_death: bool) -> anyhow::Result<Opened> {
    let dir = dir.to_owned();
    let open = move || -> anyhow::Result<Opened> {
        let index = IndexFile::open(&dir, version)?;
        let is_verified = is_after_death || index.is_quick_to_verify();
        if is_verified {
            index.verify()?;
        }
        Ok(Opened { index, is_verified })
    };
    tokio::task::spawn_blocking(open).await?
}

/// Reads an index that is served already. Where it has rotted on the disk the process ends: its successor fetches it anew.
async fn verify_behind(
    index: Arc<IndexFile>,
    dir: PathBuf,
    version: VersionId,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let verifying = tokio::task::spawn_blocking(move || {
        index.verify().inspect_err(|_| {
            // Where it stays the successor meets it again, and ends again.
            let _ = IndexFile::remove(&dir, version);
        })
    });
    // Cut off where the process ends anyway.
    verifying.await.unwrap_or(Ok(())).map_err(Into::into)
}

fn open_store(node_store: &NodeStore) -> anyhow::Result<Store> {
    let NodeStore { dir, quota_bytes, quota_file: _ } = node_store;
    let tier = TierConfig { dir: dir.clone(), medium: Medium::Disk, quota_bytes: *quota_bytes };
    Ok(Store::open(StoreConfig {
        tiers: vec![tier],
        eviction: Eviction::Lru,
        limits: Limits { read_through_percent: 0, ..Limits::default() },
        ..StoreConfig::default()
    })?)
}

/// A mount that is served.
struct Mounted {
    mount: Mount,
    running: Running,
    choice: Choice,
    begun: Option<Begun>,
}

async fn mount(
    config: &Config,
    index: Arc<IndexFile>,
    reader: Arc<Reader>,
    registry: Registry,
) -> anyhow::Result<Mounted> {
    let (point, threads) = (config.mount_point.clone(), config.fuse_threads);
    let (ownership, mode) = (config.ownership, config.mode);
    let (source, context) = (format!("millrace:{}", config.dataset), config.selinux_context.clone());
    let options = MountOptions { source, is_shared: true, context };
    let mount = move || -> anyhow::Result<Mounted> {
        let choice = choose(mode, Shape::of(index.view()));
        let mut wanted = Wanted::default();
        if choice.served == Served::Packed {
            wanted.capabilities = wanted.capabilities.with(Capabilities::NO_OPENS);
        } else if reader.node_store().is_some() {
            wanted.capabilities = wanted.capabilities.with(Capabilities::PASSTHROUGH);
        }
        let attached = attach(&point, &options, Method::Auto, DeadMount::Clean, MOUNT_DEADLINE)?;
        let session = Session::negotiate(attached.device, &wanted, MOUNT_DEADLINE)?;
        if let Some(device) = attached.mount.device()
            && let Err(error) = read_ahead::set(device, KERNEL_READ_AHEAD_KIB)
        {
            tracing::warn!(error = %error, "kernel read-ahead stays small");
        }
        let choice = choice.with_kernel(session.negotiated().capabilities.has(Capabilities::NO_OPENS));
        let mut file_system =
            DatasetFs::new(index, ownership, reader.clone(), choice.served, AHEAD_LIMIT_BYTES);
        let begun = begin(&session, choice.served, &reader, file_system.handles(), &registry)?;
        if let Some(Begun { pass_through, .. }) = &begun {
            file_system = file_system.passing_through(pass_through.clone());
        }
        let running = session.run(threads, Arc::new(file_system))?;
        Ok(Mounted { mount: attached.mount, running, choice, begun })
    };
    tokio::task::spawn_blocking(mount).await?
}

/// Takes the mount away, then waits for the threads that served it.
fn unmount(mount: Mount, running: Option<Running>) -> anyhow::Result<()> {
    let is_ended = running.as_ref().is_none_or(Running::is_ended);
    if is_ended {
        // Somebody else has unmounted; unmounting again would hit whatever is there now.
        mount.forget();
    } else {
        mount.unmount()?;
    }
    if let Some(running) = running {
        running.stop();
        running.join();
    }
    Ok(())
}
