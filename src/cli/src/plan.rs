//! `trunkline plan`: the least number of replicas, or the highest rate of requests, that meets SLOs on latency.

mod day;
mod progress;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{bail, ensure};
use clap::Args;
use serde::Serialize;
use tracing::warn;
use trunkline_sim_perf::cost::BoxedCost;
use trunkline_sim_perf::hardware;
use trunkline_sim_perf::memory::DoesNotFit;
use trunkline_sim_replay::plan::{
    Answer, Candidate, DayAnswer, Doubt, Goal, LOAD_RELIABLE_MAX, PlanError, Probe, Search, plan, plan_day,
};
use trunkline_sim_replay::recorded;
use trunkline_sim_replay::settings::SettingsError;
use trunkline_sim_replay::{Arrivals, Settings};
use trunkline_sim_report::sample::Interval;
use trunkline_sim_report::slo::{Slo, SloResult, Slos};

use self::day::DayArgs;
use self::progress::Progress;
use crate::output::{JsonArgs, NOT_MET, align_right, grouped, per_cent, print, table, write_json};
use crate::replay::estimate;
use crate::replay::input::{is_workload, loaded, recording};
use crate::replay::service::hardware_names;
use crate::replay::settings::{Runs, SettingsArgs, runs};
use crate::replay::unused::unused;
use crate::settings::closed_loop::LoopArgs;
use crate::settings::selection::SelectionArgs;

const EXAMPLES: &str = "\
Examples:
  How many H100s, or how many A100s, serve this traffic, and which is cheaper?
    trunkline plan trace.jsonl.gz --slo ttft_p99=2s --slo tpot_p95=50ms --hardware h100-80g,a100-80g \\
      --price h100-80g=2.5 --price a100-80g=1.3

  How many give 99 % of requests their first token within 2 s and each further one within 50 ms?
    trunkline plan trace.jsonl.gz --slo ttft=2s --slo tpot=50ms --goodput 0.99

  How many prefill and how many decode replicas, with blocks that travel through the host memory of one machine?
    trunkline plan trace.jsonl.gz --slo ttft_p99=2s --slo tpot_p95=30ms --split --shared-mem 256GB

  How many in each hour of a working day, and what does a fleet that follows the day save?
    trunkline plan trace.jsonl.gz --slo ttft_p99=2s --daily-curve examples/curves/office-day.csv --price h100-80g=2.5

  How much more traffic do four take?
    trunkline plan trace.jsonl.gz --slo ttft_p99=2s --replicas 4 --find-rate

Every answer depends on a cost model. If its error was measured for this model, parallelism and kind of batch, the answer is a range: the
search again with all step times shorter and longer by that error. If not, leave a margin, and calibrate before you buy.

The exit status is 0 if the SLOs are met, 3 if they are not, and 1 if the plan failed.";

/// Find the least number of replicas that meets SLOs on a trace, or the highest rate at which a fleet does.
///
/// Every probe replays the same trace with the same arrivals. An SLO is METRIC_STATISTIC=DURATION: metrics ttft, tpot, itl and e2e;
/// statistics mean, p50, p90, p95, p99 and max; durations in s, ms or us. METRIC=DURATION applies to each request, for --goodput.
/// A probe stops once an SLO can no longer be met.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PlanArgs {
    /// Trace to replay in every probe.
    #[arg(value_name = "TRACE")]
    trace: PathBuf,

    /// SLO to meet, such as ttft_p99=2s. May be given more than once.
    #[arg(long, value_name = "SLO", required = true)]
    slo: Vec<String>,

    /// Least share of requests that must each meet all SLOs of the form METRIC=DURATION, such as 0.99.
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    goodput: Option<f64>,

    /// Maximum number of replicas to try.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    max_replicas: u32,

    /// Find the highest speed at which `--replicas` meet the SLOs, instead of the least number of replicas.
    #[arg(long, conflicts_with_all = ["max_replicas", "speed", "concurrency"])]
    find_rate: bool,

    /// Divide the replicas into prefill and decode ones, and find the division too. The blocks travel by --shared-mem or --remote-shared, or are
    /// computed again.
    #[arg(long, conflicts_with_all = ["find_rate", "roles"])]
    split: bool,

    /// Run every probe to its end, so that probes that fail have figures too.
    #[arg(long)]
    complete: bool,

    #[command(flatten)]
    users: LoopArgs,

    #[command(flatten)]
    day: DayArgs,

    #[command(flatten)]
    part: SelectionArgs,

    /// Fleet. `--hardware` may name several kinds, separated by commas; `--replicas` and `--fleet` count only with `--find-rate`.
    #[command(flatten)]
    settings: SettingsArgs,

    #[command(flatten)]
    json: JsonArgs,
}

