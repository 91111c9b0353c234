//! May the kernel be given files of the node store to read itself? It is asked, and the answer told in log and metric.

use std::os::fd::AsFd;
use std::sync::Arc;

use millrace_api::block::Span;
use millrace_fuse_session::{Capabilities, Errno, Idle, OpenTable, OpenTableError, Session};
use millrace_store::Store;
use prometheus::{IntGaugeVec, Opts, Registry};
use tokio::sync::mpsc::Receiver;

use super::handles::Handles;
use super::mode::Served;
use super::open_metrics::{OpenCounters, OpenGauges};
use super::pass_through::{PassThrough, PassThroughParts};
use crate::reads::{Reader, Verifier};

/// Most backing ids kept for the next open: as many files as a loader goes back to within an epoch's first minutes; each
/// pins an inode and saves 5 to 20 us of an open.
const IDLE_IDS: usize = 1024;

/// Part of the node store's quota that files behind idle ids may take: they cannot be evicted.
const IDLE_PART: u64 = 8;

/// Why the kernel is given no files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// Nothing is opened in packed mode.
    PackedMode,
    /// There is no node store.
    NoNodeStore,
    /// The kernel does not offer it (before Linux 6.9, or built without).
    Kernel,
    /// This process may not: it takes CAP_SYS_ADMIN in the machine's own user namespace.
    Privilege,
    /// The node store lies on a stacked file system, such as overlayfs.
    Stacked,
    /// The node store's file system cannot do it, or cannot be asked.
    FileSystem,
}

impl Because {
    fn name(self) -> &'static str {
        match self {
            Self::PackedMode => "packed_mode",
            Self::NoNodeStore => "no_node_store",
            Self::Kernel => "kernel",
            Self::Privilege => "privilege",
            Self::Stacked => "stacked",
            Self::FileSystem => "file_system",
        }
    }

    fn cure(self) -> &'static str {
        match self {
            Self::PackedMode => "set the mount's mode to Files where its large files matter more",
            Self::NoNodeStore => "give the node a cache",
            Self::Kernel => "use Linux 6.9 or later with CONFIG_FUSE_PASSTHROUGH",
            Self::Privilege => "run as root outside of user namespaces",
            Self::Stacked => "put the node store on a disk's own file system, such as ext4 or xfs",
            Self::FileSystem => "put the node store on ext4, xfs or tmpfs",
        }
    }
}

/// Passing through, begun.
#[derive(Debug)]
pub struct Begun {
    /// For the file system.
    pub pass_through: Arc<PassThrough>,
    /// Verifies files; to be run with what is asked of it.
    pub verifier: Arc<Verifier>,
    /// What is asked of it.
    pub asked: Receiver<Span>,
}

/// Begins to pass through on a connection, where the kernel takes a file of the node store.
///
/// # Errors
/// When a metric's name is taken, or the table of open files cannot be made.
pub fn begin(
    session: &Session,
    served: Served,
    reader: &Arc<Reader>,
    handles: Arc<Handles>,
    registry: &Registry,
) -> anyhow::Result<Option<Begun>> {
    let state = IntGaugeVec::new(
        Opts::new(
            "csi_driver_passthrough",
            "1 for whether the kernel reads whole files of the node store itself, and the reason where it does not.",
        ),
        &["state", "reason"],
    )?;
    registry.register(Box::new(state.clone()))?;
    let store = match find(session, served, reader) {
        Ok(store) => store,
        Err((because, errno)) => {
            state.with_label_values(&["off", because.name()]).set(1);
            let error = errno.map(|errno| errno.to_string()).unwrap_or_default();
            tracing::info!(
                reason = because.name(),
                error,
                cure = because.cure(),
                "files are read through this process, not by the kernel itself"
            );
            return Ok(None);
        }
    };
    state.with_label_values(&["on", ""]).set(1);
    tracing::info!("whole files of the node store are read by the kernel itself");
    let (verifier, asked) = Verifier::register(registry, store.clone())?;
    reader.verify_by(verifier.clone());
    let parts = PassThroughParts {
        table: table(session, &store)?,
        store,
        reader: reader.clone(),
        verifier: verifier.clone(),
        handles,
        counters: OpenCounters::register(registry)?,
    };
    let pass_through = Arc::new(PassThrough::new(parts));
    OpenGauges::register(registry, Arc::downgrade(&pass_through))?;
    Ok(Some(Begun { pass_through, verifier, asked }))
}

fn table(session: &Session, store: &Store) -> Result<OpenTable, OpenTableError> {
    let quota: u64 = store.usage().tiers.iter().map(|tier| tier.quota_bytes).sum();
    OpenTable::new(session.backing(), Idle { ids: IDLE_IDS, bytes: quota / IDLE_PART })
}

/// The store whose files the kernel takes; tried with one of them.
fn find(session: &Session, served: Served, reader: &Reader) -> Result<Store, (Because, Option<Errno>)> {
    if served == Served::Packed {
        return Err((Because::PackedMode, None));
    }
    let store = reader.node_store().ok_or((Because::NoNodeStore, None))?;
    if !session.negotiated().capabilities.has(Capabilities::PASSTHROUGH) {
        return Err((Because::Kernel, None));
    }
    let sample = store.sample_file().map_err(|error| (Because::FileSystem, Errno::from_io_error(&error)))?;
    let backing = session.backing();
    let id = backing.open(sample.as_fd()).map_err(|errno| (because(errno), Some(errno)))?;
    // Left behind it costs the kernel one open file.
    let _ = backing.close(id);
    Ok(store.clone())
}

fn because(errno: Errno) -> Because {
    match errno {
        Errno::PERM | Errno::ACCESS => Because::Privilege,
        Errno::LOOP => Because::Stacked,
        Errno::NOTTY | Errno::NOSYS => Because::Kernel,
        _ => Because::FileSystem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_of_the_kernel_are_told_apart() {
        let of = [Errno::PERM, Errno::LOOP, Errno::NOTTY, Errno::OPNOTSUPP].map(because);
        assert_eq!(of, [Because::Privilege, Because::Stacked, Because::Kernel, Because::FileSystem]);
    }
}
