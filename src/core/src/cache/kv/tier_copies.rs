//! Transfers between the device and the tiers, and among the tiers.

use std::ops::Range;

use trunkline_port::{BlockFault, BlockKey, KnownBlock};

use super::Kv;
use crate::Place;
use crate::blocks::block::BlockState;
use crate::blocks::entries::Hole;
use crate::cache::group_blocks::Placed;
use crate::cache::tiers::PlannedBlock;
use crate::cache::transfer_table::{
    BlockPair, InFlight, Orphan, Purpose, Sources, TransferEnd, fold_pairs, in_groups, read_in_groups,
};
use crate::config::Write;
use crate::journal::Journal;
use crate::journal::digest::Decision;
use crate::names::ids::{BlockHandle, Token};
use crate::request::sequence::{Load, Sequence};

/// Maximum number of blocks of each layer group in one transfer begun ahead of need.
const AHEAD_MAX: usize = 1024;

/// Time that a request runs, or runs on, until its blocks so far are copied to a tier that takes blocks as they come, nanoseconds: what a
/// server that is killed loses of an answer.
const WRITE_AFTER_NS: u64 = 5_000_000_000;

/// Returns the number of a place in the digest: 0 for the device, 1 on for the tiers.
fn place_number(place: Place) -> u64 {
    match place {
        Place::Device => 0,
        Place::Host => unreachable!("host blocks are copied by swaps only"),
        Place::Tier(tier) => 1 + u64::from(tier),
    }
}

/// Returns the place of the `tier`-th tier, from 0.
pub(super) fn tier_place(tier: usize) -> Place {
    Place::Tier(tier as u8)
}

impl Kv {
    /// Returns the occasion on which a tier takes blocks. `None` if there is no such tier, a transfer of the tier is overdue, or the tier
    /// refused blocks and is still busy.
    fn open_write(&self, tier: usize) -> Option<Write> {
        self.tiers.write(tier).filter(|_| self.is_open(tier))
    }

    /// Returns `true` if a tier can take blocks now.
    pub(super) fn is_open(&self, tier: usize) -> bool {
        let place = tier_place(tier);
        let is_free = !self.transfers.is_stuck(place) && !self.transfers.pauses(Place::Device, place);
        is_free && (!self.tiers.is_saturated(tier) || !self.transfers.is_writing(place))
    }

    /// Returns `true` if a tier takes blocks due for eviction: by its rule, or because it refused blocks when they came.
    fn saves_evicted(&self, tier: usize) -> bool {
        let write = self.open_write(tier);
        write == Some(Write::Back) || (write.is_some() && self.tiers.owes(tier))
    }

    /// Takes in blocks that a tier holds from before this core began.
    pub fn adopt_tier(&mut self, tier: u8, blocks: &[KnownBlock], journal: &mut Journal) {
        let adopted = self.tiers.adopt(tier.into(), blocks);
        journal.decide(Decision::TierFound, tier.into(), adopted.len() as u64);
        adopted.iter().for_each(|known| journal.digest.fold(known.key.hash as u64));
    }

    /// Takes in further blocks that a tier holds from before this core began. Returns the number of each with its slot, if it has got one.
    pub fn adopt_later(&mut self, tier: u8, blocks: &[KnownBlock], journal: &mut Journal) -> Vec<(u32, Option<u32>)> {
        let slots = self.tiers.adopt_later(tier.into(), blocks);
        journal.decide(Decision::TierFoundLater, tier.into(), slots.iter().flatten().count() as u64);
        for (known, slot) in blocks.iter().zip(&slots).filter_map(|(known, slot)| Some((known, (*slot)?))) {
            journal.digest.fold(known.key.hash as u64);
            journal.digest.fold(slot.into());
        }
        blocks.iter().zip(slots).map(|(known, slot)| (known.block, slot)).collect()
    }

    /// Sets the number of blocks that fit in a tier.
    pub fn resize_tier(&mut self, tier: u8, blocks: u32, journal: &mut Journal) {
        journal.decide(Decision::TierResized, tier.into(), blocks.into());
        self.tiers.resize(tier.into(), blocks);
    }

