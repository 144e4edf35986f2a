//! vLLM's gRPC service alongside the server's own: the same answers, refusals by name, aborts, health and rights.

use std::collections::BTreeMap;
use std::fs;

use tokio_stream::StreamExt;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest as StandardCheck;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use trunkline_core::Config;
use trunkline_server::proto::TokenIds;
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::{AttachOptions, Options};
use trunkline_tests::server::{TestServer, gated, greedy};
use trunkline_vllm::proto::smg::grpc::common::{
    FlushCacheRequest, GetTokenizerRequest, StopProfileRequest, SubscribeKvEventsRequest,
};
use trunkline_vllm::proto::vllm::grpc::engine::generate_complete::MatchedStop;
use trunkline_vllm::proto::vllm::grpc::engine::generate_request::Input;
use trunkline_vllm::proto::vllm::grpc::engine::generate_response::Response as Answer;
use trunkline_vllm::proto::vllm::grpc::engine::sampling_params::Constraint;
use trunkline_vllm::proto::vllm::grpc::engine::vllm_engine_client::VllmEngineClient;
use trunkline_vllm::proto::vllm::grpc::engine::{
    AbortRequest, EmbedRequest, GenerateComplete, GenerateRequest, GetLoadsRequest, GetModelInfoRequest,
    GetServerInfoRequest, HealthCheckRequest, InputLogProbs, SamplingParams, TokenizedInput,
};
use trunkline_vllm::{ModelFiles, Settings};

const SERVICE: &str = "vllm.grpc.engine.VllmEngine";
const PROMPT: [u32; 40] = [104; 40];

type Client = VllmEngineClient<Channel>;

const CONFIG: &str =
    r#"{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "pad_token_id": [2, 3]}"#;
const FILES: &[(&str, &[u8])] =
    &[("config.json", CONFIG.as_bytes()), ("tokenizer.json", b"{}"), ("model.safetensors", b"")];

fn settings() -> Settings {
    let (served_name, path) = (Some("a-model".into()), Some("/models/a".into()));
    Settings { served_name, path, files: ModelFiles::Memory(FILES), events: None }
}

async fn start() -> TestServer {
    TestServer::start_vllm(Config::default(), settings(), |_| {}, |worker| Box::new(worker)).await.unwrap()
}

async fn connect(server: &TestServer) -> Client {
    VllmEngineClient::new(server.channel().await)
}

fn request(stream: bool, edit: impl FnOnce(&mut SamplingParams)) -> GenerateRequest {
    let mut params =
        SamplingParams { temperature: Some(0.0), max_tokens: Some(6), ignore_eos: true, ..Default::default() };
    edit(&mut params);
    let tokenized = TokenizedInput { input_ids: PROMPT.to_vec(), ..Default::default() };
    GenerateRequest {
        input: Some(Input::Tokenized(tokenized)),
        sampling_params: Some(params),
        stream,
        ..GenerateRequest::default()
    }
}

/// Tokens in chunks by choice, and the ends by choice.
#[derive(Debug, Default)]
struct Whole {
    tokens: BTreeMap<u32, Vec<u32>>,
    logprobs: Vec<f32>,
    /// Log probabilities of the prompt, with the first chunk.
    prompt: Option<InputLogProbs>,
    ends: BTreeMap<u32, GenerateComplete>,
}

async fn ask(client: &mut Client, request: GenerateRequest) -> Result<Whole, Status> {
    let mut stream = client.generate(request).await?.into_inner();
    let mut whole = Whole::default();
    while let Some(message) = stream.message().await? {
        match message.response.expect("a chunk or an end") {
            Answer::Chunk(chunk) => {
                assert!(!whole.ends.contains_key(&chunk.index), "nothing comes after the end");
                assert_eq!(chunk.completion_tokens as usize, chunk.token_ids.len(), "new tokens alone");
                assert_eq!(chunk.prompt_tokens as usize, PROMPT.len());
                let logprobs = chunk.output_logprobs.unwrap_or_default();
                assert!(logprobs.token_ids.is_empty() || logprobs.token_ids == chunk.token_ids);
                whole.logprobs.extend(logprobs.token_logprobs);
                assert!(chunk.input_logprobs.is_none() || !whole.tokens.contains_key(&chunk.index), "the first chunk");
                whole.prompt = whole.prompt.or(chunk.input_logprobs);
                whole.tokens.entry(chunk.index).or_default().extend(chunk.token_ids);
            }
            Answer::Complete(complete) => drop(whole.ends.insert(complete.index, complete)),
        }
    }
    Ok(whole)
}

