//! The time of a step as a sum over its work, learned from steps.
//!
//! ```text
//! time = fixed + token * prompt tokens + pair * their pairs of attention + seq * decodes + read * tokens that decodes read
//! ```
//!
//! The factors are those that fit the steps so far best, the older ones with less weight, with the least relative error, and none below 0. They begin
//! with an estimate of the time of a prompt token, as good as so many steps of a prompt.

use crate::step_work::StepWork;

/// Weight of the steps so far when another one comes in: a thousand count.
const DECAY: f64 = 1023.0 / 1024.0;
/// Steps that the estimate at the beginning counts for.
const START_WEIGHT: f64 = 4.0;
/// Prompt tokens of each.
const START_TOKENS: f64 = 512.0;
/// Steps after which the factors are computed again, at least.
const STALE_STEPS: u32 = 16;
/// Terms of the sum.
const TERMS: usize = 5;
/// Least pivot of a system of equations with ones on its diagonal: below, a term follows from others.
const PIVOT_MIN: f64 = 1e-7;

/// Factors of the sum, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Factors {
    pub fixed: f64,
    pub token: f64,
    pub pair: f64,
    pub seq: f64,
    pub read: f64,
}

/// The learned time of steps.
#[derive(Clone, Debug)]
pub(super) struct StepCost {
    /// Normal equations: products of terms, and of terms and times, in units of the time.
    products: [[f64; TERMS]; TERMS],
    sums: [f64; TERMS],
    /// Steps taken in since the factors were found.
    n_new: u32,
    factors: Factors,
}

impl StepCost {
    /// Creates the cost of steps of an engine that takes so long for a prompt token, as far as is known.
    pub fn new(token_ns: u64) -> Self {
        let token = token_ns.max(1) as f64;
        let factors = Factors { token, ..Factors::default() };
        let mut cost = Self { products: [[0.0; TERMS]; TERMS], sums: [0.0; TERMS], n_new: 0, factors };
        cost.add(START_WEIGHT, [0.0, START_TOKENS, 0.0, 0.0, 0.0], START_TOKENS * token);
        cost
    }

    /// Takes in a step.
    pub fn observe(&mut self, work: &StepWork, ns: u64) {
        if ns == 0 {
            return;
        }
        self.products.as_flattened_mut().iter_mut().chain(&mut self.sums).for_each(|sum| *sum *= DECAY);
        let terms = [1.0, work.tokens as f64, work.pairs as f64, work.decodes as f64, work.read as f64];
        self.add(1.0, terms, ns as f64);
        self.n_new += 1;
    }

    /// Returns the factors.
    pub fn factors(&mut self) -> Factors {
        if self.n_new >= STALE_STEPS {
            self.n_new = 0;
            let [fixed, token, pair, seq, read] = self.solve();
            self.factors = Factors { fixed, token, pair, seq, read };
        }
        self.factors
    }

    fn add(&mut self, weight: f64, terms: [f64; TERMS], ns: f64) {
        let terms = terms.map(|term| term / ns);
        for (row, term) in terms.iter().enumerate() {
            self.sums[row] += weight * term;
            for (product, other) in self.products[row].iter_mut().zip(&terms) {
                *product += weight * term * other;
            }
        }
    }

    /// Returns the factors of least squares, of which those that would be negative are 0: the worst is left out, one after the other.
    fn solve(&self) -> [f64; TERMS] {
        let mut used = std::array::from_fn(|at| self.products[at][at] > 0.0);
        loop {
            let factors = self.solve_with(&used);
            let worst = (0..TERMS).filter(|at| factors[*at] < 0.0).min_by(|a, b| {
                let size = |at: &usize| factors[*at] * self.products[*at][*at].sqrt();
                size(a).total_cmp(&size(b))
            });
            match worst {
                Some(worst) => used[worst] = false,
                None => return factors,
            }
        }
    }

    /// Solves the equations of the terms that are used, by elimination with terms in their own units. A term that follows from those before it is 0.
    fn solve_with(&self, used: &[bool; TERMS]) -> [f64; TERMS] {
        let scale: [f64; TERMS] =
            std::array::from_fn(|at| if used[at] { self.products[at][at].sqrt().recip() } else { 0.0 });
        let mut rows: [[f64; TERMS + 1]; TERMS] = std::array::from_fn(|row| {
            std::array::from_fn(|column| match column {
                TERMS => self.sums[row] * scale[row],
                column => self.products[row][column] * scale[row] * scale[column],
            })
        });
        for pivot in 0..TERMS {
            if rows[pivot][pivot] < PIVOT_MIN {
                continue;
            }
            for row in 0..TERMS {
                let times = rows[row][pivot] / rows[pivot][pivot];
                if row == pivot || times == 0.0 {
                    continue;
                }
                let by = rows[pivot];
                rows[row].iter_mut().zip(by).for_each(|(value, by)| *value -= times * by);
            }
        }
        std::array::from_fn(|at| match rows[at][at] {
            diagonal if diagonal < PIVOT_MIN => 0.0,
            diagonal => rows[at][TERMS] / diagonal * scale[at],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) -> bool {
        (a - b).abs() <= 0.01 * b.abs().max(1e-9)
    }

    fn work(at: u64) -> StepWork {
        let (tokens, begin, decodes) = (at % 3 * 700, at * 37 % 5_000, at * 7 % 11);
        StepWork { tokens, pairs: tokens * begin + tokens * tokens / 2, decodes, read: decodes * (at * 91 % 3_000) }
    }

    #[test]
    fn the_factors_of_a_sum_are_found() {
        let mut cost = StepCost::new(100_000);
        assert_eq!(cost.factors(), Factors { token: 100_000.0, ..Factors::default() });
        for at in 0..4_000 {
            let StepWork { tokens, pairs, decodes, read } = work(at);
            cost.observe(&work(at), 5_000_000 + 20_000 * tokens + 3 * pairs + 40_000 * decodes + 50 * read);
        }
        let Factors { fixed, token, pair, seq, read } = cost.factors();
        assert!(near(fixed, 5e6) && near(token, 2e4) && near(pair, 3.0), "{:?}", cost.factors());
        assert!(near(seq, 4e4) && near(read, 50.0), "{:?}", cost.factors());
    }

    #[test]
    fn no_factor_is_negative_and_terms_that_never_vary_share_a_time() {
        let mut cost = StepCost::new(100_000);
        for at in 0..4_000 {
            // More decodes, less time: nonsense.
            cost.observe(&work(at), 50_000_000 - 1_000_000 * work(at).decodes);
        }
        let Factors { fixed, token, pair, seq, read } = cost.factors();
        assert!([fixed, token, pair, seq, read].iter().all(|factor| *factor >= 0.0), "{:?}", cost.factors());
        let mut equal = StepCost::new(100_000);
        let same = StepWork { decodes: 4, read: 4_000, ..StepWork::default() };
        (0..4_000).for_each(|_| equal.observe(&same, 8_000_000));
        let Factors { fixed, seq, read, .. } = equal.factors();
        assert!(near(fixed + 4.0 * seq + 4_000.0 * read, 8e6), "{:?}", equal.factors());
    }
}
