//! The state machine over many cores: inputs in, outputs out.

mod failing;
mod placing;

use std::collections::{BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use trunkline_core::names::registry::RegistryError;
use trunkline_core::{
    Action, CacheEvent, ConfigError, Core, Event, FastForwardDriver, FastForwardResult, FinishReason, Preempted,
    Reasons, Refusal, Remains, Request, RequestId, Step, StepResult, Usage,
};
use trunkline_quote::quoted;

use crate::deadlines::Deadlines;
use crate::digest::{ClusterDigest, decision};
use crate::engine::{Engine, EngineConfig, EngineEvent, EngineId, EngineState, EngineStatus, Role};
use crate::input::{Input, Move, Output, is_from_worker};
use crate::placement::Brings;
use crate::placement::Placements;
use crate::router::{self, EngineFacts, Load, ROUTER_DEFAULT, RouterContext};
use crate::step_work::{StepWatch, StepWork};
use crate::witness::Witnesses;

/// Maximum number of engines in a cluster.
pub const ENGINES_MAX: usize = 4096;

/// Settings of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterConfig {
    /// Settings of each engine; at least one. All engines have the same block size.
    pub engines: Vec<EngineConfig>,
    /// Router by name, with parameters if any, such as `prefix_affinity:stale_ms=500` (see [`crate::router`]).
    pub router: String,
}

impl ClusterConfig {
    /// Returns the settings of `n` equal engines serving whole requests.
    pub fn uniform(core: &trunkline_core::Config, n: usize) -> Self {
        let engine = EngineConfig { core: core.clone(), role: Role::Both, kv_class: 0 };
        Self { engines: vec![engine; n], router: ROUTER_DEFAULT.into() }
    }

    fn validate(&self) -> Result<(), ClusterError> {
        let n = self.engines.len();
        if n == 0 || n > ENGINES_MAX {
            return Err(ClusterError::EngineCount(n));
        }
        let first = self.engines[0].core.block_size;
        for (at, engine) in self.engines.iter().enumerate() {
            let size = engine.core.block_size;
            if size != first {
                return Err(ClusterError::BlockSizes { engine: EngineId(at as u32), size, first });
            }
        }
        let error = |missing, role| ClusterError::Roles { missing, role };
        for first in &self.engines {
            let serves = |engine: &EngineConfig, role| engine.role == role || engine.role == Role::Both;
            let of_class = || self.engines.iter().filter(|engine| engine.kv_class == first.kv_class);
            if !of_class().any(|engine| serves(engine, Role::Prefill)) {
                return Err(error("takes new requests", "prefill"));
            }
            if !of_class().any(|engine| serves(engine, Role::Decode)) {
                return Err(error("takes over what others prefilled", "decode"));
            }
        }
        Ok(())
    }

    /// Returns the facts to build the router for.
    fn router_context(&self) -> RouterContext {
        let mut kinds: Vec<&EngineConfig> = Vec::new();
        let mut engines = Vec::new();
        for engine in &self.engines {
            let EngineConfig { core, role, kv_class } = engine;
            let is_kind = |kind: &&EngineConfig| (kind.kv_class, &kind.core) == (*kv_class, core);
            let kind = kinds.iter().position(is_kind).unwrap_or_else(|| {
                kinds.push(engine);
                kinds.len() - 1
            });
            let tiers = core.tiers.iter().map(|tier| u64::from(tier.blocks)).sum::<u64>();
            engines.push(EngineFacts {
                kind: kind as u32,
                cache_blocks: u64::from(core.device_blocks) + tiers,
                token_ns: core.recompute_token_ns,
                decodes: *role != Role::Prefill,
            });
        }
        RouterContext { engines, block_size: self.engines[0].core.block_size }
    }
}

