//! Is a mapped index wholly the one that its version id names?

use sha2::{Digest, Sha256};

use super::format::{DIR_BIT, HEADER_BYTES, NONE};
use super::view::IndexView;
use super::walk::node_of;

/// Says what is wrong with an index.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyIndex {
    /// Its bytes are not those that were written.
    #[error("index is damaged: its bytes have another SHA-256 than its header says")]
    Digest,
    /// Its bytes are those that were written, but they were written wrongly.
    #[error("index was written wrongly: {what} of record {record}")]
    Record {
        /// Which reference or field.
        what: &'static str,
        /// Which record of its section.
        record: usize,
    },
}

impl IndexView<'_> {
    /// Reads the whole index: checks the hash that the version id is half of, and that every reference leads somewhere.
    ///
    /// # Errors
    /// `Digest` where a byte was changed after it was written; `Record` where the writer was wrong.
    pub fn verify(&self) -> Result<(), VerifyIndex> {
        if digest(self.bytes) != Some(self.header.digest) {
            return Err(VerifyIndex::Digest);
        }
        self.verify_dirs()?;
        self.verify_files()?;
        self.verify_packs()?;
        self.verify_slots()?;
        let sources = self.sources().count();
        if sources != self.sources.len() {
            return Err(VerifyIndex::Record { what: "text", record: sources });
        }
        let bad = self.left_out.iter().position(|record| self.text(record.key).is_none());
        bad.map_or(Ok(()), |record| Err(VerifyIndex::Record { what: "left out key", record }))
    }

    fn verify_dirs(&self) -> Result<(), VerifyIndex> {
        // Each node but the root is a child once: the counts add up, the names rise, and each child names its directory.
        let mut children = 0;
        for (number, record) in self.dirs.iter().enumerate() {
            let wrong = |what| Err(VerifyIndex::Record { what, record: number });
            let parent = record.parent.get() as usize;
            if if number == 0 { parent != 0 } else { parent >= number } {
                return wrong("parent directory");
            }
            let refs = self.child_refs(super::DirIndex(number as u32));
            if refs.len() != record.children.get() as usize {
                return wrong("children");
            }
            children += refs.len();
            let mut before: &[u8] = &[];
            for reference in refs {
                let Some(node) = node_of(reference.get()) else { return wrong("child") };
                match (self.name(node), self.parent(node)) {
                    (Some(name), Some(parent)) if name > before && parent.0 as usize == number => {
                        before = name
                    }
                    _ => return wrong("child"),
                }
            }
            if u64::from(record.first_file.get()) + u64::from(record.files.get()) > self.files.len() as u64 {
                return wrong("files below");
            }
        }
        if children != self.children.len() || children + 1 != self.dirs.len() + self.files.len() {
            return Err(VerifyIndex::Record { what: "number of children", record: children });
        }
        Ok(())
    }

    fn verify_files(&self) -> Result<(), VerifyIndex> {
        let mut bytes = 0u64;
        for (number, record) in self.files.iter().enumerate() {
            let wrong = |what| Err(VerifyIndex::Record { what, record: number });
            let file = super::FileIndex(number as u32);
            if usize::from(record.source) >= self.sources.len() {
                return wrong("source");
            }
            if super::etag::read(self, record).is_none() {
                return wrong("ETag");
            }
            if record.pack.get() != NONE && self.span(file).is_none() {
                return wrong("place in the pack");
            }
            bytes = bytes.wrapping_add(record.size.get());
        }
        if bytes != self.header.total_bytes.get() {
            return Err(VerifyIndex::Record { what: "sum of sizes", record: self.files.len() });
        }
        Ok(())
    }

    fn verify_packs(&self) -> Result<(), VerifyIndex> {
        let mut next = 0;
        for (number, record) in self.packs.iter().enumerate() {
            let wrong = |what| Err(VerifyIndex::Record { what, record: number });
            let pack = super::PackIndex(number as u32);
            if record.first_member.get() as usize != next || record.members.get() == 0 {
                return wrong("members of the pack");
            }
            next += record.members.get() as usize;
            if self.pack_members(pack).count() != record.members.get() as usize
                || !self.pack_members(pack).all(|file| self.pack_of(file) == Some(pack))
            {
                return wrong("member of the pack");
            }
        }
        if next != self.members.len() {
            return Err(VerifyIndex::Record { what: "number of members", record: next });
        }
        Ok(())
    }

    fn verify_slots(&self) -> Result<(), VerifyIndex> {
        let mut used = 0;
        for (number, slot) in self.slots.iter().enumerate() {
            let node = slot.node.get();
            if node == NONE {
                continue;
            }
            used += 1;
            let end = if node & DIR_BIT == 0 { self.files.len() } else { self.dirs.len() };
            if (node & !DIR_BIT) as usize >= end {
                return Err(VerifyIndex::Record { what: "slot", record: number });
            }
        }
        if used != self.children.len() {
            return Err(VerifyIndex::Record { what: "number of used slots", record: used });
        }
        Ok(())
    }
}

/// The hash over all of an index file but the hash itself.
pub(super) fn digest(bytes: &[u8]) -> Option<[u8; 32]> {
    let mut hasher = Sha256::new();
    hasher.update(bytes.get(..HEADER_BYTES - 32)?);
    hasher.update(bytes.get(HEADER_BYTES..)?);
    Some(hasher.finalize().into())
}
