//! Reuse of cached text that is not a prefix, by copies within the device.
//!
//! After its prefix hit, a prompt may have runs of tokens cached at other places, as a document after another question. Their KV is
//! copied into private blocks of the request. The step of the admission makes all copies before it computes anything, so the
//! sources are held until this step ends, and no longer. The prompt then runs part by part: each copied run is skipped.
//!
//! The KV of a run was computed after other tokens, so what is copied, and all that is computed after it, is not what the prompt's tokens stand
//! for: no such block is published, merged, or copied to a tier ([`Copied::exact_blocks`]). The beginning of a block that continues the
//! prefix hit is an exception.
//!
//! Where several tenants share a cache, runs are of whole blocks ([`RunRule::whole_blocks`]): copies, and the time of a request, show whether another
//! tenant has a block of the prompt, as a prefix hit does, and nothing finer.

use std::cmp::Reverse;
use std::collections::VecDeque;

use trunkline_port::CellCopy;

use super::Kv;
use crate::blocks::prefix::CachedRun;
use crate::cache::tree::RunRule;
use crate::config::Config;
use crate::journal::Journal;
use crate::journal::digest::Decision;
use crate::names::ids::BlockHandle;
use crate::request::Reuse;
use crate::request::sequence::{Copied, Sequence};

/// Runs copied for a request, at most: the longest. Each run holds its source with all blocks before it, and the tokens between two runs take a step of
/// their own.
const RUNS_MAX: usize = 32;
/// Maximum number of lists of held blocks kept for reuse.
const SPARE_MAX: usize = 16;

/// Copies of the step being made, and the sources of those in flight.
#[derive(Debug, Default)]
pub(crate) struct Reused {
    /// Minimum number of tokens of a run; 0 copies nothing.
    least: u32,
    /// Tokens computed again at the beginning of each run.
    recomputed: u32,
    /// `true` if only requests that ask for it have copies.
    on_request: bool,
    /// `true` if steps in flight may compute what is copied.
    notes_sources: bool,
    /// Runs of the request being admitted.
    runs: Vec<CachedRun>,
    /// Copies for the step being made.
    copies: Vec<CellCopy>,
    /// Sources, each with the blocks before it, and the step that copies.
    held: VecDeque<(u64, Vec<BlockHandle>)>,
    spare: Vec<Vec<BlockHandle>>,
}

impl Reused {
    /// Creates the rule of a configuration.
    pub fn new(config: &Config) -> Self {
        Self {
            least: config.worker.reuse.anywhere,
            recomputed: config.worker.reuse.recompute,
            on_request: config.worker.reuse.on_request,
            notes_sources: config.publishes_ahead(),
            ..Self::default()
        }
    }

    /// Returns `true` if a sequence may have runs copied.
    fn suits(&self, seq: &Sequence) -> bool {
        let wanted = match seq.cold.reuse {
            Some(reuse) => reuse == Reuse::Anywhere,
            None => !self.on_request,
        };
        self.least > 0 && wanted && !seq.id.is_inner() && seq.unvalued_from().is_none()
    }
}

impl Kv {
    /// Returns `true` if requests may have runs copied.
    pub fn reuses(&self) -> bool {
        self.reused.least > 0
    }

    /// Finds the runs to be copied for a sequence with its prefix hit, and holds their sources until the end of step `step`. Finds
    /// none if fewer than `needed` blocks were usable then. Returns the number of tokens to be copied.
    pub fn hold_runs(&mut self, seq: &mut Sequence, step: u64, needed: u32) -> u32 {
        if !self.reused.suits(seq) {
            return 0;
        }
        let size = self.block_size;
        let hit = seq.table.last().map(|block| block.index);
        let mut runs = std::mem::take(&mut self.reused.runs);
        runs.clear();
        let from = (seq.published * size, hit);
        let rule = RunRule { least: self.reused.least, whole_blocks: seq.cold.shares_cache };
        self.tree.find_runs(seq.cold.root, seq.tokens(), from, rule, &mut runs);
        self.recompute_beginnings(&mut runs);
        keep_longest(&mut runs, RUNS_MAX);
        let before = self.reused.held.len();
        for run in &runs {
            let mut chain = self.reused.spare.pop().unwrap_or_default();
            self.tree.hold_source(run, &mut chain);
            self.reused.held.push_back((step, chain));
        }
        if self.usable() < needed {
            while self.reused.held.len() > before {
                self.release_last_source();
            }
            runs.clear();
        }
        let n_tokens = runs.iter().map(|run| run.len).sum();
        if n_tokens > 0 {
            let mut copied = Copied::new(&runs, size);
            if self.reused.notes_sources {
                copied.sources.extend(self.reused.held.range(before..).flat_map(|(_, chain)| chain));
            }
            seq.cold.copied = Some(Box::new(copied));
        }
        self.reused.runs = runs;
        n_tokens
    }

