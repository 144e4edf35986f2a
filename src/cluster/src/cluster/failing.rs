//! Failed steps: who is to blame, the request or the worker, if another worker can be asked.
//!
//! | what failed | then |
//! |---|---|
//! | a step of several requests | its core runs them in ever smaller groups, down to one |
//! | a step of one request, or the worker named one | it moves to another engine; the [witnesses](crate::witness) decide whether it ends |
//! | steps in a row, or steps that are far slower than elsewhere | the engine's [breaker](crate::health) opens the circuit: its requests move, and new ones go elsewhere |
//!
//! With one engine that can run the request, the core alone decides: see [`trunkline_core::WORKER_FAILURES_MAX`].

use trunkline_core::{Action, Event, FinishReason, Request, RequestId, Usage};

use super::Cluster;
use crate::digest::decision;
use crate::engine::{Engine, EngineId, EngineState};
use crate::health::{Health, HealthEvent, PAUSE_MIN_NS, SLOW_TIMES};
use crate::input::{Move, Output};
use crate::placement::{Brings, Placed};
use crate::witness::{Witness, Witnesses};

impl Cluster {
    /// Returns `true` if a step that ends now was far slower than steps elsewhere, and than computing the requests there.
    pub(super) fn is_slow(&self, id: EngineId, step_ns: u64) -> bool {
        if self.engines.len() == 1 || step_ns < PAUSE_MIN_NS {
            return false;
        }
        let kv_class = self.engines[id.index()].kv_class;
        let others = self.engines.iter().enumerate().filter(|(at, other)| {
            *at != id.index() && other.state == EngineState::Up && other.kv_class == kv_class && other.step_ns > 0
        });
        let other_ns = others.map(|(_, other)| other.step_ns).min();
        let there_ns = self.again_ns(id).zip(other_ns).map(|(again_ns, other_ns)| again_ns.max(other_ns));
        there_ns.is_some_and(|there_ns| step_ns >= there_ns.saturating_mul(SLOW_TIMES))
    }

    /// Takes note of a step of an engine that was answered, unless the answer was nonsense.
    pub(super) fn note_success(&mut self, id: EngineId, step_ns: u64, is_slow: bool, out: &mut Vec<Output>) {
        let engine = &mut self.engines[id.index()];
        if engine.core.failed_in_a_row().0 > 0 {
            return;
        }
        engine.step_ns = step_ns;
        let before = engine.breaker.state();
        if !is_slow && before == Health::Open {
            return;
        }
        let why = engine.breaker.succeed(is_slow, self.now_ns);
        let health = engine.breaker.state();
        if health != before {
            out.push(Output::Health { engine: id, health, why });
        }
        if is_slow {
            self.withdraw_all(id, Move::Suspected, out);
        }
    }

    /// Takes note of steps of an engine that failed since the last call, if any did.
    pub(super) fn note_steps(&mut self, id: EngineId, out: &mut Vec<Output>) {
        if self.engines.len() == 1 {
            return;
        }
        let (in_a_row, lost_ns) = self.engines[id.index()].core.failed_in_a_row();
        // The ski rental again, as for a worker that is absent.
        let is_costly = lost_ns >= PAUSE_MIN_NS && self.again_ns(id).is_some_and(|again_ns| lost_ns >= again_ns);
        let engine = &mut self.engines[id.index()];
        let before = engine.breaker.state();
        let Some((why, has_failed)) = engine.breaker.note(in_a_row, is_costly, self.now_ns) else { return };
        let (health, lone) = (engine.breaker.state(), engine.core.lone_failure());
        if health != before {
            out.push(Output::Health { engine: id, health, why });
        }
        if !has_failed {
            return;
        }
        if let Some(lone) = lone
            && self.is_tried_elsewhere(id, lone.request)
        {
            self.deliver(id, Event::Withdraw(lone.request), out);
        }
        if health == Health::Suspected {
            self.withdraw_all(id, Move::Suspected, out);
        }
    }

    /// Returns `true` if another engine can take a request that failed alone on this one, or has failed it before: one whose worker is there, or is
    /// being reset. For one that never had a worker nobody knows how long to wait.
    pub(super) fn is_tried_elsewhere(&self, engine: EngineId, request: RequestId) -> bool {
        let placed = self.placements.get(request).filter(|placed| placed.engine == engine);
        let has_worker = |other: &Engine| other.state == EngineState::Up || other.step_ns > 0;
        let is_other = |id: EngineId, other: &Engine| id != engine && has_worker(other);
        placed.is_some_and(|placed| placed.failed_on.has_other(engine) || self.any_takes(engine, is_other))
    }

    /// Returns `true` if the steps of an engine fail in a row.
    pub(super) fn is_suspected(&self, engine: EngineId) -> bool {
        self.engines[engine.index()].breaker.state() != Health::Open
    }

    /// Returns the witnesses against a request that leaves an engine.
    pub(super) fn witnesses(&self, engine: EngineId, placed: &Placed, request: &Request) -> Witnesses {
        let has_token = request.generated.len() as u32 > placed.generated_before;
        let mut witnesses = if has_token { Witnesses::default() } else { placed.failed_on.clone() };
        if request.worker_failures > 0 {
            let lone = self.engines[engine.index()].core.lone_failure();
            witnesses.add(engine, lone.filter(|lone| lone.request == request.id));
        }
        witnesses
    }

    /// Ends a request that failed on several workers. Their failures are explained by it.
    pub(super) fn convict(
        &mut self,
        request: RequestId,
        from: EngineId,
        brings: &Brings,
        usage: Usage,
        out: &mut Vec<Output>,
    ) {
        for Witness { engine, failures, .. } in brings.failed_on.iter() {
            let engine = &mut self.engines[engine.index()];
            engine.core.explain(*failures);
            engine.breaker.change(HealthEvent::Cleared, self.now_ns);
        }
        self.digest.decide(decision::CONVICT, request.0, u64::from(from.0));
        out.push(Output::Engine(from, Action::Finish { request, reason: FinishReason::Error, usage }));
    }
}
