//! Elements as symbols in eight streams: the part that all codes share.
//!
//! ```text
//! coded = length of each of 8 streams:u32 | escapes:u32 | streams | 8 zeros
//! ```
//!
//! Rows are coded in batches that fit the cache nearest to the processor, and of whole groups of stored bits, so that all that belongs to an
//! element is done while the element is in a register.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use crate::stored_bits::GROUP;
use crate::streams::{Codes, Entries, Reader, STREAMS, TURN, WORD, Writer};

/// Bytes before the streams.
pub(crate) const LENGTHS: usize = 4 * STREAMS + 4;
/// Elements of a batch, about.
const BATCH: usize = 1024;

/// Returns the elements of the longest batch of a block.
pub(crate) fn batch_len(rows: usize, n: usize) -> usize {
    batch_rows(n).min(rows) * n
}

/// Elements of which batches are multiples: whole groups of stored bits, and whole turns of the streams.
const WHOLE: usize = 320;
const _: () = assert!(WHOLE.is_multiple_of(GROUP) && WHOLE.is_multiple_of(TURN));

/// Returns the rows of a batch of rows of `n` elements.
fn batch_rows(n: usize) -> usize {
    let whole = (1..=WHOLE).find(|rows| (rows * n).is_multiple_of(WHOLE)).unwrap_or(WHOLE);
    whole * (BATCH / (n * whole).max(1)).max(1)
}

/// Returns the rows of each batch.
#[inline(always)]
fn batches(rows: usize, n: usize) -> impl Iterator<Item = Range<usize>> {
    let step = batch_rows(n);
    (0..rows).step_by(step).map(move |first| first..rows.min(first + step))
}

/// Rows to be encoded.
pub(crate) trait Source {
    /// Sets the index into the encoder's entries of each element of some rows.
    fn fill(&mut self, rows: Range<usize>, indices: &mut [u16]);
}

/// Buffers for writing, used again for each block.
#[derive(Debug, Default)]
pub(crate) struct WriteBuffers {
    writer: Writer,
    indices: Vec<u16>,
    /// Elements without a code.
    escapes: Vec<u32>,
}

/// Writer of all rows of a block.
struct WriteRows<'a, S> {
    size: (usize, usize),
    codes: &'a Codes,
    source: S,
    buffers: &'a mut WriteBuffers,
}

impl<S: Source> WithSimd for WriteRows<'_, S> {
    type Output = ();

    #[inline(always)]
    fn with_simd<V: Simd>(self, _: V) {
        let Self { size: (rows, n), codes, mut source, buffers } = self;
        let WriteBuffers { writer, indices, escapes } = buffers;
        for batch in batches(rows, n) {
            let indices = &mut indices[..batch.len() * n];
            let first = batch.start * n;
            source.fill(batch, indices);
            writer.write(codes, indices, first, escapes);
        }
    }
}

/// Encodes `rows` rows of `n` elements, to be appended by [`WriteBuffers::append`].
pub(crate) fn write(size: (usize, usize), codes: &Codes, source: impl Source, buffers: &mut WriteBuffers) {
    let (rows, n) = size;
    buffers.escapes.clear();
    buffers.indices.resize(batch_len(rows, n), 0);
    buffers.writer.begin(rows * n);
    pulp::Arch::new().dispatch(WriteRows { size, codes, source, buffers: &mut *buffers });
    buffers.escapes.sort_unstable();
    buffers.writer.end();
}

impl WriteBuffers {
    /// Appends the rows written last.
    pub(crate) fn append(&self, out: &mut Vec<u8>) {
        let streams = self.writer.streams();
        out.extend(streams.iter().flat_map(|stream| (stream.len() as u32).to_le_bytes()));
        out.extend((self.escapes.len() as u32).to_le_bytes());
        streams.iter().for_each(|stream| out.extend_from_slice(stream));
        out.extend([0; WORD]);
    }

    /// Returns the numbers of the elements without a code among the rows written last, in ascending order.
    pub(crate) fn escapes(&self) -> &[u32] {
        &self.escapes
    }
}

/// Rows to be decoded.
pub(crate) trait Sink {
    /// Sets the contexts of the elements of some rows.
    fn prepare(&mut self, rows: Range<usize>, contexts: &mut [u16]);
    /// Takes in the entries of the rows prepared last.
    fn take(&mut self, rows: Range<usize>, entries: &mut [u16]);
}

/// Reads the header of coded rows. Returns a reader of the streams, and the number of escapes; `None` if the bytes end before.
pub(crate) fn open(payload: &[u8]) -> Option<(Reader<'_>, usize)> {
    let header: &[u8; LENGTHS] = payload.first_chunk()?;
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[4 * at + i]));
    let reader = Reader::new(payload, LENGTHS, &std::array::from_fn(word))?;
    Some((reader, word(STREAMS) as usize))
}

