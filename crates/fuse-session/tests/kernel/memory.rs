//! A small read-only file system in memory, whose files are answered in different ways.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use millrace_fuse_session::{
    Attr, Caller, DirBuffer, DirPlusBuffer, Entry, Errno, FileHandle, Filesystem, Kind, Lookup, NodeId,
    OpenMode, Opened, OpenedDir, ReadReply, ReadRequest, Statfs,
};

/// Names in the directory `many`.
pub const MANY: u64 = 20_000;
/// Bytes of `large`.
pub const LARGE: u64 = 8 << 20;
/// What `hello` says.
pub const HELLO: &[u8] = b"hello, kernel\n";
/// Unlimited for a test.
const TTL: Duration = Duration::from_secs(3600);

/// How reads of a file are answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Serve {
    /// At once, in two pieces.
    Pieces,
    /// By another thread.
    Deferred,
    /// When the test says so; EINTR on an interrupt.
    Held,
    /// Never: the reply is dropped.
    Dropped,
    /// By a panic.
    Panic,
}

#[derive(Debug)]
struct File {
    ino: u64,
    name: &'static str,
    size: u64,
    serve: Serve,
}

const FILES: &[File] = &[
    File { ino: 2, name: "hello", size: HELLO.len() as u64, serve: Serve::Pieces },
    File { ino: 3, name: "large", size: LARGE, serve: Serve::Pieces },
    File { ino: 4, name: "deferred", size: LARGE, serve: Serve::Deferred },
    File { ino: 5, name: "held", size: 4096, serve: Serve::Held },
    File { ino: 6, name: "dropped", size: 4096, serve: Serve::Dropped },
    File { ino: 7, name: "panic", size: 4096, serve: Serve::Panic },
];
const MANY_INO: u64 = 8;
const FIRST_OF_MANY: u64 = 1000;

type Job = (ReadRequest, ReadReply);

pub struct Memory {
    deferred: Sender<Job>,
    held: Sender<Job>,
    /// Offset and size of every READ.
    pub reads: Mutex<Vec<(u64, u32)>>,
    /// Content put in place of a node's own, to see caches being dropped.
    pub replaced: Mutex<HashMap<u64, Vec<u8>>>,
}

impl Memory {
    /// Makes the file system and the receiver of the reads of `held`.
    pub fn new() -> (Arc<Self>, Receiver<Job>) {
        let (deferred, jobs) = channel::<Job>();
        std::thread::spawn(move || {
            for (request, reply) in jobs {
                let bytes = pattern(request.node.0, request.offset, request.size);
                reply.bytes(&bytes);
            }
        });
        let (held, held_jobs) = channel();
        let memory = Self { deferred, held, reads: Mutex::default(), replaced: Mutex::default() };
        (Arc::new(memory), held_jobs)
    }
}

/// Gives content of a node that differs by place.
pub fn pattern(ino: u64, offset: u64, size: u32) -> Vec<u8> {
    let length = FILES.iter().find(|file| file.ino == ino).map_or(0, |file| file.size);
    let end = offset.saturating_add(u64::from(size)).min(length);
    if ino == 2 {
        return HELLO.get(offset as usize..end as usize).unwrap_or_default().to_vec();
    }
    (offset..end).map(|at| (at ^ (at >> 8) ^ (at >> 16) ^ ino) as u8).collect()
}

/// Gives the attributes of a node.
fn attr(ino: u64) -> Option<Attr> {
    let file = FILES.iter().find(|file| file.ino == ino);
    let (kind, size) = match (ino, file) {
        (1 | MANY_INO, _) => (Kind::Directory, 0),
        (_, Some(file)) => (Kind::File, file.size),
        (ino, None) if (FIRST_OF_MANY..FIRST_OF_MANY + MANY).contains(&ino) => (Kind::File, ino),
        _ => return None,
    };
    let mtime = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let permissions = if kind == Kind::Directory { 0o555 } else { 0o444 };
    let (blocks, nlink, block_size) = (size.div_ceil(512), 1, 4096);
    let (uid, gid, atime, ctime) = (0, 0, mtime, mtime);
    Some(Attr { ino, kind, permissions, size, blocks, block_size, nlink, uid, gid, atime, mtime, ctime })
}

fn entry(ino: u64) -> Option<Entry> {
    let attr = attr(ino)?;
    Some(Entry { node: NodeId(ino), generation: 0, attr, entry_ttl: TTL, attr_ttl: TTL })
}

