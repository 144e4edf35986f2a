//! Floats of 16 bits to F32, exactly, in operations that compilers turn into vectors.

use crate::kernel::LANES;

/// Widens BF16: the bits are the upper half of the single's.
#[inline(always)]
pub(super) fn widen_bf16(bits: &[u16], out: &mut [f32]) {
    let (bits, _) = bits.as_chunks::<LANES>();
    let (out, _) = out.as_chunks_mut::<LANES>();
    for (out, bits) in out.iter_mut().zip(bits) {
        for (out, bits) in out.iter_mut().zip(bits) {
            *out = f32::from_bits(u32::from(*bits) << 16);
        }
    }
}

/// Widens F16, lane by lane.
#[inline(always)]
pub(super) fn widen_f16(bits: &[u16], out: &mut [f32]) {
    let (bits, _) = bits.as_chunks::<LANES>();
    let (out, _) = out.as_chunks_mut::<LANES>();
    for (out, bits) in out.iter_mut().zip(bits) {
        *out = f16_lanes(bits);
    }
}

/// Widens the F16 of sixteen lanes.
#[inline(always)]
pub(super) fn f16_lanes(bits: &[u16; LANES]) -> [f32; LANES] {
    bits.map(f16_to_f32)
}

/// Returns the value of an F16. NaN stays NaN.
///
/// The exponent moves from a bias of 15 to one of 127. A subnormal half gets the exponent of 2^-14 and so an extra leading bit,
/// which a subtraction takes away: no subnormal single appears, which some processors compute slowly.
#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    const REBIAS: u32 = (127 - 15) << 23;
    const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
    let bits = u32::from(bits);
    let magnitude = (bits & 0x7fff) << 13;
    let normal = magnitude + REBIAS;
    let subnormal = (f32::from_bits(magnitude + SMALLEST_NORMAL) - f32::from_bits(SMALLEST_NORMAL)).to_bits();
    let finite = if magnitude < 1 << 23 { subnormal } else { normal };
    // The largest exponent of a half means infinity or NaN, and so does the largest of a single.
    let value = if magnitude >= 31 << 23 { normal + REBIAS } else { finite };
    f32::from_bits(value | (bits & 0x8000) << 16)
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn every_half_has_its_value() {
        for bits in 0..=u16::MAX {
            let (found, expected) = (f16_to_f32(bits), f16::from_bits(bits).to_f32());
            if expected.is_nan() {
                assert!(found.is_nan(), "{bits:#x}");
            } else {
                assert_eq!(found.to_bits(), expected.to_bits(), "{bits:#x}");
            }
        }
    }

    #[test]
    fn slices_are_widened_in_order() {
        let values: Vec<f32> = (0..48).map(|i| i as f32 - 7.5).collect();
        let mut out = vec![0.0; 48];
        let bits: Vec<u16> = values.iter().map(|value| f16::from_f32(*value).to_bits()).collect();
        widen_f16(&bits, &mut out);
        assert_eq!(out, values);
        let bits: Vec<u16> = values.iter().map(|value| (value.to_bits() >> 16) as u16).collect();
        widen_bf16(&bits, &mut out);
        assert_eq!(out, values);
    }
}
