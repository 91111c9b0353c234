//! Do several processes share one folder, and does one that is killed leave it right?
//!
//! The other processes are this test binary, started again for the test `as_another_process` with its part in the
//! environment.

#![allow(clippy::unwrap_used, reason = "tests")]

mod rig;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use millrace_api::block::Span;
use millrace_store::{Class, Eviction, Store, StoreConfig, Written};
use rig::*;

const PART: &str = "MILLRACE_STORE_TEST_PART";
const QUOTA: u64 = 24 * MIB;

fn objects() -> Vec<Span> {
    let mut objects: Vec<Span> = (0..8).map(|number| large(number, 2 * MIB + 5)).collect();
    objects.extend(pack(100, &[60_000; 30]));
    objects
}

fn open(dir: &Path, eviction: Eviction) -> Store {
    Store::open(config(dir, QUOTA, eviction)).unwrap()
}

/// A process with a store of its own, which does a line of its input at a time.
struct Other {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Other {
    fn start(part: &str, dir: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "as_another_process", "--nocapture", "--test-threads", "1"])
            .env(PART, format!("{part} {}", dir.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut other = Self { child, input, output };
        assert_eq!(other.answer(), "open");
        other
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the other process has ended");
            // The test harness speaks too, and begins a line that ours ends.
            if let Some((_, answer)) = line.trim_end().split_once("answer: ") {
                return answer.to_owned();
            }
        }
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").unwrap();
        self.answer()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The part of the other process; nothing when run as a test.
#[test]
fn as_another_process() {
    let Ok(part) = std::env::var(PART) else { return };
    let (part, dir) = part.split_once(' ').unwrap();
    let say = |text: String| println!("answer: {text}");
    let objects = objects();
    let eviction = if part == "evict" { Eviction::Lru } else { Eviction::Never };
    let store = open(Path::new(dir), eviction);
    say("open".to_owned());
    if part == "write" || part == "evict" {
        let mut random = Random(u64::from(std::process::id()) | 1);
        loop {
            let object = &objects[random.below(objects.len() as u64) as usize];
            let first = random.below(u64::from(object.chunks().end)) as u32;
            let end = (first + 1 + random.below(16) as u32).min(object.chunks().end);
            put(&store, object, first..end, Class::Owned);
        }
    }
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let (verb, number) = line.split_once(' ').unwrap();
        let object = &objects[number.parse::<usize>().unwrap()];
        match verb {
            "put" => say(format!("{:?}", put_all(&store, object))),
            "get" => say(chunks_of(&store, object).len().to_string()),
            "unuse" => {
                store.mark_unused([object.file.content]);
                say("marked".to_owned());
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn what_one_process_keeps_the_other_reads_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let ours = open(dir.path(), Eviction::Never);
    let mut other = Other::start("serve", dir.path());
    let objects = objects();
    assert!(chunks_of(&ours, &objects[0]).is_empty());
    assert_eq!(other.ask("put 0"), "Kept");
    assert_eq!(chunks_of(&ours, &objects[0]).len(), 33);
    assert_eq!(put(&ours, &objects[1], 0..5, Class::Owned), Written::Kept);
    assert_eq!(other.ask("get 1"), "5");
    assert_eq!(other.ask("put 1"), "Kept");
    assert_eq!(chunks_of(&ours, &objects[1]).len(), 33);
    assert_eq!(ours.usage().used_bytes(), 2 * (2 * MIB + 4096 + 4096));
}

#[test]
fn the_quota_holds_over_processes() {
    let dir = tempfile::tempdir().unwrap();
    let ours = open(dir.path(), Eviction::Never);
    let mut others = [Other::start("serve", dir.path()), Other::start("serve", dir.path())];
    for other in &mut others {
        (0..8).for_each(|number| writeln!(other.input, "put {number}").unwrap());
    }
    let big = large(50, 20 * MIB);
    put_all(&ours, &big);
    for other in &mut others {
        (0..8).for_each(|_| drop(other.answer()));
    }
    let used = ours.usage().used_bytes();
    assert!(used <= QUOTA && used > QUOTA - 2 * MIB, "{used}");
    assert!(allocated(dir.path()) <= QUOTA);
    drop((ours, others));
    assert_eq!(open(dir.path(), Eviction::Never).usage().used_bytes(), used, "nothing was counted twice");
}

#[test]
fn content_in_use_here_is_not_unused_because_another_process_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let ours = open(dir.path(), Eviction::Never);
    let mut other = Other::start("serve", dir.path());
    let objects = objects();
    put_all(&ours, &objects[0]);
    put_all(&ours, &objects[1]);
    assert_eq!(other.ask("unuse 0"), "marked");
    assert_eq!(other.ask("unuse 1"), "marked");
    let since = std::time::Instant::now();
    while since.elapsed() < Duration::from_millis(2_500) {
        assert!(get(&ours, &objects[0], 3));
        std::thread::sleep(Duration::from_millis(50));
    }
    ours.mark_unused([objects[1].file.content]);
    // Two objects and a bit more than what is left.
    put_all(&ours, &large(60, 20 * MIB));
    assert_eq!(chunks_of(&ours, &objects[0]).len(), 33);
    assert!(chunks_of(&ours, &objects[1]).is_empty());
}

#[test]
fn a_process_that_stops_with_a_lock_does_not_hang_the_others() {
    let dir = tempfile::tempdir().unwrap();
    let hands = Hands::new();
    let config = StoreConfig { clock: hands.clock(), ..config(dir.path(), QUOTA, Eviction::Never) };
    let ours = Store::open(config).unwrap();
    let objects = objects();
    put_all(&ours, &objects[0]);
    let usage = std::fs::File::open(dir.path().join("usage")).unwrap();
    rustix::fs::flock(&usage, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let since = std::time::Instant::now();
    assert_eq!(put_all(&ours, &objects[1]), Written::NotKept(millrace_store::NotKept::Busy));
    for _ in 0..10 {
        assert_eq!(put_all(&ours, &objects[1]), Written::NotKept(millrace_store::NotKept::Busy));
    }
    assert!(since.elapsed() < Duration::from_secs(4));
    assert_eq!(chunks_of(&ours, &objects[0]).len(), 33, "reads go on");
    drop(usage);
    hands.forward(2_000);
    assert_eq!(put_all(&ours, &objects[1]), Written::Kept);
    let sidecar = std::fs::File::open(&files_of(dir.path(), "map")[0]).unwrap();
    rustix::fs::flock(&sidecar, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let reached = objects[..2].iter().map(|object| chunks_of(&ours, object).len()).sum::<usize>();
    assert_eq!(reached, 66);
}

#[test]
fn a_file_that_another_process_evicts_is_closed_here() {
    let dir = tempfile::tempdir().unwrap();
    let ours = open(dir.path(), Eviction::Never);
    let objects = objects();
    assert_eq!(put_all(&ours, &objects[0]), Written::Kept);
    let mut other = Other::start("serve", dir.path());
    assert_eq!(other.ask("unuse 0"), "marked");
    for number in 1..8 {
        other.ask(&format!("put {number}"));
    }
    assert_eq!(put_all(&ours, &large(60, 10 * MIB)), Written::NotKept(millrace_store::NotKept::Quota));
    assert!(!ours.complete(&objects[0].file), "evicted");
    let is_open = || {
        let fds = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        let targets = fds.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        targets
            .filter(|target| target.starts_with(dir.path()))
            .any(|target| target.to_string_lossy().contains("deleted"))
    };
    let since = std::time::Instant::now();
    while is_open() {
        assert!(since.elapsed() < Duration::from_secs(5), "its bytes stay allocated");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn writers_killed_at_any_moment_leave_no_wrong_chunk() {
    let mut random = Random(0xfeed_beef_cafe_0001);
    for eviction in [Eviction::Never, Eviction::Lru] {
        let dir = tempfile::tempdir().unwrap();
        let part = if eviction == Eviction::Lru { "evict" } else { "write" };
        for round in 0..25 {
            let mut others = [Other::start(part, dir.path()), Other::start(part, dir.path())];
            std::thread::sleep(Duration::from_millis(1 + random.below(25)));
            others[0].child.kill().unwrap();
            if round % 2 == 0 {
                others[1].child.kill().unwrap();
            }
            drop(others);
            let store = open(dir.path(), eviction);
            // Each chunk that is there is compared.
            let found: usize = objects().iter().map(|object| chunks_of(&store, object).len()).sum();
            let stats = store.stats();
            assert_eq!((stats.corrupt_chunks, stats.damaged_files), (0, 0), "round {round}: {stats:?}");
            assert!(round == 0 || found > 0);
            assert!(store.usage().used_bytes() <= QUOTA);
            let slack = MIB;
            assert!(allocated(dir.path()) <= store.usage().used_bytes() + slack, "round {round}");
        }
    }
}
