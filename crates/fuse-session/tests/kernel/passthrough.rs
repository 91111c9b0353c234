//! Passthrough: files that the kernel reads itself, the table of what it holds, and its change of hands.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, UNIX_EPOCH};

use millrace_fuse_session::{
    Attr, Caller, Capabilities, DirBuffer, Entry, Errno, FileHandle, Filesystem, Held, Idle, Kind, Lookup,
    NodeId, NotOpened, Opcode, OpenMode, OpenReply, OpenTable, ReadReply, ReadRequest, Session, Statfs,
    Wanted,
};
use tempfile::TempDir;

use crate::mounted::{Served, may_mount};

const TTL: Duration = Duration::from_secs(3600);
const SIZE: u64 = 3 << 20;
/// The bit of the second node of a file.
const SECOND: u64 = 1 << 40;

/// Ten files that lie in a folder; whether they are read by the kernel is up to the test.
struct Backed {
    folder: TempDir,
    table: OnceLock<OpenTable>,
    /// Files that are read through the session.
    through_us: Mutex<HashMap<u64, bool>>,
    /// Whether names mean the second nodes.
    is_second: AtomicBool,
    /// OPENs that are answered ESTALE.
    stale: AtomicU64,
}

fn node_of(name: &[u8]) -> Option<u64> {
    let number: u64 = std::str::from_utf8(name).ok()?.strip_prefix("file-")?.parse().ok()?;
    (number < 10).then_some(number + 2)
}

fn attr(node: u64) -> Attr {
    let (kind, permissions, size) =
        if node == 1 { (Kind::Directory, 0o555, 0) } else { (Kind::File, 0o444, SIZE) };
    let (atime, mtime, ctime) = (UNIX_EPOCH, UNIX_EPOCH, UNIX_EPOCH);
    let (ino, blocks, block_size) = (node & !SECOND, size / 512, 4096);
    Attr { ino, kind, permissions, size, blocks, block_size, nlink: 1, uid: 0, gid: 0, atime, mtime, ctime }
}

fn byte(node: u64, at: u64) -> u8 {
    (at ^ (at >> 8) ^ (at >> 16) ^ (node * 31)) as u8
}

impl Backed {
    fn new() -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        for node in 2..12 {
            let bytes: Vec<u8> = (0..SIZE).map(|at| byte(node, at)).collect();
            fs::write(folder.path().join(node.to_string()), bytes).unwrap();
        }
        let (table, through_us) = (OnceLock::new(), Mutex::default());
        Arc::new(Self {
            folder,
            table,
            through_us,
            is_second: AtomicBool::new(false),
            stale: AtomicU64::new(0),
        })
    }

    fn table(&self) -> &OpenTable {
        self.table.get().unwrap()
    }

    fn file(&self, node: u64) -> File {
        File::open(self.folder.path().join((node & !SECOND).to_string())).unwrap()
    }

    fn read_through_us(&self, node: u64, is_so: bool) {
        self.through_us.lock().unwrap().insert(node, is_so);
    }
}

impl Filesystem for Backed {
    fn lookup(&self, _: &Caller, _: NodeId, name: &[u8]) -> Result<Lookup, Errno> {
        let Some(node) = node_of(name) else { return Ok(Lookup::Absent { ttl: TTL }) };
        let node = if self.is_second.load(SeqCst) { node | SECOND } else { node };
        let (attr, node) = (attr(node), NodeId(node));
        Ok(Lookup::Found(Entry { node, generation: 0, attr, entry_ttl: TTL, attr_ttl: TTL }))
    }

    fn getattr(&self, _: &Caller, node: NodeId, _: Option<FileHandle>) -> Result<(Attr, Duration), Errno> {
        Ok((attr(node.0), TTL))
    }

    fn open(&self, _: &Caller, _: NodeId, _: u32) -> Result<millrace_fuse_session::Opened, Errno> {
        Err(Errno::NOSYS)
    }

    fn open_with(&self, caller: &Caller, node: NodeId, _: u32, reply: OpenReply) {
        let is_through_us = self.through_us.lock().unwrap().get(&node.0).copied().unwrap_or(false);
        let opened = if is_through_us {
            self.table().open_cached(caller.unique, node)
        } else {
            let tag = node.0 & !SECOND;
            self.table().open_passthrough(caller.unique, node, (tag, SIZE), || Some(self.file(node.0)))
        };
        match opened {
            Ok(opened) => {
                let is_taken = reply.opened(opened);
                self.table().answered(opened.fh, is_taken);
            }
            Err(NotOpened::Held(_)) => {
                self.stale.fetch_add(1, SeqCst);
                self.is_second.store(true, SeqCst);
                reply.error(Errno::STALE);
            }
            Err(NotOpened::Refused(errno)) => reply.error(errno),
            Err(NotOpened::NoFile | NotOpened::Full) => reply.error(Errno::NFILE),
        }
    }

    fn release(&self, _: NodeId, fh: FileHandle) {
        assert!(self.table().release(fh), "released twice");
    }

