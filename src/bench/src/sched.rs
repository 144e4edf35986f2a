//! Scheduling benchmark: steps through the whole core, from the tokens of one step to the next step, with decodes alone, a queue,
//! admissions and preemptions; a listener to the cache; a lost worker; the end of all requests at once.

use std::hint::black_box;
use std::time::Instant;

use trunkline_core::blocks::hash::Namespace;
use trunkline_core::{Action, Config, Core, Event, Request, RequestId, Step, StepResult};

use super::allocations::counted;
use super::measure::{Report, quantile, time_ns};
use trunkline::h2o::numbers::Numbers;

const NOTES: [&str; 3] = [
    "A step takes in the last step's tokens, publishes full blocks, emits the tokens and makes the next step.",
    "The head of the queue is blocked by memory. An admission and a preemption are the time of a step beyond a plain one, each.",
    "Allocations are those of the core alone. What grows with a sequence (its tokens, its table) grows now and then.",
];
const BLOCK_SIZE: u32 = 16;
const PROMPT_TOKENS: usize = 512;

pub fn run(quick: bool) -> Report {
    let mut report = Report::new("sched", quick, NOTES.to_vec());
    let running: &[u32] = if quick { &[64] } else { &[64, 256, 1024, 4096, 16_384] };
    for running in running {
        decodes(&mut report, *running, if quick { 20 } else { 400 });
    }
    for policy in ["fcfs", "lpm", "sjf", "vtc"] {
        queue(&mut report, policy, if quick { 100 } else { 100_000 });
    }
    for running in running {
        admissions(&mut report, *running, if quick { 2 } else { 50 });
        preemptions(&mut report, *running, if quick { 2 } else { 100 });
        worker_lost(&mut report, *running, if quick { 1 } else { 5 });
    }
    for listens in [false, true] {
        cache_events(&mut report, listens, if quick { 2 } else { 200 });
    }
    end_of_all(&mut report, if quick { 100 } else { 100_000 });
    report
}

fn config(running: u32, device_blocks: u32) -> Config {
    Config {
        block_size: BLOCK_SIZE,
        device_blocks,
        max_batch_tokens: running + 8192,
        max_batch_size: running,
        max_queue: 1 << 20,
        ..Config::default()
    }
}

/// A core with decoding requests, and a worker with immediate answers.
struct Decoding {
    core: Core,
    actions: Vec<Action>,
    step: Option<Box<Step>>,
    now_ns: u64,
    next_id: u64,
    numbers: Numbers,
    /// Takes the changes of the cache after each event, as the driver does for a publisher.
    listens: bool,
}

impl Decoding {
    fn new(running: u32, steps: u32) -> Self {
        let max_tokens = 2 * steps + 64;
        let per_request = (PROMPT_TOKENS as u32 + BLOCK_SIZE + max_tokens).div_ceil(BLOCK_SIZE) + 2;
        Self::with(config(running, running * per_request), running, max_tokens)
    }

    /// Runs requests until all decode.
    fn with(config: Config, running: u32, max_tokens: u32) -> Self {
        Self::listening(config, false, running, max_tokens)
    }

    fn listening(config: Config, listens: bool, running: u32, max_tokens: u32) -> Self {
        let mut core = Core::new(config).expect("the limits are possible");
        if listens {
            core.listen_to_cache();
        }
        let numbers = Numbers::from_seed(0);
        let mut decoding = Self { core, actions: Vec::new(), step: None, now_ns: 0, next_id: 0, numbers, listens };
        for id in 0..running {
            // Of many lengths, so that in each step as many sequences fill a block.
            decoding.submit(PROMPT_TOKENS + (id % BLOCK_SIZE) as usize, max_tokens);
        }
        decoding.handle(Event::WorkerJoined);
        decoding.keep_step();
        while decoding
            .step
            .as_ref()
            .is_some_and(|step| step.seqs.len() < running as usize || step.tokens.len() > running as usize)
        {
            decoding.step_ns();
        }
        decoding
    }

