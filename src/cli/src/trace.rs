//! `trunkline trace`: statistics of traces, conversion between formats, and synthetic traces.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Subcommand};
use comfy_table::Table;
use indicatif::{ProgressBar, ProgressStyle};
use trunkline_sim_replay::recorded::is_recording;
use trunkline_sim_workload::Format;
use trunkline_sim_workload::synthetic::{Generator, Spec};
use trunkline_sim_workload::trace::stats::{
    Lengths, PrefixStats, StatsOptions, TermStats, TraceStats, stats, stats_of_file,
};
use trunkline_sim_workload::trace::{Conversion, LeftOut, TraceWriter, convert, convert_file, formats};

use crate::output::{align_right, grouped, per_cent, print, table, write_json};
use crate::replay::input::{notes, recording};
use crate::settings::selection::SelectionArgs;

const EXAMPLES: &str = "\
Examples:
  Prefix hits of caches of every size:
    trunkline trace stats examples/traces/chat-and-agents.jsonl.gz --block-tokens 512

  The second hour of a long trace, as lengths in CSV:
    trunkline trace convert trace.jsonl.zst hour.csv --slice 3600s..7200s

  A synthetic trace of chats and agents:
    trunkline trace generate examples/workloads/chat-and-agents.toml mixed.jsonl.gz";

/// Inspect, convert and generate traces.
#[derive(Clone, Debug, Args)]
#[command(long_about = format!(
    "Inspect, convert and generate traces.\n\nReads {}, plain, gzip or Zstandard; detects format and compression from the content.",
    formats::described()
), after_help = EXAMPLES)]
pub struct TraceArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Show lengths, arrivals, and prefix hits of caches of all sizes.
    Stats(StatsArgs),
    /// Convert a trace to another format, and list what is lost.
    Convert(ConvertArgs),
    /// Generate a synthetic trace from a workload in TOML; answers take as long as the workload assumes.
    Generate(GenerateArgs),
}

#[derive(Clone, Debug, Args)]
struct StatsArgs {
    /// Trace to read.
    #[arg(value_name = "FILE")]
    file: PathBuf,

    #[command(flatten)]
    part: SelectionArgs,

    /// Tokens in a cache block [default: as many as a block id of the trace stands for, else 16].
    #[arg(long, value_name = "TOKENS")]
    block_tokens: Option<u32>,

    /// Cache capacities to simulate, blocks [default: 1000, 2000, 5000, 10000 and so on, up to all blocks].
    #[arg(long, value_name = "BLOCKS,…", value_delimiter = ',')]
    capacities: Vec<u64>,

    /// Write the statistics as JSON to a file, or to standard output if it is `-`, instead of tables.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Trace to write.
#[derive(Clone, Debug, Args)]
struct OutArgs {
    /// File to write; compressed if the name ends in .gz or .zst. `-` is standard output, and the summary goes to standard error.
    #[arg(value_name = "OUT")]
    to: PathBuf,

    #[arg(long, value_name = "NAME")]
    #[arg(help = format!("Format to write: {} [default: by the suffix of OUT]", formats::names(formats::written())))]
    to_format: Option<Format>,
}

impl OutArgs {
    /// Returns the format to write.
    ///
    /// # Errors
    /// If neither flag nor name says it.
    fn format(&self) -> anyhow::Result<Format> {
        let (flag, path) = (self.to_format, self.to.display());
        flag.or_else(|| TraceWriter::format_of(&self.to)).with_context(|| {
            let written = formats::names(formats::written());
            format!("the name {path} does not say the format; end it in .jsonl or .csv, or give --to-format {written}")
        })
    }

    /// Says what was written.
    fn report(&self, conversion: &Conversion) -> anyhow::Result<()> {
        let summary = summary(conversion, &self.to, self.format()?);
        if self.to.as_os_str() == "-" {
            eprintln!("{summary}");
            return Ok(());
        }
        print(&summary)
    }
}

#[derive(Clone, Debug, Args)]
struct ConvertArgs {
    /// Trace to read.
    #[arg(value_name = "IN")]
    from: PathBuf,

    #[command(flatten)]
    out: OutArgs,

    #[command(flatten)]
    part: SelectionArgs,
}

#[derive(Clone, Debug, Args)]
struct GenerateArgs {
    /// Workload in TOML, such as examples/workloads/chat.toml.
    #[arg(value_name = "SPEC")]
    spec: PathBuf,

    #[command(flatten)]
    out: OutArgs,

