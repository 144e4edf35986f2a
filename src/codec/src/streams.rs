//! Eight interleaved streams of prefix codes: a decoder works on all of them at once, because the next code of one stream is known only
//! after the one before.
//!
//! Codes stand in the bits of a stream from the lowest bit of the first byte up, each with its first bit lowest.

use std::ops::Range;

use crate::huffman::LENGTH_MAX;

/// Number of streams.
pub(crate) const STREAMS: usize = 8;
/// Codes read from one load of 64 bits, at most seven of which belong to the code before.
const CODES_EACH: usize = 4;
/// Streams whose state fits the registers of a processor.
const TOGETHER: usize = 4;
/// Bits of an encoder's entry below the code.
const CODE_SHIFT: u32 = 9;
/// Bits of an encoder's entry that hold the length, which is a shift.
const LENGTH_BITS: u32 = 6;
/// Bit of an encoder's entry of a symbol without a code; the code is that of the escape. Sums of four entries have sums of lengths and of this bit apart.
const ESCAPED: u32 = 1 << LENGTH_BITS;
/// Bits of a sum of four entries of which one is set if an entry is that of an escape.
const SOME_ESCAPED: u32 = 7 << LENGTH_BITS;
/// Bits of a decoder's entry that hold the length. The next two bits are 0: a shift by an entry is a shift by the length.
pub(crate) const ENTRY_LENGTH: u16 = 15;

/// Entries of a decoder, for any index of 16 bits.
pub(crate) type Entries = [u16; 1 << 16];
/// Entries of an encoder, for any index of 16 bits.
pub(crate) type Codes = [u32; 1 << 16];

/// Returns entries of zeros.
pub(crate) fn no_entries<T: Clone + Default>() -> Box<[T; 1 << 16]> {
    match vec![T::default(); 1 << 16].into_boxed_slice().try_into() {
        Ok(entries) => entries,
        Err(_) => unreachable!("all indices of 16 bits"),
    }
}

/// Returns the encoder's entry of a symbol with this code and length; `is_escaped` if the code is that of the escape.
pub(crate) fn encoder_entry(code: u16, length: u8, is_escaped: bool) -> u32 {
    u32::from(code) << CODE_SHIFT | u32::from(is_escaped) << LENGTH_BITS | u32::from(length)
}

/// Returns the rows of a stream: an equal share of all, the rest to the first streams.
#[inline(always)]
pub(crate) fn rows_of(stream: usize, rows: usize) -> Range<usize> {
    let (each, rest) = (rows / STREAMS, rows % STREAMS);
    let begin = stream * each + stream.min(rest);
    begin..begin + each + usize::from(stream < rest)
}

/// Returns the bytes that a writer needs for `n` codes of all streams.
pub(crate) fn room(n: usize) -> usize {
    n * LENGTH_MAX / 8 + 2 * STREAMS + 8
}

/// Writer of codes into bytes that are long enough ([`room`]).
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
    bits: u64,
    n: u32,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut [u8]) -> Self {
        Self { out, at: 0, bits: 0, n: 0 }
    }

    /// Appends the codes of the entries at `indices`. `first` is the number of the first element; the numbers of escaped elements are added
    /// to `escapes`.
    #[inline(always)]
    pub(crate) fn write(&mut self, codes: &Codes, indices: &[u16], first: usize, escapes: &mut Vec<u32>) {
        let (groups, rest) = indices.as_chunks::<CODES_EACH>();
        for (at, group) in groups.iter().enumerate() {
            if self.push(group.map(|index| codes[usize::from(index)])) {
                note_escapes(codes, group, first + CODES_EACH * at, escapes);
            }
        }
        for (at, index) in rest.iter().enumerate() {
            if self.push([codes[usize::from(*index)], 0, 0, 0]) {
                note_escapes(codes, &[*index], first + CODES_EACH * groups.len() + at, escapes);
            }
        }
    }

    /// Appends four codes, joined in pairs first, so that few operations wait for one another. Returns `true` if one is that of an escape.
    #[inline(always)]
    fn push(&mut self, found: [u32; CODES_EACH]) -> bool {
        let [a, b, c, d] = found.map(|entry| u64::from(entry >> CODE_SHIFT));
        let pair = found[0] + found[1];
        let sum = pair + found[2] + found[3];
        // Shifts are modulo 64: by the lengths in the lowest bits.
        let four = (a | b.wrapping_shl(found[0])) | (c | d.wrapping_shl(found[2])).wrapping_shl(pair);
        self.bits |= four << self.n;
        self.n += sum % (1 << LENGTH_BITS);
        self.out[self.at..self.at + 8].copy_from_slice(&self.bits.to_le_bytes());
        self.at += (self.n / 8) as usize;
        self.bits = self.bits.wrapping_shr(self.n & !7);
        self.n %= 8;
        sum & SOME_ESCAPED != 0
    }

    /// Ends a stream with zeros up to a whole byte. Returns the bytes written since the writer was made.
    pub(crate) fn end(&mut self) -> usize {
        if self.n > 0 {
            self.out[self.at] = self.bits as u8;
            self.at += 1;
        }
        (self.bits, self.n) = (0, 0);
        self.at
    }
}

