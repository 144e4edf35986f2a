//! The two threads of a worker: one runs the steps of a [`StepRunner`], the other copies blocks.
//!
//! The network side sends jobs and never waits for a step. A job names the connection on which it arrived: jobs of a broken connection are
//! dropped, so that after [`Engine::quiesce`] no thread touches a block and the KV can be offered to the server again.

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tracing::{error, info};
use trunkline_port::{Step, StepError, StepRunner};

use super::copies::{self, CopyJob, Fence};
use crate::done::encode_done;
use crate::mirror::{Mirror, StepLimits};
use crate::session::Session;
use crate::wire;
use crate::wire::from_worker::Message;

/// Makes the runner of a session: block size, blocks and drafts are known then. Called again if these change.
pub type MakeRunner = Box<dyn FnMut(&Session) -> Result<Box<dyn StepRunner>, Box<dyn Error + Send + Sync>> + Send>;

/// Job of the step thread.
enum Job {
    /// A connection begins.
    Begin { connection: Box<Connection>, done: oneshot::Sender<Result<(), String>> },
    /// Run a step of a connection.
    Step { connection: u64, step: Box<wire::Step> },
    /// Run a step without sequences.
    Idle { connection: u64, life: u64 },
    /// Begin a life of the KV.
    Reset { connection: u64, life: u64 },
    /// Forget the way to the server.
    HangUp(oneshot::Sender<()>),
    /// Report the life of the KV, when all earlier jobs have ended.
    Quiesce(oneshot::Sender<Option<u64>>),
}

/// A connection to the server, as far as steps need it.
pub(super) struct Connection {
    /// Number of the connection, ascending from 1.
    pub(super) number: u64,
    pub(super) session: Session,
    pub(super) limits: StepLimits,
    /// Way to the server.
    pub(super) answers: UnboundedSender<wire::FromWorker>,
}

/// Handle of the threads. Dropping the handle ends the threads.
pub(super) struct Engine {
    jobs: Sender<Job>,
    copies: Sender<CopyJob>,
    fence: Arc<Fence>,
}

impl Engine {
    /// Starts the threads.
    pub(super) fn spawn(make: MakeRunner) -> std::io::Result<Self> {
        let fence = Arc::new(Fence::default());
        let (jobs, step_jobs) = channel();
        let (copies, copy_jobs) = channel();
        let mut steps = Steps {
            make,
            runner: None,
            connection: None,
            life: None,
            fence: fence.clone(),
            mirror: None,
            step: Step::default(),
        };
        thread::Builder::new().name("steps".into()).spawn(move || steps.serve(&step_jobs))?;
        let copies_fence = fence.clone();
        thread::Builder::new().name("copies".into()).spawn(move || copies::serve(&copy_jobs, &copies_fence))?;
        Ok(Self { jobs, copies, fence })
    }

    /// Begins a connection; waits until the runner is made, and the KV is empty unless the session was resumed.
    pub(super) async fn begin(&self, connection: Connection) -> Result<(), String> {
        let (done, made) = oneshot::channel();
        self.fence.connect(connection.number);
        let _ = self.jobs.send(Job::Begin { connection: Box::new(connection), done });
        made.await.unwrap_or_else(|_| Err("the worker panicked".into()))
    }

    /// Queues a step. Never waits.
    pub(super) fn step(&self, connection: u64, step: wire::Step) {
        let _ = self.jobs.send(Job::Step { connection, step: Box::new(step) });
    }

    /// Queues a step without sequences. Never waits.
    pub(super) fn idle(&self, connection: u64, life: u64) {
        let _ = self.jobs.send(Job::Idle { connection, life });
    }

    /// Queues a reset. Never waits.
    pub(super) fn reset(&self, connection: u64, life: u64) {
        let _ = self.jobs.send(Job::Reset { connection, life });
    }

    /// Queues a copy. Never waits.
    pub(super) fn copy(&self, job: CopyJob) {
        let _ = self.copies.send(job);
    }

    /// Waits until all jobs have ended, and returns the life of the KV, if there is one.
    pub(super) async fn drain(&self) -> Option<u64> {
        let (done, life) = oneshot::channel();
        let _ = self.jobs.send(Job::Quiesce(done));
        life.await.unwrap_or(None)
    }

    /// Forgets the way to the server.
    pub(super) async fn hang_up(&self) {
        let (done, gone) = oneshot::channel();
        let _ = self.jobs.send(Job::HangUp(done));
        let _ = gone.await;
    }

    /// Drops the jobs of the present connection, waits until no thread touches a block, and returns the life of the KV, if there is one.
    pub(super) async fn quiesce(&self) -> Option<u64> {
        self.fence.connect(0);
        self.drain().await
    }
}

/// State of the step thread.
struct Steps {
    make: MakeRunner,
    /// Runner, with the session for which it was made.
    runner: Option<(Box<dyn StepRunner>, Session)>,
    connection: Option<Connection>,
    /// Life of the KV; `None` after a failed step, until the reset.
    life: Option<u64>,
    fence: Arc<Fence>,
    mirror: Option<Mirror>,
    step: Step,
}

