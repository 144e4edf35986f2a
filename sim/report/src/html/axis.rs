//! Logarithmic axes of the charts of latencies: one range for all runs, and round numbers for the ticks.

use serde::Serialize;

use crate::series::Distribution;

/// Mantissas of ticks, densest first.
const MANTISSAS: [&[f64]; 3] = [&[1.0, 1.5, 2.0, 3.0, 5.0, 7.0], &[1.0, 2.0, 5.0], &[1.0]];
/// Minimum number of ticks that a list should have.
const FEW: usize = 3;
/// Maximum number of decades of an axis: smaller values stand at the left edge.
const DECADES_MAX: i32 = 6;
/// Least ratio of the ends of an axis, and the margin added to both ends of a narrower one.
const NARROW: (f64, f64) = (1.5, 1.3);

/// Logarithmic axis.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct LogAxis {
    lo: f64,
    hi: f64,
    /// Lists of ticks, densest first; the script takes the first one with room for the labels.
    ticks: Vec<Vec<f64>>,
}

impl LogAxis {
    /// Returns the axis for all values above 0 of some distributions; `None` if there are none.
    pub(super) fn of<'a>(distributions: impl Iterator<Item = &'a Distribution>) -> Option<Self> {
        let values =
            distributions.flat_map(|of| of.points.iter().map(|(value, _)| *value)).filter(|value| *value > 0.0);
        let (lo, hi) = values.fold((f64::INFINITY, 0.0_f64), |(lo, hi), value| (lo.min(value), hi.max(value)));
        (hi > 0.0).then(|| Self::between(lo.max(hi / 10f64.powi(DECADES_MAX)), hi))
    }

    fn between(lo: f64, hi: f64) -> Self {
        let (lo, hi) = if hi / lo < NARROW.0 { (lo / NARROW.1, hi * NARROW.1) } else { (lo, hi) };
        let decades = lo.log10().floor() as i32..=hi.log10().ceil() as i32;
        let of = |mantissas: &[f64], every: i32| -> Vec<f64> {
            let powers = decades.clone().filter(|power| power % every == 0);
            let all = powers.flat_map(|power| mantissas.iter().map(move |mantissa| times(*mantissa, power)));
            all.filter(|tick| (lo..=hi).contains(tick)).collect()
        };
        let mut ticks: Vec<Vec<f64>> = MANTISSAS.iter().map(|mantissas| of(mantissas, 1)).collect();
        ticks.extend((2..=3).map(|every| of(&[1.0], every)));
        if ticks[0].len() < FEW {
            ticks.insert(0, even(lo, hi));
        }
        ticks.dedup();
        ticks.retain(|list| list.len() > 1);
        Self { lo, hi, ticks }
    }
}

/// Returns `mantissa * 10^power` as the nearest number, so that JSON has no digits beyond those of the mantissa.
fn times(mantissa: f64, power: i32) -> f64 {
    format!("{mantissa}e{power}").parse().expect("digits and a power are a number")
}

/// Returns equally spaced ticks with a step of 1, 2 or 5 times a power of ten: the widest step with enough of them.
fn even(lo: f64, hi: f64) -> Vec<f64> {
    let mut power = hi.log10().ceil() as i32;
    loop {
        for mantissa in [5.0, 2.0, 1.0] {
            let step = times(mantissa, power);
            let (first, last) = ((lo / step).ceil() as i64, (hi / step).floor() as i64);
            if last - first + 1 >= FEW as i64 {
                return (first..=last).map(|n| times(n as f64 * mantissa, power)).collect();
            }
        }
        power -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Digits of a number, without zeros at the ends.
    fn digits(value: f64) -> usize {
        let text = format!("{value:e}");
        text.split('e').next().unwrap_or_default().replace('.', "").len()
    }

    #[test]
    fn ticks_inside_a_decade_are_round() {
        let axis = LogAxis::between(0.00674, 0.0352);
        assert_eq!(axis.ticks[0], [0.007, 0.01, 0.015, 0.02, 0.03]);
        assert_eq!(axis.ticks[1], [0.01, 0.02]);
        assert_eq!(LogAxis::between(3.2, 4.9).ticks[0], [3.5, 4.0, 4.5], "no mantissa but 3.5 and so on");
        assert_eq!(LogAxis::between(2.0, 2.0).ticks[0], [1.6, 1.8, 2.0, 2.2, 2.4, 2.6], "one value alone");
    }

    #[test]
    fn ticks_of_many_decades_get_sparser() {
        let axis = LogAxis::between(1e-9, 1.0);
        assert_eq!((axis.lo, axis.ticks[0].len()), (1e-9, 9 * 6 + 1));
        assert_eq!(axis.ticks.last().map(Vec::as_slice), Some(&[1e-9, 1e-6, 1e-3, 1.0][..]));
        let cut = LogAxis::of(
            [Distribution { points: vec![(0.0, 0.1), (1e-12, 0.5), (1.0, 1.0)], ..Distribution::default() }].iter(),
        );
        assert_eq!(cut.map(|axis| (axis.lo, axis.hi)), Some((1e-6, 1.0)));
        assert_eq!(LogAxis::of([Distribution::default()].iter()), None);
    }

    #[test]
    fn every_axis_has_enough_round_ticks_within() {
        for i in 0..2_000 {
            let lo = 1e-7 * 1.0137_f64.powi(i);
            for ratio in [1.0, 1.01, 1.6, 2.3, 4.4, 9.9, 87.0, 1e5] {
                let axis = LogAxis::between(lo, lo * ratio);
                let dense = &axis.ticks[0];
                assert!((FEW..=40).contains(&dense.len()), "{lo} to {}: {dense:?}", axis.hi);
                for list in &axis.ticks {
                    assert!(list.is_sorted_by(|a, b| a < b) && list.len() <= dense.len(), "{list:?}");
                    assert!(
                        list.iter().all(|tick| (axis.lo..=axis.hi).contains(tick) && digits(*tick) <= 2),
                        "{list:?}"
                    );
                }
            }
        }
    }
}
