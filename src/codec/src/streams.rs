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
/// Bits of an encoder's entry below the code: four of the length, and [`ESCAPED`].
const CODE_SHIFT: u32 = 5;
/// Bit of an encoder's entry of a symbol without a code. The code is that of the escape.
const ESCAPED: u16 = 1 << 4;
/// Bits of a decoder's entry that hold the length. The next two bits are 0: a shift by an entry is a shift by the length.
pub(crate) const ENTRY_LENGTH: u16 = 15;

/// Entries of an encoder or decoder, for any index of 16 bits.
pub(crate) type Entries = [u16; 1 << 16];

/// Returns entries of zeros.
pub(crate) fn no_entries() -> Box<Entries> {
    vec![0; 1 << 16].into_boxed_slice().try_into().expect("all indices of 16 bits")
}

/// Returns the encoder's entry of a symbol with this code and length; `is_escaped` if the code is that of the escape.
pub(crate) fn encoder_entry(code: u16, length: u8, is_escaped: bool) -> u16 {
    code << CODE_SHIFT | u16::from(is_escaped) << 4 | u16::from(length)
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
    pub(crate) fn write(&mut self, entries: &Entries, indices: &[u16], first: usize, escapes: &mut Vec<u32>) {
        let (groups, rest) = indices.as_chunks::<CODES_EACH>();
        for (at, group) in groups.iter().enumerate() {
            let found = group.map(|index| entries[usize::from(index)]);
            if found.iter().fold(0, |all, entry| all | entry) & ESCAPED != 0 {
                note_escapes(&found, first + CODES_EACH * at, escapes);
            }
            self.push(found);
        }
        for (at, index) in rest.iter().enumerate() {
            let found = [entries[usize::from(*index)]];
            if found[0] & ESCAPED != 0 {
                note_escapes(&found, first + CODES_EACH * groups.len() + at, escapes);
            }
            self.push([found[0], 0, 0, 0]);
        }
    }

    /// Appends four codes, joined in pairs first, so that few operations wait for one another.
    #[inline(always)]
    fn push(&mut self, found: [u16; CODES_EACH]) {
        let [a, b, c, d] = found.map(|entry| u64::from(entry >> CODE_SHIFT));
        let lengths = found.map(|entry| u32::from(entry & ENTRY_LENGTH));
        let first = lengths[0] + lengths[1];
        let four = (a | b << lengths[0]) | (c | d << lengths[2]) << first;
        self.bits |= four << self.n;
        self.n += first + lengths[2] + lengths[3];
        self.out[self.at..self.at + 8].copy_from_slice(&self.bits.to_le_bytes());
        self.at += (self.n / 8) as usize;
        self.bits >>= self.n & !7;
        self.n &= 7;
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

#[cold]
fn note_escapes(entries: &[u16], first: usize, escapes: &mut Vec<u32>) {
    let escaped = entries.iter().enumerate().filter(|(_, entry)| **entry & ESCAPED != 0);
    escapes.extend(escaped.map(|(at, _)| (first + at) as u32));
}

/// Reader of the streams in a payload.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    /// Position of the next bit of each stream.
    at: [usize; STREAMS],
    /// Position in bytes of the end of each stream.
    ends: [usize; STREAMS],
}

impl<'a> Reader<'a> {
    /// Creates a reader of streams that follow each other from byte `begin` on. Returns `None` if the bytes end before.
    pub(crate) fn new(bytes: &'a [u8], begin: usize, lengths: &[u32; STREAMS]) -> Option<Self> {
        let (mut at, mut ends, mut next) = ([0; STREAMS], [0; STREAMS], begin);
        for (stream, length) in lengths.iter().enumerate() {
            at[stream] = next * 8;
            next = next.checked_add(*length as usize).filter(|next| *next <= bytes.len())?;
            ends[stream] = next;
        }
        Some(Self { bytes, at, ends })
    }

    /// Returns the position in bytes of the end of the last stream.
    pub(crate) fn end(&self) -> usize {
        self.ends[STREAMS - 1]
    }

    /// Returns `true` if each stream was read to the last byte, and not beyond.
    pub(crate) fn is_at_end(&self) -> bool {
        self.at.iter().zip(&self.ends).all(|(at, end)| at.div_ceil(8) == *end)
    }

    /// Replaces the contexts in a row of every stream by the entries found. All rows have one length.
    #[inline(always)]
    pub(crate) fn read_rows(&mut self, entries: &Entries, rows: &mut [Vec<u16>; STREAMS]) {
        let whole = rows[0].len() / CODES_EACH;
        let [a, b, c, d, e, f, g, h] = rows.each_mut().map(|row| row.as_chunks_mut::<CODES_EACH>().0.iter_mut());
        let (low, high) = self.at.split_first_chunk_mut().expect("streams in two parts");
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
            *own = entry(entries, *own, peek(self.bytes, self.at[stream]));
            self.at[stream] += usize::from(*own & ENTRY_LENGTH);
        }
    }
}

/// Replaces four contexts of each of some streams by the entries found.
#[inline(always)]
fn read_together(
    entries: &Entries,
    bytes: &[u8],
    at: &mut [usize; TOGETHER],
    mut rows: [&mut [u16; CODES_EACH]; TOGETHER],
) {
    // The highest bit marks the end of the word: the zeros above are the bits used.
    let mut words = at.map(|at| peek(bytes, at) | 1 << 63);
    for code in 0..CODES_EACH {
        for (word, row) in words.iter_mut().zip(&mut rows) {
            let found = entry(entries, row[code], *word);
            *word = word.wrapping_shr(found.into());
            row[code] = found;
        }
    }
    at.iter_mut().zip(words).for_each(|(at, word)| *at += word.leading_zeros() as usize);
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
