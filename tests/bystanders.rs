//! One hostile client of each kind alongside eight streams, on one connection as behind a gateway: what a client does wrong costs that client
//! alone. The texts of the others, the steps of their engine and their cached prefixes are those without the hostile client.
//!
//! In addition to the kinds that are known, seeds damage the bytes of whole connections: `TRUNKLINE_SEEDS=100000 cargo test -p trunkline-tests --test bystanders damaged`.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::Code;
use trunkline_core::Config;
use trunkline_driver::seeds::Sample;
use trunkline_server::NetworkLimits;
use trunkline_server::proto::{AbortRequest, GenerateRequest, GetModelInfoRequest};
use trunkline_tests::damage::damaged;
use trunkline_tests::gateway::{GENERATE, Gateway, Reply};
use trunkline_tests::raw::{FRAME_BYTES, PREFACE, RawClient, framed, literal};
use trunkline_tests::server::{TestServer, gated, greedy};

/// Streams that behave.
const STREAMS: usize = 8;
/// Tokens of their answers.
const TOKENS: u32 = 40;
/// Steps before the hostile client acts: in the middle of the answers.
const STEPS_BEFORE: u64 = 12;
/// Damaged connections alongside one set of streams.
const DAMAGED: usize = 50;
/// Time after which a hostile client gives up: the server does not answer.
const WATCHDOG: Duration = Duration::from_secs(60);
/// Reasons for the end of a connection or a call: RFC 9113, section 7.
const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const CANCEL: u32 = 8;

/// A hostile client, and how it ends.
struct Kind {
    name: &'static str,
    act: for<'a> fn(&'a mut World) -> Pin<Box<dyn Future<Output = ()> + 'a>>,
}

/// Makes the kind with a name from an async block over the world.
macro_rules! kind {
    ($name:literal, |$world:ident| $act:block) => {
        Kind { name: $name, act: |$world: &mut World| Box::pin(async move { $act }) }
    };
}

