//! Blocks between a server and attached workers of one machine: through shared memory they give the same texts as in messages, whichever side dies or
//! lies.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use tokio::task::JoinHandle;
use tonic::Code;
use trunkline_attach::Hello;
use trunkline_attach::wire::{self, from_worker, to_worker};
use trunkline_cluster::{ClusterConfig, EngineConfig, Role};
use trunkline_core::{Config, Preemption, Write};
use trunkline_port::ModelInfo;
use trunkline_server::proto::{AttachedWorker, EngineInfo, GetServerInfoResponse};
use trunkline_server::{AttachOptions, EngineStore, Options, layout};
use trunkline_store::{Compression, SharedMemory, StoreSettings, TierMedium};
use trunkline_tests::attached::{Attached, BLOCKS, Death, Device, Wire, hello, keep_as};
use trunkline_tests::server::{Client, TestServer, collect, greedy};
use trunkline_tests::tiered::{BLOCK_SIZE, ask_all, assert_replays, config, plain_texts, prompts};

/// Starts a server with a prefill and a decode engine for attached workers, which pass blocks on by way of the server's memory.
async fn start(shares: bool, record: Option<&Path>) -> TestServer {
    let mut core = Config {
        device_blocks: BLOCKS,
        host_blocks: 0,
        recompute_token_ns: 10_000_000,
        ..config(&[("shared", Write::Through)])
    };
    core.tiers[0].shared = true;
    let engine = |role| EngineConfig { core: core.clone(), role, kv_class: 0 };
    let cluster = ClusterConfig {
        engines: vec![engine(Role::Prefill), engine(Role::Decode)],
        ..ClusterConfig::uniform(&core, 1)
    };
    let memory = SharedMemory::new(1 << 30);
    let stores = |model: &ModelInfo| {
        let open = || {
            let mut settings = StoreSettings::new(layout(model, BLOCK_SIZE), 1 << 30);
            settings.tiers = vec![TierMedium::Shared(memory.clone())];
            settings.compression = Compression::Off;
            EngineStore::open(settings).unwrap()
        };
        vec![open(), open()]
    };
    let resume = Duration::from_millis(200);
    let attach = AttachOptions { engines: 2, shared_memory: shares, resume, ..AttachOptions::default() };
    let options = Options { cluster, record: record.map(Into::into), attach, ..Options::default() };
    TestServer::launch_stored(options, stores, |_, _| unreachable!("no embedded worker")).await.unwrap()
}

/// Returns the announcement of a worker that can share memory.
fn sharing(name: &str) -> Hello {
    let mut hello = hello(name);
    hello.abilities.shared_memory = true;
    hello
}

async fn attach(server: &TestServer, name: &str, device: Device) -> Attached {
    Attached::attach(server.addr(), sharing(name), device).await.map_err(|(status, _)| status).unwrap()
}

fn forever(server: &TestServer, name: &str) -> JoinHandle<()> {
    keep_as(server.addr(), sharing(name), || None)
}

/// Asks all prompts, one after another, while the caller does something else. A prompt that comes while no worker is there is asked again.
async fn asking(server: &TestServer) -> JoinHandle<Vec<String>> {
    let mut client = server.client().await;
    tokio::spawn(async move {
        let mut texts = Vec::new();
        for prompt in prompts() {
            let answer = loop {
                match client.ask(greedy(&prompt, 8)).await {
                    Err(status) if status.code() == Code::Unavailable => {
                        client.until(|info| info.engines.iter().all(|engine| engine.worker.is_some())).await;
                    }
                    answer => break answer.unwrap(),
                }
            };
            texts.push(answer.text);
        }
        texts
    })
}

fn workers(info: &GetServerInfoResponse) -> [AttachedWorker; 2] {
    [0, 1].map(|engine| info.engines[engine].worker.clone().expect("a worker"))
}

