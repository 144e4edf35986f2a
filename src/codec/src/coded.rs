//! Rows of symbols in eight streams: the part that all codes share.
//!
//! ```text
//! coded = length of each of 8 streams:u32 | escapes:u32 | streams
//! ```
//!
//! A stream holds the codes of an eighth of the rows, in order.

use pulp::{Simd, WithSimd};

use crate::streams::{self, Codes, Entries, Reader, STREAMS, Writer, rows_of};

/// Bytes before the streams.
pub(crate) const LENGTHS: usize = 4 * STREAMS + 4;

/// Rows to be encoded.
pub(crate) trait Source {
    /// Sets the index into the encoder's entries of each element of a row.
    fn fill(&mut self, row: usize, indices: &mut [u16]);
}

/// Buffers for writing, used again for each block.
#[derive(Debug, Default)]
pub(crate) struct WriteBuffers {
    streams: Vec<u8>,
    indices: Vec<u16>,
    /// Elements without a code.
    pub escapes: Vec<u32>,
}

/// Writer of all rows of a block.
struct WriteRows<'a, S> {
    rows: usize,
    codes: &'a Codes,
    source: S,
    indices: &'a mut [u16],
    escapes: &'a mut Vec<u32>,
    writer: Writer<'a>,
}

impl<S: Source> WithSimd for WriteRows<'_, S> {
    type Output = [usize; STREAMS];

    #[inline(always)]
    fn with_simd<V: Simd>(mut self, _: V) -> [usize; STREAMS] {
        let n = self.indices.len();
        let mut ends = [0; STREAMS];
        for (stream, end) in ends.iter_mut().enumerate() {
            for row in rows_of(stream, self.rows) {
                self.source.fill(row, self.indices);
                self.writer.write(self.codes, self.indices, row * n, self.escapes);
            }
            *end = self.writer.end();
        }
        ends
    }
}

/// Appends `rows` rows of `n` elements. The elements without a code are in the buffers' escapes afterwards.
pub(crate) fn write(
    (rows, n): (usize, usize),
    codes: &Codes,
    source: impl Source,
    buffers: &mut WriteBuffers,
    out: &mut Vec<u8>,
) {
    let WriteBuffers { streams, indices, escapes } = buffers;
    escapes.clear();
    indices.resize(n, 0);
    let room = streams::room(rows * n);
    if streams.len() < room {
        streams.resize(room, 0);
    }
    let writer = Writer::new(streams);
    let ends = pulp::Arch::new().dispatch(WriteRows { rows, codes, source, indices, escapes, writer });
    let mut begin = 0;
    for end in ends {
        out.extend(((end - begin) as u32).to_le_bytes());
        begin = end;
    }
    out.extend((escapes.len() as u32).to_le_bytes());
    out.extend_from_slice(&streams[..begin]);
}

/// Rows to be decoded.
pub(crate) trait Sink {
    /// Sets the contexts of a row of a stream.
    fn prepare(&mut self, stream: usize, row: usize, contexts: &mut [u16]);
    /// Takes in the entries of the row of the stream prepared last.
    fn take(&mut self, stream: usize, row: usize, entries: &[u16]);
}

/// Reads the header of coded rows. Returns a reader of the streams, and the number of escapes; `None` if the bytes end before.
pub(crate) fn open(payload: &[u8], begin: usize) -> Option<(Reader<'_>, usize)> {
    let header: &[u8; LENGTHS] = payload.get(begin..)?.first_chunk()?;
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[4 * at + i]));
    let reader = Reader::new(payload, begin + LENGTHS, &std::array::from_fn(word))?;
    Some((reader, word(STREAMS) as usize))
}

/// Contexts, then entries, of the rows that are read at once, one of each stream.
pub(crate) type Found = [Vec<u16>; STREAMS];

/// Reader of all rows of a block.
struct ReadRows<'a, S> {
    rows: usize,
    entries: &'a Entries,
    reader: Reader<'a>,
    found: &'a mut Found,
    sink: S,
}

impl<S: Sink> WithSimd for ReadRows<'_, S> {
    type Output = bool;

    #[inline(always)]
    fn with_simd<V: Simd>(self, _: V) -> bool {
        let Self { rows, entries, mut reader, found, mut sink } = self;
        for turn in 0..rows.div_ceil(STREAMS) {
            // In the last turn only the first streams have a row.
            let open = (0..STREAMS).take_while(|stream| turn < rows_of(*stream, rows).len()).count();
            for (stream, found) in found[..open].iter_mut().enumerate() {
                sink.prepare(stream, rows_of(stream, rows).start + turn, found);
            }
            if open == STREAMS {
                reader.read_rows(entries, found);
            } else {
                let each = found[..open].iter_mut().enumerate();
                each.for_each(|(stream, found)| reader.read_row(stream, entries, found));
            }
            for (stream, found) in found[..open].iter().enumerate() {
                sink.take(stream, rows_of(stream, rows).start + turn, found);
            }
        }
        reader.is_at_end()
    }
}

/// Reads `rows` rows of `n` elements into a sink. Returns `false` unless all streams end where the rows do.
pub(crate) fn read(
    (rows, n): (usize, usize),
    entries: &Entries,
    reader: Reader<'_>,
    found: &mut Found,
    sink: impl Sink,
) -> bool {
    found.iter_mut().for_each(|found| found.resize(n, 0));
    pulp::Arch::new().dispatch(ReadRows { rows, entries, reader, found, sink })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huffman;

    struct Symbols(usize);

    fn symbol(row: usize, at: usize) -> u16 {
        ((row * 31 + at * at) % 7) as u16
    }

    impl Source for Symbols {
        fn fill(&mut self, row: usize, indices: &mut [u16]) {
            assert_eq!(indices.len(), self.0);
            indices.iter_mut().enumerate().for_each(|(at, index)| *index = symbol(row, at));
        }
    }

    struct Seen<'a>(&'a mut Vec<(usize, Vec<u16>)>);

    impl Sink for Seen<'_> {
        fn prepare(&mut self, _: usize, _: usize, contexts: &mut [u16]) {
            contexts.fill(0);
        }

        fn take(&mut self, _: usize, row: usize, entries: &[u16]) {
            self.0.push((row, entries.iter().map(|entry| entry >> 8).collect()));
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
        for (rows, n) in [(0, 5), (1, 1), (7, 3), (8, 4), (9, 64), (32, 13)] {
            let (mut out, mut buffers) = (vec![3], WriteBuffers::default());
            write((rows, n), &encoder, Symbols(n), &mut buffers, &mut out);
            let sixes = (0..rows * n).filter(|at| symbol(at / n, at % n) == 6).count();
            assert_eq!(buffers.escapes.len(), sixes);
            assert!(buffers.escapes.iter().all(|at| symbol(*at as usize / n, *at as usize % n) == 6));
            let read = |bytes: &[u8]| {
                let mut seen = Vec::new();
                let (reader, escapes) = open(bytes, 1)?;
                let end = reader.end();
                read((rows, n), &decoder, reader, &mut Found::default(), Seen(&mut seen)).then_some(())?;
                Some((seen, end, escapes))
            };
            let (mut seen, end, escapes) = read(&out).expect("whole streams");
            seen.sort();
            let expected: Vec<(usize, Vec<u16>)> =
                (0..rows).map(|row| (row, (0..n).map(|at| symbol(row, at)).collect())).collect();
            assert_eq!((seen, end, escapes), (expected, out.len(), sixes));
            for at in 1..out.len() {
                out[at] ^= 0x55;
                let _ = read(&out);
                let _ = read(&out[..at]);
                out[at] ^= 0x55;
            }
        }
    }
}
