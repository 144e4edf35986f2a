//! Codes of 4 bits in panels: Q4_0, Q4_1 and Q4_K.
//!
//! A group is the codes of 32 inputs and sixteen outputs with common scales. The codes of eight inputs of an output are one `u32`,
//! in the order of [`Nibble`], and the words of the sixteen outputs lie side by side: `[panel][group][4][lane]`. So a shift and a
//! mask give two weights of each of sixteen outputs, as integers of 16 bits. A weight is `code * scale + offset`, one rounding;
//! the product is exact, for scales have no more than 17 significant bits.

use std::array::from_fn;
use std::ops::Range;

use crate::kernels::kernel::{LANES, Sums};
use crate::kernels::matrix::WeightKind;
use crate::kernels::matrix::coded::{CodedPanel, Nibble, SpanFactors};
use crate::kernels::matrix::half::finite_f16_lanes;
use crate::kernels::rounded::RoundedRows;
use crate::kernels::stored::{Run, Stored};

/// Inputs with common scales.
const GROUP: usize = 32;
/// Words of a group for each output.
const WORDS: usize = GROUP / 8;
/// Place of the code of each of eight inputs in their word, in bits.
const SHIFTS: [u32; 8] = [0, 16, 4, 20, 8, 24, 12, 28];
/// Groups in a block of Q4_K.
const GROUPS_K: usize = 8;

/// Scales and offsets of the groups, `[panel][group][lane]`. F16 as bits.
enum Scales {
    /// Scales of Q4_0; offsets are -8 times the scales.
    Centred(Stored<u16>),
    /// Scales and offsets of Q4_1.
    Offset { scales: Stored<u16>, offsets: Stored<u16> },
    /// Integers for each group, and factors for each [`GROUPS_K`] groups: Q4_K.
    Nested { scales: Stored<u8>, offsets: Stored<u8>, scale_factors: Stored<u16>, offset_factors: Stored<u16> },
}

/// Panels of codes of 4 bits.
pub(super) struct Nibbles {
    n_groups: usize,
    words: Stored<u32>,
    scales: Scales,
}

impl Nibbles {
    /// Packs rows of blocks of F16 scale and 16 bytes: the low halves of the bytes are the first 16 codes.
    pub(super) fn from_q4_0(inputs: usize, outputs: usize, bytes: &[u8]) -> Self {
        let (mut nibbles, lanes) = Self::new(inputs, outputs);
        let mut scales = vec![0; lanes];
        let (blocks, _) = bytes.as_chunks::<18>();
        for (i, block) in blocks.iter().enumerate() {
            let at = nibbles.place(i, &halves(&block[2..]));
            scales[at] = u16_at(block, 0);
        }
        nibbles.scales = Scales::Centred(scales.into());
        nibbles
    }

    /// Packs rows of blocks of F16 scale, F16 offset and 16 bytes as in Q4_0.
    pub(super) fn from_q4_1(inputs: usize, outputs: usize, bytes: &[u8]) -> Self {
        let (mut nibbles, lanes) = Self::new(inputs, outputs);
        let (mut scales, mut offsets) = (vec![0; lanes], vec![0; lanes]);
        let (blocks, _) = bytes.as_chunks::<20>();
        for (i, block) in blocks.iter().enumerate() {
            let at = nibbles.place(i, &halves(&block[4..]));
            scales[at] = u16_at(block, 0);
            offsets[at] = u16_at(block, 2);
        }
        nibbles.scales = Scales::Offset { scales: scales.into(), offsets: offsets.into() };
        nibbles
    }

