//! Attached workers: who comes, goes, breaks and comes back, and the requests meanwhile.
//!
//! | event | the engine's requests |
//! |---|---|
//! | a worker attaches | start, and those of engines without a worker move here |
//! | its connection breaks | running ones wait for the worker to come back, for [`crate::AttachOptions::resume`], with other engines no longer than going on there would take ([`trunkline_cluster::Absence`]); waiting and new ones go to other engines, if there are any |
//! | it comes back in time | continue with their KV |
//! | it leaves, breaks a rule, is replaced, or does not come back | move to other engines; without any, wait for a worker, for [`crate::AttachOptions::wait`] |
//! | no worker came for so long | end with an error; new ones are refused until a worker attaches |
//!
//! Workers in lock step ([`crate::engines::lock_steps`]) start when all of their group are there, and go together: a broken connection is the end of the
//! session for all of them.
//!
//! The engine of a vacant seat is gone for the cluster, unless its requests wait for a worker.

use tonic::Status;
use tracing::{error, info, warn};
use trunkline_attach::LockStep;
use trunkline_cluster::{EngineId, EngineState, Input};
use trunkline_core::Event;

use super::Driver;
use crate::driver::commands::Attaching;
use crate::engines::link::LinkEnd;
use crate::engines::losses::Loss;
use crate::engines::seats::{Place, SeatState};

impl Driver {
    /// Notes that nobody is in the seats yet. Requests go to the other engines, or wait for the first worker if there are none.
    pub(super) fn begin_seats(&mut self) {
        let engines: Vec<EngineId> = self.workers.seats.engines().collect();
        for engine in engines {
            self.workers.empty(engine);
            if self.any_served(None) {
                self.apply(Input::Retire(engine));
            }
        }
        self.note_served();
    }

    /// Chooses the place of a worker, or the reason to refuse it.
    fn place(&self, attaching: &Attaching) -> Result<Place, Status> {
        let (workers, cluster) = (&self.workers, &self.cluster);
        let requests = |engine| cluster.status(engine).load.requests;
        let (name, now_ns) = (&attaching.worker.name, self.clock.now_ns());
        let (life, heard) = (|engine| workers.life(engine), |engine| workers.is_heard(engine, now_ns));
        let lock_step = attaching.worker.lock_step.as_ref();
        let check = |vacant| match workers.lock_steps.check(lock_step, vacant) {
            Ok(()) => Ok(()),
            Err(fault) => Err(Status::resource_exhausted(fault.to_string())),
        };
        match workers.seats.place(name, attaching.resume.as_ref(), life, heard, requests) {
            None => {
                let n = workers.seats.engines().count();
                let why = format!("all {n} engines for attached workers have a worker; try again later");
                Err(Status::resource_exhausted(why))
            }
            Some(Place::NameTaken(engine)) => {
                let why =
                    format!("a worker of this name is attached as {engine}; give each worker a --name of its own");
                Err(Status::already_exists(why))
            }
            // The end of the reset was lost with the connection; the worker holds nothing of use. Nor does one of a group, and the KV of one that
            // broke a rule is not trusted. One that drafts otherwise than before begins again.
            Some(Place::Resume(engine))
                if workers.is_resetting(engine)
                    || workers.is_faulty(engine)
                    || lock_step.is_some()
                    || self.drafts_of(engine, attaching.worker.max_drafts) != cluster.core(engine).max_drafts() =>
            {
                Ok(Place::Replace(engine))
            }
            Some(Place::Replace(engine)) if !workers.lock_steps.has(engine) => {
                check(workers.seats.vacant() + 1).map(|()| Place::Replace(engine))
            }
            Some(Place::Take(engine)) => check(workers.seats.vacant()).map(|()| Place::Take(engine)),
            Some(place) => Ok(place),
        }
    }

