//! Attention of prefills and decodes in one call: measured points, and the points between them that were not measured.
//!
//! Published profiles measure a union of grids: pure prefills, pure decodes and mixed calls, each with its own spacing. Times at the
//! points of the common grid that no row has are interpolated between the nearest measured points along one axis, else scaled
//! from the nearest one by the lower bound of the device, as beyond the table.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use super::super::{Device, Grid, Points, StepShape, TableError, TableFault, rows};

/// Coordinates of a point: chunk, tokens computed before (or effective key), decodes, and context of each decode, as the bits of
/// numbers of at least 0, which are in the order of the numbers.
type Point = [u64; 4];

/// Times of measured points, seconds.
type Known = HashMap<Point, f64>;

/// Attention of prefills and decodes in one call, by chunk, tokens computed before or effective key, decodes, and context of each
/// decode.
#[derive(Clone, Debug)]
pub(in super::super) struct FusedAttention {
    grid: Grid<4>,
    device: Device,
    skew: f64,
    /// Second axis of the grid.
    history: History,
    /// Smallest chunk measured: a smaller one fills no more of the device.
    chunk_min: f64,
    /// Smallest value of the second axis.
    history_min: f64,
}

/// Second axis of an attention table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum History {
    /// Tokens computed before the chunk, column `kv_prefill`.
    Computed,
    /// Keys that a query of the prefills reads on average, `k + c / 2` for one chunk of `c` tokens after `k`: column `prefill_key`.
    Key,
}

impl History {
    /// Returns the value of the axis for the prefills of a step.
    fn of(self, shape: &StepShape) -> f64 {
        match self {
            Self::Computed => shape.prefill_computed() as f64,
            Self::Key => shape.prefill_pairs as f64 / shape.prefill_tokens as f64 - 0.5,
        }
    }

    /// Returns the lower bound of a call at a point of the grid, seconds.
    fn ideal_s(self, device: &Device, [chunk, history, decodes, context]: [f64; 4]) -> f64 {
        let computed = match self {
            Self::Computed => history,
            Self::Key => history - chunk / 2.0,
        };
        device.attention_s([chunk, computed, decodes, context])
    }
}

impl FusedAttention {
    /// Returns the largest number of decodes in the table, and their longest context.
    pub fn decodes_max(&self) -> [f64; 2] {
        [2, 3].map(|d| self.grid.last(d))
    }

    pub fn layer_s(&self, shape: &StepShape) -> f64 {
        if shape.tokens == 0 {
            return 0.0;
        }
        let decodes = shape.decodes as f64;
        let (chunk, history) = match shape.prefill_tokens {
            0 => (0.0, self.history_min),
            n => ((n as f64).max(self.chunk_min), self.history.of(shape)),
        };
        let at = |context: f64| {
            let ideal = |point| self.history.ideal_s(&self.device, point);
            self.grid.extended([chunk, history, decodes, context], ideal)
        };
        let mean_s = at(shape.decode_kv_tokens as f64 / decodes.max(1.0));
        if self.skew == 0.0 || shape.decodes == 0 {
            return mean_s;
        }
        mean_s + self.skew * (at(shape.decode_kv_max as f64) - mean_s)
    }
}

