//! Are the files that the kernel reads itself still right?
//!
//! Nobody compares their bytes when they are read, so the scrub does now and then: it walks over the tier's verified files
//! in the order of their names, and goes on where the last scrub of any process stopped. One process of a folder at a time, where
//! the folder is the store's own.
//!
//! `<dir>/scrub` holds the id of the content that was looked at last; its flock says that somebody is at it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use millrace_api::block::{Span, chunk_count};
use millrace_api::ids::ContentId;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::pair::Opened;
use crate::recount::contents_of_shard;
use crate::seal::{BootTag, Seal};
use crate::tier::Tier;
use crate::verify::{Occasion, Verification};

/// What one scrub came to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scrubbed {
    /// Files looked at.
    pub files: u64,
    /// Files that were bad and are gone.
    pub bad_files: u64,
}

impl Tier {
    /// Looks once at all verified files, unless another process is at it or `go_on` calls it off.
    pub(crate) fn scrub(&self, boot: BootTag, go_on: &mut dyn FnMut(u64) -> bool) -> io::Result<Scrubbed> {
        let mut done = Scrubbed::default();
        let note = match self.borrowed {
            // Nothing of ours is left in a folder that is somebody else's: each pass begins anew.
            Some(_) => None,
            None => match take(&self.config.dir.join("scrub"))? {
                Some(note) => Some(note),
                None => return Ok(done),
            },
        };
        let mut last = [0; 16];
        // A note that is cut short begins anew.
        let read = note.as_ref().and_then(|note| note.read_exact_at(&mut last, 0).ok());
        let last = read.map(|()| ContentId(last));
        // None is before the first. The shard of the last one comes twice: what is behind it first, the rest at the end.
        let last = last.map_or(0, |last| u128::from_be_bytes(last.0));
        let from = (last >> 120) as u8;
        for (step, shard) in (from..=255).chain(0..=from).enumerate() {
            let mut contents = contents_of_shard(&self.config.dir, shard);
            contents.sort_unstable_by_key(|content| content.0);
            if shard == from {
                contents.retain(|content| (u128::from_be_bytes(content.0) > last) == (step == 0));
            }
            for content in contents {
                match self.scrub_file(content, boot, go_on) {
                    None => continue,
                    Some(Verification::Bad) => done.bad_files += 1,
                    Some(Verification::Undecided) if !go_on(0) => return Ok(done),
                    Some(Verification::Verified | Verification::Incomplete | Verification::Undecided) => {}
                }
                done.files += 1;
                if let Some(note) = &note {
                    note.write_all_at(&content.0, 0)?;
                }
            }
            if !go_on(0) {
                return Ok(done);
            }
        }
        Ok(done)
    }

    /// `None` for a file that was never verified: its readers compare every chunk.
    fn scrub_file(
        &self,
        content: ContentId,
        boot: BootTag,
        go_on: &mut dyn FnMut(u64) -> bool,
    ) -> Option<Verification> {
        let Ok(Opened::File(open)) = self.open_pair(content) else { return None };
        let file = open.layout.file;
        if open.seal().is_ok_and(|seal| seal == Seal::Open) || chunk_count(file.len) != file.slots {
            return None;
        }
        drop(open);
        let span = Span { file, offset: 0, first_slot: 0, size: file.len };
        Some(self.verify(&span, boot, Occasion::Scrub, go_on))
    }
}

/// Opens and locks the note; `None` where another process has it.
fn take(path: &std::path::Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    let note = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    match flock(&note, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(note)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
