//! Indexes that follow seeded runs of a core under pressure: in this process, and over ZeroMQ from the middle on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use trunkline_core::{CacheEvent, Core, Place};
use trunkline_driver::pressure::run_followed;
use trunkline_driver::seeds::{REQUESTS, seeds};
use trunkline_events::Index;

/// What a core caches: place, layer group and hash of each block, in order.
fn cached(core: &Core) -> Vec<(Place, u8, u128)> {
    let mut all = Vec::new();
    for event in core.cached_blocks() {
        let CacheEvent::Stored(stored) = event else { panic!("a block that is there was stored: {event:?}") };
        all.extend(stored.hashes.iter().map(|hash| (stored.place, stored.group, *hash)));
    }
    all.sort_unstable();
    all
}

/// Checks that each block with tokens comes behind the block before it, if that is there at all.
fn check_order(snapshot: &[CacheEvent]) {
    let stored =
        || snapshot.iter().filter_map(|event| if let CacheEvent::Stored(stored) = event { Some(stored) } else { None });
    let all: std::collections::BTreeSet<u128> = stored().flat_map(|stored| &stored.hashes).copied().collect();
    let mut seen: std::collections::BTreeSet<u128> = std::collections::BTreeSet::new();
    for stored in stored() {
        let is_behind = stored.parent.is_none_or(|parent| seen.contains(&parent) || !all.contains(&parent));
        assert!(is_behind, "a block comes before the one before it");
        seen.extend(&stored.hashes);
    }
}

#[test]
fn an_index_its_snapshots_and_its_way_from_an_older_state_are_the_cache() {
    // Blocks, batches of events, snapshots with blocks that are kept for those behind.
    let seen = Arc::new(Mutex::new([0; 3]));
    for seed in seeds(5, 40) {
        let of_run = seen.clone();
        let (mut index, mut older, mut n) = (Index::default(), Index::default(), 0);
        let follow = move |events: &[CacheEvent], core: &Core| {
            events.iter().for_each(|event| index.apply(event));
            let now = cached(core);
            assert_eq!((index.cached(), index.len()), (now.clone(), now.len()));
            n += usize::from(!events.is_empty());
            if events.is_empty() || n % 8 != 0 {
                return;
            }
            let snapshot = index.snapshot();
            check_order(&snapshot);
            let mut late = Index::default();
            snapshot.iter().for_each(|event| late.apply(event));
            assert_eq!(late.cached(), now);
            let way = older.changes_to(&core.cached_blocks());
            way.iter().for_each(|event| older.apply(event));
            assert_eq!(older.cached(), now);
            let mut seen = of_run.lock().unwrap();
            let removes = snapshot.iter().any(|event| matches!(event, CacheEvent::Removed(_)));
            *seen = [seen[0] + now.len(), seen[1] + 1, seen[2] + usize::from(removes)];
        };
        run_followed(seed, REQUESTS, Box::new(follow));
    }
    let [blocks, snapshots, kept] = *seen.lock().unwrap();
    assert!(snapshots > 200 && blocks > 5 * snapshots && kept > 10, "{blocks} blocks, {snapshots} snapshots, {kept}");
}

#[cfg(feature = "zmq")]
mod sockets {
    use std::thread;

