//! Cache events of a server, over gRPC: snapshots, batches behind a number, scopes and sessions, rights.

use std::sync::Arc;

use tonic::{Code, Streaming};
use trunkline_cluster::ListenToCaches;
use trunkline_core::Config;
use trunkline_events::{Publisher, Settings};
use trunkline_server::proto::GenerateRequest;
use trunkline_server::{Options, ServerError};
use trunkline_tests::server::{TestServer, greedy};
use trunkline_tests::sessions::{Chat, settings};
use trunkline_vllm::proto::smg::grpc::common::{
    KvBlocksStored, KvEventBatch, SubscribeKvEventsRequest, kv_block_extra_key, kv_cache_event,
};
use trunkline_vllm::proto::vllm::grpc::engine::vllm_engine_client::VllmEngineClient;

const BLOCK: u32 = 4;

async fn start(edit: impl FnOnce(&mut Options)) -> Result<TestServer, ServerError> {
    let publisher = Publisher::new(Settings { history: 8, ..Settings::default() });
    let listener = ListenToCaches(Arc::new(publisher.clone()));
    let settings = trunkline_vllm::Settings { events: Some(publisher), ..trunkline_vllm::Settings::default() };
    let config = Config { block_size: BLOCK, device_blocks: 64, max_context: 512, ..Config::default() };
    let edit = |options: &mut Options| {
        options.cache_listener = Some(listener);
        edit(options);
    };
    TestServer::start_vllm(config, settings, edit, |worker| Box::new(worker)).await
}

async fn subscribe(server: &TestServer, from: u64) -> Result<Streaming<KvEventBatch>, Code> {
    let request = SubscribeKvEventsRequest { start_sequence_number: from, ..Default::default() };
    let mut client = VllmEngineClient::new(server.channel().await);
    client.subscribe_kv_events(request).await.map(tonic::Response::into_inner).map_err(|status| status.code())
}

/// Returns the next batch with events.
async fn next(stream: &mut Streaming<KvEventBatch>) -> KvEventBatch {
    loop {
        let batch = stream.message().await.unwrap().expect("the stream goes on");
        if !batch.events.is_empty() {
            return batch;
        }
    }
}

fn stored(batch: &KvEventBatch) -> Vec<&KvBlocksStored> {
    let stored = |event: &kv_cache_event::Data| matches!(event, kv_cache_event::Data::Stored(_));
    let data = batch.events.iter().filter_map(|event| event.data.as_ref()).inspect(|data| assert!(stored(data)));
    data.filter_map(|data| if let kv_cache_event::Data::Stored(stored) = data { Some(stored) } else { None }).collect()
}

/// Returns the tokens of the blocks in a batch.
fn tokens(batch: &KvEventBatch) -> Vec<u32> {
    stored(batch).iter().flat_map(|stored| &stored.blocks).flat_map(|block| block.token_ids.clone()).collect()
}

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_subscriber_gets_a_snapshot_then_what_happens_and_behind_a_number_what_it_missed() {
    let server = start(|_| {}).await.unwrap();
    let mut client = server.client().await;
    client.ask(greedy("abcdefgh!", 1)).await.unwrap();
    // The publisher may not have the batch yet, and then sends it as what happens.
    let (mut stream, snapshot) = loop {
        let mut stream = subscribe(&server, 0).await.unwrap();
        let first = next(&mut stream).await;
        if first.snapshot.is_some() {
            break (stream, first);
        }
    };
    assert_eq!((tokens(&snapshot), snapshot.dp_rank), (ids("abcdefgh"), Some(0)));
    let chunk = snapshot.snapshot.unwrap();
    assert_eq!((chunk.index, chunk.count, chunk.blocks), (0, 1, 2));
    let first = stored(&snapshot)[0];
    assert_eq!((first.parent_block_hash, first.medium.as_deref(), first.blocks[0].block_size), (None, Some("GPU"), 4));
    client.ask(greedy("abcdWWWW!", 1)).await.unwrap();
    let live = next(&mut stream).await;
    assert_eq!((tokens(&live), live.snapshot.is_none()), (ids("WWWW"), true));
    assert_eq!(stored(&live)[0].parent_block_hash, Some(first.blocks[0].block_hash));
    assert!(live.sequence_number > snapshot.sequence_number);
    // One who comes back gets what came behind, heartbeats included, without a gap.
    let mut again = subscribe(&server, snapshot.sequence_number).await.unwrap();
    for number in snapshot.sequence_number + 1..=live.sequence_number {
        let batch = again.message().await.unwrap().unwrap();
        assert_eq!((batch.sequence_number, batch.snapshot.is_none()), (number, true));
        assert_eq!(batch == live, number == live.sequence_number);
    }
    assert_eq!(subscribe(&server, live.sequence_number + 1_000_000).await.err(), Some(Code::OutOfRange));
    // Eight batches are kept.
    for n in 0..10 {
        client.ask(greedy(&format!("number {n}!"), 1)).await.unwrap();
        next(&mut stream).await;
    }
    assert_eq!(subscribe(&server, snapshot.sequence_number).await.err(), Some(Code::OutOfRange));
}

