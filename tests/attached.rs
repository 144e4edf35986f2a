//! Workers that attach over gRPC: they come, go, die, come back and send nonsense, and no request notices but in time.

#[path = "attached/absence.rs"]
mod absence;
#[path = "attached/damaged.rs"]
mod damaged;
#[path = "attached/faults.rs"]
mod faults;
#[path = "attached/offer.rs"]
mod offer;
#[path = "attached/roles.rs"]
mod roles;
#[path = "attached/successor.rs"]
mod successor;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;
use tokio::task::JoinHandle;
use tonic::Code;
use trunkline_attach::wire::{self, from_worker, to_worker};
use trunkline_attach::{Hello, Resume};
use trunkline_cluster::ClusterConfig;
use trunkline_core::{Config, Preemption};
use trunkline_server::proto::{AttachedWorker, FinishReason};
use trunkline_server::{AttachOptions, Options};
use trunkline_sim_replay::recorded::replay_recorded;
use trunkline_tests::attached::{Attached, BLOCKS, Death, Device, Wire, attach_malformed, dial, hello, keep};
use trunkline_tests::server::{Answer, Client, TestServer, collect, greedy};

fn limits() -> Config {
    Config { device_blocks: BLOCKS, max_steps_in_flight: 2, ..Config::default() }
}

/// Options of a server of `n` engines for attached workers.
fn attaching(n: usize) -> Options {
    let attach = AttachOptions { engines: n, ..AttachOptions::default() };
    Options { cluster: ClusterConfig::uniform(&limits(), n), attach, ..Options::default() }
}

async fn launch(options: Options) -> TestServer {
    TestServer::launch(options, |_, _| unreachable!("no embedded worker")).await.expect("the server starts")
}

/// Starts a server of `n` engines for attached workers.
async fn start(n: usize) -> TestServer {
    launch(attaching(n)).await
}

fn forever(server: &TestServer, name: &str) -> JoinHandle<()> {
    keep(server.addr(), name, || None)
}

