//! Tokens and TLS, through the server's port.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use trunkline_attach::wire::workers_client::WorkersClient;
use trunkline_attach::wire::{FromWorker, from_worker, to_worker};
use trunkline_cluster::ClusterConfig;
use trunkline_core::Config;
use trunkline_server::proto::inference_client::InferenceClient;
use trunkline_server::proto::{AbortRequest, FlushCacheRequest, GenerateRequest, GetServerInfoRequest};
use trunkline_server::{
    AttachOptions, ClientError, ClientTls, Options, TlsFiles, authorization, connect_tls, wants_tls,
};
use trunkline_tests::attached::{BLOCKS, hello};
use trunkline_tests::raw::RawClient;
use trunkline_tests::server::{Client, TestServer, collect, gated, greedy};

const ADMIN: &str = "admin-0123456789";
const ALICE: &str = "alice-0123456789";
const BOB: &str = "bob---0123456789";

/// A certificate of the project's test authority; `tests/tls/make.sh` makes all of them.
fn pem(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tls").join(name)
}

fn tls_files(client_ca: Option<PathBuf>) -> TlsFiles {
    TlsFiles { cert: pem("server.pem"), key: pem("server.key"), client_ca }
}

fn with<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

fn code<T>(result: Result<T, Status>) -> Code {
    result.map_or_else(|status| status.code(), |_| Code::Ok)
}

/// The codes of Generate and FlushCache with a token.
async fn codes(client: &mut Client, token: &str) -> (Code, Code) {
    let generated = client.0.generate(with(token, greedy("hello", 2))).await;
    (code(generated), code(client.0.flush_cache(with(token, FlushCacheRequest {})).await))
}

#[tokio::test(flavor = "multi_thread")]
async fn roles_decide_and_a_changed_file_takes_effect() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, format!("{ADMIN} admin ops\n{ALICE} generate alice\n")).unwrap();
    let token_file = Some(path.clone());
    let edit = |options: &mut Options| {
        options.token_file = token_file;
        options.reload = Duration::from_millis(1);
    };
    let server = TestServer::start_options(Config::default(), edit, |worker| Box::new(worker)).await;
    let mut client = server.client().await;
    assert_eq!(codes(&mut client, ADMIN).await, (Code::Ok, Code::Ok));
    assert_eq!(codes(&mut client, ALICE).await, (Code::Ok, Code::PermissionDenied));
    assert_eq!(codes(&mut client, BOB).await, (Code::Unauthenticated, Code::Unauthenticated));
    assert_eq!(code(client.0.generate(greedy("hello", 2)).await), Code::Unauthenticated);
    assert_eq!(code(HealthClient::new(server.channel().await).check(HealthCheckRequest::default()).await), Code::Ok);
    let info = |token| with(token, GetServerInfoRequest {});
    assert!(client.0.get_server_info(info(ALICE)).await.unwrap().into_inner().network.is_none());
    let network = client.0.get_server_info(info(ADMIN)).await.unwrap().into_inner().network.unwrap();
    assert_eq!(network.unauthorised, 4);

    fs::write(&path, "a mistake").unwrap();
    assert_eq!(codes(&mut client, ALICE).await.0, Code::Ok, "the tokens stay as they are");
    fs::write(&path, format!("{ADMIN} admin ops\n{BOB} generate bob\n")).unwrap();
    while codes(&mut client, BOB).await.0 != Code::Ok {}
    assert_eq!(codes(&mut client, ALICE).await.0, Code::Unauthenticated);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_owns_its_requests_on_every_connection() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, format!("{ADMIN} admin ops\n{ALICE} generate alice\n{BOB} generate bob\n")).unwrap();
    let (wrap, gate) = gated();
    let edit = move |options: &mut Options| options.token_file = Some(path);
    let server = TestServer::start_options(Config::default(), edit, wrap).await;
    let mut client = server.client().await;
    let named = |token, id: &str| with(token, GenerateRequest { request_id: id.into(), ..greedy("hello", 4) });
    let mut open = Vec::new();
    for (token, id) in [(ALICE, "job"), (BOB, "job"), (ALICE, "both"), (BOB, "both")] {
        open.push(client.0.generate(named(token, id)).await.unwrap());
    }
    let made = client.0.generate(with(ALICE, greedy("hello", 4))).await.unwrap();
    let made = made.metadata().get("trunkline-request-id").unwrap().to_str().unwrap().to_owned();
    let mut second = server.client().await;
    let mut abort = async |token, id: &str| {
        let request = with(token, AbortRequest { request_ids: vec![id.into()] });
        second.0.abort(request).await.unwrap().into_inner().found
    };
    assert_eq!((abort(BOB, &made).await, abort(ALICE, &made).await), (0, 1), "an id alone is not proof with tokens");
    assert_eq!((abort(ALICE, "job").await, abort(BOB, "job").await), (1, 1), "one each");
    assert_eq!(abort(ADMIN, "both").await, 2, "an administrator aborts for all");
    drop(gate);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_reaches_the_cache_of_its_own_tenant_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, format!("{ADMIN} admin ops\n{ALICE} generate alice\n{BOB} generate bob\n")).unwrap();
    let edit = move |options: &mut Options| options.token_file = Some(path);
    let server = TestServer::start_options(Config::default(), edit, |worker| Box::new(worker)).await;
    let mut client = server.client().await;
    let text = "a prompt of several blocks that one tenant has sent, and others would like to probe for";
    let mut cached = async |token, tenant: &str| -> Result<bool, Code> {
        let request = GenerateRequest { tenant: tenant.into(), ..greedy(text, 2) };
        let stream = client.0.generate(with(token, request)).await.map_err(|status| status.code())?;
        Ok(collect(stream.into_inner()).await.unwrap().usage.cached_tokens > 0)
    };
    assert_eq!(cached(ALICE, "").await, Ok(false));
    assert_eq!(cached(BOB, "").await, Ok(false), "no tenant in the request is the tenant of the token");
    assert_eq!(cached(ALICE, "alice").await, Ok(true));
    for (token, tenant) in [(BOB, "alice"), (ALICE, "bob"), (ADMIN, "alice")] {
        assert_eq!(cached(token, tenant).await, Err(Code::PermissionDenied), "{tenant}");
    }
    assert_eq!(cached(ADMIN, "").await, Ok(false));
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_protects_the_port() {
    let edit = |options: &mut Options| options.tls = Some(tls_files(None));
    let server = TestServer::start_options(Config::default(), edit, |worker| Box::new(worker)).await;
    let connect = async |ca: &str| -> Result<Channel, String> {
        let endpoint = Endpoint::from_shared(format!("https://localhost:{}", server.addr().port())).unwrap();
        let tls = ClientTls { ca: pem(ca), identity: None };
        connect_tls(endpoint, &tls).await.map_err(|err| format!("{err:?}"))
    };
    let mut client = Client(InferenceClient::new(connect("ca.pem").await.unwrap()));
    assert_eq!(client.ask(greedy("hello", 4)).await.unwrap().token_ids.len(), 4);
    let error = connect("other-ca.pem").await.unwrap_err();
    assert!(error.contains("UnknownIssuer") || error.contains("certificate"), "{error}");
    let plain = Endpoint::from_shared(format!("http://{}", server.addr())).unwrap().connect_lazy();
    assert!(InferenceClient::new(plain).generate(greedy("hello", 4)).await.is_err(), "no call without TLS");
}

