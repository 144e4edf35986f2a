//! Settings of a publisher, and the state that the server, the publisher and its sockets share.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use trunkline_core::RequestId;

use crate::endpoint::Endpoint;
use crate::error::PublisherError;
use crate::event::{Names, Scope};
use crate::msgpack::Form;
use crate::stream::Stream;

/// Scopes known before those without blocks are forgotten.
const SCOPES_MAX: usize = 1 << 16;

/// Settings of a publisher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Address of the PUB socket, as `tcp://*:5557`; `None` for no ZeroMQ. Of several engines, each has the next port.
    pub endpoint: Option<String>,
    /// Address of the ROUTER socket that replays batches.
    pub replay_endpoint: Option<String>,
    /// Address of the ROUTER socket that answers with snapshots.
    pub snapshot_endpoint: Option<String>,
    /// Topic of all batches.
    pub topic: String,
    /// Form of the events.
    pub form: Form,
    /// Batches kept for replay, without heartbeats.
    pub history: usize,
}

impl Default for Settings {
    /// No sockets; 10,000 batches for replay, as in vLLM.
    fn default() -> Self {
        Self {
            endpoint: None,
            replay_endpoint: None,
            snapshot_endpoint: None,
            topic: String::new(),
            form: Form::default(),
            history: 10_000,
        }
    }
}

impl Settings {
    /// Checks the addresses.
    ///
    /// # Errors
    /// If one is not of a socket, or this build has no ZeroMQ.
    pub fn check(&self) -> Result<(), PublisherError> {
        self.endpoints().try_for_each(|endpoint| Endpoint::parse(endpoint, 0).map(|_| ()))?;
        match cfg!(feature = "zmq") || self.endpoints().next().is_none() {
            true => Ok(()),
            false => Err(PublisherError::NoZmq),
        }
    }

    /// Returns the addresses that other machines can reach.
    pub fn open_endpoints(&self) -> impl Iterator<Item = &str> {
        self.endpoints().filter(|endpoint| !Endpoint::parse(endpoint, 0).is_ok_and(|at| at.is_loopback()))
    }

    fn endpoints(&self) -> impl Iterator<Item = &str> {
        let Self { endpoint, replay_endpoint, snapshot_endpoint, .. } = self;
        [endpoint, replay_endpoint, snapshot_endpoint].into_iter().filter_map(Option::as_deref)
    }
}

/// Addresses of one engine's stream, for subscribers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// Number of the engine.
    pub rank: u32,
    /// Address of the batches.
    pub endpoint: String,
    /// Address for replays.
    pub replay_endpoint: Option<String>,
    /// Address for snapshots.
    pub snapshot_endpoint: Option<String>,
}

/// State that the server, the publisher and its sockets share.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) streams: OnceLock<Vec<Arc<Mutex<Stream>>>>,
    pub(crate) sources: OnceLock<Vec<Source>>,
    /// Tokens and hashes in the queue.
    pub(crate) waiting: AtomicUsize,
    pub(crate) scopes: Mutex<HashMap<u128, Named, ahash::RandomState>>,
    pub(crate) sessions: Mutex<Sessions>,
}

/// Sessions of the last requests that were turns.
#[derive(Default)]
pub(crate) struct Sessions {
    pub(crate) by_request: HashMap<RequestId, Arc<str>, ahash::RandomState>,
    /// Oldest first.
    pub(crate) requests: VecDeque<RequestId>,
}

/// Names of a scope.
pub(crate) struct Named {
    /// `None` for the scope that requests without a salt share.
    pub(crate) scope: Option<Arc<Scope>>,
    /// `true` if a request came since unused scopes were forgotten last.
    pub(crate) is_new: bool,
}

/// Returns the time on the clock of the wall, seconds since 1970.
pub(crate) fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A poisoned lock is of a thread that panicked between two whole changes.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Names for Shared {
    fn scope(&self, root: u128) -> Option<Arc<Scope>> {
        match lock(&self.scopes).get(&root) {
            Some(named) => named.scope.clone(),
            None => Some(Arc::new(Scope::unknown(root))),
        }
    }

    fn session(&self, request: RequestId) -> Option<Arc<str>> {
        lock(&self.sessions).by_request.get(&request).cloned()
    }
}

impl Shared {
    pub(crate) fn streams(&self) -> &[Arc<Mutex<Stream>>] {
        self.streams.get().map_or(&[], Vec::as_slice)
    }

    /// Forgets scopes without blocks, if there are many.
    pub(crate) fn forget_scopes(&self) {
        if lock(&self.scopes).len() <= SCOPES_MAX {
            return;
        }
        let mut used = HashSet::new();
        self.streams().iter().for_each(|stream| used.extend(lock(stream).index().roots()));
        lock(&self.scopes)
            .retain(|root, named| std::mem::take(&mut named.is_new) || named.scope.is_none() || used.contains(root));
    }
}
