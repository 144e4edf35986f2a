//! Experts of a layer: `moe.csv`.
//!
//! A row is the time of the whole block, router included, on one of `ep` devices with whole experts, for `tokens` tokens of all of
//! them, of which the device's share of the choices falls on `activated_experts` different experts of the device. Profiles from before
//! expert parallelism have no column `ep` and are of one device. How many experts are activated follows from the tokens, for choices
//! that are even and independent. Grids leave out more activated experts than the tokens can choose: such points take the time of
//! the most there are.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::super::expert_series;
use super::{Device, Parallel, Points, RESIDUAL_BYTES, Series, TableError, TableFault, rows};
use crate::cost::experts::ExpertShape;
use crate::cost::grid::Grid;
use crate::hardware::Hardware;
use crate::model::Model;

/// Times of a block, seconds, by tokens and activated experts.
type Times = BTreeMap<(u64, u64), f64>;

/// Returns the time of all layers' experts, by tokens of all ranks; `None` for a dense model.
pub(super) fn read(
    path: &Path,
    hardware: &Hardware,
    model: &Model,
    parallel: Parallel,
    points: Points,
) -> Result<Option<Series>, TableError> {
    let Some(shape) = ExpertShape::of(model).map(|shape| shape.among(parallel)) else { return Ok(None) };
    let empty = |what| TableError { path: path.into(), line: 0, fault: TableFault::Empty(what) };
    if parallel.data > 1 && parallel.expert == 1 {
        return Err(empty(format!("slices of experts on {} devices; add ep to parallel", parallel.expert_devices())));
    }
    let times = times(path, parallel.expert.into())?;
    let axis = |values: BTreeSet<u64>| {
        let mut values: Vec<f64> = values.into_iter().map(|n| n as f64).collect();
        points.thin(&mut values);
        values
    };
    let axes = [
        axis(times.keys().map(|(tokens, _)| *tokens).collect()),
        axis(times.keys().map(|(_, activated)| *activated).collect()),
    ];
    if times.is_empty() {
        return Err(empty(format!("ep {}", parallel.expert)));
    }
    let grid = Grid::new(axes, |[tokens, activated]| {
        let (tokens, activated) = (tokens as u64, activated as u64);
        let most = times.range((tokens, 0)..=(tokens, activated)).next_back();
        most.or_else(|| times.range((tokens, activated)..=(tokens, u64::MAX)).next()).map(|(_, time_s)| *time_s)
    });
    let grid = grid.map_err(|[tokens, activated]| {
        let fault = TableFault::Hole(format!("tokens {tokens}, activated_experts {activated}"));
        TableError { path: path.into(), line: 0, fault }
    })?;
    let device = Device::new(hardware, model, parallel.tensor);
    let token_bytes = RESIDUAL_BYTES * model.hidden as f64;
    let ideal_s = |[tokens, activated]: [f64; 2]| {
        let products = shape.products(tokens);
        let bytes = products.bytes * activated / (shape.touched(tokens) / shape.ranks).max(1e-9);
        (products.flops / device.flops_s).max(bytes / device.bytes_s)
    };
    let layer_s = |tokens: u64| {
        let tokens = tokens as f64;
        let exchange_s = 2.0 * parallel.all_gather_s(hardware, tokens, token_bytes);
        grid.extended([tokens, shape.touched(tokens) / shape.ranks], ideal_s) + exchange_s
    };
    Ok(Some(expert_series(model, shape, &device, layer_s)))
}

/// Reads the times on one of `ep` devices with whole experts.
fn times(path: &Path, ep: u64) -> Result<Times, TableError> {
    let mut times = Times::new();
    let with_ep = rows::read(path, ["ep", "tokens", "activated_experts", "time_us"], |row| {
        if row.count(0)? == ep {
            times.insert((row.count(1)?, row.count(2)?), row.number(3)? / 1e6);
        }
        Ok(())
    });
    match with_ep {
        Err(error) if error.fault.is_missing_column() && ep == 1 => {
            rows::read(path, ["tokens", "activated_experts", "time_us"], |row| {
                times.insert((row.count(0)?, row.count(1)?), row.number(2)? / 1e6);
                Ok(())
            })?;
        }
        result => result?,
    }
    Ok(times)
}
