//! Non-negative least squares, also robust against outliers.

/// Threshold of Huber's loss: larger errors count linearly, since a misattributed step, or one with other work of the server, says little
/// about the rest.
const OUTLIER: f64 = 0.05;
/// Number of reweighted fits; the coefficients converge long before.
const ROUNDS: usize = 20;
/// Maximum number of passes of a fit. A pass is cheap, and nearly parallel columns need many.
const PASSES_MAX: usize = 1_000_000;
const CONVERGED: f64 = 1e-13;

/// Rows of terms, each with the value that its terms times their coefficients add up to.
pub(super) struct Rows {
    width: usize,
    /// Terms of all rows, one row after the other.
    terms: Vec<f64>,
    targets: Vec<f64>,
}

impl Rows {
    /// Returns no rows, of so many terms.
    pub fn new(width: usize) -> Self {
        Self { width, terms: Vec::new(), targets: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If it has another number of terms.
    pub fn push(&mut self, terms: impl IntoIterator<Item = f64>, target: f64) {
        self.terms.extend(terms);
        self.targets.push(target);
        assert_eq!(self.terms.len(), self.targets.len() * self.width);
    }

    fn iter(&self) -> impl Iterator<Item = (&[f64], f64)> {
        self.terms.chunks_exact(self.width).zip(self.targets.iter().copied())
    }

    /// Returns the non-negative coefficients with the least sum of `(terms * coefficients - target)^2` over rows, in which errors above
    /// [`OUTLIER`] count linearly.
    pub fn robust(&self) -> Vec<f64> {
        let mut x = vec![0.0; self.width];
        for round in 0..=ROUNDS {
            let error = |row: &[f64], target: f64| row.iter().zip(&x).map(|(a, b)| a * b).sum::<f64>() - target;
            let weight = |row: &[f64], target: f64| (OUTLIER / error(row, target).abs()).min(1.0);
            x = self.non_negative(&x, |row, target| if round == 0 { 1.0 } else { weight(row, target) });
        }
        x
    }

    /// Returns the non-negative coefficients with the least sum of `weight * (terms * coefficients - target)^2` over rows. Coordinate descent from
    /// `begin`, which cannot fail: sets each coefficient in turn to its best value, until none changes.
    fn non_negative(&self, begin: &[f64], weight: impl Fn(&[f64], f64) -> f64) -> Vec<f64> {
        let n = self.width;
        let (mut products, mut sums) = (vec![0.0; n * n], vec![0.0; n]);
        for (row, target) in self.iter() {
            let weight = weight(row, target);
            for i in 0..n {
                sums[i] += weight * target * row[i];
                for j in 0..=i {
                    products[n * i + j] += weight * row[i] * row[j];
                }
            }
        }
        // In units in which every column is as long as another, so that no coefficient is small compared with others.
        let scale: Vec<f64> = (0..n).map(|i| products[n * i + i].sqrt()).collect();
        let product = |i: usize, j: usize| products[n * i.max(j) + i.min(j)] / scale[i] / scale[j];
        let products: Vec<f64> = (0..n * n).map(|at| product(at / n, at % n)).collect();
        let mut x: Vec<f64> = begin.iter().zip(&scale).map(|(x, scale)| x * scale).collect();
        for _ in 0..PASSES_MAX {
            let mut moved: f64 = 0.0;
            for i in (0..n).filter(|i| scale[*i] > 0.0) {
                let others: f64 =
                    (0..n).filter(|j| *j != i && scale[*j] > 0.0).map(|j| products[n * i + j] * x[j]).sum();
                let best = (sums[i] / scale[i] - others).max(0.0);
                moved = moved.max((best - x[i]).abs());
                x[i] = best;
            }
            let size = x.iter().fold(0.0f64, |size, x| size.max(*x));
            if moved <= CONVERGED * size {
                break;
            }
        }
        x.iter().zip(&scale).map(|(x, scale)| if *scale > 0.0 { x / scale } else { 0.0 }).collect()
    }
}

/// Returns [`Rows::robust`] of rows and their targets.
pub(super) fn robust<const N: usize>(rows: &[([f64; N], f64)]) -> [f64; N] {
    let mut all = Rows::new(N);
    rows.iter().for_each(|(terms, target)| all.push(*terms, *target));
    let x = all.robust();
    std::array::from_fn(|at| x[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn solve(width: usize, rows: &[(&[f64], f64)], weight: impl Fn(f64) -> f64) -> Vec<f64> {
        let mut all = Rows::new(width);
        rows.iter().for_each(|(row, target)| all.push(row.iter().copied(), *target));
        all.non_negative(&vec![0.0; width], |row, _| weight(row[0]))
    }

    #[test]
    fn the_unconstrained_solution_if_it_is_positive() {
        // 1 = 2 a + b and 1 = a + 3 b.
        let rows: [(&[f64], f64); 2] = [(&[2.0, 1.0], 1.0), (&[1.0, 3.0], 1.0)];
        let [a, b] = solve(2, &rows, |first| if first == 1.0 { 5.0 } else { 1.0 })[..] else { panic!("two") };
        assert!((a - 0.4).abs() < 1e-9 && (b - 0.2).abs() < 1e-9, "{a} {b}");
    }

    #[test]
    fn what_would_be_negative_is_zero() {
        // Without bounds a = 2 and b = -1.
        let rows: [(&[f64], f64); 3] = [(&[1.0, 1.0], 1.0), (&[0.5, 0.0], 1.0), (&[1.5, 2.0], 1.0)];
        let found = solve(2, &rows, |_| 1.0);
        assert!(found[1] == 0.0 && found[0] > 0.0, "{found:?}");
        assert_eq!(solve(2, &[(&[0.0, 0.0], 1.0)], |_| 1.0), [0.0, 0.0]);
        assert_eq!(solve(1, &[], |_| 1.0), [0.0]);
    }

    #[test]
    fn a_few_outliers_do_not_move_a_robust_fit() {
        let mut rows = Rows::new(1);
        (0..100).for_each(|at| rows.push([1.0], if at % 10 == 0 { 9.0 } else { 2.0 }));
        assert!((rows.robust()[0] - 2.0).abs() < 0.01, "{:?}", rows.robust());
    }
}
