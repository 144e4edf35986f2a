//! Codes of 8 bits in panels: Q8_0 and Q6_K.
//!
//! Codes are signed, one byte each. The codes of four inputs of an output are one `u32`, in the order of [`Byte`], and the words of
//! the sixteen outputs of a panel lie side by side: `[panel][group][4][lane]`. Q6_K takes a byte instead of 6 bits: unpacking 6 bits
//! takes longer than loading the byte. A weight is `code * scale`, which is exact: scales have no more than 18 significant bits, codes of Q6_K five.

use std::array::from_fn;
use std::ops::Range;

use crate::kernel::{LANES, Sums};
use crate::matrix::coded::{Byte, CodedPanel, SpanFactors};
use crate::matrix::half::finite_f16_lanes;
use crate::matrix::nibbles::{lanes, u16_at};
use crate::rounded::RoundedRows;

/// Inputs with a common scale, of the kind with the fewest.
const GROUP: usize = 16;
/// Words of a group for each output.
const WORDS: usize = GROUP / 4;
/// Place of the code of each of four inputs in their word, in bits.
const SHIFTS: [u32; 4] = [0, 16, 8, 24];
/// Groups in a block of Q8_0.
const GROUPS_8: usize = 2;
/// Groups in a block of Q6_K.
const GROUPS_K: usize = 16;

/// Scales of the groups, F16 as bits.
enum Scales {
    /// Scales for each [`GROUPS_8`] groups: Q8_0.
    Plain(Vec<u16>),
    /// Integers for each group, and factors for each [`GROUPS_K`] groups: Q6_K.
    Nested { scales: Vec<i8>, factors: Vec<u16> },
}

/// Panels of codes of 8 bits.
pub(super) struct Codes {
    n_groups: usize,
    words: Vec<u32>,
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
        codes.scales = Scales::Plain(scales);
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
        codes.scales = Scales::Nested { scales, factors };
        codes
    }

    /// Returns empty panels, and the number of scales of all groups and lanes.
    fn new(inputs: usize, outputs: usize) -> (Self, usize) {
        let n_groups = inputs / GROUP;
        let lanes = outputs.div_ceil(LANES) * n_groups * LANES;
        (Self { n_groups, words: vec![0; lanes * WORDS], scales: Scales::Plain(Vec::new()) }, lanes)
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

    /// Computes the products of a panel with every row into `sums`.
    pub(super) fn times_rows(&self, panel: usize, x: RoundedRows<'_>, sums: &mut [Sums]) {
        let first = panel * self.n_groups;
        let words = &self.words[first * WORDS * LANES..];
        let per = match self.scales {
            Scales::Plain(_) => GROUPS_8,
            Scales::Nested { .. } => 1,
        };
        let panel = CodedPanel::new(
            words,
            #[inline(always)]
            |span| SpanFactors { scales: self.scales(first + span * per), offsets: [0.0; LANES] },
        );
        match self.scales {
            Scales::Plain(_) => panel.times_rows::<Byte, 4, false>(x, sums),
            Scales::Nested { .. } => panel.times_rows::<Byte, 2, false>(x, sums),
        }
    }

    /// Returns the scales of the lanes of a group.
    #[inline(always)]
    fn scales(&self, group: usize) -> [f32; LANES] {
        match &self.scales {
            Scales::Plain(scales) => finite_f16_lanes(lanes(scales, group / GROUPS_8)),
            Scales::Nested { scales, factors } => {
                let (mut scale, factor) = (finite_f16_lanes(lanes(factors, group / GROUPS_K)), lanes(scales, group));
                for lane in 0..LANES {
                    scale[lane] *= f32::from(factor[lane]);
                }
                scale
            }
        }
    }

    /// Unpacks some inputs of a panel, whole groups, into `[input][lane]`.
    #[inline(always)]
    pub(super) fn unpack(&self, panel: usize, inputs: Range<usize>, out: &mut [f32]) {
        let first = panel * self.n_groups + inputs.start / GROUP;
        let (out, _) = out.as_chunks_mut::<LANES>();
        for (i, out) in out.chunks_exact_mut(GROUP).enumerate() {
            let scales = self.scales(first + i);
            for (k, out) in out.iter_mut().enumerate() {
                let words = lanes(&self.words, (first + i) * WORDS + k / 4);
                let shift = SHIFTS[k % 4];
                // Into an array of its own: vectors form only where no store comes between the loads.
                let mut weights = [0.0; LANES];
                for lane in 0..LANES {
                    weights[lane] = f32::from((words[lane] >> shift) as i8) * scales[lane];
                }
                *out = weights;
            }
        }
    }
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