    /// Begins a transfer from or to a tier, unless `pairs` is empty.
    fn begin_tier_copy(
        &mut self,
        from: Place,
        to: Place,
        pairs: Vec<BlockPair>,
        purpose: Purpose,
        journal: &mut Journal,
    ) {
        if pairs.is_empty() {
            return;
        }
        if let Place::Tier(tier) = to {
            self.tiers.begin_store(tier as usize, pairs.len());
        }
        journal.decide(Decision::Copy, place_number(from) << 8 | place_number(to), pairs.len() as u64);
        fold_pairs(&mut journal.digest, &pairs);
        let contents = self.contents(from, &pairs, purpose.places());
        let computed = match purpose {
            Purpose::Load { .. } => self.plan.len(),
            _ => (pairs.len() - in_groups(purpose.places()).count()).max(1),
        };
        self.transfers.begin(from, to, pairs, purpose, computed, contents);
    }

    /// Returns the identities and the tokens of the sources of a transfer from or to a tier.
    fn contents(&self, from: Place, pairs: &[BlockPair], places: &[Placed]) -> (Vec<BlockKey>, Vec<Token>) {
        let mut keys = Vec::with_capacity(pairs.len());
        let says_tokens = self.tiers.says_tokens();
        let mut tokens = Vec::with_capacity(if says_tokens { pairs.len() * self.block_size as usize } else { 0 });
        for (at, pair) in pairs.iter().enumerate() {
            let contents = match from {
                Place::Tier(tier) => self.tiers.contents(tier as usize, pair.from),
                _ => self.tiers.contents_on_device(&self.tree, places[at]),
            };
            keys.push(contents.key);
            if says_tokens {
                tokens.extend_from_slice(contents.tokens);
            }
        }
        (keys, tokens)
    }

    /// Begins to copy the first `computed` published blocks of an ended request to the first tier, if the tier takes blocks now. The
    /// transfer then holds the blocks instead of the request.
    pub fn write_through(&mut self, seq: &mut Sequence, computed: usize, journal: &mut Journal) {
        let published = seq.published as usize;
        let pinned = self.asked_to_pin(seq, published);
        let Some(write) = self.tiers.write(0).filter(|write| *write != Write::Back || pinned > 0) else { return };
        if seq.table[..published].first().is_some_and(|first| !self.tree.is_findable(*first)) {
            return;
        }
        let is_open = self.is_open(0);
        let (mut sources, mut skipped, mut end) = (Sources::default(), 0, 0);
        for (at, block) in seq.table[..computed].iter().enumerate() {
            // Blocks after this one were found at most as often.
            let is_left_out = match write {
                Write::Back => true,
                Write::SecondUse => self.tree.hits(*block) == 0,
                Write::Through | Write::Prefill => false,
            };
            if is_left_out && at >= pinned {
                break;
            }
            if !self.can_follow(*block) {
                break;
            }
            if is_open {
                self.write_entry(*block, self.all_groups(), &mut sources);
            } else {
                skipped += self.count_lacking(*block);
            }
            end += 1;
        }
        self.tiers.skip(0, skipped);
        self.offer(&seq.table[..end]);
        if sources.pairs.is_empty() {
            return;
        }
        self.claim(seq);
        self.release_groups(seq, 0);
        let mut private = seq.table.split_off(published);
        self.tree.release(&mut private, 0);
        let chain = std::mem::take(&mut seq.table);
        seq.published = 0;
        // Tail first, so that the tail falls idle in the tier, and is evicted there, before the blocks that lead to it.
        let is_awaited = seq.cold.continues && self.tiers.shared() == Some(0);
        self.begin_write(sources.reversed(), chain, is_awaited, journal);
    }

    /// Returns `true` if a running sequence has not had its blocks copied to the first tier for [`WRITE_AFTER_NS`], and the tier takes blocks
    /// as they come.
    pub fn is_write_due(&self, seq: &Sequence) -> bool {
        let is_late = || self.transfers.now_ns - seq.cold.history.written_ns >= WRITE_AFTER_NS;
        matches!(self.tiers.write(0), Some(Write::Through | Write::Prefill)) && is_late()
    }

    /// Begins to copy the blocks that a running request has published since the last time, up to the `computed`-th, to the first tier. The request
    /// reads on. What the tier refuses or drops meanwhile is offered again at the end of the request.
    pub fn write_running(&mut self, seq: &mut Sequence, computed: usize, journal: &mut Journal) {
        seq.cold.history.written_ns = self.transfers.now_ns;
        let chain = &seq.table[..computed];
        if !self.is_open(0) || chain.first().is_none_or(|first| !self.tree.is_findable(*first)) {
            return;
        }
        let mut sources = Sources::default();
        let mut written = seq.cold.history.written.min(computed as u32);
        for block in chain[written as usize..].iter().copied() {
            if !self.can_follow(block) {
                break;
            }
            self.write_entry(block, self.all_groups(), &mut sources);
            written += 1;
        }
        self.begin_write_reading(chain, sources, journal);
        seq.cold.history.written = written;
    }

