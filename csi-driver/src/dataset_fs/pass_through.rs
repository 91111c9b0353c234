//! Which opens may the kernel serve itself, from the node store's file (FUSE passthrough)?
//!
//! An object that is whole in the node store and was verified there opens by passthrough; any other through the page cache
//! and our READs. The kernel does not mix the two on one node, so each file has two nodes with the same inode number: where
//! one is held open in the way that does not suit, an open of it is answered ESTALE. The kernel then looks the name up
//! once more, by itself and without telling the caller, and gets the other node. (An INVAL_ENTRY would do it as well, but
//! sooner or later than the open that needs it.) An open that comes without its name, through /proc or a file handle, comes
//! again unchanged and is served as the node allows.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millrace_api::ino::SECOND_NODEID_BIT;
use millrace_fuse_session::{
    Caller, Errno, FileHandle, Held, NodeId, NotOpened, OpenMode, OpenReply, OpenTable, Opened,
};
use millrace_store::{Store, Whole};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::handles::Handles;
use super::open_metrics::{How, OpenCounters};
use crate::reads::{Located, Reader, Verifier};

/// Largest object that is verified inside OPEN, bytes: 2 to 4 ms. Larger ones are verified behind it.
const VERIFY_IN_OPEN_BYTES: u64 = 8 << 20;

/// Largest object that is completed inside OPEN, bytes, where half of it is there already: a quarter of a second's share
/// of a 1 Gbit/s link would be longer than a reader may be kept for what it might not want. Guess.
const FINISH_IN_OPEN_BYTES: u64 = 8 << 20;

/// How long that may take; an open that is answered later than a spinning disk would is felt. Guess.
const FINISH_IN_OPEN: Duration = Duration::from_millis(50);

/// Most openers remembered to be looking a name up again; each is for the time of one look-up.
const MAX_TOLD: usize = 4096;

/// What passing through is made of.
#[derive(Debug)]
pub struct PassThroughParts {
    /// What the kernel holds open.
    pub table: OpenTable,
    /// Where whole objects are.
    pub store: Store,
    /// Completes objects.
    pub reader: Arc<Reader>,
    /// Verifies them behind their readers.
    pub verifier: Arc<Verifier>,
    /// The files that are read through us.
    pub handles: Arc<Handles>,
    /// Counts opens.
    pub counters: OpenCounters,
}

/// Opens files by passthrough where that can be.
#[derive(Debug)]
pub struct PassThrough {
    parts: PassThroughParts,
    /// Whether the kernel has refused files for a reason that stays.
    is_refused: AtomicBool,
    /// Thread and node of openers that were sent to look their name up again.
    told: Mutex<HashSet<(u32, u64)>>,
}

/// One OPEN.
#[derive(Debug, Clone, Copy)]
struct Open {
    unique: u64,
    pid: u32,
    node: NodeId,
    located: Located,
    /// Whether the opener looks a name up again when it is told that it is stale.
    looks_up_again: bool,
}

/// What comes of an OPEN.
enum Step {
    Opened(Opened, How),
    Error(Errno),
    /// The object should be completed or verified first.
    Prepare(Whole),
}

impl PassThrough {
    /// Begins with what a mount has.
    pub fn new(parts: PassThroughParts) -> Self {
        Self { parts, is_refused: AtomicBool::new(false), told: Mutex::default() }
    }

    /// What the kernel holds open.
    pub fn table(&self) -> &OpenTable {
        &self.parts.table
    }

    /// The counters of opens.
    pub fn counters(&self) -> &OpenCounters {
        &self.parts.counters
    }

    /// The node by which a file is shown now: the first, unless that is held in a way that a new open should not have.
    pub fn node_of(&self, ino: u64, located: impl FnOnce() -> Option<Located>) -> NodeId {
        let (first, second) = (NodeId(ino), NodeId(ino | SECOND_NODEID_BIT));
        let held = self.parts.table.held(first);
        if held == Held::Free {
            return first;
        }
        let Some(located) = located() else { return first };
        let whole = self.parts.store.whole(located.span());
        if !goes_with(held, whole) && goes_with(self.parts.table.held(second), whole) {
            second
        } else {
            first
        }
    }

