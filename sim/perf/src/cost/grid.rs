//! Tables of measured times: dense grids with linear interpolation.

/// Times at the points of a grid with `D` axes.
#[derive(Clone, Debug)]
pub(crate) struct Grid<const D: usize> {
    /// Coordinates of each axis, ascending and not empty.
    axes: [Vec<f64>; D],
    /// Times of all points; the last axis varies fastest.
    values: Vec<f64>,
}

impl<const D: usize> Grid<D> {
    /// Builds the grid over `axes` from the times of `value`. Returns the first point without a time as the error.
    pub fn new(axes: [Vec<f64>; D], mut value: impl FnMut([f64; D]) -> Option<f64>) -> Result<Self, [f64; D]> {
        assert!(axes.iter().all(|axis| !axis.is_empty() && axis.is_sorted()), "axes ascend");
        // More points than there are numbers end at the first one without a value.
        let n = axes.iter().map(Vec::len).fold(1, usize::saturating_mul);
        let mut values = Vec::new();
        let mut point = [0.0; D];
        for i in 0..n {
            let mut rest = i;
            for d in (0..D).rev() {
                point[d] = axes[d][rest % axes[d].len()];
                rest /= axes[d].len();
            }
            values.push(value(point).ok_or(point)?);
        }
        Ok(Self { axes, values })
    }

    /// Returns the point of the grid's hull nearest to `query`.
    pub fn clamp(&self, mut query: [f64; D]) -> [f64; D] {
        for (x, axis) in query.iter_mut().zip(&self.axes) {
            *x = x.clamp(axis[0], axis[axis.len() - 1]);
        }
        query
    }

    /// Returns the time at a point in the hull: multilinear between the corners of its cell.
    pub fn at(&self, query: [f64; D]) -> f64 {
        // Of each axis the lower corner and how far the query is from it to the upper one.
        let mut lower = [0; D];
        let mut share = [0.0; D];
        for d in 0..D {
            let axis = &self.axes[d];
            let i = axis.partition_point(|x| *x <= query[d]).clamp(1, axis.len().max(2) - 1) - 1;
            lower[d] = i;
            if let (Some(low), Some(high)) = (axis.get(i), axis.get(i + 1)) {
                share[d] = ((query[d] - low) / (high - low)).clamp(0.0, 1.0);
            }
        }
        let mut sum = 0.0;
        for corner in 0..1usize << D {
            let (mut at, mut weight) = (0, 1.0);
            for d in 0..D {
                let upper = corner >> d & 1;
                weight *= if upper == 1 { share[d] } else { 1.0 - share[d] };
                at = at * self.axes[d].len() + (lower[d] + upper).min(self.axes[d].len() - 1);
            }
            if weight > 0.0 {
                sum += weight * self.values[at];
            }
        }
        sum
    }

    /// Returns the time at `query`. Outside the hull, the ratio to the time of `ideal` stays that of the nearest hull point:
    /// kernels reach the same share of the peak there.
    pub fn extended(&self, query: [f64; D], ideal: impl Fn([f64; D]) -> f64) -> f64 {
        let edge = self.clamp(query);
        let time = self.at(edge);
        if edge == query {
            return time;
        }
        let (ideal_edge, ideal_query) = (ideal(edge), ideal(query));
        if ideal_edge > 0.0 { time * (ideal_query / ideal_edge).max(1.0) } else { time.max(ideal_query) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_linear_in_each_axis_is_met_everywhere() {
        let f = |[x, y, z]: [f64; 3]| 1.0 + 2.0 * x + 3.0 * y * z + x * y * z;
        let axes = [vec![0.0, 1.0, 5.0], vec![2.0], vec![-1.0, 0.5, 3.0, 9.0]];
        let grid = Grid::new(axes, |point| Some(f(point))).unwrap();
        for x in [0.0, 0.3, 1.0, 4.9, 5.0] {
            for z in [-1.0, 0.0, 0.5, 8.0, 9.0] {
                assert!((grid.at([x, 2.0, z]) - f([x, 2.0, z])).abs() < 1e-9, "{x} {z}");
            }
        }
    }

    #[test]
    fn outside_the_share_of_the_peak_is_held() {
        let grid = Grid::new([vec![1.0, 2.0]], |[x]| Some(10.0 + x)).unwrap();
        assert_eq!(grid.extended([1.5], |_| unreachable!("inside")), 11.5);
        assert_eq!(grid.extended([6.0], |[x]| x), 36.0);
        assert_eq!(grid.extended([0.5], |[x]| x), 11.0, "less work than the least takes as long");
        assert_eq!(grid.extended([6.0], |_| 0.0), 12.0);
    }

    #[test]
    fn a_hole_is_named() {
        let fault = Grid::new([vec![1.0, 2.0], vec![5.0]], |[x, _]| (x < 2.0).then_some(x)).unwrap_err();
        assert_eq!(fault, [2.0, 5.0]);
    }
}
