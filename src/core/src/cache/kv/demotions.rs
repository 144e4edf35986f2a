//! Demotions from the device: blocks on their way from the prefix tree to a tier, found until the end of the copy.
//!
//! A block being demoted is out of the tree, so that the blocks before it can follow. Its contents stay on the device until the
//! transfer ends. A prompt that continues with the block takes it back into the tree; the transfer then reads the prefix up to the
//! block like a sequence, so that nobody rewrites the block before the transfer ends. If the transfer fails, the block goes back into
//! the tree, unless the block before it is gone.

use std::collections::BTreeMap;

use super::Kv;
use crate::blocks::block::BlockState;
use crate::blocks::entries::Entries;
use crate::blocks::hash::BlockHash;
use crate::cache::group_blocks::Placed;
use crate::cache::transfer_table::{BlockPair, InFlight, Kept, TransferEnd};
use crate::cache::tree::Parent;
use crate::names::ids::BlockHandle;
use crate::request::sequence::Sequence;

/// Blocks being demoted, to be taken back by fingerprint.
#[derive(Debug, Default)]
pub(super) struct Demotions(BTreeMap<u64, Demotion>);

/// A block being demoted.
#[derive(Clone, Copy, Debug)]
struct Demotion {
    block: BlockHandle,
    /// Place in the tree when the demotion began.
    parent: Parent,
    /// Id of the transfer, and index of the block's pair.
    transfer: u64,
    at: usize,
}

impl Demotions {
    /// Notes a block to be demoted by the transfer with this id, as pair number `at`. Of two blocks with one fingerprint the first can be found.
    pub fn begin(&mut self, fingerprint: u64, block: BlockHandle, parent: Parent, transfer: u64, at: usize) {
        self.0.entry(fingerprint).or_insert(Demotion { block, parent, transfer, at });
    }

    /// Forgets a block, which was taken back or whose transfer ended. Returns the note on the block if there was one.
    fn end(&mut self, fingerprint: u64, block: BlockHandle) -> Option<Demotion> {
        let noted = *self.0.get(&fingerprint).filter(|demotion| demotion.block == block)?;
        self.0.remove(&fingerprint);
        Some(noted)
    }

    /// Forgets all blocks: none can be found or taken back any more.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl Kv {
    /// Looks up blocks being demoted after the blocks `found` of a sequence, into `reviving`.
    pub(super) fn find_demoting(&mut self, seq: &Sequence) {
        self.reviving.clear();
        if self.demoting.0.is_empty() {
            return;
        }
        let mut before = self.tiers.prefix(seq.cold.root, self.found.last());
        let blocks = self.findable(seq).iter().zip(seq.tokens().chunks_exact(self.block_size as usize));
        for (hash, tokens) in blocks.skip(self.found.len()) {
            let Some(Demotion { block, .. }) = self.demoting.0.get(&hash.fingerprint()) else { break };
            let is_next = self.tiers.prefix_before(block.index) == before && self.tree.contents(*block).1 == tokens;
            if !is_next || self.tree.contains(*hash) {
                break;
            }
            before = self.tiers.prefix(seq.cold.root, Some(block.index));
            self.reviving.push(*block);
        }
        self.cut_reviving();
    }

    /// Cuts the blocks `reviving` to where every group has what the tokens behind read.
    fn cut_reviving(&mut self) {
        let n = self.groups.n();
        if n > 0 && !self.reviving.is_empty() {
            let first = vec![true; self.reviving.len()];
            let mut moving = Entries { first, others: vec![false; self.reviving.len() * n] };
            for (at, block) in self.reviving.iter().enumerate() {
                let noted = self.demoting.0.get(&self.tree.contents(*block).0).expect("the block was found there");
                let of_groups = self.demoted_in_groups(noted.transfer, noted.at);
                of_groups.for_each(|(_, placed)| moving.set(at, placed.group, true));
            }
            let has = |at, group| moving.has(at, group);
            let usable = self.groups.usable_behind(self.found.len(), self.reviving.len(), has);
            self.reviving.truncate(usable);
        }
    }

    /// Takes the blocks `reviving` back into the tree after the blocks of a table, in the namespace of `root`, and appends them.
    pub(super) fn revive(&mut self, root: BlockHash, table: &mut Vec<BlockHandle>) {
        // The longest prefix that ends with a block of each transfer, and the pairs of those blocks.
        let mut prefixes: BTreeMap<u64, (usize, Vec<usize>)> = BTreeMap::new();
        for block in std::mem::take(&mut self.reviving) {
            let noted = self.demoting.end(self.tree.contents(block).0, block).expect("it was found there");
            self.tree.readopt(block, Parent::of(root, table));
            table.push(block);
            let (len, revived) = prefixes.entry(noted.transfer).or_default();
            *len = table.len();
            revived.push(noted.at);
        }
        for (transfer, (len, revived)) in prefixes {
            let reads = self.revive_in_groups(transfer, &revived);
            let kept = Kept { chain: table[..len].to_vec(), sources: revived.len() as u32, reads };
            kept.chain.iter().for_each(|block| self.tree.share(*block));
            self.transfers.keep(transfer, kept);
        }
    }

    /// Returns the number of device blocks freed by the end of a demotion: the blocks not taken back.
    pub fn freed_by_demotion(&self, transfer: &InFlight) -> u32 {
        let back = |kept: &Kept| kept.sources + kept.reads.len() as u32;
        transfer.pairs.len() as u32 - transfer.purpose.kept().iter().map(back).sum::<u32>()
    }

    /// Returns the number of device blocks freed by the demotions in flight.
    pub fn demoting_blocks(&self) -> u32 {
        self.transfers.device_demotions().map(|transfer| self.freed_by_demotion(transfer)).sum()
    }

    /// Returns the number of device blocks freed in time by demotions in flight.
    pub(super) fn free_after_demotions(&self) -> u32 {
        let in_time = self.transfers.device_demotions().filter(|transfer| !transfer.is_overdue);
        in_time.map(|transfer| self.freed_by_demotion(transfer)).sum()
    }

    /// Ends a demotion: blocks that arrived and were not taken back are freed. Those that did not arrive go back into the
    /// tree if the block before is there.
    pub(super) fn end_device_demotion(
        &mut self,
        pairs: &[BlockPair],
        kept: Vec<Kept>,
        places: &[Placed],
        end: &TransferEnd,
    ) {
        // Blocks were taken out of the tree tail first.
        for (at, pair) in pairs.iter().enumerate().rev() {
            if self.tree.pool().state(pair.from) != BlockState::Moving {
                continue;
            }
            let block = self.tree.pool().handle(pair.from);
            if places[at].group > 0 {
                self.end_demotion_in_group(block, places[at]);
                continue;
            }
            let noted = self.demoting.end(self.tree.contents(block).0, block);
            let failed = end.fault(at).is_some();
            match noted.filter(|noted| failed && self.tree.can_readopt(block, noted.parent)) {
                Some(Demotion { parent, .. }) => self.tree.restore(block, parent),
                None => self.tree.end_demotion(pair.from),
            }
        }
        for Kept { mut chain, reads, .. } in kept {
            let n = chain.len();
            self.leave_read(reads);
            self.tree.release(&mut chain, n);
        }
        self.free_left();
    }
}