/// Reader of all rows of a block.
struct ReadRows<'a, S> {
    size: (usize, usize),
    entries: &'a Entries,
    reader: Reader<'a>,
    found: &'a mut [u16],
    sink: S,
}

impl<S: Sink> WithSimd for ReadRows<'_, S> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<V: Simd>(self, _: V) -> bool {
        let Self { size: (rows, n), entries, mut reader, found, mut sink } = self;
        for batch in batches(rows, n) {
            let found = &mut found[..batch.len() * n];
            sink.prepare(batch.clone(), found);
            reader.read(entries, found);
            sink.take(batch, found);
        }
        reader.is_at_end()
    }
}

/// Reads `rows` rows of `n` elements into a sink; `found` is a buffer. Returns `false` unless all streams end where the rows do.
pub(crate) fn read(
    size: (usize, usize),
    entries: &Entries,
    reader: Reader<'_>,
    found: &mut Vec<u16>,
    sink: impl Sink,
) -> bool {
    let (rows, n) = size;
    found.resize(batch_len(rows, n), 0);
    pulp::Arch::new().dispatch(ReadRows { size, entries, reader, found, sink })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huffman;
    use crate::streams;

    struct Symbols(usize);

    fn symbol(at: usize) -> u16 {
        ((at / 31 + at * at) % 7) as u16
    }

    impl Source for Symbols {
        fn fill(&mut self, rows: Range<usize>, indices: &mut [u16]) {
            assert_eq!(indices.len(), rows.len() * self.0);
            let first = rows.start * self.0;
            indices.iter_mut().enumerate().for_each(|(at, index)| *index = symbol(first + at));
        }
    }

    struct Seen<'a>(&'a mut Vec<u16>);

    impl Sink for Seen<'_> {
        fn prepare(&mut self, _: Range<usize>, contexts: &mut [u16]) {
            contexts.fill(0);
        }

        fn take(&mut self, _: Range<usize>, entries: &mut [u16]) {
            self.0.extend(entries.iter().map(|entry| entry >> 8));
        }
    }

    #[test]
    fn batches_are_whole_groups_and_all_rows() {
        for (rows, n) in [(1, 1), (7, 3), (960, 192), (100, 96), (365, 33), (3, 5000), (9, 1024)] {
            let mut next = 0;
            for batch in batches(rows, n) {
                assert_eq!(batch.start, next);
                assert!(batch.end == rows || (batch.len() * n).is_multiple_of(WHOLE));
                next = batch.end;
            }
            assert_eq!(next, rows);
        }
    }

    #[test]
    fn rows_of_any_number_and_length_come_back_and_damage_is_seen_or_harmless() {
        let lengths = huffman::lengths(&[50, 20, 9, 4, 1, 1, 1]);
        let (mut encoder, mut decoder) = (streams::no_entries(), streams::no_entries::<u16>());
        for (symbol, (length, code)) in lengths.iter().zip(huffman::codes(&lengths)).enumerate() {
            encoder[symbol] = streams::encoder_entry(code, *length, symbol == 6);
        }
        assert!(huffman::fill_decoder(&lengths, |symbol| symbol << 8, &mut decoder[..1 << huffman::LENGTH_MAX]));
        for (rows, n) in [(0, 5), (1, 1), (7, 3), (8, 4), (9, 64), (32, 13), (130, 33)] {
            let (mut out, mut buffers) = (Vec::new(), WriteBuffers::default());
            write((rows, n), &encoder, Symbols(n), &mut buffers);
            buffers.append(&mut out);
            let sixes: Vec<u32> = (0..rows * n).filter(|at| symbol(*at) == 6).map(|at| at as u32).collect();
            assert_eq!(buffers.escapes(), sixes);
            let read = |bytes: &[u8]| {
                let mut seen = Vec::new();
                let (reader, escapes) = open(bytes)?;
                let end = reader.end();
                read((rows, n), &decoder, reader, &mut Vec::new(), Seen(&mut seen)).then_some(())?;
                Some((seen, end, escapes))
            };
            let expected: Vec<u16> = (0..rows * n).map(symbol).collect();
            assert_eq!(read(&out).expect("whole streams"), (expected, out.len(), sixes.len()));
            for at in 0..out.len() {
                out[at] ^= 0x55;
                let _ = read(&out);
                let _ = read(&out[..at]);
                out[at] ^= 0x55;
            }
        }
    }
}
