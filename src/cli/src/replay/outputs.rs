//! What a replay writes beside its report: a line of each request, an HTML page, a timeline.

use std::fs::OpenOptions;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use indicatif::ProgressBar;
use trunkline_sim_perf::cost::CostModel;
use trunkline_sim_replay::{Settings, replay_source};
use trunkline_sim_report::html::{self, Run};
use trunkline_sim_report::outcome::{Outcome, OutcomeWriter};
use trunkline_sim_report::series::{Series, SeriesReport};
use trunkline_sim_report::timeline::{TimelineWriter, Window};
use trunkline_sim_report::{Observer, Observers, Report};

use super::compare;
use super::input::Input;

/// The latest second a window can end at: 30 years, far from where the clock would wrap.
const WINDOW_S_MAX: f64 = 1e9;

/// Pages and timelines.
#[derive(Clone, Debug, Args)]
pub(super) struct OutputArgs {
    /// Write a page with charts to a file, which a browser opens without a network; of all runs if several are compared.
    #[arg(long, value_name = "FILE", conflicts_with = "recorded")]
    html: Option<PathBuf>,

    /// Write a timeline of steps, copies and requests to a file, which ui.perfetto.dev and chrome://tracing open; gzip if its name ends
    /// in .gz.
    #[arg(long, value_name = "FILE", conflicts_with = "recorded")]
    timeline: Option<PathBuf>,

    /// Seconds of the replay that the timeline shows, such as 60..120 [default: all].
    #[arg(long, value_name = "START..END", requires = "timeline", value_parser = window)]
    timeline_window: Option<Window>,
}

/// What all replays of a command have in common.
pub(super) struct Stage<'a> {
    pub(super) input: &'a Input,
    pub(super) cost: &'a (dyn CostModel + Sync),
    /// Counts the requests that ended.
    pub(super) bar: &'a ProgressBar,
}

/// A replay and, if asked for, what it was like over time.
pub(super) type Watched = (Report, Option<SeriesReport>);

impl OutputArgs {
    /// Refuses outputs of one run if there are several, two outputs in one file, and those that cannot be written: before the replay,
    /// not after it.
    pub(super) fn check(&self, runs: usize, json: Option<&Path>, requests: Option<&Path>) -> anyhow::Result<()> {
        if self.timeline.is_some() && runs > 1 {
            bail!("a timeline is written of one replay, but {runs} are compared; compare nothing");
        }
        if requests.is_some() && runs > 1 {
            bail!("requests are written of one replay, but {runs} are compared; compare nothing");
        }
        let all = [
            ("json", json),
            ("requests", requests),
            ("html", self.html.as_deref()),
            ("timeline", self.timeline.as_deref()),
        ];
        let files: Vec<(&str, &Path)> = all.into_iter().filter_map(|(flag, path)| Some((flag, path?))).collect();
        for (at, (flag, path)) in files.iter().enumerate() {
            if let Some((other, _)) = files[..at].iter().find(|(_, other)| other == path) {
                bail!("--{other} and --{flag} both write {}; give each a file of its own", path.display());
            }
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

    /// Replays all runs, and writes what is written while they run.
    pub(super) fn replay(
        &self,
        requests: Option<&Path>,
        stage: &Stage<'_>,
        runs: &[Settings],
    ) -> anyhow::Result<Vec<Watched>> {
        match runs {
            [settings] => Ok(vec![self.replay_one(requests, stage, settings)?]),
            _ => compare::replay_all(stage, runs, self.html.is_some()),
        }
    }

    fn replay_one(&self, requests: Option<&Path>, stage: &Stage<'_>, settings: &Settings) -> anyhow::Result<Watched> {
        let mut outcomes = requests.map(OutcomeWriter::create).transpose()?;
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
        let result = watched(stage, settings, self.html.is_some(), others);
        // A timeline that cannot be written stops the replay; then its fault is what there is to tell.
        timeline.map_or(Ok(()), TimelineWriter::finish)?;
        outcomes.map_or(Ok(()), OutcomeWriter::finish)?;
        result
    }

    /// Writes the page, now that the replays have ended.
    pub(super) fn write_page(&self, reports: &[Report], series: &[Option<SeriesReport>]) -> anyhow::Result<()> {
        let Some(to) = &self.html else { return Ok(()) };
        let labels = compare::labels(reports);
        let sampled = reports.iter().zip(series).zip(labels);
        let run = |((report, series), label)| Some(Run { label, report, series: Option::as_ref(series)? });
        let runs: Vec<Run<'_>> = sampled.filter_map(run).collect();
        std::fs::write(to, html::page(&runs)).with_context(|| format!("cannot write the page to {}", to.display()))
    }
}

/// Replays under one of the settings; sampled over time if `sampled`, and watched by `others`.
pub(super) fn watched<'a>(
    stage: &Stage<'a>,
    settings: &Settings,
    sampled: bool,
    others: Vec<&'a mut dyn Observer>,
) -> anyhow::Result<Watched> {
    let mut series = sampled.then(|| Series::new(settings.fleet_shape()));
    let mut progress = |_: &Outcome| {
        stage.bar.inc(1);
        ControlFlow::Continue(())
    };
    let mut all: Vec<&mut dyn Observer> = vec![&mut progress];
    all.extend(series.as_mut().map(|series| series as &mut dyn Observer));
    all.extend(others.into_iter().map(|other| other as &mut dyn Observer));
    let report = replay_source(&mut *stage.input.source()?, settings, stage.cost, &mut Observers(all))?;
    let series = series.map(|series| series.finish(&report));
    Ok((report, series))
}

/// `START..END`, seconds.
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
