//! Profile of Vidur's profiler, as published in its `data/profiling`: a folder with
//!
//! | file | rows | times, ms, `time_stats.OPERATION.median` |
//! |---|---|---|
//! | `mlp.csv` | `num_tokens`; the shape of the model in `n_head`, `n_kv_head`, `n_embd`, `n_expanded_embd`; `num_tensor_parallel_workers` | each matrix and small operation of a layer |
//! | `attention.csv` | `is_prefill`, `batch_size`, `prefill_chunk_size`, `kv_cache_size`; the shape in `n_q_head`, `n_kv_head`, `n_embd`; `num_tensor_parallel_workers` | `attn_prefill`, `attn_decode`, `attn_kv_cache_save` |
//! | `all_reduce.csv` | `num_workers`, `devices_per_node`, `size` in bytes | `all_reduce` |
//! | `send_recv.csv` | `devices_per_node`, `size` in bytes | `send_recv` |
//!
//! A file may hold rows of several models and numbers of devices; those of another shape are not used. The last two files are published for each network by
//! itself: copied next to the others they are read, else the links of the hardware file count.

use std::path::Path;

use super::{
    ALL_REDUCE_LAUNCH_S, AttentionRows, Device, Grid, Measured, Points, TableError, TableFault, Times, averaged, rows,
};
use crate::cost::roofline::RESIDUAL_BYTES;
use crate::cost::table::token_counts;

/// Operations of `mlp.csv` that every profile has.
const OPERATIONS: [&str; 6] = [
    "time_stats.attn_pre_proj.median",
    "time_stats.attn_rope.median",
    "time_stats.attn_post_proj.median",
    "time_stats.mlp_up_proj.median",
    "time_stats.mlp_act.median",
    "time_stats.mlp_down_proj.median",
];
/// Operations of `mlp.csv` that take no time where they were not measured, as in Vidur.
const SMALL_OPERATIONS: [&str; 3] =
    ["time_stats.input_layernorm.median", "time_stats.post_attention_layernorm.median", "time_stats.add.median"];
/// Columns of the shape of the model in `mlp.csv`, and of the number of devices.
const MLP_SHAPE: [&str; 5] = ["n_head", "n_kv_head", "n_embd", "n_expanded_embd", "num_tensor_parallel_workers"];
/// The same of `attention.csv`.
const ATTENTION_SHAPE: [&str; 4] = ["n_q_head", "n_kv_head", "n_embd", "num_tensor_parallel_workers"];

/// Returns `true` if folder `path` holds a profile.
pub(super) fn is_at(path: &Path) -> bool {
    rows::find(&path.join("mlp.csv")).exists()
}

/// Reads the times in folder `path`, of some of its points.
pub(super) fn read(path: &Path, of: Measured<'_>, points: Points) -> Result<Times, TableError> {
    if of.model.experts.is_some() {
        let fault = TableFault::Lacks { what: "experts", model: of.model.name };
        return Err(TableError { path: path.into(), line: 0, fault });
    }
    let mut notes = Vec::new();
    let mut linear = linear(&path.join("mlp.csv"), of)?;
    points.thin(&mut linear);
    let attention = attention(&path.join("attention.csv"), of, points, &mut notes)?;
    let all_reduce_s = all_reduce(path, of, &mut notes)?;
    for (tokens, layer_s) in &mut linear {
        let n = *tokens as f64;
        let save_s = attention.save.as_ref().map_or(0.0, |save| save.extended([n], |[tokens]| tokens));
        *layer_s = of.model.layers as f64 * (*layer_s + save_s + 2.0 * all_reduce_s(n));
    }
    let last = linear.last().map_or(0, |(tokens, _)| *tokens);
    let sending = sending(path, of, last, &mut notes)?;
    Ok(Times { linear, prefill: attention.prefill, decode: attention.decode, sending, notes })
}

/// Returns the time of an all-reduce by tokens, seconds.
fn all_reduce<'a>(
    path: &Path,
    of: Measured<'a>,
    notes: &mut Vec<String>,
) -> Result<impl Fn(f64) -> f64 + use<'a>, TableError> {
    let tensor = of.parallel.tensor;
    let measured = match tensor {
        1 => None,
        _ => exchange(&path.join("all_reduce.csv"), "time_stats.all_reduce.median", [tensor; 2])?,
    };
    if tensor > 1 && measured.is_none() {
        notes.push("all-reduces over the links of the hardware file".into());
    }
    let token_bytes = RESIDUAL_BYTES * of.model.hidden as f64;
    Ok(move |tokens: f64| match &measured {
        Some(times) => times.extended([tokens * token_bytes], |[bytes]| bytes) + ALL_REDUCE_LAUNCH_S,
        None => of.parallel.all_reduce_s(of.hardware, tokens, token_bytes),
    })
}

