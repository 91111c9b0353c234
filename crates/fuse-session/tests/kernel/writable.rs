//! The changing requests of a file system that overrides them: enough for fault injection under a store.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use millrace_fuse_session::{
    Attr, Caller, Capabilities, DirBuffer, Entry, Errno, FileHandle, Filesystem, Kind, Lookup, NodeId,
    OpenMode, Opened, ReadReply, ReadRequest, SetAttr, Statfs, Wanted,
};

use crate::mounted::{Served, may_mount};

/// Room in all; a write beyond it gets ENOSPC.
const ROOM: u64 = 4 << 20;

/// Files and folders by node; a folder has no content.
#[derive(Default)]
struct State {
    nodes: HashMap<u64, Option<Vec<u8>>>,
    names: HashMap<(u64, Vec<u8>), u64>,
    last: u64,
    syncs: u32,
}

#[derive(Default)]
struct Scratch(Mutex<State>);

impl State {
    fn make(&mut self, parent: NodeId, name: &[u8], content: Option<Vec<u8>>) -> Entry {
        self.last += 1;
        let ino = self.last + 1;
        self.nodes.insert(ino, content);
        self.names.insert((parent.0, name.to_vec()), ino);
        self.entry(ino)
    }

    fn entry(&self, ino: u64) -> Entry {
        let (entry_ttl, attr_ttl) = (Duration::ZERO, Duration::ZERO);
        Entry { node: NodeId(ino), generation: 0, attr: self.attr(ino), entry_ttl, attr_ttl }
    }

    fn attr(&self, ino: u64) -> Attr {
        let content = self.nodes.get(&ino).and_then(Option::as_ref);
        let (kind, permissions) = match content {
            Some(_) => (Kind::File, 0o644),
            None => (Kind::Directory, 0o755),
        };
        let size = content.map_or(0, |content| content.len() as u64);
        let (blocks, nlink, block_size) = (size.div_ceil(512), 1, 4096);
        let (uid, gid, atime, mtime, ctime) = (0, 0, UNIX_EPOCH, UNIX_EPOCH, UNIX_EPOCH);
        Attr { ino, kind, permissions, size, blocks, block_size, nlink, uid, gid, atime, mtime, ctime }
    }

    fn content(&mut self, node: NodeId) -> Result<&mut Vec<u8>, Errno> {
        self.nodes.get_mut(&node.0).and_then(Option::as_mut).ok_or(Errno::ISDIR)
    }

    fn remove(&mut self, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.names.remove(&(parent.0, name.to_vec())).map(drop).ok_or(Errno::NOENT)
    }
}

impl Filesystem for Scratch {
    fn lookup(&self, _: &Caller, parent: NodeId, name: &[u8]) -> Result<Lookup, Errno> {
        let state = self.0.lock().unwrap();
        let ino = state.names.get(&(parent.0, name.to_vec())).ok_or(Errno::NOENT)?;
        Ok(Lookup::Found(state.entry(*ino)))
    }

    fn getattr(&self, _: &Caller, node: NodeId, _: Option<FileHandle>) -> Result<(Attr, Duration), Errno> {
        Ok((self.0.lock().unwrap().attr(node.0), Duration::ZERO))
    }

    fn open(&self, _: &Caller, _: NodeId, _: u32) -> Result<Opened, Errno> {
        Ok(Opened { fh: FileHandle(0), mode: OpenMode::Direct })
    }

    fn read(&self, _: &Caller, request: ReadRequest, reply: ReadReply) {
        let mut state = self.0.lock().unwrap();
        let content = state.content(request.node).unwrap();
        let end = content.len().min(request.offset as usize + request.size as usize);
        reply.bytes(content.get(request.offset as usize..end).unwrap_or_default());
    }

    fn readdir(
        &self,
        _: &Caller,
        node: NodeId,
        _: FileHandle,
        offset: u64,
        buffer: &mut DirBuffer,
    ) -> Result<(), Errno> {
        let state = self.0.lock().unwrap();
        let mut names: Vec<_> = state.names.iter().filter(|((parent, _), _)| *parent == node.0).collect();
        names.sort();
        for (((_, name), ino), place) in names.into_iter().zip(1u64..).skip(offset as usize) {
            if !buffer.push(*ino, state.attr(*ino).kind, name, place) {
                break;
            }
        }
        Ok(())
    }

    fn statfs(&self, _: &Caller, _: NodeId) -> Result<Statfs, Errno> {
        Ok(Statfs::default())
    }

