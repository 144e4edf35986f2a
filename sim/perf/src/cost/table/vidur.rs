//! Tables of Vidur's predictor: a folder with
//!
//! | file | columns | operation |
//! |---|---|---|
//! | `linear_ops_ms.csv` | `num_tokens`, then one column per operation | each operation of a layer; `all_reduce` and `send_recv` too |
//! | `attn_prefill.csv` | `kv_cache_size,prefill_chunk_size,ms_per_layer` | prefill attention |
//! | `attn_decode.csv` | `batch_size,kv_cache_size,ms_per_layer` | decode attention |
//!
//! Vidur composes them as follows, and so does this module, to allow comparison with Vidur's results:
//!
//! ```text
//! stage   = layers of the stage * layer + send_recv(n8) unless it is the last
//! layer   = sum of operations(n8) + prefill + decode + 2 * (all_reduce(n8) + 0.02 ms) if a stage has more than one device
//! prefill = table(sum of k64, root of the sum of c * c), a tenth more if there are several
//! decode  = table(B, k64 of the mean), a tenth more if there are several
//! ```
//!
//! `n8` is rounded up to a multiple of 8, `k64` to one of 64, and the tenth applies to models with fewer key than query heads.
//! Embedding, output matrix and sampling are left out. A table without `send_recv` sends over the peer link. The points are predictions of Vidur's model at equal distances, not
//! measurements, so leaving some out says nothing about the error.

use std::path::Path;

use super::{
    Attention, Device, Grid, Parallel, Series, Stages, StepErrors, StepShape, Table, TableError, TableFault, Work,
    check_measured, describe, linear_work, rows,
};
use crate::cost::roofline::RESIDUAL_BYTES;
use crate::hardware::Hardware;
use crate::model::Model;

/// Granularity of contexts, tokens; contexts are rounded up.
const CONTEXT_STEP: u64 = 64;
/// Granularity of steps, tokens; steps are rounded up.
const TOKENS_STEP: u64 = 8;
/// Extra time for several sequences in a call of grouped-query attention, as a factor.
const BATCHING: f64 = 1.1;
/// Launch of an all-reduce, seconds.
const ALL_REDUCE_LAUNCH_S: f64 = 0.02e-3;

const OPERATIONS: [&str; 11] = [
    "num_tokens",
    "add",
    "attn_kv_cache_save",
    "attn_post_proj",
    "attn_pre_proj",
    "attn_rope",
    "input_layernorm",
    "mlp_act",
    "mlp_down_proj",
    "mlp_up_proj",
    "post_attention_layernorm",
];

/// Attention of prefills and of decodes, looked up at rounded points.
#[derive(Clone, Debug)]
pub(super) struct BinnedAttention {
    prefill: Grid<2>,
    decode: Grid<2>,
    device: Device,
    batching: f64,
}

impl BinnedAttention {
    /// Returns the largest number of decodes in the table.
    pub fn decodes_max(&self) -> f64 {
        self.decode.last(0)
    }

    pub fn layer_s(&self, shape: &StepShape) -> f64 {
        let more = |n: u64| if n > 1 { self.batching } else { 1.0 };
        let mut sum = 0.0;
        if shape.prefills > 0 {
            let computed = shape.prefill_computed().next_multiple_of(CONTEXT_STEP) as f64;
            let chunk = (shape.prefill_squares as f64).sqrt().round();
            let ideal = |[computed, chunk]: [f64; 2]| self.device.attention_s([chunk, computed, 0.0, 0.0]);
            sum += more(shape.prefills) * self.prefill.extended([computed, chunk], ideal);
        }
        if let Some(mean) = shape.decode_kv_tokens.checked_div(shape.decodes) {
            let context = mean.next_multiple_of(CONTEXT_STEP) as f64;
            let ideal = |[n, context]: [f64; 2]| self.device.attention_s([0.0, 0.0, n, context]);
            sum += more(shape.decodes) * self.decode.extended([shape.decodes as f64, context], ideal);
        }
        sum
    }
}

