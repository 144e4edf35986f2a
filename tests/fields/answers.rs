//! Each field of an answer is seen: here, or by a test elsewhere.

use std::collections::BTreeSet;
use std::time::Duration;

use prost::Message;
use prost_reflect::{DynamicMessage, ReflectMessage, Value};
use trunkline_core::Config;
use trunkline_server::SessionOptions;
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::inference_client::InferenceClient;
use trunkline_server::proto::{
    AbortRequest, CompactSessionRequest, FlushCacheRequest, GenerateRequest, GetModelInfoRequest, GetServerInfoRequest,
    GetSessionRequest, ListSessionsRequest, Output, SessionSettings, Stopping, SummaryInput, TokenIds,
};
use trunkline_tests::server::{Client, TestServer, gated, greedy};
use trunkline_tests::sessions::{Chat, settings, turn};

/// Fields, or messages with a dot behind, that need a server of another kind: the file and the name of a test that sees them.
const ELSEWHERE: &[(&str, &str, &str)] = &[
    ("AttachedWorker.", "tests/attached.rs", "workers_killed_at_random_lose_no_request_and_no_token"),
    ("EngineInfo.worker", "tests/attached.rs", "workers_killed_at_random_lose_no_request_and_no_token"),
    (
        "EngineInfo.number",
        "src/cli/src/serve/kv_dtype_tests.rs",
        "a_request_chooses_the_type_of_its_kv_and_finds_prefixes_of_that_type_alone",
    ),
    (
        "EngineInfo.abandoned_workers",
        "tests/hangs.rs",
        "requests_whose_step_hangs_are_answered_and_the_blocks_come_back_with_the_step",
    ),
    (
        "Store.",
        "tests/tiers.rs",
        "host_memory_gives_the_same_text_compressed_or_not_and_the_recording_the_same_decisions",
    ),
    ("StorePlace.", "tests/tiers.rs", "blocks_on_disk_that_were_damaged_are_computed_again"),
    ("StoreLink.", "tests/tiers.rs", "a_server_that_was_restarted_finds_its_blocks_on_disk_and_says_the_same"),
    (
        "Durations.",
        "tests/tiers.rs",
        "host_memory_gives_the_same_text_compressed_or_not_and_the_recording_the_same_decisions",
    ),
    (
        "WeightReads.",
        "src/cli/src/serve/placement/weights_tests.rs",
        "a_packed_file_damaged_under_a_server_is_written_again_and_requests_are_answered",
    ),
    (
        "Counters.weights",
        "src/cli/src/serve/placement/weights_tests.rs",
        "a_packed_file_damaged_under_a_server_is_written_again_and_requests_are_answered",
    ),
    ("Counters.h2o_plans", "tests/h2o.rs", "a_request_chooses_its_mode_and_others_find_the_prompt_whole"),
    ("Counters.h2o_dropped_tokens", "tests/h2o.rs", "a_request_chooses_its_mode_and_others_find_the_prompt_whole"),
    ("Counters.h2o_dropped_blocks", "tests/h2o.rs", "a_request_chooses_its_mode_and_others_find_the_prompt_whole"),
    (
        "Counters.h2o_reread_tokens",
        "tests/h2o.rs",
        "a_prompt_is_read_again_beside_its_answer_and_clients_see_nothing_of_it",
    ),
    (
        "Blocks.retained",
        "tests/retention.rs",
        "a_prompt_with_a_hint_outlives_others_and_the_recording_decides_the_same",
    ),
    (
        "Counters.ignored_retained_blocks",
        "tests/retention.rs",
        "a_prompt_with_a_hint_outlives_others_and_the_recording_decides_the_same",
    ),
    (
        "Counters.evicted_retained_blocks",
        "tests/retention.rs",
        "a_prompt_with_a_hint_outlives_others_and_the_recording_decides_the_same",
    ),
    (
        "Counters.copied_tokens",
        "tests/reuse.rs",
        "an_edited_first_turn_copies_the_rest_and_the_recording_decides_the_same",
    ),
    (
        "Usage.loaded_tokens",
        "tests/tiers.rs",
        "a_prefetched_prompt_is_on_the_device_before_its_request_and_the_recording_replays",
    ),
    ("Usage.pinned_tokens", "tests/retention.rs", "a_pin_outlives_hints_and_the_answer_says_what_is_pinned"),
    (
        "Usage.copied_tokens",
        "tests/reuse.rs",
        "an_edited_first_turn_copies_the_rest_and_the_recording_decides_the_same",
    ),
    (
        "Counters.restarted",
        "tests/failover.rs",
        "a_worker_that_is_lost_costs_no_text_and_no_other_engine_and_serves_again",
    ),
    (
        "Counters.withdrawn",
        "tests/failover.rs",
        "a_worker_that_is_lost_costs_no_text_and_no_other_engine_and_serves_again",
    ),
    ("Counters.drafted_tokens", "tests/metrics.rs", "the_figures_of_a_known_load_are_exact"),
    ("Counters.accepted_drafts", "tests/metrics.rs", "the_figures_of_a_known_load_are_exact"),
    ("Counters.swap_outs", "tests/grpc.rs", "sixty_four_streams_on_a_pool_too_small_for_them_say_what_each_says_alone"),
    (
        "Counters.swapped_in_blocks",
        "tests/grpc.rs",
        "sixty_four_streams_on_a_pool_too_small_for_them_say_what_each_says_alone",
    ),
    (
        "Counters.swap_in_found_blocks",
        "tests/grpc.rs",
        "sixty_four_streams_on_a_pool_too_small_for_them_say_what_each_says_alone",
    ),
    (
        "Counters.swap_in_joined_blocks",
        "tests/grpc.rs",
        "sixty_four_streams_on_a_pool_too_small_for_them_say_what_each_says_alone",
    ),
    (
        "Counters.swap_in_merged_blocks",
        "tests/grpc.rs",
        "sixty_four_streams_on_a_pool_too_small_for_them_say_what_each_says_alone",
    ),
    ("Network.", "tests/hostile.rs", "unread_output_is_bounded_in_bytes"),
    (
        "GetServerInfoResponse.draining",
        "tests/grpc.rs",
        "a_server_that_drains_finishes_what_it_has_and_takes_nothing_new",
    ),
];

