//! Element types and shapes of KV blocks.

use crate::quant;

/// Type of the elements of a KV block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// BF16: 8 bits of exponent, 7 of mantissa.
    Bf16,
    /// FP16: 5 bits of exponent, 10 of mantissa.
    F16,
    /// FP32: 8 bits of exponent, 23 of mantissa.
    F32,
    /// FP8 with 4 bits of exponent and 3 of mantissa, without infinities (E4M3FN).
    E4m3,
    /// FP8 with 5 bits of exponent and 2 of mantissa.
    E5m2,
    /// Q8_0 of ggml: 32 elements of a row as an FP16 scale and 32 integers of 8 bits ([`crate::quant`]).
    Q8_0,
    /// Q4_0 of ggml: 32 elements of a row as an FP16 scale and 32 integers of 4 bits.
    Q4_0,
}

impl Dtype {
    /// All types, in the order of the numbers in frames.
    pub const ALL: [Self; 7] = [Self::Bf16, Self::F16, Self::F32, Self::E4m3, Self::E5m2, Self::Q8_0, Self::Q4_0];

    /// Types whose elements stand on their own.
    pub const FLOATS: [Self; 5] = [Self::Bf16, Self::F16, Self::F32, Self::E4m3, Self::E5m2];

    /// Returns the number of the type in frames.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Returns `true` if elements share scales.
    pub fn is_quantised(self) -> bool {
        matches!(self, Self::Q8_0 | Self::Q4_0)
    }

    /// Returns elements and bytes of the smallest unit: one element, or the elements of a scale.
    pub fn unit(self) -> (usize, usize) {
        match self {
            Self::Bf16 | Self::F16 => (1, 2),
            Self::F32 => (1, 4),
            Self::E4m3 | Self::E5m2 => (1, 1),
            Self::Q8_0 => (quant::BLOCK, quant::Q8_0_BYTES),
            Self::Q4_0 => (quant::BLOCK, quant::Q4_0_BYTES),
        }
    }

    /// Returns the bytes of a block of this shape; `None` if rows are not whole units, or beyond the range of `usize`.
    pub fn block_len(self, shape: &Shape) -> Option<usize> {
        let (elements, bytes) = self.unit();
        let row = shape.channels().is_multiple_of(elements).then(|| shape.channels() / elements * bytes)?;
        shape.rows().checked_mul(row)
    }

    /// Returns the bytes of an element of a type whose elements stand on their own.
    #[inline(always)]
    pub(crate) fn width(self) -> usize {
        self.unit().1
    }
}

/// Shape of a KV block: elements lie as `[layer][keys, values][token][head][dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Layers in the block.
    pub layers: u16,
    /// Tokens in the block.
    pub tokens: u16,
    /// KV heads of a layer.
    pub heads: u16,
    /// Elements of a head. Keys are rotated in pairs of elements `j` and `j + head_dim / 2`.
    pub head_dim: u16,
}

impl Shape {
    /// Returns the elements of one token in one layer, of keys or of values.
    pub fn channels(&self) -> usize {
        usize::from(self.heads) * usize::from(self.head_dim)
    }

    /// Returns the rows of the block: one for each layer, keys or values, and token.
    pub fn rows(&self) -> usize {
        2 * usize::from(self.layers) * usize::from(self.tokens)
    }

    /// Returns the elements of the block; `None` beyond the range of `usize`.
    pub fn elements(&self) -> Option<usize> {
        self.rows().checked_mul(self.channels())
    }

    /// Returns layer, side (0 keys, 1 values) and token of a row.
    #[inline(always)]
    pub(crate) fn place(&self, row: usize) -> (usize, usize, usize) {
        let tokens = usize::from(self.tokens);
        let plane = row / tokens;
        (plane / 2, plane % 2, row % tokens)
    }
}
