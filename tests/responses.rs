//! `/v1/responses`: whole and as events, with reasoning and calls, and what is refused.

use std::sync::Arc;

use serde_json::{Value, json};
use trunkline_core::Config;
use trunkline_http::Settings;
use trunkline_template::ChatTemplate;
use trunkline_tests::http::{HttpAnswer, post};
use trunkline_tests::scripted::scripted;
use trunkline_tests::server::{TestServer, greedy};
use trunkline_text::ChatSource;

const TEMPLATE: &str = "{% for t in tools or [] %}tool {{ t.function.name }}\n{% endfor %}\
    {% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}{{ '\n' }}{% endfor %}\
    {% if add_generation_prompt %}bot:{% endif %}";

fn settings() -> Settings {
    let template = ChatTemplate::new(ChatSource::of_text(TEMPLATE)).expect("the template can be used");
    Settings {
        served_names: vec!["a-model".into()],
        template: Some(Arc::new(template)),
        tool_call_parser: Some("hermes".parse().unwrap()),
        reasoning_parser: Some("qwen3".parse().unwrap()),
        ..Settings::default()
    }
}

async fn start() -> TestServer {
    TestServer::start_http(Config::default(), settings(), |_| {}, |worker| Box::new(worker)).await.unwrap()
}

async fn ask(server: &TestServer, body: &Value) -> Value {
    let answer = post(server.addr(), "/v1/responses", &body.to_string()).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.json()
}

