//! The choice of an engine for a request, and the way from one engine to another.

use trunkline_core::{Action, Event, FinishReason, Request, RequestId, Usage};

use super::{Closing, Cluster, Departure};
use crate::digest::decision;
use crate::engine::{Engine, EngineId, EngineState, Role};
use crate::handover::HandOver;
use crate::health::Health;
use crate::input::{Move, Output};
use crate::placement::Brings;
use crate::witness::Witnesses;

/// Rank of an engine that does not take the request.
const UNFIT: u8 = u8::MAX;
/// Added to the rank of an engine without its worker.
const ABSENT: u8 = 1;
/// Added to the rank of an engine whose steps fail.
const SUSPECTED: u8 = 2;
/// Added to the rank of an engine on which the request failed alone.
const FAILED: u8 = 4;

impl Cluster {
    /// Chooses an engine for a request and returns the choice with the prompt tokens believed cached there. Engines of another KV class, of the role
    /// `unfit`, and those that refused the request, are left out; the others are ranked. A request with its prompt on a prefill engine (`unfit`) waits
    /// for no decode engine, nor tries a bad one: it can go on where it is.
    pub(super) fn pick(
        &mut self,
        request: &Request,
        unfit: Role,
        failed_on: &Witnesses,
        refused: &[EngineId],
    ) -> Option<(EngineId, u32)> {
        if let [engine] = &self.engines[..] {
            let open = !matches!(engine.state, EngineState::Closed | EngineState::Gone) && refused.is_empty();
            let open = open && engine.kv_class == request.kv_class;
            return open.then_some((EngineId(0), 0));
        }
        let mut ranks = std::mem::take(&mut self.ranks);
        ranks.clear();
        for at in 0..self.engines.len() {
            let id = EngineId(at as u32);
            self.engines[at].breaker.advance(self.now_ns);
            let engine = &self.engines[at];
            let is_fit = engine.role != unfit && engine.kv_class == request.kv_class && !refused.contains(&id);
            ranks.push(if is_fit { self.rank(id, request, failed_on) } else { UNFIT });
        }
        let worst = if unfit == Role::Prefill { 0 } else { UNFIT - 1 };
        let best = ranks.iter().copied().min().filter(|rank| *rank <= worst);
        let pick = best.and_then(|best| self.placements.pick(self.now_ns, request, |id| ranks[id.index()] == best));
        self.ranks = ranks;
        pick.map(|pick| (EngineId(pick.engine as u32), pick.known_tokens))
    }

    /// Ranks an engine for a request: the lowest rank takes it. Engines that are up go before engines expected to come up, these before engines
    /// whose steps fail, and last are those on which the request failed alone. A probe is a new request.
    fn rank(&self, id: EngineId, request: &Request, failed_on: &Witnesses) -> u8 {
        let engine = &self.engines[id.index()];
        let absent = match engine.state {
            EngineState::Up => 0,
            EngineState::Absent => ABSENT,
            EngineState::Draining | EngineState::Closed | EngineState::Gone => return UNFIT,
        };
        let is_clean = || !request.is_accepted && (request.worker_failures, request.suspicion) == (0, 0);
        let takes = match engine.breaker.state() {
            Health::Open => true,
            Health::Suspected => false,
            Health::Probing => self.placements.load(id).requests == 0 && is_clean(),
        };
        absent + if takes { 0 } else { SUSPECTED } + if failed_on.contains(id) { FAILED } else { 0 }
    }

    /// Submits a request to an engine, with what it brings along from others.
    pub(super) fn place(
        &mut self,
        engine: EngineId,
        known_tokens: u32,
        brings: Brings,
        mut request: Box<Request>,
        out: &mut Vec<Output>,
    ) {
        let handover = HandOver::split(self.engines[engine.index()].role, &mut request);
        self.placements.place(&request, engine, known_tokens, brings, handover);
        self.deliver(engine, Event::Submit(request), out);
    }

    /// Lets a request that no engine takes over decode on its prefill engine, where the prompt is cached.
    fn stay(&mut self, engine: EngineId, brings: Brings, request: Box<Request>, out: &mut Vec<Output>) {
        let known_tokens = (request.prompt.len() as u32).saturating_sub(1);
        self.placements.place(&request, engine, known_tokens, brings, None);
        self.deliver(engine, Event::Submit(request), out);
    }