    /// Seats a worker, instead of an older one of its name if there is one.
    pub(super) fn attach(&mut self, mut attaching: Attaching) {
        let lock_step = attaching.worker.lock_step.clone();
        let (engine, resumed) = match self.place(&attaching) {
            Err(status) => return attaching.refuse(status),
            Ok(Place::Take(engine) | Place::NameTaken(engine)) => (engine, false),
            Ok(Place::Resume(engine)) => {
                // The session keeps its name.
                if let Some(resume) = &attaching.resume {
                    attaching.worker.session.clone_from(&resume.session);
                }
                (engine, true)
            }
            Ok(Place::Replace(engine)) => {
                let status = Status::aborted("another worker took this worker's place");
                self.hand_over(engine);
                self.vacate(engine, Loss::Detached, status, "another worker took its place");
                (engine, false)
            }
        };
        let (name, program) = (attaching.worker.name.clone(), attaching.worker.program.clone());
        let core = self.cluster.core(engine).config().clone();
        let drafts = attaching.worker.max_drafts;
        if let Err(err) = self.workers.attach(engine, attaching, &core, resumed) {
            return error!(%engine, worker = name, %err, "cannot start a thread for an attached worker");
        }
        let requests = self.cluster.status(engine).load.requests;
        self.limit_drafts(engine, &name, drafts);
        if resumed {
            info!(%engine, worker = name, requests, "the worker came back with its KV");
            self.apply(Input::Engine(engine, Event::WorkerResumed));
            self.apply(Input::OpenEngine(engine));
            self.help_out();
        } else {
            info!(%engine, worker = name, program, "a worker attached");
            self.start(engine, lock_step);
        }
    }

    /// Returns the drafts that a core asks a worker for, at most, if the worker makes up to `drafts`.
    fn drafts_of(&self, engine: EngineId, drafts: u32) -> u32 {
        drafts.min(self.cluster.core(engine).config().max_drafts)
    }

    /// Lets the core of a worker ask for no more drafts than the worker makes.
    fn limit_drafts(&mut self, engine: EngineId, name: &str, drafts: u32) {
        let core = self.cluster.core(engine);
        let (asked, drafts) = (core.config().max_drafts, self.drafts_of(engine, drafts));
        if drafts < asked {
            warn!(%engine, worker = name, "the worker drafts up to {drafts} tokens; --max-drafts is {asked}, and {drafts} for this worker");
        }
        if drafts != core.max_drafts() {
            self.apply(Input::Engine(engine, Event::DraftsLimited(drafts)));
        }
    }

    /// Lets the engine of a new worker begin, and with the last worker of a group the engines of all of them.
    fn start(&mut self, engine: EngineId, lock_step: Option<LockStep>) {
        let started = match lock_step {
            None => vec![engine],
            Some(lock_step) => {
                let (group, size) = (lock_step.group.clone(), lock_step.size);
                let started = self.workers.lock_steps.join(engine, lock_step);
                match started.is_empty() {
                    true => info!(%engine, group, size, "it waits for the others of its group"),
                    false => info!(group, size, "all workers of a group are there"),
                }
                started
            }
        };
        self.note_served();
        for engine in started {
            self.join(engine);
        }
    }

    /// Handles the end of a connection.
    pub(super) fn detach(&mut self, engine: EngineId, link: u64, end: LinkEnd) {
        if !self.workers.seats.is_present(engine, link) {
            return;
        }
        let name = self.name_of(engine);
        let requests = self.cluster.status(engine).load.requests;
        let is_closed = matches!(end, LinkEnd::Broke(_));
        match end {
            LinkEnd::Left => {
                info!(%engine, worker = name, "the worker left");
                self.hand_over(engine);
                self.vacate(engine, Loss::Detached, Status::ok(""), "it left");
            }
            LinkEnd::Withdrawn(why) => {
                warn!(%engine, worker = name, requests, why, "a worker has to leave; its requests move");
                self.hand_over(engine);
                self.vacate(engine, Loss::Detached, Status::unauthenticated(why.clone()), &why);
            }
            LinkEnd::Broke(why) | LinkEnd::Silent(why)
                if self.workers.is_resetting(engine) || self.workers.lock_steps.has(engine) =>
            {
                // Its KV is lost in any case; the others of its group are in the middle of a step.
                self.vacate(engine, Loss::Detached, Status::aborted("the connection broke"), &why);
            }
            LinkEnd::Broke(why) | LinkEnd::Silent(why) => {
                warn!(%engine, worker = name, requests, why, "the connection to a worker broke; its requests wait for it to come back");
                self.workers.note_broken(engine, is_closed, self.clock.now_ns());
                self.tend_broken();
            }
            LinkEnd::Faulty(why) => {
                self.vacate(engine, Loss::BadResult, Status::invalid_argument(why.clone()), &why);
            }
        }
    }