    /// Begins a copy to the first tier that reads a chain along with its sequence, unless there is nothing to copy.
    pub(super) fn begin_write_reading(&mut self, chain: &[BlockHandle], sources: Sources, journal: &mut Journal) {
        if sources.pairs.is_empty() {
            return;
        }
        chain.iter().for_each(|block| self.tree.share(*block));
        self.begin_write(sources.reversed(), chain.to_vec(), false, journal);
    }

    /// Begins a copy to the first tier that reads a chain.
    fn begin_write(&mut self, sources: Sources, chain: Vec<BlockHandle>, is_awaited: bool, journal: &mut Journal) {
        let Sources { pairs, places } = sources;
        let purpose = Purpose::WriteThrough { chain, places, is_awaited };
        self.begin_tier_copy(Place::Device, Place::Tier(0), pairs, purpose, journal);
    }

    /// Begins to copy cached blocks of the groups after the first to the nearest tier, before a sequence drops `entries` from its tables: such
    /// a block may be evicted while the block of the first group is still read, and the prefix is of no use without it.
    pub fn save_dropped(&mut self, seq: &Sequence, entries: &[Range<usize>], journal: &mut Journal) {
        let published = seq.published as usize;
        let Some(write) = self.tiers.write(0).filter(|_| self.is_open(0)) else { return };
        if seq.table[..published].first().is_none_or(|first| !self.tree.is_findable(*first)) {
            return;
        }
        let (mut sources, mut end) = (Sources::default(), 0);
        for at in entries.iter().cloned().flatten().take_while(|at| *at < published) {
            let node = seq.table[at];
            if write == Write::SecondUse && self.tree.hits(node) == 0 {
                break;
            }
            self.write_entry(node, self.groups.numbers(), &mut sources);
            end = at + 1;
        }
        // The blocks of the first group stay in the tree until the end of the copy.
        self.begin_write_reading(&seq.table[..end], sources, journal);
    }

    /// Copies the blocks that hints demote to the nearest tier, if there is one that takes blocks now. `running` requests each keep a block, so that a
    /// decode need not wait for a transfer.
    pub fn demote_hinted(&mut self, running: u32, journal: &mut Journal) {
        let demoted = self.tree.n_demoted();
        if demoted == 0 || self.tiers.is_empty() || self.copies_wait() || !self.is_open(0) {
            return;
        }
        let pool = self.tree.pool();
        let spare = (pool.count(BlockState::Free) + pool.count(BlockState::Idle)).saturating_sub(running);
        self.demote_from_device((demoted.min(spare) * self.entry_blocks()) as usize, journal);
    }

    /// Copies blocks due for eviction to the next tier, if the next tier takes the blocks. `running` requests each keep an idle
    /// block, so that a decode need not wait for a transfer.
    pub fn write_back(&mut self, running: u32, journal: &mut Journal) {
        if self.saves_evicted(0) {
            let free = self.tree.pool().count(BlockState::Free) + self.free_after_demotions();
            let idle = self.tree.pool().count(BlockState::Idle).saturating_sub(running);
            let n = self.tiers.device_spare().saturating_sub(free).min(idle);
            self.demote_from_device(n as usize, journal);
        }
        for tier in 1..self.tiers.len() {
            if self.saves_evicted(tier) && !self.transfers.is_stuck(tier_place(tier - 1)) {
                let n = self.tiers.missing_spare(tier - 1);
                self.demote_from_tier(tier - 1, n as usize, journal);
            }
        }
    }

    /// Returns `true` if [`Self::write_back`] or [`Self::demote_hinted`] may copy blocks before any request needs some.
    pub fn writes_back(&self) -> bool {
        self.tiers.writes_back() || (!self.tiers.is_empty() && self.tree.n_demoted() > 0)
    }

