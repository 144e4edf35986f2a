//! Log probabilities of prompts end to end: they are those of the same tokens when they are generated, however the prompt is computed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};
use tonic::Code;
use trunkline_attach::Hello;
use trunkline_cluster::{ClusterConfig, EngineConfig, Role};
use trunkline_core::{Config, Preemption};
use trunkline_http::Settings;
use trunkline_port::{DeviceBlocks, Step, StepError, StepOutput, StepRunner};
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::{GenerateRequest, Output, TokenIds, TokenLogprob};
use trunkline_server::{AttachOptions, Backend, MakeWorker, Options, SamplingOffer};
use trunkline_sim_replay::recorded::replay_recorded;
use trunkline_template::ChatTemplate;
use trunkline_tests::attached::{Attached, BLOCKS};
use trunkline_tests::http::post;
use trunkline_tests::server::{TestServer, collect, gated, greedy, in_turn};
use trunkline_text::{ChatSource, Tokenizer};
use trunkline_worker::Worker;

const TRUNK: &str = "A trunk is the prefix that many requests share; a trunk line is the main line of a railway.";

fn limits() -> Config {
    Config { device_blocks: 256, max_batch_tokens: 300, ..Config::default() }
}

/// A greedy request for the log probabilities of a prompt and of the tokens behind it.
fn valued(ids: &[u32], max_tokens: u32, n_top: u32) -> GenerateRequest {
    let output = Output { logprobs: Some(n_top), prompt_logprobs: Some(n_top), ..Output::default() };
    GenerateRequest {
        prompt: Some(Prompt::TokenIds(TokenIds { ids: ids.to_vec() })),
        output: Some(output),
        ..greedy("", max_tokens)
    }
}

/// A prompt of `n` tokens.
fn prompt(i: usize, n: usize) -> Vec<u32> {
    let text = format!("{} Branch {}, leaf {i}. {TRUNK}{TRUNK}", &TRUNK[..20 + 15 * (i % 5)], i % 7);
    text.bytes().map(u32::from).take(n).collect()
}

/// Requests of several lengths, some with equal beginnings, of which two of three are for values.
fn requests() -> Vec<GenerateRequest> {
    let request = |i: usize| {
        let mut request = valued(&prompt(i, 60 + 11 * (i % 9)), 30, i as u32 % 4);
        if i % 3 == 2 {
            request.output = None;
        }
        request
    };
    (0..18).map(request).collect()
}

type Answered = (Vec<u32>, Vec<TokenLogprob>, Vec<TokenLogprob>);

/// Sends all requests to a server, opens the `gate` of the worker if there is one, and reads all answers.
async fn answers<G>(server: &TestServer, gate: G) -> Vec<Answered> {
    let mut client = server.client().await;
    let mut streams = Vec::new();
    for request in requests() {
        streams.push(client.open(request).await.unwrap());
    }
    drop(gate);
    let mut answers = Vec::new();
    for stream in streams {
        let answer = collect(stream).await.unwrap();
        answers.push((answer.token_ids, answer.logprobs, answer.prompt_logprobs));
    }
    client.settled().await;
    answers
}

