//! A pool of numbered slots, each in one state of a small state machine.
//!
//! Device blocks, host blocks and the blocks of tiers are slots of such pools. The pool owns the states: [`Slots::apply`] and its
//! bulk variants are the only functions that change them, along the table [`SlotState::TRANSITIONS`]. The number of slots per
//! state is kept by the same functions, so the counts add up to the capacity by construction; [`Slots::check`] counts again.
//!
//! Slots are opened lazily up to the capacity, so a capacity far above the slots in use costs nothing. `extents.rs` chooses the slots
//! to take, so that a sequence has neighbours.

use crate::blocks::extents::FreeSlots;
use crate::blocks::nodes::for_falling_runs;
use crate::blocks::prefetch::prefetch;
use crate::blocks::transitions::{Transition, next};

/// Maximum number of slots with memory reserved from the beginning. Memory that is never touched costs nothing.
pub(crate) const ROOM_MAX: u32 = 1 << 22;
/// Maximum number of states of one kind of slot.
const STATES_MAX: usize = 6;

/// The states of one kind of slot, numbered from 0, at most six.
pub(crate) trait SlotState: Copy + Eq + std::fmt::Debug + 'static {
    /// Causes of a change of state.
    type Event: Copy + Eq + std::fmt::Debug + 'static;
    /// Name of a slot in messages: `block`.
    const NAME: &'static str;
    /// State of a slot that holds nothing.
    const FREE: Self;
    /// Every change of state.
    const TRANSITIONS: &'static [Transition<Self::Event, Self>];

    /// Returns the number of the state.
    fn number(self) -> usize;
}

/// A pool of slots: their states, the number of slots per state, and the free ones.
#[derive(Debug)]
pub(crate) struct Slots<S> {
    capacity: u32,
    states: Vec<S>,
    free: FreeSlots,
    counts: [u32; STATES_MAX],
    /// Slot last taken by [`Self::take`].
    last: Option<u32>,
    /// Slots freed by [`Self::release`] since the last [`Self::take_released`], some perhaps taken again.
    released: Vec<u32>,
}

impl<S: SlotState> Slots<S> {
    /// Creates a pool of `capacity` free slots.
    pub fn new(capacity: u32) -> Self {
        let mut counts = [0; STATES_MAX];
        counts[S::FREE.number()] = capacity;
        let states = trunkline_pages::with_capacity(capacity.min(ROOM_MAX) as usize);
        Self { capacity, states, free: FreeSlots::new(capacity), counts, last: None, released: Vec::new() }
    }

    /// Returns the number of slots in the pool, opened or not.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the number of slots up to the last one ever taken; all slot numbers in use are below this number.
    pub fn opened(&self) -> u32 {
        self.states.len() as u32
    }

    /// Returns the number of slots in a state.
    pub fn count(&self, state: S) -> u32 {
        self.counts[state.number()]
    }

    /// Returns the state of an opened slot.
    pub fn state(&self, slot: u32) -> S {
        self.states[slot as usize]
    }

    /// Takes a free slot and applies `event` to it: the slot after the one taken before, if that was in use once and is free. Returns
    /// `None` if no slot is free.
    pub fn take(&mut self, event: S::Event) -> Option<u32> {
        let after = self.last.filter(|last| last + 1 < self.opened());
        let mut taken = None;
        self.take_many(1, after, 0, event, |slot, _| taken = Some(slot));
        self.last = taken;
        taken
    }

    /// Takes `n` free slots for a sequence whose last slot is `after`, and applies `event` to each. The sequence has `have` slots then,
    /// and as many more are reserved after the last one if slots abound. Passes each run of neighbours to `each`: first slot and
    /// length. Returns `false`, and changes nothing, if fewer than `n` are free.
    pub fn take_many(
        &mut self,
        n: u32,
        after: Option<u32>,
        have: u32,
        event: S::Event,
        mut each: impl FnMut(u32, u32),
    ) -> bool {
        if n > self.count(S::FREE) {
            return false;
        }
        let to = self.entered(event, S::FREE, 0);
        let states = &mut self.states;
        self.free.take(n, after, have, |first, len| {
            let (begin, end) = (first as usize, (first + len) as usize);
            if states.len() < end {
                states.resize(end, S::FREE);
            }
            let run = &mut states[begin..end];
            assert!(run.iter().all(|state| *state == S::FREE), "of {len} {}s from {first} on all are free", S::NAME);
            run.fill(to);
            each(first, len);
        });
        self.moved(n, S::FREE, to);
        true
    }

    /// Returns the number of slots to free before [`Self::take_many`] with the same arguments, so that the slots taken form a run.
    pub fn lacking(&self, n: u32, after: Option<u32>, have: u32, idle: u32) -> u32 {
        self.free.lacking(n, after, have, idle)
    }

    /// Returns the length of the runs for a sequence with `have` slots, a power of 2.
    pub fn run_length(&self, have: u32) -> u32 {
        self.free.run_length(have)
    }

    /// Ends the reservation after the last slot of a sequence, which grows no more.
    pub fn end_reservation(&mut self, last: u32) {
        self.free.end_reservation(last);
    }

    /// Applies an event to a slot. Returns the state entered.
    pub fn apply(&mut self, slot: u32, event: S::Event) -> S {
        let from = self.states[slot as usize];
        let to = self.entered(event, from, slot);
        self.states[slot as usize] = to;
        self.moved(1, from, to);
        if to == S::FREE {
            self.free.put(&[slot]);
        }
        to
    }

