//! Start of the core's thread and of the threads of the embedded workers.

use std::sync::Arc;
use std::thread;

use crossbeam_channel::Receiver;
use tokio::sync::{oneshot, watch};
use trunkline_cluster::{Cluster, EngineId, ListenToCaches};
use trunkline_port::StepRunner;

use super::listening::Listening;
use super::{Driver, Outcome, tiers};
use crate::driver::commands::Command;
use crate::driver::followers::FollowSteps;
use crate::driver::queue::DriverHandle;
use crate::driver::recorder::Recorder;
use crate::driver::workers::{MakeWorker, Workers, spawn_threads};
use crate::engines::seats::{AttachOptions, Seats};
use crate::engines::stores::EngineStore;
use crate::engines::watchdog::Watchdog;
use crate::engines::worker_thread::WorkerHandle;
use crate::requests::request_log::RequestLog;

/// Parts of a driver.
pub(crate) struct Parts {
    pub(crate) cluster: Cluster,
    /// Embedded workers, of the first engines.
    pub(crate) runners: Vec<Box<dyn StepRunner>>,
    /// Store of each engine.
    pub(crate) stores: Vec<EngineStore>,
    /// Watchdog of each engine.
    pub(crate) watchdogs: Vec<Watchdog>,
    pub(crate) make: MakeWorker,
    /// Attached workers, of the engines without an embedded one.
    pub(crate) attach: AttachOptions,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) request_log: RequestLog,
    /// Receiver of ended steps.
    pub(crate) steps: Option<Arc<dyn FollowSteps>>,
    /// Notified when the first engine gets a worker, and when the last loses its worker.
    pub(crate) served: watch::Sender<bool>,
}

/// Starts the threads of the embedded workers and the core's thread, which takes `commands`. The receiver gets the outcome when the
/// core's thread ends, and nothing if the thread panics. The listener, if there is one, has begun.
pub(crate) fn spawn(
    handle: &DriverHandle,
    commands: Receiver<Command>,
    parts: Parts,
    listener: Option<ListenToCaches>,
) -> std::io::Result<oneshot::Receiver<Outcome>> {
    let Parts { mut cluster, runners, stores, watchdogs, make, attach, recorder, request_log, steps, served } = parts;
    let listening = Listening::begin(&mut cluster, listener);
    let (mut workers, mut found) = (Vec::with_capacity(stores.len()), Vec::new());
    let mut runners = runners.into_iter();
    for (at, store) in (0..).zip(stores) {
        found.push(store.found);
        let store = Arc::new(store.store);
        tiers::take_later(&store, EngineId(at), handle);
        let worker = match runners.next() {
            Some(runner) => spawn_threads(EngineId(at), 0, runner, &store, handle)?,
            None => WorkerHandle::new(at, 0).0,
        };
        workers.push((worker, store));
    }
    let seats = Seats::new(workers.len(), &attach);
    let workers = Workers::new(workers, watchdogs, seats, make, handle.clone());
    let mut driver = Driver::new(cluster, handle, commands, workers, (recorder, request_log));
    driver.presence.served = served;
    (driver.followers.listening, driver.followers.steps) = (listening, steps);
    driver.follow_preemptions();
    let (done, outcome) = oneshot::channel();
    thread::Builder::new().name("core".into()).spawn(move || {
        driver.begin_seats();
        driver.begin_tiers(found);
        // Nobody waits for the outcome if the server was dropped.
        let _ = done.send(driver.run());
    })?;
    Ok(outcome)
}
