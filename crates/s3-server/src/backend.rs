//! What does a bucket have to offer the protocol side, wherever its objects come from?

pub mod folder;
pub mod memory;
pub mod spec;
pub mod synthesised;

use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;

use crate::listing::{ListPage, ListQuery};
use crate::synthetic::Pattern;

/// Where the objects of a bucket come from.
#[derive(Debug, Clone)]
pub enum Objects {
    /// The regular files under a folder, keyed by their relative paths.
    Folder(std::path::PathBuf),
    /// Keys and bodies computed from a pattern.
    Synthetic(spec::SyntheticSpec),
    /// Objects that a test puts there and changes.
    InMemory(memory::InMemory),
}

impl From<std::path::PathBuf> for Objects {
    fn from(path: std::path::PathBuf) -> Self {
        Self::Folder(path)
    }
}

impl From<&std::path::Path> for Objects {
    fn from(path: &std::path::Path) -> Self {
        Self::Folder(path.to_owned())
    }
}

impl From<spec::SyntheticSpec> for Objects {
    fn from(spec: spec::SyntheticSpec) -> Self {
        Self::Synthetic(spec)
    }
}

impl From<memory::InMemory> for Objects {
    fn from(objects: memory::InMemory) -> Self {
        Self::InMemory(objects)
    }
}

impl From<&memory::InMemory> for Objects {
    fn from(objects: &memory::InMemory) -> Self {
        Self::InMemory(objects.clone())
    }
}

impl Objects {
    pub(crate) fn open(self) -> Arc<dyn Backend> {
        match self {
            Self::Folder(path) => Arc::new(folder::Folder::new(path)),
            Self::Synthetic(spec) => Arc::new(synthesised::Synthesised::new(spec)),
            Self::InMemory(objects) => Arc::new(objects),
        }
    }
}

/// What a listing or a HEAD tells of an object.
#[derive(Debug, Clone)]
pub(crate) struct Meta {
    pub size: u64,
    /// Without quotes.
    pub etag: String,
    pub modified: SystemTime,
    /// None means `STANDARD`.
    pub storage_class: Option<Arc<str>>,
}

/// Where the bytes of an opened object come from.
#[derive(Debug, Clone)]
pub(crate) enum Content {
    Held(Bytes),
    Computed(Pattern),
    File(Arc<std::fs::File>),
}

/// One object at one moment: the meta data and the content belong together.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    pub meta: Meta,
    pub content: Content,
}

/// A bucket's objects. Keys are bytes, since a listing may hold keys that are not UTF-8.
#[async_trait]
pub(crate) trait Backend: Send + Sync + 'static {
    async fn list(&self, query: ListQuery) -> io::Result<ListPage>;

    /// The object, or None when there is no such key.
    async fn open(&self, key: &[u8]) -> io::Result<Option<Object>>;

    /// Stores an object and returns its meta data; None when the bucket is read-only.
    async fn put(&self, key: &[u8], body: Bytes) -> io::Result<Option<Meta>>;

    /// Removes an object, if it is there; false when the bucket is read-only.
    async fn delete(&self, key: &[u8]) -> io::Result<bool>;
}