    fn read(&self, _: &Caller, request: ReadRequest, reply: ReadReply) {
        let mut bytes = vec![0; request.size as usize];
        let length = self.file(request.node.0).read_at(&mut bytes, request.offset).unwrap();
        reply.bytes(&bytes[..length]);
    }

    fn readdir(&self, _: &Caller, _: NodeId, _: FileHandle, _: u64, _: &mut DirBuffer) -> Result<(), Errno> {
        Ok(())
    }

    fn statfs(&self, _: &Caller, _: NodeId) -> Result<Statfs, Errno> {
        Ok(Statfs::default())
    }
}

const KEEP_ALL: Idle = Idle { ids: 100, bytes: u64::MAX };

fn wanted() -> Wanted {
    Wanted { capabilities: Capabilities::READ_ONLY.with(Capabilities::PASSTHROUGH), ..Wanted::default() }
}

/// A mount by whose kernel files can be read; says so where the kernel cannot.
fn served(idle: Idle) -> Option<(Served, Arc<Backed>)> {
    if !may_mount() {
        return None;
    }
    let backed = Backed::new();
    let served = Served::new(&wanted(), backed.clone());
    if !served.running().negotiated().capabilities.has(Capabilities::PASSTHROUGH) {
        crate::mounted::skipped("the kernel does not know passthrough");
        return None;
    }
    backed.table.set(OpenTable::new(served.running().backing(), idle).unwrap()).unwrap();
    Some((served, backed))
}

fn check(mut file: File, node: u64) {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, SIZE);
    assert!((0..).zip(&bytes).all(|(at, found)| *found == byte(node, at)), "wrong bytes");
}

/// Waits until the kernel has sent the RELEASE of every file.
fn wait_until_closed(served: &Served, backed: &Backed) {
    let start = std::time::Instant::now();
    while backed.table().counts().passthrough + backed.table().counts().cached > 0 {
        assert!(start.elapsed() < crate::mounted::DEADLINE);
        served.settled();
    }
}

#[test]
fn kernel_reads_the_file_itself_and_the_id_is_kept_for_the_next_open() {
    let Some((served, backed)) = served(KEEP_ALL) else { return };
    let (one, two) = (File::open(served.path("file-0")).unwrap(), File::open(served.path("file-0")).unwrap());
    let counts = backed.table().counts();
    assert_eq!((counts.passthrough, counts.ids_open, counts.ids_idle), (2, 1, 0));
    check(one, 2);
    check(two, 2);
    check(File::open(served.path("file-1")).unwrap(), 3);
    wait_until_closed(&served, &backed);
    let counts = backed.table().counts();
    assert_eq!((counts.ids_open, counts.ids_idle, counts.ambiguous), (0, 2, 0));
    check(File::open(served.path("file-0")).unwrap(), 2);
    assert_eq!(served.settled().requests_of(Opcode::Read), 0);
    wait_until_closed(&served, &backed);
    backed.table().close_all_idle();
    assert_eq!(backed.table().counts(), millrace_fuse_session::Counts::default());
}

#[test]
fn idle_ids_go_the_longest_unused_first_and_hold_the_files_lock_until_then() {
    use rustix::fs::{FlockOperation, flock};
    let Some((served, backed)) = served(Idle { ids: 2, bytes: u64::MAX }) else { return };
    let is_held = |node: u64| flock(backed.file(node), FlockOperation::NonBlockingLockExclusive).is_err();
    for number in [0, 1, 0, 2] {
        let node = number + 2;
        let file = backed.file(node);
        flock(&file, FlockOperation::LockShared).unwrap();
        let open =
            |unique| backed.table().open_passthrough(unique, NodeId(node), (node, SIZE), || Some(&file));
        // As if the kernel had asked.
        let opened = open(1 << 40 | number << 1).unwrap();
        drop(file);
        assert!(is_held(node), "the kernel has the file");
        assert!(backed.table().release(opened.fh));
    }
    assert_eq!(backed.table().counts().ids_idle, 2);
    assert_eq!([2, 3, 4].map(is_held), [true, false, true]);
    drop(served);
}

#[test]
fn opener_of_a_node_held_in_another_mode_is_sent_to_the_second_node() {
    let Some((served, backed)) = served(KEEP_ALL) else { return };
    backed.read_through_us(2, true);
    let first = File::open(served.path("file-0")).unwrap();
    backed.read_through_us(2, false);
    assert_eq!(backed.table().held(NodeId(2)), Held::Cached);
    // The kernel looks the name up again by itself.
    let second = File::open(served.path("file-0")).unwrap();
    assert_eq!(backed.stale.load(SeqCst), 1);
    assert_eq!(backed.table().held(NodeId(2 | SECOND)), Held::Passthrough { tag: 2 });
    assert_eq!(first.metadata().unwrap().ino(), second.metadata().unwrap().ino());
    let reads = served.settled().requests_of(Opcode::Read);
    check(second, 2);
    assert_eq!(served.settled().requests_of(Opcode::Read), reads);
    check(first, 2);
    assert!(served.settled().requests_of(Opcode::Read) > reads);
}

