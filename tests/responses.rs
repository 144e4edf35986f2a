//! `/v1/responses`: whole and as events, with reasoning and calls, kept and compacted, and what is refused.

use std::sync::Arc;

use serde_json::{Value, json};
use trunkline_core::Config;
use trunkline_http::Settings;
use trunkline_server::Options;
use trunkline_template::ChatTemplate;
use trunkline_tests::http::{HttpAnswer, HttpClient, get, post, request};
use trunkline_tests::scripted::{scripted, unwilling};
use trunkline_tests::server::{TestServer, gated, greedy};
use trunkline_text::ChatSource;

const ALICE: &str = "alice-0123456789";
const BOB: &str = "bob---0123456789";

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

/// Text of the first message of an output.
fn text(response: &Value) -> String {
    let output = response["output"].as_array().unwrap();
    let message = output.iter().find(|item| item["type"] == "message").unwrap();
    message["content"][0]["text"].as_str().unwrap().to_owned()
}

fn cached(usage: &Value) -> u64 {
    usage["input_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

async fn by_token(server: &TestServer, (method, path): (&str, &str), token: &str, body: &str) -> HttpAnswer {
    let headers = format!("authorization: Bearer {token}\r\n");
    HttpClient::connect(server.addr()).await.ask(method, path, &headers, body).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_response_goes_on_from_one_that_is_stored() {
    let server = start().await;
    let short = json!({"max_output_tokens": 6, "temperature": 0});
    let with = |more: Value| {
        let mut body = short.clone();
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let first = ask(&server, &with(json!({"instructions": "be brief", "input": "one"}))).await;
    assert_eq!((&first["store"], &first["previous_response_id"]), (&json!(true), &Value::Null));
    let path = format!("/v1/responses/{}", first["id"].as_str().unwrap());
    assert_eq!(get(server.addr(), &path).await.json(), first);

    // The conversation is that of all items together, without the instructions.
    let second = ask(&server, &with(json!({"input": "two", "previous_response_id": first["id"]}))).await;
    let mut items = vec![json!({"role": "user", "content": "one"})];
    items.extend(first["output"].as_array().unwrap().clone());
    items.push(json!({"role": "user", "content": "two"}));
    let whole = ask(&server, &with(json!({"input": items, "store": false}))).await;
    assert_eq!((text(&second), &second["usage"]["input_tokens"]), (text(&whole), &whole["usage"]["input_tokens"]));
    assert_eq!((&second["previous_response_id"], &whole["store"]), (&first["id"], &json!(false)));
    assert_eq!(get(server.addr(), &format!("/v1/responses/{}", whole["id"].as_str().unwrap())).await.status, 404);

    // A stream goes on, too, and finds what the one before computed.
    let asked = with(json!({"input": "three", "previous_response_id": second["id"], "stream": true}));
    let streamed = events(&post(server.addr(), "/v1/responses", &asked.to_string()).await);
    let third = &streamed.last().unwrap().1["response"];
    let computed = second["usage"]["input_tokens"].as_u64().unwrap();
    assert!(cached(&third["usage"]) + 20 > computed, "{third}");
    let path_of_third = format!("/v1/responses/{}", third["id"].as_str().unwrap());
    assert_eq!(get(server.addr(), &path_of_third).await.json(), *third);
    let list = get(server.addr(), &format!("{path_of_third}/input_items?order=asc")).await.json();
    let said: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|item| &item["content"][0]["text"]).collect();
    assert_eq!(said, [&json!("one"), &json!(text(&first)), &json!("two"), &json!(text(&second)), &json!("three")]);
    assert_eq!((&list["object"], &list["has_more"]), (&json!("list"), &json!(false)));
    let after = format!("{path_of_third}/input_items?limit=1&after={}", list["last_id"].as_str().unwrap());
    let page = get(server.addr(), &after).await.json();
    assert_eq!((&page["data"][0]["content"][0]["text"], &page["has_more"]), (&json!(text(&second)), &json!(true)));

    // What is deleted is gone, and not what went on from it.
    let deleted = HttpClient::connect(server.addr()).await.ask("DELETE", &path, "", "").await;
    assert_eq!(deleted.json(), json!({"id": first["id"], "object": "response", "deleted": true}));
    assert_eq!(get(server.addr(), &path).await.status, 404);
    let body = with(json!({"input": "x", "previous_response_id": first["id"]})).to_string();
    let lost = post(server.addr(), "/v1/responses", &body).await;
    assert_eq!((lost.status, &lost.json()["error"]["param"]), (404, &json!("previous_response_id")));
    let again = ask(&server, &with(json!({"input": "two", "previous_response_id": second["id"]}))).await;
    assert!(again["usage"]["input_tokens"].as_u64() > second["usage"]["input_tokens"].as_u64());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_reference_stands_for_an_item_of_a_stored_response() {
    let server = start().await;
    let with = |input: Value| json!({"input": input, "max_output_tokens": 6, "temperature": 0});
    let first = ask(&server, &with(json!("one"))).await;
    let path = format!("/v1/responses/{}", first["id"].as_str().unwrap());
    let list = get(server.addr(), &format!("{path}/input_items")).await.json();
    let (said, answered) = (&list["data"][0]["id"], &first["output"][0]["id"]);

    // Without references: the same items, whole.
    let mut items = vec![json!({"role": "user", "content": "one"})];
    items.extend(first["output"].as_array().unwrap().clone());
    items.push(json!({"role": "user", "content": "two"}));
    let whole = ask(&server, &with(json!(items))).await;
    let input = json!([{"type": "item_reference", "id": said}, {"id": answered}, {"role": "user", "content": "two"}]);
    let second = ask(&server, &with(input.clone())).await;
    assert_eq!((text(&second), &second["usage"]["input_tokens"]), (text(&whole), &whole["usage"]["input_tokens"]));

    // It is stored with the items themselves: they are there, by the same ids, when the first response is not.
    let deleted = HttpClient::connect(server.addr()).await.ask("DELETE", &path, "", "").await;
    assert_eq!(deleted.status, 200);
    let path = format!("/v1/responses/{}", second["id"].as_str().unwrap());
    let list = get(server.addr(), &format!("{path}/input_items?order=asc")).await.json();
    let texts: Vec<&Value> = list["data"].as_array().unwrap().iter().map(|item| &item["content"][0]["text"]).collect();
    assert_eq!(texts, [&json!("one"), &json!(text(&first)), &json!("two")]);
    assert_eq!((&list["data"][0]["id"], &list["data"][1]["id"]), (said, answered));
    let again = ask(&server, &with(input.clone())).await;
    assert_eq!((text(&again), &again["usage"]["input_tokens"]), (text(&whole), &whole["usage"]["input_tokens"]));
    let body = json!({"input": [{"type": "item_reference", "id": said}]}).to_string();
    let compacted = post(server.addr(), "/v1/responses/compact", &body).await;
    assert_eq!((compacted.status, &compacted.json()["output"][0]["content"][0]["text"]), (200, &json!("one")));

    for id in [&second["id"], &again["id"]] {
        let path = format!("/v1/responses/{}", id.as_str().unwrap());
        HttpClient::connect(server.addr()).await.ask("DELETE", &path, "", "").await;
    }
    let lost = post(server.addr(), "/v1/responses", &with(input).to_string()).await;
    let (status, error) = (lost.status, lost.json()["error"].clone());
    assert_eq!((status, &error["param"]), (404, &json!("input[0].id")));
    let message = error["message"].as_str().unwrap();
    assert!(message.starts_with(&format!("Item with id '{}' not found.", said.as_str().unwrap())), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_token_reads_no_response_of_another() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    std::fs::write(&path, format!("{ALICE} generate alice\n{BOB} generate bob\n")).unwrap();
    let edit = move |options: &mut Options| options.token_file = Some(path);
    let server = TestServer::start_http(Config::default(), settings(), edit, |worker| Box::new(worker)).await.unwrap();
    let body = json!({"input": "one", "max_output_tokens": 2}).to_string();
    let made = by_token(&server, ("POST", "/v1/responses"), ALICE, &body).await.json();
    let path = format!("/v1/responses/{}", made["id"].as_str().unwrap());
    let next = json!({"input": "two", "max_output_tokens": 2, "previous_response_id": made["id"]}).to_string();
    let item = json!([{"type": "item_reference", "id": made["output"][0]["id"]}, {"role": "user", "content": "two"}]);
    let referring = json!({"input": item, "max_output_tokens": 2, "store": false}).to_string();
    for (token, found) in [(BOB, false), (ALICE, true)] {
        let status = if found { 200 } else { 404 };
        assert_eq!(by_token(&server, ("POST", "/v1/responses"), token, &referring).await.status, status);
        assert_eq!(by_token(&server, ("GET", &path), token, "").await.status, status);
        assert_eq!(by_token(&server, ("GET", &format!("{path}/input_items")), token, "").await.status, status);
        assert_eq!(by_token(&server, ("POST", "/v1/responses"), token, &next).await.status, status);
        assert_eq!(by_token(&server, ("DELETE", &path), token, "").await.status, status);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_left_is_not_stored() {
    let (wrap, gate) = gated();
    let server = TestServer::start_http(Config::default(), settings(), |_| {}, wrap).await.unwrap();
    let mut left = HttpClient::connect(server.addr()).await;
    let body = json!({"input": "one", "max_output_tokens": 20, "stream": true}).to_string();
    left.send(request("POST", "/v1/responses", "", &body)).await;
    assert_eq!(left.head().await.unwrap().0, 200);
    let opening = left.chunk().await.unwrap();
    let data = opening.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
    let created = serde_json::from_str::<Value>(data).unwrap();
    let path = format!("/v1/responses/{}", created["response"]["id"].as_str().unwrap());
    assert_eq!((&created["response"]["store"], get(server.addr(), &path).await.status), (&json!(true), 404));
    drop(left);
    let mut client = server.client().await;
    client.until(|info| info.load.unwrap().running + info.load.unwrap().waiting == 0).await;
    drop(gate);
    client.settled().await;
    assert_eq!(get(server.addr(), &path).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_is_compacted_to_what_users_said_and_a_summary() {
    let server = start().await;
    let tools = json!([{"type": "function", "name": "add", "parameters": {"type": "object"}}]);
    let long = "Once upon a time. ".repeat(20);
    let first =
        json!({"instructions": "be brief", "tools": tools, "input": long, "max_output_tokens": 8, "temperature": 0});
    let first = ask(&server, &first).await;
    let body = json!({"input": "two", "previous_response_id": first["id"], "instructions": "be brief", "tools": tools,
        "max_output_tokens": 8, "temperature": 0});
    let second = ask(&server, &body).await;
    let compacted =
        post(server.addr(), "/v1/responses/compact", &json!({"previous_response_id": second["id"]}).to_string()).await;
    assert_eq!(compacted.status, 200, "{}", compacted.body);
    let compacted = compacted.json();
    assert_eq!(compacted["object"], "response.compaction");
    let output = compacted["output"].as_array().unwrap();
    let kinds: Vec<_> = output.iter().map(|item| (item["type"].as_str().unwrap(), item["role"].as_str())).collect();
    assert_eq!(kinds, [("message", Some("user")), ("message", Some("user")), ("compaction", None)]);
    assert_eq!(output[1]["content"], json!([{"type": "input_text", "text": "two"}]));
    // It reads the conversation in the cache: all that the second request computed, with its tools and instructions.
    let computed = second["usage"]["input_tokens"].as_u64().unwrap();
    let found = cached(&compacted["usage"]);
    assert!(found + 20 > computed && computed > 400, "{found} of {computed}");

    let content: Value = serde_json::from_str(output[2]["encrypted_content"].as_str().unwrap()).unwrap();
    let mut input = output.clone();
    input.push(json!({"role": "user", "content": "three"}));
    let answer = ask(&server, &json!({"input": input, "max_output_tokens": 1})).await;
    let summary = content["summary"].as_str().unwrap();
    // Parts of a content are lines to this template.
    let rendered = format!("user: {long}\ntwo\nEarlier in this conversation: {summary}\nthree\nbot:");
    assert_eq!(answer["usage"]["input_tokens"], rendered.len());
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": "x", "stream": true}), "stream"),
        (json!({"input": [{"type": "compaction", "encrypted_content": "gAAAA"}]}), "input"),
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
    ] {
        let refused = post(server.addr(), "/v1/responses/compact", &body.to_string()).await;
        assert_eq!((&refused.json()["error"]["param"], refused.status / 100), (&json!(param), 4), "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_summary_is_asked_for_again_without_an_end() {
    let server = TestServer::start_http(Config::default(), settings(), |_| {}, unwilling).await.unwrap();
    let empty = ask(&server, &json!({"input": "one two", "max_output_tokens": 8})).await;
    assert_eq!(empty["usage"]["output_tokens"], 1, "the end alone");
    let body = json!({"input": "one two"}).to_string();
    let compacted = post(server.addr(), "/v1/responses/compact", &body).await;
    assert_eq!(compacted.status, 200, "{}", compacted.body);
    let compacted = compacted.json();
    let content = compacted["output"][1]["encrypted_content"].as_str().unwrap();
    let content: Value = serde_json::from_str(content).unwrap();
    assert!(content["summary"].as_str().is_some_and(|summary| !summary.is_empty()), "{compacted}");
    let tokens = compacted["usage"]["output_tokens"].as_u64().unwrap();
    assert!(tokens > 16, "a beginning of 16 tokens, and the rest: {tokens}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prompt_beyond_the_threshold_is_compacted_first() {
    let summary = "They count.";
    let server = TestServer::start_http(Config::default(), settings(), |_| {}, scripted(summary)).await.unwrap();
    let items = json!([{"role": "developer", "content": "be brief"}, {"role": "user", "content": "count ".repeat(30)},
        {"role": "assistant", "content": "one two"}, {"role": "user", "content": "go on"}]);
    let manage = |threshold: u32| json!([{"type": "compaction", "compact_threshold": threshold}]);
    let body = |threshold, stream| json!({"input": items, "context_management": manage(threshold), "stream": stream});
    let short = ask(&server, &body(1000, false)).await;
    assert_eq!((short["output"][0]["type"].as_str(), short["usage"].get("compaction")), (Some("message"), None));

    let whole = ask(&server, &body(100, false)).await;
    let kinds: Vec<_> = whole["output"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["compaction", "message"]);
    let rendered = format!("system: be brief\nuser: Earlier in this conversation: {summary}\n\ngo on\nbot:");
    assert_eq!(whole["usage"]["input_tokens"], rendered.len());
    // The summary was asked for behind what was there.
    let prompt = short["usage"]["input_tokens"].as_u64().unwrap();
    let (of_summary, kept) = (&whole["usage"]["compaction"], "user: go on\nbot:".len() as u64);
    assert!(of_summary["input_tokens"].as_u64().unwrap() > prompt - kept);
    assert!(cached(of_summary) + 16 > prompt - kept, "{of_summary} {prompt}");

    // It goes on, with the response or its items, and what the compaction stands for is not read again.
    let mut all = items.as_array().unwrap().clone();
    all.extend(whole["output"].as_array().unwrap().clone());
    all.push(json!({"role": "user", "content": "more"}));
    let rendered = rendered.replace("\nbot:", &format!("\nassistant: {summary}\nuser: more\nbot:"));
    for body in [json!({"input": all}), json!({"input": "more", "previous_response_id": whole["id"]})] {
        assert_eq!(ask(&server, &body).await["usage"]["input_tokens"], rendered.len(), "{body}");
    }
    let events = events(&post(server.addr(), "/v1/responses", &body(100, true).to_string()).await);
    let names: Vec<&str> = events.iter().map(|(name, _)| name.strip_prefix("response.").unwrap()).take(5).collect();
    assert_eq!(names, ["created", "in_progress", "output_item.added", "output_item.done", "output_item.added"]);
    assert_eq!(events[0].1["response"]["output"], json!([]));
    assert_eq!(events[3].1["item"]["encrypted_content"], whole["output"][0]["encrypted_content"]);
    assert_eq!(events.last().unwrap().1["response"]["output"][0]["type"], "compaction");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_honoured_is_refused_by_name() {
    let settings = Settings { response_bytes: Some(0), ..settings() };
    let server = TestServer::start_http(Config::default(), settings, |_| {}, |worker| Box::new(worker)).await.unwrap();
    for (more, param) in [
        (json!({"previous_response_id": "resp_1"}), "previous_response_id"),
        (json!({"store": true}), "store"),
        (json!({"context_management": [{"type": "clear"}]}), "context_management"),
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
    let answer = ask(&server, &json!({"input": "x", "max_output_tokens": 1})).await;
    assert_eq!(answer["store"], false);
    let path = format!("/v1/responses/{}", answer["id"].as_str().unwrap());
    assert_eq!(get(server.addr(), &path).await.status, 404);
}
