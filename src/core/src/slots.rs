//! A pool of numbered slots, each in one state of a small state machine.
//!
//! Device blocks, host blocks and the blocks of tiers are slots of such pools. The pool owns the states: [`Slots::apply`] and its
//! bulk variants are the only functions that change them, along the table [`SlotState::TRANSITIONS`]. The number of slots per
//! state is kept by the same functions, so the counts add up to the capacity by construction; [`Slots::check`] counts again.
//!
//! Slots are opened lazily up to the capacity, so a capacity far above the slots in use costs nothing. Freed slots are handed out
//! again last in, first out, before unopened ones.

use crate::transitions::{Transition, next};

/// Slots with memory reserved from the beginning, at most. Memory that is never touched costs nothing.
pub(crate) const ROOM_MAX: u32 = 1 << 22;
/// States of one kind of slot, at most.
const STATES_MAX: usize = 5;

/// The states of one kind of slot, numbered from 0, at most five.
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

/// A pool of slots: their states, the number of slots per state, and the freed ones.
#[derive(Debug)]
pub(crate) struct Slots<S> {
    capacity: u32,
    states: Vec<S>,
    /// Freed slots, the last freed at the end. Blocks of a chain are freed tail first and come back head first, in ascending
    /// order, which keeps the blocks of a sequence next to each other.
    freed: Vec<u32>,
    counts: [u32; STATES_MAX],
}

impl<S: SlotState> Slots<S> {
    /// Creates a pool of `capacity` free slots.
    pub fn new(capacity: u32) -> Self {
        let mut counts = [0; STATES_MAX];
        counts[S::FREE.number()] = capacity;
        Self { capacity, states: Vec::with_capacity(capacity.min(ROOM_MAX) as usize), freed: Vec::new(), counts }
    }

    /// Returns the number of slots in the pool, opened or not.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the number of slots ever taken; all slot numbers in use are below this number.
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

    /// Takes a free slot and applies `event` to it. Returns `None` if no slot is free.
    pub fn take(&mut self, event: S::Event) -> Option<u32> {
        let mut taken = None;
        self.take_many(1, event, |slot| taken = Some(slot));
        taken
    }

    /// Takes `n` free slots, applies `event` to each and passes them to `each`: freed slots first, the last freed first, then
    /// unopened ones in ascending order. Returns `false`, and changes nothing, if fewer than `n` are free.
    pub fn take_many(&mut self, n: u32, event: S::Event, mut each: impl FnMut(u32)) -> bool {
        if n > self.count(S::FREE) {
            return false;
        }
        let to = self.entered(event, S::FREE, 0);
        let reused = (n as usize).min(self.freed.len());
        for slot in self.freed.drain(self.freed.len() - reused..).rev() {
            let state = &mut self.states[slot as usize];
            assert_eq!(*state, S::FREE, "{} {slot} is on the free list", S::NAME);
            *state = to;
            each(slot);
        }
        let (first, opened) = (self.opened(), n - reused as u32);
        self.states.resize((first + opened) as usize, to);
        (first..first + opened).for_each(each);
        self.moved(n, S::FREE, to);
        true
    }

    /// Applies an event to a slot. Returns the state entered; a slot that is free now goes to the end of the freed list.
    pub fn apply(&mut self, slot: u32, event: S::Event) -> S {
        let from = self.states[slot as usize];
        let to = self.entered(event, from, slot);
        self.states[slot as usize] = to;
        self.moved(1, from, to);
        if to == S::FREE {
            self.freed.push(slot);
        }
        to
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

    /// Applies an event that frees to slots in the state `from`, in order.
    pub fn free_all(&mut self, slots: &[u32], from: S, event: S::Event) {
        let Some(first) = slots.first() else { return };
        assert_eq!(self.entered(event, from, *first), S::FREE, "{event:?} frees");
        for slot in slots {
            let state = &mut self.states[*slot as usize];
            assert_eq!(*state, from, "{} {slot} is freed by {event:?}", S::NAME);
            *state = S::FREE;
        }
        self.freed.extend_from_slice(slots);
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

    /// Panics unless counting the states again gives the counts, and the freed list holds exactly the opened free slots.
    pub fn check(&self) {
        let mut counted = [0; STATES_MAX];
        self.states.iter().for_each(|state| counted[state.number()] += 1);
        let opened_free = counted[S::FREE.number()];
        counted[S::FREE.number()] += self.capacity - self.opened();
        assert_eq!(counted, self.counts, "{} counts by state drifted", S::NAME);
        assert_eq!(counted.iter().sum::<u32>(), self.capacity, "{}s were lost or made", S::NAME);
        assert_eq!(opened_free as usize, self.freed.len(), "freed list and free {}s differ", S::NAME);
        assert!(self.freed.iter().all(|slot| self.state(*slot) == S::FREE), "a used {} is on the freed list", S::NAME);
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
    fn freed_slots_come_back_last_in_first_out_before_unopened_ones() {
        let mut slots = Slots::<Lamp>::new(4);
        let mut taken = Vec::new();
        assert!(slots.take_many(3, LampEvent::Lit, |slot| taken.push(slot)));
        assert!(!slots.take_many(2, LampEvent::Lit, |_| panic!("only one slot is free")));
        slots.apply(0, LampEvent::Cut);
        slots.apply(2, LampEvent::Cut);
        slots.check();
        assert!(slots.take_many(3, LampEvent::Lit, |slot| taken.push(slot)));
        assert_eq!((taken, slots.take(LampEvent::Lit)), (vec![0, 1, 2, 2, 0, 3], None));
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
