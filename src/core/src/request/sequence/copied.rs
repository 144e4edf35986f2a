//! Runs of tokens of a sequence, copied from other prefixes and not computed.

use super::Sequence;
use crate::blocks::prefix::CachedRun;
use crate::names::ids::BlockHandle;

/// The copied runs of a sequence with KV.
#[derive(Debug)]
pub(crate) struct Copied {
    /// First position of each run and the one behind it, ascending; neighbours are one run.
    runs: Vec<(u32, u32)>,
    /// First position whose KV is not that of the sequence's own tokens; `u32::MAX` for none.
    exact_until: u32,
    /// Leading blocks of such KV alone.
    exact_blocks: u32,
    /// Blocks that the runs were copied from, each with all before it; kept if steps in flight may still have been computing them.
    pub sources: Vec<BlockHandle>,
}

impl Copied {
    /// Takes note of runs in blocks of `block_size` tokens.
    pub fn new(found: &[CachedRun], block_size: u32) -> Self {
        let mut runs: Vec<(u32, u32)> = Vec::with_capacity(found.len());
        for run in found.iter().filter(|run| run.len > 0) {
            match runs.last_mut() {
                Some((_, end)) if *end == run.at => *end = run.end(),
                _ => runs.push((run.at, run.end())),
            }
        }
        let exact_until = found.iter().find(|run| !run.is_exact).map_or(u32::MAX, |run| run.at);
        Self { runs, exact_until, exact_blocks: exact_until / block_size, sources: Vec::new() }
    }

    /// Returns the number of tokens copied at a position and behind, up to the next one to compute.
    pub fn at(&self, position: u32) -> u32 {
        self.runs.iter().find(|(begin, _)| *begin == position).map_or(0, |(begin, end)| end - begin)
    }

    /// Returns the position of the next copied token at or behind a position; `u32::MAX` for none.
    pub fn next(&self, position: u32) -> u32 {
        self.runs.iter().find(|(begin, _)| *begin >= position).map_or(u32::MAX, |(begin, _)| *begin)
    }

    /// Returns the number of leading blocks with the KV of the sequence's own tokens: no others may be published.
    pub fn exact_blocks(&self) -> u32 {
        self.exact_blocks
    }

    /// Returns the first position whose KV is not that of the sequence's own tokens; `u32::MAX` for none.
    pub fn exact_until(&self) -> u32 {
        self.exact_until
    }

    /// Forgets the runs after the first `computed` tokens. Returns `false` if nothing copied is left.
    pub fn cut(&mut self, computed: u32) -> bool {
        self.runs.retain(|(begin, _)| *begin < computed);
        if computed <= self.exact_until {
            (self.exact_until, self.exact_blocks) = (u32::MAX, u32::MAX);
        }
        !self.runs.is_empty() && self.exact_until < u32::MAX
    }
}

impl Sequence {
    /// Returns how many of the first `tokens` tokens have, or will have, the KV that any sequence with these tokens has: no copied ones, and none
    /// computed behind these.
    pub fn exact(&self, tokens: u32) -> u32 {
        self.cold.copied.as_ref().map_or(tokens, |copied| tokens.min(copied.exact_until()))
    }

    /// Forgets copied runs after the tokens with KV: they are computed.
    pub fn cut_copied(&mut self) {
        let computed = self.computed;
        self.cold.copied.take_if(|copied| !copied.cut(computed));
    }

    /// Returns the number of tokens copied next: the next step skips them.
    pub fn next_copied(&self) -> u32 {
        self.cold.copied.as_ref().map_or(0, |copied| copied.at(self.planned()))
    }

    /// Returns the number of tokens that the next step can run, at most: up to the next copied run.
    pub fn next_uncopied(&self) -> u32 {
        let (skipped, unplanned) = (self.next_copied(), self.unplanned());
        let begin = self.planned() + skipped;
        let next = self.cold.copied.as_ref().map_or(u32::MAX, |copied| copied.next(begin));
        (unplanned - skipped).min(next - begin)
    }

    /// Notes that the step being made skips copied tokens.
    pub fn skip(&mut self, n_tokens: u32) {
        self.ahead.tokens += n_tokens;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_skipped_at_once_and_blocks_before_the_first_inexact_token_are_exact() {
        let run = |at, len, is_exact| CachedRun { at, len, is_exact, ..CachedRun::default() };
        let mut copied = Copied::new(&[run(8, 3, true), run(11, 20, false), run(40, 8, false)], 4);
        assert_eq!([8, 9, 11, 40].map(|at| copied.at(at)), [23, 0, 0, 8]);
        assert_eq!([0, 8, 9, 31, 40, 41].map(|at| copied.next(at)), [8, 8, 40, 40, 40, u32::MAX]);
        assert_eq!((copied.exact_until(), copied.exact_blocks()), (11, 2));
        assert!(copied.cut(33));
        assert_eq!((copied.at(40), copied.exact_until()), (0, 11));
        assert!(!copied.cut(8));
        assert_eq!((copied.at(8), copied.exact_until()), (0, u32::MAX));
    }
}
