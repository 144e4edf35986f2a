//! Workloads that are made up: populations of users and agents, written down in a small TOML file.
//!
//! A [`Spec`] says who comes when and asks for how much; a [`Generator`] is the [`crate::trace::Source`] of the
//! requests that come of it, in memory that grows with the sessions under way, not with the requests. The same spec
//! gives the same sessions on every machine: all that is random comes from one seed through PCG, and logarithms and the
//! like from one implementation.
//!
//! ```toml
//! seed = 7                    # another seed, another workload of the same kind [default: 0]
//! requests = 10_000           # of all populations together, at most
//! duration-s = 600.0          # no session begins later [default: no limit]
//! max-context-tokens = 32_768 # prompt and answer; a session ends before it would be more [default: 131072]
//!
//! [assumed-service]           # how long answers take when the workload is written to a file [default: these]
//! first-token-s = 0.5
//! per-token-s = 0.02
//!
//! [[population]]              # one or more
//! name = "chat"
//! arrivals = { process = "poisson", sessions-per-s = 2.0 }
//! input-tokens = { kind = "lognormal", mean = 300, cv = 1.5, max = 8192 }   # what a user writes in a turn
//! output-tokens = { kind = "lognormal", mean = 250, cv = 1.0, max = 2048 }  # what is answered
//! system-prompts = { count = 20, zipf = 1.0, tokens = { kind = "constant", value = 800 } }  # [default: none]
//! session = { turns = { kind = "uniform", min = 1, max = 9 }, think-s = { kind = "exponential", mean = 20 } }  # [default: one turn]
//! # A turn in which the model calls tools: all calls but the last generate call-tokens, and after tool-s the output of the
//! # tool is appended [default: none]
//! agent = { calls = { … }, call-tokens = { … }, tool-s = { … }, tool-output-tokens = { … } }
//! ```
//!
//! # Arrivals of sessions
//!
//! | `process` | fields | gaps |
//! |---|---|---|
//! | `constant` | `sessions-per-s` | all the same |
//! | `poisson` | `sessions-per-s` | exponential |
//! | `gamma` | `sessions-per-s`, `cv` | gamma, with that coefficient of variation: 1 is Poisson, more is burstier |
//! | `on-off` | `sessions-per-s`, `off-sessions-per-s` (default 0), `on-s`, `off-s` | Poisson at one of two rates, each for exponentially long, by their means |
//! | `diurnal` | `sessions-per-s`, `amplitude` below 1, `period-s` (default 86400) | Poisson at a rate that goes up and down around its mean, from the trough on |
//!
//! # Distributions
//!
//! | `kind` | fields |
//! |---|---|
//! | `constant` | `value` |
//! | `uniform` | `min`, `max` |
//! | `exponential` | `mean`, perhaps `max` |
//! | `lognormal` | `mean`, `cv` (standard deviation over mean), perhaps `max` |
//! | `empirical` | `trace` (a file, its path counted from the spec's folder), `of` = `"input"` or `"output"`, perhaps `max` |
//!
//! What is drawn above `max` is cut to it, which lowers the mean. Counts are rounded, to 1 at least. If `input-tokens`
//! and `output-tokens` are of the same trace, both are of the same request.
//!
//! # What is shared
//!
//! A prompt is the system prompt, all that was said in its session, and what is said now. Answers are said too: the
//! prompt of a turn holds the very tokens that the replay generated for the turn before. Popularity of system prompts
//! goes by Zipf's law: the `n`-th is drawn with a weight of `1 / n^zipf`; 0 makes all alike.
//!
//! # Closed loops
//!
//! The next turn comes `think-s` after the answer to the last one *ended*, a tool's output `tool-s` after the call
//! ended. So a slow fleet is asked more slowly, as by real users. A session whose request is refused is over. Written
//! to a file ([`Assumed::requests`]), the loop is cut: answers take as long as `assumed-service` says.

mod arrivals;
mod assumed;
mod dice;
mod distribution;
mod generator;
mod spec;

pub use self::arrivals::Arrivals;
pub use self::assumed::{AsIfServed, Assumed};
pub use self::distribution::{Column, Distribution};
pub use self::generator::Generator;
pub use self::spec::{AgentSpec, PopulationSpec, SessionSpec, Spec, SystemPrompts, WorkloadError, WorkloadFault};

/// Requests of a workload at most.
pub const REQUESTS_MAX: u64 = 1 << 30;
/// Populations of a workload at most.
pub const POPULATIONS_MAX: usize = 64;
/// System prompts of a population at most.
pub const SYSTEM_PROMPTS_MAX: u32 = 1 << 20;
/// Turns of a session, and calls of a turn, at most.
pub const TURNS_MAX: u32 = 10_000;
/// Requests of a trace that an empirical distribution is made of: its first ones.
pub const SAMPLES_MAX: usize = 1 << 20;
/// The longest time a workload knows, seconds: 31 years.
pub const SECONDS_MAX: f64 = 1e9;

#[cfg(test)]
mod tests;
