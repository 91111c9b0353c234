//! What is fetched behind the reads: the rest of a touched block, the neighbours in a touched pack, the blocks ahead?
//!
//! A queue of hints. A hint claims nothing: a reader that wants a chunk of a queued block fetches it at once, and the hint,
//! when its turn comes, takes what is then still missing. Hints start only while the origin's window has room that no
//! reader wants, so that their requests are not queued there where a reader could not pass them.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use millrace_api::block::Span;
use millrace_api::ids::VersionId;
use millrace_api::index::{FileIndex, PackIndex};
use millrace_store::Class;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::disk_wait::look_into;
use super::fetcher::{Fetcher, Target, Terms};
use super::plan::MAX_REQUEST_CHUNKS;
use super::room::{Asker, Room};
use crate::members::Members;
use crate::origin::window::Priority;
use crate::versions::{Version, Versions};

/// Hints that wait; more are dropped and counted, and their chunks fetched when they are read. 4,096 blocks are 32 GiB.
const MAX_HINTS: usize = 4096;

/// How long a background request is tried; nobody waits for it, and a later hint or read tries again.
const DEADLINE: Duration = Duration::from_secs(30);

/// What is to be completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hint {
    /// A block of a large object.
    Block {
        /// The version.
        version: VersionId,
        /// The object.
        file: FileIndex,
        /// The block.
        block: u32,
    },
    /// All members of a pack.
    Pack {
        /// The version.
        version: VersionId,
        /// The pack.
        pack: PackIndex,
    },
}

#[derive(Debug, Default)]
struct Queue {
    hints: VecDeque<Hint>,
    queued: HashSet<Hint>,
}

/// The queue and what empties it.
#[derive(Debug)]
pub struct Background {
    fetcher: Arc<Fetcher>,
    versions: Arc<Versions>,
    members: Arc<Members>,
    room: Room,
    queue: Mutex<Queue>,
    added: Notify,
}

impl Background {
    /// An empty queue; [`run`](Self::run) empties it.
    pub fn new(fetcher: Arc<Fetcher>, versions: Arc<Versions>, members: Arc<Members>, room: Room) -> Self {
        let (queue, added) = (Mutex::default(), Notify::new());
        Self { fetcher, versions, members, room, queue, added }
    }

    /// Queues a hint, unless it is queued already or the queue is full.
    pub fn hint(&self, hint: Hint) {
        let mut queue = self.queue.lock();
        if queue.queued.contains(&hint) {
            return;
        }
        if queue.hints.len() >= MAX_HINTS {
            self.fetcher.metrics.background_dropped.inc();
            return;
        }
        queue.queued.insert(hint);
        queue.hints.push_back(hint);
        self.fetcher.metrics.background_queue.set(queue.hints.len() as i64);
        drop(queue);
        self.added.notify_one();
    }

    /// Empties the queue until dropped.
    pub async fn run(&self) {
        loop {
            let Some(hint) = self.take() else {
                self.added.notified().await;
                continue;
            };
            match hint {
                Hint::Block { version, file, block } => self.complete_block(version, file, block).await,
                Hint::Pack { version, pack } => self.complete_pack(version, pack).await,
            }
        }
    }

    fn take(&self) -> Option<Hint> {
        let mut queue = self.queue.lock();
        let hint = queue.hints.pop_front()?;
        queue.queued.remove(&hint);
        self.fetcher.metrics.background_queue.set(queue.hints.len() as i64);
        Some(hint)
    }

    /// Takes the hint for the block after `block` too, where it is queued: one request brings both.
    fn take_next(&self, version: VersionId, file: FileIndex, block: u32) -> bool {
        let next = Hint::Block { version, file, block: block + 1 };
        let mut queue = self.queue.lock();
        if !queue.queued.remove(&next) {
            return false;
        }
        queue.hints.retain(|hint| *hint != next);
        self.fetcher.metrics.background_queue.set(queue.hints.len() as i64);
        true
    }

    async fn complete_block(&self, version: VersionId, file: FileIndex, block: u32) {
        self.room.wait(Asker::Background).await;
        let Some(target) = self.target(version, file) else { return };
        let Some(class) = self.class(&target, block) else { return };
        let mut chunks = target.object.span.chunks_in_block(block);
        let mut last = block;
        loop {
            let next = target.object.span.chunks_in_block(last + 1);
            let fits = !next.is_empty() && next.end - chunks.start <= MAX_REQUEST_CHUNKS;
            if !fits || !self.take_next(version, file, last) {
                break;
            }
            last += 1;
            chunks.end = next.end;
        }
        self.fill(&target, chunks, class);
    }

    async fn complete_pack(&self, version: VersionId, pack: PackIndex) {
        let Some(version) = self.versions.get(&version) else { return };
        let view = version.view();
        let Some(about) = view.pack(pack) else { return };
        // All at once: each miss in the pack has it looked at again, most of it there or on its way by then.
        let (store, file) = (&self.fetcher.store, &about.file);
        let there = look_into(store, file, || store.present(file, 0..file.slots));
        let is_there = |file: &FileIndex| {
            let has_all = |span: Span| span.slots(span.chunks()).all(|slot| there.contains(slot));
            view.span(*file).is_none_or(has_all)
        };
        let absent: Vec<FileIndex> = view.pack_members(pack).filter(|file| !is_there(file)).collect();
        for file in absent {
            let Some(target) = target(&version, file) else { continue };
            if self.is_refused(&target) || self.is_on_its_way(&target) {
                continue;
            }
            self.room.wait(Asker::Background).await;
            let Some(class) = self.class(&target, 0) else { return };
            self.fill(&target, target.object.span.chunks(), class);
        }
    }

    /// How the block would be kept; `None` where fetching it now is no use.
    fn class(&self, target: &Target, block: u32) -> Option<Class> {
        let class = self.members.class(target.object.placement(block));
        (class == Class::Owned && self.fetcher.admits() && !self.is_refused(target)).then_some(class)
    }

    fn is_refused(&self, target: &Target) -> bool {
        target.object.archived
            || self.fetcher.failures.lock().refusal(&target.object.id, Instant::now().into_std()).is_some()
    }

    /// Whether somebody fetches all of an object, so that its turn need not be waited for.
    fn is_on_its_way(&self, target: &Target) -> bool {
        let (map, content) = (self.fetcher.map.lock(), target.content());
        target.slots(&target.object.span.chunks()).all(|slot| map.is_pending(content, slot))
    }

    fn fill(&self, target: &Target, chunks: std::ops::Range<u32>, class: Class) {
        let deadline = Instant::now() + DEADLINE;
        let terms = Terms { priority: Priority::WarmUp, class, deadline };
        // Nobody waits: a failure is remembered by the fetcher, or met again by a reader.
        drop(self.fetcher.fill(target, chunks, terms));
    }

    fn target(&self, version: VersionId, file: FileIndex) -> Option<Target> {
        target(&self.versions.get(&version)?, file)
    }
}

fn target(version: &Arc<Version>, file: FileIndex) -> Option<Target> {
    Some(Target { version: Arc::clone(version), object: version.object(file)? })
}
