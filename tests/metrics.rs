//! Metrics over HTTP, of real servers: exact figures of a known load, and servers that drain, lose a worker, or are attacked.

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use trunkline_cluster::EngineId;
use trunkline_core::Config;
use trunkline_port::StepRunner;
use trunkline_server::Options;
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::{
    AbortRequest, FinishReason, GenerateRequest, GetModelInfoRequest, GetServerInfoResponse, Sampling, TokenIds,
};
use trunkline_tests::scrape::{Scraped, fetch, scrape};
use trunkline_tests::server::{Faulty, TestServer, collect, gated, greedy, in_turn};
use trunkline_tests::sessions::{Chat, settings};
use trunkline_worker::Worker;

const TRUNK: &str = "A trunk is the prefix that many requests share; a trunk line is the main line of a railway.";
const OPEN_METRICS: &str = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";

fn config() -> Config {
    Config { device_blocks: 64, ..Config::default() }
}

/// Checks that the figures of `GetServerInfo` are those of the metrics, at rest.
fn agree(info: &GetServerInfoResponse, metrics: &Scraped) {
    let (counters, blocks, load) = (info.counters.unwrap(), info.blocks.unwrap(), info.load.unwrap());
    let network = info.network.unwrap();
    for (name, value) in [
        ("trunkline_num_requests_running", load.running.into()),
        ("trunkline_num_requests_waiting", load.waiting.into()),
        ("trunkline_requests_accepted_total", counters.accepted),
        ("trunkline_requests_withdrawn_total", counters.withdrawn),
        ("trunkline_requests_restarted_total", counters.restarted),
        ("trunkline_prompt_tokens_total", counters.prompt_tokens),
        ("trunkline_prefix_cache_queries_total", counters.prompt_tokens),
        ("trunkline_prefix_cache_hits_total", counters.cached_tokens),
        ("trunkline_generation_tokens_total", counters.generated_tokens),
        ("trunkline_num_preemptions_total", counters.preemptions),
        ("trunkline_steps_total", counters.steps),
        ("trunkline_published_blocks_total", counters.published_blocks),
        ("trunkline_merged_blocks_total", counters.merged_blocks),
        ("trunkline_evicted_blocks_total", counters.evicted_blocks),
        ("trunkline_connections_accepted_total", network.accepted),
    ] {
        assert_eq!(metrics.sum(name), value as f64, "{name}");
    }
    for (state, value) in
        [("free", blocks.free), ("idle", blocks.idle), ("held", blocks.held), ("private", blocks.private)]
    {
        let engines = (0..info.engines.len()).map(|engine| format!("{{engine=\"{engine}\",state=\"{state}\"}}"));
        let sum: f64 = engines.map(|labels| metrics.value(&format!("trunkline_device_blocks{labels}"))).sum();
        assert_eq!(sum, f64::from(value), "{state}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_figures_of_a_known_load_are_exact() {
    let server = TestServer::start(config()).await;
    let mut client = server.client().await;
    let first = client.ask(greedy(TRUNK, 24)).await.unwrap();
    let again = client.ask(greedy(TRUNK, 24)).await.unwrap();
    assert!(again.usage.cached_tokens > 0);

    let too_long = GenerateRequest { stopping: greedy("", 1 << 30).stopping, ..greedy(TRUNK, 1) };
    client.ask(too_long).await.unwrap_err();
    // Prompts without room for an answer: tokens, and a text.
    let context = client.0.get_model_info(GetModelInfoRequest {}).await.unwrap().into_inner().max_context as usize;
    let ids = Prompt::TokenIds(TokenIds { ids: vec![5; context] });
    client.ask(GenerateRequest { prompt: Some(ids), ..greedy("", 1) }).await.unwrap_err();
    client.ask(greedy(&"a".repeat(context + 1), 1)).await.unwrap_err();
    let sampling = Some(Sampling { temperature: Some(-1.0), ..Sampling::default() });
    client.ask(GenerateRequest { sampling, ..greedy(TRUNK, 1) }).await.unwrap_err();

    let mut aborted = client.open(GenerateRequest { request_id: "long".into(), ..greedy("abc", 400) }).await.unwrap();
    aborted.message().await.unwrap().expect("a first token");
    client.0.abort(AbortRequest { request_ids: vec!["long".into()] }).await.unwrap();
    let mut reason = FinishReason::Unspecified;
    while let Some(message) = aborted.message().await.unwrap() {
        if let Some(trunkline_server::proto::generate_response::Event::Finish(finish)) = message.event {
            reason = finish.reason();
        }
    }
    assert_eq!(reason, FinishReason::Abort);

    let info = client.settled().await;
    let metrics = scrape(server.metrics_addr()).await;
    agree(&info, &metrics);
    let value = |name: &str| metrics.value(name);
    assert_eq!(value("trunkline_request_success_total{finished_reason=\"length\"}"), 2.0);
    assert_eq!(value("trunkline_request_success_total{finished_reason=\"abort\"}"), 1.0);
    assert_eq!(metrics.sum("trunkline_request_success_total"), 3.0);
    assert_eq!(value("trunkline_requests_refused_total{reason=\"context_too_long\"}"), 3.0);
    assert_eq!(value("trunkline_requests_refused_total{reason=\"invalid\"}"), 1.0);
    assert_eq!(metrics.sum("trunkline_requests_refused_total"), 4.0);
    let prompts = f64::from(first.usage.prompt_tokens + again.usage.prompt_tokens);
    assert_eq!(metrics.sum("trunkline_prompt_tokens_total"), prompts + 3.0, "a token for each byte of abc");
    assert_eq!(metrics.sum("trunkline_prefix_cache_hits_total"), f64::from(again.usage.cached_tokens));
    assert_eq!(value("trunkline_request_prompt_tokens_sum"), prompts);
    assert_eq!(value("trunkline_request_generation_tokens_sum"), 48.0);
    assert_eq!(value("trunkline_request_params_max_tokens_sum"), 48.0);
    for whole in ["e2e_request_latency", "request_queue_time", "request_prefill_time", "request_decode_time"] {
        assert_eq!(value(&format!("trunkline_{whole}_seconds_count")), 2.0, "{whole}");
    }
    assert_eq!(value("trunkline_time_to_first_token_seconds_count"), 3.0);
    let generated = metrics.sum("trunkline_generation_tokens_total");
    assert!(generated >= 49.0);
    assert_eq!(value("trunkline_inter_token_latency_seconds_count"), generated - 3.0);
    assert_eq!(value("trunkline_step_time_seconds_count{engine=\"0\"}"), value("trunkline_steps_total{engine=\"0\"}"));
    let parts = ["queue", "prefill", "decode"].map(|part| value(&format!("trunkline_request_{part}_time_seconds_sum")));
    assert!(parts.iter().sum::<f64>() <= value("trunkline_e2e_request_latency_seconds_sum") + 1e-6);
    assert_eq!(value("trunkline_kv_cache_usage_perc{engine=\"0\"}"), 0.0);
    assert_eq!(value("trunkline_engine_state{engine=\"0\",state=\"up\"}"), 1.0);
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn both_formats_have_the_same_samples_and_other_paths_have_none() {
    let server = TestServer::start(config()).await;
    server.client().await.ask(greedy(TRUNK, 4)).await.unwrap();
    let addr = server.metrics_addr();
    let (head, body) = fetch(addr, "GET /metrics", "*/*").await;
    assert!(head.contains("text/plain; version=0.0.4; charset=utf-8"), "{head}");
    let plain = Scraped::read(&body);
    let (head, body) = fetch(addr, "GET /metrics", OPEN_METRICS).await;
    assert!(head.contains("application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    assert!(body.ends_with("\n# EOF\n"));
    let open = Scraped::read(&body);
    // Bounds of buckets are 1 in one format and 1.0 in the other.
    assert!(plain.names().eq(open.names()) && plain.samples.len() == open.samples.len());
    assert!(plain.samples.len() > 400, "{} samples", plain.samples.len());
    assert!(!body.contains("railway") && !body.contains("127.0.0.1"), "neither prompts nor addresses");
    for (line, status) in [("GET /", " 404 "), ("GET /metrics/x", " 404 "), ("POST /metrics", " 405 ")] {
        let (head, body) = fetch(addr, line, "*/*").await;
        assert!(head.contains(status) && !body.contains("trunkline_"), "{line}: {head}");
    }
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_draining_server_still_answers_scrapes_also_between_slow_clients() {
    let (wrap, gate) = gated();
    let server = TestServer::start_with(config(), None, wrap).await;
    let addr = server.metrics_addr();
    let mut client = server.client().await;
    let stream = client.open(greedy(TRUNK, 4)).await.unwrap();
    let handle = server.handle();
    handle.drain().await;
    let mut slow = Vec::new();
    for _ in 0..40 {
        let mut socket = TcpStream::connect(addr).await.unwrap();
        socket.write_all(b"GET /metrics HTTP/1.1\r\nHost:").await.unwrap();
        slow.push(socket);
    }
    let metrics = scrape(addr).await;
    assert_eq!(metrics.value("trunkline_draining"), 1.0);
    assert_eq!(metrics.sum("trunkline_num_requests_running"), 1.0);
    client.ask(greedy(TRUNK, 4)).await.unwrap_err();
    let refused = scrape(addr).await.value("trunkline_requests_refused_total{reason=\"draining\"}");
    assert_eq!(refused, 1.0);
    drop(gate);
    assert_eq!(collect(stream).await.unwrap().token_ids.len(), 4);
    server.stopped().await;
    assert!(TcpStream::connect(addr).await.is_err(), "metrics end with the server");
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_never_fall_when_a_worker_ends_and_another_takes_its_place() {
    let wrap = |engine: EngineId, worker: Worker| -> Box<dyn StepRunner> {
        let is_faulty = engine == EngineId(1);
        let fails_at = if is_faulty { vec![12] } else { Vec::new() };
        Box::new(Faulty { worker, fails_at, panics_at: Vec::new(), panics_at_reset: is_faulty })
    };
    let server = TestServer::start_cluster(in_turn(&config(), 2), None, wrap).await;
    let addr = server.metrics_addr();
    let mut client = server.client().await;
    let up = |info: &GetServerInfoResponse| info.engines.iter().all(|engine| engine.state == 2);
    client.until(up).await;
    for _ in 0..2 {
        client.ask(greedy(TRUNK, 8)).await.unwrap();
    }
    let before = scrape(addr).await;
    assert_eq!(before.sum("trunkline_worker_losses_total"), 0.0);
    assert_eq!(before.sum("trunkline_worker_joins_total"), 2.0);
    for _ in 0..2 {
        client.ask(greedy(TRUNK, 8)).await.unwrap();
    }
    client.until(up).await;
    client.settled().await;
    let after = scrape(addr).await;
    let mut n = 0;
    for (sample, value) in before.rising() {
        assert!(after.value(sample) >= value, "{sample} fell from {value} to {}", after.value(sample));
        n += 1;
    }
    assert!(n > 200, "{n} samples");
    assert_eq!(after.value("trunkline_worker_losses_total{engine=\"1\",reason=\"failed_step\"}"), 1.0);
    assert_eq!(after.value("trunkline_worker_losses_total{engine=\"1\",reason=\"ended\"}"), 1.0);
    assert_eq!(after.value("trunkline_worker_restarts_total{engine=\"1\"}"), 1.0);
    assert_eq!(after.value("trunkline_worker_joins_total{engine=\"1\"}"), 2.0);
    assert_eq!(after.value("trunkline_request_success_total{finished_reason=\"length\"}"), 4.0);
    assert_eq!(after.value("trunkline_request_generation_tokens_sum"), 32.0);
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_waits_for_its_first_worker_answers_scrapes() {
    let server = TestServer::of_first_worker(Options::default(), Box::new(|_| Err("not this one".into()))).await;
    let metrics = scrape(server.metrics_addr()).await;
    assert_eq!(metrics.sum("trunkline_build_info"), 1.0);
    assert!(!metrics.samples.contains_key("trunkline_draining"), "nothing is known of a model");
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_and_turns_are_counted() {
    let server = TestServer::start(config()).await;
    let mut chat = Chat::create(&server, "Be brief.", settings(200, 100)).await;
    chat.say("Hello.", 8).await.unwrap();
    let metrics = scrape(server.metrics_addr()).await;
    assert_eq!((metrics.value("trunkline_sessions"), metrics.value("trunkline_session_turns_total")), (1.0, 1.0));
    assert_eq!(metrics.sum("trunkline_session_compactions_total"), 0.0);
    chat.delete().await.unwrap();
    let metrics = scrape(server.metrics_addr()).await;
    assert_eq!((metrics.value("trunkline_sessions"), metrics.value("trunkline_session_turns_total")), (0.0, 1.0));
    server.drain().await;
}