    /// Takes the first tokens of each run out, to be computed again where the run now lies.
    fn recompute_beginnings(&self, runs: &mut Vec<CachedRun>) {
        let Reused { recomputed, least, .. } = self.reused;
        for run in runs.iter_mut().filter(|run| recomputed > 0 && !run.is_exact) {
            let n = recomputed.min(run.len);
            (run.at, run.from, run.len) = (run.at + n, run.from + n, run.len - n);
        }
        runs.retain(|run| run.is_exact || recomputed == 0 || run.len >= least.saturating_sub(recomputed).max(1));
    }

    /// Plans the copies of the runs just held into the blocks of the sequence, for the step being made.
    pub fn plan_copies(&mut self, seq: &Sequence, journal: &mut Journal) {
        let size = self.block_size;
        let Reused { runs, copies, held, .. } = &mut self.reused;
        let first = held.len() - runs.len();
        let tokens: u32 = runs.iter().map(|run| run.len).sum();
        journal.decide(Decision::Reuse, seq.id.0, u64::from(tokens));
        for (run, (_, chain)) in runs.iter().zip(held.range(first..)) {
            journal.digest.fold(u64::from(run.at) << 32 | u64::from(run.len));
            journal.digest.fold(u64::from(run.from) << 32 | u64::from(run.last));
            let mut done = 0;
            while done < run.len {
                let (from, to) = (run.from + done, run.at + done);
                let n_tokens = (run.len - done).min(size - from % size).min(size - to % size);
                copies.push(CellCopy {
                    from: chain[(from / size) as usize].index,
                    from_cell: from % size,
                    to: seq.table[(to / size) as usize].index,
                    to_cell: to % size,
                    n_tokens,
                    position: to,
                    shift: run.at as i32 - run.from as i32,
                });
                done += n_tokens;
            }
        }
        journal.stats.tokens.copied_tokens += u64::from(tokens);
    }

    /// Moves the copies planned for the step being made to `copies`.
    pub fn take_copies(&mut self, copies: &mut Vec<CellCopy>) {
        copies.append(&mut self.reused.copies);
    }

    /// Releases the sources of copies in steps up to `ended`.
    pub(super) fn release_sources(&mut self, ended: u64) {
        while self.reused.held.front().is_some_and(|(step, _)| *step <= ended) {
            let (_, chain) = self.reused.held.pop_front().expect("it was just looked at");
            self.release_source(chain);
        }
    }

    fn release_last_source(&mut self) {
        if let Some((_, chain)) = self.reused.held.pop_back() {
            self.release_source(chain);
        }
    }

    fn release_source(&mut self, mut chain: Vec<BlockHandle>) {
        let n = chain.len();
        self.tree.release(&mut chain, n);
        if self.reused.spare.len() < SPARE_MAX {
            self.reused.spare.push(chain);
        }
    }

    /// Returns the blocks held as sources.
    pub fn held_sources(&self) -> impl Iterator<Item = &BlockHandle> {
        self.reused.held.iter().flat_map(|(_, chain)| chain)
    }
}

/// Keeps exact runs and the longest others, at most `most` in all, in order of their positions. Of equals the first stay.
fn keep_longest(runs: &mut Vec<CachedRun>, most: usize) {
    if runs.len() > most {
        runs.sort_by_key(|run| (!run.is_exact, Reverse(run.len), run.at));
        runs.truncate(most);
        runs.sort_by_key(|run| run.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_runs_stay_in_order() {
        let run = |(at, len)| CachedRun { at, len, ..CachedRun::default() };
        let mut runs: Vec<CachedRun> = [(0, 3), (10, 9), (20, 3), (30, 12)].map(run).to_vec();
        keep_longest(&mut runs, 4);
        assert_eq!(runs.len(), 4);
        keep_longest(&mut runs, 3);
        assert_eq!(runs.iter().map(|run| run.at).collect::<Vec<_>>(), [0, 10, 30]);
        runs[0].is_exact = true;
        keep_longest(&mut runs, 2);
        assert_eq!(runs.iter().map(|run| run.at).collect::<Vec<_>>(), [0, 30], "an exact run stays, however short");
    }
}
