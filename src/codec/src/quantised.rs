//! Payload of quantised blocks that are encoded against a side table: integers by codes that the predicted means and the scales choose.
//!
//! ```text
//! payload = stored bits | scale of each 32 elements:u16 | coded
//! ```
//!
//! An element is `scale * q`. With mean and deviation in units of the scale, `q` is foretold as sign and exponent of a float are. The codes stand for
//! cells of `q`: one number of Q4_0, eight of Q8_0, whose place in the cell is stored.

use std::ops::Range;
use std::sync::OnceLock;

use crate::coded::{self, Sink, Source, WriteBuffers};
use crate::huffman::LENGTH_MAX;
use crate::prior::Prior;
use crate::quant;
use crate::rotary::Turn;
use crate::rows::{BlockAngles, Place, Rows};
use crate::shape::Dtype;
use crate::side_table::SideTable;
use crate::stored_bits::StoredBits;

/// Ranges of the mean, in units of the scale.
const BUCKETS: usize = 16;
/// Ranges of the deviation, in units of the scale.
const CLASSES: usize = 4;
/// Bytes of a scale.
const SCALE: usize = 2;
/// Elements of a scale.
const UNIT: usize = quant::BLOCK;

/// Lengths of the codes of each context, as in [`crate::prior`].
const LENGTHS: [&str; 2] = [include_str!("prior/q8_0.txt"), include_str!("prior/q4_0.txt")];

/// Form of the integers of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Integers {
    dtype: Dtype,
    /// Bits of an integer's place in a cell.
    stored: StoredBits,
    /// Bits of a cell's number.
    symbol_bits: u32,
    /// Half octaves from the scale to the least deviation of the third class, less one.
    class_origin: i32,
    /// Bits to shift out of a mean by a scale, both of exponent 0, for the number of the range.
    mean_shift: i32,
}

impl Integers {
    /// Returns the form of a quantised type.
    fn of(dtype: Dtype) -> Self {
        let stored = |bits| StoredBits { bits, shift: 0 };
        match dtype {
            Dtype::Q8_0 => Self { dtype, stored: stored(3), symbol_bits: 5, class_origin: 5, mean_shift: 10 },
            _ => Self { dtype, stored: stored(0), symbol_bits: 4, class_origin: -3, mean_shift: 6 },
        }
    }

    fn prior(self) -> &'static Prior {
        static PRIORS: [OnceLock<Prior>; 2] = [OnceLock::new(), OnceLock::new()];
        let at = usize::from(self.dtype == Dtype::Q4_0);
        let make = || Prior::new(LENGTHS[at], self.symbol_bits, BUCKETS * CLASSES, None, |symbol| symbol << 8);
        PRIORS[at].get_or_init(make)
    }

    /// Returns the bytes of `n` elements.
    fn len(self, n: usize) -> usize {
        let (elements, bytes) = self.dtype.unit();
        n / elements * bytes
    }

    /// Returns cell and place of an integer, as `cell << stored bits | place`.
    #[inline(always)]
    fn word(self, q: i16, flip: i16) -> u16 {
        let q = (q ^ flip).wrapping_sub(flip);
        match self.dtype {
            // The cell in the middle has the integers from -4 to 3.
            Dtype::Q8_0 => q.wrapping_add(132) as u16 & 255,
            _ => q as u16 & 15,
        }
    }

    /// Returns the integer of a word, in its lowest bits.
    #[inline(always)]
    fn integer(self, word: u16, flip: i16) -> i16 {
        let q = match self.dtype {
            Dtype::Q8_0 => (word as i16).wrapping_sub(132),
            _ => word as i16,
        };
        (q ^ flip).wrapping_sub(flip)
    }
}

/// Scale as an exponent and a fraction's reciprocal.
#[derive(Clone, Copy, Debug)]
struct Scale {
    is_negative: bool,
    exponent: i32,
    /// `2^26` by the mantissa, of 11 bits.
    reciprocal: u32,
    /// Logarithm in half octaves, rounded down.
    half_octaves: i32,
}

