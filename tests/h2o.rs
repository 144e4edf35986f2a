//! Eviction within sequences, through the server: the API's modes, prefixes that stay whole, sliding windows, and recordings.

use trunkline_core::h2o::Mode;
use trunkline_core::{Config, H2oConfig, Keeps, Preemption, WorkerFacts};
use trunkline_server::proto::GenerateRequest;
use trunkline_sim_replay::recorded::replay_recorded;
use trunkline_tests::server::{Answer, Client, TestServer, greedy};

/// Limits of a model whose last layer keeps all tokens; the other drops three of four. Steps run two at a time.
fn config(other: Keeps) -> Config {
    let h2o = H2oConfig {
        mode: Mode::On,
        ratio: Some(4.0),
        sink: 4,
        recent: 8,
        trigger: 32,
        interval: 4,
        ..H2oConfig::default()
    };
    Config {
        block_size: 4,
        device_blocks: 256,
        max_context: 512,
        max_batch_tokens: 64,
        max_batch_size: 8,
        max_steps_in_flight: 2,
        worker: WorkerFacts { groups: vec![Keeps::All, other], ..WorkerFacts::default() },
        h2o,
        ..Config::default()
    }
}

/// Limits of a model whose KV heads choose their blocks: those of the first layer drop three of four.
fn by_head() -> Config {
    let groups = vec![Keeps::All, Keeps::All, Keeps::Scored, Keeps::Scored];
    let config = config(Keeps::Scored);
    Config {
        worker: WorkerFacts { groups, ..WorkerFacts::default() },
        h2o: H2oConfig { by_group: true, ..config.h2o },
        ..config
    }
}

fn request(mode: &str) -> GenerateRequest {
    let text = "a long prompt is read once and hardly ever again, ".repeat(4);
    GenerateRequest { h2o: mode.into(), ..greedy(&text, 60) }
}

