//! Were all chunks of a store file verified together, in which boot, and does the kernel read it itself?
//!
//! The answer is a word in the header of the sidecar, 0 for a file of which nothing of that is known:
//!
//! | bits | what |
//! |---|---|
//! | 0..31 | tag of the boot in which every chunk matched its checksum |
//! | 31 | the file was handed to the kernel |
//! | 32..64 | check: a hash of the other bits and the content id; never 0 |
//!
//! A file that was handed to the kernel may be mapped by a process that has closed it, which nobody can see. So none of its
//! bytes is ever given back alone: such a file stays whole, and goes whole, by its name only.

use std::fs;
use std::sync::OnceLock;

use millrace_api::crc::crc32c;
use millrace_api::ids::ContentId;

/// Which boot of the machine this is. Page cache outlives processes but not the machine, so files are verified again in
/// another boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BootTag(u32);

impl BootTag {
    /// The boot that is running. Where the kernel does not tell, every process is a boot of its own.
    pub fn current() -> Self {
        static CURRENT: OnceLock<BootTag> = OnceLock::new();
        *CURRENT.get_or_init(|| {
            let id = fs::read("/proc/sys/kernel/random/boot_id");
            Self::of(&id.unwrap_or_else(|_| std::process::id().to_le_bytes().to_vec()))
        })
    }

    /// The tag of a boot with this id.
    pub fn of(boot_id: &[u8]) -> Self {
        Self(crc32c(boot_id) & !HANDED_OVER)
    }
}

const HANDED_OVER: u32 = 1 << 31;

/// What the seal of a store file says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seal {
    /// Nothing.
    Open,
    /// It was verified.
    Verified { boot: BootTag, is_handed_over: bool },
    /// Its bits have changed: verified in no boot, and handed over as far as anybody knows.
    Damaged,
}

impl Seal {
    /// Reads the word.
    pub fn decode(word: u64, content: ContentId) -> Self {
        let value = word as u32;
        if word == 0 {
            Self::Open
        } else if (word >> 32) as u32 == check(value, content) {
            Self::Verified { boot: BootTag(value & !HANDED_OVER), is_handed_over: value & HANDED_OVER != 0 }
        } else {
            Self::Damaged
        }
    }

    /// The word; that of a damaged seal is one again.
    pub fn encode(self, content: ContentId) -> u64 {
        let value = match self {
            Self::Open => return 0,
            Self::Damaged => return 1,
            Self::Verified { boot: BootTag(tag), is_handed_over: false } => tag,
            Self::Verified { boot: BootTag(tag), is_handed_over: true } => tag | HANDED_OVER,
        };
        u64::from(check(value, content)) << 32 | u64::from(value)
    }

    /// Whether the kernel may read the file.
    pub fn is_handed_over(self) -> bool {
        match self {
            Self::Open => false,
            Self::Verified { is_handed_over, .. } => is_handed_over,
            Self::Damaged => true,
        }
    }
}

fn check(value: u32, content: ContentId) -> u32 {
    let mut bytes = [0; 20];
    bytes[..16].copy_from_slice(&content.0);
    bytes[16..].copy_from_slice(&value.to_le_bytes());
    crc32c(&bytes).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_pinned_and_every_flipped_one_is_noticed() {
        let content = ContentId(std::array::from_fn(|at| at as u8));
        let seal = Seal::Verified { boot: BootTag::of(b"boot"), is_handed_over: true };
        let word = seal.encode(content);
        assert_eq!(format!("{word:016x}"), "12b4b658b0e4eea2");
        assert_eq!(Seal::decode(word, content), seal);
        for bit in 0..64 {
            assert_eq!(Seal::decode(word ^ 1 << bit, content), Seal::Damaged, "{bit}");
        }
        assert_eq!(Seal::decode(word, ContentId([9; 16])), Seal::Damaged);
        assert_eq!((Seal::decode(0, content), Seal::Open.encode(content)), (Seal::Open, 0));
        assert!(Seal::decode(Seal::Damaged.encode(content), content).is_handed_over());
    }

    #[test]
    fn this_boot_is_not_another_one() {
        assert_eq!(BootTag::current(), BootTag::current());
        assert_ne!(BootTag::current(), BootTag::of(b"another"));
    }
}
