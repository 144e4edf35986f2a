//! Payload of blocks of an unknown model: the byte with the exponent by one code for keys and one for values, made for the block; the other byte
//! unchanged.
//!
//! ```text
//! payload = exponent of each plane:u8 | lengths of two codes | other bytes | low halves of F32 | coded
//! lengths = groups of (symbols without a code before:u8, symbols:u8, a length for each in four bits), ended by a group without symbols
//! ```
//!
//! BF16 is rotated left by a bit, which brings all of the exponent into the upper byte. Planes, the keys or the values of a layer, differ
//! in scale more than in form: exponents count from the most frequent one.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use crate::coded::{self, Sink, Source, WriteBuffers};
use crate::huffman::{self, LENGTH_MAX, Merger, SYMBOLS_MAX};
use crate::lanes;
use crate::shape::{Dtype, Shape};
use crate::stored_bits::StoredBits;
use crate::streams::{Codes, Entries, encoder_entry, no_entries};

/// Arrangement of a type's lanes for coding bytes: the byte coded is the upper one of a word.
#[derive(Clone, Copy, Debug)]
struct Words {
    dtype: Dtype,
    /// Sign bit in a word; 0 where the sign is not coded.
    sign: u16,
    /// Place of the exponent's lowest bit in a word.
    exponent: u32,
    /// Bits stored unchanged.
    stored: StoredBits,
}

impl Words {
    fn of(dtype: Dtype) -> Self {
        let (sign, exponent, bits) = match dtype {
            Dtype::Bf16 | Dtype::F32 => (0, 8, 8),
            Dtype::F16 => (0x8000, 10, 8),
            Dtype::E5m2 => (0x8000, 10, 0),
            Dtype::E4m3 => (0x8000, 11, 0),
            Dtype::Q8_0 | Dtype::Q4_0 => unreachable!("quantised elements have no lanes"),
        };
        Self { dtype, sign, exponent, stored: StoredBits { bits, shift: 0 } }
    }

    /// Returns the word of a lane.
    #[inline(always)]
    fn word(self, lane: u16) -> u16 {
        match self.dtype {
            Dtype::Bf16 | Dtype::F32 => lane.rotate_left(1),
            Dtype::E4m3 => lane & 0x8000 | lane << 1 & 0x7fff,
            _ => lane,
        }
    }

    /// Returns the lane of a word.
    #[inline(always)]
    fn lane(self, word: u16) -> u16 {
        match self.dtype {
            Dtype::Bf16 | Dtype::F32 => word.rotate_right(1),
            Dtype::E4m3 => word & 0x8000 | (word & 0x7fff) >> 1,
            _ => word,
        }
    }

    /// Returns a word relative to an exponent.
    #[inline(always)]
    fn relative(self, word: u16, exponent: u8) -> u16 {
        word & self.sign | word.wrapping_sub(u16::from(exponent) << self.exponent) & !self.sign
    }

    /// Returns the word that is `relative` to an exponent.
    #[inline(always)]
    fn absolute(self, relative: u16, exponent: u8) -> u16 {
        relative & self.sign | relative.wrapping_add(u16::from(exponent) << self.exponent) & !self.sign
    }

    /// Returns the most frequent exponent of a plane, the lowest of equals, from the counts of upper bytes.
    fn exponent_of(self, counts: &[u32; SYMBOLS_MAX]) -> u8 {
        let mut exponents = [0u32; SYMBOLS_MAX];
        for (byte, count) in (0u16..).zip(counts) {
            exponents[usize::from((byte << 8 & !self.sign) >> self.exponent)] += count;
        }
        (0..=u8::MAX).rev().max_by_key(|exponent| exponents[usize::from(*exponent)]).unwrap_or(0)
    }
}

/// Returns the counts of the upper bytes of words.
fn counts_of(words: &[u16]) -> [u32; SYMBOLS_MAX] {
    // Of four counts in turn, none waits for the one before.
    let mut counts = [[0u32; SYMBOLS_MAX]; 4];
    let (fours, rest) = words.as_chunks::<4>();
    for four in fours {
        counts.iter_mut().zip(four).for_each(|(counts, word)| counts[usize::from(word >> 8)] += 1);
    }
    rest.iter().for_each(|word| counts[0][usize::from(word >> 8)] += 1);
    std::array::from_fn(|byte| counts.iter().map(|counts| counts[byte]).sum())
}

/// Words of a block as symbols of one code for keys and one for values.
struct Symbols<'a> {
    words: Words,
    tokens: usize,
    exponents: &'a [u8],
    block: &'a [u16],
}

