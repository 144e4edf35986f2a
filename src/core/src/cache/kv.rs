//! The KV cache: device blocks with their prefix tree, host blocks, tiers, and the transfers among them.
//!
//! Scheduling decides; this module moves blocks: publishes full blocks, releases blocks of sequences, and begins and ends the
//! transfers from and to tiers.
//!
//! **Down.** Published blocks are copied to slower tiers according to each tier's [`crate::Write`]. Writing back begins ahead of
//! need, while a few blocks are still free; a block needed at once is dropped unsaved.
//!
//! **Up.** A request whose prompt continues in a tier is admitted with every block its tokens need, and waits in state
//! [`crate::request::sequence::SequenceState::Loading`] until the transfers end. A request without room yet has its blocks in far tiers brought to the
//! nearest one while it waits. A failed transfer costs a recomputation. What other cores wrote to a shared tier is looked up first
//! ([`crate::cache::lookups`]).

mod changing;
mod demotions;
mod groups;
mod offers;
mod promised;
mod remembered;
mod reused;
mod shared_tier;
mod swapped_groups;
mod tier_copies;
mod tiered_groups;

use std::collections::VecDeque;

use self::changing::DeviceChanges;
use self::demotions::Demotions;
use self::offers::Offers;
use self::promised::Promised;
use self::remembered::Remembered;
use self::reused::Reused;
use crate::Place;
use crate::blocks::entries::Entries;
use crate::blocks::hash::BlockHash;
use crate::blocks::host::{HostPool, HostState};
use crate::blocks::prefix::Prefix;
use crate::cache::group_blocks::{GroupBlocks, Placed};
use crate::cache::links::Links;
use crate::cache::lookups::Lookups;
use crate::cache::tiers::{PlannedBlock, Tiers};
use crate::cache::transfer_table::TransferTable;
use crate::cache::tree::{Parent, PrefixTree, Published};
use crate::config::{Config, ConfigError, Preemption, Write};
use crate::journal::Journal;
use crate::journal::reasons::Evicted;
use crate::names::ids::BlockHandle;
use crate::policy::waiting::{Beginning, CachedPrefix};
use crate::request::retention::Claim;
use crate::request::sequence::{Phase, Sequence};

/// KV blocks in all places, and the transfers in flight.
#[derive(Debug)]
pub(crate) struct Kv {
    block_size: u32,
    /// `true` if a cached prefix ends below the last token: see [`crate::config::WorkerFacts::whole_block_hits`].
    whole_block_hits: bool,
    /// Device blocks and the published prefixes.
    pub tree: PrefixTree,
    /// Host blocks of swapped-out sequences.
    pub host: HostPool,
    /// `true` if the first tier and swapped-out requests share one host memory.
    shares_host: bool,
    /// The prefix cache behind the device.
    pub tiers: Tiers,
    /// Transfers in flight.
    pub transfers: TransferTable,
    /// Look-ups in a shared tier in flight.
    pub lookups: Lookups,
    /// Blocks of the layer groups after the first.
    pub groups: GroupBlocks,
    /// Blocks that steps in flight may still read, with the last step that may; oldest first.
    retired: VecDeque<(u64, Retired)>,
    /// Device blocks of the last prefix looked up.
    pub found: Prefix,
    /// Device blocks being demoted that continue `found`.
    reviving: Vec<BlockHandle>,
    /// Device blocks being demoted.
    demoting: Demotions,
    /// Chains of ended requests that have not reached the second tier.
    offers: Offers,
    /// Prefix of the request that could not be admitted last.
    remembered: Remembered,
    /// Blocks in tiers continuing `found`, of the last plan: those of the groups after the first that are to be loaded.
    plan: Entries<PlannedBlock>,
    /// Tier of the first block left out of the last plan because computing the block takes less time, and the number of blocks left out.
    passed_over: Option<(usize, usize)>,
    /// Copies within the device.
    reused: Reused,
    /// Blocks that prompts under way will take.
    pub promised: Promised,
    /// Last step in flight that may still use blocks released at once by a preemption, if there is one.
    released_until: Option<u64>,
    /// The same for blocks of requests that ended, and for duplicates.
    freed_until: Option<u64>,
    /// `true` if blocks of requests that end, and duplicates, are free at once where nothing but steps uses blocks.
    frees_early: bool,
    /// Changes of the device's cached blocks, if somebody asks for them.
    changes: Option<Box<DeviceChanges>>,
    /// Evictions of the last input, if somebody asks for them.
    evicted: Option<Vec<Evicted>>,
}

