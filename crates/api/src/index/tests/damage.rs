//! What does an index do when its bytes are not what was written?

use std::io::Cursor;

use proptest::prelude::*;

use super::super::format::{LeftOutRecord, Section, TextRef};
use super::super::{Assembled, Assembler, IndexView, OpenIndex, Streams, VerifyIndex};
use super::{block, read_all, sample, source};

#[test]
fn every_change_of_a_byte_is_refused() {
    let good = sample();
    assert_eq!(IndexView::open(&good).unwrap().verify(), Ok(()));
    let mut bytes = good.clone();
    for at in 0..good.len() {
        for bits in [1, 0x80, 0xFF] {
            bytes[at] ^= bits;
            let verified = IndexView::open(&bytes).map(|view| view.verify());
            assert!(!matches!(verified, Ok(Ok(()))), "byte {at} ^ {bits:#x}");
            bytes[at] ^= bits;
        }
    }
}

#[test]
fn every_truncation_and_every_extra_byte_is_refused_at_open() {
    let good = sample();
    for len in 0..good.len() {
        assert!(IndexView::open(&good[..len]).is_err(), "{len} bytes");
    }
    let longer = [&good[..], b"x"].concat();
    assert!(matches!(IndexView::open(&longer), Err(OpenIndex::Section { .. })));
}

#[test]
fn a_header_of_another_program_says_which() {
    let good = sample();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        IndexView::open(&bytes).map(|_| ()).unwrap_err()
    };
    assert!(matches!(with(0, b'X'), OpenIndex::Magic { .. }));
    assert_eq!(with(8, 2), OpenIndex::FormatVersion { version: 2 });
    assert_eq!(with(12, 1), OpenIndex::Header { field: "header length", value: 257 });
    assert_eq!(with(16, 7), OpenIndex::NumberingVersion { version: 7 });
    assert_eq!(with(24, 1), OpenIndex::Header { field: "block size", value: (1 << 20) + 1 });
    assert!(matches!(with(48, 1), OpenIndex::Section { .. }));
    assert!(matches!(IndexView::open(b""), Err(OpenIndex::TooShort { len: 0 })));
}

#[test]
fn counts_that_no_index_has_are_refused_at_open() {
    let assembled = || {
        let assembler = Assembler::new(block(), vec![source("", "")], Streams::<Vec<u8>>::default()).unwrap();
        assembler.finish().unwrap().1
    };
    let refused = |assembled: Assembled, packs: &[u8]| {
        let mut bytes = Cursor::new(Vec::new());
        let text = vec![0; assembled.text_bytes as usize];
        let streams = Streams { packs, text: &text[..], ..Streams::default() };
        assembled.write(streams, &mut [], &mut bytes).unwrap();
        match IndexView::open(bytes.get_ref()) {
            Err(OpenIndex::Header { field, value }) => (field, value),
            other => panic!("{other:?}"),
        }
    };
    let many = Assembled { sources: assembled().sources.repeat(17), ..assembled() };
    assert_eq!(refused(many, b""), ("number of sources", 17));
    assert_eq!(refused(Assembled { dirs: Vec::new(), ..assembled() }, b""), ("number of directories", 0));
    assert_eq!(refused(Assembled { packs: 1, ..assembled() }, &[0; 40]), ("number of packs", 1));
    let record = LeftOutRecord { key: TextRef::default(), reason: 1, source: 0, reserved: [0; 6] };
    let many = Assembled { left_out: vec![record; 1001], ..assembled() };
    assert_eq!(refused(many, b""), ("number of listed keys", 1001));
}

