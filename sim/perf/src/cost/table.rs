//! Measured tables: step times composed from the times of operations.
//!
//! | profile | constructor | attention |
//! |---|---|---|
//! | LLMServingSim (MIT) | [`Table::from_llmservingsim`] | calls of prefills and decodes together |
//! | Vidur (MIT) | [`Table::from_vidur`] | prefills and decodes separately, added up |
//! | aiconfigurator (Apache-2.0) | [`Table::from_aiconfigurator`] | prefills and decodes separately, added up |
//!
//! A table is CSV, plain or gzip, or Parquet with equal name and columns.
//!
//! For a step of `n` tokens, with prefill chunks of `P` tokens after `K` computed ones, and `B` decodes reading `k` tokens each on
//! average:
//!
//! ```text
//! step = linear(n) + layers * attention(P, K, B, k) + experts(N) + head(sampled) + overhead + overhead per sequence * sequences
//! ```
//!
//! with the `N` tokens of all ranks for data-parallel attention. Of ranks in lock step all but the experts is that of the slowest. A pipeline
//! divides the step into stages (`table/stages.rs`).
//!
//! Inside its grid a table is linear between measured points. Outside, kernels are assumed to reach the same share of the peak as
//! at the edge. Where tables measured both ways can be compared, the sum of separate prefill and decode times is a third too low
//! for mixed calls, so prefer a table of mixed calls.
//!
//! [`super::CostChoice`] detects the layout of a folder, and rejects tables of another model.

use std::path::{Path, PathBuf};

use self::stages::Stages;
use super::errors::{Sample, usual_steps};
use super::experts::ExpertShape;
use super::grid::Grid;
use super::work::{Demand, Work};
use super::{CostModel, LowerBound, Parallel, PipelinedStep, StepShape, TimeRange, nanoseconds};
use crate::columns::ColumnFault;
use crate::hardware::{Hardware, Largest, StepErrors};
use crate::model::{Model, Precision};
use trunkline_quote::quoted;
use trunkline_sim_workload::lines::{LineFault, LineNumber};

mod aiconfigurator;
mod llmservingsim;
mod rows;
mod stages;
mod vidur;

pub(crate) use llmservingsim::Profile;
pub use llmservingsim::Skew;

/// Error in a table: file, line and fault.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {fault}", path.display(), LineNumber(*line))]
pub struct TableError {
    /// Path of the file.
    pub path: PathBuf,
    /// Line number from 1; 0 for a fault outside any line.
    pub line: u64,
    /// Fault found at that place.
    pub fault: TableFault,
}

