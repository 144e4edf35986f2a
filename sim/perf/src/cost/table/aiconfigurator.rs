//! aiconfigurator's tables of kernels: a folder with these files, Parquet as published, or CSV with equal columns.
//!
//! | file | columns used | kernel |
//! |---|---|---|
//! | `gemm_perf.parquet` | `gemm_dtype,m,n,k,latency` | product of an `m x k` and a `k x n` matrix |
//! | `context_attention_perf.parquet` | `batch_size,isl,num_heads,num_key_value_heads,head_dim,kv_cache_dtype,latency` | attention of prefills |
//! | `generation_attention_perf.parquet` | the same and `step` | attention of decodes after `step` tokens |
//! | `custom_allreduce_perf.parquet` | `num_gpus,message_size,latency,backend` | all-reduce; only with several devices |
//! | `moe_perf.parquet` | see `aiconfigurator/experts.rs` | experts; only for a model that has some |
//! | `nccl_perf.parquet` | `op_name,nccl_dtype,num_gpus,message_size,latency` | all-gather and reduce-scatter; only with data-parallel attention |
//!
//! Latencies are in milliseconds. A matrix of an unmeasured shape is assumed as efficient as the measured one nearest in shape, at
//! the same number of rows. Prefills after computed tokens are missing from the tables; their time is that of a prefill from the
//! start with as many (query, key) pairs. Operations other than matrix products and attention (norms, activation, rotation) count
//! as the bytes they move. Routers and shared experts are products. Latent attention is not covered.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{
    Attention, Device, Grid, LowerBound, Parallel, Points, Series, Stages, StepErrors, StepShape, Table, TableError,
    TableFault, TimeRange, check_measured, describe, head_work, linear_work, rows, token_counts,
};
use crate::hardware::Hardware;
use crate::model::Model;

mod experts;

/// Maximum number of rows of the matrices for lookups.
const TOKENS_MAX: u64 = 8192;
/// Measured row counts required of a matrix.
const ROWS_MIN: usize = 8;
const BF16_BYTES: f64 = 2.0;

/// Attention of prefills and of decodes, measured separately and added up.
#[derive(Clone, Debug)]
pub(super) struct SeparateAttention {
    /// Prefill times by tokens of a chunk.
    prefill: Grid<1>,
    /// Decode times by decodes and context.
    decode: Grid<2>,
    device: Device,
}

impl SeparateAttention {
    /// Returns the largest number of decodes in the table, and their longest context.
    pub fn decodes_max(&self) -> [f64; 2] {
        [0, 1].map(|d| self.decode.last(d))
    }

    pub fn layer_s(&self, shape: &StepShape) -> f64 {
        let mut sum = 0.0;
        if shape.prefills > 0 {
            // The chunk at the beginning of a sequence that has as many pairs as these.
            let chunk = (2.0 * shape.prefill_pairs as f64).sqrt();
            let alone = |[chunk]: [f64; 1]| self.device.attention_s([chunk, 0.0, 0.0, 0.0]);
            sum += self.prefill.extended([chunk], alone);
        }
        if shape.decodes > 0 {
            let context = shape.decode_kv_tokens as f64 / shape.decodes as f64;
            let ideal = |[n, context]: [f64; 2]| self.device.attention_s([0.0, 0.0, n, context]);
            sum += self.decode.extended([shape.decodes as f64, context], ideal);
        }
        sum
    }
}

impl Table {
    /// Builds the table in folder `path` for `model` on as many devices of kind `hardware` as `parallel` says, on which it was measured.
    ///
    /// # Errors
    ///
    /// [`TableError`] if a file cannot be read, or lacks the shapes of the model.
    pub fn from_aiconfigurator(
        path: &Path,
        hardware: &Hardware,
        model: &Model,
        parallel: Parallel,
    ) -> Result<Self, TableError> {
        Self::read_aiconfigurator(path, hardware, model, parallel, Points::All)
    }

