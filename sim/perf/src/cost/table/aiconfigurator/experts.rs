//! Kernels of experts, and the exchange of tokens among ranks.
//!
//! | file | columns used | kernel |
//! |---|---|---|
//! | `moe_perf.parquet` | `moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,distribution,latency` | experts of one layer on one of the devices that share them, for tokens of all devices |
//! | `nccl_perf.parquet` | `op_name,nccl_dtype,num_gpus,message_size,latency` | all-gather and reduce-scatter of so many elements in all |
//!
//! Only rows in 16 bits are used; the name of the table lists the others. Rows differ in the distribution of the tokens among the experts:
//! an even one, or power laws, measured on the device with the most tokens. As in aiconfigurator the power law with the exponent 1.2 is
//! taken, or the first of [`DISTRIBUTIONS`] in the file. An unmeasured shape is assumed as efficient as the measured one nearest in shape, at the same
//! number of tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::super::{expert_series, rows};
use super::{Device, Grid, Parallel, Points, ROWS_MIN, Series, TableError, TableFault, curve};
use crate::cost::experts::ExpertShape;
use crate::model::Model;

/// Distributions of tokens among experts, the preferred one first.
const DISTRIBUTIONS: [&str; 3] = ["power_law_1.2", "power_law_1.01", "balanced"];

const COLUMNS: [&str; 10] = [
    "moe_dtype",
    "distribution",
    "num_tokens",
    "latency",
    "hidden_size",
    "inter_size",
    "topk",
    "num_experts",
    "moe_tp_size",
    "moe_ep_size",
];

/// Hidden size, width, experts of a token, experts, devices with slices, devices with whole experts.
type Measured = [u64; 6];

/// Times of the kernels by tokens, seconds, for each measured shape.
type Kernels = BTreeMap<Measured, BTreeMap<u64, f64>>;

/// Returns the time of all layers' experts, by tokens of all ranks; `None` for a dense model. Adds notes for the name of the table.
pub(super) fn read(
    path: &Path,
    model: &Model,
    parallel: Parallel,
    device: Device,
    points: Points,
    notes: &mut Vec<String>,
) -> Result<Option<Series>, TableError> {
    let Some(shape) = ExpertShape::of(model).map(|shape| shape.among(parallel)) else { return Ok(None) };
    let kernels = kernels(&path.join("moe_perf.csv"), notes)?;
    let near = nearest(&kernels, shape);
    let (measured, times) = near.expect("a shape was read");
    let near = at_shape(measured, shape);
    if near != shape {
        let [hidden, width, active, count, slices, ranks] = measured;
        notes.push(format!(
            "experts scaled from {active} of {count}, {hidden} x {width}, on {} devices",
            slices * ranks
        ));
    }
    let mut times: Vec<(f64, f64)> = times.iter().map(|(tokens, time_s)| (*tokens as f64, *time_s)).collect();
    points.thin(&mut times);
    let grid = curve(times);
    let ideal_s = |shape: ExpertShape, tokens: f64| {
        let products_s = shape.products(tokens).time_s(device.flops_s, device.bytes_s);
        products_s + shape.moved_bytes(tokens) / device.bytes_s
    };
    let exchange = (parallel.data > 1).then(|| exchange(path, parallel.data, model, points)).transpose()?;
    let layer_s = |tokens: u64| {
        let tokens = tokens as f64;
        let near_s = grid.extended([tokens], |[tokens]| ideal_s(near, tokens));
        let exchange_s: f64 = exchange.iter().flatten().map(|curve| curve.extended([tokens], |[tokens]| tokens)).sum();
        near_s * ideal_s(shape, tokens) / ideal_s(near, tokens) + exchange_s
    };
    Ok(Some(expert_series(model, shape, &device, layer_s)))
}

