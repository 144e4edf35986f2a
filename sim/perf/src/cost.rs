//! Cost models: durations of steps.
//!
//! | model | source | use |
//! |---|---|---|
//! | [`Table`] | measured times of operations, or of whole attention calls | profiled devices and models |
//! | [`Fitted`] | steps or benchmark of a server | servers that you can measure |
//! | [`Roofline`] | peaks of the device, shapes of the model, shares of the peaks | everything else |
//! | [`Streaming`] | rates of a disk and a link, and a compute model | weights larger than the memory |
//!
//! [`CostChoice`] selects a model by name, and [`Weights`] the placement of the weights.
//!
//! **No model is faster than the hardware**: each applies a [`LowerBound`] to every step.
//!
//! A sequence with speculative decoding runs its drafts as further rows of the same step: drafts pass through all matrices, are
//! sampled, and attend to the context, which is read once for all. Proposing drafts costs nothing, as with lookups in the context.
//!
//! The work of an engine between kernels, as scheduling and sampling, is an [`EngineOverhead`], 0 unless given; a fit to a server includes
//! it. Not modelled: tokenising, and transport to clients.
//!
//! # Accuracy
//!
//! The name of each model states its error, for this model, this parallelism and each kind of batch (prefills alone, decodes alone,
//! both), and reports carry the name. The figures are the median and the 95th percentile of the absolute error of a step's time,
//! always against measurements that the model was not fitted to:
//!
//! | model | error |
//! |---|---|
//! | roofline | of a model and a number of devices with a table: the table against the factors of the file, if these were fitted to another one, else against factors fitted to all the others; of other models in 16 bits, dense or with experts: the largest of the measured models of the sort on as many devices, named as such |
//! | table | of interpolation, with every third point of each axis left out |
//! | fitted | of every fifth step of the run, with a fit to the others |
//!
//! All else is "not measured": data-parallel attention, latent caches, weights in 8 bits, pipelines, streamed weights, and Vidur's tables, whose points are
//! predictions themselves. [`hardware::file`](crate::hardware::file) holds the errors of rooflines; a table of kernels added up is the
//! reference, so the engine's own work between kernels is not in them. Over the same 600 steps of Llama-3.1-8B, the aiconfigurator's A100
//! table and Vidur's A100 tables differ by 12.3 % in the median and 24.1 % at the 95th percentile: two profiles of one device, so no model of
//! that device can be shown to be more accurate.
//!
//! Whole runs: with Vidur's tables, Vidur's own run of 19,366 requests is reproduced within 0.35 % in all means and percentiles if
//! chunks end at Vidur's positions, and within 2.1 % if chunks end at blocks of 16 tokens; the first request matches to the
//! microsecond. The front page of `trunkline-sim-replay` reports a run of a real engine. Near saturation, a small error of step
//! times becomes a large error of latencies: at 90 % of the capacity, one per cent of a step can become ten per cent of a waiting
//! time.

use serde::{Deserialize, Serialize};
use trunkline_core::{Step, StepSeq};
pub use trunkline_port::WeightReads;

use crate::hardware::Hardware;
pub use crate::hardware::{Curve, Largest, Piece, Residuals, StepErrors, StepTime};
use crate::model::Model;

pub mod choice;
pub mod errors;
mod exchange;
mod experts;
mod fitted;
mod grid;
mod lower_bound;
mod mixed;
mod overhead;
mod parallel;
mod range;
mod roofline;
mod streaming;
pub mod table;
pub mod weights;
mod windowed;
mod work;

pub use choice::{CostChoice, CostChoiceError, CostError};
pub use errors::Sample;
pub use fitted::Fitted;
pub use lower_bound::LowerBound;
pub use mixed::Mixed;
pub use overhead::{EngineOverhead, EngineOverheadError};
pub use parallel::{Parallel, ParallelError};
pub use range::TimeRange;
pub use roofline::Roofline;
pub use streaming::{Order, Resident, Streaming, StreamingError, StreamingPlan};
pub use table::Table;
pub use weights::{WINDOW_PARAMS, Weights, WeightsError};
pub use windowed::{Windowed, WindowedCost};

