//! Contexts of elements: the predicted mean, which foretells sign and exponent.
//!
//! The mean of a channel, rotated to the position of the token, is `u` times two to the reference exponent. Elements are coded relative to
//! the sign of the mean, with a code for each of 16 ranges of `|u|` and two ranges of the deviation. Predictions are never subtracted: that
//! would destroy the exponents (measured: all numeric predictors lose to plain entropy coding).

use crate::rotary::Angle;
use crate::side_table::Plane;
use crate::values::Format;

/// Number of contexts, each with a code.
pub(crate) const CONTEXTS: usize = 32;
/// Ranges of the mean.
pub(crate) const BUCKETS: usize = 16;

/// Returns the range of a mean, given in units of 1/128: eight ranges of 1/2, then half octaves split at 3/2.
#[inline]
pub(crate) fn bucket(mean: i32) -> u8 {
    let magnitude = mean.unsigned_abs();
    let near = magnitude >> 6;
    // Exponent and top bit of the mantissa: exact, because the magnitude has fewer bits than a mantissa.
    let octaves = ((magnitude.max(512) as f32).to_bits() >> 22) - ((512f32).to_bits() >> 22) + 8;
    if near < 8 { near as u8 } else { octaves.min(BUCKETS as u32 - 1) as u8 }
}

/// Bounds of a range of means, in units of two to the reference exponent; the last range is one octave, for the probabilities of codes.
#[cfg(test)]
pub(crate) fn bucket_bounds(bucket: usize) -> (f64, f64) {
    let bound = |bucket: usize| match bucket {
        0..8 => bucket as f64 / 2.0,
        _ => 4.0 * 2f64.powi((bucket as i32 - 8) / 2) * if bucket.is_multiple_of(2) { 1.0 } else { 1.5 },
    };
    (bound(bucket), bound(bucket + 1))
}

/// Contexts of the elements of a row.
#[derive(Debug, Default)]
pub(crate) struct Row {
    /// Number of the code of each element.
    pub codes: Vec<u8>,
    /// Sign bit of elements whose mean is negative.
    pub flips: Vec<u16>,
    /// Exponent field that each element's symbol counts from.
    pub origins: Vec<i16>,
    /// Means at the position of the row.
    means: Vec<i32>,
}

impl Row {
    /// Computes the contexts of a row. The means of each head, of `head_dim` elements, are rotated by the angles of its pairs; without angles
    /// means stay.
    pub(crate) fn fill(&mut self, format: Format, plane: &Plane, head_dim: usize, angles: &[Angle]) {
        let Plane { means, exponents, uppers } = plane;
        self.means.clear();
        if angles.is_empty() {
            self.means.extend(means.iter().map(|mean| i32::from(*mean)));
        } else {
            means.chunks_exact(head_dim).for_each(|head| self.rotate(head, angles));
        }
        self.codes.clear();
        self.codes.extend(self.means.iter().zip(uppers).map(|(mean, upper)| bucket(*mean) + (upper << 4)));
        self.flips.clear();
        self.flips.extend(self.means.iter().map(|mean| (*mean >> 16) as u16 & 0x8000));
        self.origins.clear();
        self.origins.extend(exponents.iter().map(|exponent| format.origin(*exponent)));
    }

    fn rotate(&mut self, head: &[i16], angles: &[Angle]) {
        let (first, second) = head.split_at(angles.len());
        let pairs = || {
            first.iter().zip(second).zip(angles).map(|((a, b), angle)| [*a, *b, angle.cos, angle.sin].map(i32::from))
        };
        self.means.extend(pairs().map(|[a, b, cos, sin]| (a * cos - b * sin) >> 15));
        self.means.extend(pairs().map(|[a, b, cos, sin]| (b * cos + a * sin) >> 15));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_meet_and_hold_their_means() {
        for at in 0..BUCKETS - 1 {
            let ((low, high), (next, _)) = (bucket_bounds(at), bucket_bounds(at + 1));
            assert_eq!(high, next);
            assert_eq!(bucket((low * 128.0) as i32) as usize, at);
            assert_eq!(bucket(-(high * 128.0) as i32 + 1) as usize, at);
        }
        assert_eq!(bucket(i32::from(i16::MIN) * 2), 15);
    }
}
