//! Who else uses a tier, and is its usage record right?

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::recount::{recount, remove_all};
use crate::stats::add;
use crate::tier::{Tier, blocks_dir};
use crate::usage::{DecodeUsage, Held, USAGE_BYTES, UsageFile, UseUsage};

/// Longest wait for another process that counts the files: a million of them take some ten seconds from a cold disk.
const COUNT_WAIT: Duration = Duration::from_secs(60);

/// Why a tier cannot be opened for writing now.
#[derive(Debug)]
pub(crate) enum OpenTier {
    /// The file system says no.
    Io(io::Error),
    /// A running process of another version uses it.
    Version(u32),
    /// Another process has been counting for too long.
    Locked,
}

/// Opens the usage record of a tier, and counts again where nobody else has the tier open or the record is damaged.
pub(crate) fn open_usage(tier: &Tier) -> Result<UsageFile, OpenTier> {
    let dir = &tier.config.dir;
    fs::create_dir_all(blocks_dir(dir)).map_err(OpenTier::Io)?;
    let mut lifetime = tier.lifetime.lock();
    let lock = match lifetime.take() {
        Some(lock) => lock,
        None => open_or_make(&dir.join("lock")).map_err(OpenTier::Io)?,
    };
    let is_alone = take(&lock)?;
    let file = open_or_make(&dir.join("usage")).map_err(OpenTier::Io)?;
    let mut bytes = [0; USAGE_BYTES];
    let len = std::os::unix::fs::FileExt::read_at(&file, &mut bytes, 0).map_err(OpenTier::Io)?;
    let decoded = Held::decode(&bytes[..len]);
    let usage = UsageFile::new(file);
    match decoded {
        Ok(_) if !is_alone => {}
        Err(DecodeUsage::Version(version)) if !is_alone => return Err(OpenTier::Version(version)),
        Err(DecodeUsage::Version(version)) => {
            let files = remove_all(dir).map_err(OpenTier::Io)?;
            tracing::warn!(dir = ?dir, version, files, "store of another version emptied");
            add(&tier.counters.damaged_files, files);
            write_count(tier, &usage)?;
        }
        Ok(_) | Err(DecodeUsage::Damaged) => write_count(tier, &usage)?,
    }
    // Converting the lock lets another process in between, which then counts too: nothing has changed yet.
    shared(&lock)?;
    *lifetime = Some(lock);
    Ok(usage)
}

/// Reads the usage record where the tier cannot be opened for writing.
pub(crate) fn read_usage(dir: &Path) -> Option<Held> {
    UsageFile::new(File::open(dir.join("usage")).ok()?).peek().ok()
}

fn write_count(tier: &Tier, usage: &UsageFile) -> Result<(), OpenTier> {
    match usage.recount(|| recount(tier)) {
        Ok(_) => Ok(()),
        Err(UseUsage::Io(error)) => Err(OpenTier::Io(error)),
        Err(UseUsage::Busy | UseUsage::Damaged) => Err(OpenTier::Locked),
    }
}

/// Takes the lifetime lock exclusively, where nobody else has it; answers whether that was so.
fn take(lock: &File) -> Result<bool, OpenTier> {
    match flock(lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => shared(lock).map(|()| false),
        Err(error) => Err(OpenTier::Io(error.into())),
    }
}

fn shared(lock: &File) -> Result<(), OpenTier> {
    let since = Instant::now();
    loop {
        match flock(lock, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK | Errno::INTR) if since.elapsed() < COUNT_WAIT => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => return Err(OpenTier::Locked),
            Err(error) => return Err(OpenTier::Io(error.into())),
        }
    }
}

fn open_or_make(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}