    fn demote_from_device(&mut self, n: usize, journal: &mut Journal) {
        debug_assert!(n == 0 || !self.copies_wait(), "a step in flight may still write cached blocks");
        let (mut sources, mut left) = (Sources::default(), Vec::new());
        for _ in 0..n.div_ceil(self.entry_blocks() as usize).min(AHEAD_MAX) {
            let Some((block, parent, pin)) = self.tree.begin_demotion() else { break };
            if self.demote_entry(block, pin, &mut sources) {
                let (fingerprint, at) = (self.tree.contents(block).0, sources.pairs.len() - 1);
                self.demoting.begin(fingerprint, block, parent, self.transfers.next_id(), at);
            } else {
                left.push(block.index);
            }
        }
        let Sources { pairs, places } = sources;
        let purpose = Purpose::Demotion { kept: Vec::new(), places };
        self.begin_tier_copy(Place::Device, Place::Tier(0), pairs, purpose, journal);
        // Until here their contents name those of the other groups' blocks.
        left.into_iter().for_each(|block| self.tree.end_demotion(block));
    }

    fn demote_from_tier(&mut self, tier: usize, n: usize, journal: &mut Journal) {
        let mut pairs = Vec::new();
        for _ in 0..n.min(AHEAD_MAX * self.entry_blocks() as usize) {
            let Some((from, to)) = self.tiers.begin_demotion(tier) else { break };
            pairs.extend(to.map(|to| BlockPair { from, to }));
        }
        let purpose = Purpose::Demotion { kept: Vec::new(), places: Vec::new() };
        self.begin_tier_copy(tier_place(tier), tier_place(tier + 1), pairs, purpose, journal);
    }

    /// Copies blocks of one tier to another tier, for the blocks the other tier takes.
    pub(super) fn propagate(
        &mut self,
        from: usize,
        to: usize,
        blocks: impl Iterator<Item = u32>,
        journal: &mut Journal,
    ) {
        if self.transfers.is_stuck(tier_place(from)) || !self.is_open(to) {
            return;
        }
        let mut pairs = Vec::new();
        for block in blocks {
            let reserved = self.tiers.begin_propagation(from, to, block);
            pairs.extend(reserved.map(|to| BlockPair { from: block, to }));
        }
        self.begin_tier_copy(tier_place(from), tier_place(to), pairs, Purpose::Propagation, journal);
    }

    /// Copies blocks found in a tier, or arrived there, to the tier behind, if the tier behind takes blocks on this occasion.
    fn propagate_on(&mut self, tier: usize, blocks: impl Iterator<Item = u32>, occasion: Write, journal: &mut Journal) {
        let write = self.tiers.write(tier + 1);
        // Behind the first tier, `prefill` is `through`.
        if write.map(|write| if write == Write::Prefill { Write::Through } else { write }) == Some(occasion) {
            self.propagate(tier, tier + 1, blocks, journal);
        }
    }

    /// Plans the load of a waiting sequence: the blocks in tiers that continue its blocks `found` on the device, as far as loading takes
    /// less time than computing. Tiers with overdue transfers are left out. Returns `true` if the plan has a block.
    pub fn plan_load(&mut self, seq: &Sequence) -> bool {
        self.passed_over = None;
        self.plan_all(seq);
        let worthwhile = self.transfers.links.worthwhile(self.planned_copies());
        let after = self.plan.first.get(worthwhile).map(|planned| (planned.tier, self.plan.len() - worthwhile));
        if worthwhile < self.plan.len() {
            self.cut_plan(worthwhile);
        }
        self.passed_over = after.filter(|_| self.plan.len() <= worthwhile);
        !self.plan.is_empty()
    }

    /// Plans the load of a prefetch, as [`Self::plan_load`], as far as `room` blocks hold it. Returns `true` if the plan has a block.
    pub fn plan_prefetch(&mut self, seq: &Sequence, room: u32) -> bool {
        self.plan_load(seq);
        self.passed_over = None;
        let fits = (room / self.entry_blocks()) as usize;
        if self.plan.len() > fits {
            self.plan.split_off(fits);
            self.plan_groups();
        }
        !self.plan.is_empty()
    }

    /// Returns the number of entries that the last plan loads.
    pub fn planned(&self) -> u32 {
        self.plan.len() as u32
    }

    /// Plans all blocks in tiers that continue the blocks of a sequence found on the device. Tiers with overdue transfers are left out.
    pub(super) fn plan_all(&mut self, seq: &Sequence) {
        self.plan.first.clear();
        self.plan.others.clear();
        if self.tiers.is_empty() {
            return;
        }
        let is_open = std::array::from_fn(|tier| {
            let place = tier_place(tier);
            !self.transfers.is_stuck(place) && !self.transfers.pauses(place, Place::Device)
        });
        let (hit, last) = (self.hit(), self.last_on_device());
        let blocks = self.findable(seq).iter().zip(seq.tokens().chunks_exact(self.block_size as usize));
        self.tiers.plan(seq.cold.root, last, is_open, blocks.skip(hit), &mut self.plan.first);
        self.plan_groups();
    }

