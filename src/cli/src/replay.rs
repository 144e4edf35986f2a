//! `trunkline replay`: a trace under a virtual clock, or a recording of a server.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use comfy_table::{CellAlignment, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use trunkline_core::Config;
use trunkline_sim::cost::Roofline;
use trunkline_sim::latency::Summary;
use trunkline_sim::memory::device_blocks;
use trunkline_sim::recorded::{Replayed, replay_recorded};
use trunkline_sim::{Format, Report, Settings, Trace, hardware, model, replay};

const EXAMPLES: &str = "\
Examples:
  How would four H100s serve this traffic?
    trunkline replay mooncake_conversation.jsonl.gz --replicas 4

  What would the cache alone save, were it as large as one liked?
    trunkline replay mooncake_conversation.jsonl.gz --serial --device-blocks 10000000

  Small blocks or large ones?
    trunkline replay trace.csv --block-size 64 --json blocks-64.json

  Does this version decide as the server did?
    trunkline replay --recorded server.jsonl.gz

Latencies come from a roofline of the hardware whose error is not yet fitted: compare settings by them, do not promise them.";

/// Replay a trace through the core under a virtual clock, or a recording of a server.
///
/// A trace is Mooncake JSON lines or Azure CSV, plain or gzip. The scheduler and the cache are the server's own; only the
/// clock and the worker are modelled.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ReplayArgs {
    /// The trace.
    #[arg(value_name = "TRACE", required_unless_present = "recorded", conflicts_with = "recorded")]
    trace: Option<PathBuf>,

    /// Replay a server's recording and compare the decisions; fails if they differ.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = [
            "format", "hardware", "model", "replicas", "block_size", "device_blocks", "max_batch_tokens", "max_batch_size",
            "policy", "eviction", "limit", "serial",
        ]
    )]
    recorded: Option<PathBuf>,

    /// Format of the trace, mooncake or azure [default: found from its content].
    #[arg(long, value_name = "NAME")]
    format: Option<String>,

    /// The device of each replica; an unknown name lists those there are.
    #[arg(long, value_name = "NAME", default_value = "h100-80g")]
    hardware: String,

    /// The model they serve; an unknown name lists those there are.
    #[arg(long, value_name = "NAME", default_value = "llama-3.1-8b")]
    model: String,

    /// Replicas; requests go to them in turn.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=4096))]
    replicas: u32,

    /// Tokens in a KV block.
    #[arg(long, value_name = "TOKENS", default_value_t = trunkline_core::config::BLOCK_SIZE_DEFAULT)]
    block_size: u32,

    /// KV blocks on each device [default: what the model leaves of its memory].
    #[arg(long, value_name = "N")]
    device_blocks: Option<u32>,

    /// Tokens run in one step at most.
    #[arg(long, value_name = "N", default_value_t = 8192)]
    max_batch_tokens: u32,

    /// Sequences in one step at most.
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_batch_size: u32,

    /// Order of waiting requests and choice of victims; an unknown name lists those there are.
    #[arg(long, value_name = "NAME", default_value = "fcfs")]
    policy: String,

    /// Which idle cached block goes first; an unknown name lists those there are.
    #[arg(long, value_name = "NAME", default_value = "lru")]
    eviction: String,

    /// Replay only the first N requests.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,

    /// One request after another, whatever the times in the trace: measures the cache alone.
    #[arg(long)]
    serial: bool,

    /// Write the report as JSON to a file, or to standard output if it is `-`, instead of a table.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
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
    let settings = settings(args)?;
    let format = args.format.as_deref().map(str::parse::<Format>).transpose()?;
    let trace = Trace::load(path, format, args.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)))?;

    let bar = ProgressBar::new(trace.requests.len() as u64);
    bar.set_style(ProgressStyle::with_template("{elapsed:>4} {wide_bar} {pos} of {len} requests")?);
    let cost = Roofline::new(&settings.hardware, &settings.model);
    let result = replay(&trace, &settings, &cost, &mut |ended| bar.set_position(ended));
    bar.finish_and_clear();

    let mut report = result?;
    report.settings.trace = path.display().to_string();
    match &args.json {
        Some(to) => write_json(to, &report.to_json()),
        None => print(&render(&report)),
    }
}

fn settings(args: &ReplayArgs) -> anyhow::Result<Settings> {
    let hardware = *hardware::by_name(&args.hardware)?;
    let model = *model::by_name(&args.model)?;
    let mut core = Config {
        block_size: args.block_size,
        max_batch_tokens: args.max_batch_tokens,
        max_batch_size: args.max_batch_size,
        policy: args.policy.clone(),
        eviction: args.eviction.clone(),
        ..Settings::core()
    };
    core.device_blocks = match args.device_blocks {
        Some(blocks) => blocks,
        None => {
            // The number of blocks can be had only for a block size that is possible.
            core.validate()?;
            device_blocks(&hardware, &model, core.block_size)?
        }
    };
    core.validate()?;
    Ok(Settings { hardware, model, replicas: args.replicas, core, serial: args.serial })
}

