//! What the tree knows of each block beside its tokens, by the block's slot.
//!
//! One array for each fact: blocks of a chain mostly lie next to each other, so what is done to a chain is done to stretches
//! of these arrays at one go.

use crate::hash::BlockHash;

/// The parent of a first block.
pub(crate) const ROOT: u32 = u32::MAX;
/// The parent of a block that is not published.
pub(crate) const UNPUBLISHED: u32 = u32::MAX - 1;

/// The blocks of the tree, as the tree and its eviction policy see them.
#[derive(Debug, Default)]
pub struct Nodes {
    /// What of its chained hash the tree goes by; tokens decide.
    pub(crate) fingerprints: Vec<u64>,
    /// The block before it, [`ROOT`] or [`UNPUBLISHED`].
    pub(crate) parents: Vec<u32>,
    /// Published blocks that continue it.
    pub(crate) children: Vec<u32>,
    /// Sequences that read it.
    pub(crate) readers: Vec<u32>,
    /// Blocks before it in its prefix.
    pub(crate) depths: Vec<u32>,
    /// Times it was found since it was published.
    pub(crate) hits: Vec<u16>,
}

impl Nodes {
    /// No block yet, and room for so many.
    pub(crate) fn with_room(blocks: usize) -> Self {
        Self {
            fingerprints: Vec::with_capacity(blocks),
            parents: Vec::with_capacity(blocks),
            children: Vec::with_capacity(blocks),
            readers: Vec::with_capacity(blocks),
            depths: Vec::with_capacity(blocks),
            hits: Vec::with_capacity(blocks),
        }
    }

    /// Slots there are.
    pub(crate) fn len(&self) -> usize {
        self.parents.len()
    }

    /// Makes slots up to `len`.
    pub(crate) fn open(&mut self, len: usize) {
        self.fingerprints.resize(len, 0);
        self.parents.resize(len, UNPUBLISHED);
        self.children.resize(len, 0);
        self.readers.resize(len, 0);
        self.depths.resize(len, 0);
        self.hits.resize(len, 0);
    }

    /// Writes down blocks just published, from slot `first` on, each the parent of the next, with one reader.
    pub(crate) fn publish(&mut self, first: u32, parent: u32, hashes: &[BlockHash]) {
        let range = first as usize..first as usize + hashes.len();
        let mut depth = 0;
        if parent != ROOT {
            self.children[parent as usize] += 1;
            depth = self.depths[parent as usize] + 1;
        }
        self.fingerprints[range.clone()].iter_mut().zip(hashes).for_each(|(to, hash)| *to = hash.fingerprint());
        self.parents[range.start] = parent;
        self.parents[range.start + 1..range.end].iter_mut().zip(first..).for_each(|(to, before)| *to = before);
        self.children[range.clone()].fill(1);
        self.children[range.end - 1] = 0;
        self.readers[range.clone()].fill(1);
        self.depths[range.clone()].iter_mut().zip(depth..).for_each(|(to, depth)| *to = depth);
        self.hits[range].fill(0);
    }

    /// Writes down a block without one before it, read by none.
    pub(crate) fn publish_first(&mut self, index: u32, hash: BlockHash) {
        self.publish(index, ROOT, &[hash]);
        self.readers[index as usize] = 0;
    }

    /// Counts that a block was found.
    pub(crate) fn found(&mut self, index: u32) {
        let hits = &mut self.hits[index as usize];
        *hits = hits.saturating_add(1);
    }

    /// Strikes a leaf out. Returns its parent if that is an idle leaf now.
    pub(crate) fn remove(&mut self, index: u32) -> Option<u32> {
        let parent = std::mem::replace(&mut self.parents[index as usize], UNPUBLISHED);
        if parent == ROOT {
            return None;
        }
        self.children[parent as usize] -= 1;
        (self.children[parent as usize] == 0 && self.readers[parent as usize] == 0).then_some(parent)
    }

    /// Strikes out a leaf and ancestors of it, each the parent of the one before. Returns the parent of the last if that is an idle
    /// leaf now.
    pub(crate) fn remove_chain(&mut self, chain: &[u32]) -> Option<u32> {
        let mut parent = None;
        for block in chain {
            assert!(parent.is_none_or(|parent| parent == *block), "block {block} is not the parent of the one before");
            assert!(self.is_leaf(*block) && self.readers[*block as usize] == 0, "block {block} is no idle leaf");
            parent = self.remove(*block);
        }
        parent
    }

    /// Adds a reader to `len` blocks from `first` on, each found once more.
    pub(crate) fn hit(&mut self, first: u32, len: usize) {
        let range = first as usize..first as usize + len;
        self.readers[range.clone()].iter_mut().for_each(|readers| *readers += 1);
        self.hits[range].iter_mut().for_each(|hits| *hits = hits.saturating_add(1));
    }

    /// Takes a reader from `len` blocks from `first` on.
    pub(crate) fn leave(&mut self, first: u32, len: usize) {
        self.readers[first as usize..first as usize + len].iter_mut().for_each(|readers| *readers -= 1);
    }

    /// The block before it in its prefix.
    pub fn parent(&self, index: u32) -> Option<u32> {
        let parent = self.parents[index as usize];
        debug_assert_ne!(parent, UNPUBLISHED);
        (parent != ROOT).then_some(parent)
    }

    /// Whether no published block continues it.
    pub fn is_leaf(&self, index: u32) -> bool {
        self.children[index as usize] == 0
    }

    /// Whether a published block may continue this one, or begin a prefix if this is [`ROOT`].
    pub(crate) fn is_continued(&self, parent: u32) -> bool {
        parent == ROOT || self.children[parent as usize] > 0
    }

    /// Blocks before it in its prefix.
    pub fn depth(&self, index: u32) -> u32 {
        self.depths[index as usize]
    }

    /// Part of its chained hash: the same contents have the same one, whatever the slot.
    pub fn fingerprint(&self, index: u32) -> u64 {
        self.fingerprints[index as usize]
    }

    /// Times a request found it in the cache since it was published.
    pub fn hits(&self, index: u32) -> u32 {
        u32::from(self.hits[index as usize])
    }

    /// Hits of the block before it; 0 if there is none.
    pub fn parent_hits(&self, index: u32) -> u32 {
        self.parent(index).map_or(0, |parent| self.hits(parent))
    }
}

/// How many of the first `n` values count up from `from`, beginning with the first.
#[inline]
pub(crate) fn ascending(n: usize, from: u32, value: impl Fn(usize) -> u32) -> usize {
    const STRIDE: usize = 32;
    let is = |at: usize| value(at) == from.wrapping_add(at as u32);
    let mut at = 0;
    // A stretch at a time without a branch, which the compiler makes wide; its last value goes first, because it is the most
    // likely one to be wrong.
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
