//! Workers that attach over gRPC: they come, go, die, come back and send nonsense, and no request notices but in time.

use trunkline_cluster::ClusterConfig;
use trunkline_core::Config;
use trunkline_server::{AttachOptions, Options};
use trunkline_tests::attached::{Attached, BLOCKS};
use trunkline_tests::server::{Answer, Client, TestServer, collect, greedy};

fn limits() -> Config {
    Config { device_blocks: BLOCKS, max_steps_in_flight: 2, ..Config::default() }
}

/// Options of a server of `n` engines for attached workers.
fn attaching(n: usize) -> Options {
    let attach = AttachOptions { engines: n, ..AttachOptions::default() };
    Options { cluster: ClusterConfig::uniform(&limits(), n), attach, ..Options::default() }
}

/// Starts a server of `n` engines for attached workers.
async fn start(n: usize) -> TestServer {
    TestServer::launch(attaching(n), |_, _| unreachable!("no embedded worker")).await.expect("the server starts")
}

fn prompts(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("{i}: a trunk line is the main line of a railway, number {}.", i * 7 % 5)).collect()
}

async fn ask_all(client: &mut Client, prompts: &[String]) -> Vec<Answer> {
    let mut streams = Vec::new();
    for prompt in prompts {
        streams.push(client.open(greedy(prompt, 24)).await.unwrap());
    }
    let mut answers = Vec::new();
    for stream in streams {
        answers.push(collect(stream).await.unwrap());
    }
    answers
}

async fn texts_of_an_embedded_worker(prompts: &[String]) -> Vec<String> {
    let server = TestServer::start(limits()).await;
    texts(&ask_all(&mut server.client().await, prompts).await)
}

fn texts(answers: &[Answer]) -> Vec<String> {
    answers.iter().map(|answer| answer.text.clone()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_worker_writes_what_an_embedded_one_does() {
    let prompts = prompts(8);
    let server = start(1).await;
    let worker = tokio::spawn(Attached::fresh(server.addr(), "a").await.serve());
    let mut client = server.client().await;
    let answers = ask_all(&mut client, &prompts).await;
    assert_eq!(texts(&answers), texts_of_an_embedded_worker(&prompts).await);
    let info = client.settled().await;
    let attached = info.engines[0].worker.clone().unwrap();
    assert_eq!((attached.name.as_str(), attached.program.as_str()), ("a", "test 1.0"));
    assert!(attached.connected && attached.life > 0 && attached.steps > 0);
    assert_eq!((attached.busy_s * 1e6).round() as u64, attached.steps * 7, "7 us each");
    server.drain().await;
    let (end, _) = worker.await.unwrap();
    assert_eq!(end.unwrap().message(), "the server is stopping");
}
