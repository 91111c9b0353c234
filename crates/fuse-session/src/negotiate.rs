//! Which answer does the kernel's INIT get?

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::abi::{self, InitIn, InitOut};
use crate::capabilities::Capabilities;

/// Smallest buffer the kernel accepts in a read of the device (`FUSE_MIN_READ_BUFFER`).
const MIN_READ_BUFFER: usize = 8192;
/// Smallest WRITE that is settled. Above the kernel's 4096, so that every settled connection needs more than the smallest
/// buffer and a second INIT on it is noticed.
const MIN_WRITE: u32 = 8192;
/// Room for the head and struct of a WRITE before its data; a page, so that the data stays aligned.
const HEAD_ROOM: usize = 4096;

/// When directories are listed with the attributes of their files.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Readdirplus {
    /// Never.
    Off,
    /// When the kernel guesses that attributes are wanted; it guesses wrong for `find -size`.
    Auto,
    /// Always; pays where names alone are listed.
    Always,
}

/// What a file system asks of the kernel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Wanted {
    /// Capabilities; what the kernel does not offer is left out, see [`Negotiated::capabilities`].
    pub capabilities: Capabilities,
    /// When to list with attributes.
    pub readdirplus: Readdirplus,
    /// Pages a request may have, 256 (1 MiB) at most unless the kernel's limit was raised.
    pub max_pages: u16,
    /// Bytes of one WRITE, 8192 at least; sets the size of each thread's buffer, so keep it small where nothing is
    /// written.
    pub max_write: u32,
    /// Bytes of kernel read-ahead; the kernel takes the lesser of this and its own 128 KiB.
    pub max_readahead: u32,
    /// Read-ahead and asynchronous requests in flight.
    pub max_background: u16,
    /// Background requests above which the kernel calls the file system congested.
    pub congestion_threshold: u16,
}

impl Default for Wanted {
    /// A read-only file system with requests of 1 MiB.
    fn default() -> Self {
        Self {
            capabilities: Capabilities::READ_ONLY,
            readdirplus: Readdirplus::Always,
            max_pages: 256,
            max_write: 64 * 1024,
            max_readahead: 1024 * 1024,
            // 64 as Mountpoint for S3 found enough; the threshold is the kernel's own 3/4.
            max_background: 64,
            congestion_threshold: 48,
        }
    }
}

/// What INIT settled for the life of a connection: all that a successor needs beside the descriptor.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Negotiated {
    /// Protocol minor in use.
    pub minor: u32,
    /// Capabilities that both sides have.
    pub capabilities: Capabilities,
    /// Pages a request may have.
    pub max_pages: u16,
    /// Bytes of one WRITE.
    pub max_write: u32,
    /// Bytes of kernel read-ahead (the mount's bdi may say more).
    pub max_readahead: u32,
}

impl Negotiated {
    /// Gives the size of a buffer that takes every request.
    pub(crate) fn buffer_size(&self) -> usize {
        (self.max_write as usize).saturating_add(HEAD_ROOM).max(MIN_READ_BUFFER)
    }

    /// Gives the most bytes a READ can ask for.
    pub fn max_read(&self) -> u32 {
        u32::from(self.max_pages).saturating_mul(4096)
    }
}

/// A kernel that cannot be served.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("kernel speaks FUSE {major}.{minor}, need 7.{} or newer (Linux 5.4)", abi::OLDEST_MINOR)]
pub struct UnsupportedKernel {
    /// Protocol major of the kernel.
    pub major: u32,
    /// Protocol minor of the kernel.
    pub minor: u32,
}

/// What to do about an INIT.
#[derive(Debug)]
pub(crate) enum InitAnswer {
    /// The kernel is of a newer major: it asks again after this answer.
    AskAgain(InitOut),
    /// Settled.
    Settled(InitOut, Negotiated),
}

/// Decides the answer to INIT.
///
/// # Errors
/// [`UnsupportedKernel`] when the kernel is too old.
pub(crate) fn answer(init: &InitIn, wanted: &Wanted) -> Result<InitAnswer, UnsupportedKernel> {
    let InitIn { major, minor, max_readahead, flags, flags2, .. } = *init;
    if major > abi::MAJOR {
        let answer = InitOut { major: abi::MAJOR, minor: abi::MINOR, ..InitOut::default() };
        return Ok(InitAnswer::AskAgain(answer));
    }
    if major < abi::MAJOR || minor < abi::OLDEST_MINOR {
        return Err(UnsupportedKernel { major, minor });
    }
    let offered = offered(flags, flags2);
    let capabilities = asked(wanted).common(offered);
    let max_pages = match capabilities.has(Capabilities::MAX_PAGES) {
        true => wanted.max_pages.max(1),
        // What a kernel without the flag allows.
        false => 32,
    };
    let negotiated = Negotiated {
        minor: minor.min(abi::MINOR),
        capabilities,
        max_pages,
        max_write: wanted.max_write.max(MIN_WRITE),
        max_readahead: wanted.max_readahead.min(max_readahead),
    };
    let answer = InitOut {
        major: abi::MAJOR,
        minor: negotiated.minor,
        max_readahead: negotiated.max_readahead,
        flags: capabilities.0 as u32,
        max_background: wanted.max_background,
        congestion_threshold: wanted.congestion_threshold,
        max_write: negotiated.max_write,
        time_gran: 1,
        max_pages,
        flags2: (capabilities.0 >> 32) as u32,
        max_stack_depth: if capabilities.has(Capabilities::PASSTHROUGH) { abi::STACK_DEPTH } else { 0 },
        ..InitOut::default()
    };
    Ok(InitAnswer::Settled(answer, negotiated))
}