/// Sends bytes to a server and returns the answer, up to the end of the connection.
async fn answer(server: &TestServer, bytes: &[u8]) -> String {
    let mut socket = RawClient::silent(([127, 0, 0, 1], 0).into(), server.addr()).await.unwrap();
    socket.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_another_protocol_get_a_line_that_says_so() {
    let plain = TestServer::start(Config::default()).await;
    let tls = |options: &mut Options| options.tls = Some(tls_files(None));
    let tls = TestServer::start_options(Config::default(), tls, |worker| Box::new(worker)).await;
    for (server, line) in [(&plain, "this port speaks gRPC, over HTTP/2; "), (&tls, "this port speaks TLS; ")] {
        for request in ["GET / HTTP/1.1\r\nhost: a\r\n\r\n", "POST /v1/completions HTTP/1.0\r\n\r\n{}"] {
            let answer = answer(server, request.as_bytes()).await;
            let (head, body) = answer.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{head}");
            assert!(body.starts_with(line) && body.ends_with('\n') && body.lines().count() == 1, "{body}");
        }
    }
    let hello = answer(&plain, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").await;
    assert!(hello.ends_with(
        "this port speaks no TLS; connect without TLS, or start the server with --tls-cert and --tls-key\n"
    ));
    assert!(answer(&tls, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.contains("this port speaks TLS; "));

    let endpoint = |scheme: &str, server: &TestServer| {
        Endpoint::from_shared(format!("{scheme}://localhost:{}", server.addr().port())).unwrap()
    };
    let files = ClientTls { ca: pem("ca.pem"), identity: None };
    let refused = connect_tls(endpoint("https", &plain), &files).await.map(drop).unwrap_err();
    assert!(matches!(refused, ClientError::NoTls), "{refused:?}");
    let mut client = Client(InferenceClient::new(endpoint("http", &tls).connect().await.unwrap()));
    // A call that begins once the connection has ended does not know why it ended.
    let mut refused = client.ask(greedy("hello", 4)).await.unwrap_err();
    while refused.code() == Code::Cancelled && !wants_tls(&refused) {
        refused = client.ask(greedy("hello", 4)).await.unwrap_err();
    }
    assert!(wants_tls(&refused), "{refused:?}");
    assert!(!wants_tls(&Status::unavailable("another reason")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_attaches_over_tls_with_a_token_of_its_role_alone() {
    const WORKER: &str = "worker-0123456789";
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokens");
    fs::write(&path, format!("{WORKER} worker gpu1\n{ALICE} generate alice\n{ADMIN} admin ops\n")).unwrap();
    let core = Config { device_blocks: BLOCKS, ..Config::default() };
    let options = Options {
        cluster: ClusterConfig::uniform(&core, 1),
        attach: AttachOptions { engines: 1, ..AttachOptions::default() },
        tls: Some(tls_files(None)),
        token_file: Some(path),
        ..Options::default()
    };
    let server = TestServer::launch(options, |_, _| unreachable!("no embedded worker")).await.unwrap();
    let endpoint = Endpoint::from_shared(format!("https://localhost:{}", server.addr().port())).unwrap();
    let channel = connect_tls(endpoint, &ClientTls { ca: pem("ca.pem"), identity: None }).await.unwrap();
    let attach = async |token: Option<&str>| {
        let (answers, stream) = tokio::sync::mpsc::unbounded_channel();
        let hello = from_worker::Message::Hello(hello("a").encode());
        answers.send(FromWorker { message: Some(hello) }).unwrap();
        let stream = tokio_stream::wrappers::UnboundedReceiverStream::new(stream);
        let request = token.map_or_else(|| Request::new(()), |token| with(token, ())).map(|()| stream);
        let call = WorkersClient::new(channel.clone()).attach(request).await?;
        Ok((answers, call.into_inner().message().await?))
    };
    for (token, expected) in [
        (None, Code::Unauthenticated),
        (Some(BOB), Code::Unauthenticated),
        (Some(ALICE), Code::PermissionDenied),
        (Some(ADMIN), Code::PermissionDenied),
    ] {
        assert_eq!(code(attach(token).await), expected, "{token:?}");
    }
    let (_answers, welcome) = attach(Some(WORKER)).await.unwrap();
    assert!(matches!(welcome.unwrap().message, Some(to_worker::Message::Welcome(_))));
    // The token of a worker serves for nothing else.
    let mut client = InferenceClient::new(channel.clone());
    assert_eq!(code(client.generate(with(WORKER, greedy("hello", 2))).await), Code::PermissionDenied);
    assert_eq!(code(client.flush_cache(with(WORKER, FlushCacheRequest {})).await), Code::PermissionDenied);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_needs_a_certificate_if_the_server_asks_for_one() {
    let edit = |options: &mut Options| options.tls = Some(tls_files(Some(pem("ca.pem"))));
    let server = TestServer::start_options(Config::default(), edit, |worker| Box::new(worker)).await;
    let ask = async |identity| -> Result<usize, String> {
        let endpoint = Endpoint::from_shared(format!("https://localhost:{}", server.addr().port())).unwrap();
        let channel = connect_tls(endpoint, &ClientTls { ca: pem("ca.pem"), identity }).await;
        let mut client = Client(InferenceClient::new(channel.map_err(|err| format!("{err:?}"))?));
        client.ask(greedy("hello", 4)).await.map(|answer| answer.token_ids.len()).map_err(|status| status.to_string())
    };
    assert_eq!(ask(Some((pem("client.pem"), pem("client.key")))).await, Ok(4));
    assert!(ask(None).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_files_are_reported_by_name() {
    let start = async |edit: fn(&mut Options)| {
        TestServer::try_start(Config::default(), edit).await.err().expect("the server does not start").to_string()
    };
    let message = start(|options| options.token_file = Some("no-tokens".into())).await;
    assert!(message.starts_with("cannot read the token file no-tokens: "), "{message}");
    let files = || TlsFiles { cert: pem("server.key"), ..tls_files(None) };
    let message = start(|options| options.tls = Some(TlsFiles { cert: pem("server.key"), ..tls_files(None) })).await;
    assert_eq!(message, format!("{} has no certificate; it needs at least one, in PEM form", files().cert.display()));
    let message = start(|options| options.tls = Some(TlsFiles { key: pem("client.key"), ..tls_files(None) })).await;
    assert!(message.starts_with("the certificate and the key cannot be used: "), "{message}");
    assert!(authorization(Path::new("no-token")).is_err());
}