/// Batch shape of a step, as far as it determines the duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepShape {
    /// Tokens run through the model, drafts included.
    pub tokens: u64,
    /// Sequences with one token and perhaps drafts: decodes, and prefill chunks of one token.
    pub decodes: u64,
    /// Sequences with more than one token.
    pub prefills: u64,
    /// Number of sampled positions in the step.
    pub sampled: u64,
    /// (Query, key) pairs in prefill attention: for a chunk of `c` tokens after `k` computed ones `c * k + c * (c + 1) / 2`.
    pub prefill_pairs: u64,
    /// Tokens of KV read by prefill attention: the sum of `k + c`.
    pub prefill_kv_tokens: u64,
    /// Tokens of prefill chunks: the sum of `c`.
    pub prefill_tokens: u64,
    /// Sum of `c * c` over prefill chunks.
    pub prefill_squares: u64,
    /// (Query, key) pairs in decode attention: `k + 1`, and with drafts as for a chunk.
    pub decode_pairs: u64,
    /// Tokens of KV read by decode attention: the sum of `k + 1` and drafts.
    pub decode_kv_tokens: u64,
    /// Longest context of a decode, tokens.
    pub decode_kv_max: u64,
    /// Tokens whose KV is copied within the device before the step.
    pub copied_tokens: u64,
}

impl StepShape {
    /// Returns the size of the step.
    pub fn size(&self) -> Largest {
        let context = self.decode_kv_tokens.checked_div(self.decodes);
        Largest { sequences: self.sequences(), tokens: self.tokens, context }
    }

    /// Returns the batch shape of a step.
    pub fn of(step: &Step) -> Self {
        Self::reading(step, |seq| seq.computed.into())
    }

    /// Returns the batch shape of a step in which attention reads so many tokens of KV before the chunk of each sequence.
    pub fn reading(step: &Step, read: impl Fn(&StepSeq) -> u64) -> Self {
        let copied_tokens = step.copies.iter().map(|copy| u64::from(copy.n_tokens)).sum();
        let mut shape = Self { copied_tokens, ..Self::default() };
        for seq in &step.seqs {
            let (drafts, computed) = (u64::from(seq.n_drafts), read(seq));
            let chunk = u64::from(seq.n_tokens) + drafts;
            shape.tokens += chunk;
            shape.sampled += u64::from(seq.sample) + drafts;
            let pairs = chunk * computed + chunk * (chunk + 1) / 2;
            if seq.n_tokens == 1 {
                shape.decodes += 1;
                shape.decode_pairs += pairs;
                shape.decode_kv_tokens += computed + chunk;
                shape.decode_kv_max = shape.decode_kv_max.max(computed + chunk);
            } else {
                shape.prefills += 1;
                shape.prefill_pairs += pairs;
                shape.prefill_kv_tokens += computed + chunk;
                shape.prefill_tokens += chunk;
                shape.prefill_squares += chunk * chunk;
            }
        }
        shape
    }

    /// Returns the shape of a prefill chunk of `chunk` tokens after `computed` ones, sampled at its end.
    pub fn prefill(chunk: u64, computed: u64) -> Self {
        Self {
            tokens: chunk,
            prefills: 1,
            sampled: 1,
            prefill_pairs: chunk * computed + chunk * (chunk + 1) / 2,
            prefill_kv_tokens: chunk + computed,
            prefill_tokens: chunk,
            prefill_squares: chunk * chunk,
            ..Self::default()
        }
    }

    /// Returns the shape of `n` decodes with contexts of `context` tokens.
    pub fn decodes(n: u64, context: u64) -> Self {
        Self {
            tokens: n,
            decodes: n,
            sampled: n,
            decode_pairs: n * context,
            decode_kv_tokens: n * context,
            decode_kv_max: if n == 0 { 0 } else { context },
            ..Self::default()
        }
    }

    /// Combines two shapes into one step.
    pub fn and(self, other: Self) -> Self {
        Self {
            tokens: self.tokens + other.tokens,
            decodes: self.decodes + other.decodes,
            prefills: self.prefills + other.prefills,
            sampled: self.sampled + other.sampled,
            prefill_pairs: self.prefill_pairs + other.prefill_pairs,
            prefill_kv_tokens: self.prefill_kv_tokens + other.prefill_kv_tokens,
            prefill_tokens: self.prefill_tokens + other.prefill_tokens,
            prefill_squares: self.prefill_squares + other.prefill_squares,
            decode_pairs: self.decode_pairs + other.decode_pairs,
            decode_kv_tokens: self.decode_kv_tokens + other.decode_kv_tokens,
            decode_kv_max: self.decode_kv_max.max(other.decode_kv_max),
            copied_tokens: self.copied_tokens + other.copied_tokens,
        }
    }

