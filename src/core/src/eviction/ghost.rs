//! A memory of what was evicted: hashes and a note on each, oldest forgotten first.

use std::collections::VecDeque;

use hashbrown::HashMap;

/// Hashes of evicted blocks with a note on each, at most so many.
#[derive(Debug)]
pub(super) struct Ghost<T> {
    notes: HashMap<u64, (u64, T), std::hash::BuildHasherDefault<Identity>>,
    /// (hash, when) in order; entries that the map has forgotten or replaced are skipped.
    order: VecDeque<(u64, u64)>,
    capacity: usize,
    clock: u64,
}

impl<T> Ghost<T> {
    pub fn new(capacity: usize) -> Self {
        Self { notes: HashMap::default(), order: VecDeque::new(), capacity: capacity.max(1), clock: 0 }
    }

    /// Remembers a hash. Returns the oldest note if that had to be forgotten for it.
    pub fn insert(&mut self, hash: u64, note: T) -> Option<T> {
        self.clock += 1;
        self.notes.insert(hash, (self.clock, note));
        self.order.push_back((hash, self.clock));
        while self.order.len() > self.capacity {
            let (oldest, when) = self.order.pop_front().expect("longer than its capacity");
            if self.notes.get(&oldest).is_some_and(|(clock, _)| *clock == when) {
                return self.notes.remove(&oldest).map(|(_, note)| note);
            }
        }
        None
    }

    /// Forgets a hash and returns the note on it.
    pub fn take(&mut self, hash: u64) -> Option<T> {
        self.notes.remove(&hash).map(|(_, note)| note)
    }
}

/// Block hashes are mixed already.
#[derive(Default)]
pub(super) struct Identity(u64);

impl std::hash::Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only block hashes are keys here");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_and_what_was_taken_or_renewed_is_not_forgotten_twice() {
        let mut ghost = Ghost::new(3);
        assert_eq!((ghost.insert(1, 'a'), ghost.insert(2, 'b'), ghost.insert(3, 'c')), (None, None, None));
        assert_eq!(ghost.take(2), Some('b'));
        assert_eq!(ghost.take(2), None);
        assert_eq!(ghost.insert(1, 'd'), None, "the old entry of 1 goes, its new note stays");
        assert_eq!(ghost.insert(4, 'e'), None, "2 was taken already");
        assert_eq!(ghost.insert(5, 'f'), Some('c'));
        assert_eq!(ghost.take(1), Some('d'));
    }
}