impl Steps {
    fn serve(&mut self, jobs: &Receiver<Job>) {
        for job in jobs {
            match job {
                Job::Begin { connection, done } => {
                    let begun = catch_unwind(AssertUnwindSafe(|| self.begin(*connection)));
                    let _ = done.send(begun.unwrap_or_else(|_| Err("the worker panicked".into())));
                }
                Job::Step { connection, step } if self.fence.is_connected(connection) => self.run(&step),
                Job::Reset { connection, life } if self.fence.is_connected(connection) => self.reset(life),
                Job::Idle { connection, life } if self.fence.is_connected(connection) => self.idle(life),
                Job::Step { .. } | Job::Idle { .. } | Job::Reset { .. } => {}
                Job::HangUp(done) => {
                    self.connection = None;
                    let _ = done.send(());
                }
                Job::Quiesce(done) => {
                    self.fence.wait();
                    let _ = done.send(self.life);
                }
            }
        }
    }

    fn begin(&mut self, connection: Connection) -> Result<(), String> {
        let session = &connection.session;
        let resumed = session.resumed && self.life == Some(session.life);
        if session.resumed && !resumed {
            return Err(format!("the server resumes life {}, which the worker no longer holds", session.life));
        }
        self.mirror = Some(Mirror::new(connection.limits));
        if !resumed {
            self.life = None;
            self.fence.close();
            self.prepare(session)?;
            self.open(session.life, session.blocks);
        }
        self.connection = Some(connection);
        Ok(())
    }

    /// Makes the runner, or empties the one there is.
    fn prepare(&mut self, session: &Session) -> Result<(), String> {
        let shape = |session: &Session| (session.block_size, session.blocks, session.max_drafts);
        match &mut self.runner {
            Some((runner, made_for)) if shape(made_for) == shape(session) => runner.reset(),
            _ => {
                // Two caches do not fit the device.
                self.runner = None;
                let runner = (self.make)(session).map_err(|error| error.to_string())?;
                self.runner = Some((runner, session.clone()));
            }
        }
        Ok(())
    }

    fn open(&mut self, life: u64, n_blocks: u32) {
        if let Some((runner, _)) = &mut self.runner {
            self.fence.open(life, n_blocks, runner.blocks());
            self.life = Some(life);
        }
    }

    fn run(&mut self, message: &wire::Step) {
        let begin = Instant::now();
        let Some(life) = self.life else { return };
        if message.life < life {
            return;
        }
        let answer = match self.outcome(message, life) {
            Ok(output) => {
                let busy_us = begin.elapsed().as_micros() as u64;
                Message::StepDone(encode_done(&self.step, output, life, busy_us))
            }
            Err(failed) => {
                error!(step = message.id, "the step failed: {}", failed.reason);
                self.life = None;
                self.fence.close();
                Message::StepFailed(failed)
            }
        };
        self.answer(answer);
    }

    fn outcome(&mut self, message: &wire::Step, life: u64) -> Result<trunkline_port::StepOutput, wire::StepFailed> {
        let failed = |reason: String| wire::StepFailed { id: message.id, life: message.life, reason, request: None };
        if message.life > life {
            return Err(failed(format!("life {} of the step has not begun", message.life)));
        }
        let (Some((runner, _)), Some(mirror)) = (&mut self.runner, &mut self.mirror) else {
            return Err(failed("the worker has no model".into()));
        };
        mirror.decode(message, &mut self.step).map_err(|fault| failed(fault.to_string()))?;
        let step = &self.step;
        let output = catch_unwind(AssertUnwindSafe(|| runner.run(step)));
        match output.unwrap_or_else(|_| Err(StepError::new("the worker panicked"))) {
            Ok(output) => {
                mirror.note(step, &output.result);
                Ok(output)
            }
            Err(error) => {
                if error.is_unfit() {
                    self.runner = None;
                }
                let request = error.guilty().map(|request| request.0);
                Err(wire::StepFailed { request, ..failed(error.to_string()) })
            }
        }
    }

    fn idle(&mut self, life: u64) {
        let Some((runner, _)) = self.runner.as_mut().filter(|_| self.life == Some(life)) else { return };
        if catch_unwind(AssertUnwindSafe(|| runner.idle())).is_err() {
            error!("the worker panicked in a step without sequences");
            self.life = None;
            self.fence.close();
        }
    }

    fn reset(&mut self, life: u64) {
        self.life = None;
        self.fence.close();
        let Some(connection) = &self.connection else { return };
        let (session, n_blocks) = (connection.session.clone(), connection.session.blocks);
        if let Some(mirror) = &mut self.mirror {
            mirror.clear();
        }
        // Makes another runner after a step for which the one before was unfit.
        match catch_unwind(AssertUnwindSafe(|| self.prepare(&session))) {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => return error!("the worker could not be made again: {reason}"),
            Err(_) => return error!("the worker panicked while it was reset"),
        }
        self.open(life, n_blocks);
        info!(life, "reset");
        self.answer(Message::ResetDone(wire::ResetDone { life }));
    }

    fn answer(&self, message: Message) {
        if let Some(connection) = &self.connection {
            // A connection that is gone needs no answer.
            let _ = connection.answers.send(wire::FromWorker { message: Some(message) });
        }
    }
}
