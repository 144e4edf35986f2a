//! Vidur's runs of a 70B on pipelines of two stages of two A100s (128 sequences, four replicas in turn, Azure's conversations at their own
//! rate), by Vidur's own tables: replays of ours, and a small model of Vidur's schedulers of our own, which tells errors of the stages
//! from differences of the schedulers.

use std::collections::{BTreeMap, VecDeque};

use trunkline_core::Config;
use trunkline_core::config::{PipelineBatches, PrefillFirst};
use trunkline_sim_perf::cost::{BoxedCost, CostChoice, Parallel, StepShape};
use trunkline_sim_perf::{hardware, model};
use trunkline_sim_replay::{Settings, engines, replay};
use trunkline_sim_report::Report;
use trunkline_sim_workload::summary::{Kept, Summary};
use trunkline_sim_workload::trace::{ReaderOptions, Selection};
use trunkline_sim_workload::{Trace, TraceRequest};

use crate::data;

const STAGES: usize = 2;
const REPLICAS: usize = 4;
const CHUNK_TOKENS: u64 = 512;
const PROMPT_TOKENS: u64 = 4096;
const SEQUENCES: usize = 128;

/// Latencies that Vidur reported of Sarathi-Serve with chunks of 512 tokens, seconds: mean, p50, p90 and p99 of the time to the first token; p50, p90 and p99 of the time between tokens
/// after the first, and to the end.
const SARATHI: [f64; 10] = [0.6387, 0.5071, 1.521, 2.236, 0.1013, 0.1481, 0.1901, 14.72, 45.84, 70.36];

/// The same of vLLM's first scheduler, with batches of 4,096 tokens.
const VLLM: [f64; 10] = [2.268, 0.474, 7.829, 20.94, 0.1379, 0.5054, 0.6417, 31.33, 72.08, 203.7];

fn conversations() -> Trace {
    let selection = Selection { max_context: Some(4096), ..Selection::default() };
    Trace::load_selected(&data("traces/azure_conv_2023.csv.gz"), ReaderOptions::default(), &selection).unwrap()
}

fn settings(engine: &str, steps_in_flight: u32) -> Settings {
    let text = r#"{"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80,
        "num_key_value_heads": 8, "vocab_size": 32000}"#;
    let model = model::parse_config("llama-2-70b", text).unwrap();
    let parallel = Parallel { pipeline: STAGES as u32, ..Parallel::tensor(2) };
    let mut settings = Settings {
        parallel,
        replicas: REPLICAS as u32,
        cost: CostChoice::Table { layout: None, path: data("profiles/vidur/llama2_70b_tp2") },
        ..Settings::new(*hardware::by_name("a100-80g").unwrap(), model)
    };
    settings.routing.router = "round_robin".into();
    let blocks = settings.fitting_device_blocks().unwrap();
    let stages = if steps_in_flight > 1 { parallel.pipeline } else { 1 };
    settings.core = Config {
        pipeline_stages: stages,
        max_steps_in_flight: steps_in_flight,
        ..engines::by_name(engine).unwrap().core(blocks)
    };
    settings
}

/// The ten figures of [`SARATHI`].
fn figures(ttft: &Summary, tpot: &Summary, e2e: &Summary) -> [f64; 10] {
    [ttft.mean, ttft.p50, ttft.p90, ttft.p99, tpot.p50, tpot.p90, tpot.p99, e2e.p50, e2e.p90, e2e.p99]
}

fn of_report(report: &Report) -> [f64; 10] {
    let latencies = &report.latencies;
    figures(&latencies.ttft_s, &latencies.tpot_s, &latencies.e2e_s)
}

/// Differences from Vidur, and prints them.
fn against(vidur: &[f64; 10], name: &str, found: &[f64; 10]) -> [f64; 10] {
    let errors: [f64; 10] = std::array::from_fn(|i| found[i] / vidur[i] - 1.0);
    let each: Vec<String> = errors.iter().map(|error| format!("{:+.2}", 100.0 * error)).collect();
    println!("{name}: {} %", each.join(" "));
    errors
}

/// A request of the model, which processes the prompt, then one token a batch; the batch that ends the prompt has the first token.
#[derive(Clone, Copy)]
struct Asked {
    arrival_ns: u64,
    prompt: u64,
    total: u64,
    processed: u64,
    first_ns: u64,
    end_ns: u64,
}

impl Asked {
    fn new(request: &TraceRequest) -> Self {
        let (prompt, output) = (u64::from(request.input_tokens), u64::from(request.output_tokens));
        Self { arrival_ns: request.arrival_ns, prompt, total: prompt + output, processed: 0, first_ns: 0, end_ns: 0 }
    }

    fn is_prefill(&self) -> bool {
        self.processed < self.prompt
    }
}

/// Scheduler of the model.
#[derive(Clone, Copy, PartialEq)]
enum Scheduler {
    /// Decodes, and chunks of prompts alongside them.
    Sarathi,
    /// Whole prompts alone, else decodes.
    Vllm(Bound),
}

