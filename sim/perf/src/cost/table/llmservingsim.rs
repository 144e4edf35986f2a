//! LLMServingSim's profiles: a folder with
//!
//! | file | columns | operation |
//! |---|---|---|
//! | `dense.csv` | `layer,tokens,time_us` | operation with a time by tokens of a step |
//! | `per_sequence.csv` | `layer,sequences,time_us` | operation with a time by sampled positions |
//! | `attention.csv` | `prefill_chunk,kv_prefill,n_decode,kv_decode,time_us` | attention call for a chunk and some decodes |
//! | | or `layer,prefill_chunk,prefill_key,n_decode,kv_decode,decode_q_len,time_us` | the same for several prefills |
//! | `skew_fit.csv` | `pc,n_label,...,alpha,n_samples` | extra time for decodes of unequal contexts |
//! | `moe.csv` | `ep,tokens,activated_experts,time_us`, without `ep` in old profiles | experts of a layer; only for a model that has some |
//! | `meta.yaml` | `model`, `skew_fit` | description, in the folder or next to folders `tpN/` of tables for `N` devices |
//!
//! Times of several devices are those of one of them, without communication; all-reduces are computed from the peer link of the
//! device's file, as in a roofline. Rows of other operations are not used; the name of the table lists them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::{
    Attention, Device, LowerBound, Parallel, Points, Series, Stages, StepErrors, Table, TableError, TableFault,
    TimeRange, check_measured, describe, head_work, linear_work, rows,
};
use crate::cost::roofline::RESIDUAL_BYTES;
use crate::hardware::Hardware;
use crate::model::Model;

mod attention;
mod experts;
mod profile;

pub(super) use attention::FusedAttention;
pub(crate) use profile::Profile;

/// Extra time for decodes of unequal contexts: a share `a` of the difference to a call with all contexts as long as the longest,
/// `A(mean) + a * (A(longest) - A(mean))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Skew {
    /// Fixed share; 0 for no extra time.
    Share(f64),
    /// Mean of the shares in `skew_fit.csv`, weighted by samples.
    Fitted,
    /// Share that `meta.yaml` states: its `alpha_default`, or 0 without an enabled `skew_fit`.
    Published,
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
        "qkv_proj" | "qk_norm" | "rotary_emb" | "o_proj" | "gate_up_proj" | "act_fn" | "down_proj" => {
            Some(Times::Layer(1.0))
        }
        "embedding" | "final_layernorm" => Some(Times::Step),
        _ => None,
    }
}

/// Operations of `per_sequence.csv`.
const HEAD: [&str; 2] = ["lm_head", "sampler"];

/// Returns the operations of `dense.csv` without which times would be far too short: the matrices of a model.
fn matrices(model: &Model) -> &'static [&'static str] {
    let all = &["qkv_proj", "o_proj", "gate_up_proj", "down_proj"];
    if model.experts.is_some() && model.expert_layers() == model.layers { &all[..2] } else { all }
}

impl Table {
    /// Builds the table in folder `path`, measured for `model` on devices of `hardware`, as many as `parallel` says. The folder is one of tables, or one
    /// with a folder `tpN` of tables for each number of devices.
    ///
    /// # Errors
    ///
    /// [`TableError`] if a file cannot be read, or has no usable rows.
    pub fn from_llmservingsim(
        path: &Path,
        hardware: &Hardware,
        model: &Model,
        parallel: Parallel,
        skew: Skew,
    ) -> Result<Self, TableError> {
        Self::read_llmservingsim(path, hardware, model, parallel, skew, Points::All)
    }

