//! How do the kernel's FUSE messages lie in memory (protocol 7.31 to 7.45, native byte order)?
//!
//! Source: `include/uapi/linux/fuse.h` of Linux 6.18. Sizes are asserted at the end, since a struct that is too long
//! or too short is refused by the kernel, or read as something else.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Protocol major that this crate speaks.
pub const MAJOR: u32 = 7;
/// Newest protocol minor that this crate knows the structs of.
pub const MINOR: u32 = 45;
/// Oldest protocol minor that is served (Linux 5.4): below it there is neither `max_pages` nor readdirplus for all.
pub const OLDEST_MINOR: u32 = 31;
/// Bit of a request's id that marks a request sent again after `NOTIFY_RESEND`.
pub const UNIQUE_RESEND: u64 = 1 << 63;
/// File systems below one another that a file given to the kernel may be on: 1 is a plain one. With 2 it could lie on an
/// overlayfs, but then no overlayfs could be laid over our mount, as the kernel stacks no more than two.
pub const STACK_DEPTH: u32 = 1;
/// The longest name the kernel takes in a directory entry (`FUSE_NAME_MAX`).
pub const NAME_MAX: usize = 1024;

/// Declares kernel structs: every one is plain bytes without padding.
macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $(pub $field: $kind),* }
    )*};
}

wire! {
    /// Head of every request.
    InHeader { len: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32,
               extension_units: u16, padding: u16 }
    /// Head of every reply (error is 0 or a negative errno) and notification (unique 0, error is the code).
    OutHeader { len: u32, error: i32, unique: u64 }
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, flags2: u32, unused: [u32; 11] }
    InitOut { major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
              congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16, map_alignment: u16,
              flags2: u32, max_stack_depth: u32, request_timeout: u16, unused: [u16; 11] }
    AttrRaw { ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atime_nanos: u32,
              mtime_nanos: u32, ctime_nanos: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
              block_size: u32, flags: u32 }
    EntryOut { node: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nanos: u32,
               attr_valid_nanos: u32, attr: AttrRaw }
    AttrOut { attr_valid: u64, attr_valid_nanos: u32, dummy: u32, attr: AttrRaw }
    ForgetIn { lookups: u64 }
    BatchForgetIn { count: u32, dummy: u32 }
    ForgetOne { node: u64, lookups: u64 }
    GetattrIn { flags: u32, dummy: u32, fh: u64 }
    SetattrIn { valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64, ctime: u64,
                atime_nanos: u32, mtime_nanos: u32, ctime_nanos: u32, mode: u32, unused4: u32, uid: u32, gid: u32,
                unused5: u32 }
    MkdirIn { mode: u32, umask: u32 }
    RenameIn { new_parent: u64 }
    Rename2In { new_parent: u64, flags: u32, padding: u32 }
    OpenIn { flags: u32, open_flags: u32 }
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32 }
    OpenOut { fh: u64, open_flags: u32, backing_id: i32 }
    ReleaseIn { fh: u64, flags: u32, release_flags: u32, lock_owner: u64 }
    ReadIn { fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteIn { fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32, padding: u32 }
    WriteOut { size: u32, padding: u32 }
    StatfsOut { blocks: u64, blocks_free: u64, blocks_available: u64, files: u64, files_free: u64, block_size: u32,
                name_max: u32, fragment_size: u32, padding: u32, spare: [u32; 6] }
    FsyncIn { fh: u64, flags: u32, padding: u32 }
    GetxattrIn { size: u32, padding: u32 }
    GetxattrOut { size: u32, padding: u32 }
    AccessIn { mask: u32, padding: u32 }
    InterruptIn { unique: u64 }
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32 }
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32 }
    LseekOut { offset: u64 }
    Dirent { ino: u64, next_offset: u64, name_len: u32, kind: u32 }
    NotifyInvalInode { node: u64, offset: i64, length: i64 }
    NotifyInvalEntry { parent: u64, name_len: u32, flags: u32 }
    NotifyDelete { parent: u64, child: u64, name_len: u32, padding: u32 }
    NotifyStore { node: u64, offset: u64, size: u32, padding: u32 }
}

/// Flags of `GetattrIn`: the handle is valid.
pub const GETATTR_FH: u32 = 1;
/// Flags of `FsyncIn`: data only.
pub const FSYNC_DATA: u32 = 1;

/// Bits of `SetattrIn::valid`.
pub mod setattr {
    pub const MODE: u32 = 1;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
}

/// Bits of `OpenOut::open_flags`.
pub mod open {
    pub const DIRECT_IO: u32 = 1;
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const CACHE_DIR: u32 = 1 << 3;
    pub const NO_FLUSH: u32 = 1 << 5;
    pub const PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
    pub const PASSTHROUGH: u32 = 1 << 7;
}

/// Codes of notifications, in the error field of their header.
pub mod notify {
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const STORE: i32 = 4;
    pub const DELETE: i32 = 6;
    pub const RESEND: i32 = 7;
    pub const INC_EPOCH: i32 = 8;
}

const _: () = {
    assert!(size_of::<InHeader>() == 40 && size_of::<OutHeader>() == 16);
    assert!(size_of::<InitIn>() == 64 && size_of::<InitOut>() == 64);
    assert!(size_of::<AttrRaw>() == 88 && size_of::<EntryOut>() == 128 && size_of::<AttrOut>() == 104);
    assert!(size_of::<SetattrIn>() == 88 && size_of::<OpenOut>() == 16 && size_of::<StatfsOut>() == 80);
    assert!(size_of::<ReadIn>() == 40 && size_of::<WriteIn>() == 40 && size_of::<ReleaseIn>() == 24);
    assert!(size_of::<FallocateIn>() == 32 && size_of::<LseekIn>() == 24 && size_of::<Dirent>() == 24);
};
