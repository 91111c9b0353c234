//! How do client and server agree on a version and prove that they hold the same key?
//!
//! | frame | layout of the body |
//! |---|---|
//! | server hello | magic 8, oldest version `u16`, newest version `u16`, features `u64`, nonce 32 |
//! | client hello | version `u16`, features `u64`, nonce 32, proof 32, then TLVs |
//! | hello ok | features `u64`, proof 32, membership epoch `u64`, then TLVs |
//! | refused | code `u16`, message (`u16` length, UTF-8) |
//!
//! A TLV is a tag `u16`, a length `u16` and that many bytes; readers skip tags they do not know. Features are bits that
//! both must have set to use something; none exists yet. The proofs are HMACs over both nonces
//! ([`Key::prove`](crate::keys::Key::prove)): they show who opened the connection, and do not protect what follows on it.

use std::ops::RangeInclusive;

use super::bytes::{DecodeFrame, Reader, put_frame, put_text};
use super::{ErrorCode, FrameHeader, MAGIC, MAX_MESSAGE_BYTES, kind};
use crate::keys::KEY_BYTES;

/// Longest name of a client, bytes.
pub const MAX_CLIENT_NAME_BYTES: usize = 253;

/// Tags of the TLVs in a client hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Tlv {
    /// Who connects, for logs and status: node or worker name.
    Name = 1,
    /// The epoch of the membership that the client has.
    Epoch = 2,
}

/// Longest UID of a pod, bytes: those of Kubernetes have 36.
pub const MAX_POD_UID_BYTES: usize = 64;

/// Whether a text can be the UID of a pod. Such a one is the name of one folder, and no path.
pub fn is_pod_uid(text: &str) -> bool {
    let is_of_one = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    (1..=MAX_POD_UID_BYTES).contains(&text.len()) && text.bytes().all(is_of_one)
}

/// Tags of the TLVs in a hello ok.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
enum OkTlv {
    /// UID of the server's pod.
    PodUid = 1,
}

/// What the server says first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerHello {
    /// Oldest protocol version that the server speaks.
    pub oldest: u16,
    /// Newest protocol version that the server speaks.
    pub newest: u16,
    /// Features that the server has.
    pub features: u64,
    /// Fresh random bytes, so that no proof can be played back.
    pub nonce: [u8; KEY_BYTES],
}

/// What the client answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientHello {
    /// The version chosen, see [`negotiate`].
    pub version: u16,
    /// Features of both.
    pub features: u64,
    /// Fresh random bytes of the client.
    pub nonce: [u8; KEY_BYTES],
    /// Proof of the key for [`Side::Client`](crate::keys::Side::Client).
    pub proof: [u8; KEY_BYTES],
    /// Who connects; empty where not said. At most [`MAX_CLIENT_NAME_BYTES`].
    pub name: String,
    /// The membership epoch that the client has; 0 where none.
    pub epoch: u64,
}

/// The server accepts, and proves the key in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HelloOk {
    /// Features in use.
    pub features: u64,
    /// Proof of the key for [`Side::Server`](crate::keys::Side::Server).
    pub proof: [u8; KEY_BYTES],
    /// The membership epoch that the server has; 0 where none.
    pub epoch: u64,
    /// UID of the server's pod, by which its node finds the pod's volumes; empty where it is none. At most
    /// [`MAX_POD_UID_BYTES`].
    pub pod_uid: String,
}

/// The server does not accept, and closes the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// Why.
    pub code: ErrorCode,
    /// For the log of the client.
    pub message: String,
}

/// The newest version that both ranges have.
pub fn negotiate(ours: RangeInclusive<u16>, theirs: RangeInclusive<u16>) -> Option<u16> {
    let version = (*ours.end()).min(*theirs.end());
    (ours.contains(&version) && theirs.contains(&version)).then_some(version)
}

impl ServerHello {
    /// Appends the whole frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, kind::SERVER_HELLO, 0, 0, |out| {
            out.extend_from_slice(&MAGIC);
            out.extend_from_slice(&self.oldest.to_le_bytes());
            out.extend_from_slice(&self.newest.to_le_bytes());
            out.extend_from_slice(&self.features.to_le_bytes());
            out.extend_from_slice(&self.nonce);
        });
    }

    /// Reads a body.
    ///
    /// # Errors
    /// [`DecodeFrame::NotOurProtocol`], or another where a field is cut or contradicts another.
    pub fn decode(header: &FrameHeader, body: &[u8]) -> Result<Self, DecodeFrame> {
        // The magic before the CRC: another protocol is to be called so.
        if let Some(magic) = body.first_chunk().filter(|magic| **magic != MAGIC) {
            return Err(DecodeFrame::NotOurProtocol { magic: *magic });
        }
        let mut reader = Reader::new(kind::SERVER_HELLO, header.check(body)?);
        reader.take(MAGIC.len(), "magic")?;
        let (oldest, newest) = (reader.u16("oldest")?, reader.u16("newest")?);
        if oldest > newest {
            return Err(reader.out_of_range("oldest", oldest.into()));
        }
        Ok(Self { oldest, newest, features: reader.u64("features")?, nonce: reader.array("nonce")? })
    }
}

