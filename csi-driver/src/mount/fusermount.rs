//! How does an ordinary user mount: by fusermount3, which sends back the descriptor?
//!
//! The helper gets one end of a socket pair, mounts, sends one byte with the descriptor beside it (SCM_RIGHTS), and ends.
//! The socket is its standard input, for which no descriptor has to be kept open over exec.

use std::ffi::OsStr;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType, recvmsg,
    socketpair,
};

use super::deadline::within;
use super::error::MountError;
use super::options::MountOptions;
use super::syscalls::Unmounted;

/// Most bytes of what the helper says that are kept.
const MAX_WORDS_BYTES: u64 = 4096;
/// How often an ending helper is looked at; it ends within a few of these.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Mounts by fusermount3.
///
/// # Errors
/// [`MountError::FusermountMissing`], [`MountError::NoDevice`], [`MountError::NotAllowed`], [`MountError::Deadline`] or
/// [`MountError::Fusermount`] with what it said.
pub fn mount(point: &Path, options: &MountOptions, deadline: Duration) -> Result<OwnedFd, MountError> {
    let until = Instant::now() + deadline;
    let failed = |source: io::Error| MountError::Fusermount { point: point.to_owned(), source };
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .map_err(|errno| failed(errno.into()))?;
    let wishes = options.for_fusermount();
    let arguments = [OsStr::new("-o"), OsStr::new(&wishes), OsStr::new("--"), point.as_os_str()];
    let mut helper = start(point, &arguments, Stdio::from(theirs), &[("_FUSE_COMMFD", "0")])?;
    let device = receive(&ours, until);
    let ended = end(&mut helper, until).map_err(failed)?;
    let words = said(&mut helper);
    match (device, ended) {
        (Ok(Some(device)), _) => Ok(device),
        (_, None) => Err(MountError::Deadline { step: "mount on", point: point.to_owned(), after: deadline }),
        (Err(errno), Some(_)) => Err(failed(errno.into())),
        (Ok(None), Some(status)) => Err(refused(point, &words, status)),
    }
}

/// Unmounts by fusermount3; detaches a mount in use.
///
/// # Errors
/// As [`mount`].
pub fn unmount(point: &Path, deadline: Duration) -> Result<Unmounted, MountError> {
    let until = Instant::now() + deadline;
    for (arguments, unmounted) in
        [(["-u"].as_slice(), Unmounted::Cleanly), (&["-u", "-z"], Unmounted::Detached)]
    {
        let words: Vec<&OsStr> =
            arguments.iter().map(OsStr::new).chain([OsStr::new("--"), point.as_os_str()]).collect();
        let mut helper = start(point, &words, Stdio::null(), &[])?;
        let ended = end(&mut helper, until)
            .map_err(|source| MountError::Fusermount { point: point.to_owned(), source })?;
        let Some(status) = ended else {
            return Err(MountError::Deadline { step: "unmount", point: point.to_owned(), after: deadline });
        };
        let words = said(&mut helper);
        if status.success() {
            return Ok(unmounted);
        }
        if words.contains("not found in") {
            return Ok(Unmounted::WasNotMounted);
        }
        if !words.contains("busy") {
            return Err(MountError::Unmount { point: point.to_owned(), source: io::Error::other(words) });
        }
    }
    Err(MountError::Unmount { point: point.to_owned(), source: Errno::BUSY.into() })
}

/// Finds fusermount3 in PATH, or where packages put it when PATH is bare.
fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/bin", "/bin", "/usr/local/bin"].map(PathBuf::from);
    find_in(std::env::split_paths(&path).chain(usual))
}

fn find_in(folders: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    folders.into_iter().map(|folder| folder.join("fusermount3")).find(|program| program.is_file())
}

fn start(
    point: &Path,
    arguments: &[&OsStr],
    input: Stdio,
    environment: &[(&str, &str)],
) -> Result<Child, MountError> {
    let program = find().ok_or_else(|| MountError::FusermountMissing { point: point.to_owned() })?;
    Command::new(program)
        .args(arguments)
        // Its words are read below, so they must be in one language.
        .envs(environment.iter().copied().chain([("LC_ALL", "C")]))
        .stdin(input)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| MountError::Fusermount { point: point.to_owned(), source })
}

/// Receives the descriptor; `None` when the helper ended, or the time did, without sending it.
fn receive(socket: &OwnedFd, until: Instant) -> Result<Option<OwnedFd>, Errno> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => return Ok(None),
            Ok(_) => break,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        }
    }
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(descriptors.last())
}

/// Waits for the end of the helper; kills it, and gives `None`, when the time is over.
fn end(helper: &mut Child, until: Instant) -> io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = helper.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            helper.kill()?;
            // A helper in an uninterruptible call cannot be waited for without hanging; its entry goes with us.
            return Ok(None);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Reads what the helper said, once it has ended.
fn said(helper: &mut Child) -> String {
    let Some(stream) = helper.stderr.take() else {
        return String::new();
    };
    let read = move || {
        let mut words = Vec::new();
        // What was read before an error is still worth showing.
        let _ = stream.take(MAX_WORDS_BYTES).read_to_end(&mut words);
        words
    };
    // Whoever it left behind could hold the stream open: a second is plenty for what is in the pipe.
    let words = within(Duration::from_secs(1), read, drop).unwrap_or_default();
    String::from_utf8_lossy(&words).trim().replace('\n', "; ")
}

/// Tells apart what the caller can do about a refusal, by the words of fusermount3 3.10 to 3.17.
fn refused(point: &Path, words: &str, status: ExitStatus) -> MountError {
    let point = point.to_owned();
    let source = match words.is_empty() {
        true => io::Error::other(format!("fusermount3 ended with {status}")),
        false => io::Error::other(words.to_owned()),
    };
    let says = |known: &[&str]| known.iter().any(|part| words.contains(part));
    if says(&["device not found", "/dev/fuse: No such file"]) {
        MountError::NoDevice { source }
    } else if says(&[
        "not permitted",
        "Permission denied",
        "only allowed if",
        "no write access",
        "not owned by",
    ]) {
        MountError::NotAllowed { point, method: "fusermount3", source }
    } else {
        MountError::Fusermount { point, source }
    }
}

/// Tells whether a refusal is about looking in as another user, which needs a line in `/etc/fuse.conf`.
pub(super) fn is_about_sharing(error: &MountError) -> bool {
    matches!(error, MountError::NotAllowed { source, .. } if source.to_string().contains("allow_other"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn helper_is_found_in_the_first_folder_that_has_it() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let (bare, full) = (folder.path().join("bare"), folder.path().join("full"));
        std::fs::create_dir_all(&full).expect("mkdir");
        std::fs::write(full.join("fusermount3"), "").expect("write");
        assert_eq!(find_in([bare.clone(), full.clone()]), Some(full.join("fusermount3")));
        assert_eq!(find_in([bare]), None);
    }

    #[test]
    fn words_of_the_helper_are_told_apart() {
        let refusal = |words: &str| refused(Path::new("/m"), words, ExitStatus::from_raw(256));
        let device = "fusermount3: fuse device not found, try 'modprobe fuse' first";
        assert!(matches!(refusal(device), MountError::NoDevice { .. }));
        let sharing =
            "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf";
        assert!(is_about_sharing(&refusal(sharing)));
        let mount = refusal("fusermount3: mount failed: Operation not permitted");
        assert!(matches!(mount, MountError::NotAllowed { .. }) && !is_about_sharing(&mount));
        let silent = refusal("");
        assert!(
            matches!(&silent, MountError::Fusermount { source, .. } if source.to_string().contains("exit status: 1"))
        );
    }
}
