//! How does the driver of a node come up, serve and end?

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use millrace_daemon::admin::{Admin, AdminPort, BuildInfo};
use millrace_daemon::files::write_atomically;
use millrace_daemon::readiness::Readiness;
use millrace_daemon::shutdown::Tasks;
use millrace_daemon::{open_files, process_metrics};
use prometheus::Registry;
use tokio_stream::StreamExt;
use tonic::transport::Server;

use crate::authority::PlainAuthority;
use crate::config::serve::ServeConfig;
use crate::csi::identity::IdentityService;
use crate::csi::node::NodeService;
use crate::csi::proto::identity_server::IdentityServer;
use crate::csi::proto::node_server::NodeServer;
use crate::datasets;
use crate::driver_metrics::{DriverMetrics, Now, NowGauges};
use crate::mount::{bind, memory};
use crate::mount_metrics::MountMetrics;
use crate::node_cache::NodeCache;
use crate::node_mounts::plan::Folders;
use crate::node_mounts::process::Launch;
use crate::node_mounts::{NodeMounts, NodeMountsConfig};
use crate::publish::records::{Records, boot_id};
use crate::publish::{Publisher, PublisherConfig};
use crate::recover::recover;
use crate::registration::proto::registration_server::RegistrationServer;
use crate::registration::{RegistrationService, SOCKET_NAME};
use crate::socket::KeptSocket;

/// Descriptors needed at least: sockets, and a pipe for each mount process.
const OPEN_FILES: u64 = 4096;

/// Room for data keys: one page each, for more mounts than a node has.
const KEYS_BYTES: u64 = 4 << 20;

/// Deadline of the mount for keys; guess.
const MOUNT_DEADLINE: Duration = Duration::from_secs(10);

/// Serves until told to stop.
///
/// # Errors
/// With a message for the user: what could not be done, and the cause.
pub async fn drive(config: ServeConfig) -> anyhow::Result<()> {
    open_files::raise(OPEN_FILES)?;
    let (registry, readiness, build) = (Registry::new(), Readiness::new(), BuildInfo::new("csi-driver"));
    build.register(&registry)?;
    process_metrics::register(&registry, Path::new("/"))?;
    let tasks = Tasks::new();
    let admin = AdminPort::bind(config.admin_address).await?;
    let admin_address = admin.address();
    let (token, content) =
        (tasks.token(), Admin { registry: registry.clone(), readiness: readiness.clone(), build });
    tasks.spawn_essential("admin port", async move { Ok(admin.serve(content, token).await?) });

    let folders = Folders { state: config.state_dir.clone(), cache: config.cache_dir.clone() };
    let (folders, records) = {
        let config = config.clone();
        tokio::task::spawn_blocking(move || prepare(folders, &config)).await??
    };
    let metrics = DriverMetrics::register(&registry)?;
    let mount_metrics = MountMetrics::register(&registry)?;
    let cache = NodeCache::new(folders.cache.clone(), config.cache_limit_bytes);
    let launch = Launch {
        program: std::env::current_exe().context("find this program")?,
        folders: folders.clone(),
        node: config.node.clone(),
        pods_dir: config.kubelet_dir.join("pods"),
        log: config.log.clone(),
    };
    let mounts = NodeMounts::new(NodeMountsConfig {
        launch,
        idle: config.idle,
        cache: cache.clone(),
        metrics: metrics.clone(),
        mount_metrics,
        tasks: tasks.clone(),
    });
    let keys = folders.keys();
    let publisher_config = PublisherConfig {
        node: config.node.clone(),
        folders,
        wait: config.publish_wait,
        refresh: config.refresh,
        fuse_device: config.fuse_device.clone(),
        has_selinux: has_selinux(),
        tasks: tasks.clone(),
    };
    let publisher = Publisher::new(publisher_config, mounts.clone(), records);
    let (now_publisher, now_mounts, now_cache) = (publisher.clone(), mounts, cache.clone());
    NowGauges::register(&registry, move || Now {
        published: now_publisher.published(),
        mounts: now_mounts.datasets().len(),
        cache_granted_bytes: now_cache.granted_bytes(),
        cache_limit_bytes: now_cache.limit_bytes(),
    })?;
    publisher.adopt().await;
    tasks.spawn("restore of targets", publisher.clone().restore_for_ever());
    tasks.spawn("settings of datasets", publisher.clone().refresh_for_ever());
    if let Some(interval) = config.watch_datasets {
        tasks.spawn("caches of datasets that are gone", datasets::wipe_gone(cache, interval, tasks.token()));
    }
    serve_sockets(&config, publisher.clone(), metrics, &readiness, &tasks)?;
    if let Some(path) = &config.addresses_file {
        let content = serde_json::json!({ "admin": admin_address.to_string(), "pid": std::process::id() });
        write_atomically(path, content.to_string().as_bytes())
            .with_context(|| format!("write --addresses-file {path:?}"))?;
    }
    tracing::info!(node = config.node, socket = %config.csi_socket.display(), "serving");
    // The mounts of running pods stay as they are; their processes end with this one.
    let stopped = tasks.run_until_stopped().await;
    if publisher.published() == 0 {
        // For good, perhaps: nothing of ours stays mounted on the node.
        tokio::task::spawn_blocking(move || bind::detach_all(&keys, MOUNT_DEADLINE)).await??;
    }
    Ok(stopped?)
}