/// Settings refused for a cluster.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    /// Number of engines outside the range 1 to [`ENGINES_MAX`].
    #[error("a cluster has {0} engines; it must have between 1 and {ENGINES_MAX}")]
    EngineCount(usize),
    /// Two engines cut prompts into blocks of different sizes, so block hashes do not compare.
    #[error("{engine} has blocks of {size} tokens and engine 0 has blocks of {first}; all engines need one block size")]
    BlockSizes {
        /// Engine with another block size than engine 0.
        engine: EngineId,
        /// Block size of the engine, tokens.
        size: u32,
        /// Block size of engine 0, tokens.
        first: u32,
    },
    /// No engine takes new requests, or none takes over prefilled requests.
    #[error("no engine {missing}; give at least one engine the role {role} or 'both'", role = quoted(role))]
    Roles {
        /// Work without an engine to do the work.
        missing: &'static str,
        /// Name of the missing role.
        role: &'static str,
    },
    /// The limits of an engine are out of range.
    #[error("{engine}: {error}")]
    Core {
        /// Engine with the invalid limits.
        engine: EngineId,
        /// First fault found in the limits.
        error: ConfigError,
    },
    /// Unknown router, or a parameter unknown to the router.
    #[error(transparent)]
    Router(#[from] RegistryError),
}

#[doc = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/contract.md"))]
pub struct Cluster {
    engines: Vec<Engine>,
    placements: Placements,
    /// Requests between two engines: taken from one, not yet placed on another.
    moving: VecDeque<Departure>,
    digest: ClusterDigest,
    now_ns: u64,
    deadlines: Deadlines,
    closing: Closing,
    /// Drained engines with requests left.
    emptying: BTreeSet<EngineId>,
    /// The end of draining has been reported.
    drained: bool,
    /// `true` if the request being submitted has the id of a present request.
    duplicate: bool,
    /// Blocks forgotten by the flush under way.
    flushed: u32,
    /// Actions of one core; empty between calls, kept to reuse the memory.
    actions: Vec<Action>,
    /// Rank of each engine for the request that is being placed; kept to reuse the memory.
    ranks: Vec<u8>,
    /// Steps in flight on each engine; empty unless the router learns from steps.
    watches: Vec<StepWatch>,
}

/// Acceptance of new requests by the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closing {
    Open,
    /// The cluster refuses new requests; present requests run to the end.
    Draining,
    /// The cluster refuses new requests; present requests have been ended.
    ShutDown,
}

/// A request between two engines.
struct Departure {
    request: Box<Request>,
    from: EngineId,
    why: Move,
    /// What the request brings along.
    brings: Brings,
}

impl Cluster {
    /// Creates a cluster of engines with empty caches and no workers yet.
    ///
    /// # Errors
    /// Fails if there are no engines or too many, block sizes differ, roles leave a phase to nobody, a limit is out of range, or the
    /// router is unknown.
    pub fn new(config: &ClusterConfig) -> Result<Self, ClusterError> {
        config.validate()?;
        let mut engines = Vec::with_capacity(config.engines.len());
        for (at, engine) in config.engines.iter().enumerate() {
            let fail = |error| ClusterError::Core { engine: EngineId(at as u32), error };
            engines.push(Engine::new(Core::new(engine.core.clone()).map_err(fail)?, engine.role, engine.kv_class));
        }
        let router = router::make(&config.router, config.router_context())?;
        // With one engine nobody asks the router.
        let watches = vec![StepWatch::default(); if router.learns() && engines.len() > 1 { engines.len() } else { 0 }];
        Ok(Self {
            placements: Placements::new(router, engines.len()),
            deadlines: Deadlines::new(engines.len()),
            engines,
            moving: VecDeque::new(),
            digest: ClusterDigest::default(),
            now_ns: 0,
            closing: Closing::Open,
            emptying: BTreeSet::new(),
            drained: false,
            duplicate: false,
            flushed: 0,
            actions: Vec::new(),
            ranks: Vec::new(),
            watches,
        })
    }

