//! Requests that an engine's own scheduler answered under a virtual clock, and the answers of a core to the same requests, with the same
//! formula for the time of a step.

use std::collections::VecDeque;

use serde::Deserialize;
use trunkline_core::core::event::{Action, Event};
use trunkline_core::{BlockHash, Config, Core, Request, RequestId, Token};
use trunkline_core::{Step, StepResult};
use trunkline_sim_workload::summary::{Kept, Summary};

/// Token that ends an answer, if the request may generate more.
const STOP: Token = 7;

/// What an engine's scheduler did.
#[derive(Deserialize)]
pub struct Truth {
    step_ns: u64,
    token_ns: u64,
    seq_ns: u64,
    pub cases: Vec<Case>,
}

#[derive(Deserialize)]
pub struct Case {
    pub name: String,
    /// KV blocks of the device.
    pub blocks: u32,
    pub max_batch_tokens: u32,
    pub max_batch_size: u32,
    pub in_flight: u32,
    /// Order of waiting requests: fcfs, or else the engine's own.
    #[serde(default)]
    pub policy: String,
    /// Tokens that a request may generate, as a multiple of those that it does.
    #[serde(default = "one")]
    pub limit: u32,
    /// Steps that the engine took.
    pub steps: u64,
    pub requests: Vec<Asked>,
}

fn one() -> u32 {
    1
}

/// A request, and how the engine answered it: an array in the order of the fields.
#[derive(Clone, Copy, Deserialize)]
pub struct Asked {
    arrival_ns: u64,
    /// Requests of a group begin with the same `shared` tokens; `own` tokens follow.
    group: u32,
    shared: u32,
    own: u32,
    output: u32,
    pub answered: Answered,
}

/// Times of the first and the last token, prompt tokens found in the cache at admission, and preemptions.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
pub struct Answered {
    pub first_ns: u64,
    pub end_ns: u64,
    pub cached: u32,
    pub preemptions: u32,
}

/// A core, and a device that runs one step after another.
pub struct Engine<'a> {
    truth: &'a Truth,
    case: &'a Case,
    block_size: u32,
    core: Core,
    now_ns: u64,
    in_flight: VecDeque<(u64, Box<Step>)>,
    pub answered: Vec<Answered>,
    ended: usize,
}

impl<'a> Engine<'a> {
    /// Returns a core with the settings of an engine, under the limits of the case.
    pub fn new(truth: &'a Truth, case: &'a Case, config: Config) -> Self {
        let block_size = config.block_size;
        let config = Config {
            max_batch_tokens: case.max_batch_tokens,
            max_batch_size: case.max_batch_size,
            max_steps_in_flight: case.in_flight,
            policy: if case.policy == "fcfs" { case.policy.clone() } else { config.policy },
            ..config
        };
        let answered = vec![Answered::default(); case.requests.len()];
        let core = Core::new(config).unwrap();
        Self { truth, case, block_size, core, now_ns: 0, in_flight: VecDeque::new(), answered, ended: 0 }
    }

    fn request(&self, number: usize) -> Request {
        let asked = &self.case.requests[number];
        let own = (0..asked.own).map(|at| 1_000_000_000 + number as u32 * 100_000 + at);
        let prompt = (0..asked.shared).map(|at| asked.group * 100_000 + at).chain(own).collect();
        let max_tokens = asked.output * self.case.limit;
        let mut request = Request::new(RequestId(number as u64), BlockHash(1), prompt, max_tokens);
        request.stop_token_ids = vec![STOP];
        request.hash_prompt(self.block_size);
        request
    }

