//! LLMServingSim's profiles: a folder with
//!
//! | file | columns | operation |
//! |---|---|---|
//! | `dense.csv` | `layer,tokens,time_us` | operation with a time by tokens of a step |
//! | `per_sequence.csv` | `layer,sequences,time_us` | operation with a time by sampled positions |
//! | `attention.csv` | `prefill_chunk,kv_prefill,n_decode,kv_decode,time_us` | attention call for a chunk and some decodes |
//! | `skew_fit.csv` | `pc,n_label,...,alpha,n_samples` | extra time for decodes of unequal contexts |

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use super::{
    Attention, Device, Grid, LowerBound, Parallel, Series, StepShape, Table, TableError, TableFault, describe,
    head_work, linear_work, rows,
};
use crate::hardware::Hardware;
use crate::model::Model;

/// Extra time for decodes of unequal contexts: a share `a` of the difference to a call with all contexts as long as the longest,
/// `A(mean) + a * (A(longest) - A(mean))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Skew {
    /// Fixed share; 0 for no extra time.
    Share(f64),
    /// Mean of the shares in `skew_fit.csv`, weighted by samples.
    Fitted,
}

/// Frequency of an operation: per layer or per step.
enum Times {
    Layer(f64),
    Step,
}

/// Returns the frequency of an operation not timed in another file.
fn times_of(operation: &str) -> Option<Times> {
    match operation {
        "layernorm" => Some(Times::Layer(2.0)),
        "qkv_proj" | "rotary_emb" | "o_proj" | "gate_up_proj" | "act_fn" | "down_proj" => Some(Times::Layer(1.0)),
        "embedding" | "final_layernorm" => Some(Times::Step),
        _ => None,
    }
}

/// Attention of prefills and decodes in one call, by chunk, tokens computed before, decodes, and context of each decode.
#[derive(Clone, Debug)]
pub(super) struct FusedAttention {
    grid: Grid<4>,
    device: Device,
    skew: f64,
    /// Smallest chunk measured: a smaller one fills no more of the device.
    chunk_min: f64,
}

impl FusedAttention {
    pub fn layer_s(&self, shape: &StepShape) -> f64 {
        if shape.tokens == 0 {
            return 0.0;
        }
        let decodes = shape.decodes as f64;
        let (chunk, computed) = match shape.prefill_tokens {
            0 => (0.0, 0.0),
            n => ((n as f64).max(self.chunk_min), shape.prefill_computed() as f64),
        };
        let at = |context: f64| {
            self.grid.extended([chunk, computed, decodes, context], |point| self.device.attention_s(point))
        };
        let mean_s = at(shape.decode_kv_tokens as f64 / decodes.max(1.0));
        if self.skew == 0.0 || shape.decodes == 0 {
            return mean_s;
        }
        mean_s + self.skew * (at(shape.decode_kv_max as f64) - mean_s)
    }
}

impl Table {
    /// Builds the table in folder `path`, measured for `model` on one `hardware`.
    ///
    /// # Errors
    ///
    /// [`TableError`] if a file cannot be read, or has no usable rows.
    pub fn from_llmservingsim(path: &Path, hardware: &Hardware, model: &Model, skew: Skew) -> Result<Self, TableError> {
        let device = Device::new(hardware, model, 1);
        let layers = model.layers as f64;
        let linear = sum(&path.join("dense.csv"), ["layer", "tokens", "time_us"], |operation| {
            times_of(operation).map(|times| match times {
                Times::Layer(n) => n * layers,
                Times::Step => 1.0,
            })
        })?;
        let head = sum(&path.join("per_sequence.csv"), ["layer", "sequences", "time_us"], |_| Some(1.0))?;
        let skew = match skew {
            Skew::Share(share) => share,
            Skew::Fitted => fitted_skew(&path.join("skew_fit.csv"))?,
        };
        Ok(Self {
            name: describe("LLMServingSim", hardware, model, Parallel::ONE),
            limit: Some(LowerBound::new(hardware, model, Parallel::ONE)),
            layers,
            linear: Series::new(&linear, linear_work(model, 1), &device),
            head: Some(Series::new(&head, head_work(model, 1), &device)),
            attention: Attention::Fused(mixed(&path.join("attention.csv"), device, skew)?),
            tokens_step: 1,
            step_overhead_s: 0.0,
            sequence_overhead_s: 0.0,
        })
    }
}

