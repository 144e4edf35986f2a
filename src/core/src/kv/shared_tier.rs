//! Look-ups in a shared tier for requests about to be admitted.

use super::Kv;
use super::tier_copies::tier_place;
use crate::digest::Decision;
use crate::hash::BlockHash;
use crate::journal::Journal;
use crate::lookups::BLOCKS_MAX;
use crate::sequence::Sequence;

/// Bit in the digest of a look-up with requests that wait.
const AWAITED: u64 = 1 << 63;

impl Kv {
    /// Looks up the blocks of a waiting sequence behind all blocks known of its prompt, once for each sequence, if the answer may
    /// pay. MUST follow [`Self::find`] for the sequence. Returns the hash under which to wait for the answer; `None` if there is
    /// nothing to wait for, or waiting is not expected to pay.
    pub fn look_up(&mut self, seq: &mut Sequence, journal: &mut Journal) -> Option<BlockHash> {
        let tier = self.tiers.shared()?;
        if seq.cold.history.looked_up {
            return None;
        }
        self.plan_all(seq);
        let known = self.hit() + self.plan.len();
        let first = *self.findable(seq).get(known)?;
        if self.lookups.is_pending(first) {
            return self.lookups.is_awaited(first).then_some(first);
        }
        let now_ns = self.transfers.now_ns;
        if self.transfers.is_stuck(tier_place(tier)) || !self.lookups.is_open(now_ns) {
            return None;
        }
        seq.cold.history.looked_up = true;
        let blocks = (self.findable(seq).len() - known).min(BLOCKS_MAX);
        let links = &mut self.transfers.links;
        let (saved_ns, compute_ns) = (links.saved_ns(tier, blocks), links.compute_ns(blocks));
        if saved_ns <= 0.0 {
            links.passed_over(tier);
            return None;
        }
        let size = self.block_size as usize;
        let tokens = &seq.tokens()[known * size..][..blocks * size];
        let chain = self.findable(seq)[known..].iter().zip(tokens.chunks_exact(size));
        let keys = self.tiers.keys_behind(seq.cold.root, self.last_on_device(), self.plan.last().copied(), chain);
        let is_awaited = self.lookups.pays(saved_ns);
        // Waiting for longer than computing takes would cost more than computing at once.
        let due_ns = now_ns.saturating_add(compute_ns as u64);
        let contents = (keys, tokens.to_vec());
        let id = self.lookups.begin(tier as u8, first, contents, (now_ns, due_ns), is_awaited);
        self.tiers.count_looked_up(tier, blocks);
        journal.decide(Decision::Lookup, id | if is_awaited { AWAITED } else { 0 }, blocks as u64);
        journal.digest.fold(first.0 as u64);
        is_awaited.then_some(first)
    }

    /// Ends a look-up: the blocks found can be loaded. Returns the hash under which requests wait. `None` for an id of no look-up in
    /// flight.
    pub fn end_lookup(&mut self, id: u64, found: u32, journal: &mut Journal) -> Option<BlockHash> {
        let pending = self.lookups.end(id, found, self.transfers.now_ns)?;
        journal.decide(Decision::LookupEnded, id, found.into());
        let found = pending.keys.len().min(found as usize);
        if let Some(tier) = self.tiers.shared().filter(|_| found > 0) {
            let tokens = found * self.block_size as usize;
            self.tiers.take_in(tier, &pending.keys[..found], &pending.tokens[..tokens]);
        }
        Some(pending.first)
    }

    /// Ends the wait for a look-up that is due by now. Returns the hash under which requests wait for the look-up.
    pub fn take_overdue_lookup(&mut self, journal: &mut Journal) -> Option<BlockHash> {
        let (id, first) = self.lookups.take_overdue(self.transfers.now_ns)?;
        journal.decide(Decision::LookupOverdue, id, 0);
        Some(first)
    }
}
