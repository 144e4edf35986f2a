//! Rows rounded to 16-bit integers, for products with quantised weights.
//!
//! Each 32 elements of a row have a scale of their own: the largest is ±32767. So an element is off by at most 1/65534 of the
//! largest of its 32, 256 times less than with the 8 bits of other programs, and well below the rounding of the weights.

use std::ops::Range;

use crate::kernels::kernel::vectorised;

/// Elements with a common scale.
pub(crate) const GROUP: usize = 32;

/// Words of two elements in a group.
const PAIRS: usize = GROUP / 2;

/// The largest integer.
const LARGEST: f32 = 32_767.0;

/// Groups whose elements are all smaller are zero: the reciprocal of their scale would not be a number.
const SMALLEST: f32 = 1e-30;

/// Scale of a group, and the sum of its elements as rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Factors {
    pub(crate) scale: f32,
    pub(crate) sum: f32,
}

/// Rounded rows, in memory to be used again.
#[derive(Default)]
pub(crate) struct Rounded {
    /// `[row][pair]`: two elements each, the first in the low half.
    pairs: Vec<u32>,
    /// `[row][group]`.
    factors: Vec<Factors>,
}

/// Some rounded rows.
#[derive(Clone, Copy, Default)]
pub(crate) struct RoundedRows<'a> {
    /// Groups in a row.
    n_groups: usize,
    pairs: &'a [u32],
    factors: &'a [Factors],
}

/// Rows to be rounded.
pub(crate) struct Rounding<'a> {
    x: &'a [f32],
    pairs: &'a mut [u32],
    factors: &'a mut [Factors],
}

impl Rounding<'_> {
    /// Rounds the rows.
    pub(crate) fn run(&mut self) {
        vectorised(
            #[inline(always)]
            || round(self.x, self.pairs, self.factors),
        );
    }
}

impl Rounded {
    /// Takes rows of `inputs` elements, a multiple of [`GROUP`], to be rounded in parts of `rows` rows.
    pub(crate) fn parts<'a>(&'a mut self, x: &'a [f32], inputs: usize, rows: usize) -> Vec<Rounding<'a>> {
        debug_assert!(inputs.is_multiple_of(GROUP));
        self.pairs.resize(x.len() / 2, 0);
        self.factors.resize(x.len() / GROUP, Factors::default());
        let part = rows * inputs;
        let (pairs, factors) = (self.pairs.chunks_mut(part / 2), self.factors.chunks_mut(part / GROUP));
        let parts = x.chunks(part).zip(pairs).zip(factors);
        parts.map(|((x, pairs), factors)| Rounding { x, pairs, factors }).collect()
    }

    /// Returns some of the rows, of `inputs` elements each.
    pub(crate) fn rows(&self, inputs: usize, rows: Range<usize>) -> RoundedRows<'_> {
        let n_groups = inputs / GROUP;
        let groups = rows.start * n_groups..rows.end * n_groups;
        RoundedRows {
            n_groups,
            pairs: &self.pairs[groups.start * PAIRS..groups.end * PAIRS],
            factors: &self.factors[groups],
        }
    }
}

impl<'a> RoundedRows<'a> {
    /// Returns the pairs of one row.
    #[inline(always)]
    pub(crate) fn pairs(&self, row: usize) -> &'a [u32] {
        &self.pairs[row * self.n_groups * PAIRS..][..self.n_groups * PAIRS]
    }

    /// Returns the factors of one row.
    #[inline(always)]
    pub(crate) fn factors(&self, row: usize) -> &'a [Factors] {
        &self.factors[row * self.n_groups..][..self.n_groups]
    }
}

#[inline(always)]
fn round(x: &[f32], pairs: &mut [u32], factors: &mut [Factors]) {
    // Added and taken away, it leaves the nearest integer, in the low bits: 1.5 * 2^23.
    const ROUND: f32 = 12_582_912.0;
    let (groups, _) = x.as_chunks::<GROUP>();
    let (pairs, _) = pairs.as_chunks_mut::<PAIRS>();
    for ((x, pairs), factors) in groups.iter().zip(pairs).zip(factors) {
        let (mut lanes, mut not_finite) = ([0.0f32; 8], [0.0f32; 8]);
        for x in x.as_chunks::<8>().0 {
            for lane in 0..8 {
                let size = x[lane].abs();
                lanes[lane] = if size > lanes[lane] { size } else { lanes[lane] };
                // Zero, or NaN for NaN and infinity.
                not_finite[lane] += x[lane] * 0.0;
            }
        }
        let largest = lanes.into_iter().fold(0.0, |a, b| if b > a { b } else { a });
        let inverse = if largest > SMALLEST { LARGEST / largest } else { 0.0 };
        let mut sum = 0;
        for (pair, x) in pairs.iter_mut().zip(x.as_chunks::<2>().0) {
            let [low, high] = x.map(|x| (x * inverse + ROUND).to_bits() as u16 as i16);
            sum += i32::from(low) + i32::from(high);
            *pair = u32::from(low as u16) | u32::from(high as u16) << 16;
        }
        let scale = if largest > SMALLEST { largest / LARGEST } else { 0.0 };
        let scale = scale + not_finite.into_iter().sum::<f32>();
        *factors = Factors { scale, sum: sum as f32 * scale };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::noise::Noise;

    fn rounded(x: &[f32]) -> (Vec<f32>, Vec<Factors>) {
        let mut rounded = Rounded::default();
        rounded.parts(x, x.len(), 1).iter_mut().for_each(Rounding::run);
        let rows = rounded.rows(x.len(), 0..1);
        let values = rows.pairs(0).iter().enumerate().flat_map(|(i, pair)| {
            let scale = rows.factors(0)[i / PAIRS].scale;
            [*pair as i16, (*pair >> 16) as i16].map(|value| f32::from(value) * scale)
        });
        (values.collect(), rows.factors(0).to_vec())
    }

    #[test]
    fn elements_are_off_by_half_a_step_at_most_and_sums_are_of_rounded_elements() {
        let mut noise = Noise::new(3);
        for size in [1e-20, 0.003, 1.0, 4000.0, 1e30] {
            let x: Vec<f32> = (0..320).map(|_| noise.uniform(size)).collect();
            let (values, factors) = rounded(&x);
            for ((x, values), factors) in x.chunks(GROUP).zip(values.chunks(GROUP)).zip(&factors) {
                let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
                for (x, value) in x.iter().zip(values) {
                    assert!((x - value).abs() <= largest * (0.5 / LARGEST) * 1.001, "{x} became {value}");
                }
                let sum: f64 = values.iter().map(|value| f64::from(*value)).sum();
                assert!(
                    (f64::from(factors.sum) - sum).abs() <= 1e-5 * f64::from(largest),
                    "{} is not {sum}",
                    factors.sum
                );
            }
        }
    }

    #[test]
    fn zeros_stay_zeros_and_what_is_no_number_is_not_hidden() {
        let mut x = [0.0; 4 * GROUP];
        (x[5], x[GROUP + 3], x[2 * GROUP + 7]) = (1e-31, f32::NAN, f32::NEG_INFINITY);
        let (values, factors) = rounded(&x);
        assert_eq!((&values[..GROUP], factors[0]), (&[0.0; GROUP][..], Factors::default()));
        assert!(factors[1].scale.is_nan() && factors[1].sum.is_nan());
        assert!(factors[2].scale.is_nan() && factors[2].sum.is_nan());
        assert_eq!(factors[3], Factors::default());
        assert_eq!(rounded(&[-2.0; GROUP]).0, [-2.0; GROUP]);
    }
}