/// A block that a sequence gave up while steps in flight may read it.
#[derive(Clone, Copy, Debug)]
enum Retired {
    /// A private block: a duplicate of a published one, or one that was dropped.
    Private(BlockHandle),
    /// A cached block of a group after the first.
    Cached(Placed),
}

impl Kv {
    /// Creates the empty cache of a configuration.
    ///
    /// # Errors
    /// If an eviction policy is unknown.
    pub fn new(config: &Config) -> Result<Self, ConfigError> {
        let mut tree = PrefixTree::new(config.block_size, config.pool_blocks(), config.make_eviction()?);
        let (floors, tier_floors) = config.tenant_floors()?;
        tree.set_floors(floors);
        if config.n_groups() > 1 {
            tree.note_left();
        }
        if config.tiers.first().is_some_and(|tier| tier.write == Write::SecondUse) {
            tree.count_hits();
        }
        if config.worker.reuse.anywhere > 0 {
            tree.note_contents();
        }
        Ok(Self {
            block_size: config.block_size,
            whole_block_hits: config.worker.whole_block_hits,
            tree,
            host: HostPool::new(config.host_capacity()),
            shares_host: config.shared_host().is_some(),
            tiers: Tiers::new(config, &tier_floors)?,
            transfers: TransferTable::new(Links::new(config)),
            lookups: Lookups::default(),
            groups: GroupBlocks::new(&config.worker.groups, config.block_size),
            retired: VecDeque::new(),
            found: Prefix::default(),
            reviving: Vec::new(),
            demoting: Demotions::default(),
            offers: Offers::default(),
            remembered: Remembered::default(),
            plan: Entries::EMPTY,
            passed_over: None,
            reused: Reused::new(config),
            promised: Promised::new(config),
            released_until: None,
            freed_until: None,
            frees_early: config.preemption == Preemption::RetractAtOnce,
            changes: None,
            evicted: None,
        })
    }

    /// Looks up the longest published prefix of a sequence on the device, into `found`, with blocks being demoted behind it.
    pub fn find(&mut self, seq: &Sequence) {
        if !self.remembered.recall(seq, &self.tree, &mut self.found) {
            self.tree.find(seq.cold.root, self.findable(seq), seq.tokens(), &mut self.found);
        }
        if self.groups.n() > 0 {
            self.found.truncate(self.groups.usable(&self.found));
        }
        self.find_demoting(seq);
        if self.tree.notes_visits()
            && let Some(last) = self.found.last()
        {
            self.tree.visit(last);
        }
    }

    /// Reports the end of the published blocks of a sequence to the eviction policy: of a prompt, a chunk or an answer. After a retraction
    /// prompt and output are computed as one, and the end of the prompt is reported too.
    pub fn visit_end(&mut self, seq: &Sequence) {
        if !self.tree.notes_visits() {
            return;
        }
        let was_retracted = seq.cold.history.queued_as.is_some();
        let prompt = Some(seq.prompt_tokens / self.block_size).filter(|end| was_retracted && *end < seq.published);
        for end in [Some(seq.published), prompt].into_iter().flatten().filter(|end| *end > 0) {
            self.tree.visit(seq.table[end as usize - 1].index);
        }
    }