#[test]
fn what_a_wrong_writer_would_write_is_refused_record_by_record() {
    // A wrong writer hashes what it wrote, so each record is made wrong and the digest made right.
    let good = sample();
    let view = IndexView::open(&good).unwrap();
    let place = |section: Section| view.header.sections[section as usize].offset.get() as usize;
    let cases = [
        (Section::Sources, 7, 0x7F, "text"),
        (Section::Files, 12, 0x7F, "source"),
        (Section::Files, 64 + 13, 4, "ETag"),
        (Section::Files, 64 + 18, 0x7F, "sum of sizes"),
        (Section::Files, 58, 0x7F, "place in the pack"),
        (Section::Dirs, 8, 0x7F, "parent directory"),
        (Section::Dirs, 14, 0x7F, "children"),
        (Section::Dirs, 16, 0x03, "number of children"),
        (Section::Dirs, 38, 0x7F, "files below"),
        (Section::Children, 2, 0x7F, "child"),
        (Section::Packs, 24, 0x7F, "members of the pack"),
        (Section::Packs, 28, 0x01, "number of members"),
        (Section::Members, 2, 0x7F, "member of the pack"),
        (Section::LeftOut, 7, 0x7F, "left out key"),
    ];
    for (section, offset, mask, expected) in cases {
        let mut bytes = good.clone();
        bytes[place(section) + offset] ^= mask;
        seal(&mut bytes);
        let refused = IndexView::open(&bytes).unwrap().verify().unwrap_err();
        assert!(
            matches!(refused, VerifyIndex::Record { what, .. } if what == expected),
            "{expected}: {refused}"
        );
    }
    let mut bytes = good.clone();
    let slots = place(Section::Slots);
    let used = (0..).find(|slot| bytes[slots + slot * 8 + 4..][..4] != [0xFF; 4]).unwrap();
    bytes[slots + used * 8 + 6] ^= 0x10;
    seal(&mut bytes);
    let refused = IndexView::open(&bytes).unwrap().verify().unwrap_err();
    assert!(matches!(refused, VerifyIndex::Record { what: "slot", .. }), "{refused}");
    bytes[slots + used * 8 + 4..][..4].fill(0xFF);
    seal(&mut bytes);
    let refused = IndexView::open(&bytes).unwrap().verify().unwrap_err();
    assert!(matches!(refused, VerifyIndex::Record { what: "number of used slots", .. }), "{refused}");
}

fn seal(bytes: &mut [u8]) {
    let digest = super::super::verify::digest(bytes).unwrap();
    bytes[224..256].copy_from_slice(&digest);
}

/// A generator good enough to choose damage; seeded, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % below
    }
}

#[test]
fn no_accessor_panics_or_loops_on_a_damaged_index() {
    let good = sample();
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let mut opened = 0;
    for case in 0..120_000 {
        let mut bytes = good.clone();
        // Mostly behind the header, since a damaged header rarely opens.
        let start = if case % 8 == 0 { 0 } else { 256 };
        for _ in 0..1 + random.next(12) {
            let at = start + random.next(good.len() - start);
            match random.next(4) {
                0 => bytes[at] ^= 1 << random.next(8),
                1 => bytes[at] = [0, 1, 0x7F, 0x80, 0xFE, 0xFF][random.next(6)],
                2 => bytes[at] = random.next(256) as u8,
                _ => {
                    let value = [0, 1, u32::MAX, 1 << 31, u32::MAX >> 1][random.next(5)].to_le_bytes();
                    let at = at.min(good.len() - 4) & !3;
                    bytes[at..at + 4].copy_from_slice(&value);
                }
            }
        }
        if case % 16 == 0 {
            bytes.truncate(random.next(bytes.len()));
        }
        if let Ok(view) = IndexView::open(&bytes) {
            opened += 1;
            std::hint::black_box(read_all(&view));
            if case % 64 == 0 {
                seal(&mut bytes);
            }
            let _: Result<(), VerifyIndex> = IndexView::open(&bytes).unwrap().verify();
        }
    }
    assert!(opened > 100_000 / 2, "{opened}");
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let mut bytes = bytes;
        let _ = IndexView::open(&bytes).map(|view| read_all(&view));
        if let Some(magic) = bytes.get_mut(..8) {
            magic.copy_from_slice(b"MLRCIDX1");
        }
        let _ = IndexView::open(&bytes).map(|view| read_all(&view));
    }
}
