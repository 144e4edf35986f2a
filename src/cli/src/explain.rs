//! `trunkline explain`: why a request of a recording took as long as it did, and what would have helped.

mod render;

use std::path::PathBuf;

use anyhow::{bail, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use trunkline_core::RequestId;
use trunkline_sim_replay::explain::{Explained, Explanation, Of, explain};
use trunkline_sim_replay::recorded::Replayed;
use trunkline_sim_replay::rerun::{Change, Script};
use trunkline_sim_replay::what_if::{WhatIf, usual, what_if};

use crate::output::{JsonArgs, print, write_json};

const EXAMPLES: &str = "\
Examples:
  Which requests took longest, and what did they wait for?
    trunkline explain monday.jsonl.gz

  Where did the time of request 42 go, and who made it wait? The server's log has the number of each request.
    trunkline explain monday.jsonl.gz --request 42

  What would have helped it?
    trunkline explain monday.jsonl.gz --request 42 --what-if

  Would these?
    trunkline explain monday.jsonl.gz --request 42 --what-if device-blocks=+4096 --what-if without=17 --what-if policy=sjf";

/// Text for all usual changes.
const USUAL: &str = "usual";

/// Explain where the time of requests of a recording went.
///
/// The parts of a request add up to its time between arrival at the scheduler and end, to the nanosecond. At each wait those are named that held what
/// the request needed; a cached block that was missed is named with its eviction.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ExplainArgs {
    /// Recording of a server, from `trunkline serve --record`.
    #[arg(value_name = "RECORDING")]
    recording: PathBuf,

    /// Request to explain, by its number in the server's log; several may be given.
    #[arg(long, value_name = "ID")]
    request: Vec<u64>,

    /// Without --request, list so many of the slowest requests.
    #[arg(long, value_name = "N", default_value_t = 10, conflicts_with = "request", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    slowest: u32,

    /// Run the recording again with a change, and say what it saves the request: without=ID, hints=false, router=NAME, or SETTING=VALUE, where
    /// +N and xN are relative to the recorded value. Without a change, the usual ones: without each of those most to blame, twice the
    /// blocks, each other policy and router, without hints.
    #[arg(long, value_name = "CHANGE", num_args = 0..=1, default_missing_value = USUAL, requires = "request")]
    what_if: Vec<String>,

    #[command(flatten)]
    json: JsonArgs,
}

/// Results as JSON.
#[derive(Serialize)]
struct Results<'a> {
    replayed: &'a Replayed,
    requests: &'a [Explained],
    #[serde(skip_serializing_if = "Option::is_none")]
    what_if: Option<&'a [WhatIf]>,
}

/// Runs the command.
///
/// # Errors
/// If the recording cannot be read, was made by another version, or has no such request, or a change is not one.
pub fn run(args: &ExplainArgs) -> anyhow::Result<()> {
    let given: Vec<&String> = args.what_if.iter().filter(|text| *text != USUAL).collect();
    let changes = given.iter().map(|text| text.parse()).collect::<Result<Vec<Change>, _>>()?;
    let takes_usual = args.what_if.len() > given.len();
    let spinner = spinner()?;
    let of = match &args.request[..] {
        [] => Of::Slowest(args.slowest as usize),
        ids => Of::Requests(ids.iter().copied().map(RequestId).collect()),
    };
    let found = explain(&args.recording, &of, &mut |events| spinner.set_position(events))?;
    check(args, &found)?;
    let answers = match args.what_if.is_empty() {
        true => None,
        false => {
            let script = Script::load(&args.recording, &mut |events| spinner.set_position(events))?;
            Some(answers(&script, &found.requests, &changes, takes_usual)?)
        }
    };
    spinner.finish_and_clear();
    match &args.json.json {
        Some(to) => {
            let results = Results { replayed: &found.replayed, requests: &found.requests, what_if: answers.as_deref() };
            write_json("explanation", to, &serde_json::to_string_pretty(&results)?)
        }
        None if args.request.is_empty() => print(&render::slowest(&found.requests)),
        None => print(&render::requests(&found.requests, answers.as_deref().unwrap_or_default())),
    }
}

fn spinner() -> anyhow::Result<ProgressBar> {
    let spinner = ProgressBar::new_spinner();
    spinner.set_style(ProgressStyle::with_template("{elapsed:>4} {pos} events")?);
    Ok(spinner)
}

/// Refuses recordings whose decisions are not those of the server, and requests that are not there.
fn check(args: &ExplainArgs, found: &Explanation) -> anyhow::Result<()> {
    let path = args.recording.display();
    if found.replayed.matches == Some(false) {
        bail!(
            "{path} does not replay to its decisions, so nothing is known of the server's; explain it with the version that made it"
        );
    }
    for id in &args.request {
        let is_there = found.requests.iter().any(|request| request.id == RequestId(*id));
        ensure!(is_there, "{path} has no request {id}; `trunkline explain` without --request lists the slowest");
    }
    ensure!(!found.requests.is_empty(), "no request of {path} has ended, so there is nothing to explain");
    Ok(())
}

/// Answers what the changes would have saved each request.
fn answers(
    script: &Script,
    requests: &[Explained],
    changes: &[Change],
    takes_usual: bool,
) -> anyhow::Result<Vec<WhatIf>> {
    let mut answers = Vec::new();
    for explained in requests {
        let is_it = |served: &trunkline_sim_replay::rerun::Served| {
            (served.id, served.at_ns) == (explained.id, explained.submitted_ns)
        };
        let Some(at) = script.requests.iter().position(is_it) else { continue };
        let how = if explained.end.starts_with("refused") { "was refused" } else { "did not end" };
        ensure!(
            script.requests[at].end.is_some(),
            "request {} {how} in the recording, so no change can save it time",
            explained.id
        );
        let mut all = changes.to_vec();
        all.extend(if takes_usual { usual(script, explained) } else { Vec::new() });
        answers.push(what_if(script, at, &all)?);
    }
    Ok(answers)
}

#[cfg(test)]
pub(crate) mod tests;