    /// Returns the memory of the requests that ended in the last input, to be freed on another thread. Left here, later inputs free
    /// it.
    pub fn take_remains(&mut self) -> Remains {
        let mut remains = Remains::default();
        self.engines.iter_mut().for_each(|engine| remains.append(engine.core.take_remains()));
        remains
    }

    /// Takes in an input of time `now_ns` and appends the resulting actions to `out`.
    ///
    /// Times MUST NOT go back; an earlier time counts as the latest time seen.
    pub fn handle(&mut self, now_ns: u64, input: Input, out: &mut Vec<Output>) {
        self.now_ns = self.now_ns.max(now_ns);
        match input {
            Input::Client(event) => self.handle_client(event, out),
            Input::Engine(engine, event) => self.handle_engine(engine, event, out),
            Input::Retire(engine) => {
                self.change(engine, EngineEvent::Retired, out);
                self.note_steps(engine, out);
            }
            Input::DrainEngine(engine) => {
                self.emptying.insert(engine);
                self.change(engine, EngineEvent::Drained, out);
            }
            Input::OpenEngine(engine) => {
                self.emptying.remove(&engine);
                self.change(engine, EngineEvent::Opened, out);
            }
        }
        while let Some(departure) = self.moving.pop_front() {
            self.replace(departure, out);
        }
        self.report_empty(out);
        if self.closing != Closing::Open && self.engines.len() > 1 {
            let is_storing = self.engines.iter().any(|engine| engine.core.is_storing());
            self.report_drained(self.placements.len() == 0 && !is_storing, out);
        }
    }

    fn handle_client(&mut self, event: Event, out: &mut Vec<Output>) {
        match event {
            Event::Submit(request) => self.submit(request, out),
            Event::Abort(id) | Event::Stop(id) | Event::Fail(id) | Event::Accuse(id) | Event::Withdraw(id) => {
                // An unknown request has just ended; the first engine ignores the event.
                let engine = self.placements.get(id).map_or(EngineId(0), |placed| placed.engine);
                self.deliver(engine, event, out);
            }
            Event::FlushCache => {
                self.flushed = 0;
                self.deliver_to_all(&event, out);
                out.push(Output::Cluster(Action::Flushed { blocks: self.flushed }));
            }
            // Requests may still move from one core to another, so the cores of several engines stay open.
            Event::Drain if self.engines.len() > 1 => self.closing = Closing::Draining,
            Event::Drain => {
                self.closing = Closing::Draining;
                self.deliver_to_all(&event, out);
            }
            Event::Shutdown => {
                self.closing = Closing::ShutDown;
                self.deliver_to_all(&event, out);
            }
            event => {
                assert!(!is_from_worker(&event), "{event:?} comes from a worker: deliver it with the engine");
                self.deliver_to_all(&event, out);
            }
        }
    }

    fn handle_engine(&mut self, engine: EngineId, event: Event, out: &mut Vec<Output>) {
        assert!(engine.index() < self.engines.len(), "{engine} of {}: {event:?}", self.engines.len());
        match event {
            Event::WorkerJoined => self.change(engine, EngineEvent::Joined, out),
            Event::WorkerLost => self.change(engine, EngineEvent::Lost, out),
            Event::WorkerTaken => {
                self.deliver(engine, Event::WorkerTaken, out);
                self.change(engine, EngineEvent::Lost, out);
            }
            Event::Submit(request) if self.placements.get(request.id).is_none() => {
                out.push(Output::Placed { request: request.id, engine });
                return self.place(engine, 0, Brings::default(), request, out);
            }
            Event::Submit(request) => return self.submit(request, out),
            Event::Fail(request) if self.is_tried_elsewhere(engine, request) => {
                self.deliver(engine, Event::Accuse(request), out);
            }
            event => {
                let before = self.engines[engine.index()].state;
                let step = match &event {
                    Event::StepFinished(result) => Some(result.step),
                    _ => None,
                };
                let step_ns = step.and_then(|_| self.engines[engine.index()].core.step_time_ns(self.now_ns));
                let is_slow = step_ns.is_some_and(|step_ns| self.is_slow(engine, step_ns));
                let work = step.and_then(|step| self.watches.get_mut(engine.index())?.end(step));
                self.deliver(engine, event, out);
                if let Some(step_ns) = step_ns {
                    self.note_success(engine, step_ns, is_slow, out);
                    self.note_work(engine, work, step_ns);
                }
                if before == EngineState::Draining && self.engines[engine.index()].state == EngineState::Closed {
                    // The worker answered nonsense and is to be reset.
                    self.withdraw_all(engine, Move::Lost, out);
                }
            }
        }
        self.note_steps(engine, out);
    }

