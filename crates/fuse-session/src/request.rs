//! What does a message from the kernel ask for?
//!
//! Layout: [`InHeader`] (40 bytes, its first field is the length of the whole), a struct that depends on the operation,
//! then names ended by a zero byte or raw bytes, then extensions (counted in units of 8 bytes in the header; none is
//! asked for, so they are skipped). Nothing here trusts the bytes: every cut, count and name is checked.

use std::time::SystemTime;

use thiserror::Error;
use zerocopy::FromBytes;

use crate::abi::{self, InHeader};
use crate::filesystem::{SetAttr, SetTime};
use crate::node::{FileHandle, NodeId, join_time};
use crate::opcode::Opcode;

/// A message that cannot be understood.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub enum ParseError {
    /// The message is shorter than its head.
    #[error("parse request of {length} bytes: shorter than its head")]
    ShortHeader {
        /// Bytes that came.
        length: usize,
    },
    /// The length in the head is not the length that came, or the extensions are longer than the body.
    #[error("parse request {unique:#x}: head says {claimed} bytes, {length} came")]
    Length {
        /// Id of the request.
        unique: u64,
        /// Bytes that the head claims, extensions apart.
        claimed: usize,
        /// Bytes that came.
        length: usize,
    },
    /// The struct of the operation is cut, or its names, data or counts do not fit the body.
    #[error("parse request {unique:#x}: body of {opcode:?} is malformed")]
    Body {
        /// Id of the request.
        unique: u64,
        /// The operation.
        opcode: Opcode,
    },
}

/// Who asks, and under which id.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Caller {
    /// Id of the request, unique among those not answered.
    pub unique: u64,
    /// User of the calling process.
    pub uid: u32,
    /// Group of the calling process.
    pub gid: u32,
    /// The calling process; 0 when it lives in another pid namespace, or for read-ahead.
    pub pid: u32,
}

/// One request, borrowed from the bytes that the kernel sent.
#[derive(Debug)]
pub(crate) struct Request<'a> {
    pub caller: Caller,
    pub node: NodeId,
    /// Number of the operation as it came, for those that are not known.
    pub number: u32,
    pub operation: Operation<'a>,
}

