//! Which objects does a folder hold, and in which order?
//!
//! Keys are relative paths. Regular files and links to them are objects; links to folders are left out, since they can
//! form loops. An ETag is a hash of size, modification time and inode number: it costs no reading of the content, is
//! stable, and changes when the file is written or replaced. It ends in `-1`, so that clients do not take it for an MD5.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_128;

use super::{Backend, Content, Meta, Object};
use crate::listing::{self, Entry, Keys, ListPage, ListQuery};

/// Names kept over all cached directories: a tree of a few million files; about 60 bytes each.
const MAX_CACHED_NAMES: usize = 4_000_000;
/// A directory that changed within this time is not cached: its time stamp may not tell the next change apart (the
/// kernel's clock for time stamps ticks every 1 to 10 ms).
const SETTLED: Duration = Duration::from_millis(100);

/// The objects of a folder.
pub(crate) struct Folder {
    tree: Arc<Tree>,
}

struct Tree {
    root: PathBuf,
    cache: Mutex<Cache>,
}

#[derive(Default)]
struct Cache {
    directories: HashMap<PathBuf, (SystemTime, Arc<Directory>)>,
    names: usize,
}

/// Names of one directory, folders with a trailing slash, in order of bytes.
#[derive(Default)]
struct Directory {
    names: Vec<Box<[u8]>>,
}

impl Folder {
    pub fn new(root: PathBuf) -> Self {
        Self { tree: Arc::new(Tree { root, cache: Mutex::default() }) }
    }
}

impl Tree {
    /// The directory at `path` below the root; an unreadable one is empty, like one that has just been removed.
    fn directory(&self, path: &[u8]) -> Arc<Directory> {
        let path = self.root.join(std::ffi::OsStr::from_bytes(path));
        let modified = fs::metadata(&path).and_then(|metadata| metadata.modified()).ok();
        if let (Some(modified), Some((cached, directory))) =
            (modified, self.cache.lock().directories.get(&path))
            && *cached == modified
        {
            return directory.clone();
        }
        let directory = Arc::new(match read_directory(&path) {
            Ok(directory) => directory,
            Err(err) => {
                if err.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(path = %path.display(), error = %err, "directory left out of a listing");
                }
                Directory::default()
            }
        });
        if let Some(modified) = modified
            && modified.elapsed().is_ok_and(|age| age > SETTLED)
        {
            self.cache.lock().keep(path, modified, &directory);
        }
        directory
    }
}

impl Cache {
    fn keep(&mut self, path: PathBuf, modified: SystemTime, directory: &Arc<Directory>) {
        if self.names + directory.names.len() > MAX_CACHED_NAMES {
            self.directories.clear();
            self.names = 0;
        }
        self.names += directory.names.len() + 1;
        if let Some((_, old)) = self.directories.insert(path, (modified, directory.clone())) {
            self.names -= old.names.len() + 1;
        }
    }
}

fn read_directory(path: &Path) -> io::Result<Directory> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let is_file =
            kind.is_file() || kind.is_symlink() && fs::metadata(entry.path()).is_ok_and(|m| m.is_file());
        let mut name = entry.file_name().into_vec();
        if kind.is_dir() {
            name.push(b'/');
        } else if !is_file {
            continue;
        }
        names.push(name.into_boxed_slice());
    }
    names.sort_unstable();
    Ok(Directory { names })
}

fn meta(metadata: &Metadata) -> Meta {
    let mut identity = [0; 32];
    let fields = [metadata.size(), metadata.mtime() as u64, metadata.mtime_nsec() as u64, metadata.ino()];
    for (place, field) in identity.chunks_exact_mut(8).zip(fields) {
        place.copy_from_slice(&field.to_le_bytes());
    }
    Meta {
        size: metadata.size(),
        etag: format!("{:032x}-1", xxh3_128(&identity)),
        modified: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        storage_class: None,
    }
}

/// A walk through the tree in order of keys.
struct Walk<'a> {
    tree: &'a Tree,
    /// From the root down: a directory, the next place in it, and the length of its path in `path`.
    stack: Vec<(Arc<Directory>, usize, usize)>,
    path: Vec<u8>,
}

impl<'a> Walk<'a> {
    fn new(tree: &'a Tree) -> Self {
        Self { tree, stack: Vec::new(), path: Vec::new() }
    }

    fn enter(&mut self, name: &[u8]) {
        self.path.extend_from_slice(name);
        let directory = self.tree.directory(&self.path);
        self.stack.push((directory, 0, self.path.len()));
    }
}

impl Keys for Walk<'_> {
    fn seek(&mut self, from: &[u8]) {
        self.stack.clear();
        self.path.clear();
        self.enter(b"");
        let mut rest = from;
        loop {
            let Some((directory, place, _)) = self.stack.last_mut() else { return };
            *place = directory.names.partition_point(|name| name.as_ref() < rest);
            // No other name lies between `a/` and `a/b`, so the folder on the way to `rest` is just before it.
            let before = place.checked_sub(1).and_then(|before| directory.names.get(before)).cloned();
            match before {
                Some(name) if name.ends_with(b"/") && rest.starts_with(&name) => {
                    rest = &rest[name.len()..];
                    self.enter(&name);
                }
                _ => return,
            }
        }
    }

    fn next(&mut self) -> Option<Entry> {
        loop {
            let (directory, place, length) = self.stack.last_mut()?;
            self.path.truncate(*length);
            let Some(name) = directory.names.get(*place).cloned() else {
                self.stack.pop();
                continue;
            };
            *place += 1;
            if name.ends_with(b"/") {
                self.enter(&name);
                continue;
            }
            let key = [self.path.as_slice(), &name].concat();
            let path = self.tree.root.join(std::ffi::OsStr::from_bytes(&key));
            if let Ok(metadata) = fs::metadata(&path)
                && metadata.is_file()
            {
                return Some(Entry { key, meta: meta(&metadata) });
            }
        }
    }
}

