//! Values in blocks of 32 with a common scale: Q8_0 and Q4_0 of ggml.
//!
//! | block | bytes | bits per value | layout |
//! |---|---|---|---|
//! | Q8_0 | 34 | 8.5 | f16 scale, 32 × i8 |
//! | Q4_0 | 18 | 4.5 | f16 scale, 16 bytes: value `j` in the low half of byte `j`, value `j + 16` in the high half, both plus 8 |
//!
//! The bytes equal the results of `quantize_row_q8_0_ref` and `quantize_row_q4_0_ref` (ggml-quants.c, the reference versions): quotients by the
//! scale *before* the rounding to f16, rounded half away from zero. Unlike there, values that a block cannot hold are refused: NaN, infinities,
//! and values whose scale exceeds the range of f16.

use half::f16;
use thiserror::Error;

/// Values in a block.
pub const BLOCK: usize = 32;
/// Bytes of a Q8_0 block.
pub const Q8_0_BYTES: usize = 2 + BLOCK;
/// Bytes of a Q4_0 block.
pub const Q4_0_BYTES: usize = 2 + BLOCK / 2;

/// Reason for refusing to quantise or to read blocks.
#[derive(Clone, Copy, Debug, Error, PartialEq)]
pub enum QuantError {
    /// The input is not a whole number of blocks.
    #[error("{len} {unit} are not whole blocks of {block}")]
    NoWholeBlocks {
        /// Length of the input.
        len: usize,
        /// Unit of the lengths.
        unit: &'static str,
        /// Length of a block.
        block: usize,
    },
    /// A value is NaN or infinite.
    #[error("value {at} is {value}, which no block can hold")]
    NotFinite {
        /// Index of the value.
        at: usize,
        /// Value that was given.
        value: f32,
    },
    /// The scale of a block exceeds the range of f16.
    #[error("the block at value {at} reaches {value}, beyond the range of the scale")]
    TooLarge {
        /// Index of the block's first value.
        at: usize,
        /// Value of the greatest magnitude.
        value: f32,
    },
}

/// Returns the value of the greatest magnitude, the first of equals.
fn peak(values: &[f32], at: usize) -> Result<f32, QuantError> {
    let mut peak = 0.0f32;
    for (i, value) in values.iter().enumerate() {
        if !value.is_finite() {
            return Err(QuantError::NotFinite { at: at + i, value: *value });
        }
        if value.abs() > peak.abs() {
            peak = *value;
        }
    }
    Ok(peak)
}

/// Returns the scale as stored, and the factor that values are multiplied with.
fn scale(peak: f32, divisor: f32, at: usize) -> Result<([u8; 2], f32), QuantError> {
    let exact = peak / divisor;
    let stored = f16::from_f32(exact);
    if !stored.is_finite() {
        return Err(QuantError::TooLarge { at, value: peak });
    }
    let inverse = 1.0 / exact;
    // A scale so small that its inverse overflows stands for zeros.
    Ok((stored.to_le_bytes(), if inverse.is_finite() { inverse } else { 0.0 }))
}

fn whole<T>(values: &[T], unit: &'static str, block: usize) -> Result<(), QuantError> {
    let len = values.len();
    if len.is_multiple_of(block) { Ok(()) } else { Err(QuantError::NoWholeBlocks { len, unit, block }) }
}

/// Appends `values` as Q8_0 blocks.
///
/// ```
/// use trunkline_codec::quant;
///
/// let values: Vec<f32> = (0..64).map(|i| (i as f32 / 9.0).sin()).collect();
/// let mut blocks = Vec::new();
/// quant::to_q8_0(&values, &mut blocks)?;
/// assert_eq!(blocks.len(), 2 * quant::Q8_0_BYTES);
/// let mut back = Vec::new();
/// quant::from_q8_0(&blocks, &mut back)?;
/// assert!(values.iter().zip(&back).all(|(value, back)| (value - back).abs() < 0.005));
/// # Ok::<(), quant::QuantError>(())
/// ```
///
/// # Errors
/// If the values are not whole blocks, or one cannot be held. `out` may have grown by the blocks before it.
pub fn to_q8_0(values: &[f32], out: &mut Vec<u8>) -> Result<(), QuantError> {
    whole(values, "values", BLOCK)?;
    for (i, block) in values.chunks_exact(BLOCK).enumerate() {
        let at = i * BLOCK;
        let (stored, inverse) = scale(peak(block, at)?.abs(), 127.0, at)?;
        out.extend(stored);
        out.extend(block.iter().map(|value| (value * inverse).round() as i8 as u8));
    }
    Ok(())
}

/// Appends the values of Q8_0 blocks.
///
/// # Errors
/// If the bytes are not whole blocks. Any bytes are values: scales may be NaN or infinite.
pub fn from_q8_0(blocks: &[u8], out: &mut Vec<f32>) -> Result<(), QuantError> {
    whole(blocks, "bytes", Q8_0_BYTES)?;
    for block in blocks.chunks_exact(Q8_0_BYTES) {
        let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
        out.extend(block[2..].iter().map(|byte| f32::from(*byte as i8) * scale));
    }
    Ok(())
}

/// Appends `values` as Q4_0 blocks.
///
/// # Errors
/// Fails as [`to_q8_0`] does.
pub fn to_q4_0(values: &[f32], out: &mut Vec<u8>) -> Result<(), QuantError> {
    whole(values, "values", BLOCK)?;
    for (i, block) in values.chunks_exact(BLOCK).enumerate() {
        let at = i * BLOCK;
        // The value of the greatest magnitude becomes -8.
        let (stored, inverse) = scale(peak(block, at)?, -8.0, at)?;
        let code = |value: f32| ((value * inverse + 8.5) as u8).min(15);
        let (low, high) = block.split_at(BLOCK / 2);
        out.extend(stored);
        out.extend(low.iter().zip(high).map(|(low, high)| code(*low) | code(*high) << 4));
    }
    Ok(())
}

