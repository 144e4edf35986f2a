//! Reuse of cached text that is not a prefix, over gRPC: counted apart, refused and asked for, never found by others, and recorded.

use tonic::Code;
use trunkline_core::{Config, ReuseConfig, WorkerFacts};
use trunkline_server::proto::GenerateRequest;
use trunkline_sim_replay::recorded::replay_recorded;
use trunkline_tests::server::{TestServer, greedy};

const DOCUMENT: &str =
    "A trunk is the prefix that many requests share, and a trunk line is the main line of a railway.";

fn config(anywhere: u32, on_request: bool) -> Config {
    let reuse = ReuseConfig { anywhere, on_request, ..ReuseConfig::default() };
    Config { device_blocks: 256, worker: WorkerFacts { reuse, ..WorkerFacts::default() }, ..Config::default() }
}

fn asking(before: &str, reuse: &str) -> GenerateRequest {
    GenerateRequest { reuse: reuse.into(), ..greedy(&format!("{before}{DOCUMENT}"), 8) }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edited_first_turn_copies_the_rest_and_the_recording_decides_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.jsonl.gz");
    let server = TestServer::start_with(config(32, false), Some(path.clone()), |worker| Box::new(worker)).await;
    let mut client = server.client().await;
    let first = client.ask(asking("Who?", "")).await.unwrap();
    assert_eq!((first.usage.cached_tokens, first.usage.copied_tokens), (0, 0));
    let edited = client.ask(asking("Say where:", "")).await.unwrap();
    assert_eq!(edited.usage.cached_tokens, 0);
    assert!(edited.usage.copied_tokens >= 80, "{:?}", edited.usage);
    assert_eq!(edited.usage.completion_tokens, 8);
    // Nothing of that is in the cache: who wants exact answers computes.
    let exact = client.ask(asking("Say where:", "prefix")).await.unwrap();
    assert_eq!((exact.usage.cached_tokens, exact.usage.copied_tokens), (0, 0));
    let again = client.ask(asking("Say where:", "anywhere")).await.unwrap();
    assert!(again.usage.cached_tokens >= 80, "the exact blocks are found: {:?}", again.usage);
    assert_eq!(again.text, exact.text);
    let counters = client.settled().await.counters.unwrap();
    assert_eq!(counters.copied_tokens, u64::from(edited.usage.copied_tokens + again.usage.copied_tokens));
    let outcome = server.drain().await;
    let replayed = replay_recorded(&path, &mut |_| {}).unwrap();
    assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
}

#[tokio::test(flavor = "multi_thread")]
async fn copies_are_asked_for_only_where_the_server_makes_some() {
    let server = TestServer::start(config(0, false)).await;
    let mut client = server.client().await;
    let status = client.ask(asking("Who?", "anywhere")).await.expect_err("a refusal");
    let message = "reuse is 'anywhere'; this server was started without --reuse-anywhere";
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, message));
    client.ask(asking("Who?", "prefix")).await.unwrap();
    let server = TestServer::start(config(32, true)).await;
    let mut client = server.client().await;
    client.ask(asking("Who?", "")).await.unwrap();
    assert_eq!(client.ask(asking("Say where:", "")).await.unwrap().usage.copied_tokens, 0);
    assert!(client.ask(asking("And when:", "anywhere")).await.unwrap().usage.copied_tokens >= 80);
}

/// Salts keep tenants apart, whatever they ask for.
#[tokio::test(flavor = "multi_thread")]
async fn copies_never_cross_salts() {
    let server = TestServer::start(config(32, false)).await;
    let mut client = server.client().await;
    client.ask(asking("Who?", "")).await.unwrap();
    let salted = GenerateRequest { cache_salt: "mine".into(), ..asking("Say where:", "anywhere") };
    assert_eq!(client.ask(salted).await.unwrap().usage.copied_tokens, 0);
}

/// Another tenant finds whole blocks of 16 tokens, so that nobody finds out a prompt token by token. In a cache of its own, a tenant copies to the token.
#[tokio::test(flavor = "multi_thread")]
async fn tenants_that_share_copy_whole_blocks_and_the_recording_decides_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.jsonl.gz");
    let server = TestServer::start_with(config(32, false), Some(path.clone()), |worker| Box::new(worker)).await;
    let mut client = server.client().await;
    let mut copied = Vec::new();
    for (tenant, before, shares) in [
        ("a", "Who?", true),
        ("b", "Say where:", true),
        ("", "And when:", false),
        ("c", "Who?", false),
        ("c", "Say where:", false),
    ] {
        let request = asking(before, "");
        let asked = GenerateRequest { tenant: tenant.into(), share_cache: Some(shares), ..request };
        copied.push(client.ask(asked).await.unwrap().usage.copied_tokens);
    }
    let own = copied.pop().unwrap();
    assert_eq!(copied, [0, 80, 80, 0], "without a tenant, the cache is the shared one");
    assert!(own > 80, "{own}");
    let outcome = server.drain().await;
    let replayed = replay_recorded(&path, &mut |_| {}).unwrap();
    assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
}