    /// Moves the requests of a worker that goes in order to other engines, if there are any. Steps under way are given up as after a broken
    /// connection, so that no request is blamed for them.
    fn hand_over(&mut self, engine: EngineId) {
        if !self.any_up(Some(engine)) {
            return;
        }
        self.apply(Input::DrainEngine(engine));
        for id in self.requests_on(engine) {
            self.apply(Input::Client(Event::Withdraw(id)));
        }
        self.apply(Input::Engine(engine, Event::WorkerResumed));
    }

    /// Takes a worker from its seat, and the others of its group; the requests go elsewhere, or wait for a worker.
    pub(super) fn vacate(&mut self, engine: EngineId, loss: Loss, status: Status, why: &str) {
        let others = self.workers.lock_steps.leave(engine);
        let others: Vec<_> = others.into_iter().map(|other| (other, self.name_of(other))).collect();
        for (other, _) in &others {
            let is_up = matches!(self.cluster.status(*other).state, EngineState::Up | EngineState::Draining);
            // Before any request moves: none is to blame for the steps of the others, nor moves there.
            if is_up {
                self.apply(Input::Engine(*other, Event::WorkerTaken));
            }
            self.workers.vacate(*other, Loss::Detached, Status::aborted("another worker of the group is gone"));
        }
        let name = self.name_of(engine);
        self.workers.vacate(engine, loss, status);
        self.leave(engine, &name, why);
        for (other, name) in others {
            self.leave(other, &name, "another worker of its group is gone");
        }
    }

    /// Returns the name of an engine's worker; empty if there is none.
    fn name_of(&self, engine: EngineId) -> String {
        self.workers.seats.occupant(engine).map_or("", |worker| &worker.name).to_owned()
    }

    /// Moves the requests of an engine without a worker to other engines, or lets them wait for a worker.
    fn leave(&mut self, engine: EngineId, name: &str, why: &str) {
        let requests = self.cluster.status(engine).load.requests;
        self.note_served();
        if matches!(self.cluster.status(engine).state, EngineState::Draining | EngineState::Closed) {
            // The next worker of the seat finds the engine open. It is closed if the core gave up the KV of the worker while the engine drained.
            self.apply(Input::OpenEngine(engine));
        }
        if self.any_served(Some(engine)) {
            warn!(%engine, worker = name, requests, why, "a worker is lost; other engines continue its requests");
            self.apply(Input::Retire(engine));
        } else {
            warn!(%engine, worker = name, requests, why, "the last worker is lost; requests wait for another");
            self.apply(Input::Engine(engine, Event::WorkerLost));
        }
        self.open_broken();
    }

    /// Opens the engines that wait for their workers, if no other engine takes requests: requests wait there then.
    fn open_broken(&mut self) {
        let engines: Vec<EngineId> = self.workers.seats.engines().collect();
        for engine in engines {
            let is_broken = self.workers.seats.state(engine) == Some(SeatState::Broken);
            if is_broken && !self.any_up(None) {
                self.apply(Input::OpenEngine(engine));
                self.help_out();
            }
        }
    }

    /// Moves the requests of engines without a worker to engines that have one.
    pub(super) fn help_out(&mut self) {
        for at in 0..self.counts.len() {
            let other = EngineId(at as u32);
            let status = self.cluster.status(other);
            // Requests that no engine could take over when theirs was retired, or that waited for an attached worker.
            let is_without = match status.state {
                EngineState::Closed | EngineState::Gone => true,
                EngineState::Absent => !self.workers.is_served(other),
                EngineState::Up | EngineState::Draining => false,
            };
            // A decode engine that is up takes over none: the requests wait on.
            if is_without && status.load.requests > 0 && self.any_up(Some(other)) {
                self.apply(Input::Retire(other));
            }
        }
        self.tend_broken();
    }

