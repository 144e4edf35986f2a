//! Forms of a group in a file: as it lies in memory, or compressed by the codec of KV blocks, without a bit lost.
//!
//! A compressed group is cut into [`PIECE`] bytes, each a frame of the codec, or as it is if a frame is not shorter. The frames end with the last page of the group in the
//! file, zeros before them:
//!
//! ```text
//! in the file     | zeros | frame 0 | frame 1 | ... |                        whole pages
//! in memory       | piece 0 | piece 1 | ... | frame i | frame i + 1 | ... |  while piece i is next
//! ```
//!
//! So a group is read into the end of its own slot and decoded from there to the beginning: no frame is longer than its piece, so no piece reaches a frame that is not
//! decoded yet. A reader needs memory for one frame besides.

use std::time::Instant;

use serde::{Deserialize, Serialize};
use trunkline_codec::frame::{Block, Codec};
use trunkline_codec::{Dtype, Shape};
use trunkline_files::PAGE;

use crate::kernels::matrix::WeightKind;

/// Bytes compressed together: they stay in the second-level cache.
pub(super) const PIECE: usize = 64 * PAGE;
/// Elements of a row of a frame.
const ROW: usize = PAGE / 8;

/// Form of the groups of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    /// As in memory.
    #[default]
    Plain,
    /// Exponents in four bits: BF16 takes a quarter less, and decodes nearly as fast as memory is copied.
    Fast,
    /// Exponents by a code made for each piece: BF16 takes a third less.
    Dense,
}

impl Form {
    /// The forms that are shorter.
    pub(super) const COMPRESSED: [Self; 2] = [Self::Fast, Self::Dense];

    /// Returns the name for logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Fast => "fast",
            Self::Dense => "dense",
        }
    }
}

/// Returns the type of the elements of a group with matrices of these kinds, if the codec can make the group shorter.
pub(super) fn dtype_of(kinds: impl Iterator<Item = WeightKind>) -> Option<Dtype> {
    let mut dtypes = kinds.map(|kind| match kind {
        WeightKind::F32 => Some(Dtype::F32),
        WeightKind::F16 => Some(Dtype::F16),
        WeightKind::Bf16 => Some(Dtype::Bf16),
        _ => None,
    });
    let first = dtypes.next().flatten()?;
    dtypes.all(|dtype| dtype == Some(first)).then_some(first)
}

/// Returns the shape of a piece, whole pages.
fn shape(dtype: Dtype, bytes: usize) -> Shape {
    let elements = bytes / dtype.unit().1;
    Shape { layers: 1, tokens: (elements / 2 / ROW) as u16, heads: 1, head_dim: ROW as u16 }
}

/// Compresses and decompresses groups, for one thread.
#[derive(Default)]
pub(crate) struct Packing {
    codec: Codec,
    /// The frame being decoded.
    frame: Vec<u8>,
}

impl Packing {
    /// Appends the frames of a group to `out`. Returns the bytes of each.
    pub(super) fn encode(&mut self, form: Form, dtype: Dtype, group: &[u8], out: &mut Vec<u8>) -> Vec<u32> {
        let mut frames = Vec::with_capacity(group.len().div_ceil(PIECE));
        for piece in group.chunks(PIECE) {
            let begin = out.len();
            let block = Block { dtype, shape: shape(dtype, piece.len()), position: None, bytes: piece };
            let encoded = match form {
                Form::Fast => self.codec.encode_fast(&block, out),
                _ => self.codec.encode(&block, None, out),
            };
            if encoded.is_err() || out.len() - begin >= piece.len() {
                out.truncate(begin);
                out.extend_from_slice(piece);
            }
            frames.push((out.len() - begin) as u32);
        }
        frames
    }

    /// Decodes the frames at the end of `memory`, of so many bytes each, into all of `memory`. Returns `false` if they are not frames of such a group.
    pub(super) fn decode(&mut self, frames: &[u32], memory: &mut [u8]) -> bool {
        let all: usize = frames.iter().map(|bytes| *bytes as usize).sum();
        let Some(mut from) = memory.len().checked_sub(all) else { return false };
        let mut to = 0;
        for bytes in frames.iter().map(|bytes| *bytes as usize) {
            let piece = PIECE.min(memory.len() - to);
            // Otherwise a piece would reach frames that are not decoded yet.
            if bytes > piece || to + piece > from + bytes {
                return false;
            }
            if bytes == piece {
                memory.copy_within(from..from + bytes, to);
            } else {
                self.frame.clear();
                self.frame.extend_from_slice(&memory[from..from + bytes]);
                if self.codec.decode_into(&self.frame, |_| None, &mut memory[to..to + piece]).is_err() {
                    return false;
                }
            }
            (from, to) = (from + bytes, to + piece);
        }
        to == memory.len()
    }