/// Makes the folders, takes away what a former driver has left, and reads what it had published.
fn prepare(folders: Folders, config: &ServeConfig) -> anyhow::Result<(Folders, Records)> {
    let make =
        |folder: &Path| std::fs::create_dir_all(folder).with_context(|| format!("create folder {folder:?}"));
    for folder in [&folders.mounts(), &folders.processes(), &folders.keys(), &folders.cache] {
        make(folder)?;
    }
    // As the kernel's table of mounts names them.
    let plain = |folder: &Path| folder.canonicalize().with_context(|| format!("look at folder {folder:?}"));
    let folders = Folders { state: plain(&folders.state)?, cache: plain(&folders.cache)? };
    let kubelet_dir =
        plain(&config.kubelet_dir).with_context(|| format!("use --kubelet-dir {:?}", config.kubelet_dir))?;
    memory::mount(&folders.keys(), KEYS_BYTES, MOUNT_DEADLINE).context("keep keys in memory")?;
    let boot = boot_id().context("read the boot id")?;
    let records = Records::open(folders.targets(), boot)
        .with_context(|| format!("read records of {:?}", folders.targets()))?;
    let kept: Vec<PathBuf> = records.all().into_iter().map(|record| record.target).collect();
    let recovered = recover(&folders, &kubelet_dir, &kept)?;
    tracing::info!(
        processes = recovered.processes,
        mounts = recovered.mounts,
        targets = kept.len(),
        "looked at what a former driver left"
    );
    Ok((folders, records))
}

/// Whether the kernel labels files by SELinux.
fn has_selinux() -> bool {
    std::fs::read_to_string("/proc/filesystems").is_ok_and(|known| known.contains("selinuxfs"))
}

/// Opens the sockets, the one for calls first: kubelet calls as soon as it finds the other.
fn serve_sockets(
    config: &ServeConfig,
    publisher: Publisher,
    metrics: DriverMetrics,
    readiness: &Readiness,
    tasks: &Tasks,
) -> anyhow::Result<()> {
    let calls = KeptSocket::bind(&config.csi_socket)?;
    let registrations = KeptSocket::bind(&config.registration_dir.join(SOCKET_NAME))?;
    let node = NodeService::new(config.node.clone(), publisher, metrics);
    let csi = Server::builder()
        .add_service(IdentityServer::new(IdentityService))
        .add_service(NodeServer::new(node));
    let registered = readiness.condition("registered", "kubelet has not called yet");
    let registration = RegistrationService { csi_socket: config.csi_socket.clone(), registered };
    let registration = Server::builder().add_service(RegistrationServer::new(registration));
    for (socket, router, name) in
        [(calls, csi, "CSI socket"), (registrations, registration, "registration socket")]
    {
        let (incoming, accept) = socket.serve(tasks.token());
        let incoming = incoming.map(|connection| connection.map(PlainAuthority::new));
        tasks.spawn(name, accept);
        let token = tasks.token();
        tasks.spawn_essential(name, async move {
            // Not gracefully: kubelet keeps its connections open, and calls are carried out without them.
            tokio::select! {
                served = router.serve_with_incoming(incoming) => Ok(served?),
                () = token.cancelled() => Ok(()),
            }
        });
    }
    Ok(())
}