impl Scale {
    /// Reads a scale. Returns `None` for 0, infinities and NaN, which foretell nothing.
    #[inline(always)]
    fn new(bits: u16) -> Option<Self> {
        let (field, mantissa) = (i32::from(bits >> 10 & 31), u32::from(bits & 0x3ff));
        if field == 31 || bits & 0x7fff == 0 {
            return None;
        }
        let (exponent, mantissa) = if field > 0 {
            (field, mantissa | 0x400)
        } else {
            let missing = mantissa.leading_zeros() - 21;
            (1 - missing as i32, mantissa << missing)
        };
        // 1,448 is the mantissa of the square root of 2.
        let half_octaves = 2 * (exponent - 15) + i32::from(mantissa >= 1448);
        Some(Self { is_negative: bits >> 15 == 1, exponent, reciprocal: (1 << 26) / mantissa, half_octaves })
    }
}

/// Contexts of the rows of a block.
#[derive(Clone, Copy)]
struct Contexts<'a> {
    integers: Integers,
    rows: Rows<'a>,
}

impl Contexts<'_> {
    /// Sets numbers of codes, and -1 for integers that are inverted and 0 for the others, for a row with these scales. `means` is a buffer.
    #[inline(always)]
    fn fill(&self, row: usize, scales: &[[u8; SCALE]], means: &mut [i16], codes: &mut [u16], flips: &mut [i16]) {
        let (layer, side, _) = self.rows.shape.place(row);
        let plane = self.rows.table.plane(layer, side);
        self.rows.fill_means(row, means);
        let statistics = units(means).zip(units(&plane.exponents)).zip(units(&plane.uppers));
        let out = codes.as_chunks_mut::<UNIT>().0.iter_mut().zip(flips.as_chunks_mut::<UNIT>().0);
        for ((scale, statistics), out) in scales.iter().zip(statistics).zip(out) {
            match Scale::new(u16::from_le_bytes(*scale)) {
                Some(scale) => self.integers.fill_unit(&scale, statistics, out),
                None => (*out.0, *out.1) = ([0; UNIT], [0; UNIT]),
            }
        }
    }
}

/// Returns rows of elements unit by unit.
#[inline(always)]
fn units<T>(elements: &[T]) -> impl Iterator<Item = &[T; UNIT]> {
    elements.as_chunks().0.iter()
}

/// Means, exponents and upper bits of a unit's channels.
type Statistics<'a> = ((&'a [i16; UNIT], &'a [i8; UNIT]), &'a [u16; UNIT]);

impl Integers {
    /// Sets numbers of codes, and of inverted integers -1, of a unit.
    #[inline(always)]
    fn fill_unit(
        self,
        scale: &Scale,
        ((means, exponents), uppers): Statistics<'_>,
        (codes, flips): (&mut [u16; UNIT], &mut [i16; UNIT]),
    ) {
        let (to_shift, to_class) = (self.mean_shift + scale.exponent, scale.half_octaves + self.class_origin);
        let is_negative = -i16::from(scale.is_negative);
        for at in 0..UNIT {
            let (mean, exponent) = (means[at], i32::from(exponents[at]));
            let shift = (to_shift - exponent).clamp(0, 31);
            let bucket = ((u32::from(mean.unsigned_abs()) * scale.reciprocal) >> shift).min(BUCKETS as u32 - 1);
            let half_octaves = 2 * exponent + i32::from(uppers[at] != 0) - to_class;
            let class = (half_octaves >> 1).clamp(0, CLASSES as i32 - 1) as u32;
            codes[at] = (((class * BUCKETS as u32) | bucket) << LENGTH_MAX) as u16;
            flips[at] = (mean >> 15) ^ is_negative;
        }
    }
}

/// Buffers of a batch of rows.
#[derive(Debug, Default)]
struct Batch {
    means: Vec<i16>,
    flips: Vec<i16>,
    words: Vec<u16>,
}

/// Bytes of a block as symbols of codes and as stored bits.
struct Symbols<'a> {
    contexts: Contexts<'a>,
    batch: &'a mut Batch,
    bytes: &'a [u8],
    scales: &'a [[u8; SCALE]],
    stored: &'a mut [u8],
}

impl Source for Symbols<'_> {
    #[inline(always)]
    fn fill(&mut self, rows: Range<usize>, indices: &mut [u16]) {
        // Compilers make each type a loop of its own.
        match self.contexts.integers.dtype {
            Dtype::Q8_0 => self.fill_of(Integers::of(Dtype::Q8_0), rows, indices),
            _ => self.fill_of(Integers::of(Dtype::Q4_0), rows, indices),
        }
    }
}

