//! Contexts of elements: the predicted mean, which foretells sign and exponent.
//!
//! The mean of a channel, rotated to the position of the token, is `u` times two to the reference exponent. Elements are coded relative to
//! the sign of the mean, with a code for each of 16 ranges of `|u|` and two ranges of the deviation. Predictions are never subtracted: that
//! would destroy the exponents (measured: all numeric predictors lose to plain entropy coding).

use crate::huffman::LENGTH_MAX;
use crate::rotary::Angles;
use crate::side_table::Plane;

/// Number of contexts, each with a code.
pub(crate) const CONTEXTS: usize = 32;
/// Ranges of the mean.
#[cfg(test)]
pub(crate) const BUCKETS: usize = 16;

/// Returns the range of a mean from -32,767 to 32,767, given in units of 1/64: eight ranges of 1/2, then half octaves split at 3/2. Each octave has half as
/// many ranges as the one before would have, so the least of some straight lines is the range.
#[inline(always)]
pub(crate) fn bucket(mean: i16) -> u16 {
    let m = mean.wrapping_abs() as u16;
    (m >> 5).min(6 + (m >> 7)).min(8 + (m >> 8)).min(10 + (m >> 9)).min(12 + (m >> 10)).min(15)
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

/// Sets the means of a row at its position, in units of 1/64: the halved means of the plane, those of each head, of `head_dim` elements, rotated by the
/// angles of its pairs. Without angles nothing is rotated.
#[inline(always)]
pub(crate) fn fill_means(plane: &Plane, head_dim: usize, angles: Angles<'_>, means: &mut [i16]) {
    if angles.cos.is_empty() {
        means.iter_mut().zip(&plane.means).for_each(|(halved, mean)| *halved = mean >> 1);
        return;
    }
    for (head, means) in plane.means.chunks_exact(head_dim).zip(means.chunks_exact_mut(head_dim)) {
        rotate(head, angles, means);
    }
}

/// Sets the contexts of a row from the means at its position: `codes` to the numbers of the codes, above the bits of the longest code, and `flips` to the
/// sign bit where the mean is negative.
#[inline(always)]
pub(crate) fn fill(plane: &Plane, means: &[i16], (codes, flips): (&mut [u16], &mut [u16])) {
    let n = plane.means.len();
    let (means, uppers, codes, flips) = (&means[..n], &plane.uppers[..n], &mut codes[..n], &mut flips[..n]);
    for at in 0..n {
        codes[at] = bucket(means[at]) << LENGTH_MAX | uppers[at];
        flips[at] = means[at] as u16 & 0x8000;
    }
}

/// Pairs rotated at a time.
const PAIRS: usize = 16;

/// Rotates the means of a head, and halves them.
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

/// Returns half a pair rotated by an angle, given cosine and sine. All in 16 bits, so that processors do many at once: a product of numbers from -32,767
/// to 32,767 has 16 upper bits from -16,384 to 16,383, and two of them have a sum in range.
#[inline(always)]
fn rotated(a: i16, b: i16, cos: i16, sin: i16) -> (i16, i16) {
    let upper = |x: i16, y: i16| ((i32::from(x) * i32::from(y)) >> 16) as i16;
    (upper(a, cos).wrapping_sub(upper(b, sin)), upper(b, cos).wrapping_add(upper(a, sin)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_meet_and_hold_their_means() {
        for at in 0..BUCKETS - 1 {
            let ((low, high), (next, _)) = (bucket_bounds(at), bucket_bounds(at + 1));
            assert_eq!(high, next);
            assert_eq!(usize::from(bucket((low * 64.0) as i16)), at);
            assert_eq!(usize::from(bucket(-(high * 64.0) as i16 + 1)), at);
        }
        assert_eq!([-i16::MAX, i16::MAX].map(bucket), [15, 15]);
    }
}
