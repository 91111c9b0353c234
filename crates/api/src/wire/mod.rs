//! How do two processes talk on the data port?
//!
//! Everything is little-endian. A frame is a header of 16 bytes, a body, the CRC32C of both, and in two kinds a payload, which
//! has CRCs of its own (data) or a hash (index). So no flipped bit makes one chunk pass for another:
//!
//! | offset | size | field |
//! |---|---|---|
//! | 0 | 4 | `body_len`: all bytes after the header, at most [`MAX_BODY_BYTES`] ([`MAX_HELLO_BODY_BYTES`] before the hello is over) |
//! | 4 | 1 | `kind`, see [`kind`] |
//! | 5 | 1 | `flags`, see [`flags`]; unknown bits are ignored |
//! | 6 | 2 | 0 |
//! | 8 | 8 | `request`: chosen by the client, unique among its open requests of the connection; 0 where no request is meant |
//! | 16 | n | the body, by kind: see the tables of the hellos, requests and answers |
//! | 16 + n | 4 | CRC32C of all before |
//! | 20 + n | m | payload of data and index parts |
//!
//! The server speaks first: [`ServerHello`], answered by [`ClientHello`], answered by [`HelloOk`] or [`Refused`]. Then the
//! client sends requests ([`Request`]) and the server answers ([`Answer`]), in any order, many at a time.
//!
//! **Compatibility.** Both hellos name versions; the highest that both speak is used, and a build speaks its own
//! ([`VERSION`]) and the one before ([`OLDEST_VERSION`]). Within a version: a body without payload may grow at its end (readers ignore
//! what follows the fields they know), flags may be added, hello TLVs are skipped by their length, and a server answers a
//! frame of unknown kind with [`ErrorCode::Unsupported`] instead of closing. The bytes are pinned by the tests `golden_*`.

mod answer;
mod bytes;
mod code;
mod hello;
mod mount;
mod request;

pub use answer::{Answer, DataHead, ErrorFrame, IndexPartHead};
pub use bytes::{DecodeFrame, FrameHeader};
pub use code::ErrorCode;
pub use hello::{ClientHello, HelloOk, MAX_POD_UID_BYTES, Refused, ServerHello, Tlv, is_pod_uid, negotiate};
pub use request::{BatchItem, BatchRead, GetIndex, Read, Request};

use crate::block::CHUNK_BYTES;

/// First bytes of the server's hello, so that another protocol on the port is told from ours.
pub const MAGIC: [u8; 8] = *b"MILLRACE";

/// Newest protocol version of this build.
pub const VERSION: u16 = 1;

/// Oldest protocol version that this build still speaks: one before [`VERSION`], once there is one.
pub const OLDEST_VERSION: u16 = 1;

/// Length of a frame header, bytes.
pub const HEADER_BYTES: usize = 16;

/// Length of the CRC that ends header and body, bytes.
pub const CRC_BYTES: usize = 4;

/// Most chunks in one data frame: 1 MiB of payload, the largest FUSE request.
pub const MAX_FRAME_CHUNKS: u16 = 16;

/// Most payload in one data or index frame, bytes.
pub const MAX_PAYLOAD_BYTES: u32 = MAX_FRAME_CHUNKS as u32 * CHUNK_BYTES as u32;

/// Longest body of any frame, bytes: the payload and what precedes it; the largest membership also fits.
pub const MAX_BODY_BYTES: u32 = MAX_PAYLOAD_BYTES + 4096;

/// Longest body of a frame that carries no payload, bytes: the largest announcement (256 pods of at most 386 bytes) and the
/// largest membership (256 workers of at most 330 bytes) fit.
pub const MAX_PLAIN_BODY_BYTES: u32 = 128 * 1024;

/// Longest body of a hello frame, bytes: what a stranger can make us hold.
pub const MAX_HELLO_BODY_BYTES: u32 = 4096;

/// Most chunks in one read, or in all items of one batch read: 64 MiB, the largest block.
pub const MAX_READ_CHUNKS: u32 = 1024;

/// Most items of a batch read: as many as its chunks, since an item has at least one.
pub const MAX_BATCH_ITEMS: usize = 1024;

/// Longest error message, bytes; longer ones are cut.
pub const MAX_MESSAGE_BYTES: usize = 512;

/// Longest `host:port` of a worker, bytes: a DNS name of 253 and a port.
pub const MAX_ADDRESS_BYTES: usize = 259;

/// Item number in an error that ends the whole request.
pub const WHOLE_REQUEST: u32 = u32::MAX;

/// Kinds of frames.
pub mod kind {
    /// Server's first frame.
    pub const SERVER_HELLO: u8 = 0x01;
    /// Client's answer to it.
    pub const CLIENT_HELLO: u8 = 0x02;
    /// The connection may be used.
    pub const HELLO_OK: u8 = 0x03;
    /// The connection is closed after this frame.
    pub const REFUSED: u8 = 0x04;
    /// Chunks of one object.
    pub const READ: u8 = 0x10;
    /// Chunks of many objects.
    pub const BATCH_READ: u8 = 0x11;
    /// The request of this id is no longer wanted.
    pub const CANCEL: u8 = 0x12;
    /// Asks for the membership.
    pub const GET_MEMBERSHIP: u8 = 0x13;
    /// Asks for a part of an index file.
    pub const GET_INDEX: u8 = 0x14;
    /// Asks for a sign of life.
    pub const PING: u8 = 0x15;
    /// Asks how the dataset is to be mounted.
    pub const GET_MOUNT_SETTINGS: u8 = 0x16;
    /// Tells what the client mounts and for whom.
    pub const ANNOUNCE: u8 = 0x17;
    /// Chunks.
    pub const DATA: u8 = 0x80;
    /// The request waits for the origin.
    pub const PENDING: u8 = 0x81;
    /// A request or one of its items has ended without all its chunks.
    pub const ERROR: u8 = 0x82;
    /// The membership; with request 0 where nobody asked.
    pub const MEMBERSHIP: u8 = 0x83;
    /// A part of an index file.
    pub const INDEX_PART: u8 = 0x84;
    /// The sign of life; also answers an announcement.
    pub const PONG: u8 = 0x85;
    /// How the dataset is to be mounted.
    pub const MOUNT_SETTINGS: u8 = 0x86;
}

/// Bits of the flags byte.
pub mod flags {
    /// On a read: nobody waits for these bytes yet; foreground requests go first.
    pub const PREFETCH: u8 = 0x01;
    /// On a read: an earlier answer had a wrong CRC. The worker checks its copy before it sends, and drops it if bad.
    pub const VERIFY: u8 = 0x02;
    /// On an answer: the last frame of its request.
    pub const LAST: u8 = 0x80;
}

#[cfg(test)]
mod tests;
