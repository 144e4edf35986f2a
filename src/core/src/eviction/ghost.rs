//! A memory of what was evicted: hashes, oldest forgotten first.

use crate::tree::index::Index;

/// Hashes of evicted blocks: those of the last so many that were not taken back.
#[derive(Debug)]
pub(super) struct Ghost {
    /// What was evicted, in a ring.
    ring: Vec<u64>,
    capacity: usize,
    /// Where the next one goes.
    at: usize,
    /// Places in the ring by hash: of those that are neither taken back nor evicted again.
    places: Index,
}

impl Ghost {
    pub fn new(capacity: u32) -> Self {
        let capacity = capacity.max(1);
        let ring = Vec::with_capacity(super::room(capacity));
        Self { ring, capacity: capacity as usize, at: 0, places: Index::new(capacity) }
    }

    /// Remembers a hash, and forgets the oldest for it if there is no more room.
    pub fn insert(&mut self, hash: u64) {
        self.take(hash);
        match self.ring.get(self.at).copied() {
            None => self.ring.push(hash),
            Some(oldest) => {
                if self.place(oldest) == Some(self.at as u32) {
                    self.places.remove(oldest, self.at as u32);
                }
                self.ring[self.at] = hash;
            }
        }
        self.places.insert(hash, self.at as u32, |place| self.ring[place as usize]);
        self.at = (self.at + 1) % self.capacity;
    }

    /// Forgets a hash. Returns whether it was there.
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
    fn the_oldest_is_forgotten_and_what_was_taken_or_renewed_is_not_forgotten_twice() {
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
        fn it_remembers_the_last_ones_put_in(ops in prop::collection::vec((0u64..20, prop::bool::ANY), 0..200), capacity in 1u32..12) {
            let mut ghost = Ghost::new(capacity);
            // Everything ever put in, and whether it still counts.
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