    /// Reports the work of a step that was answered to the router, if it counts.
    fn note_work(&mut self, engine: EngineId, work: Option<StepWork>, step_ns: u64) {
        if let Some(work) = work
            && self.engines[engine.index()].core.failed_in_a_row().0 == 0
        {
            self.placements.router().stepped(engine.index(), &work, step_ns);
        }
    }

    /// Changes the state of an engine, and reports the change to the core of the engine and to the router.
    fn change(&mut self, engine: EngineId, event: EngineEvent, out: &mut Vec<Output>) {
        let before = self.engines[engine.index()].state;
        let after = before.after(event);
        self.engines[engine.index()].state = after;
        if matches!(event, EngineEvent::Lost | EngineEvent::Retired) {
            self.placements.lost(engine);
        }
        let had_worker = matches!(before, EngineState::Up | EngineState::Draining);
        match event {
            EngineEvent::Joined => self.deliver(engine, Event::WorkerJoined, out),
            EngineEvent::Lost => self.deliver(engine, Event::WorkerLost, out),
            EngineEvent::Retired if had_worker => self.deliver(engine, Event::WorkerLost, out),
            EngineEvent::Retired | EngineEvent::Drained | EngineEvent::Opened => {}
        }
        match after {
            EngineState::Closed | EngineState::Gone => self.withdraw_all(engine, Move::Lost, out),
            EngineState::Draining => self.withdraw_all(engine, Move::Drained, out),
            EngineState::Absent | EngineState::Up => {}
        }
    }

    fn submit(&mut self, request: Box<Request>, out: &mut Vec<Output>) {
        if let Some(placed) = self.placements.get(request.id) {
            // The core that has the request refuses the second of the same id.
            let engine = placed.engine;
            self.duplicate = true;
            self.deliver(engine, Event::Submit(request), out);
            self.duplicate = false;
            return;
        }
        if self.closing != Closing::Open && self.engines.len() > 1 {
            return self.refuse(request.id, Refusal::Draining, out);
        }
        match self.pick(&request, Role::Decode, &Witnesses::default(), &[]) {
            Some((engine, known_tokens)) => {
                out.push(Output::Placed { request: request.id, engine });
                self.place(engine, known_tokens, Brings::default(), request, out);
            }
            // A core that waits for its worker takes requests; with no engine in service nobody will run them.
            None => self.refuse(request.id, Refusal::NoEngine, out),
        }
    }

    fn refuse(&mut self, request: RequestId, refusal: Refusal, out: &mut Vec<Output>) {
        self.digest.decide(decision::REFUSE, request.0, refusal.number());
        out.push(Output::Cluster(Action::Refuse { request, refusal }));
    }

    fn deliver_to_all(&mut self, event: &Event, out: &mut Vec<Output>) {
        for at in 0..self.engines.len() {
            self.deliver(EngineId(at as u32), event.clone(), out);
        }
    }

