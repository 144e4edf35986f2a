//! The publisher: takes changes from the core's thread, and numbers and sends them on a thread of its own.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use tokio::sync::mpsc;
use tracing::{error, warn};
use trunkline_cluster::{CacheListener, EngineId};
use trunkline_core::{CacheEvent, Config, RequestId};

use crate::error::PublisherError;
use crate::event::{CacheFacts, Scope};
use crate::shared::{Named, Settings, Shared, Source, lock, now_s};
use crate::stream::{Lost, Stream, Subscription};

/// Changes that wait for the publisher, at most: calls, and tokens and hashes in them.
const WAITING_MAX: usize = 1 << 13;
const WAITING_NUMBERS_MAX: usize = 1 << 24;
/// Tokens and hashes beyond which waiting changes make another batch.
const BATCH_NUMBERS: usize = 1 << 16;
/// Time without a batch after which a heartbeat is published.
const BEAT: Duration = Duration::from_secs(1);
/// Requests whose sessions are known, at most: the last turns.
const SESSIONS_MAX: usize = 1 << 14;

/// Publishes the events of all engines. Clones are one publisher, which ends with the last of them.
#[derive(Clone)]
pub struct Publisher(Arc<Handle>);

/// The end of a publisher outside of its thread.
struct Handle {
    shared: Arc<Shared>,
    inputs: mpsc::Sender<Input>,
    /// The thread's end of the queue, until that starts.
    taken: Mutex<Option<mpsc::Receiver<Input>>>,
}

impl std::fmt::Debug for Publisher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Publisher").field("settings", &self.0.shared.settings).finish_non_exhaustive()
    }
}

struct Input {
    engine: u32,
    events: Vec<CacheEvent>,
    /// `true` if the events are all that the engine caches.
    is_whole: bool,
    numbers: usize,
}

impl Publisher {
    /// Creates a publisher that begins with the server.
    pub fn new(settings: Settings) -> Self {
        let (inputs, taken) = mpsc::channel(WAITING_MAX);
        let shared = Shared {
            settings,
            streams: OnceLock::new(),
            sources: OnceLock::new(),
            waiting: AtomicUsize::new(0),
            scopes: Mutex::default(),
            sessions: Mutex::default(),
        };
        Self(Arc::new(Handle { shared: Arc::new(shared), inputs, taken: Mutex::new(Some(taken)) }))
    }

    /// Returns the addresses of the streams; none without ZeroMQ, or before the server knows its model.
    pub fn sources(&self) -> &[Source] {
        self.0.shared.sources.get().map_or(&[], Vec::as_slice)
    }

    /// Returns the topic of all streams.
    pub fn topic(&self) -> &str {
        &self.0.shared.settings.topic
    }

    /// Returns the number of streams, one for each engine; 0 before the server knows its model.
    pub fn streams(&self) -> usize {
        self.0.shared.streams().len()
    }

    /// Subscribes to the stream of an engine: to the batches from a number on, or, without one, to a snapshot and the batches behind. `None` if
    /// there is no such engine.
    ///
    /// # Errors
    /// If the batches asked for are not there.
    pub fn subscribe(&self, engine: u32, from: Option<u64>) -> Option<Result<Subscription, Lost>> {
        let stream = self.0.shared.streams().get(engine as usize)?;
        Some(lock(stream).subscribe(from, now_s(), &*self.0.shared))
    }
}

impl Handle {
    fn put(&self, engine: EngineId, events: Vec<CacheEvent>, is_whole: bool) -> bool {
        let numbers = events.iter().map(numbers).sum();
        if self.shared.waiting.load(Ordering::Relaxed).saturating_add(numbers) > WAITING_NUMBERS_MAX && !is_whole {
            return false;
        }
        self.shared.waiting.fetch_add(numbers, Ordering::Relaxed);
        let is_sent = self.inputs.try_send(Input { engine: engine.0, events, is_whole, numbers }).is_ok();
        if !is_sent {
            self.shared.waiting.fetch_sub(numbers, Ordering::Relaxed);
        }
        is_sent
    }
}

fn numbers(event: &CacheEvent) -> usize {
    match event {
        CacheEvent::Stored(stored) => stored.hashes.len() + stored.tokens.len(),
        CacheEvent::Removed(removed) => removed.hashes.len(),
        CacheEvent::Cleared => 1,
    }
}