/// Adds the numbers of the escaped elements among some, from number `first` on.
#[cold]
fn note_escapes(codes: &Codes, indices: &[u16], first: usize, escapes: &mut Vec<u32>) {
    let escaped = indices.iter().enumerate().filter(|(_, index)| codes[usize::from(**index)] & ESCAPED != 0);
    escapes.extend(escaped.map(|(at, _)| (first + at) as u32));
}

/// Stream being read.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Position of the next bit.
    at: usize,
    /// Position of the end, bytes. Beside each position on purpose: compilers would else add to all positions in one vector, for which the loads
    /// of the next codes would wait.
    end: usize,
}

/// Reader of the streams in a payload.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    streams: [Stream; STREAMS],
}

impl<'a> Reader<'a> {
    /// Creates a reader of streams that follow each other from byte `begin` on. Returns `None` if the bytes end before.
    pub(crate) fn new(bytes: &'a [u8], begin: usize, lengths: &[u32; STREAMS]) -> Option<Self> {
        let (mut streams, mut next) = ([Stream::default(); STREAMS], begin);
        for (stream, length) in streams.iter_mut().zip(lengths) {
            stream.at = next * 8;
            next = next.checked_add(*length as usize).filter(|next| *next <= bytes.len())?;
            stream.end = next;
        }
        Some(Self { bytes, streams })
    }

    /// Returns the position in bytes of the end of the last stream.
    pub(crate) fn end(&self) -> usize {
        self.streams[STREAMS - 1].end
    }

    /// Returns `true` if each stream was read to the last byte, and not beyond.
    pub(crate) fn is_at_end(&self) -> bool {
        self.streams.iter().all(|stream| stream.at.div_ceil(8) == stream.end)
    }

    /// Replaces the contexts in a row of every stream by the entries found. All rows have one length.
    #[inline(always)]
    pub(crate) fn read_rows(&mut self, entries: &Entries, rows: &mut [Vec<u16>; STREAMS]) {
        let whole = rows[0].len() / CODES_EACH;
        let [a, b, c, d, e, f, g, h] = rows.each_mut().map(|row| row.as_chunks_mut::<CODES_EACH>().0.iter_mut());
        let (low, high) = self.streams.split_first_chunk_mut().expect("streams in two parts");
        let high = high.first_chunk_mut().expect("as many");
        for (((((((a, b), c), d), e), f), g), h) in a.zip(b).zip(c).zip(d).zip(e).zip(f).zip(g).zip(h) {
            read_together(entries, self.bytes, low, [a, b, c, d]);
            read_together(entries, self.bytes, high, [e, f, g, h]);
        }
        for (stream, row) in rows.iter_mut().enumerate() {
            self.read_row(stream, entries, &mut row[whole * CODES_EACH..]);
        }
    }

    /// Replaces the contexts in a row of one stream by the entries found.
    #[inline(always)]
    pub(crate) fn read_row(&mut self, stream: usize, entries: &Entries, row: &mut [u16]) {
        for own in row {
            let at = &mut self.streams[stream].at;
            *own = entry(entries, *own, peek(self.bytes, *at));
            *at += usize::from(*own & ENTRY_LENGTH);
        }
    }
}

/// Replaces four contexts of each of some streams by the entries found.
#[inline(always)]
fn read_together(
    entries: &Entries,
    bytes: &[u8],
    streams: &mut [Stream; TOGETHER],
    mut rows: [&mut [u16; CODES_EACH]; TOGETHER],
) {
    // The highest bit marks the end of the word: the zeros above are the bits used.
    let mut words = [0; TOGETHER];
    for (word, stream) in words.iter_mut().zip(&*streams) {
        *word = peek(bytes, stream.at) | 1 << 63;
    }
    for code in 0..CODES_EACH {
        for (word, row) in words.iter_mut().zip(&mut rows) {
            let found = entry(entries, row[code], *word);
            *word = word.wrapping_shr(found.into());
            row[code] = found;
        }
    }
    streams.iter_mut().zip(words).for_each(|(stream, word)| stream.at += word.leading_zeros() as usize);
}

/// Returns the entry of the code at the lowest bits of a word. Contexts leave the lowest [`LENGTH_MAX`] bits free.
#[inline(always)]
fn entry(entries: &Entries, context: u16, word: u64) -> u16 {
    entries[usize::from(context | word as u16 & ((1 << LENGTH_MAX) - 1))]
}

/// Returns 57 bits or more from a position on, the first in the lowest place. Zeros follow the end.
#[inline(always)]
fn peek(bytes: &[u8], at: usize) -> u64 {
    let byte = at / 8;
    let word = match bytes.get(byte..byte + 8) {
        Some(eight) => u64::from_le_bytes(eight.try_into().expect("eight bytes")),
        None => peek_end(bytes, byte),
    };
    word >> (at % 8)
}

#[cold]
fn peek_end(bytes: &[u8], byte: usize) -> u64 {
    let mut eight = [0; 8];
    let rest = bytes.get(byte..).unwrap_or_default();
    let n = rest.len().min(8);
    eight[..n].copy_from_slice(&rest[..n]);
    u64::from_le_bytes(eight)
}
