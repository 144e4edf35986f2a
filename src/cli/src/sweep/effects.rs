//! What each value of an axis does to a figure, and which cells no other beats.

use std::collections::HashMap;

use trunkline_sim_report::figures::Direction;

use super::join::Row;

/// What one value of an axis came to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Effect {
    /// The values of the axis's knobs.
    pub value: Vec<String>,
    /// Cells that have it.
    pub cells: usize,
    /// The mean of the figure over those, whatever the other knobs.
    pub mean: f64,
    /// Against the axis's first value.
    pub paired: Option<Paired>,
}

/// A comparison of cells that differ in nothing but this axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Paired {
    /// Pairs there are.
    pub pairs: usize,
    /// The mean of the differences.
    pub difference: f64,
    /// The mean of the first value's cells in those pairs, of which `difference` is a share.
    pub base: f64,
}

/// The effect of each value of the knobs `axis` on a figure, in the order in which they first come. Rows without the figure are left out.
pub(super) fn effects(rows: &[&Row], axis: &[usize], figure: impl Fn(&Row) -> Option<f64>) -> Vec<Effect> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for (row, x) in rows.iter().filter_map(|row| Some((row, figure(row)?))) {
        let value: Vec<&str> = axis.iter().map(|knob| row.value(*knob)).collect();
        let rest: Vec<&str> =
            (0..row.values.len()).filter(|knob| !axis.contains(knob)).map(|knob| row.value(knob)).collect();
        match groups.iter_mut().find(|(known, _)| *known == value) {
            Some((_, members)) => members.push((rest, x)),
            None => groups.push((value, vec![(rest, x)])),
        }
    }
    let Some((_, first)) = groups.first() else { return Vec::new() };
    let first: HashMap<&[&str], f64> = first.iter().map(|(rest, x)| (&rest[..], *x)).collect();
    groups.iter().enumerate().map(|(at, (value, members))| effect(at == 0, &first, value, members)).collect()
}

/// A value, and the other knobs and the figure of each cell that has it.
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

/// Which of the points no other is at least as good as in both figures and better in one.
pub(super) fn front(points: &[(f64, f64)], better: [Direction; 2]) -> Vec<bool> {
    let sign = better.map(|better| if better == Direction::Higher { -1.0 } else { 1.0 });
    let cost = |(a, b): (f64, f64)| (a * sign[0], b * sign[1]);
    let beaten = |point: (f64, f64)| {
        let (a, b) = cost(point);
        points.iter().map(|other| cost(*other)).any(|(c, d)| c <= a && d <= b && (c < a || d < b))
    };
    points.iter().map(|point| !beaten(*point)).collect()
}

/// The best of some values, if some are better.
pub(super) fn best(values: impl Iterator<Item = f64>, better: Direction) -> Option<f64> {
    match better {
        Direction::Lower => values.min_by(f64::total_cmp),
        Direction::Higher => values.max_by(f64::total_cmp),
        Direction::Neither => None,
    }
}
