//! How is the memory of a virtual machine kept from being the thing that is measured?
//!
//! A virtual machine may give free memory back to its host (free page reporting of virtio-balloon). Whoever writes to
//! such memory next waits for the host to find some: measured on one such machine, 1.6 processor seconds a GiB in place
//! of 0.3. Ours fills stores and page caches with gigabytes where a download that throws its bytes away needs none, so
//! that the host's memory management would be measured. Hence a round of ours begins with nearly all free memory held
//! by this program, which has written to it, and gets it piece by piece as it takes more.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::lab::Lab;

/// Left free, and kept free during a round, KiB: what all processes here take in the time between two looks is far less,
/// and the kernel does not begin to reclaim.
const FREE_KIB: u64 = 1 << 20;

/// What is given at a time, bytes.
const PIECE: u64 = 128 << 20;

/// How often to look: 10 ms of the fastest writer are a tenth of a piece.
const EVERY: Duration = Duration::from_millis(10);

/// Bit of the device's features that says so (virtio 1.2, 5.5.3).
const REPORTING: usize = 5;

/// Files that hold memory, each written by a thread.
const FILES: u64 = 2;

/// Free memory that is held, and given away as it is needed. All of it goes with this value, or with the process.
#[derive(Debug)]
pub struct Ballast {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Ballast {
    /// Takes nearly all free memory; `None` where free memory stays what it is.
    ///
    /// # Errors
    /// Where the folder in memory cannot be written.
    pub fn take(lab: &Lab) -> Result<Option<Self>> {
        if !is_returned() {
            return Ok(None);
        }
        let each = free_kib().saturating_sub(FREE_KIB) * 1024 / FILES;
        let files = std::thread::scope(|scope| {
            let writers: Vec<_> = (0..FILES).map(|_| scope.spawn(|| written(lab, each))).collect();
            let join = |writer: std::thread::ScopedJoinHandle<'_, Result<File>>| match writer.join() {
                Ok(written) => written,
                Err(_) => bail!("a thread that writes to free memory panicked"),
            };
            writers.into_iter().map(join).collect::<Result<Vec<File>>>()
        })?;
        let is_over = Arc::new(AtomicBool::new(false));
        let is_over_here = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || give(files, &is_over_here));
        Ok(Some(Self { is_over, thread: Some(thread) }))
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

/// Gives memory back to the kernel whenever there is less free than there should be.
fn give(mut files: Vec<File>, is_over: &AtomicBool) {
    while !is_over.load(Ordering::Relaxed) {
        while free_kib() < FREE_KIB
            && let Some(file) = files.last()
        {
            let length = file.metadata().map_or(0, |metadata| metadata.len());
            if length == 0 || file.set_len(length.saturating_sub(PIECE)).is_err() {
                files.pop();
            }
        }
        std::thread::sleep(EVERY);
    }
}

/// A file of so many bytes that has no name, so that it ends with this process at the latest.
fn written(lab: &Lab, bytes: u64) -> Result<File> {
    let (mut file, piece) =
        (tempfile::tempfile_in(lab.memory()).context("hold free memory")?, vec![1; 1 << 20]);
    for _ in 0..bytes / piece.len() as u64 {
        lab.check()?;
        if free_kib() < FREE_KIB {
            break;
        }
        file.write_all(&piece).context("hold free memory")?;
    }
    Ok(file)
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
