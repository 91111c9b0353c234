//! Which method of the file system serves a message, and how does its result become an answer?

use std::sync::Arc;

use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi;
use crate::channel::Channel;
use crate::directory::{DirBuffer, DirPlusBuffer};
use crate::filesystem::{Filesystem, ReadRequest};
use crate::metrics::count;
use crate::node::NodeId;
use crate::reply::{Pending, ReadReply};
use crate::request::{Caller, Change, Operation, ParseError, Query, Request, Silent, parse};

/// What follows from a message for the thread that took it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Next {
    /// Take the next message.
    GoOn,
    /// The kernel said DESTROY.
    End,
}

/// Serves one message.
pub(crate) fn dispatch<F: Filesystem>(channel: &Arc<Channel>, file_system: &F, message: &[u8]) -> Next {
    let Request { caller, node, number, operation } = match parse(message) {
        Ok(request) => request,
        Err(error) => {
            malformed(channel, error);
            return Next::GoOn;
        }
    };
    channel.metrics.request(number);
    if caller.unique & abi::UNIQUE_RESEND != 0 {
        count(&channel.metrics.resent);
    }
    if let Operation::Silent(silent) = operation {
        serve_silent(channel, file_system, &caller, node, silent);
        return Next::GoOn;
    }
    let next = match operation {
        Operation::Query(Query::Destroy) => Next::End,
        Operation::Query(_) | Operation::Change(_) | Operation::Silent(_) => Next::GoOn,
        Operation::Other(_) | Operation::Unknown => Next::GoOn,
    };
    if let Some(pending) = Pending::take(channel, caller.unique) {
        match operation {
            Operation::Query(query) => serve_query(file_system, &caller, node, query, pending),
            Operation::Change(change) => serve_change(file_system, &caller, node, change, pending),
            Operation::Other(opcode) if opcode.is_write() => pending.error(Errno::ROFS),
            Operation::Other(_) | Operation::Unknown | Operation::Silent(_) => pending.error(Errno::NOSYS),
        }
    }
    next
}

/// Answers EIO to a message that is not understood, where its id is known.
fn malformed(channel: &Channel, error: ParseError) {
    count(&channel.metrics.malformed);
    tracing::error!(error = %error, "message from the kernel is malformed");
    match error {
        ParseError::ShortHeader { .. } => {}
        ParseError::Length { unique, .. } | ParseError::Body { unique, .. } => {
            channel.answer(unique, Some(Errno::IO), &[]);
        }
    }
}

fn serve_silent<F: Filesystem>(
    channel: &Channel,
    file_system: &F,
    caller: &Caller,
    node: NodeId,
    silent: Silent,
) {
    match silent {
        Silent::Forget { lookups } => file_system.forget(node, lookups),
        Silent::BatchForget(forgets) => {
            forgets.into_iter().for_each(|(node, lookups)| file_system.forget(node, lookups));
        }
        Silent::Interrupt { unique } => match channel.in_flight.find(unique) {
            Some(interruption) => {
                count(&channel.metrics.interrupted);
                interruption.interrupt();
            }
            // Another thread has read the request but not entered it yet, or has just answered it. EAGAIN has the
            // kernel send the INTERRUPT again while it knows the request; else it says NOENT, and that is that.
            None => {
                let again = -Errno::AGAIN.raw_os_error();
                if let Err(errno) = channel.send(caller.unique, again, &[]) {
                    tracing::trace!(caller.unique, error = %errno, "interrupt without a request");
                }
            }
        },
    }
}

