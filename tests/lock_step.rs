//! Workers in lock step: the n-th step of each member of a group runs together with the n-th of all others, or not at all.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tonic::{Code, Status};
use trunkline_attach::wire::to_worker::Message;
use trunkline_attach::{Hello, LockStep};
use trunkline_cluster::ClusterConfig;
use trunkline_core::Config;
use trunkline_server::proto::FinishReason;
use trunkline_server::{AttachOptions, Options};
use trunkline_tests::attached::{Attached, BLOCKS, Device, Wire, dial, hello};
use trunkline_tests::server::{Answer, Client, TestServer, collect, greedy};

/// Longest time of a test: a step without the others would wait for ever.
const PATIENCE: Duration = Duration::from_secs(120);

fn limits() -> Config {
    Config { device_blocks: BLOCKS, max_steps_in_flight: 2, ..Config::default() }
}

async fn start(n: usize) -> TestServer {
    let attach = AttachOptions { engines: n, ..AttachOptions::default() };
    let options = Options { cluster: ClusterConfig::uniform(&limits(), n), attach, ..Options::default() };
    TestServer::launch(options, |_, _| unreachable!("no embedded worker")).await.expect("the server starts")
}

fn of_group(rank: u32, size: u32) -> Hello {
    let lock_step = Some(LockStep { group: "experts".into(), size, rank });
    Hello { lock_step, ..hello(&format!("rank {rank}")) }
}

/// What ranks of a model do in each step: nobody ends the n-th before all have begun theirs.
struct Collective {
    begun: watch::Sender<Vec<u64>>,
}

impl Collective {
    fn of(size: usize) -> Arc<Self> {
        Arc::new(Self { begun: watch::Sender::new(vec![0; size]) })
    }

    async fn run(&self, rank: u32) {
        let mut n = 0;
        self.begun.send_modify(|begun| {
            begun[rank as usize] += 1;
            n = begun[rank as usize];
        });
        let all = |begun: &Vec<u64>| begun.iter().all(|other| *other >= n);
        let _ = self.begun.subscribe().wait_for(all).await.expect("the sender is here");
    }

    fn counts(&self) -> Vec<u64> {
        self.begun.borrow().clone()
    }
}

/// Serves as a member of a group until the stream ends. Returns the reason, and the idle steps.
async fn serve(mut worker: Attached, rank: u32, collective: Arc<Collective>) -> (Option<Status>, u64) {
    let (mut jobs, mut idle) = (VecDeque::new(), 0);
    loop {
        let job = match jobs.pop_front() {
            Some(job) => job,
            None => match worker.job().await {
                Ok(Some(job)) => job,
                end => return (end.err(), idle),
            },
        };
        idle += u64::from(matches!(job, Message::Idle(_)));
        if matches!(job, Message::Step(_) | Message::Idle(_)) {
            let mut together = pin!(collective.run(rank));
            loop {
                tokio::select! {
                    () = &mut together => break,
                    next = worker.job() => match next {
                        Ok(Some(job)) => jobs.push_back(job),
                        end => return (end.err(), idle),
                    },
                }
            }
        }
        if let Some(answer) = worker.answer(job) {
            worker.send(answer);
        }
    }
}

async fn attach(wire: &Wire, rank: u32, collective: &Arc<Collective>) -> JoinHandle<(Option<Status>, u64)> {
    let size = collective.counts().len() as u32;
    let attached = Attached::attach(wire.addr, of_group(rank, size), Device::default()).await;
    let worker = attached.unwrap_or_else(|(status, _)| panic!("refused: {status:?}"));
    tokio::spawn(serve(worker, rank, collective.clone()))
}

fn prompts(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("A trunk is the prefix that many requests share. Branch {i}, leaf {}.", i % 3)).collect()
}

async fn ask_all(mut client: Client, prompts: Vec<String>) -> Vec<Answer> {
    let mut streams = Vec::new();
    for (at, prompt) in prompts.iter().enumerate() {
        // Of different lengths, so that some engines are done before others.
        streams.push(client.open(greedy(prompt, 8 + 8 * at as u32)).await.unwrap());
    }
    let mut answers = Vec::new();
    for stream in streams {
        answers.push(collect(stream).await.unwrap());
    }
    answers
}

