//! What can the kernel and a file system agree on in INIT?

use serde::{Deserialize, Serialize};

/// A set of the protocol's INIT flags (64 bits, the upper half under `INIT_EXT`).
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// Reads of one file may be in flight together.
    pub const ASYNC_READ: Self = Self(1);
    /// Writes above one page.
    pub const BIG_WRITES: Self = Self(1 << 5);
    /// The file system answers look-ups of "." and "..", so that `open_by_handle_at` and NFS work.
    pub const EXPORT_SUPPORT: Self = Self(1 << 4);
    /// READDIRPLUS is understood.
    pub const READDIRPLUS: Self = Self(1 << 13);
    /// The kernel guesses when to use READDIRPLUS.
    pub const READDIRPLUS_AUTO: Self = Self(1 << 14);
    /// O_DIRECT requests of one file may be in flight together. The price: the kernel waits for them in a way that no
    /// signal ends, so a reader killed in an O_DIRECT read stays until the answer comes.
    pub const ASYNC_DIO: Self = Self(1 << 15);
    /// ENOSYS to OPEN means that no file is ever opened or released.
    pub const NO_OPEN_SUPPORT: Self = Self(1 << 17);
    /// Look-ups and listings of one directory may be in flight together.
    pub const PARALLEL_DIROPS: Self = Self(1 << 18);
    /// An aborted connection reads as ECONNABORTED, not as an unmounted one.
    pub const ABORT_ERROR: Self = Self(1 << 21);
    /// Requests may have `max_pages` pages.
    pub const MAX_PAGES: Self = Self(1 << 22);
    /// ENOSYS to OPENDIR means that no directory is ever opened or released.
    pub const NO_OPENDIR_SUPPORT: Self = Self(1 << 24);
    /// Flags above bit 31 are understood.
    pub const INIT_EXT: Self = Self(1 << 30);
    /// INVAL_ENTRY may expire an entry instead of dropping it.
    pub const HAS_EXPIRE_ONLY: Self = Self(1 << 35);
    /// Files opened by OPEN may be handed to the kernel whole.
    pub const PASSTHROUGH: Self = Self(1 << 37);
    /// The kernel knows the notification RESEND.
    pub const HAS_RESEND: Self = Self(1 << 39);

    /// What a read-only file system over immutable content asks for; readdirplus apart.
    pub const READ_ONLY: Self = Self::ASYNC_READ
        .with(Self::EXPORT_SUPPORT)
        .with(Self::PARALLEL_DIROPS)
        .with(Self::ABORT_ERROR)
        .with(Self::MAX_PAGES)
        .with(Self::INIT_EXT)
        .with(Self::HAS_EXPIRE_ONLY)
        .with(Self::HAS_RESEND);

    /// Files and directories are never opened or released, once OPEN and OPENDIR were answered with ENOSYS.
    pub const NO_OPENS: Self = Self::NO_OPEN_SUPPORT.with(Self::NO_OPENDIR_SUPPORT);

    /// Gives this set and the other one together.
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Gives this set without the other one.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Gives what is in both sets.
    pub const fn common(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Tells whether all of the other set is in this one.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}
