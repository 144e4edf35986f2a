//! Runs of a prompt's tokens cached at other places: see [`super::contents`].

use super::PrefixTree;
use crate::blocks::block::BlockState;
use crate::blocks::hash::BlockHash;
use crate::blocks::prefix::CachedRun;
use crate::names::ids::{BlockHandle, Token};

/// Maximum number of tokens compared in a search: so many for each token of the prompt, and so many in any case. Text that repeats itself has runs everywhere, and
/// most are too short. The search then ends with the runs found so far.
const COMPARED_PER_TOKEN: usize = 16;
const COMPARED_LEAST: usize = 1 << 16;

/// Which runs are worth a copy.
#[derive(Clone, Copy, Debug)]
pub struct RunRule {
    /// Minimum number of tokens of a run.
    pub least: u32,
    /// `true` for runs of whole blocks of the source alone. Which runs are found, and when a search ends, then depends on no block of the source but those
    /// in the prompt.
    pub whole_blocks: bool,
}

impl PrefixTree {
    /// Keeps an index of the published blocks by content from now on, for [`Self::find_runs`]. MUST be called on an empty tree.
    pub fn note_contents(&mut self) {
        let capacity = self.pool.capacity().min(crate::blocks::block::ROOM_MAX) as usize;
        self.contents = Some(Box::new(super::contents::Contents::new(self.block_size, capacity)));
    }

    /// Notes that step `step` is being made: blocks published from now on may be computed by the step.
    pub fn begin_step(&mut self, step: u64) {
        if let Some(contents) = &mut self.contents {
            contents.begin_step(step);
        }
    }

    /// Finds runs of a prompt, as `rule` wants them, cached at other places in the namespace of `root`, and appends them to `runs`,
    /// in order and without overlap. Looks at the tokens from position `from` on, but for the last one, to be computed in any
    /// case. `hit` is the last block of the prompt's own cached prefix, if that ends at `from`: a block that continues it and agrees with the
    /// next tokens in part is the first run, however short, unless the rule wants whole blocks. Its KV is the prompt's own.
    ///
    /// Holds no block: see [`Self::hold_source`].
    pub fn find_runs(
        &self,
        root: BlockHash,
        tokens: &[Token],
        (from, hit): (u32, Option<u32>),
        rule: RunRule,
        runs: &mut Vec<CachedRun>,
    ) {
        let (Some(contents), Some(namespace)) = (&self.contents, self.namespaces.parent(root)) else { return };
        let (mut covered, end) = (from as usize, tokens.len() - 1);
        if covered >= end {
            return;
        }
        let (mut compared, most) = (0, COMPARED_LEAST + COMPARED_PER_TOKEN * tokens.len());
        if let Some(hit) = hit.filter(|_| !rule.whole_blocks)
            && let Some((last, len)) = self.continued(hit, &tokens[covered..end], &mut compared)
        {
            runs.push(CachedRun { at: from, from, len, last, is_exact: true });
            covered += len as usize;
        }
        let mut windows = contents.windows(tokens);
        windows.jump(covered);
        while let Some((at, hash)) = windows.get().filter(|(at, _)| *at < end && compared < most) {
            let window = &tokens[at..at + self.block_size];
            let mut best = CachedRun::default();
            for block in contents.with_key(hash, namespace).filter(|block| self.tokens_of(*block) == window) {
                let run = match rule.whole_blocks {
                    true => self.extended_by_blocks(block, at, &tokens[..end], &mut compared),
                    false => self.extended(block, at, covered, &tokens[..end], &mut compared),
                };
                // Of equals the latest block wins, which comes first.
                if run.len > best.len {
                    best = run;
                }
            }
            if best.len >= rule.least.max(1) {
                covered = best.end() as usize;
                runs.push(best);
                windows.jump(covered);
            } else {
                windows.advance();
            }
        }
    }

