//! Reading: sizes, pieces, late answers, mmap, O_DIRECT, errors, interrupts.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use memmap2::Mmap;
use millrace_fuse_session::{Errno, Opcode, Wanted};

use crate::memory::{HELLO, LARGE, pattern};
use crate::mounted::{DEADLINE, Mounted, may_mount, open_direct};

#[test]
fn content_is_read_right_at_once_and_from_another_thread() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    assert_eq!(fs::read(mounted.path("hello")).unwrap(), HELLO);
    assert_eq!(fs::read(mounted.path("large")).unwrap(), pattern(3, 0, LARGE as u32));
    assert_eq!(fs::read(mounted.path("deferred")).unwrap(), pattern(4, 0, LARGE as u32));
    let mut middle = [0; 1000];
    File::open(mounted.path("deferred")).unwrap().read_exact_at(&mut middle, 777_777).unwrap();
    assert_eq!(middle.as_slice(), pattern(4, 777_777, 1000));
    assert_eq!(mounted.settled().in_flight, 0);
}

#[test]
fn requests_of_a_megabyte_really_come() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    assert_eq!(mounted.running().negotiated().max_read(), 1 << 20);
    mounted.set_read_ahead(1024);
    assert_eq!(fs::read(mounted.path("large")).unwrap().len() as u64, LARGE);
    let reads = mounted.reads();
    assert_eq!(reads.iter().map(|(_, size)| size).max(), Some(&(1 << 20)), "{reads:?}");
    assert!(reads.len() <= 10, "{reads:?}");
}

#[test]
fn kept_content_is_not_asked_for_again() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    fs::read(mounted.path("large")).unwrap();
    let first = mounted.reads().len();
    fs::read(mounted.path("large")).unwrap();
    assert_eq!(mounted.reads().len(), first);
}

#[test]
fn direct_reads_come_as_they_are() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    let file = open_direct(&mounted.path("large"));
    // O_DIRECT needs no alignment on FUSE.
    let mut buffer = vec![0; 1 << 20];
    file.read_exact_at(&mut buffer, 3 << 20).unwrap();
    assert_eq!(buffer, pattern(3, 3 << 20, 1 << 20));
    assert!(mounted.reads().iter().any(|(_, size)| *size >= 1 << 19), "{:?}", mounted.reads());
    file.read_exact_at(&mut buffer[..4096], 3 << 20).unwrap();
    assert_eq!(mounted.reads().last(), Some(&(3 << 20, 4096)));
}

#[test]
fn mapped_file_reads_like_a_read_one() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    let file = File::open(mounted.path("large")).unwrap();
    #[expect(unsafe_code, reason = "mapping a file is what is tested")]
    // SAFETY: the file system is read-only and outlives the map.
    let map = unsafe { Mmap::map(&file) }.unwrap();
    let expected = pattern(3, 0, LARGE as u32);
    assert!((0..LARGE as usize).step_by(4093).rev().all(|at| map[at] == expected[at]));
    assert_eq!(&map[..], expected);
}

#[test]
fn many_readers_at_once_read_right() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    std::thread::scope(|scope| {
        for reader in 0..8u64 {
            let path = |name| mounted.path(name);
            let (name, ino) = if reader % 2 == 0 { (path("large"), 3) } else { (path("deferred"), 4) };
            scope.spawn(move || {
                let file = open_direct(&name);
                let mut buffer = vec![0; 64 * 1024];
                for step in 0..50 {
                    let offset = (reader * 7919 + step * 104_729) * 512 % (LARGE - 65_536);
                    file.read_exact_at(&mut buffer, offset).unwrap();
                    assert_eq!(buffer, pattern(ino, offset, 65_536));
                }
            });
        }
    });
    assert_eq!(mounted.running().metrics().requests_of(Opcode::Read), 400);
}

#[test]
fn dropped_reply_and_panic_are_io_errors_and_the_session_goes_on() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    for _ in 0..8 {
        for name in ["dropped", "panic"] {
            let error = fs::read(mounted.path(name)).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
        }
    }
    assert_eq!(fs::read(mounted.path("hello")).unwrap(), HELLO);
    // A panic is counted when its stack is unwound, which is after the answer.
    let start = Instant::now();
    while mounted.running().metrics().panics < 8 && start.elapsed() < DEADLINE {
        std::thread::yield_now();
    }
    let metrics = mounted.running().metrics();
    assert!(metrics.panics >= 8 && metrics.dropped >= 16, "{metrics:?}");
}

/// Starts a process that reads `held` and waits until its READ has come.
fn reader(mounted: &Mounted, flag: &str) -> (std::process::Child, millrace_fuse_session::ReadReply) {
    let child = Command::new("dd")
        .arg(format!("if={}", mounted.path("held").display()))
        .args(["of=/dev/null", "bs=4096", "count=1", "status=none", flag])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (_, reply) = mounted.held.recv_timeout(DEADLINE).unwrap();
    (child, reply)
}

/// Waits for the end of a process and gives the time it took.
fn time_to_end(child: &mut std::process::Child) -> Duration {
    let start = Instant::now();
    child.wait().unwrap();
    start.elapsed()
}

#[test]
fn killed_direct_reader_is_told_of_and_ends_when_answered() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    let (mut child, reply) = reader(&mounted, "iflag=direct");
    let (send, interrupted) = std::sync::mpsc::channel();
    reply.interruption().on_interrupt(Box::new(move || send.send(()).unwrap()));
    assert!(!reply.interruption().is_interrupted());
    child.kill().unwrap();
    interrupted.recv_timeout(DEADLINE).expect("told of the interrupt");
    assert!(reply.interruption().is_interrupted());
    reply.error(Errno::INTR);
    assert!(time_to_end(&mut child) < Duration::from_secs(2));
    let metrics = mounted.settled();
    assert_eq!((metrics.interrupted, metrics.in_flight), (1, 0));
}

#[test]
fn killed_buffered_reader_ends_without_an_answer() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    let (mut child, reply) = reader(&mounted, "iflag=fullblock");
    child.kill().unwrap();
    assert!(time_to_end(&mut child) < Duration::from_secs(2));
    drop(reply);
}

#[test]
fn interrupts_before_and_after_their_requests_do_no_harm() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    // Signals at all moments of short reads: before the request is entered, while it waits, and after its answer.
    for round in 0..60 {
        let mut child = Command::new("dd")
            .arg(format!("if={}", mounted.path("deferred").display()))
            .args(["of=/dev/null", "bs=64k", "iflag=direct", "status=none"])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(1500 + round * 37));
        child.kill().unwrap();
        assert!(time_to_end(&mut child) < DEADLINE);
    }
    assert_eq!(fs::read(mounted.path("hello")).unwrap(), HELLO);
    let metrics = mounted.settled();
    assert_eq!((metrics.in_flight, metrics.refused), (0, 0), "{metrics:?}");
}
