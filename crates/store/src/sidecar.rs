//! What do the bytes of a sidecar mean?
//!
//! A sidecar lies beside each store file and says which of its chunks are there. It is read and written with
//! pread and pwrite, never mapped: a mapping would turn a cut file, a full tmpfs or a bad sector into SIGBUS, and the
//! page cache shows every process the same bytes either way. All numbers are little-endian.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic `MRSTORE\n` |
//! | 8 | 4 | format version, 1 |
//! | 12 | 4 | slots per block |
//! | 16 | 16 | content id |
//! | 32 | 8 | length of the store file, bytes |
//! | 40 | 4 | slots |
//! | 44 | 4 | CRC32C of bytes 0..44 |
//! | 48 | 1 | marks: bit 0 content is unused, bit 1 has blocks read through; a wrong mark costs only order of eviction |
//! | 49 | 7 | zero |
//! | 56 | 8 | seal, see the module `seal` |
//! | 64 | 8 × blocks | block records: stamp of last use (u32), then pages (bits 0..24) and read-through (bit 31) |
//! | 64 + 8 × blocks | 8 × slots | entries |
//!
//! An entry is 0 where the chunk is absent. Else it proves itself, so that a flipped bit makes it invalid, not wrong:
//!
//! | bits | what |
//! |---|---|
//! | 0..32 | CRC32C of the chunk |
//! | 32..36 | pages of 4 KiB that the chunk occupies, less one |
//! | 36..64 | check: a hash of the other bits, the slot and the content id; never 0 |
//!
//! Compatibility: a file of another version is removed and fetched again. A test pins the bytes.

use millrace_api::block::StoreFile;
use millrace_api::crc::crc32c;
use millrace_api::ids::ContentId;

/// First bytes of every sidecar.
const MAGIC: [u8; 8] = *b"MRSTORE\n";

/// Version of the layout above, of the usage record, and of the names of files.
pub(crate) const FORMAT_VERSION: u32 = 1;

/// Length of the header, bytes.
pub(crate) const HEADER_BYTES: usize = 64;

/// Unit of accounting, bytes: what file systems allocate.
pub(crate) const PAGE_BYTES: u64 = 4096;

/// Offset of the byte of marks.
pub(crate) const MARKS_OFFSET: u64 = 48;

/// Offset of the seal.
pub(crate) const SEAL_OFFSET: u64 = 56;

/// Mark: no version in use needs this content.
pub(crate) const MARK_UNUSED: u8 = 1;

/// Mark: some block was read through for others.
pub(crate) const MARK_READ_THROUGH: u8 = 2;

/// Most slots that a sidecar may claim: a 5 TiB object, S3's largest, has 83,886,080.
const MAX_SLOTS: u32 = 1 << 27;

/// Why bytes are not the header of a sidecar of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeHeader {
    /// Fewer bytes than a header has.
    #[error("{len} bytes are too few for a sidecar")]
    Short { len: usize },
    /// Another kind of file.
    #[error("not a sidecar")]
    Magic,
    /// Another version of this format.
    #[error("sidecar of version {version}, expected {FORMAT_VERSION}")]
    Version { version: u32 },
    /// Bits have changed.
    #[error("sidecar header does not match its checksum")]
    Checksum,
    /// Values that no store file has.
    #[error("sidecar header says {slots} slots in {len} bytes, {slots_per_block} a block")]
    Bounds { slots: u32, len: u64, slots_per_block: u32 },
}

/// Where things lie in one sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The store file described, with the block size it was made with.
    pub file: StoreFile,
}

impl Layout {
    /// The layout for a store file; `None` for one that cannot be.
    pub fn new(file: StoreFile) -> Option<Self> {
        let possible = file.slots > 0 && file.slots <= MAX_SLOTS && file.slots_per_block > 0;
        // Every slot holds a byte at least, and alignment gaps stay below a page.
        let fits = file.len >= u64::from(file.slots) && file.len <= u64::from(file.slots) << 17;
        (possible && fits).then_some(Self { file })
    }

    /// Offset of a block's record.
    pub fn record_offset(&self, block: u32) -> u64 {
        HEADER_BYTES as u64 + 8 * u64::from(block)
    }

    /// Offset of a slot's entry.
    pub fn entry_offset(&self, slot: u32) -> u64 {
        self.record_offset(self.file.blocks()) + 8 * u64::from(slot)
    }

    /// Length of the whole sidecar, bytes.
    pub fn len(&self) -> u64 {
        self.entry_offset(self.file.slots)
    }

    /// What the sidecar takes from the quota, bytes.
    pub fn allocated_bytes(&self) -> u64 {
        self.len().next_multiple_of(PAGE_BYTES)
    }

