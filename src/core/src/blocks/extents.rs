//! Free slots of a pool: chosen so as to keep the blocks of a sequence next to each other.
//!
//! **Extents.** 128 neighbouring slots form an extent, one word of a bit map. Extents with available slots stand in lists by their
//! longest run of available slots, so that the smallest run of sufficient length is found without a search.
//!
//! **Runs.** A sequence continues in the slot after its last one. If that slot is taken, the sequence begins a new run.
//!
//! **Reservations.** The free slots after the last slot of a growing sequence are reserved for the sequence: others take them only
//! if no other slot is free. A reserved slot is a free slot: a reservation changes no count. The slot before a reserved run belongs
//! to the owner, so no record of owners is needed. Every sequence may reserve as many slots as it has, up to an extent, and all
//! sequences together may reserve one slot in [`AHEAD_SHARE`], or a quarter of the free slots if that is more.
//!
//! A full pool has no runs unless blocks are evicted ahead of need; [`FreeSlots::lacking`] says how many, so that at most one slot in
//! [`AHEAD_SHARE`] stays free for it, and at most one idle slot in [`IDLE_SHARE`] is evicted: when few are idle, preempted sequences
//! come back to them. A pool of fewer than 1,024 slots reserves nothing and evicts nothing ahead.

/// Slots in an extent.
pub(crate) const EXTENT: u32 = u128::BITS;
/// Share of a full pool kept free for runs, at most: one slot in `AHEAD_SHARE`.
const AHEAD_SHARE: u32 = 64;
/// Share of the idle slots freed ahead of need, at most: one slot in `IDLE_SHARE`.
const IDLE_SHARE: u32 = 16;
/// Least number of slots worth keeping free for runs. A pool with a smaller share keeps none.
const AHEAD_MIN: u32 = 16;
/// Lists of extents by their longest run of available slots: 1, 2, 4, to 128 slots or more.
const CLASSES: usize = 8;
/// List of extents with reserved free slots only.
const ALL_RESERVED: usize = CLASSES;
/// Mark of an extent in no list: no slot is free.
const NO_LIST: usize = CLASSES + 1;
/// Maximum number of extents with memory reserved from the beginning. Memory that is never touched costs nothing.
const EXTENTS_MAX: u32 = 1 << 16;
const NIL: u32 = u32::MAX;

/// Bit maps of 128 slots, and the place of the extent in its list.
#[derive(Clone, Copy, Debug)]
struct Extent {
    free: u128,
    /// Free slots reserved for the sequence in the slot before.
    reserved: u128,
    next: u32,
    prev: u32,
    list: u8,
}

impl Extent {
    fn available(&self) -> u128 {
        self.free & !self.reserved
    }

    /// Returns the list for the extent.
    fn proper_list(&self) -> usize {
        match self.available() {
            0 if self.free == 0 => NO_LIST,
            0 => ALL_RESERVED,
            available => longest_class(available),
        }
    }
}

/// Free slots of a pool, opened in ascending order up to the capacity.
#[derive(Debug)]
pub(crate) struct FreeSlots {
    capacity: u32,
    /// Maximum number of slots kept free for runs in a full pool.
    ahead: u32,
    /// Extents opened so far.
    extents: Vec<Extent>,
    /// First extent of each list.
    heads: [u32; CLASSES + 1],
    /// Free slots, of opened extents or not.
    free: u32,
    /// Reserved slots, all of them free.
    reserved: u32,
    /// Runs of reserved slots.
    reservations: u32,
}

impl FreeSlots {
    /// Creates a pool of `capacity` free slots.
    pub fn new(capacity: u32) -> Self {
        let share = capacity / AHEAD_SHARE;
        Self {
            capacity,
            ahead: if share < AHEAD_MIN { 0 } else { share },
            extents: Vec::with_capacity(capacity.min(EXTENTS_MAX * EXTENT).div_ceil(EXTENT) as usize),
            heads: [NIL; CLASSES + 1],
            free: capacity,
            reserved: 0,
            reservations: 0,
        }
    }