    /// Returns the bytes of a group in this form, and how many bytes of the group are decoded in a second: the best of some tries.
    pub(super) fn measure(&mut self, form: Form, dtype: Dtype, group: &[u8]) -> (usize, f64) {
        let (mut frames, mut memory, mut best_s) = (Vec::new(), vec![0; group.len()], f64::INFINITY);
        let lens = self.encode(form, dtype, group, &mut frames);
        for _ in 0..3 {
            let at = memory.len() - frames.len();
            memory[at..].copy_from_slice(&frames);
            let begun = Instant::now();
            self.decode(&lens, &mut memory);
            best_s = best_s.min(begun.elapsed().as_secs_f64());
        }
        (frames.len(), group.len() as f64 / best_s.max(1e-9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a group of numbers like weights, with a stretch that no code makes shorter.
    fn group(dtype: Dtype, pages: usize) -> Vec<u8> {
        let (mut seed, mut bytes) = (7u64, Vec::new());
        while bytes.len() < pages * PAGE {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let weight = (seed >> 40) as f32 / (1u64 << 24) as f32 - 0.5;
            match dtype {
                Dtype::F32 => bytes.extend(weight.to_le_bytes()),
                Dtype::F16 => bytes.extend(half::f16::from_f32(weight).to_le_bytes()),
                _ => bytes.extend(half::bf16::from_f32(weight).to_le_bytes()),
            }
            if (PIECE..2 * PIECE).contains(&bytes.len()) {
                bytes.extend(seed.to_le_bytes());
            }
        }
        bytes.truncate(pages * PAGE);
        bytes
    }

    #[test]
    fn groups_come_back_from_the_end_of_their_own_memory() {
        let mut packing = Packing::default();
        for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
            for form in Form::COMPRESSED {
                for pages in [1, 63, 64, 65, 300] {
                    let (group, mut frames) = (group(dtype, pages), Vec::new());
                    let lens = packing.encode(form, dtype, &group, &mut frames);
                    assert_eq!(lens.len(), group.len().div_ceil(PIECE));
                    let mut memory = vec![0xa5; group.len()];
                    let at = memory.len() - frames.len();
                    memory[at..].copy_from_slice(&frames);
                    assert!(packing.decode(&lens, &mut memory), "{dtype:?} {form:?} {pages}");
                    assert!(memory == group, "{dtype:?} {form:?} {pages}");
                }
            }
        }
        let (group, mut frames) = (group(Dtype::Bf16, 64), Vec::new());
        packing.encode(Form::Dense, Dtype::Bf16, &group, &mut frames);
        assert!(frames.len() * 10 < group.len() * 7, "{} of {}", frames.len(), group.len());
    }

    #[test]
    fn frames_of_another_group_are_refused() {
        let mut packing = Packing::default();
        let (group, mut frames) = (group(Dtype::Bf16, 130), Vec::new());
        let lens = packing.encode(Form::Dense, Dtype::Bf16, &group, &mut frames);
        let mut decode = |lens: &[u32], flipped: usize| {
            let mut memory = vec![0; group.len()];
            let at = memory.len() - frames.len();
            memory[at..].copy_from_slice(&frames);
            memory[at + flipped] ^= 1;
            packing.decode(lens, &mut memory)
        };
        assert!(!decode(&lens, 0) && !decode(&lens, 1000));
        assert!(!decode(&lens[1..], 0), "too few");
        assert!(!decode(&[&lens[..], &[1 << 20]].concat(), 0), "too long");
        let swapped: Vec<u32> = lens.iter().rev().copied().collect();
        assert!(!decode(&swapped, 0));
    }

    #[test]
    fn groups_of_one_kind_of_floats_are_compressed() {
        let of = |kinds: &[WeightKind]| dtype_of(kinds.iter().copied());
        assert_eq!(of(&[WeightKind::Bf16, WeightKind::Bf16]), Some(Dtype::Bf16));
        assert_eq!(of(&[WeightKind::F16]), Some(Dtype::F16));
        for kinds in
            [&[][..], &[WeightKind::Bf16, WeightKind::F32], &[WeightKind::Q8_0], &[WeightKind::F32, WeightKind::Q4K]]
        {
            assert_eq!(of(kinds), None);
        }
    }
}
