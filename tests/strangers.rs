//! Floods of connections of many addresses on which nothing is asked for: a new client and one from before are served during each.

use std::any::Any;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tonic::{Code, Request};
use trunkline_core::Config;
use trunkline_server::proto::{GenerateRequest, GetServerInfoRequest, GetServerInfoResponse};
use trunkline_server::{NetworkLimits, Options};
use trunkline_tests::gateway::{GENERATE, Gateway};
use trunkline_tests::raw::{RawClient, framed, literal};
use trunkline_tests::scrape::scrape;
use trunkline_tests::server::{Client, TestServer, collect, gated, greedy};

/// A time that no test reaches.
const NEVER: Duration = Duration::from_secs(24 * 3600);
/// Connections of the server, and of the flood.
const PLACES: u32 = 64;
const FLOOD: u64 = 128;
const WATCH: &str = "/grpc.health.v1.Health/Watch";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const ALICE: &str = "alice-0123456789";
const MALLORY: &str = "mallory-01234567";
const ADMIN: &str = "admin-0123456789";

/// What each connection of a flood sends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Nothing,
    Preface,
    Headers,
    HalfMessage,
    Watch,
    /// A stream of questions without one.
    Reflection,
    /// A question, whose answer nobody reads.
    ReflectionAsked,
    /// A call that no service has.
    Unknown,
    /// A whole call, which runs.
    Whole,
}

const FORMS: [Form; 9] = [
    Form::Nothing,
    Form::Preface,
    Form::Headers,
    Form::HalfMessage,
    Form::Watch,
    Form::Reflection,
    Form::ReflectionAsked,
    Form::Unknown,
    Form::Whole,
];

/// Limits of which only those of connections are reached.
fn few() -> NetworkLimits {
    let times = NetworkLimits { first_request: NEVER, request: NEVER, idle: NEVER, ..NetworkLimits::default() };
    NetworkLimits { connections: PLACES, unread: NEVER, ..times }
}

fn config() -> Config {
    Config { device_blocks: 512, ..Config::default() }
}

/// A token file.
fn tokens() -> String {
    format!("{ADMIN} admin ops\n{ALICE} generate alice\n{MALLORY} generate mallory\n")
}

/// Puts a token in the headers of a call.
fn with<T>(token: Option<&str>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    request
}

/// Opens one connection of a flood, from one of four addresses.
async fn one(form: Form, n: u64, token: Option<&str>, to: SocketAddr) -> Box<dyn Any> {
    let from = SocketAddr::from(([127, 0, 0, 20 + (n % 4) as u8], 0));
    if form == Form::Nothing {
        return Box::new(RawClient::silent(from, to).await.unwrap());
    }
    let mut raw = RawClient::connect(from, to, 0).await.unwrap();
    let (path, message, ends) = match form {
        Form::Nothing | Form::Preface => return Box::new(raw),
        Form::Headers => (GENERATE, Vec::new(), false),
        Form::HalfMessage => (GENERATE, framed(&greedy("half", 5))[..9].to_vec(), false),
        Form::Watch => (WATCH, vec![0; 5], true),
        Form::Reflection => (REFLECTION, Vec::new(), false),
        Form::ReflectionAsked => (REFLECTION, vec![0, 0, 0, 0, 3, 0x3a, 1, b'*'], false),
        Form::Unknown => ("/no.Service/Call", vec![0; 5], false),
        Form::Whole => (GENERATE, framed(&greedy("whole", 5)), true),
    };
    let mut more = Vec::new();
    if let Some(token) = token {
        literal(&mut more, "authorization", &format!("Bearer {token}"));
    }
    // The server may have closed the connection for a newer one.
    if let Ok(stream) = raw.headers_with(path, &more, 16 << 10).await
        && (ends || !message.is_empty())
    {
        let _ = raw.data(stream, &message, ends).await;
    }
    Box::new(raw)
}

async fn info(client: &mut Client, token: Option<&str>) -> GetServerInfoResponse {
    client.0.get_server_info(with(token, GetServerInfoRequest {})).await.unwrap().into_inner()
}

async fn ask(client: &mut Client, token: Option<&str>, request: GenerateRequest) -> String {
    let stream = client.0.generate(with(token, request)).await.unwrap().into_inner();
    collect(stream).await.unwrap().text
}

