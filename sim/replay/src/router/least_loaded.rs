//! The replica whose unfinished requests have the fewest tokens, prompts and answers so far; then the fewest requests, then the first.

use super::{Incoming, Load, Pick, Router, least};

#[derive(Debug)]
pub(super) struct LeastLoaded;

impl Router for LeastLoaded {
    fn pick(&mut self, _: u64, _: &Incoming<'_>, loads: &[Load]) -> Pick {
        Pick { replica: least(loads, |_, load| (load.tokens, load.requests)), known_tokens: 0 }
    }
}
