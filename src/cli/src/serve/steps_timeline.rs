//! The timeline of a server that runs: steps, and the weights that they read, in the form of a replay's timeline.
//!
//! The thread of the cores hands over a step and goes on; a thread of its own writes. A step for which that thread has no room is left out, and counted.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use anyhow::Context;
use tracing::warn;
use trunkline_core::Stats;
use trunkline_server::{EndedStep, FollowSteps};
use trunkline_sim_perf::cost::{StepShape, WeightReads};
use trunkline_sim_report::FleetShape;
use trunkline_sim_report::observer::{Observer, StepSeen};
use trunkline_sim_report::timeline::{TimelineError, TimelineWriter, Window};

/// Maximum number of steps waiting for their thread.
const STEPS_MAX: usize = 8192;

/// A step for the writer.
struct Taken {
    engine: u32,
    begin_ns: u64,
    end_ns: u64,
    shape: StepShape,
    weights: WeightReads,
    stats: Box<Stats>,
}

/// The thread that writes, and the way to it.
type Writing = (SyncSender<Taken>, JoinHandle<Result<(), TimelineError>>);

/// Writer of the timeline of a server.
#[derive(Debug)]
pub(super) struct StepsTimeline {
    path: PathBuf,
    /// The way to the thread, and the thread, until the end.
    writing: Mutex<Option<Writing>>,
    lost: AtomicU64,
}

impl StepsTimeline {
    /// Creates the file for a number of engines, and starts the thread.
    ///
    /// # Errors
    /// If the file cannot be written, or the thread cannot be started.
    pub(super) fn create(path: &Path, engines: usize) -> anyhow::Result<Self> {
        let shape = FleetShape { device_blocks: vec![0; engines], ..FleetShape::default() };
        let writer = TimelineWriter::create(path, &shape, Window::ALL)?;
        let (steps, taken) = sync_channel(STEPS_MAX);
        let thread = thread::Builder::new().name("timeline".to_owned()).spawn(move || write(writer, &taken));
        let thread = thread.context("cannot start the thread of the timeline")?;
        Ok(Self { path: path.to_owned(), writing: Mutex::new(Some((steps, thread))), lost: AtomicU64::new(0) })
    }

    /// Writes the end of the file.
    ///
    /// # Errors
    /// If the file could not be written.
    pub(super) fn finish(&self) -> anyhow::Result<()> {
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((steps, thread)) = writing else { return Ok(()) };
        drop(steps);
        let lost = self.lost.load(Ordering::Relaxed);
        if lost > 0 {
            warn!(lost, "{}: steps ended faster than they can be written, and some are left out", self.path.display());
        }
        thread.join().map_err(|_| anyhow::anyhow!("the thread of the timeline panicked"))??;
        Ok(())
    }
}

fn write(mut writer: TimelineWriter, steps: &Receiver<Taken>) -> Result<(), TimelineError> {
    for Taken { engine, begin_ns, end_ns, shape, weights, stats } in steps {
        writer.step(&StepSeen { replica: engine, begin_ns, end_ns, shape, weights, stats: &stats });
    }
    writer.finish()
}

impl FollowSteps for StepsTimeline {
    fn ended(&self, ended: &EndedStep<'_>) {
        let EndedStep { engine, begin_ns, end_ns, .. } = *ended;
        let (shape, weights, stats) = (StepShape::of(ended.step), *ended.weights, Box::new(*ended.stats));
        let taken = Taken { engine, begin_ns, end_ns, shape, weights, stats };
        let writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if writing.as_ref().is_some_and(|(steps, _)| steps.try_send(taken).is_err()) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}
