//! Codes of 8 bits in panels: Q8_0, Q6_K, Q5_0, Q5_1 and Q5_K.
//!
//! Codes are signed, one byte each. The codes of four inputs of an output are one `u32`, in the order of [`Byte`], and the words of
//! the sixteen outputs of a panel lie side by side: `[panel][group][4][lane]`. Codes of 5 and 6 bits take a byte too: unpacking them
//! takes longer than loading the byte. A weight is `code * scale`, which is exact: scales have no more than 18 significant bits, codes of Q6_K five; of
//! Q5_1 and Q5_K it is `code * scale + offset`, one rounding.

use std::array::from_fn;
use std::ops::Range;

use crate::kernels::kernel::{LANES, Sums};
use crate::kernels::matrix::WeightKind;
use crate::kernels::matrix::coded::{Byte, CodedPanel, SpanFactors};
use crate::kernels::matrix::half::finite_f16_lanes;
use crate::kernels::matrix::nibbles::{lanes, six_bits as scale_and_offset, u16_at};
use crate::kernels::rounded::RoundedRows;
use crate::kernels::stored::{Run, Stored};

/// Inputs with a common scale, of the kind with the fewest.
const GROUP: usize = 16;
/// Words of a group for each output.
const WORDS: usize = GROUP / 4;
/// Place of the code of each of four inputs in their word, in bits.
const SHIFTS: [u32; 4] = [0, 16, 8, 24];
/// Groups of 32 inputs: a block of Q8_0, Q5_0 and Q5_1, and those of Q5_K with a scale.
const GROUPS_8: usize = 2;
/// Groups in a block of Q6_K and Q5_K.
const GROUPS_K: usize = 16;

/// Scales of the groups, F16 as bits.
enum Scales {
    /// Scales for each [`GROUPS_8`] groups: Q8_0 and Q5_0.
    Plain(Stored<u16>),
    /// Scales and offsets for each [`GROUPS_8`] groups: Q5_1.
    Offset { scales: Stored<u16>, offsets: Stored<u16> },
    /// Integers for each [`GROUPS_8`] groups, and factors for each [`GROUPS_K`]: Q5_K.
    NestedOffset { scales: Stored<u8>, offsets: Stored<u8>, scale_factors: Stored<u16>, offset_factors: Stored<u16> },
    /// Integers for each group, and factors for each [`GROUPS_K`] groups: Q6_K.
    Nested { scales: Stored<i8>, factors: Stored<u16> },
}

/// Panels of codes of 8 bits.
pub(super) struct Codes {
    n_groups: usize,
    words: Stored<u32>,
    scales: Scales,
}

impl Codes {
    /// Packs rows of blocks of F16 scale and 32 signed bytes.
    pub(super) fn from_q8_0(inputs: usize, outputs: usize, bytes: &[u8]) -> Self {
        let (mut codes, lanes) = Self::new(inputs, outputs);
        let mut scales = vec![0; lanes / GROUPS_8];
        let (blocks, _) = bytes.as_chunks::<34>();
        for (i, block) in blocks.iter().enumerate() {
            for group in 0..GROUPS_8 {
                codes.place(i * GROUPS_8 + group, from_fn(|j| block[2 + group * GROUP + j] as i8));
            }
            scales[codes.lane_at(i * GROUPS_8, GROUPS_8)] = u16_at(block, 0);
        }
        codes.scales = Scales::Plain(scales.into());
        codes
    }

    /// Packs rows of blocks of F16 scale, 4 bytes with the upper bits of 32 codes, and 16 bytes with the low 4 bits.
    pub(super) fn from_q5_0(inputs: usize, outputs: usize, bytes: &[u8]) -> Self {
        let (mut codes, lanes) = Self::new(inputs, outputs);
        let mut scales = vec![0; lanes / GROUPS_8];
        let (blocks, _) = bytes.as_chunks::<22>();
        for (i, block) in blocks.iter().enumerate() {
            let at = codes.place_32(i, five_bits(&block[2..6], &block[6..]).map(|code| code as i8 - 16));
            scales[at] = u16_at(block, 0);
        }
        codes.scales = Scales::Plain(scales.into());
        codes
    }

