//! Parsers that panic at a client's text: the call gets a status, and calls alongside it go on.

use std::sync::Arc;

use tonic::Code;
use trunkline_cluster::ClusterConfig;
use trunkline_core::Config;
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::{GenerateRequest, TokenIds};
use trunkline_server::{Backend, Options, SamplingOffer};
use trunkline_tests::scrape::scrape;
use trunkline_tests::server::{SEED, TestServer, collect, greedy};
use trunkline_text::Tokenizer;
use trunkline_worker::{Model, Worker, WorkerConfig};

/// The table of the tokenizer ends before the first byte of this character.
const BEYOND: char = '\u{E0041}';

/// Returns a tokenizer of small letters whose normalizer has a table of 241 bytes, and panics at larger ones.
fn tokenizer() -> Tokenizer {
    let charsmap = format!("xAMA{}AAA=", "AAAA".repeat(321));
    let letters: Vec<String> = ('a'..='z').zip(0..).map(|(letter, id)| format!("\"{letter}\": {id}")).collect();
    let json = format!(
        r#"{{"version": "1.0", "normalizer": {{"type": "Precompiled", "precompiled_charsmap": "{charsmap}"}},
        "model": {{"type": "BPE", "vocab": {{{}}}, "merges": []}}}}"#,
        letters.join(", ")
    );
    Tokenizer::from_json("of the test", json.as_bytes()).expect("the texts tried at load do not reach the fault")
}

async fn server() -> TestServer {
    let core = Config { device_blocks: 2048, max_context: 16_384, ..Config::default() };
    let model = Arc::new(Model::seeded(SEED));
    let worker =
        WorkerConfig { block_size: core.block_size, device_blocks: core.device_blocks, max_drafts: 0, threads: 1 };
    let backend = Backend {
        model: model.info(),
        further_kv: Vec::new(),
        tokenizer: tokenizer(),
        workers: Arc::new(move |_| Ok(Box::new(Worker::new(model.clone(), worker)?))),
        stores: Vec::new(),
        offer: SamplingOffer::default(),
    };
    let options = Options { cluster: ClusterConfig::uniform(&core, 1), ..Options::default() };
    TestServer::of_backend(backend, options).await.expect("the server starts")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tokenizer_that_panics_at_a_text_costs_that_call_alone_a_status() {
    let server = server().await;
    let mut client = server.client().await;
    let ids = |max_tokens| GenerateRequest {
        prompt: Some(Prompt::TokenIds(TokenIds { ids: vec![1, 2, 3] })),
        ..greedy("", max_tokens)
    };
    let alone = client.ask(ids(64)).await.unwrap();
    let neighbour = client.open(ids(64)).await.unwrap();
    let panics = scrape(server.metrics_addr()).await.value("trunkline_panics_total");
    // Tokenised at once, and part by part on a thread of its own.
    for letters in [1, 9000] {
        let text = "a".repeat(letters) + &BEYOND.to_string();
        let status = client.ask(greedy(&text, 4)).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal, "{status:?}");
        let line = status.message();
        assert!(line.starts_with("the model's tokenizer failed on a text") && !line.contains('\n'), "{line}");
        assert!(line.contains("index out of bounds") && line.chars().count() < 400, "{line}");
    }
    assert!(scrape(server.metrics_addr()).await.value("trunkline_panics_total") >= panics + 2.0);
    assert_eq!(collect(neighbour).await.unwrap().token_ids, alone.token_ids);
    assert_eq!(client.ask(ids(64)).await.unwrap().token_ids, alone.token_ids);
    assert_eq!(client.ask(greedy("abc", 4)).await.unwrap().token_ids.len(), 4);
    client.settled().await;
    server.drain().await;
}
