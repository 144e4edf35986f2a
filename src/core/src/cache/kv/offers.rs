//! Offers: chains of ended requests that have not reached the tier behind the first one.
//!
//! A small first tier is a passage to the tier behind it: while it is full of blocks on their way, it refuses others, and a tier that is busy
//! refuses what arrives in front of it. So the chain of a request stays on a list until all its blocks are in the second tier, or the
//! device has evicted them. After each transfer that ends well the oldest chain goes on: blocks in the first tier are copied to the second, and
//! the next ones from the device to the first.
//!
//! A block that the first tier evicts on the way is copied there again. Each try counts, [`TRIES_MAX`] at most, so that tiers that keep nothing
//! begin no endless round of copies, and no chain holds up the others for ever.

use std::collections::VecDeque;

use super::Kv;
use crate::cache::group_blocks::Placed;
use crate::cache::transfer_table::Sources;
use crate::config::Write;
use crate::journal::Journal;
use crate::names::ids::BlockHandle;

/// Blocks of all chains, at most; the oldest chain goes first.
const BLOCKS_MAX: usize = 1 << 16;
/// Tries to bring a block to the second tier, at most.
const TRIES_MAX: u8 = 4;
/// Blocks of a chain looked at after one transfer.
const LOOKED_AT_MAX: usize = 1024;

/// A block of an ended request.
#[derive(Clone, Copy, Debug)]
struct Offered {
    node: BlockHandle,
    /// Tries that are left; 0 once the block was seen in the second tier: it is not offered again if that tier has evicted it.
    tries_left: u8,
}

/// The prefix of an ended request.
#[derive(Debug)]
struct Offer {
    chain: Vec<Offered>,
    /// Leading blocks that have passed.
    passed: usize,
    /// Leading blocks that are in the first tier, or were copied there, or need not be.
    written: usize,
}

impl Offer {
    /// Returns the blocks to look at, with their places in the chain.
    fn window(&self) -> impl Iterator<Item = (usize, BlockHandle)> + '_ {
        let rest = self.chain.iter().enumerate().skip(self.passed).take(LOOKED_AT_MAX);
        rest.filter(|(_, block)| block.tries_left > 0).map(|(at, block)| (at, block.node))
    }

    /// Cuts the chain to its first blocks.
    fn cut(&mut self, blocks: usize) {
        self.chain.truncate(blocks);
        (self.passed, self.written) = (blocks.min(self.passed), blocks.min(self.written));
    }
}

/// Chains that have not reached the second tier, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Offers {
    queue: VecDeque<Offer>,
    /// Blocks of all chains.
    blocks: usize,
}

impl Offers {
    /// Adds a chain. Returns the number of blocks given up for it, of the oldest chains.
    fn push(&mut self, chain: &[BlockHandle]) -> usize {
        let mut given_up = 0;
        self.blocks += chain.len();
        let chain = chain.iter().map(|node| Offered { node: *node, tries_left: TRIES_MAX }).collect();
        self.queue.push_back(Offer { chain, passed: 0, written: 0 });
        while self.blocks > BLOCKS_MAX {
            given_up += self.take_first().map_or(0, |offer| offer.chain.len());
        }
        given_up
    }

    fn take_first(&mut self) -> Option<Offer> {
        let first = self.queue.pop_front()?;
        self.blocks -= first.chain.len();
        Some(first)
    }

    fn put_first(&mut self, offer: Offer) {
        self.blocks += offer.chain.len();
        self.queue.push_front(offer);
    }
}

impl Kv {
    /// Returns `true` if blocks that arrive in the first tier go on to the second one.
    fn passes_on(&self) -> bool {
        matches!(self.tiers.write(1), Some(Write::Through | Write::Prefill)) && self.tiers.write(0) != Some(Write::Back)
    }

    /// Puts the chain of an ended request on the list if a block of it is not in the second tier.
    pub(super) fn offer(&mut self, chain: &[BlockHandle]) {
        if self.passes_on() && chain.iter().any(|node| !self.is_everywhere_in(1, *node)) {
            let given_up = self.offers.push(chain);
            self.tiers.skip(1, given_up);
        }
    }

