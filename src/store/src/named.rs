//! Blocks in host memory by content: a block that is there already, for whichever place, is not copied again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use trunkline_port::BlockKey;

use crate::held::Held;

/// Number of entries below which gone blocks keep their entries.
const ENTRIES_MIN: usize = 1024;

/// Blocks in host memory with a key, as long as some slot holds them.
#[derive(Debug, Default)]
pub struct NamedBlocks {
    inner: Mutex<Inner>,
    shared: AtomicU64,
    is_closed: AtomicBool,
}

#[derive(Debug, Default)]
struct Inner {
    /// By hash and layer group: hashes alone do not tell groups apart.
    blocks: HashMap<(u128, u8), Weak<Held>>,
    /// Number of entries at which gone blocks lose their entries.
    purge_at: usize,
}

impl NamedBlocks {
    /// Returns the block with a key, if host memory has one, and counts the block as shared.
    pub fn share(&self, key: &BlockKey) -> Option<Arc<Held>> {
        if self.is_closed.load(Relaxed) {
            return None;
        }
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let held = inner.blocks.get(&(key.hash, key.group))?.upgrade()?;
        self.shared.fetch_add(1, Relaxed);
        Some(held)
    }

    /// Notes that a block is in host memory.
    pub fn insert(&self, key: &BlockKey, held: &Arc<Held>) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.blocks.insert((key.hash, key.group), Arc::downgrade(held));
        // At least half of the entries went in since the last time, so each pays for two visits.
        if inner.blocks.len() >= inner.purge_at.max(ENTRIES_MIN) {
            inner.blocks.retain(|_, held| held.strong_count() > 0);
            inner.purge_at = 2 * inner.blocks.len();
        }
    }

    /// Shares no block any more: one key may stand for two contents from now on.
    pub fn close(&self) {
        self.is_closed.store(true, Relaxed);
    }

    /// Returns the number of copies saved so far.
    pub fn shared(&self) -> u64 {
        self.shared.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::Arena;
    use crate::held::Coding;

    #[test]
    fn a_block_is_shared_while_it_is_there_and_entries_of_gone_ones_do_not_pile_up() {
        let arena = Arena::new(64 << 20);
        let named = NamedBlocks::default();
        let key = |hash| BlockKey { hash, ..BlockKey::default() };
        let held = Held::new(&arena, &[1; 100], Coding::Raw).unwrap();
        named.insert(&key(1), &held);
        assert!(Arc::ptr_eq(&named.share(&key(1)).unwrap(), &held));
        assert!(named.share(&key(2)).is_none());
        assert!(named.share(&BlockKey { group: 1, ..key(1) }).is_none(), "another layer group");
        assert_eq!(named.shared(), 1);
        for hash in 2..10_000 {
            named.insert(&key(hash), &Held::new(&arena, &[2; 10], Coding::Raw).unwrap());
            assert!(named.inner.lock().unwrap().blocks.len() <= ENTRIES_MIN);
        }
        assert!(named.share(&key(1)).is_some() && named.share(&key(9_999)).is_none());
        drop(held);
        assert!(named.share(&key(1)).is_none());
    }
}
