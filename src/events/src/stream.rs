//! The stream of one engine: numbers, history, index, and subscribers in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;
use trunkline_core::CacheEvent;

use crate::event::{Batch, CacheFacts, Names};
use crate::history::History;
use crate::index::Index;
use crate::msgpack::PublisherId;

/// Batches that wait for a subscriber in this process, at most.
const WAITING_MAX: usize = 4096;
/// Tokens and hashes of a batch, about, beyond which a snapshot goes on in the next.
const CHUNK_NUMBERS: usize = 1 << 16;
/// Value of a subscriber that has lost nothing.
const NOTHING: u64 = u64::MAX;

/// Batches that a subscriber cannot get any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// The batches asked for are no longer there, or not there yet: the publisher has those from `first` to before `next`.
    History {
        /// Number of the first batch that is there; `next` if none is.
        first: u64,
        /// Number of the next batch.
        next: u64,
    },
    /// The subscriber read too slowly: the batches from this number on were dropped.
    Slow {
        /// Number of the first batch dropped.
        from: u64,
    },
}

/// The state of one engine's stream.
pub(crate) struct Stream {
    rank: u32,
    facts: CacheFacts,
    id: PublisherId,
    next: u64,
    history: History,
    index: Index,
    subscribers: Vec<Subscriber>,
}

struct Subscriber {
    batches: mpsc::Sender<Arc<Batch>>,
    lost_from: Arc<AtomicU64>,
}

/// The batches of an engine for a subscriber in this process.
pub struct Subscription {
    /// Batches before the first live one: a replay, or the chunks of a snapshot.
    pub first: Vec<Arc<Batch>>,
    /// `true` if the first batches are a snapshot.
    pub is_snapshot: bool,
    batches: mpsc::Receiver<Arc<Batch>>,
    lost_from: Arc<AtomicU64>,
}

impl Subscription {
    /// Returns the next live batch, behind the first ones; `None` at the end of the publisher.
    ///
    /// # Errors
    /// If the subscriber read too slowly. Nothing comes behind that.
    pub async fn next(&mut self) -> Option<Result<Arc<Batch>, Lost>> {
        match self.batches.recv().await {
            Some(batch) => Some(Ok(batch)),
            None => match self.lost_from.swap(NOTHING, Ordering::AcqRel) {
                NOTHING => None,
                from => Some(Err(Lost::Slow { from })),
            },
        }
    }
}

impl Stream {
    pub fn new(rank: u32, facts: CacheFacts, id: PublisherId, batches_max: usize) -> Self {
        let (history, index) = (History::new(batches_max), Index::default());
        Self { rank, facts, id, next: 0, history, index, subscribers: Vec::new() }
    }

    /// Returns the publisher's identity.
    pub fn id(&self) -> PublisherId {
        self.id
    }

    /// Returns the number of the next batch.
    pub fn next(&self) -> u64 {
        self.next
    }

    pub fn index(&self) -> &Index {
        &self.index
    }

    /// Publishes changes as the next batch; a heartbeat if there are none.
    pub fn publish(&mut self, ts: f64, changes: &[CacheEvent], names: &dyn Names) -> Arc<Batch> {
        changes.iter().for_each(|change| self.index.apply(change));
        let events = changes.iter().map(|change| self.facts.event(change, names)).collect();
        let batch = Arc::new(Batch { seq: self.next, ts, rank: self.rank, events });
        self.next += 1;
        self.history.push(&batch);
        self.subscribers.retain(|subscriber| match subscriber.batches.try_send(batch.clone()) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Full(lost)) => {
                subscriber.lost_from.store(lost.seq, Ordering::Release);
                false
            }
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        });
        batch
    }

    /// Returns the changes from the index to what an engine caches.
    pub fn changes_to(&self, cached: &[CacheEvent]) -> Vec<CacheEvent> {
        self.index.changes_to(cached)
    }

    /// Returns the batches from a number on.
    pub fn replay(&self, from: u64) -> Vec<Arc<Batch>> {
        self.history.from(from)
    }

    /// Returns the index as batches for one who holds nothing, all under the number of the last batch.
    pub fn snapshot(&self, ts: f64, names: &dyn Names) -> Vec<Arc<Batch>> {
        let seq = self.next.saturating_sub(1);
        let chunk = || Batch { seq, ts, rank: self.rank, events: Vec::new() };
        let mut chunks = vec![chunk()];
        let mut numbers = 0;
        for change in self.index.snapshot() {
            if numbers > CHUNK_NUMBERS {
                chunks.push(chunk());
                numbers = 0;
            }
            let event = self.facts.event(&change, names);
            numbers += event.numbers();
            if let Some(chunk) = chunks.last_mut() {
                chunk.events.push(event);
            }
        }
        chunks.retain(|chunk| !chunk.events.is_empty());
        chunks.into_iter().map(Arc::new).collect()
    }

    /// Subscribes to the batches from a number on, or, without one, to a snapshot and the batches behind.
    ///
    /// # Errors
    /// If the batches asked for are not there.
    pub fn subscribe(&mut self, from: Option<u64>, ts: f64, names: &dyn Names) -> Result<Subscription, Lost> {
        let first = match from {
            None => self.snapshot(ts, names),
            Some(from) => {
                let first = self.history.first().unwrap_or(self.next);
                if from > self.next || (from < first && from < self.next) {
                    return Err(Lost::History { first, next: self.next });
                }
                self.replay(from)
            }
        };
        let (sender, batches) = mpsc::channel(WAITING_MAX);
        let lost_from = Arc::new(AtomicU64::new(NOTHING));
        self.subscribers.push(Subscriber { batches: sender, lost_from: lost_from.clone() });
        Ok(Subscription { first, is_snapshot: from.is_none(), batches, lost_from })
    }
}
