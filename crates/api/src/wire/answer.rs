//! What may a server answer?
//!
//! | frame | layout of the body |
//! |---|---|
//! | data | item `u32`, first chunk `u32`, count `u16`, 0 `u16`, payload length `u32`, epoch `u64`, CRC32C of each chunk `u32` × count |
//! | pending | epoch `u64` |
//! | error | item `u32`, code `u16`, epoch `u64`, message (`u16` length, UTF-8) |
//! | membership | epoch `u64`, count `u16`, then per worker: name (`u16` length), address (`u16` length), weight `u32` |
//! | index part | total length of the index `u64`, offset `u64`, payload length `u32`, 0 `u32` |
//! | pong | epoch `u64` |
//! | mount settings | version 16, node cache quota `u64`, uid `u32`, gid `u32`, file mode `u16`, dir mode `u16`, mount mode `u8` (0 `Auto`, 1 `Files`, 2 `Packed`; may be missing) |
//!
//! The chunks of a data frame are consecutive; all but the last are 64 KiB long, and the last is shorter only where it
//! ends its object. `epoch` is that of the worker's membership; a client with an older one asks for it.

use super::bytes::{DecodeFrame, Reader, put_frame, put_head, put_text};
use super::{
    CRC_BYTES, ErrorCode, FrameHeader, HEADER_BYTES, MAX_ADDRESS_BYTES, MAX_FRAME_CHUNKS, MAX_MESSAGE_BYTES,
    MAX_PAYLOAD_BYTES, flags, kind, mount,
};
use crate::block::CHUNK_BYTES;
use crate::mount::MountSettings;
use crate::placement::{MAX_WORKER_NAME_BYTES, MAX_WORKERS, Membership, Worker};

/// What precedes the CRCs and the payload of a data frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataHead {
    /// Which item of a batch read; 0 for a read.
    pub item: u32,
    /// The object's first chunk in this frame.
    pub first_chunk: u32,
    /// Number of chunks, 1 to [`MAX_FRAME_CHUNKS`].
    pub count: u16,
    /// Length of the payload, bytes.
    pub payload_len: u32,
    /// The server's membership epoch.
    pub epoch: u64,
}

/// What precedes the payload of an index part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndexPartHead {
    /// Length of the whole index file, bytes.
    pub total_len: u64,
    /// Where the payload belongs.
    pub offset: u64,
    /// Length of the payload, bytes; 0 where the offset is at or past the end.
    pub payload_len: u32,
}

/// An error, as it travels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ErrorFrame {
    /// Which item of a batch read, 0 for a read, or [`WHOLE_REQUEST`](super::WHOLE_REQUEST).
    pub item: u32,
    /// Why.
    pub code: ErrorCode,
    /// The server's membership epoch.
    pub epoch: u64,
    /// For logs, at most [`MAX_MESSAGE_BYTES`].
    pub message: String,
    /// Whether nothing follows for the request ([`LAST`](super::flags::LAST) in the header).
    pub is_last: bool,
}

/// An answer that carries no payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The request waits for the origin.
    Pending {
        /// The server's membership epoch.
        epoch: u64,
    },
    /// A request or an item has ended without all its chunks.
    Error(ErrorFrame),
    /// Who serves the dataset.
    Membership(Membership),
    /// A sign of life.
    Pong {
        /// The server's membership epoch.
        epoch: u64,
    },
    /// How the dataset is to be mounted.
    MountSettings(MountSettings),
}

impl DataHead {
    /// Length of the fixed fields, bytes.
    pub const BYTES: usize = 24;

    /// Length of all before the payload of the largest frame, bytes.
    pub const MAX_PREFIX_BYTES: usize =
        HEADER_BYTES + Self::BYTES + 4 * MAX_FRAME_CHUNKS as usize + CRC_BYTES;

    /// Appends all before the payload; the caller sends that after it.
    pub fn encode(&self, request: u64, is_last: bool, crcs: &[u32], out: &mut Vec<u8>) {
        assert_eq!(crcs.len(), usize::from(self.count), "one CRC a chunk");
        let flags = if is_last { flags::LAST } else { 0 };
        put_head(out, kind::DATA, flags, request, self.payload_len, |out| {
            out.extend_from_slice(&self.item.to_le_bytes());
            out.extend_from_slice(&self.first_chunk.to_le_bytes());
            out.extend_from_slice(&self.count.to_le_bytes());
            out.extend_from_slice(&[0; 2]);
            out.extend_from_slice(&self.payload_len.to_le_bytes());
            out.extend_from_slice(&self.epoch.to_le_bytes());
            crcs.iter().for_each(|crc| out.extend_from_slice(&crc.to_le_bytes()));
        });
    }