    use bytes::Bytes;
    use serde::de::IgnoredAny;
    use serde_json::Value;
    use trunkline_cluster::{CacheListener, EngineId};
    use trunkline_core::Config;
    use trunkline_events::{Batch, Form, Lost, Publisher, Settings, Source, Subscription};
    use zeromq::{DealerSocket, ReqSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

    use super::*;

    const TOPIC: &str = "kv@pod@model";

    fn settings(form: Form) -> Settings {
        let any = || Some("tcp://127.0.0.1:0".to_owned());
        Settings {
            endpoint: any(),
            replay_endpoint: any(),
            snapshot_endpoint: any(),
            topic: TOPIC.into(),
            form,
            ..Settings::default()
        }
    }

    /// An index as a router keeps it: hashes by medium and layer group, and of each hash that its tokens are known.
    #[derive(Default)]
    struct Router {
        blocks: BTreeMap<(String, u64, u64), u32>,
        known: std::collections::BTreeSet<u64>,
    }

    impl Router {
        /// Applies the events of a batch, which are maps or arrays.
        fn apply(&mut self, events: &Value) {
            for event in events.as_array().unwrap() {
                let field = |name: &str, at: usize| event.get(name).or_else(|| event.get(at)).unwrap_or(&Value::Null);
                let stored = field("type", 0) == "BlockStored";
                let hashes: Vec<u64> = field("block_hashes", 1)
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|hash| hash.as_u64().unwrap())
                    .collect();
                match field("type", 0).as_str().unwrap() {
                    "BlockStored" | "BlockRemoved" => {
                        let medium = field("medium", if stored { 6 } else { 2 }).as_str().unwrap().to_owned();
                        let group = field("group_idx", if stored { 9 } else { 3 }).as_u64().unwrap_or(0);
                        if stored && !field("token_ids", 3).as_array().unwrap().is_empty() {
                            let parent = field("parent_block_hash", 2).as_u64();
                            // A tier may get a block after the one before has left all places.
                            assert!(
                                medium != "GPU" || parent.is_none_or(|parent| self.known.contains(&parent)),
                                "{event} is behind an unknown block"
                            );
                            self.known.extend(&hashes);
                        }
                        for hash in hashes {
                            let copies = self.blocks.entry((medium.clone(), group, hash)).or_default();
                            *copies = if stored { *copies + 1 } else { copies.checked_sub(1).expect("it is there") };
                        }
                    }
                    "AllBlocksCleared" => self.blocks.retain(|(medium, ..), _| medium != "GPU"),
                    other => panic!("an event of type {other}"),
                }
            }
            self.blocks.retain(|_, copies| *copies > 0);
        }

        fn is(&self, core: &[(Place, u8, u128)]) -> bool {
            let blocks: Vec<_> =
                self.blocks.keys().map(|(medium, group, hash)| (medium == "GPU", *group, *hash)).collect();
            let mut cached: Vec<_> = core
                .iter()
                .map(|(place, group, hash)| (*place == Place::Device, u64::from(*group), *hash as u64))
                .collect();
            // A medium stands for several tiers.
            let mut own = blocks;
            [&mut own, &mut cached].into_iter().for_each(|list| {
                list.sort_unstable();
                list.dedup();
            });
            own == cached
        }
    }

    fn batch(payload: &[u8]) -> Value {
        // Only live and replayed batches have the publisher's identity.
        let identified = rmp_serde::from_slice::<(f64, Value, u32, IgnoredAny)>(payload).map(|batch| batch.1);
        identified.or_else(|_| rmp_serde::from_slice::<(f64, Value, u32)>(payload).map(|batch| batch.1)).unwrap()
    }

    fn number(frame: &[u8]) -> i64 {
        i64::from_be_bytes(frame.try_into().unwrap())
    }

    /// Blocks in a cache: where, of which layer group, with which hash.
    type Blocks = Vec<(Place, u8, u128)>;

    /// Runs a seed on a thread, and publishes its events. The core's cache at the end is in the result; `None` if the seed makes hashes collide.
    fn publish(publisher: Publisher, seed: u64) -> Option<(Source, thread::JoinHandle<Blocks>)> {
        let (begun, is_begun) = std::sync::mpsc::channel();
        let of_run = publisher.clone();
        let run = thread::spawn(move || {
            let last = Arc::new(Mutex::new(Vec::new()));
            let (now, mut is_new) = (last.clone(), true);
            let follow = move |events: &[CacheEvent], core: &Core| {
                if std::mem::take(&mut is_new) {
                    of_run.begin(&[core.config()]).unwrap();
                    begun.send(()).unwrap();
                }
                if !events.is_empty() {
                    assert!(of_run.changed(EngineId(0), events.to_vec()));
                }
                *now.lock().unwrap() = cached(core);
            };
            run_followed(seed, 10 * REQUESTS, Box::new(follow));
            std::mem::take(&mut *last.lock().unwrap())
        });
        is_begun.recv().ok()?;
        Some((publisher.sources()[0].clone(), run))
    }

    async fn live(socket: &mut SubSocket) -> (i64, Value) {
        let frames = socket.recv().await.unwrap().into_vec();
        assert_eq!((frames.len(), &frames[0][..]), (3, TOPIC.as_bytes()));
        (number(&frames[1]), batch(&frames[2]))
    }

