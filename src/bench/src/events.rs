//! Steps of a core whose cache is followed by subscribers, compared with one that nobody follows.
//!
//! Clients in this process send prompts of random tokens to a server whose pool is full: each prompt stores blocks, and as many are evicted. The
//! cases take turns, each with a server of its own. In the end the index of a subscriber that came late is compared with the tree.

mod subscribers;
mod witness;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tokio::runtime::Runtime;
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::StreamExt;
use tonic::Extensions;
use trunkline_cluster::ListenToCaches;
use trunkline_core::Config;
use trunkline_events::{Publisher, Settings};
use trunkline_server::proto::generate_request::Prompt;
use trunkline_server::proto::{GenerateRequest, Stopping, TokenIds};
use trunkline_server::{EndedStep, FollowSteps, Front};
use trunkline_text::Tokenizer;

use self::subscribers::{Received, Unread};
use self::witness::Witness;
use super::cpu_time::cpu_s;
use super::measure::{Report, quantile};
use super::null_server::{NullServer, runtime};
use trunkline::h2o::numbers::Numbers;

const NOTES: [&str; 4] = [
    "One server with the null worker, steps of 1 ms; four clients send prompts of 16 blocks, and as many blocks are evicted.",
    "A step lasts until the next one ends; CPU is that of the core's thread. Ratios are to nobody of the same round.",
    "The bar: no step slower by 1 %.",
    "Over ZeroMQ 100,000 batches wait for a subscriber, over gRPC 4,096; more are lost, and the subscriber hears of it.",
];
const BLOCK_SIZE: u32 = 16;
/// Blocks that a prompt stores. Of its last token nothing is stored.
const PROMPT_BLOCKS: u32 = 16;
const PROMPT_TOKENS: u32 = PROMPT_BLOCKS * BLOCK_SIZE + 1;
/// Clients that send one prompt after another.
const CLIENTS: u32 = 4;
/// Duration of a step of the worker.
const STEP: Duration = Duration::from_millis(1);

/// Subscribers of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Following {
    /// No subscriber, and no publisher.
    Nobody,
    /// A subscriber over ZeroMQ that reads.
    Reader,
    /// A subscriber over ZeroMQ and one over gRPC, which read nothing until the load has ended.
    Slow,
    /// A subscriber that begins under load, with a snapshot.
    Late,
}

impl Following {
    const ALL: [Self; 4] = [Self::Nobody, Self::Reader, Self::Slow, Self::Late];

    fn name(self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::Reader => "a reader",
            Self::Slow => "subscribers that do not read",
            Self::Late => "a late subscriber",
        }
    }
}

/// Load of one case.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// Blocks of the pool.
    pool: u32,
    /// Prompts that are measured.
    prompts: u32,
    step: Duration,
}

impl Load {
    fn of(quick: bool) -> Self {
        match quick {
            true => Self { pool: 512, prompts: 64, step: Duration::ZERO },
            false => Self { pool: 16_384, prompts: 12_000, step: STEP },
        }
    }

    /// Returns the prompts that fill the pool.
    fn filling(self) -> u32 {
        self.pool / PROMPT_BLOCKS + CLIENTS
    }
}

/// Ends of steps on the server's clock, nanoseconds.
#[derive(Debug, Default)]
struct Ends(Mutex<Vec<u64>>);

