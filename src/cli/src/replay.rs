//! `trunkline replay`: a trace under a virtual clock, or a recording of a server.

pub(crate) mod compare;
pub(crate) mod input;
mod outputs;
pub(crate) mod render;
pub(crate) mod settings;
pub(crate) mod tiers;

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use trunkline_sim_perf::cost::CostModel;
use trunkline_sim_replay::capacity::load;
use trunkline_sim_replay::recorded::replay_recorded;
use trunkline_sim_replay::{Arrivals, ReplayError, Settings};
use trunkline_sim_report::report::LoadReport;

use self::input::{Input, Part};
use self::outputs::{OutputArgs, Stage};
use self::settings::{Runs, SettingsArgs, runs};
use self::tiers::TierArgs;
use crate::selection::SelectionArgs;

const EXAMPLES: &str = "\
Examples:
  How would four H100s serve this traffic?
    trunkline replay mooncake_conversation.jsonl.gz --replicas 4

  What would the cache alone save, were it as large as one liked?
    trunkline replay mooncake_conversation.jsonl.gz --serial --device-blocks 10000000

  Which policy serves best at 80 % of what the fleet can take?
    trunkline replay mooncake_conversation.jsonl.gz --replicas 4 --load 0.8 --policy fcfs --policy edf

  Is it worth swapping to 64 GB of host memory when blocks run out?
    trunkline replay trace.csv --device-blocks 2000 --host-memory-gb 64 --preemption swap --preemption recompute

  Is it worth sending requests where their prefixes are, and what if a replica fails after ten minutes?
    trunkline replay trace.jsonl.gz --replicas 4 --router round_robin --router prefix_affinity --fail 2@600..660

  What does a tenant that sends nine tenths of the requests do to the other?
    trunkline replay trace.csv --load 1.2 --tenants 0.9,0.1

  How slow is a model that does not fit, with most of its layers in the host's memory?
    trunkline replay trace.jsonl.gz --model llama-3.1-70b --hardware rtx4090-24g --weights stream:device_layers=8

  What did that look like?
    trunkline replay trace.jsonl.gz --replicas 4 --html report.html --timeline timeline.json.gz

  Does this version decide as the server did?
    trunkline replay --recorded server.jsonl.gz

Latencies come from a cost model, a roofline unless --cost says otherwise; the report states its error.";

/// Replay a trace through the core under a virtual clock, or a recording of a server.
///
/// A trace is Mooncake, Bailian or token-id JSON lines or Azure, BurstGPT or Vidur CSV, plain, gzip or Zstandard. The scheduler and the cache are the server's own; only the
/// clock, the worker and the link to host memory are modelled. Several policies, eviction policies, preemptions or
/// routers are compared in one table.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ReplayArgs {
    /// The trace.
    #[arg(value_name = "TRACE", required_unless_present = "recorded", conflicts_with = "recorded")]
    trace: Option<PathBuf>,

    /// Replay a server's recording and compare the decisions; fails if they differ.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["TraceArgs", "SelectionArgs", "SettingsArgs", "TierArgs"])]
    recorded: Option<PathBuf>,

    #[command(flatten)]
    part: SelectionArgs,

    #[command(flatten)]
    of_trace: TraceArgs,

    #[command(flatten)]
    settings: SettingsArgs,

    #[command(flatten)]
    tiers: TierArgs,

    /// Write the report as JSON to a file, or to standard output if it is `-`, instead of a table; a list of reports if
    /// several are compared.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write how each request fared to a file, a row each in the order in which they end: Parquet if its name ends in .parquet, else
    /// CSV, gzip if it ends in .gz.
    #[arg(long, value_name = "FILE", conflicts_with = "recorded")]
    requests: Option<PathBuf>,

    #[command(flatten)]
    outputs: OutputArgs,
}

/// When the requests of a trace arrive.
#[derive(Clone, Debug, Args)]
struct TraceArgs {
    /// One request after another, whatever the times in the trace: measures the cache alone.
    #[arg(long, conflicts_with_all = ["speed", "load"])]
    serial: bool,

    /// Divide the times of arrival by X: 2 is twice the load.
    #[arg(long, value_name = "X", default_value_t = 1.0, allow_negative_numbers = true)]
    speed: f64,

    /// Choose the speed so that arrivals are this share of the fleet's capacity, such as 0.8. The capacity is measured by one
    /// more replay, with all requests there from the beginning.
    #[arg(long, value_name = "SHARE", conflicts_with = "speed", allow_negative_numbers = true)]
    load: Option<f64>,

    /// Read the trace while it is replayed: for one that is larger than the memory. A line that cannot be read is found only then.
    #[arg(long, conflicts_with = "load")]
    stream: bool,
}

impl TraceArgs {
    fn arrivals(&self) -> Arrivals {
        if self.serial { Arrivals::Serial } else { Arrivals::Traced { speed: self.speed } }
    }
}