    /// Delivers an event to the core of an engine, and turns the resulting actions into outputs.
    fn deliver(&mut self, engine: EngineId, event: Event, out: &mut Vec<Output>) {
        let mut actions = std::mem::take(&mut self.actions);
        let core = &mut self.engines[engine.index()].core;
        core.handle(self.now_ns, event, &mut actions);
        self.deadlines.set(engine, core.next_deadline_ns());
        self.absorb_all(engine, &mut actions, out);
        self.actions = actions;
    }

    fn absorb_all(&mut self, engine: EngineId, actions: &mut Vec<Action>, out: &mut Vec<Output>) {
        for action in actions.drain(..) {
            self.absorb(engine, action, out);
        }
    }

    /// Updates the placements after an action of a core, and passes the action on unless only the cluster is concerned.
    fn absorb(&mut self, engine: EngineId, action: Action, out: &mut Vec<Output>) {
        match action {
            Action::Token { request, token } => {
                let splits = self.engines[engine.index()].role == Role::Prefill;
                self.placements.count_token(engine, request, token, splits);
                out.push(Output::Engine(engine, action));
            }
            Action::Finish { request, reason, usage } => self.finish(engine, request, reason, usage, out),
            Action::Refuse { request, .. } => {
                if !self.duplicate {
                    self.placements.leave_refused(request);
                }
                out.push(Output::Engine(engine, action));
            }
            Action::Withdrawn(request) => {
                let placed = self.placements.leave(request.id, request.generated.len() as u32);
                let why = match self.engines[engine.index()].state {
                    EngineState::Draining => Move::Drained,
                    EngineState::Closed | EngineState::Gone => Move::Lost,
                    EngineState::Absent | EngineState::Up if request.worker_failures > 0 => Move::Failed,
                    EngineState::Absent | EngineState::Up if self.is_suspected(engine) => Move::Suspected,
                    EngineState::Absent | EngineState::Up => Move::Lost,
                };
                let brings = Brings {
                    cached_tokens: placed.cached_tokens,
                    failed_on: self.witnesses(engine, &placed, &request),
                };
                // The tokens so far are in what the core returns; a request cut for its prefill gets its own limits back.
                let request = match placed.handover {
                    Some(handover) => handover.take_over(*request),
                    None => request,
                };
                self.moving.push_back(Departure { request, from: engine, why, brings });
            }
            Action::ResetWorker => {
                let state = &mut self.engines[engine.index()].state;
                *state = state.after(EngineEvent::Lost);
                self.placements.lost(engine);
                out.push(Output::Engine(engine, action));
            }
            Action::RunStep(ref step) => {
                if let Some(watch) = self.watches.get_mut(engine.index()) {
                    watch.begin(step);
                }
                out.push(Output::Engine(engine, action));
            }
            Action::Flushed { blocks } => self.flushed += blocks,
            Action::Drained => {
                self.engines[engine.index()].drained = true;
                self.report_drained(self.engines.iter().all(|engine| engine.drained), out);
            }
            Action::PromptValued { .. }
            | Action::Transfer(_)
            | Action::Cancel { .. }
            | Action::Lookup(_)
            | Action::Adopt { .. }
            | Action::Release { .. } => out.push(Output::Engine(engine, action)),
        }
    }

    fn finish(
        &mut self,
        engine: EngineId,
        request: RequestId,
        reason: FinishReason,
        usage: Usage,
        out: &mut Vec<Output>,
    ) {
        let mut placed = self.placements.leave(request, usage.completion_tokens);
        let cached_tokens = Some(placed.cached_tokens.unwrap_or(usage.cached_tokens));
        if let Some(handover) = placed.handover.take_if(|handover| handover.continues_after(reason)) {
            // The first token says nothing about engines that decode.
            let mut failed_on = placed.failed_on;
            failed_on.retain(|other| self.engines[other.index()].role == Role::Decode);
            let (request, brings) = (handover.into_request(), Brings { cached_tokens, failed_on });
            return self.moving.push_back(Departure { request, from: engine, why: Move::HandedOver, brings });
        }
        let usage = placed.usage(usage);
        if matches!(reason, FinishReason::Stop | FinishReason::Length) {
            self.placements.router().answered(usage.completion_tokens);
        }
        out.push(Output::Engine(engine, Action::Finish { request, reason, usage }));
    }