    async fn snapshot(source: &Source) -> (i64, Vec<u8>, Vec<Value>) {
        let mut asking = ReqSocket::new();
        asking.connect(source.snapshot_endpoint.as_ref().unwrap()).await.unwrap();
        asking.send(ZmqMessage::from("snapshot")).await.unwrap();
        let frames = asking.recv().await.unwrap().into_vec();
        (number(&frames[0]), frames[1].to_vec(), frames[2..].iter().map(|chunk| batch(chunk)).collect())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_late_subscriber_has_the_cache_of_the_core_from_a_snapshot_on_and_from_a_replay() {
        let mut seeds = seeds(6, 50).into_iter();
        for form in [Form::Map, Form::Array] {
            let (_publisher, source, run) = seeds
                .find_map(|seed| {
                    let publisher = Publisher::new(settings(form));
                    publish(publisher.clone(), seed).map(|(source, run)| (publisher, source, run))
                })
                .expect("few seeds make hashes collide");
            let mut socket = SubSocket::new();
            socket.connect(&source.endpoint).await.unwrap();
            socket.subscribe("kv@").await.unwrap();
            let first = live(&mut socket).await.0;
            let (cut, id, chunks) = snapshot(&source).await;
            assert!(cut >= first && id.len() == 16);
            let mut router = Router::default();
            chunks.iter().for_each(|chunk| router.apply(chunk));
            let expected = tokio::task::spawn_blocking(|| run.join().unwrap()).await.unwrap();
            // The heartbeats that come when nothing happens tell that nothing is on the way.
            let mut next = first + 1;
            loop {
                let (seq, events) = live(&mut socket).await;
                assert_eq!(seq, next, "nothing is lost");
                next += 1;
                if seq <= cut {
                    continue;
                }
                router.apply(&events);
                if events == Value::Array(vec![]) && router.is(&expected) {
                    break;
                }
                assert!(seq < 1 << 20, "the router never has the cache of the core");
            }
            // Another has all batches from the first on.
            let mut dealer = DealerSocket::new();
            dealer.connect(source.replay_endpoint.as_ref().unwrap()).await.unwrap();
            let ask: Vec<Bytes> = vec![Bytes::new(), 0_u64.to_be_bytes().to_vec().into()];
            let ask = ZmqMessage::try_from(ask).unwrap();
            dealer.send(ask).await.unwrap();
            let mut replayed = Router::default();
            for expected in 0.. {
                let frames = dealer.recv().await.unwrap().into_vec();
                assert_eq!(frames.len(), 4);
                if frames[3].is_empty() {
                    assert_eq!((number(&frames[2]), frames[1].len()), (-1, 0));
                    break;
                }
                assert_eq!((number(&frames[2]), &frames[1][..]), (expected, TOPIC.as_bytes()));
                replayed.apply(&batch(&frames[3]));
            }
            assert!(replayed.is(&expected));
        }
    }

    /// Returns the next batch that is no heartbeat.
    async fn next(subscription: &mut Subscription) -> Arc<Batch> {
        loop {
            let batch = subscription.next().await.unwrap().unwrap();
            if !batch.events.is_empty() {
                return batch;
            }
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn each_engine_has_a_stream_of_its_own_and_a_subscriber_in_this_process_hears_what_it_lost() {
        let publisher = Publisher::new(Settings { history: 2, ..Settings::default() });
        let config = Config { block_size: 4, ..Config::default() };
        publisher.begin(&[&config; 2]).unwrap();
        assert_eq!((publisher.streams(), publisher.sources().len()), (2, 0));
        let stored = |n: u128| {
            let (place, tokens) = (Place::Device, vec![n as u32; 4]);
            let stored = trunkline_core::StoredBlocks {
                place,
                group: 0,
                root: 1,
                parent: None,
                hashes: vec![n],
                tokens,
                request: None,
            };
            vec![CacheEvent::Stored(stored)]
        };
        let mut other = publisher.subscribe(1, None).unwrap().unwrap();
        assert!(publisher.subscribe(2, None).is_none() && other.first.is_empty());
        assert!(publisher.changed(EngineId(1), stored(5)));
        let batch = next(&mut other).await;
        assert_eq!((batch.rank, batch.events.len()), (1, 1));
        // Nobody reads one of two, and more batches come than wait for a subscriber.
        let mut slow = publisher.subscribe(0, None).unwrap().unwrap();
        let mut quick = publisher.subscribe(0, None).unwrap().unwrap();
        for n in 0..5000 {
            assert!(publisher.changed(EngineId(0), stored(n)));
            next(&mut quick).await;
        }
        let lost = publisher.subscribe(0, Some(0)).unwrap().err();
        let has_begun = |first, next| first > 0 && next >= 5000 && next > first;
        assert!(matches!(lost, Some(Lost::History { first, next }) if has_begun(first, next)), "{lost:?}");
        let mut read = slow.next().await.unwrap().unwrap().seq + 1;
        let end = loop {
            match slow.next().await {
                Some(Ok(batch)) => {
                    assert_eq!(batch.seq, read);
                    read += 1;
                }
                end => break end,
            }
        };
        assert_eq!(end, Some(Err(Lost::Slow { from: read })));
        assert_eq!(slow.next().await, None);
    }
}