/// What flags ask for, checked as far as it can be without the trace.
pub(crate) struct Asked {
    /// The settings of each run; several if some are compared.
    pub(crate) runs: Vec<Settings>,
    /// Of all runs.
    pub(crate) cost: Box<dyn CostModel + Send + Sync>,
    pub(crate) part: Part,
    /// The load as a share of the capacity.
    pub(crate) load: Option<f64>,
}

impl ReplayArgs {
    pub(crate) fn asked(&self) -> anyhow::Result<Asked> {
        let Runs { settings: runs, cost } = runs(&self.settings, &self.tiers, self.of_trace.arrivals())?;
        let load = self.of_trace.load;
        if let Some(fraction) = load.filter(|fraction| !(*fraction > 0.0 && fraction.is_finite())) {
            return Err(ReplayError::LoadFraction(fraction).into());
        }
        let (options, selection) = (self.part.options(), self.part.selection());
        Ok(Asked { runs, cost, part: Part { options, selection, stream: self.of_trace.stream }, load })
    }
}

/// Runs the command.
///
/// # Errors
/// If the trace or recording cannot be read, a setting is impossible, the report cannot be written, or the decisions of a
/// recording differ.
pub fn run(args: ReplayArgs) -> anyhow::Result<()> {
    match (&args.recorded, &args.trace) {
        (Some(recording), _) => run_recorded(recording, args.json.as_deref()),
        (None, Some(trace)) => run_trace(trace, &args),
        (None, None) => bail!("name a trace, or a recording with --recorded"),
    }
}

fn run_trace(path: &Path, args: &ReplayArgs) -> anyhow::Result<()> {
    // Settings first: a wrong one should not wait for a long trace to be read.
    let Asked { mut runs, cost, part, load } = args.asked()?;
    args.outputs.check(runs.len(), args.json.as_deref(), args.requests.as_deref())?;
    let input = part.open(path)?;

    let n_replays = runs.len() as u64 + u64::from(load.is_some());
    let bar = input.requests().map_or_else(ProgressBar::no_length, |requests| ProgressBar::new(requests * n_replays));
    bar.set_style(ProgressStyle::with_template("{elapsed:>4} {wide_bar} {pos} of {len} requests")?);
    let load = match load {
        Some(fraction) => Some(at_load(&input, &mut runs, &*cost, fraction, &mut |ended| bar.set_position(ended))?),
        None => None,
    };
    let stage = Stage { input: &input, cost: &*cost, bar: &bar };
    let result = args.outputs.replay(args.requests.as_deref(), &stage, &runs);
    bar.finish_and_clear();

    let (mut reports, series): (Vec<_>, Vec<_>) = result?.into_iter().unzip();
    for report in &mut reports {
        report.settings.trace = path.display().to_string();
        report.load = load;
    }
    args.outputs.write_page(&reports, &series)?;
    match (&args.json, &reports[..]) {
        (Some(to), [report]) => write_json(to, &report.to_json()),
        (Some(to), reports) => write_json(to, &serde_json::to_string_pretty(reports)?),
        (None, [report]) => print(&render::report(report)),
        (None, reports) => print(&compare::table(reports)),
    }
}

/// Sets the speed of all runs so that arrivals are `fraction` of what the first of them can take.
pub(crate) fn at_load(
    input: &Input,
    runs: &mut [Settings],
    cost: &dyn CostModel,
    fraction: f64,
    progress: &mut dyn FnMut(u64),
) -> anyhow::Result<LoadReport> {
    let load = load(input.trace()?, &runs[0], cost, fraction, progress)?;
    for settings in runs {
        settings.arrivals = Arrivals::Traced { speed: load.speed };
    }
    Ok(load)
}

fn run_recorded(path: &Path, json: Option<&Path>) -> anyhow::Result<()> {
    let spinner = ProgressBar::new_spinner();
    spinner.set_style(ProgressStyle::with_template("{elapsed:>4} {pos} events")?);
    let result = replay_recorded(path, &mut |events| spinner.set_position(events));
    spinner.finish_and_clear();

    let replayed = result?;
    match json {
        Some(to) => write_json(to, &serde_json::to_string_pretty(&replayed)?)?,
        None => print(&render::recorded(&replayed))?,
    }
    if let Some(cut_off) = replayed.cut_off {
        eprintln!(
            "{} was cut off ({}): replayed what there is, with nothing to compare",
            path.display(),
            cut_off.as_str()
        );
    }
    match (&replayed.recorded_digest, replayed.matches) {
        (Some(recorded), Some(false)) => bail!("decisions differ: recorded {recorded}, replayed {}", replayed.digest),
        _ => Ok(()),
    }
}

pub(crate) fn write_json(to: &Path, json: &str) -> anyhow::Result<()> {
    if to.as_os_str() == "-" {
        return print(json);
    }
    fs::write(to, format!("{json}\n")).with_context(|| format!("cannot write the report to {}", to.display()))
}

pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{text}").context("cannot write to standard output")
}

#[cfg(test)]
mod tests;