    /// How many bytes stand between header and payload, once `front` (what follows the header) shows it.
    pub fn len_before_payload(front: &[u8]) -> Option<usize> {
        let count = u16::from_le_bytes(*front.get(8..)?.first_chunk()?);
        Some(Self::BYTES + 4 * usize::from(count.min(MAX_FRAME_CHUNKS)) + CRC_BYTES)
    }

    /// Reads what stands between header and payload.
    ///
    /// # Errors
    /// Where a field is cut, or the counts contradict each other or the header.
    pub fn decode(header: &FrameHeader, front: &[u8]) -> Result<Self, DecodeFrame> {
        let mut reader = Reader::new(kind::DATA, header.check(front)?);
        let (item, first_chunk, count) =
            (reader.u32("item")?, reader.u32("first chunk")?, reader.u16("count")?);
        reader.u16("reserved")?;
        let (payload_len, epoch) = (reader.u32("payload length")?, reader.u64("epoch")?);
        if count == 0 || count > MAX_FRAME_CHUNKS || first_chunk.checked_add(count.into()).is_none() {
            return Err(reader.out_of_range("count", count.into()));
        }
        let chunks = u64::from(payload_len).div_ceil(CHUNK_BYTES);
        let body_len = (Self::BYTES + CRC_BYTES) as u64 + 4 * u64::from(count) + u64::from(payload_len);
        if chunks != u64::from(count) || body_len != u64::from(header.body_len) {
            return Err(reader.out_of_range("payload length", payload_len.into()));
        }
        reader.take(4 * usize::from(count), "crcs")?;
        Ok(Self { item, first_chunk, count, payload_len, epoch })
    }

    /// Reads the CRCs of the chunks from what stands between header and payload.
    pub fn crcs<'a>(&self, before_payload: &'a [u8]) -> impl Iterator<Item = u32> + use<'a> {
        let crcs = before_payload.get(Self::BYTES..).unwrap_or_default().as_chunks().0;
        crcs.iter().take(self.count.into()).map(|crc| u32::from_le_bytes(*crc))
    }
}

impl IndexPartHead {
    /// Length of the fixed fields, bytes.
    pub const BYTES: usize = 24;

    /// How many bytes stand between header and payload.
    pub const LEN_BEFORE_PAYLOAD: usize = Self::BYTES + CRC_BYTES;

    /// Appends all before the payload; the caller sends that after it.
    pub fn encode(&self, request: u64, out: &mut Vec<u8>) {
        put_head(out, kind::INDEX_PART, flags::LAST, request, self.payload_len, |out| {
            out.extend_from_slice(&self.total_len.to_le_bytes());
            out.extend_from_slice(&self.offset.to_le_bytes());
            out.extend_from_slice(&self.payload_len.to_le_bytes());
            out.extend_from_slice(&[0; 4]);
        });
    }

    /// Reads what stands between header and payload.
    ///
    /// # Errors
    /// Where a field is cut, or the lengths contradict each other or the header.
    pub fn decode(header: &FrameHeader, front: &[u8]) -> Result<Self, DecodeFrame> {
        let mut reader = Reader::new(kind::INDEX_PART, header.check(front)?);
        let (total_len, offset) = (reader.u64("total length")?, reader.u64("offset")?);
        let payload_len = reader.u32("payload length")?;
        reader.u32("reserved")?;
        let body_len = Self::LEN_BEFORE_PAYLOAD as u64 + u64::from(payload_len);
        if payload_len > MAX_PAYLOAD_BYTES || body_len != u64::from(header.body_len) {
            return Err(reader.out_of_range("payload length", payload_len.into()));
        }
        let end = offset.checked_add(payload_len.into());
        if payload_len > 0 && end.is_none_or(|end| end > total_len) {
            return Err(reader.out_of_range("offset", offset));
        }
        Ok(Self { total_len, offset, payload_len })
    }
}

