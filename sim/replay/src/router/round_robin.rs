//! Replicas in turn, those left out that are not open.

use super::{Incoming, Load, Pick, Router};

#[derive(Debug, Default)]
pub(super) struct RoundRobin {
    next: usize,
}

impl Router for RoundRobin {
    fn pick(&mut self, _: u64, _: &Incoming<'_>, loads: &[Load]) -> Pick {
        let turn = (self.next..loads.len()).chain(0..self.next);
        let replica = turn.into_iter().find(|replica| loads[*replica].open).expect("a replica is open");
        self.next = (replica + 1) % loads.len();
        Pick { replica, known_tokens: 0 }
    }
}
