//! The interface of what follows the caches of a cluster from outside, as a publisher of cache events does.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use trunkline_core::{CacheEvent, Config, RequestId};

use crate::engine::EngineId;

/// Follows the caches of a cluster's engines. The driver calls it after each input, so a call MUST NOT wait.
pub trait CacheListener: Send + Sync {
    /// Begins, before the first change. Called once, when the limits of the engines are known.
    ///
    /// # Errors
    /// If it cannot begin.
    fn begin(&self, engines: &[&Config]) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Takes the changes of an engine's cache of one input, in order. Returns `false` if it has no room: it gets the whole cache instead, once
    /// it has ([`Self::has_room`]), and no change before.
    fn changed(&self, engine: EngineId, events: Vec<CacheEvent>) -> bool;

    /// Returns `true` if there is room for a whole cache.
    fn has_room(&self) -> bool;

    /// Takes all that an engine caches, instead of the changes that were lost. Returns `false` if it has no room.
    fn replaced(&self, engine: EngineId, cached: Vec<CacheEvent>) -> bool;

    /// Learns the names behind the root of a namespace, before a request of it: its salt, empty for none, and whatever else sets it apart from
    /// the namespace that all requests without a salt share. Called by any thread.
    fn named(&self, root: u128, salt: &str, others: &[&str]);

    /// Learns that a request, which is about to come, is a turn of a session. Called by any thread.
    fn of_session(&self, request: RequestId, session: &str);
}

/// A listener that options of a server can hold.
#[derive(Clone)]
pub struct ListenToCaches(pub Arc<dyn CacheListener>);

impl fmt::Debug for ListenToCaches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ListenToCaches")
    }
}
