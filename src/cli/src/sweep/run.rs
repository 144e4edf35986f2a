//! Runs cells in parallel, each on one thread.

use std::collections::HashMap;
use std::io::{IsTerminal, stderr};
use std::ops::ControlFlow;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use trunkline_sim_replay::replay_source;
use trunkline_sim_report::Report;
use trunkline_sim_report::outcome::Outcome;
use trunkline_sim_workload::tenants::Shares;

use super::cells::{Cell, Ready};
use super::folder;
use crate::replay::at_load;
use crate::replay::input::{Input, Part};

/// Resolution of the progress of one cell, parts.
const PARTS: u64 = 1000;

/// Numbers of cells by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Cells that ended.
    pub ok: usize,
    /// Cells that failed.
    pub failed: usize,
}

/// Runs `cells` and writes the row of each cell into `folder` at the cell's end.
///
/// # Errors
/// If a row cannot be written. The error of a cell is written in its row.
pub(super) fn run(cells: &[&Cell], folder: &Path, threads: usize) -> anyhow::Result<Tally> {
    // Cells of one trace after another, so that no more traces are in memory than there are threads.
    let mut order: Vec<&Cell> = cells.to_vec();
    let trace = |cell: &&Cell| cell.ready.as_ref().ok().map(|ready| ready.trace.clone());
    order.sort_by_cached_key(trace);
    let (traces, progress, next) = (Traces::of(&order), Progress::new(&order), AtomicUsize::new(0));
    let work = || -> anyhow::Result<Tally> {
        let mut tally = Tally::default();
        while let Some(cell) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
            let result = run_one(cell, &traces, &progress);
            folder::write(folder, cell, &result)?;
            match result.is_ok() {
                true => tally.ok += 1,
                false => tally.failed += 1,
            }
            progress.ended(cell, &result);
        }
        Ok(tally)
    };
    let tallies: anyhow::Result<Vec<Tally>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads.clamp(1, order.len().max(1))).map(|_| scope.spawn(work)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| thread.join().unwrap_or_else(|panic| resume_unwind(panic));
        threads.into_iter().map(join).collect()
    });
    progress.bar.finish_and_clear();
    let sum = |a: Tally, b: Tally| Tally { ok: a.ok + b.ok, failed: a.failed + b.failed };
    Ok(tallies?.into_iter().fold(Tally::default(), sum))
}

fn run_one(cell: &Cell, traces: &Traces, progress: &Progress) -> Result<Report, String> {
    let mut share = Share { progress, of_cell: 1, shown: 0 };
    let ready = cell.ready.as_ref().map_err(String::clone)?;
    let result =
        traces.get(ready).and_then(|input| replay(&input, ready, &mut share).map_err(|error| format!("{error:#}")));
    traces.done(ready);
    result
}

fn replay(input: &Input, ready: &Ready, share: &mut Share<'_>) -> anyhow::Result<Report> {
    let cost = ready.settings.cost_model()?;
    // At least one, so that shares of it are numbers.
    let requests = input.requests().unwrap_or(u64::MAX).max(1);
    let mut runs = [ready.settings.clone()];
    if ready.own_tenants {
        runs[0].tenants = Shares::traced(input.tenants());
    }
    let mut before = 0;
    let load = match ready.load {
        Some(fraction) => {
            share.of_cell = requests.saturating_mul(2);
            before = requests;
            Some(at_load(input, &mut runs, &*cost, fraction, &mut |ended| share.at(ended))?)
        }
        None => {
            share.of_cell = requests;
            None
        }
    };
    let mut ended = before;
    let mut progress = |_: &Outcome| {
        ended += 1;
        share.at(ended);
        ControlFlow::Continue(())
    };
    let mut report = replay_source(&mut *input.source()?, &runs[0], &*cost, &mut progress)?;
    report.load = load;
    Ok(report)
}

/// Traces of the cells; each trace is loaded at the start of the first cell and dropped at the end of the last cell.
struct Traces(HashMap<PathBuf, Vec<Shared>>);

struct Shared {
    part: Part,
    input: Mutex<Option<Result<Arc<Input>, String>>>,
    cells_left: AtomicUsize,
}

impl Traces {
    fn of(cells: &[&Cell]) -> Self {
        let mut traces: HashMap<PathBuf, Vec<Shared>> = HashMap::new();
        for ready in cells.iter().filter_map(|cell| cell.ready.as_ref().ok()) {
            let parts = traces.entry(ready.trace.clone()).or_default();
            match parts.iter_mut().find(|shared| shared.part == ready.part) {
                Some(shared) => *shared.cells_left.get_mut() += 1,
                None => parts.push(Shared {
                    part: ready.part.clone(),
                    input: Mutex::new(None),
                    cells_left: AtomicUsize::new(1),
                }),
            }
        }
        Self(traces)
    }

