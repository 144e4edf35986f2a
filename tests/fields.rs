//! No field of the API that a server accepts is without effect: each field of a request has a proof of its effect or of its refusal, and each field of an
//! answer is seen, or has a test that sees it. A new field without an entry fails the test.

#[path = "fields/answers.rs"]
mod answers;
#[path = "fields/proofs.rs"]
mod proofs;
#[path = "fields/requests.rs"]
mod requests;
#[path = "fields/sessions.rs"]
mod sessions;

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use prost_reflect::{DescriptorPool, Kind, MessageDescriptor};
use trunkline_cluster::ClusterConfig;
use trunkline_core::Config;
use trunkline_server::proto::{Compaction, FILE_DESCRIPTOR_SET, SessionSettings};
use trunkline_server::{Backend, Options, SamplingOffer};
use trunkline_tests::server::{SEED, TestServer};
use trunkline_tests::sessions::{Chat, settings};
use trunkline_text::Tokenizer;
use trunkline_worker::{Model, Worker, WorkerConfig};

use self::proofs::{Proof, Rig};

/// Services for clients; the one for workers has tests of its own.
const CLIENT_SERVICES: [&str; 2] = ["trunkline.v1.Inference", "trunkline.v1.Sessions"];

/// First token of the tokenizer that is special; the model has tokens up to 257.
const SPECIAL: u32 = 128;

/// Returns the descriptors of the API.
pub fn api() -> DescriptorPool {
    DescriptorPool::decode(FILE_DESCRIPTOR_SET).expect("the server's own descriptors")
}

/// Adds a message and the messages of its fields.
fn with_parts(message: &MessageDescriptor, all: &mut Vec<MessageDescriptor>) {
    if all.iter().any(|known| known.full_name() == message.full_name()) {
        return;
    }
    all.push(message.clone());
    for field in message.fields() {
        if let Kind::Message(part) = field.kind() {
            with_parts(&part, all);
        }
    }
}

/// Returns the names `Message.field` of all fields of requests, or of all fields of answers.
pub fn fields(of_requests: bool) -> BTreeSet<String> {
    let mut messages = Vec::new();
    for service in CLIENT_SERVICES.iter().filter_map(|name| api().get_service_by_name(name)) {
        for method in service.methods() {
            with_parts(&if of_requests { method.input() } else { method.output() }, &mut messages);
        }
    }
    messages.retain(|message| !message.is_map_entry());
    let fields = |message: &MessageDescriptor| {
        let message = message.clone();
        message.clone().fields().map(move |field| format!("{}.{}", message.name(), field.name())).collect::<Vec<_>>()
    };
    messages.iter().flat_map(fields).collect()
}

/// Returns `true` for a part of `Chunk.logprobs` or of `Finish.timings`, which are refused as a whole.
fn is_refused_whole(field: &str) -> bool {
    ["TokenLogprob.", "Alternative.", "Timings."].iter().any(|message| field.starts_with(message))
}

/// Returns a tokenizer of printable characters, and of special tokens that the model says more often.
fn tokenizer() -> Tokenizer {
    let printable = (' '..='~').map(|character| if character == ' ' { '\u{120}' } else { character });
    let vocab: Vec<String> =
        printable.zip(0..).map(|(character, id)| format!("{:?}: {id}", character.to_string())).collect();
    let special = |id: u32| {
        format!(
            r#"{{"id": {id}, "content": "<|{id}|>", "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}}"#
        )
    };
    let added: Vec<String> = (SPECIAL..258).map(special).collect();
    let begin = r#"{"SpecialToken": {"id": "<|128|>", "type_id": 0}}"#;
    let json = format!(
        r#"{{"version": "1.0", "added_tokens": [{}],
        "pre_tokenizer": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true}},
        "decoder": {{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}},
        "post_processor": {{"type": "TemplateProcessing", "single": [{begin}, {{"Sequence": {{"id": "A", "type_id": 0}}}}], "pair": [],
        "special_tokens": {{"<|128|>": {{"id": "<|128|>", "ids": [128], "tokens": ["<|128|>"]}}}}}},
        "model": {{"type": "BPE", "vocab": {{{}}}, "merges": []}}}}"#,
        added.join(","),
        vocab.join(", ")
    );
    Tokenizer::from_json("of the test", json.as_bytes()).expect("a tokenizer")
}

