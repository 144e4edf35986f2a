//! The less loaded of two different replicas drawn at random.
//!
//! Two choices are nearly as good as all, and many gateways that do so do not all run to the one replica that was idle when they last
//! looked (Mitzenmacher, *The power of two choices in randomized load balancing*, 2001).

use trunkline_core::spec::Param;

use super::{Incoming, Load, Pick, Router};
use trunkline_sim_workload::draw::{Purpose, unit};

pub(super) const PARAMS: [Param; 1] =
    [Param { key: "seed", about: "another seed draws other replicas", default: 0, min: 0, max: u32::MAX as u64 }];

#[derive(Debug)]
pub(super) struct Random2 {
    seed: u64,
    /// Open replicas, made anew for each request; kept for its memory.
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
        self.open.extend((0..loads.len()).filter(|replica| loads[*replica].open));
        let draw = |nth: u64, n: usize| {
            let drawn = (unit(Purpose::Route, request.number, 2 * self.seed + nth) * n as f64) as usize;
            drawn.min(n - 1)
        };
        let n = self.open.len();
        let first = draw(0, n);
        // One of the others, each as likely.
        let second = if n == 1 { first } else { (first + 1 + draw(1, n - 1)) % n };
        let tokens = |at: usize| loads[self.open[at]].tokens;
        let at = if tokens(second) < tokens(first) { second } else { first };
        Pick { replica: self.open[at], known_tokens: 0 }
    }
}