    /// Submits a request of a random prompt.
    fn submit(&mut self, prompt_tokens: usize, max_tokens: u32) {
        let prompt = self.numbers.tokens(prompt_tokens);
        let mut request = Request::new(RequestId(self.next_id), Namespace::default().root(), prompt, max_tokens);
        request.tenant = self.next_id % 8;
        request.hash_prompt(BLOCK_SIZE);
        self.next_id += 1;
        self.handle(Event::Submit(Box::new(request)));
        self.keep_step();
    }

    /// Answers the step in flight. Returns the time that the core takes until the next step.
    fn step_ns(&mut self) -> f64 {
        let event = self.answer();
        let ns = time_ns(|| self.handle(event));
        self.keep_step();
        ns
    }

    /// Makes the result of a step: tokens at which no request stops.
    fn answer(&mut self) -> Event {
        let step = self.step.take().expect("a step runs while sequences do");
        let mut result = StepResult { step: step.id, ..StepResult::default() };
        for seq in &step.seqs {
            let token = seq.request.0 as u32 * 7 + seq.computed;
            result.push(if seq.sample { std::slice::from_ref(&token) } else { &[] });
        }
        self.core.recycle(step);
        Event::StepFinished(result)
    }

    fn handle(&mut self, event: Event) {
        self.now_ns += 1_000_000;
        self.core.handle(self.now_ns, event, &mut self.actions);
        if self.listens {
            black_box(self.core.take_cache_events());
        }
    }

    /// Handles the actions of the core, as a driver does.
    fn keep_step(&mut self) {
        for action in self.actions.drain(..) {
            if let Action::RunStep(step) = action {
                self.step = Some(step);
            }
        }
    }
}

fn decodes(report: &mut Report, running: u32, steps: u32) {
    let mut decoding = Decoding::new(running, steps);
    for _ in 0..32 {
        let event = decoding.answer();
        decoding.handle(event);
        decoding.keep_step();
    }
    let mut times = Vec::new();
    for _ in 0..steps {
        let event = decoding.answer();
        times.push(time_ns(|| decoding.handle(event)));
        decoding.keep_step();
    }
    let mut allocations = Vec::new();
    for _ in 0..steps {
        let event = decoding.answer();
        let ((), counted) = counted(|| decoding.handle(event));
        allocations.push(counted.allocations as f64);
        decoding.keep_step();
    }
    let case = format!("{running} decodes");
    report.add("step per sequence", &case, "ns", times.iter().map(|ns| ns / f64::from(running)).collect());
    report.add("step", &case, "us", times.into_iter().map(|ns| ns / 1e3).collect());
    report.add("allocations in a step", &case, "calls", allocations.clone());
    let total: f64 = allocations.iter().sum();
    report.add("allocations per sequence and step", case, "calls", vec![total / f64::from(steps) / f64::from(running)]);
}

/// Steps of 64 decodes while requests wait, the first of them for more blocks than are left.
fn queue(report: &mut Report, policy: &str, waiting: u32) {
    let config = Config { max_batch_size: 256, launch_watermark: 8.0, policy: policy.into(), ..config(64, 64 * 80) };
    let mut decoding = Decoding::with(config, 64, 4000);
    while decoding.core.stats().free_blocks > 64 * 8 + 4 {
        decoding.step_ns();
    }
    (0..waiting).for_each(|_| decoding.submit(128, 100));
    let times = (0..100).map(|_| decoding.step_ns() / 1e3).collect();
    assert_eq!(decoding.core.stats().waiting, waiting, "the queue is blocked");
    report.add("step with a queue", format!("64 decodes, {waiting} waiting, {policy}"), "us", times);
}

/// Admissions of prompts of four blocks alongside decodes, none or all of them cached.
fn admissions(report: &mut Report, running: u32, rounds: u32) {
    const ADMITTED: u32 = 64;
    let config = Config { max_batch_size: running + ADMITTED, ..config(running, running * 80 + 20_000) };
    let mut decoding = Decoding::with(config, running, 4000);
    let plain = median((0..20).map(|_| decoding.step_ns()).collect());
    for case in ["uncached", "cached"] {
        let mut times = Vec::new();
        for _ in 0..rounds {
            if case == "cached" {
                // The same prompts again.
                decoding.numbers = Numbers::from_seed(0);
            }
            (0..ADMITTED).for_each(|_| decoding.submit(65, 1));
            times.push((decoding.step_ns() - plain) / f64::from(ADMITTED) / 1e3);
            decoding.step_ns();
            decoding.step_ns();
        }
        report.add("admission of 64 tokens", format!("{case}, alongside {running} decodes"), "us", times);
    }
}

