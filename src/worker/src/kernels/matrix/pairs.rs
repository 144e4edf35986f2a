//! BF16 weights in panels, two neighbouring inputs of an output in one word: the order of the tiles of [`crate::kernels::amx`].
//!
//! The words of the sixteen outputs of a panel lie side by side, `[panel][pair][lane]`, the even input in the low half. A panel is filled up with zeros to
//! a multiple of [`UNPACK`] inputs, and begins at a line of the cache: a tile is sixteen whole lines.

use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;

use trunkline_files::{Aligned, PAGE};

use crate::kernels::kernel::{LANES, Sums};
use crate::kernels::matrix::UNPACK;
use crate::kernels::stored::{Run, Stored};

/// Panels of BF16 weights.
pub(super) struct Pairs {
    /// Words of a panel.
    len: usize,
    words: Stored<u32>,
}

/// Returns the number of words of a panel.
fn len(inputs: usize) -> usize {
    inputs.next_multiple_of(UNPACK) / 2 * LANES
}

/// Returns the even and the odd inputs of sixteen outputs.
#[inline(always)]
fn widened(words: [u32; LANES]) -> (Sums, Sums) {
    let (mut even, mut odd) = ([0.0; LANES], [0.0; LANES]);
    for lane in 0..LANES {
        even[lane] = f32::from_bits(words[lane] << 16);
    }
    for lane in 0..LANES {
        odd[lane] = f32::from_bits(words[lane] & 0xffff_0000);
    }
    (even, odd)
}

impl Pairs {
    /// Packs rows of BF16, little-endian.
    pub(super) fn from_rows(outputs: usize, inputs: usize, rows: &[[u8; 2]]) -> Self {
        let mut pairs = Self::absent(outputs, inputs);
        let bytes = pairs.words.n_bytes();
        let mut memory = Aligned::from(trunkline_pages::with_capacity(bytes + PAGE));
        memory.resize(bytes);
        let words: &mut [u32] = bytemuck::cast_slice_mut(memory.as_mut_slice());
        for (output, row) in rows.chunks(inputs.max(1)).enumerate() {
            let panel = &mut words[output / LANES * pairs.len..][..pairs.len];
            for (word, pair) in panel.iter_mut().skip(output % LANES).step_by(LANES).zip(row.chunks(2)) {
                let upper = pair.get(1).map_or(0, |upper| u32::from(u16::from_le_bytes(*upper)));
                *word = upper << 16 | u32::from(u16::from_le_bytes(pair[0]));
            }
        }
        pairs.words.bind(&Arc::new(memory), 0);
        pairs
    }

    /// Describes panels that are not in memory.
    pub(super) fn absent(outputs: usize, inputs: usize) -> Self {
        Self { len: len(inputs), words: Stored::absent(outputs.div_ceil(LANES) * len(inputs)) }
    }

    /// Returns the words, to be visited as one array.
    pub(super) fn words(&self) -> &Stored<u32> {
        &self.words
    }

    /// Returns the words, to bring weights into memory or out of memory.
    pub(super) fn words_mut(&mut self) -> &mut Stored<u32> {
        &mut self.words
    }

    /// Returns the words of a panel.
    #[inline(always)]
    pub(super) fn panel(&self, panel: usize) -> &[u32] {
        &self.words[panel * self.len..][..self.len]
    }

    /// Returns the words of some inputs of a panel. The range MUST begin at an even input.
    #[inline(always)]
    pub(super) fn part(&self, panel: usize, inputs: Range<usize>) -> &[u32] {
        &self.panel(panel)[inputs.start / 2 * LANES..inputs.end.div_ceil(2) * LANES]
    }

    /// Widens some inputs of a panel, exactly: `[input][lane]`. The range MUST begin at an even input.
    #[inline(always)]
    pub(super) fn unpack(&self, panel: usize, inputs: Range<usize>, out: &mut [f32]) {
        let (words, _) = self.part(panel, inputs).as_chunks::<LANES>();
        // Chunks of a constant length, for compilers to turn into vectors without checks.
        let (pairs, last) = out.as_chunks_mut::<{ 2 * LANES }>();
        for (out, words) in pairs.iter_mut().zip(words) {
            // Keeps LLVM from loading several pairs at once by gathers, which take longer.
            black_box(());
            let (even, odd) = widened(*words);
            out[..LANES].copy_from_slice(&even);
            out[LANES..].copy_from_slice(&odd);
        }
        for (out, word) in last.iter_mut().zip(words.last().into_iter().flatten()) {
            *out = f32::from_bits(word << 16);
        }
    }
}