async fn refusal(client: &mut Client, request: GenerateRequest) -> (Code, String) {
    let status = ask(client, request).await.expect_err("a refusal");
    (status.code(), status.message().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_is_that_of_the_servers_own_service_streamed_or_not() {
    let server = start().await;
    let mut own = greedy("", 6);
    own.prompt = Some(Prompt::TokenIds(TokenIds { ids: PROMPT.to_vec() }));
    own.output.as_mut().unwrap().logprobs = Some(2);
    let expected = server.client().await.ask(own).await.unwrap();
    let logprobs: Vec<f32> = expected.logprobs.iter().map(|of| of.logprob).collect();
    let mut client = connect(&server).await;

    let streamed = ask(&mut client, request(true, |params| params.logprobs = Some(2))).await.unwrap();
    assert_eq!((&streamed.tokens[&0], &streamed.logprobs), (&expected.token_ids, &logprobs));
    let end = &streamed.ends[&0];
    assert_eq!((end.finish_reason.as_str(), end.prompt_tokens, end.completion_tokens), ("length", 40, 6));
    assert_eq!((end.cached_tokens, end.output_ids.len(), &end.matched_stop), (32, 0, &None));

    let whole = ask(&mut client, request(false, |params| params.logprobs = Some(2))).await.unwrap();
    let end = &whole.ends[&0];
    assert_eq!((whole.tokens.len(), &end.output_ids), (0, &expected.token_ids));
    let reported = end.output_logprobs.as_ref().unwrap();
    assert_eq!((&reported.token_ids, &reported.token_logprobs), (&expected.token_ids, &logprobs));
    assert!(reported.top_logprobs.iter().all(|top| top.token_ids.len() == 2 && top.values.len() == 2));

    // Several answers to one prompt, each with its index.
    let several = ask(&mut client, request(true, |params| params.n = 3)).await.unwrap();
    assert_eq!(several.ends.keys().copied().collect::<Vec<_>>(), [0, 1, 2]);
    assert!(several.tokens.values().all(|tokens| *tokens == expected.token_ids) && several.logprobs.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn log_probabilities_of_the_prompt_come_first_and_once() {
    let server = start().await;
    let mut own = greedy("", 6);
    own.prompt = Some(Prompt::TokenIds(TokenIds { ids: PROMPT.to_vec() }));
    own.output.as_mut().unwrap().prompt_logprobs = Some(2);
    let expected = server.client().await.ask(own).await.unwrap().prompt_logprobs;
    let values: Vec<Option<f32>> = std::iter::once(None).chain(expected.iter().map(|of| Some(of.logprob))).collect();
    let mut client = connect(&server).await;
    let check = |prompt: &InputLogProbs, n_top: usize| {
        assert_eq!(prompt.token_ids, PROMPT);
        assert_eq!(prompt.token_logprobs.iter().map(|of| of.value).collect::<Vec<_>>(), values);
        let tops: Vec<usize> = prompt.top_logprobs.iter().map(|top| top.token_ids.len()).collect();
        let expected = if n_top == 0 { Vec::new() } else { [vec![0], vec![n_top; PROMPT.len() - 1]].concat() };
        assert_eq!(tops, expected);
    };
    for n in [1, 3] {
        let edit = |params: &mut SamplingParams| (params.prompt_logprobs, params.n) = (Some(2), n);
        let streamed = ask(&mut client, request(true, edit)).await.unwrap();
        check(streamed.prompt.as_ref().unwrap(), 2);
        assert!(streamed.ends.values().all(|end| end.input_logprobs.is_none()) && streamed.ends.len() == n as usize);
        let whole = ask(&mut client, request(false, edit)).await.unwrap();
        check(whole.ends[&0].input_logprobs.as_ref().unwrap(), 2);
    }
    let few = ask(&mut client, request(false, |params| params.prompt_logprobs = Some(0))).await.unwrap();
    check(few.ends[&0].input_logprobs.as_ref().unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn stops_say_what_was_matched_and_the_models_own_end_is_nothing_special() {
    let small = Config { max_context: 128, ..Config::default() };
    let server = TestServer::start_vllm(small, settings(), |_| {}, |worker| Box::new(worker)).await.unwrap();
    let mut client = connect(&server).await;
    let tokens = ask(&mut client, request(true, |_| {})).await.unwrap().tokens.remove(&0).unwrap();
    let stop = ask(&mut client, request(true, |params| params.stop_token_ids = vec![tokens[2]])).await.unwrap();
    let at = tokens.iter().position(|token| *token == tokens[2]).unwrap();
    assert_eq!(stop.tokens[&0], tokens[..=at]);
    assert_eq!(stop.ends[&0].matched_stop, Some(MatchedStop::MatchedTokenId(tokens[2])));

    let text = "say it";
    let own = server.client().await.ask(greedy(text, 12)).await.unwrap();
    let stop: String = own.text.chars().take(1).collect();
    let by_text = GenerateRequest {
        input: Some(Input::Text(text.into())),
        ..request(false, |params| {
            params.max_tokens = Some(12);
            params.stop = vec![stop.clone()];
        })
    };
    let end = ask(&mut client, by_text).await.unwrap().ends.remove(&0).unwrap();
    assert_eq!((end.finish_reason.as_str(), end.matched_stop), ("stop", Some(MatchedStop::MatchedStopStr(stop))));
    assert_eq!(end.output_ids, own.token_ids[..end.output_ids.len()]);

    // Without max_tokens, the context is the bound.
    let max_context = client.get_model_info(GetModelInfoRequest {}).await.unwrap().into_inner().max_context_length;
    let end = ask(&mut client, request(false, |params| params.max_tokens = None)).await.unwrap();
    assert_eq!(end.ends[&0].completion_tokens, max_context - PROMPT.len() as u32);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_honoured_is_refused_by_the_name_of_its_field() {
    let server = start().await;
    let mut client = connect(&server).await;
    let begins = [
        (request(true, |params| params.frequency_penalty = 2.5), "frequency_penalty is 2.5"),
        (
            request(true, |params| {
                params.ignore_eos = false;
                params.constraint = Some(Constraint::JsonSchema("{".into()));
            }),
            "json_schema is refused: it is no JSON",
        ),
        (request(true, |params| params.temperature = Some(-1.0)), "temperature is -1"),
        (request(true, |params| params.logprobs = Some(21)), "logprobs is 21"),
        (request(true, |params| params.max_tokens = Some(0)), ""),
        (GenerateRequest { input: None, ..request(true, |_| {}) }, "input is missing"),
        (GenerateRequest { data_parallel_rank: Some(1), ..request(true, |_| {}) }, "data_parallel_rank is 1"),
    ];
    for (request, begin) in begins {
        let (code, message) = refusal(&mut client, request).await;
        assert!(code == Code::InvalidArgument && message.starts_with(begin), "{begin}: {code:?} {message}");
    }
    let code = |status: Status| status.code();
    assert_eq!(client.embed(EmbedRequest::default()).await.map_err(code).err(), Some(Code::Unimplemented));
    assert_eq!(client.stop_profile(StopProfileRequest {}).await.map_err(code).err(), Some(Code::Unimplemented));
    let events = client.subscribe_kv_events(SubscribeKvEventsRequest::default()).await;
    assert_eq!(events.map_err(code).err(), Some(Code::Unimplemented));
    let other = GetLoadsRequest { dp_rank: Some(1), ..Default::default() };
    assert_eq!(client.get_loads(other).await.map_err(code).err(), Some(Code::InvalidArgument));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_abort_ends_all_answers_of_an_id_on_whichever_connection_it_comes() {
    let (wrap, gate) = gated();
    let server = TestServer::start_vllm(Config::default(), settings(), |_| {}, wrap).await.unwrap();
    let mut client = connect(&server).await;
    let several = GenerateRequest { request_id: "a".into(), ..request(true, |params| params.n = 2) };
    let mut stream = client.generate(several).await.unwrap().into_inner();
    let mut other = connect(&server).await;
    other.abort(AbortRequest { request_ids: vec!["a".into(), "unknown".into()] }).await.unwrap();
    drop(gate);
    let mut ends = Vec::new();
    while let Some(message) = stream.message().await.unwrap() {
        if let Some(Answer::Complete(complete)) = message.response {
            ends.push((complete.index, complete.finish_reason));
        }
    }
    ends.sort();
    assert_eq!(ends, [(0, "abort".to_owned()), (1, "abort".to_owned())]);
    // The id is free again, and a second abort does no harm.
    other.abort(AbortRequest { request_ids: vec!["a".into()] }).await.unwrap();
    let again = GenerateRequest { request_id: "a".into(), ..request(true, |params| params.n = 2) };
    assert_eq!(ask(&mut client, again).await.unwrap().ends.len(), 2);
    // A stream that nobody reads any more is aborted with all its answers.
    let dropped =
        client.generate(request(true, |params| (params.n, params.max_tokens) = (2, Some(400)))).await.unwrap();
    drop(dropped);
    server.client().await.settled().await;
}

async fn standard_health(server: &TestServer) -> i32 {
    let check = StandardCheck { service: SERVICE.into() };
    HealthClient::new(server.channel().await).check(check).await.unwrap().into_inner().status
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_drains_is_not_healthy_and_finishes_what_it_has() {
    let (wrap, gate) = gated();
    let server = TestServer::start_vllm(Config::default(), settings(), |_| {}, wrap).await.unwrap();
    let mut client = connect(&server).await;
    let mut other = connect(&server).await;
    assert!(other.health_check(HealthCheckRequest {}).await.unwrap().into_inner().healthy);
    assert_eq!(standard_health(&server).await, ServingStatus::Serving as i32);
    let mut stream = client.generate(request(true, |_| {})).await.unwrap().into_inner();
    server.handle().drain().await;
    let answer = other.health_check(HealthCheckRequest {}).await.unwrap().into_inner();
    assert!(!answer.healthy && answer.message.contains("drains"), "{answer:?}");
    assert_eq!(standard_health(&server).await, ServingStatus::NotServing as i32);
    assert_eq!(refusal(&mut other, request(true, |_| {})).await.0, Code::Unavailable);
    drop(gate);
    let mut n_tokens = 0;
    while let Some(message) = stream.message().await.unwrap() {
        if let Some(Answer::Chunk(chunk)) = message.response {
            n_tokens += chunk.token_ids.len();
        }
    }
    assert_eq!(n_tokens, 6);
    drop((stream, client, other));
    assert_eq!(server.stopped().await.stats.requests.accepted, 1);
}

fn with<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_have_the_rights_that_they_have_with_the_servers_own_service() {
    const ADMIN: &str = "admin-0123456789";
    const ALICE: &str = "alice-0123456789";
    const WORKER: &str = "worker-123456789";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, format!("{ADMIN} admin ops\n{ALICE} generate alice\n{WORKER} worker gpu\n")).unwrap();
    let edit = |options: &mut Options| options.token_file = Some(path);
    let server = TestServer::start_vllm(Config::default(), settings(), edit, |worker| Box::new(worker)).await.unwrap();
    let mut client = connect(&server).await;
    let code = |status: Status| status.code();
    assert_eq!(client.generate(request(true, |_| {})).await.map_err(code).err(), Some(Code::Unauthenticated));
    let info = client.get_model_info(with(WORKER, GetModelInfoRequest {})).await;
    assert_eq!(info.map_err(code).err(), Some(Code::PermissionDenied));
    assert!(client.generate(with(ALICE, request(true, |_| {}))).await.is_ok());
    let flushed = client.flush_cache(with(ALICE, FlushCacheRequest::default())).await;
    assert_eq!(flushed.map_err(code).err(), Some(Code::PermissionDenied));
    assert!(client.flush_cache(with(ADMIN, FlushCacheRequest::default())).await.unwrap().into_inner().success);
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_first_worker_there_is_no_model() {
    let attach = AttachOptions { engines: 1, ..AttachOptions::default() };
    let options = Options { attach, ..Options::default() };
    let server = TestServer::vllm_without_model(options, Box::new(|_| Err("no worker".into()))).await.unwrap();
    let mut client = connect(&server).await;
    assert!(!client.health_check(HealthCheckRequest {}).await.unwrap().into_inner().healthy);
    assert_eq!(refusal(&mut client, request(true, |_| {})).await.0, Code::Unavailable);
    let status = client.get_model_info(GetModelInfoRequest {}).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::Unavailable, "no worker has attached yet; try again later"));
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_learns_the_model_its_tokenizer_and_the_load() {
    let server = start().await;
    let mut client = connect(&server).await;
    let info = client.get_model_info(GetModelInfoRequest {}).await.unwrap().into_inner();
    let own = server.client().await.0.get_model_info(trunkline_server::proto::GetModelInfoRequest {}).await;
    let own = own.unwrap().into_inner();
    assert_eq!((info.vocab_size, info.max_context_length), (own.vocab_size, own.max_context));
    assert_eq!((info.served_model_name.as_str(), info.model_path.as_str()), ("a-model", "/models/a"));
    assert_eq!((info.model_type.as_str(), &info.architectures[..]), ("llama", &["LlamaForCausalLM".to_owned()][..]));
    assert_eq!((info.bos_token_id, info.pad_token_id, info.is_generation), (1, 2, true));

    ask(&mut client, request(true, |_| {})).await.unwrap();
    server.client().await.settled().await;
    let server_info = client.get_server_info(GetServerInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((server_info.server_type.as_str(), server_info.active_requests), ("vllm-grpc", 0));
    assert!(server_info.last_receive_timestamp > 0.0 && !server_info.is_paused);
    let loads = client.get_loads(GetLoadsRequest::default()).await.unwrap().into_inner();
    let load = loads.loads[0];
    assert_eq!((loads.dp_rank_count, load.num_total_reqs, load.num_used_tokens), (1, 0, 0));
    let config = Config::default();
    assert_eq!(load.max_total_num_tokens as u32, config.device_blocks * config.block_size);
    assert!(loads.timestamp.ends_with('Z'), "{}", loads.timestamp);

    let mut pieces = client.get_tokenizer(GetTokenizerRequest {}).await.unwrap().into_inner();
    let (mut archive, mut hash) = (Vec::new(), String::new());
    while let Some(piece) = pieces.message().await.unwrap() {
        archive.extend(piece.data);
        hash = piece.sha256;
    }
    assert!(archive.starts_with(b"PK\x03\x04") && hash.len() == 64);
    let has = |name: &str| archive.windows(name.len()).any(|part| part == name.as_bytes());
    assert!(has("tokenizer.json") && has("config.json") && !has("model.safetensors"));

    let ask = MessageRequest::FileContainingSymbol(SERVICE.into());
    let ask = ServerReflectionRequest { host: String::new(), message_request: Some(ask) };
    let mut reflection = ServerReflectionClient::new(server.channel().await);
    let mut answers = reflection.server_reflection_info(tokio_stream::iter([ask])).await.unwrap().into_inner();
    let answer = answers.next().await.unwrap().unwrap().message_response;
    assert!(matches!(answer, Some(MessageResponse::FileDescriptorResponse(_))), "{answer:?}");
}