    fn shared(&self, ready: &Ready) -> &Shared {
        let found = self.0[&ready.trace].iter().find(|shared| shared.part == ready.part);
        found.expect("every cell that can be run was counted")
    }

    /// Returns the trace of a cell, loading the trace if needed; other cells of the trace wait meanwhile.
    fn get(&self, ready: &Ready) -> Result<Arc<Input>, String> {
        let mut held = self.shared(ready).input.lock().unwrap_or_else(PoisonError::into_inner);
        let load = || ready.part.open(&ready.trace).map(Arc::new).map_err(|error| format!("{error:#}"));
        held.get_or_insert_with(load).clone()
    }

    fn done(&self, ready: &Ready) {
        let shared = self.shared(ready);
        if shared.cells_left.fetch_sub(1, Ordering::Relaxed) == 1 {
            *shared.input.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }
}

/// Progress display: a bar on a terminal, else a line for each cell.
struct Progress {
    bar: ProgressBar,
    lines: bool,
    cells: usize,
    ended: AtomicUsize,
    /// Indexes of the parameters that differ between cells, for labels.
    varied: Vec<bool>,
}

impl Progress {
    fn new(all: &[&Cell]) -> Self {
        let cells = all.len();
        let parameters = all.first().map_or(0, |cell| cell.parameters.len());
        let varies =
            |parameter: usize| all.iter().any(|cell| cell.parameters[parameter].1 != all[0].parameters[parameter].1);
        let lines = !stderr().is_terminal();
        let target = if lines { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(cells as u64 * PARTS), target);
        let style = ProgressStyle::with_template("{elapsed:>4} {wide_bar} {msg}, {eta} left");
        bar.set_style(style.expect("the template is right"));
        bar.set_message(format!("0 of {cells} cells"));
        Self { bar, lines, cells, ended: AtomicUsize::new(0), varied: (0..parameters).map(varies).collect() }
    }

    fn ended(&self, cell: &Cell, result: &Result<Report, String>) {
        let ended = self.ended.fetch_add(1, Ordering::Relaxed) + 1;
        self.bar.set_message(format!("{ended} of {} cells", self.cells));
        let line = match result {
            Ok(report) => format!("{:.1} s", report.wall_s),
            Err(message) => format!("failed: {message}"),
        };
        let line = format!("{}: {line}", self.name(cell));
        if self.lines {
            let left = self.bar.elapsed().mul_f64((self.cells - ended) as f64 / ended as f64);
            let left =
                if ended == self.cells { String::new() } else { format!(", about {} left", HumanDuration(left)) };
            eprintln!("{ended} of {} cells{left}: {line}", self.cells);
        } else if result.is_err() {
            self.bar.println(line);
        }
    }

    /// Returns a label of a cell: its values of the parameters that differ.
    fn name(&self, cell: &Cell) -> String {
        let named = cell.parameters.iter().zip(&self.varied).filter(|(_, varied)| **varied);
        let name = named.map(|((parameter, value), _)| format!("{parameter}={value}")).collect::<Vec<_>>().join(" ");
        if name.is_empty() { cell.id.clone() } else { name }
    }
}

/// Progress of one cell; complete when dropped.
struct Share<'a> {
    progress: &'a Progress,
    of_cell: u64,
    shown: u64,
}

impl Share<'_> {
    fn at(&mut self, ended: u64) {
        let parts = (u128::from(ended) * u128::from(PARTS) / u128::from(self.of_cell.max(1))) as u64;
        let parts = parts.min(PARTS);
        self.progress.bar.inc(parts.saturating_sub(self.shown));
        self.shown = self.shown.max(parts);
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.at(self.of_cell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_has_a_name_even_if_it_is_the_only_one() {
        let cell = |id: &str, replicas: &str| Cell {
            id: id.into(),
            parameters: vec![("limit".into(), "50".into()), ("replicas".into(), replicas.into())],
            trace_digest: String::new(),
            ready: Err("not to be run".into()),
        };
        let (one, two) = (cell("ab", "1"), cell("cd", "2"));
        assert_eq!(Progress::new(&[&one, &two]).name(&two), "replicas=2");
        assert_eq!(Progress::new(&[&two]).name(&two), "cd");
    }
}
