//! The queue of prefetches: see [`crate::schedule::prefetches`].

use crate::blocks::hash::BlockHash;

/// The prefetches that have not ended, in the order of arrival.
#[derive(Debug, Default)]
pub(crate) struct Prefetches(Vec<Prefetch>);

/// A prefetch that has not ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prefetch {
    /// Slot of its sequence.
    pub slot: usize,
    /// First block of a look-up whose answer it waits for.
    pub awaits: Option<BlockHash>,
    /// `true` once its blocks are on the device.
    pub is_done: bool,
}

impl Prefetches {
    /// Returns the number of prefetches.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the `at`-th prefetch, from 0.
    pub fn get_mut(&mut self, at: usize) -> &mut Prefetch {
        &mut self.0[at]
    }

    /// Adds the prefetch in a slot, the last one so far.
    pub fn push(&mut self, slot: usize) {
        self.0.push(Prefetch { slot, awaits: None, is_done: false });
    }

    /// Returns `true` if the request in a slot is one.
    pub fn contains(&self, slot: usize) -> bool {
        self.slots().any(|other| other == slot)
    }

    /// Removes the prefetch in a slot. Returns `false` if there is none.
    pub fn remove(&mut self, slot: usize) -> bool {
        let before = self.0.len();
        self.0.retain(|prefetch| prefetch.slot != slot);
        self.0.len() < before
    }

    /// Returns the first prefetch that has only to be reported.
    pub fn first_done(&self) -> Option<usize> {
        self.0.iter().find(|prefetch| prefetch.is_done).map(|prefetch| prefetch.slot)
    }

    /// Returns the slots of all.
    pub fn slots(&self) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().map(|prefetch| prefetch.slot)
    }

    /// Notes that the blocks of the prefetch in a slot are on the device.
    pub fn note_done(&mut self, slot: usize) {
        self.0.iter_mut().filter(|prefetch| prefetch.slot == slot).for_each(|prefetch| prefetch.is_done = true);
    }
}
