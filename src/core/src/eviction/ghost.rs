//! A bounded memory of the fingerprints of evicted blocks; the oldest is forgotten first.

use crate::block_index::BlockIndex;

/// Fingerprints of the last `capacity` evicted blocks, less the ones taken back.
#[derive(Debug)]
pub(super) struct Ghost {
    /// Ring of evicted fingerprints.
    ring: Vec<u64>,
    capacity: usize,
    /// Position in the ring of the next write.
    next: usize,
    /// Positions in the ring by fingerprint, without blocks taken back or evicted again.
    places: BlockIndex,
}

impl Ghost {
    pub fn new(capacity: u32) -> Self {
        let capacity = capacity.max(1);
        let ring = Vec::with_capacity(super::reserved_blocks(capacity));
        Self { ring, capacity: capacity as usize, next: 0, places: BlockIndex::new(capacity) }
    }

    /// Remembers a fingerprint, forgetting the oldest one if the ring is full.
    pub fn insert(&mut self, hash: u64) {
        self.take(hash);
        match self.ring.get(self.next).copied() {
            None => self.ring.push(hash),
            Some(oldest) => {
                if self.place(oldest) == Some(self.next as u32) {
                    self.places.remove(oldest, self.next as u32);
                }
                self.ring[self.next] = hash;
            }
        }
        self.places.insert(hash, self.next as u32, |place| self.ring[place as usize]);
        self.next = (self.next + 1) % self.capacity;
    }

    /// Remembers some fingerprints, in order.
    pub fn insert_all(&mut self, hashes: impl ExactSizeIterator<Item = u64> + Clone) {
        let overwritten = self.ring[self.next.min(self.ring.len())..].iter().take(hashes.len());
        self.touch(hashes.clone().chain(overwritten.copied()));
        hashes.for_each(|hash| self.insert(hash));
    }

    /// Loads the entries of some fingerprints, all at once, so that the next calls hit the processor's caches.
    pub fn touch(&self, hashes: impl Iterator<Item = u64>) {
        self.places.touch(hashes);
    }

    /// Forgets a fingerprint. Returns `true` if it was remembered.
    pub fn take(&mut self, hash: u64) -> bool {
        let place = self.place(hash);
        if let Some(place) = place {
            self.places.remove(hash, place);
        }
        place.is_some()
    }

    fn place(&self, hash: u64) -> Option<u32> {
        self.places.find(hash, |place| self.ring[place as usize])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_oldest_is_forgotten_and_taken_or_renewed_ones_are_not_forgotten_twice() {
        let mut ghost = Ghost::new(3);
        (1..=3).for_each(|hash| ghost.insert(hash));
        assert!(ghost.take(2));
        assert!(!ghost.take(2));
        // The old place of 1 goes, its new one stays.
        ghost.insert(1);
        ghost.insert(4);
        ghost.insert(5);
        assert!(!ghost.take(3));
        assert!(ghost.take(1) && ghost.take(4) && ghost.take(5));
    }

    proptest! {
        #[test]
        fn the_last_fingerprints_are_remembered(ops in prop::collection::vec((0u64..20, prop::bool::ANY), 0..200), capacity in 1u32..12) {
            let mut ghost = Ghost::new(capacity);
            // Every fingerprint ever put in, and whether the ghost still has it.
            let mut model: Vec<(u64, bool)> = Vec::new();
            for (hash, insert) in ops {
                let recent = model.len().saturating_sub(capacity as usize);
                let known = model[recent..].iter_mut().find(|(other, counts)| *other == hash && *counts);
                let was = known.is_some();
                known.into_iter().for_each(|(_, counts)| *counts = false);
                if insert {
                    ghost.insert(hash);
                    model.push((hash, true));
                } else {
                    prop_assert_eq!(ghost.take(hash), was);
                }
            }
        }
    }
}
