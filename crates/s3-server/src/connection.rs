//! What do the answers on one connection share: how it ends, and how fast it may send?

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::faults::pace::Stream;

/// Decides how a connection will end; shared with the answers on it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ending {
    reset: Arc<AtomicBool>,
}

impl Ending {
    /// When the connection is dropped, the peer gets a reset.
    pub fn reset(&self) {
        self.reset.store(true, Ordering::Relaxed);
    }

    fn is_reset(&self) -> bool {
        self.reset.load(Ordering::Relaxed)
    }
}

/// What the answers on one connection share.
#[derive(Debug, Clone, Default)]
pub(crate) struct Line {
    pub ending: Ending,
    pub stream: Stream,
}

/// A TCP stream that ends as its `Ending` says.
pub(crate) struct Connection {
    stream: TcpStream,
    ending: Ending,
}

impl Connection {
    pub fn new(stream: TcpStream, ending: Ending) -> Self {
        Self { stream, ending }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.ending.is_reset() {
            // Closing with a linger time of zero sends RST in place of FIN. A failure means that the peer is gone.
            let _ = self.stream.set_zero_linger();
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.ending.is_reset() {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
