//! Tokens and authorities that are taken back: what goes on by their right ends, and everything else goes on.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use prost::Message;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};
use trunkline_attach::wire::workers_client::WorkersClient;
use trunkline_attach::wire::{FromWorker, from_worker, to_worker};
use trunkline_cluster::ClusterConfig;
use trunkline_core::Config;
use trunkline_server::proto::inference_client::InferenceClient;
use trunkline_server::proto::sessions_client::SessionsClient;
use trunkline_server::proto::{
    AppendTurnRequest, CompactSessionRequest, GetModelInfoRequest, GetServerInfoRequest, GetServerInfoResponse,
    GetSessionRequest, append_turn_request,
};
use trunkline_server::{AttachOptions, ClientTls, NetworkLimits, Options, TlsFiles, connect_tls};
use trunkline_tests::attached::{BLOCKS, hello};
use trunkline_tests::gateway::{GENERATE, Gateway};
use trunkline_tests::raw::{RawClient, framed, literal};
use trunkline_tests::server::{Client, TestServer, collect, gated, greedy};
use trunkline_tests::sessions::{create, settings, turn};

const ADMIN: &str = "admin-0123456789";
const ALICE: &str = "alice-0123456789";
const BOB: &str = "bob---0123456789";
const CAROL: &str = "carol-0123456789";
const DAVE: &str = "dave--0123456789";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
/// A time that no test reaches.
const NEVER: Duration = Duration::from_secs(24 * 3600);

/// A file of tokens, and a server that looks at the file all the time.
struct Tokens(tempfile::TempDir);

impl Tokens {
    fn new(lines: &[String]) -> Self {
        let tokens = Self(tempfile::tempdir().unwrap());
        tokens.set(lines);
        tokens
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("tokens")
    }

    /// Replaces the file at once, as an editor does.
    fn set(&self, lines: &[String]) {
        let new = self.0.path().join("new");
        fs::write(&new, lines.join("\n")).unwrap();
        fs::rename(new, self.path()).unwrap();
    }

    fn options(&self) -> Options {
        let times = NetworkLimits { first_request: NEVER, request: NEVER, ..NetworkLimits::default() };
        let network = NetworkLimits { idle: NEVER, unread: NEVER, ..times };
        let reload = Duration::from_millis(1);
        Options { token_file: Some(self.path()), reload, network, ..Options::default() }
    }
}

fn with<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

/// Sends the beginning of a call with a token, and its message if there is one.
async fn call(raw: &mut RawClient, token: &str, path: &str, message: Option<Vec<u8>>) -> u32 {
    let mut more = Vec::new();
    literal(&mut more, "authorization", &format!("Bearer {token}"));
    let stream = raw.headers_with(path, &more, 16 << 10).await.unwrap();
    if let Some(message) = message {
        raw.data(stream, &message, true).await.unwrap();
    }
    stream
}

fn message(message: &impl Message) -> Option<Vec<u8>> {
    Some(framed(message))
}

async fn info(client: &mut Client) -> GetServerInfoResponse {
    client.0.get_server_info(with(ADMIN, GetServerInfoRequest {})).await.unwrap().into_inner()
}