/// Every kind of hostile client that is known. One whose logits are not finite gets its row here, with a worker that makes such logits, when
/// a step reports failed sequences alongside the tokens of the others.
const KINDS: &[Kind] = &[
    kind!("20 kB in one header", |world| { world.refused(&header("x-a", 20_000), FRAME_BYTES).await }),
    kind!("200 kB in one header", |world| { world.refused(&header("x-a", 200_000), FRAME_BYTES).await }),
    kind!("5,000 empty headers in 28 kB", |world| {
        world.refused(&header("x-a", 0).repeat(5_000), FRAME_BYTES).await
    }),
    kind!("5,000 headers in 5 kB", |world| { world.refused(&indexed(5_000), FRAME_BYTES).await }),
    kind!("headers of 5,000 names", |world| {
        let names: Vec<u8> = (0..5_000).flat_map(|n| header(&format!("x-{n}"), 1)).collect();
        world.refused(&names, FRAME_BYTES).await
    }),
    kind!("many small frames of headers", |world| { world.refused(&header("x-a", 20_000), 1_200).await }),
    kind!("headers beyond those that are decoded", |world| {
        let stream = world.gateway.raw.headers_with(GENERATE, &header("x-a", 300_000), FRAME_BYTES).await.unwrap();
        assert_eq!(world.gateway.ended(stream).await.header(":status"), "431");
    }),
    kind!("a path of 20 kB", |world| {
        let path = format!("{GENERATE}/{}", "a".repeat(20_000));
        let stream = world.gateway.raw.headers_with(&path, b"", FRAME_BYTES).await.unwrap();
        assert_eq!(world.gateway.ended(stream).await.code(), Some(Code::ResourceExhausted));
    }),
    kind!("200 kB after the message", |world| {
        let stream = world.gateway.raw.headers("/grpc.health.v1.Health/Check").await.unwrap();
        world.gateway.raw.data(stream, &[0; 5], false).await.unwrap();
        world.gateway.raw.trailers(stream, &header("x-a", 200_000)).await.unwrap();
        assert_eq!(world.gateway.ended(stream).await.code(), Some(Code::Ok));
    }),
    kind!("hundreds of calls that are not HTTP", |world| {
        for n in 0..300 {
            let (path, more) = if n % 2 == 0 { ("/a`b", Vec::new()) } else { (GENERATE, header("connection", 1)) };
            let stream = world.gateway.raw.headers_with(path, &more, FRAME_BYTES).await.unwrap();
            assert_eq!(world.gateway.ended(stream).await.reset, Some(PROTOCOL_ERROR));
        }
    }),
    kind!("calls that are no HTTP until another connection is to be opened", |world| {
        while world.gateway.goodbye.is_none() {
            let stream = world.gateway.raw.headers_with(GENERATE, &header("connection", 1), FRAME_BYTES).await.unwrap();
            assert_eq!(world.gateway.ended(stream).await.reset, Some(PROTOCOL_ERROR));
        }
        world.gateway.is_asked_for_another().await;
    }),
    kind!("500 calls that are cancelled at once", |world| {
        for _ in 0..500 {
            let stream = world.gateway.raw.call(GENERATE, &greedy("cancelled", 5)).await.unwrap();
            world.gateway.raw.reset(stream).await.unwrap();
        }
        world.watcher_until_calls(STREAMS as u64 + 1).await;
    }),
    kind!("500 calls that are cancelled in one packet", |world| {
        let mut packet = Vec::new();
        let block = world.gateway.raw.header_block(GENERATE);
        for n in 0..500 {
            let stream = 1_001 + 2 * n;
            packet.extend(frame(1, 4, stream, &block));
            packet.extend(frame(3, 0, stream, &CANCEL.to_be_bytes()));
        }
        world.gateway.raw.bytes(&packet).await.unwrap();
        world.watcher_until_calls(STREAMS as u64 + 1).await;
    }),
    kind!("a half message", |world| {
        let stream = world.gateway.raw.headers(GENERATE).await.unwrap();
        world.gateway.raw.data(stream, &framed(&greedy("half", 5))[..9], false).await.unwrap();
        world.gateway.raw.reset(stream).await.unwrap();
    }),
    kind!("a message that ends early", |world| {
        let message = framed(&greedy("early", 5));
        assert_eq!(world.message(&message[..9], b"").await.code(), Some(Code::InvalidArgument));
    }),
    kind!("a message of 1 GiB", |world| {
        let status = world.message(&[0, 64, 0, 0, 0, 1, 2, 3], b"").await.code();
        assert_eq!(status, Some(Code::ResourceExhausted));
    }),
    kind!("a message that is not protobuf", |world| {
        let message = [&[0, 0, 0, 0, 20][..], &[0xff; 20]].concat();
        assert_eq!(world.message(&message, b"").await.code(), Some(Code::InvalidArgument));
    }),
    kind!("an unknown compression", |world| {
        let message = [&[1][..], &framed(&greedy("packed", 5))[1..]].concat();
        let encoding = header_of("grpc-encoding", "zstd-9");
        assert_eq!(world.message(&message, &encoding).await.code(), Some(Code::Unimplemented));
    }),
    kind!("a compressed message without a compression", |world| {
        let message = [&[1][..], &framed(&greedy("packed", 5))[1..]].concat();
        assert_ne!(world.message(&message, b"").await.code(), Some(Code::Ok));
    }),
    kind!("a timeout that has passed", |world| {
        let reply = world.message(&framed(&greedy("late", 5)), &header_of("grpc-timeout", "1n")).await;
        assert_eq!(reply.code(), Some(Code::DeadlineExceeded));
    }),
    kind!("timeouts that are none", |world| {
        for timeout in ["abc", "1", "99999999999S", "-1S", ""] {
            let headers = header_of("grpc-timeout", timeout);
            let reply = world.message(&framed(&GenerateRequest::default()), &headers).await;
            assert_eq!(reply.code(), Some(Code::InvalidArgument), "{timeout}: the request has no prompt");
        }
    }),
    kind!("a length that does not hold", |world| {
        let headers = header_of("content-length", "3");
        let stream = world.gateway.raw.headers_with(GENERATE, &headers, FRAME_BYTES).await.unwrap();
        world.gateway.raw.data(stream, &framed(&greedy("long", 5)), true).await.unwrap();
        assert_eq!(world.gateway.ended(stream).await.reset, Some(PROTOCOL_ERROR));
    }),
    kind!("a window that overflows", |world| {
        let stream = world.gateway.raw.headers(GENERATE).await.unwrap();
        world.gateway.raw.window(stream, i32::MAX as u32).await.unwrap();
        assert_eq!(world.gateway.ended(stream).await.reset, Some(FLOW_CONTROL_ERROR));
    }),
    kind!("a call of no service", |world| {
        let stream = world.gateway.raw.headers("/no.Service/Call").await.unwrap();
        world.gateway.raw.data(stream, &framed(&greedy("none", 5)), true).await.unwrap();
        assert_eq!(world.gateway.ended(stream).await.code(), Some(Code::Unimplemented));
    }),
    kind!("refused calls with long messages", |world| {
        for _ in 0..100 {
            let stream = world.gateway.raw.headers("/no.Service/Call").await.unwrap();
            (world.gateway.raw.data(stream, &[0; FRAME_BYTES], false).await).unwrap();
            assert_eq!(world.gateway.ended(stream).await.code(), Some(Code::Unimplemented));
        }
    }),
    kind!("a prompt that can never fit", |world| {
        let long = framed(&greedy(&"x".repeat(9_000), 5));
        assert_eq!(world.message(&long, b"").await.code(), Some(Code::InvalidArgument));
    }),
    kind!("aborts of requests that are another's", |world| {
        let ids = (0..100).map(|n| n.to_string()).collect();
        let abort = framed(&AbortRequest { request_ids: ids });
        let stream = world.gateway.raw.headers("/trunkline.v1.Inference/Abort").await.unwrap();
        world.gateway.raw.data(stream, &abort, true).await.unwrap();
        assert_eq!(world.gateway.ended(stream).await.code(), Some(Code::Ok));
    }),
    kind!("a message in frames of one byte", |world| {
        let stream = world.gateway.raw.headers(GENERATE).await.unwrap();
        let message = framed(&greedy(&"x".repeat(1_500), 0));
        let frames: Vec<u8> = message.iter().flat_map(|byte| frame(0, 0, stream, &[*byte])).collect();
        world.gateway.raw.bytes(&frames).await.unwrap();
        world.gateway.raw.data(stream, &[], true).await.unwrap();
        assert_eq!(world.gateway.ended(stream).await.code(), Some(Code::InvalidArgument), "no tokens are asked for");
    }),
    kind!("calls with empty frames of data", |world| {
        for _ in 0..60 {
            let stream = world.gateway.raw.headers(GENERATE).await.unwrap();
            world.gateway.raw.data(stream, &[], false).await.unwrap();
            world.gateway.raw.reset(stream).await.unwrap();
        }
        world.gateway.is_asked_for_another().await;
    }),
    kind!("reflection that nobody reads", |world| {
        // Questions for the services with a text of 200 bytes, which the answers repeat: the answers soon have no room.
        let list = [&[0, 0, 0, 0, 203, 0x3a, 0xc8, 0x01][..], &[b'a'; 200]].concat();
        let path = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
        let stream = world.gateway.raw.headers(path).await.unwrap();
        world.gateway.fill(stream, &list.repeat(50)).await;
        world.gateway.has_room(1 << 16).await;
    }),
    kind!("connections in the middle of headers", |world| {
        for _ in 0..100 {
            let mut raw = world.another().await;
            raw.endless_headers(GENERATE).await.unwrap();
            world.others.push(raw);
        }
    }),
    kind!("connections of other protocols", |world| {
        for bytes in
            [&b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"\0\0\0", b"PRI"]
        {
            let mut socket = RawClient::silent(([127, 0, 0, 1], 0).into(), world.server.addr()).await.unwrap();
            socket.write_all(bytes).await.unwrap();
            socket.shutdown().await.unwrap();
            let _ = socket.read_to_end(&mut Vec::new()).await;
        }
    }),
];

