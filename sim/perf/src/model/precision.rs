//! Precision of a model's weights: their bits in memory, and the arithmetic of their products.

/// Bits of an element of a matrix in memory, with its share of scales and zero points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    thousandths: u64,
}

impl Bits {
    /// Returns `bits` for each element, without scales.
    pub const fn each(bits: u64) -> Self {
        Self { thousandths: bits * 1000 }
    }

    /// Returns `bits` for each element, and `shared` bits for each group of `group` elements. `group` MUST be at least 1.
    pub const fn grouped(bits: u64, shared: u64, group: u64) -> Self {
        Self { thousandths: bits * 1000 + shared * 1000 / group }
    }

    /// Returns the mean of the bits of several parts, each with its weight; 16 for none.
    pub fn mean(parts: impl Iterator<Item = (Self, u64)>) -> Self {
        let add = |(sum, n): (u128, u128), (bits, weight): (Self, u64)| {
            (sum + u128::from(bits.thousandths) * u128::from(weight), n + u128::from(weight))
        };
        let (sum, n) = parts.fold((0, 0), add);
        let mean = (sum + n / 2).checked_div(n);
        mean.map_or(Self::each(16), |thousandths| Self { thousandths: thousandths as u64 })
    }

    /// Returns the bytes of so many elements.
    pub const fn bytes(self, elements: u64) -> u64 {
        (elements as u128 * self.thousandths as u128 / 8000) as u64
    }

    /// Returns the bytes of an element.
    pub fn bytes_each(self) -> f64 {
        self.thousandths as f64 / 8000.0
    }
}

/// Arithmetic of matrix products, which decides the peak rate of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Products of 16-bit floats. Weights of fewer bits are widened first.
    Bits16,
    /// Products of 8-bit floats, of activations too.
    Float8,
    /// Products of 8-bit integers, of activations too.
    Int8,
    /// Products of 4-bit floats, of activations too, on devices that have them. Elsewhere the weights are widened to 16 bits.
    Float4,
}

/// Precision of the weights of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Precision {
    /// Matrices of attention.
    pub attention: Bits,
    /// Matrices of recurrent layers.
    pub recurrent: Bits,
    /// Matrices of dense feed-forward networks, and of the experts that every token passes through.
    pub feed_forward: Bits,
    /// Matrices of the experts that a router chooses.
    pub experts: Bits,
    /// Embedding and output matrix.
    pub ends: Bits,
    /// Arithmetic of the products in feed-forward networks, and of attention if as narrow. The output matrix is multiplied in 16 bits.
    pub arithmetic: Arithmetic,
}

impl Precision {
    /// All weights in 16 bits, BF16 or F16.
    pub const BITS_16: Self = Self {
        attention: Bits::each(16),
        recurrent: Bits::each(16),
        feed_forward: Bits::each(16),
        experts: Bits::each(16),
        ends: Bits::each(16),
        arithmetic: Arithmetic::Bits16,
    };

    /// Returns weights whose layers are quantised the same way, multiplied in `arithmetic`, between ends of 16 bits.
    pub const fn quantised(layers: Bits, arithmetic: Arithmetic) -> Self {
        Self {
            attention: layers,
            recurrent: layers,
            feed_forward: layers,
            experts: layers,
            ends: Bits::each(16),
            arithmetic,
        }
    }

    /// Returns the arithmetic of the products of attention.
    pub fn attention_arithmetic(&self) -> Arithmetic {
        // Of layers that differ, the arithmetic of most.
        if self.attention.thousandths >= 12_000 { Arithmetic::Bits16 } else { self.arithmetic }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_count() {
        assert_eq!(Bits::each(16).bytes(1 << 58), 1 << 59);
        // AWQ: 4 bits, and a scale of 16 and a zero point of 4 bits for each 128 weights.
        assert_eq!(Bits::grouped(4, 20, 128).bytes(1_000_000), 519_500);
        // MXFP4: 4 bits, and a scale of 8 bits for each 32 weights.
        assert_eq!(Bits::grouped(4, 8, 32).bytes_each(), 4.25 / 8.0);
    }
}
