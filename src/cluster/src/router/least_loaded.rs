//! Fewest tokens of unfinished requests, prompts and answers so far; ties go to fewer requests, then to the first engine.

use trunkline_core::names::spec::Param;

use super::{Incoming, LOAD_STALE, Load, Pick, Router, least};

pub(super) const PARAMS: [Param; 1] = [LOAD_STALE];

#[derive(Debug)]
pub(super) struct LeastLoaded;

impl Router for LeastLoaded {
    fn pick(&mut self, _: u64, _: &Incoming<'_>, loads: &[Load]) -> Pick {
        Pick { engine: least(loads, |_, load| (load.tokens, load.requests)), known_tokens: 0 }
    }
}
