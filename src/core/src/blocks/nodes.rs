//! Links and counts of published blocks, in arrays indexed by the block's slot.
//!
//! Each property has an array of its own. Blocks of a chain mostly lie in adjacent slots, so an operation on a chain works on
//! whole stretches of these arrays.

use crate::blocks::hash::BlockHash;
use crate::blocks::namespaces::is_namespace;
use crate::blocks::prefetch::prefetch;
use crate::blocks::run_bits::RunBits;
use crate::names::ids::BlockHandle;

/// Parent of a block without a parent and without a namespace of its own: a block of a tier.
pub(crate) const ROOT: u32 = u32::MAX;
/// Parent of an unpublished block.
pub(crate) const UNPUBLISHED: u32 = u32::MAX - 1;

/// The published blocks of a tree or a tier, as shared with the eviction policy.
#[derive(Debug, Default)]
pub struct Nodes {
    /// Fingerprints of the chained hashes; tokens decide on equality.
    pub(crate) fingerprints: Vec<u64>,
    /// Parents: the block before in the prefix, the namespace of a first block, or [`UNPUBLISHED`].
    pub(crate) parents: Vec<u32>,
    /// Marks of the blocks whose parent lies in the slot before.
    runs: RunBits,
    /// Numbers of published child blocks.
    pub(crate) children: Vec<u32>,
    /// Numbers of sequences reading the block.
    pub(crate) readers: Vec<u32>,
    /// Numbers of blocks before the block in the prefix.
    pub(crate) depths: Vec<u32>,
    /// Times the block was found since publication; saturates.
    pub(crate) hits: Vec<u16>,
}

impl Nodes {
    /// Creates no slots, with memory reserved for `blocks`.
    pub(crate) fn with_capacity(blocks: usize) -> Self {
        Self {
            fingerprints: trunkline_pages::with_capacity(blocks),
            parents: trunkline_pages::with_capacity(blocks),
            runs: RunBits::with_capacity(blocks),
            children: trunkline_pages::with_capacity(blocks),
            readers: trunkline_pages::with_capacity(blocks),
            depths: trunkline_pages::with_capacity(blocks),
            hits: trunkline_pages::with_capacity(blocks),
        }
    }

    /// Returns the number of slots.
    pub(crate) fn len(&self) -> usize {
        self.parents.len()
    }

    /// Creates slots up to `len`.
    pub(crate) fn open(&mut self, len: usize) {
        self.fingerprints.resize(len, 0);
        self.parents.resize(len, UNPUBLISHED);
        self.runs.open(len);
        self.children.resize(len, 0);
        self.readers.resize(len, 0);
        self.depths.resize(len, 0);
        self.hits.resize(len, 0);
    }

    /// Removes all slots.
    pub(crate) fn clear(&mut self) {
        self.fingerprints.clear();
        self.parents.clear();
        self.runs.close();
        self.children.clear();
        self.readers.clear();
        self.depths.clear();
        self.hits.clear();
    }

    /// Records newly published blocks from slot `first` on, each the parent of the next, with one reader.
    pub(crate) fn publish(&mut self, first: u32, parent: u32, hashes: &[BlockHash]) {
        let range = first as usize..first as usize + hashes.len();
        let mut depth = 0;
        if !is_namespace(parent) {
            self.children[parent as usize] += 1;
            depth = self.depths[parent as usize] + 1;
        }
        self.fingerprints[range.clone()].iter_mut().zip(hashes).for_each(|(to, hash)| *to = hash.fingerprint());
        self.parents[range.start] = parent;
        self.parents[range.start + 1..range.end].iter_mut().zip(first..).for_each(|(to, before)| *to = before);
        let is_neighbour = !is_namespace(parent) && parent + 1 == first;
        self.runs.set(range.start + usize::from(!is_neighbour), range.len() - usize::from(!is_neighbour));
        self.children[range.clone()].fill(1);
        self.children[range.end - 1] = 0;
        self.readers[range.clone()].fill(1);
        self.depths[range.clone()].iter_mut().zip(depth..).for_each(|(to, depth)| *to = depth);
        self.hits[range].fill(0);
    }