    /// Frees all slots, as if none had been taken ever.
    pub fn clear(&mut self) {
        let mut extents = std::mem::take(&mut self.extents);
        extents.clear();
        *self = Self { extents, heads: [NIL; CLASSES + 1], free: self.capacity, reserved: 0, reservations: 0, ..*self };
    }

    /// Takes `n` slots for a sequence whose last slot is `after`, and passes each run of neighbours to `each`: first slot and
    /// length. Reserves the slots behind for the sequence, which has `have` slots then. At least `n` slots MUST be free.
    pub fn take(&mut self, n: u32, after: Option<u32>, have: u32, mut each: impl FnMut(u32, u32)) {
        assert!(n <= self.free, "{n} of {} free slots cannot be taken", self.free);
        if let Some(next) = after.filter(|_| n == 1).and_then(|after| self.take_reserved(after)) {
            return each(next, 1);
        }
        let wish = self.wish(have);
        let (mut left, mut last) = (n, after);
        while left > 0 {
            let (first, len) = last.and_then(|last| self.run_after(last)).unwrap_or_else(|| self.best_run(left + wish));
            let len = len.min(left);
            self.remove(first, len);
            each(first, len);
            left -= len;
            last = Some(first + len - 1);
        }
        if let Some(last) = last {
            self.reserve(last, wish);
        }
    }

    /// Takes the slot after `last`, if that slot and the next one are reserved for the sequence: the usual case of a sequence that grows.
    /// Nothing else changes then. Returns the slot.
    fn take_reserved(&mut self, last: u32) -> Option<u32> {
        let next = last + 1;
        let (extent, bit) = (self.extents.get_mut((next / EXTENT) as usize)?, next % EXTENT);
        if extent.reserved >> bit & 3 != 3 {
            return None;
        }
        extent.free &= !(1 << bit);
        extent.reserved &= !(1 << bit);
        self.free -= 1;
        self.reserved -= 1;
        Some(next)
    }

    /// Returns the number of slots to free before [`Self::take`] with the same arguments, so that the new slots form a run: 0 if
    /// they do already, or if enough slots are kept free as it is. Of `idle` slots that could be freed one in [`IDLE_SHARE`] is, at
    /// most: when few are idle, their contents are what preempted sequences come back to.
    pub fn lacking(&self, n: u32, after: Option<u32>, have: u32, idle: u32) -> u32 {
        let next = after.and_then(|after| self.peek_after(after)).map_or(0, |(_, len)| len);
        if next >= n {
            return 0;
        }
        let wish = self.wish(have);
        let ahead = self.ahead.min(idle / IDLE_SHARE);
        if wish == 0 || ahead < AHEAD_MIN || self.has_run(n - next + wish) {
            return 0;
        }
        ahead.saturating_sub(self.free.saturating_sub(n)).min(2 * EXTENT)
    }

    /// Returns the length of the runs for a sequence with `have` slots, rounded up to a power of 2. Freeing slots down to a
    /// multiple of that number makes such a run.
    pub fn run_length(&self, have: u32) -> u32 {
        (1 + self.wish(have)).min(EXTENT).next_power_of_two()
    }

    /// Frees slots, in any order.
    pub fn put(&mut self, slots: &[u32]) {
        let mut rest = slots;
        while let Some(first) = rest.first() {
            let extent = first / EXTENT;
            let len = rest.iter().take_while(|slot| *slot / EXTENT == extent).count();
            let bits = rest[..len].iter().fold(0, |bits, slot| bits | 1 << (slot % EXTENT));
            self.put_bits(extent, bits);
            self.free += len as u32;
            rest = &rest[len..];
        }
    }

    /// Ends the reservation behind a slot, if there is one: the last slot of a sequence that grows no more.
    pub fn end_reservation(&mut self, last: u32) {
        self.unreserve(last / EXTENT, 1 << (last % EXTENT));
        self.relist(last / EXTENT);
    }

