//! Requests that a worker fails alone: the others' answers, cache and worker lose nothing.

use std::sync::Arc;

use tonic::{Code, Status};
use trunkline_cluster::{ClusterConfig, EngineConfig, Role};
use trunkline_core::Config;
use trunkline_port::{DeviceBlocks, SeqFault, Step, StepError, StepOutput, StepResult, StepRunner, Token};
use trunkline_server::proto::FinishReason;
use trunkline_sim_replay::recorded::replay_recorded;
use trunkline_tests::scrape::scrape;
use trunkline_tests::server::{Answer, Client, TestServer, collect, greedy};
use trunkline_tests::sessions::{Chat, settings};
use trunkline_worker::Worker;

const TRUNK: &str = "A trunk is the prefix that many requests share; a trunk line is the main line of a railway.";
/// Behind this byte the model's logits are not finite.
const BAD: char = '~';

fn config() -> Config {
    Config { device_blocks: 256, ..Config::default() }
}

/// A worker that fails each sequence which runs [`BAD`] last.
struct FailsOn(Worker);

impl FailsOn {
    fn wrap(worker: Worker) -> Box<dyn StepRunner> {
        Box::new(Self(worker))
    }
}

impl StepRunner for FailsOn {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        let mut output = StepRunner::run(&mut self.0, step)?;
        let ended = std::mem::take(&mut output.result);
        output.result = StepResult { step: ended.step, scores: ended.scores.clone(), ..StepResult::default() };
        for (at, seq) in step.seqs.iter().enumerate() {
            let last = step.run_tokens(seq).last().filter(|_| seq.sample && !seq.input_from_last);
            match last == Some(&(BAD as Token)) {
                true => output.result.push_failed(SeqFault::NotFinite),
                false => output.result.push(ended.of(at)),
            }
        }
        Ok(output)
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        StepRunner::blocks(&mut self.0)
    }

    fn reset(&mut self) {
        self.0.reset();
    }
}

fn prompts(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("{} Branch {i}.", &TRUNK[..40 + 10 * i])).collect()
}

/// Asks for long answers at once; `meanwhile` runs once all have begun.
async fn ask_all(client: &mut Client, prompts: &[String], meanwhile: impl AsyncFnOnce(&mut Client)) -> Vec<Answer> {
    let mut streams = Vec::new();
    for prompt in prompts {
        streams.push(client.open(greedy(prompt, 60)).await.unwrap());
    }
    meanwhile(client).await;
    let mut answers = Vec::new();
    for stream in streams {
        answers.push(collect(stream).await.unwrap());
    }
    answers
}

fn texts(answers: &[Answer]) -> Vec<&str> {
    answers.iter().map(|answer| answer.text.as_str()).collect()
}

fn check_status(status: &Status) {
    assert!(status.code() == Code::Internal && status.message().contains("logits"), "{status:?}");
    assert!(status.message().contains("not finite") && status.message().contains("only this request"), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_finite_logits_end_alone_and_cost_the_others_nothing() {
    let prompts = prompts(4);
    let alone = TestServer::start(config()).await;
    let expected = ask_all(&mut alone.client().await, &prompts, async |_: &mut Client| ()).await;
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("run.jsonl.gz");
    let server = TestServer::start_with(config(), Some(record.clone()), FailsOn::wrap).await;
    let mut client = server.client().await;
    client.ask(greedy(TRUNK, 4)).await.unwrap();
    let cached = client.ask(greedy(TRUNK, 4)).await.unwrap().usage.cached_tokens;
    assert!(cached >= 80);

    let answers = ask_all(&mut client, &prompts, async |client: &mut Client| {
        for n in 0..6 {
            // Some alone, some after the prefix of others.
            let prompt = format!("{}{n}{BAD}", if n % 2 == 0 { TRUNK } else { "" });
            check_status(&client.ask(greedy(&prompt, 20)).await.unwrap_err());
        }
    });
    let answers = answers.await;
    assert_eq!(texts(&answers), texts(&expected));
    assert!(answers.iter().all(|answer| answer.reason == FinishReason::Length));
    assert_eq!(client.ask(greedy(TRUNK, 4)).await.unwrap().usage.cached_tokens, cached);
    let info = client.settled().await;
    let counters = info.counters.unwrap();
    assert_eq!((counters.restarted, counters.preemptions, counters.accepted), (0, 0, 13));
    let metrics = scrape(server.metrics_addr()).await;
    assert_eq!(metrics.value("trunkline_request_success_total{finished_reason=\"not_finite\"}"), 6.0);
    assert_eq!(metrics.sum("trunkline_worker_losses_total"), 0.0);

    let outcome = server.drain().await;
    let replayed = replay_recorded(&record, &mut |_| {}).unwrap();
    assert_eq!((replayed.digest, replayed.matches), (format!("{:016x}", outcome.digest), Some(true)));
    assert_eq!(replayed.requests, 13);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_fails_on_its_prefill_engine_ends_there() {
    let prompts = prompts(3);
    let engine = |role| EngineConfig { core: config(), role, kv_class: 0 };
    let cluster = ClusterConfig {
        engines: vec![engine(Role::Prefill), engine(Role::Decode)],
        ..ClusterConfig::uniform(&config(), 1)
    };
    let server = TestServer::start_cluster(cluster, None, |_, worker| FailsOn::wrap(worker)).await;
    let mut client = server.client().await;
    let answers = ask_all(&mut client, &prompts, async |client: &mut Client| {
        check_status(&client.ask(greedy(&format!("{TRUNK}{BAD}"), 20)).await.unwrap_err());
    });
    let answers = answers.await;
    let alone = TestServer::start(config()).await;
    let expected = ask_all(&mut alone.client().await, &prompts, async |_: &mut Client| ()).await;
    assert_eq!(texts(&answers), texts(&expected));
    let accepted: Vec<u64> =
        client.settled().await.engines.iter().map(|engine| engine.counters.unwrap().accepted).collect();
    assert_eq!(accepted, [4, 3], "it was not handed over");
    server.drain().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_that_fails_leaves_its_chat_as_it_was() {
    let server = TestServer::start_with(config(), None, FailsOn::wrap).await;
    let mut chat = Chat::create(&server, "You are brief.\n", settings(400, 120)).await;
    chat.say("Hello.\n", 10).await.unwrap();
    let before = chat.export().await;
    check_status(&chat.say(&format!("What{BAD}"), 10).await.unwrap_err());
    assert_eq!(chat.export().await.turns, before.turns);
    let answer = chat.say("What?\n", 10).await.unwrap();
    assert!(answer.usage.cached_tokens > 0, "the context is still cached");
    server.drain().await;
}
