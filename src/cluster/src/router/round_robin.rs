//! Open engines in turn.

use std::collections::VecDeque;

use super::{Incoming, Load, Pick, Router};

/// Name of the router.
pub(super) const NAME: &str = "round_robin";

/// Engines in the order of their last turns, the one whose turn is longest ago first. With roles, and where engines fail, only some are open for a
/// request: a place in a circle would start over with each other sort of request.
#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    turns: VecDeque<u32>,
}

impl Router for RoundRobin {
    fn pick(&mut self, _: u64, _: &Incoming<'_>, loads: &[Load]) -> Pick {
        self.turns.extend(self.turns.len() as u32..loads.len() as u32);
        let at = self.turns.iter().position(|engine| loads[*engine as usize].open).expect("an engine is open");
        let engine = self.turns.remove(at).expect("it was found");
        self.turns.push_back(engine);
        Pick { engine: engine as usize, known_tokens: 0 }
    }
}
