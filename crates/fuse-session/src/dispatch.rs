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
use crate::reply::{OpenReply, Pending, ReadReply};
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
            file_system.open_with(caller, node, flags, OpenReply::new(pending));
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

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::Mutex;
    use std::time::Duration;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::filesystem::Opened;
    use crate::node::{Attr, FileHandle, Lookup, Statfs};

    /// Keeps its reads, and has nothing else.
    #[derive(Default)]
    struct Keeper(Mutex<Vec<ReadReply>>);

    impl Filesystem for Keeper {
        fn lookup(&self, _: &Caller, _: NodeId, _: &[u8]) -> Result<Lookup, Errno> {
            Err(Errno::NOENT)
        }

        fn getattr(&self, _: &Caller, _: NodeId, _: Option<FileHandle>) -> Result<(Attr, Duration), Errno> {
            Err(Errno::NOENT)
        }

        fn open(&self, _: &Caller, _: NodeId, _: u32) -> Result<Opened, Errno> {
            Err(Errno::NOENT)
        }

        fn read(&self, _: &Caller, _: ReadRequest, reply: ReadReply) {
            self.0.lock().expect("reads").push(reply);
        }

        fn readdir(
            &self,
            _: &Caller,
            _: NodeId,
            _: FileHandle,
            _: u64,
            _: &mut DirBuffer,
        ) -> Result<(), Errno> {
            Err(Errno::NOENT)
        }

        fn statfs(&self, _: &Caller, _: NodeId) -> Result<Statfs, Errno> {
            Err(Errno::NOENT)
        }

        fn listxattr(&self, _: &Caller, _: NodeId) -> Result<Vec<Vec<u8>>, Errno> {
            Ok(vec![vec![b'x'; 70_000]])
        }
    }

    /// A connection whose other end, in the place of the kernel, is a socket that keeps messages apart.
    struct Wire {
        channel: Arc<Channel>,
        kernel: OwnedFd,
        keeper: Keeper,
    }

    impl Wire {
        fn new() -> Self {
            let kind = SocketType::SEQPACKET;
            let (device, kernel) =
                socketpair(AddressFamily::UNIX, kind, SocketFlags::NONBLOCK, None).expect("socket pair");
            Self { channel: Arc::new(Channel::new(device)), kernel, keeper: Keeper::default() }
        }

        /// Has a request served, and gives the answers so far.
        fn serve(&self, opcode: u32, unique: u64, body: &[u8]) -> Vec<(u64, i32, Vec<u8>)> {
            let len = 40 + body.len() as u32;
            let header = abi::InHeader { len, opcode, unique, node: 1, ..abi::InHeader::default() };
            let message = [header.as_bytes(), body].concat();
            assert_eq!(dispatch(&self.channel, &self.keeper, &message), Next::GoOn);
            self.answers()
        }

        fn answers(&self) -> Vec<(u64, i32, Vec<u8>)> {
            let mut answers = Vec::new();
            let mut buffer = vec![0; 1 << 17];
            while let Ok(length) = rustix::io::read(&self.kernel, buffer.as_mut_slice()) {
                let word = |at: usize| i32::from_ne_bytes(buffer[at..at + 4].try_into().expect("four bytes"));
                assert_eq!(word(0) as usize, length);
                let unique = u64::from_ne_bytes(buffer[8..16].try_into().expect("eight bytes"));
                answers.push((unique, word(4), buffer[16..length].to_vec()));
            }
            answers
        }
    }

    fn error(unique: u64, errno: Errno) -> Vec<(u64, i32, Vec<u8>)> {
        vec![(unique, -errno.raw_os_error(), Vec::new())]
    }

    fn read_of(size: u32) -> Vec<u8> {
        abi::ReadIn { size, ..abi::ReadIn::default() }.as_bytes().to_vec()
    }

    #[test]
    fn interrupt_is_sent_back_until_its_request_has_come_and_after_it_is_gone() {
        let wire = Wire::new();
        let interrupt = 8u64.to_ne_bytes();
        assert_eq!(wire.serve(36, 9, &interrupt), error(9, Errno::AGAIN));
        assert_eq!(wire.serve(15, 8, &read_of(4096)), []);
        assert_eq!(wire.serve(36, 9, &interrupt), []);
        let reply = wire.keeper.0.lock().expect("reads").pop().expect("kept");
        assert!(reply.interruption().is_interrupted());
        reply.error(Errno::INTR);
        assert_eq!(wire.answers(), error(8, Errno::INTR));
        assert_eq!(wire.serve(36, 9, &interrupt), error(9, Errno::AGAIN));
        assert_eq!(wire.channel.metrics.snapshot(0).interrupted, 1);
    }

    #[test]
    fn operations_that_are_not_served_say_so() {
        let wire = Wire::new();
        let not_served = [39, 40, 25, 5, 52, 37, 4711];
        let writes = [21, 24, 47, 53, 8, 13, 6, 51];
        let errors = not_served.map(|opcode| (opcode, Errno::NOSYS)).into_iter();
        for (opcode, errno) in errors.chain(writes.map(|opcode| (opcode, Errno::ROFS))) {
            assert_eq!(wire.serve(opcode, 4, b"any"), error(4, errno), "{opcode}");
        }
        assert_eq!(wire.serve(1, 6, b"unended"), error(6, Errno::IO));
        let metrics = wire.channel.metrics.snapshot(0);
        assert_eq!((metrics.malformed, metrics.unknown), (1, 1));
    }

    #[test]
    fn every_change_is_refused_unless_it_is_overridden() {
        let wire = Wire::new();
        let bodies: [(u32, &[u8]); 9] = [
            (4, &[0; 88]),
            (9, b"\0\0\0\0\0\0\0\0d\0"),
            (10, b"f\0"),
            (11, b"d\0"),
            (12, b"\0\0\0\0\0\0\0\0a\0b\0"),
            (45, b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0a\0b\0"),
            (35, b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0n\0"),
            (16, &[0; 40]),
            (43, &[0; 32]),
        ];
        for (opcode, body) in bodies {
            assert_eq!(wire.serve(opcode, 4, body), error(4, Errno::ROFS), "{opcode}");
        }
    }

    #[test]
    fn answers_longer_than_the_room_are_errors_not_bytes() {
        let wire = Wire::new();
        wire.serve(15, 8, &read_of(4));
        let reply = wire.keeper.0.lock().expect("reads").pop().expect("kept");
        reply.pieces(&[b"abc", b"def"]);
        assert_eq!(wire.answers(), error(8, Errno::IO));
        let room = |size: u32| [size.to_ne_bytes(), [0; 4]].concat();
        assert_eq!(wire.serve(23, 8, &room(100)), error(8, Errno::RANGE));
        assert_eq!(wire.serve(23, 8, &room(0)), [(8, 0, room(70_001))]);
    }

    #[test]
    fn more_pieces_than_one_write_takes_still_arrive_in_order() {
        let wire = Wire::new();
        wire.serve(15, 8, &read_of(9000));
        let reply = wire.keeper.0.lock().expect("reads").pop().expect("kept");
        let bytes: Vec<u8> = (0..9000u32).map(|at| at as u8).collect();
        reply.pieces(&bytes.chunks(3).collect::<Vec<_>>());
        assert_eq!(wire.answers(), [(8, 0, bytes)]);
    }
}
