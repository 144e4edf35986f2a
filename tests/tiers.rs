//! Tiers behind the device, through the server: blocks that went to host memory or disk give the same text.

use std::path::Path;
use std::time::Duration;

use trunkline_cluster::{ClusterConfig, EngineConfig, Role};
use trunkline_core::h2o::Mode;
use trunkline_core::{Config, H2oConfig, Keeps, WorkerFacts, Write};
use trunkline_port::ModelInfo;
use trunkline_server::proto::{GenerateRequest, RetentionHint, Usage};
use trunkline_server::{EngineStore, Options, layout};
use trunkline_store::{Compression, SharedMemory, StoreSettings, TierMedium};
use trunkline_tests::server::{Client, TestServer, greedy};
use trunkline_tests::tiered::{BLOCK_SIZE, ask_all, assert_replays, config, plain_texts, prompts};

/// Media of tiers: host memory, and a disk folder of 64 MiB if there is one.
fn media(disk: Option<&Path>) -> Vec<TierMedium> {
    let disk = disk.map(|path| TierMedium::Disk { path: path.into(), bytes: 64 << 20 });
    [TierMedium::Host].into_iter().chain(disk).collect()
}

/// Opens a store with these tiers.
fn store(model: &ModelInfo, tiers: Vec<TierMedium>, compression: Compression) -> Vec<EngineStore> {
    let mut settings = StoreSettings::new(layout(model, BLOCK_SIZE), 1 << 30);
    (settings.tiers, settings.compression) = (tiers, compression);
    vec![EngineStore::open(settings).unwrap()]
}