impl Answer {
    /// Appends the whole frame.
    pub fn encode(&self, request: u64, out: &mut Vec<u8>) {
        match self {
            Answer::Pending { epoch } => {
                put_frame(out, kind::PENDING, 0, request, |out| out.extend_from_slice(&epoch.to_le_bytes()));
            }
            Answer::Error(error) => {
                let flags = if error.is_last { flags::LAST } else { 0 };
                put_frame(out, kind::ERROR, flags, request, |out| {
                    out.extend_from_slice(&error.item.to_le_bytes());
                    out.extend_from_slice(&error.code.to_wire().to_le_bytes());
                    out.extend_from_slice(&error.epoch.to_le_bytes());
                    put_text(out, &error.message, MAX_MESSAGE_BYTES);
                });
            }
            Answer::Membership(membership) => {
                put_frame(out, kind::MEMBERSHIP, flags::LAST, request, |out| put_membership(out, membership));
            }
            Answer::Pong { epoch } => {
                put_frame(out, kind::PONG, flags::LAST, request, |out| {
                    out.extend_from_slice(&epoch.to_le_bytes())
                });
            }
            Answer::MountSettings(settings) => {
                put_frame(out, kind::MOUNT_SETTINGS, flags::LAST, request, |out| {
                    mount::put_settings(out, settings);
                });
            }
        }
    }

    /// Reads a body; what follows the known fields is ignored.
    ///
    /// # Errors
    /// [`DecodeFrame::UnknownKind`] where the kind is no answer without payload, else what is wrong with the body.
    pub fn decode(header: &FrameHeader, body: &[u8]) -> Result<Self, DecodeFrame> {
        let is_known = matches!(
            header.kind,
            kind::PENDING | kind::ERROR | kind::MEMBERSHIP | kind::PONG | kind::MOUNT_SETTINGS
        );
        if !is_known {
            return Err(DecodeFrame::UnknownKind { kind: header.kind });
        }
        let mut reader = Reader::new(header.kind, header.check(body)?);
        match header.kind {
            kind::PENDING => Ok(Answer::Pending { epoch: reader.u64("epoch")? }),
            kind::ERROR => {
                let (item, code) = (reader.u32("item")?, ErrorCode::from_wire(reader.u16("code")?));
                let epoch = reader.u64("epoch")?;
                let message = reader.text(MAX_MESSAGE_BYTES, "message")?.to_owned();
                let is_last = header.flags & flags::LAST != 0;
                Ok(Answer::Error(ErrorFrame { item, code, epoch, message, is_last }))
            }
            kind::MEMBERSHIP => take_membership(&mut reader).map(Answer::Membership),
            kind::PONG => Ok(Answer::Pong { epoch: reader.u64("epoch")? }),
            kind::MOUNT_SETTINGS => mount::take_settings(&mut reader).map(Answer::MountSettings),
            kind => Err(DecodeFrame::UnknownKind { kind }),
        }
    }
}

fn put_membership(out: &mut Vec<u8>, membership: &Membership) {
    out.extend_from_slice(&membership.epoch.to_le_bytes());
    let workers = &membership.workers[..membership.workers.len().min(MAX_WORKERS)];
    out.extend_from_slice(&(workers.len() as u16).to_le_bytes());
    for worker in workers {
        put_text(out, &worker.name, MAX_WORKER_NAME_BYTES);
        put_text(out, &worker.address, MAX_ADDRESS_BYTES);
        out.extend_from_slice(&worker.weight.to_le_bytes());
    }
}

fn take_membership(reader: &mut Reader<'_>) -> Result<Membership, DecodeFrame> {
    let epoch = reader.u64("epoch")?;
    let count = usize::from(reader.u16("count")?);
    if count > MAX_WORKERS {
        return Err(reader.out_of_range("count", count as u64));
    }
    let mut workers: Vec<Worker> = Vec::with_capacity(count);
    for index in 0..count {
        let name = reader.text(MAX_WORKER_NAME_BYTES, "name")?;
        let address = reader.text(MAX_ADDRESS_BYTES, "address")?;
        if name.is_empty() || workers.iter().any(|worker| worker.name == name) {
            return Err(reader.out_of_range("name of worker", index as u64));
        }
        workers.push(Worker {
            name: name.to_owned(),
            address: address.to_owned(),
            weight: reader.u32("weight")?,
        });
    }
    Ok(Membership { epoch, workers })
}
