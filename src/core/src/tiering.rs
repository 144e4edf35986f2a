//! The prefix cache beyond the device: published blocks are copied to slower tiers, and back when a prompt continues them.
//!
//! **Down.** Each tier says when it takes a block ([`Write`]): when the request that made it ends (`through`), the same
//! but only what was found before (`second_use`), or when the place above is about to evict it (`back`). Writing back
//! begins ahead of need, while a few blocks are still free; what has to go at once is dropped unsaved.
//!
//! **Up.** A request whose prompt goes on in a tier is admitted like any other, with every block its tokens need, but
//! waits in state [`SequenceState::Loading`] until the copies end. One that has no room yet has what lies in far tiers
//! brought to the nearest while it waits. A copy that fails costs a recomputation.

use crate::block::BlockState;
use crate::config::{Config, ConfigError, Write};
use crate::hash::BlockHash;
use crate::ids::{BlockHandle, Token};
use crate::scheduler::{Scheduler, decision};
use crate::sequence::{Sequence, SequenceState};
use crate::stats::TierStats;
use crate::swap::fold_pairs;
use crate::tier::{Contents, Tier, TierState};
use crate::transfer::Place;

/// Tiers there can be.
pub const TIERS_MAX: usize = 3;
/// Blocks in one copy that is begun ahead of need.
const AHEAD_MAX: usize = 1024;
/// Share of a place that writing back keeps free, one in so many.
const SPARE_SHARE: u32 = 8;

/// Why blocks are copied, and what is to be done with the sources afterwards.
#[derive(Debug)]
enum Work {
    /// A request ended: the copy reads its published blocks in its stead, and gives them back.
    Store(Vec<BlockHandle>),
    /// The sources are evicted: they are freed.
    Demote,
    /// The sources stay; they were pinned.
    Spread,
    /// For the sequence in this slot, from pinned sources.
    Load(usize),
}

/// A copy under way. Places are 0 for the device and 1 on for the tiers.
#[derive(Debug)]
struct Copy {
    id: u64,
    from: usize,
    to: usize,
    pairs: Vec<(u32, u32)>,
    work: Work,
    /// Device blocks that will be usable when it ends.
    frees: u32,
}

/// The tiers, and what is on its way between them.
#[derive(Debug)]
pub(crate) struct Tiering {
    tiers: Vec<Tier>,
    writes: Vec<Write>,
    /// Of each published device block: the prefix it ends, and the one before it.
    identities: Vec<(u64, u64)>,
    next_identity: u64,
    copies: Vec<Copy>,
    /// Sequences that are [`SequenceState::Loading`].
    pub loading: Vec<usize>,
    /// Device blocks that writing back keeps free.
    spare: u32,
    /// (place, block there) of the blocks that continue a prompt behind what the device has of it.
    pub plan: Vec<(usize, u32)>,
    stats: [TierStats; TIERS_MAX],
}

/// The identity of the empty prefix of a namespace. Others count up from 1 and never get there.
fn empty_prefix(root: BlockHash) -> u64 {
    (root.0 >> 64) as u64 | 1 << 63
}