impl CacheListener for Publisher {
    fn begin(&self, engines: &[&Config]) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let Handle { shared, taken, .. } = &*self.0;
        let mut streams = Vec::new();
        for (rank, config) in (0..).zip(engines) {
            let facts = CacheFacts {
                block_size: config.block_size,
                groups: config.worker.groups.clone(),
                tiers: config.tiers.iter().map(|tier| tier.name.clone()).collect(),
            };
            let mut id = [0; 16];
            getrandom::fill(&mut id).map_err(|err| PublisherError::System(err.to_string()))?;
            // A UUID of version 4.
            (id[6], id[8]) = (id[6] & 0x0f | 0x40, id[8] & 0x3f | 0x80);
            streams.push(Arc::new(Mutex::new(Stream::new(rank, facts, id, shared.settings.history))));
        }
        if shared.streams.set(streams).is_err() {
            return Err(PublisherError::System("it has begun already".into()).into());
        }
        let inputs = lock(taken).take();
        let inputs = inputs.ok_or_else(|| PublisherError::System("it has begun already".into()))?;
        let (opened, is_open) = std::sync::mpsc::channel();
        let of_thread = shared.clone();
        let run = move || run(&of_thread, inputs, &opened);
        thread::Builder::new()
            .name("kv-events".into())
            .spawn(run)
            .map_err(|err| PublisherError::System(err.to_string()))?;
        match is_open.recv() {
            Ok(opened) => Ok(opened?),
            Err(_) => Err(PublisherError::System("its thread ended".into()).into()),
        }
    }

    fn changed(&self, engine: EngineId, events: Vec<CacheEvent>) -> bool {
        self.0.put(engine, events, false)
    }

    fn has_room(&self) -> bool {
        let numbers = self.0.shared.waiting.load(Ordering::Relaxed);
        self.0.inputs.capacity() > WAITING_MAX / 2 && numbers < WAITING_NUMBERS_MAX / 2
    }

    fn replaced(&self, engine: EngineId, cached: Vec<CacheEvent>) -> bool {
        self.0.put(engine, cached, true)
    }

    fn named(&self, root: u128, salt: &str, others: &[&str]) {
        let mut scopes = lock(&self.0.shared.scopes);
        if let Some(named) = scopes.get_mut(&root) {
            named.is_new = true;
            return;
        }
        let others = others.iter().map(|other| (*other).to_owned()).collect();
        let scope = Scope { salt: salt.to_owned(), others };
        let scope = (scope != Scope::default()).then(|| Arc::new(scope));
        scopes.insert(root, Named { scope, is_new: true });
    }

    fn of_session(&self, request: RequestId, session: &str) {
        let mut sessions = lock(&self.0.shared.sessions);
        sessions.by_request.insert(request, session.into());
        sessions.requests.push_back(request);
        if sessions.requests.len() > SESSIONS_MAX
            && let Some(oldest) = sessions.requests.pop_front()
        {
            sessions.by_request.remove(&oldest);
        }
    }
}

/// The thread of a publisher.
fn run(
    shared: &Arc<Shared>,
    inputs: mpsc::Receiver<Input>,
    opened: &std::sync::mpsc::Sender<Result<(), PublisherError>>,
) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(err) => return drop(opened.send(Err(PublisherError::System(err.to_string())))),
    };
    runtime.block_on(async {
        match Sockets::open(shared).await {
            Ok((sockets, sources)) => {
                let _ = (shared.sources.set(sources), opened.send(Ok(())));
                publish(shared, inputs, sockets).await;
            }
            Err(err) => drop(opened.send(Err(err))),
        }
    });
}

async fn publish(shared: &Arc<Shared>, mut inputs: mpsc::Receiver<Input>, mut sockets: Sockets) {
    let mut beat = tokio::time::interval(BEAT);
    let mut beaten: Vec<u64> = vec![0; shared.streams().len()];
    loop {
        tokio::select! {
            input = inputs.recv() => {
                let Some(input) = input else { return };
                take(shared, input, &mut inputs, &mut sockets).await;
            }
            _ = beat.tick() => {
                for (rank, stream) in shared.streams().iter().enumerate() {
                    let next = lock(stream).next();
                    if next == beaten[rank] || next == 0 {
                        let batch = lock(stream).publish(now_s(), &[], &**shared);
                        sockets.send(rank, &batch).await;
                    }
                    beaten[rank] = lock(stream).next();
                }
                shared.forget_scopes();
            }
        }
    }
}

/// Publishes an input, with those that wait behind it.
async fn take(shared: &Shared, input: Input, inputs: &mut mpsc::Receiver<Input>, sockets: &mut Sockets) {
    let mut next = Some(input);
    while let Some(Input { engine, mut events, is_whole, mut numbers }) = next.take() {
        while let Ok(behind) = inputs.try_recv() {
            if behind.engine != engine || behind.is_whole || is_whole || numbers > BATCH_NUMBERS {
                next = Some(behind);
                break;
            }
            numbers += behind.numbers;
            events.extend(behind.events);
        }
        shared.waiting.fetch_sub(numbers, Ordering::Relaxed);
        let Some(stream) = shared.streams().get(engine as usize) else {
            error!(engine, "changes of an engine that is not there");
            continue;
        };
        let batch = {
            let mut stream = lock(stream);
            if is_whole {
                warn!(engine, "the publisher of cache events fell behind; it compares the whole cache");
                events = stream.changes_to(&events);
            }
            stream.publish(now_s(), &events, shared)
        };
        sockets.send(engine as usize, &batch).await;
    }
}

#[cfg(feature = "zmq")]
use crate::zmq::Sockets;

/// No sockets: this build has no ZeroMQ.
#[cfg(not(feature = "zmq"))]
struct Sockets;

#[cfg(not(feature = "zmq"))]
impl Sockets {
    async fn open(shared: &Arc<Shared>) -> Result<(Self, Vec<Source>), PublisherError> {
        shared.settings.check().map(|()| (Self, Vec::new()))
    }

    async fn send(&mut self, _rank: usize, _batch: &crate::event::Batch) {}
}
