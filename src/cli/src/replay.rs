//! `trunkline replay`: a trace under a virtual clock, or a recording of a server.

pub(crate) mod compare;
mod engine_log;
pub(crate) mod estimate;
pub(crate) mod input;
mod measured;
mod outputs;
mod pages;
pub(crate) mod render;
mod run;
pub(crate) mod service;
pub(crate) mod settings;
pub(crate) mod tiers;
pub(crate) mod unused;

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use tracing::warn;
use trunkline_sim_perf::cost::CostModel;
use trunkline_sim_replay::capacity::load;
use trunkline_sim_replay::recorded::{Recorded, replay_recorded};
use trunkline_sim_replay::{Arrivals, ReplayError, Settings, replay as replay_trace};
use trunkline_sim_report::report::{BaselineReport, LoadReport};

use self::input::{Input, Part};
use self::outputs::OutputArgs;
use self::run::Stage;
use self::service::hardware_names;
use self::settings::{Runs, SettingsArgs, runs};
use self::unused::unused;
use crate::output::{print, write_json};
use crate::settings::closed_loop::LoopArgs;
use crate::settings::selection::SelectionArgs;

const EXAMPLES: &str = "\
Examples:
  How would four H100s serve this traffic?
    trunkline replay examples/traces/chat-and-agents.jsonl.gz --replicas 4

  What would an unlimited cache save?
    trunkline replay examples/traces/chat-and-agents.jsonl.gz --serial --device-blocks 10000000

  What does a benchmark with 64 requests at a time measure?
    trunkline replay trace.jsonl.gz --concurrency 64

  Which policy serves best at 80 % of the capacity of the fleet?
    trunkline replay examples/traces/chat-and-agents.jsonl.gz --replicas 4 --load 0.8 --policy fcfs --policy edf

  Does swapping to 64 GB of host memory pay when blocks run out?
    trunkline replay trace.csv --device-blocks 2000 --host-memory-gb 64 --preemption swap --preemption recompute

  Does routing by prefix pay, and what if a replica fails after ten minutes?
    trunkline replay trace.jsonl.gz --replicas 4 --router round_robin --router prefix_affinity --fail 2@600..660

  What do a fixed fleet and one that follows the load cost, and what does the second cost in latency?
    trunkline replay day.jsonl.gz --replicas 4 --autoscale none --autoscale load:min=1,max=4,target=24 --price h100-80g=2.5

  How does a tenant with nine tenths of the requests affect the other?
    trunkline replay trace.csv --load 1.2 --tenants 0.9,0.1

  How slow is a model too large for the device, with most of its layers in host memory?
    trunkline replay trace.jsonl.gz --model llama-3.1-70b --hardware rtx4090-24g --weights stream:device_layers=8

  Charts and a timeline of a replay:
    trunkline replay trace.jsonl.gz --replicas 4 --html report.html --timeline timeline.json.gz

  Does this version decide as the server did?
    trunkline replay --recorded server.jsonl.gz

Latencies come from a cost model, a roofline unless --cost says otherwise; the report states its error.";

/// Groups of flags about traces, which a recording leaves no room for.
const OF_TRACES: [&str; 9] = [
    "TraceArgs",
    "LoopArgs",
    "SelectionArgs",
    "FleetArgs",
    "LimitArgs",
    "CoreSettings",
    "RoutingArgs",
    "ServiceArgs",
    "TierArgs",
];

/// Replay a trace through the core under a virtual clock, or a recording of a server.
///
/// A trace is of any format of --format, plain, gzip or Zstandard; a workload is TOML. Scheduler and cache are the server's own code; only the clock, the worker and the link to host memory are modelled.
/// Several policies, eviction policies, preemptions or routers are compared in one table.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ReplayArgs {
    /// Trace or workload to replay.
    #[arg(value_name = "TRACE", required_unless_present = "recorded", conflicts_with = "recorded")]
    trace: Option<PathBuf>,

    /// Replay a server's recording and compare the decisions; fails if they differ.
    #[arg(long, value_name = "FILE", conflicts_with_all = OF_TRACES)]
    recorded: Option<PathBuf>,

    #[command(flatten)]
    part: SelectionArgs,

    #[command(flatten)]
    of_trace: TraceArgs,

    #[command(flatten)]
    users: LoopArgs,

    #[command(flatten)]
    settings: SettingsArgs,

    #[command(flatten)]
    outputs: OutputArgs,
}

/// Arrival of the requests of a trace.
#[derive(Clone, Debug, Args)]
struct TraceArgs {
    /// Start each request when the previous one ends, ignoring arrival times: measures the cache alone.
    #[arg(long, conflicts_with_all = ["speed", "load", "concurrency"])]
    serial: bool,

    /// Set the speed so that arrivals are this share of the fleet's capacity, such as 0.8. Capacity is measured by one more
    /// replay, in which all requests arrive at the start.
    #[arg(long, value_name = "SHARE", conflicts_with_all = ["speed", "concurrency"], allow_negative_numbers = true)]
    load: Option<f64>,

    /// Read the trace while it is replayed, for traces larger than memory. Malformed lines are reported only when reached.
    #[arg(long, conflicts_with = "load")]
    stream: bool,
}

/// Plan of a replay, checked as far as possible without the trace.
pub(crate) struct ReplayPlan {
    /// Settings of each run; several if runs are compared.
    pub(crate) runs: Vec<Settings>,
    /// Cost model of all runs.
    pub(crate) cost: Box<dyn CostModel + Send + Sync>,
    pub(crate) part: Part,
    /// Load as a share of the capacity.
    pub(crate) load: Option<f64>,
}

