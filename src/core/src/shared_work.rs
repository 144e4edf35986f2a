//! Blocks about to be published: the prompts of prefills and loads, by hash.
//!
//! A request whose next block another request computes or loads waits for that block instead of computing the block again
//! (`admission.rs`). [`SharedWork`] answers the question in O(1), however many requests run: each prefill and each load is the
//! *owner* of the prompt blocks that it has not published yet.

use hashbrown::HashTable;

use crate::hash::BlockHash;

/// A block about to be published by a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owned {
    hash: BlockHash,
    /// Slot of the owner.
    owner: usize,
}

/// The blocks about to be published, with their owners. Iterated in no order: lookups by hash only.
#[derive(Debug, Default)]
pub(crate) struct SharedWork {
    blocks: HashTable<Owned>,
}

impl SharedWork {
    /// Returns `true` if no block is about to be published.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Returns the number of pairs of a block and an owner.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Makes the sequence in slot `owner` the owner of blocks. The sequence MUST NOT own any of them.
    pub fn begin(&mut self, owner: usize, hashes: &[BlockHash]) {
        self.blocks.reserve(hashes.len(), rehash);
        for hash in hashes {
            debug_assert!(!self.owns(owner, *hash), "slot {owner} owns block {hash:?} already");
            self.blocks.insert_unique(hash.fingerprint(), Owned { hash: *hash, owner }, rehash);
        }
    }

    /// Ends the ownership of a block, if the sequence in slot `owner` has it. Returns `true` if the block had an owner, this one or
    /// another: then requests may wait for the block.
    pub fn end(&mut self, owner: usize, hash: BlockHash) -> bool {
        if let Ok(entry) = self.blocks.find_entry(hash.fingerprint(), |owned| *owned == Owned { hash, owner }) {
            entry.remove();
            return true;
        }
        !self.blocks.is_empty() && self.owner(hash).is_some()
    }

    /// Returns the slot of the sequence about to publish a block, the lowest slot if there are several.
    pub fn owner(&self, hash: BlockHash) -> Option<usize> {
        let owners = self.blocks.iter_hash(hash.fingerprint()).filter(|owned| owned.hash == hash);
        owners.map(|owned| owned.owner).min()
    }

    /// Returns `true` if the sequence in slot `owner` is about to publish a block.
    pub fn owns(&self, owner: usize, hash: BlockHash) -> bool {
        self.blocks.find(hash.fingerprint(), |owned| *owned == Owned { hash, owner }).is_some()
    }
}

fn rehash(owned: &Owned) -> u64 {
    owned.hash.fingerprint()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_owned_until_its_last_owner_ends() {
        let mut work = SharedWork::default();
        let hashes: Vec<BlockHash> = (0..200).map(|i| BlockHash(i * 0x9e37_79b9_7f4a_7c15)).collect();
        work.begin(7, &hashes);
        work.begin(3, &hashes[..2]);
        assert_eq!((work.len(), work.owner(hashes[1]), work.owner(hashes[2])), (202, Some(3), Some(7)));
        assert!(work.end(3, hashes[1]), "slot 7 computes the block still");
        assert!(work.end(3, hashes[1]), "a block that another publishes is announced too");
        assert_eq!(work.owner(hashes[1]), Some(7));
        assert!(work.end(7, hashes[1]) && !work.end(7, hashes[1]));
        assert_eq!(work.owner(hashes[1]), None);
        assert!(work.owns(7, hashes[0]) && work.owns(3, hashes[0]) && !work.owns(3, hashes[2]));
    }

    #[test]
    fn hashes_with_one_fingerprint_are_told_apart() {
        let (one, other) = (BlockHash(1 << 64 | 5), BlockHash(2 << 64 | 5));
        let mut work = SharedWork::default();
        work.begin(0, &[one]);
        assert_eq!((work.owner(one), work.owner(other)), (Some(0), None));
        assert!(!work.end(0, other) && work.end(0, one) && work.is_empty());
    }
}
