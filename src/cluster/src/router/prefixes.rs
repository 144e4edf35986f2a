//! The prefixes that an engine is believed to cache, in bounded memory.
//!
//! A prefix is a run of chunks, each named by a hash of itself and all chunks before it, so a set of hashes replaces a tree. The set
//! evicts the least recently used chunk. The chunks of a prefix are touched last to first, so a chunk is never older than its
//! successor and eviction starts at the end of a prefix: if a chunk is in the set, all chunks before it are too. Bisection
//! therefore finds the longest known prefix.
//!
//! Hashes are cut to 64 bits. A collision costs a request its best engine and nothing else.

use std::collections::HashMap;

/// Index that stands for no chunk.
const NONE: u32 = u32::MAX;

/// A set of prefixes. 28 bytes a chunk, and less than twice that while it grows.
#[derive(Clone, Debug)]
pub(super) struct Prefixes {
    capacity: usize,
    /// Never iterated.
    by_hash: HashMap<u64, u32, ahash::RandomState>,
    chunks: Vec<Chunk>,
    /// Ends of the recency list: most and least recently used chunk.
    newest: u32,
    oldest: u32,
}

/// A chunk between the one used after it and the one used before it.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    hash: u64,
    newer: u32,
    older: u32,
}

impl Prefixes {
    /// Creates an empty set for `capacity` chunks, at least one.
    pub(super) fn new(capacity: usize) -> Self {
        assert!(capacity > 0 && capacity < NONE as usize, "{capacity} chunks");
        Self { capacity, by_hash: HashMap::default(), chunks: Vec::new(), newest: NONE, oldest: NONE }
    }

    /// Returns the number of chunks in the set.
    pub(super) fn len(&self) -> usize {
        self.chunks.len()
    }

    /// Returns the number of leading chunks that are in the set.
    pub(super) fn longest(&self, chunks: &[u64]) -> usize {
        chunks.partition_point(|hash| self.by_hash.contains_key(hash))
    }

    /// Adds a prefix; if it exceeds the capacity, only its beginning.
    pub(super) fn add(&mut self, chunks: &[u64]) {
        for hash in chunks.iter().take(self.capacity).rev() {
            self.touch(*hash);
        }
    }

    /// Empties the set and keeps its capacity.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.capacity);
    }

    fn touch(&mut self, hash: u64) {
        let known = self.by_hash.get(&hash).copied();
        let at = match known {
            Some(at) if at == self.newest => return,
            Some(at) => {
                self.unlink(at);
                at
            }
            None if self.chunks.len() < self.capacity => {
                self.chunks.push(Chunk { hash, newer: NONE, older: NONE });
                self.chunks.len() as u32 - 1
            }
            None => {
                let at = self.oldest;
                self.unlink(at);
                self.by_hash.remove(&self.chunks[at as usize].hash);
                self.chunks[at as usize].hash = hash;
                at
            }
        };
        if known.is_none() {
            self.by_hash.insert(hash, at);
        }
        self.chunks[at as usize].newer = NONE;
        self.chunks[at as usize].older = self.newest;
        match self.newest {
            NONE => self.oldest = at,
            newest => self.chunks[newest as usize].newer = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let Chunk { newer, older, .. } = self.chunks[at as usize];
        match newer {
            NONE => self.newest = older,
            newer => self.chunks[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.chunks[older as usize].newer = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The literal model: hashes in the order of use, oldest first.
    struct Naive(Vec<u64>, usize);

    impl Naive {
        fn add(&mut self, chunks: &[u64]) {
            for hash in chunks.iter().take(self.1).rev() {
                self.0.retain(|known| known != hash);
                self.0.push(*hash);
                if self.0.len() > self.1 {
                    self.0.remove(0);
                }
            }
        }
    }

    #[test]
    fn it_is_a_set_that_forgets_and_has_no_gaps() {
        let mut state = 7u64;
        let mut below = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for capacity in [1, 2, 5, 40] {
            let (mut set, mut naive) = (Prefixes::new(capacity), Naive(Vec::new(), capacity));
            for _ in 0..2_000 {
                // A path in a binary tree of depth 6: node numbers as hashes, so that prefixes are shared as hashes are.
                let mut node = 1;
                let path: Vec<u64> = (0..1 + below(6))
                    .map(|_| {
                        node = 2 * node + below(2);
                        node
                    })
                    .collect();
                let found = path.iter().take_while(|hash| naive.0.contains(hash)).count();
                assert_eq!(set.longest(&path), found);
                assert_eq!(path.iter().filter(|hash| naive.0.contains(hash)).count(), found, "no gap");
                set.add(&path);
                naive.add(&path);
                assert_eq!((set.len(), set.by_hash.len()), (naive.0.len(), naive.0.len()));
                assert_eq!(set.longest(&path), path.len().min(capacity));
            }
            set.clear();
            assert_eq!((set.len(), set.longest(&[2, 4])), (0, 0));
        }
    }
}
