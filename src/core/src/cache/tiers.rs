//! The tiers of the prefix cache behind the device: their blocks, and the identities of published prefixes.
//!
//! Each tier says when it takes a block ([`Write`]): when the request that computed it ends (`through`), or has computed its prompt
//! (`prefill`), when such a block was found before (`second_use`), or when the place above is about to evict it (`back`). [`crate::cache::kv`] moves the blocks.

use trunkline_port::{BlockFault, BlockKey, KnownBlock, NO_BLOCK};

use crate::Place;
use crate::blocks::content_key;
use crate::blocks::entries::Hole;
use crate::blocks::hash::BlockHash;
use crate::cache::changes::{CacheChanges, CacheEvent};
use crate::cache::classes::Classes;
use crate::cache::floors::NOBODY;
use crate::cache::group_blocks::Placed;
use crate::cache::tier::{Contents, Tier, TierState};
use crate::cache::transfer_table::TransferTable;
use crate::cache::tree::PrefixTree;
use crate::config::TIERS_MAX;
use crate::config::{Config, ConfigError, Write};
use crate::journal::stats::TierStats;
use crate::names::ids::{BlockHandle, Token};

/// Share of a place that writing back keeps free: one in `SPARE_SHARE`.
const SPARE_SHARE: u32 = 8;

/// A block of a tier that continues a prompt behind the prompt's blocks on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PlannedBlock {
    /// Index of the tier, 0 for the nearest.
    pub tier: usize,
    /// Number of the block in the tier.
    pub block: u32,
}

/// A device block that is to get an identity.
#[derive(Clone, Copy, Debug)]
struct Unidentified {
    root: BlockHash,
    block: u32,
    parent: Option<u32>,
    hash: BlockHash,
}

impl Hole for PlannedBlock {
    const HOLE: Self = Self { tier: 0, block: NO_BLOCK };
}

/// All tiers, nearest first.
#[derive(Debug)]
pub(crate) struct Tiers {
    tiers: Vec<Tier>,
    writes: Vec<Write>,
    /// Nearest tier with storage that other cores fill too.
    shared: Option<usize>,
    /// Identity of each published device block.
    keys: Vec<BlockKey>,
    /// Published device blocks without identities yet, each after the one before it. Empty with tiers, which may take a block at once.
    unidentified: Vec<Unidentified>,
    /// Device blocks that writing back keeps free.
    device_spare: u32,
    /// Tiers whose last answer refused blocks.
    saturated: [bool; TIERS_MAX],
    /// Blocks refused by each tier, or held back from a busy one, and not replaced since.
    owed: [u64; TIERS_MAX],
    /// `true` after a flush.
    was_flushed: bool,
    /// `true` if somebody asks for changes of the cache, which name blocks by their identities.
    is_heard: bool,
    /// `true` if nobody outside of this core sees the names of blocks.
    is_simulated: bool,
    /// Counters; gauges are filled in by [`Self::stats`].
    counters: [TierStats; TIERS_MAX],
}

impl Tiers {
    /// Creates the empty tiers of a configuration. In each the tenants keep so many blocks together.
    ///
    /// # Errors
    /// If a tier names no eviction policy.
    pub fn new(config: &Config, floors: &[u32]) -> Result<Self, ConfigError> {
        let mut tiers = Vec::new();
        for (at, tier) in config.tiers.iter().enumerate() {
            let blocks = config.tier_capacity(at);
            let eviction = Classes::new(tier.make_eviction()?);
            tiers.push(Tier::new(config.block_size, blocks, (floors[at], config.retained_of(blocks)), eviction));
        }
        Ok(Self {
            tiers,
            writes: config.tiers.iter().map(|tier| tier.write).collect(),
            shared: config.tiers.iter().position(|tier| tier.shared),
            keys: Vec::new(),
            unidentified: Vec::new(),
            device_spare: config.pool_blocks() / SPARE_SHARE,
            saturated: [false; TIERS_MAX],
            owed: [0; TIERS_MAX],
            was_flushed: false,
            is_heard: false,
            is_simulated: false,
            counters: [TierStats::default(); TIERS_MAX],
        })
    }

    /// Notes the blocks that come and go from now on, for [`Self::take_changes`], and the identities of device blocks without tiers too.
    pub fn listen(&mut self) {
        self.is_heard = true;
        (0..).zip(&mut self.tiers).for_each(|(number, tier)| tier.listen(number));
    }

