//! How do frames get into the socket?
//!
//! Bytes of store files go by sendfile, the frame's head before them with `MSG_MORE` so that both share segments. sendfile
//! reads the file on the calling thread: where the pages are not in memory (asked with `RWF_NOWAIT`, two system calls of
//! under a microsecond) they are first brought in on a blocking thread. File systems that cannot tell are taken to be in memory: tmpfs.
//!
//! What a file cannot give (it was cut, the disk fails) is sent as zeros: the frame's length is already promised, the
//! receiver's CRC refuses the bytes, and it asks again with the verify flag, which makes the worker drop and refetch.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use rustix::io::{Errno, ReadWriteFlags};
use rustix::net::SendFlags;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::{Duration, timeout};
use tracing::warn;

use super::outgoing::{Outgoing, Payload, Work};
use crate::counter::ServerCounters;

/// Copy unit where sendfile is not possible, and for bringing pages in.
const COPY_BYTES: usize = 128 << 10;

/// Most slices in one vectored write: a frame's head and its chunks.
const MAX_SLICES: usize = 17;

/// Sends what is queued until the connection fails or is aborted.
pub(super) async fn write_frames(
    stream: &TcpStream,
    outgoing: &Outgoing,
    epoch: impl Fn() -> u64,
    stall: Duration,
    counters: &ServerCounters,
) -> io::Error {
    let mut prefix = Vec::with_capacity(4096);
    loop {
        let work = outgoing.next(&epoch, &mut prefix).await;
        let sent = match timeout(stall, write_frame(stream, &prefix, work, counters)).await {
            Ok(sent) => sent,
            Err(_) => {
                counters.stalled.add(1);
                Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes no bytes"))
            }
        };
        if let Err(error) = sent {
            return error;
        }
    }
}

async fn write_frame(
    stream: &TcpStream,
    prefix: &[u8],
    work: Work,
    counters: &ServerCounters,
) -> io::Result<()> {
    match work {
        Work::Plain => write_all(stream, prefix, SendFlags::empty()).await,
        Work::Payload(Payload::Memory(chunks)) => {
            counters.memory_bytes.add(chunks.iter().map(|chunk| chunk.len() as u64).sum());
            write_vectored(stream, prefix, chunks).await
        }
        Work::Payload(Payload::File { len: 0, .. }) => write_all(stream, prefix, SendFlags::empty()).await,
        Work::Payload(Payload::File { file, offset, len }) => {
            counters.file_bytes.add(len);
            if !is_in_memory(&file, offset, len) {
                counters.paged_in.add(1);
                let file = Arc::clone(&file);
                // A read that fails here fails again below, where it is dealt with.
                let _ = tokio::task::spawn_blocking(move || bring_in(&file, offset, len)).await;
            }
            write_all(stream, prefix, SendFlags::MORE).await?;
            send_file(stream, &file, offset, len, counters).await
        }
    }
}

async fn write_all(stream: &TcpStream, mut bytes: &[u8], flags: SendFlags) -> io::Result<()> {
    while !bytes.is_empty() {
        let send = || retry_interrupted(|| rustix::net::send(stream, bytes, flags | SendFlags::NOSIGNAL));
        let sent = stream.async_io(Interest::WRITABLE, send).await?;
        bytes = &bytes[sent..];
    }
    Ok(())
}

async fn write_vectored(stream: &TcpStream, prefix: &[u8], mut chunks: VecDeque<Bytes>) -> io::Result<()> {
    let mut prefix = prefix;
    loop {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let all = std::iter::once(prefix).chain(chunks.iter().map(|chunk| &chunk[..]));
        let all = all.filter(|slice| !slice.is_empty());
        let count = slices.iter_mut().zip(all).map(|(slot, slice)| *slot = IoSlice::new(slice)).count();
        if count == 0 {
            return Ok(());
        }
        let write = || retry_interrupted(|| rustix::io::writev(stream, &slices[..count]));
        let mut sent = stream.async_io(Interest::WRITABLE, write).await?;
        let of_prefix = sent.min(prefix.len());
        (prefix, sent) = (&prefix[of_prefix..], sent - of_prefix);
        while let Some(first) = chunks.front_mut() {
            let of_chunk = sent.min(first.len());
            first.advance(of_chunk);
            sent -= of_chunk;
            if !first.is_empty() {
                break;
            }
            chunks.pop_front();
        }
    }
}

async fn send_file(
    stream: &TcpStream,
    file: &File,
    offset: u64,
    len: u64,
    counters: &ServerCounters,
) -> io::Result<()> {
    let (mut offset, end) = (offset, offset + len);
    while offset < end {
        let send = || {
            let mut position = offset;
            retry_interrupted(|| {
                rustix::fs::sendfile(stream, file, Some(&mut position), (end - offset) as usize)
            })
        };
        match stream.async_io(Interest::WRITABLE, send).await {
            Ok(0) => return send_zeros(stream, end - offset, "the file is too short", counters).await,
            Ok(sent) => offset += sent as u64,
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::INVAL | Errno::NOSYS)) => {
                return copy_file(stream, file, offset..end, counters).await;
            }
            Err(error) if is_of_file(&error) => {
                let reason = error.to_string();
                return send_zeros(stream, end - offset, &reason, counters).await;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Sends a part of a file that sendfile refuses, over a copy.
async fn copy_file(
    stream: &TcpStream,
    file: &File,
    mut range: std::ops::Range<u64>,
    counters: &ServerCounters,
) -> io::Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    while range.start < range.end {
        let wanted = COPY_BYTES.min((range.end - range.start) as usize);
        // The pages are in memory or were just brought in: a copy of 128 KiB, not a disk read.
        match file.read_at(&mut buffer[..wanted], range.start) {
            Ok(0) => {
                return send_zeros(stream, range.end - range.start, "the file is too short", counters).await;
            }
            Ok(read) => {
                write_all(stream, &buffer[..read], SendFlags::empty()).await?;
                range.start += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                let reason = error.to_string();
                return send_zeros(stream, range.end - range.start, &reason, counters).await;
            }
        }
    }
    Ok(())
}

async fn send_zeros(stream: &TcpStream, len: u64, reason: &str, counters: &ServerCounters) -> io::Result<()> {
    counters.unreadable.add(1);
    warn!(len, reason, "a cached range cannot be read; the client will refuse it and ask again");
    let zeros = [0; 4096];
    let mut left = len as usize;
    while left > 0 {
        let part = left.min(zeros.len());
        write_all(stream, &zeros[..part], SendFlags::MORE).await?;
        left -= part;
    }
    Ok(())
}

/// Whether an error of sendfile is the file's and not the socket's.
fn is_of_file(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::IO | Errno::OVERFLOW | Errno::BADF | Errno::ISDIR | Errno::STALE | Errno::NXIO)
    )
}

fn is_in_memory(file: &File, offset: u64, len: u64) -> bool {
    let probe = |at: u64| {
        let mut byte = [0];
        let result = rustix::io::preadv2(file, &mut [IoSliceMut::new(&mut byte)], at, ReadWriteFlags::NOWAIT);
        !matches!(result, Err(Errno::AGAIN))
    };
    probe(offset + len - 1) && probe(offset)
}

fn bring_in(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let mut buffer = vec![0; COPY_BYTES];
    let (mut offset, end) = (offset, offset + len);
    while offset < end {
        let wanted = COPY_BYTES.min((end - offset) as usize);
        match file.read_at(&mut buffer[..wanted], offset)? {
            0 => break,
            read => offset += read as u64,
        }
    }
    Ok(())
}

fn retry_interrupted<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result.map_err(Into::into),
        }
    }
}
