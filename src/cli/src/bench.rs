//! `trunkline bench`: speed and memory of the core on this machine.
//!
//! Every benchmark runs on one thread, without a model. Every figure is the median of several runs, with minimum and
//! maximum beside.

pub mod allocations;
mod evict;
mod measure;
mod sched;
mod tree;

use std::io::{self, Write};

use anyhow::Context;
use clap::{Args, Subcommand};

use measure::Report;

const EXAMPLES: &str = "\
Examples:
  Time of a prefix lookup, beside the speed of memory:
    trunkline bench tree

  Figures in JSON, to compare versions:
    trunkline bench sched --json > sched.json

  A short test run:
    trunkline bench evict --quick";

/// Benchmark the core on this machine: prefix tree, scheduling of a step, eviction.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Clone, Debug, Subcommand)]
enum What {
    /// Benchmark the prefix tree: hashing, lookups in large trees, storing blocks, conversations, memory per block.
    Tree(Options),
    /// Benchmark one decode step through the whole core, and count its heap allocations.
    Sched(Options),
    /// Benchmark every eviction policy: evict blocks and store others in their place.
    Evict(Options),
}

/// Options of all benchmarks.
#[derive(Clone, Debug, Args)]
struct Options {
    /// Write JSON instead of a table.
    #[arg(long)]
    json: bool,

    /// Make fewer and smaller runs: takes seconds, for a test; the figures are not meaningful.
    #[arg(long)]
    quick: bool,
}

/// Runs the command.
///
/// # Errors
/// If the report cannot be written.
pub fn run(args: BenchArgs) -> anyhow::Result<()> {
    let (options, report): (Options, Report) = match args.what {
        What::Tree(options) => (options.clone(), tree::run(options.quick)),
        What::Sched(options) => (options.clone(), sched::run(options.quick)),
        What::Evict(options) => (options.clone(), evict::run(options.quick)),
    };
    let text = if options.json { serde_json::to_string_pretty(&report)? } else { report.render() };
    writeln!(io::stdout(), "{text}").context("cannot write to standard output")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_benchmark_runs_and_reports_figures() {
        for report in [tree::run(true), sched::run(true), evict::run(true)] {
            let json: serde_json::Value = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
            let rows = json["rows"].as_array().unwrap();
            assert!(!rows.is_empty());
            for row in rows {
                let (min, median, max) = (&row["min"], &row["median"], &row["max"]);
                assert!(min.as_f64() <= median.as_f64() && median.as_f64() <= max.as_f64(), "{row}");
            }
            assert!(report.render().contains("median"));
        }
    }
}
