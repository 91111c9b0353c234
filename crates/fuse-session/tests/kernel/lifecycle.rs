//! Ends, take-over of a live connection, and notifications.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_fuse_session::{End, NodeId, Opcode, RunError, Session, SessionError, Wanted};

use crate::memory::{HELLO, pattern};
use crate::mounted::{DEADLINE, Mounted, may_mount, open_direct, skipped};

#[test]
fn unmount_ends_all_threads() {
    if !may_mount() {
        return;
    }
    let mut mounted = Mounted::new(&Wanted::default());
    fs::read(mounted.path("hello")).unwrap();
    mounted.unmount();
    assert_eq!(mounted.running.take().unwrap().join(), End::Unmounted);
}

#[test]
fn stop_ends_at_once_and_leaves_the_mount() {
    if !may_mount() {
        return;
    }
    let mut mounted = Mounted::new(&Wanted::default());
    let (device, negotiated) = (mounted.duplicate(), *mounted.running().negotiated());
    let first = mounted.running.take().unwrap();
    let start = Instant::now();
    first.stop();
    assert_eq!(first.join(), End::Stopped);
    assert!(start.elapsed() < Duration::from_secs(2));
    // A request made while nobody serves waits for the successor.
    let path = mounted.path("hello");
    let reader = std::thread::spawn(move || fs::read(path));
    let session = Session::resume(device, negotiated).unwrap();
    mounted.running = Some(session.run(2, Arc::clone(&mounted.memory)).unwrap());
    assert_eq!(reader.join().unwrap().unwrap(), HELLO);
}

#[test]
fn successor_answers_what_its_predecessor_took() {
    if !may_mount() {
        return;
    }
    let mut mounted = Mounted::new(&Wanted::default());
    let (device, negotiated) = (mounted.duplicate(), *mounted.running().negotiated());
    let file = open_direct(&mounted.path("held"));
    let reader = std::thread::spawn(move || {
        let mut bytes = vec![0; 4096];
        file.read_exact_at(&mut bytes, 0).map(|()| bytes)
    });
    let (_, taken) = mounted.held.recv_timeout(DEADLINE).unwrap();
    let first = mounted.running.take().unwrap();
    first.stop();
    assert_eq!(first.join(), End::Stopped);
    let session = Session::resume(device, negotiated).unwrap();
    session.notifier().resend().unwrap();
    mounted.running = Some(session.run(2, Arc::clone(&mounted.memory)).unwrap());
    let (request, again) = mounted.held.recv_timeout(DEADLINE).unwrap();
    // The first taker's answer comes too late and must not reach the reader.
    taken.bytes(&[0xff; 4096]);
    again.bytes(&pattern(5, request.offset, request.size));
    assert_eq!(reader.join().unwrap().unwrap(), pattern(5, 0, 4096));
    let metrics = mounted.settled();
    assert!(metrics.resent >= 1 && metrics.in_flight == 0, "{metrics:?}");
}

#[test]
fn descriptor_in_use_is_not_negotiated_again() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted { max_write: 0, ..Wanted::default() });
    let device = mounted.duplicate();
    let error =
        Session::negotiate(device, &Wanted { max_write: 0, ..Wanted::default() }, DEADLINE).unwrap_err();
    assert!(matches!(error, SessionError::InUse), "{error}");
}

#[test]
fn descriptor_without_a_mount_is_an_error() {
    if !may_mount() {
        return;
    }
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let error = Session::negotiate(device.into(), &Wanted::default(), DEADLINE).unwrap_err();
    assert!(matches!(error, SessionError::ReadInit(_)), "{error}");
}

#[test]
fn number_of_threads_is_bounded() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    for threads in [0, 65] {
        let session = Session::resume(mounted.duplicate(), *mounted.running().negotiated()).unwrap();
        let error = session.run(threads, Arc::clone(&mounted.memory)).unwrap_err();
        assert!(matches!(error, RunError::Threads { threads: given } if given == threads));
    }
}

#[test]
fn invalidated_content_is_read_again() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    let file = File::open(mounted.path("hello")).unwrap();
    let read = || {
        let mut bytes = vec![0; HELLO.len()];
        file.read_exact_at(&mut bytes, 0).map(|()| bytes)
    };
    assert_eq!(read().unwrap(), HELLO);
    let other = vec![b'x'; HELLO.len()];
    mounted.memory.replaced.lock().unwrap().insert(2, other.clone());
    assert_eq!(read().unwrap(), HELLO, "kept by the kernel");
    mounted.running().notifier().inval_inode(NodeId(2), 0, 0).unwrap();
    assert_eq!(read().unwrap(), other);
}

#[test]
fn stored_content_is_read_without_a_request() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    fs::metadata(mounted.path("held")).unwrap();
    let bytes = pattern(5, 0, 4096);
    mounted.running().notifier().store(NodeId(5), 0, &bytes).unwrap();
    assert_eq!(fs::read(mounted.path("held")).unwrap(), bytes);
    assert_eq!(mounted.reads(), []);
}

#[test]
fn invalidated_names_are_looked_up_again() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    let lookups = || mounted.running().metrics().requests_of(Opcode::Lookup);
    let look = || fs::metadata(mounted.path("hello")).unwrap();
    look();
    let before = lookups();
    look();
    assert_eq!(lookups(), before, "kept by the kernel");
    let notifier = mounted.running().notifier();
    notifier.inval_entry(NodeId::ROOT, b"hello").unwrap();
    look();
    assert_eq!(lookups(), before + 1);
    notifier.delete(NodeId::ROOT, NodeId(2), b"hello").unwrap();
    look();
    assert_eq!(lookups(), before + 2);
    match notifier.inc_epoch() {
        Ok(()) => {
            look();
            assert_eq!(lookups(), before + 3);
        }
        Err(error) => skipped(&format!("this kernel has no epochs: {error}")),
    }
}

#[test]
fn notification_about_an_unknown_name_says_so() {
    if !may_mount() {
        return;
    }
    let mounted = Mounted::new(&Wanted::default());
    let error = mounted.running().notifier().inval_entry(NodeId(4711), b"x").unwrap_err();
    assert_eq!((error.name, error.source), ("inval_entry", millrace_fuse_session::Errno::NOENT));
}
