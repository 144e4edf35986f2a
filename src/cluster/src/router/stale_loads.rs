//! Shows a router loads that are up to a given age old.

use super::{Incoming, Load, Pick, Router};
use crate::step_work::StepWork;

/// Passes a snapshot of the loads to another router, and renews it when it has reached its greatest age. Engines that are
/// closed are never hidden: `open` is always current.
#[derive(Debug)]
pub(super) struct StaleLoads {
    router: Box<dyn Router>,
    age_max_ns: u64,
    taken_ns: Option<u64>,
    seen: Vec<Load>,
}

impl StaleLoads {
    pub(super) fn new(router: Box<dyn Router>, age_max_ms: u64) -> Self {
        Self { router, age_max_ns: age_max_ms * 1_000_000, taken_ns: None, seen: Vec::new() }
    }
}

impl Router for StaleLoads {
    fn pick(&mut self, now_ns: u64, request: &Incoming<'_>, loads: &[Load]) -> Pick {
        if self.taken_ns.is_none_or(|taken_ns| now_ns >= taken_ns + self.age_max_ns) {
            self.taken_ns = Some(now_ns);
            self.seen.clear();
            self.seen.extend_from_slice(loads);
        }
        for (seen, load) in self.seen.iter_mut().zip(loads) {
            seen.open = load.open;
        }
        self.router.pick(now_ns, request, &self.seen)
    }

    fn lost(&mut self, engine: usize) {
        self.router.lost(engine);
    }

    fn learns(&self) -> bool {
        self.router.learns()
    }

    fn stepped(&mut self, engine: usize, work: &StepWork, ns: u64) {
        self.router.stepped(engine, work, ns);
    }

    fn answered(&mut self, tokens: u32) {
        self.router.answered(tokens);
    }
}
