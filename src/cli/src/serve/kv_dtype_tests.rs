//! `--kv-dtype`: servers with each element type of the KV cache answer, and find prefixes of their own type only.

use serde_json::Value;
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::generate_response::Event;
use trunkline_server::proto::inference_client::InferenceClient;
use trunkline_server::proto::{GenerateRequest, Sampling, Stopping, TokenIds};

use super::tests::given;
use super::*;

const PROMPT_TOKENS: u32 = 40;
const NEW_TOKENS: u32 = 6;

/// Answers of one server to the same prompt twice.
struct Seen {
    /// Generated tokens and cached tokens of each answer.
    answers: Vec<(Vec<u32>, u32)>,
    /// Roots of the prefixes of both requests, as recorded.
    roots: Vec<Value>,
}

/// Serves with a type, asks twice, and stops.
async fn seen(dtype: &str) -> Seen {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("run.jsonl");
    let settings = given(&[&format!("--kv-dtype={dtype}"), "--block-size=8", "--device-blocks=64"]);
    let engines = Engines::of(&settings, 1).unwrap();
    let (config, backend) = embedded(&settings, &engines).unwrap();
    assert_eq!(backend.model.kv_dtype, dtype);
    let options = Options { cluster: engines.cluster(&config), record: Some(record.clone()), ..Options::default() };
    let server = Server::new(listen("127.0.0.1:0").await.unwrap(), backend, options).await.unwrap();
    let (address, handle) = (format!("http://{}", server.local_addr()), server.handle());
    let serving = tokio::spawn(server.run());
    let mut client = InferenceClient::connect(address).await.unwrap();
    let mut answers = Vec::new();
    for _ in 0..2 {
        let request = GenerateRequest {
            prompt: Some(Prompt::TokenIds(TokenIds { ids: (0..PROMPT_TOKENS).map(|i| i * 7 % 250).collect() })),
            sampling: Some(Sampling { temperature: Some(0.0), ..Sampling::default() }),
            stopping: Some(Stopping { max_tokens: Some(NEW_TOKENS), ignore_eos: true, ..Stopping::default() }),
            ..GenerateRequest::default()
        };
        let mut stream = client.generate(request).await.unwrap().into_inner();
        let mut tokens = Vec::new();
        let usage = loop {
            match stream.message().await.unwrap().expect("a finish before the end").event.expect("an event") {
                Event::Chunk(chunk) => tokens.extend(chunk.token_ids),
                Event::Finish(finish) => break finish.usage.expect("usage"),
            }
        };
        answers.push((tokens, usage.cached_tokens));
    }
    drop(client);
    handle.drain().await;
    serving.await.unwrap().unwrap();
    let lines = std::fs::read_to_string(&record).unwrap();
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let roots = lines.filter_map(|line| line.pointer("/event/submit/root").cloned()).collect();
    Seen { answers, roots }
}

#[tokio::test(flavor = "multi_thread")]
async fn prefixes_are_found_within_a_type_and_never_across_types() {
    let mut roots = Vec::new();
    for dtype in ["f32", "f16", "bf16"] {
        let seen = seen(dtype).await;
        let [(first, 0), (second, cached)] = &seen.answers[..] else { panic!("{dtype}: {:?}", seen.answers) };
        assert_eq!((first.len(), first), (NEW_TOKENS as usize, second), "{dtype}");
        assert_eq!(*cached, PROMPT_TOKENS - 1, "{dtype}: all but the last token comes from the cache");
        assert_eq!((seen.roots.len(), &seen.roots[0]), (2, &seen.roots[1]), "{dtype}");
        assert!(!roots.contains(&seen.roots[0]), "{dtype} shares the prefixes of another type");
        roots.extend(seen.roots.into_iter().take(1));
    }
    assert_eq!(seen("f16").await.roots[0], roots[1], "another server of the same type has the same prefixes");
}

#[test]
fn an_unknown_type_is_refused_by_name_and_sixteen_bits_hold_twice_the_tokens() {
    let error = kv_dtype(&given(&["--kv-dtype=fp8"])).unwrap_err().to_string();
    assert_eq!(error, "unknown kv-dtype 'fp8'; there are: f32, f16, bf16, q8_0, q4_0");
    let blocks = |flags: &[&str]| {
        let settings = given(flags);
        embedded(&settings, &Engines::of(&settings, 1).unwrap()).unwrap().0.device_blocks
    };
    // Large blocks, so that memory and not the largest number of blocks decides.
    assert_eq!(blocks(&["--block-size=4096", "--kv-dtype=bf16"]), 2 * blocks(&["--block-size=4096"]));
}
