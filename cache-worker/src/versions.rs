//! Which dataset versions does this worker serve, and what is file number n of one?

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use millrace_api::block::Span;
use millrace_api::ids::{ContentId, VersionId};
use millrace_api::index::{FileIndex, IndexView, Node};
use millrace_api::mount::MountSettings;
use millrace_api::placement::PlacementKey;
use millrace_store::index_file::IndexFile;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::origin::Origin;

/// Objects whose place is remembered for each version: looking up a large object hashes its key, which one read in
/// sixteen chunks should not pay for. About 300 bytes each.
const MAX_OBJECTS: usize = 4096;

/// An index that was found sound is believed for so long: a client that finds what it was sent damaged comes again within a
/// second, and a hundred nodes that mount at once shall not have it read a hundred times.
const BELIEVED: Duration = Duration::from_secs(10);

/// One object of a version, as reads and fetches need it.
#[derive(Debug)]
pub struct Object {
    /// Its number in the index.
    pub file: FileIndex,
    /// Where its bytes lie.
    pub span: Span,
    /// Identity of the object itself, packed or not.
    pub id: ContentId,
    /// Which source it comes from.
    pub source: u8,
    /// Whether it must be restored before it can be read.
    pub archived: bool,
    placing: Placing,
}

#[derive(Debug)]
enum Placing {
    Pack(PlacementKey),
    /// Its path, from which the key of each block is made.
    Large(Vec<u8>),
}

impl Object {
    /// What block `block` of its store file is placed by.
    pub fn placement(&self, block: u32) -> PlacementKey {
        match &self.placing {
            Placing::Pack(key) => *key,
            Placing::Large(path) => PlacementKey::of_block(path, block),
        }
    }

    /// Whether it shares its store file with others.
    pub fn is_packed(&self) -> bool {
        matches!(self.placing, Placing::Pack(_))
    }
}

/// One dataset version, frozen.
#[derive(Debug)]
pub struct Version {
    /// Its id.
    pub id: VersionId,
    index: IndexFile,
    /// The S3 side of each source, in the order of the index; `None` until the worker is told how to reach it.
    origins: RwLock<Vec<Option<Arc<Origin>>>>,
    objects: Mutex<HashMap<FileIndex, Arc<Object>>>,
    opened: Mutex<Option<Arc<File>>>,
    /// When its index was last looked through, or began to be.
    verified: Mutex<Option<Instant>>,
}

impl Version {
    /// Wraps an installed index; its origins come later.
    pub fn new(id: VersionId, index: IndexFile) -> Self {
        Self {
            id,
            index,
            origins: RwLock::default(),
            objects: Mutex::default(),
            opened: Mutex::default(),
            verified: Mutex::default(),
        }
    }

