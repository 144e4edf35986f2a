//! Specification of a workload, as written in TOML.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use trunkline_core::RetentionHint;
use trunkline_core::request::retention::{PRIORITY_DEFAULT, PRIORITY_MAX, TO_END};
use trunkline_quote::of_parser;

use super::arrivals::Arrivals;
use super::distribution::Distribution;
use super::open_loop::AssumedLatency;
use super::{POPULATIONS_MAX, REQUESTS_MAX, SECONDS_MAX, SYSTEM_PROMPTS_MAX};
use crate::lines::LineNumber;
use crate::trace::{LENGTH_TOKENS_MAX, Terms, TraceError};

/// Largest spec file, bytes.
const SPEC_BYTES_MAX: u64 = 1 << 20;
/// Default limit of prompt and answer together, tokens.
const MAX_CONTEXT_TOKENS_DEFAULT: u32 = 131_072;
/// Smallest limit of prompt and answer together: room for a system prompt, a question and an answer.
const MAX_CONTEXT_TOKENS_MIN: u32 = 8;
const ZIPF_MAX: f64 = 10.0;
/// Shortest deadline of a request, seconds.
const DEADLINE_S_MIN: f64 = 1e-6;

/// Specification of a workload. [`super`] explains the fields and their syntax.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Spec {
    /// Seed of all random draws.
    #[serde(default)]
    pub seed: u64,
    /// Maximum number of requests.
    pub requests: u64,
    /// Latest start of a session, seconds.
    #[serde(default = "longest_s")]
    pub duration_s: f64,
    /// Prompt and answer of a request together, at most, tokens.
    #[serde(default = "max_context_tokens")]
    pub max_context_tokens: u32,
    /// Latency of answers without a fleet.
    #[serde(default)]
    pub assumed_service: AssumedLatency,
    /// Populations of sessions, at least one.
    pub population: Vec<PopulationSpec>,
    /// Folder for relative paths of traces.
    #[serde(skip)]
    pub folder: PathBuf,
}

/// Population of similar sessions.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PopulationSpec {
    /// Name in error messages.
    #[serde(default)]
    pub name: String,
    /// Arrival process of sessions.
    pub arrivals: Arrivals,
    /// Length of a user's message per turn, tokens.
    pub input_tokens: Distribution,
    /// Length of the answer at the end of a turn, tokens.
    pub output_tokens: Distribution,
    /// System prompts before the conversation.
    pub system_prompts: Option<SystemPrompts>,
    /// Further turns of a session.
    pub session: Option<SessionSpec>,
    /// Further calls of a turn.
    pub agent: Option<AgentSpec>,
    /// Number of the tenant.
    #[serde(default)]
    pub tenant: u32,
    /// Priority of the requests; lower is served first.
    #[serde(default)]
    pub priority: i32,
    /// Deadline of each request, seconds after its arrival.
    pub deadline_s: Option<f64>,
    /// Retention hints of each request.
    #[serde(default)]
    pub retention: RetentionSpec,
}

/// Retention hints for the parts of a request: see [`trunkline_core::request::retention`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RetentionSpec {
    /// Hint for the system prompt.
    pub system_prompt: Option<HintSpec>,
    /// Hint for the prompt after the system prompt: the conversation so far and the new message.
    pub conversation: Option<HintSpec>,
    /// Hint for the answer.
    pub answer: Option<HintSpec>,
}

/// Priority and time to live of a part of a request in the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct HintSpec {
    /// Priority, 0 to 100; 35 is the default of a cache, lower is evicted first.
    pub priority: u8,
    /// Time from the end of a request to the default priority, seconds; 0 is without an end.
    #[serde(default)]
    pub ttl_s: f64,
}

impl RetentionSpec {
    /// Returns the hints of a request with `system_tokens` of `input_tokens` in the system prompt.
    pub(super) fn hints(&self, system_tokens: u32, input_tokens: u32) -> Box<[RetentionHint]> {
        let parts = [
            (self.system_prompt, 0, system_tokens),
            (self.conversation, system_tokens, input_tokens),
            (self.answer, input_tokens, TO_END),
        ];
        let hint = |(spec, from, to): (Option<HintSpec>, u32, u32)| {
            let HintSpec { priority, ttl_s } = spec.filter(|_| from < to)?;
            Some(RetentionHint { from, to, priority, ttl_ns: (ttl_s * 1e9) as u64, demote: false, pin: false })
        };
        parts.into_iter().filter_map(hint).collect()
    }

