//! Witnesses: the engines on which a request failed alone since its last token.
//!
//! A request that makes every worker fail is ended, and one that met a broken worker is not. So a failure counts against a request only if it fails
//! alone on another worker, too. A worker that was calm before is a *good* witness, and two of these are enough. Others, such as one that has just
//! joined or fails now and then, say as much about themselves. Then the request ends when no engine is left to try and it failed alone as often as the
//! core of a single engine allows.

use trunkline_core::{LoneFailure, OTHER_FAILURES_MAX, WORKER_FAILURES_MAX};

use crate::engine::EngineId;

/// One engine on which a request failed alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Witness {
    pub engine: EngineId,
    /// Failed steps of the request there, alone or with others.
    pub failures: u32,
    /// Those in which it ran alone.
    lone: u32,
    /// Failed steps there that may have another cause.
    others: u32,
    is_good: bool,
}

/// The witnesses against a request, one for each engine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Witnesses(Vec<Witness>);

impl Witnesses {
    /// Adds a failure on an engine. Without details, the engine is no good witness.
    pub fn add(&mut self, engine: EngineId, failure: Option<LoneFailure>) {
        let at = self.0.iter().position(|witness| witness.engine == engine);
        let before = at.map(|at| self.0.remove(at));
        let (failures, lone) = before.map_or((0, 0), |before| (before.failures, before.lone));
        let others = failure.map_or(1, |failure| failure.others.saturating_sub(failures));
        let is_good = failure.is_some_and(|failure| failure.was_calm) && others == 0;
        let failures = failures + failure.map_or(1, |failure| failure.failures);
        self.0.push(Witness { engine, failures, lone: lone + 1, others, is_good });
    }

    /// Forgets those that are not to be kept.
    pub fn retain(&mut self, keeps: impl Fn(EngineId) -> bool) {
        self.0.retain(|witness| keeps(witness.engine));
    }

    pub fn contains(&self, engine: EngineId) -> bool {
        self.0.iter().any(|witness| witness.engine == engine)
    }

    /// Returns `true` if an engine other than this one is among them.
    pub fn has_other(&self, engine: EngineId) -> bool {
        self.0.iter().any(|witness| witness.engine != engine)
    }

    /// Returns `true` if the request is the cause, whichever engines are left to try.
    pub fn convict(&self) -> bool {
        self.0.iter().filter(|witness| witness.is_good).count() >= 2
    }

    /// Returns `true` if the request is taken to be the cause when no other engine is left to try.
    pub fn suffice(&self) -> bool {
        let sum = |of: fn(&Witness) -> u32| self.0.iter().map(of).fold(0, u32::saturating_add);
        let limit = WORKER_FAILURES_MAX + sum(|witness| witness.others).min(OTHER_FAILURES_MAX);
        self.0.len() >= 2 && sum(|witness| witness.lone) >= limit
    }

    pub fn iter(&self) -> impl Iterator<Item = &Witness> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use trunkline_core::RequestId;

    use super::*;

    fn lone(others: u32, was_calm: bool) -> Option<LoneFailure> {
        Some(LoneFailure { request: RequestId(1), failures: 2, others, was_calm })
    }

    #[test]
    fn two_good_witnesses_convict_and_the_same_engine_is_one() {
        let mut witnesses = Witnesses::default();
        let mut says = |engine, was_calm, others| {
            witnesses.add(EngineId(engine), lone(others, was_calm));
            witnesses.convict()
        };
        assert!(!says(0, true, 0));
        assert!(!says(0, true, 2), "its own failures before are no others");
        assert!(!says(1, false, 0), "a worker that has just joined");
        assert!(!says(2, true, 1), "a worker that fails without the request");
        assert!(says(3, true, 0));
    }

    #[test]
    fn others_have_to_fail_as_often_as_a_single_engine_would() {
        for (others, limit) in [(0, 3), (1, 5), (2, 6), (9, 6)] {
            let mut witnesses = Witnesses::default();
            for n in 1..=limit {
                // With the failures of the request there before.
                witnesses.add(EngineId(n % 2), lone(others + 2 * ((n - 1) / 2), false));
                assert_eq!(witnesses.suffice(), n == limit, "{others} others, {n} failures");
            }
        }
        let mut witnesses = Witnesses::default();
        (0..9).for_each(|_| witnesses.add(EngineId(0), lone(0, true)));
        assert!(!witnesses.suffice() && !witnesses.has_other(EngineId(0)), "one worker is never enough");
        witnesses.add(EngineId(1), None);
        assert!(witnesses.suffice() && witnesses.has_other(EngineId(0)));
        witnesses.retain(|engine| engine == EngineId(1));
        assert!(witnesses.contains(EngineId(1)) && !witnesses.contains(EngineId(0)));
    }
}
