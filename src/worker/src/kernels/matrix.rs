//! A weight matrix in the precision of its file: F32, BF16, F16, or one of the block formats of GGUF files.
//!
//! The rows of a matrix (one for each output) are cut into panels of `LANES` outputs, and a panel stores its weights input by
//! input, the sixteen outputs side by side: `[panel][input][lane]`. The last panel is filled up with zeros. BF16 weights lie in pairs, see `pairs.rs`. Formats
//! with fewer than 16 bits for a weight keep the codes of a panel in that order and the scales next to the codes, see `nibbles.rs` and `codes.rs`.
//!
//! Floats are widened to F32 when they are read, exactly: a product with a matrix of floats has the bits of the product with the
//! same matrix in F32, unless the tiles of AMX multiply BF16 weights (see [`crate::kernels::amx`]).
//! Codes are multiplied as integers with rounded rows, see `coded.rs`: no weight is rounded, the row is.

mod coded;
mod codes;
pub(crate) mod half;
mod nibbles;
mod pairs;
#[cfg(target_arch = "x86_64")]
mod vnni;
mod words;

use std::ops::Range;

use crate::kernels::kernel::{LANES, Sums, vectorised};
use crate::kernels::matrix::codes::Codes;
use crate::kernels::matrix::half::widen_f16;
use crate::kernels::matrix::nibbles::{Nibbles, u16_at};
use crate::kernels::matrix::pairs::Pairs;
use crate::kernels::prefetch::Ahead;
use crate::kernels::rounded::RoundedRows;
use crate::kernels::stored::{Run, Stored};

/// Inputs unpacked at a time: ranges MUST begin at a multiple of this number.
pub(crate) const UNPACK: usize = 32;

/// Element type of a matrix. Block formats have the names and the bytes of GGUF files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightKind {
    /// IEEE single precision.
    F32,
    /// The upper half of a single: 8 bits of exponent, 7 of mantissa.
    Bf16,
    /// IEEE half precision.
    F16,
    /// 32 weights of 8 bits with a scale: `q d`, 34 bytes.
    Q8_0,
    /// 32 weights of 4 bits with a scale: `(q - 8) d`, 18 bytes.
    Q4_0,
    /// 32 weights of 4 bits with a scale and a minimum: `q d + m`, 20 bytes.
    Q4_1,
    /// 32 weights of 5 bits with a scale: `(q - 16) d`, 22 bytes.
    Q5_0,
    /// 32 weights of 5 bits with a scale and a minimum: `q d + m`, 24 bytes.
    Q5_1,
    /// 256 weights of 4 bits; each 32 have a scale and a minimum of 6 bits: `q d s - e m`, 144 bytes.
    Q4K,
    /// 256 weights of 5 bits, with scales and minima as in Q4_K, 176 bytes.
    Q5K,
    /// 256 weights of 6 bits; each 16 have a scale of 8 bits: `(q - 32) d s`, 210 bytes.
    Q6K,
}

impl WeightKind {
    /// Every kind.
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::Bf16,
        Self::F16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// Returns the name of the kind, as in GGUF files.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::Bf16 => "BF16",
            Self::F16 => "F16",
            Self::Q8_0 => "Q8_0",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
        }
    }

    /// Returns the number of neighbouring weights of a row in one block: 1 for floats.
    pub fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::Bf16 | Self::F16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Returns the size of a block in a file, in bytes.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Returns the index of the first weight in `bytes` that is NaN or infinite, or of the first weight of a block whose scale is.
    fn first_not_finite(self, bytes: &[u8]) -> Option<usize> {
        // NaN and infinity have the largest exponent.
        let half = |block: &[u8], at: usize| u16_at(block, at) & 0x7c00 == 0x7c00;
        let first = |bad: &dyn Fn(&[u8]) -> bool| bytes.chunks_exact(self.block_bytes()).position(bad);
        let block = match self {
            Self::F32 => first_bad(bytes, |bits| u32::from_le_bytes(bits) & 0x7f80_0000 == 0x7f80_0000),
            Self::Bf16 => first_bad(bytes, |bits| u16::from_le_bytes(bits) & 0x7f80 == 0x7f80),
            Self::F16 => first_bad(bytes, |bits| u16::from_le_bytes(bits) & 0x7c00 == 0x7c00),
            Self::Q8_0 | Self::Q4_0 | Self::Q5_0 => first(&|block| half(block, 0)),
            Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q5K => first(&|block| half(block, 0) || half(block, 2)),
            Self::Q6K => first(&|block| half(block, 208)),
        };
        block.map(|block| block * self.block_len())
    }

    /// Returns the size of `outputs` rows of `inputs` weights in a file, in bytes.
    ///
    /// # Errors
    ///
    /// Rows that end within a block, or more bytes than memory has addresses.
    pub fn bytes(self, outputs: usize, inputs: usize) -> Result<usize, MatrixError> {
        let (kind, block) = (self.name(), self.block_len());
        if !inputs.is_multiple_of(block) {
            return Err(MatrixError::Width { kind, inputs, block });
        }
        let bytes = (inputs / block).checked_mul(self.block_bytes()).and_then(|row| row.checked_mul(outputs));
        bytes.ok_or(MatrixError::Size { outputs, inputs })
    }
}