/// What is asked for, by what happens to it.
#[derive(Debug)]
pub(crate) enum Operation<'a> {
    /// Gets no answer.
    Silent(Silent),
    /// Leaves the file system as it is.
    Query(Query<'a>),
    /// Changes the file system.
    Change(Change<'a>),
    /// Known, but not served.
    Other(Opcode),
    /// Not known to this crate.
    Unknown,
}

/// Messages that the kernel wants no answer to.
#[derive(Debug)]
pub(crate) enum Silent {
    Interrupt { unique: u64 },
    Forget { lookups: u64 },
    BatchForget(Vec<(NodeId, u64)>),
}

/// Requests that leave the file system as it is.
#[derive(Debug)]
pub(crate) enum Query<'a> {
    Init(abi::InitIn),
    Destroy,
    Lookup { name: &'a [u8] },
    Getattr { fh: Option<FileHandle> },
    Open { flags: u32 },
    Read { fh: FileHandle, offset: u64, size: u32, flags: u32 },
    Release { fh: FileHandle },
    Fsync { fh: FileHandle, data_only: bool },
    Opendir,
    Readdir { fh: FileHandle, offset: u64, size: u32 },
    Readdirplus { fh: FileHandle, offset: u64, size: u32 },
    Releasedir { fh: FileHandle },
    Statfs,
    Access { mask: u32 },
    Getxattr { name: &'a [u8], size: u32 },
    Listxattr { size: u32 },
    Lseek { fh: FileHandle, offset: u64, whence: u32 },
}

/// Requests that change the file system.
#[derive(Debug)]
pub(crate) enum Change<'a> {
    Setattr(SetAttr),
    Mkdir { name: &'a [u8], mode: u32, umask: u32 },
    Unlink { name: &'a [u8] },
    Rmdir { name: &'a [u8] },
    Rename { name: &'a [u8], new_parent: NodeId, new_name: &'a [u8], flags: u32 },
    Create { name: &'a [u8], flags: u32, mode: u32, umask: u32 },
    Write { fh: FileHandle, offset: u64, data: &'a [u8] },
    Fallocate { fh: FileHandle, offset: u64, length: u64, mode: u32 },
}

/// Parses one message.
///
/// # Errors
/// [`ParseError`] says where it stopped; the id, where there is one, lets the caller answer EIO.
pub(crate) fn parse(message: &[u8]) -> Result<Request<'_>, ParseError> {
    let short = ParseError::ShortHeader { length: message.len() };
    let (header, body) = InHeader::read_from_prefix(message).map_err(|_| short)?;
    let length = message.len();
    let unique = header.unique;
    let extensions = usize::from(header.extension_units) * 8;
    let claimed = header.len as usize;
    if claimed != length {
        return Err(ParseError::Length { unique, claimed, length });
    }
    let Some(body) = body.len().checked_sub(extensions).and_then(|end| body.get(..end)) else {
        return Err(ParseError::Length { unique, claimed: extensions, length });
    };
    let caller = Caller { unique, uid: header.uid, gid: header.gid, pid: header.pid };
    let operation = match Opcode::from_number(header.opcode) {
        None => Operation::Unknown,
        Some(opcode) => operation(opcode, Body(body)).ok_or(ParseError::Body { unique, opcode })?,
    };
    Ok(Request { caller, node: NodeId(header.node), number: header.opcode, operation })
}

/// The part of a message behind its head, eaten from the front.
struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take<T: FromBytes>(&mut self) -> Option<T> {
        let (value, rest) = T::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some(value)
    }

    /// Takes a name: not empty, ended by a zero byte.
    fn name(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == 0)?;
        let (name, rest) = self.0.split_at_checked(end)?;
        self.0 = rest.get(1..)?;
        (!name.is_empty()).then_some(name)
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}

/// Parses the body of an operation; `None` when it does not fit.
fn operation(opcode: Opcode, mut body: Body<'_>) -> Option<Operation<'_>> {
    Some(match opcode {
        Opcode::Interrupt | Opcode::Forget | Opcode::BatchForget => {
            Operation::Silent(silent(opcode, &mut body)?)
        }
        Opcode::Setattr
        | Opcode::Mkdir
        | Opcode::Unlink
        | Opcode::Rmdir
        | Opcode::Rename
        | Opcode::Rename2
        | Opcode::Create
        | Opcode::Write
        | Opcode::Fallocate => Operation::Change(change(opcode, &mut body)?),
        other => match query(other, &mut body)? {
            Some(query) => Operation::Query(query),
            None => Operation::Other(other),
        },
    })
}

fn silent(opcode: Opcode, body: &mut Body<'_>) -> Option<Silent> {
    Some(match opcode {
        Opcode::Interrupt => Silent::Interrupt { unique: body.take::<abi::InterruptIn>()?.unique },
        Opcode::Forget => Silent::Forget { lookups: body.take::<abi::ForgetIn>()?.lookups },
        _ => Silent::BatchForget(batch_forget(body)?),
    })
}

/// Parses a request that changes nothing; the inner `None` is an operation that is not served.
fn query<'a>(opcode: Opcode, body: &mut Body<'a>) -> Option<Option<Query<'a>>> {
    let read = |body: &mut Body<'a>| {
        let abi::ReadIn { fh, offset, size, flags, .. } = body.take()?;
        Some((FileHandle(fh), offset, size, flags))
    };
    Some(Some(match opcode {
        Opcode::Init => Query::Init(init(body)?),
        Opcode::Destroy => Query::Destroy,
        Opcode::Lookup => Query::Lookup { name: body.name()? },
        Opcode::Getattr => {
            let getattr: abi::GetattrIn = body.take()?;
            Query::Getattr { fh: (getattr.flags & abi::GETATTR_FH != 0).then_some(FileHandle(getattr.fh)) }
        }
        Opcode::Open => Query::Open { flags: body.take::<abi::OpenIn>()?.flags },
        Opcode::Read => {
            let (fh, offset, size, flags) = read(body)?;
            Query::Read { fh, offset, size, flags }
        }
        Opcode::Release => Query::Release { fh: FileHandle(body.take::<abi::ReleaseIn>()?.fh) },
        Opcode::Releasedir => Query::Releasedir { fh: FileHandle(body.take::<abi::ReleaseIn>()?.fh) },
        Opcode::Fsync => {
            let abi::FsyncIn { fh, flags, padding: _ } = body.take()?;
            Query::Fsync { fh: FileHandle(fh), data_only: flags & abi::FSYNC_DATA != 0 }
        }
        Opcode::Opendir => Query::Opendir,
        Opcode::Readdir => {
            let (fh, offset, size, _) = read(body)?;
            Query::Readdir { fh, offset, size }
        }
        Opcode::Readdirplus => {
            let (fh, offset, size, _) = read(body)?;
            Query::Readdirplus { fh, offset, size }
        }
        Opcode::Statfs => Query::Statfs,
        Opcode::Access => Query::Access { mask: body.take::<abi::AccessIn>()?.mask },
        Opcode::Getxattr => {
            let abi::GetxattrIn { size, padding: _ } = body.take()?;
            Query::Getxattr { name: body.name()?, size }
        }
        Opcode::Listxattr => Query::Listxattr { size: body.take::<abi::GetxattrIn>()?.size },
        Opcode::Lseek => {
            let abi::LseekIn { fh, offset, whence, padding: _ } = body.take()?;
            Query::Lseek { fh: FileHandle(fh), offset, whence }
        }
        _ => return Some(None),
    }))
}

fn change<'a>(opcode: Opcode, body: &mut Body<'a>) -> Option<Change<'a>> {
    Some(match opcode {
        Opcode::Setattr => Change::Setattr(set_attr(&body.take()?)),
        Opcode::Mkdir => {
            let abi::MkdirIn { mode, umask } = body.take()?;
            Change::Mkdir { name: body.name()?, mode, umask }
        }
        Opcode::Unlink => Change::Unlink { name: body.name()? },
        Opcode::Rmdir => Change::Rmdir { name: body.name()? },
        Opcode::Rename => {
            let abi::RenameIn { new_parent } = body.take()?;
            rename(body, new_parent, 0)?
        }
        Opcode::Rename2 => {
            let abi::Rename2In { new_parent, flags, padding: _ } = body.take()?;
            rename(body, new_parent, flags)?
        }
        Opcode::Create => {
            let abi::CreateIn { flags, mode, umask, open_flags: _ } = body.take()?;
            Change::Create { name: body.name()?, flags, mode, umask }
        }
        Opcode::Write => {
            let abi::WriteIn { fh, offset, size, .. } = body.take()?;
            Change::Write { fh: FileHandle(fh), offset, data: body.bytes(size as usize)? }
        }
        _ => {
            let abi::FallocateIn { fh, offset, length, mode, padding: _ } = body.take()?;
            Change::Fallocate { fh: FileHandle(fh), offset, length, mode }
        }
    })
}