    /// The header's bytes, without marks.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let StoreFile { content, len, slots, slots_per_block } = self.file;
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&slots_per_block.to_le_bytes());
        bytes[16..32].copy_from_slice(&content.0);
        bytes[32..40].copy_from_slice(&len.to_le_bytes());
        bytes[40..44].copy_from_slice(&slots.to_le_bytes());
        let crc = crc32c(&bytes[..44]);
        bytes[44..48].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a header back, with its marks.
    pub fn decode(bytes: &[u8]) -> Result<(Self, u8), DecodeHeader> {
        let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(DecodeHeader::Short { len: bytes.len() });
        };
        if header[..8] != MAGIC {
            return Err(DecodeHeader::Magic);
        }
        let version = u32_at(header, 8);
        if version != FORMAT_VERSION {
            return Err(DecodeHeader::Version { version });
        }
        if crc32c(&header[..44]) != u32_at(header, 44) {
            return Err(DecodeHeader::Checksum);
        }
        let mut content = [0; 16];
        content.copy_from_slice(&header[16..32]);
        let len = u64::from(u32_at(header, 32)) | u64::from(u32_at(header, 36)) << 32;
        let (slots, slots_per_block) = (u32_at(header, 40), u32_at(header, 12));
        let file = StoreFile { content: ContentId(content), len, slots, slots_per_block };
        let layout = Self::new(file).ok_or(DecodeHeader::Bounds { slots, len, slots_per_block })?;
        Ok((layout, header[MARKS_OFFSET as usize]))
    }

    /// What the entry of a slot says.
    pub fn entry(&self, slot: u32, raw: u64) -> Entry {
        if raw == 0 {
            return Entry::Absent;
        }
        let (value, check) = (raw & VALUE_MASK, raw >> VALUE_BITS);
        if check != self.check(slot, value) {
            return Entry::Damaged;
        }
        Entry::Present { crc: value as u32, pages: (value >> 32) as u32 + 1 }
    }

    /// The entry of a present chunk of `len` bytes, 1 to 64 KiB.
    pub fn present(&self, slot: u32, crc: u32, len: u32) -> u64 {
        let value = u64::from(crc) | u64::from(pages_of(len) - 1) << 32;
        value | self.check(slot, value) << VALUE_BITS
    }

    /// 28 bits that any other value, slot or content is unlikely to have.
    fn check(&self, slot: u32, value: u64) -> u64 {
        let [a, b] = halves(self.file.content);
        // The finalizer of MurmurHash3: each input bit moves half of the output bits.
        let mut hash = value ^ a ^ u64::from(slot).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.rotate_left(31);
        hash = (hash ^ hash >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
        hash = (hash ^ hash >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        ((hash ^ hash >> 33) >> VALUE_BITS).max(1)
    }
}

const VALUE_BITS: u32 = 36;
const VALUE_MASK: u64 = (1 << VALUE_BITS) - 1;

/// What a sidecar says of one chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entry {
    /// It is not there.
    Absent,
    /// It is there.
    Present { crc: u32, pages: u32 },
    /// The entry's bits have changed, so the chunk counts as not there.
    Damaged,
}

/// What a sidecar says of one block. Nothing here can make a wrong byte, so it carries no check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Record {
    /// When it was last used, see [`stamp_of`].
    pub stamp: u32,
    /// Pages of its present chunks.
    pub pages: u32,
    /// Whether it was read through for others.
    pub is_read_through: bool,
}

const PAGES_MASK: u32 = (1 << 24) - 1;

impl Record {
    /// Reads a record; any 8 bytes are one.
    pub fn decode(bytes: [u8; 8]) -> Self {
        let (stamp, rest) = (u32_at(&bytes, 0), u32_at(&bytes, 4));
        Self { stamp, pages: rest & PAGES_MASK, is_read_through: rest >> 31 == 1 }
    }

    /// The record's bytes.
    pub fn encode(self) -> [u8; 8] {
        let rest = self.pages & PAGES_MASK | u32::from(self.is_read_through) << 31;
        (u64::from(self.stamp) | u64::from(rest) << 32).to_le_bytes()
    }

    /// What the block takes from the quota, bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.pages) * PAGE_BYTES
    }
}

/// Pages that a chunk of `len` bytes occupies: 1 to 16.
pub(crate) fn pages_of(len: u32) -> u32 {
    len.div_ceil(PAGE_BYTES as u32).clamp(1, 16)
}

/// Where stamps begin: 2026-01-01, in milliseconds since 1970. Their unit is 256 ms, so they last until 2060.
const STAMP_START_MILLIS: u64 = 1_767_225_600_000;

/// The stamp for a time in milliseconds since 1970.
pub(crate) fn stamp_of(millis: u64) -> u32 {
    u32::try_from(millis.saturating_sub(STAMP_START_MILLIS) / 256).unwrap_or(u32::MAX)
}