/// Bytes of a file that are not a matrix of the expected kind and shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MatrixError {
    /// A row is not a whole number of blocks.
    #[error("rows of {inputs} weights cannot be {kind}, which has blocks of {block} weights")]
    Width {
        /// Name of the kind.
        kind: &'static str,
        /// Number of weights in a row.
        inputs: usize,
        /// Number of weights in a block.
        block: usize,
    },
    /// Too few or too many bytes for the shape.
    #[error("{outputs} rows of {inputs} weights in {kind} are {expected} bytes, not {found}")]
    Length {
        /// Name of the kind.
        kind: &'static str,
        /// Number of rows.
        outputs: usize,
        /// Number of weights in a row.
        inputs: usize,
        /// Number of bytes according to the shape.
        expected: usize,
        /// Number of bytes found in the file.
        found: usize,
    },
    /// A weight, or the scale of a block of weights, is not a number.
    #[error("weight {column} of row {row} is NaN or infinite; download it again")]
    NotFinite {
        /// Index of the row.
        row: usize,
        /// Index of the weight in the row, or of the first weight of the block.
        column: usize,
    },
    /// A shape beyond the memory of any machine.
    #[error("a matrix of {outputs} rows of {inputs} weights is too large")]
    Size {
        /// Number of rows.
        outputs: usize,
        /// Number of weights in a row.
        inputs: usize,
    },
}

/// Weights in panels.
enum Panels {
    F32(Stored<f32>),
    Bf16(Pairs),
    F16(Stored<u16>),
    Nibbles(Nibbles),
    Codes(Codes),
}

/// A matrix of `outputs` by `inputs` weights. Immutable.
pub struct Matrix {
    kind: WeightKind,
    outputs: usize,
    inputs: usize,
    panels: Panels,
}

/// Returns the weights in the panels of a matrix, with padding; `None` if they are too many.
fn room(outputs: usize, inputs: usize) -> Option<usize> {
    outputs.checked_next_multiple_of(LANES)?.checked_mul(inputs.checked_next_multiple_of(UNPACK)?)
}

impl Matrix {
    /// Packs a matrix from its bytes in a file: row by row, one row for each output, little-endian.
    ///
    /// # Errors
    ///
    /// A number of bytes, or a length of rows, that `kind` cannot have; or a weight that is NaN or infinite.
    pub fn from_bytes(kind: WeightKind, outputs: usize, inputs: usize, bytes: &[u8]) -> Result<Self, MatrixError> {
        let expected = kind.bytes(outputs, inputs)?;
        if bytes.len() != expected {
            let (kind, found) = (kind.name(), bytes.len());
            return Err(MatrixError::Length { kind, outputs, inputs, expected, found });
        }
        // Panels of floats are the file's size and the last panel's padding.
        if room(outputs, inputs.max(1)).and_then(|weights| weights.checked_mul(size_of::<f32>())).is_none() {
            return Err(MatrixError::Size { outputs, inputs });
        }
        if let Some(at) = kind.first_not_finite(bytes) {
            return Err(MatrixError::NotFinite { row: at / inputs, column: at % inputs });
        }
        let (pairs, _) = bytes.as_chunks::<2>();
        let (quads, _) = bytes.as_chunks::<4>();
        let panels = match kind {
            WeightKind::F32 => Panels::F32(interleave(outputs, inputs, quads, |bytes| f32::from_le_bytes(*bytes))),
            WeightKind::Bf16 => Panels::Bf16(Pairs::from_rows(outputs, inputs, pairs)),
            WeightKind::F16 => Panels::F16(interleave(outputs, inputs, pairs, |bytes| u16::from_le_bytes(*bytes))),
            WeightKind::Q4_0 => Panels::Nibbles(Nibbles::from_q4_0(inputs, outputs, bytes)),
            WeightKind::Q4_1 => Panels::Nibbles(Nibbles::from_q4_1(inputs, outputs, bytes)),
            WeightKind::Q4K => Panels::Nibbles(Nibbles::from_q4_k(inputs, outputs, bytes)),
            WeightKind::Q8_0 => Panels::Codes(Codes::from_q8_0(inputs, outputs, bytes)),
            WeightKind::Q5_0 => Panels::Codes(Codes::from_q5_0(inputs, outputs, bytes)),
            WeightKind::Q5_1 => Panels::Codes(Codes::from_q5_1(inputs, outputs, bytes)),
            WeightKind::Q5K => Panels::Codes(Codes::from_q5_k(inputs, outputs, bytes)),
            WeightKind::Q6K => Panels::Codes(Codes::from_q6_k(inputs, outputs, bytes)),
        };
        Ok(Self { kind, outputs, inputs, panels })
    }

