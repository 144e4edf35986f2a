//! Rows of symbols in eight streams: the part that all codes share.
//!
//! ```text
//! coded = length of each of 8 streams:u32 | streams
//! ```
//!
//! A stream holds the codes of an eighth of the rows, in order.

use crate::streams::{self, Decoder, Reader, STREAMS, Writer, rows_of};

/// Symbols of a row, and the number of the code for each.
#[derive(Debug, Default)]
pub(crate) struct Symbols {
    pub codes: Vec<u8>,
    pub symbols: Vec<u8>,
}

/// Appends `rows` rows. `encoder` has an entry `code << 8 | length` for each code number and each of its `each` symbols; `fill` sets a
/// row's symbols. For a symbol of length 0 symbol 0 is written, and the index of the element is added to `escapes`.
pub(crate) fn write(
    rows: usize,
    encoder: &[u32],
    each: usize,
    buffer: &mut Symbols,
    (out, escapes): (&mut Vec<u8>, &mut Vec<u32>),
    mut fill: impl FnMut(usize, &mut Symbols),
) {
    let begin = out.len();
    out.resize(begin + 4 * STREAMS, 0);
    for stream in 0..STREAMS {
        let (at, mut writer) = (out.len(), Writer::default());
        for row in rows_of(stream, rows) {
            fill(row, buffer);
            let mut at = row * buffer.codes.len();
            for (codes, symbols) in buffer.codes.chunks(4).zip(buffer.symbols.chunks(4)) {
                for (code, symbol) in codes.iter().zip(symbols) {
                    let mut entry = encoder[usize::from(*code) * each + usize::from(*symbol)];
                    if entry == 0 {
                        entry = encoder[usize::from(*code) * each];
                        escapes.push(at as u32);
                    }
                    writer.push(entry >> 8, entry & 0xff);
                    at += 1;
                }
                writer.flush(out);
            }
        }
        writer.end(out);
        let len = (out.len() - at) as u32;
        out[begin + 4 * stream..][..4].copy_from_slice(&len.to_le_bytes());
    }
}

/// Streams being read, all at once.
pub(crate) struct Streams<'a> {
    readers: [Reader<'a>; STREAMS],
}

/// Buffers of the rows that are read at once, one of each stream.
pub(crate) type Buffers<B> = [B; STREAMS];

impl<'a> Streams<'a> {
    /// Splits the streams from the bytes behind. Returns `None` if the bytes end before.
    pub(crate) fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (header, mut rest) = bytes.split_at_checked(4 * STREAMS)?;
        let mut readers = [Reader::default(); STREAMS];
        for (reader, len) in readers.iter_mut().zip(header.as_chunks::<4>().0) {
            let (stream, after) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            (*reader, rest) = (Reader::new(stream), after);
        }
        Some((Self { readers }, rest))
    }

    /// Reads `rows` rows of `n` symbols. `fill` prepares the buffer for a row, `codes` returns the code numbers in it, and `take` gets
    /// each row with the row's buffer and symbols. Returns `None` unless all streams end where the rows do.
    pub(crate) fn read<B>(
        mut self,
        (rows, n): (usize, usize),
        decoder: &Decoder<'_>,
        buffers: &mut Buffers<B>,
        mut fill: impl FnMut(usize, &mut B),
        codes: impl Fn(&B) -> &[u8],
        mut take: impl FnMut(usize, &B, &[u8]),
    ) -> Option<()> {
        let mut symbols: [Vec<u8>; STREAMS] = std::array::from_fn(|_| vec![0; n]);
        for turn in 0..rows.div_ceil(STREAMS) {
            // In the last turn only the first streams have a row.
            let open = (0..STREAMS).take_while(|stream| turn < rows_of(*stream, rows).len()).count();
            let row = |stream: usize| rows_of(stream, rows).start + turn;
            buffers[..open].iter_mut().enumerate().for_each(|(stream, buffer)| fill(row(stream), buffer));
            let numbers = std::array::from_fn(|stream| if stream < open { codes(&buffers[stream]) } else { &[] });
            streams::read_rows(decoder, &mut self.readers[..open], numbers, &mut symbols);
            let done = buffers[..open].iter().zip(&symbols).enumerate();
            done.for_each(|(stream, (buffer, symbols))| take(row(stream), buffer, symbols));
        }
        self.readers.iter().all(Reader::is_at_end).then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contexts::CONTEXTS;
    use crate::huffman::{self, LENGTH_MAX};

    #[test]
    fn rows_of_any_number_and_length_come_back_and_damage_is_seen_or_harmless() {
        let lengths = huffman::lengths(&[50, 20, 9, 4, 1, 1, 1]);
        let encoder: Vec<u32> = huffman::codes(&lengths)
            .iter()
            .zip(&lengths)
            .map(|(code, length)| u32::from(*code) << 8 | u32::from(*length))
            .collect();
        let mut entries = vec![0; CONTEXTS << LENGTH_MAX];
        assert!(huffman::fill_decoder(&lengths, &mut entries[..1 << LENGTH_MAX]));
        for (rows, n) in [(0, 5), (1, 1), (7, 3), (8, 4), (9, 64), (32, 13)] {
            let symbol = |row: usize, at: usize| ((row * 31 + at * at) % 7) as u8;
            let mut out = Vec::new();
            write(rows, &encoder, 7, &mut Symbols::default(), (&mut out, &mut Vec::new()), |row, buffer| {
                buffer.codes = vec![0; n];
                buffer.symbols = (0..n).map(|at| symbol(row, at)).collect();
            });
            let read = |bytes: &[u8]| {
                let mut seen = Vec::new();
                let (streams, rest) = Streams::split(bytes)?;
                let mut buffers: Buffers<Vec<u8>> = std::array::from_fn(|_| vec![0; n]);
                let decoder = Decoder::new(&entries);
                let take = |row: usize, _: &Vec<u8>, symbols: &[u8]| seen.push((row, symbols.to_vec()));
                streams.read((rows, n), &decoder, &mut buffers, |_, _| (), |codes| codes, take)?;
                Some((seen, rest.len()))
            };
            out.push(77);
            let (mut seen, rest) = read(&out).expect("whole streams");
            seen.sort();
            let expected: Vec<(usize, Vec<u8>)> =
                (0..rows).map(|row| (row, (0..n).map(|at| symbol(row, at)).collect())).collect();
            assert_eq!((seen, rest), (expected, 1));
            for at in 0..out.len() {
                out[at] ^= 0x55;
                let _ = read(&out);
                let _ = read(&out[..at]);
                out[at] ^= 0x55;
            }
        }
    }
}
