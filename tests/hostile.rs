//! Clients that do not read, do not send, send too much, or try what is not theirs, alongside one that behaves.

use std::net::SocketAddr;

use std::time::Duration;

use prost::Message;
use tokio::io::AsyncReadExt;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use trunkline_core::Config;
use trunkline_server::NetworkLimits;
use trunkline_server::proto::{AbortRequest, GenerateRequest, GetModelInfoRequest, Output};
use trunkline_tests::raw::RawClient;
use trunkline_tests::server::{Client, TestServer, gated, greedy};

const GENERATE: &str = "/trunkline.v1.Inference/Generate";
/// A time that no test reaches.
const NEVER: Duration = Duration::from_secs(24 * 3600);

fn config() -> Config {
    Config { device_blocks: 512, ..Config::default() }
}

/// Limits of which none is reached.
fn lax() -> NetworkLimits {
    NetworkLimits { first_request: NEVER, request: NEVER, idle: NEVER, unread: NEVER, ..NetworkLimits::default() }
}

async fn server(limits: NetworkLimits) -> TestServer {
    TestServer::start_options(config(), |options| options.network = limits, |worker| Box::new(worker)).await
}

async fn raw(server: &TestServer, window: u32) -> RawClient {
    RawClient::connect(local(), server.addr(), window).await.unwrap()
}

fn local() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// A request with much output.
fn long(max_tokens: u32) -> GenerateRequest {
    GenerateRequest { output: Some(Output { logprobs: Some(20), ..Output::default() }), ..greedy("long", max_tokens) }
}