impl Tiering {
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        let mut tiers = Vec::new();
        for tier in &config.tiers {
            tiers.push(Tier::new(config.block_size, tier.blocks, tier.make_eviction()?));
        }
        Ok(Self {
            tiers,
            writes: config.tiers.iter().map(|tier| tier.write).collect(),
            identities: Vec::new(),
            next_identity: 1,
            copies: Vec::new(),
            loading: Vec::new(),
            spare: config.device_blocks / SPARE_SHARE,
            plan: Vec::new(),
            stats: [TierStats::default(); TIERS_MAX],
        })
    }

    /// Whether there are tiers at all.
    pub fn is_on(&self) -> bool {
        !self.tiers.is_empty()
    }

    /// Whether any copy is under way.
    pub fn is_moving(&self) -> bool {
        !self.copies.is_empty()
    }

    /// Whether blocks are copied before they must be evicted, whenever that comes near.
    pub fn writes_back(&self) -> bool {
        self.writes.contains(&Write::Back)
    }

    /// Device blocks that will be usable when copies end.
    pub fn future_free(&self) -> u32 {
        self.copies.iter().map(|copy| copy.frees).sum()
    }

    /// Gauges and counters of each tier.
    pub fn stats(&self) -> [TierStats; TIERS_MAX] {
        let mut stats = self.stats;
        for (stats, tier) in stats.iter_mut().zip(&self.tiers) {
            stats.blocks = tier.count(TierState::Idle) + tier.count(TierState::Pinned);
            stats.evicted_blocks = tier.evicted;
        }
        stats
    }

    /// Gives a block just published on the device its identity: the one a tier knows, or a new one.
    pub fn published(&mut self, root: BlockHash, block: u32, parent: Option<u32>, hash: BlockHash, tokens: &[Token]) {
        if !self.is_on() {
            return;
        }
        let before = parent.map_or_else(|| empty_prefix(root), |parent| self.identities[parent as usize].0);
        let hash = hash.fingerprint();
        let identity = self.tiers.iter().find_map(|tier| tier.identity(hash, before, tokens)).unwrap_or_else(|| {
            self.next_identity += 1;
            self.next_identity
        });
        if self.identities.len() <= block as usize {
            self.identities.resize(block as usize + 1, (0, 0));
        }
        self.identities[block as usize] = (identity, before);
    }

    /// Looks up what tiers have of a prompt behind its first blocks `found` on the device, nearest tier first, into `plan`.
    pub fn make_plan(&mut self, seq: &Sequence, found: &[u32], block_size: u32) {
        self.plan.clear();
        if !self.is_on() {
            return;
        }
        let size = block_size as usize;
        let mut before = found.last().map_or_else(|| empty_prefix(seq.root), |last| self.identities[*last as usize].0);
        let rest = seq.hashes.iter().zip(seq.tokens.chunks_exact(size)).skip(found.len());
        for (hash, tokens) in rest {
            let hash = hash.fingerprint();
            let hit = |(at, tier): (usize, &Tier)| tier.find(hash, before, tokens).map(|block| (at + 1, block));
            let Some((place, block)) = self.tiers.iter().enumerate().find_map(hit) else { break };
            before = self.tiers[place - 1].contents(block).identity;
            self.plan.push((place, block));
        }
    }

    /// Drops every block that no copy works on.
    pub fn flush(&mut self) {
        self.tiers.iter_mut().for_each(Tier::flush);
    }

    /// Panics unless every block of every tier is where the copies say.
    pub fn check(&self) {
        for (at, tier) in self.tiers.iter().enumerate() {
            let ends = |copy: &Copy| {
                let sources = (copy.from == at + 1).then(|| copy.pairs.iter().map(|(from, _)| *from));
                let targets = (copy.to == at + 1).then(|| copy.pairs.iter().map(|(_, to)| *to));
                sources.into_iter().flatten().chain(targets.into_iter().flatten()).collect::<Vec<_>>()
            };
            tier.check(self.copies.iter().flat_map(ends));
        }
    }

    /// Device blocks that copies under way read, and will free.
    pub fn demoted_blocks(&self) -> u32 {
        let demotions = self.copies.iter().filter(|copy| copy.from == 0 && matches!(copy.work, Work::Demote));
        demotions.map(|copy| copy.pairs.len() as u32).sum()
    }

    /// Device blocks that copies under way read in the stead of ended requests.
    pub fn stored_chains(&self) -> impl Iterator<Item = &[BlockHandle]> {
        self.copies.iter().filter_map(|copy| match &copy.work {
            Work::Store(chain) => Some(chain.as_slice()),
            _ => None,
        })
    }
}

fn place(number: usize) -> Place {
    if number == 0 { Place::Device } else { Place::Tier(number as u8 - 1) }
}

impl Scheduler {
    fn begin_copy(&mut self, from: usize, to: usize, pairs: Vec<(u32, u32)>, work: Work) {
        if to > 0 {
            self.tiering.stats[to - 1].stored_blocks += pairs.len() as u64;
        }
        self.digest.decide(decision::COPY, (from as u64) << 8 | to as u64, pairs.len() as u64);
        fold_pairs(&mut self.digest, &pairs);
        let id = self.swap.send(place(from), place(to), pairs.clone());
        let frees = match &work {
            Work::Demote if from == 0 => pairs.len() as u32,
            // Readers of a block read its ancestors: those that only this copy reads are the last ones.
            Work::Store(chain) => (chain.len() - chain.partition_point(|block| self.tree.readers(*block) > 1)) as u32,
            _ => 0,
        };
        self.tiering.copies.push(Copy { id, from, to, pairs, work, frees });
    }

    /// A request ended: its published blocks are copied to the first tier if that takes them now, and fall idle then.
    pub fn store(&mut self, slot: usize) {
        let Some(write) = self.tiering.writes.first().copied().filter(|write| *write != Write::Back) else { return };
        let seq = &mut self.sequences[slot];
        let published = seq.published as usize;
        let mut pairs = Vec::new();
        for block in &seq.table[..published] {
            if write == Write::SecondUse && self.tree.hits(*block) == 0 {
                // Blocks after it were found at most as often.
                break;
            }
            let (hash, tokens) = self.tree.contents(*block);
            let (identity, before) = self.tiering.identities[block.index as usize];
            let to = self.tiering.tiers[0].reserve(&Contents { hash, identity, before, tokens });
            pairs.extend(to.map(|to| (block.index, to)));
        }
        if !pairs.is_empty() {
            let mut private = seq.table.split_off(published);
            self.tree.release(&mut private, 0);
            let chain = std::mem::take(&mut seq.table);
            seq.published = 0;
            // Tail first, so that the tail falls idle in the tier, and is evicted there, before what leads to it.
            pairs.reverse();
            self.begin_copy(0, 1, pairs, Work::Store(chain));
        }
    }