/// Prompts that store 512 blocks a step and evict as many, alongside 64 decodes.
fn cache_events(report: &mut Report, listens: bool, rounds: u32) {
    const PROMPTS: u32 = 8;
    const BLOCKS: u32 = 64;
    let config = Config { max_batch_size: 64 + PROMPTS, max_batch_tokens: 16_384, ..config(64, 20_000) };
    let mut decoding = Decoding::listening(config, listens, 64, 4000);
    let mut round = || {
        // The last token is not stored.
        let begin = Instant::now();
        (0..PROMPTS).for_each(|_| decoding.submit((BLOCKS * BLOCK_SIZE + 1) as usize, 1));
        decoding.step_ns();
        decoding.step_ns();
        begin.elapsed().as_nanos() as f64
    };
    // Until the pool is full.
    for _ in 0..40 {
        round();
    }
    let times = (0..rounds).map(|_| round() / f64::from(PROMPTS * BLOCKS)).collect();
    let case = format!("{} a listener", if listens { "with" } else { "without" });
    report.add("block stored, another evicted", case, "ns", times);
}

/// Steps of decodes that outgrow the pool.
fn preemptions(report: &mut Report, running: u32, steps: u32) {
    // All prompts fit one step: none decodes, and outgrows the pool, while others are still prefilled.
    let max_batch_tokens = running * (PROMPT_TOKENS as u32 + BLOCK_SIZE);
    let config = Config { launch_watermark: 0.0, max_batch_tokens, ..config(running, running * 36) };
    let mut decoding = Decoding::with(config, running, 4000);
    let (mut plain, mut pressed) = (vec![decoding.step_ns()], Vec::new());
    while pressed.len() < steps as usize {
        let before = decoding.core.stats().preemptions;
        let ns = decoding.step_ns();
        match decoding.core.stats().preemptions - before {
            0 => plain.push(ns),
            n => pressed.push((ns, n)),
        }
    }
    let plain = median(plain);
    let each = pressed.iter().map(|(ns, n)| (ns - plain) / *n as f64 / 1e3).collect();
    report.add("preemption", format!("of {running} decodes"), "us", each);
    let count = pressed.iter().map(|(_, n)| *n as f64).collect();
    report.add("preemptions in a step", format!("of {running} decodes"), "calls", count);
}

/// The loss of a worker with decodes of prompts of 512 tokens.
fn worker_lost(report: &mut Report, running: u32, runs: u32) {
    // All prompts fit one step: none ends while others are still prefilled.
    let max_batch_tokens = running * (PROMPT_TOKENS as u32 + BLOCK_SIZE);
    let lose = |_| {
        let config = Config { max_batch_tokens, ..config(running, running * 40) };
        let mut decoding = Decoding::with(config, running, 64);
        assert_eq!(decoding.core.stats().running, running, "the worker is lost with all of them");
        decoding.step = None;
        time_ns(|| decoding.handle(Event::WorkerLost)) / 1e6
    };
    report.add("worker lost", format!("{running} decodes"), "ms", (0..runs).map(lose).collect());
}

/// The shutdown of a core with a queue.
fn end_of_all(report: &mut Report, waiting: u32) {
    for prompt_tokens in [512, 4096] {
        let mut decoding = Decoding::with(config(1, 2000), 1, 4000);
        (0..waiting).for_each(|_| decoding.submit(prompt_tokens, 10));
        let ms = time_ns(|| decoding.handle(Event::Shutdown)) / 1e6;
        report.add("shutdown", format!("{waiting} waiting, {prompt_tokens} tokens each"), "ms", vec![ms]);
        drop(decoding.core.take_remains());
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    quantile(&values, 0.5)
}
