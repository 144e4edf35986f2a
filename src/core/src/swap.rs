//! Swapping: a sequence's KV goes to the host when others need its blocks, and comes back when there is room.
//!
//! **Out.** Blocks that another running sequence reads stay on the device, and the swapped one goes on reading them. The
//! rest is copied. While the copy runs nothing is given up; when it ends, published blocks fall idle (they stay
//! findable until they are evicted) and private ones are freed. The scheduler counts on them meanwhile ([`Swap::future_free`]).
//!
//! **In.** What the tree still has, or has again, is read there and not copied. What another swap-in is copying is not
//! copied twice: the second waits for the first. The rest is copied, and when it has arrived it is published like freshly
//! computed blocks: equal ones merge. Everyone else who waits for the same host block is moved over to the device block.
//!
//! A copy that fails costs a recomputation. Copies in both directions run at the same time.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use crate::block::BlockState;
use crate::host::{HostPool, HostState};
use crate::ids::BlockHandle;
use crate::scheduler::{Scheduler, decision};
use crate::sequence::SequenceState;
use crate::transfer::{Place, Transfer};

/// Which way a sequence goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Out,
    In,
}

/// A copy under way.
#[derive(Debug)]
struct InFlight {
    id: u64,
    direction: Direction,
    /// The sequence it was begun for.
    slot: usize,
    n_blocks: u32,
}

/// Order in which swapped sequences come back: the dearest first, then the first to arrive.
type Turn = (Reverse<i128>, u64, usize);

/// What is on the host, and on its way.
#[derive(Debug)]
pub(crate) struct Swap {
    pub host: HostPool,
    /// Sequences that are [`SequenceState::Swapped`].
    pub swapped: BTreeSet<Turn>,
    /// Sequences that are [`SequenceState::SwappingIn`], in the order in which they began.
    pub arrivals: Vec<usize>,
    in_flight: Vec<InFlight>,
    next_id: u64,
    /// Copies begun in this pass.
    pub outbox: Vec<Transfer>,
}

impl Swap {
    pub fn new(host_blocks: u32) -> Self {
        Self {
            host: HostPool::new(host_blocks),
            swapped: BTreeSet::new(),
            arrivals: Vec::new(),
            in_flight: Vec::new(),
            next_id: 1,
            outbox: Vec::new(),
        }
    }

    /// Device blocks that will be usable when the copies to the host end.
    pub fn future_free(&self) -> u32 {
        self.in_flight.iter().filter(|copy| copy.direction == Direction::Out).map(|copy| copy.n_blocks).sum()
    }

    /// Whether a request that ran is out of the batch for want of blocks: then no other is admitted.
    pub fn is_pressed(&self) -> bool {
        !self.swapped.is_empty() || self.in_flight.iter().any(|copy| copy.direction == Direction::Out)
    }

    /// Whether any copy is under way.
    pub fn is_moving(&self) -> bool {
        !self.in_flight.is_empty()
    }

    fn begin(&mut self, direction: Direction, slot: usize, pairs: Vec<(u32, u32)>) -> u64 {
        let n_blocks = pairs.len() as u32;
        let (from, to) = match direction {
            Direction::Out => (Place::Device, Place::Host),
            Direction::In => (Place::Host, Place::Device),
        };
        let id = self.send(from, to, pairs);
        self.in_flight.push(InFlight { id, direction, slot, n_blocks });
        id
    }

    /// Asks for a copy and names it.
    pub fn send(&mut self, from: Place, to: Place, pairs: Vec<(u32, u32)>) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.outbox.push(Transfer { id, from, to, pairs });
        id
    }
}

impl Scheduler {
    /// Begins to copy a running sequence to the host. Returns `false`, and changes nothing, if the host has no room or
    /// there is nothing to copy.
    pub fn begin_swap_out(&mut self, slot: usize) -> bool {
        let seq = &self.sequences[slot];
        assert!(!seq.in_step, "a worker may still write the blocks of {}", seq.id);
        let n = seq.computed_blocks(self.block_size);
        let stay = self.blocks_others_run_on(slot, n);
        if n == stay || (self.swap.host.count(HostState::Free) as usize) < n - stay {
            return false;
        }
        self.leave_batch(slot);
        let seq = &mut self.sequences[slot];
        let mut unused = seq.table.split_off(n);
        self.tree.release(&mut unused, 0);
        for block in &seq.table[stay.max(seq.published as usize)..] {
            self.tree.begin_move(*block);
        }
        seq.host.extend((stay..n).map(|_| self.swap.host.allocate().expect("counted a moment ago")));
        let pairs: Vec<_> = seq.table[stay..].iter().zip(&seq.host).map(|(block, host)| (block.index, *host)).collect();
        self.digest.decide(decision::SWAP_OUT, seq.id.0, pairs.len() as u64);
        fold_pairs(&mut self.digest, &pairs);
        self.stats.preemptions += 1;
        self.stats.swap_outs += 1;
        self.stats.swapped_out_blocks += pairs.len() as u64;
        seq.preemptions += 1;
        seq.set_state(SequenceState::SwappingOut);
        seq.transfer = Some(self.swap.begin(Direction::Out, slot, pairs));
        true
    }