/// Connections with damaged bytes, one for each seed, which are closed behind them.
const DAMAGED_CALLS: Kind = kind!("damaged calls", |world| {
    for seed in std::mem::take(&mut world.seeds) {
        let bytes = world.damaged_connection(seed);
        let mut socket = RawClient::silent(([127, 0, 0, 1], 0).into(), world.server.addr()).await.unwrap();
        // The server may end the connection at any byte.
        if socket.write_all(&bytes).await.is_ok() && socket.shutdown().await.is_ok() {
            let _ = socket.read_to_end(&mut Vec::new()).await;
        }
    }
    world.watcher_until_calls(STREAMS as u64 + 1).await;
});

/// A server with eight streams under way.
struct World {
    /// Seeds of connections to damage.
    seeds: Vec<u64>,
    server: TestServer,
    gateway: Gateway,
    /// Connections that stay open.
    others: Vec<RawClient>,
}

impl World {
    async fn another(&self) -> RawClient {
        RawClient::connect(([127, 0, 0, 1], 0).into(), self.server.addr(), 0).await.unwrap()
    }

    /// Sends a call with more headers, which are too many.
    async fn refused(&mut self, more: &[u8], cut: usize) {
        let stream = self.gateway.raw.headers_with(GENERATE, more, cut).await.unwrap();
        let reply = self.gateway.ended(stream).await;
        assert_eq!(reply.code(), Some(Code::ResourceExhausted), "{reply:?}");
        let (first, limit) = ("the headers of the call have ", "at most 16384 are allowed");
        assert!(reply.header("grpc-message").replace("%20", " ").starts_with(first), "{reply:?}");
        assert!(reply.header("grpc-message").replace("%20", " ").contains(limit), "{reply:?}");
    }

