//! Chats over HTTP whose answers have reasoning and calls of tools.

use std::sync::Arc;

use serde_json::{Value, json};
use trunkline_core::Config;
use trunkline_http::Settings;
use trunkline_template::ChatTemplate;
use trunkline_tests::http::post;
use trunkline_tests::scripted::scripted;
use trunkline_tests::server::TestServer;
use trunkline_text::ChatSource;

/// A template that begins the reasoning, as those of models that always reason do.
const TEMPLATE: &str = "{% for t in tools or [] %}tool {{ t.function.name }}\n{% endfor %}\
    {% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}bot:<think>\n";

const ANSWER: &str = "2 is < 3.</think>\n\nLet me add.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": \"</x>é\"}}\n\
    </tool_call>\n<tool_call>{\"name\": \"now\"}</tool_call>";

async fn start(parsers: bool, answer: &str) -> TestServer {
    let template = ChatTemplate::new(ChatSource::of_text(TEMPLATE)).expect("the template can be used");
    let settings = Settings {
        served_names: vec!["a-model".into()],
        template: Some(Arc::new(template)),
        tool_call_parser: parsers.then(|| "hermes".parse().unwrap()),
        reasoning_parser: parsers.then(|| "qwen3".parse().unwrap()),
        ..Settings::default()
    };
    TestServer::start_http(Config::default(), settings, |_| {}, scripted(answer)).await.unwrap()
}

fn ask(more: &Value) -> String {
    let tools = json!([{"type": "function", "function": {"name": "add", "parameters": {}}}]);
    let mut body = json!({"messages": [{"role": "user", "content": "1 + 2?"}], "tools": tools, "max_tokens": 500});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body.to_string()
}

