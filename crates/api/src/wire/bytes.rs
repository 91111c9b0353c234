//! How are fields read from and written to a frame without trusting the sender?

use crc_fast::{CrcAlgorithm, Digest};

use super::{CRC_BYTES, HEADER_BYTES, MAX_BODY_BYTES};
use crate::crc::crc32c;

/// Says why bytes are not a frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeFrame {
    /// The body ends inside a field.
    #[error("frame of kind {kind:#04x} ends inside {field}")]
    Short {
        /// Kind of the frame.
        kind: u8,
        /// The field that is cut.
        field: &'static str,
    },
    /// The header announces a body that no frame of this kind has.
    #[error("frame of kind {kind:#04x} announces {len} bytes, at most {max} are allowed")]
    TooLong {
        /// Kind of the frame.
        kind: u8,
        /// Announced length of the body, bytes.
        len: u32,
        /// The bound, bytes.
        max: u32,
    },
    /// A field has a value that the protocol does not allow.
    #[error("frame of kind {kind:#04x} has {field} = {value}, which is out of range")]
    OutOfRange {
        /// Kind of the frame.
        kind: u8,
        /// The wrong field.
        field: &'static str,
        /// Its value, as a number or a length.
        value: u64,
    },
    /// A text is not UTF-8.
    #[error("frame of kind {kind:#04x} has a {field} that is not utf-8")]
    NotText {
        /// Kind of the frame.
        kind: u8,
        /// The wrong field.
        field: &'static str,
    },
    /// Bits were flipped on the way: nothing that follows on the connection can be trusted.
    #[error("frame of kind {kind:#04x} does not fit its CRC")]
    BadCrc {
        /// Kind of the frame, as it came.
        kind: u8,
    },
    /// The peer speaks another protocol.
    #[error("the peer does not speak this protocol: its first bytes are {magic:02x?}")]
    NotOurProtocol {
        /// What stood where the magic should.
        magic: [u8; 8],
    },
    /// The kind is not one that may come here.
    #[error("frame of kind {kind:#04x} is not known here")]
    UnknownKind {
        /// Kind of the frame.
        kind: u8,
    },
}

/// The first 16 bytes of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes that follow the header.
    pub body_len: u32,
    /// See [`kind`](super::kind).
    pub kind: u8,
    /// See [`super::flags`].
    pub flags: u8,
    /// Which request it belongs to.
    pub request: u64,
}

impl FrameHeader {
    /// The header's bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.body_len.to_le_bytes());
        bytes[4] = self.kind;
        bytes[5] = self.flags;
        bytes[8..].copy_from_slice(&self.request.to_le_bytes());
        bytes
    }

    /// Reads a header; `max_body` bounds what the body may announce.
    ///
    /// # Errors
    /// [`DecodeFrame::Short`] with fewer than 16 bytes, [`DecodeFrame::TooLong`] past the bound.
    pub fn decode(bytes: &[u8], max_body: u32) -> Result<Self, DecodeFrame> {
        let mut reader = Reader::new(bytes.get(4).copied().unwrap_or(0), bytes);
        let body_len = reader.u32("body_len")?;
        let kind = reader.u8("kind")?;
        let flags = reader.u8("flags")?;
        reader.u16("reserved")?;
        let request = reader.u64("request")?;
        let max = max_body.min(MAX_BODY_BYTES);
        if body_len > max {
            return Err(DecodeFrame::TooLong { kind, len: body_len, max });
        }
        Ok(Self { body_len, kind, flags, request })
    }

    /// Compares what follows the header, up to and with the frame's CRC, with that CRC; answers it without the CRC.
    pub(super) fn check<'a>(&self, covered: &'a [u8]) -> Result<&'a [u8], DecodeFrame> {
        let short = DecodeFrame::Short { kind: self.kind, field: "crc" };
        let (body, crc) = covered.split_last_chunk::<CRC_BYTES>().ok_or(short)?;
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        digest.update(&self.encode());
        digest.update(body);
        if digest.finalize() == u64::from(u32::from_le_bytes(*crc)) {
            Ok(body)
        } else {
            Err(DecodeFrame::BadCrc { kind: self.kind })
        }
    }
}

/// Takes fields off the front of a body.
pub(super) struct Reader<'a> {
    kind: u8,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(kind: u8, body: &'a [u8]) -> Self {
        Self { kind, rest: body }
    }

    pub(super) fn take(&mut self, len: usize, field: &'static str) -> Result<&'a [u8], DecodeFrame> {
        let (taken, rest) =
            self.rest.split_at_checked(len).ok_or(DecodeFrame::Short { kind: self.kind, field })?;
        self.rest = rest;
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], DecodeFrame> {
        let (taken, rest) =
            self.rest.split_first_chunk().ok_or(DecodeFrame::Short { kind: self.kind, field })?;
        self.rest = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeFrame> {
        self.array(field).map(u8::from_le_bytes)
    }

    pub(super) fn u16(&mut self, field: &'static str) -> Result<u16, DecodeFrame> {
        self.array(field).map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeFrame> {
        self.array(field).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, field: &'static str) -> Result<u64, DecodeFrame> {
        self.array(field).map(u64::from_le_bytes)
    }

    /// A text behind its length (`u16`), of at most `max` bytes.
    pub(super) fn text(&mut self, max: usize, field: &'static str) -> Result<&'a str, DecodeFrame> {
        let len = usize::from(self.u16(field)?);
        if len > max {
            return Err(self.out_of_range(field, len as u64));
        }
        let bytes = self.take(len, field)?;
        std::str::from_utf8(bytes).map_err(|_| DecodeFrame::NotText { kind: self.kind, field })
    }

    pub(super) fn out_of_range(&self, field: &'static str, value: u64) -> DecodeFrame {
        DecodeFrame::OutOfRange { kind: self.kind, field, value }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }
}

/// Appends a whole frame to `out`: a header, then what `body` writes, then the CRC.
pub(super) fn put_frame(
    out: &mut Vec<u8>,
    kind: u8,
    flags: u8,
    request: u64,
    body: impl FnOnce(&mut Vec<u8>),
) {
    put_head(out, kind, flags, request, 0, body);
}

/// Appends the head of a frame whose payload follows: a header, then what `head` writes, then the CRC.
pub(super) fn put_head(
    out: &mut Vec<u8>,
    kind: u8,
    flags: u8,
    request: u64,
    payload_len: u32,
    head: impl FnOnce(&mut Vec<u8>),
) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    head(out);
    let body_len = out.len() - start - HEADER_BYTES + CRC_BYTES + payload_len as usize;
    assert!(body_len <= MAX_BODY_BYTES as usize, "a frame of kind {kind:#04x} with {body_len} bytes");
    let header = FrameHeader { body_len: body_len as u32, kind, flags, request };
    out[start..start + HEADER_BYTES].copy_from_slice(&header.encode());
    let crc = crc32c(&out[start..]);
    out.extend_from_slice(&crc.to_le_bytes());
}

/// Appends a text behind its length, cut to at most `max` bytes at a character.
pub(super) fn put_text(out: &mut Vec<u8>, text: &str, max: usize) {
    let text = &text[..text.floor_char_boundary(max)];
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}
