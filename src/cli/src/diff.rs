//! `trunkline diff`: the first decision that differs between two runs, and the effect on every request.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use trunkline_sim_replay::diff::{Diff, Figure, Pair, load, of_recordings, with_changes};
use trunkline_sim_replay::rerun::Change;

use crate::output::{JsonArgs, align_right, grouped, per_cent, print, seconds, table, write_json};

const EXAMPLES: &str = "\
Examples:
  Two recordings of the same traffic: where do they first decide differently, and which requests paid?
    trunkline diff monday.jsonl.gz tuesday.jsonl.gz

  One recording, and the same traffic under other settings:
    trunkline diff monday.jsonl.gz --with policy=sjf --with device-blocks=x2";

/// Requests listed, at most: those that changed most.
const LISTED: usize = 10;

/// Compare two recordings, or a recording with its run under other settings.
///
/// Requests of two recordings are matched by their prompts, in the order of arrival. In a run under other settings arrivals and texts are the
/// recorded ones; steps take their recorded time where they run the same tokens, else the time of a fit to the recording.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DiffArgs {
    /// Recording of a server, from `trunkline serve --record`.
    #[arg(value_name = "RECORDING")]
    before: PathBuf,

    /// Another recording of the same traffic.
    #[arg(value_name = "OTHER", required_unless_present = "with", conflicts_with = "with")]
    after: Option<PathBuf>,

    /// Change of the first recording, instead of another one: without=ID, hints=false, router=NAME, or SETTING=VALUE, where +N and xN are
    /// relative to the recorded value. Several changes are made together.
    #[arg(long, value_name = "CHANGE")]
    with: Vec<Change>,

    #[command(flatten)]
    json: JsonArgs,
}

/// Runs the command.
///
/// # Errors
/// If a recording cannot be read or was made by another version, or a change is impossible.
pub fn run(args: &DiffArgs) -> anyhow::Result<()> {
    let found = match &args.after {
        Some(after) => of_recordings(&args.before, after)?,
        None => with_changes(&load(&args.before)?, &args.with)?,
    };
    if found.pairs.is_empty() {
        bail!("no request completed in both runs, so there is nothing to compare");
    }
    match &args.json.json {
        Some(to) => write_json("differences", to, &serde_json::to_string_pretty(&found)?),
        None => print(&text(&found)),
    }
}

/// Returns the differences as text.
pub(crate) fn text(found: &Diff) -> String {
    let first = match &found.first {
        None => "all decisions are equal".to_owned(),
        Some(first) => format!(
            "first difference at {} and {} s\n  before: {}\n  after:  {}",
            seconds(first.at_ns[0] as f64 / 1e9),
            seconds(first.at_ns[1] as f64 / 1e9),
            first.decisions[0],
            first.decisions[1]
        ),
    };
    let mut texts = vec![first, figures(&found.figures)];
    let (slower, faster) = found.pairs.iter().fold((0, 0), |(slower, faster), pair| match pair.slower_ns() {
        0 => (slower, faster),
        ns if ns > 0 => (slower + 1, faster),
        _ => (slower, faster + 1),
    });
    let mut counts = format!(
        "{} requests: {} slower, {} faster, {} equal",
        grouped(found.pairs.len() as u64),
        grouped(slower),
        grouped(faster),
        grouped(found.pairs.len() as u64 - slower - faster)
    );
    if found.alone != [0, 0] {
        counts += &format!("; {} completed only before, {} only after", found.alone[0], found.alone[1]);
    }
    texts.push(counts);
    texts.extend((slower + faster > 0).then(|| most_changed(&found.pairs)));
    texts.extend(found.sources.filter(|sources| sources.recorded_steps + sources.fitted_steps > 0).map(|sources| {
        let (recorded, fitted) = (grouped(sources.recorded_steps), grouped(sources.fitted_steps));
        format!("after the first difference {recorded} steps have their recorded times, {fitted} those of a fit to this recording")
    }));
    texts.join("\n\n")
}

/// Returns the table of latencies.
pub(crate) fn figures(figures: &[Figure]) -> String {
    let mut rows = table();
    rows.set_header(["seconds", "before", "after", "change"]);
    for figure in figures {
        let change = format!("{:+.2} %", figure.change() * 100.0);
        rows.add_row([figure.name.into(), seconds(figure.before_s), seconds(figure.after_s), change]);
    }
    align_right(&mut rows, 1);
    rows.trim_fmt()
}

fn most_changed(pairs: &[Pair]) -> String {
    let mut most: Vec<&Pair> = pairs.iter().filter(|pair| pair.slower_ns() != 0).collect();
    most.sort_by_key(|pair| (std::cmp::Reverse(pair.slower_ns().unsigned_abs()), pair.id));
    let mut rows = table();
    rows.set_header(["request", "E2E before", "after", "TTFT before", "after", "change"]);
    let short = |ns: u64| seconds(ns as f64 / 1e9);
    for Pair { id, before, after, .. } in most.into_iter().take(LISTED) {
        let share = per_cent(after.e2e_ns as f64 / before.e2e_ns.max(1) as f64 - 1.0);
        rows.add_row([
            id.to_string(),
            short(before.e2e_ns),
            short(after.e2e_ns),
            short(before.ttft_ns),
            short(after.ttft_ns),
            share,
        ]);
    }
    align_right(&mut rows, 0);
    rows.trim_fmt()
}

#[cfg(test)]
mod tests;
