//! Predictions of Vidur's models: a folder with
//!
//! | file | columns | operation |
//! |---|---|---|
//! | `linear_ops_ms.csv` | `num_tokens`, then one column per operation | each operation of a layer; `all_reduce` and `send_recv` too |
//! | `attn_prefill.csv` | `kv_cache_size,prefill_chunk_size,ms_per_layer` | prefill attention |
//! | `attn_decode.csv` | `batch_size,kv_cache_size,ms_per_layer` | decode attention |
//!
//! The points are predictions at equal distances, not measurements, so leaving some out says nothing about the error.

use std::path::Path;

use super::{
    ALL_REDUCE_LAUNCH_S, AttentionRows, Device, Grid, Measured, Points, TableError, TableFault, Times, averaged, rows,
};

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

/// Reads the times in folder `path`.
pub(super) fn read(path: &Path, of: Measured<'_>) -> Result<Times, TableError> {
    let tensor = of.parallel.tensor;
    let device = Device::new(of.hardware, of.model, tensor);
    let operations = path.join("linear_ops_ms.csv");
    let mut notes = Vec::new();
    Ok(Times {
        linear: linear(&operations, of.model.layers as f64, tensor)?,
        prefill: pairs(
            &path.join("attn_prefill.csv"),
            ["kv_cache_size", "prefill_chunk_size"],
            |[computed, chunk]| device.attention_s([chunk, computed, 0.0, 0.0]),
            &mut notes,
        )?,
        decode: pairs(
            &path.join("attn_decode.csv"),
            ["batch_size", "kv_cache_size"],
            |[n, context]| device.attention_s([0.0, 0.0, n, context]),
            &mut notes,
        )?,
        sending: sending(&operations)?,
        notes,
    })
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
    match points.is_empty() {
        true => Err(TableError { path: path.into(), line: 0, fault: TableFault::Empty("any number of tokens".into()) }),
        false => Ok(averaged(points)),
    }
}

/// Returns the time of sending from one stage to the next by tokens, seconds; `None` without such a column.
fn sending(path: &Path) -> Result<Option<Vec<(u64, f64)>>, TableError> {
    let mut points = Vec::new();
    let read = rows::read(path, ["num_tokens", "send_recv"], |row| {
        points.push((row.count(0)?, row.number(1)? / 1e3));
        Ok(())
    });
    match read {
        Err(error) if error.fault.is_missing_column() => Ok(None),
        Err(error) => Err(error),
        Ok(()) => Ok(Some(averaged(points))),
    }
}

/// Reads a grid from a file with one row per point.
fn pairs(
    path: &Path,
    axes: [&'static str; 2],
    ideal: impl Fn([f64; 2]) -> f64,
    notes: &mut Vec<String>,
) -> Result<Grid<2>, TableError> {
    let path = &rows::find(path);
    let mut rows = Vec::new();
    rows::read(path, [axes[0], axes[1], "ms_per_layer"], |row| {
        rows.push(([row.count(0)?, row.count(1)?], row.number(2)? / 1e3));
        Ok(())
    })?;
    AttentionRows { path, axes, ideal }.grid(rows, Points::All, notes)
}
