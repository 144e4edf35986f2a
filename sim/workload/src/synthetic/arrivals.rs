//! Arrival processes of sessions.

use serde::Deserialize;

use super::SECONDS_MAX;
use crate::daily::{DailyCurve, HOURS};
use crate::rng_stream::RngStream;

/// Lowest rate in sessions per second; the highest is its inverse.
const RATE_MIN: f64 = 1e-6;
const RATE_MAX: f64 = 1e6;
const CV_MAX: f64 = 100.0;
/// Shortest mean length of a period, seconds: shorter periods would be drawn by the million.
const PERIOD_S_MIN: f64 = 1e-3;

/// Arrival process of sessions; see [`super`] for the processes.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "Raw")]
pub enum Arrivals {
    /// Equal gaps between all sessions.
    Constant {
        /// Rate, sessions per second.
        sessions_per_s: f64,
    },
    /// Exponential gaps: a Poisson process.
    Poisson {
        /// Mean rate, sessions per second.
        sessions_per_s: f64,
    },
    /// Gaps with a gamma distribution.
    Gamma {
        /// Mean rate, sessions per second.
        sessions_per_s: f64,
        /// Coefficient of variation of the gaps.
        cv: f64,
    },
    /// Bursts separated by quiet periods.
    OnOff {
        /// Mean rate in a burst, sessions per second.
        sessions_per_s: f64,
        /// Mean rate between bursts, sessions per second.
        off_sessions_per_s: f64,
        /// Mean length of a burst, seconds.
        on_s: f64,
        /// Mean time between bursts, seconds.
        off_s: f64,
    },
    /// Poisson process with a sinusoidal rate.
    Diurnal {
        /// Mean rate, sessions per second.
        sessions_per_s: f64,
        /// Amplitude of the rate as a share of its mean.
        amplitude: f64,
        /// Time from trough to trough, seconds.
        period_s: f64,
    },
    /// Poisson process with a rate for each hour of a day.
    Hourly {
        /// Base rate, sessions per second.
        sessions_per_s: f64,
        /// Factors on the base rate.
        curve: DailyCurve,
        /// Length of the day, seconds.
        period_s: f64,
    },
}

/// Form in the TOML file, before validation.
#[derive(Deserialize)]
#[serde(tag = "process", rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
enum Raw {
    Constant {
        sessions_per_s: f64,
    },
    Poisson {
        sessions_per_s: f64,
    },
    Gamma {
        sessions_per_s: f64,
        cv: f64,
    },
    OnOff {
        sessions_per_s: f64,
        #[serde(default)]
        off_sessions_per_s: f64,
        on_s: f64,
        off_s: f64,
    },
    Diurnal {
        sessions_per_s: f64,
        amplitude: f64,
        #[serde(default = "day_s")]
        period_s: f64,
    },
    Hourly {
        sessions_per_s: f64,
        rates: Vec<f64>,
        #[serde(default = "day_s")]
        period_s: f64,
    },
}

fn day_s() -> f64 {
    86_400.0
}

impl TryFrom<Raw> for Arrivals {
    type Error = String;