/// Returns the time of sending to the next stage, seconds by tokens up to `last`; `None` for a single stage, and without a file.
fn sending(
    path: &Path,
    of: Measured<'_>,
    last: u64,
    notes: &mut Vec<String>,
) -> Result<Option<Vec<(u64, f64)>>, TableError> {
    if of.parallel.pipeline == 1 {
        return Ok(None);
    }
    // Two devices of a node, or one of each of two nodes.
    let within = if of.parallel.devices() > of.hardware.peer_devices { 1 } else { 2 };
    let times = exchange(&path.join("send_recv.csv"), "time_stats.send_recv.median", [2, within])?;
    if times.is_none() {
        notes.push("sending over the links of the hardware file".into());
    }
    let token_bytes = RESIDUAL_BYTES * of.model.hidden as f64;
    let at = |times: &Grid<1>, tokens: u64| times.extended([tokens as f64 * token_bytes], |[bytes]| bytes);
    Ok(times.map(|times| token_counts(last).map(|tokens| (tokens, at(&times, tokens))).collect()))
}

/// Returns the time of the operations of a layer but attention, seconds by tokens.
fn linear(path: &Path, of: Measured<'_>) -> Result<Vec<(u64, f64)>, TableError> {
    let path = &rows::find(path);
    let model = of.model;
    let shape = [model.heads, model.kv_heads, model.hidden, model.intermediate, u64::from(of.parallel.tensor)];
    let mut points = Vec::new();
    let [a, b, c, d, e, f] = OPERATIONS;
    let columns =
        [MLP_SHAPE[0], MLP_SHAPE[1], MLP_SHAPE[2], MLP_SHAPE[3], MLP_SHAPE[4], "num_tokens", a, b, c, d, e, f];
    rows::read(path, columns, |row| {
        if has_shape(row, &shape)? {
            let ms = (6..12).map(|i| row.number(i)).sum::<Result<f64, _>>()?;
            points.push((row.count(5)?, ms / 1e3));
        }
        Ok(())
    })?;
    if points.is_empty() {
        return Err(none_of(path, &MLP_SHAPE, &shape));
    }
    let mut points = averaged(points);
    for operation in SMALL_OPERATIONS {
        add_small(path, operation, &shape, &mut points)?;
    }
    Ok(points)
}

/// Adds the time of an operation to points by tokens, if it was measured.
fn add_small(
    path: &Path,
    operation: &'static str,
    shape: &[u64; 5],
    points: &mut [(u64, f64)],
) -> Result<(), TableError> {
    let mut small = Vec::new();
    let columns = [MLP_SHAPE[0], MLP_SHAPE[1], MLP_SHAPE[2], MLP_SHAPE[3], MLP_SHAPE[4], "num_tokens", operation];
    let read = rows::read(path, columns, |row| {
        if has_shape(row, shape)? && !row.text(6)?.is_empty() {
            small.push((row.count(5)?, row.number(6)? / 1e3));
        }
        Ok(())
    });
    match read {
        Err(error) if !error.fault.is_missing_column() => return Err(error),
        _ => small = averaged(small),
    }
    for (tokens, time_s) in points {
        if let Ok(at) = small.binary_search_by_key(tokens, |(count, _)| *count) {
            *time_s += small[at].1;
        }
    }
    Ok(())
}

/// Times of attention in a layer, seconds.
struct AttentionTimes {
    prefill: Grid<2>,
    decode: Grid<2>,
    /// Writing KV, by tokens; `None` if it was not measured.
    save: Option<Grid<1>>,
}

