//! Structured output end to end: every answer of a random model has the structure that its request asks for, however many run at once, whatever is
//! preempted, drafted or in flight, and whatever grammars others send.
//!
//! `TRUNKLINE_SEEDS=1000 cargo test -p trunkline-tests --test structured valid` asks for as many answers.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use tonic::Code;
use trunkline_attach::Hello;
use trunkline_cluster::ClusterConfig;
use trunkline_core::{Config, Preemption};
use trunkline_http::Settings;
use trunkline_server::proto::sampling::Structure;
use trunkline_server::proto::{Choices, FinishReason, GenerateRequest, Sampling};
use trunkline_server::{AttachOptions, Backend, MakeWorker, Options, SamplingOffer};
use trunkline_sim_replay::recorded::replay_recorded;
use trunkline_template::ChatTemplate;
use trunkline_tests::attached::{Attached, BLOCKS};
use trunkline_tests::http::post;
use trunkline_tests::server::{Answer, TestServer, collect, gated, greedy};
use trunkline_text::{ChatSource, Tokenizer};

/// Answers of [`all_answers_are_valid_while_64_run_at_once`] by default.
const ANSWERS: usize = 200;
/// Streams at once.
const STREAMS: usize = 64;
const TRUNK: &str = "A trunk is the prefix that many requests share; a trunk line is the main line of a railway.";

/// A request for an answer with a structure, sampled from the model's own distribution.
fn asking(structure: Structure, max_tokens: u32, seed: u64) -> GenerateRequest {
    let mut request = greedy(&format!("{TRUNK} Leaf {}.", seed % 7), max_tokens);
    request.sampling = Some(Sampling { structure: Some(structure), seed: Some(seed), ..Sampling::default() });
    request.stopping.get_or_insert_default().ignore_eos = false;
    request
}

/// A schema whose answers have an end.
fn person() -> Value {
    json!({
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 3},
            "at": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/point"}]},
        },
        "required": ["name", "age", "tags", "at"],
        "additionalProperties": false,
        "$defs": {"point": {
            "type": "object",
            "properties": {"x": {"type": "integer", "minimum": -9, "maximum": 9}, "far": {"type": "boolean"}},
            "required": ["x", "far"],
            "additionalProperties": false,
        }},
    })
}

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Asserts that a text is valid by [`person`].
fn check_person(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let sorted = |value: &Value| keys(value).into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(sorted(&value), ["age", "at", "name", "tags"].map(str::to_owned).into(), "{text}");
    assert!(value["name"].as_str().unwrap().chars().count() <= 6, "{text}");
    assert!((0..=150).contains(&value["age"].as_i64().unwrap()), "{text}");
    let tags = value["tags"].as_array().unwrap();
    assert!((1..=3).contains(&tags.len()) && tags.iter().all(|tag| tag == "red" || tag == "green"), "{text}");
    if !value["at"].is_null() {
        assert_eq!(sorted(&value["at"]), ["far", "x"].map(str::to_owned).into(), "{text}");
        assert!(
            (-9.0..=9.0).contains(&value["at"]["x"].as_f64().unwrap()) && value["at"]["far"].is_boolean(),
            "{text}"
        );
    }
}

fn limits() -> Config {
    Config { device_blocks: 4096, max_batch_size: 64, ..Config::default() }
}