/// Fault in a table.
#[derive(Debug, thiserror::Error)]
pub enum TableFault {
    /// File cannot be read as lines.
    #[error(transparent)]
    Line(#[from] LineFault),
    /// File cannot be read as Parquet.
    #[error(transparent)]
    Columns(#[from] ColumnFault),
    /// Faulty row of a Parquet file.
    #[error("row {0}: {1}")]
    InRow(u64, Box<TableFault>),
    /// Header without a required column.
    #[error("the header has no column {}", quoted(.0))]
    MissingColumn(&'static str),
    /// Row with too few columns.
    #[error("the row has no column {}", quoted(.0))]
    ShortRow(&'static str),
    /// Number that cannot be read.
    #[error("{column} is {value}; it must be a number of at least 0", value = quoted(value))]
    BadNumber {
        /// Name of the column.
        column: &'static str,
        /// Value as found in the input.
        value: String,
    },
    /// Model with operations missing from the table.
    #[error("these kernels have no {what}, which {model} has; give --cost roofline")]
    Lacks {
        /// What is missing.
        what: &'static str,
        /// Name of the model.
        model: &'static str,
    },
    /// File without a single usable row.
    #[error("holds no row for {0}; measure it, or give --cost roofline")]
    Empty(String),
    /// Point of the grid without a measurement, and without others to interpolate between.
    #[error("the grid has no row for {0}; measure it, or give --cost roofline")]
    Hole(String),
}

impl TableFault {
    /// Returns `true` if the file lacks a required column.
    fn is_missing_column(&self) -> bool {
        matches!(self, Self::MissingColumn(_) | Self::Columns(ColumnFault::MissingColumn(_)))
    }
}

/// Fails if a model has something that no measured table has.
fn check_measured(path: &Path, model: &Model) -> Result<(), TableError> {
    let lacks = [
        (model.hybrid.is_some(), "recurrent layers"),
        (model.kv_share > 1, "layers that share their KV"),
        (model.cross_layers > 0, "layers of cross-attention"),
        (model.precision != Precision::BITS_16, "quantised weights"),
        (model.kv_dtype_bytes != 2, "KV of other than 16 bits"),
    ];
    match lacks.into_iter().find(|(is, _)| *is) {
        None => Ok(()),
        Some((_, what)) => {
            Err(TableError { path: path.into(), line: 0, fault: TableFault::Lacks { what, model: model.name } })
        }
    }
}

/// Measured points of a table to use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Points {
    /// All points.
    All,
    /// Two of three along each axis, first and last ones among them.
    TwoOfThree,
}

impl Points {
    /// Removes the points of an ascending axis that are not used. The first two stay: the first may stand for no work at all.
    fn thin<T>(self, axis: &mut Vec<T>) {
        if self == Self::All {
            return;
        }
        let (mut at, last) = (0, axis.len().saturating_sub(1));
        axis.retain(|_| {
            at += 1;
            at % 3 != 0 || at > last
        });
    }
}

/// Greatest number of tokens of a prefill chunk in the steps that interpolation is tried on.
const CHUNK_TOKENS_MAX: u64 = 2048;

/// Time of a part of a step as a function of one count, with extrapolation.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// Times at 0, 1, 2, ..., seconds.
    times_s: Vec<f64>,
    /// Lower bound: a fixed part, a part per count, and arithmetic per count, seconds.
    fixed_s: f64,
    growing_s: f64,
    arithmetic_s: f64,
}

/// Largest number of tokens of all ranks with a computed time of the experts.
const EXPERT_TOKENS_MAX: u64 = 65_536;

/// Largest count in a step.
const COUNT_MAX: u64 = 1 << 20;

impl Series {
    /// Builds a series from measured points, ascending, and the work for counts of 1 and 2 on one device.
    pub fn new(points: &[(u64, f64)], work: [Work; 2], device: &Device) -> Self {
        let axis = points.iter().map(|(count, _)| *count as f64).collect();
        let mut rows = points.iter();
        let grid = Grid::new([axis], |_| rows.next().map(|(_, time_s)| *time_s)).expect("a time for each point");
        let last = points.last().map_or(0, |(count, _)| (*count).min(COUNT_MAX));
        let at = |count: u64| if count == 0 { 0.0 } else { grid.at(grid.clamp([count as f64])) };
        let growing = work[1].bytes - work[0].bytes;
        Self {
            times_s: (0..=last).map(at).collect(),
            fixed_s: (work[0].bytes - growing).max(0.0) / device.bytes_s,
            growing_s: growing / device.bytes_s,
            arithmetic_s: (work[1].flops - work[0].flops) / device.flops_s,
        }
    }

    fn ideal_s(&self, count: u64) -> f64 {
        let n = count as f64;
        (self.fixed_s + self.growing_s * n).max(self.arithmetic_s * n)
    }

    /// Returns the largest measured count.
    pub fn last(&self) -> u64 {
        self.times_s.len() as u64 - 1
    }

    pub fn at(&self, count: u64) -> f64 {
        if let Some(time_s) = self.times_s.get(count as usize) {
            return *time_s;
        }
        let last = self.times_s.len() - 1;
        self.times_s[last] * self.ideal_s(count) / self.ideal_s(last as u64)
    }
}

/// Peaks of a device, for extrapolation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    pub flops_s: f64,
    pub bytes_s: f64,
    /// Time per (query, key) pair in one layer, seconds.
    pub pair_s: f64,
    /// Time per token of KV read in one layer, seconds.
    pub kv_s: f64,
}

impl Device {
    /// Returns the peaks of one of `tensor` devices that share each layer.
    pub fn new(hardware: &Hardware, model: &Model, tensor: u32) -> Self {
        let share = f64::from(tensor) * model.layers as f64;
        let kv_share = (Parallel::tensor(tensor).kv_shares(model) * model.layers) as f64;
        let (flops_s, bytes_s) = (hardware.flops_s(model.precision.arithmetic), hardware.bandwidth_bytes_s);
        Self {
            flops_s,
            bytes_s,
            pair_s: model.pair_flops() as f64 / share / hardware.peak_flops_s,
            kv_s: model.kv_bytes_per_token() as f64 / kv_share / bytes_s,
        }
    }

