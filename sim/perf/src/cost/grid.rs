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

    /// Builds the grid over `axes` from the times of `value`, and fills points without a time: linear between the two nearest known points of the
    /// axis on which they are closest, else from the nearest one by the ratio of `ideal`. Also returns how many were filled. Returns the first
    /// point as the error if none is known.
    pub fn filled(
        axes: [Vec<f64>; D],
        mut value: impl FnMut([f64; D]) -> Option<f64>,
        ideal: impl Fn([f64; D]) -> f64,
    ) -> Result<(Self, usize), [f64; D]> {
        let mut holes = Vec::new();
        let mut grid = Self::new(axes, |point| {
            let known = value(point);
            if known.is_none() {
                holes.push(point);
            }
            Some(known.unwrap_or(f64::NAN))
        })?;
        let n_holes = holes.len();
        while !holes.is_empty() {
            let mut found: Vec<([f64; D], f64)> =
                holes.iter().filter_map(|hole| Some((*hole, grid.between(*hole)?))).collect();
            if found.is_empty() {
                found = holes.iter().filter_map(|hole| Some((*hole, grid.scaled(*hole, &ideal)?))).collect();
            }
            if found.is_empty() {
                return Err(holes[0]);
            }
            for (point, time) in found {
                let at = grid.index(point);
                grid.values[at] = time;
            }
            holes.retain(|hole| grid.values[grid.index(*hole)].is_nan());
        }
        Ok((grid, n_holes))
    }

    /// Returns the largest coordinate of axis `d`.
    pub fn last(&self, d: usize) -> f64 {
        self.axes[d].last().copied().unwrap_or(0.0)
    }

    /// Returns the position of a point of the grid among the values.
    fn index(&self, point: [f64; D]) -> usize {
        let mut at = 0;
        for (axis, x) in self.axes.iter().zip(point) {
            at = at * axis.len() + axis.partition_point(|other| *other < x);
        }
        at
    }

    /// Returns the nearest known points before and behind `hole` along axis `d`, each with its coordinate and time.
    fn neighbors(&self, hole: [f64; D], d: usize) -> [Option<(f64, f64)>; 2] {
        let axis = &self.axes[d];
        let known = |x: &f64| {
            let mut point = hole;
            point[d] = *x;
            Some((*x, self.values[self.index(point)])).filter(|(_, time)| !time.is_nan())
        };
        let (before, behind) = axis.split_at(axis.partition_point(|x| *x < hole[d]));
        [before.iter().rev().find_map(known), behind.iter().find_map(known)]
    }

    /// Interpolates a hole along the axis on which the known points on both sides are closest.
    fn between(&self, hole: [f64; D]) -> Option<f64> {
        let mut best: Option<(f64, f64)> = None;
        for d in 0..D {
            let [Some((low, low_s)), Some((high, high_s))] = self.neighbors(hole, d) else { continue };
            let gap = ratio(low, high);
            if best.is_none_or(|(least, _)| gap < least) {
                best = Some((gap, low_s + (hole[d] - low) / (high - low) * (high_s - low_s)));
            }
        }
        best.map(|(_, time)| time)
    }

    /// Scales the time of the nearest known point along an axis by the ratio of `ideal`.
    fn scaled(&self, hole: [f64; D], ideal: &impl Fn([f64; D]) -> f64) -> Option<f64> {
        let mut best: Option<(f64, f64)> = None;
        for d in 0..D {
            for (x, time) in self.neighbors(hole, d).into_iter().flatten() {
                let gap = ratio(x, hole[d]);
                if best.is_none_or(|(least, _)| gap < least) {
                    let mut from = hole;
                    from[d] = x;
                    let (of_hole, of_known) = (ideal(hole), ideal(from));
                    best = Some((gap, if of_known > 0.0 { time * of_hole / of_known } else { time.max(of_hole) }));
                }
            }
        }
        best.map(|(_, time)| time)
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

/// Returns the distance of two coordinates as the larger through the smaller; the axes are spaced geometrically.
fn ratio(a: f64, b: f64) -> f64 {
    (a.max(b) + 1.0) / (a.min(b) + 1.0)
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

    #[test]
    fn holes_are_filled_from_the_nearest_points() {
        let axes = || [vec![1.0, 2.0, 4.0, 8.0], vec![0.0, 10.0, 20.0, 100.0]];
        let f = |[x, y]: [f64; 2]| 5.0 + x * y + 3.0 * x;
        let holes = [[2.0, 10.0], [4.0, 10.0], [4.0, 20.0]];
        let known = |point: [f64; 2]| (!holes.contains(&point)).then(|| f(point));
        let (grid, n) = Grid::filled(axes(), known, |_| unreachable!("every hole is between others")).unwrap();
        assert_eq!(n, 3);
        for point in holes.into_iter().chain([[3.0, 50.0], [8.0, 100.0]]) {
            assert!((grid.at(point) - f(point)).abs() < 1e-9, "{point:?} {}", grid.at(point));
        }
        // Beyond the last known point of both axes, by the share of the ideal time there.
        let (grid, n) =
            Grid::filled(axes(), |[x, y]| (x < 8.0 && y < 100.0).then_some(y + 1.0), |[x, y]| x * y).unwrap();
        assert_eq!((n, grid.at([8.0, 20.0]), grid.at([4.0, 100.0])), (7, 42.0, 105.0));
        assert_eq!((grid.last(0), grid.last(1)), (8.0, 100.0));
        assert_eq!(Grid::filled(axes(), |_| None, |_| 1.0).unwrap_err(), [1.0, 0.0]);
        let (whole, n) = Grid::filled(axes(), |point| Some(f(point)), |_| unreachable!("no hole")).unwrap();
        assert_eq!((n, whole.values), (0, Grid::new(axes(), |point| Some(f(point))).unwrap().values));
    }
}
