//! What may a client ask for?
//!
//! | frame | layout of the body |
//! |---|---|
//! | read | version 16, file `u32`, content 16, first chunk `u32`, end chunk `u32`, epoch `u64`, deadline ms `u32` |
//! | batch read | version 16, epoch `u64`, deadline ms `u32`, count `u16`, 0 `u16`, then per item: file `u32`, content 16, first chunk `u32`, end chunk `u32` |
//! | cancel, get membership, ping, get mount settings | empty |
//! | get index | version 16, offset `u64`, length `u32` |
//! | announce | version 16, pod count `u32`, node (`u16` length), pods listed `u16`, then per pod: namespace (`u16` length), name (`u16` length), uid (`u16` length) |
//!
//! Chunks are counted from the object's start. `content` is that of the store file which holds the object (its own or its
//! pack's): a worker whose index says otherwise answers [`ErrorCode::BadRequest`](super::ErrorCode::BadRequest). The deadline
//! counts from the arrival of the frame, so that clocks need not agree. An announcement holds until the next one on the same
//! connection, or its end; it is answered by a pong.

use std::ops::Range;

use super::bytes::{DecodeFrame, Reader, put_frame};
use super::{FrameHeader, MAX_BATCH_ITEMS, MAX_PAYLOAD_BYTES, MAX_READ_CHUNKS, kind, mount};
use crate::ids::{ContentId, VersionId};
use crate::mount::Announce;

/// A request, without its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Chunks of one object.
    Read(Read),
    /// Chunks of many objects.
    BatchRead(BatchRead),
    /// The request of this id is no longer wanted; it is answered by an error or not at all.
    Cancel,
    /// The membership.
    GetMembership,
    /// A part of an index file.
    GetIndex(GetIndex),
    /// A sign of life.
    Ping,
    /// How the dataset is to be mounted.
    GetMountSettings,
    /// What the client mounts and for whom.
    Announce(Announce),
}

/// Asks for chunks of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read {
    /// The dataset version that `item.file` counts in.
    pub version: VersionId,
    /// What is wanted.
    pub item: BatchItem,
    /// The membership epoch by which the client chose the worker.
    pub epoch: u64,
    /// When the client gives up, milliseconds after arrival.
    pub deadline_ms: u32,
    /// [`PREFETCH`](super::flags::PREFETCH) and [`VERIFY`](super::flags::VERIFY).
    pub flags: u8,
}

/// Asks for chunks of many objects in one frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchRead {
    /// The dataset version that the items count in.
    pub version: VersionId,
    /// At most [`MAX_BATCH_ITEMS`], at least one; in all at most [`MAX_READ_CHUNKS`] chunks.
    pub items: Vec<BatchItem>,
    /// The membership epoch by which the client chose the worker.
    pub epoch: u64,
    /// When the client gives up, milliseconds after arrival.
    pub deadline_ms: u32,
    /// [`PREFETCH`](super::flags::PREFETCH) and [`VERIFY`](super::flags::VERIFY).
    pub flags: u8,
}

/// Chunks of one object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchItem {
    /// Number of the file in the version's index.
    pub file: u32,
    /// The store file that holds it, as a check.
    pub content: ContentId,
    /// Chunks of the object; never empty.
    pub chunks: Range<u32>,
}

/// Asks for a part of an index file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GetIndex {
    /// Whose index.
    pub version: VersionId,
    /// First byte wanted.
    pub offset: u64,
    /// How many, at most [`MAX_PAYLOAD_BYTES`]; the answer may be shorter.
    pub len: u32,
}

const ITEM_BYTES: usize = 28;

impl Request {
    /// Appends the whole frame.
    pub fn encode(&self, request: u64, out: &mut Vec<u8>) {
        match self {
            Request::Read(read) => put_frame(out, kind::READ, read.flags, request, |out| {
                out.extend_from_slice(&read.version.0);
                put_item(out, &read.item);
                out.extend_from_slice(&read.epoch.to_le_bytes());
                out.extend_from_slice(&read.deadline_ms.to_le_bytes());
            }),
            Request::BatchRead(batch) => put_frame(out, kind::BATCH_READ, batch.flags, request, |out| {
                out.extend_from_slice(&batch.version.0);
                out.extend_from_slice(&batch.epoch.to_le_bytes());
                out.extend_from_slice(&batch.deadline_ms.to_le_bytes());
                out.extend_from_slice(&(batch.items.len() as u16).to_le_bytes());
                out.extend_from_slice(&[0; 2]);
                batch.items.iter().for_each(|item| put_item(out, item));
            }),
            Request::Cancel => put_frame(out, kind::CANCEL, 0, request, |_| {}),
            Request::GetMembership => put_frame(out, kind::GET_MEMBERSHIP, 0, request, |_| {}),
            Request::GetIndex(get) => put_frame(out, kind::GET_INDEX, 0, request, |out| {
                out.extend_from_slice(&get.version.0);
                out.extend_from_slice(&get.offset.to_le_bytes());
                out.extend_from_slice(&get.len.to_le_bytes());
            }),
            Request::Ping => put_frame(out, kind::PING, 0, request, |_| {}),
            Request::GetMountSettings => put_frame(out, kind::GET_MOUNT_SETTINGS, 0, request, |_| {}),
            Request::Announce(announce) => {
                put_frame(out, kind::ANNOUNCE, 0, request, |out| mount::put_announce(out, announce))
            }
        }
    }

