//! Which pieces answer a read?

use bytes::Bytes;
use millrace_api::block::CHUNK_BYTES;

/// Cuts whole chunks, the first of which is chunk `first_chunk` of an object, to the `len` bytes at `offset`.
///
/// The chunks follow one another; what lies before `offset` and after `offset + len` is cut off.
pub fn cut(mut chunks: Vec<Bytes>, first_chunk: u32, offset: u64, len: u64) -> Vec<Bytes> {
    let start = u64::from(first_chunk) * CHUNK_BYTES;
    let mut skip = offset.saturating_sub(start);
    let mut left = len;
    for chunk in &mut chunks {
        let from = skip.min(chunk.len() as u64);
        let to = (from + left).min(chunk.len() as u64);
        skip -= from;
        left -= to - from;
        *chunk = chunk.slice(from as usize..to as usize);
    }
    chunks.retain(|chunk| !chunk.is_empty());
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_are_the_bytes_that_were_asked_for(
            size in 1u64..400_000, from in any::<prop::sample::Index>(), len in 1u64..200_000,
        ) {
            let object: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
            let offset = from.index(size as usize) as u64;
            let end = (offset + len).min(size);
            let chunks = millrace_api::block::chunks_of_range(size, offset, len);
            let whole: Vec<Bytes> = chunks
                .clone()
                .map(|i| u64::from(i) * CHUNK_BYTES)
                .map(|at| Bytes::copy_from_slice(&object[at as usize..(at + CHUNK_BYTES).min(size) as usize]))
                .collect();
            let pieces = cut(whole, chunks.start, offset, end - offset).concat();
            prop_assert_eq!(&pieces[..], &object[offset as usize..end as usize]);
        }
    }
}
