//! How do frames come out of the socket, payloads going straight to where they stay?
//!
//! While a payload is awaited one vectored read fills the rest of it and, behind it, the head buffer with whatever comes
//! next: about one system call for what the socket has, and no copy but of what arrived together with a head. Chunks are
//! checked as soon as they are whole, while they are in the processor's cache.

use std::io::{self, IoSliceMut};
use std::sync::Arc;

use bytes::Bytes;
use millrace_api::block::CHUNK_BYTES;
use millrace_api::crc::crc32c;
use millrace_api::wire::{
    Answer, DataHead, DecodeFrame, FrameHeader, HEADER_BYTES, IndexPartHead, MAX_BODY_BYTES,
    MAX_FRAME_CHUNKS, MAX_PLAIN_BODY_BYTES, kind,
};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::net::TcpStream;

use super::buffers::{Buffer, Buffers};

/// Room for heads and small frames. What of a payload arrives in here is copied once.
const HEAD_BYTES: usize = 16 << 10;

/// A whole frame.
#[derive(Debug)]
pub(super) enum Received {
    /// Chunks, already compared with their CRCs.
    Data(DataFrame),
    /// A part of an index.
    Index { request: u64, head: IndexPartHead, payload: Bytes },
    /// Any other answer.
    Plain { request: u64, answer: Answer },
    /// A kind that this build does not know.
    Unknown,
}

/// Chunks of one object.
#[derive(Debug)]
pub(super) struct DataFrame {
    pub request: u64,
    pub head: DataHead,
    pub is_last: bool,
    pub crcs: [u32; MAX_FRAME_CHUNKS as usize],
    /// Bit `i`: chunk `i` of the frame does not fit its CRC.
    pub bad: u16,
    pub payload: Bytes,
}

/// What has been received and not yet taken.
#[derive(Debug)]
pub(super) struct Receiver {
    head: Box<[u8]>,
    start: usize,
    end: usize,
    awaited: Awaited,
    buffers: Arc<Buffers>,
}

#[derive(Debug)]
enum Awaited {
    /// The head of a frame.
    Head,
    /// The rest of a body.
    Body { header: FrameHeader, body: Body, buffer: Buffer, filled: usize },
}

#[derive(Debug)]
enum Body {
    Data { head: DataHead, crcs: [u32; MAX_FRAME_CHUNKS as usize], bad: u16, checked: u16 },
    Index(IndexPartHead),
    Plain,
}

impl Receiver {
    pub(super) fn new(buffers: Arc<Buffers>) -> Self {
        Self { head: vec![0; HEAD_BYTES].into(), start: 0, end: 0, awaited: Awaited::Head, buffers }
    }

