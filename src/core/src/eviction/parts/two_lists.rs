//! Idle leaves in two lists, each in order of falling idle: of blocks that no request found, and of the others. What was evicted from a list is
//! remembered: a block that comes back from there counts as found.
//!
//! Blocks that nobody found are evicted first as long as more of them are idle than a bound says, which is fixed or follows what comes back
//! ([`Bound`]).
//!
//! Unlike in caches of objects, a block leaves the lists when read, because a held block cannot be evicted, and joins the list of found blocks on
//! falling idle again.

use crate::blocks::nodes::Nodes;
use crate::blocks::prefetch::prefetch;
use crate::eviction::parts::ghost::Ghost;
use crate::eviction::parts::queue::Queues;
use crate::eviction::{Eviction, last, reserved_blocks};
use crate::names::ids::BlockHandle;

const NEW: usize = 0;
const FOUND: usize = 1;

/// Blocks that nobody found and that may be idle before found ones are evicted.
#[derive(Clone, Copy, Debug)]
pub(in crate::eviction) enum Bound {
    /// So many.
    Fixed(u32),
    /// As many as pays: more when a block comes back that was evicted from the new ones, fewer when one comes back that was evicted from the found
    /// ones, by as many as the memory of the other list is longer (ARC, Megiddo and Modha, FAST 2003).
    Adaptive,
}

/// Memory of what was evicted from a list.
#[derive(Debug)]
struct Evicted {
    ghost: Ghost,
    capacity: u32,
    /// Blocks remembered, about.
    len: u32,
}

impl Evicted {
    fn new(capacity: u32) -> Self {
        Self { ghost: Ghost::new(capacity), capacity, len: 0 }
    }

    fn insert_all(&mut self, hashes: impl ExactSizeIterator<Item = u64>) {
        self.len = self.len.saturating_add(hashes.len() as u32).min(self.capacity);
        self.ghost.insert_all(hashes);
    }

    fn take(&mut self, hash: u64) -> bool {
        let is_there = self.ghost.take(hash).is_some();
        self.len = self.len.saturating_sub(u32::from(is_there));
        is_there
    }
}

/// Idle leaves in two lists.
#[derive(Debug)]
pub(in crate::eviction) struct TwoLists {
    queues: Queues,
    /// Evicted from each list; from the found ones nothing is remembered if the bound is fixed.
    evicted: [Evicted; 2],
    /// Idle blocks that nobody found above which they are evicted.
    bound: u32,
    /// Greatest bound; `None` for a fixed one.
    bound_max: Option<u32>,
    /// Idle blocks that nobody found, leaves or not.
    new_idle: u32,
    /// `true` for blocks that were read, or came back after they were evicted.
    found: Vec<bool>,
    /// List of the last block popped. The parent, a leaf now, has the same age and takes the place.
    popped: Option<usize>,
}

impl TwoLists {
    pub fn new(bound: Bound, capacity: u32) -> Self {
        let (bound, bound_max) = match bound {
            Bound::Fixed(blocks) => (blocks, None),
            Bound::Adaptive => (0, Some(capacity)),
        };
        Self {
            queues: Queues::with_capacity(2, reserved_blocks(capacity)),
            evicted: [Evicted::new(capacity), Evicted::new(bound_max.unwrap_or(0))],
            bound,
            bound_max,
            new_idle: 0,
            found: trunkline_pages::with_capacity(reserved_blocks(capacity)),
            popped: None,
        }
    }

    /// Returns the list that a block joins on falling idle.
    fn list_of(&self, block: u32) -> usize {
        if self.found[block as usize] { FOUND } else { NEW }
    }

    /// Returns the list to evict from. With `parent_waits`, the parent of the last block evicted is about to join the list of that block.
    fn list_to_evict(&self, parent_waits: bool) -> usize {
        let waits = |list| parent_waits && self.popped == Some(list);
        let empty = |list| self.queues.is_empty(list) && !waits(list);
        let over = self.new_idle > self.bound || empty(FOUND);
        if over && !empty(NEW) { NEW } else { FOUND }
    }

