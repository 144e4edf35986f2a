//! Buffers that begin at a multiple of a page, for reads and writes past the page cache.

/// Bytes of a page: unit of addresses, offsets and lengths of direct reads and writes.
pub const PAGE: usize = 4096;

/// Bytes that begin at a page.
#[derive(Debug, Default)]
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
}

/// Bytes that begin anywhere until the buffer is resized.
impl From<Vec<u8>> for Aligned {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, start: 0 }
    }
}

impl Aligned {
    /// Creates an empty buffer for `capacity` bytes.
    pub fn with_capacity(capacity: usize) -> Self {
        let mut buffer = Self { bytes: Vec::with_capacity(capacity + PAGE), start: 0 };
        buffer.align();
        buffer
    }

    /// Moves the bytes to the start of a page, if it is not the memory of before.
    fn align(&mut self) {
        let start = self.bytes.as_ptr().align_offset(PAGE);
        if start == self.start {
            return;
        }
        let len = self.bytes.len().saturating_sub(self.start);
        let source = self.start..self.start + len;
        self.bytes.resize(self.bytes.len().max(start + len), 0);
        self.bytes.copy_within(source, start);
        self.bytes.truncate(start + len);
        self.start = start;
    }

    /// Sets the length; new bytes are zeros. The bytes begin at a page afterwards.
    pub fn resize(&mut self, len: usize) {
        // Room for the bytes wherever the page begins.
        let spare = (len + PAGE).saturating_sub(self.bytes.len());
        self.bytes.reserve(spare);
        self.align();
        self.bytes.resize(self.start + len, 0);
    }

    /// Runs `append`, which may append to the bytes and MUST leave those before.
    pub fn append<T>(&mut self, append: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        append(&mut self.bytes)
    }

    /// Fills the last page with zeros. The bytes begin at a page afterwards, and are whole pages.
    pub fn pad(&mut self) {
        self.resize(self.as_slice().len().next_multiple_of(PAGE));
    }

    /// Returns the bytes in memory of just their length.
    pub fn into_vec(mut self) -> Vec<u8> {
        self.bytes.drain(..self.start.min(self.bytes.len()));
        self.bytes.shrink_to_fit();
        self.bytes
    }

    /// Returns the bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    /// Returns the bytes, for changes.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.bytes.get_mut(self.start..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_vector_come_back() {
        for len in [0, 1, PAGE, 10_000] {
            let bytes: Vec<u8> = (0..len).map(|at| at as u8).collect();
            let mut buffer = Aligned::from(bytes.clone());
            assert_eq!(buffer.as_slice(), bytes);
            buffer.resize(len + 3);
            assert_eq!(buffer.as_slice().as_ptr().align_offset(PAGE), 0);
            assert_eq!(buffer.into_vec(), [bytes, vec![0; 3]].concat());
        }
        assert!(Aligned::default().into_vec().is_empty());
    }

    #[test]
    fn bytes_begin_at_a_page_however_they_grow() {
        for first in [0, 1, 100, PAGE, 3 * PAGE + 5] {
            for more in [0, 1, 10_000, 1_000_000] {
                for mut buffer in [Aligned::default(), Aligned::with_capacity(first), Aligned::with_capacity(2_000_000)]
                {
                    buffer.resize(first);
                    buffer.as_mut_slice().fill(3);
                    buffer.append(|bytes| bytes.extend(std::iter::repeat_n(5, more)));
                    buffer.pad();
                    let bytes = buffer.as_slice();
                    assert_eq!(bytes.as_ptr().align_offset(PAGE), 0);
                    assert_eq!(bytes.len(), (first + more).next_multiple_of(PAGE));
                    assert!(bytes[..first].iter().all(|byte| *byte == 3));
                    assert!(bytes[first..first + more].iter().all(|byte| *byte == 5));
                    assert!(bytes[first + more..].iter().all(|byte| *byte == 0));
                }
            }
        }
    }
}