    /// Names blocks by the hashes of the tree, and keeps no tokens, because no store ever sees either; shared storage does. MUST be called before a block
    /// is published.
    pub fn simulate(&mut self) {
        self.is_simulated = self.shared.is_none();
        if self.is_simulated {
            self.tiers.iter_mut().for_each(Tier::forget_tokens);
        }
    }

    /// Returns `true` if transfers say the tokens of their blocks.
    pub fn says_tokens(&self) -> bool {
        !self.is_simulated
    }

    /// Appends the blocks that came or went since the last call, in order within each tier.
    pub fn take_changes(&mut self, out: &mut Vec<CacheEvent>) {
        self.tiers.iter_mut().for_each(|tier| out.append(&mut tier.take_changes()));
    }

    /// Appends all blocks that can be found in a tier, as if they came now.
    pub fn present(&self, out: &mut Vec<CacheEvent>) {
        for (number, tier) in (0..).zip(&self.tiers) {
            let mut changes = CacheChanges::new(Place::Tier(number));
            tier.add_present(&mut changes);
            out.append(&mut changes.take());
        }
    }

    /// Returns `true` if no block can be found in any tier.
    pub fn have_none(&self) -> bool {
        self.tiers.iter().all(Tier::has_none)
    }

    /// Returns `true` if device blocks have identities.
    pub fn identifies(&self) -> bool {
        self.is_heard || !self.is_empty()
    }

    /// Returns the identity that a device block had when it was published last.
    pub fn key_of(&self, block: u32) -> &BlockKey {
        &self.keys[block as usize]
    }

    /// Sets the time for floors and pins. Times MUST NOT go back.
    #[inline]
    pub fn advance(&mut self, now_ns: u64) {
        self.tiers.iter_mut().for_each(|tier| tier.advance(now_ns));
    }

    /// Takes note of a request of a tenant.
    pub fn see(&mut self, tenant: u64) {
        self.tiers.iter_mut().for_each(|tier| tier.floors.see(tenant));
    }

    /// Returns the number of tiers.
    pub fn len(&self) -> usize {
        self.tiers.len()
    }

    /// Returns `true` if there is no tier.
    pub fn is_empty(&self) -> bool {
        self.tiers.is_empty()
    }

    /// Returns the nearest tier with storage that other cores fill too.
    pub fn shared(&self) -> Option<usize> {
        self.shared
    }

    /// Returns the time at which a tier takes blocks. `None` if there is no such tier.
    pub fn write(&self, tier: usize) -> Option<Write> {
        self.writes.get(tier).copied()
    }

    /// Returns `true` if some tier takes blocks that are about to be evicted.
    pub fn writes_back(&self) -> bool {
        self.writes.contains(&Write::Back) || self.owed != [0; TIERS_MAX]
    }

    /// Returns the number of device blocks that writing back keeps free.
    pub fn device_spare(&self) -> u32 {
        self.device_spare
    }

    /// Returns the number of blocks to remove from a tier for writing back to keep the tier's share free.
    pub fn missing_spare(&self, tier: usize) -> u32 {
        let tier = &self.tiers[tier];
        (tier.capacity() / SPARE_SHARE).max(1).saturating_sub(tier.free_soon())
    }

    /// Sets the number of blocks of the first tier whose memory swapped-out requests use.
    pub fn set_lent(&mut self, lent: u32) {
        self.tiers[0].set_lent(lent);
    }

