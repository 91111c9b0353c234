//! How is the memory of a virtual machine kept from being the thing that is measured?
//!
//! A virtual machine may give free memory back to its host (free page reporting of virtio-balloon). Whoever writes to
//! such memory next waits for the host to find some: measured on one such machine, 1.6 processor seconds a GiB in place
//! of 0.3. Ours fills stores and page caches with gigabytes where a download that throws its bytes away needs none, so
//! that the host's memory management would be measured. Hence a round of ours begins with nearly all free memory held
//! by this program, which has written to it, and gets it piece by piece as it takes more.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Left free, and kept free during a round, KiB: what all processes here take in the time between two looks is far less,
/// and the kernel does not begin to reclaim. Not more: what is left is given to the host, and a round begins with it.
const FREE_KIB: u64 = 1 << 18;

/// What is given at a time, bytes.
const PIECE: u64 = 128 << 20;

/// How often to look: 10 ms of the fastest writer are a tenth of a piece.
const EVERY: Duration = Duration::from_millis(10);

/// Bit of the device's features that says so (virtio 1.2, 5.5.3).
const REPORTING: usize = 5;

/// Files that hold memory, each written by a thread of its own: the host works for each of them at the same time.
const FILES: usize = 2;

/// Free memory that is held, and given away as it is needed. All of it goes with this value, or with the process.
#[derive(Debug)]
pub struct Ballast {
    /// They have no names, so that they end with this process at the latest.
    files: Arc<[Mutex<File>; FILES]>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ballast {
    /// Holds nothing yet; `None` where free memory stays what it is.
    ///
    /// # Errors
    /// Where no file can be made in `dir`, which must be in memory.
    pub fn new(dir: &Path) -> Result<Option<Self>> {
        if !is_returned() {
            return Ok(None);
        }
        let file = || tempfile::tempfile_in(dir).map(Mutex::new).context("hold free memory");
        let files = Arc::new([file()?, file()?]);
        let is_over = Arc::new(AtomicBool::new(false));
        let (files_here, is_over_here) = (Arc::clone(&files), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || give(&files_here[..], &is_over_here));
        Ok(Some(Self { files, is_over, thread: Some(thread) }))
    }

    /// Takes nearly all memory that is free now.
    ///
    /// # Errors
    /// Where the files cannot be written.
    pub fn take(&self) -> Result<()> {
        std::thread::scope(|scope| {
            let takers: Vec<_> =
                self.files.iter().map(|file| scope.spawn(|| extend(&mut lock(file)))).collect();
            takers.into_iter().try_for_each(|taker| match taker.join() {
                Ok(taken) => taken,
                Err(_) => bail!("a thread that writes to free memory panicked"),
            })
        })
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It cannot panic.
            let _ = thread.join();
        }
    }
}

fn lock(file: &Mutex<File>) -> MutexGuard<'_, File> {
    file.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives memory back to the kernel whenever there is less free than there should be.
fn give(files: &[Mutex<File>], is_over: &AtomicBool) {
    let shrink = |file: &Mutex<File>| -> bool {
        let file = lock(file);
        let length = file.metadata().map_or(0, |metadata| metadata.len());
        length > 0 && file.set_len(length.saturating_sub(PIECE)).is_ok()
    };
    while !is_over.load(Ordering::Relaxed) {
        while free_kib() < FREE_KIB && files.iter().any(shrink) {}
        std::thread::sleep(EVERY);
    }
}

/// Writes to a file while there is memory to take.
fn extend(file: &mut File) -> Result<()> {
    let piece = vec![1; 1 << 20];
    file.seek(SeekFrom::End(0)).context("hold free memory")?;
    while free_kib() > FREE_KIB + PIECE / 1024 {
        for _ in 0..PIECE / (4 << 20) {
            file.write_all(&piece).context("hold free memory")?;
        }
    }
    Ok(())
}

/// Whether free memory goes back to a host.
fn is_returned() -> bool {
    let devices = std::fs::read_dir("/sys/bus/virtio/drivers/virtio_balloon").into_iter().flatten().flatten();
    devices
        .map(|device| std::fs::read_to_string(device.path().join("features")).unwrap_or_default())
        .any(|features| has_reporting(&features))
}

fn has_reporting(features: &str) -> bool {
    features.as_bytes().get(REPORTING) == Some(&b'1')
}

/// Free memory now, KiB; 0 where the kernel does not tell, so that nothing is held.
fn free_kib() -> u64 {
    free_of(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default()).unwrap_or(0)
}

fn free_of(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemFree:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_texts_are_understood() {
        assert!(has_reporting("01100101000") && !has_reporting("011000") && !has_reporting(""));
        assert_eq!(free_of("MemTotal: 9 kB\nMemFree:   123 kB\n"), Some(123));
        assert!(free_kib() > 0);
    }
}