async fn abort(client: &mut Client, id: &str) -> u32 {
    let request = AbortRequest { request_ids: vec![id.into()] };
    client.0.abort(request).await.unwrap().into_inner().found
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_nobody_reads_end_by_time_and_the_others_say_what_they_say_alone() {
    const STREAMS: usize = 20;
    let server = server(NetworkLimits { unread: Duration::from_millis(100), ..lax() }).await;
    let mut client = server.client().await;
    let alone = client.ask(greedy("alone", 40)).await.unwrap().text;
    let mut hostile = raw(&server, 0).await;
    for _ in 0..STREAMS {
        hostile.call(GENERATE, &long(200)).await.unwrap();
    }
    assert_eq!(client.ask(greedy("alone", 40)).await.unwrap().text, alone);
    let mut resets = 0;
    while resets < STREAMS {
        let frame = hostile.frame().await.expect("the connection stays");
        resets += usize::from(frame.is_reset());
    }
    let info = client.settled().await;
    let network = client.until(|info| info.network.unwrap().calls == 1).await.network.unwrap();
    assert_eq!((network.unread_ended, network.unread_bytes), (STREAMS as u64, 0));
    assert_eq!(info.counters.unwrap().accepted, STREAMS as u64 + 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_output_is_bounded_in_bytes() {
    let server = server(NetworkLimits { unread_bytes_per_call: 10_000, ..lax() }).await;
    let mut client = server.client().await;
    // The server may send 16 bytes ahead of the reader.
    let endpoint = Endpoint::from_shared(format!("http://{}", server.addr())).unwrap();
    let slow = endpoint.initial_stream_window_size(16).connect().await.unwrap();
    let mut slow = Client(trunkline_server::proto::inference_client::InferenceClient::new(slow));
    let mut unread = slow.open(long(400)).await.unwrap();
    let network = client.until(|info| info.network.unwrap().unread_ended == 1).await.network.unwrap();
    assert_eq!(network.unread_bytes, 0);
    let status = loop {
        match unread.message().await {
            Ok(message) => assert!(message.is_some(), "the stream has no good end"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    let counters = client.settled().await.counters.unwrap();
    assert!(counters.generated_tokens < 400, "{counters:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_sockets_keep_nobody_out() {
    let server = server(NetworkLimits { connections: 8, ..lax() }).await;
    let mut sockets = Vec::new();
    for _ in 0..30 {
        sockets.push(RawClient::silent(local(), server.addr()).await.unwrap());
    }
    let mut client = server.client().await;
    client.ask(greedy("hello", 4)).await.unwrap();
    let network = client.until(|info| info.network.unwrap().accepted == 31).await.network.unwrap();
    assert!(network.connections <= 8 && network.closed >= 23, "{network:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_without_a_request_and_a_request_without_a_message_end() {
    const SOON: Duration = Duration::from_millis(50);
    let impatient = server(NetworkLimits { first_request: SOON, ..lax() }).await;
    let mut silent = RawClient::silent(local(), impatient.addr()).await.unwrap();
    // The server's own settings come, then the end.
    silent.read_to_end(&mut Vec::new()).await.unwrap();
    let server = server(NetworkLimits { request: SOON, ..lax() }).await;
    let mut hostile = raw(&server, 1 << 16).await;
    let stream = hostile.headers(GENERATE).await.unwrap();
    while !hostile.frame().await.expect("the connection stays").is_headers() {}
    assert_eq!(stream, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_ends_and_the_client_connects_again() {
    let server = server(NetworkLimits { idle: Duration::from_millis(20), ..lax() }).await;
    let mut client = server.client().await;
    let first = client.info().await.network.unwrap().accepted;
    let mut watching = server.client().await;
    watching.until(|info| info.network.unwrap().connections == 1).await;
    client.ask(greedy("hello", 4)).await.unwrap();
    assert!(client.info().await.network.unwrap().accepted > first + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_resets_ends_the_connection() {
    let server = server(lax()).await;
    let mut client = server.client().await;
    let mut hostile = raw(&server, 1 << 16).await;
    let mut sent = 0;
    while let Ok(stream) = hostile.call(GENERATE, &long(200)).await {
        if hostile.reset(stream).await.is_err() {
            break;
        }
        sent += 1;
        assert!(sent < 1_000_000, "the server takes resets without end");
    }
    client.ask(greedy("hello", 4)).await.unwrap();
    client.settled().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_headers_ends_the_connection() {
    let server = server(lax()).await;
    let mut hostile = raw(&server, 1 << 16).await;
    let stream = hostile.endless_headers(GENERATE).await.unwrap();
    let mut sent = 0;
    while hostile.continuation(stream, 1000).await.is_ok() {
        sent += 1;
        assert!(sent < 1_000_000, "the server takes headers without end");
    }
    server.client().await.ask(greedy("hello", 4)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_aborts_the_requests_of_another() {
    let (wrap, gate) = gated();
    let server = TestServer::start_options(config(), |options| options.network = lax(), wrap).await;
    let (mut mine, mut other) = (server.client().await, server.client().await);
    let named = |id: &str| GenerateRequest { request_id: id.into(), ..greedy("hello", 4) };
    let _running = mine.open(named("job")).await.unwrap();
    assert_eq!(abort(&mut other, "job").await, 0);
    let _same_id = other.open(named("job")).await.unwrap();
    let again = mine.open(named("job")).await.unwrap_err();
    assert_eq!(again.code(), Code::AlreadyExists, "{again}");

    let response = mine.0.generate(greedy("hello", 4)).await.unwrap();
    let id = response.metadata().get("trunkline-request-id").unwrap().to_str().unwrap().to_owned();
    assert_eq!(id.len(), 32);
    let next = format!("{:032x}", u128::from_str_radix(&id, 16).unwrap().wrapping_add(1));
    assert_eq!((abort(&mut other, &next).await, abort(&mut other, &id).await), (0, 1), "the id is the proof");
    assert_eq!((abort(&mut other, "job").await, abort(&mut mine, "job").await), (1, 1));
    drop(gate);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_cannot_be_read_is_the_clients_mistake() {
    let server = server(lax()).await;
    let bytes_of = |request_id: &[u8]| {
        let mut message = vec![0x0a, request_id.len() as u8];
        message.extend(request_id);
        message
    };
    let good = greedy("hello", 4).encode_to_vec();
    for (message, code) in [
        (good, Code::Ok),
        (vec![0xff; 20], Code::InvalidArgument),
        (bytes_of(b"\xff\xfe"), Code::InvalidArgument),
        (bytes_of(b"no prompt"), Code::InvalidArgument),
        (vec![0; 17 << 20], Code::ResourceExhausted),
    ] {
        let (begin, length) = (message[..message.len().min(4)].to_vec(), message.len());
        let result = send_bytes(server.channel().await, message).await;
        let found = result.as_ref().map_or_else(Status::code, |()| Code::Ok);
        assert_eq!(found, code, "{length} bytes beginning {begin:?}: {result:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn administration_is_a_switch_without_tokens() {
    let start = |admin| TestServer::start_options(config(), move |options| options.admin = admin, |w| Box::new(w));
    for (admin, code) in [(None, Code::Ok), (Some(true), Code::Ok), (Some(false), Code::PermissionDenied)] {
        let server = start(admin).await;
        let mut client = server.client().await;
        let flushed = client.0.flush_cache(trunkline_server::proto::FlushCacheRequest {}).await;
        assert_eq!(flushed.map_or_else(|status| status.code(), |_| Code::Ok), code, "{admin:?}");
        let info = client.info().await;
        assert!(info.limits.is_some() && info.counters.is_some() == (code == Code::Ok), "{info:?}");
        assert_eq!((info.network.is_some(), info.digest.is_empty()), (code == Code::Ok, code != Code::Ok));
        client.0.get_model_info(GetModelInfoRequest {}).await.unwrap();
    }
}

/// Sends bytes as the message of Generate.
async fn send_bytes(channel: Channel, bytes: Vec<u8>) -> Result<(), Status> {
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.unwrap();
    let path = GENERATE.parse().unwrap();
    grpc.server_streaming(Request::new(bytes), path, Bytes).await.map(drop)
}

/// Messages as bytes.
struct Bytes;

impl Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = ();
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        prost::bytes::BufMut::put_slice(into, &item);
        Ok(())
    }
}

impl Decoder for Bytes {
    type Item = ();
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<()>, Status> {
        prost::bytes::Buf::advance(from, prost::bytes::Buf::remaining(from));
        Ok(Some(()))
    }
}
