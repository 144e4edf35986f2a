//! A plan: the positions of a sequence to keep, from the scores of its blocks.
//!
//! # Tokens, positions and holes
//!
//! A sequence of `tokens` tokens has the positions `0..tokens`. Nothing moves when blocks are dropped: a kept token stays at its
//! position, and the dropped positions are *holes*. So a plan works with two counts:
//!
//! * **tokens**: all positions of the sequence. The floors and the target are measured in tokens: "one of 6" means one of six tokens
//!   of the whole sequence, however much of the sequence earlier plans dropped.
//! * **held tokens**: tokens without the holes. Kept tokens are counted in held tokens: a hole never comes back, is kept by no floor
//!   and counts for no target.
//!
//! Without holes the two are equal, and the plan equals the plan of the reference (MNN, `CPUAttention::onExecute`). The reference moves kept
//! tokens together instead, and knows held tokens alone. So each of its plans takes the target of a length that earlier plans made
//! shorter: repeated plans compound, until the floors dominate, and then nothing is dropped until the sequence has grown again. The
//! share held by the reference swings; ours stays within one block of the target once the target is above the floors.
//!
//! # When floors dominate
//!
//! If the floors alone reach the target, **nothing** is dropped, as in the reference: the plan lists the floors, but is not to be
//! applied ([`Plan::dominates`]). Weights do not count here, so all groups begin to drop at one length. A short sequence is therefore kept whole until the target of its length exceeds the floors: with
//! sink 32, recent 256, blocks of 16 and a target of 1 in 6, until about 1,800 tokens. The reference also leaves its published ratios
//! at the values of an earlier plan then; [`Ratios::note`] does the same.

use std::ops::Range;

use super::scores::sound;
use super::settings::Settings;

/// Dropped blocks of a sequence, by number of the planner block. Blocks beyond the last hole are held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holes {
    dropped: Vec<bool>,
}

impl Holes {
    /// Returns `true` if the block was dropped.
    pub fn contains(&self, block: u32) -> bool {
        self.dropped.get(block as usize).is_some_and(|dropped| *dropped)
    }

    /// Adds all blocks inside a range of positions.
    ///
    /// # Panics
    /// Panics if the range does not consist of whole blocks.
    pub fn drop_positions(&mut self, positions: &Range<u32>, block_tokens: u32) {
        assert!(
            positions.start.is_multiple_of(block_tokens) && positions.end.is_multiple_of(block_tokens),
            "only whole blocks are dropped"
        );
        let blocks = (positions.start / block_tokens) as usize..(positions.end / block_tokens) as usize;
        if self.dropped.len() < blocks.end {
            self.dropped.resize(blocks.end, false);
        }
        self.dropped[blocks].fill(true);
    }

    /// Returns the number of held tokens of a sequence of `tokens` tokens.
    pub fn held_tokens(&self, tokens: u32, block_tokens: u32) -> u32 {
        (0..tokens.div_ceil(block_tokens))
            .filter(|block| !self.contains(*block))
            .map(|b| len(b, tokens, block_tokens))
            .sum()
    }
}

/// Returns the number of tokens in a block of a sequence of `tokens` tokens.
fn len(block: u32, tokens: u32, block_tokens: u32) -> u32 {
    (tokens - block * block_tokens).min(block_tokens)
}

/// Positions to keep and to drop, of a sequence of [`Self::tokens`] tokens. Holds for all evicting layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Tokens of the sequence when the plan was made; later positions are untouched.
    pub tokens: u32,
    /// Tokens held when the plan was made.
    pub held: u32,
    /// Held tokens in the floors: sink and recent, in whole blocks.
    pub floor: u32,
    /// Tokens to keep at least, `1..=held`.
    pub target: u32,
    /// `true` if the floors alone reach the target. The plan then drops nothing, and [`Self::reserve`] lists the floors alone.
    pub dominates: bool,
    /// Tokens to select: the floors, and as many whole blocks as the target needs.
    pub quantised: u32,
    /// Tokens selected: above `quantised` by less than a block, and below only if all held tokens are selected.
    pub selected: u32,
    /// Selected positions, ascending, neighbours merged.
    pub reserve: Vec<Range<u32>>,
    /// Held positions outside the selection, ascending, neighbours merged, in whole blocks; empty if the floors dominate.
    pub drops: Vec<Range<u32>>,
}

impl Plan {
    /// Returns the number of tokens held once the plan is applied.
    pub fn final_keep(&self) -> u32 {
        if self.dominates { self.held } else { self.selected }
    }

    /// Returns the number of tokens dropped by the plan.
    pub fn dropped(&self) -> u32 {
        self.held - self.final_keep()
    }
}