/// Gives the flags that the kernel offers; the upper half counts only under INIT_EXT.
fn offered(flags: u32, flags2: u32) -> Capabilities {
    let low = Capabilities(u64::from(flags));
    match low.has(Capabilities::INIT_EXT) {
        true => low.with(Capabilities(u64::from(flags2) << 32)),
        false => low,
    }
}

fn asked(wanted: &Wanted) -> Capabilities {
    let readdirplus = match wanted.readdirplus {
        Readdirplus::Off => Capabilities::default(),
        Readdirplus::Auto => Capabilities::READDIRPLUS.with(Capabilities::READDIRPLUS_AUTO),
        Readdirplus::Always => Capabilities::READDIRPLUS,
    };
    wanted
        .capabilities
        .without(Capabilities::READDIRPLUS.with(Capabilities::READDIRPLUS_AUTO))
        .with(readdirplus)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// INIT as Linux 6.18 sends it.
    fn linux() -> InitIn {
        let flags = 0x73ff_fffb;
        InitIn { major: 7, minor: 45, max_readahead: 131_072, flags, flags2: 0x7fd, unused: [0; 11] }
    }

    fn settled(init: &InitIn, wanted: &Wanted) -> (InitOut, Negotiated) {
        match answer(init, wanted).expect("supported") {
            InitAnswer::Settled(out, negotiated) => (out, negotiated),
            InitAnswer::AskAgain(_) => panic!("not settled"),
        }
    }

    #[test]
    fn a_megabyte_of_pages_is_settled_and_what_is_not_asked_is_not_given() {
        let (out, negotiated) = settled(&linux(), &Wanted::default());
        assert_eq!((out.max_pages, negotiated.max_read()), (256, 1 << 20));
        assert_eq!(negotiated.max_readahead, 131_072);
        assert!(negotiated.capabilities.has(Capabilities::READDIRPLUS));
        let not_asked = [
            Capabilities::READDIRPLUS_AUTO,
            Capabilities::NO_OPEN_SUPPORT,
            Capabilities::PASSTHROUGH,
            Capabilities(1 << 19),
            Capabilities(1 << 23),
        ];
        for capability in not_asked {
            assert!(!negotiated.capabilities.has(capability), "{capability:?}");
        }
    }

    #[test]
    fn upper_flags_count_only_with_the_extension_bit() {
        let old = InitIn { flags: linux().flags & !(1 << 30), ..linux() };
        let (out, negotiated) = settled(&old, &Wanted::default());
        assert_eq!(out.flags2, 0);
        assert!(!negotiated.capabilities.has(Capabilities::HAS_RESEND));
        assert!(settled(&linux(), &Wanted::default()).1.capabilities.has(Capabilities::HAS_RESEND));
    }

    #[test]
    fn passthrough_comes_with_the_depth_that_switches_it_on() {
        let wanted = Wanted {
            capabilities: Capabilities::READ_ONLY.with(Capabilities::PASSTHROUGH),
            ..Wanted::default()
        };
        let (out, negotiated) = settled(&linux(), &wanted);
        assert!(negotiated.capabilities.has(Capabilities::PASSTHROUGH));
        assert_eq!((out.max_stack_depth, settled(&linux(), &Wanted::default()).0.max_stack_depth), (1, 0));
        let old = InitIn { flags2: 0x9d, ..linux() };
        let (out, negotiated) = settled(&old, &wanted);
        assert!(!negotiated.capabilities.has(Capabilities::PASSTHROUGH), "Linux before 6.9");
        assert_eq!(out.max_stack_depth, 0);
    }

    #[test]
    fn newer_major_is_asked_to_come_down_and_older_ones_are_refused() {
        let newer = InitIn { major: 8, minor: 3, ..linux() };
        assert!(
            matches!(answer(&newer, &Wanted::default()), Ok(InitAnswer::AskAgain(out)) if out.major == 7)
        );
        for (major, minor) in [(6, 45), (7, 30)] {
            let old = InitIn { major, minor, ..linux() };
            assert_eq!(answer(&old, &Wanted::default()).unwrap_err(), UnsupportedKernel { major, minor });
        }
    }

    #[test]
    fn buffer_takes_the_largest_write_and_the_kernels_minimum() {
        let small = Wanted { max_write: 0, ..Wanted::default() };
        assert!(settled(&linux(), &small).1.buffer_size() >= 8192);
        let large = Wanted { max_write: 1 << 20, ..Wanted::default() };
        assert_eq!(settled(&linux(), &large).1.buffer_size(), (1 << 20) + 4096);
    }

    #[test]
    fn what_was_settled_can_be_kept_as_text() {
        let (_, negotiated) = settled(&linux(), &Wanted::default());
        let text = serde_json::to_string(&negotiated).expect("print");
        assert_eq!(serde_json::from_str::<Negotiated>(&text).expect("read"), negotiated);
    }
}