/// Starts a server whose model ends texts with any of these tokens.
async fn server(ends: Range<u32>) -> Arc<TestServer> {
    let core = Config { device_blocks: 512, max_context: 1024, ..Config::default() };
    let model = Arc::new(Model::seeded(SEED));
    let mut info = model.info();
    info.eos_token_ids = ends.collect();
    let config =
        WorkerConfig { block_size: core.block_size, device_blocks: core.device_blocks, max_drafts: 0, threads: 1 };
    let backend = Backend {
        model: info,
        further_kv: Vec::new(),
        tokenizer: tokenizer(),
        workers: Arc::new(move |_| Ok(Box::new(Worker::new(model.clone(), config)?))),
        stores: Vec::new(),
        offer: SamplingOffer::default(),
    };
    let options = Options { cluster: ClusterConfig::uniform(&core, 1), ..Options::default() };
    Arc::new(TestServer::of_backend(backend, options).await.expect("the server starts"))
}

async fn check_all(server: Arc<TestServer>, proofs: &'static [(&'static str, Proof)]) {
    for (field, proof) in proofs {
        proof.check(Rig { server: server.clone(), field }).await;
    }
}

#[test]
fn each_field_of_a_request_has_a_proof() {
    let known: Vec<&str> = requests::PROOFS.iter().chain(sessions::PROOFS).map(|(field, _)| *field).collect();
    let proven: BTreeSet<String> = known.iter().map(|field| (*field).to_owned()).collect();
    assert_eq!(proven.len(), known.len(), "a field has two proofs");
    let fields = fields(true);
    let missing: Vec<_> = fields.difference(&proven).filter(|field| !is_refused_whole(field)).collect();
    assert!(missing.is_empty(), "fields without a proof of their effect; add one in tests/fields: {missing:?}");
    let gone: Vec<_> = proven.difference(&fields).collect();
    assert!(gone.is_empty(), "proofs of fields that are not there: {gone:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_field_of_a_request_has_an_effect_or_is_refused() {
    check_all(server(0..SPECIAL).await, requests::PROOFS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_field_of_a_session_has_an_effect_or_is_refused() {
    check_all(server(0..0).await, sessions::PROOFS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn priorities_of_sessions_and_summaries_are_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.jsonl");
    let config = Config { device_blocks: 512, max_context: 1024, ..Config::default() };
    let server = TestServer::start_with(config, Some(path.clone()), |worker| Box::new(worker)).await;
    let with = |priority, of_summaries| {
        let settings = settings(400, 120);
        let compaction = Compaction { priority: of_summaries, ..settings.compaction.unwrap() };
        SessionSettings { priority, compaction: Some(compaction), ..settings }
    };
    for (priority, of_summaries) in [(0, None), (-7, Some(-11))] {
        let mut chat = Chat::create(&server, "You are a guide.", with(priority, of_summaries)).await;
        for _ in 0..3 {
            chat.say("tell me of the house and of its rooms", 20).await.unwrap();
        }
        chat.compact(Some(0)).await.unwrap();
        chat.settled().await;
    }
    // Nobody waits for the summary of a long history.
    let mut chat = Chat::create(&server, "You are a guide.", with(0, None)).await;
    let is_in_background = |text: &str| text.contains("\"background\":true");
    while chat.settled().await.totals.unwrap().compactions == 0 {
        chat.say("tell me of the house and of its rooms", 20).await.unwrap();
    }
    server.drain().await;
    let text = std::fs::read_to_string(path).unwrap();
    assert!(is_in_background(&text));
    for priority in [-7, -11] {
        assert!(text.contains(&format!("\"priority\":{priority}")), "no request has the priority {priority}");
    }
}