    fn check(&self, number: usize, name: &str) -> Result<(), WorkloadFault> {
        let parts =
            [("system-prompt", self.system_prompt), ("conversation", self.conversation), ("answer", self.answer)];
        for (part, hint) in parts.into_iter().filter_map(|(part, hint)| Some((part, hint?))) {
            let field = |field: &str| format!("{field} of {part} in retention of population {}", label(number, name));
            within(field("priority"), hint.priority.into(), 0.0, PRIORITY_MAX.into())?;
            let longest_s = if hint.priority < PRIORITY_DEFAULT { 0.0 } else { SECONDS_MAX };
            within(field("ttl-s"), hint.ttl_s, 0.0, longest_s)?;
        }
        Ok(())
    }
}

/// System prompts shared by many sessions.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SystemPrompts {
    /// Number of system prompts.
    pub count: u32,
    /// Exponent of their popularity (Zipf).
    #[serde(default)]
    pub zipf: f64,
    /// Lengths of the system prompts, tokens.
    pub tokens: Distribution,
}

/// Session of several turns.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SessionSpec {
    /// Number of turns, at least 1.
    pub turns: Distribution,
    /// Think time: end of an answer to the next question, seconds.
    pub think_s: Distribution,
    /// Compaction of the history.
    pub compaction: Option<CompactionSpec>,
}

/// Compaction of a session's history; equal watermarks are a window that slides by turns.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct CompactionSpec {
    /// High watermark: more tokens of recent turns are compacted.
    pub high: u32,
    /// Low watermark: tokens of recent turns that stay, at most.
    pub low: u32,
    /// Tokens of a summary; 0 is none.
    pub summary: u32,
}

impl CompactionSpec {
    fn check(&self, population: &str) -> Result<(), WorkloadFault> {
        let field = |field: &str| format!("{field} of compaction of population {population}");
        let most = f64::from(LENGTH_TOKENS_MAX);
        within(field("high"), self.high.into(), 1.0, most)?;
        within(field("low"), self.low.into(), 0.0, self.high.into())?;
        within(field("summary"), self.summary.into(), 0.0, most)
    }
}

/// Turn of several calls.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct AgentSpec {
    /// Number of calls to the model in a turn.
    pub calls: Distribution,
    /// Output length of every call but the last of a turn: a tool call, tokens.
    pub call_tokens: Distribution,
    /// Run time of a tool: end of a call to the next call, seconds.
    pub tool_s: Distribution,
    /// Output length of a tool, tokens.
    pub tool_output_tokens: Distribution,
}

fn longest_s() -> f64 {
    SECONDS_MAX
}

fn max_context_tokens() -> u32 {
    MAX_CONTEXT_TOKENS_DEFAULT
}

/// Error in a spec: file, line, fault and remedy.
#[derive(Debug, thiserror::Error)]
#[error("{}{}: {fault}", path.display(), LineNumber(*line))]
pub struct WorkloadError {
    /// Path of the spec.
    pub path: PathBuf,
    /// Line number from 1; 0 for a fault outside any line.
    pub line: u64,
    /// Fault found at that place.
    pub fault: WorkloadFault,
}

/// Fault in a spec.
#[derive(Debug, thiserror::Error)]
pub enum WorkloadFault {
    /// File cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(#[from] std::io::Error),
    /// File too long for a spec.
    #[error("is longer than {SPEC_BYTES_MAX} bytes; this is not a workload")]
    TooLong,
    /// Invalid TOML, or an invalid field.
    #[error("{0}")]
    Toml(String),
    /// Field of the spec out of range.
    #[error("{field} is {value}; it must be {expected}")]
    Range {
        /// Name of the field.
        field: String,
        /// Value as found in the input.
        value: f64,
        /// Permitted values, in words.
        expected: String,
    },
    /// First requests of sessions beyond the context, whatever is drawn.
    #[error(
        "a first request of population {population} has at least {least} tokens (system prompt {system}, question {input}, answer {output}), \
         and max-context-tokens is {max}; raise it, or shorten them"
    )]
    NeverFits {
        /// Number of the population, from 1, and its name.
        population: String,
        /// Least tokens of all three.
        least: u64,
        /// Least tokens of a system prompt.
        system: u32,
        /// Least tokens of a question.
        input: u32,
        /// Least tokens of the answer to the first call.
        output: u32,
        /// Longest context, tokens.
        max: u32,
    },
    /// Unreadable trace of an empirical distribution.
    #[error("of population {population}: {error}")]
    Samples {
        /// Number of the population, from 1, and its name.
        population: String,
        /// Error in the trace.
        error: Box<TraceError>,
    },
}