    /// Builds the table from some of its points.
    pub(in super::super) fn read_aiconfigurator(
        path: &Path,
        hardware: &Hardware,
        model: &Model,
        parallel: Parallel,
        points: Points,
    ) -> Result<Self, TableError> {
        check_measured(path, model)?;
        if model.latent.is_some() {
            let fault = TableFault::Lacks { what: "latent attention", model: model.name };
            return Err(TableError { path: path.into(), line: 0, fault });
        }
        let tensor = parallel.tensor;
        let device = Device::new(hardware, model, tensor);
        let products = Products::read(&path.join("gemm_perf.csv"), device, points)?;
        let layers = model.layers as f64;
        let mut linear = products.linear(model, tensor);
        if tensor > 1 {
            let all_reduce = all_reduce(&path.join("custom_allreduce_perf.csv"), tensor, model, points)?;
            linear
                .iter_mut()
                .for_each(|(tokens, time_s)| *time_s += 2.0 * all_reduce.at(all_reduce.clamp([*tokens as f64])));
        }
        linear.iter_mut().for_each(|(_, time_s)| *time_s *= layers);
        let (n, k) = (model.vocab.div_ceil(u64::from(tensor)), model.hidden);
        let head: Vec<_> = token_counts(TOKENS_MAX).map(|m| (m, products.time_s(m, n, k))).collect();
        let mut notes = Vec::new();
        let experts = experts::read(path, model, parallel, device, points, &mut notes)?;
        let attention = apart(path, model, tensor, device, points, &mut notes)?;
        Ok(Self {
            name: describe("aiconfigurator", hardware, model, parallel, &notes),
            limit: Some(LowerBound::new(hardware, model, parallel)),
            layers,
            linear: Series::new(&linear, linear_work(model, tensor), &device),
            head: Some(Series::new(&head, head_work(model, tensor), &device)),
            attention: Attention::Separate(attention),
            tokens_step: 1,
            experts,
            stages: Stages::over_peer_link(hardware, model, parallel),
            errors: StepErrors::default(),
            range: TimeRange::of_table(model),
        })
    }
}

/// Measured matrix products: times by rows, for each pair of columns and depth, seconds.
struct Products {
    shapes: Vec<((u64, u64), Grid<1>)>,
    device: Device,
}

impl Products {
    fn read(path: &Path, device: Device, points: Points) -> Result<Self, TableError> {
        let path = &rows::find(path);
        let mut shapes: BTreeMap<(u64, u64), BTreeMap<u64, f64>> = BTreeMap::new();
        rows::read(path, ["gemm_dtype", "m", "n", "k", "latency"], |row| {
            if row.text(0)? == "bfloat16" {
                let rows = shapes.entry((row.count(2)?, row.count(3)?)).or_default();
                rows.insert(row.count(1)?, row.number(4)? / 1e3);
            }
            Ok(())
        })?;
        let grid = |rows: BTreeMap<u64, f64>| {
            let mut rows: Vec<(u64, f64)> = rows.into_iter().collect();
            points.thin(&mut rows);
            curve(rows.into_iter().map(|(m, time_s)| (m as f64, time_s)).collect())
        };
        let shapes: Vec<_> = shapes
            .into_iter()
            .filter(|(_, rows)| rows.len() >= ROWS_MIN)
            .map(|(shape, rows)| (shape, grid(rows)))
            .collect();
        match shapes.is_empty() {
            true => Err(TableError { path: path.into(), line: 0, fault: TableFault::Empty("bfloat16".into()) }),
            false => Ok(Self { shapes, device }),
        }
    }

    fn ideal_s(&self, m: f64, n: u64, k: u64) -> f64 {
        let (n, k) = (n as f64, k as f64);
        (2.0 * m * n * k / self.device.flops_s).max(BF16_BYTES * (n * k + m * (n + k)) / self.device.bytes_s)
    }