/// Sums the times of all operations in a file, each multiplied by `times`, seconds by count.
fn sum(
    path: &Path,
    columns: [&'static str; 3],
    times: impl Fn(&str) -> Option<f64>,
) -> Result<Vec<(u64, f64)>, TableError> {
    let mut operations: BTreeMap<String, BTreeMap<u64, f64>> = BTreeMap::new();
    rows::read(path, columns, |row| {
        let operation = row.text(0)?;
        if let Some(times) = times(operation) {
            let points = operations.entry(operation.to_owned()).or_default();
            points.insert(row.count(1)?, times * row.number(2)? / 1e6);
        }
        Ok(())
    })?;
    let fail = |fault| TableError { path: path.into(), line: 0, fault };
    let mut operations = operations.into_iter();
    let Some((first, mut total)) = operations.next() else {
        return Err(fail(TableFault::Empty("any operation".into())));
    };
    for (operation, points) in operations {
        if !points.keys().eq(total.keys()) {
            return Err(fail(TableFault::Hole(format!("some count of {operation} or of {first}"))));
        }
        for (sum, time_s) in total.values_mut().zip(points.values()) {
            *sum += time_s;
        }
    }
    Ok(total.into_iter().collect())
}

fn mixed(path: &Path, device: Device, skew: f64) -> Result<FusedAttention, TableError> {
    let mut measured: HashMap<[u64; 4], f64> = HashMap::new();
    let columns = ["prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"];
    rows::read(path, columns, |row| {
        let point = [row.count(0)?, row.count(1)?, row.count(2)?, row.count(3)?];
        measured.insert(point, row.number(4)? / 1e6);
        Ok(())
    })?;
    let axis = |d: usize| {
        let values: BTreeSet<u64> = measured.keys().map(|point| point[d]).collect();
        values.into_iter().map(|n| n as f64).collect::<Vec<_>>()
    };
    let mut axes = [axis(0), axis(1), axis(2), axis(3)];
    let fail = |fault| TableError { path: path.into(), line: 0, fault };
    // A context of 0 goes with no decodes, where it makes no difference.
    axes[3].retain(|context| *context > 0.0);
    if axes.iter().any(|axis| axis.is_empty()) || axes[0][0] != 0.0 || axes[2][0] != 0.0 {
        return Err(fail(TableFault::Empty("chunks alone and decodes alone".into())));
    }
    let decodes: Vec<u64> = axes[2].iter().map(|n| *n as u64).collect();
    let chunk_min = axes[0].get(1).copied().unwrap_or(0.0);
    let grid = Grid::new(axes, |point| lookup(&measured, point.map(|x| x as u64), &decodes, &device));
    let grid = grid.map_err(|[chunk, computed, decodes, context]| {
        fail(TableFault::Hole(format!(
            "prefill_chunk {chunk}, kv_prefill {computed}, n_decode {decodes}, kv_decode {context}"
        )))
    })?;
    Ok(FusedAttention { grid, device, skew, chunk_min })
}

/// Returns the time at a point of the grid. Irrelevant coordinates become 0, and decodes beyond the measured number for a chunk are
/// extrapolated.
fn lookup(measured: &HashMap<[u64; 4], f64>, point: [u64; 4], decodes: &[u64], device: &Device) -> Option<f64> {
    let [chunk, computed, n, context] = point;
    let computed = if chunk == 0 { 0 } else { computed };
    if chunk == 0 && n == 0 {
        return Some(0.0);
    }
    let at = |n: u64| measured.get(&[chunk, computed, n, if n == 0 { 0 } else { context }]).copied();
    if let Some(time_s) = at(n) {
        return Some(time_s);
    }
    // A hole between points that were measured is a fault of the file.
    let (most, time_s) = decodes.iter().rev().filter(|m| **m > 0).find_map(|m| at(*m).map(|time_s| (*m, time_s)))?;
    if most > n {
        return None;
    }
    let ideal_s = |n: u64| device.attention_s([chunk, computed, n, context].map(|x| x as f64));
    Some(time_s * ideal_s(n) / ideal_s(most))
}

fn fitted_skew(path: &Path) -> Result<f64, TableError> {
    let (mut sum, mut samples) = (0.0, 0.0);
    rows::read(path, ["alpha", "n_samples"], |row| {
        // Some shares are below 0: noise, which the mean is there to cancel.
        let text = row.text(0)?;
        let share = text.parse::<f64>().ok().filter(|share| share.is_finite());
        let share = share.ok_or_else(|| TableFault::BadNumber { column: "alpha", value: text.into() })?;
        let n = row.number(1)?;
        (sum, samples) = (sum + share * n, samples + n);
        Ok(())
    })?;
    Ok(if samples > 0.0 { (sum / samples).max(0.0) } else { 0.0 })
}
