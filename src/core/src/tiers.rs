//! The tiers of the prefix cache behind the device: their blocks, and the identities of published prefixes.
//!
//! Each tier says when it takes a block ([`Write`]): when the request that computed it ends (`through`), when such a block was found
//! before (`second_use`), or when the place above is about to evict it (`back`). [`crate::kv`] moves the blocks.

use crate::config::{Config, ConfigError, Write};
use crate::hash::BlockHash;
use crate::ids::{BlockHandle, Token};
use crate::stats::TierStats;
use crate::tier::{Contents, TIERS_MAX, Tier, TierState};
use crate::transfer::Place;
use crate::transfer_table::TransferTable;
use crate::tree::PrefixTree;

/// Share of a place that writing back keeps free: one in `SPARE_SHARE`.
const SPARE_SHARE: u32 = 8;

/// A block of a tier that continues a prompt behind the prompt's blocks on the device.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedBlock {
    /// Index of the tier, 0 for the nearest.
    pub tier: usize,
    /// Number of the block in the tier.
    pub block: u32,
}

/// All tiers, nearest first.
#[derive(Debug)]
pub(crate) struct Tiers {
    tiers: Vec<Tier>,
    writes: Vec<Write>,
    /// Identities of each published device block's prefix up to the block's end, and of the prefix before the block.
    identities: Vec<(u64, u64)>,
    next_identity: u64,
    /// Device blocks that writing back keeps free.
    device_spare: u32,
    /// Counters; gauges are filled in by [`Self::stats`].
    counters: [TierStats; TIERS_MAX],
}

/// Returns the identity of the empty prefix of a namespace. Other identities count up from 1 and never get there.
fn empty_prefix(root: BlockHash) -> u64 {
    (root.0 >> 64) as u64 | 1 << 63
}

