//! The server through its front door: gRPC, with the embedded worker behind it.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_stream::StreamExt;
use tonic::{Code, Request};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use trunkline_core::{Config, Preemption};
use trunkline_server::proto::finish::StoppedBy;
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::generate_response::Event;
use trunkline_server::proto::{
    AbortRequest, FinishReason, FlushCacheRequest, GenerateRequest, GetModelInfoRequest, Output, Sampling, TokenIds,
};
use trunkline_sim_replay::recorded::replay_recorded;
use trunkline_tests::server::{Client, Faulty, TestServer, collect, gated, greedy};

const TRUNK: &str = "A trunk is the prefix that many requests share; a trunk line is the main line of a railway.";

fn config(device_blocks: u32) -> Config {
    Config { device_blocks, ..Config::default() }
}

fn code(result: Result<impl std::fmt::Debug, tonic::Status>) -> Code {
    result.expect_err("a refusal").code()
}

/// Prompts that share prefixes of different lengths.
fn prompts(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("{} Branch {}, leaf {i}.", &TRUNK[..30 + 20 * (i % 4)], i % 7)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_prompt_again_comes_from_the_cache_with_the_same_text() {
    let server = TestServer::start(config(64)).await;
    let mut client = server.client().await;
    let first = client.ask(greedy(TRUNK, 24)).await.unwrap();
    assert_eq!((first.reason, first.usage.cached_tokens), (FinishReason::Length, 0));
    assert_eq!(first.token_ids.len(), 24);

    let second = client.ask(greedy(TRUNK, 24)).await.unwrap();
    assert_eq!((&second.text, &second.token_ids), (&first.text, &first.token_ids));
    let cached = second.usage.cached_tokens;
    assert!(cached > 0 && cached % 16 == 0 && cached < second.usage.prompt_tokens, "{cached}");

    let dropped = client.0.flush_cache(FlushCacheRequest {}).await.unwrap().into_inner().dropped_blocks;
    assert!(dropped > 0);
    assert_eq!(client.settled().await.blocks.unwrap().idle, 0);
    let third = client.ask(greedy(TRUNK, 24)).await.unwrap();
    assert_eq!((third.text, third.usage.cached_tokens), (first.text, 0));

    let counters = client.info().await.counters.unwrap();
    assert_eq!((counters.accepted, counters.finished, counters.refused), (3, 3, 0));
    assert_eq!((counters.generated_tokens, counters.cached_tokens), (72, cached.into()));
    assert_eq!((counters.prefix_blocks, counters.prefix_runs), (u64::from(cached / 16), 1));
    assert_eq!(server.drain().await.stats.requests.accepted, 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn text_and_its_token_ids_are_the_same_prompt() {
    let server = TestServer::start(config(64)).await;
    let mut client = server.client().await;
    let by_text = client.ask(greedy("abc", 8)).await.unwrap();
    let ids = trunkline_text::Tokenizer::bytes().encode("abc").unwrap();
    let by_ids = GenerateRequest { prompt: Some(Prompt::TokenIds(TokenIds { ids })), ..greedy("", 8) };
    assert_eq!(client.ask(by_ids).await.unwrap().token_ids, by_text.token_ids);
}

#[tokio::test(flavor = "multi_thread")]
async fn sixty_four_streams_on_a_pool_too_small_for_them_say_what_each_says_alone() {
    let prompts = prompts(64);
    let server = TestServer::start(config(4096)).await;
    let mut client = server.client().await;
    let mut alone = Vec::new();
    for prompt in &prompts {
        alone.push(client.ask(greedy(prompt, 40)).await.unwrap());
    }
    server.drain().await;

    // Each needs up to 9 blocks of its own.
    let small = Config { max_batch_tokens: 256, max_batch_size: 64, preemption: Preemption::Recompute, ..config(40) };
    let swaps = Config { host_blocks: 400, preemption: Preemption::Swap, ..small.clone() };
    let drafts = Config { max_drafts: 4, max_batch_size: 7, device_blocks: 20, launch_watermark: 0.0, ..swaps.clone() };
    for config in [small, swaps, drafts] {
        let (n_host, n_drafts) = (config.host_blocks, config.max_drafts);
        let server = TestServer::start(config).await;
        let mut client = server.client().await;
        let mut streams = JoinSet::new();
        for (i, prompt) in prompts.iter().enumerate() {
            let (mut client, request) = (client.clone(), greedy(prompt, 40));
            streams.spawn(async move { (i, client.ask(request).await.unwrap()) });
        }
        while let Some(done) = streams.join_next().await {
            let (i, answer) = done.unwrap();
            let alone = (alone[i].text.clone(), alone[i].token_ids.clone());
            assert_eq!((answer.text, answer.token_ids), alone, "stream {i}, {n_host} host blocks, {n_drafts} drafts");
        }
        let counters = client.settled().await.counters.unwrap();
        assert!(counters.preemptions > 0 && counters.evicted_blocks > 0, "the pool was too large: {counters:?}");
        let stats = server.drain().await.stats;
        assert_eq!(stats.swaps.swap_outs > 0, n_host > 0, "{stats:?}");
        let swaps = &stats.swaps;
        assert_eq!((counters.swap_outs, counters.swapped_in_blocks), (swaps.swap_outs, swaps.swapped_in_blocks));
        assert_eq!(
            [counters.swap_in_found_blocks, counters.swap_in_joined_blocks, counters.swap_in_merged_blocks],
            [swaps.found_blocks, swaps.joined_blocks, swaps.merged_blocks]
        );
        // A copy that takes longer than computing is given up, which depends on the machine.
        assert!(stats.swaps.swap_ins <= stats.swaps.swap_outs, "{stats:?}");
        assert_eq!(stats.free_host_blocks, n_host, "{stats:?}");
        assert_eq!(stats.drafts.accepted_draft_tokens > 0, n_drafts > 0, "{stats:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn different_salts_never_share() {
    let server = TestServer::start(config(64)).await;
    let mut client = server.client().await;
    let salted = |salt: &str| GenerateRequest { cache_salt: salt.into(), ..greedy(TRUNK, 4) };
    let mut texts = BTreeSet::new();
    for salt in ["", "tenant-a", "tenant-b"] {
        let answer = client.ask(salted(salt)).await.unwrap();
        assert_eq!(answer.usage.cached_tokens, 0, "salt '{salt}'");
        texts.insert(answer.text);
    }
    assert_eq!(texts.len(), 1, "a salt changes what is shared, not what is said");
    assert!(client.ask(salted("tenant-a")).await.unwrap().usage.cached_tokens > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_stream_gives_its_blocks_back() {
    let (wrap, gate) = gated();
    let server = TestServer::start_with(Config { max_batch_size: 1, ..config(64) }, None, wrap).await;
    let mut client = server.client().await;
    let mut running = client.open(greedy(TRUNK, 100)).await.unwrap();
    gate.send(()).unwrap();
    assert!(running.message().await.unwrap().is_some(), "the first token");
    let waiting = client.open(greedy("another", 100)).await.unwrap();
    assert_eq!(client.info().await.load.unwrap().waiting, 1);
    // No step ends meanwhile, so only the drop itself can end the one that waits.
    drop(waiting);
    client.until(|info| info.load.unwrap().waiting == 0).await;
    drop(running);
    // Nor does one end while the drop of the other is on its way.
    client.until(|info| info.counters.as_ref().is_some_and(|counters| counters.finished == 2)).await;
    drop(gate);
    let counters = client.settled().await.counters.unwrap();
    assert_eq!((counters.accepted, counters.finished), (2, 2));
    assert!(counters.generated_tokens < 100, "{counters:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_ends_the_stream_and_may_be_repeated() {
    let (wrap, gate) = gated();
    let server = TestServer::start_with(config(64), None, wrap).await;
    let mut client = server.client().await;
    let named = |id: &str| GenerateRequest { request_id: id.into(), ..greedy(TRUNK, 100) };
    let one = client.open(named("one")).await.unwrap();
    let two = client.open(named("two")).await.unwrap();
    assert_eq!(code(client.open(named("one")).await), Code::AlreadyExists);
    client.until(|info| info.load.unwrap().running >= 1).await;

    let ids = ["one", "two", "three"].map(String::from).to_vec();
    let mut abort = client.clone();
    let mut abort = async || abort.0.abort(AbortRequest { request_ids: ids.clone() }).await.unwrap().into_inner().found;
    assert_eq!(abort().await, 2);
    // Both end while the step that runs one of them goes on.
    for stream in [one, two] {
        let answer = collect(stream).await.unwrap();
        assert_eq!((answer.reason, answer.usage.preemptions), (FinishReason::Abort, 0));
    }
    assert_eq!(abort().await, 0);
    drop(gate);
    assert_eq!(abort().await, 0);
    client.settled().await;
    assert_eq!(client.ask(named("one")).await.unwrap().reason, FinishReason::Length, "the id is free again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_requests_that_run_and_requests_that_wait() {
    let (wrap, gate) = gated();
    let server = TestServer::start_with(Config { max_batch_size: 1, ..config(64) }, None, wrap).await;
    let mut client = server.client().await;
    // The worker is there once it has run a step.
    gate.send(()).unwrap();
    client.ask(greedy(TRUNK, 1)).await.unwrap();
    let running = client.open(GenerateRequest { timeout_ms: 20, ..greedy(TRUNK, 100) }).await.unwrap();
    client.until(|info| info.load.unwrap().running == 1).await;
    assert_eq!(code(client.ask(GenerateRequest { timeout_ms: 21, ..greedy("wait", 4) }).await), Code::DeadlineExceeded);
    // The deadline of the call itself; it leaves time enough for the request to be accepted.
    let mut call = Request::new(greedy("wait", 4));
    call.metadata_mut().insert("grpc-timeout", "900m".parse().unwrap());
    let stream = client.0.generate(call).await.unwrap().into_inner();
    assert_eq!(code(collect(stream).await), Code::DeadlineExceeded);
    // A step is not broken off; the request in it ends with it.
    drop(gate);
    assert_eq!(code(collect(running).await), Code::DeadlineExceeded);
    client.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_refuses() {
    let (wrap, gate) = gated();
    let limits = Config { max_batch_size: 1, max_queue: 2, ..config(64) };
    let server = TestServer::start_options(limits, |options| options.queue_per_client = Some(8), wrap).await;
    let mut client = server.client().await;
    let mut streams = vec![client.open(greedy(TRUNK, 4)).await.unwrap()];
    client.until(|info| info.load.unwrap().running == 1).await;
    for _ in 0..2 {
        streams.push(client.open(greedy(TRUNK, 4)).await.unwrap());
    }
    assert_eq!(code(client.open(greedy(TRUNK, 4)).await), Code::ResourceExhausted);
    drop(gate);
    for stream in streams {
        assert_eq!(collect(stream).await.unwrap().reason, FinishReason::Length);
    }
    assert_eq!(client.settled().await.counters.unwrap().refused, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_is_refused_or_served_and_leaves_nothing_behind() {
    let limits = Config { max_batch_size: 16, max_queue: 32, max_batch_tokens: 512, ..config(128) };
    let server = TestServer::start(limits).await;
    let mut client = server.client().await;
    let mut streams = JoinSet::new();
    for prompt in prompts(1000) {
        let mut client = client.clone();
        streams.spawn(async move { client.ask(greedy(&prompt, 2)).await });
    }
    let mut served = 0;
    while let Some(done) = streams.join_next().await {
        match done.unwrap() {
            Ok(answer) => {
                assert_eq!(answer.token_ids.len(), 2);
                served += 1;
            }
            Err(status) => assert_eq!(status.code(), Code::ResourceExhausted, "{status}"),
        }
    }
    assert_eq!(client.settled().await.counters.unwrap().accepted, served);
    assert!(served >= 32, "the queue holds that many, but only {served} were served");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_holds_nobody_up() {
    let server = TestServer::start(config(64)).await;
    // Each message carries the id, so that all of them together are more than a connection takes unread.
    let request = GenerateRequest { request_id: "x".repeat(256), ..greedy(TRUNK, 600) };
    let unread = server.client().await.open(request.clone()).await.unwrap();
    let mut client = server.client().await;
    assert_eq!(client.ask(greedy("others", 4)).await.unwrap().token_ids.len(), 4);
    client.settled().await;
    let answer = collect(unread).await.unwrap();
    assert_eq!((answer.token_ids.len(), answer.reason), (600, FinishReason::Length));
    assert_eq!(client.ask(request).await.unwrap().text, answer.text);
}

async fn health(server: &TestServer, service: &str) -> i32 {
    let request = HealthCheckRequest { service: service.into() };
    HealthClient::new(server.channel().await).check(request).await.unwrap().into_inner().status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_drains_finishes_what_it_has_and_takes_nothing_new() {
    let (wrap, gate) = gated();
    let server = TestServer::start_with(config(64), None, wrap).await;
    let mut client = server.client().await;
    for service in ["", "trunkline.v1.Inference"] {
        assert_eq!(health(&server, service).await, ServingStatus::Serving as i32);
    }
    let running = client.open(greedy(TRUNK, 12)).await.unwrap();
    server.handle().drain().await;
    client.until(|info| info.draining).await;
    for service in ["", "trunkline.v1.Inference"] {
        assert_eq!(health(&server, service).await, ServingStatus::NotServing as i32);
    }
    assert_eq!(code(client.open(greedy(TRUNK, 4)).await), Code::Unavailable);
    drop(gate);
    assert_eq!(collect(running).await.unwrap().token_ids.len(), 12);
    let outcome = server.stopped().await;
    assert_eq!((outcome.stats.requests.finished, outcome.failure), (1, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_shuts_down_ends_everything_without_waiting_for_the_step() {
    let (wrap, gate) = gated();
    let server = TestServer::start_with(Config { max_batch_size: 1, ..config(64) }, None, wrap).await;
    let mut client = server.client().await;
    let mut streams = Vec::new();
    for _ in 0..3 {
        streams.push(client.open(greedy(TRUNK, 12)).await.unwrap());
    }
    server.handle().drain().await;
    server.handle().shutdown().await;
    for stream in streams {
        assert_eq!(collect(stream).await.unwrap().reason, FinishReason::Abort);
    }
    let outcome = server.stopped().await;
    assert_eq!((outcome.stats.requests.finished, outcome.stats.private_blocks, outcome.stats.held_blocks), (3, 0, 0));
    drop(gate);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_outlast_a_drain_end_so_that_clients_send_them_again() {
    let (wrap, gate) = gated();
    let limits = Config { max_batch_size: 1, ..config(64) };
    let server = TestServer::start_options(limits, |options| options.drain_timeout = Some(Duration::ZERO), wrap).await;
    let mut client = server.client().await;
    let mut streams = Vec::new();
    // One runs, and one waits.
    for _ in 0..2 {
        streams.push(client.open(greedy(TRUNK, 12)).await.unwrap());
    }
    server.handle().drain().await;
    for stream in streams {
        let status = collect(stream).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!(status.message().ends_with("send it again"), "{status:?}");
    }
    let outcome = server.stopped().await;
    assert_eq!((outcome.stats.requests.finished, outcome.stats.held_blocks), (2, 0));
    drop(gate);
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_arguments_are_refused_by_name() {
    let server = TestServer::start(config(8)).await;
    let mut client = server.client().await;
    let model = client.0.get_model_info(GetModelInfoRequest {}).await.unwrap().into_inner();
    let too_long = model.max_context as usize;
    let token = |id| Some(Prompt::TokenIds(TokenIds { ids: vec![id] }));
    let sampling = |sampling| GenerateRequest { sampling: Some(sampling), ..greedy("x", 1) };
    let cases = [
        ("prompt is missing", GenerateRequest { prompt: None, ..greedy("", 1) }),
        ("text is empty", greedy("", 1)),
        ("token_ids[0]", GenerateRequest { prompt: token(model.vocab_size), ..greedy("", 1) }),
        ("max_tokens is 0", greedy("x", 0)),
        ("temperature is NaN", sampling(Sampling { temperature: Some(f32::NAN), ..Sampling::default() })),
        ("top_p is inf", sampling(Sampling { top_p: Some(f32::INFINITY), ..Sampling::default() })),
        ("min_p is -1", sampling(Sampling { min_p: -1.0, ..Sampling::default() })),
        ("prompt has", greedy(&"x".repeat(too_long), 1)),
        ("exceeds the context", greedy("x", model.max_context)),
        ("KV blocks, the device has 8", greedy(&"x".repeat(8 * 16), 2)),
    ];
    for (message, request) in cases {
        let status = client.ask(request).await.expect_err(message);
        assert_eq!(status.code(), Code::InvalidArgument, "{status}");
        assert!(status.message().contains(message), "'{message}' is not in '{}'", status.message());
    }
    client.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_max_tokens_there_is_a_default_that_fits() {
    let server = TestServer::start(config(16)).await;
    let mut client = server.client().await;
    let open_ended = |text: &str| {
        let mut request = greedy(text, 1);
        request.stopping.as_mut().unwrap().max_tokens = None;
        request
    };
    assert_eq!(client.ask(open_ended("x")).await.unwrap().token_ids.len(), 128);
    let answer = client.ask(open_ended(&"x".repeat(200))).await.unwrap();
    let room = 16 * 16 + 1 - answer.usage.prompt_tokens;
    assert_eq!(answer.usage.completion_tokens, room.min(128));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_string_ends_the_text_before_it() {
    let server = TestServer::start(config(64)).await;
    let mut client = server.client().await;
    let whole = client.ask(greedy(TRUNK, 60)).await.unwrap();
    let characters: Vec<char> = whole.text.chars().collect();
    for at in [0, characters.len() / 3, characters.len() - 3] {
        let stop: String = characters[at..at + 3].iter().collect();
        let before = &whole.text[..whole.text.find(&stop).unwrap()];
        let mut request = greedy(TRUNK, 60);
        request.stopping.as_mut().unwrap().stop = vec!["not in there".into(), stop.clone()];
        let answer = client.ask(request).await.unwrap();
        assert_eq!((answer.text.as_str(), answer.reason), (before, FinishReason::Stop));
        assert_eq!(answer.stopped_by, Some(StoppedBy::StopString(stop)));
        assert_eq!(answer.token_ids, whole.token_ids[..answer.token_ids.len()]);
        assert_eq!(answer.usage.prompt_tokens, whole.usage.prompt_tokens);
        client.settled().await;
    }
    let mut request = greedy(TRUNK, 60);
    request.stopping.as_mut().unwrap().stop = vec!["not in there".into()];
    let answer = client.ask(request).await.unwrap();
    assert_eq!((answer.text, answer.reason), (whole.text, FinishReason::Length));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_token_ends_the_request_with_it() {
    let server = TestServer::start(config(64)).await;
    let mut client = server.client().await;
    let whole = client.ask(greedy(TRUNK, 30)).await.unwrap().token_ids;
    let stop = whole[10];
    let first = whole.iter().position(|token| *token == stop).unwrap();
    let mut request = greedy(TRUNK, 30);
    request.stopping.as_mut().unwrap().stop_token_ids = vec![stop];
    let answer = client.ask(request.clone()).await.unwrap();
    assert_eq!((answer.reason, answer.stopped_by), (FinishReason::Stop, Some(StoppedBy::StopTokenId(stop))));
    assert_eq!(answer.token_ids, whole[..=first]);

    let second = first + 1 + whole[first + 1..].iter().position(|token| *token == stop).unwrap_or(29 - first - 1);
    request.stopping.as_mut().unwrap().min_tokens = first as u32 + 2;
    assert_eq!(client.ask(request).await.unwrap().token_ids, whole[..=second]);
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_come_with_each_token_if_asked_for() {
    let server = TestServer::start(config(64)).await;
    let mut client = server.client().await;
    let asked =
        |logprobs| GenerateRequest { output: Some(Output { logprobs, ..Output::default() }), ..greedy(TRUNK, 10) };
    let plain = client.ask(asked(None)).await.unwrap();
    assert!(plain.logprobs.is_empty());
    let answer = client.ask(asked(Some(3))).await.unwrap();
    assert_eq!(answer.token_ids, plain.token_ids);
    assert_eq!(answer.logprobs.len(), 10);
    for (token, of) in answer.token_ids.iter().zip(&answer.logprobs) {
        assert_eq!((of.token_id, of.top[0].token_id), (*token, *token), "greedy takes the most likely");
        assert_eq!(of.logprob, of.top[0].logprob);
        assert!(of.top.len() == 3 && of.top.is_sorted_by(|a, b| a.logprob >= b.logprob) && of.logprob <= 0.0);
    }
    let alone = client.ask(asked(Some(0))).await.unwrap();
    assert!(alone.logprobs.iter().zip(&answer.logprobs).all(|(a, b)| a.logprob == b.logprob && a.top.is_empty()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seed_repeats_and_another_does_not() {
    let server = TestServer::start(config(64)).await;
    let mut client = server.client().await;
    let mut seeded = async |seed| {
        let sampling = Some(Sampling { temperature: Some(1.0), seed, ..Sampling::default() });
        client.ask(GenerateRequest { sampling, ..greedy(TRUNK, 30) }).await.unwrap().token_ids
    };
    let first = seeded(Some(1)).await;
    assert_eq!(seeded(Some(1)).await, first);
    assert_ne!(seeded(Some(2)).await, first);
    assert_ne!(seeded(None).await, seeded(None).await, "without a seed the server picks one");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_fails_or_panics_changes_no_text() {
    let prompts = prompts(6);
    let ask_all = async |mut client: Client| {
        let mut streams = Vec::new();
        for prompt in &prompts {
            streams.push(client.open(greedy(prompt, 20)).await.unwrap());
        }
        let mut texts = Vec::new();
        for stream in streams {
            texts.push(collect(stream).await.unwrap().text);
        }
        client.settled().await;
        texts
    };
    let server = TestServer::start(config(64)).await;
    let expected = ask_all(server.client().await).await;

    let wrap = |worker| -> Box<dyn trunkline_port::StepRunner> {
        Box::new(Faulty { worker, fails_at: vec![3], panics_at: vec![9], panics_at_reset: false })
    };
    let server = TestServer::start_with(config(64), None, wrap).await;
    assert_eq!(ask_all(server.client().await).await, expected);
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_fails_every_time_fails_the_request_and_one_that_is_gone_stops_the_server() {
    let always: Vec<u64> = (0..100).collect();
    for panics_at_reset in [false, true] {
        let fails_at = always.clone();
        let wrap = move |worker| -> Box<dyn trunkline_port::StepRunner> {
            Box::new(Faulty { worker, fails_at, panics_at: Vec::new(), panics_at_reset })
        };
        let server = TestServer::start_with(config(64), None, wrap).await;
        let mut client = server.client().await;
        let result = client.ask(greedy(TRUNK, 4)).await;
        if panics_at_reset {
            // Another server may have a worker.
            assert_eq!(code(result), Code::Unavailable);
            assert!(server.stopped().await.failure.is_some());
        } else {
            assert_eq!(code(result), Code::Internal);
            client.settled().await;
            assert_eq!(server.drain().await.failure, None);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_of_hundreds_of_requests_with_aborts_replays_to_the_same_digest() {
    const REQUESTS: usize = 240;
    let dir = tempfile::tempdir().unwrap();
    for name in ["run.rec.jsonl", "run.rec.jsonl.gz"] {
        let path = dir.path().join(name);
        let limits = Config { max_batch_size: 48, max_batch_tokens: 256, ..config(96) };
        let server = TestServer::start_with(limits, Some(path.clone()), |worker| Box::new(worker)).await;
        let mut streams = JoinSet::new();
        for (i, prompt) in prompts(REQUESTS).into_iter().enumerate() {
            let mut client = server.client().await;
            streams.spawn(async move {
                let request_id = format!("request {i}");
                // Some deadlines pass, which is when the core is given ticks.
                let timeout_ms = if i % 6 == 2 { 1 + i as u32 % 40 } else { 0 };
                let request = GenerateRequest { request_id: request_id.clone(), timeout_ms, ..greedy(&prompt, 16) };
                let mut stream = client.open(request).await.unwrap();
                match i % 6 {
                    0 => drop(stream),
                    1 => {
                        let mut last = stream.message().await.unwrap();
                        client.0.abort(AbortRequest { request_ids: vec![request_id] }).await.unwrap();
                        while let Some(response) = stream.message().await.unwrap() {
                            last = Some(response);
                        }
                        assert!(matches!(last.unwrap().event, Some(Event::Finish(_))));
                    }
                    2 => {
                        if let Err(status) = collect(stream).await {
                            assert_eq!(status.code(), Code::DeadlineExceeded);
                        }
                    }
                    _ => assert_eq!(collect(stream).await.unwrap().token_ids.len(), 16),
                }
            });
        }
        while let Some(done) = streams.join_next().await {
            done.unwrap();
        }
        let mut client = server.client().await;
        client.settled().await;
        client.0.flush_cache(FlushCacheRequest {}).await.unwrap();
        let outcome = server.drain().await;
        assert_eq!(outcome.stats.requests.accepted, REQUESTS as u64);

        let replayed = replay_recorded(&path, &mut |_| {}).unwrap();
        assert_eq!(replayed.digest, format!("{:016x}", outcome.digest));
        assert_eq!((replayed.matches, replayed.requests), (Some(true), REQUESTS as u64));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_describes_itself() {
    let server = TestServer::start(config(64)).await;
    let mut client = server.client().await;
    let model = client.0.get_model_info(GetModelInfoRequest {}).await.unwrap().into_inner();
    assert!(!model.name.is_empty() && model.vocab_size > 0 && model.n_layers > 0 && model.kv_bytes_per_token > 0);
    let info = client.info().await;
    let limits = info.limits.unwrap();
    assert_eq!((limits.device_blocks, limits.block_size, limits.policy.as_str()), (64, 16, "fcfs"));
    assert_eq!((limits.max_context, info.digest.len()), (model.max_context, 16));
    assert_eq!(info.blocks.unwrap().free, 64);

    let mut reflection = ServerReflectionClient::new(server.channel().await);
    let ask = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut answers = reflection.server_reflection_info(tokio_stream::iter([ask])).await.unwrap().into_inner();
    let answer = answers.next().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("not a list of services: {answer:?}");
    };
    let names: BTreeSet<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    let own = ["trunkline.v1.Inference", "trunkline.v1.Workers", "grpc.health.v1.Health"];
    assert!(own.iter().all(|name| names.contains(name)), "{names:?}");
}
