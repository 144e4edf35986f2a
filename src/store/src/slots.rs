//! Numbered slots of a place, and the contents of each.
//!
//! Every write first *claims* a slot. The claim takes the old contents out and has a number of its own, the generation; only the latest
//! claim of a slot can fill the slot. So a write that was submitted earlier and finishes later changes nothing.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::residency::Residency;

/// Contents by slot, each with the claim of its writer.
#[derive(Debug)]
pub struct Slots<T> {
    inner: Mutex<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    slots: HashMap<u32, Slot<T>>,
    generation: u64,
    filled: u64,
    residency: Residency,
}

#[derive(Debug)]
struct Slot<T> {
    claim: u64,
    contents: Option<Contents<T>>,
}

#[derive(Debug)]
struct Contents<T> {
    value: T,
    arrived: Instant,
    used: Instant,
}

fn nanoseconds(from: Instant, to: Instant) -> u64 {
    u64::try_from(to.saturating_duration_since(from).as_nanos()).unwrap_or(u64::MAX)
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        let inner = Inner { slots: HashMap::new(), generation: 0, filled: 0, residency: Residency::default() };
        Self { inner: Mutex::new(inner) }
    }
}

impl<T> Inner<T> {
    fn take(&mut self, slot: u32) -> Option<T> {
        let contents = self.slots.get_mut(&slot)?.contents.take()?;
        let now = Instant::now();
        self.filled -= 1;
        self.residency.lifetime.add(nanoseconds(contents.arrived, now));
        self.residency.idle_before_end.add(nanoseconds(contents.used, now));
        Some(contents.value)
    }
}

