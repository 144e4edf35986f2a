//! `trunkline sweep`: replays every cell of a grid of parameters, in parallel, resumable and in shards, and reports the
//! results.

mod cells;
mod effects;
mod folder;
mod join;
mod report;
mod run;
mod spec;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::thread;

use anyhow::Context;
use clap::{Args, Subcommand};

use self::cells::Cell;
use self::folder::Plan;
use self::report::ReportArgs;
use self::run::Tally;
use self::spec::Spec;
use crate::output::{print, table};

const EXAMPLES: &str = "\
Examples:
  Every cell of a grid, then the table of results:
    trunkline sweep examples/sweeps/policies.toml --out results
    trunkline sweep report results

  A grid spread over the tasks of a Slurm array of 8 (#SBATCH --array=0-7), into one folder:
    trunkline sweep grid.toml --out results --shard $((SLURM_ARRAY_TASK_ID + 1))/$SLURM_ARRAY_TASK_COUNT

  Effect of each policy on two figures, averaged over the rest of the grid:
    trunkline sweep report results --by policy --metrics ttft_p99,prefix_hit_ratio

docs/guide/sweep.md describes grids and results.";

/// Replay every cell of a grid of parameters in TOML, and report the results.
///
/// Each cell is written as a small Parquet file once it has ended; when run again, the command continues where it was
/// stopped.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct SweepArgs {
    #[command(subcommand)]
    command: Option<SweepCommand>,

    /// Grid in TOML, such as examples/sweeps/policies.toml.
    #[arg(value_name = "SPEC", required = true)]
    spec: Option<PathBuf>,

    /// Folder for results; created if missing.
    #[arg(long, value_name = "DIR", required_unless_present = "dry_run")]
    out: Option<PathBuf>,

    /// Run the I-th of N parts of the cells, from 1.
    #[arg(long, value_name = "I/N", default_value = "1/1")]
    shard: Shard,

    /// Cells to run in parallel, each on one thread [default: all cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    threads: Option<u32>,

    /// Run at most N cells now.
    #[arg(long, value_name = "N")]
    limit_cells: Option<usize>,

    /// Check the grid, list the cells of this shard, and run nothing.
    #[arg(long)]
    dry_run: bool,
}

#[derive(Clone, Debug, Subcommand)]
enum SweepCommand {
    Report(ReportArgs),
}

/// Part of the cells: every `of`-th in the order of their ids, from number `index`, counted from 1. Ids are hashes; in the
/// order of the grid, one value of an axis, and with it the slowest cells, could all fall into one part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shard {
    index: usize,
    of: usize,
}

impl Shard {
    /// Returns the cells of this part, in the order of the grid.
    fn part(self, cells: &[Cell]) -> Vec<&Cell> {
        let mut order: Vec<usize> = (0..cells.len()).collect();
        order.sort_by_key(|at| (&cells[*at].id, *at));
        let mut part: Vec<usize> = order.into_iter().skip(self.index - 1).step_by(self.of).collect();
        part.sort_unstable();
        part.into_iter().map(|at| &cells[at]).collect()
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/').and_then(|(i, n)| Some((i.parse().ok()?, n.parse().ok()?)));
        match parts {
            Some((index, of)) if index >= 1 && index <= of => Ok(Self { index, of }),
            _ => Err("give I/N with I from 1 to N, such as 1/8 for the first of 8".into()),
        }
    }
}

/// Runs the command. If cells fail, the command fails after all others have run.
///
/// # Errors
/// If the grid is wrong, or results cannot be read or written.
pub fn run(args: &SweepArgs) -> anyhow::Result<ExitCode> {
    if let Some(SweepCommand::Report(args)) = &args.command {
        return report::run(args).map(|()| ExitCode::SUCCESS);
    }
    let spec = Spec::load(args.spec.as_deref().context("name a spec")?)?;
    let cells = cells::cells(&spec)?;
    let mine = args.shard.part(&cells);
    if args.dry_run {
        return list(&mine).map(|()| ExitCode::SUCCESS);
    }
    let folder = args.out.as_deref().context("name a folder with --out")?;
    Plan::of(&spec, &cells).save(folder)?;
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.map_or(cores, |n| n as usize);
    let done = sweep(&mine, folder, args.limit_cells.unwrap_or(usize::MAX), threads)?;

    let of = if args.shard.of == 1 { String::new() } else { format!(" of {} in all", cells.len()) };
    print(&format!("{} cells{of}: {done}", mine.len()))?;
    print(&format!("results in {0}; to see them: trunkline sweep report {0}", folder.display()))?;
    Ok(if done.tally.failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Numbers of cells of a shard, by outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Done {
    tally: Tally,
    /// Cells with results from before.
    found: usize,
    /// Cells left for later by `--limit-cells`.
    left: usize,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tally, found, left } = *self;
        let parts =
            [(tally.ok, "run"), (found, "found from before"), (tally.failed, "failed"), (left, "left for later")];
        let parts: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        f.write_str(&parts.join(", "))
    }
}

/// Runs the cells without results in `folder`, at most `limit` of them.
fn sweep(cells: &[&Cell], folder: &Path, limit: usize, threads: usize) -> anyhow::Result<Done> {
    let mut to_run: Vec<&Cell> = cells.iter().copied().filter(|cell| !folder::has(folder, cell)).collect();
    let found = cells.len() - to_run.len();
    to_run.truncate(limit);
    let tally = run::run(&to_run, folder, threads)?;
    Ok(Done { tally, found, left: cells.len() - found - to_run.len() })
}

/// Prints the cells with their parameters, and the reason if a cell cannot run.
fn list(cells: &[&Cell]) -> anyhow::Result<()> {
    let mut rows = table();
    let parameters =
        cells.first().into_iter().flat_map(|cell| cell.parameters.iter().map(|(parameter, _)| parameter.as_str()));
    rows.set_header(parameters.chain([""]));
    for cell in cells {
        let fault = cell.ready.as_ref().err().map_or(String::new(), |fault| format!("cannot be run: {fault}"));
        rows.add_row(cell.parameters.iter().map(|(_, value)| value.clone()).chain([fault]));
    }
    print(&rows.trim_fmt())?;
    print(&format!("{} cells", cells.len()))
}

#[cfg(test)]
mod tests;
