//! Runs of a recording with a change: a request that does not come, other settings, another router.
//!
//! Up to the first decision that differs a run gets the recorded inputs. From there on requests arrive and are given up at their recorded times, and
//! generate their recorded texts; workers are lost and return at their recorded times. Steps take their recorded time where the same requests run the
//! same tokens on the same engine, and else the time of a fit to the steps of the recording ([`crate::calibrate`](mod@crate::calibrate)); copies
//! likewise. So what does not depend on the change is equal in both runs.
//!
//! A request whose arrival depends on an answer before it, as the next turn of a chat, comes at its recorded time all the same. Sequences
//! whose worker reports scores (H2O) cannot run with other decisions, because their scores were not recorded.

use serde::Serialize;
use trunkline_cluster::ClusterError;
use trunkline_core::{ConfigError, FinishReason, RequestId};
use trunkline_sim_perf::cost::StepErrors;

mod change;
mod decisions;
mod run;
mod saved;
mod script;
mod times;

pub use change::{Change, ChangeError, Value};
pub(crate) use decisions::{fold, prompt_mark, text as decisions_text};
pub use saved::{SavedError, SavedFault};
pub use script::{Script, Served};
pub use times::Sources;

use run::Run;

/// Recording that cannot run with a change.
#[derive(Debug, thiserror::Error)]
pub enum RerunError {
    /// A value that its setting does not take.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Settings that no cluster has.
    #[error(transparent)]
    Cluster(Box<ClusterError>),
    /// A request to leave out that is not there.
    #[error("the recording has no request {0}, so it cannot run without it")]
    NoRequest(RequestId),
    /// Hints to leave out that are not there.
    #[error("no request of the recording has hints, so it cannot run without them")]
    NoHints,
    /// Too few steps to fit the time of others to.
    #[error("the recording has {found} steps, too few to estimate the time of others; record a longer run")]
    TooFewSteps {
        /// Number of recorded steps.
        found: usize,
    },
    /// Steps that ask for scores.
    #[error(
        "the worker reports scores (H2O), which are not recorded, so the recording cannot run with other decisions"
    )]
    Scores,
    /// Answers to steps that are not in flight: a saved recording that was changed.
    #[error("the saved recording is damaged: it answers a step that was not sent; save it again")]
    Damaged,
}

/// Durations of the steps of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timing {
    /// Recorded ones where the decision is the same.
    Recorded,
    /// Fitted ones for all steps, from the first: shows how far off the fit is.
    Fitted,
}

/// End of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// When all requests have ended that completed in the recording.
    End,
    /// When this request has ended, by its place among the requests.
    Request(usize),
    /// When those have ended of the first so many requests that completed in the recording.
    First(usize),
}

/// First decision that differs from the recorded one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Number of the input, from 0.
    pub input: usize,
    /// Time, nanoseconds.
    pub at_ns: u64,
    /// Decisions with the change.
    pub decisions: String,
    /// Recorded decisions.
    pub recorded: Option<String>,
}

/// End of a request in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// First token, nanoseconds.
    pub first_token_ns: Option<u64>,
    /// End, nanoseconds, and its reason; `None` if it did not end.
    pub end: Option<(u64, FinishReason)>,
    /// Prompt tokens found in the cache.
    pub cached_tokens: u32,
}

/// Run of a recording with a change.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rerun {
    /// First difference; `None` if all decisions are the recorded ones.
    pub first_difference: Option<Difference>,
    /// Ends of the requests, in their order of arrival.
    pub requests: Vec<Ended>,
    /// Sources of the durations after the first difference.
    pub sources: Sources,
    /// Digest of the decisions.
    pub digest: u64,
    lacks_fit: bool,
}

impl Script {
    /// Runs the recording with all of the changes.
    ///
    /// # Errors
    ///
    /// [`RerunError`] if a change is impossible, or the recording lacks what the run needs.
    pub fn rerun(&self, changes: &[Change], timing: Timing, until: Until) -> Result<Rerun, RerunError> {
        Run::new(self, changes, timing)?.run(until)
    }

    /// Adds the recorded decisions to differences from them, in one more run of the recording.
    ///
    /// # Errors
    ///
    /// [`RerunError`] as [`Self::rerun`].
    pub fn add_recorded(&self, differences: &mut [&mut Difference]) -> Result<(), RerunError> {
        let mut inputs: Vec<usize> = differences.iter().map(|difference| difference.input).collect();
        inputs.sort_unstable();
        inputs.dedup();
        let texts = match self.texts.is_empty() {
            true => Run::new(self, &[], Timing::Recorded)?.decisions_at(&inputs)?,
            false => inputs.iter().filter_map(|input| self.texts.get(*input).cloned()).collect(),
        };
        for difference in differences {
            difference.recorded = inputs.binary_search(&difference.input).ok().and_then(|at| texts.get(at).cloned());
        }
        Ok(())
    }

    /// Returns the errors of the fit to the recorded steps, on every fifth step left out of it; `None` if there are too few steps.
    pub fn fit_errors(&self) -> Option<StepErrors> {
        self.times.calibration().map(|found| found.held_out)
    }
}