async fn ask(client: &mut Client, mode: &str) -> Answer {
    client.ask(request(mode)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_chooses_its_mode_and_others_find_the_prompt_whole() {
    let texts = [modes_of(config(Keeps::Scored)).await, modes_of(by_head()).await];
    assert_ne!(texts[0], texts[1], "heads that choose by themselves keep other blocks");
}

/// Asks in every mode, and returns the text under eviction.
async fn modes_of(config: Config) -> String {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("h2o.jsonl");
    let plain = TestServer::start(Config {
        worker: WorkerFacts::default(),
        ..Config { h2o: H2oConfig::default(), ..config.clone() }
    })
    .await;
    let text = ask(&mut plain.client().await, "").await.text;
    plain.drain().await;

    let server = TestServer::start_with(config, Some(record.clone()), |worker| Box::new(worker)).await;
    let mut client = server.client().await;
    let evicted = ask(&mut client, "").await;
    let dropped = client.info().await.counters.unwrap();
    assert!(dropped.h2o_dropped_blocks > 20 && dropped.h2o_plans > 5, "{dropped:?}");
    assert_eq!(ask(&mut client, "on").await.text, evicted.text, "the same plan on the same scores");
    let off = ask(&mut client, "off").await;
    assert_eq!(off.text, text, "a request that keeps all has the text of a server without eviction");
    assert!(off.usage.cached_tokens > 190, "{:?}", off.usage);
    let before = client.info().await.counters.unwrap();
    assert_eq!(ask(&mut client, "probe").await.text, text);
    let after = client.info().await.counters.unwrap();
    assert!(after.h2o_dropped_tokens > before.h2o_dropped_tokens, "counted");
    assert_eq!(after.h2o_dropped_blocks, before.h2o_dropped_blocks, "and not dropped");
    let error = client.ask(request("yes")).await.unwrap_err();
    assert_eq!(error.message(), "h2o is 'yes'; it must be off, probe or on, or empty for the server's mode");
    let outcome = server.drain().await;
    let replayed = replay_recorded(&record, &mut |_| {}).unwrap();
    assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
    evicted.text
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_divides_no_layers_refuses_what_it_could_not_do() {
    let server = TestServer::start(Config { h2o: H2oConfig::default(), ..config(Keeps::Window(24)) }).await;
    let mut client = server.client().await;
    for mode in ["on", "probe"] {
        let status = client.ask(request(mode)).await.map(drop).unwrap_err();
        let line = format!("h2o is '{mode}'; this server was started without --h2o");
        assert_eq!((status.code(), status.message()), (tonic::Code::InvalidArgument, line.as_str()));
    }
    assert!(client.ask(request("off")).await.is_ok());
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_window_gives_the_same_text_whether_its_blocks_were_cached_or_computed() {
    let config = Config { h2o: H2oConfig::default(), ..config(Keeps::Window(24)) };
    let server = TestServer::start(config).await;
    let mut client = server.client().await;
    let (first, second) = (ask(&mut client, "").await, ask(&mut client, "").await);
    assert_eq!(first.text, second.text);
    assert_eq!((first.usage.cached_tokens, second.usage.cached_tokens), (0, 199));
    server.drain().await;
}

/// Asks for four texts at once.
async fn ask_four(server: &TestServer) -> Vec<String> {
    let mut asked = Vec::new();
    for word in ["river", "garden", "harbour", "market"] {
        let text = format!("{word} is what they read of once and hardly ever again, ").repeat(2);
        let mut client = server.client().await;
        asked.push(tokio::spawn(async move { client.ask(greedy(&text, 120)).await.unwrap().text }));
    }
    let mut texts = Vec::new();
    for answer in asked {
        texts.push(answer.await.unwrap());
    }
    texts
}

#[tokio::test(flavor = "multi_thread")]
async fn swapped_requests_of_a_model_with_groups_have_the_text_of_others() {
    for config in [config(Keeps::Scored), config(Keeps::Window(24)), by_head()] {
        let keeps = config.worker.groups.clone();
        // With two steps in flight a plan counts one step sooner for a sequence that just came back.
        let wide = Config { max_batch_tokens: 1024, max_steps_in_flight: 1, ..config };
        let roomy = TestServer::start(wide.clone()).await;
        let texts = ask_four(&roomy).await;
        roomy.drain().await;

        let tight =
            Config { device_blocks: 60, host_blocks: 400, preemption: Preemption::Swap, launch_watermark: 0.0, ..wide };
        let server = TestServer::start(tight).await;
        let swapped = ask_four(&server).await;
        let stats = server.drain().await.stats;
        // On a machine too busy to copy in time a request is computed again, and with scores it then drops other blocks.
        if stats.swaps.swap_ins == stats.swaps.swap_outs || !keeps.contains(&Keeps::Scored) {
            assert_eq!(swapped, texts, "{keeps:?}");
        }
        assert!(stats.swaps.swap_outs > 0 && stats.swaps.swap_ins <= stats.swaps.swap_outs, "{keeps:?} {stats:?}");
        assert_eq!(stats.h2o.h2o_dropped_blocks > 0, keeps.contains(&Keeps::Scored));
        assert_eq!(stats.free_host_blocks, 400);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_is_read_again_beside_its_answer_and_clients_see_nothing_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("kvzip.jsonl");
    let mut config = config(Keeps::Scored);
    config.h2o.scorer = "kvzip:part=64".into();
    let server = TestServer::start_with(config, Some(record.clone()), |worker| Box::new(worker)).await;
    let mut client = server.client().await;
    let first = ask(&mut client, "").await;
    assert_eq!((first.usage.completion_tokens, first.usage.prompt_tokens), (60, 200));
    let again = ask(&mut client, "").await;
    assert_eq!(again.usage.cached_tokens, 199);
    let outcome = server.drain().await;
    let stats = outcome.stats;
    assert!(stats.h2o.h2o_dropped_blocks > 20, "{stats:?}");
    // 50 blocks in four parts, three of them after the block before; the scores of a published prompt are kept.
    assert_eq!(stats.h2o.h2o_reread_tokens, 200 + 3 * 4);
    assert_eq!((stats.requests.accepted, stats.requests.finished), (2, 2));
    let replayed = replay_recorded(&record, &mut |_| {}).unwrap();
    assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
}
