//! How much memory may this process use, and how much does its cgroup use, as the kernel counts it?
//!
//! The kernel charges to a cgroup the page cache and the tmpfs pages that its processes touch, besides anonymous memory. Page
//! cache is given back under pressure, tmpfs (`shmem`) is not: a memory tier counts against the limit like the heap.
//!
//! The limit is the lowest of the cgroup's own and all its visible parents', of `memory.max` and `memory.high` (v2) or
//! `memory.limit_in_bytes` (v1), and of the machine's memory. A flag comes before all of them.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Memory that a process is left with at the least, beside its memory tier: guess, from the resident size of an idle worker.
pub const HEAP_FLOOR_BYTES: u64 = 64 << 20;

/// Depth up to which parents of a cgroup are asked for their limits. Kubernetes nests four deep.
const MAX_DEPTH: usize = 64;

/// The memory that a process may use, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes.
    pub bytes: u64,
    /// Where the number is from.
    pub source: LimitSource,
}

/// Who sets a memory limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitSource {
    /// The program's flag.
    Flag,
    /// A file of a cgroup.
    Cgroup(PathBuf),
    /// No limit is set: the memory of the machine.
    Machine,
}

/// Memory charged to a cgroup. Bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryUsage {
    /// All that is charged: the number that the limit is compared with.
    pub current: u64,
    /// Anonymous memory: heaps and stacks.
    pub anon: u64,
    /// Page cache, tmpfs included.
    pub file: u64,
    /// tmpfs and shared memory: part of `file` that cannot be given back.
    pub shmem: u64,
}

/// What can go wrong when memory limits are read.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// A file of the kernel could not be read.
    #[error("read {path:?}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A file of the kernel holds something else than a number.
    #[error("parse {path:?}: {text:?} is not a number of bytes")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What it holds, at most 64 characters.
        text: String,
    },
    /// The limit leaves too little beside the memory tier.
    #[error(
        "memory limit of {limit} bytes ({source_name}) less {tmpfs} bytes of Memory tiers leaves under {HEAP_FLOOR_BYTES}: raise the limit or lower the tiers' quota"
    )]
    TooSmall {
        /// The limit. Bytes.
        limit: u64,
        /// Who sets it.
        source_name: String,
        /// The quota of tiers on tmpfs. Bytes.
        tmpfs: u64,
    },
}

impl std::fmt::Display for LimitSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LimitSource::Flag => f.write_str("flag"),
            LimitSource::Cgroup(file) => write!(f, "{}", file.display()),
            LimitSource::Machine => f.write_str("memory of the machine"),
        }
    }
}

impl MemoryLimit {
    /// Finds the limit of this process: the flag, else the cgroup's, else the machine's. `root` is `/`, or a tree that looks
    /// like it.
    ///
    /// # Errors
    /// [`MemoryError::Read`] or [`MemoryError::Parse`] with the file of the kernel that is not as expected.
    pub fn find(flag: Option<u64>, root: &Path) -> Result<Self, MemoryError> {
        if let Some(bytes) = flag {
            return Ok(Self { bytes, source: LimitSource::Flag });
        }
        let mut limit = Self { bytes: machine_bytes(root)?, source: LimitSource::Machine };
        let Some(cgroup) = Cgroup::find(root)? else {
            return Ok(limit);
        };
        for file in cgroup.limit_files() {
            let Some(bytes) = read_bytes(&file)? else {
                continue;
            };
            if bytes < limit.bytes {
                limit = Self { bytes, source: LimitSource::Cgroup(file) };
            }
        }
        Ok(limit)
    }

    /// Returns what is left for heap and page cache when tiers on tmpfs are full. Bytes, at least [`HEAP_FLOOR_BYTES`].
    ///
    /// # Errors
    /// [`MemoryError::TooSmall`] when less is left.
    pub fn less_tmpfs(&self, tmpfs_bytes: u64) -> Result<u64, MemoryError> {
        match self.bytes.checked_sub(tmpfs_bytes) {
            Some(left) if left >= HEAP_FLOOR_BYTES => Ok(left),
            Some(_) | None => Err(MemoryError::TooSmall {
                limit: self.bytes,
                source_name: self.source.to_string(),
                tmpfs: tmpfs_bytes,
            }),
        }
    }
}