fn run_recorded(path: &Path, json: Option<&Path>) -> anyhow::Result<()> {
    let spinner = ProgressBar::new_spinner();
    spinner.set_style(ProgressStyle::with_template("{elapsed:>4} {pos} events")?);
    let result = replay_recorded(path, &mut |events| spinner.set_position(events));
    spinner.finish_and_clear();

    let replayed = result?;
    match json {
        Some(to) => write_json(to, &serde_json::to_string_pretty(&replayed)?)?,
        None => print(&render_recorded(&replayed))?,
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

fn write_json(to: &Path, json: &str) -> anyhow::Result<()> {
    if to.as_os_str() == "-" {
        return print(json);
    }
    fs::write(to, format!("{json}\n")).with_context(|| format!("cannot write the report to {}", to.display()))
}

fn print(text: &str) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{text}").context("cannot write to standard output")
}

fn render(report: &Report) -> String {
    let settings = &report.settings;
    let mut facts = table();
    let replicas = if settings.replicas == 1 { "" } else { " each" };
    facts.add_rows([
        ["trace", &format!("{} ({})", settings.trace, settings.format)],
        ["replicas", &format!("{} x {}, {}", settings.replicas, settings.hardware, settings.model)],
        [
            "KV blocks",
            &format!("{} of {} tokens{replicas}", grouped(settings.device_blocks.into()), settings.block_size),
        ],
        [
            "batch",
            &format!("{} tokens, {} sequences", grouped(settings.max_batch_tokens.into()), settings.max_batch_size),
        ],
        ["policy", &format!("{}{}", settings.policy, if settings.serial { ", one after another" } else { "" })],
        ["eviction", &settings.eviction],
        ["cost model", &settings.cost_model],
        ["requests", &outcome(report)],
        ["duration", &format!("{:.1} s", report.duration_s)],
        ["prompt tokens", &grouped(report.prompt_tokens)],
        [
            "prefix hits",
            &format!("{} tokens, {:.2} %", grouped(report.prefix_hit_tokens), report.prefix_hit_ratio * 100.0),
        ],
        ["output tokens", &grouped(report.output_tokens)],
        ["steps", &grouped(report.steps)],
        ["preemptions", &grouped(report.preemptions)],
        ["evicted blocks", &grouped(report.evicted_blocks)],
        ["digest", &report.digest],
        ["wall time", &format!("{:.2} s", report.wall_s)],
    ]);

    let mut latencies = table();
    latencies.set_header(["seconds", "mean", "p50", "p90", "p95", "p99", "max"]);
    for (name, summary) in
        [("TTFT", report.ttft_s), ("TPOT", report.tpot_s), ("ITL", report.itl_s), ("E2E", report.e2e_s)]
    {
        let Summary { mean, p50, p90, p95, p99, max } = summary;
        let cells = [mean, p50, p90, p95, p99, max].map(|s| format!("{s:.4}"));
        latencies.add_row([name.to_string()].into_iter().chain(cells));
    }
    latencies.column_iter_mut().skip(1).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    format!("{}\n\n{}", facts.trim_fmt(), latencies.trim_fmt())
}

fn outcome(report: &Report) -> String {
    let refused = match report.refused {
        0 => String::new(),
        n => format!(", {} refused as too large for the device", grouped(n)),
    };
    format!("{} of {} completed{refused}", grouped(report.completed), grouped(report.requests))
}

fn render_recorded(replayed: &Replayed) -> String {
    let mut facts = table();
    facts.add_rows([
        ["events", &grouped(replayed.events)],
        ["requests", &grouped(replayed.requests)],
        ["digest", &replayed.digest],
        ["recorded digest", replayed.recorded_digest.as_deref().unwrap_or("none")],
        ["match", replayed.matches.map_or("nothing to compare", |matches| if matches { "yes" } else { "NO" })],
    ]);
    facts.trim_fmt()
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table
}

/// Digits in groups of three.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: ReplayArgs,
    }

    fn parse(words: &[&str]) -> Result<ReplayArgs, clap::Error> {
        Cli::try_parse_from([&["replay"], words].concat()).map(|cli| cli.args)
    }

    fn fault(words: &[&str]) -> String {
        let message = run(parse(words).unwrap()).unwrap_err().to_string();
        assert!(!message.contains('\n'), "one line: {message}");
        message
    }

    #[test]
    fn digits_are_grouped() {
        assert_eq!([0, 999, 1_000, 144_793_823].map(grouped), ["0", "999", "1,000", "144,793,823"]);
    }

    #[test]
    fn a_trace_or_a_recording_but_not_both() {
        assert!(parse(&[]).is_err());
        assert!(parse(&["trace", "--recorded", "file"]).is_err());
        assert!(parse(&["--recorded", "file", "--replicas", "2"]).is_err());
        assert!(parse(&["--recorded", "file", "--json", "-"]).is_ok());
    }

    #[test]
    fn impossible_settings_are_told_before_the_trace_is_read() {
        assert_eq!(fault(&["none", "--block-size", "0"]), "block_size is 0; it must be between 1 and 4096");
        assert!(fault(&["none", "--hardware", "tpu"]).starts_with("unknown hardware 'tpu'; there are: h100-80g, "));
        assert!(fault(&["none", "--model", "gpt"]).starts_with("unknown model 'gpt'; there are: llama-3.1-8b, "));
        assert!(fault(&["none", "--policy", "magic"]).starts_with("unknown policy 'magic'; there are: fcfs"));
        assert!(fault(&["none", "--eviction", "magic"]).starts_with("unknown eviction policy 'magic'; there are: lru"));
        assert_eq!(fault(&["none", "--format", "x"]), "unknown trace format 'x'; there are: mooncake, azure");
        assert!(fault(&["none", "--model", "llama-3.1-70b"]).starts_with("llama-3.1-70b does not fit on h100-80g"));
        assert!(fault(&["none", "--max-batch-tokens", "8"]).starts_with("max_batch_tokens is 8"));
        assert_eq!(fault(&["none"]), "none: no such file; check the path");
        // Set by hand, the number of blocks is believed.
        assert!(settings(&parse(&["t", "--model", "llama-3.1-70b", "--device-blocks", "10000000"]).unwrap()).is_ok());
    }
}