    /// Sends a call with these bytes as its message, and with more headers.
    async fn message(&mut self, bytes: &[u8], more: &[u8]) -> Reply {
        let stream = self.gateway.raw.headers_with(GENERATE, more, FRAME_BYTES).await.unwrap();
        self.gateway.raw.data(stream, bytes, true).await.unwrap();
        self.gateway.ended(stream).await
    }

    /// Returns the bytes of a connection with up to six calls, damaged.
    fn damaged_connection(&self, seed: u64) -> Vec<u8> {
        let mut rng = Pcg64Mcg::seed_from_u64(seed);
        let mut bytes = [PREFACE, &frame(4, 0, 0, &[])].concat();
        for n in 0..rng.random_range(1..=6) {
            let (path, message) = match rng.random_range(0..6) {
                0..2 => (GENERATE, framed(&greedy("a prompt that is to be damaged", 5))),
                2 => ("/trunkline.v1.Inference/GetModelInfo", framed(&GetModelInfoRequest::default())),
                3 => ("/trunkline.v1.Inference/Abort", framed(&AbortRequest { request_ids: vec!["0".into()] })),
                4 => ("/grpc.health.v1.Health/Watch", vec![0; 5]),
                _ => ("/trunkline.v1.Sessions/Create", vec![0; 5]),
            };
            let stream = 1 + 2 * n;
            bytes.extend(frame(1, 4, stream, &self.gateway.raw.header_block(path)));
            bytes.extend(frame(0, 1, stream, &message));
            bytes.extend(frame(8, 0, 0, &1_u32.to_be_bytes()));
        }
        damaged(&bytes, &mut rng)
    }

    /// Waits until so many calls are open, that of the question included.
    async fn watcher_until_calls(&self, calls: u64) {
        self.server.client().await.until(|info| info.network.unwrap().calls == calls).await;
    }
}