/// A fleet of one kind of hardware, or of `--fleet`, with its cost model.
type Fleet = (Settings, BoxedCost);

/// Kind of hardware without an answer: the model or too many requests do not fit on it.
#[derive(Clone, Debug, Serialize)]
struct Unable {
    hardware: String,
    error: String,
}

/// Answer for one kind of hardware.
#[derive(Serialize)]
#[serde(untagged)]
enum Planned<A> {
    Answer(A),
    Unable(Unable),
}

/// Runs the command. The exit status says whether some hardware meets the SLOs.
///
/// # Errors
/// If an SLO or a setting makes no sense, the trace cannot be read, or an answer cannot be written.
pub fn run(args: PlanArgs) -> anyhow::Result<ExitCode> {
    let slos = args.slo.iter().map(|spec| spec.parse::<Slo>()).collect::<Result<Vec<_>, _>>()?;
    let slos = Slos::new(&slos, args.goodput)?;
    let mut args = args;
    args.settings.follow(&args.trace)?;
    args.settings.fit_blocks = true;
    let day = args.day.day()?;
    let mut fleets = fleets(&args)?;
    let planned: Vec<Settings> = fleets.iter().flatten().map(|(settings, _)| settings.clone()).collect();
    unused(&args.settings, &planned).iter().for_each(|line| warn!("{line}"));
    let prices = prices(&args, &fleets)?;
    let path = args.trace.display();
    ensure!(
        !is_workload(&args.trace),
        "{path} is a workload, and a plan needs a trace; write it down with `trunkline trace generate`"
    );
    let trace = match recorded::is_recording(&args.trace) {
        true => recording(&args.trace, args.part.options(), &args.part.selection())?.1,
        false => loaded(&args.trace, args.part.options(), &args.part.selection())?,
    };
    for (settings, _) in fleets.iter_mut().flatten() {
        args.settings.adopt_tenants(settings, trace.tenants());
    }

    let goal = if args.find_rate { Goal::Rate } else { Goal::Replicas { max: args.max_replicas } };
    let search = Search { slos: &slos, goal, complete: args.complete, split: args.split };
    let shown = Progress::new(trace.requests.len() as u64);
    let progress = |news| shown.show(news);
    if let Some(day) = day {
        let answers = each(&fleets, prices, |candidate| plan_day(&trace, candidate, &search, &day, &progress));
        shown.end();
        let met = |answer: &DayAnswer| answer.fixed.is_some();
        return answer(&args, &planned, &answers?, |answer| day::render(answer, goal), met);
    }
    let answers = each(&fleets, prices, |candidate| plan(&trace, candidate, &search, &progress));
    shown.end();
    answer(&args, &planned, &answers?, |answer| render(answer, goal), |answer| answer.best.is_some())
}

