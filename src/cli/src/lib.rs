//! The commands of the `trunkline` binary: one subcommand for each task.
//!
//! | command | task |
//! |---|---|
//! | `serve` | serve a model over gRPC |
//! | `generate` | send one request to a server |
//! | `chat` | hold a chat that the server keeps |
//! | `worker` | run a model for a server, or check a worker |
//! | `replay` | replay a trace under a virtual clock, or a server's recording |
//! | `plan` | find the least number of replicas that meets SLOs |
//! | `sweep` | replay every cell of a grid of parameters |
//! | `trace` | inspect, convert and generate traces |
//! | `calibrate` | fit step times to a server |
//! | `explain` | say why a request of a recording took as long as it did |
//! | `diff` | compare two recordings, or one with its run under changes |
//! | `ci` | compare two versions of the program on recordings |
//! | `tune` | search settings for recorded traffic |
//! | `load` | send the requests of a trace to a running server |
//! | `h2o` | find the KV heads of a model that have to keep every token |
//! | `cache` | look into a disk tier at rest |
//! | `completions` | complete commands and flags in a shell |
//! | `man` | pages for man |
//!
//! Each subcommand is a module with a `…Args` of flags and a `run`; `run` returns an error, which [`main`] prints as one line.
//! Settings of the core are flags of several commands, all made from one table (`settings/core_settings.rs`). Example: a replay of the
//! trace in this repository under two policies, then a plan for the same traffic.
//!
//! ```sh
//! trunkline replay examples/traces/chat-and-agents.jsonl.gz --replicas 4 --policy fcfs --policy sjf
//! trunkline plan examples/traces/chat-and-agents.jsonl.gz --slo ttft_p99=2s
//! ```

use trunkline_quote::{cut, limited, of_parser};

mod cache;
mod calibrate;
mod ci;
pub mod client;
mod completions;
mod diff;
mod explain;
#[cfg(test)]
mod flags_tests;
#[cfg(test)]
mod formats_page_tests;
pub mod h2o;
mod h2o_command;
#[cfg(test)]
mod list_tests;
mod man;
pub mod model;
mod output;
mod plan;
#[cfg(test)]
mod readme_tests;
mod replay;
pub mod serve;
pub mod settings;
mod sweep;
mod trace;
mod tune;
mod worker;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser, Subcommand};
use tracing_subscriber::EnvFilter;
use trunkline_core::ConfigError;

use self::client::{chat, generate, load};
use self::settings::log_settings::LogFormat;
use self::settings::{core_settings, given};

const EXAMPLES: &str = "\
Examples:
  Serve the small model that is built in, and send a prompt twice; the second time the prompt comes from the cache:
    trunkline serve
    trunkline generate 'Once upon a time there was a small fox who lived in the old mill with his friend Anna.'
    trunkline generate 'Once upon a time there was a small fox who lived in the old mill with his friend Anna.'

  Replay a trace under a virtual clock:
    trunkline replay examples/traces/chat-and-agents.jsonl.gz

  Find the smallest fleet that gives 99 % of requests their first token within 2 s:
    trunkline plan trace.jsonl.gz --slo ttft=2s --goodput 0.99

  Send the requests of a trace to a running server at the times of the trace:
    trunkline load examples/traces/chat-and-agents.jsonl.gz --slice 0s..60s

The environment variable RUST_LOG sets the level of logs on standard error: error, warn, info, debug, or trunkline_server=debug; without the lines of a
server's requests: info,trunkline::requests=off.";

