//! Scheduling benchmark: a decode step through the whole core, from the tokens of one step to the next step.

use trunkline_core::hash::Namespace;
use trunkline_core::{Action, Config, Core, Event, Request, RequestId, Step, StepResult};

use super::allocations::counted;
use super::measure::{Numbers, Report, time_ns};

const NOTES: [&str; 2] = [
    "A step takes in the last step's tokens, publishes full blocks, emits the tokens and makes the next step.",
    "Allocations are those of the core alone. What grows with a sequence (its tokens, its table) grows now and then.",
];
const BLOCK_SIZE: u32 = 16;
const PROMPT_TOKENS: usize = 512;

pub fn run(quick: bool) -> Report {
    let mut report = Report::new("sched", quick, NOTES.to_vec());
    let running: &[u32] = if quick { &[64] } else { &[64, 256, 1024, 4096] };
    for running in running {
        decodes(&mut report, *running, if quick { 20 } else { 400 });
    }
    report
}

/// A core with decoding requests, and a worker with immediate answers.
struct Decoding {
    core: Core,
    actions: Vec<Action>,
    step: Option<Box<Step>>,
    now_ns: u64,
}

impl Decoding {
    fn new(running: u32, steps: u32) -> Self {
        let max_tokens = 2 * steps + 64;
        let per_request = (PROMPT_TOKENS as u32 + BLOCK_SIZE + max_tokens).div_ceil(BLOCK_SIZE) + 2;
        let config = Config {
            block_size: BLOCK_SIZE,
            device_blocks: running * per_request,
            max_batch_tokens: running + 8192,
            max_batch_size: running,
            max_queue: running,
            ..Config::default()
        };
        let mut core = Core::new(config).expect("the limits are possible");
        let mut actions = Vec::new();
        let mut numbers = Numbers::new();
        for id in 0..running {
            // Of many lengths, so that in each step as many sequences fill a block.
            let prompt = numbers.tokens(PROMPT_TOKENS + (id % BLOCK_SIZE) as usize);
            let mut request = Request::new(RequestId(u64::from(id)), Namespace::default().root(), prompt, max_tokens);
            request.hash_prompt(BLOCK_SIZE);
            core.handle(0, Event::Submit(Box::new(request)), &mut actions);
        }
        core.handle(0, Event::WorkerJoined, &mut actions);
        let mut decoding = Self { core, actions, step: None, now_ns: 0 };
        decoding.keep_step();
        while decoding
            .step
            .as_ref()
            .is_some_and(|step| step.seqs.len() < running as usize || step.tokens.len() > running as usize)
        {
            let event = decoding.answer();
            decoding.handle(event);
            decoding.keep_step();
        }
        decoding
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