fn halves(content: ContentId) -> [u64; 2] {
    let whole = u128::from_le_bytes(content.0);
    [whole as u64, (whole >> 64) as u64]
}

/// The little-endian number at `offset`, which the caller knows to be inside.
fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(four)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn golden() -> Layout {
        let content = ContentId(std::array::from_fn(|at| at as u8));
        Layout::new(StoreFile { content, len: 200_000, slots: 4, slots_per_block: 16 }).unwrap()
    }

    #[test]
    fn bytes_of_version_1_are_pinned() {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let header = golden().encode();
        assert_eq!(
            hex(&header),
            "4d5253544f52450a0100000010000000000102030405060708090a0b0c0d0e0f400d030000000000040000003c8f35c4"
                .to_owned() + &"0".repeat(32)
        );
        assert_eq!(golden().entry_offset(0), 72);
        assert_eq!(golden().len(), 104);
        assert_eq!(format!("{:016x}", golden().present(3, 0xdead_beef, 3392)), "317f7b50deadbeef");
        let record = Record { stamp: 0x0102_0304, pages: 49, is_read_through: true };
        assert_eq!(hex(&record.encode()), "0403020131000080");
    }

    #[test]
    fn a_header_reads_back_with_its_marks() {
        let mut header = golden().encode();
        header[MARKS_OFFSET as usize] = MARK_UNUSED;
        assert_eq!(Layout::decode(&header), Ok((golden(), MARK_UNUSED)));
    }

    #[test]
    fn each_refusal_is_told_apart() {
        let good = golden().encode();
        let with = |at: usize, byte: u8| {
            let mut bytes = good;
            bytes[at] = byte;
            Layout::decode(&bytes)
        };
        assert_eq!(Layout::decode(&good[..63]), Err(DecodeHeader::Short { len: 63 }));
        assert_eq!(with(0, b'X'), Err(DecodeHeader::Magic));
        assert_eq!(with(8, 2), Err(DecodeHeader::Version { version: 2 }));
        assert_eq!(with(20, 0xff), Err(DecodeHeader::Checksum));
        let mut none = good;
        none[40..44].fill(0);
        let crc = crc32c(&none[..44]);
        none[44..48].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(
            Layout::decode(&none),
            Err(DecodeHeader::Bounds { slots: 0, len: 200_000, slots_per_block: 16 })
        );
    }

    #[test]
    fn hundred_thousand_mutations_never_yield_another_header() {
        let good = golden().encode();
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        for _ in 0..120_000 {
            let mut bytes = good.to_vec();
            for _ in 0..1 + random() % 4 {
                let at = (random() % 64) as usize;
                bytes[at] ^= 1 << (random() % 8);
            }
            if random().is_multiple_of(16) {
                bytes.truncate((random() % 65) as usize);
            }
            if let Ok((layout, _)) = Layout::decode(&bytes) {
                assert_eq!(layout, golden(), "only bytes outside the checksum may differ: {bytes:02x?}");
            }
        }
    }

    #[test]
    fn every_flipped_bit_of_an_entry_is_noticed() {
        let layout = golden();
        for slot in 0..4 {
            let raw = layout.present(slot, 0x1234_5678, 65_536);
            assert_eq!(layout.entry(slot, raw), Entry::Present { crc: 0x1234_5678, pages: 16 });
            for first in 0..64 {
                assert_eq!(layout.entry(slot, raw ^ 1 << first), Entry::Damaged, "{slot} {first}");
                for second in 0..first {
                    assert_eq!(layout.entry(slot, raw ^ 1 << first ^ 1 << second), Entry::Damaged);
                }
            }
            assert_eq!(layout.entry(slot + 1, raw), Entry::Damaged, "an entry of another slot");
        }
        assert_eq!(layout.entry(0, 0), Entry::Absent);
    }

    proptest! {
        #[test]
        fn entries_and_records_read_back(crc: u32, len in 1_u32..=65_536, slot in 0_u32..4, stamp: u32, pages in 0_u32..1 << 24, is_read_through: bool) {
            let layout = golden();
            let raw = layout.present(slot, crc, len);
            prop_assert!(raw != 0);
            prop_assert_eq!(layout.entry(slot, raw), Entry::Present { crc, pages: len.div_ceil(4096) });
            let record = Record { stamp, pages, is_read_through };
            prop_assert_eq!(Record::decode(record.encode()), record);
        }

        #[test]
        fn random_words_are_no_entries(raw in 1_u64.., slot in 0_u32..4) {
            // One word in 2^28 is; none of these.
            prop_assert_eq!(golden().entry(slot, raw), Entry::Damaged);
        }
    }
}