/// An export leaves the tenant to its import.
const NEVER: &str = "SessionSettings.tenant";
/// Room for the context of a session, but not for thirty turns.
const BYTES_OF_FULL_SESSION: u64 = 8 << 10;

/// Fields seen in answers.
#[derive(Default)]
struct Seen(BTreeSet<String>);

impl Seen {
    fn note<M: Message>(&mut self, name: &str, message: &M) {
        let descriptor =
            crate::api().get_message_by_name(&format!("trunkline.v1.{name}")).expect("a message of the API");
        let message = DynamicMessage::decode(descriptor, message.encode_to_vec().as_slice()).expect("the same message");
        self.walk(&message);
    }

    fn walk(&mut self, message: &DynamicMessage) {
        for (field, value) in message.fields() {
            self.0.insert(format!("{}.{}", message.descriptor().name(), field.name()));
            self.value(value);
        }
    }

    fn value(&mut self, value: &Value) {
        match value {
            Value::Message(part) => self.walk(part),
            Value::List(parts) => parts.iter().for_each(|part| self.value(part)),
            Value::Map(parts) => parts.values().for_each(|part| self.value(part)),
            _ => {}
        }
    }
}

/// Notes all messages of an answer.
async fn answer(seen: &mut Seen, client: &mut Client, request: GenerateRequest) {
    let mut stream = client.open(request).await.expect("accepted");
    while let Some(message) = stream.message().await.expect("an answer") {
        seen.note("GenerateResponse", &message);
    }
}

async fn inference(seen: &mut Seen) {
    let (wrap, gate) = gated();
    let config = Config { device_blocks: 9, max_batch_size: 2, max_queue: 6, ..Config::default() };
    let server = TestServer::start_with(config, None, wrap).await;
    let mut client = server.client().await;
    let mut streams = Vec::new();
    for id in ["a", "b", "c"] {
        streams.push(
            client.open(GenerateRequest { request_id: id.into(), ..greedy("a prompt", 110) }).await.expect("accepted"),
        );
    }
    client.until(|info| info.load.is_some_and(|load| load.running + load.waiting == 3)).await;
    let mut raw: InferenceClient<_> = client.0.clone();
    let info = |client: InferenceClient<_>| async move {
        let mut client = client;
        client.get_server_info(GetServerInfoRequest {}).await.expect("an answer").into_inner()
    };
    seen.note("GetServerInfoResponse", &info(raw.clone()).await);
    let found = raw.abort(AbortRequest { request_ids: vec!["c".into()] }).await.expect("an answer").into_inner();
    seen.note("AbortResponse", &found);
    // Both say the same, so that their blocks are merged.
    (0..20).for_each(|_| gate.send(()).expect("the worker waits"));
    let held = client.until(|info| info.blocks.is_some_and(|blocks| blocks.held > 0)).await;
    seen.note("GetServerInfoResponse", &held);
    drop(gate);
    for mut stream in streams {
        while let Ok(Some(message)) = stream.message().await {
            seen.note("GenerateResponse", &message);
        }
    }
    let logprobs = Output { logprobs: Some(2), prompt_logprobs: Some(1), ..Output::default() };
    let first = greedy("a prompt that is long enough for two blocks of tokens", 8);
    answer(seen, &mut client, GenerateRequest { output: Some(logprobs), ..first.clone() }).await;
    answer(seen, &mut client, first.clone()).await;
    let stop = |stop: Vec<String>, stop_token_ids| {
        Some(Stopping { max_tokens: Some(30), stop, stop_token_ids, ..Stopping::default() })
    };
    let letters = ('!'..='~').step_by(6).map(String::from).collect();
    answer(seen, &mut client, GenerateRequest { stopping: stop(letters, Vec::new()), ..first.clone() }).await;
    answer(seen, &mut client, GenerateRequest { stopping: stop(Vec::new(), (0..64).collect()), ..first.clone() }).await;
    // More than fits: preemptions.
    let ids = |n: u32| Some(Prompt::TokenIds(TokenIds { ids: vec![n; 40] }));
    let mut both = Vec::new();
    for n in [1, 2] {
        both.push(client.open(GenerateRequest { prompt: ids(n), ..greedy("", 60) }).await.expect("accepted"));
    }
    for mut stream in both {
        while let Some(message) = stream.message().await.expect("an answer") {
            seen.note("GenerateResponse", &message);
        }
    }
    assert!(client.ask(greedy(&"x".repeat(500), 4)).await.is_err(), "it never fits");
    seen.note("GetServerInfoResponse", &info(raw.clone()).await);
    let model = raw.get_model_info(GetModelInfoRequest {}).await.expect("an answer").into_inner();
    seen.note("GetModelInfoResponse", &model);
    seen.note("FlushCacheResponse", &raw.flush_cache(FlushCacheRequest {}).await.expect("an answer").into_inner());
    server.drain().await;
}

