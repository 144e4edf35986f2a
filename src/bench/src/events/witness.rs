//! Contents of the tree of a core in the end, from the core itself.

use std::collections::HashSet;
use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use trunkline_cluster::{CacheListener, EngineId};
use trunkline_core::{CacheEvent, Config, RequestId};
use trunkline_events::{Index, Publisher};

/// Hands changes on to a publisher. When the last blocks are stored it says that it lost changes, so the driver hands over the whole tree with the
/// next input, of which the publisher hears nothing.
pub struct Witness {
    publisher: Publisher,
    is_last: AtomicBool,
    tree: Mutex<Option<HashSet<u64>>>,
}

impl Witness {
    pub fn new(publisher: Publisher) -> Self {
        Self { publisher, is_last: AtomicBool::new(false), tree: Mutex::default() }
    }

    /// Has the next blocks that are stored be the last. MUST be called while no request runs.
    pub fn expect_last(&self) {
        self.is_last.store(true, Ordering::Release);
    }

    /// Returns the hashes of all blocks of the tree, as subscribers see them; `None` if the driver has not handed it over.
    pub fn tree(&self) -> Option<HashSet<u64>> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn is_last(&self) -> bool {
        self.is_last.load(Ordering::Acquire)
    }
}

impl CacheListener for Witness {
    fn begin(&self, engines: &[&Config]) -> Result<(), Box<dyn Error + Send + Sync>> {
        self.publisher.begin(engines)
    }

    fn changed(&self, engine: EngineId, events: Vec<CacheEvent>) -> bool {
        let stores = |event: &CacheEvent| matches!(event, CacheEvent::Stored(_));
        let are_last = self.is_last() && events.iter().any(stores);
        self.publisher.changed(engine, events) && !are_last
    }

    fn has_room(&self) -> bool {
        self.is_last() || self.publisher.has_room()
    }

    fn replaced(&self, engine: EngineId, cached: Vec<CacheEvent>) -> bool {
        if !self.is_last() {
            return self.publisher.replaced(engine, cached);
        }
        let mut tree = Index::default();
        cached.iter().for_each(|event| tree.apply(event));
        let hashes = tree.cached().into_iter().map(|(.., hash)| hash as u64).collect();
        *self.tree.lock().unwrap_or_else(PoisonError::into_inner) = Some(hashes);
        false
    }

    fn named(&self, root: u128, salt: &str, others: &[&str]) {
        self.publisher.named(root, salt, others);
    }

    fn of_session(&self, request: RequestId, session: &str) {
        self.publisher.of_session(request, session);
    }
}