impl ClientHello {
    /// Appends the whole frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, kind::CLIENT_HELLO, 0, 0, |out| {
            out.extend_from_slice(&self.version.to_le_bytes());
            out.extend_from_slice(&self.features.to_le_bytes());
            out.extend_from_slice(&self.nonce);
            out.extend_from_slice(&self.proof);
            out.extend_from_slice(&(Tlv::Name as u16).to_le_bytes());
            put_text(out, &self.name, MAX_CLIENT_NAME_BYTES);
            out.extend_from_slice(&(Tlv::Epoch as u16).to_le_bytes());
            out.extend_from_slice(&8u16.to_le_bytes());
            out.extend_from_slice(&self.epoch.to_le_bytes());
        });
    }

    /// Reads a body; unknown TLVs are skipped.
    ///
    /// # Errors
    /// Where a field is cut, too long or not text.
    pub fn decode(header: &FrameHeader, body: &[u8]) -> Result<Self, DecodeFrame> {
        let mut reader = Reader::new(kind::CLIENT_HELLO, header.check(body)?);
        let mut hello = Self {
            version: reader.u16("version")?,
            features: reader.u64("features")?,
            nonce: reader.array("nonce")?,
            proof: reader.array("proof")?,
            name: String::new(),
            epoch: 0,
        };
        while !reader.is_empty() {
            let tag = reader.u16("tag")?;
            if tag == Tlv::Name as u16 {
                hello.name = reader.text(MAX_CLIENT_NAME_BYTES, "name")?.to_owned();
                continue;
            }
            let len = reader.u16("tlv length")?;
            let value = reader.take(len.into(), "tlv")?;
            if tag == Tlv::Epoch as u16 {
                hello.epoch = Reader::new(kind::CLIENT_HELLO, value).u64("epoch")?;
            }
        }
        Ok(hello)
    }
}

impl HelloOk {
    /// Appends the whole frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, kind::HELLO_OK, 0, 0, |out| {
            out.extend_from_slice(&self.features.to_le_bytes());
            out.extend_from_slice(&self.proof);
            out.extend_from_slice(&self.epoch.to_le_bytes());
            if !self.pod_uid.is_empty() {
                out.extend_from_slice(&(OkTlv::PodUid as u16).to_le_bytes());
                put_text(out, &self.pod_uid, MAX_POD_UID_BYTES);
            }
        });
    }

    /// Reads a body; unknown TLVs are skipped.
    ///
    /// # Errors
    /// Where a field is cut, too long or not text.
    pub fn decode(header: &FrameHeader, body: &[u8]) -> Result<Self, DecodeFrame> {
        let mut reader = Reader::new(kind::HELLO_OK, header.check(body)?);
        let mut ok = Self {
            features: reader.u64("features")?,
            proof: reader.array("proof")?,
            epoch: reader.u64("epoch")?,
            pod_uid: String::new(),
        };
        while !reader.is_empty() {
            let tag = reader.u16("tag")?;
            if tag == OkTlv::PodUid as u16 {
                ok.pod_uid = reader.text(MAX_POD_UID_BYTES, "pod uid")?.to_owned();
                continue;
            }
            let len = reader.u16("tlv length")?;
            reader.take(len.into(), "tlv")?;
        }
        Ok(ok)
    }
}

impl Refused {
    /// Appends the whole frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_frame(out, kind::REFUSED, 0, 0, |out| {
            out.extend_from_slice(&self.code.to_wire().to_le_bytes());
            put_text(out, &self.message, MAX_MESSAGE_BYTES);
        });
    }

    /// Reads a body.
    ///
    /// # Errors
    /// Where a field is cut, too long or not text.
    pub fn decode(header: &FrameHeader, body: &[u8]) -> Result<Self, DecodeFrame> {
        let mut reader = Reader::new(kind::REFUSED, header.check(body)?);
        let code = ErrorCode::from_wire(reader.u16("code")?);
        Ok(Self { code, message: reader.text(MAX_MESSAGE_BYTES, "message")?.to_owned() })
    }
}