async fn sessions(seen: &mut Seen) {
    let server = TestServer::start(Config { device_blocks: 512, max_context: 1024, ..Config::default() }).await;
    let small = SessionSettings {
        tenant: "acme".into(),
        cache_salt: "salt".into(),
        share_cache: Some(true),
        priority: 1,
        ..settings(200, 60)
    };
    let mut chat = Chat::create(&server, "You are a guide.", small).await;
    let pinned = chat.append("pin", "the house has nine rooms", true).await.expect("a turn");
    seen.note("AppendTurnResponse", &pinned);
    for _ in 0..4 {
        let request = turn(&chat.id, "", "tell me of the house and of its rooms", 25);
        let mut stream = chat.client.generate(request).await.expect("accepted").into_inner();
        let running = chat.get().await.expect("a session");
        seen.note("Session", &running);
        while let Some(message) = stream.message().await.expect("an answer") {
            seen.note("GenerateResponse", &message);
        }
    }
    chat.settled().await;
    let compact = CompactSessionRequest { session_id: chat.id.clone(), keep_tokens: Some(0), instruction: None };
    seen.note("CompactSessionResponse", &chat.client.compact(compact).await.expect("a summary").into_inner());
    let get = GetSessionRequest { session_id: chat.id.clone(), without_turns: false };
    seen.note("Session", &chat.client.get(get).await.expect("a session").into_inner());
    seen.note("SessionExport", &chat.export().await);
    let list = chat.client.list(ListSessionsRequest {}).await.expect("a list").into_inner();
    seen.note("ListSessionsResponse", &list);
    server.drain().await;
}

/// A session that gets no summary, and whose transcript is full.
async fn full_session(seen: &mut Seen) {
    let sessions =
        SessionOptions { compaction: Duration::ZERO, bytes: BYTES_OF_FULL_SESSION, ..SessionOptions::default() };
    let core = Config { device_blocks: 512, max_context: 1024, ..Config::default() };
    let server =
        TestServer::start_options(core, |options| options.sessions = sessions, |worker| Box::new(worker)).await;
    let mut settings = settings(200, 60);
    let compaction = settings.compaction.get_or_insert_default();
    compaction.input = SummaryInput::Sampled.into();
    compaction.kv_dtype = "f32".into();
    (compaction.sample_max, compaction.pins_max, compaction.priority) = (Some(64), Some(50), Some(9));
    (settings.h2o, settings.kv_dtype) = ("off".into(), "f32".into());
    let mut chat = Chat::create(&server, "You are a guide.", settings).await;
    chat.append("pin", "nine rooms", true).await.expect("a turn");
    for _ in 0..30 {
        chat.say("tell me of the house and of its rooms", 20).await.expect("an answer");
    }
    seen.note("Session", &chat.settled().await);
    seen.note("SessionExport", &chat.export().await);
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_field_of_an_answer_is_seen() {
    let mut seen = Seen::default();
    inference(&mut seen).await;
    sessions(&mut seen).await;
    full_session(&mut seen).await;
    let mut client = crate::server(0..crate::SPECIAL).await.client().await;
    let model = client.0.get_model_info(GetModelInfoRequest {}).await.expect("an answer").into_inner();
    seen.note("GetModelInfoResponse", &model);
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ lies in the workspace");
    for (field, file, test) in ELSEWHERE {
        let text = std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{field}: {file}: {error}"));
        assert!(text.contains(&format!("fn {test}")), "{field}: {file} has no test {test}");
    }
    let elsewhere = |field: &String| {
        ELSEWHERE.iter().any(|(known, ..)| field == known || (known.ends_with('.') && field.starts_with(known)))
    };
    let is_missing = |field: &String| !seen.0.contains(field) && !elsewhere(field) && field != NEVER;
    let missing: Vec<_> = crate::fields(false).into_iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "fields of answers that no test sees: {missing:?}");
}