    /// Reports, once, an empty cluster after a drain or shutdown.
    fn report_drained(&mut self, is_empty: bool, out: &mut Vec<Output>) {
        if is_empty && !self.drained {
            self.drained = true;
            out.push(Output::Cluster(Action::Drained));
        }
    }

    fn report_empty(&mut self, out: &mut Vec<Output>) {
        let Self { emptying, placements, .. } = self;
        emptying.retain(|id| {
            let is_empty = placements.load(*id).requests == 0;
            out.extend(is_empty.then_some(Output::Emptied(*id)));
            !is_empty
        });
    }
}

impl Cluster {
    /// Returns the number of engines.
    pub fn n_engines(&self) -> usize {
        self.engines.len()
    }

    /// Returns the core of an engine.
    pub fn core(&self, engine: EngineId) -> &Core {
        &self.engines[engine.index()].core
    }

    /// Returns `true` if new requests go to an engine of this role, whatever the engine's state.
    pub fn prefills(&self, engine: EngineId) -> bool {
        self.engines[engine.index()].role != Role::Decode
    }

    /// Returns the expected time to compute the tokens of an engine's requests again on another engine, behind the prompts there, nanoseconds. `None`
    /// without requests, or if no other engine takes them over.
    pub fn again_ns(&self, engine: EngineId) -> Option<u64> {
        let from = &self.engines[engine.index()];
        let tokens = self.placements.load(engine).tokens;
        let takes = |at: usize, to: &Engine| {
            at != engine.index()
                && to.kv_class == from.kv_class
                && to.role != Role::Decode
                && to.state == EngineState::Up
        };
        let others = self.engines.iter().enumerate().filter(|(at, to)| takes(*at, to));
        let time_ns = |(at, to): (usize, &Engine)| {
            let tokens = tokens + self.placements.load(EngineId(at as u32)).prefill_tokens;
            let measured = to.core.prefill_ns(tokens).or_else(|| from.core.prefill_ns(tokens));
            measured.unwrap_or_else(|| tokens.saturating_mul(to.core.config().recompute_token_ns))
        };
        (tokens > 0).then(|| others.map(time_ns).min()).flatten()
    }

    /// Returns the state of an engine at this moment.
    pub fn status(&self, engine: EngineId) -> EngineStatus {
        let Engine { core, role, kv_class, state, breaker, .. } = &self.engines[engine.index()];
        let load = *self.placements.load(engine);
        EngineStatus {
            role: *role,
            kv_class: *kv_class,
            state: *state,
            health: breaker.state(),
            load,
            stats: core.stats(),
            digest: core.digest(),
        }
    }

    /// Returns the load of an engine.
    pub fn load(&self, engine: EngineId) -> &Load {
        self.placements.load(engine)
    }

    /// Returns the number of unfinished requests.
    pub fn requests(&self) -> usize {
        self.placements.len()
    }

    /// Returns the engine of a request, or `None` after the end of the request.
    pub fn engine_of(&self, request: RequestId) -> Option<EngineId> {
        self.placements.get(request).map(|placed| placed.engine)
    }

    /// Returns the digest of all decisions: equal for equal inputs and times, on every driver. A cluster of one engine has the
    /// digest of the engine's core.
    pub fn digest(&self) -> u64 {
        self.digest.with(self.engines.iter().map(|engine| engine.core.digest()))
    }

    /// Returns the earliest deadline of a request or a copy: the driver delivers [`Event::Tick`] then, unless another input comes first.
    pub fn next_deadline_ns(&self) -> Option<u64> {
        self.deadlines.first_ns()
    }

