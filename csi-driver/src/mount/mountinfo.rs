//! What is mounted where, as `/proc/self/mountinfo` tells it?
//!
//! A line: `36 35 98:0 /root /mount/point rw,noatime master:1 - ext3 /dev/sda1 rw,errors=continue`: id, parent, device,
//! root, mount point, options, any number of tags, a dash, type, source, options of the file system. Space, tab, newline
//! and backslash are written as a backslash and three octal digits (proc(5)).

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Number of a device, as in `st_dev`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DeviceNumber {
    /// Major part; 0 for FUSE.
    pub major: u32,
    /// Minor part.
    pub minor: u32,
}

/// One mount.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct MountEntry {
    /// Number of the file system's device.
    pub device: DeviceNumber,
    /// Where it is mounted.
    pub point: PathBuf,
    /// Type, with a subtype behind a dot: `fuse.millrace`.
    pub file_system: String,
    /// What is mounted.
    pub source: String,
}

impl MountEntry {
    /// Tells whether a FUSE process serves it.
    pub fn is_fuse(&self) -> bool {
        self.file_system == "fuse" || self.file_system.starts_with("fuse.")
    }
}

/// Finds the mount that one sees at `point`, a path without symbolic links.
///
/// # Errors
/// When the kernel's table cannot be read.
pub fn find(point: &Path) -> io::Result<Option<MountEntry>> {
    Ok(top(&std::fs::read("/proc/self/mountinfo")?, point))
}

/// Finds the last mount at `point`, which hides those before it.
fn top(table: &[u8], point: &Path) -> Option<MountEntry> {
    entries(table).filter(|entry| entry.point == point).last()
}

/// Parses a table; lines of another form are left out.
pub fn entries(table: &[u8]) -> impl Iterator<Item = MountEntry> {
    table.split(|byte| *byte == b'\n').filter_map(entry)
}

fn entry(line: &[u8]) -> Option<MountEntry> {
    let mut words = line.split(|byte| *byte == b' ');
    let device = device(words.nth(2)?)?;
    let point = PathBuf::from(OsString::from_vec(unescape(words.nth(1)?)));
    let mut words = words.skip_while(|word| *word != b"-");
    let text = |word: &[u8]| String::from_utf8_lossy(&unescape(word)).into_owned();
    let file_system = text(words.nth(1)?);
    let source = text(words.next()?);
    Some(MountEntry { device, point, file_system, source })
}

fn device(word: &[u8]) -> Option<DeviceNumber> {
    let (major, minor) = std::str::from_utf8(word).ok()?.split_once(':')?;
    Some(DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

/// Turns a backslash and three octal digits into the byte they mean.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, after)) = rest.split_first() {
        let escaped = match (first, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                Some((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'))
            }
            _ => None,
        };
        plain.push(escaped.unwrap_or(*first));
        rest = after.get(if escaped.is_some() { 3 } else { 0 }..).unwrap_or_default();
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
        36 22 0:45 / /mnt/my\\040data rw,nosuid shared:7 master:1 - fuse.millrace a\\134b rw,user_id=0\n\
        37 22 0:46 / /mnt/x rw - fuse first rw\n\
        38 37 0:47 / /mnt/x ro - tmpfs second rw\n\
        broken line\n\
        39 22 no:47 / /mnt/y ro - tmpfs third rw\n";

    #[test]
    fn mount_with_a_space_and_tags_is_read() {
        let expected = MountEntry {
            device: DeviceNumber { major: 0, minor: 45 },
            point: "/mnt/my data".into(),
            file_system: "fuse.millrace".into(),
            source: "a\\b".into(),
        };
        assert!(expected.is_fuse());
        assert_eq!(top(TABLE, Path::new("/mnt/my data")), Some(expected));
    }

    #[test]
    fn the_mount_on_top_is_the_one_seen() {
        let seen = top(TABLE, Path::new("/mnt/x")).expect("mounted");
        assert_eq!((seen.source.as_str(), seen.is_fuse()), ("second", false));
    }

    #[test]
    fn broken_lines_are_left_out() {
        assert_eq!(entries(TABLE).count(), 4);
        assert_eq!(top(TABLE, Path::new("/mnt/y")), None);
    }

    #[test]
    fn mutated_tables_never_panic() {
        let mut state = 1u64;
        for case in 0..100_000 {
            let mut table = TABLE.to_vec();
            for _ in 0..=case % 4 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = (state >> 33) as usize % table.len();
                table[at] = (state >> 16) as u8;
            }
            assert!(entries(&table).count() < 64);
        }
    }

    #[test]
    fn the_kernels_own_table_has_a_root() {
        assert!(find(Path::new("/")).expect("read").is_some());
    }
}
