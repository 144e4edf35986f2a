//! A disk and a remote store that fail in every way, through the server: each request ends with the text of a server without tiers, counters
//! show the faults by kind, and the server drains. Seeds mix the faults of all tiers, and damage the folder of a disk between two servers:
//! `TRUNKLINE_SEEDS=1000 cargo test -p trunkline-tests --test tier_faults seeded`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use trunkline_cluster::ClusterConfig;
use trunkline_core::Write;
use trunkline_driver::seeds::Sample;
use trunkline_port::ModelInfo;
use trunkline_server::proto::{Store as StoreInfo, StoreLink, StorePlace};
use trunkline_server::{EngineStore, Options, Outcome, layout};
use trunkline_sim_replay::recorded::replay_recorded;
use trunkline_store::{Compression, Store, StoreSettings, TierMedium};
use trunkline_tests::damage::damaged;
use trunkline_tests::faulty_disk::{FaultyDisk, ReadFault, Schedule, WriteFault};
use trunkline_tests::object_server::{AnswerFault, ObjectServer};
use trunkline_tests::server::{Client, TestServer, greedy};
use trunkline_tests::tiered::{BLOCK_SIZE, ask_all, assert_replays, config, plain_texts, prompts};

/// Rounds of all prompts until a counter must have risen: some requests compute what they could load.
const ROUNDS_MAX: u32 = 300;
/// A server that takes longer hangs. Calls to the remote store end after a fraction of it.
const DRAIN_MAX: Duration = Duration::from_secs(60);
const DEADLINE: Duration = Duration::from_millis(250);

async fn serve(
    tiers: &[&str],
    media: Vec<TierMedium>,
    compression: Compression,
    disk: &FaultyDisk,
    record: Option<&Path>,
) -> TestServer {
    let tiers: Vec<(&str, Write)> = tiers.iter().map(|name| (*name, Write::Through)).collect();
    let cluster = ClusterConfig::uniform(&config(&tiers), 1);
    let options = Options { cluster, record: record.map(Into::into), ..Options::default() };
    let stores = |model: &ModelInfo| {
        let mut settings = StoreSettings::new(layout(model, BLOCK_SIZE), 1 << 30);
        (settings.tiers, settings.compression) = (media, compression);
        settings.search_until = disk.is_held().then(Instant::now);
        let (store, found) = Store::open_on(settings, &|folder| disk.files(folder)).unwrap();
        vec![EngineStore { store, found }]
    };
    TestServer::launch_stored(options, stores, |_, worker| Box::new(worker)).await.unwrap()
}

fn disk_medium(folder: &Path) -> TierMedium {
    TierMedium::Disk { path: folder.into(), bytes: 64 << 20 }
}

fn remote_medium(server: &ObjectServer) -> TierMedium {
    TierMedium::Remote { url: server.url(), deadline: DEADLINE }
}

async fn store_info(client: &mut Client) -> StoreInfo {
    client.info().await.engines.remove(0).store.unwrap()
}

fn place<'a>(store: &'a StoreInfo, name: &str) -> &'a StorePlace {
    store.places.iter().find(|place| place.name == name).unwrap()
}

fn link(store: &StoreInfo, from: &str, to: &str) -> StoreLink {
    store.links.iter().find(|link| link.from == from && link.to == to).cloned().unwrap_or_default()
}

fn faults(store: &StoreInfo, name: &str, kind: &str) -> u64 {
    place(store, name).faults.get(kind).copied().unwrap_or(0)
}

/// Asks all prompts, over and over, until `count` of the store has risen. Every text is the expected one.
async fn ask_until_risen(client: &mut Client, texts: &[String], what: &str, count: impl Fn(&StoreInfo) -> u64) {
    let before = count(&store_info(client).await);
    for _ in 0..ROUNDS_MAX {
        assert_eq!(ask_all(client).await.0, texts, "{what}");
        if count(&store_info(client).await) > before {
            return;
        }
    }
    panic!("{what} was not counted: {:?}", store_info(client).await);
}

/// Asks all prompts at once.
async fn ask_together(client: &Client, texts: &[String]) {
    let ask = |prompt: String| {
        let mut client = client.clone();
        tokio::spawn(async move { client.ask(greedy(&prompt, 8)).await.unwrap().text })
    };
    let answers: Vec<_> = prompts().into_iter().map(ask).collect();
    for (answer, text) in answers.into_iter().zip(texts) {
        assert_eq!(answer.await.unwrap(), *text);
    }
}