/// Parses INIT, which kernels before 7.36 send without the last twelve words.
fn init(body: &mut Body<'_>) -> Option<abi::InitIn> {
    let mut whole = [0; size_of::<abi::InitIn>()];
    let given = body.0.len().min(whole.len());
    // The four words that every kernel sends.
    if given < 16 {
        return None;
    }
    whole.get_mut(..given)?.copy_from_slice(body.bytes(given)?);
    abi::InitIn::read_from_bytes(&whole).ok()
}

/// Parses the pairs of a BATCH_FORGET; the body bounds the count before anything is allocated.
fn batch_forget(body: &mut Body<'_>) -> Option<Vec<(NodeId, u64)>> {
    let abi::BatchForgetIn { count, dummy: _ } = body.take()?;
    let count = count as usize;
    if count.checked_mul(size_of::<abi::ForgetOne>())? > body.0.len() {
        return None;
    }
    let mut forgets = Vec::with_capacity(count);
    for _ in 0..count {
        let abi::ForgetOne { node, lookups } = body.take()?;
        forgets.push((NodeId(node), lookups));
    }
    Some(forgets)
}

fn rename<'a>(body: &mut Body<'a>, new_parent: u64, flags: u32) -> Option<Change<'a>> {
    let name = body.name()?;
    let new_name = body.name()?;
    Some(Change::Rename { name, new_parent: NodeId(new_parent), new_name, flags })
}