/// The cgroup that charges the memory of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cgroup {
    version: Version,
    /// The folder of the cgroup.
    dir: PathBuf,
    /// The mount point: parents above it are not visible.
    top: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Cgroup {
    /// Finds the cgroup of this process in `root/proc/self/cgroup` and `root/proc/self/mountinfo`. `None` where cgroups are
    /// not mounted.
    ///
    /// # Errors
    /// [`MemoryError::Read`] when the files of `/proc` cannot be read.
    pub fn find(root: &Path) -> Result<Option<Self>, MemoryError> {
        let cgroups = read_optional(&root.join("proc/self/cgroup"))?.unwrap_or_default();
        let mounts = read_optional(&root.join("proc/self/mountinfo"))?.unwrap_or_default();
        let Some((version, path)) = own_path(&cgroups) else {
            return Ok(None);
        };
        let Some((mount_root, mount_point)) = memory_mount(&mounts, version) else {
            return Ok(None);
        };
        let top = root.join(mount_point.trim_start_matches('/'));
        // Without a cgroup namespace a container sees the host's path here, but its own part of the tree as the mount.
        let below = path.strip_prefix(mount_root.trim_end_matches('/')).unwrap_or("");
        let dir = top.join(below.trim_start_matches('/'));
        let dir = if dir.is_dir() && !below.contains("..") { dir } else { top.clone() };
        Ok(Some(Self { version, dir, top }))
    }

    /// Reads what is charged to the cgroup now.
    ///
    /// # Errors
    /// [`MemoryError::Read`] or [`MemoryError::Parse`] with the file of the kernel that is not as expected.
    pub fn usage(&self) -> Result<MemoryUsage, MemoryError> {
        let (current, anon, file, shmem) = match self.version {
            Version::V2 => ("memory.current", "anon", "file", "shmem"),
            Version::V1 => ("memory.usage_in_bytes", "total_rss", "total_cache", "total_shmem"),
        };
        // The root cgroup of v2 has no memory.current.
        let current = read_bytes(&self.dir.join(current))?;
        let path = self.dir.join("memory.stat");
        let stat = read_optional(&path)?.unwrap_or_default();
        let field = |name: &str| {
            stat.lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
                .map_or(Ok(0), |text| parse_bytes(&path, text))
        };
        let (anon, file, shmem) = (field(anon)?, field(file)?, field(shmem)?);
        Ok(MemoryUsage { current: current.unwrap_or(anon + file), anon, file, shmem })
    }

    /// The files that may limit this cgroup: its own first, then its parents' up to the mount point.
    fn limit_files(&self) -> Vec<PathBuf> {
        let names: &[&str] = match self.version {
            Version::V2 => &["memory.max", "memory.high"],
            Version::V1 => &["memory.limit_in_bytes"],
        };
        self.dir
            .ancestors()
            .take_while(|dir| dir.starts_with(&self.top))
            .take(MAX_DEPTH)
            .flat_map(|dir| names.iter().map(|name| dir.join(name)))
            .collect()
    }
}

/// The line of `/proc/self/cgroup` that counts for memory: v1's if its memory controller is in use, else v2's.
fn own_path(cgroups: &str) -> Option<(Version, &str)> {
    let mut unified = None;
    for line in cgroups.lines() {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        if controllers.split(',').any(|name| name == "memory") {
            return Some((Version::V1, path));
        }
        if controllers.is_empty() {
            unified = Some((Version::V2, path));
        }
    }
    unified
}