    /// How many leading blocks of a sequence some sequence reads that is not swapped out or about to be.
    fn blocks_others_run_on(&self, slot: usize, n: usize) -> usize {
        let seq = &self.sequences[slot];
        let mut stay = n;
        while stay > 0 {
            let at = stay - 1;
            if at < seq.published as usize {
                let others = self.tree.readers(seq.table[at]) - 1;
                if others > 0 && others > self.swapped_readers(slot, at, seq.table[at]) {
                    break;
                }
            }
            stay = at;
        }
        stay
    }

    /// How many other sequences that are swapped out, or about to be, read this device block.
    fn swapped_readers(&self, slot: usize, at: usize, block: BlockHandle) -> u32 {
        let going = self.swap.in_flight.iter().filter(|copy| copy.direction == Direction::Out).map(|copy| copy.slot);
        let gone = self.swap.swapped.iter().map(|(_, _, slot)| *slot);
        let reads = |other: &usize| *other != slot && self.sequences[*other].table.get(at) == Some(&block);
        going.chain(gone).filter(reads).count() as u32
    }

    /// Begins to bring the first swapped sequence back. Returns `false`, and changes nothing, if there is none or no
    /// room for it.
    pub fn begin_swap_in(&mut self) -> bool {
        let Some(place) = self.swap.swapped.first().copied() else { return false };
        let slot = place.2;
        let size = self.block_size;
        let batched = self.batched();
        let seq = &mut self.sequences[slot];
        let kept = seq.table.len();
        let n = kept + seq.host.len();
        let full = (seq.computed / size) as usize;
        self.found.clear();
        if full > kept && !seq.unpublishable {
            seq.hash_of_block(full - 1, size);
            self.tree.find(&seq.hashes[..full], &seq.tokens, &mut self.found);
        }
        let found = self.found.len().max(kept);
        let waiting_for = &seq.host[found - kept..];
        let joined = waiting_for.iter().take_while(|host| self.swap.host.state(**host) == HostState::Reading).count();
        if waiting_for[joined..].iter().any(|host| self.swap.host.state(*host) == HostState::Reading) {
            // The copy before these came to nothing, and one that had joined it still runs: wait for its end.
            return false;
        }
        let copied = n - found - joined;
        // Like a prefill it takes every block its tokens need at once, so that it can go on.
        let total = seq.tokens.len().div_ceil(size as usize);
        let needed = (copied + total - n) as u32;
        let again = &self.found[kept.min(self.found.len())..];
        let usable = self.tree.usable() - self.tree.count_idle(again);
        let running = self.running.len() as u32;
        let watermark = (f64::from(running) * self.swap_in_watermark).ceil() as u32;
        if usable < needed.saturating_add(watermark) || batched >= self.max_batch_size {
            return false;
        }
        self.swap.swapped.remove(&place);
        self.tree.hold(again, &mut seq.table);
        seq.published = found as u32;
        let freed: Vec<u32> = seq.host.drain(..found - kept).collect();
        let allocated = self.tree.allocate(needed, &mut seq.arriving);
        assert!(allocated, "usable blocks were counted a moment ago");
        seq.copied = copied as u32;
        seq.set_state(SequenceState::SwappingIn);
        self.swap.arrivals.push(slot);
        self.digest.decide(decision::SWAP_IN, seq.id.0, (found as u64) << 32 | copied as u64);
        if copied > 0 {
            self.begin_copy_in(slot);
        }
        for (at, host) in (kept..).zip(freed) {
            self.move_over(at, host, self.sequences[slot].table[at]);
            self.swap.host.leave(host);
        }
        self.settle_arrivals();
        true
    }

    fn begin_copy_in(&mut self, slot: usize) {
        let seq = &mut self.sequences[slot];
        let hosts = &seq.host[seq.host.len() - seq.copied as usize..];
        let mut pairs = Vec::with_capacity(hosts.len());
        for (block, host) in seq.arriving.iter().zip(hosts) {
            self.tree.begin_move(*block);
            self.swap.host.begin_read(*host);
            pairs.push((*host, block.index));
        }
        fold_pairs(&mut self.digest, &pairs);
        self.stats.swapped_in_blocks += pairs.len() as u64;
        seq.transfer = Some(self.swap.begin(Direction::In, slot, pairs));
    }