    /// Packs rows of blocks of F16 scale, F16 offset and codes as in Q5_0.
    pub(super) fn from_q5_1(inputs: usize, outputs: usize, bytes: &[u8]) -> Self {
        let (mut codes, lanes) = Self::new(inputs, outputs);
        let (mut scales, mut offsets) = (vec![0; lanes / GROUPS_8], vec![0; lanes / GROUPS_8]);
        let (blocks, _) = bytes.as_chunks::<24>();
        for (i, block) in blocks.iter().enumerate() {
            let at = codes.place_32(i, five_bits(&block[4..8], &block[8..]).map(|code| code as i8));
            (scales[at], offsets[at]) = (u16_at(block, 0), u16_at(block, 2));
        }
        codes.scales = Scales::Offset { scales: scales.into(), offsets: offsets.into() };
        codes
    }

    /// Packs rows of blocks of two F16 factors, scales and offsets as in Q4_K, 32 bytes with the upper bits of 256 codes, the lowest bits those of the
    /// first 32, and 128 bytes with the low 4 bits as in Q4_K.
    pub(super) fn from_q5_k(inputs: usize, outputs: usize, bytes: &[u8]) -> Self {
        let (mut codes, lanes) = Self::new(inputs, outputs);
        let (mut scales, mut offsets) = (vec![0; lanes / GROUPS_8], vec![0; lanes / GROUPS_8]);
        let (mut scale_factors, mut offset_factors) = (vec![0; lanes / GROUPS_K], vec![0; lanes / GROUPS_K]);
        let (blocks, _) = bytes.as_chunks::<176>();
        for (i, block) in blocks.iter().enumerate() {
            for span in 0..GROUPS_K / GROUPS_8 {
                let (upper, low) = (&block[16..48], &block[48 + span / 2 * 32..][..32]);
                let code = |j: usize| low[j] >> (span % 2 * 4) & 15 | (upper[j] >> span & 1) << 4;
                let at = codes.place_32(i * GROUPS_K / GROUPS_8 + span, from_fn(|j| code(j) as i8));
                (scales[at], offsets[at]) = scale_and_offset(&block[4..16], span);
            }
            let at = codes.lane_at(i * GROUPS_K, GROUPS_K);
            (scale_factors[at], offset_factors[at]) = (u16_at(block, 0), u16_at(block, 2));
        }
        codes.scales = Scales::NestedOffset {
            scales: scales.into(),
            offsets: offsets.into(),
            scale_factors: scale_factors.into(),
            offset_factors: offset_factors.into(),
        };
        codes
    }

    /// Packs rows of blocks of 128 bytes with the low 4 bits of 256 codes, 64 bytes with the upper 2 bits, 16 signed scales and an
    /// F16 factor.
    pub(super) fn from_q6_k(inputs: usize, outputs: usize, bytes: &[u8]) -> Self {
        let (mut codes, lanes) = Self::new(inputs, outputs);
        let (mut scales, mut factors) = (vec![0; lanes], vec![0; lanes / GROUPS_K]);
        let (blocks, _) = bytes.as_chunks::<210>();
        for (i, block) in blocks.iter().enumerate() {
            let all = six_bits(block);
            for (group, code) in all.as_chunks::<GROUP>().0.iter().enumerate() {
                let at = codes.place(i * GROUPS_K + group, *code);
                scales[at] = block[192 + group] as i8;
            }
            factors[codes.lane_at(i * GROUPS_K, GROUPS_K)] = u16_at(block, 208);
        }
        codes.scales = Scales::Nested { scales: scales.into(), factors: factors.into() };
        codes
    }

    /// Returns empty panels, and the number of scales of all groups and lanes.
    fn new(inputs: usize, outputs: usize) -> (Self, usize) {
        let n_groups = inputs / GROUP;
        let lanes = outputs.div_ceil(LANES) * n_groups * LANES;
        (Self { n_groups, words: vec![0; lanes * WORDS].into(), scales: Scales::Plain(Vec::new().into()) }, lanes)
    }