/// Plans with each fleet. Of several, one too small for the requests has no answer.
fn each<A>(
    fleets: &[Result<Fleet, Unable>],
    prices: Vec<Option<f64>>,
    plan: impl Fn(&Candidate<'_>) -> Result<A, PlanError>,
) -> Result<Vec<Planned<A>>, PlanError> {
    let planned = |(fleet, price_hour): (&Result<Fleet, Unable>, Option<f64>)| match fleet {
        Err(unable) => Ok(Planned::Unable(unable.clone())),
        Ok((settings, cost)) => match plan(&Candidate { settings: settings.clone(), cost: &**cost, price_hour }) {
            Err(error @ PlanError::TooLarge { hardware, .. }) if fleets.len() > 1 => {
                Ok(Planned::Unable(Unable { hardware: hardware.into(), error: error.to_string() }))
            }
            answer => answer.map(Planned::Answer),
        },
    };
    fleets.iter().zip(prices).map(planned).collect()
}

/// Writes the answers as JSON or as text, and returns the exit status: success if the SLOs are met with any hardware, [`NOT_MET`] if not, a failure if
/// no hardware could be planned with.
fn answer<A: Serialize>(
    args: &PlanArgs,
    planned: &[Settings],
    answers: &[Planned<A>],
    render: impl Fn(&A) -> String,
    is_met: impl Fn(&A) -> bool,
) -> anyhow::Result<ExitCode> {
    let text = |planned: &Planned<A>| match planned {
        Planned::Answer(answer) => render(answer),
        Planned::Unable(Unable { hardware, error }) => format!("{hardware}\n\nnot planned with: {error}"),
    };
    match &args.json.json {
        Some(to) => write_json("report", to, &serde_json::to_string_pretty(answers)?)?,
        None => {
            let texts = answers.iter().map(text).collect::<Vec<_>>().join("\n\n");
            print(&(texts + &estimate::notes(&args.settings, planned)))?;
        }
    }
    let is_met = |planned: &Planned<A>| matches!(planned, Planned::Answer(answer) if is_met(answer));
    Ok(if answers.iter().any(is_met) {
        ExitCode::SUCCESS
    } else if answers.iter().any(|planned| matches!(planned, Planned::Answer(_))) {
        ExitCode::from(NOT_MET)
    } else {
        ExitCode::FAILURE
    })
}

/// Returns settings and cost model for each kind of hardware, or for the fleet of `--fleet`. Of several kinds, one too small for the model
/// comes with the reason.
fn fleets(args: &PlanArgs) -> anyhow::Result<Vec<Result<Fleet, Unable>>> {
    if args.settings.fleet.fleet.is_some() {
        ensure!(args.find_rate, "the replicas of --fleet are given; look for the rate they take with --find-rate");
        return Ok(vec![Ok(fleet(&args.settings, args)?)]);
    }
    ensure!(
        args.find_rate || args.settings.fleet.replicas.is_none(),
        "--replicas is a given number; look for the rate they take with --find-rate, or limit the search with --max-replicas"
    );
    ensure!(
        args.find_rate || args.settings.routing.roles.is_none(),
        "roles are those of a given number of replicas; find the division with --split, or the rate with --find-rate"
    );
    ensure!(
        args.find_rate || !args.settings.service.is_autoscaled(),
        "an autoscaled fleet finds the number of replicas itself; look for the rate with --find-rate"
    );
    let names: Vec<&str> = args.settings.fleet.hardware.split(',').collect();
    let of_hardware = |hardware: &str| {
        let mut of_one = args.settings.clone();
        of_one.fleet.hardware = hardware.trim().into();
        if !args.find_rate {
            of_one.fleet.replicas = Some(args.max_replicas);
        }
        match fleet(&of_one, args) {
            Err(error) if names.len() > 1 && is_too_small(&error) => {
                let hardware = hardware::find(hardware.trim())?.name.into();
                Ok(Err(Unable { hardware, error: error.to_string() }))
            }
            fleet => fleet.map(Ok),
        }
    };
    names.iter().map(|name| of_hardware(name)).collect()
}

/// Returns `true` if a device or its host has no room for the model.
fn is_too_small(error: &anyhow::Error) -> bool {
    let of_host =
        error.downcast_ref::<SettingsError>().is_some_and(|error| matches!(error, SettingsError::HostMemory(_)));
    error.is::<DoesNotFit>() || of_host
}

fn fleet(settings: &SettingsArgs, args: &PlanArgs) -> anyhow::Result<Fleet> {
    let arrivals = args.users.shape().map_or(Arrivals::Traced { speed: args.part.speed }, Arrivals::Closed);
    let Runs { settings: mut runs, cost } = runs(settings, arrivals)?;
    match runs.pop() {
        Some(settings) if runs.is_empty() => Ok((settings, cost)),
        _ => bail!("a plan is for one policy, eviction policy, preemption and router; compare them with replay"),
    }
}

/// Returns the price of a replica of each of `fleets` for an hour, the mean over kinds if there are several; `None` if not given.
fn prices(args: &PlanArgs, fleets: &[Result<Fleet, Unable>]) -> anyhow::Result<Vec<Option<f64>>> {
    let names = |fleet: &'_ Result<Fleet, Unable>| match fleet {
        Ok((settings, _)) => hardware_names(settings).map(String::from).collect(),
        Err(unable) => vec![unable.hardware.clone()],
    };
    let names: Vec<String> = fleets.iter().flat_map(names).collect();
    args.settings.service.check_prices(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
    let mean = |fleet: &Result<Fleet, Unable>| {
        let (fleet, _) = fleet.as_ref().ok()?;
        let replicas = std::iter::once(fleet.replicas).chain(fleet.others.iter().map(|group| group.replicas));
        let sum = replicas.zip(&fleet.prices).map(|(replicas, price)| f64::from(replicas) * price).sum::<f64>();
        (!fleet.prices.is_empty()).then(|| sum / f64::from(fleet.n_replicas()))
    };
    Ok(fleets.iter().map(mean).collect())
}

/// Returns the table of probes, and the answer below.
fn render(answer: &Answer, goal: Goal) -> String {
    let mut probes = table();
    let names: Vec<&str> = answer
        .probes
        .iter()
        .find(|probe| !probe.figures.is_empty())
        .map(|probe| probe.figures.iter().map(|figure| figure.name.as_str()).collect())
        .unwrap_or_default();
    let header = ["replicas", "speed", "requests/s"].into_iter().chain(names.iter().copied()).chain(["busy", "met"]);
    probes.set_header(header.collect::<Vec<_>>());
    for probe in &answer.probes {
        let mut cells =
            vec![format!("{}{}", probe.replicas, division(probe)), format!("{:.3}", probe.speed), rate(probe)];
        let figure = |at: usize| probe.figures.get(at).map_or("-".into(), |figure| value(&figure.name, figure.value));
        cells.extend((0..names.len()).map(figure));
        cells.push(probe.utilisation.map_or("-".into(), per_cent));
        cells.push(match &probe.stopped_by {
            Some(name) => format!("no: {name}, stopped"),
            None if probe.met => "yes".into(),
            None => "no".into(),
        });
        probes.add_row(cells);
    }
    align_right(&mut probes, 0);
    format!("{}\n\n{}\n\n{}", answer.hardware, probes.trim_fmt(), conclusion(answer, goal).join("\n"))
}

fn conclusion(answer: &Answer, goal: Goal) -> Vec<String> {
    let Some(best) = &answer.best else {
        let tried = answer.probes.last().map_or(0, |probe| probe.replicas);
        let mut lines = vec![match goal {
            Goal::Replicas { .. } => format!("not met by up to {}", replicas(tried)),
            Goal::Rate => "not met at any rate, so that single requests take too long; promise less".into(),
        }];
        if let Goal::Replicas { .. } = goal {
            lines.extend(alone(answer));
        }
        lines.extend(range(answer, goal));
        return lines;
    };
    let mut lines = vec![match goal {
        Goal::Replicas { .. } => format!("met by {}{}", replicas(best.replicas), division(best)),
        Goal::Rate if answer.at_end => format!("met at {} times the rate of the trace and perhaps more", best.speed),
        Goal::Rate => format!("met up to {} requests/s, {:.3} times the rate of the trace", rate(best), best.speed),
    }];
    lines.extend(overload(answer));
    lines.extend(range(answer, goal));
    for figure in &best.figures {
        let (name, limit) = (&figure.name, value(&figure.name, figure.limit));
        lines.push(format!(
            "{name} is {} of {limit}, a margin of {}",
            value(name, figure.value),
            per_cent(figure.margin)
        ));
        lines.extend(figure.sample.map(|sample| sampled(figure, &sample)));
    }
    if best.refused > 0 {
        lines.push(format!("{} requests are refused as too large for the device", grouped(best.refused)));
    }
    if let Some(load) = answer.load {
        lines.push(format!("load is {} of what the fleet can take", per_cent(load)));
    }
    lines.extend(best.too_long.map(|requests| format!("warning: {requests}")));
    lines.extend(best.extrapolated.map(|steps| {
        format!("warning: step times are {steps}; measure steps as large, or limit them (--max-batch-tokens, --max-batch-size, --max-context)")
    }));
    if answer.is_saturated() && overload(answer).is_none() {
        let most = per_cent(LOAD_RELIABLE_MAX);
        lines.push(format!(
            "warning: above a load of {most} tails are unreliable: small errors of step times make them large"
        ));
    }
    if !answer.monotone {
        lines.push("warning: a larger or less loaded fleet was probed that does not meet them; see the probes".into());
    }
    if let (Some(all), Some(output)) = (best.price_million_tokens, best.price_million_output_tokens) {
        let hour = answer.price_hour.map_or(String::new(), |price| format!(", at {price:.2} an hour for a replica"));
        lines.push(format!("costs {all:.4} for a million tokens, {output:.4} for a million generated ones{hour}"));
    }
    lines
}

/// Says which sample a figure comes from, and how far another one would move it.
fn sampled(figure: &SloResult, sample: &Interval) -> String {
    let Interval { low, high, requests, sessions, behind } = *sample;
    let of = match sessions == requests {
        true => format!("{} requests", grouped(requests)),
        false => format!("{} requests in {} sessions", grouped(requests), grouped(sessions)),
    };
    let decide = if behind < requests { format!(", of which {} decide it", grouped(behind)) } else { String::new() };
    let doubt = if high > figure.limit { "; above the limit in some" } else { "" };
    let thin = if sample.is_thin() { "; too few for a promise, give a longer trace" } else { "" };
    format!("  between {low:.4} and {high:.4} s in 95 % of samples like these {of}{decide}{doubt}{thin}")
}

/// Returns a warning of a fleet that may meet its SLOs only because the trace ends before too many requests wait. Of a trace that is not much longer
/// than its answers the load says little.
fn overload(answer: &Answer) -> Option<String> {
    let (load, arriving) = (answer.load?, answer.best.as_ref()?.arrival_requests_s?);
    (load > 1.0).then(|| {
        format!(
            "warning: {arriving:.3} requests/s arrive, and of all requests at once the fleet completes {:.3}: perhaps it meets the SLOs only because the trace ends; give a longer trace to be sure",
            arriving / load
        )
    })
}

/// Returns a number of replicas in words: `1 replica`, `3 replicas`.
fn replicas(n: u32) -> String {
    if n == 1 { "1 replica".into() } else { format!("{n} replicas") }
}

/// Returns the answers with step times off by the error of the cost model, and the statement of that error.
fn range(answer: &Answer, goal: Goal) -> Vec<String> {
    let model = format!("step times: {}", answer.cost_model);
    let Some(range) = &answer.range else {
        return vec![
            "no range: the error of the step times was not measured; leave a margin, or calibrate".into(),
            model,
        ];
    };
    let end = |probe: &Option<Probe>| match (probe, goal) {
        (None, Goal::Replicas { max }) => format!("more than {}", replicas(max)),
        (None, Goal::Rate) => "no rate".into(),
        (Some(probe), Goal::Replicas { .. }) => format!("{}{}", replicas(probe.replicas), division(probe)),
        (Some(probe), Goal::Rate) => format!("{} requests/s", rate(probe)),
    };
    let doubt = match range.doubt {
        Doubt::Errors { prefill_error: prefill, decode_error: decode, mixed_error: mixed } => {
            let each = [prefill, decode, mixed].map(per_cent);
            match each.iter().all(|error| *error == each[0]) {
                true => format!("than modelled by {}", each[0]),
                false => format!("than modelled by {} (prefill), {} (decode) and {} (both)", each[0], each[1], each[2]),
            }
        }
        Doubt::Times(range) => format!("than modelled: {range}"),
    };
    let faster = format!("{} if steps are faster", end(&range.if_faster));
    let answers = match &answer.best {
        Some(_) => format!("{faster}, {} if they are slower", end(&range.if_slower)),
        None => faster,
    };
    vec![format!("{answers} {doubt}"), model]
}

/// Says which SLOs no number of replicas meets, because a request by itself does not.
fn alone(answer: &Answer) -> Vec<String> {
    let missed = answer.alone.iter().filter(|figure| !figure.met);
    let line = |figure: &SloResult| {
        let (name, limit) = (&figure.name, value(&figure.name, figure.limit));
        format!(
            "no number of replicas meets {name}: it is {} of {limit} with one request at a time and all prefixes cached; promise less, or take a faster device",
            value(name, figure.value)
        )
    };
    let lines: Vec<String> = missed.map(line).collect();
    if lines.is_empty() {
        vec!["one request at a time, with all prefixes cached, meets them; give more replicas, or a router that keeps prefixes together".into()]
    } else {
        lines
    }
}

/// Returns the division of the replicas, if there is one.
fn division(probe: &Probe) -> String {
    let decode = |prefill| probe.replicas - prefill;
    probe.prefill.map_or(String::new(), |prefill| format!(" ({prefill} prefill, {} decode)", decode(prefill)))
}

fn rate(probe: &Probe) -> String {
    probe.arrival_requests_s.map_or("-".into(), |rate| format!("{rate:.3}"))
}

/// Formats goodput as a share, other figures as seconds.
fn value(name: &str, value: f64) -> String {
    if name == "goodput" { per_cent(value) } else { format!("{value:.4} s") }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use clap::Parser;
    use trunkline_sim_workload::Trace;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: PlanArgs,
    }

    fn parse(words: &str) -> PlanArgs {
        Cli::try_parse_from(["plan"].into_iter().chain(words.split(' '))).unwrap().args
    }

    fn fault(words: &str) -> String {
        let message = run(parse(words)).unwrap_err().to_string();
        assert!(!message.contains('\n'), "one line: {message}");
        message
    }

    #[test]
    fn errors_are_reported_before_the_trace_is_read() {
        assert_eq!(
            fault("chat.toml --slo ttft_p99=2s"),
            "chat.toml is a workload, and a plan needs a trace; write it down with `trunkline trace generate`"
        );
        assert_eq!(fault("none --slo ttft"), "SLO is 'ttft'; give METRIC_STATISTIC=DURATION, such as ttft_p99=2s");
        let slo = "none --slo ttft_p99=2s";
        assert_eq!(fault(&format!("{slo} --price x")), "price is 'x'; give HARDWARE=PRICE, such as h100-80g=2.5");
        assert_eq!(
            fault(&format!("{slo} --price a100-80g=1")),
            "price of 'a100-80g', which is not planned with; name it in --hardware"
        );
        assert!(fault(&format!("{slo} --hardware h100-80g,tpu")).starts_with("unknown hardware 'tpu'; there are: "));
        assert_eq!(
            fault(&format!("{slo} --policy fcfs --policy edf")),
            "a plan is for one policy, eviction policy, preemption and router; compare them with replay"
        );
        let mixed = format!("{slo} --fleet h100-80g,a100-80g*2");
        let given = "the replicas of --fleet are given; look for the rate they take with --find-rate";
        assert_eq!(fault(&mixed), given);
        assert_eq!(
            fault(&format!("{mixed} --find-rate --price a100-80g=1")),
            "price of 'h100-80g' is missing; the fleet has it too"
        );
        let roles = "roles are those of a given number of replicas; find the division with --split, or the rate with --find-rate";
        assert_eq!(fault(&format!("{slo} --roles prefill,decode")), roles);
        assert_eq!(
            fault(&format!("{slo} --replicas 4")),
            "--replicas is a given number; look for the rate they take with --find-rate, or limit the search with --max-replicas"
        );
        assert_eq!(fault(slo), "none: no such file; check the path");
    }

    #[test]
    fn the_price_of_a_replica_is_the_mean_over_kinds() {
        let words =
            "t --slo ttft_p99=2s --find-rate --fleet h100-80g,a100-80g:tp2*2 --price h100-80g=4 --price a100-80g=1";
        let args = parse(words);
        let fleets = fleets(&args).unwrap();
        // Two devices in each of the two others.
        assert_eq!(prices(&args, &fleets).unwrap(), [Some((4.0 + 2.0 + 2.0) / 3.0)]);
        assert_eq!(fleets[0].as_ref().ok().unwrap().0.devices(), "1 x h100-80g, 2 x a100-80g tp2pp1");
    }

    #[test]
    fn hardware_that_is_too_small_does_not_stop_the_plan() {
        let mut trace = tempfile::NamedTempFile::new().unwrap();
        writeln!(trace, r#"{{"timestamp": 0, "input_length": 512, "output_length": 2, "hash_ids": [1]}}"#).unwrap();
        let out = tempfile::NamedTempFile::new().unwrap();
        let (trace, out) = (trace.path().display().to_string(), out.path().display().to_string());
        let plan = |words: &str| {
            let met = run(parse(&format!("{trace} --json {out} --model llama-3.1-70b {words}"))).unwrap();
            let answers: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&out).unwrap()).unwrap();
            (met, answers)
        };
        let (met, answers) =
            plan("--slo ttft_p99=9s --hardware h100-80g,b200-180g --price h100-80g=2 --price b200-180g=4");
        assert_eq!((met, answers[1]["best"]["replicas"].as_u64()), (ExitCode::SUCCESS, Some(1)));
        assert_eq!(answers[0]["hardware"], "h100-80g");
        assert!(answers[0]["error"].as_str().unwrap().starts_with("llama-3.1-70b does not fit on h100-80g: "));
        // Nor does one with too few blocks for a request.
        let (met, answers) = plan("--slo ttft_p99=9s --hardware b200-180g,h200-141g --device-blocks 9");
        assert_eq!(met, ExitCode::FAILURE);
        assert!(
            answers[1]["error"].as_str().unwrap().starts_with("at least 1 of 1 requests are too large for h200-141g")
        );
        assert_eq!(plan("--slo ttft_max=1ms --hardware b200-180g").0, ExitCode::from(NOT_MET));
    }

    #[test]
    fn answers_come_by_hardware_as_tables_or_json() {
        let mut trace = tempfile::NamedTempFile::new().unwrap();
        for i in 0..60 {
            let at_ms = i * 10;
            writeln!(trace, r#"{{"timestamp": {at_ms}, "input_length": 512, "output_length": 20, "hash_ids": [{i}]}}"#)
                .unwrap();
        }
        let out = tempfile::NamedTempFile::new().unwrap();
        let (trace, out) = (trace.path().display().to_string(), out.path().display().to_string());
        let words = "--slo ttft_p99=100ms --slo e2e=2s --goodput 0.9 --hardware h100-80g,a100-80g --price a100-80g=1.5";
        let met = run(parse(&format!("{trace} {words} --max-replicas 8 --json {out}"))).unwrap();
        assert_eq!(met, ExitCode::SUCCESS);
        let answers: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(out).unwrap()).unwrap();
        let replicas = |at: usize| answers[at]["best"]["replicas"].as_u64().unwrap();
        assert_eq!((&answers[0]["hardware"], &answers[1]["hardware"]), (&"h100-80g".into(), &"a100-80g".into()));
        assert!(replicas(0) <= replicas(1), "{answers}");
        assert!(answers[0]["best"]["price_million_tokens"].is_null());
        assert!(answers[1]["best"]["price_million_tokens"].as_f64().unwrap() > 0.0);

        let trace = Trace::load(trace.as_ref(), None, None).unwrap();
        let slos = Slos::new(&["ttft_p99=100ms".parse().unwrap()], None).unwrap();
        let (settings, cost) =
            fleets(&parse("t --slo ttft_p99=100ms --split --shared-mem 64GB")).unwrap().remove(0).ok().unwrap();
        let candidate = Candidate { settings, cost: &*cost, price_hour: None };
        let goal = Goal::Replicas { max: 8 };
        let search = Search { slos: &slos, goal, complete: false, split: true };
        let text = render(&plan(&trace, &candidate, &search, &|_| {}).unwrap(), goal);
        assert!(text.contains("met by 3 replicas (2 prefill, 1 decode)"), "{text}");
        for goal in [Goal::Replicas { max: 8 }, Goal::Rate] {
            let (settings, cost) =
                fleets(&parse("t --slo ttft_p99=100ms --replicas 2 --find-rate")).unwrap().remove(0).ok().unwrap();
            let candidate = Candidate { settings, cost: &*cost, price_hour: Some(2.0) };
            let search = Search { slos: &slos, goal, complete: false, split: false };
            let text = render(&plan(&trace, &candidate, &search, &|_| {}).unwrap(), goal);
            for part in [
                " if steps are faster, ",
                "step times: roofline (",
                "ttft_p99 is 0.",
                "a margin of",
                "load is",
                "for a million tokens",
                "busy",
            ] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
        // A trace that ends before the queue is long enough to miss the SLO.
        let slos = Slos::new(&["ttft_p99=60s".parse().unwrap()], None).unwrap();
        let (settings, cost) = fleets(&parse("t --slo ttft_p99=60s --find-rate")).unwrap().remove(0).ok().unwrap();
        let candidate = Candidate { settings, cost: &*cost, price_hour: None };
        let search = Search { slos: &slos, goal: Goal::Rate, complete: false, split: false };
        let text = render(&plan(&trace, &candidate, &search, &|_| {}).unwrap(), Goal::Rate);
        let warning = text.lines().find(|line| line.ends_with("give a longer trace to be sure")).expect(&text);
        assert!(
            warning.contains(" arrive, and of all requests at once the fleet completes ")
                && !text.contains("tails are unreliable"),
            "{text}"
        );
    }

    #[test]
    fn a_day_has_replicas_for_each_hour_and_the_cost_of_two_fleets() {
        let mut trace = tempfile::NamedTempFile::new().unwrap();
        for i in 0..60 {
            let at_ms = i * 4;
            writeln!(trace, r#"{{"timestamp": {at_ms}, "input_length": 512, "output_length": 20, "hash_ids": [{i}]}}"#)
                .unwrap();
        }
        let out = tempfile::NamedTempFile::new().unwrap();
        let (trace, out) = (trace.path().display().to_string(), out.path().display().to_string());
        let words = "--slo ttft_p99=50ms --daily-curve 2:0.2 --start-delay 360 --price h100-80g=2 --max-replicas 32";
        run(parse(&format!("{trace} {words} --json {out}"))).unwrap();
        let answers: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(out).unwrap()).unwrap();
        let replicas = |hour: usize| answers[0]["hours"][hour]["best"]["replicas"].as_f64().unwrap();
        let hours: Vec<f64> = (0..24).map(replicas).collect();
        assert!(hours[..12].is_sorted() && hours[0] < hours[11], "{hours:?}");
        let (fixed, following) = (&answers[0]["fixed"], &answers[0]["following"]);
        let starting_hours = (hours[11] - hours[0]) * 0.1;
        let near = |a: &serde_json::Value, b: f64| (a.as_f64().unwrap() - b).abs() < 1e-6;
        assert!(near(&fixed["cost"], 2.0 * 24.0 * hours[11]), "{fixed}");
        assert!(near(&following["cost"], 2.0 * (hours.iter().sum::<f64>() + starting_hours)), "{following}");
        let none = format!("{trace} --slo ttft_p99=50ms --daily-curve none.csv");
        assert!(fault(&none).starts_with("daily curve is 'none.csv'; give a file with HOUR,RATE in 24 lines"));
        let long = format!("{trace} {words}").replace("360", "4000");
        assert_eq!(fault(&long), "start delay is 4000; it must be from 0 to 3600 seconds");
        let scaled = format!("{trace} --slo ttft_p99=50ms --autoscale load");
        let message = "an autoscaled fleet finds the number of replicas itself; look for the rate with --find-rate";
        assert_eq!(fault(&scaled), message);
        run(parse(&format!(
            "{trace} --slo ttft_p99=50ms --find-rate --autoscale load:max=2,interval_s=1 --json /dev/null"
        )))
        .unwrap();
    }
}
