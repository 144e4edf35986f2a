//! Decoded blocks, kept for the next use; least recently used first out.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::held::Held;

/// Uses of the decoded blocks kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Look-ups that found a decoded block.
    pub hits: u64,
    /// Look-ups that found nothing.
    pub misses: u64,
    /// Decoded blocks held now.
    pub blocks: u64,
    /// Memory of the decoded blocks, bytes.
    pub bytes: u64,
}

/// Decoded blocks by the number of their encoded form.
#[derive(Debug)]
pub struct DecodeCache {
    limit: u64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: HashMap<u64, (u64, Arc<Held>)>,
    /// Numbers by their last use.
    order: BTreeMap<u64, u64>,
    uses: u64,
    stats: CacheStats,
}

impl State {
    fn remove(&mut self, number: u64) -> Option<Arc<Held>> {
        let (used, held) = self.entries.remove(&number)?;
        self.order.remove(&used);
        self.stats.blocks -= 1;
        self.stats.bytes -= held.stored_bytes();
        Some(held)
    }

    fn remove_oldest(&mut self) -> Option<Arc<Held>> {
        let number = *self.order.values().next()?;
        self.remove(number)
    }
}

impl DecodeCache {
    /// Creates a cache of at most `limit` bytes; 0 keeps nothing.
    pub fn new(limit: u64) -> Self {
        Self { limit, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if a block of `bytes` can be kept.
    pub fn takes(&self, bytes: u64) -> bool {
        bytes <= self.limit
    }

    /// Returns the decoded form of block number `number`.
    pub fn get(&self, number: u64) -> Option<Arc<Held>> {
        let mut state = self.state();
        state.uses += 1;
        let now = state.uses;
        let Some((used, held)) = state.entries.get_mut(&number) else {
            state.stats.misses += 1;
            return None;
        };
        let (before, held) = (std::mem::replace(used, now), Arc::clone(held));
        state.order.remove(&before);
        state.order.insert(now, number);
        state.stats.hits += 1;
        Some(held)
    }

    /// Keeps a decoded block.
    pub fn insert(&self, number: u64, held: Arc<Held>) {
        let mut state = self.state();
        let mut gone = vec![state.remove(number)];
        let bytes = held.stored_bytes();
        while state.stats.bytes + bytes > self.limit {
            let Some(oldest) = state.remove_oldest() else { return };
            gone.push(Some(oldest));
        }
        state.uses += 1;
        let now = state.uses;
        state.entries.insert(number, (now, held));
        state.order.insert(now, number);
        state.stats.blocks += 1;
        state.stats.bytes += bytes;
        drop(state);
        drop(gone);
    }

    /// Drops the least recently used block. Returns `false` if there is none.
    pub fn shrink(&self) -> bool {
        let oldest = self.state().remove_oldest();
        oldest.is_some()
    }

    /// Returns the uses so far.
    pub fn stats(&self) -> CacheStats {
        self.state().stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::held::Coding;

    #[test]
    fn the_least_recently_used_block_goes_first() {
        let arena = Arena::new(1 << 20);
        let cache = DecodeCache::new(256);
        let block = |byte: u8| Held::new(&arena, &[byte; 100], Coding::Raw).unwrap();
        cache.insert(1, block(1));
        cache.insert(2, block(2));
        assert_eq!(cache.get(1).unwrap().body().bytes(), [1; 100]);
        cache.insert(3, block(3));
        assert!(cache.get(2).is_none());
        assert!(cache.get(1).is_some() && cache.get(3).is_some());
        cache.insert(3, block(4));
        assert_eq!(cache.get(3).unwrap().body().bytes(), [4; 100]);
        assert_eq!(cache.stats(), CacheStats { hits: 4, misses: 1, blocks: 2, bytes: 256 });
        assert!(cache.shrink() && cache.shrink() && !cache.shrink());
        assert_eq!(arena.stats().used_bytes, 0);
        assert!(!DecodeCache::new(0).takes(1));
    }
}