    fn popped(&mut self, block: u32, list: usize) {
        self.popped = Some(list);
        self.new_idle -= u32::from(!self.found[block as usize]);
    }

    /// Remembers some evicted blocks, all of one list.
    fn remember(&mut self, evicted: &[u32], blocks: &Nodes) {
        let Some(list) = evicted.first().map(|block| self.list_of(*block)) else { return };
        if list == NEW || self.bound_max.is_some() {
            self.evicted[list].insert_all(evicted.iter().map(|block| blocks.fingerprint(*block)));
        }
    }

    /// Returns `true` if a block that is computed was evicted not long ago, and moves the bound accordingly.
    fn comes_back(&mut self, fingerprint: u64) -> bool {
        let lens = self.evicted.each_ref().map(|evicted| evicted.len.max(1));
        if self.evicted[NEW].take(fingerprint) {
            let most = self.bound_max.unwrap_or(self.bound);
            self.bound = self.bound.saturating_add((lens[FOUND] / lens[NEW]).max(1)).min(most);
            return true;
        }
        let is_back = self.bound_max.is_some() && self.evicted[FOUND].take(fingerprint);
        if is_back {
            self.bound = self.bound.saturating_sub((lens[NEW] / lens[FOUND]).max(1));
        }
        is_back
    }
}

impl Eviction for TwoLists {
    fn reads_hits(&self) -> bool {
        false
    }

    fn published(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        for block in chain {
            let at = block.index as usize;
            if self.found.len() <= at {
                self.found.resize(at + 1, false);
            }
            self.found[at] = self.comes_back(blocks.fingerprint(block.index));
        }
    }

    fn idle(&mut self, chain: &[BlockHandle], blocks: &Nodes) {
        self.popped = None;
        self.new_idle += chain.iter().map(|block| u32::from(!self.found[block.index as usize])).sum::<u32>();
        if blocks.is_leaf(last(chain)) {
            self.leaf(last(chain), blocks);
        }
    }

    fn clear(&mut self) {
        self.queues.clear();
        (self.new_idle, self.popped) = (0, None);
    }

    fn leaf(&mut self, block: u32, _: &Nodes) {
        let list = self.list_of(block);
        match self.popped {
            Some(from) if from == list => self.queues.push_front(list, block),
            _ => self.queues.push_back(list, block),
        }
    }

    fn read(&mut self, chain: &[BlockHandle], _: &Nodes) {
        self.queues.remove(last(chain));
        for block in chain {
            let found = &mut self.found[block.index as usize];
            self.new_idle -= u32::from(!*found);
            *found = true;
        }
    }

    fn likely_next(&self) -> Option<u32> {
        let next = self.queues.front(self.list_to_evict(false))?;
        self.queues.request(next);
        prefetch(&self.found[next as usize..=next as usize]);
        Some(next)
    }

    fn request_to_publish(&self, fingerprint: u64) {
        self.evicted[NEW].ghost.request(fingerprint);
    }

    fn pop(&mut self, blocks: &Nodes) -> Option<u32> {
        let list = self.list_to_evict(false);
        let block = self.queues.pop_front(list)?;
        self.popped(block, list);
        self.remember(&[block], blocks);
        Some(block)
    }

    fn pop_chain(&mut self, n: usize, blocks: &Nodes, out: &mut Vec<u32>) {
        let list = self.list_to_evict(false);
        let Some(mut block) = self.queues.pop_front(list) else { return };
        let at = out.len();
        loop {
            out.push(block);
            self.popped(block, list);
            // The parent takes the place at the front, so it is next as long as the same list is evicted from.
            let parent = blocks.next_leaf(block).filter(|parent| self.list_of(*parent) == list);
            match parent {
                Some(parent) if out.len() - at < n && self.list_to_evict(true) == list => block = parent,
                _ => break,
            }
        }
        self.remember(&out[at..], blocks);
    }
}