    fn put_bits(&mut self, extent: u32, bits: u128) {
        let there = &mut self.extents[extent as usize];
        debug_assert_eq!(there.free & bits, 0, "a slot is freed twice");
        there.free |= bits;
        self.unreserve(extent, bits);
        self.relist(extent);
    }

    /// Ends the reservations that begin after any of the slots `bits`.
    fn unreserve(&mut self, extent: u32, bits: u128) {
        let extent = &mut self.extents[extent as usize];
        let starts = bits << 1 & extent.reserved;
        if starts != 0 {
            // The carry of an addition runs through the reserved slots up to the gap behind them.
            let ended = extent.reserved & !extent.reserved.wrapping_add(starts);
            extent.reserved &= !ended;
            self.reserved -= ended.count_ones();
            self.reservations -= starts.count_ones();
        }
    }

    /// Returns the number of slots to reserve for a sequence with `have` slots.
    fn wish(&self, have: u32) -> u32 {
        if self.ahead == 0 {
            return 0;
        }
        let budget = self.ahead.max(self.free / 4);
        have.min(EXTENT).min(budget / (self.reservations + 1)).min(budget.saturating_sub(self.reserved))
    }

    /// Returns the run of free slots directly after a slot, up to the end of an extent. No such slot is reserved for another
    /// sequence: the slot before a reserved run belongs to the owner.
    fn peek_after(&self, last: u32) -> Option<(u32, u32)> {
        let first = last + 1;
        match self.extents.get((first / EXTENT) as usize) {
            Some(extent) => {
                let len = (extent.free >> (first % EXTENT)).trailing_ones();
                (len > 0).then_some((first, len))
            }
            None if first < self.capacity => Some((first, (self.capacity - first).min(EXTENT))),
            None => None,
        }
    }

    fn run_after(&mut self, last: u32) -> Option<(u32, u32)> {
        let run = self.peek_after(last)?;
        if run.0 / EXTENT == self.extents.len() as u32 {
            self.open();
        }
        Some(run)
    }

    /// Returns `true` if a run of `len` slots, or of an extent, is available.
    fn has_run(&self, len: u32) -> bool {
        self.is_unopened() || self.heads[class_for(len)..CLASSES].iter().any(|head| *head != NIL)
    }

    /// Returns the shortest available run for `len` slots, or else the longest, within one extent. At least one slot MUST be free.
    fn best_run(&mut self, len: u32) -> (u32, u32) {
        let class = class_for(len);
        let long_enough = (class..CLASSES).find(|class| self.heads[*class] != NIL);
        let extent = match long_enough {
            Some(class) => self.heads[class],
            None if self.is_unopened() => self.open(),
            None => self.longest(class),
        };
        let there = &self.extents[extent as usize];
        let available = there.available();
        let first = runs(available, usize::from(there.list)).trailing_zeros();
        (extent * EXTENT + first, (available >> first).trailing_ones())
    }

    /// Returns an extent with one of the longest runs below a class. If every free slot is reserved, ends the reservations of an
    /// extent.
    fn longest(&mut self, below: usize) -> u32 {
        if let Some(class) = (0..below).rev().find(|class| self.heads[*class] != NIL) {
            return self.heads[class];
        }
        let extent = self.heads[ALL_RESERVED];
        let reserved = std::mem::take(&mut self.extents[extent as usize].reserved);
        self.reserved -= reserved.count_ones();
        self.reservations -= (reserved & !(reserved << 1)).count_ones();
        self.relist(extent);
        extent
    }

    fn is_unopened(&self) -> bool {
        (self.extents.len() as u32) < self.capacity.div_ceil(EXTENT)
    }

    fn open(&mut self) -> u32 {
        let extent = self.extents.len() as u32;
        let slots = (self.capacity - extent * EXTENT).min(EXTENT);
        let list = NO_LIST as u8;
        self.extents.push(Extent { free: bits(0, slots), reserved: 0, next: NIL, prev: NIL, list });
        self.relist(extent);
        extent
    }

