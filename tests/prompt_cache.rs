//! OpenAI's fields about the prompt cache keep prompts that are flooded away without them.

use std::sync::Arc;

use serde_json::{Value, json};
use trunkline_core::Config;
use trunkline_http::Settings;
use trunkline_template::ChatTemplate;
use trunkline_tests::http::post;
use trunkline_tests::server::TestServer;
use trunkline_text::ChatSource;

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}bot:";

async fn start() -> TestServer {
    let template = ChatTemplate::new(ChatSource::of_text(TEMPLATE)).expect("the template can be used");
    let settings = Settings { template: Some(Arc::new(template)), ..Settings::default() };
    let config = Config { device_blocks: 64, eviction: "lru".into(), ..Config::default() };
    TestServer::start_http(config, settings, |_| {}, |worker| Box::new(worker)).await.unwrap()
}

/// Two texts of 150 characters; the second has these fields.
fn parts(name: &str, of_first: &Value) -> Value {
    let text = |kind: &str| json!({"type": "text", "text": format!("{name} {kind} {}", kind.repeat(140))});
    let (mut first, second) = (text("a"), text("b"));
    first.as_object_mut().unwrap().extend(of_first.as_object().unwrap().clone());
    json!([first, second])
}

async fn chat(server: &TestServer, name: &str, of_first: &Value, fields: &Value) -> Value {
    let mut body =
        json!({"messages": [{"role": "user", "content": parts(name, of_first)}], "max_tokens": 2, "temperature": 0});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let answer = post(server.addr(), "/v1/chat/completions", &body.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()["usage"].clone()
}

/// Returns the tokens that are found of a prompt with these fields after a flood, of 316 or so.
async fn found(of_first: Value, fields: Value) -> u64 {
    let server = start().await;
    chat(&server, "kept", &of_first, &fields).await;
    for n in 0..8 {
        chat(&server, &format!("flood {n}"), &json!({}), &json!({})).await;
    }
    let usage = chat(&server, "kept", &json!({}), &json!({})).await;
    usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_client_marks_is_there_after_a_flood() {
    let none = json!({});
    assert!(found(none.clone(), none.clone()).await < 16, "without a field nothing stays");
    for fields in [
        json!({"prompt_cache_key": "key"}),
        json!({"prompt_cache_retention": "24h"}),
        json!({"prompt_cache_options": {"mode": "implicit", "ttl": "30m"}}),
    ] {
        let tokens = found(none.clone(), fields.clone()).await;
        // A quarter of the blocks may be marked.
        assert!(tokens >= 240, "{tokens} with {fields}");
    }
    // Up to the breakpoint, and no further.
    let breakpoint = json!({"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "12h"}});
    let tokens = found(breakpoint.clone(), json!({"prompt_cache_options": {"mode": "explicit"}})).await;
    assert!((128..=160).contains(&tokens), "{tokens}");
    let tokens = found(none, json!({"prompt_cache_options": {"mode": "explicit"}})).await;
    assert!(tokens < 16, "{tokens} without a breakpoint");
}

#[tokio::test(flavor = "multi_thread")]
async fn written_tokens_are_counted_and_wrong_fields_refused() {
    let server = start().await;
    let details = |usage: &Value| usage["prompt_tokens_details"].clone();
    let first = chat(&server, "p", &json!({}), &json!({"prompt_cache_key": "key"})).await;
    assert_eq!(details(&first), json!({"cached_tokens": 0, "cache_write_tokens": first["prompt_tokens"]}));
    let again = chat(&server, "p", &json!({}), &json!({"prompt_cache_key": "key"})).await;
    let cached = details(&again)["cached_tokens"].as_u64().unwrap();
    assert_eq!(details(&again)["cache_write_tokens"], again["prompt_tokens"].as_u64().unwrap() - cached);
    assert_eq!(details(&chat(&server, "q", &json!({}), &json!({})).await), json!({"cached_tokens": 0}));
    let completion = json!({"prompt": "p".repeat(64), "max_tokens": 1, "prompt_cache_key": "key"});
    let usage = post(server.addr(), "/v1/completions", &completion.to_string()).await.json()["usage"].clone();
    assert_eq!(details(&usage), json!({"cached_tokens": 0, "cache_write_tokens": 64}));
    for (fields, param) in [
        (json!({"prompt_cache_retention": "1h"}), "prompt_cache_retention"),
        (json!({"prompt_cache_options": {"mode": "both"}}), "prompt_cache_options"),
        (
            json!({"messages": [{"role": "user", "content": parts("p", &json!({"prompt_cache_breakpoint": {}}))}]}),
            "prompt_cache_breakpoint",
        ),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}]});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let answer = post(server.addr(), "/v1/chat/completions", &body.to_string()).await;
        assert_eq!((answer.status, answer.json()["error"]["param"].as_str()), (400, Some(param)));
    }
}

