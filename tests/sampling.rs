//! Penalties and biases end to end: what they do to a text, and that neither preemption, nor drafts, nor a move to another worker changes it.

use std::collections::BTreeSet;

use serde_json::json;
use tonic::Code;
use trunkline_cluster::{ClusterConfig, EngineConfig, Role};
use trunkline_core::{Config, Preemption};
use trunkline_server::proto::{GenerateRequest, Output, Sampling};
use trunkline_sim_replay::recorded::replay_recorded;
use trunkline_tests::http::post;
use trunkline_tests::server::{TestServer, collect, gated, greedy};

const TRUNK: &str = "A trunk is the prefix that many requests share; a trunk line is the main line of a railway.";

/// A greedy request with changes of its sampling.
fn asking(text: &str, max_tokens: u32, change: impl FnOnce(&mut Sampling)) -> GenerateRequest {
    let mut request = greedy(text, max_tokens);
    change(request.sampling.get_or_insert_default());
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bias_forces_a_token_or_bans_it_and_log_probabilities_are_the_models() {
    let server = TestServer::start(Config::default()).await;
    let mut client = server.client().await;
    let output = Some(Output { logprobs: Some(1), ..Output::default() });
    let plain = client.ask(GenerateRequest { output, ..greedy(TRUNK, 12) }).await.unwrap();
    let banned = plain.token_ids[0];
    let forced = client.ask(asking(TRUNK, 12, |sampling| sampling.logit_bias = [(65, 100.0)].into())).await.unwrap();
    assert_eq!(forced.token_ids, [65; 12]);
    let request = asking(TRUNK, 12, |sampling| sampling.logit_bias = [(banned, -100.0)].into());
    let without = client.ask(GenerateRequest { output, ..request }).await.unwrap();
    assert!(!without.token_ids.contains(&banned));
    assert_eq!(without.logprobs[0].top, plain.logprobs[0].top, "before the bias");
    assert!(without.logprobs[0].logprob < plain.logprobs[0].logprob);

    let refusal =
        client.ask(asking(TRUNK, 1, |sampling| sampling.logit_bias = [(70_000, 1.0)].into())).await.unwrap_err();
    assert_eq!(refusal.code(), Code::InvalidArgument);
    assert_eq!(refusal.message(), "logit_bias has the token 70000; the model has token ids below 258");
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_presence_penalty_ends_repetition_and_the_prompt_does_not_count() {
    let server = TestServer::start(Config::default()).await;
    let mut client = server.client().await;
    let all: Vec<u32> = (0..100).collect();
    let among = |n: u32| (0..n).map(|token| (token, 100.0)).collect();
    let only = |tokens: &[u32]| tokens.iter().collect::<BTreeSet<_>>().len();
    let plain = client.ask(asking(TRUNK, 40, |sampling| sampling.logit_bias = among(100))).await.unwrap();
    assert!(only(&plain.token_ids) < 40, "it repeats itself");
    let request = asking(TRUNK, 40, |sampling| (sampling.logit_bias, sampling.presence_penalty) = (among(100), 2.0));
    let fresh = client.ask(request).await.unwrap();
    assert!(only(&fresh.token_ids) > only(&plain.token_ids), "{:?}", fresh.token_ids);
    assert!(fresh.token_ids.iter().all(|token| all.contains(token)));
    // Each token among four comes in its turn.
    let request = asking(TRUNK, 40, |sampling| (sampling.logit_bias, sampling.frequency_penalty) = (among(4), 2.0));
    let even = client.ask(request).await.unwrap();
    let counts = (0..4).map(|token| even.token_ids.iter().filter(|said| **said == token).count());
    assert!(counts.clone().all(|n| (8..=12).contains(&n)), "{:?}", counts.collect::<Vec<_>>());
    // A prompt of one letter: were it counted, the token would lose against the other.
    let prompt = |text: &str| {
        asking(text, 1, |sampling| {
            (sampling.frequency_penalty, sampling.presence_penalty) = (2.0, 2.0);
            sampling.logit_bias = [(97, 100.0), (98, 60.0)].into();
        })
    };
    let first = client.ask(prompt(&"a".repeat(40))).await.unwrap();
    assert_eq!(first.token_ids, [97]);
    server.drain().await;
}

/// Requests with every penalty, greedy and sampled.
fn requests() -> Vec<GenerateRequest> {
    let request = |i: usize| {
        asking(&format!("{} Branch {}, leaf {i}.", &TRUNK[..20 + 15 * (i % 5)], i % 7), 40, |sampling| {
            sampling.temperature = Some(if i.is_multiple_of(3) { 0.0 } else { 0.9 });
            sampling.seed = Some(i as u64);
            sampling.frequency_penalty = [0.8, -0.3, 0.0][i % 3];
            sampling.presence_penalty = [0.0, 0.4, 1.5, -0.7][i % 4];
            sampling.repetition_penalty = (i % 5 == 4).then_some(1.3);
            sampling.logit_bias = (0..i as u32 % 4).map(|n| (97 + n, 1.5)).collect();
        })
    };
    (0..18).map(request).collect()
}

/// Sends all requests to a server, opens the `gate` of the worker if there is one, and reads all answers.
async fn answers<G>(server: &TestServer, gate: G) -> Vec<Vec<u32>> {
    let mut client = server.client().await;
    let mut streams = Vec::new();
    for request in requests() {
        streams.push(client.open(request).await.unwrap());
    }
    drop(gate);
    let mut answers = Vec::new();
    for stream in streams {
        answers.push(collect(stream).await.unwrap().token_ids);
    }
    client.settled().await;
    answers
}

fn limits() -> Config {
    Config { device_blocks: 256, max_batch_tokens: 300, ..Config::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_are_those_of_an_undisturbed_run_however_often_a_request_is_preempted() {
    let one = TestServer::start(limits()).await;
    let expected = answers(&one, ()).await;
    assert_eq!(one.drain().await.stats.preemptions, 0);
    let folder = tempfile::tempdir().unwrap();
    for (preemption, max_drafts, ahead) in
        [(Preemption::Recompute, 0, 1), (Preemption::Recompute, 4, 1), (Preemption::Swap, 0, 3)]
    {
        let config = Config {
            device_blocks: 22,
            host_blocks: if preemption == Preemption::Swap { 16 } else { 0 },
            launch_watermark: 0.0,
            max_steps_in_flight: ahead,
            max_drafts,
            preemption,
            ..limits()
        };
        let path = folder.path().join(format!("{max_drafts}-{ahead}.jsonl"));
        // All requests are there before the first step ends.
        let (wrap, gate) = gated();
        let server = TestServer::start_with(config, Some(path.clone()), wrap).await;
        assert_eq!(answers(&server, gate).await, expected, "{max_drafts} drafts, {ahead} steps in flight");
        let outcome = server.drain().await;
        assert!(outcome.stats.preemptions > 0);
        let recording = std::fs::read_to_string(&path).unwrap();
        assert!(
            recording.contains(r#""presence_penalty":1.5,"logit_bias":[[97,1.5],[98,1.5]]"#),
            "it has the parameters"
        );
        let replayed = replay_recorded(&path, &mut |_| {}).unwrap();
        assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn counts_move_along_from_a_prefill_worker_to_a_decode_worker() {
    let one = TestServer::start(limits()).await;
    let expected = answers(&one, ()).await;
    one.drain().await;
    let engine = |role| EngineConfig { core: limits(), role, kv_class: 0 };
    let engines = vec![engine(Role::Prefill), engine(Role::Decode)];
    let cluster = ClusterConfig { engines, ..ClusterConfig::uniform(&limits(), 1) };
    let server = TestServer::start_cluster(cluster, None, |_, worker| Box::new(worker)).await;
    assert_eq!(answers(&server, ()).await, expected);
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn http_takes_penalties_and_biases_and_names_a_wrong_one() {
    let settings = trunkline_http::Settings { served_names: vec!["a-model".into()], ..Default::default() };
    let server = TestServer::start_http(Config::default(), settings, |_| {}, |worker| Box::new(worker)).await.unwrap();
    let expected = server.client().await.ask(requests().remove(9)).await.unwrap();
    let like = requests().remove(9);
    let Some(trunkline_server::proto::generate_request::Prompt::Text(text)) = like.prompt else { panic!("a text") };
    let sampling = like.sampling.unwrap();
    let biases: std::collections::BTreeMap<String, f32> =
        sampling.logit_bias.iter().map(|(token, bias)| (token.to_string(), *bias)).collect();
    let mut body = json!({
        "prompt": text,
        "max_tokens": 40,
        "ignore_eos": true,
        "temperature": sampling.temperature,
        "seed": sampling.seed,
        "repetition_penalty": sampling.repetition_penalty.unwrap_or(1.0),
        "frequency_penalty": sampling.frequency_penalty,
        "presence_penalty": sampling.presence_penalty,
        "logit_bias": biases,
        "return_token_ids": true,
    });
    let answer = post(server.addr(), "/v1/completions", &body.to_string()).await.json();
    assert_eq!(answer["choices"][0]["token_ids"], json!(expected.token_ids));
    for (field, value, line) in [
        ("frequency_penalty", json!(2.5), "frequency_penalty is 2.5; it must be between -2 and 2"),
        ("presence_penalty", json!(-3), "presence_penalty is -3; it must be between -2 and 2"),
        ("logit_bias", json!({"70000": 1}), "logit_bias has the token 70000; the model has token ids below 258"),
        ("logit_bias", json!({"7": 101}), "logit_bias of token 7 is 101; it must be between -100 and 100"),
    ] {
        let good = body[field].take();
        body[field] = value;
        let answer = post(server.addr(), "/v1/completions", &body.to_string()).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["param"], &error["message"]), (400, &json!(field), &json!(line)));
        body[field] = good;
    }
    server.drain().await;
}
