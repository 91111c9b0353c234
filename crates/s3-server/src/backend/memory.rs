//! How does a test put, change and remove the objects of a bucket while the server runs?

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;
use md5::{Digest, Md5};
use parking_lot::RwLock;

use super::{Backend, Content, Meta, Object};
use crate::listing::{self, Entry, Keys, ListPage, ListQuery};
use crate::synthetic::{self, Pattern};

/// Objects in memory; clones share them, so that a test keeps one and the server gets another.
///
/// Keys are any bytes: also those that S3 would refuse, since a client must cope with what other servers list.
#[derive(Debug, Clone, Default)]
pub struct InMemory {
    objects: Arc<RwLock<BTreeMap<Vec<u8>, Object>>>,
}

impl InMemory {
    /// No objects.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with one object more.
    pub fn with(self, key: impl AsRef<[u8]>, body: impl Into<Bytes>) -> Self {
        self.put(key, body);
        self
    }

    /// Puts an object, or overwrites it; returns its ETag (MD5 of the body, without quotes).
    pub fn put(&self, key: impl AsRef<[u8]>, body: impl Into<Bytes>) -> String {
        let body = body.into();
        let etag: String = Md5::digest(&body).iter().map(|byte| format!("{byte:02x}")).collect();
        self.insert(key.as_ref(), body.len() as u64, etag.clone(), Content::Held(body));
        etag
    }

    /// Puts an object of any size whose bytes are those of [`synthetic::fill`] for its key; returns its ETag.
    pub fn put_sized(&self, key: impl AsRef<[u8]>, size: u64) -> String {
        let key = key.as_ref();
        let etag = synthetic::etag(0, key, size, 0);
        self.insert(key, size, etag.clone(), Content::Computed(Pattern::new(0, key, 0)));
        etag
    }

    /// Removes an object; false when it was not there.
    pub fn remove(&self, key: impl AsRef<[u8]>) -> bool {
        self.objects.write().remove(key.as_ref()).is_some()
    }

    /// Sets the storage class of an object; `GLACIER` and `DEEP_ARCHIVE` make its GET fail with InvalidObjectState.
    /// False when it is not there.
    pub fn set_storage_class(&self, key: impl AsRef<[u8]>, class: &str) -> bool {
        match self.objects.write().get_mut(key.as_ref()) {
            Some(object) => {
                object.meta.storage_class = Some(class.into());
                true
            }
            None => false,
        }
    }

    /// ETag of an object, without quotes.
    pub fn etag(&self, key: impl AsRef<[u8]>) -> Option<String> {
        self.objects.read().get(key.as_ref()).map(|object| object.meta.etag.clone())
    }

    /// All keys in order.
    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.objects.read().keys().cloned().collect()
    }

    fn insert(&self, key: &[u8], size: u64, etag: String, content: Content) {
        let meta = Meta { size, etag, modified: SystemTime::now(), storage_class: None };
        self.objects.write().insert(key.to_vec(), Object { meta, content });
    }
}

struct Cursor<'a> {
    objects: &'a BTreeMap<Vec<u8>, Object>,
    range: std::collections::btree_map::Range<'a, Vec<u8>, Object>,
}

impl Keys for Cursor<'_> {
    fn seek(&mut self, from: &[u8]) {
        self.range = self.objects.range::<[u8], _>((Bound::Included(from), Bound::Unbounded));
    }

    fn next(&mut self) -> Option<Entry> {
        self.range.next().map(|(key, object)| Entry { key: key.clone(), meta: object.meta.clone() })
    }
}

#[async_trait]
impl Backend for InMemory {
    async fn list(&self, query: ListQuery) -> io::Result<ListPage> {
        let objects = self.objects.read();
        let range = objects.range::<[u8], _>(..);
        Ok(listing::page(&mut Cursor { objects: &objects, range }, &query))
    }

    async fn open(&self, key: &[u8]) -> io::Result<Option<Object>> {
        Ok(self.objects.read().get(key).cloned())
    }

    async fn put(&self, key: &[u8], body: Bytes) -> io::Result<Option<Meta>> {
        InMemory::put(self, key, body);
        Ok(self.objects.read().get(key).map(|object| object.meta.clone()))
    }

    async fn delete(&self, key: &[u8]) -> io::Result<bool> {
        self.remove(key);
        Ok(true)
    }
}
