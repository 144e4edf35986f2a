//! Measured tables: step times put together from the times of operations.
//!
//! | profile | read by | attention |
//! |---|---|---|
//! | LLMServingSim (MIT) | [`Table::from_llmservingsim`] | calls of prefills and decodes together |
//! | Vidur (MIT) | [`Table::from_vidur`] | prefills and decodes apart, added up |
//! | aiconfigurator (Apache-2.0) | [`Table::from_aiconfigurator`] | prefills and decodes apart, added up |
//!
//! A table is CSV, plain or gzip, or Parquet of the same name and columns.
//!
//! With `n` tokens in a step, of which prefill chunks are `P` after `K` computed ones and `B` decodes read `k` each on average:
//!
//! ```text
//! step = linear(n) + layers * attention(P, K, B, k) + head(sampled) + overhead + overhead per sequence * sequences
//! ```
//!
//! Inside its grid a table is linear between the points measured. Outside it kernels are taken to reach the same share of the peak as
//! at its edge. Sums of a prefill's and a decode's time come out a third too low for calls that do both where tables measured both
//! ways can be compared, so a table of such calls is to be preferred.
//!
//! [`super::CostChoice`] finds out which of the three a folder holds, and refuses what is of another model.

use std::path::PathBuf;

use super::grid::Grid;
use super::work::{Demand, Work};
use super::{CostModel, Limit, Parallel, StepShape, nanoseconds};
use crate::columns::ColumnFault;
use crate::hardware::Hardware;
use crate::model::Model;
use trunkline_sim_workload::lines::{LineFault, LineNumber};

mod aiconfigurator;
mod llmservingsim;
mod rows;
mod vidur;

pub use llmservingsim::Skew;

/// A fault in a table: which file, which line, what.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {fault}", path.display(), LineNumber(*line))]
pub struct TableError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; 0 if the fault is not in a line.
    pub line: u64,
    /// What is wrong with it.
    pub fault: TableFault,
}

