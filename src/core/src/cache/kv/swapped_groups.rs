//! Swapping of the layer groups after the first.
//!
//! A sequence takes the blocks of every group to the host. Entries that were dropped, or lie behind a window, are not copied and come back
//! as holes. Host blocks of the groups after the first stand beside the first group's, one per group and entry, and belong to one
//! sequence alone. So a sequence of a model with groups joins no transfer of another: blocks with other readers, swapped out or not,
//! stay on the device.

use trunkline_port::NO_BLOCK;

use super::Kv;
use crate::cache::transfer_table::BlockPair;
use crate::names::ids::BlockHandle;
use crate::request::sequence::Sequence;

impl Kv {
    /// Takes host blocks for what a sequence holds in the groups after the first from entry `first` on, and adds the copies to `pairs`.
    /// Returns the host blocks. As many as there are blocks MUST be free.
    pub fn begin_out_beside(&mut self, seq: &Sequence, first: usize, pairs: &mut Vec<BlockPair>) -> Vec<u32> {
        let mut beside = Vec::with_capacity((seq.table.len() - first) * self.groups.n());
        for at in first..seq.table.len() {
            for table in &seq.cold.tables {
                let block = table[at];
                if block == BlockHandle::NONE {
                    beside.push(NO_BLOCK);
                    continue;
                }
                if at >= seq.published as usize {
                    self.tree.begin_move(block);
                }
                let host = self.allocate_host().expect("counted a moment ago");
                pairs.push(BlockPair { from: block.index, to: host });
                beside.push(host);
            }
        }
        beside
    }

    /// Cuts the prefix just found for a swapped sequence, whose table has `pinned` entries, to where the device has the blocks of every
    /// group. Returns the number of blocks found without readers.
    pub fn find_beside(&mut self, seq: &Sequence, pinned: usize) -> u32 {
        let n = self.groups.n();
        if n == 0 {
            return self.tree.count_idle(&self.found);
        }
        let beside = seq.phase.beside();
        let held = |at: usize| (0..n).filter(move |group| beside[(at - pinned) * n + group] != NO_BLOCK);
        let is_lacking = |(at, node): &(usize, u32)| held(*at).any(|group| self.groups.get(*node, group).is_none());
        let end = self.found.slots().enumerate().skip(pinned).find(is_lacking).map(|(at, _)| at);
        if let Some(end) = end {
            self.found.truncate(end);
        }
        let idle_at =
            |(at, node): (usize, u32)| held(at).filter(|group| self.groups.readers(node, *group) == 0).count();
        let idle: usize = self.found.slots().enumerate().skip(pinned).map(idle_at).sum();
        self.tree.count_idle(&self.found) + idle as u32
    }

    /// Gives a sequence, whose table was just extended by blocks found on the device, the blocks beside. `beside` are the host
    /// blocks of the new entries.
    pub fn hold_beside(&mut self, seq: &mut Sequence, beside: &[u32]) {
        let first = seq.table.len() - beside.len().checked_div(self.groups.n()).unwrap_or(0);
        for (i, host) in beside.iter().enumerate() {
            let (at, group) = (first + i / self.groups.n(), i % self.groups.n());
            let is_held = *host != NO_BLOCK;
            let block = if is_held { self.groups.enter(seq.table[at].index, group) } else { BlockHandle::NONE };
            seq.cold.tables[group].push(block);
        }
    }

    /// Returns the number of device blocks that `entries` entries of a sequence take, the first of which come from the host: `beside`
    /// are the host blocks of these in the groups after the first.
    pub fn count_arriving(&self, entries: usize, beside: &[u32]) -> u32 {
        let holes = beside.iter().filter(|host| **host == NO_BLOCK).count();
        (entries * (1 + self.groups.n()) - holes) as u32
    }

    /// Takes the blocks counted by [`Self::count_arriving`]: for the first group, and for the groups beside. All MUST be usable.
    pub fn allocate_arriving(&mut self, entries: usize, beside: &[u32]) -> (Vec<BlockHandle>, Vec<BlockHandle>) {
        let needed = self.count_arriving(entries, beside);
        if self.groups.n() > 0 {
            self.make_room(needed);
        }
        let mut arriving = Vec::new();
        let allocated = self.tree.allocate(needed, &mut arriving);
        assert!(allocated, "usable blocks were counted a moment ago");
        // More may have been evicted than were missing, and their slots are the first to be taken.
        self.free_left();
        let mut others = arriving.split_off(entries).into_iter();
        let hosts = beside.iter().copied().map(Some).chain(std::iter::repeat(None));
        let taken = hosts.take(entries * self.groups.n()).map(|host| match host {
            Some(NO_BLOCK) => BlockHandle::NONE,
            _ => others.next().expect("the blocks were counted"),
        });
        let arriving_beside = taken.collect();
        (arriving, arriving_beside)
    }

    /// Frees private device blocks of the groups after the first.
    pub fn release_beside(&mut self, beside: &mut Vec<BlockHandle>) {
        beside.retain(|block| *block != BlockHandle::NONE);
        self.tree.release(beside, 0);
    }

    /// Lets go of host blocks of the groups after the first.
    pub fn leave_beside(&mut self, beside: &[u32]) {
        beside.iter().filter(|host| **host != NO_BLOCK).for_each(|host| self.leave_host(*host));
    }

    /// Returns the number of blocks freed by the swap-out of a sequence in the groups after the first, from entry `first` on.
    pub fn freed_beside(&self, seq: &Sequence, first: usize) -> u32 {
        let is_freed = |group: usize, at: usize| {
            at >= seq.published as usize || self.groups.readers(seq.table[at].index, group) == 1
        };
        let freed_in = |(group, table): (usize, &Vec<BlockHandle>)| {
            let held = (first..table.len()).filter(|at| table[*at] != BlockHandle::NONE);
            held.filter(|at| is_freed(group, *at)).count() as u32
        };
        seq.cold.tables.iter().enumerate().map(freed_in).sum()
    }
}
