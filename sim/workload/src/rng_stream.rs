//! Reproducible random numbers: equal on every machine.

use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::{Rng, SeedableRng};

use trunkline_core::draw::mix;

/// Random stream for one part of a workload. Each part has a stream of its own, independent of the draws of other parts.
#[derive(Clone, Debug)]
pub(crate) struct RngStream(Pcg64Mcg);

impl RngStream {
    /// Returns the stream for part `part` of population `population`.
    pub(crate) fn new(seed: u64, population: u64, part: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(mix(mix(mix(seed) ^ population) ^ part)))
    }

    /// Draws uniformly from `[0, 1)`.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Draws uniformly from `(0, 1]`.
    fn positive_unit(&mut self) -> f64 {
        1.0 - self.unit()
    }

    pub(crate) fn exponential(&mut self, mean: f64) -> f64 {
        -mean * libm::log(self.positive_unit())
    }

    /// Draws from the standard normal distribution, by Box and Muller.
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * libm::log(self.positive_unit())).sqrt();
        radius * libm::cos(std::f64::consts::TAU * self.unit())
    }

    /// Draws from the lognormal distribution with this mean and coefficient of variation.
    pub(crate) fn lognormal(&mut self, mean: f64, cv: f64) -> f64 {
        let variance = libm::log1p(cv * cv);
        mean * libm::exp(variance.sqrt() * self.normal() - variance / 2.0)
    }

    /// Draws from the gamma distribution with this mean and coefficient of variation, after Marsaglia and Tsang.
    pub(crate) fn gamma(&mut self, mean: f64, cv: f64) -> f64 {
        let shape = 1.0 / (cv * cv);
        // Their method needs a shape of at least 1; a power of a uniform number makes up for one more.
        let boost = if shape < 1.0 { libm::pow(self.positive_unit(), 1.0 / shape) } else { 1.0 };
        let d = if shape < 1.0 { shape + 1.0 } else { shape } - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let root = 1.0 + c * x;
            let v = root * root * root;
            if v > 0.0 && libm::log(self.positive_unit()) < 0.5 * x * x + d - d * v + d * libm::log(v) {
                return mean / shape * d * v * boost;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and coefficient of variation of many draws.
    fn moments(draw: impl Fn(&mut RngStream) -> f64) -> (f64, f64) {
        let mut rng = RngStream::new(1, 2, 3);
        let n = 200_000;
        let values: Vec<_> = (0..n).map(|_| draw(&mut rng)).collect();
        let mean = values.iter().sum::<f64>() / f64::from(n);
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / f64::from(n);
        (mean, variance.sqrt() / mean)
    }

    #[test]
    fn draws_have_the_moments_they_should() {
        let close = |(mean, cv): (f64, f64), expected: (f64, f64)| {
            assert!((mean / expected.0 - 1.0).abs() < 0.02, "mean {mean} for {}", expected.0);
            assert!((cv / expected.1 - 1.0).abs() < 0.03, "cv {cv} for {}", expected.1);
        };
        close(moments(RngStream::unit), (0.5, 1.0 / 3f64.sqrt()));
        close(moments(|rng| rng.exponential(5.0)), (5.0, 1.0));
        close(moments(|rng| rng.normal() + 10.0), (10.0, 0.1));
        close(moments(|rng| rng.lognormal(300.0, 1.0)), (300.0, 1.0));
        for cv in [0.2, 1.0, 2.0, 3.0] {
            close(moments(|rng| rng.gamma(0.25, cv)), (0.25, cv));
        }
    }

    #[test]
    fn parts_draw_apart() {
        let first = |seed, population, part| (RngStream::new(seed, population, part).unit() * 1e9) as u64;
        assert_ne!(first(1, 2, 3), first(1, 3, 2));
        assert_ne!(first(1, 2, 3), first(2, 1, 3));
        assert_eq!(first(1, 2, 3), first(1, 2, 3));
    }
}