    /// Leaves out what nobody in a simulation asks for ([`Core::simulate`]). MUST be called before the first input.
    pub fn simulate(&mut self) {
        self.engines.iter_mut().for_each(|engine| engine.core.simulate());
    }

    /// Notes every change of the engines' caches, from now on, for [`Self::take_cache_events`] ([`Core::listen_to_cache`]). MUST be called before the
    /// first input.
    pub fn listen_to_caches(&mut self) {
        self.engines.iter_mut().for_each(|engine| engine.core.listen_to_cache());
    }

    /// Returns the changes of an engine's cache since the last call, in order.
    pub fn take_cache_events(&mut self, engine: EngineId) -> Vec<CacheEvent> {
        self.engines[engine.index()].core.take_cache_events()
    }

    /// Notes every preemption on the engines, from now on, for [`Self::take_preempted`] ([`Core::note_preempted`]).
    pub fn note_preempted(&mut self) {
        self.engines.iter_mut().for_each(|engine| engine.core.note_preempted());
    }

    /// Returns the preemptions since the last call, engine by engine.
    pub fn take_preempted(&mut self) -> impl Iterator<Item = Preempted> + '_ {
        self.engines.iter_mut().flat_map(|engine| engine.core.take_preempted())
    }

    /// Notes the reasons behind admissions and evictions on the engines, from now on, for [`Self::take_reasons`] ([`Core::note_reasons`]).
    pub fn note_reasons(&mut self) {
        self.engines.iter_mut().for_each(|engine| engine.core.note_reasons());
    }

    /// Returns the reasons on an engine since the last call.
    pub fn take_reasons(&mut self, engine: EngineId) -> Reasons {
        self.engines[engine.index()].core.take_reasons()
    }

    /// Returns the memory of the last step's answer of an engine, empty, for the next one.
    pub fn spare_result(&mut self, engine: EngineId) -> StepResult {
        self.engines[engine.index()].core.spare_result()
    }

    /// Takes the memory of a step back, so the next step needs no allocation.
    pub fn recycle(&mut self, engine: EngineId, step: Box<Step>) {
        self.engines[engine.index()].core.recycle(step);
    }

    /// Ends the step in flight on an engine and fast-forwards through the decode steps after the step in flight
    /// ([`Core::fast_forward`]).
    pub fn fast_forward(
        &mut self,
        now_ns: u64,
        engine: EngineId,
        driver: &mut dyn FastForwardDriver,
        out: &mut Vec<Output>,
    ) -> FastForwardResult {
        let mut actions = std::mem::take(&mut self.actions);
        let core = &mut self.engines[engine.index()].core;
        let first_ns = core.step_time_ns(now_ns);
        let result = core.fast_forward(now_ns, driver, &mut actions);
        self.deadlines.set(engine, core.next_deadline_ns());
        if let (Some(watch), Some(first_ns)) = (self.watches.get_mut(engine.index()), first_ns)
            && result != FastForwardResult::NotSteady
        {
            let work = watch.end_first();
            self.note_work(engine, work, first_ns);
        }
        if let FastForwardResult::Paused { tokens, .. } | FastForwardResult::Ended { tokens, .. } = result {
            self.placements.count_tokens(engine, tokens);
        }
        self.absorb_all(engine, &mut actions, out);
        self.actions = actions;
        if result != FastForwardResult::NotSteady {
            self.note_success(engine, self.engines[engine.index()].step_ns, false, out);
        }
        result
    }

    /// Panics unless every core is consistent ([`Core::check`]) and the loads are the sums over the requests.
    pub fn check(&self) {
        self.engines.iter().for_each(|engine| engine.core.check());
        let first_ns = self.engines.iter().filter_map(|engine| engine.core.next_deadline_ns()).min();
        assert_eq!(self.deadlines.first_ns(), first_ns, "a deadline of an engine is not known");
        self.placements.check();
    }
}

#[cfg(test)]
mod tests;