    /// Returns the lower bound of an attention call in one layer, seconds.
    pub fn attention_s(&self, [chunk, computed, decodes, context]: [f64; 4]) -> f64 {
        let pairs = chunk * (computed + chunk / 2.0) + decodes * context;
        (self.pair_s * pairs).max(self.kv_s * (chunk + computed + decodes * context))
    }
}

/// Attention times of one layer, by layout.
#[derive(Clone, Debug)]
enum Attention {
    Fused(llmservingsim::FusedAttention),
    Binned(vidur::BinnedAttention),
    Separate(aiconfigurator::SeparateAttention),
}

/// Cost model of measured times.
#[derive(Clone, Debug)]
pub struct Table {
    name: String,
    /// Lower bound; `None` for tables that omit so much of a step that the bound would apply.
    limit: Option<LowerBound>,
    layers: f64,
    /// All matrices and other operations of all layers, by tokens.
    linear: Series,
    /// Output matrix and sampling, by positions.
    head: Option<Series>,
    attention: Attention,
    /// Granularity of lookups: tokens are rounded up to a multiple of this.
    tokens_step: u64,
    /// Experts of all layers, and the exchange of tokens among ranks, by tokens of all ranks; `None` for a dense model.
    experts: Option<Series>,
    /// Stages of a pipeline; `None` for a single one.
    stages: Option<Stages>,
    errors: StepErrors,
    range: TimeRange,
}

impl Table {
    /// States the error of interpolation: that of `thinned`, the same table with every third point of each axis left out, against
    /// this one.
    pub(super) fn held_out(mut self, thinned: Result<Self, TableError>) -> Self {
        let Ok(thinned) = thinned else { return self.unmeasured("it has too few points to leave some out") };
        let sample = |shape: StepShape| Sample { shape, time_s: self.step_s(&shape) };
        let samples: Vec<Sample> = usual_steps(CHUNK_TOKENS_MAX).into_iter().map(sample).collect();
        self.errors = StepErrors::of(&samples, |shape| thinned.step_s(shape));
        self.name = format!(
            "{}; error of interpolation with every third point left out, median / p95: {}",
            self.name, self.errors
        );
        self
    }

    /// States that the error was not measured, and the reason.
    pub(super) fn unmeasured(self, why: &str) -> Self {
        Self { name: format!("{}; error not measured: {why}", self.name), ..self }
    }

    /// Returns the time of a step in a single stage before applying the lower bound, seconds.
    pub(super) fn step_s(&self, shape: &StepShape) -> f64 {
        self.common_s(shape) + self.experts_s(shape.tokens)
    }

    /// Returns the time of a step that passes through all stages before applying the lower bound, seconds.
    fn staged_s(&self, shape: &StepShape) -> f64 {
        let Some(stages) = &self.stages else { return self.step_s(shape) };
        stages.whole_s(self.layers_s(shape), self.head_s(shape), self.looked_up(shape.tokens))
    }

    /// Returns the time of all layers, experts included, seconds.
    fn layers_s(&self, shape: &StepShape) -> f64 {
        self.common_layers_s(shape) + self.experts_s(shape.tokens)
    }

    /// Returns the time of the output matrix and sampling, seconds.
    fn head_s(&self, shape: &StepShape) -> f64 {
        self.head.as_ref().map_or(0.0, |head| head.at(shape.sampled))
    }

    /// Returns the number of tokens at which times of a step of `tokens` tokens are looked up.
    fn looked_up(&self, tokens: u64) -> u64 {
        tokens.next_multiple_of(self.tokens_step)
    }

    /// Returns the time of the experts for `tokens` of all ranks, seconds.
    fn experts_s(&self, tokens: u64) -> f64 {
        self.experts.as_ref().map_or(0.0, |experts| experts.at(tokens))
    }

    /// Returns the time of all but the experts, seconds.
    pub(super) fn common_s(&self, shape: &StepShape) -> f64 {
        self.common_layers_s(shape) + self.head_s(shape)
    }

    /// Returns the time of all layers without the experts, seconds.
    fn common_layers_s(&self, shape: &StepShape) -> f64 {
        let attention_s = match &self.attention {
            Attention::Fused(mixed) => mixed.layer_s(shape),
            Attention::Binned(rounded) => rounded.layer_s(shape),
            Attention::Separate(apart) => apart.layer_s(shape),
        };
        self.linear.at(self.looked_up(shape.tokens)) + self.layers * attention_s
    }
}

impl CostModel for Table {
    fn name(&self) -> &str {
        &self.name
    }