impl Symbols<'_> {
    #[inline(always)]
    fn fill_of(&mut self, integers: Integers, rows: Range<usize>, indices: &mut [u16]) {
        let contexts = Contexts { integers, ..self.contexts };
        let n = contexts.rows.shape.channels();
        let Batch { means, flips, words } = &mut *self.batch;
        let (first, words) = (rows.start * n, &mut words[..indices.len()]);
        for (row, (indices, words)) in rows.zip(indices.chunks_exact_mut(n).zip(words.chunks_exact_mut(n))) {
            let scales = &self.scales[row * n / UNIT..][..n / UNIT];
            contexts.fill(row, scales, means, indices, flips);
            let bytes = &self.bytes[integers.len(row * n)..][..integers.len(n)];
            read(integers, bytes, words, flips);
            for (index, word) in indices.iter_mut().zip(words) {
                *index = *index >> (LENGTH_MAX as u32 - integers.symbol_bits) | *word >> integers.stored.bits;
            }
        }
        let len = integers.stored.packed_len(words.len());
        integers.stored.pack(words, &mut self.stored[integers.stored.packed_len(first)..][..len]);
    }
}

/// Sets the words of a row from its bytes.
#[inline(always)]
fn read(integers: Integers, bytes: &[u8], words: &mut [u16], flips: &[i16]) {
    let units = words.as_chunks_mut::<UNIT>().0.iter_mut().zip(flips.as_chunks::<UNIT>().0);
    for (unit, (words, flips)) in bytes.chunks_exact(integers.dtype.unit().1).zip(units) {
        let body = &unit[SCALE..];
        let mut q = [0i16; UNIT];
        match integers.dtype {
            Dtype::Q8_0 => q.iter_mut().zip(body).for_each(|(q, byte)| *q = i16::from(*byte as i8)),
            _ => {
                let (low, high) = q.split_at_mut(UNIT / 2);
                for ((low, high), byte) in low.iter_mut().zip(high).zip(body) {
                    (*low, *high) = (i16::from(byte & 15) - 8, i16::from(byte >> 4) - 8);
                }
            }
        }
        for at in 0..UNIT {
            words[at] = integers.word(q[at], flips[at]);
        }
    }
}

/// Sets the bytes of a row from its words and scales. Of the words only those bits count that are a cell or a place.
#[inline(always)]
fn write(integers: Integers, words: &[u16], flips: &[i16], scales: &[[u8; SCALE]], bytes: &mut [u8]) {
    let units = words.as_chunks::<UNIT>().0.iter().zip(flips.as_chunks::<UNIT>().0).zip(scales);
    for (unit, ((words, flips), scale)) in bytes.chunks_exact_mut(integers.dtype.unit().1).zip(units) {
        let mut q = [0i16; UNIT];
        for at in 0..UNIT {
            q[at] = integers.integer(words[at], flips[at]);
        }
        let (head, body) = unit.split_at_mut(SCALE);
        head.copy_from_slice(scale);
        match integers.dtype {
            Dtype::Q8_0 => body.iter_mut().zip(q).for_each(|(byte, q)| *byte = q as u8),
            _ => {
                let (low, high) = q.split_at(UNIT / 2);
                for ((low, high), byte) in low.iter().zip(high).zip(body) {
                    *byte = low.wrapping_add(8) as u8 & 15 | (high.wrapping_add(8) as u8) << 4;
                }
            }
        }
    }
}

/// Bytes of a block being decoded.
struct Elements<'a> {
    contexts: Contexts<'a>,
    batch: &'a mut Batch,
    scales: &'a [[u8; SCALE]],
    stored: &'a [u8],
    out: &'a mut [u8],
}

impl Sink for Elements<'_> {
    #[inline(always)]
    fn prepare(&mut self, rows: Range<usize>, contexts: &mut [u16]) {
        match self.contexts.integers.dtype {
            Dtype::Q8_0 => self.prepare_of(Integers::of(Dtype::Q8_0), rows, contexts),
            _ => self.prepare_of(Integers::of(Dtype::Q4_0), rows, contexts),
        }
    }

    #[inline(always)]
    fn take(&mut self, rows: Range<usize>, entries: &mut [u16]) {
        match self.contexts.integers.dtype {
            Dtype::Q8_0 => self.take_of(Integers::of(Dtype::Q8_0), rows, entries),
            _ => self.take_of(Integers::of(Dtype::Q4_0), rows, entries),
        }
    }
}

