//! Plain HTTP: OpenAI's API alongside gRPC on one port, its failures, and clients that misbehave.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use trunkline_core::Config;
use trunkline_http::{KvEventSource, KvEventSources, Settings};
use trunkline_server::{NetworkLimits, Options};
use trunkline_sim_replay::recorded::replay_recorded;
use trunkline_template::ChatTemplate;
use trunkline_tests::http::{HttpAnswer, HttpClient, get, post, request};
use trunkline_tests::server::{TestServer, gated, greedy};
use trunkline_tests::sessions::{self, Chat};
use trunkline_text::ChatSource;

/// A template that shows all it gets.
const TEMPLATE: &str =
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}bot:{% endif %}";

fn settings() -> Settings {
    let template = ChatTemplate::new(ChatSource::of_text(TEMPLATE)).expect("the template can be used");
    Settings { served_names: vec!["a-model".into()], template: Some(Arc::new(template)), ..Settings::default() }
}

async fn start() -> TestServer {
    TestServer::start_http(Config::default(), settings(), |_| {}, |worker| Box::new(worker)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_completion_is_the_answer_of_grpc_streamed_or_not() {
    let server = start().await;
    let prompt = "the same prompt through both doors";
    let expected = server.client().await.ask(greedy(prompt, 6)).await.unwrap();
    let body = json!({"prompt": prompt, "max_tokens": 6, "temperature": 0, "return_token_ids": true});
    let whole = post(server.addr(), "/v1/completions", &body.to_string()).await;
    assert_eq!((whole.status, whole.header("content-type")), (200, Some("application/json")));
    let whole = whole.json();
    assert_eq!(whole["object"], "text_completion");
    assert_eq!(whole["model"], "a-model");
    assert_eq!(whole["choices"][0]["text"], expected.text);
    assert_eq!(whole["choices"][0]["token_ids"], json!(expected.token_ids));
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(whole["usage"]["completion_tokens"], 6);
    assert_eq!(whole["usage"]["prompt_tokens_details"]["cached_tokens"], 32, "two blocks of the first prompt");
    assert!(whole["metrics"]["time_to_first_token_ms"].as_f64().unwrap() > 0.0);

    let mut body = body;
    body["stream"] = json!(true);
    body["stream_options"] = json!({"include_usage": true});
    let streamed = post(server.addr(), "/v1/completions", &body.to_string()).await;
    assert_eq!(streamed.header("content-type"), Some("text/event-stream; charset=utf-8"));
    let mut events = streamed.events();
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let events: Vec<serde_json::Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let (usage, events) = events.split_last().unwrap();
    assert_eq!((&usage["choices"], &usage["usage"]["total_tokens"]), (&json!([]), &json!(40)));
    let text: String = events.iter().map(|event| event["choices"][0]["text"].as_str().unwrap()).collect();
    assert_eq!(text, expected.text);
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    let ends = events.iter().filter(|event| !event["choices"][0]["finish_reason"].is_null()).count();
    assert_eq!((ends, events.iter().all(|event| event.get("usage").is_none())), (1, true));
    assert_eq!(streamed.header("x-request-id").map(|id| format!("cmpl-{id}")).as_deref(), events[0]["id"].as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_goes_through_the_template_and_opens_with_its_role() {
    let server = start().await;
    let rendered = "system: be brief\nuser: hello\nbot:";
    let expected = server.client().await.ask(greedy(rendered, 5)).await.unwrap();
    let body = json!({
        "model": "a-model",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        ],
        "max_completion_tokens": 5,
        "temperature": 0,
    });
    let whole = post(server.addr(), "/v1/chat/completions", &body.to_string()).await.json();
    assert_eq!(whole["object"], "chat.completion");
    assert_eq!(whole["choices"][0]["message"], json!({"role": "assistant", "content": expected.text, "refusal": null}));
    assert_eq!(whole["usage"]["prompt_tokens"], rendered.len());
    let mut body = body;
    body["stream"] = json!(true);
    let events = post(server.addr(), "/v1/chat/completions", &body.to_string()).await.events();
    let first: serde_json::Value = serde_json::from_str(&events[0]).unwrap();
    assert_eq!(first["object"], "chat.completion.chunk");
    assert_eq!(first["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let second: serde_json::Value = serde_json::from_str(&events[1]).unwrap();
    assert!(second["choices"][0]["delta"].get("role").is_none(), "{second}");
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
}

#[tokio::test(flavor = "multi_thread")]
async fn token_ids_come_back_for_token_ids() {
    let server = start().await;
    let expected = server.client().await.ask(greedy("abc", 4)).await.unwrap();
    let params = json!({"temperature": 0, "max_tokens": 4, "ignore_eos": true, "logprobs": 1});
    let body = json!({"token_ids": [97, 98, 99], "sampling_params": params, "request_id": "mine"});
    let answer = post(server.addr(), "/inference/v1/generate", &body.to_string()).await.json();
    assert_eq!(
        (&answer["request_id"], &answer["choices"][0]["token_ids"]),
        (&json!("mine"), &json!(expected.token_ids))
    );
    assert_eq!(answer["choices"][0]["logprobs"]["content"].as_array().unwrap().len(), 4);
    let mut body = body;
    body["sampling_params"]["n"] = json!(2);
    let refused = post(server.addr(), "/inference/v1/generate", &body.to_string()).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("sampling_params.n")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_marks_what_the_cache_keeps() {
    let config = Config { device_blocks: 64, eviction: "lru".into(), ..Config::default() };
    let server = TestServer::start_http(config, settings(), |_| {}, |worker| Box::new(worker)).await.unwrap();
    let ask = |marked: bool, question: &str| {
        let mut system = json!({"type": "text", "text": format!("{question}{}", "s".repeat(150))});
        if marked {
            system["cache_control"] = json!({"type": "ephemeral", "ttl": "1h"});
        }
        json!({"max_tokens": 3, "system": [system], "messages": [{"role": "user", "content": "hi"}]}).to_string()
    };
    let post = async |body: &str| {
        let answer = post(server.addr(), "/v1/messages", body).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    };
    let first = post(&ask(true, "kept")).await;
    assert_eq!((&first["type"], &first["stop_reason"]), (&json!("message"), &json!("max_tokens")));
    let created = first["usage"]["cache_creation_input_tokens"].as_u64().unwrap();
    assert!((150..170).contains(&created), "{first}");
    post(&ask(false, "lost")).await;
    for flood in 0..8 {
        post(&ask(false, &format!("{flood}"))).await;
    }
    let read = |answer: &serde_json::Value| answer["usage"]["cache_read_input_tokens"].as_u64().unwrap();
    let (lost, kept) = (read(&post(&ask(false, "lost")).await), read(&post(&ask(true, "kept")).await));
    assert!(lost < 16 && kept >= 144, "without a mark {lost}, with one {kept}");

    let streamed = ask(true, "kept").replacen('{', "{\"stream\": true, ", 1);
    let answer = trunkline_tests::http::post(server.addr(), "/v1/messages", &streamed).await;
    let names: Vec<&str> = answer.body.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(names[..2], ["message_start", "content_block_start"]);
    assert_eq!(names[names.len() - 3..], ["content_block_stop", "message_delta", "message_stop"]);
    let refused = trunkline_tests::http::post(server.addr(), "/v1/messages", r#"{"messages": []}"#).await;
    assert_eq!((refused.status, &refused.json()["type"]), (400, &json!("error")));
}

#[tokio::test(flavor = "multi_thread")]
async fn choices_share_the_prefill_of_their_prompt() {
    let server = start().await;
    let prompt = "p".repeat(512);
    let body = json!({"prompt": prompt, "max_tokens": 4, "n": 4, "seed": 5, "temperature": 1});
    let answer = post(server.addr(), "/v1/completions", &body.to_string()).await.json();
    let texts: Vec<&str> = answer["choices"].as_array().unwrap().iter().map(|c| c["text"].as_str().unwrap()).collect();
    assert!(texts.iter().any(|text| *text != texts[0]), "the draws differ: {texts:?}");
    assert_eq!(answer["usage"]["prompt_tokens"], 512, "the prompt counts once");
    let counters = server.client().await.settled().await.counters.unwrap();
    // Each further choice computes the last token, for its first draw.
    assert_eq!((counters.accepted, counters.prompt_tokens - counters.cached_tokens), (4, 512 + 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_failure_has_a_status_and_a_body_of_one_form() {
    let server = start().await;
    for (path, body, status, param) in [
        ("/v1/completions", r#"{"prompt": "x", "temperature": -1}"#, 400, Some("temperature")),
        ("/v1/completions", r#"{"prompt": "x", "max_tokens": "many"}"#, 400, Some("max_tokens")),
        ("/v1/completions", r#"{"prompt": ["x", 1]}"#, 400, Some("prompt")),
        ("/v1/completions", "{}", 400, Some("prompt")),
        ("/v1/completions", "{\"prompt\": \"\u{fffd}", 400, Some("prompt")),
        ("/v1/completions", r#"{"prompt": "x", "model": "other"}"#, 404, None),
        ("/v1/chat/completions", r#"{"messages": []}"#, 400, Some("messages")),
        (
            "/v1/chat/completions",
            r#"{"messages": [{"role": "user"}], "tools": [{}], "tool_choice": "required"}"#,
            400,
            Some("tools"),
        ),
        ("/v1/embeddings", "{}", 404, None),
        ("/health", "", 405, None),
    ] {
        let answer = post(server.addr(), path, body).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, error["param"].as_str()), (status, param), "{path} {body}: {error}");
        assert_eq!(error["code"], status);
        assert!(!error["message"].as_str().unwrap().contains('\n'));
    }
    let long = json!({"prompt": "x".repeat(20 << 20)}).to_string();
    assert_eq!(post(server.addr(), "/v1/completions", &long).await.status, 413);
    assert_eq!(get(server.addr(), "/health").await.status, 200);
    let models = get(server.addr(), "/v1/models").await.json();
    assert_eq!(models["data"][0]["id"], "a-model");
    let metrics = get(server.addr(), "/metrics").await.body;
    assert!(metrics.contains("\ntrunkline_num_requests_running{engine=\"0\"} 0\n"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_decides_as_for_grpc() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, "0123456789abcdef generate me\nfedcba9876543210 admin ops\n").unwrap();
    let edit = |options: &mut Options| options.token_file = Some(path);
    let server = TestServer::start_http(Config::default(), settings(), edit, |worker| Box::new(worker)).await.unwrap();
    let mut client = HttpClient::connect(server.addr()).await;
    let body = r#"{"prompt": "x", "max_tokens": 1}"#;
    let (me, ops) = ("authorization: Bearer 0123456789abcdef\r\n", "authorization: Bearer fedcba9876543210\r\n");
    assert_eq!(client.ask("GET", "/health", "", "").await.status, 200, "probes have no tokens");
    for path in ["/v1/models", "/metrics", "/load", "/version"] {
        assert_eq!(client.ask("GET", path, "", "").await.status, 401, "{path}");
        assert_eq!(client.ask("GET", path, me, "").await.status, 200, "{path}");
    }
    assert_eq!(client.ask("POST", "/v1/completions", "", body).await.status, 401);
    assert_eq!(client.ask("POST", "/v1/completions", me, body).await.status, 200);
    let refused = client.ask("POST", "/reset_prefix_cache", me, "").await;
    assert_eq!(refused.json()["error"]["message"], "/reset_prefix_cache needs a token with the role admin");
    assert_eq!((refused.status, client.ask("POST", "/reset_prefix_cache", ops, "").await.status), (403, 200));
}

const PAGE: &str = "origin: https://app.example\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_the_origins_that_are_allowed_read_answers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, "0123456789abcdef generate me\n").unwrap();
    let start = async |allowed: &str| {
        let path = path.clone();
        let edit = move |options: &mut Options| options.token_file = Some(path);
        let settings = Settings { allowed_origins: allowed.parse().unwrap(), ..settings() };
        TestServer::start_http(Config::default(), settings, edit, |worker| Box::new(worker)).await.unwrap()
    };
    let preflight =
        "access-control-request-method: POST\r\naccess-control-request-headers: authorization, content-type\r\n";
    let (token, body) = ("authorization: Bearer 0123456789abcdef\r\n", r#"{"prompt": "x", "max_tokens": 1}"#);
    let allowed = |answer: &HttpAnswer| answer.header("access-control-allow-origin").map(str::to_owned);
    for (origins, answered) in [("https://app.example,http://b", "https://app.example"), (r#"["*"]"#, "*")] {
        let server = start(origins).await;
        let mut page = HttpClient::connect(server.addr()).await;
        // The question of the browser has no token; what it asks for needs one.
        let asked = page.ask("OPTIONS", "/v1/completions", &format!("{PAGE}{preflight}"), "").await;
        assert_eq!((asked.status, allowed(&asked).as_deref()), (200, Some(answered)));
        assert_eq!(asked.header("access-control-allow-methods"), Some("get,post,delete"));
        assert_eq!(asked.header("access-control-allow-headers"), Some("authorization, content-type"));
        let answer = page.ask("POST", "/v1/completions", &format!("{PAGE}{token}"), body).await;
        assert_eq!((answer.status, allowed(&answer).as_deref()), (200, Some(answered)));
        assert_eq!(answer.header("access-control-expose-headers"), Some("x-request-id,retry-after,content-type"));
        // Pages read refusals too, of the door and of the gate.
        for (headers, path, status) in [(token, "/nowhere", 404), ("", "/v1/completions", 401)] {
            let refused = page.ask("POST", path, &format!("{PAGE}{headers}"), body).await;
            assert_eq!((refused.status, allowed(&refused).as_deref()), (status, Some(answered)), "{path}");
        }
        let other = page.ask("GET", "/health", "origin: https://other.example\r\n", "").await;
        assert_eq!((other.status, allowed(&other).is_some()), (200, answered == "*"));
        // No call of gRPC passes for a question.
        let grpc = format!("{PAGE}{preflight}content-type: application/grpc\r\n");
        page.send(request("OPTIONS", "/trunkline.v1.Inference/GetModelInfo", &grpc, "")).await;
        let (_, head) = page.head().await.unwrap();
        assert!(head.contains("grpc-status: 16"), "{head}");
    }
    let server = start("").await;
    let mut page = HttpClient::connect(server.addr()).await;
    let asked = page.ask("OPTIONS", "/v1/completions", &format!("{PAGE}{preflight}"), "").await;
    let answer = page.ask("POST", "/v1/completions", &format!("{PAGE}{token}"), body).await;
    assert_eq!((asked.status, allowed(&asked), answer.status, allowed(&answer)), (405, None, 200, None));
}

const LONG: &str = r#"{"prompt": "x", "max_tokens": 100, "ignore_eos": true, "request_id": "mine"}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_request_ends_by_its_id_from_another_connection() {
    let (wrap, gate) = gated();
    let server = TestServer::start_http(Config::default(), settings(), |_| {}, wrap).await.unwrap();
    let mut first = HttpClient::connect(server.addr()).await;
    first.send(request("POST", "/v1/completions", "", LONG)).await;
    server.client().await.until(|info| info.load.unwrap().running == 1).await;
    assert_eq!(post(server.addr(), "/v1/completions", LONG).await.status, 409);
    let found = post(server.addr(), "/abort_requests", r#"{"request_ids": ["cmpl-mine"]}"#).await;
    assert_eq!(found.json()["found"], 1);
    drop(gate);
    let ended = first.answer().await.unwrap().json();
    assert_eq!((&ended["choices"][0]["finish_reason"], &ended["id"]), (&json!("abort"), &json!("cmpl-mine")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_goes_away_takes_its_request_along() {
    let (wrap, gate) = gated();
    let server = TestServer::start_http(Config::default(), settings(), |_| {}, wrap).await.unwrap();
    for stream in [false, true] {
        let mut gone = HttpClient::connect(server.addr()).await;
        let body = LONG.replace("\"mine\"", &format!("\"{stream}\", \"stream\": {stream}"));
        gone.send(request("POST", "/v1/completions", "", &body)).await;
        let accepted = 1 + u64::from(stream);
        server.client().await.until(|info| info.counters.unwrap().accepted == accepted).await;
    }
    drop(gate);
    let counters = server.client().await.settled().await.counters.unwrap();
    assert!(counters.generated_tokens < 100, "{counters:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_says_when_to_come_back_and_a_drain_that_nobody_need() {
    let (wrap, gate) = gated();
    let config = Config { max_queue: 2, max_batch_size: 1, ..Config::default() };
    let edit = |options: &mut Options| options.queue_per_client = Some(100);
    let server = TestServer::start_http(config, settings(), edit, wrap).await.unwrap();
    let body = r#"{"prompt": "x", "max_tokens": 2}"#;
    let mut waiting = Vec::new();
    let refused = loop {
        let mut client = HttpClient::connect(server.addr()).await;
        client.send(request("POST", "/v1/completions", "", body)).await;
        // A refusal comes at once, and an answer not before the steps go on.
        match tokio::time::timeout(Duration::from_millis(300), client.answer()).await {
            Ok(answer) => break answer.unwrap(),
            Err(_) => waiting.push(client),
        }
    };
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("60")), "nothing ends: {refused:?}");
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    let handle = server.handle();
    handle.drain().await;
    let mut late = HttpClient::connect(server.addr()).await;
    assert_eq!(late.ask("GET", "/health", "", "").await.status, 503);
    assert_eq!(late.ask("POST", "/v1/completions", "", body).await.status, 503);
    drop(gate);
    for mut client in waiting {
        assert_eq!(client.answer().await.unwrap().status, 200, "what was accepted is answered");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn misshapen_requests_are_refused_and_others_go_on() {
    let limits = NetworkLimits { request: Duration::from_millis(200), ..NetworkLimits::default() };
    let edit = |options: &mut Options| options.network = limits;
    let server = TestServer::start_http(Config::default(), settings(), edit, |worker| Box::new(worker)).await.unwrap();
    let body = r#"{"prompt": "x", "max_tokens": 1}"#;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\n";
    for (bytes, status) in [
        (format!("{head}content-length: 9\r\ncontent-length: 10\r\n\r\n"), 400),
        (format!("{head}content-length: x\r\n\r\n"), 400),
        (format!("{head}transfer-encoding: gzip\r\n\r\n"), 400),
        (format!("{head}transfer-encoding: chunked\r\n\r\nzz\r\n"), 400),
        (format!("{head}x-long: {}\r\n\r\n", "x".repeat(200_000)), 431),
        (format!("{head}x-long: {}\r\ncontent-length: 0\r\n\r\n", "x".repeat(20_000)), 429),
        (format!("{head}x\u{0}y: 1\r\n\r\n"), 400),
        // A body that does not come.
        (format!("{head}content-length: 100\r\n\r\n{{"), 408),
    ] {
        let mut client = HttpClient::connect(server.addr()).await;
        client.send(&bytes).await;
        let answer = client.answer().await.map(|answer| answer.status);
        assert_eq!(answer, Some(status), "{}", &bytes[..bytes.len().min(120)]);
    }
    // Requests sent ahead are answered in their order.
    let mut client = HttpClient::connect(server.addr()).await;
    let ask = request("POST", "/v1/completions", "", body);
    client.send(format!("{ask}{}{ask}", request("GET", "/version", "", ""))).await;
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let answer = client.answer().await.unwrap();
        statuses.push((answer.status, answer.json().get("version").is_some()));
    }
    assert_eq!(statuses, [(200, false), (200, true), (200, false)]);
    // An expectation is met, a whole body in chunks taken, and HTTP/1.0 closed after its answer.
    let n = body.len();
    let mut client = HttpClient::connect(server.addr()).await;
    client.send(format!("{head}expect: 100-continue\r\ncontent-length: {n}\r\n\r\n")).await;
    assert_eq!(client.head().await.unwrap().0, 100);
    client.send(body).await;
    assert_eq!(client.answer().await.unwrap().status, 200);
    client.send(format!("{head}transfer-encoding: chunked\r\n\r\n{n:x}\r\n{body}\r\n0\r\n\r\n")).await;
    assert_eq!(client.answer().await.unwrap().status, 200);
    server.client().await.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_stops_loses_its_stream_and_nobody_elses() {
    let limits = NetworkLimits { unread: Duration::from_millis(200), ..NetworkLimits::default() };
    let edit = |options: &mut Options| options.network = limits;
    let server = TestServer::start_http(Config::default(), settings(), edit, |worker| Box::new(worker)).await.unwrap();
    let mut unread = HttpClient::connect(server.addr()).await;
    let endless = r#"{"prompt": "x", "max_tokens": 30000, "ignore_eos": true, "stream": true, "logprobs": 20}"#;
    unread.send(request("POST", "/v1/completions", "", endless)).await;
    let mut grpc = server.client().await;
    grpc.until(|info| info.load.unwrap().running == 1).await;
    let answer = post(server.addr(), "/v1/completions", r#"{"prompt": "y", "max_tokens": 3}"#).await;
    assert_eq!(answer.status, 200);
    let info = grpc.until(|info| info.network.unwrap().unread_ended == 1).await;
    assert!(info.counters.unwrap().generated_tokens < 30_000);
    grpc.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recording_of_every_door_at_once_replays() {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("run.jsonl");
    // So few blocks that requests wait and the cache loses some.
    let config =
        Config { device_blocks: 96, max_batch_tokens: 64, max_batch_size: 32, max_context: 1024, ..Config::default() };
    let edit = |options: &mut Options| options.record = Some(record.clone());
    let server = TestServer::start_http(config, settings(), edit, |worker| Box::new(worker)).await.unwrap();
    let mut asked = JoinSet::new();
    for at in 0..6 {
        let text = format!("{at}{}", "p".repeat(60 * at));
        let messages = json!([{"role": "user", "content": [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]}]);
        for (path, body) in [
            (
                "/v1/completions",
                json!({"prompt": text, "max_tokens": 20, "n": 3, "seed": at, "temperature": 1, "stream": true}),
            ),
            ("/v1/chat/completions", json!({"messages": messages, "max_tokens": 30, "prompt_cache_key": "key"})),
            ("/v1/messages", json!({"messages": messages, "max_tokens": 20, "stream": true})),
            ("/v1/responses", json!({"input": text, "max_output_tokens": 10})),
            ("/inference/v1/generate", json!({"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 9}})),
        ] {
            let addr = server.addr();
            asked.spawn(async move {
                let answer = post(addr, path, &body.to_string()).await;
                assert_eq!(answer.status, 200, "{path}: {}", answer.body);
            });
        }
        let mut client = server.client().await;
        asked.spawn(async move { drop(client.ask(greedy(&text, 20)).await.unwrap()) });
    }
    let mut chat = Chat::create(&server, "A system text.", sessions::settings(200, 60)).await;
    for turn in 0..4 {
        chat.say(&format!("Turn {turn}"), 20).await.unwrap();
    }
    while let Some(done) = asked.join_next().await {
        done.unwrap();
    }
    chat.settled().await;
    let outcome = server.drain().await;
    assert!(outcome.stats.evicted_blocks > 0, "{:?}", outcome.stats);
    let replayed = replay_recorded(&record, &mut |_| {}).unwrap();
    assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
}

/// A publisher of one stream.
#[derive(Debug)]
struct Publishes;

impl KvEventSources for Publishes {
    fn sources(&self) -> Vec<KvEventSource> {
        let (endpoint, topic) = ("tcp://10.0.0.1:5557".to_owned(), "kv@pod@model".to_owned());
        vec![KvEventSource { data_parallel_rank: 1, endpoint, topic, ..KvEventSource::default() }]
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn routers_find_where_cache_events_are_published() {
    let sources = async |settings: Settings| {
        let server =
            TestServer::start_http(Config::default(), settings, |_| {}, |worker| Box::new(worker)).await.unwrap();
        get(server.addr(), "/kv_event_sources").await.json()
    };
    assert_eq!(sources(settings()).await, json!([]), "there is no publisher");
    let expected = json!([{"data_parallel_rank": 1, "endpoint": "tcp://10.0.0.1:5557", "replay_endpoint": null, "snapshot_endpoint": null,
        "topic": "kv@pod@model"}]);
    assert_eq!(sources(Settings { kv_event_sources: Some(Arc::new(Publishes)), ..settings() }).await, expected);
}