/// Root and mount point of the memory hierarchy, from lines of proc(5) mountinfo:
/// `id parent major:minor ROOT MOUNT_POINT options [optional...] - TYPE source SUPER_OPTIONS`.
fn memory_mount(mounts: &str, version: Version) -> Option<(&str, &str)> {
    mounts.lines().find_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let mut after = after.split(' ');
        let (kind, _, options) = (after.next()?, after.next()?, after.next()?);
        let is_it = match version {
            Version::V1 => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
            Version::V2 => kind == "cgroup2",
        };
        let mut before = before.split(' ').skip(3);
        let mount = (before.next()?, before.next()?);
        is_it.then_some(mount)
    })
}

fn machine_bytes(root: &Path) -> Result<u64, MemoryError> {
    let path = root.join("proc/meminfo");
    let text =
        std::fs::read_to_string(&path).map_err(|source| MemoryError::Read { path: path.clone(), source })?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap_or("");
    Ok(parse_bytes(&path, total.trim_end_matches("kB"))?.saturating_mul(1024))
}

/// Reads a number of bytes; `None` where the file is not there or says `max`.
fn read_bytes(path: &Path) -> Result<Option<u64>, MemoryError> {
    match read_optional(path)? {
        None => Ok(None),
        Some(text) if text.trim() == "max" => Ok(None),
        Some(text) => parse_bytes(path, &text).map(Some),
    }
}

fn parse_bytes(path: &Path, text: &str) -> Result<u64, MemoryError> {
    text.trim().parse().map_err(|_| MemoryError::Parse {
        path: path.to_owned(),
        text: text.trim().chars().take(64).collect(),
    })
}