    /// Records a newly published block, as [`Self::publish`] does.
    pub(crate) fn publish_one(&mut self, index: u32, parent: u32, hash: BlockHash) {
        let at = index as usize;
        let (mut depth, mut follows) = (0, false);
        if !is_namespace(parent) {
            self.children[parent as usize] += 1;
            depth = self.depths[parent as usize] + 1;
            follows = parent + 1 == index;
        }
        self.runs.set(at, usize::from(follows));
        self.fingerprints[at] = hash.fingerprint();
        self.parents[at] = parent;
        (self.children[at], self.readers[at], self.depths[at], self.hits[at]) = (0, 1, depth, 0);
    }

    /// Records a newly published block without parent and readers.
    pub(crate) fn publish_first(&mut self, index: u32, hash: BlockHash) {
        self.publish_one(index, ROOT, hash);
        self.readers[index as usize] = 0;
    }

    /// Removes a leaf. Returns the parent if that is now an idle leaf.
    pub(crate) fn remove(&mut self, index: u32) -> Option<u32> {
        let parent = std::mem::replace(&mut self.parents[index as usize], UNPUBLISHED);
        self.runs.clear(index as usize, 1);
        if is_namespace(parent) {
            return None;
        }
        self.children[parent as usize] -= 1;
        (self.children[parent as usize] == 0 && self.readers[parent as usize] == 0).then_some(parent)
    }

    /// Lets the block be found by its hash alone, not as the neighbour of the block before.
    pub(crate) fn leave_run(&mut self, index: u32) {
        self.runs.clear(index as usize, 1);
    }

    /// Removes a leaf and ancestors, each the parent of the block before. Returns the parent of the last one if the parent
    /// is now an idle leaf.
    pub(crate) fn remove_chain(&mut self, chain: &[u32]) -> Option<u32> {
        let mut parent = None;
        for_falling_runs(chain, |first, len| {
            let (at, last) = (first as usize, first as usize + len - 1);
            assert!(
                parent.is_none_or(|parent| parent as usize == last),
                "block {last} is not the parent of the one before"
            );
            // Each block of the run but the last has one child, the next one, which leaves before it.
            let is_alone =
                self.children[last] == 0 && self.children[at..last].iter().fold(true, |one, n| one & (*n == 1));
            let is_idle = self.readers[at..=last].iter().fold(true, |idle, n| idle & (*n == 0));
            assert!(is_alone && is_idle, "of {len} blocks from {first} on some are no idle leaves, last to first");
            assert_eq!(self.run(first, len), len, "a block is not the parent of the next");
            self.children[at..last].fill(0);
            self.parents[at + 1..=last].fill(UNPUBLISHED);
            self.runs.clear(at + 1, len - 1);
            parent = self.remove(first);
        });
        parent
    }

    /// Requests what tells a block from others with an equal tag in the index from memory.
    #[inline]
    pub(crate) fn prefetch_identity(&self, index: u32) {
        let at = index as usize..=index as usize;
        prefetch(&self.parents[at.clone()]);
        prefetch(&self.fingerprints[at]);
    }

    /// Requests the numbers of readers of `len` blocks from `first` on from memory.
    #[inline]
    pub(crate) fn prefetch_readers(&self, first: u32, len: usize) {
        prefetch(&self.readers[first as usize..first as usize + len]);
    }

    /// Requests the counts of a block, for publishing a child, from memory.
    #[inline]
    pub(crate) fn prefetch_counts(&self, index: u32) {
        let at = index as usize..=index as usize;
        prefetch(&self.children[at.clone()]);
        prefetch(&self.readers[at.clone()]);
        prefetch(&self.depths[at]);
    }

    /// Requests all links and counts of a block from memory.
    #[inline]
    pub(crate) fn prefetch_all(&self, index: u32) {
        self.prefetch_run(index, 1);
    }

    /// Requests all links and counts of `len` blocks from `first` on from memory.
    #[inline]
    pub(crate) fn prefetch_run(&self, first: u32, len: usize) {
        let range = first as usize..first as usize + len;
        prefetch(&self.fingerprints[range.clone()]);
        prefetch(&self.parents[range.clone()]);
        prefetch(&self.children[range.clone()]);
        prefetch(&self.readers[range.clone()]);
        prefetch(&self.depths[range.clone()]);
        prefetch(&self.hits[range]);
    }

