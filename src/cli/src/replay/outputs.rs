//! Files a replay writes in addition to its report: a row for each request, an HTML page, a timeline.

use std::fs::OpenOptions;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use trunkline_sim_replay::Settings;
use trunkline_sim_report::html::{self, Run};
use trunkline_sim_report::outcome::{Outcome, OutcomeWriter};
use trunkline_sim_report::series::SeriesReport;
use trunkline_sim_report::timeline::{TimelineWriter, Window};
use trunkline_sim_report::{Observer, Report};

use super::compare::labels;
use super::run::{Sampled, Stage, replay, replay_all};
use crate::output::JsonArgs;

/// Latest end of a window, seconds: 30 years, far from where the clock would wrap.
const WINDOW_S_MAX: f64 = 1e9;

/// Files written in addition to the report.
#[derive(Clone, Debug, Args)]
pub(super) struct OutputArgs {
    #[command(flatten)]
    pub(super) json: JsonArgs,

    /// Write a row for each request to a file, in the order in which requests end: Parquet if the name ends in .parquet, else
    /// CSV, gzip if it ends in .gz.
    #[arg(long, value_name = "FILE", conflicts_with = "recorded")]
    requests: Option<PathBuf>,

    /// Write an HTML page with charts to a file; it needs no network, and shows all runs if several are compared.
    #[arg(long, value_name = "FILE", conflicts_with = "recorded")]
    html: Option<PathBuf>,

    /// Write what a server would have recorded with `serve --record` to a file, for `explain` and others; gzip if the name ends in .gz.
    #[arg(long, value_name = "FILE", conflicts_with = "recorded")]
    record: Option<PathBuf>,

    /// Write a timeline of steps, copies and requests to a file, for ui.perfetto.dev or chrome://tracing; gzip if the name
    /// ends in .gz.
    #[arg(long, value_name = "FILE", conflicts_with = "recorded")]
    timeline: Option<PathBuf>,

    /// Part of the replay to show in the timeline, seconds, such as 60..120 [default: all].
    #[arg(long, value_name = "START..END", requires = "timeline", value_parser = window)]
    timeline_window: Option<Window>,
}

impl OutputArgs {
    /// Checks the outputs before the replay.
    ///
    /// # Errors
    /// If several runs would write an output of one run, two outputs name one file, or a file cannot be written.
    pub(super) fn check(&self, runs: usize) -> anyhow::Result<()> {
        if self.timeline.is_some() && runs > 1 {
            bail!("a timeline is written of one replay, but {runs} are compared; compare nothing");
        }
        if self.requests.is_some() && runs > 1 {
            bail!("requests are written of one replay, but {runs} are compared; compare nothing");
        }
        if self.record.is_some() && runs > 1 {
            bail!("a recording is made of one replay, but {runs} are compared; compare nothing");
        }
        let all = [
            ("json", self.json.json.as_deref()),
            ("requests", self.requests.as_deref()),
            ("html", self.html.as_deref()),
            ("timeline", self.timeline.as_deref()),
            ("record", self.record.as_deref()),
        ];
        let files: Vec<(&str, &Path)> = all.into_iter().filter_map(|(flag, path)| Some((flag, path?))).collect();
        for (at, (flag, path)) in files.iter().enumerate() {
            if let Some((other, _)) = files[..at].iter().find(|(_, other)| other == path) {
                bail!("--{other} and --{flag} both write {}; give each a file of its own", path.display());
            }
        }
        if let Some((flag, _)) = files.iter().find(|(flag, path)| *flag != "json" && *path == Path::new("-")) {
            bail!("--{flag} writes a file, and '-' is standard output for --json alone; name a file, or /dev/stdout");
        }
        for (flag, path) in &files {
            let written_at_the_end = matches!(*flag, "json" | "html") && *path != Path::new("-");
            if written_at_the_end {
                let file = OpenOptions::new().create(true).append(true).open(path);
                file.with_context(|| format!("cannot write --{flag} to {}", path.display()))?;
            }
        }
        Ok(())
    }

    /// Replays all runs, and writes the outputs of single requests and steps meanwhile.
    ///
    /// # Errors
    /// If the input cannot be read or an output cannot be written.
    pub(super) fn replay(&self, stage: &Stage<'_>, runs: &[Settings]) -> anyhow::Result<Vec<Sampled>> {
        match runs {
            [settings] => Ok(vec![self.replay_one(stage, settings)?]),
            _ => replay_all(stage, runs, self.html.is_some()),
        }
    }

    fn replay_one(&self, stage: &Stage<'_>, settings: &Settings) -> anyhow::Result<Sampled> {
        let mut outcomes = self.requests.as_deref().map(OutcomeWriter::create).transpose()?;
        let window = self.timeline_window.unwrap_or(Window::ALL);
        let create = |path: &PathBuf| TimelineWriter::create(path, &settings.fleet_shape(), window);
        let mut timeline = self.timeline.as_ref().map(create).transpose()?;
        let mut watch = |outcome: &Outcome| {
            if let Some(writer) = &mut outcomes {
                writer.write(outcome);
            }
            ControlFlow::Continue(())
        };
        let mut others: Vec<&mut dyn Observer> = vec![&mut watch];
        others.extend(timeline.as_mut().map(|writer| writer as &mut dyn Observer));
        let result = replay(stage, settings, self.html.is_some(), self.record.as_deref(), others);
        // A timeline that cannot be written stops the replay: report the error of the timeline first.
        timeline.map_or(Ok(()), TimelineWriter::finish)?;
        outcomes.map_or(Ok(()), OutcomeWriter::finish)?;
        result
    }

    /// Writes the HTML page of the replays that ended.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn write_page(&self, reports: &[Report], series: &[Option<SeriesReport>]) -> anyhow::Result<()> {
        let Some(to) = &self.html else { return Ok(()) };
        let labels = labels(reports);
        let sampled = reports.iter().zip(series).zip(labels);
        let run = |((report, series), label)| Some(Run { label, report, series: Option::as_ref(series)? });
        let runs: Vec<Run<'_>> = sampled.filter_map(run).collect();
        std::fs::write(to, html::page(&runs)).with_context(|| format!("cannot write the page to {}", to.display()))
    }
}

/// Parses `START..END`, seconds.
fn window(text: &str) -> anyhow::Result<Window> {
    let parse = |part: &str| part.parse::<f64>().ok().filter(|s| (0.0..=WINDOW_S_MAX).contains(s));
    let ends = text.split_once("..").and_then(|(start, end)| Some((parse(start)?, parse(end)?)));
    let Some((start_s, end_s)) = ends else {
        bail!("give START..END in seconds, such as 60..120");
    };
    ensure!(start_s < end_s, "the window ends before it begins; give START..END in seconds, such as 60..120");
    let ns = |s: f64| (s * 1e9).round() as u64;
    Ok(Window { from_ns: ns(start_s), to_ns: ns(end_s) })
}