    fn try_from(raw: Raw) -> Result<Self, String> {
        let within = |name: &str, value: f64, min: f64, max: f64| {
            let message = || format!("{name} is {value}; it must be from {min} to {max}");
            if (min..=max).contains(&value) { Ok(()) } else { Err(message()) }
        };
        let rate = |value: f64| within("sessions-per-s", value, RATE_MIN, RATE_MAX);
        match raw {
            Raw::Constant { sessions_per_s } => rate(sessions_per_s).map(|()| Self::Constant { sessions_per_s }),
            Raw::Poisson { sessions_per_s } => rate(sessions_per_s).map(|()| Self::Poisson { sessions_per_s }),
            Raw::Gamma { sessions_per_s, cv } => {
                rate(sessions_per_s)?;
                within("cv", cv, 1.0 / CV_MAX, CV_MAX)?;
                Ok(Self::Gamma { sessions_per_s, cv })
            }
            Raw::OnOff { sessions_per_s, off_sessions_per_s, on_s, off_s } => {
                rate(sessions_per_s)?;
                within("off-sessions-per-s", off_sessions_per_s, 0.0, RATE_MAX)?;
                within("on-s", on_s, PERIOD_S_MIN, SECONDS_MAX)?;
                within("off-s", off_s, PERIOD_S_MIN, SECONDS_MAX)?;
                within("sessions-per-s times on-s", sessions_per_s * on_s, 1e-3, f64::MAX)?;
                Ok(Self::OnOff { sessions_per_s, off_sessions_per_s, on_s, off_s })
            }
            Raw::Diurnal { sessions_per_s, amplitude, period_s } => {
                rate(sessions_per_s)?;
                within("amplitude", amplitude, 0.0, 1.0)?;
                within("period-s", period_s, PERIOD_S_MIN, SECONDS_MAX)?;
                Ok(Self::Diurnal { sessions_per_s, amplitude, period_s })
            }
            Raw::Hourly { sessions_per_s, rates, period_s } => {
                rate(sessions_per_s)?;
                within("period-s", period_s, PERIOD_S_MIN, SECONDS_MAX)?;
                let curve = DailyCurve::new(&rates).map_err(|error| error.to_string())?;
                Ok(Self::Hourly { sessions_per_s, curve, period_s })
            }
        }
    }
}

/// Start times of a population's sessions, one after another.
#[derive(Clone, Debug)]
pub(super) struct Beginnings {
    arrivals: Arrivals,
    rng: RngStream,
    now_s: f64,
    /// Bursts: state of the current period and its end.
    on: bool,
    period_end_s: f64,
}

impl Beginnings {
    pub(super) fn new(arrivals: Arrivals, mut rng: RngStream) -> Self {
        let period_end_s = match arrivals {
            Arrivals::OnOff { on_s, .. } => rng.exponential(on_s),
            _ => 0.0,
        };
        Self { arrivals, rng, now_s: 0.0, on: true, period_end_s }
    }

    /// Returns the start of the next session, seconds; `None` after [`SECONDS_MAX`].
    pub(super) fn next_s(&mut self) -> Option<f64> {
        match self.arrivals {
            Arrivals::Constant { sessions_per_s } => self.now_s += 1.0 / sessions_per_s,
            Arrivals::Poisson { sessions_per_s } => self.now_s += self.rng.exponential(1.0 / sessions_per_s),
            Arrivals::Gamma { sessions_per_s, cv } => self.now_s += self.rng.gamma(1.0 / sessions_per_s, cv),
            Arrivals::OnOff { sessions_per_s, off_sessions_per_s, on_s, off_s } => {
                self.next_of_bursts([off_sessions_per_s, sessions_per_s], [off_s, on_s]);
            }
            Arrivals::Diurnal { sessions_per_s, amplitude, period_s } => {
                let peak = sessions_per_s * (1.0 + amplitude);
                let phase = |now_s: f64| std::f64::consts::TAU * (now_s / period_s);
                self.next_below(peak, |now_s| sessions_per_s * (1.0 - amplitude * libm::cos(phase(now_s))));
            }
            Arrivals::Hourly { sessions_per_s, curve, period_s } => {
                let peak = sessions_per_s * curve.peak();
                self.next_below(peak, |now_s| sessions_per_s * curve.rate_at(HOURS as f64 * (now_s / period_s)));
            }
        }
        (self.now_s < SECONDS_MAX).then_some(self.now_s)
    }

    /// Draws the next start; `rates` and `means_s` are those without and within bursts.
    fn next_of_bursts(&mut self, rates: [f64; 2], means_s: [f64; 2]) {
        while self.now_s < SECONDS_MAX {
            let rate = rates[usize::from(self.on)];
            // A gap that would outlast the period is drawn again in the next one: it has no memory.
            let next_s = if rate > 0.0 { self.now_s + self.rng.exponential(1.0 / rate) } else { f64::INFINITY };
            if next_s < self.period_end_s {
                self.now_s = next_s;
                return;
            }
            self.now_s = self.period_end_s;
            self.on = !self.on;
            self.period_end_s += self.rng.exponential(means_s[usize::from(self.on)]);
        }
    }