    /// Describes panels of a kind that are not in memory.
    pub(super) fn absent(kind: WeightKind, inputs: usize, outputs: usize) -> Self {
        let n_groups = inputs / GROUP;
        let lanes = outputs.div_ceil(LANES) * n_groups * LANES;
        let (eighths, factors) = (lanes / GROUPS_8, lanes / GROUPS_K);
        let scales = match kind {
            WeightKind::Q5_1 => Scales::Offset { scales: Stored::absent(eighths), offsets: Stored::absent(eighths) },
            WeightKind::Q5K => Scales::NestedOffset {
                scales: Stored::absent(eighths),
                offsets: Stored::absent(eighths),
                scale_factors: Stored::absent(factors),
                offset_factors: Stored::absent(factors),
            },
            WeightKind::Q6K => Scales::Nested { scales: Stored::absent(lanes), factors: Stored::absent(factors) },
            _ => Scales::Plain(Stored::absent(eighths)),
        };
        Self { n_groups, words: Stored::absent(lanes * WORDS), scales }
    }

    /// Calls `visit` with each array.
    pub(super) fn runs(&mut self, visit: &mut dyn FnMut(&mut dyn Run)) {
        visit(&mut self.words);
        match &mut self.scales {
            Scales::Plain(scales) => visit(scales),
            Scales::Offset { scales, offsets } => {
                visit(scales);
                visit(offsets);
            }
            Scales::NestedOffset { scales, offsets, scale_factors, offset_factors } => {
                visit(scales);
                visit(offsets);
                visit(scale_factors);
                visit(offset_factors);
            }
            Scales::Nested { scales, factors } => {
                visit(scales);
                visit(factors);
            }
        }
    }

    /// Returns the bytes of all arrays.
    pub(super) fn n_bytes(&self) -> usize {
        self.words.n_bytes()
            + match &self.scales {
                Scales::Plain(scales) => scales.n_bytes(),
                Scales::Offset { scales, offsets } => scales.n_bytes() + offsets.n_bytes(),
                Scales::NestedOffset { scales, offsets, scale_factors, offset_factors } => {
                    scales.n_bytes() + offsets.n_bytes() + scale_factors.n_bytes() + offset_factors.n_bytes()
                }
                Scales::Nested { scales, factors } => scales.n_bytes() + factors.n_bytes(),
            }
    }

    /// Returns the index of the scale of group `i`, counted over all rows, in a list with a scale for each `per` groups.
    fn lane_at(&self, i: usize, per: usize) -> usize {
        let (output, group) = (i / self.n_groups, i % self.n_groups);
        (output / LANES * (self.n_groups / per) + group / per) * LANES + output % LANES
    }

    /// Stores the codes of group `i`, counted over all rows, and returns the index of the group's scale.
    fn place(&mut self, i: usize, codes: [i8; GROUP]) -> usize {
        let at = self.lane_at(i, 1);
        let first = at / LANES * WORDS * LANES + at % LANES;
        for (word, codes) in codes.as_chunks::<4>().0.iter().enumerate() {
            let packed = codes.iter().zip(SHIFTS).fold(0, |word, (code, shift)| word | u32::from(*code as u8) << shift);
            self.words[first + word * LANES] = packed;
        }
        at
    }

    /// Stores the codes of the `i`-th 32 inputs, counted over all rows, and returns the index of their scale.
    fn place_32(&mut self, i: usize, codes: [i8; GROUPS_8 * GROUP]) -> usize {
        for (group, codes) in codes.as_chunks::<GROUP>().0.iter().enumerate() {
            self.place(i * GROUPS_8 + group, *codes);
        }
        self.lane_at(i * GROUPS_8, GROUPS_8)
    }

    /// Computes the products of a panel with every row into `sums`.
    pub(super) fn times_rows(&self, panel: usize, x: RoundedRows<'_>, sums: &mut [Sums]) {
        let first = panel * self.n_groups;
        let words = &self.words[first * WORDS * LANES..];
        let per = match self.scales {
            Scales::Nested { .. } => 1,
            _ => GROUPS_8,
        };
        let panel = CodedPanel::new(
            words,
            #[inline(always)]
            |span| SpanFactors { scales: self.scales(first + span * per), offsets: self.offsets(first + span * per) },
        );
        match self.scales {
            Scales::Plain(_) => panel.times_rows::<Byte, 4, false>(x, sums),
            Scales::Nested { .. } => panel.times_rows::<Byte, 2, false>(x, sums),
            Scales::Offset { .. } | Scales::NestedOffset { .. } => panel.times_rows::<Byte, 4, true>(x, sums),
        }
    }

