//! Changes of the cache, for indexes outside of the core (see [`crate::cache::changes`]), and preemptions.

use super::Core;
use crate::cache::changes::CacheEvent;
use crate::journal::preempted::Preempted;

impl Core {
    /// Notes every preemption from now on, for [`Self::take_preempted`]. Decisions, and their digest, do not change.
    pub fn note_preempted(&mut self) {
        self.state.journal.preempted.get_or_insert_default();
    }

    /// Returns the preemptions since the last call, in order. Take them after each input: until they are taken they take memory.
    pub fn take_preempted(&mut self) -> Vec<Preempted> {
        self.state.journal.preempted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Notes every change in which blocks requests can find, from now on, for [`Self::take_cache_events`]. MUST be called before the first event.
    /// Decisions, and their digest, do not change.
    ///
    /// # Panics
    /// If the cache has been used.
    pub fn listen_to_cache(&mut self) {
        self.state.kv.listen();
    }

    /// Returns the changes since the last call, in order. Take them after each input: an index that follows them equals the cache then, and
    /// until they are taken they take memory.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.state.kv.take_changes()
    }

    /// Returns all blocks that requests can find now, as if they were stored now, each behind the one before it in its prefix. Empty unless
    /// [`Self::listen_to_cache`] was called. O(blocks log blocks).
    pub fn cached_blocks(&self) -> Vec<CacheEvent> {
        self.state.kv.cached()
    }
}