impl Tiers {
    /// Creates the empty tiers of a configuration.
    ///
    /// # Errors
    /// If a tier names no eviction policy.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        let mut tiers = Vec::new();
        for (at, tier) in config.tiers.iter().enumerate() {
            tiers.push(Tier::new(config.block_size, config.tier_capacity(at), tier.make_eviction()?));
        }
        Ok(Self {
            tiers,
            writes: config.tiers.iter().map(|tier| tier.write).collect(),
            identities: Vec::new(),
            next_identity: 1,
            device_spare: config.device_blocks / SPARE_SHARE,
            counters: [TierStats::default(); TIERS_MAX],
        })
    }

    /// Returns the number of tiers.
    pub fn len(&self) -> usize {
        self.tiers.len()
    }

    /// Returns `true` if there is no tier.
    pub fn is_empty(&self) -> bool {
        self.tiers.is_empty()
    }

    /// Returns the time at which a tier takes blocks. `None` if there is no such tier.
    pub fn write(&self, tier: usize) -> Option<Write> {
        self.writes.get(tier).copied()
    }

    /// Returns `true` if some tier takes blocks that are about to be evicted.
    pub fn writes_back(&self) -> bool {
        self.writes.contains(&Write::Back)
    }

    /// Returns the number of device blocks that writing back keeps free.
    pub fn device_spare(&self) -> u32 {
        self.device_spare
    }

    /// Returns the number of blocks to remove from a tier for writing back to keep the tier's share free.
    pub fn missing_spare(&self, tier: usize) -> u32 {
        let tier = &self.tiers[tier];
        let free = tier.free() + tier.count(TierState::Leaving);
        (tier.capacity() / SPARE_SHARE).max(1).saturating_sub(free)
    }

    /// Sets the number of blocks of the first tier whose memory swapped-out requests use.
    pub fn set_lent(&mut self, lent: u32) {
        self.tiers[0].set_lent(lent);
    }

    /// Returns the number of blocks of the first tier that are free or can be evicted.
    pub fn lendable(&self) -> u32 {
        self.tiers[0].free() + self.tiers[0].count(TierState::Idle)
    }

    /// Evicts a block of the first tier unless one is free. Returns `false` if no block can be evicted.
    pub fn make_room(&mut self) -> bool {
        self.tiers[0].make_room()
    }

    /// Returns the gauges and counters of each tier.
    pub fn stats(&self) -> [TierStats; TIERS_MAX] {
        let mut stats = self.counters;
        for (stats, tier) in stats.iter_mut().zip(&self.tiers) {
            stats.blocks = tier.count(TierState::Idle) + tier.count(TierState::Pinned);
            stats.evicted_blocks = tier.evicted;
        }
        stats
    }

    /// Counts blocks whose transfer to a tier began.
    pub fn count_stored(&mut self, tier: usize, blocks: usize) {
        self.counters[tier].stored_blocks += blocks as u64;
    }

    /// Counts blocks that a request found in a tier, and not in a nearer place.
    pub fn count_hits(&mut self, tier: usize, blocks: usize) {
        self.counters[tier].hit_blocks += blocks as u64;
    }

    /// Assigns the identity of a block just published on the device: the one a tier knows, or a new one.
    pub fn identify(&mut self, root: BlockHash, block: u32, parent: Option<u32>, hash: BlockHash, tokens: &[Token]) {
        if self.is_empty() {
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

    /// Appends to `plan` the blocks that continue a prompt behind its blocks `found` on the device, each in the nearest tier that has
    /// it. `rest` yields hash and tokens of the prompt's full blocks after `found`.
    pub fn plan<'a>(
        &self,
        root: BlockHash,
        found: &[u32],
        rest: impl Iterator<Item = (&'a BlockHash, &'a [Token])>,
        plan: &mut Vec<PlannedBlock>,
    ) {
        let mut before = found.last().map_or_else(|| empty_prefix(root), |last| self.identities[*last as usize].0);
        for (hash, tokens) in rest {
            let hash = hash.fingerprint();
            let hit = |(at, tier): (usize, &Tier)| {
                tier.find(hash, before, tokens).map(|block| PlannedBlock { tier: at, block })
            };
            let Some(planned) = self.tiers.iter().enumerate().find_map(hit) else { break };
            before = self.tiers[planned.tier].contents(planned.block).identity;
            plan.push(planned);
        }
    }

    /// Reserves a slot of the nearest tier for a published device block, or one whose demotion began. Returns `None` if the tier does
    /// not take the block.
    pub fn reserve(&mut self, tree: &PrefixTree, block: BlockHandle) -> Option<u32> {
        let (hash, tokens) = tree.contents(block);
        let (identity, parent_prefix) = self.identities[block.index as usize];
        self.tiers[0].reserve(&Contents { hash, identity, parent_prefix, tokens })
    }

    /// Begins to demote a block of a tier to the next one. Returns the block and the slot reserved for it, which is `None` if the next
    /// tier does not take the block; the block is then dropped. Returns `None` if no block is idle.
    pub fn begin_demotion(&mut self, tier: usize) -> Option<(u32, Option<u32>)> {
        let (near, far) = self.tiers.split_at_mut(tier + 1);
        let block = near[tier].begin_demotion()?;
        let to = far[0].reserve(&near[tier].contents(block));
        if to.is_none() {
            near[tier].end_demotion(block);
        }
        Some((block, to))
    }

    /// Reserves a slot of another tier for a block, and pins the block. Returns `None` if the other tier does not take the block.
    pub fn begin_propagation(&mut self, from: usize, to: usize, block: u32) -> Option<u32> {
        let contents = self.tiers[from].contents(block);
        let tokens = contents.tokens.to_vec();
        let contents = Contents { tokens: &tokens, ..contents };
        let reserved = self.tiers[to].reserve(&contents)?;
        self.tiers[from].pin(block, false);
        Some(reserved)
    }

    /// Pins a block that a prompt found. `is_hit` is `false` if the request used the block before and was preempted.
    pub fn pin_found(&mut self, planned: PlannedBlock, is_hit: bool) {
        self.tiers[planned.tier].pin(planned.block, is_hit);
    }

    /// Removes a pin from a block of a tier.
    pub fn unpin(&mut self, tier: usize, block: u32) {
        self.tiers[tier].unpin(block);
    }

    /// Frees a block whose demotion ended.
    pub fn end_demotion(&mut self, tier: usize, block: u32) {
        self.tiers[tier].end_demotion(block);
    }

    /// Ends the transfer that writes a block: the block is present if `ok`, else freed.
    pub fn end_fill(&mut self, tier: usize, block: u32, ok: bool) {
        self.tiers[tier].end_fill(block, ok);
    }

    /// Drops every block that no transfer reads or writes.
    pub fn flush(&mut self) {
        self.tiers.iter_mut().for_each(Tier::flush);
    }

    /// Panics unless every block of every tier is in the state that the transfers in flight imply.
    pub fn check(&self, transfers: &TransferTable) {
        for (at, tier) in (0..).zip(&self.tiers) {
            let here = Place::Tier(at);
            let sources = transfers.iter().filter(|transfer| transfer.from == here);
            let targets = transfers.iter().filter(|transfer| transfer.to == here);
            let sources = sources.flat_map(|transfer| transfer.pairs.iter().map(|pair| pair.from));
            let targets = targets.flat_map(|transfer| transfer.pairs.iter().map(|pair| pair.to));
            tier.check(sources.chain(targets));
        }
    }
}
