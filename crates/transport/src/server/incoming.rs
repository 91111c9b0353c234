//! Which whole frames has the client sent so far?

use std::io;

use millrace_api::wire::{DecodeFrame, FrameHeader, HEADER_BYTES, MAX_PLAIN_BODY_BYTES};
use tokio::net::TcpStream;

/// Room at the start: many reads, or a batch of 500 items.
const ROOM_BYTES: usize = 16 << 10;

/// Bytes received and not yet understood: at most one frame of the largest kind and what came with it.
#[derive(Debug)]
pub(super) struct Incoming {
    buffer: Vec<u8>,
    filled: usize,
    taken: usize,
}

impl Incoming {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; ROOM_BYTES], filled: 0, taken: 0 }
    }

    /// Reads once what the socket has; `false` at its end.
    pub(super) fn fill(&mut self, stream: &TcpStream) -> io::Result<bool> {
        if self.taken == self.filled {
            (self.taken, self.filled) = (0, 0);
        } else if self.filled == self.buffer.len() {
            self.buffer.copy_within(self.taken..self.filled, 0);
            (self.taken, self.filled) = (0, self.filled - self.taken);
        }
        match stream.try_read(&mut self.buffer[self.filled..]) {
            Ok(read) => {
                self.filled += read;
                Ok(read > 0)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Takes the next whole frame.
    pub(super) fn next(&mut self) -> Result<Option<(FrameHeader, &[u8])>, DecodeFrame> {
        let bytes = &self.buffer[self.taken..self.filled];
        if bytes.len() < HEADER_BYTES {
            return Ok(None);
        }
        let header = FrameHeader::decode(bytes, MAX_PLAIN_BODY_BYTES)?;
        let len = HEADER_BYTES + header.body_len as usize;
        if bytes.len() < len {
            if self.buffer.len() < len {
                self.buffer.resize(len, 0);
            }
            return Ok(None);
        }
        let start = self.taken + HEADER_BYTES;
        self.taken += len;
        Ok(Some((header, &self.buffer[start..self.taken])))
    }
}