fn set_attr(raw: &abi::SetattrIn) -> SetAttr {
    use abi::setattr::{ATIME, ATIME_NOW, FH, GID, MODE, MTIME, MTIME_NOW, SIZE, UID};
    let has = |bit: u32| raw.valid & bit != 0;
    let time = |set: u32, now: u32, at: SystemTime| match (has(now), has(set)) {
        (true, _) => Some(SetTime::Now),
        (false, true) => Some(SetTime::At(at)),
        (false, false) => None,
    };
    SetAttr {
        fh: has(FH).then_some(FileHandle(raw.fh)),
        mode: has(MODE).then_some(raw.mode),
        uid: has(UID).then_some(raw.uid),
        gid: has(GID).then_some(raw.gid),
        size: has(SIZE).then_some(raw.size),
        atime: time(ATIME, ATIME_NOW, join_time(raw.atime, raw.atime_nanos)),
        mtime: time(MTIME, MTIME_NOW, join_time(raw.mtime, raw.mtime_nanos)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A field of a message: little-endian, as on the machines this runs on.
    enum Field<'a> {
        Short(u16),
        Word(u32),
        Long(u64),
        Bytes(&'a [u8]),
    }
    use Field::{Bytes, Long, Short, Word};

    fn bytes(fields: &[Field<'_>]) -> Vec<u8> {
        let mut all = Vec::new();
        for field in fields {
            match field {
                Short(value) => all.extend(value.to_le_bytes()),
                Word(value) => all.extend(value.to_le_bytes()),
                Long(value) => all.extend(value.to_le_bytes()),
                Bytes(value) => all.extend(*value),
            }
        }
        all
    }

    /// Puts a head before a body: id 0x66, node 42, user 1000, group 1001, process 4242.
    fn message(opcode: u32, body: &[Field<'_>]) -> Vec<u8> {
        let body = bytes(body);
        let length = Word(40 + body.len() as u32);
        let ids = [Long(0x66), Long(42), Word(1000), Word(1001), Word(4242)];
        let mut all = bytes(&[length, Word(opcode)]);
        all.extend(bytes(&ids));
        all.extend(bytes(&[Short(0), Short(0)]));
        all.extend(body);
        all
    }

    /// One valid message of each form, beside what it parses to.
    fn golden() -> Vec<(Vec<u8>, &'static str)> {
        let zeros = || Bytes(&[0; 44]);
        let read = |flags| [Long(9), Long(65_536), Word(131_072), Word(0), Long(0), Word(flags), Word(0)];
        let set =
            [Word(0x7f | 0x100), Word(0), Long(9), Long(10), Long(0), Long(1), Long(2), Long(3), Word(4)];
        let set_rest = [Word(5), Word(6), Word(0o644), Word(0), Word(7), Word(8), Word(0)];
        let setattr: Vec<_> = set.into_iter().chain(set_rest).collect();
        vec![
            (message(1, &[Bytes(b"name\0")]), "Query(Lookup { name: [110, 97, 109, 101] })"),
            (message(2, &[Long(3)]), "Silent(Forget { lookups: 3 })"),
            (message(3, &[Word(1), Word(0), Long(9)]), "Query(Getattr { fh: Some(FileHandle(9)) })"),
            (message(3, &[Word(0), Word(0), Long(9)]), "Query(Getattr { fh: None })"),
            (
                message(4, &setattr),
                "Change(Setattr(SetAttr { fh: Some(FileHandle(9)), mode: Some(420), uid: Some(7), gid: Some(8), \
                 size: Some(10), atime: Some(At(SystemTime { tv_sec: 1, tv_nsec: 4 })), mtime: Some(Now) }))",
            ),
            (
                message(9, &[Word(0o755), Word(0o22), Bytes(b"d\0")]),
                "Change(Mkdir { name: [100], mode: 493, umask: 18 })",
            ),
            (message(10, &[Bytes(b"f\0")]), "Change(Unlink { name: [102] })"),
            (message(11, &[Bytes(b"d\0")]), "Change(Rmdir { name: [100] })"),
            (
                message(12, &[Long(7), Bytes(b"a\0b\0")]),
                "Change(Rename { name: [97], new_parent: NodeId(7), new_name: [98], flags: 0 })",
            ),
            (message(14, &[Word(0x8000), Word(0)]), "Query(Open { flags: 32768 })"),
            (
                message(15, &read(0x4000)),
                "Query(Read { fh: FileHandle(9), offset: 65536, size: 131072, flags: 16384 })",
            ),
            (
                message(16, &[Long(9), Long(4), Word(3), Word(0), Long(0), Word(0), Word(0), Bytes(b"xyz")]),
                "Change(Write { fh: FileHandle(9), offset: 4, data: [120, 121, 122] })",
            ),
            (message(17, &[]), "Query(Statfs)"),
            (message(18, &[Long(9), Word(0), Word(0), Long(0)]), "Query(Release { fh: FileHandle(9) })"),
            (
                message(20, &[Long(9), Word(1), Word(0)]),
                "Query(Fsync { fh: FileHandle(9), data_only: true })",
            ),
            (message(21, &[Word(1), Word(0), Bytes(b"user.x\0y")]), "Other(Setxattr)"),
            (message(22, &[Word(64), Word(0), Bytes(b"x\0")]), "Query(Getxattr { name: [120], size: 64 })"),
            (message(23, &[Word(64), Word(0)]), "Query(Listxattr { size: 64 })"),
            (
                message(26, &[Word(7), Word(45), Word(131_072), Word(1 << 30), Word(5), zeros()]),
                "Query(Init(InitIn { major: 7, minor: 45, max_readahead: 131072, flags: 1073741824, flags2: 5, \
                 unused: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] }))",
            ),
            (
                message(26, &[Word(7), Word(31), Word(1), Word(2)]),
                "Query(Init(InitIn { major: 7, minor: 31, max_readahead: 1, flags: 2, flags2: 0, \
                 unused: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0] }))",
            ),
            (message(27, &[Word(0), Word(0)]), "Query(Opendir)"),
            (message(28, &read(0)), "Query(Readdir { fh: FileHandle(9), offset: 65536, size: 131072 })"),
            (message(29, &[Long(9), Word(0), Word(0), Long(0)]), "Query(Releasedir { fh: FileHandle(9) })"),
            (message(34, &[Word(4), Word(0)]), "Query(Access { mask: 4 })"),
            (
                message(35, &[Word(0x41), Word(0o600), Word(0o22), Word(0), Bytes(b"n\0")]),
                "Change(Create { name: [110], flags: 65, mode: 384, umask: 18 })",
            ),
            (message(36, &[Long(0x64)]), "Silent(Interrupt { unique: 100 })"),
            (message(38, &[]), "Query(Destroy)"),
            (message(39, &[Bytes(b"whatever")]), "Other(Ioctl)"),
            (
                message(42, &[Word(2), Word(0), Long(5), Long(1), Long(6), Long(2)]),
                "Silent(BatchForget([(NodeId(5), 1), (NodeId(6), 2)]))",
            ),
            (
                message(43, &[Long(9), Long(1), Long(2), Word(3), Word(0)]),
                "Change(Fallocate { fh: FileHandle(9), offset: 1, length: 2, mode: 3 })",
            ),
            (message(44, &read(0)), "Query(Readdirplus { fh: FileHandle(9), offset: 65536, size: 131072 })"),
            (
                message(45, &[Long(7), Word(1), Word(0), Bytes(b"a\0b\0")]),
                "Change(Rename { name: [97], new_parent: NodeId(7), new_name: [98], flags: 1 })",
            ),
            (
                message(46, &[Long(9), Long(5), Word(3), Word(0)]),
                "Query(Lseek { fh: FileHandle(9), offset: 5, whence: 3 })",
            ),
            (message(4711, &[Long(1)]), "Unknown"),
        ]
    }

    #[test]
    fn golden_messages_parse_to_what_they_say() {
        for (message, expected) in golden() {
            let request = parse(&message).expect("golden");
            assert_eq!(format!("{:?}", request.operation), expected);
            assert_eq!(request.caller, Caller { unique: 0x66, uid: 1000, gid: 1001, pid: 4242 });
            assert_eq!(request.node, NodeId(42));
        }
    }

    #[test]
    fn extensions_are_cut_off_the_body() {
        let mut message =
            message(16, &[Long(9), Long(4), Word(8), Word(0), Long(0), Long(0), Bytes(&[7; 8])]);
        message[36] = 1;
        assert!(matches!(parse(&message), Err(ParseError::Body { opcode: Opcode::Write, .. })));
        message[36] = 200;
        assert!(matches!(parse(&message), Err(ParseError::Length { .. })));
        message[36] = 0;
        assert!(parse(&message).is_ok());
    }

    #[test]
    fn every_cut_of_a_message_is_refused_by_name() {
        for (message, expected) in golden() {
            for length in 0..message.len() {
                let mut cut = message[..length].to_vec();
                let error = parse(&cut).expect_err(expected);
                assert_eq!(matches!(error, ParseError::ShortHeader { .. }), length < 40);
                if length >= 40 {
                    // With a head that says so the body is too short, unless what is missing is not looked at.
                    cut[..4].copy_from_slice(&(length as u32).to_le_bytes());
                    match parse(&cut) {
                        Err(error) => assert!(matches!(error, ParseError::Body { unique: 0x66, .. })),
                        Ok(request) => {
                            let whole = ["Other", "Unknown", "Query(Opendir", "Query(Init"];
                            assert!(whole.iter().any(|known| expected.starts_with(known)), "{request:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn empty_names_and_overlong_counts_are_refused() {
        let huge = u32::MAX;
        for (opcode, body) in [
            (1, vec![Bytes(b"\0")]),
            (1, vec![Bytes(b"unended")]),
            (12, vec![Long(7), Bytes(b"a\0\0")]),
            (42, vec![Word(huge), Word(0), Long(5), Long(1)]),
            (16, vec![Long(9), Long(4), Word(huge), Word(0), Long(0), Long(0), Bytes(b"xyz")]),
        ] {
            assert!(matches!(parse(&message(opcode, &body)), Err(ParseError::Body { .. })), "{opcode}");
        }
    }

    /// A small generator (splitmix64): cases are the same on every run.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut value = self.0;
            value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((value ^ (value >> 31)) % bound as u64) as usize
        }
    }

    #[test]
    fn mutated_messages_never_panic_and_meet_every_error() {
        let golden = golden();
        let mut random = Random(3);
        let (mut parsed, mut short, mut length, mut body) = (0, 0, 0, 0);
        for case in 0..400_000 {
            let mut message = golden[case % golden.len()].0.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(message.len().max(1));
                match random.below(6) {
                    0 => message.truncate(at),
                    1 => message.extend([random.below(256) as u8; 3]),
                    // The operation, so that bodies meet the wrong parser.
                    2 if message.len() > 8 => message[4] = random.below(60) as u8,
                    _ if message.is_empty() => {}
                    3 => message[at] = 0xff,
                    4 => message[at] = 0,
                    _ => message[at] ^= 1 << random.below(8),
                }
            }
            // Most cases get a true length, for else nothing behind it would be tried.
            if random.below(8) > 0 && message.len() >= 4 {
                let true_length = (message.len() as u32).to_le_bytes();
                message[..4].copy_from_slice(&true_length);
            }
            match parse(&message) {
                Ok(request) => {
                    parsed += 1;
                    // Printing walks over everything that was borrowed.
                    assert!(!format!("{request:?}").is_empty());
                }
                Err(ParseError::ShortHeader { .. }) => short += 1,
                Err(ParseError::Length { .. }) => length += 1,
                Err(ParseError::Body { .. }) => body += 1,
            }
        }
        let met = [parsed, short, length, body];
        assert!(met.into_iter().all(|count| count > 1000), "{met:?}");
    }
}