    /// Packs rows of blocks of two F16 factors, 12 bytes with eight scales and eight offsets of 6 bits, and 128 bytes: each 32
    /// bytes have the codes of one group in the low halves and of the next group in the high halves.
    pub(super) fn from_q4_k(inputs: usize, outputs: usize, bytes: &[u8]) -> Self {
        let (mut nibbles, lanes) = Self::new(inputs, outputs);
        let (mut scales, mut offsets) = (vec![0; lanes], vec![0; lanes]);
        let (mut scale_factors, mut offset_factors) = (vec![0; lanes / GROUPS_K], vec![0; lanes / GROUPS_K]);
        let (blocks, _) = bytes.as_chunks::<144>();
        for (i, block) in blocks.iter().enumerate() {
            for group in 0..GROUPS_K {
                let pair = &block[16 + group / 2 * GROUP..][..GROUP];
                let shift = group % 2 * 4;
                let at = nibbles.place(i * GROUPS_K + group, &from_fn(|j| pair[j] >> shift & 15));
                (scales[at], offsets[at]) = six_bits(&block[4..16], group);
            }
            let at = nibbles.lane_at(i * GROUPS_K, GROUPS_K);
            scale_factors[at] = u16_at(block, 0);
            offset_factors[at] = u16_at(block, 2);
        }
        nibbles.scales = Scales::Nested {
            scales: scales.into(),
            offsets: offsets.into(),
            scale_factors: scale_factors.into(),
            offset_factors: offset_factors.into(),
        };
        nibbles
    }

    /// Returns empty panels, and the number of scales of all groups and lanes.
    fn new(inputs: usize, outputs: usize) -> (Self, usize) {
        let n_groups = inputs / GROUP;
        let lanes = outputs.div_ceil(LANES) * n_groups * LANES;
        (Self { n_groups, words: vec![0; lanes * WORDS].into(), scales: Scales::Centred(Vec::new().into()) }, lanes)
    }

    /// Describes panels of a kind that are not in memory.
    pub(super) fn absent(kind: WeightKind, inputs: usize, outputs: usize) -> Self {
        let n_groups = inputs / GROUP;
        let lanes = outputs.div_ceil(LANES) * n_groups * LANES;
        let scales = match kind {
            WeightKind::Q4_1 => Scales::Offset { scales: Stored::absent(lanes), offsets: Stored::absent(lanes) },
            WeightKind::Q4K => Scales::Nested {
                scales: Stored::absent(lanes),
                offsets: Stored::absent(lanes),
                scale_factors: Stored::absent(lanes / GROUPS_K),
                offset_factors: Stored::absent(lanes / GROUPS_K),
            },
            _ => Scales::Centred(Stored::absent(lanes)),
        };
        Self { n_groups, words: Stored::absent(lanes * WORDS), scales }
    }

    /// Calls `visit` with each array.
    pub(super) fn runs(&mut self, visit: &mut dyn FnMut(&mut dyn Run)) {
        visit(&mut self.words);
        match &mut self.scales {
            Scales::Centred(scales) => visit(scales),
            Scales::Offset { scales, offsets } => {
                visit(scales);
                visit(offsets);
            }
            Scales::Nested { scales, offsets, scale_factors, offset_factors } => {
                visit(scales);
                visit(offsets);
                visit(scale_factors);
                visit(offset_factors);
            }
        }
    }

    /// Returns the bytes of all arrays.
    pub(super) fn n_bytes(&self) -> usize {
        self.words.n_bytes()
            + match &self.scales {
                Scales::Centred(scales) => scales.n_bytes(),
                Scales::Offset { scales, offsets } => scales.n_bytes() + offsets.n_bytes(),
                Scales::Nested { scales, offsets, scale_factors, offset_factors } => {
                    scales.n_bytes() + offsets.n_bytes() + scale_factors.n_bytes() + offset_factors.n_bytes()
                }
            }
    }

    /// Returns the index of the scale of group `i`, counted over all rows, in a list with a scale for each `per` groups.
    fn lane_at(&self, i: usize, per: usize) -> usize {
        let (output, group) = (i / self.n_groups, i % self.n_groups);
        (output / LANES * (self.n_groups / per) + group / per) * LANES + output % LANES
    }

    /// Stores the codes of group `i`, counted over all rows, and returns the index of the group's scale.
    fn place(&mut self, i: usize, codes: &[u8; GROUP]) -> usize {
        let at = self.lane_at(i, 1);
        let first = at / LANES * WORDS * LANES + at % LANES;
        for (word, codes) in codes.chunks_exact(8).enumerate() {
            let packed = codes.iter().zip(SHIFTS).fold(0, |word, (code, shift)| word | u32::from(*code) << shift);
            self.words[first + word * LANES] = packed;
        }
        at
    }

