//! What does a store do when the disk under it fails while it is open?
//!
//! On ext4 file systems in files of their own, on loop devices.

#![allow(clippy::unwrap_used, reason = "tests")]

mod rig;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use millrace_store::{Eviction, NotKept, Store, StoreConfig, Verification, Whole, Written};
use rig::*;

/// An ext4 in a file; unmounted on drop.
struct LoopDisk {
    dir: tempfile::TempDir,
}

impl LoopDisk {
    /// Makes and mounts one, or says why the test is skipped.
    fn new() -> Option<Self> {
        let disk = Self { dir: tempfile::tempdir().unwrap() };
        fs::write(disk.image(), "").unwrap();
        OpenOptions::new().write(true).open(disk.image()).unwrap().set_len(64 * MIB).unwrap();
        fs::create_dir(disk.mount_point()).unwrap();
        let made = run("mkfs.ext4", &["-q", "-F", "-b", "4096", "-O", "^has_journal"], &[&disk.image()]);
        match made.and_then(|()| disk.mount()) {
            Ok(()) => Some(disk),
            Err(error) => {
                skipped(&format!("an ext4 on a loop device needs root and mkfs.ext4 ({error})"));
                None
            }
        }
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn mount_point(&self) -> PathBuf {
        self.dir.path().join("mount")
    }

    fn mount(&self) -> Result<(), String> {
        run("mount", &["-o", "loop,errors=remount-ro"], &[&self.image(), &self.mount_point()])
    }

    /// Unmounts. A program that another test starts holds our descriptors until it runs, so more than one try is made.
    fn unmount(&self) -> Result<(), String> {
        let mut tries = (0..100).map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            run("umount", &[], &[&self.mount_point()])
        });
        tries.find(Result::is_ok).unwrap_or_else(|| Err(format!("{:?} stays busy", self.mount_point())))
    }

    /// The name of its loop device, as sysfs has it.
    fn device(&self) -> String {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let point = self.mount_point().display().to_string();
        let line = mounts.lines().find(|line| line.split(' ').nth(1) == Some(&point)).unwrap();
        line.split(' ').next().unwrap().trim_start_matches("/dev/").to_owned()
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        // Not mounted where a test has failed in between; lazily, since it may have left files open.
        let _ = run("umount", &["-l"], &[&self.mount_point()]);
    }
}

fn run(program: &str, options: &[&str], paths: &[&Path]) -> Result<(), String> {
    let output = Command::new(program)
        .args(options)
        .args(paths)
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[test]
fn a_disk_that_turns_read_only_under_an_open_store_serves_on() {
    let Some(disk) = LoopDisk::new() else { return };
    let hands = Hands::new();
    let config = StoreConfig { clock: hands.clock(), ..config(&disk.mount_point(), 40 * MIB, Eviction::Lru) };
    let store = Store::open(config).unwrap();
    let [first, second] = [large(1, 2 * MIB), large(2, 2 * MIB)];
    assert_eq!(put_all(&store, &first), Written::Kept);
    let trigger = format!("/sys/fs/ext4/{}/trigger_fs_error", disk.device());
    if fs::write(&trigger, "test").is_err() {
        skipped(&format!("{trigger} cannot be written"));
        return;
    }
    for _ in 0..3 {
        assert_eq!(put_all(&store, &second), Written::NotKept(NotKept::ReadOnly));
        assert_eq!(chunks_of(&store, &first).len(), 32);
        assert_eq!(store.read(&first, 0..32).unwrap().crcs.len(), 32);
        hands.forward(6_000);
    }
    store.mark_unused([first.file.content]);
    assert!(chunks_of(&store, &second).is_empty());
    let stats = store.stats();
    assert_eq!((stats.corrupt_chunks, stats.damaged_files), (0, 0));
    drop(store);
    disk.unmount().unwrap();
    disk.mount().unwrap();
    let again = Store::open(rig::config(&disk.mount_point(), 40 * MIB, Eviction::Lru)).unwrap();
    chunks_of(&again, &first);
    assert_eq!(put_all(&again, &second), Written::Kept);
}

#[test]
fn bad_sectors_are_read_as_absent_and_written_anew() {
    for cut in [7, 9, 11, 14] {
        let Some(disk) = LoopDisk::new() else { return };
        let open = || Store::open(config(&disk.mount_point(), 40 * MIB, Eviction::Never)).unwrap();
        let objects: Vec<_> =
            (0..6).map(|number| large(number, 2 * MIB)).chain(pack(9, &[90_000; 9])).collect();
        let store = open();
        objects.iter().for_each(|object| assert_eq!(put_all(&store, object), Written::Kept));
        let whole: usize = objects.iter().map(|object| chunks_of(&store, object).len()).sum();
        drop(store);
        disk.unmount().unwrap();
        disk.mount().unwrap();
        // Reads past the end of the file fail with EIO; writes make it longer again.
        OpenOptions::new().write(true).open(disk.image()).unwrap().set_len(cut * MIB).unwrap();
        let store = open();
        let found: usize = objects.iter().map(|object| chunks_of(&store, object).len()).sum();
        let stats = store.stats();
        assert!(found < whole, "{cut}: {stats:?}");
        assert!(stats.read_errors + stats.damaged_files > 0, "{cut}: {stats:?}");
        // What is written now may or may not be kept; what is read is right.
        for object in &objects {
            put_all(&store, object);
            chunks_of(&store, object);
        }
    }
}

#[test]
fn bad_sectors_below_files_that_the_kernel_holds_are_found_by_the_scrub() {
    let mut bad_files = 0;
    for cut in [7, 10, 13] {
        let Some(disk) = LoopDisk::new() else { return };
        let open = || Store::open(config(&disk.mount_point(), 40 * MIB, Eviction::Lru)).unwrap();
        let objects: Vec<_> = (0..6).map(|number| large(number, 2 * MIB)).collect();
        let store = open();
        for object in &objects {
            assert_eq!(put_all(&store, object), Written::Kept);
            assert_eq!(store.verify(object, &mut |_| true), Verification::Verified);
            assert!(store.pin(object).is_some());
        }
        drop(store);
        disk.unmount().unwrap();
        disk.mount().unwrap();
        // As above.
        OpenOptions::new().write(true).open(disk.image()).unwrap().set_len(cut * MIB).unwrap();
        let store = open();
        let pins: Vec<_> = objects.iter().filter_map(|object| store.pin(object)).collect();
        let is_readable =
            |pin: &millrace_store::Pin| pin.file.read_exact_at(&mut vec![0; 2 << 20], 0).is_ok();
        let readable = pins.iter().filter(|pin| is_readable(pin)).count();
        bad_files += store.scrub(&mut |_| true).unwrap().bad_files;
        let whole = objects.iter().filter(|object| matches!(store.whole(object), Whole::Verified { .. }));
        assert_eq!(whole.clone().count(), readable, "{cut}");
        for object in whole {
            assert_eq!(chunks_of(&store, object).len(), 32, "{cut}");
        }
        for object in &objects {
            put_all(&store, object);
            chunks_of(&store, object);
        }
        drop(pins);
    }
    assert!(bad_files > 0);
}