/// Bound of the prompts of a batch, [`PROMPT_TOKENS`].
#[derive(Clone, Copy, PartialEq)]
enum Bound {
    /// Of the sum of their lengths.
    Sum,
    /// Of their number times the longest, as Vidur does: they are padded to it.
    Padded,
}

impl Bound {
    /// Returns `true` if prompts of these lengths fit in one batch.
    fn holds(self, lengths: &[u64]) -> bool {
        let padded = || lengths.len() as u64 * lengths.iter().max().unwrap_or(&0);
        PROMPT_TOKENS >= if self == Self::Sum { lengths.iter().sum() } else { padded() }
    }
}

/// Vidur's replica: a batch is made whenever fewer than [`STAGES`] are under way, of the requests that are in none of them, in the order of
/// arrival: decodes, prompts begun, then new ones; or whole prompts, else decodes. Each stage runs batches in the order in which they were made.
struct Replica<'a> {
    scheduler: Scheduler,
    cost: &'a BoxedCost,
    requests: Vec<Asked>,
    /// Requests not begun.
    waiting: VecDeque<usize>,
    /// Requests begun that are in no batch.
    between: Vec<usize>,
    unfinished: usize,
    under_way: VecDeque<(u64, Vec<(usize, u64)>)>,
    stage_free_ns: [u64; STAGES],
}

impl Replica<'_> {
    /// Picks requests and tokens of the next batch.
    fn next_batch(&mut self) -> Vec<(usize, u64)> {
        self.between.sort_by_key(|at| (self.requests[*at].arrival_ns, *at));
        match self.scheduler {
            Scheduler::Sarathi => self.next_mixed(),
            Scheduler::Vllm(bound) => self.next_whole(bound),
        }
    }

    fn next_whole(&mut self, bound: Bound) -> Vec<(usize, u64)> {
        let mut lengths = Vec::new();
        let mut batch = Vec::new();
        while let Some(at) = self.waiting.front().copied() {
            lengths.push(self.requests[at].prompt);
            if !bound.holds(&lengths) || self.unfinished == SEQUENCES || batch.len() == SEQUENCES / STAGES {
                break;
            }
            self.waiting.pop_front();
            self.unfinished += 1;
            batch.push((at, self.requests[at].prompt));
        }
        if batch.is_empty() {
            let n = self.between.len().min(SEQUENCES / STAGES);
            batch.extend(self.between.drain(..n).map(|at| (at, 1)));
        }
        batch
    }

    fn next_mixed(&mut self) -> Vec<(usize, u64)> {
        let mut batch: Vec<(usize, u64)> = Vec::new();
        let (prompts, decodes): (Vec<_>, Vec<_>) =
            self.between.drain(..).partition(|at| self.requests[*at].is_prefill());
        for at in decodes {
            match batch.len() < SEQUENCES / STAGES {
                true => batch.push((at, 1)),
                false => self.between.push(at),
            }
        }
        let mut tokens = batch.len() as u64;
        let chunk = |request: &Asked, tokens: u64| {
            (request.prompt - request.processed).min(CHUNK_TOKENS.saturating_sub(tokens))
        };
        for at in prompts {
            match chunk(&self.requests[at], tokens) {
                0 => self.between.push(at),
                n => {
                    batch.push((at, n));
                    tokens += n;
                }
            }
        }
        while let Some(at) = self.waiting.front().copied() {
            let n = chunk(&self.requests[at], tokens);
            if self.unfinished == SEQUENCES || batch.len() >= SEQUENCES / STAGES || n == 0 {
                break;
            }
            self.waiting.pop_front();
            self.unfinished += 1;
            batch.push((at, n));
            tokens += n;
        }
        batch
    }

    fn schedule(&mut self, now_ns: u64) {
        while self.under_way.len() < STAGES {
            let batch = self.next_batch();
            if batch.is_empty() {
                return;
            }
            let shape = batch.iter().fold(StepShape::default(), |shape, (at, n)| {
                let Asked { processed, .. } = self.requests[*at];
                shape.and(match self.requests[*at].is_prefill() {
                    true => StepShape::prefill(*n, processed),
                    false => StepShape::decodes(1, processed),
                })
            });
            let times = self.cost.pipelined(&shape);
            let mut left_ns = now_ns;
            for (stage, free_ns) in self.stage_free_ns.iter_mut().enumerate() {
                left_ns = left_ns.max(*free_ns) + if stage + 1 == STAGES { times.last_ns } else { times.stage_ns };
                *free_ns = left_ns;
            }
            self.under_way.push_back((left_ns, batch));
        }
    }

    fn end_batch(&mut self) {
        let (now_ns, batch) = self.under_way.pop_front().expect("a batch is under way");
        for (at, n) in batch {
            let request = &mut self.requests[at];
            request.processed += n;
            if request.processed == request.prompt {
                request.first_ns = now_ns;
                request.processed += 1;
            }
            if request.processed == request.total {
                request.end_ns = now_ns;
                self.unfinished -= 1;
            } else {
                self.between.push(at);
            }
        }
        self.schedule(now_ns);
    }

    fn run(mut self) -> Vec<Asked> {
        let mut arrived = 0;
        loop {
            let end_ns = self.under_way.front().map(|(end_ns, _)| *end_ns);
            match self.requests.get(arrived).map(|request| request.arrival_ns) {
                Some(arrival_ns) if end_ns.is_none_or(|end_ns| arrival_ns < end_ns) => {
                    self.waiting.push_back(arrived);
                    arrived += 1;
                    self.schedule(arrival_ns);
                }
                _ if end_ns.is_some() => self.end_batch(),
                _ => return self.requests,
            }
        }
    }
}