    /// Frees all slots, in whatever state, as if none had been taken ever.
    pub fn clear(&mut self) {
        self.states.clear();
        self.free.clear();
        self.counts = [0; STATES_MAX];
        self.counts[S::FREE.number()] = self.capacity;
        self.last = None;
    }

    /// Frees a slot by an event, to be named by [`Self::take_released`].
    pub fn release(&mut self, slot: u32, event: S::Event) {
        self.apply(slot, event);
        debug_assert!(self.state(slot) == S::FREE);
        self.released.push(slot);
    }

    /// Returns the slots released since the last call and still free, each once.
    pub fn take_released(&mut self) -> Vec<u32> {
        let mut released = std::mem::take(&mut self.released);
        released.retain(|slot| self.state(*slot) == S::FREE);
        released.sort_unstable();
        released.dedup();
        released
    }

    /// Applies an event to the `len` slots from `first` on. The event MUST NOT free, and all the slots MUST be in one state.
    pub fn apply_run(&mut self, first: u32, len: usize, event: S::Event) {
        let from = self.states[first as usize];
        let to = self.entered(event, from, first);
        assert!(to != S::FREE, "a run of {len} {}s from {first} on cannot be freed at once", S::NAME);
        let states = &mut self.states[first as usize..first as usize + len];
        let alike = states.iter().fold(true, |alike, state| alike & (*state == from));
        assert!(alike, "some of {len} {}s from {first} on are not {from:?}, and cannot become {to:?}", S::NAME);
        states.fill(to);
        self.moved(len as u32, from, to);
    }

    /// Requests the states of `len` slots from `first` on from memory.
    #[inline]
    pub fn prefetch(&self, first: u32, len: usize) {
        prefetch(&self.states[first as usize..first as usize + len]);
    }

    /// Applies an event that frees to slots in the state `from`, in order.
    pub fn free_all(&mut self, slots: &[u32], from: S, event: S::Event) {
        let Some(first) = slots.first() else { return };
        assert_eq!(self.entered(event, from, *first), S::FREE, "{event:?} frees");
        for_falling_runs(slots, |first, len| {
            let states = &mut self.states[first as usize..first as usize + len];
            let alike = states.iter().fold(true, |alike, state| alike & (*state == from));
            assert!(
                alike,
                "some of {len} {}s from {first} on are not {from:?}, and cannot be freed by {event:?}",
                S::NAME
            );
            states.fill(S::FREE);
        });
        self.free.put(slots);
        self.moved(slots.len() as u32, from, S::FREE);
    }

    #[inline]
    fn entered(&self, event: S::Event, from: S, slot: u32) -> S {
        next(S::TRANSITIONS, event, from)
            .unwrap_or_else(|| panic!("{} {slot} is {from:?}, where {event:?} cannot happen", S::NAME))
    }

    #[inline]
    fn moved(&mut self, n: u32, from: S, to: S) {
        self.counts[from.number()] -= n;
        self.counts[to.number()] += n;
    }

    /// Panics unless counting the states again gives the counts, and the map of free slots holds exactly the free ones.
    pub fn check(&self) {
        let mut counted = [0; STATES_MAX];
        self.states.iter().for_each(|state| counted[state.number()] += 1);
        counted[S::FREE.number()] += self.capacity - self.opened();
        assert_eq!(counted, self.counts, "{} counts by state drifted", S::NAME);
        assert_eq!(counted.iter().sum::<u32>(), self.capacity, "{}s were lost or made", S::NAME);
        self.free.check(S::NAME, |slot| self.states.get(slot as usize).is_none_or(|state| *state == S::FREE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Lamp {
        Off,
        Dim,
        Bright,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum LampEvent {
        Lit,
        Turned,
        Cut,
    }

    impl SlotState for Lamp {
        type Event = LampEvent;
        const NAME: &'static str = "lamp";
        const FREE: Self = Self::Off;
        const TRANSITIONS: &'static [Transition<LampEvent, Self>] = &[
            (LampEvent::Lit, Self::Off, Self::Dim),
            (LampEvent::Turned, Self::Dim, Self::Bright),
            (LampEvent::Cut, Self::Dim, Self::Off),
            (LampEvent::Cut, Self::Bright, Self::Off),
        ];

        fn number(self) -> usize {
            self as usize
        }
    }

    #[test]
    fn freed_slots_are_taken_again_in_runs() {
        let mut slots = Slots::<Lamp>::new(4);
        let mut taken = Vec::new();
        assert!(slots.take_many(3, None, 3, LampEvent::Lit, |first, len| taken.push((first, len))));
        assert!(!slots.take_many(2, None, 2, LampEvent::Lit, |_, _| panic!("only one slot is free")));
        slots.apply(0, LampEvent::Cut);
        slots.apply(2, LampEvent::Cut);
        slots.check();
        assert!(slots.take_many(3, None, 3, LampEvent::Lit, |first, len| taken.push((first, len))));
        assert_eq!((taken, slots.take(LampEvent::Lit)), (vec![(0, 3), (2, 2), (0, 1)], None));
        slots.apply_run(1, 2, LampEvent::Turned);
        slots.free_all(&[2, 1], Lamp::Bright, LampEvent::Cut);
        assert_eq!((slots.count(Lamp::Off), slots.take(LampEvent::Lit)), (2, Some(1)));
        slots.check();
    }

    #[test]
    #[should_panic(expected = "lamp 0 is Bright, where Turned cannot happen")]
    fn an_event_that_the_table_does_not_list_panics() {
        let mut slots = Slots::<Lamp>::new(1);
        slots.take(LampEvent::Lit);
        slots.apply(0, LampEvent::Turned);
        slots.apply(0, LampEvent::Turned);
    }
}