    /// Computes the products of a panel with every row into `sums`.
    pub(super) fn times_rows(&self, panel: usize, x: RoundedRows<'_>, sums: &mut [Sums]) {
        let first = panel * self.n_groups;
        let words = &self.words[first * WORDS * LANES..];
        let panel = CodedPanel::new(
            words,
            #[inline(always)]
            |group| {
                let (scales, offsets) = self.scales(first + group);
                SpanFactors { scales, offsets }
            },
        );
        panel.times_rows::<Nibble, 4, true>(x, sums);
    }

    /// Returns scales and offsets of the lanes of a group.
    #[inline(always)]
    fn scales(&self, group: usize) -> ([f32; LANES], [f32; LANES]) {
        match &self.scales {
            Scales::Centred(scales) => {
                let scales = finite_f16_lanes(lanes(scales, group));
                let mut offsets = [0.0; LANES];
                for lane in 0..LANES {
                    offsets[lane] = -8.0 * scales[lane];
                }
                (scales, offsets)
            }
            Scales::Offset { scales, offsets } => {
                (finite_f16_lanes(lanes(scales, group)), finite_f16_lanes(lanes(offsets, group)))
            }
            Scales::Nested { scales, offsets, scale_factors, offset_factors } => {
                let mut scale = finite_f16_lanes(lanes(scale_factors, group / GROUPS_K));
                let mut offset = finite_f16_lanes(lanes(offset_factors, group / GROUPS_K));
                let (scales, offsets) = (lanes(scales, group), lanes(offsets, group));
                for lane in 0..LANES {
                    scale[lane] *= f32::from(scales[lane]);
                    offset[lane] *= -f32::from(offsets[lane]);
                }
                (scale, offset)
            }
        }
    }

    /// Unpacks some inputs of a panel, whole groups, into `[input][lane]`.
    #[inline(always)]
    pub(super) fn unpack(&self, panel: usize, inputs: Range<usize>, out: &mut [f32]) {
        let first = panel * self.n_groups + inputs.start / GROUP;
        let (out, _) = out.as_chunks_mut::<LANES>();
        for (i, out) in out.chunks_exact_mut(GROUP).enumerate() {
            let (scales, offsets) = self.scales(first + i);
            for (word, out) in out.chunks_exact_mut(8).enumerate() {
                let words = lanes(&self.words, (first + i) * WORDS + word);
                for (out, shift) in out.iter_mut().zip(SHIFTS) {
                    // Into an array of its own: vectors form only where no store comes between the loads.
                    let mut weights = [0.0; LANES];
                    for lane in 0..LANES {
                        let code = (words[lane] >> shift & 15) as i32 as f32;
                        weights[lane] = code.mul_add(scales[lane], offsets[lane]);
                    }
                    *out = weights;
                }
            }
        }
    }
}

/// Returns the `i`-th sixteen of `values`.
#[inline(always)]
pub(super) fn lanes<T: Copy>(values: &[T], i: usize) -> [T; LANES] {
    *values[i * LANES..].first_chunk().expect("sixteen lanes")
}

/// Reads the `u16` at byte `at` of a block.
pub(super) fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

/// Splits 16 bytes into the codes of their low halves and then of their high halves.
fn halves(bytes: &[u8]) -> [u8; GROUP] {
    from_fn(|j| bytes[j % 16] >> (j / 16 * 4) & 15)
}

/// Returns scale and offset of 32 weights of Q4_K and Q5_K. The first four scales and offsets are the low 6 bits of a byte each; the others
/// have 4 bits in the last four bytes and 2 in the upper bits of the first eight.
pub(super) fn six_bits(bytes: &[u8], group: usize) -> (u8, u8) {
    if group < 4 {
        return (bytes[group] & 63, bytes[group + 4] & 63);
    }
    let low = bytes[group + 4];
    (low & 15 | bytes[group - 4] >> 6 << 4, low >> 4 | bytes[group] >> 6 << 4)
}
