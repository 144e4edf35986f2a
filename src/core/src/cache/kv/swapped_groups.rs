//! Swapping of the layer groups after the first.
//!
//! A sequence takes the blocks of every group to the host. Entries that were dropped, or lie behind a window, are not copied and come back
//! as holes. Host blocks of the groups after the first belong to one sequence alone. So a sequence of a model with groups joins no transfer of
//! another: blocks with other readers, swapped out or not, stay on the device.

use super::Kv;
use crate::blocks::entries::{Entries, Hole};
use crate::cache::transfer_table::BlockPair;
use crate::names::ids::BlockHandle;
use crate::request::sequence::Sequence;

impl Kv {
    /// Takes host blocks for what a sequence holds from entry `first` on, and begins to move what is private. Returns the host blocks and the
    /// copies. As many host blocks as there are device blocks MUST be free.
    pub fn begin_out(&mut self, seq: &Sequence, first: usize) -> (Entries<u32>, Vec<BlockPair>) {
        let (mut hosts, mut pairs) = (Entries::EMPTY, Vec::new());
        for block in &seq.table[first.max(seq.published as usize)..] {
            self.tree.begin_move(*block);
        }
        for block in &seq.table[first..] {
            hosts.first.push(self.copy_out(*block, &mut pairs));
        }
        hosts.others.reserve((seq.table.len() - first) * self.groups.n());
        for at in first..seq.table.len() {
            for block in seq.cold.tables.iter().map(|table| table[at]) {
                if block == BlockHandle::NONE {
                    hosts.others.push(u32::HOLE);
                    continue;
                }
                if at >= seq.published as usize {
                    self.tree.begin_move(block);
                }
                hosts.others.push(self.copy_out(block, &mut pairs));
            }
        }
        (hosts, pairs)
    }

    /// Takes a host block for a copy of a device block.
    fn copy_out(&mut self, block: BlockHandle, pairs: &mut Vec<BlockPair>) -> u32 {
        let host = self.allocate_host().expect("counted a moment ago");
        pairs.push(BlockPair { from: block.index, to: host });
        host
    }

    /// Cuts the prefix just found for a swapped sequence, whose table has `pinned` entries, to where the device has the blocks of every
    /// group. Returns the number of blocks found without readers.
    pub fn cut_found(&mut self, seq: &Sequence, pinned: usize) -> u32 {
        if self.groups.n() == 0 {
            return self.tree.count_idle(&self.found);
        }
        let hosts = seq.phase.hosts();
        let held = |at: usize| self.groups.numbers().filter(move |group| hosts.has(at - pinned, *group));
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

    /// Gives a sequence, whose table was just extended by entries found on the device, their blocks in the groups after the first. `hosts`
    /// are the host blocks of the new entries.
    pub fn hold_again(&mut self, seq: &mut Sequence, hosts: &Entries<u32>) {
        let first = seq.table.len() - hosts.len();
        for at in 0..hosts.len() {
            for group in self.groups.numbers() {
                let node = seq.table[first + at].index;
                let block = if hosts.has(at, group) { self.groups.enter(node, group) } else { BlockHandle::NONE };
                seq.cold.tables[group - 1].push(block);
            }
        }
    }

    /// Returns the number of device blocks that `entries` entries of a sequence take, the first of which come from the host and lack
    /// `holes` blocks.
    pub fn count_arriving(&self, entries: usize, holes: usize) -> u32 {
        (entries * (1 + self.groups.n()) - holes) as u32
    }

    /// Takes the blocks counted by [`Self::count_arriving`] for entries the first of which come from the blocks `hosts`. All MUST be usable.
    pub fn allocate_arriving(&mut self, entries: usize, hosts: &Entries<u32>) -> Entries<BlockHandle> {
        let needed = self.count_arriving(entries, hosts.holes(0));
        if self.groups.n() > 0 {
            self.make_room(needed);
        }
        let mut first = Vec::new();
        let allocated = self.tree.allocate(needed, &mut first);
        assert!(allocated, "usable blocks were counted a moment ago");
        // More may have been evicted than were missing, and their slots are the first to be taken.
        self.free_left();
        let mut rest = first.split_off(entries).into_iter();
        let hosts = hosts.others.iter().copied().map(Some).chain(std::iter::repeat(None));
        let others = hosts.take(entries * self.groups.n()).map(|host| match host {
            Some(u32::HOLE) => BlockHandle::NONE,
            _ => rest.next().expect("the blocks were counted"),
        });
        Entries { others: others.collect(), first }
    }

    /// Returns the number of blocks freed by the swap-out of a sequence in the groups after the first, from entry `first` on.
    pub fn freed_in_groups(&self, seq: &Sequence, first: usize) -> u32 {
        let is_freed = |group: usize, at: usize| {
            at >= seq.published as usize || self.groups.readers(seq.table[at].index, group) == 1
        };
        let freed_in = |(group, table): (usize, &Vec<BlockHandle>)| {
            let held = (first..table.len()).filter(|at| table[*at] != BlockHandle::NONE);
            held.filter(|at| is_freed(group, *at)).count() as u32
        };
        (1..).zip(&seq.cold.tables).map(freed_in).sum()
    }
}