    /// Returns the scales of the lanes of a group.
    #[inline(always)]
    fn scales(&self, group: usize) -> [f32; LANES] {
        match &self.scales {
            Scales::Plain(scales) | Scales::Offset { scales, .. } => finite_f16_lanes(lanes(scales, group / GROUPS_8)),
            Scales::NestedOffset { scales, scale_factors, .. } => {
                let mut scale = finite_f16_lanes(lanes(scale_factors, group / GROUPS_K));
                let scales = lanes(scales, group / GROUPS_8);
                for lane in 0..LANES {
                    scale[lane] *= f32::from(scales[lane]);
                }
                scale
            }
            Scales::Nested { scales, factors } => {
                let (mut scale, factor) = (finite_f16_lanes(lanes(factors, group / GROUPS_K)), lanes(scales, group));
                for lane in 0..LANES {
                    scale[lane] *= f32::from(factor[lane]);
                }
                scale
            }
        }
    }

    /// Returns the offsets of the lanes of a group.
    #[inline(always)]
    fn offsets(&self, group: usize) -> [f32; LANES] {
        match &self.scales {
            Scales::Plain(_) | Scales::Nested { .. } => [0.0; LANES],
            Scales::Offset { offsets, .. } => finite_f16_lanes(lanes(offsets, group / GROUPS_8)),
            Scales::NestedOffset { offsets, offset_factors, .. } => {
                let mut offset = finite_f16_lanes(lanes(offset_factors, group / GROUPS_K));
                let offsets = lanes(offsets, group / GROUPS_8);
                for lane in 0..LANES {
                    offset[lane] *= -f32::from(offsets[lane]);
                }
                offset
            }
        }
    }

    /// Unpacks some inputs of a panel, whole groups, into `[input][lane]`.
    #[inline(always)]
    pub(super) fn unpack(&self, panel: usize, inputs: Range<usize>, out: &mut [f32]) {
        let first = panel * self.n_groups + inputs.start / GROUP;
        let (out, _) = out.as_chunks_mut::<LANES>();
        for (i, out) in out.chunks_exact_mut(GROUP).enumerate() {
            let (scales, offsets) = (self.scales(first + i), self.offsets(first + i));
            for (k, out) in out.iter_mut().enumerate() {
                let words = lanes(&self.words, (first + i) * WORDS + k / 4);
                let shift = SHIFTS[k % 4];
                // Into an array of its own: vectors form only where no store comes between the loads.
                let mut weights = [0.0; LANES];
                for lane in 0..LANES {
                    weights[lane] = f32::from((words[lane] >> shift) as i8).mul_add(scales[lane], offsets[lane]);
                }
                *out = weights;
            }
        }
    }
}

/// Returns 32 codes of 5 bits: a bit of each in `upper`, and the low 4 bits in 16 bytes: the low halves of the bytes are the first 16 codes.
fn five_bits(upper: &[u8], low: &[u8]) -> [u8; 32] {
    from_fn(|j| low[j % 16] >> (j / 16 * 4) & 15 | (upper[j / 8] >> (j % 8) & 1) << 4)
}

/// Returns the codes of a block of Q6_K, less 32. Each half of the block has 64 bytes of low bits: the low halves of the bytes are
/// its first 64 codes; and 32 bytes of upper bits, two bits in each for the codes 0, 32, 64 and 96 places on.
fn six_bits(block: &[u8; 210]) -> [i8; 256] {
    from_fn(|i| {
        let (half, j) = (i / 128, i % 128);
        let low = block[half * 64 + j % 64] >> (j / 64 * 4) & 15;
        let high = block[128 + half * 32 + j % 32] >> (j / 32 * 2) & 3;
        (low | high << 4) as i8 - 32
    })
}