/// Asks until a token that the file has by now is valid.
async fn is_valid(client: &mut Client, token: &str) {
    while client.0.get_model_info(with(token, GetModelInfoRequest {})).await.is_err() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_token_that_is_gone_end_and_those_of_others_go_on() {
    let line = |token: &str, role: &str, name: &str| format!("{token} {role} {name}");
    let [admin, bob, dave] =
        [line(ADMIN, "admin", "ops"), line(BOB, "generate", "bob"), line(DAVE, "generate", "dave")];
    let [alice, carol] = [line(ALICE, "generate", "alice"), line(CAROL, "generate", "carol")];
    let tokens = Tokens::new(&[admin.clone(), alice, bob.clone(), carol]);
    let (wrap, gate) = gated();
    let options = tokens.options();
    let edit = move |other: &mut Options| *other = Options { cluster: other.cluster.clone(), ..options };
    let config = Config { device_blocks: 512, max_context: 1024, ..Config::default() };
    let server = TestServer::start_options(config, edit, wrap).await;
    let mut client = server.client().await;
    // A call whose client reads nothing, with output that waits.
    let mut unread = RawClient::connect(([127, 0, 0, 1], 0).into(), server.addr(), 0).await.unwrap();
    call(&mut unread, ALICE, GENERATE, message(&greedy("unread", 12))).await;
    (0..3).for_each(|_| gate.send(()).unwrap());
    while info(&mut client).await.network.unwrap().unread_bytes == 0 {}
    let mut sessions = SessionsClient::new(server.channel().await);
    let mut created = Vec::new();
    for _ in 0..3 {
        let session = sessions.create(with(ALICE, create("system", settings(400, 120)))).await.unwrap();
        created.push(session.into_inner().session_id);
    }
    // A chat that is too long, with a summary under way that the worker does not write yet, and one that can be compacted.
    let input = Some(append_turn_request::Input::Text("a long turn ".repeat(10)));
    for (session_id, turns) in [(&created[0], 4), (&created[1], 3)] {
        for _ in 0..turns {
            let input = input.clone();
            let more = AppendTurnRequest { session_id: session_id.clone(), input, ..AppendTurnRequest::default() };
            sessions.append(with(ALICE, more)).await.unwrap();
        }
    }
    let phase = async |sessions: &mut SessionsClient<_>| {
        let get = GetSessionRequest { session_id: created[0].clone(), without_turns: true };
        sessions.get(with(ADMIN, get)).await.unwrap().into_inner().compaction_phase
    };
    assert_eq!(phase(&mut sessions).await, "summarising");

    // Calls of all kinds on one connection, as behind a gateway.
    let mut gateway = Gateway::connect(server.addr()).await;
    let text = greedy("the same text", 12);
    let goes_on = call(&mut gateway.raw, BOB, GENERATE, message(&text)).await;
    let compact = CompactSessionRequest { session_id: created[1].clone(), ..CompactSessionRequest::default() };
    let said = turn(&created[2], "", "hello", 5);
    let mut end = Vec::new();
    for (token, path, message) in [
        (ALICE, GENERATE, message(&greedy("hello", 12))),
        (ALICE, GENERATE, None),
        (ALICE, "/trunkline.v1.Sessions/Generate", message(&said)),
        (ALICE, "/trunkline.v1.Sessions/Compact", message(&compact)),
        (ALICE, REFLECTION, None),
        (CAROL, GENERATE, message(&greedy("hello", 12))),
    ] {
        end.push((path, call(&mut gateway.raw, token, path, message).await));
    }
    while info(&mut client).await.network.unwrap().calls < 9 {}

    tokens.set(&[format!("# moved\n{dave}"), bob, line(CAROL, "admin", "carol"), admin]);
    is_valid(&mut client, DAVE).await;
    for (path, stream) in end {
        let reply = gateway.ended(stream).await;
        assert_eq!(reply.code(), Some(Code::Unauthenticated), "{path}: {reply:?}");
        assert_eq!(reply.header("grpc-message").replace("%20", " "), "the token of this call is not valid any more");
    }
    while !unread.frame().await.expect("the connection stays").is_reset() {}
    while phase(&mut sessions).await != "idle" {}
    drop(gate);
    let reply = gateway.ended(goes_on).await;
    assert_eq!(reply.code(), Some(Code::Ok), "{reply:?}");
    let again = client.0.generate(with(BOB, text)).await.unwrap().into_inner();
    assert_eq!(reply.text_and_cached().0, collect(again).await.unwrap().text);
    let info = info(&mut client).await;
    assert_eq!(info.load.map(|load| load.waiting + load.running), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_token_is_gone_has_to_leave() {
    const FIRST: &str = "worker-0123456789";
    const SECOND: &str = "worker-9876543210";
    let lines = [format!("{ADMIN} admin ops"), format!("{FIRST} worker gpu"), format!("{SECOND} worker gpu")];
    let tokens = Tokens::new(&lines);
    let core = Config { device_blocks: BLOCKS, ..Config::default() };
    let options = Options {
        cluster: ClusterConfig::uniform(&core, 2),
        attach: AttachOptions { engines: 2, ..AttachOptions::default() },
        ..tokens.options()
    };
    let server = TestServer::launch(options, |_, _| unreachable!("no embedded worker")).await.unwrap();
    let mut client = server.client().await;
    let attach = async |token: &str, name: &str| {
        let (answers, stream) = tokio::sync::mpsc::unbounded_channel();
        let hello = from_worker::Message::Hello(hello(name).encode());
        answers.send(FromWorker { message: Some(hello) }).unwrap();
        let stream = tokio_stream::wrappers::UnboundedReceiverStream::new(stream);
        let call = WorkersClient::new(server.channel().await).attach(with(token, stream)).await?;
        let mut jobs = call.into_inner();
        let welcome = jobs.message().await?.unwrap().message;
        assert!(matches!(welcome, Some(to_worker::Message::Welcome(_))));
        Ok::<_, Status>((answers, jobs))
    };
    let (_gone, mut jobs) = attach(FIRST, "a").await.unwrap();
    let (_stays, mut other) = attach(SECOND, "b").await.unwrap();
    tokens.set(&[&lines[..1], &lines[2..], &[format!("{DAVE} generate dave")]].concat());
    is_valid(&mut client, DAVE).await;
    let status = loop {
        match jobs.message().await {
            Ok(message) => assert!(message.is_some(), "the stream has no good end"),
            Err(status) => break status,
        }
    };
    let why = "the token of this call is not valid any more";
    assert_eq!((status.code(), status.message()), (Code::Unauthenticated, why));
    // Not one whose connection broke, which keeps its seat for a time.
    let engines = loop {
        let engines = info(&mut client).await.engines;
        if engines.iter().any(|engine| engine.worker.is_none()) {
            break engines;
        }
        assert!(engines.iter().all(|engine| engine.worker.as_ref().is_none_or(|worker| worker.connected)));
    };
    assert_eq!(engines.iter().filter_map(|engine| Some(&engine.worker.as_ref()?.name[..])).collect::<Vec<_>>(), ["b"]);
    assert_eq!(attach(FIRST, "a").await.err().map(|status| status.code()), Some(Code::Unauthenticated));
    attach(SECOND, "a").await.unwrap();
    let other = tokio::time::timeout(Duration::ZERO, other.message()).await;
    assert!(!matches!(other, Ok(Err(_))), "the other worker stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_of_a_client_whose_authority_is_gone_end() {
    let pem = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tls").join(name);
    let dir = tempfile::tempdir().unwrap();
    let client_ca = dir.path().join("ca.pem");
    fs::copy(pem("ca.pem"), &client_ca).unwrap();
    let tls = TlsFiles { cert: pem("server.pem"), key: pem("server.key"), client_ca: Some(client_ca.clone()) };
    let edit = move |options: &mut Options| {
        options.tls = Some(tls);
        options.reload = Duration::from_millis(1);
    };
    let (wrap, gate) = gated();
    let server = TestServer::start_options(Config::default(), edit, wrap).await;
    let connect = async || {
        let endpoint = Endpoint::from_shared(format!("https://localhost:{}", server.addr().port())).unwrap();
        let files = ClientTls { ca: pem("ca.pem"), identity: Some((pem("client.pem"), pem("client.key"))) };
        connect_tls(endpoint, &files).await.map(InferenceClient::new)
    };
    let mut stream = connect().await.unwrap().generate(greedy("hello", 4)).await.unwrap().into_inner();
    let new = dir.path().join("new");
    fs::copy(pem("other-ca.pem"), &new).unwrap();
    fs::rename(new, &client_ca).unwrap();
    let status = stream.message().await.unwrap_err();
    let why = "the certificate of this client is not valid any more";
    assert_eq!((status.code(), status.message()), (Code::Unauthenticated, why));
    if let Ok(mut client) = connect().await {
        client.generate(greedy("hello", 4)).await.unwrap_err();
    }
    drop(gate);
}