/// What can be wrong with a table.
#[derive(Debug, thiserror::Error)]
pub enum TableFault {
    /// The file could not be read as lines.
    #[error(transparent)]
    Line(#[from] LineFault),
    /// The file could not be read as Parquet.
    #[error(transparent)]
    Columns(#[from] ColumnFault),
    /// A row of Parquet is wrong.
    #[error("row {0}: {1}")]
    InRow(u64, Box<TableFault>),
    /// The header lacks a column.
    #[error("the header has no column '{0}'")]
    MissingColumn(&'static str),
    /// A row has too few columns.
    #[error("the row has no column '{0}'")]
    ShortRow(&'static str),
    /// A number cannot be read.
    #[error("{column} is '{value}'; it must be a number of at least 0")]
    BadNumber {
        /// The column.
        column: &'static str,
        /// What it says.
        value: String,
    },
    /// The operations of such a model are not in the table.
    #[error("these kernels are put together for dense models with grouped-query attention only, which {0} is not")]
    NotDense(&'static str),
    /// Not one row is of use.
    #[error("holds no row for {0}")]
    Empty(String),
    /// A point of the grid was not measured.
    #[error("the grid has no row for {0}")]
    Hole(String),
}

/// The time of a step part that grows with one count, and how to go on beyond the last one measured.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    /// At 0, 1, 2, ...; seconds.
    times_s: Vec<f64>,
    /// The least it could take: a share that is the same for all counts, one that grows, and arithmetic that grows. Seconds.
    fixed_s: f64,
    growing_s: f64,
    arithmetic_s: f64,
}

/// More than any step has.
const COUNT_MAX: u64 = 1 << 20;

impl Series {
    /// A series from measured points, ascending, and the work at a count of 1 and of 2 on one device.
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

    pub fn at(&self, count: u64) -> f64 {
        if let Some(time_s) = self.times_s.get(count as usize) {
            return *time_s;
        }
        let last = self.times_s.len() - 1;
        self.times_s[last] * self.ideal_s(count) / self.ideal_s(last as u64)
    }
}

/// A device's peaks, for going on beyond a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    pub flops_s: f64,
    pub bytes_s: f64,
    /// Per pair of tokens in one layer.
    pub pair_s: f64,
    /// Per token of KV read in one layer.
    pub kv_s: f64,
}

impl Device {
    /// One of `tensor` devices that share each layer.
    pub fn new(hardware: &Hardware, model: &Model, tensor: u32) -> Self {
        let share = f64::from(tensor) * model.layers as f64;
        let (flops_s, bytes_s) = (hardware.flops_s(model.dtype_bytes), hardware.bandwidth_bytes_s);
        Self {
            flops_s,
            bytes_s,
            pair_s: model.pair_flops() as f64 / share / hardware.peak_flops_s,
            kv_s: model.kv_bytes_per_token() as f64 / share / bytes_s,
        }
    }

    /// The least a call of attention in one layer could take, seconds.
    pub fn attention_s(&self, [chunk, computed, decodes, context]: [f64; 4]) -> f64 {
        let pairs = chunk * (computed + chunk / 2.0) + decodes * context;
        (self.pair_s * pairs).max(self.kv_s * (chunk + computed + decodes * context))
    }
}

/// Attention of one layer, seconds.
#[derive(Clone, Debug)]
enum Attention {
    Mixed(llmservingsim::Mixed),
    Rounded(vidur::Rounded),
    Apart(aiconfigurator::Apart),
}

/// A cost model of measured times.
#[derive(Clone, Debug)]
pub struct Table {
    name: String,
    /// Nothing, if the table leaves out so much that a limit for the whole step would bind.
    limit: Option<Limit>,
    layers: f64,
    /// All matrices and other operations of all layers, by tokens.
    linear: Series,
    /// The output matrix and sampling, by positions.
    head: Option<Series>,
    attention: Attention,
    /// Tokens are rounded up to a multiple of this before they are looked up.
    tokens_step: u64,
    step_overhead_s: f64,
    sequence_overhead_s: f64,
}

impl Table {
    /// The same table with time added to every step, and for every sequence in it: what an engine does between launches. Seconds.
    pub fn with_overhead(self, step_s: f64, sequence_s: f64) -> Self {
        Self { step_overhead_s: step_s, sequence_overhead_s: sequence_s, ..self }
    }

    /// The time of a step before it is held to the limit, seconds.
    pub(super) fn step_s(&self, shape: &StepShape) -> f64 {
        let attention_s = match &self.attention {
            Attention::Mixed(mixed) => mixed.layer_s(shape),
            Attention::Rounded(rounded) => rounded.layer_s(shape),
            Attention::Apart(apart) => apart.layer_s(shape),
        };
        let head_s = self.head.as_ref().map_or(0.0, |head| head.at(shape.sampled));
        self.linear.at(shape.tokens.next_multiple_of(self.tokens_step))
            + self.layers * attention_s
            + head_s
            + self.step_overhead_s
            + self.sequence_overhead_s * shape.sequences() as f64
    }
}

impl CostModel for Table {
    fn name(&self) -> &str {
        &self.name
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        let time_s = self.step_s(shape);
        nanoseconds(self.limit.map_or(time_s, |limit| limit.hold(time_s, shape)))
    }
}

/// What the layers' matrices of one of `tensor` devices do for one token and for two.
fn linear_work(model: &Model, tensor: u32) -> [Work; 2] {
    let demand = Demand::new(model);
    [1, 2]
        .map(|tokens| demand.parts(&StepShape { tokens, ..StepShape::default() }).layers.times(1.0 / f64::from(tensor)))
}

/// What the output matrix on one of `tensor` devices does for one position and for two.
fn head_work(model: &Model, tensor: u32) -> [Work; 2] {
    let demand = Demand::new(model);
    [1, 2]
        .map(|sampled| demand.parts(&StepShape { sampled, ..StepShape::default() }).head.times(1.0 / f64::from(tensor)))
}

/// A name for reports.
fn describe(source: &str, hardware: &Hardware, model: &Model, parallel: Parallel) -> String {
    let spread = if parallel == Parallel::ONE { String::new() } else { format!(" {parallel}") };
    format!("table of {source} ({} on {}{spread})", model.name, hardware.name)
}

#[cfg(test)]
mod tests;