    /// Seed of random numbers, instead of the workload's.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Number of requests, at most, instead of the workload's.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
}

/// Runs the command.
///
/// # Errors
/// If a file cannot be read or written, or its content is malformed.
pub fn run(args: TraceArgs) -> anyhow::Result<()> {
    match args.command {
        Command::Stats(args) => run_stats(&args),
        Command::Convert(args) => run_convert(&args),
        Command::Generate(args) => run_generate(&args),
    }
}

fn run_stats(args: &StatsArgs) -> anyhow::Result<()> {
    let selection = args.part.selection_at_speed()?;
    let block_tokens = args.block_tokens.or(args.part.options().block_tokens.map(NonZeroU32::get));
    let options = StatsOptions { block_tokens, capacities: args.capacities.clone() };
    let stats = if is_recording(&args.file) {
        let (recorded, trace) = recording(&args.file, args.part.options(), &selection)?;
        let stats = stats(trace.requests.into_iter().map(Ok), trace.format, &options)?;
        TraceStats { left_out: LeftOut { failed: recorded.left_out, ..LeftOut::default() }, ..stats }
    } else {
        with_spinner(|progress| stats_of_file(&args.file, args.part.options(), &selection, &options, progress))?
    };
    notes(&args.file, &stats.remarks);
    match &args.json {
        None => print(&tables(&stats)),
        Some(to) => write_json("statistics", to, &stats.to_json()),
    }
}

fn run_convert(args: &ConvertArgs) -> anyhow::Result<()> {
    let selection = args.part.selection_at_speed()?;
    let (path, format) = (&args.out.to, args.out.format()?);
    if is_recording(&args.from) {
        let (recorded, trace) = recording(&args.from, args.part.options(), &selection)?;
        let requests = trace.requests.into_iter().map(Ok);
        let conversion = with_spinner(|progress| convert(requests, trace.format, path, format, progress))?;
        return args.out.report(&Conversion {
            left_out: LeftOut { failed: recorded.left_out, ..LeftOut::default() },
            ..conversion
        });
    }
    let convert = |progress: &mut dyn FnMut(u64)| {
        convert_file(&args.from, args.part.options(), &selection, path, format, progress)
    };
    let conversion = with_spinner(convert)?;
    notes(&args.from, &conversion.remarks);
    args.out.report(&conversion)
}

fn run_generate(args: &GenerateArgs) -> anyhow::Result<()> {
    let mut spec = Spec::load(&args.spec)?;
    spec.seed = args.seed.unwrap_or(spec.seed);
    spec.requests = args.requests.unwrap_or(spec.requests);
    let (path, format) = (&args.out.to, args.out.format()?);
    let requests = spec.assumed_service.requests(Generator::new(&spec)?);
    let conversion = with_spinner(|progress| convert(requests, formats::SYNTHETIC, path, format, progress))?;
    args.out.report(&conversion)
}

/// Shows the number of requests done while `work` runs.
fn with_spinner<T, E: Into<anyhow::Error>>(
    work: impl FnOnce(&mut dyn FnMut(u64)) -> Result<T, E>,
) -> anyhow::Result<T> {
    let spinner = ProgressBar::new_spinner();
    spinner.set_style(ProgressStyle::with_template("{elapsed:>4} {pos} requests")?);
    let result = work(&mut |n| spinner.set_position(n));
    spinner.finish_and_clear();
    result.map_err(Into::into)
}

/// Returns the summary of a conversion.
fn summary(conversion: &Conversion, to: &Path, format: Format) -> String {
    let mut lines = vec![format!("{}: {} requests as {format}", to.display(), grouped(conversion.requests))];
    if !conversion.left_out.is_none() {
        lines.push(format!("left out: {}", conversion.left_out));
    }
    lines.extend(conversion.losses.iter().map(|loss| format!("lost: {loss}")));
    lines.join("\n")
}

fn tables(stats: &TraceStats) -> String {
    let mut texts = vec![facts(stats), lengths(stats)];
    match &stats.prefixes {
        None => texts.push("The format does not say what prompts share.".into()),
        Some(prefixes) => texts.extend([shared(prefixes), reuse(prefixes), capacities(prefixes)]),
    }
    texts.join("\n\n")
}

fn facts(stats: &TraceStats) -> String {
    let arrivals = &stats.arrivals;
    let mut table = table();
    table.add_rows([
        ["format", stats.format.as_str()],
        ["requests", &grouped(stats.requests)],
        ["duration", &format!("{:.1} s, {:.3} requests/s", arrivals.duration_s, arrivals.rate_requests_s)],
        ["gaps between arrivals", &format!("coefficient of variation {:.3}", arrivals.gap_cv)],
        [
            "fullest minute",
            &format!(
                "number {}, {} requests, {:.3} requests/s",
                arrivals.peak_minute,
                grouped(arrivals.peak_minute_requests),
                arrivals.peak_requests_s()
            ),
        ],
    ]);
    if let Some(terms) = &stats.terms {
        table.add_row(["terms", &term_text(terms)]);
    }
    if !stats.left_out.is_none() {
        table.add_row(["left out", &stats.left_out.to_string()]);
    }
    table.trim_fmt()
}

/// Returns tenants, priorities and deadlines as one line.
fn term_text(terms: &TermStats) -> String {
    let TermStats { tenants, priority_min, priority_max, deadlines, .. } = *terms;
    let deadlines = match (terms.deadline_min_s, terms.deadline_max_s) {
        (Some(min), Some(max)) => format!("{} deadlines of {min} to {max} s", grouped(deadlines)),
        _ => "no deadlines".into(),
    };
    format!("{} tenants, priorities {priority_min} to {priority_max}, {deadlines}", grouped(tenants))
}

fn lengths(stats: &TraceStats) -> String {
    let mut table = table();
    table.set_header(["tokens", "mean", "p50", "p90", "p99", "max", "total"]);
    for (name, lengths) in [("input", stats.input_tokens), ("output", stats.output_tokens)] {
        let Lengths { total, mean, p50, p90, p99, max } = lengths;
        let counts = [p50, p90, p99, max].map(|n| grouped(n.into()));
        table.add_row([vec![name.into(), format!("{mean:.1}")], counts.to_vec(), vec![grouped(total)]].concat());
    }
    right_aligned(table)
}

fn shared(prefixes: &PrefixStats) -> String {
    let mut table = table();
    table.add_rows([
        [
            "blocks".into(),
            format!(
                "{} of {} tokens, {} of them distinct; a prompt's last one may be shorter and counts",
                grouped(prefixes.blocks),
                prefixes.block_tokens,
                grouped(prefixes.distinct_blocks)
            ),
        ],
        [
            "hits without limit".into(),
            format!(
                "{} of the blocks, {} of the tokens, in {} requests",
                per_cent(prefixes.hit_ratio_blocks),
                per_cent(prefixes.hit_ratio_tokens),
                grouped(prefixes.requests_with_hits)
            ),
        ],
    ]);
    table.trim_fmt()
}

fn reuse(prefixes: &PrefixStats) -> String {
    let mut table = table();
    let (blocks, time) = (&prefixes.reuse_blocks, &prefixes.reuse_s);
    table.set_header(["until a block is used again", "p50", "p90", "p99", "max"]);
    let counts = [blocks.p50, blocks.p90, blocks.p99, blocks.max].map(grouped);
    table.add_row([vec!["other blocks used".into()], counts.to_vec()].concat());
    let seconds = [time.p50, time.p90, time.p99, time.max].map(|s| format!("{s:.1}"));
    table.add_row([vec!["seconds".into()], seconds.to_vec()].concat());
    right_aligned(table)
}

fn capacities(prefixes: &PrefixStats) -> String {
    let mut table = table();
    table.set_header(["cache blocks", "LRU hits", "of tokens", "Belady hits", "of tokens"]);
    for it in &prefixes.capacities {
        let ratios = [it.lru_blocks, it.lru_tokens, it.belady_blocks, it.belady_tokens].map(per_cent);
        table.add_row([vec![grouped(it.blocks)], ratios.to_vec()].concat());
    }
    align_right(&mut table, 0);
    table.trim_fmt()
}

fn right_aligned(mut table: Table) -> String {
    align_right(&mut table, 1);
    table.trim_fmt()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: TraceArgs,
    }

