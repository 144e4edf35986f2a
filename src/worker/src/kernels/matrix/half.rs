//! Floats of 16 bits to F32, exactly, in operations that compilers turn into vectors.

use crate::kernels::kernel::LANES;

/// Widens BF16: the bits are the upper half of the single's.
#[inline(always)]
pub(crate) fn widen_bf16(bits: &[u16], out: &mut [f32]) {
    for (out, bits) in out.iter_mut().zip(bits) {
        *out = f32::from_bits(u32::from(*bits) << 16);
    }
}

/// Widens F16.
#[inline(always)]
pub(crate) fn widen_f16(bits: &[u16], out: &mut [f32]) {
    for (out, bits) in out.iter_mut().zip(bits) {
        *out = f16_to_f32(*bits);
    }
}

/// Widens the F16 of sixteen lanes, which MUST be finite.
///
/// Moved into their place in a single, exponent and mantissa mean a number 2^112 times too small, also for subnormals. The product
/// is exact.
#[inline(always)]
pub(super) fn finite_f16_lanes(bits: [u16; LANES]) -> [f32; LANES] {
    const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
    let mut out = [0.0; LANES];
    for lane in 0..LANES {
        let moved = (i32::from(bits[lane] as i16) << 13) as u32 & 0x8fff_e000;
        out[lane] = f32::from_bits(moved) * REBIAS;
    }
    out
}

/// Returns the value of an F16. NaN stays NaN.
///
/// The exponent moves from a bias of 15 to one of 127. A subnormal half gets the exponent of 2^-14 and so an extra leading bit,
/// which a subtraction takes away: no subnormal single appears, which some processors compute slowly. Masks choose between the
/// cases, for compilers turn masks into vectors.
#[inline(always)]
fn f16_to_f32(bits: u16) -> f32 {
    const REBIAS: u32 = (127 - 15) << 23;
    const SMALLEST_NORMAL: u32 = (127 - 14) << 23;
    let bits = u32::from(bits);
    let magnitude = (bits & 0x7fff) << 13;
    let normal = magnitude + REBIAS;
    let subnormal = (f32::from_bits(magnitude + SMALLEST_NORMAL) - f32::from_bits(SMALLEST_NORMAL)).to_bits();
    let is_subnormal = u32::from(magnitude < 1 << 23).wrapping_neg();
    // The largest exponent of a half means infinity or NaN, and so does the largest of a single.
    let is_infinite = u32::from(magnitude >= 31 << 23).wrapping_neg();
    let finite = normal & !is_subnormal | subnormal & is_subnormal;
    f32::from_bits((finite + (is_infinite & REBIAS)) | ((bits & 0x8000) << 16))
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;

    #[test]
    fn every_half_has_its_value() {
        let bits: Vec<u16> = (0..=u16::MAX).collect();
        let (mut f16s, mut bf16s) = (vec![0.0; bits.len()], vec![0.0; bits.len()]);
        widen_f16(&bits, &mut f16s);
        widen_bf16(&bits, &mut bf16s);
        // Any NaN stands for every NaN.
        let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        for (i, bits) in bits.iter().enumerate() {
            assert!(same(f16s[i], f16::from_bits(*bits).to_f32()), "{bits:#x} as F16");
            assert!(same(bf16s[i], bf16::from_bits(*bits).to_f32()), "{bits:#x} as BF16");
        }
        for (bits, f16s) in bits.as_chunks().0.iter().zip(f16s.as_chunks::<LANES>().0) {
            if f16s.iter().all(|value| value.is_finite()) {
                assert_eq!(finite_f16_lanes(*bits).map(f32::to_bits), f16s.map(f32::to_bits));
            }
        }
    }
}
