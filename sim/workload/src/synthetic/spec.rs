//! What is written down of a workload.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::arrivals::Arrivals;
use super::assumed::Assumed;
use super::distribution::Distribution;
use super::{POPULATIONS_MAX, REQUESTS_MAX, SECONDS_MAX, SYSTEM_PROMPTS_MAX};
use crate::lines::LineNumber;
use crate::trace::{LENGTH_TOKENS_MAX, TraceError};

/// The greatest file that is read, bytes.
const SPEC_BYTES_MAX: u64 = 1 << 20;
/// Prompt and answer together, unless a spec says otherwise.
const MAX_CONTEXT_TOKENS_DEFAULT: u32 = 131_072;
/// The least that leaves room for a system prompt, a question and an answer.
const MAX_CONTEXT_TOKENS_MIN: u32 = 8;
const ZIPF_MAX: f64 = 10.0;

/// A workload. [`super`] says what the fields mean and how they are written.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Spec {
    /// What is drawn depends on this.
    #[serde(default)]
    pub seed: u64,
    /// Requests at most.
    pub requests: u64,
    /// No session begins later, seconds.
    #[serde(default = "longest_s")]
    pub duration_s: f64,
    /// Prompt and answer together at most, tokens.
    #[serde(default = "max_context_tokens")]
    pub max_context_tokens: u32,
    /// How long answers take when nobody really answers.
    #[serde(default)]
    pub assumed_service: Assumed,
    /// Who asks.
    pub population: Vec<PopulationSpec>,
    /// Where the paths of traces are counted from.
    #[serde(skip)]
    pub folder: PathBuf,
}

/// A population: sessions that are alike.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PopulationSpec {
    /// For messages.
    #[serde(default)]
    pub name: String,
    /// When sessions begin.
    pub arrivals: Arrivals,
    /// What a user writes in a turn, tokens.
    pub input_tokens: Distribution,
    /// What is answered in the end of a turn, tokens.
    pub output_tokens: Distribution,
    /// What comes before it all.
    pub system_prompts: Option<SystemPrompts>,
    /// More than one turn.
    pub session: Option<SessionSpec>,
    /// More than one call in a turn.
    pub agent: Option<AgentSpec>,
}

/// Prompts that many sessions begin with.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SystemPrompts {
    /// How many there are.
    pub count: u32,
    /// The exponent of their popularity.
    pub zipf: f64,
    /// Their lengths.
    pub tokens: Distribution,
}

/// A session of several turns.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SessionSpec {
    /// How many.
    pub turns: Distribution,
    /// From the end of an answer to the next question, seconds.
    pub think_s: Distribution,
}

/// A turn of several calls.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct AgentSpec {
    /// Calls of the model in a turn.
    pub calls: Distribution,
    /// What a call generates that is not the last of its turn: the use of a tool.
    pub call_tokens: Distribution,
    /// From the end of a call to the next one: how long the tool runs, seconds.
    pub tool_s: Distribution,
    /// What the tool says.
    pub tool_output_tokens: Distribution,
}

fn longest_s() -> f64 {
    SECONDS_MAX
}

fn max_context_tokens() -> u32 {
    MAX_CONTEXT_TOKENS_DEFAULT
}

/// A fault in a spec: which file, which line, what, and what to do.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {fault}", path.display(), LineNumber(*line))]
pub struct WorkloadError {
    /// The file.
    pub path: PathBuf,
    /// The line, from 1; 0 if the fault is in no line.
    pub line: u64,
    /// What is wrong with it.
    pub fault: WorkloadFault,
}

/// What can be wrong with a spec.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadFault {
    /// The file could not be read.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    /// Nobody writes so long a spec.
    #[error("is longer than {SPEC_BYTES_MAX} bytes; this is no workload")]
    TooLong,
    /// It is no TOML, or a field is not as it should be.
    #[error("{0}")]
    Toml(String),
    /// A field of the whole is out of range.
    #[error("{field} is {value}; it must be {expected}")]
    Range {
        /// The field.
        field: String,
        /// What it is.
        value: f64,
        /// What it may be.
        expected: String,
    },
    /// A trace that lengths are drawn from cannot be read.
    #[error("of population {population}: {error}")]
    Samples {
        /// Number of the population, from 1, and its name.
        population: String,
        /// What is wrong with the trace.
        error: Box<TraceError>,
    },
}

impl Spec {
    /// Reads a spec and checks it.
    pub fn load(path: &Path) -> Result<Self, WorkloadError> {
        let fail = |fault| WorkloadError { path: path.into(), line: 0, fault };
        let length = fs::metadata(path).map_err(|e| fail(e.into()))?.len();
        if length > SPEC_BYTES_MAX {
            return Err(fail(WorkloadFault::TooLong));
        }
        let text = fs::read_to_string(path).map_err(|e| fail(e.into()))?;
        let mut spec = Self::parse(&text).map_err(|(line, fault)| WorkloadError { path: path.into(), line, fault })?;
        spec.folder = path.parent().map(PathBuf::from).unwrap_or_default();
        Ok(spec)
    }

    /// Reads a spec from text and checks it; an error comes with its line, 0 if it is in none.
    pub fn parse(text: &str) -> Result<Self, (u64, WorkloadFault)> {
        let spec: Self = toml::from_str(text).map_err(|err| {
            let before = err.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            (before.matches('\n').count() as u64 + 1, WorkloadFault::Toml(err.message().replace('\n', " ")))
        })?;
        spec.check().map_err(|fault| (0, fault))?;
        Ok(spec)
    }

    /// Checks what no field can tell alone.
    pub(super) fn check(&self) -> Result<(), WorkloadFault> {
        within("requests", self.requests as f64, 1.0, REQUESTS_MAX as f64)?;
        within("duration-s", self.duration_s, 0.0, SECONDS_MAX)?;
        let most_tokens = f64::from(LENGTH_TOKENS_MAX);
        within("max-context-tokens", self.max_context_tokens.into(), MAX_CONTEXT_TOKENS_MIN.into(), most_tokens)?;
        within("the number of populations", self.population.len() as f64, 1.0, POPULATIONS_MAX as f64)?;
        within("first-token-s", self.assumed_service.first_token_s, 0.0, SECONDS_MAX)?;
        within("per-token-s", self.assumed_service.per_token_s, 0.0, SECONDS_MAX)?;
        for (number, population) in self.population.iter().enumerate() {
            let Some(prompts) = &population.system_prompts else { continue };
            let field =
                |field: &str| format!("{field} of system-prompts of population {}", label(number, &population.name));
            within(field("count"), prompts.count.into(), 1.0, SYSTEM_PROMPTS_MAX.into())?;
            within(field("zipf"), prompts.zipf, 0.0, ZIPF_MAX)?;
        }
        Ok(())
    }
}

/// What a population is called in messages.
pub(super) fn label(number: usize, name: &str) -> String {
    if name.is_empty() { (number + 1).to_string() } else { format!("{} ({name})", number + 1) }
}

fn within(field: impl Into<String>, value: f64, min: f64, max: f64) -> Result<(), WorkloadFault> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(WorkloadFault::Range { field: field.into(), value, expected: format!("from {min} to {max}") })
}