    /// Returns the number of sequences in the step.
    pub fn sequences(&self) -> u64 {
        self.decodes + self.prefills
    }

    /// Returns the computed tokens before the chunks of prefills: the sum of `k`.
    pub fn prefill_computed(&self) -> u64 {
        self.prefill_kv_tokens - self.prefill_tokens
    }
}

/// Times of a step in the stages of a pipeline. A stage runs one step at a time, while other steps are in the stages before and behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PipelinedStep {
    /// Time in each stage but the last, with sending to the next stage, nanoseconds.
    pub stage_ns: u64,
    /// Time in the last stage, with output matrix and sampling, nanoseconds.
    pub last_ns: u64,
}

impl PipelinedStep {
    /// Returns the times of a step that runs as a whole in the last stage: steps follow one another.
    pub const fn undivided(step_ns: u64) -> Self {
        Self { stage_ns: 0, last_ns: step_ns }
    }

    /// Returns the times of a step with these times in the stages, or longer ones so that no stage is faster than `limit_s`, seconds.
    pub(crate) fn at_least(limit_s: f64, stage_s: f64, last_s: f64) -> Self {
        Self { stage_ns: nanoseconds(stage_s.max(limit_s)), last_ns: nanoseconds(last_s.max(limit_s)) }
    }
}

/// Duration of a step, and the reads of weights for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimedStep {
    /// Duration of the step, nanoseconds.
    pub ns: u64,
    /// Reads of weights for the step; zeros if no weights are streamed.
    pub reads: WeightReads,
}

/// Model of step durations. MUST be a pure function of the shape; otherwise replays differ.
pub trait CostModel {
    /// Returns the name for reports.
    fn name(&self) -> &str;

    /// Returns the duration of a step, nanoseconds.
    fn step_ns(&self, shape: &StepShape) -> u64;

    /// Returns the errors of step times on one replica of a fleet, against measurements that the model has not seen.
    fn errors(&self, replica: usize) -> StepErrors {
        let _ = replica;
        StepErrors::default()
    }

    /// Returns the range of real step times on one replica of a fleet; `None` if nothing says how far the model is from runs of engines.
    fn range(&self, replica: usize) -> Option<TimeRange> {
        let _ = replica;
        None
    }

    /// Returns the largest steps that the times on one replica of a fleet were measured with; times of larger ones are extrapolated. `None` if the
    /// model has no such end.
    fn largest(&self, replica: usize) -> Option<Largest> {
        let _ = replica;
        None
    }

    /// Returns the reads of weights for a step on one replica of a fleet; zeros if no weights are streamed.
    fn weight_reads(&self, replica: usize, shape: &StepShape) -> WeightReads {
        let _ = (replica, shape);
        WeightReads::default()
    }

    /// Returns [`Self::replica_step_ns`] and [`Self::weight_reads`] of a step, for models with weights at the cost of one.
    fn timed_step(&self, replica: usize, shape: &StepShape) -> TimedStep {
        TimedStep { ns: self.replica_step_ns(replica, shape), reads: self.weight_reads(replica, shape) }
    }

    /// Returns the times of a step that is one of several in a pipeline. A model without stages runs steps one after another.
    fn pipelined(&self, shape: &StepShape) -> PipelinedStep {
        PipelinedStep::undivided(self.step_ns(shape))
    }

    /// Returns the times of a step in the pipeline of one replica of a fleet; equal for all replicas of one kind.
    fn replica_pipelined(&self, replica: usize, shape: &StepShape) -> PipelinedStep {
        let _ = replica;
        self.pipelined(shape)
    }

    /// Returns the duration of one step of a group of ranks in lock step, nanoseconds: data-parallel attention, experts in common.
    /// There is a shape for each rank, empty for one without work, which runs along. `replica` is the first rank.
    fn lock_step_ns(&self, replica: usize, shapes: &[StepShape]) -> u64 {
        shapes.iter().map(|shape| self.replica_step_ns(replica, shape)).max().unwrap_or(0)
    }

