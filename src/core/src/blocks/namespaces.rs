//! Namespaces with published blocks: the parent of the first block of a prefix.
//!
//! The first block of a prefix has no block before it. Its parent is its namespace, as a number that the links of blocks can hold: two
//! first blocks of equal tokens and equal hash in two namespaces have different parents, and so does each block behind them.

use std::collections::HashMap;

use crate::blocks::hash::BlockHash;

/// Numbers of namespaces, as parents of first blocks. Blocks have smaller numbers, and no block the greatest two.
const FIRST: u32 = 1 << 31;

/// Namespaces by their root, each with the number of first blocks published in it. A namespace without blocks is forgotten.
#[derive(Debug, Default)]
pub(crate) struct Namespaces {
    numbers: HashMap<BlockHash, u32, ahash::RandomState>,
    entries: Vec<Entry>,
    released: Vec<u32>,
}

#[derive(Debug)]
struct Entry {
    root: BlockHash,
    blocks: u32,
}

/// Returns `true` if a parent is a namespace, and no block.
#[inline]
pub(crate) fn is_namespace(parent: u32) -> bool {
    parent >= FIRST
}

impl Namespaces {
    /// Returns the parent of first blocks in the namespace with this root. `None` if the namespace has no block.
    pub fn parent(&self, root: BlockHash) -> Option<u32> {
        self.numbers.get(&root).map(|number| FIRST + number)
    }

    /// Counts a first block that is published in the namespace with this root. Returns the block's parent.
    pub fn enter(&mut self, root: BlockHash) -> u32 {
        let Self { numbers, entries, released } = self;
        let number = *numbers.entry(root).or_insert_with(|| match released.pop() {
            Some(number) => {
                entries[number as usize] = Entry { root, blocks: 0 };
                number
            }
            None => {
                entries.push(Entry { root, blocks: 0 });
                entries.len() as u32 - 1
            }
        });
        entries[number as usize].blocks += 1;
        FIRST + number
    }

    /// Returns the root of the namespace that is the parent of a first block.
    pub fn root(&self, parent: u32) -> BlockHash {
        self.entries[(parent - FIRST) as usize].root
    }

    /// Removes a first block with this parent.
    pub fn leave(&mut self, parent: u32) {
        let number = parent - FIRST;
        let entry = &mut self.entries[number as usize];
        entry.blocks -= 1;
        if entry.blocks == 0 {
            self.numbers.remove(&entry.root);
            self.released.push(number);
        }
    }

    /// Forgets all namespaces: no block is published any more.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Panics unless the namespaces have exactly the first blocks with these parents.
    pub fn check(&self, parents: impl Iterator<Item = u32>) {
        let mut blocks = vec![0; self.entries.len()];
        parents.for_each(|parent| blocks[(parent - FIRST) as usize] += 1);
        assert!(self.entries.iter().map(|entry| entry.blocks).eq(blocks.iter().copied()), "first blocks drifted");
        assert_eq!(
            self.numbers.len(),
            blocks.iter().filter(|blocks| **blocks > 0).count(),
            "an empty namespace is kept"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_known_while_it_has_blocks_and_its_number_is_used_again() {
        let mut namespaces = Namespaces::default();
        let [a, b, c] = [1, 2, 3].map(BlockHash);
        assert_eq!([namespaces.enter(a), namespaces.enter(b), namespaces.enter(a)], [FIRST, FIRST + 1, FIRST]);
        assert_eq!((namespaces.parent(a), namespaces.parent(c)), (Some(FIRST), None));
        namespaces.check([FIRST, FIRST, FIRST + 1].into_iter());
        namespaces.leave(FIRST);
        assert_eq!(namespaces.parent(a), Some(FIRST), "one block is left");
        namespaces.leave(FIRST);
        assert_eq!((namespaces.parent(a), namespaces.enter(c)), (None, FIRST));
        namespaces.check([FIRST, FIRST + 1].into_iter());
    }
}