#[tokio::test(flavor = "multi_thread")]
async fn texts_are_the_same_with_and_without_shared_memory_and_no_block_travels_twice() {
    let texts = plain_texts().await;
    let dir = tempfile::tempdir().unwrap();
    // The server shares or does not; the second worker runs on another machine or on this one.
    for (shares, elsewhere) in [(true, false), (false, false), (true, true)] {
        let record = dir.path().join(format!("{shares}-{elsewhere}.jsonl"));
        let server = start(shares, Some(&record)).await;
        let prefill = tokio::spawn(attach(&server, "a", Device::default()).await.serve());
        let mut device = Device::default();
        device.is_elsewhere = elsewhere;
        let decode = tokio::spawn(attach(&server, "b", device).await.serve());
        let mut client = server.client().await;
        assert_eq!(ask_all(&mut client).await.0, texts, "shares: {shares}, elsewhere: {elsewhere}");
        let info = client.settled().await;
        let decoder = info.engines[1].counters.unwrap();
        assert!(decoder.cached_tokens > 0, "{decoder:?}");
        let is_shared = [shares, shares && !elsewhere];
        for (worker, is_shared) in workers(&info).into_iter().zip(is_shared) {
            assert_eq!(worker.shared_memory, is_shared, "{worker:?}");
            let (through, inline) = match is_shared {
                true => (worker.shared_block_bytes, worker.message_block_bytes),
                false => (worker.message_block_bytes, worker.shared_block_bytes),
            };
            assert!(through > 0 && inline == 0, "{worker:?}");
        }
        assert_replays(&record, &server.drain().await);
        for worker in [prefill, decode] {
            worker.await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_without_the_ability_is_offered_nothing() {
    let server = start(true, None).await;
    let worker = Attached::attach(server.addr(), hello("a"), Device::default()).await.map_err(|(status, _)| status);
    assert!(worker.unwrap().session.shared_memory.is_none());
    let mut other = sharing("b");
    other.kv.block_io = true;
    assert!(Attached::attach(server.addr(), other, Device::default()).await.is_ok_and(|other| other.region.is_some()));
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_killed_in_the_middle_of_a_copy_costs_no_text() {
    let texts = plain_texts().await;
    for writes in [false, true] {
        let server = start(true, None).await;
        let wire = Wire::to(server.addr()).await;
        let at_wire = async |name| Attached::attach(wire.addr, sharing(name), Device::default()).await;
        let (mut victim, other);
        if writes {
            // The decode worker is killed while a block is written there.
            other = forever(&server, "a");
            server.client().await.until(|info| info.engines[0].worker.is_some()).await;
            victim = at_wire("b").await.map_err(|(status, _)| status).unwrap();
        } else {
            victim = at_wire("a").await.map_err(|(status, _)| status).unwrap();
            other = forever(&server, "b");
        }
        let answers = asking(&server).await;
        let is_copy = |job: &to_worker::Message, _| match job {
            to_worker::Message::ReadBlock(read) => !writes && read.slot.is_some(),
            to_worker::Message::WriteBlock(write) => writes && write.slot.is_some(),
            _ => false,
        };
        let job = victim.serve_until(is_copy).await.unwrap();
        if let to_worker::Message::ReadBlock(read) = job {
            // Half a block is there when the process dies.
            victim.region.as_ref().unwrap().write(read.slot.unwrap(), &[0xff; 100]).unwrap();
        }
        wire.cut();
        drop(victim);
        let next = forever(&server, "c");
        assert_eq!(answers.await.unwrap(), texts, "writes: {writes}");
        server.client().await.settled().await;
        server.drain().await;
        for worker in [other, next] {
            worker.await.unwrap();
        }
    }
}

/// Asks 64 short prompts at once.
async fn ask_together(client: &mut Client) -> Vec<String> {
    let mut streams = Vec::new();
    for at in 0..64 {
        let prompt = format!("A trunk is the prefix that requests share. Branch {}, leaf {at}.", at % 7);
        streams.push(client.open(greedy(&prompt, 24)).await.unwrap());
    }
    let mut texts = Vec::new();
    for stream in streams {
        texts.push(collect(stream).await.unwrap().text);
    }
    texts
}

#[tokio::test(flavor = "multi_thread")]
async fn workers_killed_at_random_cost_no_text_and_the_recording_replays() {
    let mut core = Config { device_blocks: BLOCKS, max_steps_in_flight: 2, ..Config::default() };
    let plain = TestServer::start(core.clone()).await;
    let texts = ask_together(&mut plain.client().await).await;
    plain.drain().await;
    // A device too small for all requests, which are swapped out through shared memory.
    (core.device_blocks, core.host_blocks, core.preemption) = (12, 64, Preemption::Swap);
    core.launch_watermark = 0.0;
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("run.jsonl");
    let attach = AttachOptions { engines: 3, resume: Duration::from_millis(200), ..AttachOptions::default() };
    let cluster = ClusterConfig::uniform(&core, 3);
    let options = Options { cluster, attach, record: Some(record.clone()), ..Options::default() };
    let server = TestServer::launch(options, |_, _| unreachable!("no embedded worker")).await.unwrap();
    let (deaths, lasting) = (Arc::new(AtomicU32::new(12)), Arc::new(AtomicU32::new(0)));
    let kept: Vec<_> = (0..3)
        .map(|at| {
            let (deaths, lasting, mut random) = (deaths.clone(), lasting.clone(), Pcg64::seed_from_u64(at));
            keep_as(server.addr(), sharing(&format!("worker {at}")), move || {
                let death = if random.random_bool(0.5) { Death::Cut } else { Death::Killed };
                let steps = random.random_range(8..40);
                let taken = deaths.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
                if taken.is_err() {
                    lasting.fetch_add(1, Ordering::Relaxed);
                }
                taken.ok().map(|_| (steps, death))
            })
        })
        .collect();
    let mut client = server.client().await;
    client.until(|info| info.engines.iter().all(|engine| engine.worker.is_some())).await;
    while lasting.load(Ordering::Relaxed) < 3 {
        assert_eq!(ask_together(&mut client).await, texts);
    }
    // A connection's first blocks travel in messages if they are due before the worker has opened the memory; later ones do not.
    let shares = |engine: &EngineInfo| engine.worker.as_ref().is_some_and(|worker| worker.shared_memory);
    client.settled().await;
    let before = client.until(|info| info.engines.iter().all(shares)).await;
    let bytes = |info: &GetServerInfoResponse| {
        let workers = info.engines.iter().flat_map(|engine| &engine.worker);
        workers.fold((0, 0), |sum, of| (sum.0 + of.shared_block_bytes, sum.1 + of.message_block_bytes))
    };
    let mut after = before.clone();
    while bytes(&after).0 == bytes(&before).0 {
        assert_eq!(ask_together(&mut client).await, texts);
        after = client.settled().await;
    }
    assert_eq!(bytes(&after).1, bytes(&before).1);
    assert_replays(&record, &server.drain().await);
    for worker in kept {
        worker.await.unwrap();
    }
}

/// Message of a hostile worker, given a block that it is to read into a slot.
type Lie = fn(&Attached, &wire::ReadBlock) -> from_worker::Message;

/// The message of each lie, and the beginning of the server's reason to end the connection.
fn lies() -> [(&'static str, Lie); 5] {
    use from_worker::Message;
    fn read(asked: &wire::ReadBlock, slot_bytes: u64) -> Message {
        Message::BlockRead(wire::BlockRead { id: asked.id, slot_bytes, ..Default::default() })
    }
    [
        ("the worker read 1 bytes of a block", |_, asked| read(asked, 1)),
        ("the worker read 18446744073709551615 bytes", |_, asked| read(asked, u64::MAX)),
        ("the worker read 0 bytes of a block", |_, asked| read(asked, 0)),
        ("SharedMemoryOpened without an offer", |worker, _| {
            Message::SharedMemoryOpened(worker.region.as_ref().expect("shared memory").opened())
        }),
        ("SharedMemoryOpened without an offer", |_, _| {
            Message::SharedMemoryOpened(wire::SharedMemoryOpened { proof: vec![0; 16] })
        }),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_worker_ends_its_own_connection_and_nobody_elses() {
    let texts = plain_texts().await;
    for (line, lie) in lies() {
        let server = start(true, None).await;
        let mut hostile = attach(&server, "hostile", Device::default()).await;
        let sound = forever(&server, "sound");
        let mut client = server.client().await;
        client.until(|info| info.engines[1].worker.is_some()).await;
        let answers = asking(&server).await;
        let is_read = |job: &to_worker::Message, _| matches!(job, to_worker::Message::ReadBlock(_));
        let Ok(to_worker::Message::ReadBlock(asked)) = hostile.serve_until(is_read).await else { panic!("a block") };
        let region = hostile.region.as_ref().unwrap();
        // Slots of nobody, and of copies to come.
        for slot in 0..region.slots() {
            region.write(slot, &vec![0xee; region.slot_bytes() as usize]).unwrap();
        }
        hostile.send(lie(&hostile, &asked));
        let Err(Some(status)) = hostile.serve_until(|_, _| false).await else { panic!("a reason") };
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().starts_with(line), "{status:?}");
        // The memory is gone for the server: what is written there now reaches nobody.
        hostile.region.as_ref().unwrap().write(0, &[1]).unwrap();
        let successor = forever(&server, "successor");
        assert_eq!(answers.await.unwrap(), texts, "{line}");
        let [first, second] = workers(&client.settled().await);
        assert_eq!((first.name.as_str(), second.name.as_str()), ("successor", "sound"));
        server.drain().await;
        for worker in [sound, successor] {
            worker.await.unwrap();
        }
    }
}