#[test]
fn successor_goes_on_with_what_the_kernel_holds_open() {
    let Some((mut served, backed)) = served(KEEP_ALL) else { return };
    let open = File::open(served.path("file-0")).unwrap();
    check(File::open(served.path("file-1")).unwrap(), 3);
    backed.read_through_us(4, true);
    let cached = File::open(served.path("file-2")).unwrap();
    served.settled();
    while backed.table().counts().passthrough > 1 {
        std::thread::yield_now();
    }
    let before = backed.table().counts();
    assert_eq!((before.passthrough, before.cached, before.ids_idle), (1, 1, 1));
    let (negotiated, memory) = (*served.running().negotiated(), backed.table().memory().unwrap());
    let device = served.duplicate();
    let running = served.running.take().unwrap();
    running.stop();
    running.join();

    let session = Session::resume(device, negotiated).unwrap();
    let successor = Backed::new();
    let table = OpenTable::take_over(session.backing(), KEEP_ALL, memory).unwrap();
    assert_eq!(table.counts(), before);
    successor.table.set(table).unwrap();
    successor.read_through_us(4, true);
    served.running = Some(session.run(2, successor.clone()).unwrap());
    // With another id for the same node this open would fail.
    check(File::open(served.path("file-0")).unwrap(), 2);
    check(File::open(served.path("file-2")).unwrap(), 4);
    check(open, 2);
    check(cached, 4);
    check(File::open(served.path("file-1")).unwrap(), 3);
    wait_until_closed(&served, &successor);
    assert_eq!(successor.table().counts().ids_idle, 2);
}

#[test]
fn open_that_is_sent_again_gets_the_answer_of_the_first() {
    let Some((_served, backed)) = served(KEEP_ALL) else { return };
    let table = backed.table();
    let open = |unique| table.open_passthrough(unique, NodeId(2), (2, SIZE), || Some(backed.file(2)));
    let first = open(100).unwrap();
    assert_eq!(open(100 | 1 << 63).unwrap(), first);
    assert_eq!(table.counts().passthrough, 1);
    // The first answer comes too late, the second one is taken, in either order.
    assert!(table.answered(first.fh, false) && table.answered(first.fh, true));
    assert!(table.release(first.fh) && !table.release(first.fh));
    let lost = open(102).unwrap();
    assert!(!table.answered(lost.fh, false));
    assert_eq!(table.counts().passthrough, 0);
    assert!(matches!(open(104).unwrap().mode, OpenMode::Passthrough(_)));
    assert_eq!(table.open_cached(106, NodeId(2)), Err(NotOpened::Held(Held::Passthrough { tag: 2 })));
    let other = table.open_passthrough(108, NodeId(2), (3, SIZE), || Some(backed.file(3)));
    assert_eq!(other, Err(NotOpened::Held(Held::Passthrough { tag: 2 })));
    assert_eq!(table.open_passthrough(110, NodeId(3), (3, SIZE), || None::<File>), Err(NotOpened::NoFile));
    assert_eq!(table.counts().ambiguous, 0);
}

#[test]
fn kernel_that_was_not_asked_for_it_refuses_files() {
    if !may_mount() {
        return;
    }
    let backed = Backed::new();
    let served = Served::new(&Wanted::default(), backed.clone());
    backed.table.set(OpenTable::new(served.running().backing(), KEEP_ALL).unwrap()).unwrap();
    let error = File::open(served.path("file-0")).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::PERM.raw_os_error()));
    assert_eq!(backed.table().counts(), millrace_fuse_session::Counts::default());
}

/// Opens and closes in a tight race while ids come and go: the kernel would say EIO to a second id of an open node.
/// `MILLRACE_OPENS` sets how many opens there are.
#[test]
fn opens_and_closes_in_a_race_never_fail_and_leak_no_id() {
    let Some((served, backed)) = served(Idle { ids: 3, bytes: u64::MAX }) else { return };
    let opens: u64 = std::env::var("MILLRACE_OPENS").map_or(100_000, |count| count.parse().unwrap());
    let left = AtomicU64::new(opens);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (left, served) = (&left, &served);
            scope.spawn(move || {
                let mut state = thread + 1;
                let mut kept = Vec::new();
                while left.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let number = (state >> 33) % 10;
                    let file = File::open(served.path(&format!("file-{number}"))).unwrap();
                    let (at, mut found) = ((state >> 13) % SIZE, [0]);
                    file.read_exact_at(&mut found, at).unwrap();
                    assert_eq!(found[0], byte(number + 2, at));
                    kept.push(file);
                    kept.truncate(if state >> 60 == 0 { 0 } else { 3 });
                }
            });
        }
    });
    wait_until_closed(&served, &backed);
    assert_eq!(served.settled().requests_of(Opcode::Read), 0);
    assert_eq!(backed.table().counts().ids_open, 0);
    backed.table().close_all_idle();
    assert_eq!(backed.table().counts(), millrace_fuse_session::Counts::default());
}