fn read_optional(path: &Path) -> Result<Option<String>, MemoryError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(MemoryError::Read { path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree that looks like `/` of a machine with 8 GiB.
    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let all = [("proc/meminfo", "MemTotal:        8388608 kB\nMemFree: 1 kB\n")];
        for (path, text) in all.iter().chain(files) {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    const V2_MOUNT: &str = "35 24 0:31 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1_MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";

    fn limit(files: &[(&str, &str)]) -> (u64, String) {
        let root = tree(files);
        let limit = MemoryLimit::find(None, root.path()).unwrap();
        let source = limit.source.to_string();
        (limit.bytes, source.replace(&root.path().display().to_string(), ""))
    }

    #[test]
    fn flag_comes_before_the_cgroup() {
        let root = tree(&[]);
        let limit = MemoryLimit::find(Some(7), root.path()).unwrap();
        assert_eq!(limit, MemoryLimit { bytes: 7, source: LimitSource::Flag });
    }

    #[test]
    fn without_a_cgroup_the_machine_is_the_limit() {
        assert_eq!(limit(&[]), (8 << 30, "memory of the machine".into()));
    }

    #[test]
    fn v2_limit_of_the_cgroup_itself() {
        let (bytes, source) = limit(&[
            ("proc/self/cgroup", "0::/pod/worker\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/pod/worker/memory.max", "536870912\n"),
            ("sys/fs/cgroup/pod/worker/memory.high", "max\n"),
            ("sys/fs/cgroup/pod/memory.max", "max\n"),
        ]);
        assert_eq!((bytes, source.as_str()), (512 << 20, "/sys/fs/cgroup/pod/worker/memory.max"));
    }

    #[test]
    fn v2_parent_with_a_lower_limit_binds() {
        let (bytes, source) = limit(&[
            ("proc/self/cgroup", "0::/pod/worker\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/pod/worker/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/pod/memory.max", "536870912\n"),
        ]);
        assert_eq!((bytes, source.as_str()), (512 << 20, "/sys/fs/cgroup/pod/memory.max"));
    }

    #[test]
    fn v2_memory_high_below_memory_max_binds() {
        let (bytes, source) = limit(&[
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/memory.max", "1073741824\n"),
            ("sys/fs/cgroup/memory.high", "805306368\n"),
        ]);
        assert_eq!((bytes, source.as_str()), (768 << 20, "/sys/fs/cgroup/memory.high"));
    }

    #[test]
    fn v1_limit_and_v1_without_limit() {
        let file = "sys/fs/cgroup/memory/pod/memory.limit_in_bytes";
        let cgroup = ("proc/self/cgroup", "4:memory:/pod\n1:cpu:/\n0::/\n");
        let mounts = ("proc/self/mountinfo", V1_MOUNTS);
        let limited = limit(&[cgroup, mounts, (file, "268435456\n")]);
        assert_eq!(limited, (256 << 20, format!("/{file}")));
        // What v1 says when nothing is set: the largest multiple of a page in an i64.
        let free = limit(&[cgroup, mounts, (file, "9223372036854771712\n")]);
        assert_eq!(free, (8 << 30, "memory of the machine".into()));
    }

    #[test]
    fn container_without_cgroup_namespace_finds_its_own_part_of_the_tree() {
        let mounts = "35 31 0:32 /kubepods/pod1/c1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let (bytes, source) = limit(&[
            ("proc/self/cgroup", "4:memory:/kubepods/pod1/c1\n"),
            ("proc/self/mountinfo", mounts),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "268435456\n"),
        ]);
        assert_eq!((bytes, source.as_str()), (256 << 20, "/sys/fs/cgroup/memory/memory.limit_in_bytes"));
    }

    #[test]
    fn path_out_of_the_tree_falls_back_to_the_mount_point() {
        let (bytes, _) = limit(&[
            ("proc/self/cgroup", "0::/../sibling\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/memory.max", "268435456\n"),
            ("sys/fs/sibling/memory.max", "1\n"),
        ]);
        assert_eq!(bytes, 256 << 20);
    }

    #[test]
    fn usage_tells_heap_page_cache_and_tmpfs_apart() {
        let v2 = tree(&[
            ("proc/self/cgroup", "0::/w\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/w/memory.current", "1000\n"),
            ("sys/fs/cgroup/w/memory.stat", "anon 100\nfile 900\nfile_mapped 5\nshmem 300\n"),
        ]);
        let v1 = tree(&[
            ("proc/self/cgroup", "4:memory:/w\n"),
            ("proc/self/mountinfo", V1_MOUNTS),
            ("sys/fs/cgroup/memory/w/memory.usage_in_bytes", "1000\n"),
            (
                "sys/fs/cgroup/memory/w/memory.stat",
                "cache 1\nrss 1\nshmem 1\ntotal_cache 900\ntotal_rss 100\ntotal_shmem 300\n",
            ),
        ]);
        for root in [v2, v1] {
            let usage = Cgroup::find(root.path()).unwrap().unwrap().usage().unwrap();
            assert_eq!(usage, MemoryUsage { current: 1000, anon: 100, file: 900, shmem: 300 });
        }
    }

    #[test]
    fn a_file_that_holds_no_number_is_named() {
        let root = tree(&[
            ("proc/self/cgroup", "0::/\n"),
            ("proc/self/mountinfo", V2_MOUNT),
            ("sys/fs/cgroup/memory.max", "lots\n"),
        ]);
        let error = MemoryLimit::find(None, root.path()).unwrap_err().to_string();
        assert!(error.contains("memory.max") && error.contains("\"lots\""), "{error}");
    }

    #[test]
    fn memory_tier_counts_against_the_limit() {
        let limit = MemoryLimit { bytes: 512 << 20, source: LimitSource::Flag };
        assert_eq!(limit.less_tmpfs(256 << 20).unwrap(), 256 << 20);
        let error = limit.less_tmpfs(480 << 20).unwrap_err().to_string();
        assert!(
            error.contains("536870912 bytes (flag)") && error.contains("lower the tiers' quota"),
            "{error}"
        );
    }

    #[test]
    fn this_machine_has_a_limit() {
        let limit = MemoryLimit::find(None, Path::new("/")).unwrap();
        assert!(limit.bytes > HEAP_FLOOR_BYTES, "{limit:?}");
    }
}