/// Sends all requests, opens the `gate` of the worker if there is one, and reads all answers.
async fn answers<G>(server: &TestServer, requests: &[GenerateRequest], gate: G) -> Vec<Answer> {
    let mut client = server.client().await;
    let mut streams = Vec::new();
    for request in requests {
        streams.push(client.open(request.clone()).await.unwrap());
    }
    drop(gate);
    let mut answers = Vec::new();
    for stream in streams {
        answers.push(collect(stream).await.unwrap());
    }
    client.settled().await;
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn all_answers_are_valid_while_64_run_at_once() {
    let n = std::env::var("TRUNKLINE_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(ANSWERS);
    let server = TestServer::start(limits()).await;
    let schema = person().to_string();
    let mut texts = BTreeSet::new();
    let seeds: Vec<u64> = (0..n as u64).collect();
    for seeds in seeds.chunks(STREAMS) {
        let request = |seed: &u64| asking(Structure::JsonSchema(schema.clone()), 900, *seed);
        let requests: Vec<_> = seeds.iter().map(request).collect();
        for answer in answers(&server, &requests, ()).await {
            assert_eq!(answer.reason, FinishReason::Stop, "{}", answer.text);
            check_person(&answer.text);
            texts.insert(answer.text);
        }
    }
    assert!(texts.len() > n * 9 / 10, "the model draws: {} of {n} differ", texts.len());
    // The same seed has the same answer.
    let again = answers(&server, &[asking(Structure::JsonSchema(schema), 900, 3)], ()).await;
    assert!(texts.contains(&again[0].text));
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_structure_holds_and_ends_its_answer() {
    let server = TestServer::start(limits()).await;
    let mut client = server.client().await;
    let sums = "start: NUMBER (\" \" SIGN \" \" NUMBER)~2\nSIGN: \"+\" | \"-\"\nNUMBER: /[1-9][0-9]?/";
    let choices = Choices { texts: ["yes", "no (a.b)", "\u{1F600} or so"].map(str::to_owned).into() };
    for seed in 0..12 {
        let mut text = async |structure: Structure| {
            let answer = client.ask(asking(structure, 200, seed)).await.unwrap();
            assert_eq!(answer.reason, FinishReason::Stop, "{}", answer.text);
            answer.text
        };
        let date = text(Structure::Regex("[12][0-9]{3}-(0[1-9]|1[0-2])".into())).await;
        let (year, month) = date.split_once('-').unwrap();
        assert!(year.len() == 4 && (1..=12).contains(&month.parse::<u32>().unwrap()), "{date}");
        let sum = text(Structure::Grammar(sums.into())).await;
        let parts: Vec<&str> = sum.split(' ').collect();
        assert!(parts.len() == 5 && [1, 3].iter().all(|at| ["+", "-"].contains(&parts[*at])), "{sum}");
        assert!([0, 2, 4].iter().all(|at| (1..=99).contains(&parts[*at].parse::<u32>().unwrap())), "{sum}");
        let gbnf = "root ::= pair{2}\npair ::= [a-f] (\"-\" | pair) \"!\"?";
        let pairs = text(Structure::Grammar(gbnf.into())).await;
        assert!(pairs.chars().all(|c| "abcdef-!".contains(c)) && pairs.matches('-').count() == 2, "{pairs}");
        let chosen = text(Structure::Choice(choices.clone())).await;
        assert!(choices.texts.contains(&chosen), "{chosen}");
    }
    server.drain().await;
}

/// Requests that begin, go on and end at different times, with and without a structure.
fn mixed() -> Vec<GenerateRequest> {
    let request = |i: u64| match i % 4 {
        0 => asking(Structure::JsonSchema(person().to_string()), 120, i),
        1 => asking(Structure::Regex("([a-f]{2} ){20}end".into()), 80, i),
        2 => asking(Structure::Grammar("start: (\"ab\" | \"ba\" | start \"-\")~10".into()), 60, i),
        _ => greedy(&format!("{TRUNK} Branch {i}."), 40),
    };
    (0..18).map(request).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_are_those_of_an_undisturbed_run_however_often_a_request_is_preempted() {
    let limits = Config { device_blocks: 512, max_batch_tokens: 300, ..Config::default() };
    let tokens = |answers: Vec<Answer>| answers.into_iter().map(|answer| answer.token_ids).collect::<Vec<_>>();
    let one = TestServer::start(limits.clone()).await;
    let expected = tokens(answers(&one, &mixed(), ()).await);
    assert_eq!(one.drain().await.stats.preemptions, 0);
    let folder = tempfile::tempdir().unwrap();
    for (preemption, max_drafts, ahead) in
        [(Preemption::Recompute, 0, 1), (Preemption::Recompute, 4, 1), (Preemption::Swap, 0, 3)]
    {
        let config = Config {
            device_blocks: 40,
            host_blocks: if preemption == Preemption::Swap { 32 } else { 0 },
            launch_watermark: 0.0,
            max_steps_in_flight: ahead,
            max_drafts,
            preemption,
            ..limits.clone()
        };
        let path = folder.path().join(format!("{max_drafts}-{ahead}.jsonl"));
        // All requests are there before the first step ends.
        let (wrap, gate) = gated();
        let server = TestServer::start_with(config, Some(path.clone()), wrap).await;
        let found = tokens(answers(&server, &mixed(), gate).await);
        assert_eq!(found, expected, "{max_drafts} drafts, {ahead} steps in flight");
        let outcome = server.drain().await;
        assert!(outcome.stats.preemptions > 0);
        let recording = std::fs::read_to_string(&path).unwrap();
        assert!(recording.contains(r#""grammar":{"kind":"regex","text":"([a-f]{2} ){20}end"}"#), "it has the grammars");
        let replayed = replay_recorded(&path, &mut |_| {}).unwrap();
        assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_worker_picks_what_an_embedded_one_picks() {
    let core = Config { device_blocks: BLOCKS, ..Config::default() };
    let embedded = TestServer::start(core.clone()).await;
    let requests: Vec<_> = mixed().into_iter().take(3).collect();
    let expected = answers(&embedded, &requests, ()).await;
    embedded.drain().await;
    let attach = AttachOptions { engines: 1, ..AttachOptions::default() };
    let cluster = ClusterConfig::uniform(&core, 1);
    let options = Options { cluster: cluster.clone(), attach, ..Options::default() };
    let decide = move |hello: &Hello| {
        let workers: MakeWorker = Arc::new(|_| Err("no embedded workers".into()));
        let backend = Backend {
            model: hello.model.clone(),
            further_kv: Vec::new(),
            tokenizer: Tokenizer::bytes(),
            workers,
            stores: Vec::new(),
            offer: SamplingOffer { scores: false, ..SamplingOffer::within(&hello.abilities) },
        };
        Ok((backend, cluster.clone()))
    };
    let server = TestServer::of_first_worker(options, Box::new(decide)).await;
    let worker = tokio::spawn(Attached::fresh(server.addr(), "a").await.serve());
    for (found, expected) in answers(&server, &requests, ()).await.into_iter().zip(expected) {
        assert_eq!(found.text, expected.text);
    }
    server.drain().await;
    worker.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_grammars_end_alone_and_bystanders_have_their_answers() {
    let server = TestServer::start(limits()).await;
    let mut client = server.client().await;
    let bystander = greedy(TRUNK, 300);
    let expected = client.ask(bystander.clone()).await.unwrap().token_ids;
    let innocent = client.open(bystander).await.unwrap();
    let patterns: Vec<Value> = (0..24).map(|i| json!({"pattern": format!(".*{i}.*")})).collect();
    for structure in [
        Structure::Regex("(".repeat(30_000)),
        Structure::Regex("(a+)+$b".into()),
        Structure::JsonSchema("[".repeat(30_000)),
        Structure::JsonSchema(json!({"allOf": patterns}).to_string()),
        Structure::JsonSchema(json!({"type": "integer", "multipleOf": 1_000_003}).to_string()),
        Structure::JsonSchema("x".repeat(70_000)),
        Structure::Grammar("root ::= \"a".into()),
        Structure::Grammar("(".repeat(60_000)),
        Structure::Choice(Choices::default()),
    ] {
        let refusal = client.ask(asking(structure, 9, 0)).await.unwrap_err();
        assert_eq!(refusal.code(), Code::InvalidArgument, "{refusal}");
        assert!(!refusal.message().contains('\n'), "{refusal}");
    }
    // These begin, and end alone where they cannot go on.
    let stuck = json!({"type": "string", "pattern": "^(.*a.*){50}$", "maxLength": 1000}).to_string();
    for seed in 0..4 {
        match client.ask(asking(Structure::JsonSchema(stuck.clone()), 400, seed)).await {
            Ok(answer) => assert_eq!(answer.reason, FinishReason::Length, "{}", answer.text),
            Err(ended) => {
                assert_eq!(ended.code(), Code::InvalidArgument);
                assert!(ended.message().contains("only this request ended"), "{ended}");
            }
        }
    }
    assert_eq!(collect(innocent).await.unwrap().token_ids, expected);
    client.settled().await;
    server.drain().await;
}

async fn start_http(settings: Settings) -> TestServer {
    let template =
        ChatTemplate::new(ChatSource::of_text("{% for m in messages %}{{ m.content }}{% endfor %}")).unwrap();
    let settings = Settings { served_names: vec!["a-model".into()], template: Some(Arc::new(template)), ..settings };
    TestServer::start_http(limits(), settings, |_| {}, |worker| Box::new(worker)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn http_takes_the_forms_of_openai_and_vllm_and_names_a_wrong_one() {
    let server = start_http(Settings::default()).await;
    let format = json!({"type": "json_schema", "json_schema": {"name": "person", "strict": true, "schema": person()}});
    let chat = json!({
        "messages": [{"role": "user", "content": TRUNK}], "max_tokens": 900, "seed": 5, "n": 2, "response_format": format,
    });
    let answer = post(server.addr(), "/v1/chat/completions", &chat.to_string()).await.json();
    for choice in 0..2 {
        let choice = &answer["choices"][choice];
        assert_eq!(choice["finish_reason"], "stop", "{answer}");
        let text = choice["message"]["content"].as_str().unwrap();
        check_person(text);
        // The parts come in the order of the schema.
        assert_eq!(text.find("name").cmp(&text.find("tags")), std::cmp::Ordering::Less, "{text}");
    }
    let ask = async |field: &str, value: Value| {
        let body = json!({"prompt": TRUNK, "max_tokens": 60, "seed": 1, field: value});
        post(server.addr(), "/v1/completions", &body.to_string()).await
    };
    let answer = ask("structured_outputs", json!({"choice": ["left", "right"]})).await.json();
    assert!(["left", "right"].contains(&answer["choices"][0]["text"].as_str().unwrap()), "{answer}");
    let answer = ask("structured_outputs", json!({"json_object": true})).await.json();
    assert!(answer["choices"][0]["text"].as_str().unwrap().starts_with('{'), "{answer}");
    for (field, value, words) in [
        ("structured_outputs", json!({"regex": "("}), "regex is refused: "),
        ("structured_outputs", json!({"grammar": "root ::= \"a"}), "grammar is refused: it ends within a text"),
        ("structured_outputs", json!({"structural_tag": {}}), "structured_outputs has 'structural_tag'"),
        ("guided_json", json!({}), "its new name is structured_outputs.json"),
        (
            "response_format",
            json!({"type": "json_schema", "json_schema": {"schema": {"not": {}}}}),
            "json_schema is refused: Unimplemented keys: [\"not\"]",
        ),
    ] {
        let answer = ask(field, value).await;
        let error = &answer.json()["error"];
        assert_eq!((answer.status, &error["param"]), (400, &json!(field)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
    server.drain().await;
}

/// Tools whose calls have an end, in the form of responses. The second one refers to itself.
fn tools() -> Value {
    let leaf = json!({"enum": ["oak", "elm"]});
    let tree = json!({"anyOf": [{"$ref": "#/$defs/leaf"}, {"type": "null"}]});
    json!([
        {"type": "function", "name": "add", "strict": true, "parameters": {
            "type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]}},
        {"type": "function", "name": "plant", "parameters": {
            "properties": {"tree": tree}, "required": ["tree"], "$defs": {"leaf": leaf}}},
        {"type": "function", "name": "now"},
    ])
}

/// The tools in the form of chats.
fn functions() -> Value {
    tools().as_array().unwrap().iter().map(|tool| json!({"type": "function", "function": tool})).collect()
}

/// Asserts that a call is one of [`tools`], and returns its name.
fn check_call(name: &Value, arguments: &str) -> String {
    let arguments: Value = serde_json::from_str(arguments).unwrap_or_else(|error| panic!("{error}: {arguments}"));
    match name.as_str().unwrap() {
        "add" => assert!((0..=9).contains(&arguments["n"].as_i64().unwrap()), "{arguments}"),
        "plant" => assert!([json!("oak"), json!("elm"), Value::Null].contains(&arguments["tree"]), "{arguments}"),
        "now" => assert_eq!(arguments, json!({})),
        other => panic!("there is no tool {other}"),
    }
    assert!(keys(&arguments).len() <= 1, "{arguments}");
    name.as_str().unwrap().to_owned()
}

/// Asserts that the calls of a message are those of [`tools`], and returns their names.
fn check_calls(message: &Value) -> Vec<String> {
    let check = |call: &Value| {
        assert_eq!(call["type"], "function");
        check_call(&call["function"]["name"], call["function"]["arguments"].as_str().unwrap())
    };
    message["tool_calls"].as_array().unwrap_or_else(|| panic!("{message}")).iter().map(check).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_that_has_to_call_a_tool_calls_one_streamed_or_not() {
    let server = start_http(Settings::default()).await;
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let (mut found, mut streamed) = (BTreeSet::new(), Vec::new());
    for seed in 0..8 {
        let mut body = json!({"messages": [{"role": "user", "content": TRUNK}], "tools": functions(), "seed": seed,
            "tool_choice": "required", "parallel_tool_calls": seed % 2 == 0, "max_tokens": 900});
        let answer = post(server.addr(), "/v1/chat/completions", &body.to_string()).await.json();
        let choice = &answer["choices"][0];
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["content"]),
            (&json!("tool_calls"), &Value::Null),
            "{answer}"
        );
        let names = check_calls(&choice["message"]);
        assert!(!names.is_empty() && (seed % 2 == 0 || names.len() == 1), "{names:?}");
        found.extend(names.clone());
        body["stream"] = json!(true);
        for event in post(server.addr(), "/v1/chat/completions", &body.to_string()).await.events() {
            let Ok(event) = serde_json::from_str::<Value>(&event) else { continue };
            let delta = &event["choices"][0]["delta"];
            assert!(delta["content"].as_str().is_none_or(str::is_empty), "{event}");
            if delta.get("tool_calls").is_some() {
                streamed.extend(check_calls(delta));
            }
        }
        assert_eq!(std::mem::take(&mut streamed), names, "the draws are the same");
        for name in ["plant", "now"] {
            body["tool_choice"] = named(name);
            body["stream"] = json!(false);
            let answer = post(server.addr(), "/v1/chat/completions", &body.to_string()).await.json();
            assert_eq!(check_calls(&answer["choices"][0]["message"]), [name]);
        }
    }
    assert!(found.len() > 1, "the model chooses: {found:?}");
    for (field, value, param) in [
        ("tool_choice", named("mow"), "tool_choice"),
        ("tools", json!([{"type": "function", "function": {"name": "f", "parameters": {"not": {}}}}]), "tools"),
        ("structured_outputs", json!({"regex": "a"}), "structured_outputs"),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "x"}], "tools": functions(), "tool_choice": "required", field: value});
        body["max_tokens"] = json!(9);
        let answer = post(server.addr(), "/v1/chat/completions", &body.to_string()).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{}", answer.body);
    }
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_and_responses_force_calls_and_responses_have_formats() {
    // Marks and reasoning are not part of an answer with a structure.
    let settings = Settings {
        tool_call_parser: Some("hermes".parse().unwrap()),
        reasoning_parser: Some("qwen3".parse().unwrap()),
        ..Settings::default()
    };
    let server = start_http(settings).await;
    let ask = async |path: &str, body: Value| {
        let answer = post(server.addr(), path, &body.to_string()).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        answer.json()
    };
    let tool = |tool: &Value| json!({"name": tool["name"], "input_schema": tool["parameters"]});
    let theirs: Vec<Value> = tools().as_array().unwrap().iter().take(2).map(tool).collect();
    for (choice, most) in [
        (json!({"type": "any"}), 99),
        (json!({"type": "any", "disable_parallel_tool_use": true}), 1),
        (json!({"type": "tool", "name": "plant"}), 1),
    ] {
        let body = json!({"messages": [{"role": "user", "content": TRUNK}], "max_tokens": 900, "tools": theirs, "tool_choice": choice});
        let answer = ask("/v1/messages", body).await;
        assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
        let calls = answer["content"].as_array().unwrap();
        assert!((1..=most).contains(&calls.len()), "{answer}");
        for call in calls {
            assert_eq!(call["type"], "tool_use");
            let name = check_call(&call["name"], &call["input"].to_string());
            assert!(choice.get("name").is_none() || name == "plant");
        }
    }
    for choice in [json!("required"), json!({"type": "function", "name": "add"})] {
        let body = json!({"input": TRUNK, "tools": tools(), "tool_choice": choice, "max_output_tokens": 900});
        let answer = ask("/v1/responses", body).await;
        assert_eq!((&answer["status"], &answer["tool_choice"]), (&json!("completed"), &choice));
        for item in answer["output"].as_array().unwrap() {
            assert_eq!(item["type"], "function_call", "{answer}");
            check_call(&item["name"], item["arguments"].as_str().unwrap());
        }
    }
    let format = json!({"type": "json_schema", "name": "person", "strict": true, "schema": person()});
    let answer =
        ask("/v1/responses", json!({"input": TRUNK, "text": {"format": format}, "max_output_tokens": 900})).await;
    check_person(answer["output"][0]["content"][0]["text"].as_str().unwrap());
    assert_eq!(answer["text"]["format"], format);
    let wrong = json!({"type": "json_schema", "name": "a", "schema": {"not": {}}});
    let body = json!({"input": TRUNK, "text": {"format": wrong}});
    let answer = post(server.addr(), "/v1/responses", &body.to_string()).await;
    assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("text.format")), "{}", answer.body);
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_tool_that_need_not_be_called_leaves_the_text_free_and_its_schema_has_to_be_one() {
    let settings = Settings { tool_call_parser: Some("hermes".parse().unwrap()), ..Settings::default() };
    let server = start_http(settings).await;
    let ask = async |strict: bool, schema: Value| {
        let tool = json!({"type": "function", "name": "add", "strict": strict, "parameters": schema});
        let body = json!({"input": TRUNK, "tools": [tool], "max_output_tokens": 12, "temperature": 0});
        let mut chat = json!({"messages": [{"role": "user", "content": TRUNK}], "max_tokens": 12, "temperature": 0});
        let function = json!({"name": "add", "strict": strict, "parameters": body["tools"][0]["parameters"]});
        chat["tools"] = json!([{"type": "function", "function": function}]);
        let response = post(server.addr(), "/v1/responses", &body.to_string()).await;
        let message = json!({"messages": chat["messages"], "max_tokens": 12, "temperature": 0, "tools": [
            {"name": "add", "strict": strict, "input_schema": body["tools"][0]["parameters"]},
        ]});
        let chat = post(server.addr(), "/v1/chat/completions", &chat.to_string()).await;
        let message = post(server.addr(), "/v1/messages", &message.to_string()).await;
        assert_eq!((response.status, message.status), (chat.status, chat.status), "{}", chat.body);
        (response, chat)
    };
    let (strict, _) = ask(true, json!({"type": "object", "properties": {"a": {"type": "integer"}}})).await;
    assert_eq!(strict.status, 200, "{}", strict.body);
    assert_eq!(
        (&strict.json()["output"][0]["type"], &strict.json()["status"]),
        (&json!("message"), &json!("incomplete"))
    );
    let unknown = json!({"type": "object", "properties": {"a": {"not": {}}}});
    let (response, chat) = ask(true, unknown.clone()).await;
    for refused in [response, chat] {
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("tools")), "{}", refused.body);
    }
    assert_eq!(ask(false, unknown).await.0.status, 200, "a schema that does not have to hold is not read");
    server.drain().await;
}