impl Source for Symbols<'_> {
    #[inline(always)]
    fn fill(&mut self, rows: Range<usize>, indices: &mut [u16]) {
        let n = indices.len() / rows.len();
        let own = &self.block[rows.start * n..];
        for (row, (indices, own)) in rows.zip(indices.chunks_exact_mut(n).zip(own.chunks_exact(n))) {
            let plane = row / self.tokens;
            let (side, exponent) = ((plane % 2 * SYMBOLS_MAX) as u16, self.exponents[plane]);
            for (index, word) in indices.iter_mut().zip(own) {
                *index = side | self.words.relative(*word, exponent) >> 8;
            }
        }
    }
}

/// Bytes of a block being decoded.
struct Elements<'a> {
    words: Words,
    tokens: usize,
    exponents: &'a [u8],
    stored: &'a [u8],
    low: &'a [u8],
    out: &'a mut [u8],
}

impl Sink for Elements<'_> {
    #[inline(always)]
    fn prepare(&mut self, rows: Range<usize>, contexts: &mut [u16]) {
        let n = contexts.len() / rows.len();
        for (row, contexts) in rows.zip(contexts.chunks_exact_mut(n)) {
            contexts.fill(((row / self.tokens % 2) << LENGTH_MAX) as u16);
        }
    }

    #[inline(always)]
    fn take(&mut self, rows: Range<usize>, entries: &mut [u16]) {
        let n = entries.len() / rows.len();
        let first = rows.start * n;
        for (row, entries) in rows.zip(entries.chunks_exact_mut(n)) {
            let exponent = self.exponents[row / self.tokens];
            entries.iter_mut().for_each(|entry| *entry = self.words.absolute(*entry & 0xff00, exponent));
        }
        // Compilers make each type a loop of its own.
        match self.words.dtype {
            Dtype::Bf16 => self.join(Dtype::Bf16, first, entries),
            Dtype::F16 => self.join(Dtype::F16, first, entries),
            other => self.join(other, first, entries),
        }
    }
}

impl Elements<'_> {
    /// Adds the stored bits to words, from element `first` on, and sets the bytes.
    #[inline(always)]
    fn join(&mut self, dtype: Dtype, first: usize, entries: &mut [u16]) {
        let (words, width, low_bytes) = (Words::of(dtype), dtype.width(), lanes::low_bytes(dtype));
        let (stored, low) = (&self.stored[words.stored.packed_len(first)..], &self.low[first * low_bytes..]);
        let out = &mut self.out[first * width..][..entries.len() * width];
        words.stored.unpack(stored, entries);
        entries.iter_mut().for_each(|word| *word = words.lane(*word));
        lanes::join(dtype, entries, low, out);
    }
}

/// Lanes being made words.
struct ToWords<'a>(Words, &'a mut [u16]);

impl WithSimd for ToWords<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<V: Simd>(self, _: V) {
        self.1.iter_mut().for_each(|lane| *lane = self.0.word(*lane));
    }
}

/// Stored bits of words being packed.
struct Pack<'a>(StoredBits, &'a [u16], &'a mut [u8]);

impl WithSimd for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<V: Simd>(self, _: V) {
        self.0.pack(self.1, self.2);
    }
}

/// Buffers for encoding and decoding.
pub(crate) struct Plain {
    merger: Merger,
    exponents: Vec<u8>,
    codes: Box<Codes>,
    entries: Box<Entries>,
    buffers: WriteBuffers,
    found: Vec<u16>,
}

impl Plain {
    pub(crate) fn new() -> Self {
        Self {
            merger: Merger::default(),
            exponents: Vec::new(),
            codes: no_entries(),
            entries: no_entries(),
            buffers: WriteBuffers::default(),
            found: Vec::new(),
        }
    }

    /// Appends the payload of a block with these bytes and lanes. The lanes are used up.
    pub(crate) fn encode(
        &mut self,
        dtype: Dtype,
        shape: &Shape,
        (bytes, lanes): (&[u8], &mut [u16]),
        out: &mut Vec<u8>,
    ) {
        let (words, tokens) = (Words::of(dtype), usize::from(shape.tokens));
        pulp::Arch::new().dispatch(ToWords(words, lanes));
        let block = &*lanes;
        self.make_codes(words, shape, block, out);
        let symbols = Symbols { words, tokens, exponents: &self.exponents, block };
        coded::write((shape.rows(), shape.channels()), &self.codes, symbols, &mut self.buffers);
        debug_assert!(self.buffers.escapes().is_empty(), "every byte of the block has a code");
        let begin = out.len();
        out.resize(begin + words.stored.packed_len(block.len()), 0);
        pulp::Arch::new().dispatch(Pack(words.stored, block, &mut out[begin..]));
        lanes::push_low(dtype, bytes, out);
        self.buffers.append(out);
    }

