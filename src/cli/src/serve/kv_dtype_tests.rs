//! `--kv-dtype`: servers with each element type of the KV cache answer, and find prefixes of their own type only.

use serde_json::Value;
use tonic::transport::Channel;
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::generate_response::Event;
use trunkline_server::proto::inference_client::InferenceClient;
use trunkline_server::proto::sessions_client::SessionsClient;
use trunkline_server::proto::{
    AppendTurnRequest, CompactSessionRequest, Compaction, CreateSessionRequest, GenerateRequest, GetServerInfoRequest,
    GetSessionRequest, Sampling, SessionSettings, Stopping, TokenIds, append_turn_request,
};

use trunkline_worker::Kernel;

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

fn request() -> GenerateRequest {
    GenerateRequest {
        prompt: Some(Prompt::TokenIds(TokenIds { ids: (0..PROMPT_TOKENS).map(|i| i * 7 % 250).collect() })),
        sampling: Some(Sampling { temperature: Some(0.0), ..Sampling::default() }),
        stopping: Some(Stopping { max_tokens: Some(NEW_TOKENS), ignore_eos: true, ..Stopping::default() }),
        ..GenerateRequest::default()
    }
}

/// Returns the tokens of an answer, and the number of cached ones of its prompt.
async fn answer(client: &mut InferenceClient<Channel>, request: GenerateRequest) -> (Vec<u32>, u32) {
    let mut stream = client.generate(request).await.unwrap().into_inner();
    let mut tokens = Vec::new();
    loop {
        match stream.message().await.unwrap().expect("a finish before the end").event.expect("an event") {
            Event::Chunk(chunk) => tokens.extend(chunk.token_ids),
            Event::Finish(finish) => return (tokens, finish.usage.expect("usage").cached_tokens),
        }
    }
}