    /// Reads a body; what follows the known fields is ignored.
    ///
    /// # Errors
    /// [`DecodeFrame::UnknownKind`] where the kind is no request, else what is wrong with the body.
    pub fn decode(header: &FrameHeader, body: &[u8]) -> Result<Self, DecodeFrame> {
        if !matches!(header.kind, kind::READ..=kind::ANNOUNCE) {
            return Err(DecodeFrame::UnknownKind { kind: header.kind });
        }
        let mut reader = Reader::new(header.kind, header.check(body)?);
        match header.kind {
            kind::READ => decode_read(header, &mut reader).map(Request::Read),
            kind::BATCH_READ => decode_batch(header, &mut reader).map(Request::BatchRead),
            kind::CANCEL => Ok(Request::Cancel),
            kind::GET_MEMBERSHIP => Ok(Request::GetMembership),
            kind::GET_INDEX => decode_get_index(&mut reader).map(Request::GetIndex),
            kind::PING => Ok(Request::Ping),
            kind::GET_MOUNT_SETTINGS => Ok(Request::GetMountSettings),
            kind::ANNOUNCE => mount::take_announce(&mut reader).map(Request::Announce),
            kind => Err(DecodeFrame::UnknownKind { kind }),
        }
    }
}

fn decode_read(header: &FrameHeader, reader: &mut Reader<'_>) -> Result<Read, DecodeFrame> {
    let version = VersionId(reader.array("version")?);
    let item = take_item(reader)?;
    let (epoch, deadline_ms) = (reader.u64("epoch")?, reader.u32("deadline_ms")?);
    Ok(Read { version, item, epoch, deadline_ms, flags: header.flags })
}

fn decode_batch(header: &FrameHeader, reader: &mut Reader<'_>) -> Result<BatchRead, DecodeFrame> {
    let version = VersionId(reader.array("version")?);
    let (epoch, deadline_ms) = (reader.u64("epoch")?, reader.u32("deadline_ms")?);
    let count = usize::from(reader.u16("count")?);
    reader.u16("reserved")?;
    if count == 0 || count > MAX_BATCH_ITEMS {
        return Err(reader.out_of_range("count", count as u64));
    }
    let mut body = Reader::new(header.kind, reader.take(count * ITEM_BYTES, "items")?);
    let items = (0..count).map(|_| take_item(&mut body)).collect::<Result<Vec<_>, _>>()?;
    // Each item has at most MAX_READ_CHUNKS chunks and there are at most MAX_BATCH_ITEMS: far below 2^32.
    let chunks: u32 = items.iter().map(|item| item.chunks.end - item.chunks.start).sum();
    if chunks > MAX_READ_CHUNKS {
        return Err(reader.out_of_range("chunks of all items", chunks.into()));
    }
    Ok(BatchRead { version, items, epoch, deadline_ms, flags: header.flags })
}

fn decode_get_index(reader: &mut Reader<'_>) -> Result<GetIndex, DecodeFrame> {
    let get = GetIndex {
        version: VersionId(reader.array("version")?),
        offset: reader.u64("offset")?,
        len: reader.u32("len")?,
    };
    if get.len == 0 || get.len > MAX_PAYLOAD_BYTES {
        return Err(reader.out_of_range("len", get.len.into()));
    }
    Ok(get)
}

fn put_item(out: &mut Vec<u8>, item: &BatchItem) {
    out.extend_from_slice(&item.file.to_le_bytes());
    out.extend_from_slice(&item.content.0);
    out.extend_from_slice(&item.chunks.start.to_le_bytes());
    out.extend_from_slice(&item.chunks.end.to_le_bytes());
}

fn take_item(reader: &mut Reader<'_>) -> Result<BatchItem, DecodeFrame> {
    let (file, content) = (reader.u32("file")?, ContentId(reader.array("content")?));
    let (start, end) = (reader.u32("first chunk")?, reader.u32("end chunk")?);
    if end <= start || end - start > MAX_READ_CHUNKS {
        return Err(reader.out_of_range("end chunk", end.into()));
    }
    Ok(BatchItem { file, content, chunks: start..end })
}
