//! Effect of each value of an axis on a figure, and the Pareto front of cells.

use std::collections::HashMap;

use trunkline_sim_report::figures::Direction;

use super::join::Row;

/// Effect of one value of an axis.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Effect {
    /// Values of the parameters of the axis.
    pub value: Vec<String>,
    /// Cells with this value.
    pub cells: usize,
    /// Mean of the figure over these cells, with any values of other parameters.
    pub mean: f64,
    /// Comparison with the first value of the axis.
    pub paired: Option<Paired>,
}

/// Comparison of cells that differ in this axis only.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Paired {
    /// Number of pairs of cells.
    pub pairs: usize,
    /// Mean difference of the figure.
    pub difference: f64,
    /// Mean figure of the first value in these pairs; `difference` is reported as a share of this mean.
    pub base: f64,
}

/// Returns the effect of each value of the parameters `axis` on a figure, in order of first appearance. Rows without the figure
/// are left out.
pub(super) fn effects(rows: &[&Row], axis: &[usize], figure: impl Fn(&Row) -> Option<f64>) -> Vec<Effect> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (row, x) in rows.iter().filter_map(|row| Some((row, figure(row)?))) {
        let value: Vec<&str> = axis.iter().map(|parameter| row.value(*parameter)).collect();
        let rest: Vec<&str> = (0..row.values.len())
            .filter(|parameter| !axis.contains(parameter))
            .map(|parameter| row.value(parameter))
            .collect();
        match groups.iter_mut().find(|(known, _)| *known == value) {
            Some((_, members)) => members.push((rest, x)),
            None => groups.push((value, vec![(rest, x)])),
        }
    }
    let Some((_, first)) = groups.first() else { return Vec::new() };
    let first: HashMap<&[&str], f64> = first.iter().map(|(rest, x)| (&rest[..], *x)).collect();
    groups.iter().enumerate().map(|(at, (value, members))| effect(at == 0, &first, value, members)).collect()
}

/// A value, with the other parameters and the figure of each cell.
type Group<'a> = (Vec<&'a str>, Vec<(Vec<&'a str>, f64)>);

fn effect(is_first: bool, first: &HashMap<&[&str], f64>, value: &[&str], members: &[(Vec<&str>, f64)]) -> Effect {
    let pairs: Vec<(f64, f64)> = members.iter().filter_map(|(rest, x)| Some((*first.get(&rest[..])?, *x))).collect();
    let n = pairs.len() as f64;
    let paired = (!is_first && !pairs.is_empty()).then(|| Paired {
        pairs: pairs.len(),
        difference: pairs.iter().map(|(base, x)| x - base).sum::<f64>() / n,
        base: pairs.iter().map(|(base, _)| base).sum::<f64>() / n,
    });
    Effect {
        value: value.iter().map(ToString::to_string).collect(),
        cells: members.len(),
        mean: members.iter().map(|(_, x)| x).sum::<f64>() / members.len() as f64,
        paired,
    }
}

/// Returns for each point `true` if it is on the Pareto front: no other point is at least as good in both figures and
/// better in one.
pub(super) fn front(points: &[(f64, f64)], better: [Direction; 2]) -> Vec<bool> {
    let sign = better.map(|better| if better == Direction::Higher { -1.0 } else { 1.0 });
    let cost = |(a, b): (f64, f64)| (a * sign[0], b * sign[1]);
    let beaten = |point: (f64, f64)| {
        let (a, b) = cost(point);
        points.iter().map(|other| cost(*other)).any(|(c, d)| c <= a && d <= b && (c < a || d < b))
    };
    points.iter().map(|point| !beaten(*point)).collect()
}

/// Returns the best value; `None` if all are equal.
pub(super) fn best(values: impl Iterator<Item = f64>, better: Direction) -> Option<f64> {
    match better {
        Direction::Lower => values.min_by(f64::total_cmp),
        Direction::Higher => values.max_by(f64::total_cmp),
        Direction::Neither => None,
    }
}
