//! Open engines in turn.

use super::{Incoming, Load, Pick, Router};

/// Name of the router.
pub(super) const NAME: &str = "round_robin";

#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    next: usize,
}

impl Router for RoundRobin {
    fn pick(&mut self, _: u64, _: &Incoming<'_>, loads: &[Load]) -> Pick {
        let turn = (self.next..loads.len()).chain(0..self.next);
        let engine = turn.into_iter().find(|engine| loads[*engine].open).expect("an engine is open");
        self.next = (engine + 1) % loads.len();
        Pick { engine, known_tokens: 0 }
    }
}