    /// The index.
    pub fn view(&self) -> IndexView<'_> {
        self.index.view()
    }

    /// Sets the S3 side of each source, in the order of the index.
    pub fn set_origins(&self, origins: Vec<Option<Arc<Origin>>>) {
        *self.origins.write() = origins;
    }

    /// The S3 side of a source.
    pub fn origin(&self, source: u8) -> Option<Arc<Origin>> {
        self.origins.read().get(usize::from(source)).cloned().flatten()
    }

    /// Whether every source can be reached as far as the configuration goes.
    pub fn has_origins(&self) -> bool {
        let origins = self.origins.read();
        origins.len() == self.view().sources().count() && origins.iter().all(Option::is_some)
    }

    /// File number `file`; `None` where the version has none, or the index is damaged there.
    pub fn object(&self, file: FileIndex) -> Option<Arc<Object>> {
        if let Some(object) = self.objects.lock().get(&file) {
            return Some(Arc::clone(object));
        }
        let object = Arc::new(self.look_up(file)?);
        let mut objects = self.objects.lock();
        if objects.len() >= MAX_OBJECTS {
            objects.clear();
        }
        objects.insert(file, Arc::clone(&object));
        Some(object)
    }

    /// File number `file`, without remembering it: for walks over the whole index.
    pub fn look_up(&self, file: FileIndex) -> Option<Object> {
        let view = self.view();
        let record = view.file(file)?;
        let span = view.span(file)?;
        let placing = match view.pack_of(file) {
            Some(_) => Placing::Pack(view.placement_key(file, 0)?),
            None => Placing::Large(view.path(Node::File(file))?),
        };
        Some(Object {
            file,
            span,
            // A large object's store file is named by the object itself: no second hash.
            id: if record.pack.is_some() { view.object_id(file)? } else { span.file.content },
            source: record.source,
            archived: record.archived,
            placing,
        })
    }

    /// The path of a file as text for messages; bytes that are no UTF-8 are replaced.
    pub fn path_text(&self, file: FileIndex) -> String {
        let path = self.view().path(Node::File(file)).unwrap_or_default();
        String::from_utf8_lossy(&path).into_owned()
    }

    /// Whether the index is to be looked through before, or while, it is sent to others. The caller does so.
    pub fn is_to_be_verified(&self, now: Instant) -> bool {
        let mut verified = self.verified.lock();
        let is_due = verified.is_none_or(|before| now.saturating_duration_since(before) >= BELIEVED);
        if is_due {
            *verified = Some(now);
        }
        is_due
    }

    /// The index file itself.
    pub fn index(&self) -> &IndexFile {
        &self.index
    }

    /// The index file opened, to be sent to others; `None` where it is gone. Opens it the first time.
    pub fn open_index(&self) -> Option<Arc<File>> {
        let mut opened = self.opened.lock();
        if opened.is_none() {
            *opened = File::open(self.index.path()).ok().map(Arc::new);
        }
        opened.clone()
    }
}

/// The versions that this worker serves. Bounded by the versions in use that it was told of.
#[derive(Debug, Default)]
pub struct Versions {
    by_id: RwLock<HashMap<VersionId, Arc<Version>>>,
    mount: Mutex<Option<MountSettings>>,
    lost: Notify,
}

impl Versions {
    /// One version.
    pub fn get(&self, id: &VersionId) -> Option<Arc<Version>> {
        self.by_id.read().get(id).cloned()
    }

    /// Adds a version, or replaces the one of its id.
    pub fn insert(&self, version: Arc<Version>) {
        self.by_id.write().insert(version.id, version);
    }

    /// Stops serving a version.
    pub fn remove(&self, id: &VersionId) -> Option<Arc<Version>> {
        self.by_id.write().remove(id)
    }

    /// Reads the whole index of a version that is served; false where it is damaged or gone, and then the version is no
    /// longer served. Blocks.
    pub fn verify(&self, version: &Arc<Version>) -> bool {
        let is_gone = !version.index().path().exists();
        let damage = version.index().verify().err();
        if !is_gone && damage.is_none() {
            return true;
        }
        let is_served = {
            let mut by_id = self.by_id.write();
            // Another file may have come in its place meanwhile.
            let is_served = by_id.get(&version.id).is_some_and(|served| Arc::ptr_eq(served, version));
            is_served && by_id.remove(&version.id).is_some()
        };
        if is_served {
            let error = damage.map_or("its file is gone".to_owned(), |damage| damage.to_string());
            tracing::warn!(version = %version.id, error, "index is lost, and got anew");
            if let Some(dir) = version.index().path().parent() {
                crate::indexes::remove(dir, version.id);
            }
            self.lost.notify_one();
        }
        false
    }

    /// Waits until a version is no longer served because of its index. Cancel safe.
    pub async fn lost(&self) {
        self.lost.notified().await;
    }

    /// How nodes mount the dataset; `None` until somebody says.
    pub fn mount(&self) -> Option<MountSettings> {
        *self.mount.lock()
    }

    /// Sets how nodes mount the dataset.
    pub fn set_mount(&self, mount: Option<MountSettings>) {
        *self.mount.lock() = mount;
    }

    /// All of them, by id.
    pub fn all(&self) -> Vec<Arc<Version>> {
        let mut all: Vec<_> = self.by_id.read().values().cloned().collect();
        all.sort_by_key(|version| version.id);
        all
    }
}