    /// Packs a matrix of F32 rows. The length of `weights` MUST be a multiple of `inputs`.
    pub fn from_f32(inputs: usize, weights: &[f32]) -> Self {
        let outputs = weights.len() / inputs;
        debug_assert_eq!(weights.len(), outputs * inputs);
        let panels = Panels::F32(interleave(outputs, inputs, weights, |weight| *weight));
        Self { kind: WeightKind::F32, outputs, inputs, panels }
    }

    /// Describes a matrix whose weights are not in memory.
    ///
    /// # Errors
    ///
    /// A shape that `kind` cannot have.
    pub(crate) fn absent(kind: WeightKind, outputs: usize, inputs: usize) -> Result<Self, MatrixError> {
        kind.bytes(outputs, inputs)?;
        room(outputs, inputs).ok_or(MatrixError::Size { outputs, inputs })?;
        let lanes = outputs.next_multiple_of(LANES) * inputs;
        let panels = match kind {
            WeightKind::F32 => Panels::F32(Stored::absent(lanes)),
            WeightKind::Bf16 => Panels::Bf16(Pairs::absent(outputs, inputs)),
            WeightKind::F16 => Panels::F16(Stored::absent(lanes)),
            WeightKind::Q4_0 | WeightKind::Q4_1 | WeightKind::Q4K => {
                Panels::Nibbles(Nibbles::absent(kind, inputs, outputs))
            }
            _ => Panels::Codes(Codes::absent(kind, inputs, outputs)),
        };
        Ok(Self { kind, outputs, inputs, panels })
    }

    /// Calls `visit` with each array of the matrix, in the order of a file of packed weights.
    pub(crate) fn runs(&mut self, visit: &mut dyn FnMut(&mut dyn Run)) {
        match &mut self.panels {
            Panels::F32(panels) => visit(panels),
            Panels::Bf16(panels) => visit(panels.words_mut()),
            Panels::F16(panels) => visit(panels),
            Panels::Nibbles(panels) => panels.runs(visit),
            Panels::Codes(panels) => panels.runs(visit),
        }
    }

