//! Where do bytes of direct reads go?

/// Alignment that every disk's direct reads are content with: a page.
pub(crate) const ALIGNMENT: usize = 4096;

/// A buffer at an address that direct reads accept.
#[derive(Debug)]
pub(crate) struct AlignedBuffer {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl AlignedBuffer {
    /// Of so many bytes.
    pub fn new(length: usize) -> Self {
        let bytes = vec![0_u8; length + ALIGNMENT];
        // Bytes can always be aligned within one alignment; see `align_offset`.
        let start = bytes.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Self { bytes, start, length }
    }

    /// The bytes.
    pub fn as_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_and_as_long_as_asked() {
        for length in [1, 4096, 1 << 20] {
            let mut buffer = AlignedBuffer::new(length);
            let bytes = buffer.as_mut();
            assert_eq!((bytes.len(), bytes.as_ptr() as usize % ALIGNMENT), (length, 0));
        }
    }
}