    /// Copies blocks that will be evicted before they must be, where the next tier wants them.
    pub fn write_back(&mut self) {
        if self.tiering.writes.first() == Some(&Write::Back) {
            let free = self.tree.pool().count(BlockState::Free) + self.tiering.demoted_blocks();
            // A block for each running request stays idle: a decode does not wait for a copy that it could do without.
            let idle = self.tree.pool().count(BlockState::Idle).saturating_sub(self.running.len() as u32);
            self.demote_from_device(self.tiering.spare.saturating_sub(free).min(idle) as usize);
        }
        for at in 1..self.tiering.tiers.len() {
            let tier = &self.tiering.tiers[at - 1];
            let free = tier.count(TierState::Free) + tier.count(TierState::Leaving);
            if self.tiering.writes[at] == Write::Back {
                let spare = (tier.capacity() / SPARE_SHARE).max(1);
                self.demote_from_tier(at, spare.saturating_sub(free) as usize);
            }
        }
    }

    fn demote_from_device(&mut self, n: usize) {
        let mut pairs = Vec::new();
        for _ in 0..n.min(AHEAD_MAX) {
            let Some(block) = self.tree.begin_demotion() else { break };
            let (hash, tokens) = self.tree.contents(block);
            let (identity, before) = self.tiering.identities[block.index as usize];
            match self.tiering.tiers[0].reserve(&Contents { hash, identity, before, tokens }) {
                Some(to) => pairs.push((block.index, to)),
                None => self.tree.end_move(block, BlockState::Free),
            }
        }
        if !pairs.is_empty() {
            self.begin_copy(0, 1, pairs, Work::Demote);
        }
    }

    /// From the `at`-th tier, counted from 1, to the one behind it.
    fn demote_from_tier(&mut self, at: usize, n: usize) {
        let mut pairs = Vec::new();
        let (near, far) = self.tiering.tiers.split_at_mut(at);
        for _ in 0..n.min(AHEAD_MAX) {
            let Some(block) = near[at - 1].begin_leaving() else { break };
            match far[0].reserve(&near[at - 1].contents(block)) {
                Some(to) => pairs.push((block, to)),
                None => near[at - 1].end_leaving(block),
            }
        }
        if !pairs.is_empty() {
            self.begin_copy(at, at + 1, pairs, Work::Demote);
        }
    }

    /// Copies blocks of one tier to another, where they are not yet.
    fn spread(&mut self, from: usize, to: usize, blocks: impl Iterator<Item = u32>) {
        let mut pairs = Vec::new();
        for block in blocks {
            let contents = self.tiering.tiers[from - 1].contents(block);
            let tokens = contents.tokens.to_vec();
            let contents = Contents { tokens: &tokens, ..contents };
            if let Some(to) = self.tiering.tiers[to - 1].reserve(&contents) {
                self.tiering.tiers[from - 1].pin(block, false);
                pairs.push((block, to));
            }
        }
        if !pairs.is_empty() {
            self.begin_copy(from, to, pairs, Work::Spread);
        }
    }

    /// Brings what the plan finds in far tiers to the nearest one, for a request that has no room on the device yet.
    pub fn prefetch(&mut self) {
        let plan = std::mem::take(&mut self.tiering.plan);
        for from in 2..=self.tiering.tiers.len() {
            let there: Vec<u32> =
                plan.iter().filter(|(place, _)| *place == from).map(|(_, block)| *block).take(AHEAD_MAX).collect();
            self.spread(from, 1, there.into_iter().rev());
        }
        self.tiering.plan = plan;
    }