    /// Reads once what the socket has. Answers the number of bytes; 0 where there were none yet.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] at the end of the stream, or what the system says.
    pub(super) fn fill(&mut self, stream: &TcpStream) -> io::Result<usize> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.end == self.head.len() {
            self.head.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let (payload, wanted): (&mut [u8], usize) = match &mut self.awaited {
            Awaited::Head => (&mut [], 0),
            Awaited::Body { buffer, filled, .. } => {
                let rest = &mut buffer.as_mut()[*filled..];
                let wanted = rest.len();
                (rest, wanted)
            }
        };
        let mut slices = [IoSliceMut::new(payload), IoSliceMut::new(&mut self.head[self.end..])];
        let read = stream.try_io(Interest::READABLE, || {
            loop {
                match rustix::io::readv(stream, &mut slices) {
                    Err(Errno::INTR) => {}
                    result => return result.map_err(io::Error::from),
                }
            }
        });
        let read = match read {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) => return Err(error),
        };
        let of_payload = read.min(wanted);
        self.end += read - of_payload;
        if let Awaited::Body { filled, .. } = &mut self.awaited {
            *filled += of_payload;
        }
        Ok(read)
    }

    /// Takes the next whole frame.
    pub(super) fn next(&mut self) -> Result<Option<Received>, DecodeFrame> {
        loop {
            match &mut self.awaited {
                Awaited::Head => {
                    if !self.take_head()? {
                        return Ok(None);
                    }
                }
                Awaited::Body { body, buffer, filled, .. } => {
                    let rest = &mut buffer.as_mut()[*filled..];
                    let at_hand = rest.len().min(self.end - self.start);
                    rest[..at_hand].copy_from_slice(&self.head[self.start..self.start + at_hand]);
                    let is_whole = at_hand == rest.len();
                    self.start += at_hand;
                    *filled += at_hand;
                    body.check(buffer.as_ref(), *filled);
                    if !is_whole {
                        return Ok(None);
                    }
                    let Awaited::Body { header, body, buffer, .. } =
                        std::mem::replace(&mut self.awaited, Awaited::Head)
                    else {
                        continue;
                    };
                    return finish(&header, body, buffer).map(Some);
                }
            }
        }
    }

    /// Takes header and fixed fields, once they are there.
    fn take_head(&mut self) -> Result<bool, DecodeFrame> {
        let bytes = &self.head[self.start..self.end];
        if bytes.len() < HEADER_BYTES {
            return Ok(false);
        }
        let header = FrameHeader::decode(bytes, MAX_BODY_BYTES)?;
        let front = &bytes[HEADER_BYTES..];
        let body_len = header.body_len as usize;
        let (body, taken) = match header.kind {
            kind::DATA => {
                let Some(before) = DataHead::len_before_payload(front) else { return Ok(false) };
                let Some(before_payload) = front.get(..before.min(body_len)) else { return Ok(false) };
                let head = DataHead::decode(&header, before_payload)?;
                let mut crcs = [0; MAX_FRAME_CHUNKS as usize];
                crcs.iter_mut().zip(head.crcs(before_payload)).for_each(|(slot, crc)| *slot = crc);
                (Body::Data { head, crcs, bad: 0, checked: 0 }, before)
            }
            kind::INDEX_PART => {
                let before = IndexPartHead::LEN_BEFORE_PAYLOAD;
                let Some(before_payload) = front.get(..before.min(body_len)) else { return Ok(false) };
                (Body::Index(IndexPartHead::decode(&header, before_payload)?), before)
            }
            kind if header.body_len > MAX_PLAIN_BODY_BYTES => {
                let (len, max) = (header.body_len, MAX_PLAIN_BODY_BYTES);
                return Err(DecodeFrame::TooLong { kind, len, max });
            }
            _ => (Body::Plain, 0),
        };
        self.start += HEADER_BYTES + taken;
        let buffer = self.buffers.take(body_len - taken);
        self.awaited = Awaited::Body { header, body, buffer, filled: 0 };
        Ok(true)
    }
}

impl Body {
    /// Compares the chunks that are whole by now with their CRCs.
    fn check(&mut self, payload: &[u8], filled: usize) {
        let Body::Data { head, crcs, bad, checked } = self else { return };
        while *checked < head.count {
            let start = usize::from(*checked) * CHUNK_BYTES as usize;
            let end = (start + CHUNK_BYTES as usize).min(payload.len());
            if filled < end {
                return;
            }
            if crc32c(&payload[start..end]) != crcs[usize::from(*checked)] {
                *bad |= 1 << *checked;
            }
            *checked += 1;
        }
    }
}

fn finish(header: &FrameHeader, body: Body, buffer: Buffer) -> Result<Received, DecodeFrame> {
    let request = header.request;
    let is_last = header.flags & millrace_api::wire::flags::LAST != 0;
    match body {
        Body::Data { head, crcs, bad, .. } => {
            Ok(Received::Data(DataFrame { request, head, is_last, crcs, bad, payload: buffer.freeze() }))
        }
        Body::Index(head) => Ok(Received::Index { request, head, payload: buffer.freeze() }),
        Body::Plain => match Answer::decode(header, buffer.as_ref()) {
            Ok(answer) => Ok(Received::Plain { request, answer }),
            Err(DecodeFrame::UnknownKind { .. }) => Ok(Received::Unknown),
            Err(error) => Err(error),
        },
    }
}