/// Reads the kernels in 16 bits of the preferred distribution.
fn kernels(path: &Path, notes: &mut Vec<String>) -> Result<Kernels, TableError> {
    let path = &rows::find(path);
    let mut distributions: BTreeMap<String, Kernels> = BTreeMap::new();
    let mut others = BTreeSet::new();
    rows::read(path, COLUMNS, |row| {
        if row.text(0)? != "bfloat16" {
            others.insert(row.text(0)?.to_owned());
            return Ok(());
        }
        let mut shape = Measured::default();
        for (at, field) in shape.iter_mut().enumerate() {
            *field = row.count(4 + at)?.max(1);
        }
        let kernels = distributions.entry(row.text(1)?.to_owned()).or_default();
        let time_s = row.number(3)? / 1e3;
        // Several kernels of one shape: an engine takes the fastest.
        let fastest = kernels.entry(shape).or_default().entry(row.count(2)?).or_insert(time_s);
        *fastest = fastest.min(time_s);
        Ok(())
    })?;
    for kernels in distributions.values_mut() {
        kernels.retain(|_, times| times.len() >= ROWS_MIN);
    }
    let unknown: Vec<String> =
        distributions.keys().filter(|name| !DISTRIBUTIONS.contains(&name.as_str())).cloned().collect();
    let preferred =
        DISTRIBUTIONS.into_iter().find(|name| distributions.get(*name).is_some_and(|rows| !rows.is_empty()));
    let Some(name) = preferred else {
        let fault = TableFault::Empty("experts in bfloat16".into());
        return Err(TableError { path: path.into(), line: 0, fault });
    };
    notes.push(format!("tokens of experts by {name}"));
    others.extend(unknown);
    if !others.is_empty() {
        let others: Vec<String> = others.into_iter().collect();
        notes.push(format!("rows of moe_perf not used: {}", others.join(", ")));
    }
    Ok(distributions.remove(name).unwrap_or_default())
}

/// Returns the measured shape nearest to `shape`, and its times.
fn nearest(kernels: &Kernels, shape: ExpertShape) -> Option<(Measured, &BTreeMap<u64, f64>)> {
    let asked = [shape.hidden, shape.width, shape.active, shape.count, shape.slices, shape.ranks];
    let distance = |measured: &Measured| -> f64 {
        measured.iter().zip(asked).map(|(measured, asked)| (*measured as f64 / asked).ln().abs()).sum()
    };
    let near = kernels.iter().min_by(|a, b| distance(a.0).total_cmp(&distance(b.0)));
    near.map(|(measured, times)| (*measured, times))
}

/// Returns the measured shape, with weights like those of `like`.
fn at_shape(measured: Measured, like: ExpertShape) -> ExpertShape {
    let [hidden, width, active, count, slices, ranks] = measured.map(|n| n as f64);
    ExpertShape { hidden, width, active, count, slices, ranks, ..like }
}

/// Returns the times of an all-gather and of a reduce-scatter of the residual stream among `data` ranks, seconds by tokens of all.
fn exchange(path: &Path, data: u32, model: &Model, points: Points) -> Result<[Grid<1>; 2], TableError> {
    let path = rows::find(&path.join("nccl_perf.csv"));
    let operations = ["all_gather", "reduce_scatter"];
    let mut times = operations.map(|_| BTreeMap::new());
    rows::read(&path, ["op_name", "nccl_dtype", "num_gpus", "message_size", "latency"], |row| {
        let operation = operations.iter().position(|name| row.text(0).is_ok_and(|text| text == *name));
        if let Some(operation) = operation
            && row.text(1)? == "half"
            && row.count(2)? == u64::from(data)
        {
            times[operation].insert(row.count(3)?, row.number(4)? / 1e3);
        }
        Ok(())
    })?;
    if times.iter().any(BTreeMap::is_empty) {
        let fault = TableFault::Empty(format!("all_gather and reduce_scatter of half on {data} devices"));
        return Err(TableError { path, line: 0, fault });
    }
    // Sizes count elements.
    let token_elements = model.hidden as f64;
    Ok(times.map(|sizes| {
        let mut sizes: Vec<(f64, f64)> =
            sizes.into_iter().map(|(elements, time_s)| (elements as f64 / token_elements, time_s)).collect();
        points.thin(&mut sizes);
        curve(sizes)
    }))
}