/// Names and data of the events of an answer.
fn events(answer: &HttpAnswer) -> Vec<(String, Value)> {
    let event = |text: &str| {
        let (name, data) = text.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        (name.to_owned(), serde_json::from_str(data).unwrap())
    };
    answer.body.split_terminator("\n\n").map(event).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_is_the_answer_to_the_rendered_input() {
    let server = start().await;
    let rendered = "system: be brief\nuser: hello\nbot:";
    let expected = server.client().await.ask(greedy(rendered, 6)).await.unwrap();
    let body = json!({"model": "a-model", "instructions": "be brief", "input": "hello", "max_output_tokens": 6, "temperature": 0,
        "metadata": {"a": "b"}, "reasoning": {"effort": "low"}, "prompt_cache_key": "key"});
    let whole = ask(&server, &body).await;
    assert_eq!((&whole["object"], &whole["status"]), (&json!("response"), &json!("incomplete")));
    assert_eq!(whole["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(whole["output"][0]["content"][0]["text"], expected.text);
    assert_eq!(whole["output"][0]["role"], "assistant");
    assert_eq!((&whole["metadata"], &whole["reasoning"]["effort"]), (&json!({"a": "b"}), &json!("low")));
    let tokens = rendered.len();
    assert_eq!(
        (&whole["usage"]["input_tokens"], &whole["usage"]["total_tokens"]),
        (&json!(tokens), &json!(tokens + 6))
    );
    let found = whole["usage"]["input_tokens_details"].clone();
    assert_eq!(found, json!({"cached_tokens": 32, "cache_write_tokens": tokens - 32}), "the key keeps the prompt");

    // The same conversation as items, and log probabilities.
    let items = json!([{"role": "developer", "content": "be brief"}, {"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]);
    let body = json!({"input": items, "max_output_tokens": 6, "temperature": 0, "include": ["message.output_text.logprobs"], "top_logprobs": 2});
    let listed = ask(&server, &body).await;
    let part = &listed["output"][0]["content"][0];
    assert_eq!(part["text"], expected.text);
    let logprobs = part["logprobs"].as_array().unwrap();
    assert_eq!((logprobs.len(), logprobs[0]["top_logprobs"].as_array().unwrap().len()), (6, 2));
    let turns = json!([{"role": "user", "content": "a"}, {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "3"}]);
    let answer = ask(&server, &json!({"input": turns, "max_output_tokens": 1})).await;
    assert_eq!(answer["usage"]["input_tokens"], "user: a\nassistant: [f]\ntool: 3\nbot:".len());
}

#[tokio::test(flavor = "multi_thread")]
async fn events_tell_of_each_item_and_end_with_the_whole_response() {
    let text = "<think>so</think>Well.<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call>";
    let server = TestServer::start_http(Config::default(), settings(), |_| {}, scripted(text)).await.unwrap();
    let tools = json!([{"type": "function", "name": "add", "parameters": {"type": "object"}}]);
    let mut body = json!({"input": "1 + 2?", "tools": tools});
    let whole = ask(&server, &body).await;
    let kinds = |response: &Value| -> Vec<Value> {
        response["output"].as_array().unwrap().iter().map(|item| item["type"].clone()).collect()
    };
    assert_eq!(
        (kinds(&whole), &whole["status"]),
        (vec![json!("reasoning"), json!("message"), json!("function_call")], &json!("completed"))
    );
    assert_eq!(whole["output"][0]["content"], json!([{"type": "reasoning_text", "text": "so"}]));
    assert_eq!((&whole["output"][2]["name"], &whole["output"][2]["arguments"]), (&json!("add"), &json!("{\"a\": 1}")));
    assert_eq!(whole["usage"]["output_tokens_details"]["reasoning_tokens"], "<think>so</think>".len());
    body["stream"] = json!(true);
    let events = events(&post(server.addr(), "/v1/responses", &body.to_string()).await);
    let numbers: Vec<u64> = events.iter().map(|(_, data)| data["sequence_number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());
    assert!(events.iter().all(|(name, data)| data["type"] == *name));
    let mut names: Vec<&str> = events.iter().map(|(name, _)| name.strip_prefix("response.").unwrap()).collect();
    names.dedup();
    let of_text = |kind: &'static str, done: &'static str| {
        ["output_item.added", "content_part.added", kind, done, "content_part.done", "output_item.done"]
    };
    let of_call =
        ["output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"];
    let expected = [
        &["created", "in_progress"][..],
        &of_text("reasoning_text.delta", "reasoning_text.done"),
        &of_text("output_text.delta", "output_text.done"),
        &of_call,
        &["completed"],
    ];
    assert_eq!(names, expected.concat());
    let joined = |name: &str| -> String {
        let of = events.iter().filter(|(event, _)| event == name);
        of.map(|(_, data)| data["delta"].as_str().unwrap()).collect()
    };
    assert_eq!(
        (joined("response.reasoning_text.delta").as_str(), joined("response.output_text.delta").as_str()),
        ("so", "Well.")
    );
    let last = &events.last().unwrap().1["response"];
    assert_eq!((kinds(last), &last["usage"]["output_tokens"]), (kinds(&whole), &whole["usage"]["output_tokens"]));
    let done: Vec<&Value> =
        events.iter().filter(|(name, _)| name == "response.output_item.done").map(|(_, data)| &data["item"]).collect();
    assert_eq!(done, last["output"].as_array().unwrap().iter().collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_needs_memory_is_refused_by_name() {
    let server = start().await;
    for (more, param) in [
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"store": true}), "store"),
        (json!({"input": [{"type": "item_reference", "id": "i"}]}), "input"),
        (json!({"tools": [{"type": "web_search"}]}), "tools"),
        (json!({"tools": [{"type": "function", "name": "f"}], "tool_choice": "any"}), "tool_choice"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"text": {"format": {"type": "grammar"}}}), "text"),
        (json!({"prompt": {"id": "p"}}), "prompt"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"prompt_cache_options": {"ttl": "1s"}}), "prompt_cache_options"),
    ] {
        let mut body = json!({"input": "x", "max_output_tokens": 1});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = post(server.addr(), "/v1/responses", &body.to_string()).await;
        let error = &answer.json()["error"];
        let of = error["param"].as_str().unwrap_or_default();
        assert_eq!((answer.status, of.split('.').next()), (400, Some(param)), "{more}: {error}");
    }
}
