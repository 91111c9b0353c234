//! How does a client get through that names a socket's path as the host it calls?
//!
//! Kubelet, and whatever else dials a path with grpc-go, sends the path as `:authority`, with `%2F` for its slashes. The
//! HTTP/2 implementation below tonic refuses a request with a host like that (PROTOCOL_ERROR), without a way to say
//! otherwise. So the one header is replaced on its way in: frames are cut out of the stream (RFC 9113, section 4.1), and in
//! those that hold headers the literal of `:authority` gets another value (RFC 7541, section 6.2). What the client refers to
//! later by number is then the replaced one, as both sides number alike.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// What each HTTP/2 client sends first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Length, type, flags and stream of a frame.
const FRAME_HEAD_BYTES: usize = 9;
/// The type of a frame with headers.
const HEADERS: u8 = 1;
/// Flag of a frame: a length byte in front, that many bytes behind.
const PADDED: u8 = 0x8;
/// Flag of a frame: five bytes in front.
const PRIORITY: u8 = 0x20;
/// More than the 16 KiB that a client may send unasked: behind a longer one the stream passes as it is.
const MAX_FRAME_BYTES: usize = 1 << 20;
/// How much is read at once.
const READ_BYTES: usize = 16 << 10;
/// Number of `:authority` in the table of headers that all know.
const AUTHORITY: usize = 1;
/// What stands for any socket, with its length in front.
const REPLACEMENT: &[u8] = b"\x09localhost";

/// A connection whose requests name a host that is none.
#[derive(Debug)]
pub struct PlainAuthority<S> {
    stream: S,
    /// Read, and not yet a whole frame.
    raw: Vec<u8>,
    /// For the server.
    ready: Vec<u8>,
    /// How much of `ready` it has.
    taken: usize,
    is_preface_over: bool,
    /// Something is not as expected: all passes, and the server judges.
    is_passing: bool,
}

impl<S> PlainAuthority<S> {
    /// Over a connection that a client has just made.
    pub fn new(stream: S) -> Self {
        Self {
            stream,
            raw: Vec::new(),
            ready: Vec::new(),
            taken: 0,
            is_preface_over: false,
            is_passing: false,
        }
    }

    /// Moves what is whole from `raw` to `ready`.
    fn advance(&mut self) {
        if !self.is_preface_over && !self.is_passing && self.raw.len() >= PREFACE.len() {
            if self.raw.starts_with(PREFACE) {
                self.ready.extend(self.raw.drain(..PREFACE.len()));
                self.is_preface_over = true;
            } else {
                self.is_passing = true;
            }
        }
        while self.is_preface_over && !self.is_passing {
            let [a, b, c, kind, flags, ..] = self.raw[..] else { return };
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            if length > MAX_FRAME_BYTES {
                self.is_passing = true;
            } else if self.raw.len() < FRAME_HEAD_BYTES + length {
                return;
            } else {
                let frame: Vec<u8> = self.raw.drain(..FRAME_HEAD_BYTES + length).collect();
                let changed = if kind == HEADERS { headers(&frame, flags) } else { None };
                self.ready.extend(changed.unwrap_or(frame));
            }
        }
        if self.is_passing {
            self.ready.append(&mut self.raw);
        }
    }
}

/// A frame of headers with the other authority; none where it cannot be read.
fn headers(frame: &[u8], flags: u8) -> Option<Vec<u8>> {
    let (head, payload) = frame.split_at_checked(FRAME_HEAD_BYTES)?;
    let (padding, in_front) = if flags & PADDED != 0 { (usize::from(*payload.first()?), 1) } else { (0, 0) };
    let in_front = in_front + if flags & PRIORITY != 0 { 5 } else { 0 };
    let block = payload.get(in_front..payload.len().checked_sub(padding)?)?;
    let block = replace(block)?;
    let payload = [&payload[..in_front], &block, &payload[payload.len() - padding..]].concat();
    let length = u32::try_from(payload.len()).ok()?.to_be_bytes();
    Some([&length[1..], &head[3..], &payload].concat())
}

/// A block of headers with the other authority; none where it cannot be read.
fn replace(block: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(block.len());
    let mut at = 0;
    while let Some(first) = block.get(at) {
        let start = at;
        // Bits of the number in the first byte, by what the byte begins with; only literals have a value behind it.
        let (bits, is_literal) = match *first {
            0x80.. => (7, false),
            0x40..=0x7f => (6, true),
            0x20..=0x3f => (5, false),
            0x00..=0x1f => (4, true),
        };
        let index = number(block, &mut at, bits)?;
        if is_literal && index == 0 {
            skip_text(block, &mut at)?;
        }
        out.extend_from_slice(&block[start..at]);
        if is_literal {
            let value = at;
            skip_text(block, &mut at)?;
            out.extend_from_slice(if index == AUTHORITY { REPLACEMENT } else { &block[value..at] });
        }
    }
    Some(out)
}