impl PopulationSpec {
    /// Returns the terms of the requests.
    pub(super) fn terms(&self) -> Terms {
        let deadline_ns = self.deadline_s.map(|s| (s * 1e9) as u64);
        Terms { tenant: self.tenant, priority: self.priority, deadline_ns, ..Terms::default() }
    }

    /// Fails if no first request of a session fits a context of `max` tokens.
    fn check_fits(&self, number: usize, max: u32) -> Result<(), WorkloadFault> {
        let system = self.system_prompts.as_ref().map_or(0, |prompts| prompts.tokens.least_tokens());
        let (input, answer) = (self.input_tokens.least_tokens(), self.output_tokens.least_tokens());
        let output = self.agent.as_ref().map_or(answer, |agent| agent.call_tokens.least_tokens().min(answer));
        let least = [system, input, output].into_iter().map(u64::from).sum();
        if least <= u64::from(max) {
            return Ok(());
        }
        let population = label(number, &self.name);
        Err(WorkloadFault::NeverFits { population, least, system, input, output, max })
    }
}

impl Spec {
    /// Returns the number of tenants: one more than the greatest number of a tenant.
    pub fn tenants(&self) -> u64 {
        self.population.iter().map(|population| u64::from(population.tenant) + 1).max().unwrap_or(1)
    }

    /// Reads and checks a spec.
    ///
    /// # Errors
    ///
    /// [`WorkloadError`] if the file cannot be read or the spec is invalid.
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

    /// Parses and checks a spec.
    ///
    /// # Errors
    ///
    /// A [`WorkloadFault`] with its line; line 0 for a fault outside any line.
    pub fn parse(text: &str) -> Result<Self, (u64, WorkloadFault)> {
        let spec: Self = toml::from_str(text).map_err(|err| {
            let before = err.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            (before.matches('\n').count() as u64 + 1, WorkloadFault::Toml(of_parser(&err.message().replace('\n', " "))))
        })?;
        spec.check().map_err(|fault| (0, fault))?;
        Ok(spec)
    }

    /// Checks relations between fields.
    pub(super) fn check(&self) -> Result<(), WorkloadFault> {
        within("requests", self.requests as f64, 1.0, REQUESTS_MAX as f64)?;
        within("duration-s", self.duration_s, 0.0, SECONDS_MAX)?;
        let most_tokens = f64::from(LENGTH_TOKENS_MAX);
        within("max-context-tokens", self.max_context_tokens.into(), MAX_CONTEXT_TOKENS_MIN.into(), most_tokens)?;
        within("the number of populations", self.population.len() as f64, 1.0, POPULATIONS_MAX as f64)?;
        within("first-token-s", self.assumed_service.first_token_s, 0.0, SECONDS_MAX)?;
        within("per-token-s", self.assumed_service.per_token_s, 0.0, SECONDS_MAX)?;
        for (number, population) in self.population.iter().enumerate() {
            if let Some(deadline_s) = population.deadline_s {
                let field = format!("deadline-s of population {}", label(number, &population.name));
                within(field, deadline_s, DEADLINE_S_MIN, SECONDS_MAX)?;
            }
            population.retention.check(number, &population.name)?;
            population.check_fits(number, self.max_context_tokens)?;
            if let Some(compaction) = population.session.as_ref().and_then(|session| session.compaction) {
                compaction.check(&label(number, &population.name))?;
            }
            let Some(prompts) = &population.system_prompts else { continue };
            let field =
                |field: &str| format!("{field} of system-prompts of population {}", label(number, &population.name));
            within(field("count"), prompts.count.into(), 1.0, SYSTEM_PROMPTS_MAX.into())?;
            within(field("zipf"), prompts.zipf, 0.0, ZIPF_MAX)?;
        }
        Ok(())
    }
}

/// Returns the name of a population in messages.
pub(super) fn label(number: usize, name: &str) -> String {
    if name.is_empty() { (number + 1).to_string() } else { format!("{} ({name})", number + 1) }
}

fn within(field: impl Into<String>, value: f64, min: f64, max: f64) -> Result<(), WorkloadFault> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(WorkloadFault::Range { field: field.into(), value, expected: format!("from {min} to {max}") })
}
