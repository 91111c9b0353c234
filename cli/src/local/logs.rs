//! What did a child say?

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::Context;

/// A log that is longer is put aside when its process starts anew; one older log is kept.
const MAX_LOG_BYTES: u64 = 4 << 20;

/// How much of a log's end is looked at for its last words.
const TAIL_BYTES: u64 = 16 << 10;

/// Opens a child's log to append to.
///
/// # Errors
/// Names the file.
pub fn open(path: &Path) -> anyhow::Result<File> {
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > MAX_LOG_BYTES) {
        let mut old = path.as_os_str().to_owned();
        old.push(".old");
        std::fs::rename(path, PathBuf::from(old)).with_context(|| format!("put log {path:?} aside"))?;
    }
    File::options().create(true).append(true).open(path).with_context(|| format!("open log {path:?}"))
}

/// Length of a log now, to read from there on later.
pub fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// Why a child has ended, by what it has logged since `from`: the program's own last message, else its last lines but for those
/// that say all is well.
pub fn last_words(path: &Path, from: u64) -> String {
    let read = || -> std::io::Result<String> {
        let mut file = File::open(path)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(from.max(end.saturating_sub(TAIL_BYTES)).min(end)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    read().map(|text| words(&text)).unwrap_or_default()
}

fn words(text: &str) -> String {
    let is_of_use = |line: &&str| {
        !line.is_empty() && ![" INFO ", " DEBUG ", " TRACE "].iter().any(|level| line.contains(level))
    };
    let lines: Vec<&str> = text.lines().map(str::trim).filter(is_of_use).collect();
    let own = |line: &&str| line.starts_with("cache-worker: ") || line.starts_with("csi-driver: ");
    match lines.iter().rev().copied().find(own) {
        Some(line) => line.split_once(": ").map_or(line, |(_, rest)| rest).to_owned(),
        None => lines[lines.len().saturating_sub(3)..].join(" | "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_own_message_comes_before_its_log() {
        let log = "2026 INFO worker serves\n2026 ERROR task failed\ncsi-driver: mount point \"/m\" is not empty: name an empty folder\n\n";
        assert_eq!(words(log), "mount point \"/m\" is not empty: name an empty folder");
        assert_eq!(words("a\nb\nc\n1  INFO x\nd\n"), "b | c | d");
        assert_eq!(words(""), "");
    }

    #[test]
    fn only_what_was_said_since_counts_and_a_long_log_is_put_aside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        assert_eq!(last_words(&path, 0), "");
        std::fs::write(&path, "cache-worker: old\n").unwrap();
        let from = length(&path);
        assert_eq!(last_words(&path, from), "");
        std::fs::write(&path, vec![b'x'; MAX_LOG_BYTES as usize + 1]).unwrap();
        open(&path).unwrap();
        assert_eq!(length(&path), 0);
        assert!(dir.path().join("x.log.old").exists());
    }
}