fn attention(
    path: &Path,
    of: Measured<'_>,
    points: Points,
    notes: &mut Vec<String>,
) -> Result<AttentionTimes, TableError> {
    let path = &rows::find(path);
    let model = of.model;
    let shape = [model.heads, model.kv_heads, model.hidden, u64::from(of.parallel.tensor)];
    let (mut prefills, mut decodes, mut batched) = (Vec::new(), Vec::new(), 0);
    let [a, b, c, d] = ATTENTION_SHAPE;
    let axes = ["batch_size", "prefill_chunk_size", "kv_cache_size"];
    let times = ["time_stats.attn_prefill.median", "time_stats.attn_decode.median"];
    rows::read(path, [a, b, c, d, axes[0], axes[1], axes[2], times[0], times[1]], |row| {
        if !has_shape(row, &shape)? {
            return Ok(());
        }
        let [batch, chunk, context] = [row.count(4)?, row.count(5)?, row.count(6)?];
        match chunk {
            0 => decodes.push(([batch, context], row.number(8)? / 1e3)),
            _ if batch > 1 => batched += 1,
            _ => prefills.push(([context, chunk], row.number(7)? / 1e3)),
        }
        Ok(())
    })?;
    if prefills.is_empty() && decodes.is_empty() {
        return Err(none_of(path, &ATTENTION_SHAPE, &shape));
    }
    if batched > 0 {
        notes.push(format!("{batched} rows of attention.csv for several prefills not used"));
    }
    let device = Device::new(of.hardware, model, of.parallel.tensor);
    let prefill = AttentionRows {
        path,
        axes: [axes[2], axes[1]],
        ideal: |[computed, chunk]: [f64; 2]| device.attention_s([chunk, computed, 0.0, 0.0]),
    };
    let decode = AttentionRows {
        path,
        axes: [axes[0], axes[2]],
        ideal: |[n, context]: [f64; 2]| device.attention_s([0.0, 0.0, n, context]),
    };
    Ok(AttentionTimes {
        prefill: prefill.grid(prefills, points, notes)?,
        decode: decode.grid(decodes, points, notes)?,
        save: save(path, &shape)?,
    })
}

/// Returns the time to write the KV of a layer, seconds by tokens; `None` if it was not measured.
fn save(path: &Path, shape: &[u64; 4]) -> Result<Option<Grid<1>>, TableError> {
    let [a, b, c, d] = ATTENTION_SHAPE;
    let columns = [a, b, c, d, "batch_size", "prefill_chunk_size", "time_stats.attn_kv_cache_save.median"];
    let mut points = Vec::new();
    let read = rows::read(path, columns, |row| {
        if has_shape(row, shape)? && !row.text(6)?.is_empty() {
            points.push((row.count(4)?.max(row.count(5)?), row.number(6)? / 1e3));
        }
        Ok(())
    });
    match read {
        Err(error) if !error.fault.is_missing_column() => Err(error),
        _ => Ok(series(averaged(points))),
    }
}

/// Returns the time of an exchange among `workers` devices, `within` of them in a node, seconds by bytes; `None` without a file.
fn exchange(path: &Path, column: &'static str, [workers, within]: [u32; 2]) -> Result<Option<Grid<1>>, TableError> {
    let path = &rows::find(path);
    if !path.exists() {
        return Ok(None);
    }
    let shape = [workers, within].map(u64::from);
    let mut points = Vec::new();
    rows::read(path, ["num_workers", "devices_per_node", "size", column], |row| {
        if has_shape(row, &shape)? {
            points.push((row.count(2)?, row.number(3)? / 1e3));
        }
        Ok(())
    })?;
    let found = series(averaged(points));
    found.map(Some).ok_or_else(|| none_of(path, &["num_workers", "devices_per_node"], &shape))
}

/// Returns `true` if the first columns of a row have the values of `shape`.
fn has_shape<const N: usize>(row: &rows::Row<'_, N>, shape: &[u64]) -> Result<bool, TableFault> {
    for (i, value) in shape.iter().enumerate() {
        if row.count(i)? != *value {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the fault of a file without a row of some shape.
fn none_of(path: &Path, columns: &[&str], shape: &[u64]) -> TableError {
    let named: Vec<String> = columns.iter().zip(shape).map(|(column, value)| format!("{column} {value}")).collect();
    TableError { path: path.into(), line: 0, fault: TableFault::Empty(named.join(", ")) }
}

/// Returns the line through points by count; `None` without a point.
fn series(points: Vec<(u64, f64)>) -> Option<Grid<1>> {
    let axis: Vec<f64> = points.iter().map(|(count, _)| *count as f64).collect();
    let mut times = points.iter();
    (!axis.is_empty()).then(|| Grid::new([axis], |_| times.next().map(|(_, s)| *s)).expect("a time for each point"))
}