    /// Adds a reader to `len` blocks from `first` on.
    pub(crate) fn enter(&mut self, first: u32, len: usize) {
        self.readers[first as usize..first as usize + len].iter_mut().for_each(|readers| *readers += 1);
    }

    /// Counts a hit of `len` blocks from `first` on.
    pub(crate) fn hit(&mut self, first: u32, len: usize) {
        self.hits[first as usize..first as usize + len].iter_mut().for_each(|hits| *hits = hits.saturating_add(1));
    }

    /// Removes a reader from `len` blocks from `first` on.
    pub(crate) fn leave(&mut self, first: u32, len: usize) {
        self.readers[first as usize..first as usize + len].iter_mut().for_each(|readers| *readers -= 1);
    }

    /// Returns the block before a block in the prefix; `None` for the first.
    pub fn parent(&self, index: u32) -> Option<u32> {
        let parent = self.parents[index as usize];
        debug_assert_ne!(parent, UNPUBLISHED);
        (!is_namespace(parent)).then_some(parent)
    }

    /// Returns the parent of a leaf if the parent will be an idle leaf once the leaf is removed.
    pub fn next_leaf(&self, leaf: u32) -> Option<u32> {
        self.parent(leaf).filter(|parent| {
            let parent = *parent as usize;
            self.children[parent] == 1 && self.readers[parent] == 0
        })
    }

    /// Returns `true` if the block is published and its parent lies in the slot before.
    #[inline]
    pub(crate) fn follows(&self, index: u32) -> bool {
        self.runs.get(index as usize)
    }

    /// Returns the number of blocks of a chain from `first` on in neighbouring slots, 1 to `n`.
    #[inline]
    pub(crate) fn run(&self, first: u32, n: usize) -> usize {
        1 + self.runs.ones_from(first as usize + 1, n - 1)
    }

    /// Returns the number of leading blocks of a walk from `last` towards the beginning of the prefix that lie in neighbouring slots,
    /// `last`, `last - 1` and so on: 1 to `n`.
    #[inline]
    pub(crate) fn falling(&self, last: u32, n: usize) -> usize {
        1 + self.runs.ones_down_from(last as usize, n - 1)
    }

    /// Returns `true` if no published block continues this one.
    pub fn is_leaf(&self, index: u32) -> bool {
        self.children[index as usize] == 0
    }

    /// Returns the number of published blocks right after a block.
    pub(crate) fn n_children(&self, index: u32) -> u32 {
        self.children[index as usize]
    }

    /// Returns `true` if a published block may continue this one. Always `true` for a namespace.
    pub(crate) fn is_continued(&self, parent: u32) -> bool {
        is_namespace(parent) || self.children[parent as usize] > 0
    }

    /// Returns the number of blocks before a block in the prefix.
    pub fn depth(&self, index: u32) -> u32 {
        self.depths[index as usize]
    }

    /// Returns the fingerprint of a block: equal contents have equal fingerprints, in any slot.
    pub fn fingerprint(&self, index: u32) -> u64 {
        self.fingerprints[index as usize]
    }

    /// Returns the number of times a request found a block since publication.
    pub fn hits(&self, index: u32) -> u32 {
        u32::from(self.hits[index as usize])
    }
}

/// Calls `each` for every run of blocks in adjacent slots, with the first slot and the length of the run.
pub(crate) fn for_runs(chain: &[BlockHandle], mut each: impl FnMut(u32, usize)) {
    let mut rest = chain;
    while let Some(first) = rest.first() {
        let len = ascending(rest.len(), first.index, |i| rest[i].index);
        each(first.index, len);
        rest = &rest[len..];
    }
}

/// Calls `each` for every run of slots that count down by one, with the lowest slot and the length of the run.
#[inline]
pub(crate) fn for_falling_runs(slots: &[u32], mut each: impl FnMut(u32, usize)) {
    let mut rest = slots;
    while let Some(highest) = rest.first() {
        let len = ascending(rest.len(), !*highest, |i| !rest[i]);
        each(highest + 1 - len as u32, len);
        rest = &rest[len..];
    }
}