    /// Opens a large file; answers now, or once it was completed and verified.
    pub fn open(
        self: &Arc<Self>,
        caller: &Caller,
        node: NodeId,
        flags: u32,
        located: Located,
        reply: OpenReply,
    ) {
        // An overlayfs over the mount opens with this flag. It would pass the error on, and never forget the old node.
        let looks_up_again = flags & libc::O_NOATIME as u32 == 0;
        let open = Open { unique: caller.unique, pid: caller.pid, node, located, looks_up_again };
        match self.step(&open, true) {
            Step::Prepare(whole) => {
                let this = Arc::clone(self);
                self.parts.reader.spawn(async move { this.open_prepared(open, whole, reply).await });
            }
            step => self.answer(&open, step, reply),
        }
    }

    /// Ends the use of an open file.
    pub fn release(&self, handle: u64) {
        self.parts.handles.remove(handle);
        // False for one that was released before, by us or by a predecessor whose answer was lost.
        let _ = self.parts.table.release(FileHandle(handle));
    }

    async fn open_prepared(self: Arc<Self>, open: Open, whole: Whole, reply: OpenReply) {
        if whole == Whole::Incomplete {
            let deadline = Instant::now() + FINISH_IN_OPEN;
            tokio::select! {
                // What is under way goes on, whoever waits for it.
                _ = self.parts.reader.finish(open.located, deadline) => {}
                () = reply.interruption().clone().interrupted() => {}
            }
        }
        let answer = move || {
            let span = open.located.span();
            if self.parts.store.whole(span) == Whole::Unverified {
                self.parts.verifier.verify(span, || true);
            }
            let step = self.step(&open, false);
            self.answer(&open, step, reply);
        };
        // A panic in it was logged; the dropped reply says EIO.
        let _ = tokio::task::spawn_blocking(answer).await;
    }

    fn answer(&self, open: &Open, step: Step, reply: OpenReply) {
        match step {
            Step::Opened(opened, how) => {
                self.parts.counters.count(how);
                if how != How::Passthrough {
                    self.parts.handles.insert(opened.fh.0, open.located);
                }
                let is_taken = reply.opened(opened);
                if !self.parts.table.answered(opened.fh, is_taken) {
                    self.parts.handles.remove(opened.fh.0);
                }
            }
            Step::Error(errno) => reply.error(errno),
            // Only the first step asks for it.
            Step::Prepare(_) => reply.error(Errno::IO),
        }
    }

    fn step(&self, open: &Open, may_prepare: bool) -> Step {
        if self.is_refused.load(Ordering::Relaxed) {
            return self.cached(open, How::Refused);
        }
        let span = open.located.span();
        match self.parts.store.whole(span) {
            Whole::Verified { tag } => self.pass(open, tag),
            Whole::Unverified
                if may_prepare
                    && span.size <= VERIFY_IN_OPEN_BYTES
                    && self.parts.verifier.is_worth_it(span) =>
            {
                Step::Prepare(Whole::Unverified)
            }
            Whole::Unverified => {
                self.parts.verifier.ask(*span);
                self.cached(open, How::Unverified)
            }
            Whole::Incomplete if may_prepare && self.is_worth_finishing(open) => {
                Step::Prepare(Whole::Incomplete)
            }
            Whole::Incomplete => self.cached(open, How::Incomplete),
            Whole::Packed => self.cached(open, How::Packed),
        }
    }

    /// Whether an object is small, half there, and not read by others meanwhile.
    fn is_worth_finishing(&self, open: &Open) -> bool {
        let span = open.located.span();
        span.size <= FINISH_IN_OPEN_BYTES
            && self.parts.table.held(open.node) == Held::Free
            && self.parts.store.present(&span.file, 0..span.file.slots).count() * 2 >= span.file.slots
    }