    /// Returns the hashes of a sequence's blocks that may be found in a cache.
    fn findable<'a>(&self, seq: &'a Sequence) -> &'a [BlockHash] {
        let mut hashes = &seq.cold.hashes[..];
        if let Some(from) = seq.cold.reread_from.or(seq.unvalued_from()) {
            // What is read again, or valued, must be run, also if it is cached.
            hashes = &hashes[..hashes.len().min((from / self.block_size) as usize)];
        }
        let below_last = (seq.n_tokens() - 1) / self.block_size;
        if self.whole_block_hits { &hashes[..hashes.len().min(below_last as usize)] } else { hashes }
    }

    /// Returns the number of blocks of the last prefix looked up.
    pub fn hit(&self) -> usize {
        self.found.len() + self.reviving.len()
    }

    /// Gives a sequence the blocks of the last prefix looked up. The first admission of a request counts as a hit.
    pub fn hold_found(&mut self, seq: &mut Sequence) {
        if seq.cold.history.admissions == 0 {
            self.tree.hold(&self.found, &mut seq.table);
        } else {
            self.tree.hold_again(&self.found, &mut seq.table);
        }
        seq.cold.history.admissions += 1;
        seq.cold.history.written_ns = self.transfers.now_ns;
        self.revive(seq.cold.root, &mut seq.table);
        self.hold_groups(seq);
        seq.published = seq.table.len() as u32;
    }

    /// Drops every cached block, in all places. Blocks that sequences and transfers read stay, and nobody finds them any more. Returns
    /// the number of device blocks dropped.
    pub fn flush(&mut self) -> u32 {
        self.remembered = Remembered::default();
        self.demoting.clear();
        self.lookups.close();
        self.tiers.flush();
        self.tree.strike_out_held();
        let dropped = self.tree.flush();
        self.free_left();
        self.note_flush();
        dropped
    }

    /// Lets nobody find a published block, and the blocks behind it, any more: what was to compute the block has failed. Returns the number of
    /// blocks. O(blocks of the device): a block behind may be in the table of one that gave it up, or that ended.
    pub fn strike_out(&mut self, first: BlockHandle) -> u32 {
        if !self.tree.is_published(first) {
            // A flush did it.
            return 0;
        }
        let blocks = self.tree.blocks_from(first);
        let struck = blocks.len() as u32;
        if self.changes.is_some() {
            blocks.iter().for_each(|block| self.groups.hide(*block));
        }
        self.tree.strike_out(blocks);
        self.free_left();
        struck
    }

    /// Forgets what all blocks of the device held, also of blocks with readers: see [`PrefixTree::clear`].
    pub fn clear_device(&mut self) {
        self.note_clear();
        self.tree.clear();
        self.groups.clear();
        self.promised.clear();
    }

    /// Keeps the prefix just found for the next attempt to admit the sequence. `found` is undefined afterwards.
    pub fn remember(&mut self, seq: &Sequence) {
        self.remembered.remember(seq, &self.tree, &mut self.found);
    }

    /// Returns the number of leading blocks of a sequence that are cached on the device, by hash alone.
    pub fn estimate(&self, seq: &Sequence) -> usize {
        self.tree.estimate(self.estimable(seq)) as usize
    }

    /// Returns the hashes of a sequence's blocks that an estimate may count.
    fn estimable<'a>(&self, seq: &'a Sequence) -> &'a [BlockHash] {
        let hashes = &seq.cold.hashes[..];
        let unvalued = seq.unvalued_from().map(|from| (from / self.block_size) as usize);
        unvalued.map_or(hashes, |blocks| &hashes[..hashes.len().min(blocks)])
    }

    /// Returns the leading tokens of a sequence that are cached on the device, by hash alone, and the block after them.
    pub fn cached_prefix(&self, seq: &Sequence) -> CachedPrefix {
        let blocks = self.estimate(seq);
        CachedPrefix { tokens: blocks as u32 * self.block_size, next: self.estimable(seq).get(blocks).copied() }
    }

    /// Looks up the beginning of a sequence for a sort of the waiting queue by cached tokens and by the first `shared_tokens` tokens.
    pub fn look_up_beginning(&mut self, seq: &Sequence, shared_tokens: u32) -> Beginning {
        let found = self.estimate(seq);
        if found > 0 && self.tree.notes_visits() {
            self.tree.visit_hash(seq.cold.hashes[found - 1]);
        }
        let cached_tokens = found as u32 * self.block_size;
        let last = shared_tokens.div_ceil(self.block_size).checked_sub(1);
        Beginning { cached_tokens, hash: last.and_then(|at| seq.cold.hashes.get(at as usize).copied()) }
    }

    /// Returns the number of host blocks that a swap-out can take: free blocks, and in a shared memory also those of the tier that can
    /// be evicted.
    pub fn free_hosts(&self) -> u32 {
        if self.shares_host { self.tiers.lendable() } else { self.host.count(HostState::Free) }
    }

    /// Takes a host block for a swap-out, in a shared memory by evicting a block of the tier if none is free. Returns `None` if there is
    /// none to take.
    pub fn allocate_host(&mut self) -> Option<u32> {
        if self.shares_host && !self.tiers.make_room() {
            return None;
        }
        let host = self.host.allocate();
        self.update_lent();
        host
    }

    /// Removes a holder of a host block.
    pub fn leave_host(&mut self, host: u32) {
        self.host.leave(host);
        self.update_lent();
    }

    /// Removes a holder of some host blocks.
    pub fn leave_hosts(&mut self, hosts: &Entries<u32>) {
        hosts.all().for_each(|host| self.leave_host(host));
    }

    /// Frees a host block whose swap-out failed.
    pub fn host_fill_failed(&mut self, host: u32) {
        self.host.fill_failed(host);
        self.update_lent();
    }

    fn update_lent(&mut self) {
        if self.shares_host {
            self.tiers.set_lent(self.host.used());
        }
    }

    /// Returns the blocks behind the device freed since the last call and still free, by place.
    pub fn take_released(&mut self) -> impl Iterator<Item = (Place, Vec<u32>)> {
        let host = (Place::Host, self.host.take_released());
        let tiers = (0..self.tiers.len()).map(|tier| (Place::Tier(tier as u8), self.tiers.take_released(tier)));
        std::iter::once(host).chain(tiers).filter(|(_, blocks)| !blocks.is_empty())
    }

    /// Returns `true` if a block is cached on the device, by hash alone.
    pub fn is_published(&self, hash: BlockHash) -> bool {
        self.tree.estimate(&[hash]) > 0
    }

    /// Publishes the full blocks of a sequence up to the `computed`-th token, and replaces duplicates by the blocks published before. A
    /// duplicate read by steps in flight, `last_step` at the latest, is freed at the end of the last reading step.
    pub fn publish(&mut self, seq: &mut Sequence, computed: u32, last_step: u64, journal: &mut Journal) {
        self.name_unpublished();
        self.publish_blocks(seq, computed, last_step, journal);
        self.note_publication(seq.id);
    }

    fn publish_blocks(&mut self, seq: &mut Sequence, computed: u32, last_step: u64, journal: &mut Journal) {
        let size = self.block_size;
        let (from, to) = (seq.published as usize, (computed / size) as usize);
        self.tree.publish_for(seq.tenant);
        self.tiers.see(seq.tenant);
        if to > from + 1 && !seq.unpublishable {
            seq.hash_of_block(to - 1, size);
        }
        for at in from..to {
            if seq.unpublishable {
                return;
            }
            let parent = Parent::of(seq.cold.root, &seq.table[..at]);
            if to > at + 1 && !self.tree.is_continued(parent) {
                return self.publish_rest(seq, to, journal);
            }
            let hash = seq.hash_of_block(at, size);
            let tokens = &seq.tokens()[at * size as usize..][..size as usize];
            match self.tree.publish(seq.table[at], parent, hash, tokens) {
                Published::New => {
                    journal.stats.published_blocks += 1;
                    self.publish_groups(seq, at, at + 1);
                    let parent = parent.block().map(|parent| parent.index);
                    self.tiers.identify(seq.cold.root, seq.table[at].index, parent, hash, tokens);
                }
                Published::Merged(duplicate) => {
                    let private = std::mem::replace(&mut seq.table[at], duplicate);
                    let is_in_step = seq.is_in_step();
                    let frees_early = is_in_step && self.frees_early(seq);
                    if frees_early {
                        self.freed_until = Some(last_step);
                    }
                    let last_step = (is_in_step && !frees_early).then_some(last_step);
                    self.retire(last_step, Retired::Private(private));
                    self.merge_groups(seq, at, duplicate.index, last_step);
                    seq.mirror.table_sent = seq.mirror.table_sent.min(at as u32);
                    journal.stats.merged_blocks += 1;
                }
                Published::Collided => {
                    seq.unpublishable = true;
                    return;
                }
            }
            seq.published += 1;
        }
    }

    /// Publishes the blocks of a sequence up to the `to`-th. None can be a duplicate, because no block continues the one before them.
    fn publish_rest(&mut self, seq: &mut Sequence, to: usize, journal: &mut Journal) {
        let size = self.block_size as usize;
        let at = seq.published as usize;
        let parent = Parent::of(seq.cold.root, &seq.table[..at]);
        let (chain, hashes, tokens) =
            (&seq.table[at..to], &seq.cold.hashes[at..to], &seq.tokens()[at * size..to * size]);
        self.tree.publish_chain(chain, parent, hashes, tokens);
        self.publish_groups(seq, at, to);
        let (chain, hashes, tokens) =
            (&seq.table[at..to], &seq.cold.hashes[at..to], &seq.tokens()[at * size..to * size]);
        if self.tiers.identifies() {
            let mut parent = parent.block().map(|parent| parent.index);
            for ((block, hash), tokens) in chain.iter().zip(hashes).zip(tokens.chunks_exact(size)) {
                self.tiers.identify(seq.cold.root, block.index, parent, *hash, tokens);
                parent = Some(block.index);
            }
        }
        journal.stats.published_blocks += (to - at) as u64;
        seq.published = to as u32;
    }

    /// Lets go of a block: at the end of `last_step`, or now if no step in flight reads the block.
    fn retire(&mut self, last_step: Option<u64>, block: Retired) {
        match last_step {
            // Sequences retire blocks out of order, by a step or two.
            Some(step) => {
                let at = self.retired.partition_point(|(other, _)| *other <= step);
                self.retired.insert(at, (step, block));
            }
            None => self.free(block),
        }
    }

    fn free(&mut self, block: Retired) {
        match block {
            Retired::Private(block) => self.tree.free_duplicate(block),
            Retired::Cached(placed) => self.groups.leave(placed.node.index, placed.group),
        }
    }

    /// Frees the blocks given up that no step after `ended` reads. Copies may again touch blocks released at once in such steps.
    pub fn free_retired(&mut self, ended: u64) {
        for until in [&mut self.released_until, &mut self.freed_until] {
            *until = until.filter(|last_step| *last_step > ended);
        }
        self.release_sources(ended);
        while let Some((_, block)) = self.retired.pop_front_if(|(last_step, _)| *last_step <= ended) {
            self.free(block);
        }
    }

    /// Returns the number of private blocks given up that steps in flight may still read.
    pub fn n_retired(&self) -> u32 {
        self.retired.iter().filter(|(_, block)| matches!(block, Retired::Private(_))).count() as u32
    }

    /// Returns the number of readers of cached blocks of groups that are steps in flight alone.
    pub fn n_retired_readers(&self) -> usize {
        self.retired.len() - self.n_retired() as usize
    }

    /// Takes in the retention hints of a sequence about to release its published blocks, or some of them.
    pub fn claim(&mut self, seq: &Sequence) {
        if !seq.id.is_inner() && seq.cold.history.pinned_tokens.is_none() {
            let claim = Claim { tenant: seq.tenant, hints: &seq.cold.retention };
            self.tree.claim(&seq.table[..seq.published as usize], &claim);
        }
    }

    /// Takes in the retention hints of a request about to end if they pin, once for all, and counts the tokens that they pin.
    pub fn pin(&mut self, seq: &mut Sequence) {
        if seq.cold.retention.iter().any(|hint| hint.pin) && seq.cold.history.pinned_tokens.is_none() {
            self.claim(seq);
            let prefix = &seq.table[..seq.published as usize];
            let pinned = self.tree.n_pinned(prefix).min(self.asked_to_pin(seq, prefix.len()));
            seq.cold.history.pinned_tokens = Some(pinned as u32 * self.block_size);
            if !self.tiers.is_empty() {
                prefix[..pinned].iter().for_each(|node| self.retain_in_tiers(*node));
            }
        }
    }

    /// Returns the number of leading blocks, of `n`, that a sequence asks to pin.
    fn asked_to_pin(&self, seq: &Sequence, n: usize) -> usize {
        Claim { tenant: seq.tenant, hints: &seq.cold.retention }.pinned_to(n, self.block_size as usize)
    }

    /// Releases every block of a sequence in steps in flight, `last_step` at the latest, and all blocks given up before. Later steps may
    /// use the blocks at once, as a worker runs steps in order. Copies run alongside steps and wait: [`Self::copies_wait`].
    pub fn release_at_once(&mut self, seq: &mut Sequence, last_step: u64) {
        // The step may still compute the last token of a block that others have found.
        let freed_until = self.freed_until;
        self.free_retired(last_step);
        (self.released_until, self.freed_until) = (Some(last_step), freed_until);
        self.release(seq);
    }

    /// Releases every block of a request that ended while steps in flight run it, `last_step` at the latest: as
    /// [`Self::release_at_once`], but admissions go on.
    pub fn release_ended(&mut self, seq: &mut Sequence, last_step: u64) {
        self.freed_until = Some(last_step);
        self.pin(seq);
        self.release(seq);
        seq.computed = 0;
    }

    /// Returns `true` if later steps may take the blocks that a sequence gives up, at the end or as duplicates, while steps in flight still
    /// run it: as in SGLang, a worker runs steps in order.
    pub fn frees_early(&self, seq: &Sequence) -> bool {
        let is_plain = self.groups.n() == 0 && self.tiers.is_empty() && !self.reuses() && seq.cold.planner.is_none();
        self.frees_early && is_plain
    }

    /// Returns `true` while a step in flight may use free or idle blocks. No copy from or to such a block MUST begin.
    pub fn copies_wait(&self) -> bool {
        self.released_until.or(self.freed_until).is_some()
    }

    /// Returns `true` while a step in flight may use blocks of preempted requests.
    pub fn preemptions_wait(&self) -> bool {
        self.released_until.is_some()
    }

    /// Returns `true` while a step in flight may use blocks that others have, or may compute a published block of a request that ended.
    pub fn has_freed_early(&self) -> bool {
        self.freed_until.is_some()
    }

    /// Releases every block of a sequence, in every place. No transfer for the sequence may be in flight.
    pub fn release(&mut self, seq: &mut Sequence) {
        self.claim(seq);
        self.withdraw_promise(seq);
        if let Phase::SwappingIn(swap_in) = &mut seq.phase {
            debug_assert!(swap_in.transfer.is_none());
            swap_in.copied = 0;
            let Entries { mut first, mut others } = std::mem::take(&mut swap_in.arriving);
            self.tree.release(&mut first, 0);
            others.retain(|block| *block != BlockHandle::NONE);
            self.tree.release(&mut others, 0);
        }
        self.leave_hosts(&seq.phase.take_hosts());
        self.release_groups(seq, 0);
        self.tree.release(&mut seq.table, seq.published as usize);
        self.free_left();
        seq.published = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Namespace, Request, RequestId};

    #[test]
    fn a_retraction_keeps_that_a_step_in_flight_computes_a_block_which_others_may_have_found() {
        let config = Config { preemption: Preemption::RetractAtOnce, max_steps_in_flight: 2, ..Config::default() };
        let mut kv = Kv::new(&config).unwrap();
        let mut seqs = [1, 2]
            .map(|id| Sequence::new(Request::new(RequestId(id), Namespace::default().root(), vec![1; 3], 5), id, 0));
        kv.release_ended(&mut seqs[0], 7);
        kv.release_at_once(&mut seqs[1], 7);
        assert!(kv.has_freed_early() && kv.preemptions_wait());
        kv.free_retired(7);
        assert!(!kv.has_freed_early() && !kv.preemptions_wait() && !kv.copies_wait());
    }
}