fn prompts(n: usize) -> Vec<String> {
    let shared = "A trunk is the prefix that many requests share; a trunk line is the main line of a railway.";
    (0..n).map(|i| format!("{} Branch {}, leaf {i}.", &shared[..30 + 20 * (i % 4)], i % 7)).collect()
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

/// Checks the answers of a server against those of an embedded worker.
async fn check(answers: &[Answer], prompts: &[String]) {
    let server = TestServer::start(limits()).await;
    let expected = ask_all(&mut server.client().await, prompts).await;
    let texts = |answers: &[Answer]| answers.iter().map(|answer| answer.text.clone()).collect::<Vec<_>>();
    assert_eq!(texts(answers), texts(&expected));
    assert!(answers.iter().all(|answer| answer.reason == FinishReason::Length));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_worker_writes_what_an_embedded_one_does() {
    let prompts = prompts(12);
    let server = start(1).await;
    let worker = tokio::spawn(Attached::fresh(server.addr(), "a").await.serve());
    let mut client = server.client().await;
    check(&ask_all(&mut client, &prompts).await, &prompts).await;
    let info = client.settled().await;
    let attached = info.engines[0].worker.clone().unwrap();
    assert_eq!((attached.name.as_str(), attached.program.as_str()), ("a", "test 1.0"));
    assert!(attached.connected && attached.life > 0 && attached.steps > 0);
    assert_eq!((attached.busy_s * 1e6).round() as u64, attached.steps * 7, "7 us each");
    server.drain().await;
    let (end, _) = worker.await.unwrap();
    assert_eq!(end.unwrap().message(), "the server is stopping");
}

#[tokio::test(flavor = "multi_thread")]
async fn attached_workers_draft_as_far_as_each_can_and_with_the_steps_in_flight_of_the_default() {
    let prompts = prompts(6);
    let folder = tempfile::tempdir().unwrap();
    for (can, drafts) in [(64, 15), (2, 2), (0, 0)] {
        let path = folder.path().join(format!("{can}.jsonl"));
        let mut options = Options { record: Some(path.clone()), ..attaching(1) };
        options.cluster.engines[0].core.max_drafts = 15;
        let server = launch(options).await;
        let mut drafting = hello("a");
        drafting.abilities.max_drafts = can;
        let worker = Attached::attach(server.addr(), drafting, Device::drafting(drafts)).await;
        let worker = worker.unwrap_or_else(|(status, _)| panic!("refused: {status:?}"));
        assert_eq!((worker.session.max_drafts, worker.session.steps_in_flight), (drafts, 2));
        let worker = tokio::spawn(worker.serve());
        let mut client = server.client().await;
        check(&ask_all(&mut client, &prompts).await, &prompts).await;
        client.settled().await;
        let outcome = server.drain().await;
        assert_eq!(outcome.counts.drafted > 0, drafts > 0, "{:?}", outcome.counts);
        let replayed = replay_recorded(&path, &mut |_| {}).unwrap();
        assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
        worker.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_embedded_worker_drafts_however_many_steps_may_be_in_flight() {
    let prompts = prompts(6);
    for max_steps_in_flight in [1, 2] {
        let server = TestServer::start(Config { max_drafts: 15, max_steps_in_flight, ..limits() }).await;
        let mut client = server.client().await;
        check(&ask_all(&mut client, &prompts).await, &prompts).await;
        client.settled().await;
        let counts = server.drain().await.counts;
        assert!(counts.drafted > 0, "{max_steps_in_flight} steps");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_comes_back_in_time_goes_on_with_its_kv() {
    let prompts = prompts(6);
    let server = start(1).await;
    let wire = Wire::to(server.addr()).await;
    let mut worker = Attached::fresh(wire.addr, "a").await;
    let mut client = server.client().await;
    let mut asking = client.clone();
    let asked = prompts.clone();
    let answers = tokio::spawn(async move { ask_all(&mut asking, &asked).await });
    // In the middle of the answers, with steps unanswered.
    worker.serve_until(|_, steps| steps == 12).await.unwrap();
    let (session, before) = (worker.session.clone(), client.info().await.counters.unwrap());
    wire.cut();
    let device = worker.abandon();
    client.until(|info| info.engines[0].worker.as_ref().is_some_and(|worker| !worker.connected)).await;
    let worker = Attached::attach(wire.addr, hello("a"), device).await.map_err(|(status, _)| status).unwrap();
    assert!(worker.session.resumed);
    assert_eq!((&worker.session.name, worker.session.life), (&session.name, session.life));
    let worker = tokio::spawn(worker.serve());
    check(&answers.await.unwrap(), &prompts).await;
    let after = client.settled().await.counters.unwrap();
    assert_eq!((after.preemptions, after.accepted), (before.preemptions, 6), "nothing was computed again");
    server.drain().await;
    worker.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_workers_requests_go_on_elsewhere_or_wait_for_the_next_worker() {
    let prompts = prompts(8);
    let mut options = attaching(2);
    options.attach.resume = Duration::ZERO;
    let server = launch(options).await;
    let wires = (Wire::to(server.addr()).await, Wire::to(server.addr()).await);
    let (mut a, mut b) = (Attached::fresh(wires.0.addr, "a").await, Attached::fresh(wires.1.addr, "b").await);
    assert_eq!((a.session.engine, b.session.engine), (0, 1));
    let mut client = server.client().await;
    let (mut asking, asked) = (client.clone(), prompts.clone());
    let answers = tokio::spawn(async move { ask_all(&mut asking, &asked).await });
    a.serve_until(|_, steps| steps == 5).await.unwrap();
    wires.0.cut();
    let info = client.until(|info| info.engines[0].worker.is_none()).await;
    assert_eq!(info.engines[0].requests, 0, "all have moved");
    b.serve_until(|_, steps| steps == 9).await.unwrap();
    wires.1.cut();
    // Nobody is left: requests wait.
    client.until(|info| info.engines.iter().all(|engine| engine.worker.is_none())).await;
    let c = forever(&server, "c");
    check(&answers.await.unwrap(), &prompts).await;
    client.settled().await;
    server.drain().await;
    c.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_fail_if_no_worker_comes_and_health_says_so() {
    let mut options = attaching(1);
    (options.attach.resume, options.attach.wait) = (Duration::ZERO, Duration::from_millis(1));
    let server = launch(options).await;
    let mut worker = Attached::fresh(server.addr(), "a").await;
    let mut client = server.client().await;
    let stream = client.open(greedy("A trunk line", 24)).await.unwrap();
    worker.serve_until(|_, steps| steps == 3).await.unwrap();
    let mut health = tonic_health::pb::health_client::HealthClient::new(server.channel().await);
    let mut health = health.watch(tonic_health::pb::HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(health.message().await.unwrap().unwrap().status, 1, "SERVING");
    drop(worker);
    assert_eq!(health.message().await.unwrap().unwrap().status, 2, "NOT_SERVING");
    let status = collect(stream).await.unwrap_err();
    let no_worker = "no worker is left to run the request; try again later";
    assert_eq!((status.code(), status.message()), (Code::Unavailable, no_worker));
    let status = client.open(greedy("A trunk line", 24)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    let worker = forever(&server, "b");
    assert_eq!(health.message().await.unwrap().unwrap().status, 1, "SERVING");
    check(&[client.ask(greedy("A trunk line", 24)).await.unwrap()], &["A trunk line".into()]).await;
    drop(health);
    server.drain().await;
    worker.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn new_requests_do_not_wait_for_a_broken_connection() {
    let prompts = prompts(4);
    let server = start(2).await;
    let wire = Wire::to(server.addr()).await;
    let a = Attached::fresh(wire.addr, "a").await;
    let b = forever(&server, "b");
    let mut client = server.client().await;
    client.until(|info| info.engines.iter().all(|engine| engine.worker.is_some())).await;
    wire.cut();
    let device = a.abandon();
    client.until(|info| info.engines[0].worker.as_ref().is_some_and(|worker| !worker.connected)).await;
    check(&ask_all(&mut client, &prompts).await, &prompts).await;
    assert_eq!(client.info().await.engines[0].counters.unwrap().accepted, 0, "all went to the other worker");
    let a = Attached::attach(wire.addr, hello("a"), device).await.map_err(|(status, _)| status).unwrap();
    assert!(a.session.resumed);
    let a = tokio::spawn(a.serve());
    check(&ask_all(&mut client, &prompts).await, &prompts).await;
    assert!(client.info().await.engines[0].counters.unwrap().accepted > 0, "the engine is open again");
    server.drain().await;
    a.await.unwrap();
    b.await.unwrap();
}

/// The refusal of a Hello.
async fn refusal(server: &TestServer, edit: impl FnOnce(&mut Hello)) -> (Code, String) {
    let mut hello = hello("x");
    edit(&mut hello);
    let status = dial(server.addr(), hello.encode()).await.map(drop).unwrap_err();
    (status.code(), status.message().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_does_not_fit_gets_one_line() {
    let mut options = attaching(1);
    options.cluster.engines[0].core.host_blocks = 8;
    let server = launch(options).await;
    let refused = async |edit: fn(&mut Hello), line: &str| {
        assert_eq!(refusal(&server, edit).await, (Code::FailedPrecondition, format!("worker x: {line}")));
    };
    let one_model = "; all workers of a server have one model";
    let line = |text: &str| format!("{text}{one_model}");
    refused(
        |hello| hello.model.name = "other".into(),
        &line("model.name is \"other\", and \"seeded-tiny\" at the server"),
    )
    .await;
    refused(|hello| hello.model.vocab_size = 500, &line("model.vocab_size is 500, and 258 at the server")).await;
    refused(|hello| hello.model.revision = "r".into(), &line("model.revision is \"r\", and \"\" at the server")).await;
    let sizes = "the server has blocks of 16 tokens, and kv.block_sizes is [32]";
    refused(|hello| hello.kv.block_sizes = vec![32], sizes).await;
    refused(|hello| hello.kv.tokens = 1023, "kv.tokens has room for 63 blocks of 16 tokens; the server needs 64").await;
    refused(|hello| hello.kv.block_io = false, "the server swaps requests out or has tiers, which needs block_io")
        .await;
    refused(|hello| hello.abilities.max_sequences = 255, "max_sequences is 255; the server needs 256").await;
    refused(|hello| hello.abilities.max_tokens = 100, "max_tokens is 100; the server needs 2048").await;
    refused(|hello| hello.abilities.steps_in_flight = 1, "steps_in_flight is 1; the server needs 2").await;
    refused(|hello| hello.abilities.max_logprobs = 5, "max_logprobs is 5; the server offers 20 to its clients").await;
    let sampling = "the server's requests sample, which needs seeded_sampling";
    refused(|hello| hello.abilities.seeded_sampling = false, sampling).await;
    let line =
        "the server's requests may have penalties and biases of logits, which needs penalties; update the worker";
    refused(|hello| hello.abilities.penalties = false, line).await;
    let partial = "the server's prefix hits end within blocks, which needs partial_writes";
    refused(|hello| hello.abilities.partial_writes = false, partial).await;

    let mut other = hello("x").encode();
    other.protocol = 2;
    let status = dial(server.addr(), other).await.map(drop).unwrap_err();
    assert_eq!((status.code(), status.message().lines().count()), (Code::InvalidArgument, 1), "{status:?}");
    let mut long = hello("x").encode();
    long.program = "p".repeat(2 << 20);
    let status = dial(server.addr(), long).await.map(drop).unwrap_err();
    let line = "more than 1048576 bytes before the Hello was accepted";
    assert_eq!((status.code(), status.message()), (Code::ResourceExhausted, line));
    let status = attach_malformed(server.addr()).await;
    let is_named = status.message().starts_with("the Hello cannot be read: ");
    assert_eq!((status.code(), is_named), (Code::InvalidArgument, true), "{status:?}");
    let worker = Attached::fresh(server.addr(), "a").await;
    let (code, message) = refusal(&server, |_| {}).await;
    assert_eq!(code, Code::ResourceExhausted);
    assert_eq!(message, "all 1 engines for attached workers have a worker; try again later");
    drop(worker);
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_fewer_stages_than_the_server_divides_decodes_among_gets_one_line() {
    let mut options = attaching(1);
    options.cluster.engines[0].core.pipeline_stages = 2;
    let server = launch(options).await;
    let line = "worker x: pipeline_stages is 1; the server divides decodes among 2 stages";
    assert_eq!(refusal(&server, |_| {}).await, (Code::FailedPrecondition, line.to_owned()));
    let mut fits = hello("y");
    fits.abilities.pipeline_stages = 2;
    dial(server.addr(), fits.encode()).await.expect("a worker of two stages fits");
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_of_one_name_do_not_take_the_seat_from_each_other() {
    let server = start(2).await;
    let first = tokio::spawn(Attached::fresh(server.addr(), "a").await.serve());
    let (code, message) = refusal(&server, |hello| hello.name = "a".into()).await;
    let line = "a worker of this name is attached as engine 0; give each worker a --name of its own";
    assert_eq!((code, message.as_str()), (Code::AlreadyExists, line));
    first.abort();
    let mut client = server.client().await;
    gone(&mut client, 0).await;
    // A worker that is gone does not stand in the way of its successor.
    let second = tokio::spawn(Attached::fresh(server.addr(), "a").await.serve());
    let prompts = prompts(2);
    check(&ask_all(&mut server.client().await, &prompts).await, &prompts).await;
    server.drain().await;
    second.await.unwrap();
}

/// Waits until the server has seen that an engine's connection is gone.
async fn gone(client: &mut Client, engine: usize) {
    let is_there = |worker: &AttachedWorker| worker.connected;
    client.until(|info| !info.engines[engine].worker.as_ref().is_some_and(is_there)).await;
}

/// Answers of each kind that a sound worker never sends, given a step.
fn nonsense(worker: &mut Attached, job: to_worker::Message) -> Vec<from_worker::Message> {
    use from_worker::Message;
    let life = worker.life();
    let Some(Message::StepDone(done)) = worker.answer(job) else { panic!("a step") };
    let wrong = |edit: fn(&mut wire::StepDone)| {
        let mut done = done.clone();
        edit(&mut done);
        Message::StepDone(done)
    };
    vec![
        wrong(|done| done.id += 1),
        wrong(|done| done.life += 1),
        wrong(|done| done.tokens.push(1)),
        wrong(|done| done.tokens.iter_mut().for_each(|token| *token = 258)),
        wrong(|done| done.counts = vec![7; 3]),
        wrong(|done| done.scores = vec![f32::NAN]),
        wrong(|done| done.accepted = 1),
        Message::ResetDone(wire::ResetDone { life }),
        Message::ResetDone(wire::ResetDone { life: life + 1 }),
        Message::StepFailed(wire::StepFailed { id: done.id + 5, life, ..Default::default() }),
        Message::Hello(hello("a").encode()),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_of_each_kind_ends_the_connection_and_harms_no_request() {
    let prompts = prompts(3);
    let server = start(2).await;
    let sound = forever(&server, "sound");
    let mut client = server.client().await;
    client.until(|info| info.engines[0].worker.is_some()).await;
    let (mut kind, mut kinds) = (0, 1);
    while kind < kinds {
        let mut worker = Attached::fresh(server.addr(), "a").await;
        assert_eq!(worker.session.engine, 1);
        let (mut asking, asked) = (client.clone(), prompts.clone());
        let answers = tokio::spawn(async move { ask_all(&mut asking, &asked).await });
        let job = worker.serve_until(|_, steps| steps == 2).await.unwrap();
        let mut messages = nonsense(&mut worker, job);
        kinds = messages.len();
        let message = messages.swap_remove(kind);
        let name = format!("{message:?}");
        worker.send(message);
        let (end, _) = worker.serve().await;
        let status = end.unwrap();
        assert_eq!(status.code(), Code::InvalidArgument, "{name}: {status:?}");
        check(&answers.await.unwrap(), &prompts).await;
        kind += 1;
    }
    // Answers of nobody's step, life or copy are late, and dropped.
    let mut worker = Attached::fresh(server.addr(), "a").await;
    worker.send(from_worker::Message::StepDone(wire::StepDone::default()));
    worker.send(from_worker::Message::BlockRead(wire::BlockRead { id: 9, ..Default::default() }));
    worker.send(from_worker::Message::BlockWritten(wire::BlockWritten { id: 9, ..Default::default() }));
    let worker = tokio::spawn(async move { worker.serve_until(|_, _| false).await.map(drop) });
    check(&ask_all(&mut client, &prompts).await, &prompts).await;
    client.settled().await;
    server.drain().await;
    assert!(worker.await.unwrap().is_err());
    sound.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_step_is_run_again_after_a_reset() {
    let prompts = prompts(4);
    let server = start(1).await;
    let mut worker = Attached::fresh(server.addr(), "a").await;
    let mut client = server.client().await;
    let (mut asking, asked) = (client.clone(), prompts.clone());
    let answers = tokio::spawn(async move { ask_all(&mut asking, &asked).await });
    let Ok(to_worker::Message::Step(step)) = worker.serve_until(|_, steps| steps == 7).await else { panic!("a step") };
    let life = worker.life();
    let failed = wire::StepFailed { id: step.id, life, reason: "out of\nmemory".into(), request: None };
    worker.send(from_worker::Message::StepFailed(failed));
    // Steps sent before the server heard are dropped.
    let reset = loop {
        match worker.job().await.unwrap().unwrap() {
            to_worker::Message::Reset(reset) => break reset,
            _ => continue,
        }
    };
    assert_eq!(reset.life, life + 1);
    let answer = worker.answer(to_worker::Message::Reset(reset)).unwrap();
    worker.send(answer);
    let worker = tokio::spawn(worker.serve());
    check(&answers.await.unwrap(), &prompts).await;
    assert_eq!(client.settled().await.engines[0].worker.as_ref().unwrap().life, life + 1);
    server.drain().await;
    worker.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_whose_end_of_a_reset_was_lost_begins_anew() {
    let prompts = prompts(2);
    let server = start(1).await;
    let mut worker = Attached::fresh(server.addr(), "a").await;
    let (mut asking, asked) = (server.client().await, prompts.clone());
    let answers = tokio::spawn(async move { ask_all(&mut asking, &asked).await });
    let Ok(to_worker::Message::Step(step)) = worker.serve_until(|_, steps| steps == 3).await else { panic!("a step") };
    let failed = wire::StepFailed { id: step.id, life: worker.life(), reason: "no".into(), request: None };
    worker.send(from_worker::Message::StepFailed(failed));
    // Steps sent before the server heard are dropped.
    let reset = loop {
        if let to_worker::Message::Reset(reset) = worker.job().await.unwrap().unwrap() {
            break reset;
        }
    };
    // The worker has begun the life, its ResetDone never comes, and the old connection still looks sound.
    let mut again = hello("a");
    again.resume = Some(Resume { session: worker.session.name.clone(), life: reset.life });
    let (answering, jobs, welcome) = dial(server.addr(), again.encode()).await.unwrap();
    assert!(!welcome.resumed && welcome.life > reset.life, "{welcome:?}");
    drop((answering, jobs));
    gone(&mut server.client().await, 0).await;
    let last = tokio::spawn(Attached::fresh(server.addr(), "a").await.serve());
    check(&answers.await.unwrap(), &prompts).await;
    server.drain().await;
    last.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_worker_counts_as_broken() {
    let mut options = attaching(1);
    options.attach.silence = Duration::from_millis(50);
    let server = launch(options).await;
    let mut silent = Attached::fresh(server.addr(), "a").await;
    let status = loop {
        match silent.job().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("an end without a status"),
            Err(status) => break status,
        }
    };
    assert_eq!((status.code(), status.message()), (Code::Aborted, "the worker was silent for 50ms"));
    server.drain().await;
}

/// Options of a server with a device too small for all requests, which are swapped out through the worker.
fn swapping() -> Options {
    let mut options = attaching(1);
    let core = &mut options.cluster.engines[0].core;
    (core.device_blocks, core.host_blocks, core.preemption) = (12, 64, Preemption::Swap);
    core.launch_watermark = 0.0;
    options
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_of_the_wrong_length_ends_the_connection_and_harms_no_request() {
    let prompts = prompts(8);
    let server = launch(swapping()).await;
    let mut worker = Attached::fresh(server.addr(), "a").await;
    let (mut asking, asked) = (server.client().await, prompts.clone());
    let answers = tokio::spawn(async move { ask_all(&mut asking, &asked).await });
    let is_read = |job: &to_worker::Message, _| matches!(job, to_worker::Message::ReadBlock(_));
    let read = worker.serve_until(is_read).await.unwrap();
    let Some(from_worker::Message::BlockRead(mut short)) = worker.answer(read) else { panic!("a block") };
    let n_bytes = short.data.len();
    short.data.truncate(3);
    worker.send(from_worker::Message::BlockRead(short));
    let Err(Some(status)) = worker.serve_until(|_, _| false).await else { panic!("a reason") };
    let line = format!("the worker read 3 bytes of a block of {n_bytes} bytes");
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, line.as_str()));
    // Its KV is not trusted any more, not even if it comes back.
    let mut again = hello("a");
    again.resume = Some(Resume { session: worker.session.name.clone(), life: worker.life() });
    let (answering, jobs, welcome) = dial(server.addr(), again.encode()).await.unwrap();
    assert!(!welcome.resumed);
    drop((answering, jobs));
    gone(&mut server.client().await, 0).await;
    let sound = forever(&server, "a");
    check(&answers.await.unwrap(), &prompts).await;
    server.drain().await;
    sound.await.unwrap();
}

/// Asks again and again until requests met on the device and one gave way: on a busy machine they may come one after another.
async fn ask_until_preempted(client: &mut Client, prompts: &[String]) {
    for _ in 0..100 {
        check(&ask_all(client, prompts).await, prompts).await;
        if client.info().await.counters.unwrap().preemptions > 0 {
            return;
        }
    }
    panic!("nothing was preempted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_is_never_answered_costs_no_request() {
    let prompts = prompts(8);
    let mut options = swapping();
    options.cluster.engines[0].core.copy_timeout_ns = 1_000_000;
    let server = launch(options).await;
    let mut worker = Attached::fresh(server.addr(), "a").await;
    let mut client = server.client().await;
    let mute = tokio::spawn(async move {
        let mut ignored = 0;
        loop {
            let is_read = |job: &to_worker::Message, _| matches!(job, to_worker::Message::ReadBlock(_));
            if worker.serve_until(is_read).await.is_err() {
                return ignored;
            }
            ignored += 1;
        }
    });
    ask_until_preempted(&mut client, &prompts).await;
    server.drain().await;
    assert!(mute.await.unwrap() > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_swapped_out_and_in_through_the_connection() {
    let prompts = prompts(8);
    let server = launch(swapping()).await;
    let worker = forever(&server, "a");
    let mut client = server.client().await;
    client.until(|info| info.engines[0].worker.is_some()).await;
    ask_until_preempted(&mut client, &prompts).await;
    let info = client.settled().await;
    let copied: u64 = info.engines[0].store.as_ref().unwrap().links.iter().map(|link| link.blocks).sum();
    assert!(copied > 0, "nothing was copied");
    server.drain().await;
    worker.await.unwrap();
}

/// Workers that leave or die one after another, each a few times.
fn restarts(rounds: u32, death: impl Fn(u32) -> Death + Send + 'static) -> impl FnMut() -> Option<(u64, Death)> {
    let mut done = 0;
    move || {
        done += 1;
        (done <= rounds).then(|| (4 + 3 * u64::from(done), death(done)))
    }
}

fn recording(dir: &tempfile::TempDir) -> Option<PathBuf> {
    Some(dir.path().join("run.jsonl"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_loses_no_request_and_a_recording_of_it_replays() {
    let prompts = prompts(24);
    let dir = tempfile::tempdir().unwrap();
    let options = Options { record: recording(&dir), ..attaching(3) };
    let server = launch(options).await;
    let workers: Vec<_> = ["a", "b", "c"]
        .map(|name| keep(server.addr(), name, restarts(2, |n| if n % 2 == 0 { Death::Cut } else { Death::Left })))
        .into();
    let mut client = server.client().await;
    client.until(|info| info.engines.iter().all(|engine| engine.worker.is_some())).await;
    check(&ask_all(&mut client, &prompts).await, &prompts).await;
    client.settled().await;
    let outcome = server.drain().await;
    assert_eq!(outcome.stats.requests.finished, 24);
    let replayed = replay_recorded(&recording(&dir).unwrap(), &mut |_| {}).unwrap();
    assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
    for worker in workers {
        worker.await.unwrap();
    }
}

/// Workers are killed in mid-step, at random, with 64 streams: `TRUNKLINE_KILLS` times in all, 12 by default.
#[tokio::test(flavor = "multi_thread")]
async fn workers_killed_at_random_lose_no_request_and_no_token() {
    let kills: u32 = std::env::var("TRUNKLINE_KILLS").map_or(12, |n| n.parse().expect("a number of kills"));
    let seed: u64 = std::env::var("TRUNKLINE_SEED").map_or(1, |n| n.parse().expect("a seed"));
    let prompts = prompts(64);
    let dir = tempfile::tempdir().unwrap();
    let mut options = Options { record: recording(&dir), ..attaching(3) };
    // The dead never come back: their successors have empty blocks.
    options.attach.resume = Duration::from_millis(200);
    let server = launch(options).await;
    let left = Arc::new(AtomicU32::new(kills));
    let workers: Vec<_> = (0..3)
        .map(|at| {
            let (left, mut random) = (left.clone(), Pcg64::seed_from_u64(seed * 3 + at));
            keep(server.addr(), format!("worker {at}"), move || {
                let death = if random.random_bool(0.5) { Death::Cut } else { Death::Killed };
                let steps = random.random_range(8..32);
                let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
                taken.ok().map(|_| (steps, death))
            })
        })
        .collect();
    let mut client = server.client().await;
    client.until(|info| info.engines.iter().any(|engine| engine.worker.is_some())).await;
    let mut rounds = 0;
    while left.load(Ordering::Relaxed) > 0 || rounds == 0 {
        check(&ask_all(&mut client, &prompts).await, &prompts).await;
        rounds += 1;
    }
    client.settled().await;
    let outcome = server.drain().await;
    assert_eq!(outcome.stats.requests.finished, 64 * rounds);
    let replayed = replay_recorded(&recording(&dir).unwrap(), &mut |_| {}).unwrap();
    assert_eq!((replayed.matches, replayed.digest), (Some(true), format!("{:016x}", outcome.digest)));
    for worker in workers {
        worker.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_lost_its_session_begins_anew() {
    let server = start(1).await;
    let worker = Attached::fresh(server.addr(), "a").await;
    let (life, device) = (worker.session.life, worker.leave().await);
    let mut client = server.client().await;
    client.until(|info| info.engines[0].worker.is_none()).await;
    let worker = Attached::attach(server.addr(), hello("a"), device).await.map_err(|(status, _)| status).unwrap();
    assert!(!worker.session.resumed && worker.session.life > life, "it had left");
    let again = Attached::attach(server.addr(), hello("b"), Device::default()).await.map(drop);
    assert_eq!(again.map_err(|(status, _)| status.code()), Err(Code::ResourceExhausted));
    drop(worker);
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attached_worker_stands_beside_an_embedded_one_and_comes_and_goes() {
    let prompts = prompts(8);
    let mut options = attaching(2);
    options.attach.engines = 1;
    options.attach.resume = Duration::ZERO;
    let server = TestServer::launch(options, |engine, worker| {
        assert_eq!(engine.0, 0, "the first engine has the embedded worker");
        Box::new(worker)
    });
    let server = server.await.unwrap();
    let mut client = server.client().await;
    check(&ask_all(&mut client, &prompts).await, &prompts).await;
    assert_eq!(client.settled().await.engines[1].counters.unwrap().accepted, 0, "nobody is there");
    let wire = Wire::to(server.addr()).await;
    let mut worker = Attached::fresh(wire.addr, "a").await;
    assert_eq!(worker.session.engine, 1);
    let (mut asking, asked) = (client.clone(), prompts.clone());
    let answers = tokio::spawn(async move { ask_all(&mut asking, &asked).await });
    worker.serve_until(|_, steps| steps == 4).await.unwrap();
    wire.cut();
    check(&answers.await.unwrap(), &prompts).await;
    assert!(client.settled().await.engines[1].counters.unwrap().accepted > 0);
    offer::assert_refuses_h2o(&mut client).await;
    server.drain().await;
}
