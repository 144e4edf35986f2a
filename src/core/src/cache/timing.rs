//! Learned durations: a fixed time, and a time for each block or token.
//!
//! A duration is measured now and then for some amount of work. A line through the measurements, the older ones with less weight,
//! gives the duration of another amount. Until enough was measured, the line follows a start value from the configuration.

/// Weight of the measurements so far when another one comes in.
const DECAY: f64 = 15.0 / 16.0;
/// Weight of each of the two synthetic measurements of the start value.
const START_WEIGHT: f64 = 4.0;
/// Amount of the lesser of these two measurements.
const LEAST_AMOUNT: f64 = 1.0;
/// Measurements before which an estimate is only the start value corrected.
const ENOUGH: u32 = 16;

/// The duration of a kind of work, as a line over its amount: blocks copied, or prompt tokens computed.
#[derive(Clone, Debug)]
pub(crate) struct Timing {
    /// Start value, nanoseconds per unit.
    start_ns: f64,
    /// Amount of the greater measurement that stands for it.
    start_amount: f64,
    measured: u32,
    sums: Sums,
}

/// Weighted sums over the measurements (amount, nanoseconds), for a least-squares line.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    weight: f64,
    amount: f64,
    ns: f64,
    amount_amount: f64,
    amount_ns: f64,
    ns_ns: f64,
}

impl Sums {
    fn add(&mut self, weight: f64, amount: f64, ns: f64) {
        self.weight += weight;
        self.amount += weight * amount;
        self.ns += weight * ns;
        self.amount_amount += weight * amount * amount;
        self.amount_ns += weight * amount * ns;
        self.ns_ns += weight * ns * ns;
    }

    fn scale(&mut self, by: f64) {
        let Self { weight, amount, ns, amount_amount, amount_ns, ns_ns } = self;
        [weight, amount, ns, amount_amount, amount_ns, ns_ns].into_iter().for_each(|sum| *sum *= by);
    }
}

impl Timing {
    /// Creates the timing of work of `start_ns` per unit, as far as is known: as if so many units had been measured.
    pub fn new(start_ns: u64, start_amount: u32) -> Self {
        let start_amount = f64::from(start_amount);
        let mut timing = Self { start_ns: start_ns as f64, start_amount, measured: 0, sums: Sums::default() };
        timing.add_start(START_WEIGHT);
        timing
    }

    fn add_start(&mut self, weight: f64) {
        [LEAST_AMOUNT, self.start_amount]
            .into_iter()
            .for_each(|amount| self.sums.add(weight, amount, amount * self.start_ns));
    }

    /// Takes in a measurement: `amount` units took `ns`.
    pub fn observe(&mut self, amount: u32, ns: u64) {
        self.sums.scale(DECAY);
        self.sums.add(1.0, f64::from(amount), ns as f64);
        self.measured = self.measured.saturating_add(1);
    }

    /// Moves the estimate a little back to the start value: the work was not done because of the estimate, and the next measurement
    /// may be far away.
    pub fn fade(&mut self) {
        self.sums.scale(DECAY);
        self.add_start(START_WEIGHT * (1.0 - DECAY));
    }

    /// Returns `true` once something was measured: the start value is no more than a setting.
    pub fn is_measured(&self) -> bool {
        self.measured > 0
    }

    /// Returns `true` once the estimate rests on measurements rather than on the start value.
    pub fn is_learned(&self) -> bool {
        self.measured >= ENOUGH
    }