async fn message(server: &TestServer, more: Value) -> (Value, Value) {
    let answer = post(server.addr(), "/v1/chat/completions", &ask(&more)).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let answer = answer.json();
    let choice = answer["choices"][0].clone();
    (choice["message"].clone(), json!({"finish": choice["finish_reason"], "usage": answer["usage"]}))
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_and_reasoning_come_apart_from_the_text() {
    let server = start(true, ANSWER).await;
    let (mut whole, ends) = message(&server, json!({})).await;
    for call in whole["tool_calls"].as_array_mut().unwrap() {
        let id = call.as_object_mut().unwrap().remove("id").unwrap();
        assert!(id.as_str().unwrap().starts_with("call_"), "{id}");
    }
    let function =
        |name: &str, arguments: &str| json!({"type": "function", "function": {"name": name, "arguments": arguments}});
    let expected = json!({
        "role": "assistant", "content": "\n\nLet me add.\n", "refusal": null,
        "reasoning": "2 is < 3.", "reasoning_content": "2 is < 3.",
        "tool_calls": [function("add", "{\"a\": 1, \"b\": \"</x>é\"}"), function("now", "{}")],
    });
    assert_eq!((&whole, &ends["finish"]), (&expected, &json!("tool_calls")));
    let reasoning = "2 is < 3.</think>".len();
    assert_eq!(ends["usage"]["completion_tokens_details"], json!({"reasoning_tokens": reasoning}));

    // Streamed, the parts are those of the whole.
    let streamed = post(server.addr(), "/v1/chat/completions", &ask(&json!({"stream": true}))).await;
    let (mut content, mut reasoning, mut calls, mut finish) = (String::new(), String::new(), Vec::new(), Vec::new());
    for event in streamed.events().iter().filter(|event| *event != "[DONE]") {
        let event: Value = serde_json::from_str(event).unwrap();
        let (delta, text) =
            (&event["choices"][0]["delta"], |field: &Value| field.as_str().unwrap_or_default().to_owned());
        content += &text(&delta["content"]);
        reasoning += &text(&delta["reasoning"]);
        calls.extend(delta["tool_calls"].as_array().cloned().unwrap_or_default());
        finish.extend(event["choices"][0]["finish_reason"].as_str().map(str::to_owned));
    }
    assert_eq!((json!(content), json!(reasoning)), (expected["content"].clone(), expected["reasoning"].clone()));
    assert_eq!(finish, ["tool_calls"]);
    let named: Vec<_> = calls.iter().map(|call| (&call["index"], &call["function"])).collect();
    let of = |at: usize| &expected["tool_calls"][at]["function"];
    assert_eq!(named, [(&json!(0), of(0)), (&json!(1), of(1))]);

    // One call at most, calls without tools, and none wanted.
    let (one, _) = message(&server, json!({"parallel_tool_calls": false})).await;
    assert_eq!((one["tool_calls"].as_array().unwrap().len(), &one["content"]), (1, &expected["content"]));
    let text = ANSWER.split_once("</think>").unwrap().1;
    for more in [json!({"tools": []}), json!({"tool_choice": "none"})] {
        let (plain, ends) = message(&server, more).await;
        assert_eq!((&plain["content"], plain.get("tool_calls"), &ends["finish"]), (&json!(text), None, &json!("stop")));
    }
    let wrong = post(server.addr(), "/v1/chat/completions", &ask(&json!({"tool_choice": "any"}))).await;
    assert_eq!((wrong.status, &wrong.json()["error"]["param"]), (400, &json!("tool_choice")));

    // Without parsers the text is that of the model.
    let server = start(false, ANSWER).await;
    let (plain, ends) = message(&server, json!({})).await;
    let bare = json!({"role": "assistant", "content": ANSWER, "refusal": null});
    assert_eq!(
        (&plain, &ends["finish"], ends["usage"].get("completion_tokens_details")),
        (&bare, &json!("stop"), None)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_alone_has_no_content_and_half_a_call_stays_text() {
    let server = start(true, "</think><tool_call>{\"name\": \"f\", \"arguments\": {}}").await;
    let (called, ends) = message(&server, json!({})).await;
    assert_eq!((&called["content"], &called["tool_calls"][0]["function"]["name"]), (&Value::Null, &json!("f")));
    assert_eq!(ends["finish"], "tool_calls");
    // The answer is cut within the call.
    let (cut, ends) = message(&server, json!({"max_tokens": 30})).await;
    assert_eq!((&cut["content"], &ends["finish"]), (&json!("<tool_call>{\"name\": \"f\""[..22]), &json!("length")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_has_blocks_of_thinking_text_and_calls() {
    let server = start(true, ANSWER).await;
    let tools = json!([{"name": "add", "input_schema": {"type": "object"}}]);
    let mut body = json!({"max_tokens": 500, "messages": [{"role": "user", "content": "1 + 2?"}], "tools": tools});
    let mut whole = post(server.addr(), "/v1/messages", &body.to_string()).await.json();
    let blocks = whole["content"].as_array_mut().unwrap();
    let ids: Vec<Value> = blocks.iter_mut().filter_map(|block| block.as_object_mut()?.remove("id")).collect();
    let expected = json!([
        {"type": "thinking", "thinking": "2 is < 3.", "signature": ""},
        {"type": "text", "text": "\n\nLet me add.\n"},
        {"type": "tool_use", "name": "add", "input": {"a": 1, "b": "</x>é"}},
        {"type": "tool_use", "name": "now", "input": {}},
    ]);
    assert_eq!((&whole["content"], &whole["stop_reason"], ids.len()), (&expected, &json!("tool_use"), 2));
    // What came back is understood when it is sent again.
    let result = json!([{"type": "tool_result", "tool_use_id": ids[0], "content": "3"}]);
    let mut answer = expected.as_array().unwrap()[..3].to_vec();
    answer[2]["id"] = ids[0].clone();
    body["messages"]
        .as_array_mut()
        .unwrap()
        .extend([json!({"role": "assistant", "content": answer}), json!({"role": "user", "content": result})]);
    body["stream"] = json!(true);
    let streamed = post(server.addr(), "/v1/messages", &body.to_string()).await;
    assert_eq!(streamed.status, 200, "{}", streamed.body);
    let data = streamed.body.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    let of_block = ["content_block_start", "content_block_delta", "content_block_stop"];
    let expected = [&["message_start"][..], &of_block.repeat(4), &["message_delta", "message_stop"]].concat();
    assert_eq!(kinds, expected);
    let inputs: Vec<&Value> =
        events.iter().map(|event| &event["delta"]["partial_json"]).filter(|json| !json.is_null()).collect();
    assert_eq!(inputs, [&json!("{\"a\": 1, \"b\": \"</x>é\"}"), &json!("{}")]);
    assert_eq!(events[events.len() - 2]["delta"]["stop_reason"], "tool_use");
}