/// Floods a server, and asks during the flood. The flood's calls have the token `hostile`, those of the others tokens of theirs.
async fn flood(form: Form, has_tokens: bool, hostile: Option<&str>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, tokens()).unwrap();
    let edit = move |options: &mut Options| {
        options.network = few();
        options.token_file = has_tokens.then_some(path);
    };
    // Calls of a flood run as long as the flood.
    let (wrap, gate) = gated();
    let server = TestServer::start_options(config(), edit, wrap).await;
    (0..8).for_each(|_| gate.send(()).unwrap());
    let (alice, admin) = (has_tokens.then_some(ALICE), has_tokens.then_some(ADMIN));
    let (mut before, mut watcher) = (server.client().await, server.client_from(9).await);
    let alone = ask(&mut before, alice, greedy("alone", 4)).await;
    info(&mut watcher, admin).await;
    let mut connections = Vec::new();
    for n in 0..FLOOD {
        connections.push(one(form, n, hostile, server.addr()).await);
        // A client that waits for a first answer has the time in which its address gives up as many connections as it has.
        while info(&mut watcher, admin).await.network.unwrap().accepted < n + 3 {}
    }
    let mut new = server.client().await;
    drop(gate);
    for client in [&mut new, &mut before] {
        assert_eq!(ask(client, alice, greedy("alone", 4)).await, alone, "{form:?}");
    }
    let network = info(&mut watcher, admin).await.network.unwrap();
    assert_eq!(network.accepted, FLOOD + 3, "{form:?}: nobody had to connect again");
    assert!(network.connections <= PLACES.into(), "{form:?}: {network:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_connections_keeps_nobody_out() {
    for form in FORMS {
        flood(form, false, None).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_connections_keeps_nobody_out_of_a_server_with_tokens() {
    for form in FORMS {
        flood(form, true, None).await;
        flood(form, true, Some(MALLORY)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_connections_keeps_no_scrape_out() {
    let server = TestServer::start(config()).await;
    for request in ["", "GET /metr", "GET /metrics HTTP/1.1\r\nHost: a\r\n", "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"]
    {
        let mut sockets = Vec::new();
        for n in 0..FLOOD {
            let from = SocketAddr::from(([127, 0, 0, 20 + (n % 4) as u8], 0));
            let mut socket = RawClient::silent(from, server.metrics_addr()).await.unwrap();
            let _ = socket.write_all(request.as_bytes()).await;
            sockets.push(socket);
        }
        assert!(scrape(server.metrics_addr()).await.sum("trunkline_connections_accepted_total") >= 0.0, "{request}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_lasts_on_a_connection_with_an_answer() {
    let edit = |options: &mut Options| options.network = few();
    let server = TestServer::start_options(config(), edit, |worker| Box::new(worker)).await;
    let mut balancer = Gateway::connect(server.addr()).await;
    let asked = balancer.open(&greedy("hello", 4)).await;
    balancer.ended(asked).await;
    let watch = balancer.raw.headers(WATCH).await.unwrap();
    balancer.raw.data(watch, &[0; 5], true).await.unwrap();
    balancer.begun(watch).await;
    let mut client = server.client_from(9).await;
    let mut connections = Vec::new();
    for n in 0..FLOOD {
        connections.push(one(Form::Watch, n, None, server.addr()).await);
        client.until(|info| info.network.unwrap().accepted >= n + 3).await;
    }
    let asked = balancer.open(&greedy("hello", 4)).await;
    assert_eq!(balancer.ended(asked).await.code(), Some(Code::Ok));
}

#[tokio::test(flavor = "multi_thread")]
async fn half_messages_of_one_user_leave_room_for_others_on_the_connection() {
    // Four half messages, and ten bytes of another connection.
    let limits = NetworkLimits { incoming_bytes_per_connection: 4 * 9_005, incoming_bytes: 4 * 9_005 + 10, ..few() };
    let edit = move |options: &mut Options| options.network = limits;
    let server = TestServer::start_options(config(), edit, |worker| Box::new(worker)).await;
    let mut gateway = Gateway::connect(server.addr()).await;
    let mut client = server.client_from(9).await;
    let alone = client.ask(greedy("alone", 4)).await.unwrap().text;
    let half = [&[0, 0, 0, 0x27, 0x10][..], &[0; 9_000]].concat();
    for n in 0..6 {
        let call = gateway.raw.headers(GENERATE).await.unwrap();
        gateway.raw.data(call, &half, false).await.unwrap();
        if n < 3 {
            continue;
        }
        let asked = gateway.open(&greedy("alone", 4)).await;
        assert_eq!(gateway.ended(asked).await.text_and_cached().0, alone);
    }
    let call = gateway.raw.headers(GENERATE).await.unwrap();
    gateway.raw.data(call, &half, false).await.unwrap();
    // From another connection, too: the half ones have most of the bytes of all.
    assert_eq!(client.ask(greedy("alone", 4)).await.unwrap().text, alone);
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_of_one_user_leave_calls_for_others_on_the_connection() {
    let limits = NetworkLimits { calls_per_connection: 8, unread: Duration::from_secs(2), ..few() };
    let edit = move |options: &mut Options| options.network = limits;
    let server = TestServer::start_options(config(), edit, |worker| Box::new(worker)).await;
    for path in [WATCH, GENERATE, REFLECTION] {
        let mut gateway = Gateway::connect(server.addr()).await;
        let mut calls = Vec::new();
        for _ in 0..8 {
            let call = gateway.raw.headers(path).await.unwrap();
            if path == WATCH {
                gateway.raw.data(call, &[0; 5], true).await.unwrap();
            }
            calls.push(call);
        }
        for call in &calls[..4] {
            assert_eq!(gateway.ended(*call).await.code(), Some(Code::ResourceExhausted), "{path}");
            // A call that has not sent its message counts until the client, too, has ended it.
            gateway.raw.reset(*call).await.unwrap();
        }
        let asked = gateway.open(&greedy("alone", 4)).await;
        assert_eq!(gateway.ended(asked).await.code(), Some(Code::Ok), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_one_token_leave_some_for_others_on_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, tokens()).unwrap();
    let edit = move |options: &mut Options| {
        options.network = NetworkLimits { calls_per_connection: 8, ..few() };
        options.token_file = Some(path);
    };
    let (wrap, gate) = gated();
    let server = TestServer::start_options(config(), edit, wrap).await;
    let mut gateway = server.client().await;
    let mut held = Vec::new();
    for n in 0..7 {
        held.push(gateway.0.generate(with(Some(MALLORY), greedy(&n.to_string(), 4))).await.unwrap());
    }
    let status = gateway.0.generate(with(Some(MALLORY), greedy("one more", 4))).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "this client has its part of the calls of this connection; try again later");
    let stream = gateway.0.generate(with(Some(ALICE), greedy("alone", 4))).await.unwrap().into_inner();
    drop(gate);
    collect(stream).await.unwrap();
    for stream in held {
        collect(stream.into_inner()).await.unwrap();
    }
    ask(&mut gateway, Some(MALLORY), greedy("one more", 4)).await;
}