/// Gives name and node at a place of a directory, where 0 and 1 are "." and "..".
fn at(directory: u64, place: u64) -> Option<(u64, String)> {
    match (directory, place) {
        (ino, 0) => Some((ino, ".".into())),
        (_, 1) => Some((1, "..".into())),
        (1, place) => match FILES.get(place as usize - 2) {
            Some(file) => Some((file.ino, file.name.into())),
            None => (place as usize - 2 == FILES.len()).then(|| (MANY_INO, "many".into())),
        },
        (_, place) if place - 2 < MANY => Some((FIRST_OF_MANY + place - 2, format!("file-{:05}", place - 2))),
        _ => None,
    }
}

impl Filesystem for Memory {
    fn lookup(&self, _caller: &Caller, parent: NodeId, name: &[u8]) -> Result<Lookup, Errno> {
        let name = std::str::from_utf8(name).map_err(|_| Errno::NOENT)?;
        let ino = match (parent.0, name) {
            (ino, ".") => Some(ino),
            (1, "many") => Some(MANY_INO),
            (1, name) => FILES.iter().find(|file| file.name == name).map(|file| file.ino),
            (_, name) => {
                let number = name.strip_prefix("file-").and_then(|number| number.parse::<u64>().ok());
                number.filter(|number| *number < MANY).map(|number| FIRST_OF_MANY + number)
            }
        };
        Ok(ino.and_then(entry).map_or(Lookup::Absent { ttl: TTL }, Lookup::Found))
    }

    fn getattr(&self, _: &Caller, node: NodeId, _: Option<FileHandle>) -> Result<(Attr, Duration), Errno> {
        attr(node.0).map(|attr| (attr, TTL)).ok_or(Errno::NOENT)
    }

    fn open(&self, _: &Caller, _: NodeId, _flags: u32) -> Result<Opened, Errno> {
        Ok(Opened { fh: FileHandle(0), mode: OpenMode::Cached { keep: true } })
    }

    fn read(&self, _: &Caller, request: ReadRequest, reply: ReadReply) {
        self.reads.lock().unwrap().push((request.offset, request.size));
        let serve = FILES.iter().find(|file| file.ino == request.node.0).map(|file| file.serve);
        if let Some(bytes) = self.replaced.lock().unwrap().get(&request.node.0) {
            return reply.bytes(bytes);
        }
        match serve {
            Some(Serve::Pieces) => {
                let bytes = pattern(request.node.0, request.offset, request.size);
                let pieces: Vec<_> = bytes.chunks(64 * 1024).collect();
                reply.pieces(&pieces);
            }
            Some(Serve::Deferred) => self.deferred.send((request, reply)).unwrap(),
            Some(Serve::Held) => self.held.send((request, reply)).unwrap(),
            Some(Serve::Dropped) => drop(reply),
            Some(Serve::Panic) => panic!("as the test wants"),
            None => reply.error(Errno::IO),
        }
    }

    fn opendir(&self, _: &Caller, _: NodeId) -> Result<OpenedDir, Errno> {
        Ok(OpenedDir { fh: FileHandle(0), is_cacheable: true })
    }

    fn readdir(
        &self,
        _: &Caller,
        node: NodeId,
        _: FileHandle,
        offset: u64,
        buffer: &mut DirBuffer,
    ) -> Result<(), Errno> {
        let names = (offset..).map_while(|place| Some((place, at(node.0, place)?)));
        for (place, (ino, name)) in names {
            let kind = attr(ino).unwrap().kind;
            if !buffer.push(ino, kind, name.as_bytes(), place + 1) {
                break;
            }
        }
        Ok(())
    }

    fn readdirplus(
        &self,
        _: &Caller,
        node: NodeId,
        _: FileHandle,
        offset: u64,
        buffer: &mut DirPlusBuffer,
    ) -> Result<(), Errno> {
        let names = (offset..).map_while(|place| Some((place, at(node.0, place)?)));
        for (place, (ino, name)) in names {
            let fits = match place {
                0 | 1 => buffer.push_name(ino, Kind::Directory, name.as_bytes(), place + 1),
                _ => buffer.push(&entry(ino).unwrap(), name.as_bytes(), place + 1),
            };
            if !fits {
                break;
            }
        }
        Ok(())
    }

    fn statfs(&self, _: &Caller, _: NodeId) -> Result<Statfs, Errno> {
        let (block_size, blocks, files, name_max) = (4096, 12_345, 77, 255);
        Ok(Statfs { block_size, blocks, files, name_max, ..Statfs::default() })
    }

    fn getxattr(&self, _: &Caller, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        match name {
            b"user.millrace.etag" => Ok(format!("etag-{}", node.0).into_bytes()),
            _ => Err(Errno::NODATA),
        }
    }

    fn listxattr(&self, _: &Caller, _: NodeId) -> Result<Vec<Vec<u8>>, Errno> {
        Ok(vec![b"user.millrace.etag".to_vec(), b"user.millrace.key".to_vec()])
    }
}