    /// Returns the memory of the weights, in memory or not, bytes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let bytes = match &self.panels {
            Panels::F32(panels) => panels.n_bytes(),
            Panels::Bf16(panels) => panels.words().n_bytes(),
            Panels::F16(panels) => panels.n_bytes(),
            Panels::Nibbles(panels) => panels.n_bytes(),
            Panels::Codes(panels) => panels.n_bytes(),
        };
        bytes as u64
    }

    /// Returns the element type.
    pub fn kind(&self) -> WeightKind {
        self.kind
    }

    /// Returns the number of rows: elements of a product.
    pub fn outputs(&self) -> usize {
        self.outputs
    }

    /// Returns the number of weights in a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Returns the number of panels.
    pub(crate) fn n_panels(&self) -> usize {
        self.outputs.div_ceil(LANES)
    }

    /// Returns the weights of one output as F32: in a table of embeddings, the embedding of a token.
    pub fn row(&self, output: usize, out: &mut [f32]) {
        debug_assert_eq!(out.len(), self.inputs);
        let (panel, lane) = (output / LANES, output % LANES);
        vectorised(
            #[inline(always)]
            || {
                let mut buffer = [0.0; UNPACK * LANES];
                for (part, out) in out.chunks_mut(UNPACK).enumerate() {
                    let from = part * UNPACK;
                    let weights = self.panel_part(panel, from..from + out.len(), &mut buffer);
                    for (out, weight) in out.iter_mut().zip(weights.iter().skip(lane).step_by(LANES)) {
                        *out = *weight;
                    }
                }
            },
        );
    }

    /// Returns `true` for weights that are multiplied with rounded rows, see [`Matrix::times_rounded`].
    pub(crate) fn takes_rounded(&self) -> bool {
        matches!(self.panels, Panels::Nibbles(_) | Panels::Codes(_))
    }

    /// Returns `true` for BF16 weights.
    #[inline]
    pub(crate) fn is_bf16(&self) -> bool {
        self.kind == WeightKind::Bf16
    }

    /// Returns the words of a panel of BF16 weights, see [`crate::kernels::amx`]; none for other weights.
    #[inline]
    pub(crate) fn pairs(&self, panel: usize) -> Option<&[u32]> {
        match &self.panels {
            Panels::Bf16(panels) => Some(panels.panel(panel)),
            _ => None,
        }
    }

    /// Computes the products of one panel with every row into `sums`. Returns `false`, and computes nothing, for weights that are
    /// floats.
    #[inline]
    pub(crate) fn times_rounded(&self, panel: usize, rows: RoundedRows<'_>, sums: &mut [Sums]) -> bool {
        match &self.panels {
            Panels::F32(_) | Panels::Bf16(_) | Panels::F16(_) => return false,
            Panels::Nibbles(panels) => panels.times_rows(panel, rows, sums),
            Panels::Codes(panels) => panels.times_rows(panel, rows, sums),
        }
        true
    }

    /// Returns the weights of some inputs of a panel as F32, `[input][lane]`: unpacked into `buffer`, or in place if the matrix is
    /// F32. The range MUST begin at a multiple of [`UNPACK`], and end at one or at the last input.
    #[inline(always)]
    pub(crate) fn panel_part<'a>(&'a self, panel: usize, inputs: Range<usize>, buffer: &'a mut [f32]) -> &'a [f32] {
        let at = (panel * self.inputs + inputs.start) * LANES;
        let len = inputs.len() * LANES;
        match &self.panels {
            Panels::F32(panels) => return &panels[at..at + len],
            Panels::Bf16(panels) => panels.unpack(panel, inputs, &mut buffer[..len]),
            Panels::F16(panels) => widen_f16(&panels[at..at + len], &mut buffer[..len]),
            Panels::Nibbles(panels) => panels.unpack(panel, inputs, &mut buffer[..len]),
            Panels::Codes(panels) => panels.unpack(panel, inputs, &mut buffer[..len]),
        }
        &buffer[..len]
    }

    /// Requests the weights of some inputs of a panel from memory, within `steps` steps. The ranges MUST be those of
    /// [`Matrix::panel_part`].
    #[inline(always)]
    pub(crate) fn ahead(&self, panel: usize, inputs: Range<usize>, steps: usize) -> Ahead {
        let at = (panel * self.inputs + inputs.start) * LANES;
        let len = inputs.len() * LANES;
        match &self.panels {
            Panels::F32(panels) => Ahead::new(&panels[at..at + len], steps),
            Panels::Bf16(panels) => Ahead::new(panels.part(panel, inputs), steps),
            Panels::F16(panels) => Ahead::new(&panels[at..at + len], steps),
            // Products with codes request memory themselves.
            Panels::Nibbles(_) | Panels::Codes(_) => Ahead::new::<u32>(&[], steps),
        }
    }
}

/// Returns the index of the first element that is `bad`. Looks at many elements without a branch, as compilers vectorise.
fn first_bad<const N: usize>(bytes: &[u8], bad: impl Fn([u8; N]) -> bool) -> Option<usize> {
    const RUN: usize = 1024;
    let (elements, _) = bytes.as_chunks::<N>();
    let run = elements.chunks(RUN).position(|run| run.iter().fold(false, |any, element| any | bad(*element)))?;
    elements[run * RUN..].iter().position(|element| bad(*element)).map(|at| run * RUN + at)
}

/// Brings rows of `inputs` elements into panels.
fn interleave<S, T: Copy + Default>(outputs: usize, inputs: usize, rows: &[S], read: impl Fn(&S) -> T) -> Stored<T> {
    let mut panels = vec![T::default(); outputs.div_ceil(LANES) * inputs * LANES];
    if inputs == 0 {
        return panels.into();
    }
    for (output, row) in rows.chunks_exact(inputs).enumerate() {
        let panel = &mut panels[output / LANES * inputs * LANES..][..inputs * LANES];
        for (lane, value) in panel.iter_mut().skip(output % LANES).step_by(LANES).zip(row) {
            *lane = read(value);
        }
    }
    panels.into()
}

#[cfg(test)]
mod tests;