async fn drained(server: TestServer) -> Outcome {
    tokio::time::timeout(DRAIN_MAX, server.drain()).await.expect("the server drains")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fails_in_every_way_changes_no_text() {
    let texts = plain_texts().await;
    let (dir, disk) = (tempfile::tempdir().unwrap(), FaultyDisk::default());
    let medium = || vec![disk_medium(dir.path())];
    let server = serve(&["disk"], medium(), Compression::Off, &disk, None).await;
    let mut client = server.client().await;
    let hits = |store: &StoreInfo| place(store, "disk").hit_blocks;
    ask_until_risen(&mut client, &texts, "a healthy disk", hits).await;
    let reads = [
        (ReadFault::Refused, "unreadable"),
        (ReadFault::Short, "short"),
        (ReadFault::Flipped, "flipped"),
        (ReadFault::Swapped, "swapped"),
    ];
    for (fault, kind) in reads {
        disk.set(Schedule::Always { read: Some(fault), write: None });
        ask_until_risen(&mut client, &texts, kind, |store| faults(store, "disk", kind)).await;
        disk.set(Schedule::HEALTHY);
        ask_until_risen(&mut client, &texts, "a disk that recovered", hits).await;
    }
    for fault in [WriteFault::Refused, WriteFault::Short, WriteFault::Full, WriteFault::NoFile] {
        // Blocks that are on disk are not written again, unless they are damaged.
        disk.set(Schedule::Always { read: Some(ReadFault::Flipped), write: Some(fault) });
        let count = |store: &StoreInfo| {
            let link = link(store, "device", "disk");
            match fault {
                WriteFault::Refused => link.failed,
                WriteFault::Full | WriteFault::NoFile => link.refused,
                // A write in many parts succeeds.
                WriteFault::Short => link.blocks,
            }
        };
        ask_until_risen(&mut client, &texts, &format!("{fault:?} write"), count).await;
        if fault == WriteFault::Full {
            // No file is open now, and none can be created next.
            continue;
        }
        disk.set(Schedule::HEALTHY);
        ask_until_risen(&mut client, &texts, "a disk that recovered", hits).await;
    }
    client.settled().await;
    drained(server).await;

    // No half-written record is found by the next server.
    let server = serve(&["disk"], medium(), Compression::Off, &disk, None).await;
    let mut client = server.client().await;
    ask_until_risen(&mut client, &texts, "the next server", hits).await;
    assert!(place(&store_info(&mut client).await, "disk").faults.is_empty());
    drained(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_answers_before_a_slow_disk_is_searched_and_finds_its_blocks_later() {
    let texts = plain_texts().await;
    let (dir, disk) = (tempfile::tempdir().unwrap(), FaultyDisk::default());
    let (folder, record) = (dir.path().join("disk"), dir.path().join("record.jsonl"));
    let hits = |store: &StoreInfo| place(store, "disk").hit_blocks;
    let server = serve(&["disk"], vec![disk_medium(&folder)], Compression::Off, &disk, None).await;
    let mut client = server.client().await;
    ask_until_risen(&mut client, &texts, "a healthy disk", hits).await;
    client.settled().await;
    let blocks = place(&store_info(&mut client).await, "disk").blocks;
    drained(server).await;
    disk.hold(true);
    let server = serve(&["disk"], vec![disk_medium(&folder)], Compression::Off, &disk, Some(&record)).await;
    let mut client = server.client().await;
    let prompt = &prompts()[0];
    let first = client.ask(greedy(prompt, 8)).await.unwrap();
    assert_eq!((first.text, first.usage.cached_tokens), (texts[0].clone(), 0));
    assert!(place(&store_info(&mut client).await, "disk").blocks < blocks, "only blocks of this server");
    disk.hold(false);
    client.until(|info| place(info.engines[0].store.as_ref().unwrap(), "disk").blocks >= blocks).await;
    let (again, cached) = ask_all(&mut client).await;
    assert!(cached[1..].iter().all(|tokens| *tokens > 200), "prompts of the first server are on the disk: {cached:?}");
    assert_eq!(again, texts);
    client.settled().await;
    assert_replays(&record, &drained(server).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_remote_store_that_fails_in_every_way_changes_no_text() {
    let texts = plain_texts().await;
    let objects = ObjectServer::start().await;
    let server =
        serve(&["remote"], vec![remote_medium(&objects)], Compression::Off, &FaultyDisk::default(), None).await;
    let mut client = server.client().await;
    let hits = |store: &StoreInfo| place(store, "remote").hit_blocks;
    ask_until_risen(&mut client, &texts, "a healthy store", hits).await;
    let damages = [
        (AnswerFault::Short, "short"),
        (AnswerFault::Flipped, "flipped"),
        (AnswerFault::Swapped, "swapped"),
        (AnswerFault::Missing, "missing"),
    ];
    for (fault, kind) in damages {
        objects.set(Some(fault));
        ask_until_risen(&mut client, &texts, kind, |store| faults(store, "remote", kind)).await;
        objects.set(None);
        ask_until_risen(&mut client, &texts, "a store that recovered", hits).await;
    }
    for fault in [AnswerFault::Interrupted, AnswerFault::Refused, AnswerFault::Silent] {
        objects.set(Some(fault));
        let failed = |store: &StoreInfo| {
            let writes = link(store, "device", "remote");
            let failed = link(store, "remote", "device").failed + writes.failed + writes.refused;
            if objects.failed() > 0 { failed } else { 0 }
        };
        ask_until_risen(&mut client, &texts, &format!("{fault:?} answer"), failed).await;
        if fault != AnswerFault::Silent {
            objects.set(None);
            ask_until_risen(&mut client, &texts, "a store that recovered", hits).await;
        }
    }
    client.settled().await;
    drained(server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn seeded_faults_of_all_tiers_at_once_change_no_text_and_the_recording_gives_the_same_decisions() {
    let texts = plain_texts().await;
    for (n, seed) in Sample::from_env(41, 2).seeds.into_iter().enumerate() {
        println!("seed {seed}");
        let compression = [Compression::Store, Compression::Off][n % 2];
        let (dir, disk, objects) = (tempfile::tempdir().unwrap(), FaultyDisk::default(), ObjectServer::start().await);
        let folder = dir.path().join("disk");
        let media = vec![TierMedium::Host, disk_medium(&folder), remote_medium(&objects)];
        let record = dir.path().join("record.jsonl");
        let server = serve(&["host", "disk", "remote"], media, compression, &disk, Some(&record)).await;
        let mut client = server.client().await;
        disk.set(Schedule::mixed(4, seed));
        objects.set_mixed(6, seed);
        for _ in 0..4 {
            ask_together(&client, &texts).await;
            assert_eq!(ask_all(&mut client).await.0, texts);
        }
        let store = store_info(&mut client).await;
        let failed: u64 = store.links.iter().map(|link| link.failed + link.refused).sum();
        let damaged: u64 = store.places.iter().flat_map(|place| place.faults.values()).sum();
        assert!(failed + damaged > 0 && store.mismatches == 0, "{store:?}");
        client.settled().await;
        let outcome = drained(server).await;
        let replayed = replay_recorded(&record, &mut |_| {}).unwrap();
        assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
    }
}

/// Copies a folder's files.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Damages one to six files of a folder: their bytes, their names, or all of them.
fn damage_folder(folder: &Path, seed: u64) {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    for n in 0..rng.random_range(1..=6) {
        let mut files: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let [one, other] = [(); 2].map(|()| files[rng.random_range(0..files.len())].clone());
        match rng.random_range(0..8) {
            0 => fs::remove_file(one).unwrap(),
            1 => fs::write(one, b"").unwrap(),
            2 => fs::rename(one, other).unwrap(),
            3 => drop(fs::copy(&one, folder.join(format!("segment-{:016x}.tkv", 100 + n))).unwrap()),
            _ => {
                let bytes = fs::read(&one).unwrap();
                fs::write(one, damaged(&bytes, &mut rng)).unwrap();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn seeded_damage_of_a_folder_between_two_servers_changes_no_text() {
    let texts = plain_texts().await;
    let (dir, disk) = (tempfile::tempdir().unwrap(), FaultyDisk::default());
    let [whole, folder] = ["whole", "damaged"].map(|name| dir.path().join(name));
    let start =
        async |folder: &Path| serve(&["disk"], vec![disk_medium(folder)], Compression::Store, &disk, None).await;
    let hits = |store: &StoreInfo| place(store, "disk").hit_blocks;
    let server = start(&whole).await;
    ask_until_risen(&mut server.client().await, &texts, "a healthy disk", hits).await;
    drained(server).await;
    let mut found = 0;
    for seed in Sample::from_env(43, 8).seeds {
        println!("seed {seed}");
        copy(&whole, &folder);
        damage_folder(&folder, seed);
        let server = start(&folder).await;
        let mut client = server.client().await;
        assert_eq!(ask_all(&mut client).await.0, texts);
        found += hits(&store_info(&mut client).await);
        client.settled().await;
        drained(server).await;
        fs::remove_dir_all(&folder).unwrap();
    }
    assert!(found > 0, "no block was found in any folder");
}
