//! Blocks of a tier that pins keep: see [`crate::request::retention`].
//!
//! A block comes with its pin from the device or another tier. Within the bounds of hints for this tier's size it makes room for no other block, unless
//! the tier has pinned blocks alone; only a swapped-out request that needs the memory takes its place. Beyond the bounds a pin does nothing here, but goes on
//! with the block to the next tier at once, whatever blocks that takes. Other hints have no effect in a tier.

use super::{Tier, TierState, handle};
use crate::request::retention::{Pin, RetainedBlocks};

impl Tier {
    /// Sets the time for floors and pins. Times MUST NOT go back.
    #[inline]
    pub fn advance(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.floors.advance(now_ns);
        self.eviction.advance(now_ns, &self.nodes, handle);
    }

    /// Keeps a block that is present, or on its way, until a pin ends. A pin that ends earlier than the block's changes nothing.
    pub fn retain(&mut self, slot: u32, pin: Pin) {
        let at = slot as usize;
        if self.retained.len() <= at {
            self.retained.resize(at + 1, None);
        }
        if self.retained[at].is_some_and(|known| known.until_ns >= pin.until_ns) {
            return;
        }
        self.retained[at] = Some(pin);
        let (idle, limits) = (self.count(TierState::Idle), self.retained_max_now());
        self.eviction.follow_hints(self.now_ns, self.retained_max, idle, self.slots.opened());
        let is_idle = self.slots.state(slot) == TierState::Idle;
        if is_idle {
            self.eviction.read(&[handle(slot)], &self.nodes);
        }
        self.eviction.pin(slot, pin, limits, &self.nodes);
        if is_idle {
            self.eviction.idle(&[handle(slot)], &self.nodes);
        }
    }

    /// Takes the block to be evicted next out of the eviction policy: one that no pin keeps, unless pins keep all blocks of the tier.
    pub(super) fn pop_unpinned(&mut self) -> Option<u32> {
        let used = self.slots.capacity() - self.count(TierState::Free);
        let is_pinned_whole = self.eviction.counters().retained_blocks == used;
        let has_unpinned = self.count(TierState::Idle) > self.eviction.n_idle_above();
        if has_unpinned || is_pinned_whole { self.pop_victim() } else { None }
    }

    /// Returns the number of blocks that pins keep at the present limit, at most.
    fn retained_max_now(&self) -> RetainedBlocks {
        let share = |blocks: u32| u64::from(blocks) * u64::from(self.limit) / u64::from(self.slots.capacity());
        let RetainedBlocks { of_tenant, of_all } = self.retained_max;
        RetainedBlocks { of_tenant: share(of_tenant) as u32, of_all: share(of_all) as u32 }
    }

    /// Returns the pin of a block, if it has one.
    pub(super) fn pin_of(&self, slot: u32) -> Option<Pin> {
        let pin = self.retained.get(slot as usize).copied().flatten();
        pin.filter(|pin| pin.until_ns > self.now_ns)
    }

    /// Returns `true` if a block has a pin that keeps it not here: those of its tenant or of all keep as many blocks as they may.
    pub fn has_ignored_pin(&self, slot: u32) -> bool {
        self.pin_of(slot).is_some() && self.eviction.pin_of(slot).is_none()
    }

    /// Forgets the pin of a block about to leave.
    pub(super) fn forget_pin(&mut self, slot: u32) {
        if let Some(pin) = self.retained.get_mut(slot as usize) {
            *pin = None;
        }
        self.eviction.forget(slot);
    }
}
