//! Element types and shapes of KV blocks.

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
}

impl Dtype {
    /// All types, in the order of the numbers in frames.
    pub const ALL: [Self; 5] = [Self::Bf16, Self::F16, Self::F32, Self::E4m3, Self::E5m2];

    /// Returns the number of the type in frames.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Returns the bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
            Self::E4m3 | Self::E5m2 => 1,
        }
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