    /// Lets the oldest chains go on as far as the tiers take blocks now.
    pub(super) fn go_on_with_offers(&mut self, journal: &mut Journal) {
        while !self.copies_wait() && self.is_open(1) {
            let Some(mut offer) = self.offers.take_first() else { return };
            self.cut_evicted(&mut offer);
            let passed = offer.passed;
            self.see_where(&mut offer);
            if offer.passed > passed {
                // What is looked at now reaches farther.
                self.cut_evicted(&mut offer);
            }
            self.copy_on(&mut offer, journal);
            self.write_next(&mut offer, journal);
            if offer.passed < offer.chain.len() {
                self.offers.put_first(offer);
                return;
            }
        }
    }

    /// Notes the blocks that are in the second tier, and those that the first has evicted before they got there.
    fn see_where(&self, offer: &mut Offer) {
        let window: Vec<(usize, BlockHandle)> = offer.window().collect();
        for (at, node) in window {
            if self.is_present_in_second(node) {
                offer.chain[at].tries_left = 0;
            } else if at < offer.written && !self.is_everywhere_in(0, node) && !self.is_everywhere_in(1, node) {
                offer.chain[at].tries_left -= 1;
                offer.written = at;
            }
        }
        offer.passed += offer.chain[offer.passed..].iter().take_while(|block| block.tries_left == 0).count();
    }

    /// Cuts a chain to the blocks that are still on the device.
    fn cut_evicted(&self, offer: &mut Offer) {
        let looked_at = offer.chain.iter().skip(offer.passed).take(LOOKED_AT_MAX);
        // A block is evicted after those behind it, or with them.
        if let Some(at) = looked_at.map(|block| block.node).position(|node| self.is_gone(node)) {
            offer.cut(offer.passed + at);
        }
    }

    fn is_gone(&self, node: BlockHandle) -> bool {
        !self.tree.is_published(node) || !self.tree.is_findable(node)
    }

    /// Returns `true` if a tier has, or is about to get, the blocks of an entry in all groups.
    fn is_everywhere_in(&self, tier: usize, node: BlockHandle) -> bool {
        self.places_of(node).all(|placed| self.holder(tier, placed).is_some())
    }

    fn is_present_in_second(&self, node: BlockHandle) -> bool {
        let is_present = |placed| self.holder(1, placed).is_some_and(|block| self.tiers.is_present(1, block));
        self.places_of(node).all(is_present)
    }

    fn places_of(&self, node: BlockHandle) -> impl Iterator<Item = Placed> + '_ {
        self.all_groups().map(move |group| Placed { node, group }).filter(|placed| self.block_at(*placed).is_some())
    }

    /// Returns the block of a tier with, or for, the contents of a place.
    fn holder(&self, tier: usize, placed: Placed) -> Option<u32> {
        self.tiers.holder(tier, &self.tiers.contents_on_device(&self.tree, placed))
    }

    /// Copies the blocks of a chain that are in the first tier alone to the second one.
    fn copy_on(&mut self, offer: &mut Offer, journal: &mut Journal) {
        let (mut near, mut copied) = (Vec::new(), Vec::new());
        for (at, node) in offer.window() {
            let before = near.len();
            let lacking = self.places_of(node).filter(|placed| self.holder(1, *placed).is_none());
            near.extend(lacking.filter_map(|placed| self.holder(0, placed)));
            copied.extend((near.len() > before).then_some(at));
        }
        copied.into_iter().for_each(|at| offer.chain[at].tries_left -= 1);
        self.propagate(0, 1, near.into_iter().rev(), journal);
    }

    /// Copies the next blocks of a chain to the first tier, as many as it has room for.
    fn write_next(&mut self, offer: &mut Offer, journal: &mut Journal) {
        if !self.is_open(0) || self.tiers.is_saturated(1) {
            return;
        }
        let (mut sources, first, mut end) = (Sources::default(), offer.written, 0);
        for Offered { node, .. } in offer.chain.iter().skip(first).take(LOOKED_AT_MAX) {
            if self.is_gone(*node) || !self.can_follow(*node) {
                break;
            }
            let before = sources.pairs.len();
            let passes = self.is_everywhere_in(1, *node);
            if !passes {
                self.write_entry(*node, self.all_groups(), &mut sources);
            }
            let (is_copied, fits) = (sources.pairs.len() > before, passes || self.is_everywhere_in(0, *node));
            offer.written += usize::from(is_copied || fits);
            end = if is_copied { offer.written } else { end };
            if !fits {
                break;
            }
        }
        let chain: Vec<BlockHandle> = offer.chain[..end].iter().map(|block| block.node).collect();
        self.begin_write_reading(&chain, sources, journal);
    }
}