/// Returns the number of leading values, `n` at most, that count up from `from`.
#[inline]
pub(crate) fn ascending(n: usize, from: u32, value: impl Fn(usize) -> u32) -> usize {
    const STRIDE: usize = 32;
    let is = |at: usize| value(at) == from.wrapping_add(at as u32);
    let mut at = 0;
    // A stretch at a time without a branch, which the compiler vectorises. The last value of a stretch is checked first, because
    // it is the most likely one to break the run.
    while at + STRIDE <= n && is(at + STRIDE - 1) && (0..STRIDE).fold(true, |all, i| all & is(at + i)) {
        at += STRIDE;
    }
    while at < n && is(at) {
        at += 1;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_that_count_down_form_runs() {
        let slots: Vec<u32> = (100..150).rev().chain([7, 6, 6, 7]).chain((0..3).rev()).collect();
        let mut runs = Vec::new();
        for_falling_runs(&slots, |first, len| runs.push((first, len)));
        assert_eq!(runs, [(100, 50), (6, 2), (6, 1), (7, 1), (0, 3)]);
    }

    #[test]
    fn a_chain_leaves_in_runs_as_it_would_block_by_block() {
        // 0 to 39, then 60 to 64, and two children of 62, of which 63 is one.
        let mut nodes = Nodes::default();
        nodes.open(100);
        let hashes: Vec<BlockHash> = (0..40).map(BlockHash).collect();
        nodes.publish(0, ROOT, &hashes);
        nodes.publish(60, 39, &hashes[..5]);
        nodes.publish(80, 62, &hashes[..1]);
        nodes.readers.fill(0);
        assert_eq!(
            [(64, 100), (64, 3), (39, 100), (5, 100), (60, 1)].map(|(last, n)| nodes.falling(last, n)),
            [5, 3, 40, 6, 1]
        );
        assert_eq!(nodes.remove_chain(&[64, 63]), None, "62 has another child");
        assert_eq!(nodes.remove_chain(&[80]), Some(62));
        let rest: Vec<u32> = (60..63).rev().chain((1..40).rev()).collect();
        assert_eq!(nodes.remove_chain(&rest), Some(0));
        assert_eq!(nodes.remove_chain(&[0]), None);
        assert!(nodes.parents.iter().all(|parent| *parent == UNPUBLISHED) && nodes.children.iter().all(|n| *n == 0));
    }

    #[test]
    fn a_block_alone_is_published_like_a_chain_of_one() {
        for (slot, parent) in [(8, ROOT), (8, 7), (9, 7), (3, 7)] {
            let [mut alone, mut chain] = [(); 2].map(|()| {
                let mut nodes = Nodes::default();
                nodes.open(10);
                nodes.publish(6, ROOT, &[BlockHash(1), BlockHash(2)]);
                nodes.hits[slot as usize] = 5;
                nodes
            });
            alone.publish_one(slot, parent, BlockHash(3));
            chain.publish(slot, parent, &[BlockHash(3)]);
            assert_eq!(format!("{alone:?}"), format!("{chain:?}"), "slot {slot} behind {parent}");
        }
    }

    #[test]
    #[should_panic(expected = "some are no idle leaves")]
    fn a_block_with_another_child_does_not_leave() {
        let mut nodes = Nodes::default();
        nodes.open(10);
        nodes.publish(0, ROOT, &[BlockHash(1), BlockHash(2)]);
        nodes.publish(5, 0, &[BlockHash(3)]);
        nodes.readers.fill(0);
        nodes.remove_chain(&[1, 0]);
    }

    #[test]
    fn a_run_ends_where_it_is_broken() {
        let mut values: Vec<u32> = (7..207).collect();
        assert_eq!(ascending(200, 7, |i| values[i]), 200);
        assert_eq!(ascending(0, 7, |i| values[i]), 0);
        for broken in [0, 1, 31, 32, 33, 63, 64, 150, 199] {
            values[broken] ^= 1 << 20;
            assert_eq!(ascending(200, 7, |i| values[i]), broken);
            values[broken] ^= 1 << 20;
        }
    }
}