    /// Returns the fixed time and the time per unit, nanoseconds, neither below 0.
    pub fn line(&self) -> (f64, f64) {
        let Sums { weight, amount, ns, amount_amount, amount_ns, ns_ns } = self.sums;
        let spread = weight * amount_amount - amount * amount;
        let through_zero = (0.0, amount_ns / amount_amount);
        // With amounts that hardly differ, the line through them says nothing of other amounts.
        if spread <= weight * amount_amount / 1024.0 {
            return through_zero;
        }
        let per_unit = (weight * amount_ns - amount * ns) / spread;
        // Nor does a line that the noise of the measurements may have turned: within two standard errors, time is in proportion.
        let rest = ((weight * ns_ns - ns * ns) - per_unit * per_unit * spread).max(0.0);
        let turned = per_unit - through_zero.1;
        if turned * turned * spread * weight <= 4.0 * rest {
            return through_zero;
        }
        let fixed = (ns - per_unit * amount) / weight;
        if per_unit < 0.0 {
            (ns / weight, 0.0)
        } else if fixed < 0.0 {
            through_zero
        } else {
            (fixed, per_unit)
        }
    }

    /// Returns the expected duration of `amount` units, nanoseconds.
    pub fn estimate_ns(&self, amount: u32) -> u64 {
        let (fixed, per_unit) = self.line();
        (fixed + per_unit * f64::from(amount)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_starts_with_the_start_value_and_learns_fixed_and_proportional_parts() {
        let mut timing = Timing::new(100, 64);
        assert_eq!((timing.estimate_ns(1), timing.estimate_ns(50), timing.is_learned()), (100, 5000, false));
        for round in 0..100 {
            let amount = 1 + round % 40;
            timing.observe(amount, 3_000 + 20 * u64::from(amount));
        }
        assert!(timing.is_learned());
        let (few, many) = (timing.estimate_ns(1), timing.estimate_ns(100));
        assert!((2_700..3_300).contains(&few) && (4_500..5_500).contains(&many), "{few} {many}");
    }

    #[test]
    fn equal_amounts_and_nonsense_give_times_that_make_sense() {
        let mut equal = Timing::new(100, 64);
        (0..200).for_each(|_| equal.observe(8, 8_000));
        assert!((900..1100).contains(&(equal.estimate_ns(8) / 8)), "{:?}", equal.line());
        // Amounts that hardly differ, and durations that differ by other causes: the slope of the line would be noise.
        let mut noisy = Timing::new(100, 64);
        (0..200).for_each(|round| noisy.observe(290 + round % 21, 30_000 + 7_919 * u64::from(round) % 9_973));
        let per_unit = noisy.line().1;
        assert!((90.0..140.0).contains(&per_unit), "{:?}", noisy.line());
        let mut falling = Timing::new(100, 64);
        (0..200).for_each(|round| falling.observe(1 + round % 2 * 50, [9_000, 1_000][round as usize % 2]));
        assert!(falling.line().1 >= 0.0 && falling.estimate_ns(1_000) < 10_000, "{:?}", falling.line());
        let mut none = Timing::new(0, 64);
        assert_eq!(none.estimate_ns(7), 0);
        none.observe(u32::MAX, u64::MAX);
        assert!(none.estimate_ns(u32::MAX) > 0);
    }

    #[test]
    fn a_slope_is_believed_from_two_standard_errors_on() {
        // 2,000 ns and 100 ns a unit, give or take `noise` for either amount: in proportion it would be 217 ns a unit.
        let fixed = |noise: u64| {
            let mut timing = Timing::new(100, 64);
            for (amount, ns) in
                [(10, 3_000 + noise), (20, 4_000 + noise), (10, 3_000 - noise), (20, 4_000 - noise)].repeat(50)
            {
                timing.observe(amount, ns);
            }
            timing.line().0
        };
        assert!((1_900.0..2_000.0).contains(&fixed(1_000)), "2.3 standard errors: {}", fixed(1_000));
        assert_eq!(fixed(1_300), 0.0, "1.8 standard errors");
    }

    #[test]
    fn an_estimate_that_is_not_used_fades_to_the_start_value() {
        let mut timing = Timing::new(100, 64);
        (0..50).for_each(|_| timing.observe(10, 1_000_000));
        assert!(timing.estimate_ns(10) > 900_000);
        (0..200).for_each(|_| timing.fade());
        assert!((1_000..1_100).contains(&timing.estimate_ns(10)), "{}", timing.estimate_ns(10));
    }
}