    /// Builds the table from some of its points.
    pub(in super::super) fn read_llmservingsim(
        path: &Path,
        hardware: &Hardware,
        model: &Model,
        parallel: Parallel,
        skew: Skew,
        points: Points,
    ) -> Result<Self, TableError> {
        check_measured(path, model)?;
        let tensor = parallel.tensor;
        let profile = Profile::find(path, tensor);
        let path = &profile.tables;
        let device = Device::new(hardware, model, tensor);
        let layers = model.layers as f64;
        let mut notes = Vec::new();
        profile.name_others(model.experts.is_some(), &mut notes);
        let times = |operation: &str| {
            times_of(operation).map(|times| match times {
                Times::Layer(n) => n * layers,
                Times::Step => 1.0,
            })
        };
        let mut linear =
            sum(&path.join("dense.csv"), ["layer", "tokens", "time_us"], matrices(model), &mut notes, times)?;
        let token_bytes = RESIDUAL_BYTES * model.hidden as f64;
        for (tokens, time_s) in &mut linear {
            *time_s += layers * 2.0 * parallel.all_reduce_s(hardware, *tokens as f64, token_bytes);
        }
        points.thin(&mut linear);
        let mut head = sum(
            &path.join("per_sequence.csv"),
            ["layer", "sequences", "time_us"],
            &HEAD[..1],
            &mut notes,
            |operation| HEAD.contains(&operation).then_some(1.0),
        )?;
        points.thin(&mut head);
        let skew = match skew {
            Skew::Share(share) => share,
            Skew::Fitted => fitted_skew(&path.join("skew_fit.csv"))?,
            Skew::Published => profile.skew(tensor, &mut notes),
        };
        let attention = attention::read(&path.join("attention.csv"), device, skew, points, &mut notes)?;
        let experts = experts::read(&path.join("moe.csv"), hardware, model, parallel, points)?;
        Ok(Self {
            name: describe("LLMServingSim", hardware, model, parallel, &notes),
            limit: Some(LowerBound::new(hardware, model, parallel)),
            layers,
            linear: Series::new(&linear, linear_work(model, tensor), &device),
            head: Some(Series::new(&head, head_work(model, tensor), &device)),
            attention: Attention::Fused(attention),
            tokens_step: 1,
            experts,
            stages: Stages::over_peer_link(hardware, model, parallel),
            errors: StepErrors::default(),
            range: TimeRange::of_table(model),
        })
    }
}

/// Sums the times of all operations in a file, each multiplied by `times`, seconds by count. A count that another operation was not
/// measured at is interpolated between its neighbors; counts beyond those of some operation are left out. Adds a note for operations without `times`, and for
/// counts left out. Operations in `needed` MUST have rows.
fn sum(
    path: &Path,
    columns: [&'static str; 3],
    needed: &[&str],
    notes: &mut Vec<String>,
    times: impl Fn(&str) -> Option<f64>,
) -> Result<Vec<(u64, f64)>, TableError> {
    let path = &rows::find(path);
    let mut operations: BTreeMap<String, BTreeMap<u64, f64>> = BTreeMap::new();
    let mut unknown = BTreeSet::new();
    rows::read(path, columns, |row| {
        let operation = row.text(0)?;
        match times(operation) {
            Some(times) => {
                let points = operations.entry(operation.to_owned()).or_default();
                points.insert(row.count(1)?, times * row.number(2)? / 1e6);
            }
            None => _ = unknown.insert(operation.to_owned()),
        }
        Ok(())
    })?;
    let file = path.file_stem().unwrap_or_default().to_string_lossy();
    let file = file.strip_suffix(".csv").unwrap_or(&file);
    if !unknown.is_empty() {
        let names: Vec<String> = unknown.into_iter().collect();
        notes.push(format!("rows of {file} not used: {}", names.join(", ")));
    }
    let fail = |fault| TableError { path: path.into(), line: 0, fault };
    let missing: Vec<&str> = needed.iter().copied().filter(|name| !operations.contains_key(*name)).collect();
    if !missing.is_empty() {
        return Err(fail(TableFault::Empty(missing.join(", "))));
    }
    let counts: BTreeSet<u64> = operations.values().flat_map(|points| points.keys().copied()).collect();
    let mut total = Vec::new();
    for count in &counts {
        let of_all: Option<f64> = operations.values().map(|points| interpolated(points, *count)).sum();
        total.extend(of_all.map(|time_s| (*count, time_s)));
    }
    let (Some((low, _)), Some((high, _))) = (total.first(), total.last()) else {
        return Err(fail(TableFault::Hole(format!("{} that all operations have", columns[1]))));
    };
    if counts.first() < Some(low) || counts.last() > Some(high) {
        notes.push(format!("{} of {file} from {low} to {high}, as all operations have", columns[1]));
    }
    Ok(total)
}

/// Returns the time at `count`, linear between the measured points, or `None` outside them.
fn interpolated(points: &BTreeMap<u64, f64>, count: u64) -> Option<f64> {
    let (low, low_s) = points.range(..=count).next_back()?;
    let (high, high_s) = points.range(count..).next()?;
    if low == high {
        return Some(*low_s);
    }
    Some(low_s + (count - low) as f64 / (high - low) as f64 * (high_s - low_s))
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