    /// Takes free slots of one extent.
    fn remove(&mut self, first: u32, len: u32) {
        let taken = bits(first % EXTENT, len);
        let extent = &mut self.extents[(first / EXTENT) as usize];
        debug_assert_eq!(extent.free & taken, taken, "a slot is taken twice");
        extent.free &= !taken;
        self.free -= len;
        let reserved = extent.reserved & taken;
        if reserved != 0 {
            extent.reserved &= !taken;
            self.reserved -= reserved.count_ones();
            // A run of reserved slots is taken from its beginning on.
            let rest = extent.reserved & reserved << 1;
            self.reservations -= u32::from(rest == 0);
        }
        if reserved != taken || extent.free == 0 {
            self.relist(first / EXTENT);
        }
    }

    /// Reserves up to `wish` available slots directly after `last`, in the same extent, unless some are reserved already.
    fn reserve(&mut self, last: u32, wish: u32) {
        let bit = last % EXTENT + 1;
        if wish == 0 || bit == EXTENT {
            return;
        }
        let extent = &mut self.extents[(last / EXTENT) as usize];
        if extent.reserved >> bit & 1 == 1 {
            return;
        }
        let len = (extent.available() >> bit).trailing_ones().min(wish);
        if len > 0 {
            extent.reserved |= bits(bit, len);
            self.reserved += len;
            self.reservations += 1;
            self.relist(last / EXTENT);
        }
    }

    /// Moves an extent into the list for its available slots.
    fn relist(&mut self, at: u32) {
        let extent = self.extents[at as usize];
        let list = extent.proper_list();
        if list == usize::from(extent.list) {
            return;
        }
        match (extent.prev, usize::from(extent.list)) {
            (_, NO_LIST) => {}
            (NIL, left) => self.heads[left] = extent.next,
            (prev, _) => self.extents[prev as usize].next = extent.next,
        }
        if extent.next != NIL {
            self.extents[extent.next as usize].prev = extent.prev;
        }
        let mut next = NIL;
        if list != NO_LIST {
            next = std::mem::replace(&mut self.heads[list], at);
            if next != NIL {
                self.extents[next as usize].prev = at;
            }
        }
        self.extents[at as usize] = Extent { next, prev: NIL, list: list as u8, ..extent };
    }

    /// Panics unless the free slots are those that `is_free` names, and lists and counts agree with the bit maps. O(slots opened).
    pub fn check(&self, name: &str, is_free: impl Fn(u32) -> bool) {
        let (mut free, mut reserved, mut reservations) = (0, 0, 0);
        for (at, extent) in (0..).zip(&self.extents) {
            let last = (self.capacity - at * EXTENT).min(EXTENT);
            for bit in 0..EXTENT {
                let expected = bit < last && is_free(at * EXTENT + bit);
                assert_eq!(
                    extent.free >> bit & 1 == 1,
                    expected,
                    "{name} {} in the map of free ones",
                    at * EXTENT + bit
                );
            }
            assert_eq!(extent.reserved & !extent.free, 0, "a reserved {name} is in use");
            let starts = extent.reserved & !(extent.reserved << 1);
            assert_eq!(starts & (extent.free << 1 | 1), 0, "no sequence has the {name} before a reserved one");
            assert_eq!(
                usize::from(extent.list),
                extent.proper_list(),
                "{name}s from {} on are in a wrong list",
                at * EXTENT
            );
            free += extent.free.count_ones();
            reserved += extent.reserved.count_ones();
            reservations += starts.count_ones();
        }
        let unopened = self.capacity - self.capacity.min(self.extents.len() as u32 * EXTENT);
        assert_eq!((free + unopened, reserved, reservations), (self.free, self.reserved, self.reservations));
        let listed: usize = self.heads.iter().map(|head| self.list(*head).count()).sum();
        assert_eq!(listed, self.extents.iter().filter(|extent| extent.free != 0).count(), "{name}s are in no list");
    }

    fn list(&self, head: u32) -> impl Iterator<Item = u32> + '_ {
        let some = |extent: u32| (extent != NIL).then_some(extent);
        std::iter::successors(some(head), move |at| some(self.extents[*at as usize].next))
    }
}

