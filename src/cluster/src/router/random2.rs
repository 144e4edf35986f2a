//! The less loaded of two different engines drawn at random.
//!
//! Two choices balance nearly as well as a look at every engine. Many gateways with stale loads that choose this way do not all
//! send to the one engine that was idle when they last looked (Mitzenmacher, *The power of two choices in randomized load
//! balancing*, 2001).

use trunkline_core::draw::unit;
use trunkline_core::names::spec::Param;

use super::{Incoming, LOAD_STALE, Load, Pick, Router};

/// Stream of draws for routing; see [`trunkline_core::draw`].
const STREAM: u64 = 16;

pub(super) const PARAMS: [Param; 2] = [
    Param { key: "seed", about: "another seed draws other engines", default: 0, min: 0, max: u32::MAX as u64 },
    LOAD_STALE,
];

#[derive(Debug)]
pub(super) struct Random2 {
    seed: u64,
    /// Open engines, found again for each request; kept to reuse its memory.
    open: Vec<usize>,
}

impl Random2 {
    pub(super) fn new(values: &[u64]) -> Self {
        Self { seed: values[0], open: Vec::new() }
    }
}

impl Router for Random2 {
    fn pick(&mut self, _: u64, request: &Incoming<'_>, loads: &[Load]) -> Pick {
        self.open.clear();
        self.open.extend((0..loads.len()).filter(|engine| loads[*engine].open));
        let draw = |nth: u64, n: usize| {
            let drawn = (unit(STREAM, request.number, 2 * self.seed + nth) * n as f64) as usize;
            drawn.min(n - 1)
        };
        let n = self.open.len();
        let first = draw(0, n);
        // One of the others, each as likely.
        let second = if n == 1 { first } else { (first + 1 + draw(1, n - 1)) % n };
        let tokens = |at: usize| loads[self.open[at]].tokens;
        let at = if tokens(second) < tokens(first) { second } else { first };
        Pick { engine: self.open[at], known_tokens: 0 }
    }
}