/// Answers of a worker that nothing disturbs.
async fn undisturbed() -> Vec<Answered> {
    let server = TestServer::start(Config { max_batch_tokens: 8192, ..limits() }).await;
    let expected = answers(&server, ()).await;
    assert_eq!(server.drain().await.stats.preemptions, 0);
    for (request, (_, _, values)) in requests().iter().zip(&expected) {
        let Some(Prompt::TokenIds(prompt)) = &request.prompt else { panic!("tokens") };
        let n_top = request.output.and_then(|output| output.prompt_logprobs);
        let tokens: Vec<u32> = values.iter().map(|of| of.token_id).collect();
        assert_eq!(tokens, if n_top.is_some() { &prompt.ids[1..] } else { &[] });
        assert!(values.iter().all(|of| of.top.len() == n_top.unwrap_or(0) as usize && of.logprob <= 0.0));
    }
    expected
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_has_the_values_of_its_tokens_when_they_are_generated() {
    let server = TestServer::start(limits()).await;
    let mut client = server.client().await;
    let begin = prompt(1, 70);
    let spoken = client.ask(valued(&begin, 100, 3)).await.unwrap();
    let whole = [&begin[..], &spoken.token_ids].concat();
    let expected = [&spoken.prompt_logprobs[..], &spoken.logprobs].concat();
    assert_eq!(expected.len(), whole.len() - 1);
    // The whole text is cached by now, but for its last token, and computed again.
    for max_tokens in [1, 5] {
        let read = client.ask(valued(&whole, max_tokens, 3)).await.unwrap();
        assert_eq!((&read.prompt_logprobs, read.usage.cached_tokens), (&expected, 0));
    }
    let plain = client.ask(GenerateRequest { output: None, ..valued(&whole, 5, 0) }).await.unwrap();
    assert_eq!((plain.usage.cached_tokens, plain.prompt_logprobs.len()), (160, 0));
    let few = client.ask(valued(&whole, 1, 0)).await.unwrap();
    assert!(
        few.prompt_logprobs.iter().zip(&expected).all(|(few, all)| few.logprob == all.logprob && few.top.is_empty())
    );
    let one = client.ask(valued(&whole[..1], 2, 3)).await.unwrap();
    assert!(one.prompt_logprobs.is_empty() && one.logprobs.len() == 2, "nothing is before the first token");
    server.drain().await;
    for (max_batch_tokens, max_drafts, ahead) in [(16, 0, 1), (37, 0, 3), (300, 4, 1), (1, 0, 1)] {
        let max_batch_size = max_batch_tokens.min(8);
        let config = Config {
            max_batch_tokens,
            max_batch_size,
            max_drafts,
            max_steps_in_flight: ahead,
            align_chunks: false,
            ..limits()
        };
        let server = TestServer::start(config).await;
        let read = server.client().await.ask(valued(&whole, 5, 3)).await.unwrap();
        assert_eq!(read.prompt_logprobs, expected, "steps of {max_batch_tokens} tokens");
        server.drain().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_are_those_of_an_undisturbed_run_however_often_a_request_is_preempted() {
    let expected = undisturbed().await;
    let folder = tempfile::tempdir().unwrap();
    for (preemption, max_drafts, ahead) in
        [(Preemption::Recompute, 0, 1), (Preemption::Recompute, 4, 1), (Preemption::Swap, 0, 3)]
    {
        let config = Config {
            device_blocks: 24,
            host_blocks: if preemption == Preemption::Swap { 16 } else { 0 },
            max_batch_tokens: 64,
            max_batch_size: 32,
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
        assert!(recording.contains(r#""prompt_logprobs":3"#), "it has the field");
        let replayed = replay_recorded(&path, &mut |_| {}).unwrap();
        assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
    }
}

/// A worker that fails every so many steps.
struct Failing {
    worker: Worker,
    steps: Arc<AtomicU64>,
    every: u64,
}

impl StepRunner for Failing {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        if (self.steps.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(self.every) {
            return Err(StepError::new("made to fail"));
        }
        StepRunner::run(&mut self.worker, step)
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        StepRunner::blocks(&mut self.worker)
    }

    fn reset(&mut self) {
        self.worker.reset();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_step_and_a_move_to_another_worker_give_no_value_twice_and_lose_none() {
    let expected = undisturbed().await;
    let core = Config { max_batch_tokens: 64, max_batch_size: 32, ..limits() };
    let steps = Arc::new(AtomicU64::new(0));
    for engines in [1, 2] {
        let counted = steps.clone();
        let wrap =
            move |_, worker| -> Box<dyn StepRunner> { Box::new(Failing { worker, steps: counted.clone(), every: 23 }) };
        let server = TestServer::start_cluster(in_turn(&core, engines), None, wrap).await;
        assert_eq!(answers(&server, ()).await, expected, "{engines} engines");
        server.drain().await;
    }
    assert!(steps.load(Ordering::Relaxed) > 60, "several steps failed");
    let engine = |role| EngineConfig { core: limits(), role, kv_class: 0 };
    let engines = vec![engine(Role::Prefill), engine(Role::Decode)];
    let cluster = ClusterConfig { engines, ..ClusterConfig::uniform(&limits(), 1) };
    let server = TestServer::start_cluster(cluster, None, |_, worker| Box::new(worker)).await;
    assert_eq!(answers(&server, ()).await, expected, "from a prefill worker to a decode worker");
    server.drain().await;
}

/// Starts a server of one attached worker, which decides about the offer.
async fn attached(edit: fn(&mut SamplingOffer)) -> TestServer {
    let cluster = ClusterConfig::uniform(&Config { device_blocks: BLOCKS, ..limits() }, 1);
    let attach = AttachOptions { engines: 1, ..AttachOptions::default() };
    let options = Options { cluster: cluster.clone(), attach, ..Options::default() };
    let decide = move |hello: &Hello| {
        let workers: MakeWorker = Arc::new(|_| Err("no embedded workers".into()));
        let mut offer = SamplingOffer { scores: false, ..SamplingOffer::within(&hello.abilities) };
        edit(&mut offer);
        let (model, tokenizer) = (hello.model.clone(), Tokenizer::bytes());
        let backend = Backend { model, further_kv: Vec::new(), tokenizer, workers, stores: Vec::new(), offer };
        Ok((backend, cluster.clone()))
    };
    TestServer::of_first_worker(options, Box::new(decide)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_worker_gives_the_values_of_an_embedded_one_or_the_field_is_refused() {
    let server = attached(|_| ()).await;
    let worker = tokio::spawn(Attached::fresh(server.addr(), "a").await.serve());
    assert_eq!(answers(&server, ()).await, undisturbed().await);
    server.drain().await;
    worker.await.unwrap();
    let server = attached(|offer| offer.prompt_logprobs = false).await;
    let worker = tokio::spawn(Attached::fresh(server.addr(), "a").await.serve());
    let status = server.client().await.ask(valued(&[1, 2], 1, 0)).await.unwrap_err();
    let line =
        "prompt_logprobs is not supported by the workers of this server: they report none of prompts; leave it out";
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, line));
    server.drain().await;
    worker.await.unwrap();
}

async fn http() -> TestServer {
    let source = "{% for m in messages %}{{ m.content }}{% endfor %}";
    let template = ChatTemplate::new(ChatSource::of_text(source)).expect("the template can be used");
    let settings =
        Settings { served_names: vec!["a-model".into()], template: Some(Arc::new(template)), ..Settings::default() };
    TestServer::start_http(Config::default(), settings, |_| {}, |worker| Box::new(worker)).await.unwrap()
}

/// Returns a log probability as the JSON of an answer has it: with the digits of 32 bits.
fn number(logprob: f32) -> Value {
    serde_json::from_str(&logprob.to_string()).unwrap()
}

fn numbers(of: &[TokenLogprob]) -> Vec<Value> {
    of.iter().map(|of| number(of.logprob)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_echo_with_logprobs_lists_the_prompt_as_evaluations_read_it() {
    let server = http().await;
    let ids: Vec<u32> = TRUNK.bytes().map(u32::from).collect();
    let expected = server.client().await.ask(valued(&ids, 1, 1)).await.unwrap();
    let all = [vec![Value::Null], numbers(&expected.prompt_logprobs), numbers(&expected.logprobs)].concat();
    let ask = |prompt: Value, max_tokens: u32| {
        let body = json!({"prompt": prompt, "max_tokens": max_tokens, "logprobs": 1, "echo": true, "temperature": 0});
        let addr = server.addr();
        async move { post(addr, "/v1/completions", &body.to_string()).await.json() }
    };
    for (prompt, max_tokens) in [(json!(TRUNK), 1), (json!(ids), 1), (json!(TRUNK), 0), (json!([TRUNK]), 0)] {
        let answer = ask(prompt, max_tokens).await;
        let (choice, n) = (&answer["choices"][0], TRUNK.len() + max_tokens as usize);
        let listed = &choice["logprobs"];
        assert_eq!(listed["token_logprobs"], json!(all[..n]), "{answer}");
        assert!(choice["text"].as_str().unwrap().starts_with(TRUNK) && listed["tokens"][0] == "A");
        assert_eq!(listed["text_offset"], json!((0..n).collect::<Vec<_>>()));
        assert_eq!((&listed["top_logprobs"][0], listed["top_logprobs"].as_array().unwrap().len()), (&Value::Null, n));
        assert_eq!(
            (&choice["finish_reason"], &answer["usage"]["completion_tokens"]),
            (&json!("length"), &json!(max_tokens))
        );
    }
    // As lm-evaluation-harness finds out whether a continuation is the most likely one.
    let text = TRUNK.to_owned() + &expected.text;
    let answer = ask(json!(text), 1).await;
    let listed = &answer["choices"][0]["logprobs"];
    let best = listed["top_logprobs"][TRUNK.len()].as_object().unwrap().values().map(|of| of.as_f64().unwrap());
    assert_eq!(listed["token_logprobs"][TRUNK.len()].as_f64(), best.reduce(f64::max), "greedy");

    let body = json!({"prompt": TRUNK, "max_tokens": 3, "logprobs": 1, "echo": true, "temperature": 0, "stream": true});
    let events = post(server.addr(), "/v1/completions", &body.to_string()).await.events();
    let parsed = |event: &String| serde_json::from_str::<Value>(event).ok();
    let of_events: Vec<Value> = events.iter().filter_map(parsed).collect();
    let listed = of_events.iter().filter_map(|event| event["choices"][0]["logprobs"]["token_logprobs"].as_array());
    assert_eq!(listed.flatten().take(all.len()).cloned().collect::<Vec<_>>(), all, "streamed");
    let offsets = of_events.iter().filter_map(|event| event["choices"][0]["logprobs"]["text_offset"].as_array());
    let expected: Vec<Value> = (0..TRUNK.len() + 3).map(|at| json!(at)).collect();
    assert_eq!(offsets.flatten().cloned().collect::<Vec<_>>(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn prompt_logprobs_come_in_vllms_form_and_once_for_all_choices() {
    let server = http().await;
    let ids: Vec<u32> = TRUNK.bytes().map(u32::from).collect();
    let expected = server.client().await.ask(valued(&ids, 1, 2)).await.unwrap().prompt_logprobs;
    let before = server.client().await.settled().await.counters.unwrap();
    let body =
        json!({"prompt": TRUNK, "max_tokens": 4, "n": 2, "seed": 5, "prompt_logprobs": 2, "cache_salt": "other"});
    let answer = post(server.addr(), "/v1/completions", &body.to_string()).await.json();
    let after = server.client().await.settled().await.counters.unwrap();
    let computed = |of: &trunkline_server::proto::Counters| of.prompt_tokens - of.cached_tokens;
    assert_eq!(
        computed(&after) - computed(&before),
        TRUNK.len() as u64 + 11,
        "the second finds whole blocks: {answer}"
    );
    let check = |values: &Value| {
        let values = values.as_array().unwrap();
        assert_eq!((values.len(), &values[0]), (TRUNK.len(), &Value::Null));
        for (value, of) in values[1..].iter().zip(&expected) {
            let own = &value[of.token_id.to_string()];
            assert_eq!(own["logprob"], number(of.logprob));
            let rank = of.top.iter().position(|other| other.token_id == of.token_id);
            assert_eq!(own["rank"], json!(rank.map(|at| at + 1)));
            for (at, other) in of.top.iter().enumerate() {
                let entry = &value[other.token_id.to_string()];
                assert_eq!((&entry["logprob"], &entry["rank"]), (&number(other.logprob), &json!(at + 1)));
            }
        }
        assert_eq!(values[1][ids[1].to_string()]["decoded_token"], " ");
    };
    answer["choices"].as_array().unwrap().iter().for_each(|choice| check(&choice["prompt_logprobs"]));
    assert!(answer["choices"][0]["logprobs"].is_null() && answer["choices"].as_array().unwrap().len() == 2);
    let body = json!({"messages": [{"role": "user", "content": TRUNK}], "max_tokens": 2, "prompt_logprobs": 2});
    let answer = post(server.addr(), "/v1/chat/completions", &body.to_string()).await.json();
    check(&answer["prompt_logprobs"]);
    let body = json!({"token_ids": ids, "sampling_params": {"max_tokens": 2, "prompt_logprobs": 2}});
    let answer = post(server.addr(), "/inference/v1/generate", &body.to_string()).await.json();
    check(&answer["prompt_logprobs"]);
    let plain = post(server.addr(), "/v1/completions", &json!({"prompt": TRUNK, "max_tokens": 1}).to_string()).await;
    assert!(!plain.body.contains("prompt_logprobs"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_valued_is_refused_by_name() {
    let server = http().await;
    for (path, body, param) in [
        ("/v1/completions", json!({"prompt": "a", "prompt_logprobs": -1}), "prompt_logprobs"),
        ("/v1/completions", json!({"prompt": "a", "prompt_logprobs": 21}), "prompt_logprobs"),
        ("/v1/completions", json!({"prompt": "a", "prompt_logprobs": 1, "stream": true}), "prompt_logprobs"),
        ("/v1/completions", json!({"prompt": "a", "echo": true, "logprobs": 21}), "logprobs"),
        ("/v1/completions", json!({"prompt": "a", "echo": true, "logprobs": 1, "n": 2, "stream": true}), "n"),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 0}), "max_tokens"),
        ("/v1/responses", json!({"input": "a", "prompt_logprobs": 1}), "prompt_logprobs"),
        (
            "/inference/v1/generate",
            json!({"token_ids": [1], "stream": true, "sampling_params": {"prompt_logprobs": 1}}),
            "prompt_logprobs",
        ),
    ] {
        let answer = post(server.addr(), path, &body.to_string()).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{body}: {}", answer.body);
    }
    let status = server.client().await.ask(valued(&[1, 2], 1, 21)).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
}