    /// A copy ended. Returns the sequence it was for, if that is to end now; `None` also for a copy that nobody waits for.
    pub fn end_transfer(&mut self, id: u64, ok: bool) -> Option<usize> {
        let Some(at) = self.swap.in_flight.iter().position(|copy| copy.id == id) else { return self.end_copy(id, ok) };
        let InFlight { direction, slot, .. } = self.swap.in_flight.remove(at);
        let kind = if ok { decision::TRANSFER_FINISHED } else { decision::TRANSFER_FAILED };
        self.digest.decide(kind, self.sequences[slot].id.0, id);
        self.stats.failed_transfers += u64::from(!ok);
        self.sequences[slot].transfer = None;
        self.end_copying(slot, direction, ok);
        let ends = self.sequences[slot].ending.is_some();
        match (direction, ok) {
            _ if ends => self.swap.arrivals.retain(|other| *other != slot),
            (Direction::Out, true) => self.swapped_out(slot),
            (Direction::In, true) => {}
            (_, false) => self.recompute(slot),
        }
        self.settle_arrivals();
        ends.then_some(slot)
    }

    /// The host blocks of a copy that ended are full, or empty again.
    fn end_copying(&mut self, slot: usize, direction: Direction, ok: bool) {
        let seq = &mut self.sequences[slot];
        match (direction, ok) {
            (Direction::Out, true) => seq.host.iter().for_each(|host| self.swap.host.filled(*host)),
            (Direction::Out, false) => seq.host.drain(..).for_each(|host| self.swap.host.unfilled(host)),
            (Direction::In, _) => {
                let copied = &seq.host[seq.host.len() - seq.copied as usize..];
                copied.iter().for_each(|host| self.swap.host.end_read(*host));
            }
        }
    }

    /// A sequence's KV is on the host: its device blocks are given up, also by those that were swapped before it and read
    /// some of them.
    fn swapped_out(&mut self, slot: usize) {
        let seq = &self.sequences[slot];
        let stay = seq.table.len() - seq.host.len();
        let others: Vec<usize> = self.swap.swapped.iter().map(|(_, _, slot)| *slot).collect();
        for at in (stay..seq.table.len()).rev() {
            let (block, host) = (self.sequences[slot].table[at], self.sequences[slot].host[at - stay]);
            for other in &others {
                let other = &mut self.sequences[*other];
                if other.table.len() == at + 1 && other.table[at] == block {
                    let mut last = other.table.split_off(at);
                    self.tree.release(&mut last, 1);
                    other.published = at as u32;
                    other.host.insert(0, host);
                    self.swap.host.hold(host);
                }
            }
        }
        let seq = &mut self.sequences[slot];
        let mut gone = seq.table.split_off(stay);
        self.tree.release(&mut gone, (seq.published as usize).saturating_sub(stay));
        seq.published = stay as u32;
        seq.set_state(SequenceState::Swapped);
        seq.keep = self.waiting.preemption_rank(&seq.view(seq.computed));
        self.swap.swapped.insert((Reverse(seq.keep), seq.arrival, slot));
    }

    /// Brings into the batch every arrival that has all its blocks; lets those start over that wait for a copy that came
    /// to nothing.
    pub fn settle_arrivals(&mut self) {
        loop {
            if let Some(at) = self.swap.arrivals.iter().position(|slot| self.has_arrived(*slot)) {
                let slot = self.swap.arrivals.remove(at);
                self.land(slot);
            } else if let Some(slot) = self.swap.arrivals.iter().copied().find(|slot| self.waits_in_vain(*slot)) {
                self.recompute(slot);
            } else {
                return;
            }
        }
    }

    fn has_arrived(&self, slot: usize) -> bool {
        let seq = &self.sequences[slot];
        seq.transfer.is_none() && seq.host.len() == seq.copied as usize
    }

    /// Whether no copy is under way for a sequence, nor for the block it joined another's copy for.
    fn waits_in_vain(&self, slot: usize) -> bool {
        let seq = &self.sequences[slot];
        seq.transfer.is_none() && self.swap.host.state(seq.host[0]) != HostState::Reading
    }