impl<T: Clone> Slots<T> {
    fn inner(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the contents out of a slot and announces a write. Returns the generation for [`Self::fill`], and the old contents.
    pub fn claim(&self, slot: u32) -> (u64, Option<T>) {
        let mut inner = self.inner();
        let old = inner.take(slot);
        inner.generation += 1;
        let generation = inner.generation;
        inner.slots.insert(slot, Slot { claim: generation, contents: None });
        (generation, old)
    }

    /// Fills a slot, unless the slot was claimed or released again since `generation`: then returns the value.
    ///
    /// # Errors
    /// If a later claim owns the slot.
    pub fn fill(&self, slot: u32, generation: u64, value: T) -> Result<(), T> {
        let mut inner = self.inner();
        let Some(entry) = inner.slots.get_mut(&slot).filter(|entry| entry.claim == generation) else {
            return Err(value);
        };
        let now = Instant::now();
        let was_empty = entry.contents.is_none();
        entry.contents = Some(Contents { value, arrived: now, used: now });
        inner.filled += u64::from(was_empty);
        Ok(())
    }

    /// Replaces the contents of a slot, unless a later claim owns the slot. The times of arrival and use stay.
    ///
    /// # Errors
    /// If the slot is empty or a later claim owns the slot: returns the value.
    pub fn replace(&self, slot: u32, generation: u64, value: T) -> Result<T, T> {
        let mut inner = self.inner();
        let entry = inner.slots.get_mut(&slot).filter(|entry| entry.claim == generation);
        match entry.and_then(|entry| entry.contents.as_mut()) {
            Some(contents) => Ok(std::mem::replace(&mut contents.value, value)),
            None => Err(value),
        }
    }

    /// Returns slot, generation and contents where `chooses` is `true`, in no order.
    pub fn collect(&self, chooses: impl Fn(&T) -> bool) -> Vec<(u32, u64, T)> {
        let inner = self.inner();
        let filled =
            inner.slots.iter().filter_map(|(slot, entry)| Some((*slot, entry.claim, entry.contents.as_ref()?)));
        filled
            .filter(|(.., contents)| chooses(&contents.value))
            .map(|(slot, claim, contents)| (slot, claim, contents.value.clone()))
            .collect()
    }

    /// Returns the generation of a slot; 0 if the slot was never claimed.
    pub fn generation(&self, slot: u32) -> u64 {
        self.inner().slots.get(&slot).map_or(0, |entry| entry.claim)
    }

    /// Returns generation and contents of a slot, and counts a use.
    pub fn get(&self, slot: u32) -> Option<(u64, T)> {
        let mut inner = self.inner();
        let now = Instant::now();
        let entry = inner.slots.get_mut(&slot)?;
        let generation = entry.claim;
        let contents = entry.contents.as_mut()?;
        let gap = nanoseconds(contents.used, now);
        contents.used = now;
        let value = contents.value.clone();
        inner.residency.gap.add(gap);
        Some((generation, value))
    }

    /// Empties a slot. Writes under way for the slot change nothing any more.
    pub fn release(&self, slot: u32) -> Option<T> {
        let mut inner = self.inner();
        let old = inner.take(slot);
        inner.slots.remove(&slot);
        old
    }

    /// Returns the number of slots with contents.
    pub fn filled(&self) -> u64 {
        self.inner().filled
    }

    /// Returns the times that contents spent in slots.
    pub fn residency(&self) -> Residency {
        self.inner().residency.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_latest_claim_wins_in_whatever_order_writes_finish() {
        let slots = Slots::default();
        let (first, _) = slots.claim(3);
        let (second, _) = slots.claim(3);
        assert_eq!(slots.fill(3, second, "new"), Ok(()));
        assert_eq!(slots.fill(3, first, "old"), Err("old"));
        assert_eq!(slots.get(3), Some((second, "new")));
        assert_eq!(slots.replace(3, first, "older"), Err("older"));
        assert_eq!(slots.replace(3, second, "newer"), Ok("new"));
        assert_eq!(slots.collect(|value| *value == "newer"), [(3, second, "newer")]);
        assert_eq!(slots.collect(|value| *value == "new"), []);
        assert_eq!(slots.claim(3).1, Some("newer"));
        assert_eq!((slots.get(3), slots.filled()), (None, 0));
    }

    #[test]
    fn a_released_slot_takes_nothing_from_writes_under_way() {
        let slots = Slots::default();
        let (generation, _) = slots.claim(0);
        assert_eq!(slots.release(0), None);
        assert_eq!(slots.fill(0, generation, 1), Err(1));
        let (again, _) = slots.claim(0);
        assert_ne!(again, generation);
        assert_eq!(slots.fill(0, generation, 1), Err(1));
        assert_eq!(slots.fill(0, again, 2), Ok(()));
        assert_eq!(slots.release(0), Some(2));
        let residency = slots.residency();
        assert_eq!((residency.lifetime.count, residency.idle_before_end.count, residency.gap.count), (1, 1, 0));
    }

    proptest! {
        #[test]
        fn slots_hold_what_a_map_holds(operations in prop::collection::vec((0u32..4, 0u8..4), 1..100)) {
            let slots = Slots::default();
            let mut claims: Vec<(u32, u64)> = Vec::new();
            let (mut latest, mut model) = (HashMap::new(), HashMap::new());
            for (value, (slot, operation)) in operations.into_iter().enumerate() {
                match operation {
                    0 => {
                        let (generation, old) = slots.claim(slot);
                        prop_assert_eq!(old, model.remove(&slot));
                        claims.push((slot, generation));
                        latest.insert(slot, generation);
                    }
                    1 if !claims.is_empty() => {
                        let (slot, generation) = claims[value % claims.len()];
                        let filled = slots.fill(slot, generation, value).is_ok();
                        prop_assert_eq!(filled, latest.get(&slot) == Some(&generation));
                        if filled {
                            model.insert(slot, value);
                        }
                    }
                    2 => {
                        latest.remove(&slot);
                        prop_assert_eq!(slots.release(slot), model.remove(&slot));
                    }
                    _ => prop_assert_eq!(slots.get(slot).map(|(_, value)| value), model.get(&slot).copied()),
                }
                prop_assert_eq!(slots.filled(), model.len() as u64);
            }
        }
    }
}
