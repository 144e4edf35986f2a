//! Contexts of elements: the predicted mean, which foretells sign and exponent.
//!
//! The mean of a channel, rotated to the position of the token, is `u` times two to the reference exponent. Elements are coded relative to
//! the sign of the mean, with a code for each of 16 ranges of `|u|` and two ranges of the deviation. Predictions are never subtracted: that
//! would destroy the exponents (measured: all numeric predictors lose to plain entropy coding).

use crate::huffman::LENGTH_MAX;
use crate::rotary::Angles;
use crate::side_table::Plane;
use crate::values::Format;

/// Number of contexts, each with a code.
pub(crate) const CONTEXTS: usize = 32;
/// Ranges of the mean.
#[cfg(test)]
pub(crate) const BUCKETS: usize = 16;

/// Least magnitudes, in units of 1/128, of the ranges from the ninth on: half octaves split at 3/2.
const OCTAVES: [i16; 7] = [768, 1024, 1536, 2048, 3072, 4096, 6144];

/// Returns the range of a mean, given in units of 1/128: eight ranges of 1/2, then half octaves.
#[inline(always)]
pub(crate) fn bucket(mean: i16) -> u16 {
    let magnitude = mean.saturating_abs();
    let near = (magnitude >> 6).min(8) as u16;
    OCTAVES.iter().fold(near, |bucket, least| bucket + u16::from(magnitude >= *least))
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

/// Predictions for the elements of a row.
#[derive(Debug, Default)]
pub(crate) struct Row {
    /// Sign bit of elements whose mean is negative.
    pub flips: Vec<u16>,
    /// Exponent that each element's symbol counts from, in the place of a lane's exponent.
    pub origins: Vec<u16>,
    /// Numbers of the codes of values, equal for all rows of a plane.
    codes: Vec<u16>,
    /// Means at the position of the row.
    means: Vec<i16>,
    /// Plane to which the origins and the codes of values belong.
    plane: Option<usize>,
}

impl Row {
    /// Forgets the row: the next one is of another block.
    pub(crate) fn reset(&mut self) {
        self.plane = None;
    }

    /// Computes the contexts of a row of plane number `at`, and sets `codes` to the numbers of the codes, above the bits of the longest code. The
    /// means of each head, of `head_dim` elements, are rotated by the angles of its pairs; without angles means stay.
    #[inline(always)]
    pub(crate) fn fill(
        &mut self,
        format: Format,
        (at, plane): (usize, &Plane),
        head_dim: usize,
        angles: Angles<'_>,
        codes: &mut [u16],
    ) {
        let is_new = self.plane != Some(at);
        if is_new {
            self.plane = Some(at);
            let n = plane.means.len();
            self.flips.resize(n, 0);
            self.origins.resize(n, 0);
            let pairs = self.origins.iter_mut().zip(&plane.exponents);
            pairs.for_each(|(origin, exponent)| *origin = format.origin(*exponent));
        }
        if angles.cos.is_empty() {
            if is_new {
                self.codes.resize(plane.means.len(), 0);
                contexts(&plane.means, &plane.uppers, &mut self.codes, &mut self.flips);
            }
            codes.copy_from_slice(&self.codes);
            return;
        }
        self.means.resize(plane.means.len(), 0);
        for (head, means) in plane.means.chunks_exact(head_dim).zip(self.means.chunks_exact_mut(head_dim)) {
            rotate(head, angles, means);
        }
        contexts(&self.means, &plane.uppers, codes, &mut self.flips);
    }
}

/// Sets codes and flips from means and from the codes' upper parts.
#[inline(always)]
fn contexts(means: &[i16], uppers: &[u16], codes: &mut [u16], flips: &mut [u16]) {
    let n = means.len();
    let (uppers, codes, flips) = (&uppers[..n], &mut codes[..n], &mut flips[..n]);
    for at in 0..n {
        codes[at] = bucket(means[at]) << LENGTH_MAX | uppers[at];
        flips[at] = means[at] as u16 & 0x8000;
    }
}

/// Pairs rotated at a time.
const PAIRS: usize = 16;

/// Rotates the means of a head. Means beyond 16 bits count as the greatest.
#[inline(always)]
fn rotate(head: &[i16], angles: Angles<'_>, means: &mut [i16]) {
    let half = angles.cos.len();
    let (first, second) = head.split_at(half);
    let (out_first, out_second) = means.split_at_mut(half);
    let ((first, first_rest), (second, second_rest)) = (first.as_chunks::<PAIRS>(), second.as_chunks::<PAIRS>());
    let ((cos, cos_rest), (sin, sin_rest)) = (angles.cos.as_chunks::<PAIRS>(), angles.sin.as_chunks::<PAIRS>());
    let (out_first, out_first_rest) = out_first.as_chunks_mut::<PAIRS>();
    let (out_second, out_second_rest) = out_second.as_chunks_mut::<PAIRS>();
    let outs = out_first.iter_mut().zip(out_second);
    for ((((a, b), cos), sin), (out_a, out_b)) in first.iter().zip(second).zip(cos).zip(sin).zip(outs) {
        for j in 0..PAIRS {
            (out_a[j], out_b[j]) = rotated(a[j], b[j], cos[j], sin[j]);
        }
    }
    for j in 0..first_rest.len() {
        (out_first_rest[j], out_second_rest[j]) = rotated(first_rest[j], second_rest[j], cos_rest[j], sin_rest[j]);
    }
}

/// Returns a pair rotated by an angle, given cosine and sine.
#[inline(always)]
fn rotated(a: i16, b: i16, cos: i16, sin: i16) -> (i16, i16) {
    let (a, b, cos, sin) = (i32::from(a), i32::from(b), i32::from(cos), i32::from(sin));
    let narrow = |sum: i32| (sum >> 15).clamp(i16::MIN.into(), i16::MAX.into()) as i16;
    (narrow(a * cos - b * sin), narrow(b * cos + a * sin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_meet_and_hold_their_means() {
        for at in 0..BUCKETS - 1 {
            let ((low, high), (next, _)) = (bucket_bounds(at), bucket_bounds(at + 1));
            assert_eq!(high, next);
            assert_eq!(usize::from(bucket((low * 128.0) as i16)), at);
            assert_eq!(usize::from(bucket(-(high * 128.0) as i16 + 1)), at);
        }
        assert_eq!([i16::MIN, i16::MAX].map(bucket), [15, 15]);
    }
}
