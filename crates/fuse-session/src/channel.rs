//! How do bytes go to and from the device?

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::OutHeader;
use crate::in_flight::InFlight;
use crate::metrics::{Metrics, count};

/// Most pieces of one writev (the kernel's UIO_MAXIOV), the head included.
const MAX_PIECES: usize = 1024;

/// One connection to the kernel: the device, and what is known of the requests that came over it.
#[derive(Debug)]
pub(crate) struct Channel {
    pub device: OwnedFd,
    pub in_flight: InFlight,
    pub metrics: Metrics,
}

/// What a read of the device gave.
#[derive(Debug, Eq, PartialEq)]
pub(crate) enum Received {
    /// A message of this many bytes.
    Message(usize),
    /// Nothing at the moment.
    Nothing,
    /// The mount is gone.
    Unmounted,
    /// The connection was aborted.
    Aborted,
}

impl Channel {
    pub fn new(device: OwnedFd) -> Self {
        Self { device, in_flight: InFlight::default(), metrics: Metrics::default() }
    }

    /// Takes one message; does not wait, as the device is set not to block.
    ///
    /// # Errors
    /// What the kernel says, but for the ends and the retries that it documents.
    pub fn receive(&self, buffer: &mut [u8]) -> Result<Received, Errno> {
        loop {
            return match rustix::io::read(&self.device, &mut *buffer) {
                Ok(length) => Ok(Received::Message(length)),
                Err(Errno::AGAIN) => Ok(Received::Nothing),
                // NOENT: the request was given up while it was copied.
                Err(Errno::INTR | Errno::NOENT) => continue,
                Err(Errno::NODEV) => Ok(Received::Unmounted),
                Err(Errno::CONNABORTED) => Ok(Received::Aborted),
                Err(errno) => Err(errno),
            };
        }
    }

    /// Sends a head and the pieces behind it in one write, without copying them together.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn send(&self, unique: u64, error: i32, pieces: &[&[u8]]) -> Result<(), Errno> {
        let length = size_of::<OutHeader>() + pieces.iter().map(|piece| piece.len()).sum::<usize>();
        let header = OutHeader { len: u32::try_from(length).map_err(|_| Errno::MSGSIZE)?, error, unique };
        let head = IoSlice::new(header.as_bytes());
        let written = match pieces {
            [] => rustix::io::writev(&self.device, &[head]),
            [piece] => rustix::io::writev(&self.device, &[head, IoSlice::new(piece)]),
            pieces if pieces.len() < MAX_PIECES => {
                let bodies = pieces.iter().map(|piece| IoSlice::new(piece));
                let slices: Vec<_> = std::iter::once(head).chain(bodies).collect();
                rustix::io::writev(&self.device, &slices)
            }
            pieces => rustix::io::writev(&self.device, &[head, IoSlice::new(&pieces.concat())]),
        };
        written.map(drop)
    }

    /// Sends an answer, and counts it when the kernel does not want it: there is nobody left to tell. Gives whether the
    /// kernel took it.
    pub fn answer(&self, unique: u64, error: Option<Errno>, pieces: &[&[u8]]) -> bool {
        let code = error.map_or(0, |errno| -errno.raw_os_error());
        if let Some(errno) = error {
            self.metrics.error(errno);
        }
        match self.send(unique, code, pieces) {
            Ok(()) => return true,
            Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED | Errno::PERM) => count(&self.metrics.late),
            Err(errno) => {
                count(&self.metrics.refused);
                tracing::warn!(unique, code, error = %errno, "kernel refused an answer");
            }
        }
        false
    }
}