/// Runs the model on every fourth request for each replica.
fn modelled(trace: &Trace, cost: &BoxedCost, scheduler: Scheduler) -> [f64; 10] {
    let mut turns: BTreeMap<usize, Vec<Asked>> = BTreeMap::new();
    for (at, request) in trace.requests.iter().enumerate() {
        turns.entry(at % REPLICAS).or_default().push(Asked::new(request));
    }
    let [mut ttft, mut tpot, mut e2e] = [(); 3].map(|()| Kept::default());
    for requests in turns.into_values() {
        let replica = Replica {
            scheduler,
            cost,
            requests,
            waiting: VecDeque::new(),
            between: Vec::new(),
            unfinished: 0,
            under_way: VecDeque::new(),
            stage_free_ns: [0; STAGES],
        };
        for Asked { arrival_ns, prompt, total, first_ns, end_ns, .. } in replica.run() {
            ttft.record(first_ns - arrival_ns);
            e2e.record(end_ns - arrival_ns);
            if let Some(tokens) = (total - prompt).checked_sub(1).filter(|tokens| *tokens > 0) {
                tpot.record((end_ns - first_ns) / tokens);
            }
        }
    }
    figures(&ttft.summary(), &tpot.summary(), &e2e.summary())
}

fn replayed(trace: &Trace, settings: &Settings) -> [f64; 10] {
    let report = replay(trace, settings, &*settings.cost_model().unwrap(), &mut |_| {}).unwrap();
    assert_eq!((report.completed, report.preemptions), (19_366, 0));
    of_report(&report)
}

#[test]
#[cfg_attr(
    not(all(trunkline_profiles, trunkline_traces)),
    ignore = "TRUNKLINE_DATA names no folder with profiles/ and traces/"
)]
fn a_run_through_two_stages_has_its_percentiles() {
    let trace = conversations();
    let sarathi = settings("sarathi", 2);
    println!("TTFT mean, p50, p90, p99; TPOT and E2E p50, p90, p99");
    let modelled = modelled(&trace, &sarathi.cost_model().unwrap(), Scheduler::Sarathi);
    let model = against(&SARATHI, "model of the scheduler", &modelled);
    let ours = against(&SARATHI, "replay", &replayed(&trace, &sarathi));
    assert!(model.iter().chain(&ours).all(|error| error.abs() < 0.005), "{model:?} {ours:?}");
    let mut even = sarathi;
    even.core.worker.pipeline_batches = PipelineBatches::Even;
    let even = against(&SARATHI, "replay, equal shares", &replayed(&trace, &even));
    assert!(even.iter().all(|error| *error < -0.1), "equal shares are faster: {even:?}");
    let one = against(&SARATHI, "replay, one step in flight", &replayed(&trace, &settings("sarathi", 1)));
    assert!(one[3] > 2.0, "stages wait for each other: {one:?}");
}

#[test]
#[cfg_attr(
    not(all(trunkline_profiles, trunkline_traces)),
    ignore = "TRUNKLINE_DATA names no folder with profiles/ and traces/"
)]
fn whole_prompts_through_two_stages_have_its_percentiles_if_they_are_padded() {
    let mut vllm = settings("vllm-v0", 2);
    (vllm.core.max_batch_tokens, vllm.core.max_batch_size) = (PROMPT_TOKENS as u32, SEQUENCES as u32);
    let trace = conversations();
    let cost = vllm.cost_model().unwrap();
    let model = |name: &str, bound| against(&VLLM, name, &modelled(&trace, &cost, Scheduler::Vllm(bound)));
    let [sum, padded] = [model("model, sum", Bound::Sum), model("model, padded", Bound::Padded)];
    let preset = against(&VLLM, "vllm-v0", &replayed(&trace, &vllm));
    vllm.core.prefill_first = PrefillFirst::Padded;
    let ours = against(&VLLM, "vllm-v0, padded", &replayed(&trace, &vllm));
    assert!(padded.iter().chain(&ours).all(|error| error.abs() < 0.005), "{padded:?} {ours:?}");
    // The bound is all of the difference.
    assert!(preset[0] > 0.1 && preset.iter().zip(&sum).all(|(ours, model)| (ours - model).abs() < 0.005), "{sum:?}");
}