impl Elements<'_> {
    #[inline(always)]
    fn prepare_of(&mut self, integers: Integers, rows: Range<usize>, contexts: &mut [u16]) {
        let own = Contexts { integers, ..self.contexts };
        let n = own.rows.shape.channels();
        let Batch { means, flips, .. } = &mut *self.batch;
        for (row, (contexts, flips)) in rows.zip(contexts.chunks_exact_mut(n).zip(flips.chunks_exact_mut(n))) {
            own.fill(row, &self.scales[row * n / UNIT..][..n / UNIT], means, contexts, flips);
        }
    }

    #[inline(always)]
    fn take_of(&mut self, integers: Integers, rows: Range<usize>, entries: &mut [u16]) {
        let n = self.contexts.rows.shape.channels();
        let stored = &self.stored[integers.stored.packed_len(rows.start * n)..];
        entries.iter_mut().for_each(|entry| *entry = *entry >> 8 << integers.stored.bits);
        integers.stored.unpack(stored, entries);
        for (row, (words, flips)) in rows.zip(entries.chunks_exact(n).zip(self.batch.flips.chunks_exact(n))) {
            let scales = &self.scales[row * n / UNIT..][..n / UNIT];
            write(integers, words, flips, scales, &mut self.out[integers.len(row * n)..][..integers.len(n)]);
        }
    }
}

/// Buffers and tables for encoding and decoding.
pub(crate) struct Quantised {
    turn: Turn,
    angles: BlockAngles,
    batch: Batch,
    buffers: WriteBuffers,
    found: Vec<u16>,
}

impl Quantised {
    pub(crate) fn new() -> Self {
        Self {
            turn: Turn::new(),
            angles: BlockAngles::default(),
            batch: Batch::default(),
            buffers: WriteBuffers::default(),
            found: Vec::new(),
        }
    }

    /// Prepares for a block. Returns the number and the length of its rows.
    fn begin(&mut self, place: &Place, table: &SideTable) -> (usize, usize) {
        let size = (place.shape.rows(), place.shape.channels());
        self.angles.fill(&self.turn, place, table);
        self.batch.means.resize(size.1, 0);
        self.batch.flips.resize(coded::batch_len(size.0, size.1), 0);
        self.batch.words.resize(coded::batch_len(size.0, size.1), 0);
        size
    }

    /// Appends the payload of a block.
    pub(crate) fn encode(&mut self, place: &Place, table: &SideTable, bytes: &[u8], out: &mut Vec<u8>) {
        let integers = Integers::of(place.dtype);
        let (rows, n) = self.begin(place, table);
        let begin = out.len();
        let stored_len = integers.stored.packed_len(rows * n);
        out.resize(begin + stored_len, 0);
        out.extend(bytes.chunks_exact(place.dtype.unit().1).flat_map(|unit| &unit[..SCALE]));
        let (stored, scales) = out[begin..].split_at_mut(stored_len);
        let contexts = Contexts { integers, rows: Rows { shape: place.shape, table, angles: &self.angles } };
        let batch = &mut self.batch;
        let symbols = Symbols { contexts, batch, bytes, scales: scales.as_chunks().0, stored };
        coded::write((rows, n), &integers.prior().encoder, symbols, &mut self.buffers);
        self.buffers.append(out);
    }

    /// Sets the bytes of a block from a payload. Returns `None` if the payload is malformed.
    pub(crate) fn decode(&mut self, place: &Place, table: &SideTable, payload: &[u8], out: &mut [u8]) -> Option<()> {
        let integers = Integers::of(place.dtype);
        let n = place.shape.rows() * place.shape.channels();
        let (stored, rest) = payload.split_at_checked(integers.stored.packed_len(n))?;
        let (scales, rest) = rest.split_at_checked(n / UNIT * SCALE)?;
        let (reader, n_escapes) = coded::open(rest)?;
        (n_escapes == 0 && reader.end() == rest.len()).then_some(())?;
        let size = self.begin(place, table);
        let contexts = Contexts { integers, rows: Rows { shape: place.shape, table, angles: &self.angles } };
        let sink = Elements { contexts, batch: &mut self.batch, scales: scales.as_chunks().0, stored, out };
        coded::read(size, &integers.prior().decoder, reader, &mut self.found, sink).then_some(())
    }
}

#[cfg(test)]
mod tests;