    /// Returns the child of a block that has most of the next tokens, and their number, if it has one. Of equals the latest.
    /// Adds the tokens compared to `compared`.
    fn continued(&self, block: u32, tokens: &[Token], compared: &mut usize) -> Option<(u32, u32)> {
        let mut best = None;
        for child in self.contents.as_ref()?.children(block) {
            let len = self.tokens_of(child).iter().zip(tokens).take_while(|(there, asked)| there == asked).count();
            *compared += len + 1;
            if len > best.map_or(0, |(_, len)| len as usize) {
                best = Some((child, len as u32));
            }
        }
        best
    }

    /// Returns the longest run around a block whose tokens are those from `at` on: from `covered` at the earliest, to the end of `tokens`.
    fn extended(&self, block: u32, at: usize, covered: usize, tokens: &[Token], compared: &mut usize) -> CachedRun {
        let size = self.block_size;
        let before = self.contents.as_ref().and_then(|contents| contents.parent(block));
        let before = before.map_or(0, |parent| {
            let asked = tokens[covered..at].iter().rev();
            self.tokens_of(parent).iter().rev().zip(asked).take_while(|(there, asked)| there == asked).count()
        });
        *compared += size + before;
        let (mut last, mut end) = (block, (at + size).min(tokens.len()));
        while end < tokens.len() {
            let Some((child, len)) = self.continued(last, &tokens[end..], compared) else { break };
            (last, end) = (child, end + len as usize);
            if (len as usize) < size {
                break;
            }
        }
        let first = self.nodes.depths[block as usize] as usize * size - before;
        CachedRun {
            at: (at - before) as u32,
            from: first as u32,
            len: (end - at + before) as u32,
            last,
            is_exact: false,
        }
    }

    /// Returns the longest run of whole blocks from a block on whose tokens are those from `at` on. The tokens added to `compared` do not depend on how
    /// many tokens of a block agree, if not all do.
    fn extended_by_blocks(&self, block: u32, at: usize, tokens: &[Token], compared: &mut usize) -> CachedRun {
        let size = self.block_size;
        let (mut last, mut end) = (block, at + size);
        *compared += size;
        if end > tokens.len() {
            return CachedRun::default();
        }
        while let (Some(contents), Some(asked)) = (&self.contents, tokens.get(end..end + size)) {
            let mut children = contents.children(last).inspect(|_| *compared += size);
            let Some(child) = children.find(|child| self.tokens_of(*child) == asked) else { break };
            (last, end) = (child, end + size);
        }
        let from = self.nodes.depths[block as usize] * size as u32;
        CachedRun { at: at as u32, from, len: (end - at) as u32, last, is_exact: false }
    }

    /// Adds a reader to the last block of a run and all blocks before it, and appends their handles to `chain`, to be released later
    /// with [`Self::release`].
    pub fn hold_source(&mut self, run: &CachedRun, chain: &mut Vec<BlockHandle>) {
        let ancestors = std::iter::successors(Some(run.last), |block| self.nodes.parent(*block));
        let first = chain.len();
        chain.extend(ancestors.map(|block| self.pool.handle(block)));
        chain[first..].reverse();
        chain[first..].iter().for_each(|block| self.share(*block));
    }

    /// Adds blocks just published to the index by content, if there is one.
    #[inline]
    pub(super) fn enter_contents(&mut self, chain: &[BlockHandle]) {
        if let Some(contents) = &mut self.contents {
            for block in chain {
                let tokens = &self.tokens[block.index as usize * self.block_size..][..self.block_size];
                contents.add(block.index, self.nodes.parents[block.index as usize], tokens);
            }
        }
    }

    /// Removes blocks from the index by content, if there is one.
    #[inline]
    pub(super) fn leave_contents(&mut self, blocks: &[u32]) {
        if let Some(contents) = &mut self.contents {
            blocks.iter().for_each(|block| contents.remove(*block));
        }
    }

    /// Panics unless the index by content has the blocks that can be found, and no others.
    pub(super) fn check_contents(&self) {
        if let Some(contents) = &self.contents {
            let is_in = |block| matches!(self.pool.state(block), BlockState::Held | BlockState::Idle);
            contents.check(self.pool.opened(), is_in, |block| self.tokens_of(block).to_vec());
        }
    }
}

#[cfg(test)]
mod tests;