/// Texts of the streams, tokens of their prompts found in the cache afterwards, and steps.
#[derive(Debug, PartialEq)]
struct Seen {
    texts: Vec<String>,
    cached: Vec<u32>,
    steps: u64,
}

/// Returns a header with a value of so many bytes.
fn header(name: &str, bytes: usize) -> Vec<u8> {
    header_of(name, &"v".repeat(bytes))
}

fn header_of(name: &str, value: &str) -> Vec<u8> {
    let mut block = Vec::new();
    literal(&mut block, name, value);
    block
}

/// Returns so many headers, all but the first of one byte: the first one enters the table of the connection as its newest.
fn indexed(n: usize) -> Vec<u8> {
    let mut block = header_of("x-a", "");
    block[0] = 0x40;
    block.extend(vec![0x80 | 62; n - 1]);
    block
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    [&(payload.len() as u32).to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Limits whose times no test reaches.
fn patient() -> NetworkLimits {
    let never = Duration::from_secs(24 * 3600);
    NetworkLimits { first_request: never, request: never, idle: never, unread: never, ..NetworkLimits::default() }
}

/// Prompts of at least four blocks, two of which have the beginning of another.
fn prompts() -> Vec<String> {
    let text = "A trunk line is the main line of a railway, and a trunk is the prefix that many requests share.";
    (0..STREAMS).map(|n| format!("{} {text}", &"abcabc"[..1 + n % 6].repeat(1 + n / 6))).collect()
}

/// Runs the eight streams, with a hostile client alongside them or alone.
async fn run(kind: Option<&Kind>, seeds: &[u64]) -> Seen {
    let (wrap, gate) = gated();
    let config = Config { device_blocks: 512, ..Config::default() };
    let server = TestServer::start_options(config, |options| options.network = patient(), wrap).await;
    let mut gateway = Gateway::connect(server.addr()).await;
    let mut client = server.client().await;
    let mut streams = Vec::new();
    for prompt in prompts() {
        streams.push(gateway.open(&greedy(&prompt, TOKENS)).await);
    }
    (0..STEPS_BEFORE).for_each(|_| gate.send(()).unwrap());
    client.until(|info| info.counters.unwrap().steps >= STEPS_BEFORE).await;
    let mut world = World { seeds: seeds.to_vec(), server, gateway, others: Vec::new() };
    if let Some(kind) = kind {
        tokio::time::timeout(WATCHDOG, (kind.act)(&mut world)).await.expect("the server answers");
    }
    drop(gate);
    let mut texts = Vec::new();
    for stream in streams {
        let reply = world.gateway.ended(stream).await;
        assert_eq!(reply.code(), Some(Code::Ok), "{reply:?}");
        texts.push(reply.text_and_cached().0);
    }
    let steps = client.settled().await.counters.unwrap().steps;
    let mut cached = Vec::new();
    for prompt in prompts() {
        cached.push(client.ask(greedy(&prompt, 1)).await.unwrap().usage.cached_tokens);
    }
    Seen { texts, cached, steps }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_hostile_client_does_costs_it_alone() {
    let alone = run(None, &[]).await;
    assert!(alone.cached.iter().all(|cached| *cached >= 96), "whole blocks of the prompts: {:?}", alone.cached);
    assert!(alone.texts.iter().all(|text| !text.is_empty()));
    for kind in KINDS {
        println!("{}", kind.name);
        assert_eq!(run(Some(kind), &[]).await, alone, "{}", kind.name);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_calls_cost_their_senders_alone() {
    let alone = run(None, &[]).await;
    for seeds in Sample::from_env(31, 2 * DAMAGED).seeds.chunks(DAMAGED) {
        println!("each of {seeds:?} alone with TRUNKLINE_SEED");
        assert_eq!(run(Some(&DAMAGED_CALLS), seeds).await, alone);
    }
}