/// The path of a key; None for keys that no file can have, among them those that would lead out of the folder.
fn path_of(root: &Path, key: &[u8]) -> Option<PathBuf> {
    let possible =
        key.split(|byte| *byte == b'/').all(|name| !name.is_empty() && name != b"." && name != b"..");
    (possible && !key.contains(&0)).then(|| root.join(std::ffi::OsStr::from_bytes(key)))
}

fn open(path: &Path) -> io::Result<Option<Object>> {
    // Looked at before it is opened: opening a FIFO would wait for a writer.
    let opened = fs::metadata(path)
        .and_then(|metadata| if metadata.is_file() { File::open(path).map(Some) } else { Ok(None) });
    match opened {
        Ok(Some(file)) => {
            let meta = meta(&file.metadata()?);
            Ok(Some(Object { meta, content: Content::File(Arc::new(file)) }))
        }
        Ok(None) => Ok(None),
        Err(err) => match err.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => {
                Ok(None)
            }
            _ => Err(err),
        },
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

#[async_trait]
impl Backend for Folder {
    async fn list(&self, query: ListQuery) -> io::Result<ListPage> {
        let tree = self.tree.clone();
        blocking(move || Ok(listing::page(&mut Walk::new(&tree), &query))).await
    }

    async fn open(&self, key: &[u8]) -> io::Result<Option<Object>> {
        match path_of(&self.tree.root, key) {
            Some(path) => blocking(move || open(&path)).await,
            None => Ok(None),
        }
    }

    async fn put(&self, _key: &[u8], _body: Bytes) -> io::Result<Option<Meta>> {
        Ok(None)
    }

    async fn delete(&self, _key: &[u8]) -> io::Result<bool> {
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listing::Start;

    fn tree(paths: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for path in paths {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, b"x").unwrap();
        }
        root
    }

    fn from(walk: &mut Walk<'_>, start: &[u8]) -> Vec<Vec<u8>> {
        walk.seek(start);
        std::iter::from_fn(|| walk.next()).map(|entry| entry.key).collect()
    }

    #[test]
    fn the_walk_is_in_order_of_keys_from_every_place() {
        let root = tree(&["a", "a.txt", "b/x", "b/y/z", "b.txt", "b-c/d", "c/c/c/c", "d0/1", "d/1", "e"]);
        fs::create_dir(root.path().join("empty")).unwrap();
        let folder = Folder::new(root.path().to_owned());
        let mut walk = Walk::new(&folder.tree);
        let all = from(&mut walk, b"");
        assert!(all.is_sorted() && all.len() == 10, "{all:?}");
        let mut places: Vec<Vec<u8>> = all.clone();
        places.extend([&b"b/"[..], b"b/y", b"b0", b"c/c/d", b"empty/", b"zz"].map(<[u8]>::to_vec));
        places.extend(all.iter().map(|key| [key.as_slice(), b"\0"].concat()));
        for place in places {
            let expected: Vec<_> = all.iter().filter(|key| **key >= place).cloned().collect();
            assert_eq!(from(&mut walk, &place), expected, "{}", String::from_utf8_lossy(&place));
        }
    }

    #[test]
    fn a_new_file_is_listed_although_its_directory_was_read_before() {
        let root = tree(&["a/1"]);
        let folder = Folder::new(root.path().to_owned());
        for count in 2..30 {
            let key = format!("a/{count}");
            fs::write(root.path().join(&key), b"").unwrap();
            assert!(from(&mut Walk::new(&folder.tree), b"").contains(&key.into_bytes()));
        }
    }

    #[test]
    fn links_to_files_are_objects_and_links_to_folders_are_not() {
        let root = tree(&["a/1"]);
        std::os::unix::fs::symlink("1", root.path().join("a/2")).unwrap();
        std::os::unix::fs::symlink("..", root.path().join("a/loop")).unwrap();
        std::os::unix::fs::symlink("nowhere", root.path().join("a/dangling")).unwrap();
        let folder = Folder::new(root.path().to_owned());
        assert_eq!(from(&mut Walk::new(&folder.tree), b""), [b"a/1".to_vec(), b"a/2".to_vec()]);
    }

    #[test]
    fn no_key_leads_out_of_the_folder() {
        let root = tree(&["a/1"]);
        for key in ["", "/etc/passwd", "../x", "a/../1", "a//1", "./a/1", "a/1/", "a/\0"] {
            assert_eq!(path_of(root.path(), key.as_bytes()), None, "{key:?}");
        }
        assert!(path_of(root.path(), b"a/1").is_some());
    }

    #[tokio::test]
    async fn the_etag_is_stable_and_changes_with_the_file() {
        let root = tree(&["a"]);
        let folder = Folder::new(root.path().to_owned());
        let etag = async || folder.open(b"a").await.unwrap().unwrap().meta.etag;
        let first = etag().await;
        assert_eq!(first, etag().await);
        let query = ListQuery { prefix: vec![], delimiter: vec![], start: Start::First, max_keys: 1 };
        assert_eq!(folder.list(query).await.unwrap().entries[0].meta.etag, first);
        fs::write(root.path().join("b"), b"y").unwrap();
        fs::rename(root.path().join("b"), root.path().join("a")).unwrap();
        assert_ne!(first, etag().await);
    }
}