impl Table {
    /// Builds the table in folder `path`, measured for `model` on devices of kind `hardware`, as many as the `parallel.tensor` of a stage.
    ///
    /// # Errors
    ///
    /// [`TableError`] if a file cannot be read, or has no usable rows.
    pub fn from_vidur(path: &Path, hardware: &Hardware, model: &Model, parallel: Parallel) -> Result<Self, TableError> {
        check_measured(path, model)?;
        let tensor = parallel.tensor;
        let device = Device::new(hardware, model, tensor);
        let layers = model.layers as f64;
        let operations = path.join("linear_ops_ms.csv");
        let linear = linear(&operations, layers, tensor)?;
        let stages = match sending(&operations, model, &device) {
            Ok(sending) => Stages::measured(model, parallel, sending),
            Err(error) if error.fault.is_missing_column() => Stages::over_peer_link(hardware, model, parallel),
            Err(error) => return Err(error),
        };
        let mut notes = Vec::new();
        let prefill = pairs(
            &path.join("attn_prefill.csv"),
            ["kv_cache_size", "prefill_chunk_size", "ms_per_layer"],
            |[computed, chunk]| device.attention_s([chunk, computed, 0.0, 0.0]),
            &mut notes,
        )?;
        let decode = pairs(
            &path.join("attn_decode.csv"),
            ["batch_size", "kv_cache_size", "ms_per_layer"],
            |[n, context]| device.attention_s([0.0, 0.0, n, context]),
            &mut notes,
        )?;
        Ok(Self {
            name: describe("Vidur", hardware, model, parallel, &notes),
            limit: Some(super::LowerBound::new(hardware, model, parallel)),
            layers,
            linear: Series::new(&linear, linear_work(model, tensor), &device),
            head: None,
            attention: Attention::Binned(BinnedAttention {
                prefill,
                decode,
                device,
                batching: if model.kv_heads < model.heads { BATCHING } else { 1.0 },
            }),
            tokens_step: TOKENS_STEP,
            experts: None,
            stages,
            errors: StepErrors::default(),
        })
    }
}

/// Returns the time of all operations of all layers, seconds by tokens.
fn linear(path: &Path, layers: f64, tensor: u32) -> Result<Vec<(u64, f64)>, TableError> {
    let path = &rows::find(path);
    let mut points = Vec::new();
    rows::read(path, OPERATIONS, |row| {
        let operations = (1..OPERATIONS.len()).map(|i| row.number(i)).sum::<Result<f64, _>>()?;
        points.push((row.count(0)?, layers * operations / 1e3));
        Ok(())
    })?;
    if tensor > 1 {
        let mut all = points.iter_mut();
        rows::read(path, ["all_reduce"], |row| {
            if let Some((_, time_s)) = all.next() {
                *time_s += layers * 2.0 * (row.number(0)? / 1e3 + ALL_REDUCE_LAUNCH_S);
            }
            Ok(())
        })?;
    }
    points.sort_unstable_by_key(|(tokens, _)| *tokens);
    points.dedup_by_key(|(tokens, _)| *tokens);
    match points.is_empty() {
        true => Err(TableError { path: path.into(), line: 0, fault: TableFault::Empty("any number of tokens".into()) }),
        false => Ok(points),
    }
}

/// Returns the time of sending from one stage to the next, by tokens.
fn sending(path: &Path, model: &Model, device: &Device) -> Result<Series, TableError> {
    let mut points = Vec::new();
    rows::read(path, ["num_tokens", "send_recv"], |row| {
        points.push((row.count(0)?, row.number(1)? / 1e3));
        Ok(())
    })?;
    points.sort_unstable_by_key(|(tokens, _)| *tokens);
    points.dedup_by_key(|(tokens, _)| *tokens);
    let work = [1.0, 2.0].map(|tokens| Work { flops: 0.0, bytes: tokens * RESIDUAL_BYTES * model.hidden as f64 });
    Ok(Series::new(&points, work, device))
}

/// Reads a grid with two axes from a file with one row per point, seconds. Fills points without a row, by `ideal` where there is nothing to interpolate
/// between, and adds a note of their number.
fn pairs(
    path: &Path,
    columns: [&'static str; 3],
    ideal: impl Fn([f64; 2]) -> f64,
    notes: &mut Vec<String>,
) -> Result<Grid<2>, TableError> {
    let path = rows::find(path);
    let mut rows = Vec::new();
    rows::read(&path, columns, |row| {
        rows.push((row.count(0)?, row.count(1)?, row.number(2)? / 1e3));
        Ok(())
    })?;
    rows.sort_unstable_by_key(|(x, y, _)| (*x, *y));
    rows.dedup_by_key(|(x, y, _)| (*x, *y));
    let axis = |of: fn(&(u64, u64, f64)) -> u64| {
        let mut values: Vec<_> = rows.iter().map(of).collect();
        values.sort_unstable();
        values.dedup();
        values.into_iter().map(|n| n as f64).collect::<Vec<_>>()
    };
    let axes = [axis(|row| row.0), axis(|row| row.1)];
    let fail = |fault| TableError { path: path.clone(), line: 0, fault };
    if rows.is_empty() {
        return Err(fail(TableFault::Empty(columns[0].into())));
    }
    let mut rows = rows.into_iter().peekable();
    let row = |[x, y]: [f64; 2]| rows.next_if(|row| (row.0, row.1) == (x as u64, y as u64)).map(|row| row.2);
    let (grid, n) = Grid::filled(axes, row, ideal)
        .map_err(|[x, y]| fail(TableFault::Hole(format!("{} {x}, {} {y}", columns[0], columns[1]))))?;
    if n > 0 {
        let file = path.file_name().unwrap_or_default().to_string_lossy();
        notes.push(format!("{n} points of {file} interpolated"));
    }
    Ok(grid)
}