/// Makes a plan for a sequence of `tokens` tokens, at least 1, without the blocks in `holes`. `rank` gives the rank of a block: the
/// highest stay.
///
/// 1. Floors: held blocks with any of the first `sink_tokens` tokens, and held blocks from the one in which the last `recent_tokens`
///    tokens begin. A partial last block is always part of a floor, so only whole blocks are ever dropped.
/// 2. Target: `ceil(keep_ratio * tokens)` in `f32`, within `1..=held`.
/// 3. The target above the floors, times the weight, is rounded up to whole blocks.
/// 4. Other held blocks are taken in descending order of rank, until as many tokens are selected.
///
/// **The order is total.** A negative, infinite or NaN rank counts as 0; [`f32::MAX`] is the highest rank. Of equal
/// ranks the later block stays, since late tokens are likelier to be read again. The reference leaves the order of equal scores to
/// its sorting function.
pub fn plan(settings: &Settings, tokens: u32, holes: &Holes, rank: impl Fn(u32) -> f32) -> Plan {
    let size = settings.block_tokens.max(1);
    let n_blocks = tokens.div_ceil(size);
    let sink_end = settings.sink_tokens.min(tokens).div_ceil(size);
    let recent_from = tokens.saturating_sub(settings.recent_tokens) / size;
    let (mut held, mut selected) = (0, 0);
    let mut keep = vec![false; n_blocks as usize];
    let mut others: Vec<(f32, u32)> = Vec::new();
    for block in (0..n_blocks).filter(|block| !holes.contains(*block)) {
        held += len(block, tokens, size);
        if block < sink_end || block >= recent_from {
            selected += len(block, tokens, size);
            keep[block as usize] = true;
        } else {
            others.push((sound(rank(block)), block));
        }
    }
    let floor = selected;
    let mean = ((settings.target.keep_ratio() * tokens as f32).ceil() as u32).max(1);
    let dominates = floor >= mean.min(held);
    let above = (mean.saturating_sub(floor) as f32 * settings.weight).ceil() as u32;
    let target = if dominates { mean } else { floor.saturating_add(above) }.min(held);
    let quantised = held.min(floor + target.saturating_sub(floor).div_ceil(size) * size);
    // Blocks outside the floors are whole.
    let n = ((quantised - selected.min(quantised)).div_ceil(size) as usize).min(others.len());
    if n < others.len() {
        others.select_nth_unstable_by(n, |a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
    }
    for (_, block) in &others[..n] {
        selected += len(*block, tokens, size);
        keep[*block as usize] = true;
    }
    let merged = |wanted: &dyn Fn(u32) -> bool| merge((0..n_blocks).filter(|block| wanted(*block)), tokens, size);
    let reserve = merged(&|block| keep[block as usize]);
    let drops = merged(&|block| !dominates && !keep[block as usize] && !holes.contains(block));
    Plan { tokens, held, floor, target, dominates, quantised, selected, reserve, drops }
}

/// Turns ascending blocks into ranges of positions, neighbours merged.
fn merge(blocks: impl Iterator<Item = u32>, tokens: u32, block_tokens: u32) -> Vec<Range<u32>> {
    let mut out: Vec<Range<u32>> = Vec::new();
    for block in blocks {
        let begin = block * block_tokens;
        let end = begin + len(block, tokens, block_tokens);
        match out.last_mut() {
            Some(last) if last.end == begin => last.end = end,
            _ => out.push(begin..end),
        }
    }
    out
}

/// Ratios of the last plan, as the reference publishes them. For a report use means over a whole run instead: the ratio of the last
/// plan is the best moment of a sequence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratios {
    /// Tokens held after the plan, as a share of the tokens of the sequence.
    pub keep: f32,
    /// Bytes of all tokens, divided by the bytes of held tokens and of the plan itself.
    pub lossy: f32,
}

impl Default for Ratios {
    fn default() -> Self {
        Self { keep: 1.0, lossy: 1.0 }
    }
}

impl Ratios {
    /// Takes note of a plan; a token has `bytes_per_token` bytes of KV, and a range of a plan takes two 4-byte numbers. A plan whose
    /// floors dominate changes nothing: the ratios stay those of an earlier plan, as in the reference.
    pub fn note(&mut self, plan: &Plan, bytes_per_token: u64) {
        if plan.dominates {
            return;
        }
        let bytes = |tokens: u32| u64::from(tokens) * bytes_per_token;
        let ranges = 2 * 4 * plan.reserve.len() as u64;
        self.keep = plan.final_keep() as f32 / plan.tokens as f32;
        self.lossy = bytes(plan.tokens) as f32 / (bytes(plan.final_keep()) + ranges) as f32;
    }
}

#[cfg(test)]
mod tests;