/// Serves with a type, asks twice, and stops.
async fn seen(dtype: &str) -> Seen {
    let dir = tempfile::tempdir().unwrap();
    let record = dir.path().join("run.jsonl");
    let settings = given(&[&format!("--kv-dtype={dtype}"), "--block-size=8", "--device-blocks=64"]);
    let engines = Engines::of(&settings, 1).unwrap();
    let (cores, backend) = embedded(&settings, &engines).unwrap();
    assert_eq!(backend.model.kv_dtype, dtype);
    let options = Options { cluster: engines.cluster(&cores), record: Some(record.clone()), ..Options::default() };
    let server = Server::new(listen("127.0.0.1:0").await.unwrap(), backend, options).await.unwrap();
    let (address, handle) = (format!("http://{}", server.local_addr()), server.handle());
    let serving = tokio::spawn(server.run());
    let mut client = InferenceClient::connect(address).await.unwrap();
    let mut answers = Vec::new();
    for _ in 0..2 {
        answers.push(answer(&mut client, request()).await);
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
    let error = |flags: &[&str]| Engines::of(&given(flags), 1).unwrap_err().to_string();
    let unknown = error(&["--kv-dtype=fp8"]);
    assert_eq!(unknown, "unknown kv-dtype 'fp8'; there are: f32, f16, bf16, q8_0, q4_0");
    let number = error(&["--workers=3", "--kv-dtype=f16,q8_0"]);
    assert_eq!(number, "kv-dtype names 2 types and workers is 3; give one type for all, or one for each worker");
    let revision = |flags: &[&str]| {
        let settings = given(flags);
        let made = embedded(&settings, &Engines::of(&settings, 1).unwrap());
        made.map(|(_, backend)| backend.model.revision).map_err(|error| error.to_string())
    };
    assert!(revision(&["--kernel=sse"]).unwrap_err().starts_with("unknown kernel 'sse'"));
    let (plain, fastest) = (revision(&[]).unwrap(), revision(&["--kernel=auto"]).unwrap());
    assert_eq!(revision(&["--kernel=portable"]), Ok(plain.clone()));
    assert_eq!(fastest == format!("{plain}+amx-bf16"), Kernel::of_machine() != Kernel::Portable);
    let blocks = |flags: &[&str]| {
        let settings = given(flags);
        embedded(&settings, &Engines::of(&settings, 1).unwrap()).unwrap().0[0].device_blocks
    };
    // Large blocks, so that memory and not the largest number of blocks decides.
    assert_eq!(blocks(&["--block-size=4096", "--kv-dtype=bf16"]), 2 * blocks(&["--block-size=4096"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_chooses_the_type_of_its_kv_and_finds_prefixes_of_that_type_alone() {
    let flags = ["--workers=2", "--kv-dtype=f32,q8_0", "--block-size=8", "--device-blocks=64", "--host-mem=4MiB"];
    let settings = given(&flags);
    let engines = Engines::of(&settings, 2).unwrap();
    let (cores, backend) = embedded(&settings, &engines).unwrap();
    assert_eq!((cores.len(), backend.further_kv[0].kv_dtype.as_str()), (2, "q8_0"));
    // In the same host memory there is room for more blocks of the smaller type.
    assert!(cores[1].host_blocks > cores[0].host_blocks, "{} and {}", cores[1].host_blocks, cores[0].host_blocks);
    let options = Options { cluster: engines.cluster(&cores), ..Options::default() };
    let server = Server::new(listen("127.0.0.1:0").await.unwrap(), backend, options).await.unwrap();
    let (address, handle) = (format!("http://{}", server.local_addr()), server.handle());
    let serving = tokio::spawn(server.run());
    let mut client = InferenceClient::connect(address).await.unwrap();
    let mut cached = Vec::new();
    for dtype in ["", "q8_0", "f32", "q8_0", "q8_0"] {
        let request = GenerateRequest { kv_dtype: dtype.into(), ..request() };
        cached.push(answer(&mut client, request).await.1);
    }
    let all = PROMPT_TOKENS - 1;
    assert_eq!(cached, [0, 0, all, all, all], "the first type is that of requests which name none");
    let unknown = GenerateRequest { kv_dtype: "f16".into(), ..request() };
    let status = client.generate(unknown).await.unwrap_err();
    assert_eq!(status.message(), "kv_dtype is 'f16'; the workers of this server have: f32, q8_0");
    let info = client.get_server_info(GetServerInfoRequest::default()).await.unwrap().into_inner();
    let engines: Vec<(String, u64)> =
        info.engines.into_iter().map(|engine| (engine.kv_dtype, engine.counters.unwrap().accepted)).collect();
    assert_eq!(engines, [("f32".to_owned(), 2), ("q8_0".to_owned(), 3)]);
    drop(client);
    handle.drain().await;
    serving.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_has_its_summaries_written_in_another_type() {
    let settings = given(&["--workers=2", "--kv-dtype=q8_0,q4_0", "--block-size=8", "--device-blocks=128"]);
    let engines = Engines::of(&settings, 2).unwrap();
    let (cores, backend) = embedded(&settings, &engines).unwrap();
    let options = Options { cluster: engines.cluster(&cores), ..Options::default() };
    let server = Server::new(listen("127.0.0.1:0").await.unwrap(), backend, options).await.unwrap();
    let (address, handle) = (format!("http://{}", server.local_addr()), server.handle());
    let serving = tokio::spawn(server.run());
    let mut sessions = SessionsClient::connect(address.clone()).await.unwrap();
    let compaction = Compaction {
        kv_dtype: "q4_0".into(),
        summary_max: Some(20),
        sample_max: Some(30),
        instruction: Some("Question: What are the secret words?\nAnswer:".into()),
        ..Compaction::default()
    };
    let settings = SessionSettings { compaction: Some(compaction), ..SessionSettings::default() };
    let request = CreateSessionRequest { settings: Some(settings), ..CreateSessionRequest::default() };
    let session_id = sessions.create(request).await.unwrap().into_inner().session_id;
    let text = "The secret words of the fox are: moon, kettle.\n".repeat(4);
    let input = Some(append_turn_request::Input::Text(text));
    let turn = AppendTurnRequest { session_id: session_id.clone(), input, ..AppendTurnRequest::default() };
    sessions.append(turn).await.unwrap();
    let compact = CompactSessionRequest {
        session_id: session_id.clone(),
        keep_tokens: Some(0),
        ..CompactSessionRequest::default()
    };
    assert!(sessions.compact(compact).await.unwrap().into_inner().compacted);
    let totals = sessions
        .get(GetSessionRequest { session_id, without_turns: false })
        .await
        .unwrap()
        .into_inner()
        .totals
        .unwrap();
    assert!(totals.summary_prompt_tokens > 30 && totals.summary_cached_tokens == 0, "{totals:?}");
    let mut client = InferenceClient::connect(address).await.unwrap();
    let info = client.get_server_info(GetServerInfoRequest::default()).await.unwrap().into_inner();
    let engines: Vec<(String, u64)> =
        info.engines.into_iter().map(|engine| (engine.kv_dtype, engine.counters.unwrap().accepted)).collect();
    assert_eq!(engines, [("q8_0".to_owned(), 1), ("q4_0".to_owned(), 1)], "the new context, and the summary");
    drop((client, sessions));
    handle.drain().await;
    serving.await.unwrap().unwrap();
}
