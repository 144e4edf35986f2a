//! Cost models: how long a step takes.
//!
//! | model | from | use |
//! |---|---|---|
//! | [`Table`] | measured times of operations, or of whole attention calls | the device and model were profiled |
//! | [`Fitted`] | the steps or the benchmark of a server, see [`calibrate`](mod@calibrate) | there is a server |
//! | [`Roofline`] | peaks of the device, shapes of the model, shares of the peaks | anything else |
//! | [`Streaming`] | rates of a disk and a link, and a model of the computing | weights are larger than the memory |
//!
//! [`CostChoice`] names one of them, and [`Weights`] says where weights lie; [`trunkline_sim_replay::Settings::cost_model`] makes what was named.
//!
//! **None gives a step less time than the hardware needs**: each has a [`Limit`] of its own and holds every step to it.
//!
//! A sequence that drafts runs its drafts as further rows of the same step: they pass through all matrices, are sampled, and attend to
//! its context, which is read once for all of them. Making the drafts costs nothing, as when they are looked up in the context.
//!
//! Not modelled: tokenising, transport, and the time the core itself takes.
//!
//! # How far to trust them
//!
//! Each model's name says what it was compared with, and reports carry it. Errors of a step's time, without sign, over 600 steps of
//! Llama-3.1-8B (up to 128 decodes, chunks up to 2,048 tokens, and both), median and 95th percentile:
//!
//! | of | against | median | p95 |
//! |---|---|---|---|
//! | roofline, RTX 4090 | LLMServingSim's profile of vLLM 0.19, which times calls that mix | 4.2 % | 18.7 % |
//! | roofline, H100 | aiconfigurator's kernels of vLLM 0.24, added up | 4.4 % | 14.1 % |
//! | roofline, H200 | the same | 5.1 % | 13.2 % |
//! | roofline, A100 | aiconfigurator's kernels of vLLM 0.14, added up | 8.9 % | 17.0 % |
//! | aiconfigurator's A100 table | Vidur's A100 tables: other kernels for attention | 12.3 % | 24.1 % |
//!
//! The last line is how far two profiles of one device are apart, so no model of it can be said to be nearer to the truth than that.
//! Other devices have no table at hand; their factors are assumptions.
//!
//! Whole runs: with Vidur's tables its own run of 19,366 requests comes out within 0.35 % in all means and percentiles if chunks end where
//! Vidur's do, and within 2.1 % if they end at blocks of 16 tokens; the first request is the same to the microsecond. For a run of a
//! real engine see the crate's documentation. Near saturation a small error of step times is a large one
//! of latencies: at nine tenths of the capacity one per cent of a step can be ten of a waiting time.

use trunkline_core::Step;

use crate::hardware::Hardware;
pub use crate::hardware::StepTime;
use crate::model::Model;

pub mod choice;
mod fitted;
mod grid;
mod guard;
mod mixed;
mod parallel;
mod roofline;
mod streaming;
pub mod table;
pub mod weights;
mod work;

pub use choice::{CostChoice, CostChoiceError, CostError};
pub use fitted::{FEATURES, Fitted, features};
pub use guard::Limit;
pub use mixed::Mixed;
pub use parallel::{Parallel, ParallelError};
pub use roofline::Roofline;
pub use streaming::{Order, Resident, Streaming, StreamingError, StreamingPlan};
pub use table::Table;
pub use weights::{Weights, WeightsError};

/// What of a step decides its duration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Tokens run through the model, drafts included.
    pub tokens: u64,
    /// Sequences of one token and perhaps drafts: decodes, and prefill chunks that are no different.
    pub decodes: u64,
    /// Sequences of more than one token.
    pub prefills: u64,
    /// Positions at which a token is sampled.
    pub sampled: u64,
    /// Pairs (query token, key token) in prefill attention: for a chunk of `c` tokens after `k` computed ones
    /// `c * k + c * (c + 1) / 2`.
    pub prefill_pairs: u64,
    /// Tokens whose KV prefill attention reads: the sum of `k + c`.
    pub prefill_kv_tokens: u64,
    /// Tokens of prefill chunks: the sum of `c`.
    pub prefill_tokens: u64,
    /// The sum of `c * c`.
    pub prefill_squares: u64,
    /// Pairs (query token, key token) in decode attention: `k + 1`, and with drafts as for a chunk.
    pub decode_pairs: u64,
    /// Tokens whose KV decode attention reads: the sum of `k + 1` and drafts.
    pub decode_kv_tokens: u64,
    /// The longest context of a decode, tokens.
    pub decode_kv_max: u64,
}

impl StepShape {
    /// Sums up a step.
    pub fn of(step: &Step) -> Self {
        let mut shape = Self::default();
        for seq in &step.seqs {
            let (drafts, computed) = (u64::from(seq.n_drafts), u64::from(seq.computed));
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

    /// A chunk of `chunk` tokens after `computed` ones, sampled at its end.
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

    /// `n` decodes, each of which reads `context` tokens.
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

    /// Both in one step.
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
        }
    }

    /// Sequences in the step.
    pub fn sequences(&self) -> u64 {
        self.decodes + self.prefills
    }

    /// Tokens computed before, of the sequences that prefill: the sum of `k`.
    pub fn prefill_computed(&self) -> u64 {
        self.prefill_kv_tokens - self.prefill_tokens
    }
}

/// Gives steps their durations. It MUST be a pure function of the shape, or replays will differ.
pub trait CostModel {
    /// The name that reports carry.
    fn name(&self) -> &str;

    /// The duration of a step, nanoseconds.
    fn step_ns(&self, shape: &StepShape) -> u64;

    /// The duration of a step of one replica of a fleet, nanoseconds; all take the same unless they are of several kinds.
    fn replica_step_ns(&self, replica: usize, shape: &StepShape) -> u64 {
        let _ = replica;
        self.step_ns(shape)
    }
}

/// A cost model that several threads may ask at once: making one can take as long as reading a table does, asking it takes no memory.
pub type BoxedCost = Box<dyn CostModel + Send + Sync>;

/// Tokens of a typical prefill chunk.
const TYPICAL_CHUNK_TOKENS: u64 = 2048;

/// What computing the KV of a token costs in a prefill, for [`trunkline_core::Config::recompute_token_ns`]: its share of a chunk of
/// 2,048 tokens that begins a sequence. In chunks far into a long sequence attention makes it more.
pub fn recompute_token_ns(cost: &dyn CostModel) -> u64 {
    replica_recompute_token_ns(cost, 0)
}

/// The same on one replica of a fleet.
pub fn replica_recompute_token_ns(cost: &dyn CostModel, replica: usize) -> u64 {
    let chunk = TYPICAL_CHUNK_TOKENS;
    let shape = StepShape { sampled: 0, ..StepShape::prefill(chunk, 0) };
    cost.replica_step_ns(replica, &shape).div_ceil(chunk)
}

/// The best model there is of steps of `model` on `hardware`: what was measured on it, if that was this model on one device, else a
/// roofline.
pub fn of(hardware: &Hardware, model: &Model, parallel: Parallel) -> BoxedCost {
    match choice::fitted(hardware, model, parallel) {
        Some(fitted) => Box::new(fitted),
        None => Box::new(Roofline::parallel(hardware, model, parallel)),
    }
}

/// Seconds as whole nanoseconds, never less.
pub(crate) fn nanoseconds(time_s: f64) -> u64 {
    (time_s * 1e9).ceil() as u64
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