/// Reads a number whose first part is the low `bits` of the byte at `at` (RFC 7541, section 5.1).
fn number(block: &[u8], at: &mut usize, bits: u32) -> Option<usize> {
    let most = (1usize << bits) - 1;
    let mut value = usize::from(*block.get(*at)?) & most;
    *at += 1;
    if value < most {
        return Some(value);
    }
    // Four further bytes are more than any header of this length needs.
    for shift in [0, 7, 14, 21] {
        let byte = usize::from(*block.get(*at)?);
        *at += 1;
        value += (byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Steps over a length and so many bytes.
fn skip_text(block: &[u8], at: &mut usize) -> Option<()> {
    let length = number(block, at, 7)?;
    *at = at.checked_add(length).filter(|end| *end <= block.len())?;
    Some(())
}

impl<S: AsyncRead + Unpin> AsyncRead for PlainAuthority<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if this.taken < this.ready.len() {
                let count = (this.ready.len() - this.taken).min(buffer.remaining());
                buffer.put_slice(&this.ready[this.taken..this.taken + count]);
                this.taken += count;
                return Poll::Ready(Ok(()));
            }
            this.ready.clear();
            this.taken = 0;
            let mut bytes = [0; READ_BYTES];
            let mut read = ReadBuf::new(&mut bytes);
            std::task::ready!(Pin::new(&mut this.stream).poll_read(context, &mut read))?;
            if read.filled().is_empty() {
                if this.raw.is_empty() {
                    return Poll::Ready(Ok(()));
                }
                // The client has gone in the middle of a frame.
                this.is_passing = true;
            }
            this.raw.extend_from_slice(read.filled());
            this.advance();
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PlainAuthority<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

impl<S> Connected for PlainAuthority<S> {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    /// `:method: POST`, `:authority: <value>` kept in the table, `x: y` not kept.
    fn block(authority: &[u8]) -> Vec<u8> {
        let length = u8::try_from(authority.len()).unwrap();
        [&[0x83, 0x41, length], authority, &[0x00, 1, b'x', 1, b'y']].concat()
    }

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    /// A stream that gives its bytes in pieces.
    struct Pieces(std::collections::VecDeque<Vec<u8>>);

    impl AsyncRead for Pieces {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            buffer.put_slice(&self.0.pop_front().unwrap_or_default());
            Poll::Ready(Ok(()))
        }
    }

    async fn through(input: &[u8], piece: usize) -> Vec<u8> {
        let pieces = Pieces(input.chunks(piece).map(<[u8]>::to_vec).collect());
        let mut output = Vec::new();
        PlainAuthority::new(pieces).read_to_end(&mut output).await.unwrap();
        output
    }

    #[tokio::test]
    async fn a_path_as_host_is_replaced_however_it_arrives() {
        let path = b"%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fcsi.millrace.dev-reg.sock";
        let data = frame(0, 1, b"\x41\x01z");
        let input = [PREFACE, &frame(4, 0, b""), &frame(HEADERS, 4, &block(path)), &data].concat();
        let wanted = [PREFACE, &frame(4, 0, b""), &frame(HEADERS, 4, &block(b"localhost")), &data].concat();
        for piece in [1, 7, 1000] {
            assert_eq!(through(&input, piece).await, wanted);
        }
    }

    #[tokio::test]
    async fn padding_and_priority_stay_where_they_are() {
        let payload = |authority: &[u8]| [&[2, 0, 0, 0, 0, 16], &block(authority)[..], &[0, 0]].concat();
        let input = [PREFACE, &frame(HEADERS, PADDED | PRIORITY, &payload(b"%2Fa"))].concat();
        let wanted = [PREFACE, &frame(HEADERS, PADDED | PRIORITY, &payload(b"localhost"))].concat();
        assert_eq!(through(&input, 1000).await, wanted);
    }

    #[tokio::test]
    async fn what_is_no_http2_passes_as_it_is() {
        let input = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
        assert_eq!(through(input, 5).await, input);
        let broken = [PREFACE, &frame(HEADERS, 4, &[0x41, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff])].concat();
        assert_eq!(through(&broken, 1000).await, broken);
        let cut = &[PREFACE, &frame(HEADERS, 4, &block(b"%2Fa"))].concat()[..30];
        assert_eq!(through(cut, 1000).await, cut);
    }
}