    fn handle(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.core.handle(self.now_ns, event, &mut actions);
        for action in actions {
            match action {
                Action::RunStep(step) => {
                    let tokens: u64 = step.seqs.iter().map(|seq| u64::from(seq.n_tokens)).sum();
                    let Truth { step_ns, token_ns, seq_ns, .. } = self.truth;
                    let begin_ns = self.in_flight.back().map_or(self.now_ns, |(end_ns, _)| *end_ns);
                    let end_ns = begin_ns + step_ns + token_ns * tokens + seq_ns * step.seqs.len() as u64;
                    self.in_flight.push_back((end_ns, step));
                }
                Action::Token { request, .. } => {
                    let first_ns = &mut self.answered[request.0 as usize].first_ns;
                    *first_ns = if *first_ns == 0 { self.now_ns } else { *first_ns };
                }
                Action::Finish { request, usage, .. } => {
                    let answered = &mut self.answered[request.0 as usize];
                    answered.end_ns = self.now_ns;
                    (answered.cached, answered.preemptions) = (usage.cached_tokens, usage.preemptions);
                    self.ended += 1;
                }
                other => unreachable!("{other:?}"),
            }
        }
    }

    fn end_step(&mut self) {
        let (end_ns, step) = self.in_flight.pop_front().expect("a step is in flight while requests are open");
        self.now_ns = end_ns;
        let mut result = StepResult { step: step.id, ..StepResult::default() };
        for seq in &step.seqs {
            let is_last = seq.n_generated + 1 == self.case.requests[seq.request.0 as usize].output;
            let token: Token =
                if is_last { STOP } else { 2_000_000_000 + seq.request.0 as u32 * 10_000 + seq.n_generated };
            result.push(if seq.sample { std::slice::from_ref(&token) } else { &[] });
        }
        self.handle(Event::StepFinished(result));
    }

    /// Answers every request. Returns the number of steps.
    pub fn run(&mut self) -> u64 {
        self.handle(Event::WorkerJoined);
        for (number, asked) in self.case.requests.iter().enumerate() {
            while self.in_flight.front().is_some_and(|(end_ns, _)| *end_ns < asked.arrival_ns) {
                self.end_step();
            }
            self.now_ns = self.now_ns.max(asked.arrival_ns);
            self.handle(Event::Submit(Box::new(self.request(number))));
        }
        while self.ended < self.answered.len() {
            self.end_step();
        }
        self.core.stats().steps
    }

    /// Returns the number of requests answered exactly as the engine did.
    pub fn equal(&self) -> usize {
        self.answered.iter().zip(&self.case.requests).filter(|(ours, asked)| **ours == asked.answered).count()
    }

    /// Returns TTFT, TPOT and E2E as answered here, and as the engine answered.
    pub fn latencies(&self) -> [[Summary; 3]; 2] {
        let asked = &self.case.requests;
        let theirs = asked.iter().map(|asked| (asked, asked.answered));
        [latencies(asked.iter().zip(self.answered.iter().copied())), latencies(theirs)]
    }
}

/// Returns TTFT, TPOT and E2E of all requests.
fn latencies<'a>(answers: impl Iterator<Item = (&'a Asked, Answered)>) -> [Summary; 3] {
    let mut kept = [Kept::default(), Kept::default(), Kept::default()];
    for (asked, Answered { first_ns, end_ns, .. }) in answers {
        kept[0].record(first_ns - asked.arrival_ns);
        if asked.output > 1 {
            kept[1].record((end_ns - first_ns) / u64::from(asked.output - 1));
        }
        kept[2].record(end_ns - asked.arrival_ns);
    }
    kept.map(Kept::summary)
}

/// Returns the greatest relative error of the means, medians and percentiles.
pub fn worst([ours, theirs]: [[Summary; 3]; 2]) -> f64 {
    let figures = |summary: Summary| [summary.mean, summary.p50, summary.p90, summary.p99];
    let errors = ours.into_iter().zip(theirs).flat_map(|(ours, theirs)| {
        figures(ours).into_iter().zip(figures(theirs)).map(|(ours, theirs)| (ours / theirs - 1.0).abs())
    });
    errors.fold(0.0, f64::max)
}