    fn run_words(words: &[&str]) -> anyhow::Result<()> {
        run(Cli::try_parse_from([&["trace"], words].concat())?.args)
    }

    fn fault(words: &[&str]) -> String {
        let message = run_words(words).unwrap_err().to_string();
        assert!(!message.contains('\n'), "one line: {message}");
        message
    }

    const SPEC: &str = "
requests = 50
[[population]]
arrivals = { process = \"poisson\", sessions-per-s = 2.0 }
input-tokens = { kind = \"constant\", value = 700 }
output-tokens = { kind = \"constant\", value = 20 }
system-prompts = { count = 2, zipf = 1.0, tokens = { kind = \"constant\", value = 1024 } }
";

    #[test]
    fn a_synthetic_trace_can_be_converted_and_inspected() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
        fs::write(path("spec.toml"), SPEC).unwrap();
        run_words(&["generate", &path("spec.toml"), &path("made.jsonl.gz")]).unwrap();
        run_words(&["convert", &path("made.jsonl.gz"), &path("made.csv.zst"), "--slice", "10..20"]).unwrap();
        run_words(&["stats", &path("made.csv.zst"), "--json", &path("csv.json")]).unwrap();
        run_words(&["stats", &path("made.jsonl.gz"), "--json", &path("all.json"), "--capacities", "2,9"]).unwrap();
        run_words(&["stats", &path("made.jsonl.gz")]).unwrap();
        let csv = fs::read_to_string(path("csv.json")).unwrap();
        assert!(csv.contains("\"requests\": 10,") && csv.contains("\"prefixes\": null"), "{csv}");
        let all = fs::read_to_string(path("all.json")).unwrap();
        assert!(all.contains("\"requests\": 50,") && all.contains("\"block_tokens\": 512"), "{all}");
    }

    #[test]
    fn bad_input_is_refused_in_one_line() {
        assert_eq!(fault(&["stats", "none"]), "none: no such file; check the path");
        assert_eq!(
            fault(&["stats", "none", "--speed", "0"]),
            "speed is 0; it must be above 0, such as 2 for twice the load"
        );
        assert_eq!(
            fault(&["convert", "none", "out", "--to-format", "azure", "--limit", "1"]),
            "none: no such file; check the path"
        );
        for flags in [["--slice", "5..5"], ["--format", "fish"], ["--limit", "0"]] {
            assert!(Cli::try_parse_from([&["trace", "stats", "f"][..], &flags].concat()).is_err(), "{flags:?}");
        }
    }
}
