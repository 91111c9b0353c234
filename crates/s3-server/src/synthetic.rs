//! Which bytes does a synthesised object have at an offset?
//!
//! All bodies are windows into one ring of random bytes: byte `p` of an object is `ring[(start + p) mod R]`, where
//! `start` comes from a hash of seed, key and generation. `R` is a prime, so two places of an object that differ by a
//! multiple of 64 KiB hold different bytes up to 256 GiB apart: an exchanged block or chunk is noticed. A window is
//! handed out without a copy.

use std::sync::OnceLock;

use bytes::Bytes;
use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

/// Length of the ring: a prime just under 4 MiB. Small enough to stay in a last-level cache, so that the server costs
/// little beside what it is measured with.
const RING_BYTES: usize = 4_194_301;

/// The longest window that is contiguous wherever it starts: the ring is stored with its first MiB repeated behind it.
pub const MAX_WINDOW_BYTES: usize = 1 << 20;

/// Fills `buffer` with the bytes that the object `key` of a synthetic bucket with seed 0 has at `offset`.
pub fn fill(key: impl AsRef<[u8]>, offset: u64, buffer: &mut [u8]) {
    Pattern::new(0, key.as_ref(), 0).fill(offset, buffer);
}

/// Whether `bytes` are what the object `key` of a synthetic bucket with seed 0 has at `offset`.
pub fn matches(key: impl AsRef<[u8]>, offset: u64, bytes: &[u8]) -> bool {
    Pattern::new(0, key.as_ref(), 0).matches(offset, bytes)
}

/// The endless sequence of bytes of one object version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pattern {
    start: u64,
}

impl Pattern {
    /// The bytes of `key` in a bucket of `seed`; each `generation` (0 at first) stands for one overwriting.
    pub fn new(seed: u64, key: &[u8], generation: u64) -> Self {
        let hash = xxh3_64_with_seed(key, mix(seed, generation));
        Self { start: hash % RING_BYTES as u64 }
    }

    /// The bytes at `offset`, at most [`MAX_WINDOW_BYTES`] of them, without a copy.
    pub fn window(&self, offset: u64, length: usize) -> Bytes {
        let at = self.position(offset);
        ring().slice(at..at + length.min(MAX_WINDOW_BYTES))
    }

    /// Fills `buffer` with the bytes at `offset`.
    pub fn fill(&self, offset: u64, buffer: &mut [u8]) {
        for (index, piece) in buffer.chunks_mut(MAX_WINDOW_BYTES).enumerate() {
            let at = self.position(offset + (index * MAX_WINDOW_BYTES) as u64);
            piece.copy_from_slice(&ring()[at..at + piece.len()]);
        }
    }

    /// Whether `bytes` are the bytes at `offset`.
    pub fn matches(&self, offset: u64, bytes: &[u8]) -> bool {
        bytes.chunks(MAX_WINDOW_BYTES).enumerate().all(|(index, piece)| {
            let at = self.position(offset + (index * MAX_WINDOW_BYTES) as u64);
            &ring()[at..at + piece.len()] == piece
        })
    }

    fn position(&self, offset: u64) -> usize {
        ((offset % RING_BYTES as u64 + self.start) % RING_BYTES as u64) as usize
    }
}

/// An ETag, without the quotes. It has the form that S3 gives an object uploaded in parts: clients such as rclone take
/// 32 bare digits for the MD5 of the body, and refuse a body that has another.
pub(crate) fn etag(seed: u64, key: &[u8], size: u64, generation: u64) -> String {
    let hash = xxh3_128_with_seed(key, mix(seed, generation)) ^ u128::from(size).rotate_left(77);
    format!("{hash:032x}-1")
}

fn mix(seed: u64, generation: u64) -> u64 {
    seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ generation.wrapping_mul(0xd1b5_4a32_d192_ed03)
}

fn ring() -> &'static Bytes {
    static RING: OnceLock<Bytes> = OnceLock::new();
    RING.get_or_init(|| {
        let mut ring = Vec::with_capacity(RING_BYTES + MAX_WINDOW_BYTES + 8);
        let mut state: u64 = 0x6d69_6c6c_7261_6365;
        while ring.len() < RING_BYTES {
            ring.extend_from_slice(&splitmix(&mut state).to_le_bytes());
        }
        ring.truncate(RING_BYTES);
        ring.extend_from_within(..MAX_WINDOW_BYTES);
        Bytes::from(ring)
    })
}

/// One step of splitmix64, whose output passes BigCrush (<https://prng.di.unimi.it/splitmix64.c>).
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_fill_and_matches_agree_wherever_they_start() {
        let pattern = Pattern::new(7, b"a/b", 0);
        let mut buffer = vec![0; 3 * MAX_WINDOW_BYTES + 17];
        for offset in [0, 1, 4095, RING_BYTES as u64 - 3, 5 << 40] {
            pattern.fill(offset, &mut buffer);
            assert!(pattern.matches(offset, &buffer));
            assert_eq!(pattern.window(offset + 9, 1000), buffer[9..1009]);
            buffer[2 * MAX_WINDOW_BYTES] ^= 1;
            assert!(!pattern.matches(offset, &buffer));
        }
    }

    #[test]
    fn other_key_seed_or_generation_has_other_bytes() {
        let window = |seed, key: &[u8], generation| Pattern::new(seed, key, generation).window(0, 4096);
        let base = window(0, b"k", 0);
        assert_ne!(base, window(0, b"l", 0));
        assert_ne!(base, window(1, b"k", 0));
        assert_ne!(base, window(0, b"k", 1));
    }

    #[test]
    fn chunks_of_one_object_differ_from_each_other() {
        let pattern = Pattern::new(0, b"large", 0);
        let mut seen = std::collections::HashSet::new();
        for chunk in 0..65_536_u64 {
            assert!(seen.insert(pattern.window(chunk << 16, 32)), "chunk {chunk} repeats");
        }
    }

    #[test]
    fn the_bytes_never_change() {
        let mut buffer = [0; 8];
        fill("img/00000001.bin", 12_345, &mut buffer);
        assert_eq!(u64::from_le_bytes(buffer), GOLDEN);
    }

    /// Pinned so that a reader of another build can verify what this one serves.
    const GOLDEN: u64 = 5_048_778_121_213_701_019;
}