    fn largest(&self, _: usize) -> Option<Largest> {
        let [sequences, context] = match &self.attention {
            Attention::Fused(mixed) => mixed.decodes_max(),
            Attention::Binned(rounded) => rounded.decodes_max(),
            Attention::Separate(apart) => apart.decodes_max(),
        }
        .map(|n| n as u64);
        let head = self.head.as_ref().map_or(u64::MAX, Series::last);
        Some(Largest { sequences: sequences.min(head), tokens: self.linear.last(), context: Some(context) })
    }

    fn errors(&self, _: usize) -> StepErrors {
        self.errors
    }

    fn range(&self, _: usize) -> Option<TimeRange> {
        Some(self.range)
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        let time_s = self.staged_s(shape);
        nanoseconds(self.limit.map_or(time_s, |limit| limit.hold(time_s, shape)))
    }

    fn pipelined(&self, shape: &StepShape) -> PipelinedStep {
        let Some(stages) = &self.stages else { return PipelinedStep::undivided(self.step_ns(shape)) };
        let tokens = self.looked_up(shape.tokens);
        let (stage_s, last_s) = stages.split_s(self.layers_s(shape), self.head_s(shape), tokens);
        PipelinedStep::at_least(self.limit.map_or(0.0, |limit| limit.step_s(shape)), stage_s, last_s)
    }

    fn lock_step_ns(&self, _: usize, shapes: &[StepShape]) -> u64 {
        let tokens = shapes.iter().map(|shape| shape.tokens).sum();
        let slowest_s = shapes.iter().map(|shape| self.common_s(shape)).fold(0.0, f64::max);
        let time_s = slowest_s + self.experts_s(tokens);
        nanoseconds(self.limit.map_or(time_s, |limit| time_s.max(limit.lock_step_s(shapes))))
    }
}

/// Returns the counts with computed times: all small ones, then sixteen per factor of two.
fn token_counts(max: u64) -> impl Iterator<Item = u64> {
    (1..=max).filter(|n| n.is_multiple_of((n.next_power_of_two() / 32).max(1)))
}

/// Returns the times of the experts of all layers from those of one layer by tokens of all ranks, seconds.
fn expert_series(model: &Model, shape: ExpertShape, device: &Device, layer_s: impl Fn(u64) -> f64) -> Series {
    let layers = model.expert_layers() as f64;
    let points: Vec<_> = token_counts(EXPERT_TOKENS_MAX).map(|tokens| (tokens, layers * layer_s(tokens))).collect();
    // More tokens than these choose every expert.
    let weights = shape.products(EXPERT_TOKENS_MAX as f64).bytes;
    let work = [1.0, 2.0].map(|tokens| Work {
        flops: layers * shape.products(tokens).flops,
        bytes: layers * (weights + shape.moved_bytes(tokens)),
    });
    Series::new(&points, work, device)
}

/// Returns the work of the layers' matrices on one of `tensor` devices for one token and for two.
fn linear_work(model: &Model, tensor: u32) -> [Work; 2] {
    let demand = Demand::new(model, Parallel::tensor(tensor));
    [1, 2]
        .map(|tokens| demand.parts(&StepShape { tokens, ..StepShape::default() }).layers.times(1.0 / f64::from(tensor)))
}

/// Returns the work of the output matrix on one of `tensor` devices for one position and for two.
fn head_work(model: &Model, tensor: u32) -> [Work; 2] {
    let demand = Demand::new(model, Parallel::tensor(tensor));
    [1, 2]
        .map(|sampled| demand.parts(&StepShape { sampled, ..StepShape::default() }).head.times(1.0 / f64::from(tensor)))
}

/// Returns the name of a table for reports: source, model and devices, and notes on rows that were not used or not measured.
fn describe(source: &str, hardware: &Hardware, model: &Model, parallel: Parallel, notes: &[String]) -> String {
    let spread = match parallel {
        Parallel::ONE => String::new(),
        Parallel { data: 1, .. } => format!(" {parallel}"),
        _ => format!(" {parallel}, ranks in lock step"),
    };
    let notes: String = notes.iter().map(|note| format!("; {note}")).collect();
    format!("table of {source} ({} on {}{spread}{notes})", model.name, hardware.name)
}

#[cfg(test)]
mod tests;