    /// Returns the time of a product of `m` rows, `n` columns and depth `k`, seconds.
    fn time_s(&self, m: u64, n: u64, k: u64) -> f64 {
        let distance = |(a, b): (u64, u64)| {
            let part = |measured: u64, asked: u64| (measured as f64 / asked as f64).ln().abs();
            part(a, n) + part(b, k)
        };
        let nearest = self.shapes.iter().min_by(|a, b| distance(a.0).total_cmp(&distance(b.0)));
        let ((near_n, near_k), grid) = nearest.expect("at least one shape was read");
        let time_s = grid.extended([m as f64], |[m]| self.ideal_s(m, *near_n, *near_k));
        time_s * self.ideal_s(m as f64, n, k) / self.ideal_s(m as f64, *near_n, *near_k)
    }

    /// Returns the time of all operations of a layer that depend on tokens, seconds by tokens: all but the experts, averaged over all
    /// layers.
    fn linear(&self, model: &Model, tensor: u32) -> Vec<(u64, f64)> {
        let share = |n: u64| n.div_ceil(u64::from(tensor));
        let (hidden, query) = (model.hidden, share(model.heads * model.head_dim));
        let key_value = share(2 * model.kv_heads * model.head_dim);
        let mut matrices = vec![(query + key_value, hidden, 1.0), (hidden, query, 1.0)];
        // Two norms that read and write two streams, queries and keys in place, the gate.
        let mut moved = (8 * hidden + 2 * (query + key_value)) as f64;
        let mut gated = |inner: u64, of_layers: f64| {
            let into = model.feed_forward_matrices() - 1;
            matrices.extend([(into * inner, hidden, of_layers), (hidden, inner, of_layers)]);
            moved += ((into + 1) * inner) as f64 * of_layers;
        };
        match model.experts {
            None => gated(share(model.intermediate), 1.0),
            Some(moe) => {
                let sparse = model.expert_layers() as f64 / model.layers as f64;
                gated(share(model.intermediate), 1.0 - sparse);
                if moe.shared_width > 0 {
                    gated(share(moe.shared_width), sparse);
                }
                matrices.push((moe.count, hidden, sparse));
            }
        }
        let used: Vec<_> = matrices.into_iter().filter(|(_, _, of_layers)| *of_layers > 0.0).collect();
        let of = |m: u64| {
            let products: f64 = used.iter().map(|(n, k, of_layers)| of_layers * self.time_s(m, *n, *k)).sum();
            products + m as f64 * (BF16_BYTES * moved) / self.device.bytes_s
        };
        token_counts(TOKENS_MAX).map(|m| (m, of(m))).collect()
    }
}

/// Returns the time of a step's all-reduces of the residual stream, seconds by tokens.
fn all_reduce(path: &Path, tensor: u32, model: &Model, points: Points) -> Result<Grid<1>, TableError> {
    let path = &rows::find(path);
    let mut sizes = BTreeMap::new();
    rows::read(path, ["num_gpus", "message_size", "latency", "backend"], |row| {
        if row.count(0)? == u64::from(tensor) && row.text(3)? == "vllm_graph" {
            sizes.insert(row.count(1)?, row.number(2)? / 1e3);
        }
        Ok(())
    })?;
    if sizes.is_empty() {
        let fault = TableFault::Empty(format!("{tensor} devices"));
        return Err(TableError { path: path.into(), line: 0, fault });
    }
    // Sizes count elements: large ones take as long as those of `nccl_perf`, which runs them.
    let token_elements = model.hidden as f64;
    let mut sizes: Vec<(f64, f64)> =
        sizes.into_iter().map(|(elements, time_s)| (elements as f64 / token_elements, time_s)).collect();
    points.thin(&mut sizes);
    Ok(curve(sizes))
}

/// Returns the grid of a time for each of ascending counts.
fn curve(points: Vec<(f64, f64)>) -> Grid<1> {
    let (axis, times): (Vec<f64>, Vec<f64>) = points.into_iter().unzip();
    let mut times = times.into_iter();
    Grid::new([axis], |_| times.next()).expect("a time for each point")
}