    /// Appends the exponent of each plane and the lengths of the codes, and sets the encoder's entries.
    fn make_codes(&mut self, words: Words, shape: &Shape, block: &[u16], out: &mut Vec<u8>) {
        let mut weights = [[0u64; SYMBOLS_MAX]; 2];
        self.exponents.clear();
        for (at, plane) in block.chunks_exact(shape.channels() * usize::from(shape.tokens)).enumerate() {
            let counts = counts_of(plane);
            let exponent = words.exponent_of(&counts);
            self.exponents.push(exponent);
            for (byte, count) in (0u16..).zip(counts) {
                weights[at % 2][usize::from(words.relative(byte << 8, exponent) >> 8)] += u64::from(count);
            }
        }
        out.extend(&self.exponents);
        for (weights, own) in weights.iter_mut().zip(self.codes.as_chunks_mut::<SYMBOLS_MAX>().0) {
            // A code of a single symbol would have no second branch.
            if weights.iter().filter(|weight| **weight > 0).count() == 1 {
                let other = usize::from(weights[0] > 0);
                weights[other] = 1;
            }
            let lengths = self.merger.lengths(weights);
            write_lengths(&lengths, out);
            let codes = huffman::codes(&lengths);
            for (entry, (code, length)) in own.iter_mut().zip(codes.iter().zip(&lengths)) {
                *entry = encoder_entry(*code, *length, false);
            }
        }
    }

    /// Sets the bytes of a block from a payload. Returns `None` if the payload is malformed.
    pub(crate) fn decode(&mut self, dtype: Dtype, shape: &Shape, payload: &[u8], out: &mut [u8]) -> Option<()> {
        let (words, channels) = (Words::of(dtype), shape.channels());
        let n = shape.rows() * channels;
        let (exponents, mut rest) = payload.split_at_checked(2 * usize::from(shape.layers))?;
        for entries in self.entries.as_chunks_mut::<{ 1 << LENGTH_MAX }>().0.iter_mut().take(2) {
            let lengths = read_lengths(&mut rest)?;
            huffman::fill_decoder(&lengths, |symbol| symbol << 8, entries).then_some(())?;
        }
        let (stored, rest) = rest.split_at_checked(words.stored.packed_len(n))?;
        let (low, rest) = rest.split_at_checked(n * lanes::low_bytes(dtype))?;
        let (reader, n_escapes) = coded::open(rest)?;
        (n_escapes == 0 && reader.end() == rest.len()).then_some(())?;
        let sink = Elements { words, tokens: shape.tokens.into(), exponents, stored, low, out };
        coded::read((shape.rows(), channels), &self.entries, reader, &mut self.found, sink).then_some(())
    }
}

fn write_lengths(lengths: &[u8], out: &mut Vec<u8>) {
    let mut at = 0;
    while let Some(skip) = lengths[at..].iter().position(|length| *length > 0) {
        let rest = &lengths[at + skip..];
        // A gap of one symbol costs less than a new group.
        let n = (0..rest.len().min(255))
            .rev()
            .find(|n| rest[*n] > 0 && rest[..*n].windows(3).all(|three| three != [0, 0, 0]))
            .unwrap_or(0)
            + 1;
        out.extend([skip as u8, n as u8]);
        out.extend(rest[..n].chunks(2).map(|two| two[0] | two.get(1).copied().unwrap_or(0) << 4));
        at += skip + n;
    }
    out.extend([0, 0]);
}

fn read_lengths(bytes: &mut &[u8]) -> Option<[u8; SYMBOLS_MAX]> {
    let mut lengths = [0; SYMBOLS_MAX];
    let mut at = 0;
    loop {
        let ([skip, n], rest) = bytes.split_first_chunk::<2>()?;
        let n = usize::from(*n);
        let (halves, rest) = rest.split_at_checked(n.div_ceil(2))?;
        *bytes = rest;
        if n == 0 {
            return Some(lengths);
        }
        at += usize::from(*skip);
        for (i, length) in lengths.get_mut(at..at + n)?.iter_mut().enumerate() {
            *length = halves[i / 2] >> (i % 2 * 4) & 15;
            (usize::from(*length) <= LENGTH_MAX).then_some(())?;
        }
        at += n;
    }
}
