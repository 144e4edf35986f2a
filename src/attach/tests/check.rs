//! The conformance checks pass the reference worker, over a socket, and fail every worker with a mistake.

use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::transport::Endpoint;
use trunkline_attach::check::{self, CheckRow, Verdict};
use trunkline_attach::fake::{FakeConfig, FakeFault, FakeWorker};
use trunkline_attach::worker::{self, Dialled};
use trunkline_attach::{Abilities, Hello, LockStep};

const CONFIG: FakeConfig = FakeConfig { block_size: 16, blocks: 64, scored_groups: 0, bad_token: None, fault: None };

/// Checks a fake worker over a socket.
async fn checked(config: FakeConfig, edit: impl Fn(&mut Hello)) -> Vec<CheckRow> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut hello = FakeWorker::hello("fake", &config);
    edit(&mut hello);
    let (stop, stopped) = watch::channel(false);
    let make = Box::new(move |_: &_| Ok(Box::new(FakeWorker::new(config)) as _));
    let dial = Box::new(move || {
        let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
        Box::pin(async move { Ok(Dialled { channel: endpoint.connect().await?, authorization: None }) }) as _
    });
    let worker = tokio::spawn(worker::run(hello, make, dial, stopped));
    let rows = check::run(listener, Duration::from_secs(30), |_| ()).await;
    stop.send_replace(true);
    worker.await.unwrap().unwrap();
    rows
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reference_worker_passes_every_check() {
    for (block_size, scored_groups) in [(16, 0), (1, 0), (5, 0), (16, 1), (3, 2)] {
        let rows = checked(FakeConfig { block_size, blocks: 161, scored_groups, ..CONFIG }, |_| ()).await;
        assert_eq!(rows.len(), 25);
        for row in rows {
            let offered = row.name != "idle steps" && (row.name != "dropped blocks" || scored_groups > 0);
            let passed =
                if offered { row.verdict == Verdict::Pass } else { matches!(row.verdict, Verdict::NotOffered(_)) };
            assert!(
                passed,
                "{} with blocks of {block_size}, {scored_groups} scored groups: {:?}",
                row.name, row.verdict
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_with_few_abilities_passes_what_it_offers() {
    let least = |hello: &mut Hello| {
        hello.abilities = Abilities { max_sequences: 1, max_tokens: 7, ..Abilities::default() };
        hello.kv.block_io = false;
    };
    let rows = checked(CONFIG, least).await;
    let not_offered: Vec<_> = rows.iter().filter(|row| matches!(row.verdict, Verdict::NotOffered(_))).collect();
    let names: Vec<_> = not_offered.iter().map(|row| row.name).collect();
    let expected = [
        "batch equals alone",
        "prefix of the same step",
        "partial writes",
        "dropped blocks",
        "two steps in flight",
        "idle steps",
        "swap out and in",
        "shared memory",
        "seeded sampling",
        "penalties and biases",
        "log probabilities",
    ];
    assert_eq!(names, expected);
    let failed: Vec<_> = rows.iter().filter(|row| matches!(row.verdict, Verdict::Fail(_))).collect();
    assert_eq!(failed, Vec::<&CheckRow>::new());
}

fn lock_step(size: u32) -> Option<LockStep> {
    Some(LockStep { group: "experts".into(), size, rank: 0 })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_of_a_group_is_checked_as_a_group_of_its_own() {
    let rows = checked(CONFIG, |hello| hello.lock_step = lock_step(1)).await;
    let failed = rows.iter().filter(|row| matches!(row.verdict, Verdict::Fail(_))).count();
    let idle = rows.iter().find(|row| row.name == "idle steps").map(|row| &row.verdict);
    assert_eq!((rows.len(), failed, idle), (25, 0, Some(&Verdict::Pass)));
    let rows = checked(CONFIG, |hello| hello.lock_step = lock_step(3)).await;
    let line = "the worker runs alongside 2 others of its group; check it as a group of 1";
    assert_eq!(rows, [CheckRow { name: "hello", verdict: Verdict::Fail(line.into()) }]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_mistake_of_a_worker_fails_a_check() {
    for (fault, check) in [
        (FakeFault::KeepsTable, "cut block tables"),
        (FakeFault::WritesShared, "partial writes"),
        (FakeFault::KeepsSlot, "slots used again"),
        (FakeFault::SamplesByBatch, "seeded sampling"),
        (FakeFault::ReadsNeighbour, "swap out and in"),
        (FakeFault::IgnoresReset, "reset"),
        (FakeFault::ChunksFromZero, "prefill in chunks"),
        (FakeFault::MixesBatch, "batch equals alone"),
        (FakeFault::WrongLogprobs, "log probabilities"),
        (FakeFault::IgnoresDrops, "dropped blocks"),
        (FakeFault::MixesGroups, "prefill in chunks"),
        (FakeFault::IdlesInTables, "idle steps"),
        (FakeFault::RunsBackwards, "prefix of the same step"),
        (FakeFault::ForgetsGenerated, "penalties and biases"),
    ] {
        let config = FakeConfig { fault: Some(fault), scored_groups: 1, blocks: 128, ..CONFIG };
        let rows = checked(config, |hello| hello.lock_step = lock_step(1)).await;
        let failed: Vec<_> = rows.iter().filter(|row| matches!(row.verdict, Verdict::Fail(_))).collect();
        assert!(failed.iter().any(|row| row.name == check), "{fault:?} fails {failed:?}");
    }
}
