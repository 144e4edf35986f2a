//! `trunkline tune`: settings that suit recorded traffic, searched on one part and proved on the other.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::ensure;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use trunkline_cluster::ClusterConfig;
use trunkline_sim_replay::rerun::Script;
use trunkline_sim_replay::tune::{Proof, Tuned, tune};
use trunkline_sim_report::slo::{Slo, Slos};

use crate::output::{JsonArgs, NOT_MET, per_cent, print, seconds, write_json};

const EXAMPLES: &str = "\
Examples:
  Which settings would have kept more first tokens within a second?
    trunkline tune monday.jsonl.gz --slo ttft=1s

  On the traffic of two days, with limits on the first token and the pace:
    trunkline tune monday.jsonl.gz tuesday.jsonl.gz --slo ttft=1s --slo tpot=50ms";

/// Search settings for recorded traffic, and prove them on the part that the search did not see.
///
/// The search runs the first half of each recording with other policies, routers, eviction policies, step targets, and half and twice the recorded limits of
/// a step. Only what the second half confirms is recommended: the range of its gain does not reach zero. The exit code is 3 if nothing is.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TuneArgs {
    /// Recordings of one fleet, from `trunkline serve --record`.
    #[arg(value_name = "RECORDING", required = true)]
    recordings: Vec<PathBuf>,

    /// Limit that requests should keep, such as ttft=1s or tpot=50ms; the share of requests within all limits is raised.
    #[arg(long, value_name = "SLO", required = true)]
    slo: Vec<Slo>,

    /// Candidates to try, at most.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    runs: u32,

    #[command(flatten)]
    json: JsonArgs,
}

/// Runs the command. The exit code is 3 if nothing is recommended.
///
/// # Errors
/// If a recording cannot be read, was made by another version or with other settings, or has too few requests.
pub fn run(args: &TuneArgs) -> anyhow::Result<ExitCode> {
    // Every SLO limits each request here, so that the share of requests within is what is raised.
    let slos = Slos::new(&args.slo, Some(1.0))?;
    let mut scripts = Vec::new();
    for path in &args.recordings {
        let script = Script::load(path, &mut |_| {})?;
        ensure!(
            script.replayed.matches != Some(false),
            "{} does not replay to its decisions; tune it with the version that made it",
            path.display()
        );
        scripts.push(script);
    }
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{elapsed:>4} {pos} candidates")?);
    let found = tune(&scripts, &slos, args.runs as usize, &mut |n| bar.set_position(n as u64));
    bar.finish_and_clear();
    let found = found?;
    match &args.json.json {
        Some(to) => write_json("search", to, &serde_json::to_string_pretty(&found)?)?,
        None => print(&text(&found, &scripts[0].cluster))?,
    }
    let is_confirmed = found.proof.as_ref().is_some_and(|proof| proof.confirmed);
    Ok(if is_confirmed { ExitCode::SUCCESS } else { ExitCode::from(NOT_MET) })
}

fn text(found: &Tuned, cluster: &ClusterConfig) -> String {
    // The recorded settings come first.
    let tried = found.tried.len().saturating_sub(1);
    let recorded = per_cent(found.recorded_within);
    let begin =
        format!("{tried} candidates on the first half, where {recorded} of the requests were within the limits");
    let Some(proof) = &found.proof else {
        return format!("{begin}\nnothing is better than the recorded settings");
    };
    let flags: Vec<String> = found.best.iter().filter_map(|change| change.flag(cluster)).collect();
    let verdict = match proof.confirmed {
        true => "recommended",
        false => "NOT recommended: the second half does not confirm it",
    };
    format!("{begin}\nbest: {}\n{verdict}\n\n{}", flags.join(" "), proved(proof))
}

fn proved(proof: &Proof) -> String {
    let points = |share: f64| format!("{:+.2}", share * 100.0);
    let [low, high] = proof.gain;
    let [fast, slow] = proof.e2e_change;
    [
        format!(
            "on {} requests that the search did not see, with 95 % of resampled halves in the ranges:",
            proof.requests
        ),
        format!(
            "  within the limits: {} -> {}, gain {} points ({} to {})",
            per_cent(proof.within_before),
            per_cent(proof.within_after),
            points(proof.within_after - proof.within_before),
            points(low),
            points(high)
        ),
        format!(
            "  E2E mean: {} -> {} s ({:+.1} % to {:+.1} %)",
            seconds(proof.e2e_before_s),
            seconds(proof.e2e_after_s),
            fast * 100.0,
            slow * 100.0
        ),
        format!("  risk: {} of the requests take longer by a tenth or more", per_cent(proof.slower)),
    ]
    .join("\n")
}

#[cfg(test)]
mod tests;
