//! Non-negative least squares, also robust against outliers.

/// Threshold of Huber's loss: larger errors count linearly, since a misattributed step, or one with other work of the server, says little
/// about the rest.
const OUTLIER: f64 = 0.05;
/// Number of reweighted fits; the coefficients converge long before.
const ROUNDS: usize = 20;

/// Returns the non-negative `x` with the least sum of `(row * x - target)^2` over rows and their targets, in which errors above
/// [`OUTLIER`] count linearly.
pub(super) fn robust<const N: usize>(rows: &[([f64; N], f64)]) -> [f64; N] {
    let mut x = non_negative(rows.iter().map(|(row, target)| (*row, *target, 1.0)));
    for _ in 0..ROUNDS {
        let error = |row: &[f64; N], target: f64| row.iter().zip(x).map(|(a, b)| a * b).sum::<f64>() - target;
        let weight = |row: &[f64; N], target: f64| (OUTLIER / error(row, target).abs()).min(1.0);
        x = non_negative(rows.iter().map(|(row, target)| (*row, *target, weight(row, *target))));
    }
    x
}

/// Returns the non-negative `x` with the least sum of `weight * (row * x - target)^2` over rows, their targets and weights. Coordinate
/// descent, which cannot fail: sets each coefficient in turn to its best value, until none changes.
fn non_negative<const N: usize>(rows: impl Iterator<Item = ([f64; N], f64, f64)>) -> [f64; N] {
    let mut products = [[0.0; N]; N];
    let mut sums = [0.0; N];
    for (row, target, weight) in rows {
        for i in 0..N {
            sums[i] += weight * target * row[i];
            for j in 0..N {
                products[i][j] += weight * row[i] * row[j];
            }
        }
    }
    // In units in which every column is as long as another, so that no coefficient is small beside others.
    let scale: [f64; N] = std::array::from_fn(|i| if products[i][i] > 0.0 { products[i][i].sqrt() } else { 1.0 });
    let mut x = [0.0; N];
    for _ in 0..PASSES_MAX {
        let mut moved: f64 = 0.0;
        for i in 0..N {
            if products[i][i] <= 0.0 {
                continue;
            }
            let others: f64 = (0..N).filter(|j| *j != i).map(|j| products[i][j] / scale[i] / scale[j] * x[j]).sum();
            let best = (sums[i] / scale[i] - others).max(0.0);
            moved = moved.max((best - x[i]).abs());
            x[i] = best;
        }
        let size = x.iter().fold(0.0f64, |size, x| size.max(*x));
        if moved <= CONVERGED * size {
            break;
        }
    }
    std::array::from_fn(|i| x[i] / scale[i])
}

/// Passes, at most. A pass is cheap, and nearly parallel columns need many.
const PASSES_MAX: usize = 1_000_000;
const CONVERGED: f64 = 1e-13;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unconstrained_solution_if_it_is_positive() {
        // 1 = 2 a + b and 1 = a + 3 b.
        let [a, b] = non_negative([([2.0, 1.0], 1.0, 1.0), ([1.0, 3.0], 1.0, 5.0)].into_iter());
        assert!((a - 0.4).abs() < 1e-9 && (b - 0.2).abs() < 1e-9, "{a} {b}");
    }

    #[test]
    fn what_would_be_negative_is_zero() {
        // Without bounds a = 2 and b = -1.
        let [a, b] = non_negative([[1.0, 1.0], [0.5, 0.0], [1.5, 2.0]].map(|row| (row, 1.0, 1.0)).into_iter());
        assert!(b == 0.0 && a > 0.0, "{a} {b}");
        assert_eq!(non_negative([([0.0, 0.0], 1.0, 1.0)].into_iter()), [0.0, 0.0]);
        assert_eq!(non_negative(std::iter::empty::<([f64; 1], f64, f64)>()), [0.0]);
    }
}