    fn pass(&self, open: &Open, tag: u64) -> Step {
        let Open { unique, node, located, .. } = *open;
        let span = located.span();
        let mut is_borrowed = false;
        let pin = || {
            let pin = self.parts.store.pin(span).filter(|pin| pin.tag == tag)?;
            is_borrowed = pin.is_borrowed;
            Some(pin.file)
        };
        match self.parts.table.open_passthrough(unique, node, (tag, span.size), pin) {
            Ok(opened) => {
                self.told.lock().remove(&told(open.pid, node));
                let is_cached = matches!(opened.mode, OpenMode::Cached { .. });
                // One that was sent again keeps the mode that it was given first.
                Step::Opened(opened, if is_cached { How::Held } else { How::Passthrough })
            }
            Err(NotOpened::Held(_)) => self.other_node(open, Whole::Verified { tag }, How::Held),
            Err(NotOpened::NoFile) => self.cached(open, How::Incomplete),
            Err(NotOpened::Refused(errno)) => {
                if is_borrowed {
                    tracing::info!(error = %errno, "kernel takes no files of workers on this node; they are read through us");
                    self.parts.store.keep_borrowed_from_kernel();
                } else {
                    self.refused(errno);
                }
                self.cached(open, How::Refused)
            }
            Err(NotOpened::Full) => Step::Error(Errno::NFILE),
        }
    }

    fn cached(&self, open: &Open, how: How) -> Step {
        match self.parts.table.open_cached(open.unique, open.node) {
            Ok(opened) => {
                let is_cached = matches!(opened.mode, OpenMode::Cached { .. });
                Step::Opened(opened, if is_cached { how } else { How::Passthrough })
            }
            // The kernel reads a file that the store has dropped since, because it was bad or its folder was emptied.
            Err(NotOpened::Held(_)) => Step::Error(Errno::STALE),
            Err(NotOpened::NoFile | NotOpened::Refused(_) | NotOpened::Full) => Step::Error(Errno::NFILE),
        }
    }

    /// Sends the opener to the file's other node, once; then it is served as this one allows.
    fn other_node(&self, open: &Open, whole: Whole, how: How) -> Step {
        let held = self.parts.table.held(open.node);
        if matches!(held, Held::Passthrough { .. }) && !goes_with(held, whole) {
            // Never bytes of a file that was dropped. By its name the file opens by the other node.
            return Step::Error(Errno::STALE);
        }
        if !open.looks_up_again {
            return self.cached(open, how);
        }
        let other = NodeId(open.node.0 ^ SECOND_NODEID_BIT);
        let mut openers = self.told.lock();
        if openers.remove(&told(open.pid, open.node)) || !goes_with(self.parts.table.held(other), whole) {
            drop(openers);
            return self.cached(open, how);
        }
        if openers.len() >= MAX_TOLD {
            openers.clear();
        }
        openers.insert(told(open.pid, open.node));
        self.parts.counters.count_switch();
        Step::Error(Errno::STALE)
    }

    /// Gives up for good what will not be allowed later either.
    fn refused(&self, errno: Errno) {
        let is_for_good = matches!(errno, Errno::PERM | Errno::LOOP | Errno::OPNOTSUPP | Errno::NOTTY);
        if is_for_good && !self.is_refused.swap(true, Ordering::Relaxed) {
            tracing::warn!(error = %errno, "kernel takes no more files to read itself; they are read through us");
        } else {
            tracing::debug!(error = %errno, "kernel refused a file");
        }
    }
}

/// The key of an opener, the same for both nodes of a file.
fn told(pid: u32, node: NodeId) -> (u32, u64) {
    (pid, node.0 & !SECOND_NODEID_BIT)
}

/// Whether a node that is held so can be opened in the way that an object should be.
fn goes_with(held: Held, whole: Whole) -> bool {
    match (held, whole) {
        (Held::Free, _) => true,
        (Held::Passthrough { tag: held }, Whole::Verified { tag }) => held == tag,
        (Held::Passthrough { .. }, _) => false,
        (Held::Cached, Whole::Verified { .. }) => false,
        (Held::Cached, Whole::Unverified | Whole::Incomplete | Whole::Packed) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_goes_with_an_object_that_needs_no_other_mode() {
        let (whole, other) = (Whole::Verified { tag: 7 }, Held::Passthrough { tag: 8 });
        assert!(goes_with(Held::Free, whole) && goes_with(Held::Free, Whole::Incomplete));
        assert!(goes_with(Held::Passthrough { tag: 7 }, whole) && !goes_with(other, whole));
        assert!(!goes_with(other, Whole::Incomplete), "the file that the kernel reads was dropped");
        assert!(goes_with(Held::Cached, Whole::Unverified) && !goes_with(Held::Cached, whole));
    }

    #[test]
    fn both_nodes_of_a_file_remember_the_same_opener() {
        assert_eq!(told(5, NodeId(9)), told(5, NodeId(9 | SECOND_NODEID_BIT)));
    }
}
