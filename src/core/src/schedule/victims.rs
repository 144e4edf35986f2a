//! The order of preemption among the running sequences.
//!
//! The key of a sequence depends on its tokens and blocks, on its readers, on the policy and on what earlier preemptions taught,
//! so it changes from step to step. The keys of all running sequences are therefore computed at the first preemption of a
//! scheduling pass, from numbers kept here side by side, and the lowest ones serve all preemptions of the pass.

use std::cmp::Reverse;

use crate::request::sequence::Sequence;

/// Maximum number of victims found by one search. A pass that preempts more searches again.
const FIRST_MAX: usize = 64;

/// Order of preemption: the sequence of the lowest key is the victim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// `false` for a background request.
    pub is_served: bool,
    /// By preemption rank and by progress since the last preemption, in the order that the policy asks for.
    pub order: (i128, i128),
    /// Cost per freed block, as a power of two.
    pub level: u32,
    /// Of equals the last to arrive goes.
    pub arrival: Reverse<u64>,
}

/// Facts about a running sequence that stay while it runs.
#[derive(Clone, Copy, Debug, Default)]
struct Entrant {
    arrival: u64,
    /// Tokens generated when the sequence joined the batch.
    generated_at_entry: u32,
    /// `true` if the sequence was preempted before.
    came_back: bool,
}

/// The next victims, and what the search for them needs of each running sequence.
#[derive(Debug, Default)]
pub(crate) struct Victims {
    /// By slot of the sequence. Entries of sequences that do not run mean nothing.
    entrants: Vec<Entrant>,
    /// The lowest keys with their slots, the lowest last. Every other running sequence has a higher key.
    first: Vec<(Key, usize)>,
}

impl Victims {
    /// Takes note of a sequence that joins the batch.
    pub fn enter(&mut self, slot: usize, seq: &Sequence) {
        if self.entrants.len() <= slot {
            self.entrants.resize(slot + 1, Entrant::default());
        }
        self.entrants[slot] = Entrant {
            arrival: seq.cold.view.arrival,
            generated_at_entry: seq.generated(),
            came_back: seq.cold.history.preemptions > 0,
        };
    }

    /// Returns the position of a running sequence in the order of arrival.
    pub fn arrival(&self, slot: usize) -> u64 {
        self.entrants[slot].arrival
    }

    /// Returns `true` if a running sequence was preempted before and has generated nothing since it came back.
    pub fn is_spared(&self, slot: usize, generated: u32) -> bool {
        let entrant = &self.entrants[slot];
        entrant.came_back && generated == entrant.generated_at_entry
    }

    /// Returns `true` if no victim is known.
    pub fn is_empty(&self) -> bool {
        self.first.is_empty()
    }

    /// Forgets the victims: keys changed.
    pub fn clear(&mut self) {
        self.first.clear();
    }

    /// Removes and returns the first victim.
    pub fn pop(&mut self) -> Option<(Key, usize)> {
        self.first.pop()
    }

    /// Takes note of the key of a running sequence, in a search over all of them.
    pub fn offer(&mut self, key: Key, slot: usize) {
        if self.first.len() == FIRST_MAX {
            if key > self.first[0].0 {
                return;
            }
            self.first.remove(0);
        }
        self.insert(key, slot);
    }

    /// Takes note of a changed key of a running sequence, while victims are known.
    pub fn update(&mut self, key: Key, slot: usize) {
        if let Some(at) = self.first.iter().position(|(_, other)| *other == slot) {
            self.first.remove(at);
        }
        if self.first.first().is_some_and(|(highest, _)| key < *highest) {
            self.insert(key, slot);
        }
    }

    fn insert(&mut self, key: Key, slot: usize) {
        let at = self.first.partition_point(|(other, _)| *other > key);
        self.first.insert(at, (key, slot));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(level: u32, arrival: u64) -> Key {
        Key { is_served: true, order: (0, 0), level, arrival: Reverse(arrival) }
    }

    #[test]
    fn the_lowest_keys_come_in_order() {
        let mut victims = Victims::default();
        for slot in 0..1000 {
            victims.offer(key(slot as u32 * 7 % 10, slot as u64), slot);
        }
        let order: Vec<usize> = std::iter::from_fn(|| victims.pop()).map(|(_, slot)| slot).collect();
        assert_eq!(order, (0..FIRST_MAX).map(|n| 990 - 10 * n).collect::<Vec<_>>());
        assert!(victims.is_empty());
    }

    #[test]
    fn a_changed_key_finds_its_new_place() {
        let mut victims = Victims::default();
        (0..4).for_each(|slot| victims.offer(key(5, slot), slot as usize));
        victims.update(key(6, 3), 3);
        victims.update(key(4, 0), 0);
        victims.update(key(5, 9), 9);
        let order: Vec<usize> = std::iter::from_fn(|| victims.pop()).map(|(_, slot)| slot).collect();
        assert_eq!(order, [0, 9, 2, 1], "slot 3 may not be among the lowest any more");
    }
}