    /// A swapped sequence has all its blocks on the device again.
    fn land(&mut self, slot: usize) {
        let seq = &mut self.sequences[slot];
        let first = seq.table.len();
        let copied = std::mem::take(&mut seq.copied) as usize;
        for block in &seq.arriving[..copied] {
            self.tree.end_move(*block, BlockState::Private);
        }
        seq.table.append(&mut seq.arriving);
        let hosts = std::mem::take(&mut seq.host);
        let decodes = seq.remaining() == 1 && seq.generated() > 0;
        seq.set_state(if decodes { SequenceState::Decode } else { SequenceState::Prefill });
        self.publish(slot);
        let published = self.sequences[slot].published as usize;
        for (at, host) in (first..).zip(hosts) {
            if at < published {
                self.move_over(at, host, self.sequences[slot].table[at]);
            }
            self.swap.host.leave(host);
        }
        self.stats.swap_ins += 1;
        self.enter_batch(slot);
    }

    /// The device has the contents of a host block: all who wait for it there, as their `at`-th block, read it here.
    fn move_over(&mut self, at: usize, host: u32, block: BlockHandle) {
        let swapped = self.swap.swapped.iter().map(|(_, _, slot)| slot);
        for slot in swapped.chain(&self.swap.arrivals) {
            let seq = &mut self.sequences[*slot];
            if seq.table.len() == at && seq.host.len() > seq.copied as usize && seq.host[0] == host {
                seq.host.remove(0);
                self.swap.host.leave(host);
                self.tree.share(block);
                seq.table.push(block);
                seq.published += 1;
            }
        }
    }

    /// The last swapped sequence gives up what it has, so that another can run. Only for when nothing else can.
    pub fn give_up_last_swapped(&mut self) -> bool {
        let Some((_, _, slot)) = self.swap.swapped.last().copied() else { return false };
        self.recompute(slot);
        true
    }

    /// The last swapped sequence gives up the device blocks that it kept because others ran on them, if it did: for a
    /// sequence that runs alone and needs a block, and had better not be swapped out itself.
    pub fn give_up_kept_blocks(&mut self) -> bool {
        let last = self.swap.swapped.last();
        last.is_some_and(|(_, _, slot)| !self.sequences[*slot].table.is_empty()) && self.give_up_last_swapped()
    }

    /// A sequence out of the batch gives up all blocks and waits.
    fn recompute(&mut self, slot: usize) {
        self.leave_swap(slot);
        self.release_all(slot);
        self.start_over(slot);
    }

    /// A sequence out of the batch, without any block, waits.
    pub fn start_over(&mut self, slot: usize) {
        let seq = &mut self.sequences[slot];
        self.digest.decide(decision::GIVE_UP, seq.id.0, u64::from(seq.computed));
        seq.rewind();
        self.wait(slot);
    }

    /// Takes a sequence out of the lists of this file, if it stands in one.
    pub fn leave_swap(&mut self, slot: usize) {
        let seq = &self.sequences[slot];
        match seq.state {
            SequenceState::Swapped => {
                self.swap.swapped.remove(&(Reverse(seq.keep), seq.arrival, slot));
            }
            SequenceState::SwappingIn => self.swap.arrivals.retain(|other| *other != slot),
            _ => {}
        }
    }

    /// Gives back every block a sequence has anywhere. No copy for it may be under way.
    pub fn release_all(&mut self, slot: usize) {
        let seq = &mut self.sequences[slot];
        debug_assert!(seq.transfer.is_none());
        seq.host.drain(..).for_each(|host| self.swap.host.leave(host));
        self.tree.release(&mut seq.arriving, 0);
        seq.copied = 0;
        self.tree.release(&mut seq.table, seq.published as usize);
        seq.published = 0;
    }

    /// The worker is gone and its copies with it. Returns those that were out of the batch, in a fixed order, without
    /// any block or place.
    pub fn lose_swap(&mut self) -> Vec<usize> {
        self.swap.outbox.clear();
        let mut slots = Vec::new();
        for InFlight { direction, slot, .. } in std::mem::take(&mut self.swap.in_flight) {
            self.sequences[slot].transfer = None;
            self.end_copying(slot, direction, false);
            if direction == Direction::Out {
                slots.push(slot);
            }
        }
        slots.append(&mut self.swap.arrivals);
        slots.extend(std::mem::take(&mut self.swap.swapped).into_iter().map(|(_, _, slot)| slot));
        slots.iter().for_each(|slot| self.release_all(*slot));
        slots
    }
}

pub(crate) fn fold_pairs(digest: &mut crate::digest::Digest, pairs: &[(u32, u32)]) {
    pairs.iter().for_each(|(from, to)| digest.fold(u64::from(*from) << 32 | u64::from(*to)));
}
