//! How do the assembled parts become one index file?

use std::io::{self, Read, Seek, SeekFrom, Write};

use sha2::{Digest, Sha256};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use super::entry::{AssembleIndex, Streams};
use super::format::{
    DirRecord, FORMAT_VERSION, HEADER_BYTES, Header, LeftOutRecord, MAGIC, SECTION_ALIGN_BYTES, Section,
    SectionPlace, Slot, SourceRecord,
};
use super::slots::{fill_slots, slot_count};
use crate::block::BlockSize;
use crate::ids::VersionId;
use crate::ino::NUMBERING_VERSION;

/// How much is copied at a time: large beside a system call, small beside the memory of a worker.
const COPY_BYTES: usize = 256 * 1024;

/// What an [`super::Assembler`] keeps in memory: everything but the streams.
#[derive(Debug, Clone)]
pub struct Assembled {
    pub(super) block: BlockSize,
    pub(super) total_bytes: u64,
    pub(super) left_out_total: u64,
    pub(super) files: u32,
    pub(super) children: u32,
    pub(super) packs: u32,
    pub(super) members: u32,
    pub(super) text_bytes: u64,
    pub(super) sources: Vec<SourceRecord>,
    pub(super) dirs: Vec<DirRecord>,
    pub(super) left_out: Vec<LeftOutRecord>,
}

impl Assembled {
    /// How many hash slots the index has: the length of the scratch table that [`write`](Self::write) takes.
    pub fn slot_count(&self) -> usize {
        slot_count(self.children.into()) as usize
    }

    /// Writes the whole index to `out`, from its start, and returns its id. `streams` read what was written to those of
    /// the assembler, from their start; `slots` is scratch memory of [`slot_count`](Self::slot_count) slots.
    ///
    /// Writes in sequence and in large pieces, then once more the header.
    ///
    /// # Errors
    /// `Write` where a stream or `out` fails, `Length` where a stream has another length than was written.
    pub fn write<R: Read, O: Write + Seek>(
        &self,
        mut streams: Streams<R>,
        slots: &mut [Slot],
        out: &mut O,
    ) -> Result<VersionId, AssembleIndex> {
        let wrong = |stream| move |source| AssembleIndex::Write { stream, source };
        if slots.len() != self.slot_count() {
            let (expected, got) = (self.slot_count() as u64, slots.len() as u64);
            return Err(AssembleIndex::Length { stream: "slots", expected, got });
        }
        let longest = fill_slots(slots, &mut streams.hashes).map_err(wrong("hashes"))?;
        let mut header = self.header(longest);
        let start = out.stream_position().map_err(wrong("header"))?;
        out.write_all(header.as_bytes()).map_err(wrong("header"))?;

        let mut sum = Sum { out, hasher: Sha256::new(), written: HEADER_BYTES as u64 };
        sum.hasher.update(&header.as_bytes()[..HEADER_BYTES - 32]);
        sum.section("sources", self.sources.as_bytes())?;
        sum.copy("files", &mut streams.files, place(&header, Section::Files))?;
        sum.section("directories", self.dirs.as_bytes())?;
        sum.copy("children", &mut streams.children, place(&header, Section::Children))?;
        sum.copy("packs", &mut streams.packs, place(&header, Section::Packs))?;
        sum.copy("members", &mut streams.members, place(&header, Section::Members))?;
        sum.section("slots", slots.as_bytes())?;
        sum.section("left out keys", self.left_out.as_bytes())?;
        sum.copy("text", &mut streams.text, place(&header, Section::Text))?;

        header.digest = sum.hasher.finalize().into();
        out.seek(SeekFrom::Start(start)).map_err(wrong("header"))?;
        out.write_all(header.as_bytes()).map_err(wrong("header"))?;
        out.flush().map_err(wrong("header"))?;
        let mut id = [0; 16];
        id.copy_from_slice(&header.digest[..16]);
        Ok(VersionId(id))
    }

    fn header(&self, longest_probe: u32) -> Header {
        let mut sections = [SectionPlace { offset: U64::ZERO, len: U64::ZERO }; 9];
        let mut end = HEADER_BYTES as u64;
        for section in Section::ALL {
            let count = match section {
                Section::Sources => self.sources.len() as u64,
                Section::Files => self.files.into(),
                Section::Dirs => self.dirs.len() as u64,
                Section::Children => self.children.into(),
                Section::Packs => self.packs.into(),
                Section::Members => self.members.into(),
                Section::Slots => self.slot_count() as u64,
                Section::LeftOut => self.left_out.len() as u64,
                Section::Text => self.text_bytes,
            };
            let offset = end.next_multiple_of(SECTION_ALIGN_BYTES);
            let len = count * section.record_bytes() as u64;
            sections[section as usize] = SectionPlace { offset: U64::new(offset), len: U64::new(len) };
            end = offset + len;
        }
        Header {
            magic: MAGIC,
            format_version: U32::new(FORMAT_VERSION),
            header_bytes: U32::new(HEADER_BYTES as u32),
            numbering_version: U32::new(NUMBERING_VERSION),
            longest_probe: U32::new(longest_probe),
            block_bytes: U64::new(self.block.bytes()),
            total_bytes: U64::new(self.total_bytes),
            left_out_total: U64::new(self.left_out_total),
            sections,
            reserved: [0; 32],
            digest: [0; 32],
        }
    }
}

/// Writes sections one after the other and hashes what it writes.
struct Sum<'o, O> {
    out: &'o mut O,
    hasher: Sha256,
    written: u64,
}

impl<O: Write> Sum<'_, O> {
    fn section(&mut self, name: &'static str, bytes: &[u8]) -> Result<(), AssembleIndex> {
        self.copy(name, &mut &bytes[..], bytes.len() as u64)
    }

    fn copy(&mut self, name: &'static str, from: &mut impl Read, len: u64) -> Result<(), AssembleIndex> {
        let wrong = |source| AssembleIndex::Write { stream: name, source };
        let gap = self.written.next_multiple_of(SECTION_ALIGN_BYTES) - self.written;
        self.put(&[0; SECTION_ALIGN_BYTES as usize][..gap as usize]).map_err(wrong)?;
        let mut buffer = vec![0; COPY_BYTES.min(len as usize + 1)];
        let mut got = 0;
        loop {
            match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => {
                    got += count as u64;
                    if got > len {
                        break;
                    }
                    self.put(&buffer[..count]).map_err(wrong)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(wrong(error)),
            }
        }
        if got == len { Ok(()) } else { Err(AssembleIndex::Length { stream: name, expected: len, got }) }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.written += bytes.len() as u64;
        self.out.write_all(bytes)
    }
}

fn place(header: &Header, section: Section) -> u64 {
    header.sections[section as usize].len.get()
}