/// Appends the values of Q4_0 blocks.
///
/// # Errors
/// Fails as [`from_q8_0`] does.
pub fn from_q4_0(blocks: &[u8], out: &mut Vec<f32>) -> Result<(), QuantError> {
    whole(blocks, "bytes", Q4_0_BYTES)?;
    for block in blocks.chunks_exact(Q4_0_BYTES) {
        let scale = f16::from_le_bytes([block[0], block[1]]).to_f32();
        let value = |code: u8| (f32::from(code) - 8.0) * scale;
        out.extend(block[2..].iter().map(|byte| value(byte & 15)));
        out.extend(block[2..].iter().map(|byte| value(byte >> 4)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks and the values read back.
    fn through(values: &[f32]) -> [(Vec<u8>, Vec<f32>); 2] {
        let (mut q8, mut q4) = (Vec::new(), Vec::new());
        to_q8_0(values, &mut q8).unwrap();
        to_q4_0(values, &mut q4).unwrap();
        let (mut back8, mut back4) = (Vec::new(), Vec::new());
        from_q8_0(&q8, &mut back8).unwrap();
        from_q4_0(&q4, &mut back4).unwrap();
        [(q8, back8), (q4, back4)]
    }

    fn with(first: &[f32]) -> Vec<f32> {
        let mut values = first.to_vec();
        values.resize(BLOCK, 0.0);
        values
    }

    #[test]
    fn the_layout_is_that_of_ggml() {
        let values: Vec<f32> = (0..BLOCK).map(|i| i as f32 - 16.0).collect();
        let [(q8, back8), (q4, back4)] = through(&values);
        // Peak -16: scales 16/127, and 2 because -16 becomes -8.
        assert_eq!(q8[..2], f16::from_f32(16.0 / 127.0).to_le_bytes());
        assert_eq!((q8[2] as i8, q8[2 + 16], q8[2 + 31]), (-127, 0, 119));
        assert_eq!(q4[..2], f16::from_f32(2.0).to_le_bytes());
        // Values 0 and 16 share a byte: -16 is code 0, 0 is code 8.
        assert_eq!((q4[2], q4[17]), (0x80, 0xf << 4 | 8));
        assert!(values.iter().zip(&back8).all(|(value, back)| (value - back).abs() <= 0.07));
        assert!(values.iter().zip(&back4).all(|(value, back)| (value - back).abs() <= 1.0));
        assert_eq!((back4[0], back4[31]), (-16.0, 14.0), "the opposite end is clipped by one scale at most");
    }

    #[test]
    fn halves_round_away_from_zero() {
        // With a peak of 127 the scale is 1.
        let [(q8, _), _] = through(&with(&[127.0, 0.5, -0.5, 1.5, 2.5, 0.49]));
        assert_eq!(q8[2..8].iter().map(|byte| *byte as i8).collect::<Vec<_>>(), [127, 1, -1, 2, 3, 0]);
    }

    #[test]
    fn the_first_of_equal_magnitudes_sets_the_sign_of_the_scale() {
        let [_, (q4, back)] = through(&with(&[4.0, -4.0]));
        assert_eq!(f16::from_le_bytes([q4[0], q4[1]]).to_f32(), -0.5);
        assert_eq!(back[..2], [4.0, -3.5], "the other end is clipped");
        let [_, (_, back)] = through(&with(&[-4.0, 4.0]));
        assert_eq!(back[..2], [-4.0, 3.5]);
    }

    #[test]
    fn zeros_and_the_least_values_are_zeros() {
        for peak in [0.0, -0.0, f32::from_bits(1), f32::MIN_POSITIVE / 2.0] {
            for (blocks, back) in through(&with(&[peak])) {
                assert_eq!(blocks[..2], [0, if blocks[1] == 0x80 { 0x80 } else { 0 }], "{peak:e}");
                assert!(back.iter().all(|value| *value == 0.0), "{peak:e}");
            }
        }
    }

    #[test]
    fn values_that_no_block_holds_are_refused() {
        let mut out = Vec::new();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 2 * BLOCK];
            values[40] = bad;
            assert!(matches!(to_q8_0(&values, &mut out), Err(QuantError::NotFinite { at: 40, .. })));
            assert!(matches!(to_q4_0(&values, &mut out), Err(QuantError::NotFinite { at: 40, .. })));
        }
        let (most8, most4) = (127.0 * 65_504.0, 8.0 * 65_504.0);
        through(&with(&[most4]));
        assert!(to_q8_0(&with(&[most8]), &mut out).is_ok());
        assert_eq!(to_q8_0(&with(&[most8 * 1.01]), &mut out), Err(QuantError::TooLarge { at: 0, value: most8 * 1.01 }));
        assert_eq!(
            to_q4_0(&with(&[-most4 * 1.01]), &mut out),
            Err(QuantError::TooLarge { at: 0, value: -most4 * 1.01 })
        );
        assert_eq!(
            to_q4_0(&[0.0; 33], &mut out),
            Err(QuantError::NoWholeBlocks { len: 33, unit: "values", block: 32 })
        );
        assert_eq!(
            from_q8_0(&[0; 33], &mut Vec::new()),
            Err(QuantError::NoWholeBlocks { len: 33, unit: "bytes", block: 34 })
        );
    }
}
