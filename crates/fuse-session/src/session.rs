//! How does a connection begin: by INIT, or taken over from a descriptor that has had it?

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;
use thiserror::Error;
use zerocopy::IntoBytes;

use crate::backing::Backing;
use crate::channel::{Channel, Received};
use crate::filesystem::Filesystem;
use crate::negotiate::{InitAnswer, Negotiated, UnsupportedKernel, Wanted, answer};
use crate::notify::Notifier;
use crate::request::{Operation, ParseError, Query, Request, parse};
use crate::serve::{RunError, Running};

/// Room for INIT: the kernel refuses reads into less.
const INIT_BUFFER: usize = 8192;

/// A connection that could not begin.
#[derive(Debug, Error)]
pub enum SessionError {
    /// The descriptor could not be set not to block.
    #[error("set the FUSE device not to block")]
    SetNonblocking(#[source] Errno),
    /// The device could not be waited for or read. EPERM means that it is not mounted.
    #[error("read INIT from the FUSE device")]
    ReadInit(#[source] Errno),
    /// The kernel did not send INIT in time.
    #[error("wait for INIT from the FUSE device: nothing came in {0:?}")]
    Deadline(Duration),
    /// The mount went away before INIT was answered.
    #[error("mount went away before INIT was answered")]
    Gone,
    /// The message was malformed.
    #[error("parse INIT")]
    ParseInit(#[source] ParseError),
    /// The connection has had its INIT; whoever made it, or its successor by [`Session::resume`], serves it.
    #[error("read INIT from the FUSE device: connection has had its INIT, resume it instead")]
    InUse,
    /// The kernel is too old.
    #[error("negotiate with the kernel")]
    Unsupported(#[source] UnsupportedKernel),
    /// The kernel did not take the answer to INIT.
    #[error("answer INIT")]
    AnswerInit(#[source] Errno),
}

/// A connection that is settled and not served yet. It keeps the descriptor, and so the mount alive.
#[derive(Debug)]
pub struct Session {
    channel: Arc<Channel>,
    negotiated: Negotiated,
}

impl Session {
    /// Begins a connection by answering the kernel's INIT, on a device that was just mounted.
    ///
    /// Blocks for `deadline` at most.
    ///
    /// # Errors
    /// [`SessionError`].
    pub fn negotiate(device: OwnedFd, wanted: &Wanted, deadline: Duration) -> Result<Self, SessionError> {
        let channel = open_channel(device)?;
        let until = Instant::now() + deadline;
        let mut buffer = vec![0; INIT_BUFFER];
        loop {
            let length = match channel.receive(&mut buffer) {
                Ok(Received::Message(length)) => length,
                Ok(Received::Unmounted | Received::Aborted) => return Err(SessionError::Gone),
                // The kernel wants room for the largest WRITE that was settled, which is more than this buffer; it says
                // so before it gives a message away.
                Err(Errno::INVAL) => return Err(SessionError::InUse),
                Err(errno) => return Err(SessionError::ReadInit(errno)),
                Ok(Received::Nothing) => {
                    wait(channel.device.as_fd(), until).map_err(SessionError::ReadInit)?;
                    if Instant::now() >= until {
                        return Err(SessionError::Deadline(deadline));
                    }
                    continue;
                }
            };
            let message = buffer.get(..length).unwrap_or_default();
            let Request { caller, number, operation, node: _ } =
                parse(message).map_err(SessionError::ParseInit)?;
            let Operation::Query(Query::Init(init)) = operation else {
                return Err(SessionError::InUse);
            };
            channel.metrics.request(number);
            let send = |out: &[u8]| channel.send(caller.unique, 0, &[out]).map_err(SessionError::AnswerInit);
            match answer(&init, wanted) {
                Ok(InitAnswer::AskAgain(out)) => send(out.as_bytes())?,
                Ok(InitAnswer::Settled(out, negotiated)) => {
                    send(out.as_bytes())?;
                    tracing::debug!(?negotiated, "connection negotiated");
                    return Ok(Self { channel: Arc::new(channel), negotiated });
                }
                Err(unsupported) => {
                    channel.answer(caller.unique, Some(Errno::PROTO), &[]);
                    return Err(SessionError::Unsupported(unsupported));
                }
            }
        }
    }

    /// Takes over a connection that another session negotiated. Once it runs, [`Notifier::resend`] brings back what that
    /// session took and did not answer.
    ///
    /// # Errors
    /// [`SessionError::SetNonblocking`].
    pub fn resume(device: OwnedFd, negotiated: Negotiated) -> Result<Self, SessionError> {
        Ok(Self { channel: Arc::new(open_channel(device)?), negotiated })
    }

    /// Gives what INIT settled: with the descriptor, all that [`Session::resume`] needs.
    pub fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    /// Gives a way to hand files to the kernel; worth trying under [`Capabilities::PASSTHROUGH`](crate::Capabilities).
    pub fn backing(&self) -> Backing {
        Backing::new(&self.channel)
    }

    /// Gives a sender of notifications.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(&self.channel)
    }

    /// Serves requests on `threads` threads (1 to 64) until the mount goes away or it is stopped.
    ///
    /// # Errors
    /// [`RunError`] when threads or their descriptors cannot be had.
    pub fn run<F: Filesystem>(self, threads: usize, file_system: Arc<F>) -> Result<Running, RunError> {
        Running::start(self.channel, self.negotiated, threads, file_system)
    }
}

impl AsFd for Session {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.device.as_fd()
    }
}

/// Sets the device not to block: threads then wait for it and for a stop at once. The flag belongs to the open
/// description, so every copy of the descriptor has it; writes never block.
fn open_channel(device: OwnedFd) -> Result<Channel, SessionError> {
    let flags = rustix::fs::fcntl_getfl(&device).map_err(SessionError::SetNonblocking)?;
    rustix::fs::fcntl_setfl(&device, flags | OFlags::NONBLOCK).map_err(SessionError::SetNonblocking)?;
    Ok(Channel::new(device))
}

/// Waits for a message until `until`, or less when a signal comes.
fn wait(device: BorrowedFd<'_>, until: Instant) -> Result<(), Errno> {
    let left = until.saturating_duration_since(Instant::now());
    let timeout = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: i64::MAX, tv_nsec: 0 });
    match poll(&mut [PollFd::new(&device, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}