    /// Returns the last block of the prefix found on the device.
    pub(super) fn last_on_device(&self) -> Option<u32> {
        self.reviving.last().map(|block| block.index).or(self.found.last())
    }

    /// Takes note that the sequence of the last plan was admitted.
    pub fn admitted(&mut self) {
        if let Some((tier, blocks)) = self.passed_over.take() {
            self.transfers.links.passed_over(tier, blocks);
        }
    }

    /// Returns `true` if there is a tier behind the nearest one, to prefetch from.
    pub fn can_prefetch(&self) -> bool {
        self.tiers.len() > 1
    }

    /// Copies planned blocks in far tiers to the nearest one, for a request that has no room on the device yet.
    pub fn prefetch(&mut self, journal: &mut Journal) {
        for from in 1..self.tiers.len() {
            let in_tier = |planned: &PlannedBlock| planned.tier == from;
            let there: Vec<u32> = (0..self.plan.len())
                .flat_map(|at| self.plan.part(at..at + 1))
                .filter(in_tier)
                .map(|planned| planned.block)
                .take(AHEAD_MAX * self.entry_blocks() as usize)
                .collect();
            self.propagate(from, 0, there.into_iter().rev(), journal);
        }
    }

    /// Plans the load of all blocks in tiers that continue the blocks of a sequence found on the device. Returns the number of leading ones to
    /// compute while the others are loaded; 0 for no such plan.
    pub fn plan_head(&mut self, seq: &Sequence) -> usize {
        self.plan_all(seq);
        self.transfers.links.head(self.plan.len(), self.plan.first.iter().rev().map(|planned| planned.tier))
    }

    /// Leaves the first `n` entries out of the plan: they are computed.
    pub fn leave_out(&mut self, n: usize) {
        self.plan.split_front(n);
    }

    /// Begins the transfers of the plan into the entries from `first` on of the sequence in `slot`, which was just admitted with room for all its
    /// tokens.
    pub fn begin_load(&mut self, slot: usize, seq: &Sequence, first: usize, journal: &mut Journal) -> Load {
        debug_assert!(!self.copies_wait(), "a step in flight may still write the blocks of {}", seq.id);
        let blocks = self.plan.len();
        let targets = (first..first + blocks)
            .flat_map(|at| std::iter::once(seq.table[at]).chain(seq.cold.tables.iter().map(move |table| table[at])));
        let planned = (0..blocks).flat_map(|at| self.plan.of_groups(at));
        let copies: Vec<(PlannedBlock, BlockHandle)> =
            planned.zip(targets).filter(|(planned, _)| *planned != PlannedBlock::HOLE).collect();
        copies.iter().for_each(|(_, target)| self.tree.begin_move(*target));
        let mut load = Load { began_ns: self.transfers.now_ns, transfers: 0, filled: self.plan.held() };
        for tier in 0..self.tiers.len() {
            let there = copies.iter().rev().filter(|(planned, _)| planned.tier == tier);
            let pairs: Vec<BlockPair> =
                there.map(|(planned, target)| BlockPair { from: planned.block, to: target.index }).collect();
            if !pairs.is_empty() {
                let hit_by = (seq.cold.history.admissions == 1 || seq.is_prefetch()).then_some(seq.tenant);
                pairs.iter().for_each(|pair| self.tiers.pin_found(PlannedBlock { tier, block: pair.from }, hit_by));
                self.tiers.count_hits(tier, pairs.len());
                load.transfers += 1;
                self.begin_tier_copy(tier_place(tier), Place::Device, pairs, Purpose::Load { slot }, journal);
            }
        }
        load
    }