async fn serve(config: Config, tiers: Vec<TierMedium>, compression: Compression, record: Option<&Path>) -> TestServer {
    let cluster = ClusterConfig::uniform(&config, 1);
    let options = Options { cluster, record: record.map(Into::into), ..Options::default() };
    let stores = |model: &ModelInfo| store(model, tiers, compression);
    TestServer::launch_stored(options, stores, |_, worker| Box::new(worker)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn host_memory_gives_the_same_text_compressed_or_not_and_the_recording_the_same_decisions() {
    let texts = plain_texts().await;
    let dir = tempfile::tempdir().unwrap();
    for compression in [Compression::Off, Compression::Full, Compression::Store, Compression::Probe] {
        for write in Write::ALL.map(|(_, write)| write) {
            let record = dir.path().join(format!("{compression:?}-{write:?}.jsonl"));
            let server = serve(config(&[("host", write)]), media(None), compression, Some(&record)).await;
            let mut client = server.client().await;
            let (first, cold) = ask_all(&mut client).await;
            let (second, warm) = ask_all(&mut client).await;
            assert_eq!((&first, &second), (&texts, &texts), "{compression:?} {write:?}");
            let store = client.settled().await.engines.remove(0).store.unwrap();
            let outcome = server.drain().await;
            let stats = outcome.stats.tiers[0];
            assert_eq!(store.mismatches, 0);
            assert!(cold.iter().all(|cached| *cached == 0), "{cold:?}");
            if write != Write::SecondUse {
                let host = &store.places[1];
                assert_eq!((host.name.as_str(), host.hit_blocks), ("host", stats.hit_blocks));
                assert!(host.blocks > 0 && host.stored_bytes > 0 && host.faults.is_empty(), "{host:?}");
                let out = store.links.iter().find(|link| link.from == "device" && link.to == "host").unwrap();
                assert_eq!((out.blocks, out.failed), (stats.stored_blocks, 0), "{out:?}");
                assert_eq!(store.encoded_blocks > 0, compression != Compression::Off, "{compression:?}");
                assert!(warm.iter().sum::<u32>() > 0 && stats.hit_blocks > 0, "{write:?}: {warm:?} {stats:?}");
            }
            assert_replays(&record, &outcome);
        }
    }
}

/// A recorded server with host memory behind the device, a prompt, and the hint that takes it there.
async fn before_a_host(record: &Path) -> (TestServer, Client, String, RetentionHint) {
    let config = Config { device_blocks: 512, ..config(&[("host", Write::Back)]) };
    let server = serve(config, media(None), Compression::Off, Some(record)).await;
    let client = server.client().await;
    let demote = RetentionHint { priority: Some(0), demote: true, ..RetentionHint::default() };
    (server, client, prompts().remove(0), demote)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_demoted_request_leaves_the_device_at_once_and_its_recording_replays() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("run.jsonl");
    let (server, mut client, prompt, demote) = before_a_host(&record).await;
    let mut texts = Vec::new();
    for (retention, found, idle) in [(vec![demote], 0, false), (vec![demote], 1, false), (Vec::new(), 1, true)] {
        let answer = client.ask(GenerateRequest { retention, ..greedy(&prompt, 8) }).await.unwrap();
        assert_eq!(answer.usage.cached_tokens.min(1), found);
        texts.push(answer.text);
        let blocks = client.settled().await.blocks.unwrap();
        assert_eq!(blocks.idle > 0, idle, "{blocks:?}");
    }
    assert_eq!((&texts[1], &texts[2]), (&texts[0], &texts[0]));
    let outcome = server.drain().await;
    assert!(outcome.stats.tiers[0].hit_blocks > 0);
    assert!(std::fs::read_to_string(&record).unwrap().contains(r#""demote":true"#), "the recording has the hints");
    assert_replays(&record, &outcome);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefetched_prompt_is_on_the_device_before_its_request_and_the_recording_replays() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("run.jsonl");
    let (server, mut client, prompt, demote) = before_a_host(&record).await;
    let first = client.ask(GenerateRequest { retention: vec![demote], ..greedy(&prompt, 8) }).await.unwrap();
    assert_eq!(client.settled().await.blocks.unwrap().idle, 0);
    let prefetch = GenerateRequest { prefetch: true, stopping: None, ..greedy(&prompt, 8) };
    let brought = client.ask(prefetch.clone()).await.unwrap();
    let Usage { cached_tokens, loaded_tokens, completion_tokens, .. } = brought.usage;
    assert!(loaded_tokens > 0 && cached_tokens == loaded_tokens, "{:?}", brought.usage);
    assert_eq!((completion_tokens, brought.text.as_str()), (0, ""));
    // What is on the device is not loaded again: not by a request, nor by another prefetch.
    let answer = client.ask(greedy(&prompt, 8)).await.unwrap();
    assert_eq!((answer.usage.loaded_tokens, &answer.text), (0, &first.text));
    assert!(
        answer.usage.cached_tokens.div_ceil(BLOCK_SIZE) == cached_tokens.div_ceil(BLOCK_SIZE),
        "{:?}",
        answer.usage
    );
    assert_eq!(client.ask(prefetch).await.unwrap().usage.loaded_tokens, 0);
    let outcome = server.drain().await;
    assert_eq!(outcome.stats.tiers[0].hit_blocks, u64::from(loaded_tokens / BLOCK_SIZE));
    assert_replays(&record, &outcome);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_was_restarted_finds_its_blocks_on_disk_and_says_the_same() {
    let texts = plain_texts().await;
    for (compression, with_host) in [(Compression::Off, false), (Compression::Store, true)] {
        let dir = tempfile::tempdir().unwrap();
        let mut tiers = vec![("host", Write::Through), ("disk", Write::Through)];
        let mut media = media(Some(dir.path()));
        if !with_host {
            tiers.remove(0);
            media.remove(0);
        }
        let server = serve(config(&tiers), media.clone(), compression, None).await;
        let mut client = server.client().await;
        assert_eq!(ask_all(&mut client).await.0, texts);
        client.settled().await;
        server.drain().await;

        let record = dir.path().join("second.jsonl");
        let server = serve(config(&tiers), media, compression, Some(&record)).await;
        let (second, cached) = ask_all(&mut server.client().await).await;
        assert_eq!(second, texts, "{compression:?}");
        // The first prompts: later ones may take less time to compute than to load.
        assert!(cached.iter().sum::<u32>() > 0, "{compression:?}: {cached:?}");
        let outcome = server.drain().await;
        assert!(outcome.stats.tiers[tiers.len() - 1].hit_blocks > 0, "{:?}", outcome.stats.tiers);
        assert_replays(&record, &outcome);
    }
}

/// Limits of a model whose second layer forgets: what lies behind a window, or what attention hardly reads.
fn forgetting(keeps: Keeps, tiers: &[(&str, Write)]) -> Config {
    let mode = if keeps == Keeps::Scored { Mode::On } else { Mode::Off };
    Config {
        worker: WorkerFacts { groups: vec![Keeps::All, keeps], ..WorkerFacts::default() },
        h2o: H2oConfig {
            mode,
            ratio: Some(3.0),
            sink: 16,
            recent: 32,
            trigger: 64,
            interval: 2,
            ..H2oConfig::default()
        },
        ..config(tiers)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_that_forget_come_back_from_disk_with_the_others() {
    for keeps in [Keeps::Scored, Keeps::Window(40)] {
        let server = TestServer::start(Config { device_blocks: 512, ..forgetting(keeps, &[]) }).await;
        let texts = ask_all(&mut server.client().await).await.0;
        server.drain().await;

        let dir = tempfile::tempdir().unwrap();
        let media = || vec![TierMedium::Disk { path: dir.path().into(), bytes: 64 << 20 }];
        let config = || forgetting(keeps, &[("disk", Write::Through)]);
        let server = serve(config(), media(), Compression::Store, None).await;
        let mut client = server.client().await;
        assert_eq!(ask_all(&mut client).await.0, texts, "{keeps:?}");
        let dropped = client.settled().await.counters.unwrap().h2o_dropped_blocks;
        assert_eq!(dropped > 0, keeps == Keeps::Scored);
        server.drain().await;

        let record = dir.path().join("second.jsonl");
        let server = serve(config(), media(), Compression::Store, Some(&record)).await;
        let (second, cached) = ask_all(&mut server.client().await).await;
        assert_eq!(second, texts, "{keeps:?}");
        assert!(cached[0] > 200, "{keeps:?}: {cached:?}");
        let outcome = server.drain().await;
        let hits = outcome.stats.tiers[0].hit_blocks;
        assert!(hits > u64::from(cached[0] / BLOCK_SIZE), "{keeps:?}: blocks of both groups, {hits}");
        assert_replays(&record, &outcome);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_on_disk_that_were_damaged_are_computed_again() {
    let texts = plain_texts().await;
    let dir = tempfile::tempdir().unwrap();
    let media = || vec![TierMedium::Disk { path: dir.path().into(), bytes: 64 << 20 }];
    let tiers = [("disk", Write::Through)];
    let server = serve(config(&tiers), media(), Compression::Off, None).await;
    let mut client = server.client().await;
    ask_all(&mut client).await;
    client.settled().await;
    server.drain().await;

    let server = serve(config(&tiers), media(), Compression::Off, None).await;
    // The server has seen the records; now their bytes change under it.
    let mut damaged = 0;
    for entry in std::fs::read_dir(dir.path()).unwrap() {
        let path = entry.unwrap().path();
        let Ok(mut bytes) = std::fs::read(&path) else { continue };
        if bytes.len() < 1 << 16 {
            continue;
        }
        bytes.iter_mut().skip(1).step_by(1000).for_each(|byte| *byte ^= 1);
        std::fs::write(&path, bytes).unwrap();
        damaged += 1;
    }
    assert!(damaged > 0, "no segment was found");
    let mut client = server.client().await;
    let (second, cached) = ask_all(&mut client).await;
    assert_eq!((second, cached), (texts, vec![0; 12]));
    let store = client.info().await.engines.remove(0).store.unwrap();
    assert!(store.places[1].faults.values().sum::<u64>() > 0, "{:?}", store.places[1]);
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_with_one_remote_storage_find_each_others_prefixes_and_say_the_same() {
    let texts = plain_texts().await;
    for compression in [Compression::Off, Compression::Store] {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("file://{}", dir.path().join("objects").display());
        let media = [TierMedium::Remote { url, deadline: Duration::from_secs(60) }];
        let mut config = config(&[("remote", Write::Through)]);
        config.tiers[0].shared = true;
        let record = dir.path().join("second.jsonl");
        let first = serve(config.clone(), media.to_vec(), compression, None).await;
        let second = serve(config, media.to_vec(), compression, Some(&record)).await;
        let mut client = first.client().await;
        assert_eq!(ask_all(&mut client).await.0, texts);
        client.settled().await;

        let (said, cached) = ask_all(&mut second.client().await).await;
        assert_eq!(said, texts, "{compression:?}");
        // The first prompts: later ones may take less time to compute than to load.
        assert!(cached.iter().sum::<u32>() > 0, "{compression:?}: {cached:?}");
        first.drain().await;
        let outcome = second.drain().await;
        let remote = outcome.stats.tiers[0];
        assert!(remote.found_blocks > 0 && remote.hit_blocks > 0, "{remote:?}");
        assert_replays(&record, &outcome);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decode_worker_takes_the_blocks_of_a_prefill_worker_from_shared_memory() {
    let texts = plain_texts().await;
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("run.jsonl");
    let mut core = Config { host_blocks: 0, recompute_token_ns: 10_000_000, ..config(&[("shared", Write::Through)]) };
    core.tiers[0].shared = true;
    let engine = |role| EngineConfig { core: core.clone(), role, kv_class: 0 };
    let cluster = ClusterConfig {
        engines: vec![engine(Role::Prefill), engine(Role::Decode)],
        ..ClusterConfig::uniform(&core, 1)
    };
    let memory = SharedMemory::new(1 << 30);
    let stores = |model: &ModelInfo| {
        let open = || store(model, vec![TierMedium::Shared(memory.clone())], Compression::Off).remove(0);
        vec![open(), open()]
    };
    let options = Options { cluster, record: Some(record.clone()), ..Options::default() };
    let server = TestServer::launch_stored(options, stores, |_, worker| Box::new(worker)).await.unwrap();
    let mut client = server.client().await;
    assert_eq!(ask_all(&mut client).await.0, texts);
    let info = client.settled().await;
    let decoder = info.engines[1].counters.unwrap();
    // Each prompt is looked up while the prefill worker still copies. To compute such a short prompt may take less time than to wait.
    assert!(decoder.cached_tokens > 0, "{decoder:?}");
    assert_replays(&record, &server.drain().await);
}