    /// Returns the duration of a step on one replica of a fleet, nanoseconds; equal for all replicas of one kind.
    fn replica_step_ns(&self, replica: usize, shape: &StepShape) -> u64 {
        let _ = replica;
        self.step_ns(shape)
    }
}

/// Cost model that several threads can share. Construction can take as long as reading a table; queries allocate nothing.
pub type BoxedCost = Box<dyn CostModel + Send + Sync>;

/// Length of a typical prefill chunk, tokens.
const TYPICAL_CHUNK_TOKENS: u64 = 2048;

/// Returns the cost of recomputing a token in a prefill, for [`trunkline_core::Config::recompute_token_ns`]: its share of an
/// initial chunk of 2,048 tokens. Later chunks of a long sequence cost more per token, because of attention.
pub fn recompute_token_ns(cost: &dyn CostModel) -> u64 {
    replica_recompute_token_ns(cost, 0)
}

/// Returns the cost of recomputing a token on one replica of a fleet, nanoseconds.
pub fn replica_recompute_token_ns(cost: &dyn CostModel, replica: usize) -> u64 {
    let chunk = TYPICAL_CHUNK_TOKENS;
    let shape = StepShape { sampled: 0, ..StepShape::prefill(chunk, 0) };
    cost.replica_step_ns(replica, &shape).div_ceil(chunk)
}

/// Returns the best model for steps of `model` on `hardware`: measured step times of this model on one device, else a roofline.
pub fn of(hardware: &Hardware, model: &Model, parallel: Parallel) -> BoxedCost {
    match choice::fitted(hardware, model, parallel) {
        Some(fitted) => Box::new(fitted),
        None => Box::new(Roofline::parallel(hardware, model, parallel)),
    }
}

/// Converts seconds to nanoseconds, rounding up.
pub(crate) fn nanoseconds(time_s: f64) -> u64 {
    let exact = time_s * 1e9;
    let whole = exact as u64;
    // As `ceil`, which is a call on processors of the oldest kind, and so in a program built for all.
    whole.saturating_add(u64::from((whole as f64) < exact))
}

#[cfg(test)]
mod tests {
    use trunkline_core::{RequestId, StepSeq};

    use super::*;

    #[test]
    fn a_shape_sums_up_its_step() {
        let seq = |computed, n_tokens, n_drafts, sample| StepSeq {
            request: RequestId(0),
            slot: 0,
            start: false,
            computed,
            n_tokens,
            n_history: 0,
            tokens_at: 0,
            input_from_last: false,
            kv_write_from: computed,
            table_keep: 0,
            blocks_at: 0,
            n_blocks: 0,
            sample,
            n_generated: 0,
            n_drafts,
        };
        let step = Step {
            seqs: vec![
                seq(99, 1, 0, true),
                seq(9, 1, 0, true),
                seq(20, 1, 2, true),
                seq(0, 4, 0, false),
                seq(10, 3, 0, true),
            ],
            ..Step::default()
        };
        let expected = StepShape {
            tokens: 12,
            decodes: 3,
            prefills: 2,
            sampled: 6,
            prefill_pairs: (1 + 2 + 3 + 4) + (11 + 12 + 13),
            prefill_kv_tokens: 4 + 13,
            prefill_tokens: 4 + 3,
            prefill_squares: 16 + 9,
            decode_pairs: 100 + 10 + (21 + 22 + 23),
            decode_kv_tokens: 100 + 10 + 23,
            decode_kv_max: 100,
            copied_tokens: 0,
        };
        assert_eq!(StepShape::of(&step), expected);
    }

    #[test]
    fn shapes_add_up() {
        let mixed = StepShape::prefill(4, 0).and(StepShape::prefill(3, 10)).and(StepShape::decodes(2, 50));
        assert_eq!((mixed.sequences(), mixed.tokens, mixed.sampled), (4, 9, 4));
        assert_eq!((mixed.prefill_computed(), mixed.prefill_pairs), (10, 10 + 36));
        assert_eq!((mixed.decode_kv_tokens, mixed.decode_kv_max), (100, 50));
        assert_eq!(StepShape::decodes(0, 9), StepShape::default());
    }
}
