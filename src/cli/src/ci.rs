//! `trunkline ci`: what a change of the program did to recorded traffic, as a report for a pull request.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, bail, ensure};
use clap::Args;
use trunkline_sim_replay::ci::{Budget, Verdict, budgets, verdict};
use trunkline_sim_replay::recorded::digest_of_lines;
use trunkline_sim_replay::rerun::Script;

use crate::output::{JsonArgs, NOT_MET, per_cent, print, seconds, write_json};

const EXAMPLES: &str = "\
Examples:
  Which decisions differ from the main branch, and is any latency more than 5 % worse?
    trunkline ci traffic/*.jsonl.gz --against ../main/target/release/trunkline

  The same in two steps: the other version saves the recordings, this one compares.
    ../main/trunkline ci traffic/*.jsonl.gz --save saved
    trunkline ci traffic/*.jsonl.gz --against saved --budget ttft_p99=2 --budget e2e_p99=2";

/// Run recordings with this version against another, and fail if a latency is worse than its budget.
///
/// The recordings were made by the other version. Steps take their recorded time where this version runs the same tokens, else the time of a fit to the
/// recording: the report is about decisions, not about the speed of the program. It is Markdown. The exit code is 3 if a budget is exceeded, requests
/// that completed before no longer do, or there is nothing to compare.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CiArgs {
    /// Recordings of a server, from `trunkline serve --record`.
    #[arg(value_name = "RECORDING", required = true)]
    recordings: Vec<PathBuf>,

    /// Other version: its program, or a folder that it wrote with --save.
    #[arg(long, value_name = "OLD", required_unless_present = "save", conflicts_with = "save")]
    against: Option<PathBuf>,

    /// Write the recordings to a folder for another version to compare with, and compare nothing.
    #[arg(long, value_name = "FOLDER", conflicts_with = "json")]
    save: Option<PathBuf>,

    /// Growth of a latency that is accepted, in per cent, such as e2e_p99=2; 5 for each that is not named.
    #[arg(long, value_name = "FIGURE=PERCENT", requires = "against")]
    budget: Vec<Budget>,

    #[command(flatten)]
    json: JsonArgs,
}

/// Runs the command. The exit code is 3 if a budget is exceeded, or requests that completed before no longer do.
///
/// # Errors
/// If a recording cannot be read, or the other version cannot save it.
pub fn run(args: &CiArgs) -> anyhow::Result<ExitCode> {
    check_names(&args.recordings)?;
    if let Some(folder) = &args.save {
        save(&args.recordings, folder)?;
        return Ok(ExitCode::SUCCESS);
    }
    let Some(old) = &args.against else { bail!("name another version with --against") };
    let verdicts = if old.is_dir() {
        compare(args, old)?
    } else {
        let folder = std::env::temp_dir().join(format!("trunkline-ci-{}", std::process::id()));
        let verdicts = save_by(old, &args.recordings, &folder).and_then(|()| compare(args, &folder));
        // The folder holds nothing but copies.
        let _ = std::fs::remove_dir_all(&folder);
        verdicts?
    };
    match &args.json.json {
        Some(to) => write_json("report", to, &serde_json::to_string_pretty(&verdicts)?)?,
        None => print(&report(&verdicts, &budgets(&args.budget)))?,
    }
    Ok(code(&verdicts))
}

fn code(verdicts: &[Verdict]) -> ExitCode {
    let is_good = verdicts.iter().all(Verdict::is_good);
    if is_good { ExitCode::SUCCESS } else { ExitCode::from(NOT_MET) }
}

/// Returns the place of a saved recording.
fn place(folder: &Path, recording: &Path) -> anyhow::Result<PathBuf> {
    let name = recording.file_name().with_context(|| format!("{} names no file", recording.display()))?;
    Ok(folder.join(format!("{}.saved.gz", name.to_string_lossy())))
}

/// Refuses recordings that would be saved in one place.
fn check_names(recordings: &[PathBuf]) -> anyhow::Result<()> {
    for (at, recording) in recordings.iter().enumerate() {
        let same = recordings[..at].iter().find(|other| other.file_name() == recording.file_name());
        ensure!(same.is_none(), "two recordings are called {}; rename one", recording.display());
    }
    Ok(())
}

fn save(recordings: &[PathBuf], folder: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for recording in recordings {
        let to = place(folder, recording)?;
        let script = Script::load(recording, &mut |_| {})?;
        ensure!(
            script.replayed.matches != Some(false),
            "{} does not replay to its decisions; save it with the version that made it",
            recording.display()
        );
        script.save(digest_of_lines(recording)?, &to)?;
    }
    Ok(())
}

/// Has another version save recordings.
fn save_by(old: &Path, recordings: &[PathBuf], folder: &Path) -> anyhow::Result<()> {
    let mut command = Command::new(old);
    command.arg("ci").args(recordings).arg("--save").arg(folder);
    let status = command.status().with_context(|| format!("cannot run {}", old.display()))?;
    ensure!(
        status.success(),
        "{} ci --save failed, see above; a version before this command cannot be compared",
        old.display()
    );
    Ok(())
}

fn compare(args: &CiArgs, folder: &Path) -> anyhow::Result<Vec<Verdict>> {
    let budgets = budgets(&args.budget);
    let one = |recording: &PathBuf| {
        let from = place(folder, recording)?;
        let (script, lines_digest) = Script::saved(&from)?;
        ensure!(
            lines_digest == digest_of_lines(recording)?,
            "{} is of another recording than {}; save it again",
            from.display(),
            recording.display()
        );
        Ok(verdict(recording.display().to_string(), &script, &budgets)?)
    };
    args.recordings.iter().map(one).collect()
}

/// Returns the report, in Markdown.
fn report(verdicts: &[Verdict], budgets: &[Budget]) -> String {
    let mut texts = vec!["## Recorded traffic".to_owned(), head(verdicts)];
    let is_shown = |verdict: &&Verdict| verdict.diff.first.is_some() || !verdict.is_good();
    texts.extend(verdicts.iter().filter(is_shown).map(|verdict| section(verdict, budgets)));
    texts.join("\n\n")
}

fn head(verdicts: &[Verdict]) -> String {
    let count = |of: fn(&Verdict) -> bool| verdicts.iter().filter(|verdict| of(verdict)).count();
    let all = verdicts.len();
    let mut faults = Vec::new();
    let exceeded = count(|verdict| !verdict.exceeded.is_empty());
    faults.extend((exceeded > 0).then(|| format!("**Over the budget in {exceeded} of {all} recordings.**")));
    let lost: usize = verdicts.iter().map(Verdict::lost).sum();
    faults.extend((lost > 0).then(|| format!("**{}**", lost_text(lost))));
    let empty = count(|verdict| verdict.diff.pairs.is_empty());
    faults.extend((empty > 0).then(|| format!("**Nothing to compare in {empty} of {all} recordings.**")));
    match (count(|verdict| verdict.diff.first.is_some()), faults.is_empty()) {
        (_, false) => faults.join(" "),
        (0, _) => "All decisions are those of the other version.".to_owned(),
        (n, _) => format!("Decisions differ in {n} of {all} recordings, within the budget."),
    }
}

fn lost_text(lost: usize) -> String {
    match lost {
        1 => "1 request that completed before no longer does.".into(),
        n => format!("{n} requests that completed before no longer do."),
    }
}

fn section(verdict: &Verdict, budgets: &[Budget]) -> String {
    let diff = &verdict.diff;
    let mut text = format!("### {}\n\n", verdict.recording);
    if let Some(first) = &diff.first {
        let at = seconds(first.at_ns[0] as f64 / 1e9);
        text += &format!(
            "First difference at {at} s:\n\n* before: {}\n* after: {}\n\n",
            first.decisions[0], first.decisions[1]
        );
    }
    text += "| seconds | before | after | change | budget |\n|---|---|---|---|---|\n";
    for figure in &diff.figures {
        let budget = budgets.iter().find(|budget| budget.figure == figure.name).map_or(0.0, |budget| budget.growth_max);
        let is_over = verdict.exceeded.iter().any(|(budget, _)| budget.figure == figure.name);
        let mark = if is_over { " **over**" } else { "" };
        text += &format!(
            "| {} | {} | {} | {:+.2} %{mark} | {} |\n",
            figure.name,
            seconds(figure.before_s),
            seconds(figure.after_s),
            figure.change() * 100.0,
            per_cent(budget)
        );
    }
    let changed = diff.pairs.iter().filter(|pair| pair.slower_ns() != 0).count();
    text += &format!("\n{changed} of {} requests changed in duration.", diff.pairs.len());
    if verdict.lost() > 0 {
        text += &format!(" {}", lost_text(verdict.lost()));
    }
    text
}

#[cfg(test)]
mod tests;