fn serve_query<F: Filesystem>(
    file_system: &F,
    caller: &Caller,
    node: NodeId,
    query: Query<'_>,
    pending: Pending,
) {
    match query {
        Query::Lookup { name } => {
            pending.value(file_system.lookup(caller, node, name).map(|found| found.reply()));
        }
        Query::Getattr { fh } => {
            let attr = file_system.getattr(caller, node, fh);
            pending.value(attr.map(|(attr, ttl)| attr.reply(ttl)));
        }
        Query::Open { flags } => {
            pending.value(file_system.open(caller, node, flags).map(|opened| opened.reply()));
        }
        Query::Read { fh, offset, size, flags } => {
            let read = ReadRequest { node, fh, offset, size, flags };
            file_system.read(caller, read, ReadReply::new(pending, size));
        }
        Query::Release { fh } => {
            file_system.release(node, fh);
            pending.done(Ok(()));
        }
        Query::Fsync { fh, data_only } => pending.done(file_system.fsync(node, fh, data_only)),
        Query::Opendir => {
            pending.value(file_system.opendir(caller, node).map(|opened| opened.reply()));
        }
        Query::Readdir { fh, offset, size } => {
            let mut buffer = DirBuffer::new(size);
            let listed = file_system.readdir(caller, node, fh, offset, &mut buffer);
            pending.bytes(listed.map(|()| buffer.bytes()));
        }
        Query::Readdirplus { fh, offset, size } => {
            let mut buffer = DirPlusBuffer::new(size);
            match file_system.readdirplus(caller, node, fh, offset, &mut buffer) {
                // The kernel would take ENOSYS for the listing's own error.
                Err(Errno::NOSYS) => {
                    let mut buffer = DirBuffer::new_plus(size);
                    let listed = file_system.readdir(caller, node, fh, offset, &mut buffer);
                    pending.bytes(listed.map(|()| buffer.bytes()));
                }
                listed => pending.bytes(listed.map(|()| buffer.bytes())),
            }
        }
        Query::Releasedir { fh } => {
            file_system.releasedir(node, fh);
            pending.done(Ok(()));
        }
        Query::Statfs => {
            pending.value(file_system.statfs(caller, node).map(|statfs| statfs.reply()));
        }
        Query::Access { mask } => pending.done(file_system.access(caller, node, mask)),
        Query::Getxattr { name, size } => attribute(pending, size, file_system.getxattr(caller, node, name)),
        Query::Listxattr { size } => {
            let names = file_system.listxattr(caller, node);
            attribute(pending, size, names.map(|names| ended_by_zeros(&names)));
        }
        Query::Lseek { fh, offset, whence } => {
            let found = file_system.lseek(node, fh, offset, whence);
            pending.value(found.map(|offset| abi::LseekOut { offset }));
        }
        Query::Destroy => pending.done(Ok(())),
        // A second INIT, on a connection that has had its own.
        Query::Init(_) => pending.error(Errno::IO),
    }
}

fn serve_change<F: Filesystem>(
    file_system: &F,
    caller: &Caller,
    node: NodeId,
    change: Change<'_>,
    pending: Pending,
) {
    match change {
        Change::Setattr(set) => {
            let attr = file_system.setattr(caller, node, &set);
            pending.value(attr.map(|(attr, ttl)| attr.reply(ttl)));
        }
        Change::Mkdir { name, mode, umask } => {
            pending.value(file_system.mkdir(caller, node, name, mode & !umask).map(|entry| entry.reply()));
        }
        Change::Unlink { name } => pending.done(file_system.unlink(caller, node, name)),
        Change::Rmdir { name } => pending.done(file_system.rmdir(caller, node, name)),
        Change::Rename { name, new_parent, new_name, flags } => {
            pending.done(file_system.rename(caller, (node, name), (new_parent, new_name), flags));
        }
        Change::Create { name, flags, mode, umask } => {
            match file_system.create(caller, node, name, mode & !umask, flags) {
                Ok((entry, opened)) => pending.pieces(&[entry.reply().as_bytes(), opened.reply().as_bytes()]),
                Err(errno) => pending.error(errno),
            }
        }
        Change::Write { fh, offset, data } => {
            let written = file_system.write(node, fh, offset, data);
            pending.value(written.map(|size| abi::WriteOut { size, padding: 0 }));
        }
        Change::Fallocate { fh, offset, length, mode } => {
            pending.done(file_system.fallocate(node, fh, offset, length, mode));
        }
    }
}

/// Answers with an attribute's value, its size when no room was offered, or ERANGE when the room is too small.
fn attribute(pending: Pending, room: u32, value: Result<Vec<u8>, Errno>) {
    let value = match value {
        Ok(value) => value,
        Err(errno) => return pending.error(errno),
    };
    // Attributes above 64 KiB do not exist (XATTR_SIZE_MAX).
    match u32::try_from(value.len()) {
        Ok(size) if room == 0 => pending.value(Ok(abi::GetxattrOut { size, padding: 0 })),
        Ok(size) if size <= room => pending.pieces(&[&value]),
        Ok(_) => pending.error(Errno::RANGE),
        Err(_) => pending.error(Errno::TOOBIG),
    }
}

fn ended_by_zeros(names: &[Vec<u8>]) -> Vec<u8> {
    names.iter().flat_map(|name| name.iter().copied().chain([0])).collect()
}