impl Ends {
    fn taken(&self) -> Vec<u64> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl FollowSteps for Ends {
    fn ended(&self, step: &EndedStep<'_>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(step.end_ns);
    }
}

/// Batches and blocks that the subscribers of a case got.
#[derive(Clone, Copy, Debug)]
enum Got {
    Nothing,
    Read(Received),
    Unread(Unread),
    /// Blocks of the late subscriber's index, which is the tree.
    Tree(usize),
}

/// One measurement.
struct Run {
    /// Blocks stored and blocks removed in a second.
    changes_per_s: f64,
    /// Processor time of the core's thread, microseconds a step.
    cpu_us: f64,
    /// Durations of steps, microseconds, sorted.
    steps_us: Vec<f64>,
    got: Got,
}

/// Measures all cases in rounds.
///
/// # Errors
/// If a server or a socket cannot be had, a request fails, or the index of the late subscriber is not the tree.
pub fn run(quick: bool) -> anyhow::Result<Report> {
    let mut report = Report::new("events", quick, NOTES.to_vec());
    let mut rounds: Vec<Vec<Run>> = Vec::new();
    for round in 0..if quick { 1 } else { 9 } {
        let mut row = Vec::new();
        // Each case has each place in turn.
        for at in 0..Following::ALL.len() {
            let at = (at + round) % Following::ALL.len();
            row.push((at, measure(Following::ALL[at], Load::of(quick))?));
        }
        row.sort_by_key(|(at, _)| *at);
        rounds.push(row.into_iter().map(|(_, run)| run).collect());
    }
    for (at, following) in Following::ALL.iter().enumerate() {
        let name = following.name();
        report.add("blocks stored and removed", name, "1/s", rounds.iter().map(|row| row[at].changes_per_s).collect());
        add_steps(&mut report, &rounds, at);
        add_got(&mut report, name, rounds.iter().map(|row| row[at].got).collect());
    }
    Ok(report)
}

/// Name of a figure of a run, and the figure.
type Figure = (&'static str, fn(&Run) -> f64);

/// Adds the times of the steps of a case.
fn add_steps(report: &mut Report, rounds: &[Vec<Run>], at: usize) {
    let figures: [Figure; 3] = [
        ("CPU of the core", |run| run.cpu_us),
        ("step p50", |run| quantile(&run.steps_us, 0.5)),
        ("step p99", |run| quantile(&run.steps_us, 0.99)),
    ];
    let name = Following::ALL[at].name();
    for (what, value) in figures {
        report.add(what, name, "us/step", rounds.iter().map(|row| value(&row[at])).collect());
        if at > 0 {
            let ratios = rounds.iter().map(|row| value(&row[at]) / value(&row[0])).collect();
            report.add(&format!("{what}, ratio"), name, "", ratios);
        }
    }
}

/// Adds what the subscribers of a case got.
fn add_got(report: &mut Report, name: &str, all: Vec<Got>) {
    let mut add = |what: &str, unit, value: &dyn Fn(Received) -> u64, of: &dyn Fn(Got) -> Option<Received>| {
        let values: Vec<f64> = all.iter().filter_map(|got| Some(value(of(*got)?) as f64)).collect();
        if !values.is_empty() {
            report.add(what, name, unit, values);
        }
    };
    let over_zeromq = |got| match got {
        Got::Read(received) => Some(received),
        Got::Unread(unread) => Some(unread.over_zeromq),
        _ => None,
    };
    let over_grpc = |got| if let Got::Unread(unread) = got { Some(unread.over_grpc) } else { None };
    add("read over ZeroMQ", "batches", &|received| received.batches, &over_zeromq);
    add("lost over ZeroMQ", "batches", &|received| received.lost, &over_zeromq);
    add("read over gRPC", "batches", &|received| received.batches, &over_grpc);
    add("lost over gRPC", "batches", &|received| received.lost, &over_grpc);
    let trees: Vec<f64> =
        all.iter().filter_map(|got| if let Got::Tree(n) = got { Some(*n as f64) } else { None }).collect();
    if !trees.is_empty() {
        report.add("index, equal to the tree", name, "blocks", trees);
    }
}

/// Runs one case with a server of its own.
fn measure(following: Following, load: Load) -> anyhow::Result<Run> {
    let publisher = Publisher::new(Settings { endpoint: Some("tcp://127.0.0.1:0".into()), ..Settings::default() });
    let witness = Arc::new(Witness::new(publisher.clone()));
    let ends = Arc::new(Ends::default());
    let core = Config { block_size: BLOCK_SIZE, device_blocks: load.pool, ..Config::default() };
    let server =
        NullServer::start(core, Tokenizer::bytes(), load.step, trunkline_http::Settings::default(), |options| {
            options.steps = Some(Arc::<Ends>::clone(&ends));
            options.cache_listener = match following {
                Following::Nobody => None,
                Following::Late => Some(ListenToCaches(Arc::<Witness>::clone(&witness))),
                Following::Reader | Following::Slow => Some(ListenToCaches(Arc::new(publisher.clone()))),
            };
        })?;
    let clients = runtime("bench-clients")?;
    let first = load.filling();
    let mut subscribed = clients.block_on(Subscribed::begin(following, &publisher))?;
    clients.block_on(send(server.front.clone(), 0..first))?;
    ends.taken();
    let ([before], begin) = (cpu_s(["core"])?, Instant::now());
    let sending = clients.spawn(send(server.front.clone(), first..first + load.prompts));
    subscribed.begin_late(following, &publisher, &clients)?;
    clients.block_on(sending)??;
    let (seconds, [after]) = (begin.elapsed().as_secs_f64(), cpu_s(["core"])?);
    let ends = ends.taken();
    ensure!(ends.len() > 1, "the load has no steps");
    // A client has its answer before the core's thread hands the changes on: what that thread answers next comes after them.
    clients.block_on(server.front.load())?;
    witness.expect_last();
    clients.block_on(send(server.front.clone(), first + load.prompts..first + load.prompts + 1))?;
    server.stop()?;
    let got = clients.block_on(subscribed.end(&publisher, &witness))?;
    let mut steps_us: Vec<f64> = ends.windows(2).map(|pair| (pair[1] - pair[0]) as f64 / 1e3).collect();
    steps_us.sort_by(f64::total_cmp);
    let changes = f64::from(2 * load.prompts * PROMPT_BLOCKS);
    let cpu_us = (after - before) * 1e6 / ends.len() as f64;
    Ok(Run { changes_per_s: changes / seconds, cpu_us, steps_us, got })
}

/// Sends the prompts of these numbers, and reads the answers.
async fn send(front: Front, prompts: Range<u32>) -> anyhow::Result<()> {
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS as usize {
        let (front, own) = (front.clone(), prompts.clone().skip(client).step_by(CLIENTS as usize));
        clients.spawn(async move {
            for prompt in own {
                ask(&front, prompt).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(client) = clients.join_next().await {
        client??;
    }
    Ok(())
}

/// Sends prompt number `at`, which has no block in common with another, and reads the answer of a token.
async fn ask(front: &Front, at: u32) -> anyhow::Result<()> {
    let mut numbers = Numbers::from_seed(at.into());
    let ids = (0..PROMPT_TOKENS).map(|_| numbers.below(256) as u32).collect();
    let request = GenerateRequest {
        prompt: Some(Prompt::TokenIds(TokenIds { ids })),
        stopping: Some(Stopping { max_tokens: Some(1), ignore_eos: true, ..Stopping::default() }),
        ..GenerateRequest::default()
    };
    let mut answer = front.generate(&Extensions::default(), request, None).await?;
    while let Some(message) = answer.next().await {
        message?;
    }
    Ok(())
}

/// Subscribers under way.
#[derive(Default)]
struct Subscribed {
    /// Set once nothing is published any more.
    ended: Arc<AtomicBool>,
    reader: Option<JoinHandle<anyhow::Result<Received>>>,
    slow: Option<subscribers::Slow>,
    late: Option<JoinHandle<anyhow::Result<HashSet<u64>>>>,
}

impl Subscribed {
    /// Begins the subscribers of a case that are there before the load.
    async fn begin(following: Following, publisher: &Publisher) -> anyhow::Result<Self> {
        let mut subscribed = Self::default();
        let ended = Arc::clone(&subscribed.ended);
        match following {
            Following::Reader => {
                let socket = subscribers::connect(publisher).await?;
                subscribed.reader = Some(tokio::spawn(subscribers::read(socket, publisher.clone(), ended)));
            }
            Following::Slow => subscribed.slow = Some(subscribers::Slow::begin(publisher).await?),
            Following::Nobody | Following::Late => {}
        }
        Ok(subscribed)
    }

    /// Begins the subscriber that comes under load.
    fn begin_late(&mut self, following: Following, publisher: &Publisher, clients: &Runtime) -> anyhow::Result<()> {
        if following == Following::Late {
            let subscription = subscribers::subscribe(publisher)?;
            self.late = Some(clients.spawn(subscribers::follow(subscription, Arc::clone(&self.ended))));
        }
        Ok(())
    }

    /// Ends the subscribers once the server has ended, and returns what they got.
    async fn end(self, publisher: &Publisher, witness: &Witness) -> anyhow::Result<Got> {
        self.ended.store(true, Ordering::Release);
        if let Some(reader) = self.reader {
            return Ok(Got::Read(reader.await??));
        }
        if let Some(slow) = self.slow {
            return Ok(Got::Unread(slow.end(publisher, self.ended).await?));
        }
        let Some(late) = self.late else { return Ok(Got::Nothing) };
        let (index, tree) = (late.await??, witness.tree());
        let tree = tree.context("the core did not hand over its tree")?;
        let n = index.symmetric_difference(&tree).count();
        ensure!(n == 0, "the index of the late subscriber and the tree differ in {n} of {} blocks", tree.len());
        Ok(Got::Tree(tree.len()))
    }
}
