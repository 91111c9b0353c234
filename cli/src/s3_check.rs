//! Does a folder hold what a synthetic bucket does, byte for byte?

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use millrace_s3_server::backend::spec::SyntheticSpec;
use millrace_s3_server::synthetic::Pattern;

use crate::args::S3CheckArgs;
use crate::exit;

/// How much is read at once.
const READ_BYTES: usize = 1 << 20;

/// Reads every file below a folder and compares it.
///
/// # Errors
/// The first file that cannot be read, or is not as in the bucket; too few or too many files.
pub fn check(args: &S3CheckArgs) -> anyhow::Result<()> {
    let [spec] = args.synthetic.0.as_slice() else {
        bail!("--synthetic: {} buckets, give the one that the folder shows", args.synthetic.0.len());
    };
    let started = Instant::now();
    let mut seen = Seen::default();
    check_folder(spec, &args.dir, &args.dir, &mut seen)?;
    ensure!(
        seen.files == spec.objects,
        "{:?} has {} files, but the bucket {} objects",
        args.dir,
        seen.files,
        spec.objects
    );
    let seconds = started.elapsed().as_secs_f64();
    exit::print(&format!(
        "{} files, {} bytes in {seconds:.1} s: every byte is right\n",
        seen.files, seen.bytes
    ))
}

#[derive(Default)]
struct Seen {
    files: u64,
    bytes: u64,
}

fn check_folder(spec: &SyntheticSpec, root: &Path, folder: &Path, seen: &mut Seen) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("read folder {folder:?}"))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("read folder {folder:?}"))?;
        let path = entry.path();
        let kind = entry.file_type().with_context(|| format!("look at {path:?}"))?;
        if kind.is_dir() {
            check_folder(spec, root, &path, seen)?;
        } else {
            seen.bytes += check_file(spec, root, &path)?;
            seen.files += 1;
        }
    }
    Ok(())
}

fn check_file(spec: &SyntheticSpec, root: &Path, path: &Path) -> anyhow::Result<u64> {
    let key = path.strip_prefix(root).context("a file below the folder")?.as_os_str().as_encoded_bytes();
    let (size, pattern) = (spec.size_of(key), Pattern::new(spec.seed, key, 0));
    let mut file = File::open(path).with_context(|| format!("open {path:?}"))?;
    let (mut buffer, mut offset) = (vec![0; READ_BYTES], 0);
    loop {
        let count = file.read(&mut buffer).with_context(|| format!("read {path:?} at {offset}"))?;
        if count == 0 {
            ensure!(offset == size, "{path:?} has {offset} bytes, but the object {size}");
            return Ok(offset);
        }
        ensure!(pattern.matches(offset, &buffer[..count]), "{path:?} has wrong bytes behind {offset}");
        offset += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::SyntheticSpecs;

    fn folder(objects: u64) -> (tempfile::TempDir, S3CheckArgs) {
        let dir = tempfile::tempdir().unwrap();
        let spec: SyntheticSpec = "objects=3,size=1KiB..3MiB,seed=5,per-dir=2".parse().unwrap();
        for key in ["d0/f00000000.bin", "d0/f00000001.bin", "d1/f00000002.bin"].iter().take(objects as usize)
        {
            let mut body = vec![0; spec.size_of(key.as_bytes()) as usize];
            Pattern::new(5, key.as_bytes(), 0).fill(0, &mut body);
            let path = dir.path().join(key);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, body).unwrap();
        }
        let args = S3CheckArgs { dir: dir.path().to_owned(), synthetic: SyntheticSpecs(vec![spec]) };
        (dir, args)
    }

    #[test]
    fn a_right_folder_passes() {
        let (_dir, args) = folder(3);
        check(&args).unwrap();
    }

    #[test]
    fn a_missing_a_short_and_a_wrong_file_are_told() {
        let (_dir, args) = folder(2);
        assert!(check(&args).unwrap_err().to_string().contains("2 files"));
        let (dir, args) = folder(3);
        let path = dir.path().join("d0/f00000001.bin");
        let body = std::fs::read(&path).unwrap();
        std::fs::write(&path, &body[..body.len() - 1]).unwrap();
        assert!(check(&args).unwrap_err().to_string().contains("bytes, but the object"));
        let mut wrong = body;
        *wrong.last_mut().unwrap() ^= 1;
        std::fs::write(&path, wrong).unwrap();
        assert!(check(&args).unwrap_err().to_string().contains("wrong bytes"));
    }
}
