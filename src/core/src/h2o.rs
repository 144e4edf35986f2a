//! Eviction within a sequence: dropping blocks hardly read by attention (H2O, arXiv 2306.14048), and the scorers of blocks.
//!
//! The worker reports scores of attention per KV block ([`Needs`] says for which rows), a [`Scorer`] folds them into the [`Scores`] of
//! a sequence, and from these [`plan()`] chooses the blocks to drop, every [`Settings::interval_steps`] token steps. Everything here is
//! pure; [`State`] is the state of one sequence. All evicting layers of a sequence follow one plan.
//!
//! Scorers are found by name. To add one: write `h2o/NAME.rs` with an implementation of [`Scorer`], and add a line to [`REGISTRY`].
//!
//! | name | blocks kept next to the floors | source |
//! |---|---|---|
//! | `h2o` | highest moving average of attention mass | Zhang et al., arXiv 2306.14048 |
//! | `streaming` | the latest | Xiao et al., arXiv 2309.17453 |
//! | `snapkv` | most read by the last rows of the prompt | Li et al., arXiv 2404.14469 |
//! | `tova` | most read by the last row | Oren et al., arXiv 2401.06104 |
//! | `hmax` | highest probability in any row and head, from 32 positions or more | measured with the project |
//! | `kvzip` | most read when the prompt is repeated | Kim et al., arXiv 2505.23416 |
//! | `random` | highest hash; a baseline, which must fail every gate | |
//!
//! ```
//! use trunkline_core::h2o::{REGISTRY, Rows, Settings, State, Target};
//! use trunkline_core::RequestId;
//!
//! let target = Target::Adaptive { lossy_ratio: 2.0 };
//! let settings = Settings { block_tokens: 16, sink_tokens: 16, recent_tokens: 32, trigger_tokens: 64, target, ..Settings::default() };
//! settings.validate(16)?;
//! let scorer = REGISTRY.make("tova", settings)?;
//! let mut state = State::new(&scorer.needs(), 1);
//! // 10 KV blocks of 16 tokens; the last row of the prompt read the first, the fourth and the last most.
//! let scores = [0.2, 0.05, 0.02, 0.3, 0.01, 0.02, 0.05, 0.05, 0.1, 0.2];
//! state.report(&*scorer, &settings, &scores, 16, Rows { n: 1, prefill: true });
//! // A prompt above the trigger is planned at once; there is a plan for each of the settings.
//! let plans = state.plans(&*scorer, &[settings], RequestId(1), 160);
//! // Half of 160 tokens stay: 48 in the floors, the fourth block, and the last of three blocks with a score of 0.05.
//! assert_eq!(plans[0].reserve, [0..16, 48..64, 112..160]);
//! assert_eq!(plans[0].drops, [16..48, 64..112]);
//! state.apply(&[settings], &plans);
//! assert_eq!(state.holes()[0].held_tokens(160, 16), 80);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod heavy_hitters;
mod hmax;
mod kvzip;
mod mode;
pub mod plan;
mod random;
mod scores;
mod settings;
mod snapkv;
mod state;
mod streaming;
mod tova;

use std::fmt;

use trunkline_port::{RequestId, ScoreKind};

pub use self::mode::Mode;
pub use self::plan::{Holes, Plan, Ratios, plan};
pub use self::scores::Scores;
pub use self::settings::{Settings, SettingsError, Target};
pub use self::state::State;
use crate::names::registry::{Entry, Registry};

/// Rows of a request's steps to be scored for a scorer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Kind of the scores.
    pub kind: ScoreKind,
    /// Last rows of the prompt to be scored, at most; 0 for none, [`u32::MAX`] for all.
    pub prompt_rows: u32,
    /// Rows of a scored decode step to be scored: 1, or 0 for none.
    pub decode_rows: u32,
    /// Decode steps from one that is scored to the next; 0 counts as 1, all steps.
    pub decode_interval: u32,
    /// Tokens of the prompt to be read again at a time, after the prompt, after the first token of the answer; 0 for no second reading. The
    /// first plan waits for its scores ([`State::report_reread`]).
    pub reread_tokens: u32,
}

