//! Replays of one input under one or several settings.

use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::Context;
use indicatif::ProgressBar;
use trunkline_sim_perf::cost::CostModel;
use trunkline_sim_replay::fleet::record;
use trunkline_sim_replay::{Settings, replay_source};
use trunkline_sim_report::outcome::Outcome;
use trunkline_sim_report::series::{Series, SeriesReport};
use trunkline_sim_report::{Observer, Observers, Report};

use super::input::Input;

/// Input, cost model and progress bar, shared by all replays of a command.
pub(super) struct Stage<'a> {
    pub(super) input: &'a Input,
    pub(super) cost: &'a (dyn CostModel + Sync),
    /// Counts the requests that ended.
    pub(super) bar: &'a ProgressBar,
}

/// Report of a replay, and its figures over time if sampled.
pub(super) type Sampled = (Report, Option<SeriesReport>);

/// Replays under one of the settings; samples figures over time if `sampled`, writes a recording to `record`, and notifies `others` of all that
/// happens.
///
/// # Errors
/// If the input cannot be read, or the recording cannot be written.
pub(super) fn replay<'a>(
    stage: &Stage<'a>,
    settings: &Settings,
    sampled: bool,
    record_to: Option<&Path>,
    others: Vec<&'a mut dyn Observer>,
) -> anyhow::Result<Sampled> {
    let mut series = sampled.then(|| Series::new(settings.fleet_shape()));
    let mut progress = |_: &Outcome| {
        stage.bar.inc(1);
        ControlFlow::Continue(())
    };
    let mut all: Vec<&mut dyn Observer> = vec![&mut progress];
    all.extend(series.as_mut().map(|series| series as &mut dyn Observer));
    all.extend(others.into_iter().map(|other| other as &mut dyn Observer));
    let (mut source, mut all) = (stage.input.source()?, Observers(all));
    let report = match record_to {
        Some(path) => record(&mut *source, settings, stage.cost, &mut all, path)
            .with_context(|| format!("cannot record to {}", path.display()))?,
        None => replay_source(&mut *source, settings, stage.cost, &mut all)?,
    };
    let series = series.map(|series| series.finish(&report));
    Ok((report, series))
}

/// Replays under each of the settings, as many at a time as there are cores; each replay runs on one thread, so that none
/// depends on the others. Returns results in the order of the settings; samples figures over time if `sampled`.
///
/// # Errors
/// If the input cannot be read.
pub(super) fn replay_all(stage: &Stage<'_>, runs: &[Settings], sampled: bool) -> anyhow::Result<Vec<Sampled>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        while let Some((index, settings)) = take(&next, runs) {
            done.push((index, replay(stage, settings, sampled, None, Vec::new())));
        }
        done
    };
    let n_threads = thread::available_parallelism().map_or(1, usize::from).min(runs.len());
    let mut done: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(work)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        threads.into_iter().flat_map(join).collect()
    });
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

fn take<'a>(next: &AtomicUsize, runs: &'a [Settings]) -> Option<(usize, &'a Settings)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    runs.get(index).map(|settings| (index, settings))
}
