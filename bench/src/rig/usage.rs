//! How much memory and processor time does a process take?

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};

/// How often memory is looked at.
const EVERY: Duration = Duration::from_millis(20);

/// Clock ticks in a second of `/proc/PID/stat` (USER_HZ, the same on all architectures that we run on).
const TICKS: f64 = 100.0;

/// Anonymous memory of a process now, bytes; `None` where it is gone.
pub fn anonymous_bytes(pid: u32) -> Option<u64> {
    field_of(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?, "RssAnon:")
}

/// Memory of the kernel's own objects now, such as names and inodes, bytes; 0 where it does not tell.
pub fn slab_bytes() -> u64 {
    field_of(&std::fs::read_to_string("/proc/meminfo").unwrap_or_default(), "Slab:").unwrap_or(0)
}

/// Processor seconds that a process has used, in user and kernel mode; 0 where it is gone.
pub fn cpu_seconds(pid: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    ticks_of(&stat).unwrap_or(0) as f64 / TICKS
}

/// Processor microseconds that those threads of a process have used which live: finer than [`cpu_seconds`], for short work.
///
/// # Errors
/// Where the process is gone.
pub fn process_micros(pid: u32) -> Result<f64> {
    let mut sum = 0.0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        // One that ends just now has done nothing of what is measured.
        sum += on_processor(&task?.path().join("schedstat")).unwrap_or(0.0);
    }
    Ok(sum)
}

/// Processor microseconds that this thread has used.
///
/// # Errors
/// Where the kernel keeps no such account.
pub fn thread_micros() -> Result<f64> {
    on_processor(Path::new("/proc/thread-self/schedstat"))
}

/// The first field of a schedstat: nanoseconds on a processor.
fn on_processor(schedstat: &Path) -> Result<f64> {
    let text = std::fs::read_to_string(schedstat).with_context(|| format!("read {schedstat:?}"))?;
    let first = text.split_whitespace().next().context("schedstat is empty")?;
    Ok(first.parse::<f64>().with_context(|| format!("{schedstat:?} begins with {first:?}"))? / 1e3)
}

fn field_of(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// utime and stime, the 14th and 15th field; the name in the second may hold anything, but ends with the last `)`.
fn ticks_of(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

/// Watches the anonymous memory of a process.
#[derive(Debug)]
pub struct MemoryWatch {
    most: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MemoryWatch {
    /// Begins to watch.
    pub fn start(pid: u32) -> Self {
        let (most, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (most_here, is_over_here) = (Arc::clone(&most), Arc::clone(&is_over));
        let thread = std::thread::spawn(move || {
            while !is_over_here.load(Ordering::Relaxed) {
                let Some(now) = anonymous_bytes(pid) else { return };
                most_here.fetch_max(now, Ordering::Relaxed);
                std::thread::sleep(EVERY);
            }
        });
        Self { most, is_over, thread: Some(thread) }
    }

    /// Ends, and says the most that was seen, bytes.
    pub fn most(mut self) -> u64 {
        self.end();
        self.most.load(Ordering::Relaxed)
    }

    fn end(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It cannot panic.
            let _ = thread.join();
        }
    }
}

impl Drop for MemoryWatch {
    fn drop(&mut self) {
        self.end();
    }
}

/// Processor time of several processes, added up over rounds.
#[derive(Debug, Default)]
pub struct CpuSplit {
    parts: Vec<(String, f64)>,
    rounds: u32,
}

impl CpuSplit {
    /// Runs `work` and adds what each process used while it ran.
    pub fn during<T>(&mut self, processes: &[(&str, u32)], work: impl FnOnce() -> T) -> T {
        let before: Vec<f64> = processes.iter().map(|(_, pid)| cpu_seconds(*pid)).collect();
        let result = work();
        for ((name, pid), before) in processes.iter().zip(before) {
            let used = cpu_seconds(*pid) - before;
            match self.parts.iter_mut().find(|(known, _)| known == name) {
                Some((_, sum)) => *sum += used,
                None => self.parts.push(((*name).to_owned(), used)),
            }
        }
        self.rounds += 1;
        result
    }

    /// Seconds of each in a round, for a note.
    pub fn note(&self, of: &str) -> String {
        let rounds = f64::from(self.rounds.max(1));
        let parts: Vec<String> =
            self.parts.iter().map(|(name, sum)| format!("{name} {:.2}", sum / rounds)).collect();
        format!("processor seconds {of}: {}", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_texts_are_understood() {
        assert_eq!(field_of("VmRSS:\t 12 kB\nRssAnon:\t     640 kB\n", "RssAnon:"), Some(640 * 1024));
        assert_eq!(field_of("RssAnon: lots", "RssAnon:"), None);
        assert_eq!(ticks_of("7 (a) b) S 1 2 3 4 5 6 7 8 9 10 30 12 0 0 20"), Some(42));
        assert_eq!(ticks_of(""), None);
    }

    #[test]
    fn this_process_uses_memory_and_processor() {
        let watch = MemoryWatch::start(std::process::id());
        let mut split = CpuSplit::default();
        let sum = split.during(&[("this", std::process::id())], || {
            let started = std::time::Instant::now();
            let mut sum = 0u64;
            while started.elapsed() < Duration::from_millis(60) {
                sum = sum.wrapping_add(1);
            }
            sum
        });
        assert!(sum > 0 && watch.most() > 0);
        assert!(
            split.parts.iter().any(|(name, used)| name == "this" && *used > 0.0),
            "{}",
            split.note("of this")
        );
    }
}