impl Needs {
    /// Returns [`trunkline_port::Scored::rows`] for a prefill chunk of the positions `computed .. computed + n_tokens` of a
    /// prompt: the rows of the chunk among the last `prompt_rows` rows of the prompt. They are the last rows of the chunk.
    pub fn rows_of_chunk(&self, computed: u32, n_tokens: u32, prompt_tokens: u32) -> u32 {
        let from = prompt_tokens.saturating_sub(self.prompt_rows).max(computed);
        (computed + n_tokens).saturating_sub(from).min(n_tokens)
    }

    /// Returns `true` if the scorer knows nothing before the first decode steps, so that the first plan has to wait for an interval.
    pub fn waits_for_decodes(&self) -> bool {
        self.prompt_rows == 0 && self.reread_tokens == 0 && self.decode_rows > 0
    }
}

/// Rows behind the scores of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Number of scored rows, at least 1.
    pub n: u32,
    /// `true` for rows of a prompt, `false` for a decode step.
    pub prefill: bool,
}

/// A way to rank the blocks of a sequence. One scorer serves all sequences; the knowledge of a sequence lies in the
/// [`Scores`] of the sequence.
///
/// An implementation MUST be a pure function of the calls it gets and its own parameters: no clock, no randomness other than a hash, no
/// interior mutability. Otherwise a recording does not replay.
pub trait Scorer: Send + Sync + fmt::Debug {
    /// Returns the rows to be scored by the worker. MUST be constant.
    fn needs(&self) -> Needs;

    /// Takes the scores of a step, by planner block, into the scores of the sequence.
    fn observe(&self, scores: &mut Scores, step: &[f32], rows: Rows);

    /// Returns the rank of a block: blocks of the highest rank stay. Called for blocks outside the floors. A negative,
    /// infinite or NaN rank counts as 0.
    fn rank(&self, scores: &Scores, _request: RequestId, block: u32) -> f32 {
        scores.get(block).unwrap_or(0.0)
    }
}

/// All scorers. The context are the settings of the planner.
pub static REGISTRY: Registry<Box<dyn Scorer>, Settings> = Registry::new(
    "h2o scorer",
    &[
        Entry {
            name: "h2o",
            about: "highest moving average of attention mass in decode steps (arXiv 2306.14048)",
            params: &[],
            make: |_, settings| Box::new(heavy_hitters::HeavyHitters::new(&settings)),
        },
        Entry {
            name: "streaming",
            about: "first and latest tokens alone (arXiv 2309.17453)",
            params: &[],
            make: |_, _| Box::new(streaming::Streaming),
        },
        Entry {
            name: "snapkv",
            about: "most read by the last rows of the prompt (arXiv 2404.14469)",
            params: &snapkv::PARAMS,
            make: |values, _| Box::new(snapkv::SnapKv::new(values)),
        },
        Entry {
            name: "tova",
            about: "most read by the last row (arXiv 2401.06104)",
            params: &[],
            make: |_, _| Box::new(tova::Tova),
        },
        Entry {
            name: "hmax",
            about: "highest probability in any row and head, from 32 positions or more",
            params: &[],
            make: |_, _| Box::new(hmax::HighestProbability),
        },
        Entry {
            name: "kvzip",
            about: "most read when the prompt is repeated, in a second pass over it (arXiv 2505.23416)",
            params: &kvzip::PARAMS,
            make: |values, _| Box::new(kvzip::KvZip::new(values)),
        },
        Entry {
            name: "random",
            about: "a hash of request and block; a baseline",
            params: &random::PARAMS,
            make: |values, _| Box::new(random::Random::new(values)),
        },
    ],
);

#[cfg(test)]
mod tests;