#[tokio::test(flavor = "multi_thread")]
async fn scopes_and_sessions_are_told_with_the_blocks() {
    let server = start(|_| {}).await.unwrap();
    let mut client = server.client().await;
    let mut stream = subscribe(&server, 0).await.unwrap();
    client.ask(greedy("abcdefgh!", 1)).await.unwrap();
    let plain = next(&mut stream).await;
    assert_eq!(stored(&plain)[0].blocks[0].extra_keys, []);
    let salted = GenerateRequest { cache_salt: "pepper".into(), tenant: "acme".into(), ..greedy("abcdefgh!", 1) };
    client.ask(salted).await.unwrap();
    let batch = next(&mut stream).await;
    let stored_salted = stored(&batch)[0];
    let keys = |at: usize| {
        let keys = stored_salted.blocks[at].extra_keys.iter().filter_map(|key| key.key.clone());
        keys.map(|key| if let kv_block_extra_key::Key::Text(text) = key { text } else { String::new() })
            .collect::<Vec<_>>()
    };
    assert_eq!((keys(0), keys(1)), (vec!["pepper".to_owned(), "acme".to_owned()], vec![]));
    assert_eq!(stored_salted.cache_salt.as_deref(), Some("pepper"));
    assert_ne!(stored_salted.blocks[0].block_hash, stored(&plain)[0].blocks[0].block_hash);
    assert_eq!(stored_salted.session_id, None);
    let mut chat = Chat::create(&server, "A system text.\n", settings(100, 50)).await;
    chat.say("A turn.\n", 1).await.unwrap();
    let turn = next(&mut stream).await;
    assert_eq!(stored(&turn)[0].session_id.as_deref(), Some(&*chat.id));
}

#[tokio::test(flavor = "multi_thread")]
async fn events_have_everyones_tokens_and_are_for_administrators() {
    let server = start(|options| options.admin = Some(false)).await.unwrap();
    assert_eq!(subscribe(&server, 0).await.err(), Some(Code::PermissionDenied));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flush_is_told_as_cleared() {
    let server = start(|_| {}).await.unwrap();
    let mut client = server.client().await;
    let mut stream = subscribe(&server, 0).await.unwrap();
    client.ask(greedy("abcdefgh!", 1)).await.unwrap();
    next(&mut stream).await;
    client.0.flush_cache(trunkline_server::proto::FlushCacheRequest {}).await.unwrap();
    let batch = next(&mut stream).await;
    assert!(matches!(batch.events[0].data, Some(kv_cache_event::Data::Cleared(_))), "{batch:?}");
    let mut late = subscribe(&server, 0).await.unwrap();
    client.ask(greedy("abcdefgh!", 1)).await.unwrap();
    assert_eq!(tokens(&next(&mut late).await), ids("abcdefgh"), "nothing was left");
}