    /// Ends a transfer from or to a tier: the blocks are released, and copied on where a further tier takes the blocks.
    pub fn end_tier_copy(&mut self, transfer: InFlight, end: &TransferEnd, journal: &mut Journal) {
        let InFlight { from, to, mut pairs, purpose, .. } = transfer;
        let is_load = matches!(purpose, Purpose::Load { .. });
        self.release_pairs(from, to, &pairs, purpose, end);
        if let Place::Tier(tier) = to {
            self.tiers.answered(tier as usize, end.refused());
        }
        let mut at = 0..pairs.len();
        pairs.retain(|_| at.next().is_some_and(|at| end.fault(at).is_none()));
        if let Place::Tier(tier) = to {
            self.tiers.count_stored(tier as usize, pairs.len());
            let (tier, mut arrived) = (usize::from(tier), pairs.iter().map(|pair| pair.to));
            self.propagate_on(tier, arrived.clone(), Write::Through, journal);
            let is_last = tier + 1 == self.tiers.len();
            if !is_last && arrived.any(|block| self.tiers.has_ignored_pin(tier, block)) {
                let ignored = pairs.iter().map(|pair| pair.to).filter(|block| self.tiers.has_ignored_pin(tier, *block));
                self.propagate(tier, tier + 1, ignored.collect::<Vec<u32>>().into_iter(), journal);
            }
        }
        if let (true, Place::Tier(tier)) = (is_load, from) {
            self.propagate_on(tier as usize, pairs.iter().map(|pair| pair.from), Write::SecondUse, journal);
        }
        if *end == TransferEnd::Finished {
            self.go_on_with_offers(journal);
        }
    }

    /// Frees the blocks that an orphaned transfer kept: the transfer ended, or its worker was lost.
    pub fn end_orphan(&mut self, from: Place, to: Place, pairs: &[BlockPair], orphan: Orphan, end: &TransferEnd) {
        let Orphan { mut blocks, published, reads, hosts } = orphan;
        self.leave_read(reads);
        match (from, to) {
            (Place::Tier(tier), _) => self.end_reads(tier as usize, pairs, end),
            (_, Place::Host) => hosts.into_iter().for_each(|host| self.host_fill_failed(host)),
            _ => hosts.into_iter().for_each(|host| self.leave_host(host)),
        }
        self.tree.release(&mut blocks, published);
        self.free_left();
    }

    /// Gives up a transfer from or to a tier that will not be answered.
    pub fn lose_tier_copy(&mut self, transfer: InFlight) {
        let InFlight { from, to, pairs, purpose, .. } = transfer;
        self.release_pairs(from, to, &pairs, purpose, &TransferEnd::Interrupted);
    }

    /// Unpins blocks that a transfer read from a tier. Bad blocks leave the tier, so that nobody loads them again.
    fn end_reads(&mut self, tier: usize, pairs: &[BlockPair], end: &TransferEnd) {
        for (at, pair) in pairs.iter().enumerate() {
            if end.fault(at) == Some(BlockFault::Bad) {
                self.tiers.strike_out(tier, pair.from);
            }
            self.tiers.unpin(tier, pair.from);
        }
    }

    /// Releases the blocks of a transfer that is not in flight any more.
    fn release_pairs(&mut self, from: Place, to: Place, pairs: &[BlockPair], purpose: Purpose, end: &TransferEnd) {
        if let Place::Tier(tier) = to {
            for (at, pair) in pairs.iter().enumerate() {
                self.tiers.end_fill(tier as usize, pair.to, end.fault(at).is_none());
            }
        }
        // Of a copy to a tier that failed as a whole, the source is as likely to be good.
        let is_load = matches!(purpose, Purpose::Load { .. });
        let end = if *end == TransferEnd::Failed && !is_load { &TransferEnd::Interrupted } else { end };
        match (purpose, from) {
            (Purpose::WriteThrough { mut chain, places, .. }, _) => {
                let n = chain.len();
                self.leave_read(read_in_groups(pairs, &places));
                self.tree.release(&mut chain, n);
                self.free_left();
            }
            (Purpose::Demotion { .. }, Place::Tier(tier)) => {
                for (at, pair) in pairs.iter().enumerate() {
                    self.tiers.end_demotion(tier as usize, pair.from, end.fault(at));
                }
            }
            (Purpose::Demotion { kept, places }, _) => self.end_device_demotion(pairs, kept, &places, end),
            (Purpose::Load { .. }, Place::Tier(tier)) => self.end_reads(tier as usize, pairs, end),
            (Purpose::Propagation, Place::Tier(tier)) => self.end_reads(tier as usize, pairs, end),
            (Purpose::Orphaned(_), _) => unreachable!("an orphaned transfer ends with its blocks"),
            (purpose, place) => unreachable!("{purpose:?} copies nothing from {place:?}"),
        }
    }
}