const ATTENTION: [&str; 8] =
    ["batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "kv_cache_dtype", "step", "latency"];

/// Reads the attention of prefills and of decodes. Adds a note for points that were interpolated.
fn apart(
    path: &Path,
    model: &Model,
    tensor: u32,
    device: Device,
    points: Points,
    notes: &mut Vec<String>,
) -> Result<SeparateAttention, TableError> {
    let share = |n: u64| (n / u64::from(tensor)).max(1);
    let (heads, kv_heads) = (share(model.heads), share(model.kv_heads));
    let read = |name: &str, column: usize, offset: u64| {
        let path = rows::find(&path.join(name));
        let mut times: BTreeMap<(u64, u64), f64> = BTreeMap::new();
        rows::read(&path, ATTENTION, |row| {
            let matches = row.count(2)? == heads && row.count(3)? == kv_heads && row.count(4)? == model.head_dim;
            if matches && row.text(5)? == "bfloat16" {
                let time_s = row.number(7)? / 1e3;
                // Sliding windows are in the same file and are faster.
                let slowest = times.entry((row.count(0)?, row.count(column)? + offset)).or_insert(time_s);
                *slowest = slowest.max(time_s);
            }
            Ok(())
        })?;
        if times.keys().any(|(batch, _)| *batch == 1) {
            return Ok(times);
        }
        let what = format!("batch_size 1, {heads} query and {kv_heads} key heads of {}", model.head_dim);
        Err(TableError { path, line: 0, fault: TableFault::Empty(what) })
    };
    let prefills = read("context_attention_perf.csv", 1, 0)?;
    let prefills = prefills.into_iter().filter(|((batch, _), _)| *batch == 1);
    let mut prefills: Vec<_> = prefills.map(|((_, chunk), time_s)| (chunk as f64, time_s)).collect();
    points.thin(&mut prefills);
    let prefill = curve(prefills);

    let path = path.join("generation_attention_perf.csv");
    let decode = decodes(&rows::find(&path), &read("generation_attention_perf.csv", 6, 1)?, device, points, notes)?;
    Ok(SeparateAttention { prefill, decode, device })
}

/// Returns the grid of decodes from the times in file `path` by batch and context. Adds a note for points that were interpolated.
fn decodes(
    path: &Path,
    times: &BTreeMap<(u64, u64), f64>,
    device: Device,
    points: Points,
    notes: &mut Vec<String>,
) -> Result<Grid<2>, TableError> {
    let batches: BTreeSet<u64> = times.keys().map(|(batch, _)| *batch).collect();
    let contexts: BTreeSet<u64> = times.keys().map(|(_, context)| *context).collect();
    let axis = |values: &BTreeSet<u64>| {
        let mut values: Vec<f64> = values.iter().map(|n| *n as f64).collect();
        points.thin(&mut values);
        values
    };
    let ideal_s = |n: u64, context: u64| device.attention_s([0.0, 0.0, n as f64, context as f64]);
    let row = |[n, context]: [f64; 2]| {
        let (n, context) = (n as u64, context as u64);
        let of = |m: &u64| Some((*m, *times.get(&(*m, context))?));
        // Batches whose KV does not fit were not measured; they go on from the largest that was. Other batches without a row have
        // measured ones on both sides.
        let (m, time_s) = batches.range(..=n).rev().find_map(of)?;
        let is_between = m < n && batches.range(n..).any(|m| of(m).is_some());
        (!is_between).then(|| time_s * ideal_s(n, context) / ideal_s(m, context))
    };
    let ideal = |[n, context]: [f64; 2]| ideal_s(n as u64, context as u64);
    let (grid, n) = Grid::filled([axis(&batches), axis(&contexts)], row, ideal).map_err(|[n, context]| TableError {
        path: path.into(),
        line: 0,
        fault: TableFault::Hole(format!("batch_size {n}, step {}", context - 1.0)),
    })?;
    if n > 0 {
        notes.push(format!("{n} points of decode attention interpolated"));
    }
    Ok(grid)
}