/// Checks answers against those of an embedded worker.
async fn check(answers: &[Answer], prompts: &[String]) {
    let server = TestServer::start(limits()).await;
    let expected = ask_all(server.client().await, prompts.to_vec()).await;
    let texts = |answers: &[Answer]| answers.iter().map(|answer| answer.text.clone()).collect::<Vec<_>>();
    assert_eq!(texts(answers), texts(&expected));
    assert!(answers.iter().all(|answer| answer.reason == FinishReason::Length));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_without_work_runs_idle_steps_beside_the_others() {
    let all = async {
        let prompts = prompts(7);
        let (server, collective) = (start(3).await, Collective::of(3));
        let (wire, mut client) = (Wire::to(server.addr()).await, server.client().await);
        let mut members = vec![attach(&wire, 2, &collective).await, attach(&wire, 0, &collective).await];
        let info = client.until(|info| info.engines.iter().filter(|engine| engine.worker.is_some()).count() == 2).await;
        let waiting: Vec<_> = info.engines.iter().filter_map(|engine| engine.worker.clone()).collect();
        assert!(waiting.iter().all(|worker| worker.waits_for_group && worker.lock_step_group == "experts"));
        let answers = tokio::spawn(ask_all(client.clone(), prompts.clone()));
        client.until(|info| info.load.is_some_and(|load| load.waiting > 0)).await;
        assert_eq!(collective.counts(), [0; 3], "nobody starts before all are there");
        members.push(attach(&wire, 1, &collective).await);
        check(&answers.await.unwrap(), &prompts).await;
        let info = client.settled().await;
        let mut ranks: Vec<_> = info.engines.iter().map(|engine| engine.worker.clone().unwrap()).collect();
        assert!(ranks.iter().all(|worker| !worker.waits_for_group && worker.steps > 0), "all of them did work");
        ranks.sort_by_key(|worker| worker.lock_step_rank);
        assert_eq!(ranks.iter().map(|worker| worker.name.as_str()).collect::<Vec<_>>(), ["rank 0", "rank 1", "rank 2"]);
        server.drain().await;
        let mut idle = 0;
        for member in members {
            idle += member.await.unwrap().1;
        }
        let counts = collective.counts();
        assert_eq!(counts, [counts[0]; 3], "each ran as many steps as the others");
        assert_eq!(idle + ranks.iter().map(|worker| worker.steps).sum::<u64>(), 3 * counts[0]);
        assert!(idle > 0);
    };
    timeout(PATIENCE, all).await.expect("a step waited for the others");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_goes_with_its_first_member_and_starts_over_without_losing_a_request() {
    let all = async {
        let prompts = prompts(6);
        let server = start(2).await;
        let (steady, cut) = (Wire::to(server.addr()).await, Wire::to(server.addr()).await);
        let collective = Collective::of(2);
        let members = [attach(&steady, 0, &collective).await, attach(&cut, 1, &collective).await];
        let mut client = server.client().await;
        let answers = tokio::spawn(ask_all(client.clone(), prompts.clone()));
        client.until(|info| info.counters.is_some_and(|counters| counters.generated_tokens > 12)).await;
        cut.cut();
        let [stays, goes] = members;
        let (end, _) = stays.await.unwrap();
        let end = end.expect("the server ends the stream");
        assert_eq!((end.code(), end.message()), (Code::Aborted, "another worker of the group is gone"));
        goes.await.unwrap();
        let collective = Collective::of(2);
        let _members = [attach(&cut, 1, &collective).await, attach(&steady, 0, &collective).await];
        check(&answers.await.unwrap(), &prompts).await;
        assert!(collective.counts()[0] > 0, "the rest was computed by the second group");
    };
    timeout(PATIENCE, all).await.expect("a step waited for the others");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_does_not_fit_its_group_is_refused_in_one_line() {
    let server = start(2).await;
    let (wire, collective) = (Wire::to(server.addr()).await, Collective::of(2));
    let refused = async |hello: Hello| {
        let status = dial(server.addr(), hello.encode()).await.map(drop).unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted);
        status.message().to_owned()
    };
    let line = "group experts has 3 workers, and the server has room for 2 of them";
    assert_eq!(refused(of_group(0, 3)).await, line);
    let _first = attach(&wire, 0, &collective).await;
    let twin = Hello { name: "twin".into(), ..of_group(0, 2) };
    assert_eq!(refused(twin).await, "rank 0 of group experts is taken");
    assert_eq!(refused(of_group(1, 1024)).await, "group experts has 2 workers, not 1024");
    assert_eq!(refused(hello("alone")).await, "all 1 engines that are left wait for workers of other groups");
}