impl ReplayArgs {
    /// Takes the settings of the recorded server as defaults if the file at `path` is a recording.
    ///
    /// # Errors
    /// If the recording has no valid header.
    pub(crate) fn follow(&mut self, path: &Path) -> anyhow::Result<()> {
        self.settings.follow(path)
    }

    /// Returns `true` if requests have the tenants of the trace.
    pub(crate) fn has_own_tenants(&self) -> bool {
        self.settings.routing.tenants.is_none()
    }

    fn arrivals(&self) -> Arrivals {
        match self.users.shape() {
            Some(shape) => Arrivals::Closed(shape),
            None if self.of_trace.serial => Arrivals::Serial,
            None => Arrivals::Traced { speed: self.part.speed },
        }
    }

    /// Makes the plan described by the flags.
    ///
    /// # Errors
    /// If a setting is unknown, malformed or outside its range.
    pub(crate) fn plan(&self) -> anyhow::Result<ReplayPlan> {
        let Runs { settings: runs, cost } = runs(&self.settings, self.arrivals())?;
        self.settings.service.check_prices(&runs.iter().flat_map(hardware_names).collect::<Vec<_>>())?;
        let load = self.of_trace.load;
        if let Some(fraction) = load.filter(|fraction| !(*fraction > 0.0 && fraction.is_finite())) {
            return Err(ReplayError::LoadFraction(fraction).into());
        }
        let (options, selection) = (self.part.options(), self.part.selection());
        Ok(ReplayPlan { runs, cost, part: Part { options, selection, stream: self.of_trace.stream }, load })
    }
}

/// Runs the command.
///
/// # Errors
/// If the trace or recording cannot be read, a setting is impossible, the report cannot be written, or the decisions of a
/// recording differ.
pub fn run(args: ReplayArgs) -> anyhow::Result<()> {
    match (&args.recorded, &args.trace) {
        (Some(recording), _) => run_recorded(recording, args.outputs.json.json.as_deref()),
        (None, Some(trace)) => run_trace(trace, &args),
        (None, None) => bail!("name a trace, or a recording with --recorded"),
    }
}

fn run_trace(path: &Path, args: &ReplayArgs) -> anyhow::Result<()> {
    // Settings first: a mistake is reported before a long trace is read.
    let mut args = args.clone();
    args.follow(path)?;
    let ReplayPlan { mut runs, cost, part, load } = args.plan()?;
    unused(&args.settings, &runs).iter().for_each(|line| warn!("{line}"));
    args.outputs.check(runs.len())?;
    let input = part.open(path)?;
    runs.iter_mut().for_each(|settings| args.settings.adopt_tenants(settings, input.tenants()));
    let baseline = match &input {
        Input::Recorded(recorded, _) => Some(baseline(recorded, &args.settings)?),
        _ => None,
    };

    let n_replays = runs.len() as u64 + u64::from(load.is_some());
    let bar = input.requests().map_or_else(ProgressBar::no_length, |requests| ProgressBar::new(requests * n_replays));
    bar.set_style(ProgressStyle::with_template("{elapsed:>4} {wide_bar} {pos} of {len} requests")?);
    let load = match load {
        Some(fraction) => Some(at_load(&input, &mut runs, &*cost, fraction, &mut |ended| bar.set_position(ended))?),
        None => None,
    };
    let stage = Stage { input: &input, cost: &*cost, bar: &bar };
    let result = args.outputs.replay(&stage, &runs);
    bar.finish_and_clear();

    let (mut reports, series): (Vec<_>, Vec<_>) = result?.into_iter().unzip();
    for report in &mut reports {
        report.settings.trace = path.display().to_string();
        report.load = load;
        report.baseline.clone_from(&baseline);
    }
    args.outputs.write_page(&reports, &series)?;
    match (&args.outputs.json.json, &reports[..]) {
        (Some(to), [report]) => write_json("report", to, &report.to_json()),
        (Some(to), reports) => write_json("report", to, &serde_json::to_string_pretty(reports)?),
        (None, [report]) => print(&(render::report(report) + &estimate::notes(&args.settings, &runs))),
        (None, reports) => print(&(compare::table(reports) + &estimate::notes(&args.settings, &runs))),
    }
}

/// Simulates the recorded server with its own settings, to compare with what it measured.
fn baseline(recorded: &Recorded, settings: &SettingsArgs) -> anyhow::Result<BaselineReport> {
    let Runs { settings: runs, cost } = runs(&settings.as_recorded(), Arrivals::TRACED)?;
    let simulated = replay_trace(&recorded.trace, &runs[0], &*cost, &mut |_| {})?;
    Ok(BaselineReport {
        digest: recorded.replayed.digest.clone(),
        digest_equal: recorded.replayed.matches,
        measured: recorded.measured,
        simulated: simulated.latencies,
        left_out: recorded.left_out,
        cut_short: recorded.cut_short,
    })
}

/// Sets the speed of all runs so that arrivals are `fraction` of the capacity of the first run.
///
/// # Errors
/// If the trace is not in memory, or cannot be replayed.
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
        Some(to) => write_json("report", to, &serde_json::to_string_pretty(&replayed)?)?,
        None => print(&render::recorded(&replayed))?,
    }
    if let Some(cut_off) = replayed.cut_off {
        eprintln!(
            "{} was cut off ({}): replayed the events before, with no digest to compare",
            path.display(),
            cut_off.as_str()
        );
    }
    if replayed.inputs_match == Some(false) {
        bail!("{} was changed after it was recorded, so its decisions say nothing about the server", path.display());
    }
    match (&replayed.recorded_digest, replayed.matches) {
        (Some(recorded), Some(false)) => bail!("decisions differ: recorded {recorded}, replayed {}", replayed.digest),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