/// Reads `attention.csv`. Adds a note for rows that are not used, and for points that were interpolated.
pub(super) fn read(
    path: &Path,
    device: Device,
    skew: f64,
    points: Points,
    notes: &mut Vec<String>,
) -> Result<FusedAttention, TableError> {
    let path = &rows::find(path);
    let fail = |fault| TableError { path: path.into(), line: 0, fault };
    let (history, mut measured) = measured(path, notes)?;
    thin(&mut measured, points);
    let axis = |d: usize| {
        let values: BTreeSet<u64> = measured.keys().map(|point| point[d]).collect();
        values.into_iter().map(f64::from_bits).collect::<Vec<_>>()
    };
    let mut axes = [axis(0), axis(1), axis(2), axis(3)];
    // A context of 0 goes with no decodes, and a key of 0 with no prefill, where they make no difference.
    axes[3].retain(|context| *context > 0.0);
    if history == History::Key {
        axes[1].retain(|key| *key > 0.0);
    }
    if axes.iter().any(Vec::is_empty) || axes[0][0] != 0.0 || axes[2][0] != 0.0 {
        return Err(fail(TableFault::Empty("chunks alone and decodes alone".into())));
    }
    let chunk_min = axes[0].get(1).copied().unwrap_or(0.0);
    let history_min = axes[1][0];
    let (known, interpolated) = fill(measured, &axes, |point| history.ideal_s(&device, point));
    let possible = |point: &Point| {
        let [chunk, key, ..] = point.map(f64::from_bits);
        history == History::Computed || key >= chunk / 2.0
    };
    let n = interpolated.iter().filter(|point| possible(point)).count();
    if n > 0 {
        notes.push(format!("{n} points of attention interpolated"));
    }
    let grid = Grid::new(axes, |point| match relevant(point) {
        None => Some(0.0),
        Some(point) => known.get(&point).copied(),
    });
    let grid = grid.map_err(|[chunk, before, decodes, context]| {
        let column = if history == History::Key { "prefill_key" } else { "kv_prefill" };
        fail(TableFault::Hole(format!(
            "prefill_chunk {chunk}, {column} {before}, n_decode {decodes}, kv_decode {context}"
        )))
    })?;
    Ok(FusedAttention { grid, device, skew, history, chunk_min, history_min })
}

/// Removes the points at coordinates that are not used.
fn thin(measured: &mut Known, points: Points) {
    if points == Points::All {
        return;
    }
    for d in 0..4 {
        let axis: BTreeSet<u64> = measured.keys().map(|point| point[d]).collect();
        let mut axis: Vec<u64> = axis.into_iter().collect();
        points.thin(&mut axis);
        measured.retain(|point, _| axis.binary_search(&point[d]).is_ok());
    }
}

/// Reads the rows in either form: of one prefill with its computed tokens, or of prefills with their effective key.
fn measured(path: &Path, notes: &mut Vec<String>) -> Result<(History, Known), TableError> {
    let mut known = Known::new();
    let columns = ["prefill_chunk", "prefill_key", "n_decode", "kv_decode", "time_us", "layer", "decode_q_len"];
    let mut others = BTreeSet::new();
    let keyed = rows::read(path, columns, |row| {
        let (layer, queries) = (row.text(5)?, row.count(6)?);
        if layer != "attention" {
            others.insert(format!("layer {layer}"));
        } else if queries != 1 {
            others.insert(format!("decode_q_len {queries}"));
        } else {
            let point = [row.count(0)? as f64, row.number(1)?, row.count(2)? as f64, row.count(3)? as f64];
            known.insert(point.map(f64::to_bits), row.number(4)? / 1e6);
        }
        Ok(())
    });
    match keyed {
        Ok(()) => {
            if !others.is_empty() {
                let others: Vec<String> = others.into_iter().collect();
                notes.push(format!("rows of attention not used: {}", others.join(", ")));
            }
            return Ok((History::Key, known));
        }
        Err(error) if error.fault.is_missing_column() => known.clear(),
        Err(error) => return Err(error),
    }
    let columns = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"];
    rows::read(path, columns, |row| {
        let point = [row.count(0)?, row.count(1)?, row.count(2)?, row.count(3)?];
        known.insert(point.map(|n| (n as f64).to_bits()), row.number(4)? / 1e6);
        Ok(())
    })?;
    Ok((History::Computed, known))
}

/// Returns the point with its irrelevant coordinates set to 0, or `None` without work.
fn relevant([chunk, history, decodes, context]: [f64; 4]) -> Option<Point> {
    let history = if chunk == 0.0 { 0.0 } else { history };
    let context = if decodes == 0.0 { 0.0 } else { context };
    (chunk > 0.0 || decodes > 0.0).then_some([chunk, history, decodes, context].map(f64::to_bits))
}