/// An envelope with one action.
fn hints(kind: &str, payload: Value) -> Value {
    let action = json!({"action_id": "a", "action_type": kind, "action_version": "1.0", "payload": payload});
    json!({"kv_hints": {"protocol_version": "1.0", "message_id": "m", "actions": [action]}})
}

#[tokio::test(flavor = "multi_thread")]
async fn the_envelope_of_vllm_keeps_prompts_and_says_what_it_cannot_do() {
    let none = json!({});
    let keep = json!({"directives": [{"start": 0, "end": 160, "priority": 80, "duration": 600}]});
    assert_eq!(found(none.clone(), hints("kv.retain", keep.clone())).await, 160, "ten blocks");
    assert_eq!(found(none.clone(), hints("kv.pin", json!({"end": 160, "duration": 600}))).await, 160, "ten blocks");
    assert!(found(none, hints("kv.evict", json!({}))).await < 16);
    let server = start().await;
    let mut both = hints("kv.retain", keep);
    both["prompt_cache_key"] = json!("key");
    for (fields, words) in [
        (hints("kv.demote", json!({})), "this server has no tier"),
        (hints("kv.pin", json!({})), "missing field"),
        (hints("kv.pin", json!({"duration": 90_000})), "duration must be above 0"),
        (hints("kv.prefetch", json!({})), "kv_hints.actions[0] prefetches"),
        (
            hints("kv.retain", json!({"directives": [{"start": 4, "end": 4, "priority": 50}]})),
            "no token is in the range 4..4",
        ),
        (both, "alongside marks"),
    ] {
        for (path, mut body) in [
            ("/v1/chat/completions", json!({"messages": [{"role": "user", "content": "x"}]})),
            ("/v1/completions", json!({"prompt": "x"})),
            ("/v1/responses", json!({"input": "x"})),
        ] {
            body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
            let answer = post(server.addr(), path, &body.to_string()).await;
            let error = &answer.json()["error"];
            assert_eq!((answer.status, &error["param"]), (400, &json!("kv_hints")), "{path} {error}");
            assert!(error["message"].as_str().unwrap().contains(words), "{error}");
        }
    }
    let envelope = hints("kv.evict", json!({}))["kv_hints"].clone();
    let body = json!({"token_ids": [1, 2, 3], "kv_hints": envelope, "sampling_params": {"max_tokens": 1}});
    assert_eq!(post(server.addr(), "/inference/v1/generate", &body.to_string()).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefetch_computes_nothing_and_pins_what_is_there() {
    let server = start().await;
    let prompt = "p".repeat(200);
    let ask = async |mut body: Value| {
        body.as_object_mut().unwrap().extend(json!({"prompt": prompt}).as_object().unwrap().clone());
        post(server.addr(), "/v1/completions", &body.to_string()).await
    };
    let mut prefetch = hints("kv.prefetch", json!({}));
    let pin = hints("kv.pin", json!({"duration": 600}))["kv_hints"]["actions"][0].clone();
    prefetch["kv_hints"]["actions"].as_array_mut().unwrap().push(pin);
    prefetch["max_tokens"] = json!(0);
    let details = |answer: &Value| answer["usage"]["prompt_tokens_details"].clone();
    let nothing = ask(prefetch.clone()).await.json();
    let choice = &nothing["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(""), &json!("length")), "{nothing}");
    assert_eq!((details(&nothing), &nothing["usage"]["completion_tokens"]), (json!({"cached_tokens": 0}), &json!(0)));
    ask(json!({"max_tokens": 1})).await;
    let there = json!({"cached_tokens": 192, "pinned_tokens": 192});
    assert_eq!(details(&ask(prefetch.clone()).await.json()), there);
    prefetch["stream"] = json!(true);
    prefetch["stream_options"] = json!({"include_usage": true});
    let stream = ask(prefetch).await.body;
    assert!(stream.contains(r#""finish_reason":"length""#) && stream.contains(r#""pinned_tokens":192"#), "{stream}");
}