    fn fsync(&self, _: NodeId, _: FileHandle, _: bool) -> Result<(), Errno> {
        self.0.lock().unwrap().syncs += 1;
        Ok(())
    }

    fn setattr(&self, _: &Caller, node: NodeId, set: &SetAttr) -> Result<(Attr, Duration), Errno> {
        let mut state = self.0.lock().unwrap();
        if let Some(size) = set.size {
            state.content(node)?.resize(size as usize, 0);
        }
        Ok((state.attr(node.0), Duration::ZERO))
    }

    fn create(
        &self,
        _: &Caller,
        parent: NodeId,
        name: &[u8],
        mode: u32,
        _: u32,
    ) -> Result<(Entry, Opened), Errno> {
        assert_eq!(mode & 0o777, 0o640, "the umask is taken off");
        let entry = self.0.lock().unwrap().make(parent, name, Some(Vec::new()));
        Ok((entry, Opened { fh: FileHandle(0), mode: OpenMode::Direct }))
    }

    fn write(&self, node: NodeId, _: FileHandle, offset: u64, data: &[u8]) -> Result<u32, Errno> {
        let end = offset + data.len() as u64;
        if end > ROOM {
            return Err(Errno::NOSPC);
        }
        let mut state = self.0.lock().unwrap();
        let content = state.content(node)?;
        content.resize(content.len().max(end as usize), 0);
        content[offset as usize..end as usize].copy_from_slice(data);
        Ok(data.len() as u32)
    }

    fn fallocate(&self, node: NodeId, _: FileHandle, offset: u64, length: u64, _: u32) -> Result<(), Errno> {
        let mut state = self.0.lock().unwrap();
        let content = state.content(node)?;
        content.resize(content.len().max((offset + length) as usize), 0);
        Ok(())
    }

    fn mkdir(&self, _: &Caller, parent: NodeId, name: &[u8], _: u32) -> Result<Entry, Errno> {
        Ok(self.0.lock().unwrap().make(parent, name, None))
    }

    fn unlink(&self, _: &Caller, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.0.lock().unwrap().remove(parent, name)
    }

    fn rmdir(&self, _: &Caller, parent: NodeId, name: &[u8]) -> Result<(), Errno> {
        self.0.lock().unwrap().remove(parent, name)
    }

    fn rename(&self, _: &Caller, from: (NodeId, &[u8]), to: (NodeId, &[u8]), _: u32) -> Result<(), Errno> {
        let mut state = self.0.lock().unwrap();
        let ino = state.names.remove(&(from.0.0, from.1.to_vec())).ok_or(Errno::NOENT)?;
        state.names.insert((to.0.0, to.1.to_vec()), ino);
        Ok(())
    }
}

#[test]
fn file_system_that_takes_changes_can_be_served() {
    if !may_mount() {
        return;
    }
    let capabilities =
        Capabilities::READ_ONLY.with(Capabilities::BIG_WRITES).without(Capabilities::EXPORT_SUPPORT);
    let wanted = Wanted { capabilities, max_write: 1 << 20, ..Wanted::default() };
    let scratch = Arc::new(Scratch::default());
    let served = Served::new(&wanted, Arc::clone(&scratch));
    let (folder, before, after) = (served.path("d"), served.path("before"), served.path("d/after"));
    fs::create_dir(&folder).unwrap();
    rustix::process::umask(0o027.into());
    let mut file = File::create_new(&before).unwrap();
    let bytes: Vec<u8> = (0..3_000_000u32).map(|at| (at ^ (at >> 8)) as u8).collect();
    file.write_all(&bytes).unwrap();
    file.sync_data().unwrap();
    assert_eq!(scratch.0.lock().unwrap().syncs, 1);
    assert_eq!(fs::read(&before).unwrap(), bytes);
    let full = file.write_all_at(b"x", ROOM).unwrap_err();
    assert_eq!(full.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    fs::rename(&before, &after).unwrap();
    assert!(!before.exists());
    assert_eq!(
        fs::read_dir(&folder).unwrap().map(|name| name.unwrap().file_name()).collect::<Vec<_>>(),
        ["after"]
    );
    OpenOptions::new().write(true).open(&after).unwrap().set_len(10).unwrap();
    assert_eq!(fs::read(&after).unwrap(), bytes[..10]);
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 5000).unwrap();
    assert_eq!(fs::metadata(&after).unwrap().len(), 5000);
    fs::remove_file(&after).unwrap();
    fs::remove_dir(&folder).unwrap();
    assert_eq!(fs::read_dir(served.root()).unwrap().count(), 0);
}