/// Returns `len` bits from `first` on, 128 at most.
fn bits(first: u32, len: u32) -> u128 {
    u128::MAX.checked_shr(EXTENT - len).unwrap_or(0) << first
}

/// Returns the class of runs of `len` slots, or of an extent.
fn class_for(len: u32) -> usize {
    len.clamp(1, EXTENT).next_power_of_two().trailing_zeros() as usize
}

/// Returns the class of the longest run of set bits in a word that is not 0.
fn longest_class(mut word: u128) -> usize {
    for class in 0..CLASSES - 1 {
        word &= word >> (1 << class);
        if word == 0 {
            return class;
        }
    }
    CLASSES - 1
}

/// Returns the bits at which runs of at least 2^`class` set bits begin.
fn runs(word: u128, class: usize) -> u128 {
    (0..class).fold(word, |word, class| word & word >> (1 << class))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Sequences with slots, and the set of used slots.
    #[derive(Default)]
    struct Model {
        used: BTreeSet<u32>,
        sequences: Vec<Vec<u32>>,
    }

    impl Model {
        fn take(&mut self, slots: &mut FreeSlots, at: usize, n: u32) -> Result<(), TestCaseError> {
            let table = &mut self.sequences[at];
            let (after, have, before) = (table.last().copied(), table.len() as u32 + n, slots.free);
            slots.take(n, after, have, |first, len| table.extend(first..first + len));
            for slot in &table[have as usize - n as usize..] {
                prop_assert!(*slot < slots.capacity && self.used.insert(*slot), "slot {slot} is taken twice");
            }
            prop_assert_eq!((table.len() as u32, slots.free), (have, before - n));
            Ok(())
        }

        fn put(&mut self, slots: &mut FreeSlots, gone: &[u32]) {
            gone.iter().for_each(|slot| assert!(self.used.remove(slot)));
            slots.put(gone);
        }
    }

    fn check(slots: &FreeSlots, model: &Model) -> Result<(), TestCaseError> {
        slots.check("slot", |slot| !model.used.contains(&slot));
        prop_assert_eq!(slots.free, slots.capacity - model.used.len() as u32);
        prop_assert!(slots.reserved <= slots.free);
        Ok(())
    }

    proptest! {
        /// Sequences grow, end whole or lose their tail, and keep their slots after they stopped growing.
        #[test]
        fn every_slot_is_free_or_taken_once(
            ops in prop::collection::vec((0u8..6, 0usize..12, 1u32..300), 1..80), capacity in prop_oneof![1u32..300, 1000u32..2500],
        ) {
            let mut slots = FreeSlots::new(capacity);
            let mut model = Model { sequences: vec![Vec::new(); 12], ..Model::default() };
            for (op, at, n) in ops {
                match op {
                    0..4 => {
                        let n = if op < 2 { n } else { 1 }.min(slots.free);
                        model.take(&mut slots, at, n)?;
                    }
                    4 => {
                        let keep = model.sequences[at].len().saturating_sub(n as usize);
                        let mut gone = model.sequences[at].split_off(keep);
                        gone.reverse();
                        model.put(&mut slots, &gone);
                    }
                    _ => {
                        if let Some(last) = model.sequences[at].last() {
                            slots.end_reservation(*last);
                        }
                    }
                }
                check(&slots, &model)?;
                prop_assert!(slots.reserved <= slots.ahead.max(slots.capacity / 4));
            }
            // Nothing is lost: the last free slot, reserved or not, can be taken.
            let rest = slots.free;
            model.take(&mut slots, 0, rest)?;
            for at in 0..12 {
                let all = std::mem::take(&mut model.sequences[at]);
                model.put(&mut slots, &all);
            }
            check(&slots, &model)?;
            prop_assert_eq!((slots.reserved, slots.reservations), (0, 0));
        }
    }

    /// Takes slots and returns the runs.
    fn take(slots: &mut FreeSlots, n: u32, after: Option<u32>, have: u32) -> Vec<(u32, u32)> {
        let mut runs = Vec::new();
        slots.take(n, after, have, |first, len| runs.push((first, len)));
        runs
    }

    #[test]
    fn a_sequence_continues_in_the_slots_reserved_for_it() {
        let mut slots = FreeSlots::new(4096);
        assert_eq!(take(&mut slots, 8, None, 8), [(0, 8)]);
        assert_eq!(take(&mut slots, 8, None, 8), [(16, 8)], "eight are reserved after the first sequence");
        assert_eq!(take(&mut slots, 1, Some(7), 9), [(8, 1)]);
        assert_eq!(take(&mut slots, 1, Some(23), 9), [(24, 1)]);
        assert_eq!((slots.reserved, slots.reservations), (14, 2));
        slots.end_reservation(8);
        slots.end_reservation(24);
        assert_eq!((slots.reserved, slots.reservations), (0, 0));
        assert_eq!(take(&mut slots, 3, Some(8), 12), [(9, 3)], "a sequence that comes back continues there");
    }

    #[test]
    fn reserved_slots_are_taken_when_no_others_are_free() {
        let mut slots = FreeSlots::new(1024);
        take(&mut slots, 100, None, 100);
        assert!(slots.reserved > 0);
        let rest = slots.free;
        let taken: u32 = take(&mut slots, rest, None, rest).iter().map(|(_, len)| len).sum();
        assert_eq!((taken, slots.free, slots.reserved), (924, 0, 0));
    }

    #[test]
    fn the_shortest_run_that_is_long_enough_is_taken() {
        let mut slots = FreeSlots::new(1000);
        assert_eq!(take(&mut slots, 1000, None, 1000).len(), 8, "extent by extent");
        let run = |first: u32, len: u32| (first..first + len).rev().collect::<Vec<_>>();
        for (first, len) in [(10, 40), (200, 3), (300, 9), (896, 104)] {
            slots.put(&run(first, len));
        }
        let one = |slots: &mut FreeSlots, n| take(slots, n, None, n)[0];
        assert_eq!(
            [one(&mut slots, 2), one(&mut slots, 5), one(&mut slots, 20), one(&mut slots, 60)],
            [(200, 2), (300, 5), (10, 20), (896, 60)]
        );
    }

    #[test]
    fn a_full_pool_asks_for_a_run_as_far_as_its_share_goes() {
        let mut slots = FreeSlots::new(64 * 64);
        take(&mut slots, 64 * 64, None, 64 * 64);
        slots.put(&[7]);
        assert_eq!(slots.lacking(1, Some(6), 500, u32::MAX), 0, "the next slot is free");
        assert_eq!(slots.lacking(1, Some(500), 500, u32::MAX), 64, "one slot in 64");
        slots.put(&(1000..1032).step_by(2).collect::<Vec<_>>());
        assert_eq!(slots.lacking(1, Some(500), 500, u32::MAX), 64 - 16);
        assert_eq!(slots.lacking(1, Some(500), 500, 40 * 16), 40 - 16, "of the idle slots");
        assert_eq!(slots.lacking(1, Some(500), 500, 15 * 16), 0, "few are idle: they stay");
        let mut small = FreeSlots::new(1000);
        take(&mut small, 1000, None, 1000);
        small.put(&[7]);
        assert_eq!(
            (small.lacking(1, Some(500), 500, u32::MAX), small.wish(500)),
            (0, 0),
            "a small pool keeps nothing free"
        );
    }

    #[test]
    fn runs_of_bits_are_found_by_length() {
        let word = bits(3, 5) | bits(20, 1) | bits(64, 64);
        assert_eq!(longest_class(word), 6);
        assert_eq!(runs(word, 2).trailing_zeros(), 3);
        assert_eq!(runs(word, 3).trailing_zeros(), 64);
        assert_eq!((longest_class(bits(0, 128)), longest_class(1 << 127)), (7, 0));
        assert_eq!((class_for(0), class_for(1), class_for(3), class_for(128), class_for(500)), (0, 0, 2, 7, 7));
    }
}
