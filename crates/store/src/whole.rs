//! Which store files may the kernel read itself, and what keeps them as they are?
//!
//! Only files of one large object of which all chunks are there and were verified in this boot. A file is handed over as an
//! open one with a shared flock on its data. The kernel keeps that very open file, and the lock with it, for as long as it
//! has use for it, also when this process dies; who evicts takes the exclusive lock first, so that no process of the
//! node evicts what the kernel holds.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use millrace_api::block::{CHUNK_BYTES, Span};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::open_file::{LockedFile, OpenFile};
use crate::seal::{BootTag, Seal};
use crate::sidecar::pages_of;
use crate::tier::{Purpose, Tier};

/// How often, and how far apart, a file is tried to be locked that is going to be handed over; it is locked by others for
/// microseconds at a time unless it goes.
const LOCK_TRIES: u32 = 4;
const LOCK_PAUSE: Duration = Duration::from_micros(100);

/// Whether the kernel could read an object itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whole {
    /// It can: see [`Store::pin`](crate::Store::pin).
    Verified {
        /// Tells the file from another one of the same object, for as long as either is open.
        tag: u64,
    },
    /// All chunks seem to be there; they were not verified in this boot.
    Unverified,
    /// Chunks are absent.
    Incomplete,
    /// The object shares its file with others.
    Packed,
}

/// A whole verified store file, open for reading. Nobody evicts it while this file, or what the kernel made of it, is open.
#[derive(Debug)]
pub struct Pin {
    /// The object's bytes, from the first to the last.
    pub file: File,
    /// As in [`Whole::Verified`].
    pub tag: u64,
    /// Whether it is a file of a borrowed folder.
    pub is_borrowed: bool,
}

/// Whether an object fills its store file.
pub(crate) fn is_alone(span: &Span) -> bool {
    span.offset == 0 && span.first_slot == 0 && span.size == span.file.len && span.size > 0
}

impl Tier {
    /// What there is of an object in this tier. Notes a use.
    pub(crate) fn whole(&self, span: &Span, boot: BootTag) -> Whole {
        let Some(open) = self.open_linked(span) else { return Whole::Incomplete };
        match self.look(&open, boot) {
            Ok(whole) => whole,
            Err(error) => {
                self.sidecar_fails(&open, &error);
                Whole::Incomplete
            }
        }
    }

    fn look(&self, open: &OpenFile, boot: BootTag) -> io::Result<Whole> {
        if !is_filled(open)? {
            return Ok(Whole::Incomplete);
        }
        open.touch(0..1, self.stamp());
        Ok(match open.seal()? {
            Seal::Verified { boot: verified, .. } if verified == boot => Whole::Verified { tag: open.tag()? },
            Seal::Verified { .. } | Seal::Open | Seal::Damaged => Whole::Unverified,
        })
    }

    /// Opens the file of an object that was verified in this boot, and keeps it from eviction.
    pub(crate) fn pin(&self, span: &Span, boot: BootTag) -> Option<Pin> {
        let open = self.open_linked(span)?;
        let pinned = self.pin_open(&open, boot);
        pinned.unwrap_or_else(|error| {
            tracing::debug!(content = %span.file.content, error = %error, "open store file for the kernel");
            None
        })
    }

    fn pin_open(&self, open: &Arc<OpenFile>, boot: BootTag) -> io::Result<Option<Pin>> {
        // An open file of its own, since its lock goes to the kernel with it.
        let file = self.open_data(open.layout.file.content)?;
        if !lock_shared(&file)? {
            return Ok(None);
        }
        // From here on nobody evicts it, if it is still the one that was looked at.
        let found = file.metadata()?;
        let tag = open.tag()?;
        if found.nlink() == 0 || (found.dev(), found.ino()) != (open.device()?, tag) {
            return Ok(None);
        }
        let is_handed_over = match open.seal()? {
            Seal::Verified { boot: verified, is_handed_over } if verified == boot => is_handed_over,
            Seal::Verified { .. } | Seal::Open | Seal::Damaged => return Ok(None),
        };
        if !is_handed_over && !hand_over(open, boot)? {
            return Ok(None);
        }
        // Last: a process of an earlier version gives blocks back without a look at the seal.
        Ok((is_filled(open)? && open.is_linked()).then_some(Pin {
            file,
            tag,
            is_borrowed: self.borrowed.is_some(),
        }))
    }

    /// The store file of an object that fills it, if it has its name.
    fn open_linked(&self, span: &Span) -> Option<Arc<OpenFile>> {
        if !is_alone(span) {
            return None;
        }
        let open = self.open(&span.file, Purpose::Use)?;
        if open.is_linked() {
            return Some(open);
        }
        self.open_files.remove(span.file.content);
        self.open(&span.file, Purpose::Use)
    }
}

/// Locks a file that is to be handed over; false where somebody takes it away just now.
fn lock_shared(file: &File) -> io::Result<bool> {
    for tries_left in (0..LOCK_TRIES).rev() {
        match flock(file, FlockOperation::NonBlockingLockShared) {
            Ok(()) => return Ok(true),
            // Most often somebody only looks whether it is held.
            Err(Errno::WOULDBLOCK) if tries_left > 0 => std::thread::sleep(LOCK_PAUSE),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(false)
}

/// Notes that the kernel reads the file from now on; false where it is not verified any more.
fn hand_over(open: &OpenFile, boot: BootTag) -> io::Result<bool> {
    let Ok(locked) = open.lock() else { return Ok(false) };
    match open.seal()? {
        Seal::Verified { boot: verified, .. } if verified == boot => {
            locked.set_seal(Seal::Verified { boot, is_handed_over: true })?;
            Ok(true)
        }
        Seal::Verified { .. } | Seal::Open | Seal::Damaged => Ok(false),
    }
}

/// Whether the records say that every block is full: quick, and a guess only, for records carry no check.
pub(crate) fn is_filled(open: &OpenFile) -> io::Result<bool> {
    let file = open.layout.file;
    let full = |block: u32| {
        let slots = file.slots_of(block);
        let whole = slots.len() as u64 * 16;
        if slots.end < file.slots {
            return whole;
        }
        let last = (file.len - u64::from(file.slots - 1) * CHUNK_BYTES).min(CHUNK_BYTES) as u32;
        whole - 16 + u64::from(pages_of(last))
    };
    Ok(open.records()?.iter().zip(0..).all(|(record, block)| u64::from(record.pages) == full(block)))
}

/// The right to take a file away, which nobody has while the kernel may read it.
#[derive(Debug)]
pub(crate) struct Unheld<'a>(&'a File);

impl OpenFile {
    /// Whether the kernel may read the file now. Only for one that no other thread has; asks by taking the lock for a
    /// moment, for which whoever pins the file waits.
    pub(crate) fn is_held(&self) -> bool {
        let is_free = flock(&*self.data, FlockOperation::NonBlockingLockExclusive).is_ok();
        drop(is_free.then(|| Unheld(&self.data)));
        !is_free
    }
}

impl<'a> Unheld<'a> {
    /// `None` where the kernel, or somebody about to give the file to it, holds it. Under the file's lock only: threads of
    /// this process share the open file, and so this right.
    pub fn of(locked: &LockedFile<'a>) -> io::Result<Option<Self>> {
        let data: &File = locked.data();
        match flock(data, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Self(data))),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Unheld<'_> {
    fn drop(&mut self) {
        // It cannot fail for a lock that is held; else it goes with the file.
        let _ = flock(self.0, FlockOperation::Unlock);
    }
}