    /// Takes back the requests of an engine that can run elsewhere: all requests, or only the waiting requests of a draining engine.
    pub(super) fn withdraw_all(&mut self, engine: EngineId, why: Move, out: &mut Vec<Output>) {
        if !self.any_takes(engine, |_, other| why != Move::Suspected || other.breaker.state() == Health::Open) {
            // There is nowhere to go; the worker may come back after all.
            return;
        }
        for request in self.placements.at(engine) {
            if why != Move::Drained || self.engines[engine.index()].core.is_waiting(request) {
                self.deliver(engine, Event::Withdraw(request), out);
            }
        }
    }

    /// Returns `true` if one of the engines that take requests of an engine without its worker is as wanted.
    pub(super) fn any_takes(&self, engine: EngineId, is_wanted: impl Fn(EngineId, &Engine) -> bool) -> bool {
        let kv_class = self.engines[engine.index()].kv_class;
        let takes = |other: &Engine| {
            other.kv_class == kv_class
                && other.role != Role::Decode
                && matches!(other.state, EngineState::Up | EngineState::Absent)
        };
        let others = self.engines.iter().enumerate();
        others.filter(|(_, other)| takes(other)).any(|(at, other)| is_wanted(EngineId(at as u32), other))
    }

    /// Places a request taken from one engine on another; an engine that refuses the request is followed by the next. If no engine takes
    /// the request, it ends with an error, not with a refusal: the client knows of the acceptance, and perhaps has tokens. A request that failed
    /// alone ends if the witnesses say so, and may come back.
    pub(super) fn replace(&mut self, departure: Departure, out: &mut Vec<Output>) {
        let Departure { mut request, from, why, brings } = departure;
        // A request that lost its worker does not pay for the queue of another.
        request.is_accepted = matches!(why, Move::Lost | Move::Failed | Move::Suspected);
        let (id, usage) = (request.id, usage_so_far(&request, brings.cached_tokens));
        if self.closing == Closing::ShutDown {
            let reason = FinishReason::Abort;
            return out.push(Output::Cluster(Action::Finish { request: id, reason, usage }));
        }
        if brings.failed_on.convict() {
            return self.convict(id, from, &brings, usage, out);
        }
        let unfit = if why == Move::HandedOver { Role::Prefill } else { Role::Decode };
        let mut refused = Vec::new();
        while let Some((to, known_tokens)) = self.pick(&request, unfit, &brings.failed_on, &refused) {
            if brings.failed_on.contains(to) && brings.failed_on.suffice() {
                return self.convict(id, from, &brings, usage, out);
            }
            let mut moved = request.clone();
            if to != from || brings.failed_on.has_other(from) {
                // A core ends a request that fails alone too often with itself. With several the witnesses count.
                let failures = std::mem::take(&mut moved.worker_failures);
                moved.suspicion = moved.suspicion.saturating_add(failures);
            }
            let first = out.len();
            self.place(to, known_tokens, brings.clone(), moved, out);
            if take_refusal(id, first, out) {
                refused.push(to);
                continue;
            }
            self.digest.decide(decision::MOVE, id.0, u64::from(to.0));
            if to != from {
                out.insert(first, Output::Moved { request: id, from, to, why });
            }
            return;
        }
        if why == Move::HandedOver {
            let first = out.len();
            self.stay(from, brings, request, out);
            if !take_refusal(id, first, out) {
                return self.digest.decide(decision::MOVE, id.0, u64::from(from.0));
            }
        }
        self.digest.decide(decision::GIVE_UP, id.0, 0);
        out.push(Output::Cluster(Action::Finish { request: id, reason: FinishReason::Error, usage }));
    }
}

/// Removes the refusal of a request from the outputs after `first`. Returns `true` if there was one.
fn take_refusal(id: RequestId, first: usize, out: &mut Vec<Output>) -> bool {
    let is_refusal =
        |output: &Output| matches!(output, Output::Engine(_, Action::Refuse { request, .. }) if *request == id);
    let at = out[first..].iter().position(is_refusal);
    at.is_some_and(|at| {
        out.remove(first + at);
        true
    })
}

/// Returns the usage of a request between two engines.
fn usage_so_far(request: &Request, cached_tokens: Option<u32>) -> Usage {
    Usage {
        prompt_tokens: request.prompt.len() as u32,
        cached_tokens: cached_tokens.unwrap_or(0),
        completion_tokens: request.generated.len() as u32,
        ..Usage::default()
    }
}
