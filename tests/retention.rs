//! Retention hints over gRPC: from the client to the cache, the counters and the recording.

use tonic::Code;
use trunkline_core::Config;
use trunkline_server::proto::{GenerateRequest, RetentionHint, RetentionPart};
use trunkline_sim_replay::recorded::replay_recorded;
use trunkline_tests::server::{Client, TestServer, greedy};

const SYSTEM: &str = "A trunk is the prefix that many requests share; a trunk line is the main line of a railway.";

fn hint(part: RetentionPart, priority: u32, ttl_ms: u64) -> RetentionHint {
    RetentionHint { part: part.into(), priority: Some(priority), ttl_ms, ..RetentionHint::default() }
}

fn asking(retention: &[RetentionHint]) -> GenerateRequest {
    GenerateRequest { retention: retention.to_vec(), ..greedy(SYSTEM, 4) }
}

/// Sends prompts that nobody sends again, more than the cache holds.
async fn flood(client: &mut Client) {
    for n in 0..12 {
        client
            .ask(greedy(&format!("{n} is a number of a prompt that is sent once and never again, to fill it."), 4))
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_with_a_hint_outlives_others_and_the_recording_decides_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.jsonl.gz");
    let config = Config { device_blocks: 24, ..Config::default() };
    let server = TestServer::start_with(config, Some(path.clone()), |worker| Box::new(worker)).await;
    let mut client = server.client().await;
    let mut found = Vec::new();
    for hints in [&[][..], &[hint(RetentionPart::Prompt, 80, 0), hint(RetentionPart::Answer, 0, 0)]] {
        client.ask(asking(hints)).await.unwrap();
        flood(&mut client).await;
        found.push(client.ask(asking(&[])).await.unwrap().usage.cached_tokens);
    }
    assert_eq!(found, [0, 80], "5 blocks of 16 tokens");
    let info = client.settled().await;
    assert_eq!(info.blocks.unwrap().retained, 5);
    let counters = info.counters.unwrap();
    assert_eq!((counters.ignored_retained_blocks, counters.evicted_retained_blocks), (0, 0));
    let outcome = server.drain().await;
    let replayed = replay_recorded(&path, &mut |_| {}).unwrap();
    assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pin_outlives_hints_and_the_answer_says_what_is_pinned() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.jsonl");
    let config = Config { device_blocks: 24, ..Config::default() };
    let server = TestServer::start_with(config, Some(path.clone()), |worker| Box::new(worker)).await;
    let mut client = server.client().await;
    let pin = RetentionHint { pin: true, ..hint(RetentionPart::Prompt, 100, 86_400_000) };
    let pinned = client.ask(asking(&[pin])).await.unwrap().usage.pinned_tokens;
    flood(&mut client).await;
    assert_eq!((pinned, client.ask(asking(&[])).await.unwrap().usage.cached_tokens), (80, 80));
    // A quarter of 24 blocks is six.
    let other = GenerateRequest { retention: vec![pin], ..greedy(&format!("Another: {SYSTEM}"), 4) };
    assert_eq!(client.ask(other).await.unwrap().usage.pinned_tokens, 16);
    let outcome = server.drain().await;
    let replayed = replay_recorded(&path, &mut |_| {}).unwrap();
    assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_hints_are_refused_with_the_field() {
    let server = TestServer::start(Config { device_blocks: 24, ..Config::default() }).await;
    let mut client = server.client().await;
    let prompt = hint(RetentionPart::Prompt, 50, 0);
    let wrong: [(&[RetentionHint], &str); 5] = [
        (
            &[RetentionHint { pin: true, ..hint(RetentionPart::Prompt, 100, 0) }],
            "retention[0]: a pin needs a time to live, a day at most; set ttl_ms to 1 to 86400000",
        ),
        (&[hint(RetentionPart::Prompt, 101, 0)], "retention[0]: priority is 101; it must be 0 to 100"),
        (&[RetentionHint { priority: None, ..prompt }], "retention[0]: priority is missing; set 0 to 100"),
        (
            &[prompt, RetentionHint { from: 3, ..prompt }],
            "retention[1]: the range begins at token 3, before the end of the range before; order ranges and let none overlap",
        ),
        (
            &[RetentionHint { from: 5, to: Some(5), ..prompt }],
            "retention[0]: no token is in the range 5..5; end the range after its first token",
        ),
    ];
    for (hints, message) in wrong {
        let status = client.ask(asking(hints)).await.expect_err("a refusal");
        assert_eq!((status.code(), status.message()), (Code::InvalidArgument, message));
    }
    client.ask(asking(&[prompt])).await.unwrap();
}