/// A prefix-cache and scheduling core for LLM serving.
#[derive(Parser)]
#[command(version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(serve::ServeArgs),
    Generate(Box<generate::GenerateArgs>),
    Chat(Box<chat::ChatArgs>),
    Worker(Box<worker::WorkerArgs>),
    Replay(Box<replay::ReplayArgs>),
    Plan(Box<plan::PlanArgs>),
    Sweep(sweep::SweepArgs),
    Calibrate(calibrate::CalibrateArgs),
    Explain(explain::ExplainArgs),
    Diff(diff::DiffArgs),
    Ci(ci::CiArgs),
    Tune(tune::TuneArgs),
    Trace(trace::TraceArgs),
    Load(load::LoadArgs),
    H2o(h2o_command::H2oArgs),
    Cache(cache::CacheArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

/// Runs the command that the arguments of the process name, and returns its exit status.
pub fn main() -> ExitCode {
    let given =
        given::with_file_and_environment(&Cli::command(), std::env::args_os().collect(), |name| std::env::var_os(name));
    let Cli { command } = match given {
        Ok(args) => Cli::try_parse_from(args).unwrap_or_else(|err| with_short_values(err).exit()),
        Err(err) => return fail(&err),
    };
    let format = match &command {
        Command::Serve(args) => args.log_format(),
        Command::Worker(args) => args.log_format(),
        _ => LogFormat::Text,
    };
    if let Err(message) = start_logging("info", format) {
        return fail_with(&message);
    }
    let result = match command {
        Command::Serve(args) => serve::run(args).map(|()| ExitCode::SUCCESS),
        Command::Generate(args) => generate::run(*args),
        Command::Chat(args) => chat::run(*args),
        Command::Worker(args) => worker::run(*args).map(|()| ExitCode::SUCCESS),
        Command::Replay(args) => replay::run(*args).map(|()| ExitCode::SUCCESS),
        Command::Plan(args) => plan::run(*args),
        Command::Sweep(args) => sweep::run(&args),
        Command::Calibrate(args) => calibrate::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Explain(args) => explain::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Diff(args) => diff::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Ci(args) => ci::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Trace(args) => trace::run(args).map(|()| ExitCode::SUCCESS),
        Command::Load(args) => load::run(&args).map(|()| ExitCode::SUCCESS),
        Command::H2o(args) => h2o_command::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Cache(args) => cache::run(&args),
        Command::Completions(args) => completions::run(&args).map(|()| ExitCode::SUCCESS),
        Command::Man(args) => man::run(&args).map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|err| fail(&err))
}

/// Writes an error to standard error, in one line. Returns the exit status that fits.
pub fn fail(err: &anyhow::Error) -> ExitCode {
    let cut_off = err.downcast_ref::<io::Error>().is_some_and(|err| err.kind() == io::ErrorKind::BrokenPipe);
    // The reader of our output closed the pipe: a normal end.
    if cut_off { ExitCode::SUCCESS } else { fail_with(&with_causes(err)) }
}

/// Returns the message of an error, and the messages of its causes without repetitions. Settings of the core have the names of their flags.
fn with_causes(err: &anyhow::Error) -> String {
    let causes = err.chain().skip(1).map(|cause| of_parser(&cause.to_string()));
    let text =
        causes.fold(
            of_parser(&err.to_string()),
            |text, cause| if text.contains(&cause) { text } else { format!("{text}: {cause}") },
        );
    if err.chain().any(|cause| cause.is::<ConfigError>()) { core_settings::named_as_flags(&text) } else { text }
}

/// Returns an error of the command line that shows no more of a bad value than other messages do.
fn with_short_values(mut err: clap::Error) -> clap::Error {
    let shorter = |(kind, value): (ContextKind, &ContextValue)| match value {
        ContextValue::String(text) => Some((kind, ContextValue::String(cut(text).to_string()))),
        _ => None,
    };
    let shorter: Vec<_> = err.context().filter_map(shorter).collect();
    for (kind, value) in shorter {
        err.insert(kind, value);
    }
    err
}

fn fail_with(message: &str) -> ExitCode {
    // If standard error is closed, the message cannot be shown.
    let _ = writeln!(io::stderr(), "error: {}", limited(message));
    ExitCode::FAILURE
}

/// Writes logs to standard error from now on: those of `level` and above, unless RUST_LOG says otherwise.
///
/// # Errors
/// If RUST_LOG is not a filter of logs.
pub fn start_logging(level: &str, format: LogFormat) -> Result<(), String> {
    let filter = match std::env::var(EnvFilter::DEFAULT_ENV) {
        Ok(directives) if !directives.is_empty() => {
            EnvFilter::try_new(directives).map_err(|err| format!("RUST_LOG is not a log filter: {err}"))?
        }
        // A remote store that is down would fill the log with each retry; the store reports the outcome.
        _ => EnvFilter::new(format!("{level},object_store=warn")),
    };
    // A line that cannot be written is lost: to report that on a closed standard error would panic.
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    let lines = lines.log_internal_errors(false);
    match format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().flatten_event(true).init(),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