    /// Lets the requests of workers with broken connections go on elsewhere, if another engine has a worker: waiting ones at once, running
    /// ones when they have waited as long as that is worth.
    fn tend_broken(&mut self) {
        let engines: Vec<EngineId> = self.workers.seats.broken().collect();
        for engine in engines {
            let is_connected = |other: EngineId| self.workers.seats.state(other) != Some(SeatState::Broken);
            let mut others = self.prefilling(Some(engine)).filter(|other| is_connected(*other));
            if others.any(|other| self.cluster.status(other).state == EngineState::Up) {
                drop(others);
                if self.cluster.status(engine).state == EngineState::Up {
                    self.apply(Input::DrainEngine(engine));
                }
                let again_ns = self.cluster.again_ns(engine);
                self.workers.seats.limit_wait(engine, again_ns, self.clock.now_ns());
            }
        }
    }

    /// Returns the engines other than `except` whose role takes new requests, and requests of lost workers.
    pub(super) fn prefilling(&self, except: Option<EngineId>) -> impl Iterator<Item = EngineId> {
        let engines = (0..self.cluster.n_engines() as u32).map(EngineId);
        engines.filter(move |engine| Some(*engine) != except && self.cluster.prefills(*engine))
    }

    /// Returns `true` if such an engine is up.
    pub(super) fn any_up(&self, except: Option<EngineId>) -> bool {
        self.prefilling(except).any(|engine| self.cluster.status(engine).state == EngineState::Up)
    }

    /// Returns `true` if such an engine has a worker, or gets one without an operator ([`crate::driver::workers::Workers::is_served`]).
    fn any_served(&self, except: Option<EngineId>) -> bool {
        self.prefilling(except).any(|engine| self.workers.is_served(engine))
    }

    /// Resets an attached worker whose step takes too long, or ends its connection if the reset takes too long.
    pub(super) fn hurry(&mut self, engine: EngineId) {
        if self.workers.lock_steps.has(engine) {
            return self.vacate(
                engine,
                Loss::Timeout,
                Status::aborted("a step takes too long"),
                "a step takes too long",
            );
        }
        if self.workers.is_resetting(engine) {
            return self.vacate(
                engine,
                Loss::Timeout,
                Status::aborted("the reset took too long"),
                "its reset took too long",
            );
        }
        let requests = self.cluster.status(engine).load.requests;
        error!(%engine, requests, "a step takes too long; the worker is reset, and requests are computed again");
        // Before the loss, so that whatever the core wants from then on is done by the worker's next life.
        self.workers.reset(engine, Loss::Timeout, self.clock.now_ns());
        self.apply(Input::Engine(engine, Event::WorkerLost));
    }

    /// Returns the next end of a wait for a worker, nanoseconds.
    pub(super) fn next_absence_ns(&self) -> Option<u64> {
        let resume_ns = self.workers.seats.next_end_ns().map(|(at_ns, _)| at_ns);
        [resume_ns, self.presence.wait_until_ns].into_iter().flatten().min()
    }

    /// Ends the waits for workers that are over.
    pub(super) fn end_waits(&mut self) {
        let now_ns = self.clock.now_ns();
        while let Some((_, engine)) = self.workers.seats.next_end_ns().filter(|(at_ns, _)| *at_ns <= now_ns) {
            self.vacate(
                engine,
                Loss::Detached,
                Status::aborted("the worker did not come back in time"),
                "it did not come back in time",
            );
        }
        if self.presence.wait_until_ns.take_if(|at_ns| *at_ns <= now_ns).is_none() {
            return;
        }
        let engines: Vec<EngineId> = self.workers.seats.engines().collect();
        for engine in engines {
            let status = self.cluster.status(engine);
            if status.state == EngineState::Absent {
                error!(%engine, requests = status.load.requests, "no worker came in time; requests are refused until one attaches");
                self.fail_all(engine);
                self.apply(Input::Retire(engine));
            }
        }
    }

    /// Notes a change of the engines that have a worker.
    pub(super) fn note_served(&mut self) {
        let is_served = self.any_served(None);
        // A worker that is started again may never start; until then no request is served.
        let has_worker = self.prefilling(None).any(|engine| self.workers.is_ready(engine));
        self.presence.served.send_if_modified(|served| std::mem::replace(served, has_worker) != has_worker);
        let wait_ns = || u64::try_from(self.workers.seats.wait().as_nanos()).unwrap_or(u64::MAX);
        self.presence.wait_until_ns = match (is_served, self.presence.wait_until_ns) {
            (true, _) => None,
            (false, Some(until_ns)) => Some(until_ns),
            (false, None) => Some(self.clock.now_ns().saturating_add(wait_ns())),
        };
    }
}