    /// Returns the number of blocks of the first tier that are free or can be evicted.
    pub fn lendable(&self) -> u32 {
        self.tiers[0].available()
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

    /// Takes note of blocks whose transfer to a tier began.
    pub fn begin_store(&mut self, tier: usize, blocks: usize) {
        self.owed[tier] = self.owed[tier].saturating_sub(blocks as u64);
    }

    /// Counts blocks that arrived in a tier.
    pub fn count_stored(&mut self, tier: usize, blocks: usize) {
        self.counters[tier].stored_blocks += blocks as u64;
    }

    /// Takes note of the end of a transfer to a tier, which refused so many of its blocks.
    pub fn answered(&mut self, tier: usize, refused: usize) {
        self.saturated[tier] = refused > 0;
        self.skip(tier, refused);
    }

    /// Counts blocks held back from a busy tier. The tier gets as many later, from those about to be evicted.
    pub fn skip(&mut self, tier: usize, blocks: usize) {
        self.counters[tier].skipped_blocks += blocks as u64;
        self.owed[tier] += blocks as u64;
    }

    /// Returns `true` if the last answer of a tier refused blocks.
    pub fn is_saturated(&self, tier: usize) -> bool {
        self.saturated[tier]
    }

    /// Returns `true` if a tier did not take blocks when they came, and nothing in their place since.
    pub fn owes(&self, tier: usize) -> bool {
        self.owed[tier] > 0
    }

    /// Takes in blocks found in a tier at the start, oldest first. Returns the blocks taken; the slots of all others are released.
    pub fn adopt<'a>(&mut self, tier: usize, blocks: &'a [KnownBlock]) -> Vec<&'a KnownBlock> {
        self.tiers.get_mut(tier).map_or(Vec::new(), |tier| tier.adopt(blocks))
    }

    /// Takes in further blocks found in a tier, oldest first. Returns their slots; none after a flush, which they are from before.
    pub fn adopt_later(&mut self, tier: usize, blocks: &[KnownBlock]) -> Vec<Option<u32>> {
        match self.tiers.get_mut(tier) {
            Some(tier) if !self.was_flushed => blocks.iter().map(|known| tier.adopt_later(known)).collect(),
            _ => vec![None; blocks.len()],
        }
    }

    /// Takes in a chain of blocks found in a tier's storage, in addition to those already there; the tail first, so that the tail is evicted first.
    pub fn take_in(&mut self, tier: usize, keys: &[BlockKey], tokens: &[Token]) {
        let block_size = tokens.len().checked_div(keys.len()).unwrap_or(0).max(1);
        self.counters[tier].found_blocks += keys.len() as u64;
        let tier = &mut self.tiers[tier];
        for (key, tokens) in keys.iter().zip(tokens.chunks_exact(block_size)).rev() {
            if let Some(slot) = tier.reserve(&Contents { key: *key, tokens, tenant: NOBODY, pin: None }) {
                tier.end_fill(slot, true);
            }
        }
    }

    /// Returns the identities of a chain of blocks behind planned ones, or behind the `last` block on the device if `planned` is `None`.
    pub fn keys_behind<'a>(
        &self,
        root: BlockHash,
        last: Option<u32>,
        planned: Option<PlannedBlock>,
        blocks: impl Iterator<Item = (&'a BlockHash, &'a [Token])>,
    ) -> Vec<BlockKey> {
        let on_device = last.map(|block| self.keys[block as usize]);
        let mut parent = planned.map(|planned| self.contents(planned.tier, planned.block).key).or(on_device);
        let next = |(hash, tokens): (&BlockHash, &[Token])| {
            *parent.insert(content_key::after(root, parent.as_ref(), *hash, tokens))
        };
        blocks.map(next).collect()
    }

    /// Counts blocks that a tier's storage was asked for.
    pub fn count_looked_up(&mut self, tier: usize, blocks: usize) {
        self.counters[tier].looked_up_blocks += blocks as u64;
    }

    /// Returns the blocks of a tier freed since the last call and still free.
    pub fn take_released(&mut self, tier: usize) -> Vec<u32> {
        self.tiers[tier].take_released()
    }

    /// Sets the number of blocks that fit in a tier.
    pub fn resize(&mut self, tier: usize, blocks: u32) {
        if let Some(tier) = self.tiers.get_mut(tier) {
            tier.resize(blocks);
        }
    }

    /// Counts blocks that a request found in a tier, and not in a nearer place.
    pub fn count_hits(&mut self, tier: usize, blocks: usize) {
        self.counters[tier].hit_blocks += blocks as u64;
    }

    /// Computes the identity of a block just published on the device.
    pub fn identify(&mut self, root: BlockHash, block: u32, parent: Option<u32>, hash: BlockHash, tokens: &[Token]) {
        let found = Unidentified { root, block, parent, hash };
        if !self.is_empty() {
            self.set_key(found, tokens);
        } else if self.is_heard {
            self.unidentified.push(found);
        }
    }

    /// Gives the blocks published since the last call their identities, if only a listener asks for these: SHA-256 can wait until a step is under way.
    pub fn identify_late(&mut self, tree: &PrefixTree) {
        let mut waiting = std::mem::take(&mut self.unidentified);
        waiting.drain(..).for_each(|found| self.set_key(found, tree.tokens_at(found.block)));
        self.unidentified = waiting;
    }

    fn set_key(&mut self, Unidentified { root, block, parent, hash }: Unidentified, tokens: &[Token]) {
        let parent = parent.map(|parent| &self.keys[parent as usize]);
        let name = if self.is_simulated { content_key::by_hash } else { content_key::after };
        let key = name(root, parent, hash, tokens);
        if self.keys.len() <= block as usize {
            self.keys.resize(block as usize + 1, BlockKey::default());
        }
        self.keys[block as usize] = key;
    }

    /// Appends to `plan` the blocks that continue a prompt behind its `last` block on the device, each in the nearest open tier that
    /// has it. `rest` yields hash and tokens of the prompt's full blocks after `last`.
    pub fn plan<'a>(
        &self,
        root: BlockHash,
        last: Option<u32>,
        is_open: [bool; TIERS_MAX],
        rest: impl Iterator<Item = (&'a BlockHash, &'a [Token])>,
        plan: &mut Vec<PlannedBlock>,
    ) {
        let mut before = self.prefix(root, last);
        for (hash, tokens) in rest {
            let hit = |(at, tier): (usize, &Tier)| {
                tier.find(*hash, before, 0, tokens).map(|block| PlannedBlock { tier: at, block })
            };
            let open = self.tiers.iter().enumerate().filter(|(at, _)| is_open[*at]);
            let Some(planned) = open.into_iter().find_map(hit) else { break };
            before = self.contents(planned.tier, planned.block).key.hash;
            plan.push(planned);
        }
    }

    /// Returns the identities of published device blocks; none without tiers.
    pub fn keys_on_device(&self, blocks: &[BlockHandle]) -> Vec<BlockKey> {
        if self.is_empty() {
            return Vec::new();
        }
        blocks.iter().map(|block| self.keys[block.index as usize]).collect()
    }

    /// Returns the contents of a published device block, or of one whose demotion began.
    pub fn contents_on_device<'a>(&self, tree: &'a PrefixTree, placed: Placed) -> Contents<'a> {
        let key = content_key::in_group(&self.keys[placed.node.index as usize], placed.group);
        let (tenant, pin) = (tree.owner(placed.node), tree.pin_of(placed.node));
        Contents { key, tokens: tree.contents(placed.node).1, tenant, pin }
    }

    /// Returns the block with the tokens of a planned one in a group after the first, in the nearest open tier that has it.
    pub fn find_in_group(
        &self,
        planned: PlannedBlock,
        group: usize,
        is_open: [bool; TIERS_MAX],
    ) -> Option<PlannedBlock> {
        let Contents { key, tokens, .. } = self.contents(planned.tier, planned.block);
        let BlockKey { hash, parent, group, .. } = content_key::in_group(&key, group);
        let open = self.tiers.iter().enumerate().filter(|(at, _)| is_open[*at]);
        let hit = |(at, tier): (usize, &Tier)| {
            tier.find(BlockHash(hash), parent, group, tokens).map(|block| PlannedBlock { tier: at, block })
        };
        open.into_iter().find_map(hit)
    }

    /// Returns the contents of a block of a tier.
    pub fn contents(&self, tier: usize, block: u32) -> Contents<'_> {
        self.tiers[tier].contents(block)
    }

    /// Reserves a slot of the nearest tier for a block. Returns `None` if the tier does not take the block.
    pub fn reserve(&mut self, contents: &Contents) -> Option<u32> {
        self.tiers[0].reserve(contents)
    }

    /// Lets each tier keep a block until its pin ends, if it has the block or is about to get it.
    pub fn retain(&mut self, contents: &Contents) {
        let Some(pin) = contents.pin else { return };
        for tier in &mut self.tiers {
            if let Some(slot) = tier.holder(contents.key.fingerprint) {
                tier.retain(slot, pin);
            }
        }
    }

    /// Returns `true` if the nearest tier neither has a block nor is about to get it.
    pub fn lacks(&self, contents: &Contents) -> bool {
        !self.tiers[0].has_fingerprint(contents.key.fingerprint)
    }

    /// Returns the block of a tier that has these contents or is about to get them.
    pub fn holder(&self, tier: usize, contents: &Contents) -> Option<u32> {
        self.tiers[tier].holder(contents.key.fingerprint)
    }

    /// Returns `true` if a block of a tier can be found.
    pub fn is_present(&self, tier: usize, block: u32) -> bool {
        self.tiers[tier].is_present(block)
    }

    /// Begins to demote a block of a tier to the next one. Returns the block and the slot reserved for it, which is `None` if the next
    /// tier does not take the block; the block is then dropped. Returns `None` if no block is idle.
    pub fn begin_demotion(&mut self, tier: usize) -> Option<(u32, Option<u32>)> {
        let (near, far) = self.tiers.split_at_mut(tier + 1);
        let block = near[tier].begin_demotion()?;
        let to = far[0].reserve(&near[tier].contents(block));
        if to.is_none() {
            near[tier].end_demotion(block, None);
        }
        Some((block, to))
    }

    /// Reserves a slot of another tier for a block, and pins the block. Returns `None` if the other tier does not take the block, or the
    /// block was struck out.
    pub fn begin_propagation(&mut self, from: usize, to: usize, block: u32) -> Option<u32> {
        if !self.tiers[from].is_present(block) {
            return None;
        }
        let contents = self.tiers[from].contents(block);
        let tokens = contents.tokens.to_vec();
        let contents = Contents { tokens: &tokens, ..contents };
        let reserved = self.tiers[to].reserve(&contents)?;
        self.tiers[from].pin(block, None);
        Some(reserved)
    }

    /// Returns `true` if a block of a tier has a pin that keeps it not there.
    pub fn has_ignored_pin(&self, tier: usize, block: u32) -> bool {
        self.tiers[tier].has_ignored_pin(block)
    }

    /// Pins a block that a prompt found, for a hit of a tenant; `None` if the request used the block before and was preempted.
    pub fn pin_found(&mut self, planned: PlannedBlock, hit_by: Option<u64>) {
        self.tiers[planned.tier].pin(planned.block, hit_by);
    }

    /// Removes a pin from a block of a tier.
    pub fn unpin(&mut self, tier: usize, block: u32) {
        self.tiers[tier].unpin(block);
    }

    /// Ends the demotion of a block: it is freed if it arrived and nobody reads it.
    pub fn end_demotion(&mut self, tier: usize, block: u32, fault: Option<BlockFault>) {
        self.tiers[tier].end_demotion(block, fault);
    }

    /// Lets nobody find a block any more that transfers in flight read or write.
    pub fn strike_out(&mut self, tier: usize, block: u32) {
        self.tiers[tier].strike_out(block);
    }

    /// Returns the hash of the prefix that a device block ends; of the empty prefix for `None`.
    pub fn prefix(&self, root: BlockHash, block: Option<u32>) -> u128 {
        block.map_or(root.0, |block| self.keys[block as usize].hash)
    }

    /// Returns the hash of the prefix before a device block.
    pub fn prefix_before(&self, block: u32) -> u128 {
        self.keys[block as usize].parent
    }

    /// Ends the transfer that writes a block: the block is present if `ok`, else freed.
    pub fn end_fill(&mut self, tier: usize, block: u32, ok: bool) {
        self.tiers[tier].end_fill(block, ok);
    }

    /// Drops every block that no transfer reads or writes.
    pub fn flush(&mut self) {
        self.was_flushed = true;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TierConfig;

    /// Forged: both roots have the same upper half, and both first blocks the same hash.
    #[test]
    fn a_tier_tells_namespaces_apart_by_their_whole_root() {
        let tier =
            TierConfig { name: "t".into(), blocks: 4, write: Write::Through, eviction: "lru".into(), shared: false };
        let config = Config { block_size: 2, tiers: vec![tier], ..Config::default() };
        let mut tiers = Tiers::new(&config, &[0]).unwrap();
        let (roots, hash, tokens) = ([1 << 64 | 1, 1 << 64 | 2].map(BlockHash), BlockHash(9), [5, 6]);
        tiers.identify(roots[0], 0, None, hash, &tokens);
        let contents = Contents { key: tiers.keys[0], tokens: &tokens, tenant: NOBODY, pin: None };
        let slot = tiers.tiers[0].reserve(&contents).unwrap();
        tiers.end_fill(0, slot, true);
        let planned = roots.map(|root| {
            let mut plan = Vec::new();
            tiers.plan(root, None, [true; TIERS_MAX], [(&hash, &tokens[..])].into_iter(), &mut plan);
            plan.len()
        });
        assert_eq!(planned, [1, 0]);
    }
}