    /// Begins the copies of a plan for a sequence that was just admitted with room for all its tokens.
    pub fn begin_load(&mut self, slot: usize) {
        let plan = std::mem::take(&mut self.tiering.plan);
        let seq = &mut self.sequences[slot];
        seq.set_state(SequenceState::Loading);
        seq.loading = plan.len() as u32;
        let first = seq.published as usize;
        let blocks: Vec<u32> = seq.table[first..first + plan.len()].iter().map(|block| block.index).collect();
        for block in &seq.table[first..first + plan.len()] {
            self.tree.begin_move(*block);
        }
        self.tiering.loading.push(slot);
        for from in 1..=self.tiering.tiers.len() {
            let there = plan.iter().zip(&blocks).rev().filter(|((place, _), _)| *place == from);
            let pairs: Vec<(u32, u32)> = there.map(|((_, block), to)| (*block, *to)).collect();
            if !pairs.is_empty() {
                pairs.iter().for_each(|(block, _)| self.tiering.tiers[from - 1].pin(*block, true));
                self.tiering.stats[from - 1].hit_blocks += pairs.len() as u64;
                self.sequences[slot].loads += 1;
                self.begin_copy(from, 0, pairs, Work::Load(slot));
            }
        }
        self.tiering.plan = plan;
    }

    /// A copy between tiers ended. Returns the sequence it was for, if that is to end now.
    pub fn end_copy(&mut self, id: u64, ok: bool) -> Option<usize> {
        let at = self.tiering.copies.iter().position(|copy| copy.id == id)?;
        let Copy { from, to, pairs, work, .. } = self.tiering.copies.remove(at);
        self.digest.decide(if ok { decision::TRANSFER_FINISHED } else { decision::TRANSFER_FAILED }, 0, id);
        self.stats.failed_transfers += u64::from(!ok);
        let loaded = if let Work::Load(slot) = work { Some(slot) } else { None };
        self.end_pairs(from, to, &pairs, work, ok);
        if ok && to > 0 {
            self.spread_on(to, pairs.iter().map(|(_, to)| *to), Write::Through);
        }
        if let Some(slot) = loaded {
            self.spread_on(from, pairs.iter().map(|(from, _)| *from), Write::SecondUse);
            return self.end_load(slot, ok);
        }
        None
    }

    /// Blocks are in a tier, or were found there: the one behind it takes them if it takes blocks then.
    fn spread_on(&mut self, at: usize, blocks: impl Iterator<Item = u32>, occasion: Write) {
        if self.tiering.writes.get(at) == Some(&occasion) {
            self.spread(at, at + 1, blocks);
        }
    }

    /// The blocks of a copy that ended are no longer its.
    fn end_pairs(&mut self, from: usize, to: usize, pairs: &[(u32, u32)], work: Work, ok: bool) {
        if to > 0 {
            pairs.iter().for_each(|(_, block)| self.tiering.tiers[to - 1].end_fill(*block, ok));
        }
        match work {
            Work::Store(mut chain) => {
                let n = chain.len();
                self.tree.release(&mut chain, n);
            }
            Work::Demote if from == 0 => {
                for (block, _) in pairs {
                    self.tree.end_move(self.tree.pool().handle(*block), BlockState::Free);
                }
            }
            Work::Demote => pairs.iter().for_each(|(block, _)| self.tiering.tiers[from - 1].end_leaving(*block)),
            Work::Spread | Work::Load(_) => {
                pairs.iter().for_each(|(block, _)| self.tiering.tiers[from - 1].unpin(*block))
            }
        }
    }

    /// One of the copies for a loading sequence ended. After the last it joins the batch, or ends.
    fn end_load(&mut self, slot: usize, ok: bool) -> Option<usize> {
        let seq = &mut self.sequences[slot];
        seq.loads -= 1;
        seq.load_failed |= !ok;
        if seq.loads > 0 {
            return None;
        }
        self.tiering.loading.retain(|other| *other != slot);
        let first = seq.published as usize;
        let loaded = std::mem::take(&mut seq.loading);
        for block in &seq.table[first..first + loaded as usize] {
            self.tree.end_move(*block, BlockState::Private);
        }
        if seq.ending.is_some() {
            return Some(slot);
        }
        seq.set_state(SequenceState::Prefill);
        if !std::mem::take(&mut seq.load_failed) {
            // The last token is run again even if its KV is there, because its logits are not.
            seq.computed = ((first as u32 + loaded) * self.block_size).min(seq.tokens.len() as u32 - 1);
        }
        self.publish(slot);
        self.count_cached(slot);
        self.enter_batch(slot);
        None
    }

    /// The worker is gone and its copies with it; what tiers hold stays. Returns the sequences that were loading, in a
    /// fixed order, without any block.
    pub fn lose_copies(&mut self) -> Vec<usize> {
        for Copy { from, to, pairs, work, .. } in std::mem::take(&mut self.tiering.copies) {
            self.end_pairs(from, to, &pairs, work, false);
        }
        let slots = std::mem::take(&mut self.tiering.loading);
        for slot in &slots {
            self.release_all(*slot);
            let seq = &mut self.sequences[*slot];
            (seq.loads, seq.loading, seq.load_failed) = (0, 0, false);
        }
        slots
    }
}