/// Fills the holes of the grid over `axes`, and returns all times, and the points whose times were interpolated. A hole that has
/// no measured point along any axis stays.
fn fill(mut known: Known, axes: &[Vec<f64>; 4], ideal_s: impl Fn([f64; 4]) -> f64) -> (Known, Vec<Point>) {
    let mut holes: Vec<Point> = points(axes).filter(|point| !known.contains_key(point)).collect();
    let mut interpolated = Vec::new();
    while !holes.is_empty() {
        let mut found: Vec<(Point, f64)> =
            holes.iter().filter_map(|hole| Some((*hole, between(&known, axes, *hole)?))).collect();
        interpolated.extend(found.iter().map(|(point, _)| *point));
        if found.is_empty() {
            found = holes.iter().filter_map(|hole| Some((*hole, scaled(&known, axes, *hole, &ideal_s)?))).collect();
        }
        if found.is_empty() {
            break;
        }
        known.extend(found);
        holes.retain(|hole| !known.contains_key(hole));
    }
    (known, interpolated)
}

/// Returns the points of the grid over `axes` that have work to do, each once, in ascending order.
fn points(axes: &[Vec<f64>; 4]) -> impl Iterator<Item = Point> {
    let mut all = BTreeSet::new();
    for chunk in &axes[0] {
        for history in &axes[1] {
            for decodes in &axes[2] {
                all.extend(axes[3].iter().filter_map(|context| relevant([*chunk, *history, *decodes, *context])));
            }
        }
    }
    all.into_iter()
}

/// Returns the nearest known points before and behind `hole` along axis `d`, each with its coordinate and time. Calls without
/// prefills, or without decodes, run other kernels: they are no neighbors of calls with both.
fn neighbors(known: &Known, axes: &[Vec<f64>; 4], hole: Point, d: usize) -> [Option<(f64, f64)>; 2] {
    let x = f64::from_bits(hole[d]);
    let at = |y: &f64| {
        let mut point = hole;
        point[d] = y.to_bits();
        known.get(&point).map(|time_s| (*y, *time_s))
    };
    let kin = |y: &&f64| (d != 0 && d != 2) || **y > 0.0;
    let split = axes[d].partition_point(|y| *y < x);
    let (before, behind) = axes[d].split_at(split);
    let none = (d == 0 || d == 2) && x == 0.0;
    match none || (d == 1 && hole[0] == 0) || (d == 3 && hole[2] == 0) {
        true => [None, None],
        false => [before.iter().rev().filter(kin).find_map(at), behind.iter().filter(|y| **y > x).find_map(at)],
    }
}

/// Returns the distance of two coordinates as the larger through the smaller; the axes are spaced geometrically.
fn distance(a: f64, b: f64) -> f64 {
    (a.max(b) + 1.0) / (a.min(b) + 1.0)
}

/// Interpolates a hole along the axis with the nearest known points on both sides.
fn between(known: &Known, axes: &[Vec<f64>; 4], hole: Point) -> Option<f64> {
    let mut best: Option<(f64, f64)> = None;
    for (d, coordinate) in hole.iter().enumerate() {
        let [Some((low, low_s)), Some((high, high_s))] = neighbors(known, axes, hole, d) else { continue };
        let gap = distance(low, high);
        if best.is_none_or(|(least, _)| gap < least) {
            let share = (f64::from_bits(*coordinate) - low) / (high - low);
            best = Some((gap, low_s + share * (high_s - low_s)));
        }
    }
    best.map(|(_, time_s)| time_s)
}

/// Scales the time of the nearest known point along an axis by the lower bound of both.
fn scaled(known: &Known, axes: &[Vec<f64>; 4], hole: Point, ideal_s: impl Fn([f64; 4]) -> f64) -> Option<f64> {
    let mut best: Option<(f64, f64)> = None;
    for d in 0..4 {
        for (x, time_s) in neighbors(known, axes, hole, d).into_iter().flatten() {
            let gap = distance(x, f64::from_bits(hole[d]));
            if best.is_none_or(|(least, _)| gap < least) {
                let mut from = hole.map(f64::from_bits);
                from[d] = x;
                best = Some((gap, time_s * ideal_s(hole.map(f64::from_bits)) / ideal_s(from)));
            }
        }
    }
    best.map(|(_, time_s)| time_s)
}