    /// Draws at the highest rate, `peak`, and accepts each draw with the ratio of the rate at the time to the highest (thinning,
    /// Lewis and Shedler, 1979).
    fn next_below(&mut self, peak: f64, rate_at: impl Fn(f64) -> f64) {
        while self.now_s < SECONDS_MAX {
            self.now_s += self.rng.exponential(1.0 / peak);
            if self.rng.unit() * peak < rate_at(self.now_s) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(arrivals: Arrivals, n: usize) -> Vec<f64> {
        let mut beginnings = Beginnings::new(arrivals, RngStream::new(7, 0, 0));
        (0..n).map(|_| beginnings.next_s().unwrap()).collect()
    }

    /// Rate, and coefficient of variation of the gaps.
    fn moments(times: &[f64]) -> (f64, f64) {
        let gaps: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| *gap >= 0.0));
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        (1.0 / mean, variance.sqrt() / mean)
    }

    #[test]
    fn rates_and_burstiness_are_as_asked_for() {
        let of = |arrivals| moments(&times(arrivals, 100_000));
        for (arrivals, cv) in [
            (Arrivals::Constant { sessions_per_s: 4.0 }, 0.0),
            (Arrivals::Poisson { sessions_per_s: 4.0 }, 1.0),
            (Arrivals::Gamma { sessions_per_s: 4.0, cv: 2.5 }, 2.5),
            (Arrivals::Gamma { sessions_per_s: 4.0, cv: 0.3 }, 0.3),
        ] {
            let (rate, found) = of(arrivals);
            assert!((rate / 4.0 - 1.0).abs() < 0.03, "{arrivals:?}: {rate}");
            assert!((found - cv).abs() < 0.03 * cv + 1e-6, "{arrivals:?}: {found}");
        }
    }

    #[test]
    fn bursts_are_as_long_and_as_far_apart_as_asked_for() {
        let arrivals = Arrivals::OnOff { sessions_per_s: 20.0, off_sessions_per_s: 1.0, on_s: 10.0, off_s: 30.0 };
        let (rate, cv) = moments(&times(arrivals, 200_000));
        let expected = (20.0 * 10.0 + 1.0 * 30.0) / 40.0;
        assert!((rate / expected - 1.0).abs() < 0.05, "{rate} for {expected}");
        assert!(cv > 1.5, "{cv}");
    }

    #[test]
    fn each_hour_has_the_rate_of_the_curve() {
        let mut rates = [1.0; 24];
        (rates[6], rates[23]) = (4.0, 0.25);
        let curve = DailyCurve::new(&rates).unwrap();
        let times = times(Arrivals::Hourly { sessions_per_s: 10.0, curve, period_s: 240.0 }, 100_000);
        let days = times[times.len() - 1] / 240.0;
        let per_s =
            |hour: usize| times.iter().filter(|at| (**at / 10.0) as usize % 24 == hour).count() as f64 / days / 10.0;
        for hour in [0, 5, 6, 7, 23] {
            assert!((per_s(hour) / (10.0 * rates[hour]) - 1.0).abs() < 0.1, "hour {hour}: {}", per_s(hour));
        }
    }

    #[test]
    fn the_rate_goes_up_and_down_around_its_mean() {
        let arrivals = Arrivals::Diurnal { sessions_per_s: 10.0, amplitude: 0.8, period_s: 100.0 };
        let times = times(arrivals, 100_000);
        assert!((moments(&times).0 / 10.0 - 1.0).abs() < 0.02);
        let around = |phase: f64| times.iter().filter(|at| ((*at / 100.0).fract() - phase).abs() < 0.05).count() as f64;
        let ratio = around(0.5) / (around(0.05) + around(0.95));
        // Nine times at the peak itself; less over a tenth of the period each.
        assert!((3.0..9.0).contains(&ratio), "{ratio}");
    }
}
