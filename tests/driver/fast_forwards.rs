//! Fast-forwards against single steps: one load, run twice through cores of one configuration, must lead to equal decisions at equal times.
//!
//! The worker computes nothing: a token depends on the request and its number alone, the time of a step on the batch, and the time and end of a copy
//! or a look-up on its number. Of configurations, loads and times a seed draws those that fast-forwards are made for: one step in flight,
//! no drafts, a pool that some of the requests fill, and mostly prompts before decodes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::ops::Range;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64Mcg;
use trunkline_core::{
    Action, Config, Core, Event, FastForwardDriver, FastForwardResult, FinishReason, Request, RequestId, Stats,
    SteadyBatch, SteadySteps, Step, StepResult, Token, Usage,
};

use crate::limits::{
    any_prefill_first, hints, imitate, limits, pick, prefetch, retain, reuse_anywhere, share_a_tier, suit_worker,
};
use crate::pressure::{LENGTHS, request};

/// Maximum number of events of one run: a run with more never ends.
const EVENTS_MAX: u32 = 200_000;

/// A configuration, and requests with their times, in order.
#[derive(Clone, Debug)]
pub struct Load {
    /// Limits of both cores.
    pub config: Config,
    /// Requests, hashed, with the times at which they come, nanoseconds.
    pub requests: Vec<(u64, Request)>,
    pace: Pace,
}

/// Times of steps, copies and look-ups, and the ends of copies.
#[derive(Clone, Copy, Debug)]
struct Pace {
    step_ns: u64,
    token_ns: u64,
    copy_ns: u64,
    /// Of a hundred copies, about this many fail.
    failures: u64,
}

/// Result of one run.
#[derive(Clone, Debug, PartialEq)]
struct Outcome {
    /// Time, request, reason and usage of each end, in order.
    ends: Vec<(u64, u64, FinishReason, Usage)>,
    refused: Vec<(u64, u64)>,
    stats: Stats,
    digest: u64,
}

/// Draws a load. Draws nothing for a request that depends on another, so that some can be left out.
pub fn draw(seed: u64) -> Load {
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let mut config = limits(&mut rng);
    suit_worker(seed, &mut config);
    imitate(seed, &mut config);
    if rng.random_range(0..4) > 0 {
        config.prefill_first = any_prefill_first(&mut rng);
    }
    let few_blocks = rng.random_range(8..60) / config.block_size + 3;
    config.device_blocks = pick(&mut rng, &[few_blocks, few_blocks, config.device_blocks]);
    config.max_steps_in_flight = 1;
    (config.max_drafts, config.max_queue, config.max_queued_tokens) = (0, 100, 1 << 40);
    config.copy_timeout_ns = 0;
    config.tiers.truncate(pick(&mut rng, &[0, 0, 1, 3]));
    let hint_rng = retain(seed, &mut config);
    reuse_anywhere(seed, &mut config);
    share_a_tier(&mut rng, &mut config);
    if config.validate().is_err() {
        (config.worker.reuse, config.host_blocks) = Default::default();
    }
    let requests = draw_requests(&mut rng, &config, hint_rng);
    let pace = Pace {
        step_ns: pick(&mut rng, &[100, 1_000]),
        token_ns: pick(&mut rng, &[0, 7]),
        copy_ns: pick(&mut rng, &[1, 50, 3_000]),
        failures: pick(&mut rng, &[0, 0, 20]),
    };
    Load { config, requests, pace }
}

fn draw_requests(rng: &mut Pcg64Mcg, config: &Config, mut hint_rng: Option<Pcg64Mcg>) -> Vec<(u64, Request)> {
    let n = rng.random_range(2..12);
    let apart_ns = pick(rng, &[1, 500, 5_000, 40_000]);
    let room = (config.device_blocks * config.block_size).min(config.max_context);
    let mut at_ns = 0;
    let mut requests = Vec::new();
    for id in 0..n {
        at_ns += pick(rng, &[0, 1, 1, 1]) * rng.random_range(0..apart_ns);
        let mut request = request(rng, id, None, LENGTHS, (at_ns, config.block_size));
        request.prompt.truncate(rng.random_range(1..=room as usize));
        request.max_tokens = rng.random_range(1..=room);
        // A request may end early at a stop token, and is fast-forwarded only if it cannot.
        let stops = rng.random_range(0..16) == 0;
        request.stop_token_ids.retain(|_| stops);
        request.deadline_ns = request.deadline_ns.filter(|_| id % 4 == 0);
        if let Some(rng) = &mut hint_rng {
            request.retention = hints(rng, request.prompt.len() as u32 + 1);
            prefetch(rng, &mut request);
        }
        request.hashes.clear();
        request.hash_prompt(config.block_size);
        requests.push((at_ns, request));
    }
    requests
}

/// Runs a load with fast-forwards and in single steps. Returns the number of steps skipped over.
///
/// # Errors
/// If the two runs differ: the first difference.
pub fn compare(load: &Load) -> Result<u64, String> {
    let (fast, skipped) = Run::new(load, true).run();
    let (stepped, _) = Run::new(load, false).run();
    let ends = fast.ends.iter().zip(&stepped.ends).find(|(fast, stepped)| fast != stepped);
    if let Some((fast, stepped)) = ends {
        return Err(format!("a request ends as {fast:?} with fast-forwards, and as {stepped:?} in steps"));
    }
    if fast.stats != stepped.stats {
        return Err(format!("with fast-forwards {:?}, in steps {:?}", fast.stats, stepped.stats));
    }
    if fast != stepped { Err("other decisions with fast-forwards than in steps".into()) } else { Ok(skipped) }
}

/// Returns a number that depends on another, and looks like one drawn at random.
fn mixed(n: u64) -> u64 {
    let n = (n ^ n >> 31).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    n ^ n >> 29
}

/// The n-th token of a request: few different ones, so that equal prompts have equal answers now and then.
fn token(request: RequestId, n: u32) -> Token {
    (mixed(request.0 / 2 * 1_000 + u64::from(n)) % 50) as Token + 10
}

/// An end of something under way. The order decides between ends at one time.
type Timed = Reverse<(u64, u64, Answer)>;

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    Transfer(u64),
    Lookup(u64),
}

struct Run<'a> {
    load: &'a Load,
    fast_forwards: bool,
    core: Core,
    now_ns: u64,
    actions: Vec<Action>,
    /// End of the step in flight.
    step_end_ns: Option<u64>,
    /// The step in flight, unless it is one of a fast-forward.
    step: Option<Box<Step>>,
    under_way: BinaryHeap<Timed>,
    outcome: Outcome,
    skipped: u64,
}

/// Skips steps that end before anything else happens.
struct Patient {
    pace: Pace,
    until_ns: u64,
    begun: u64,
}

impl Pace {
    fn of_step(self, seqs: u64, tokens: u64, computed: u64) -> u64 {
        self.step_ns + self.token_ns * tokens + 3 * seqs + computed % 11
    }
}

impl FastForwardDriver for Patient {
    fn on_steps_begin(&mut self, begin_ns: u64, batch: &SteadyBatch, most: u32) -> SteadySteps {
        let (mut end_ns, mut begun) = (begin_ns, 0);
        loop {
            let computed = batch.computed + u64::from(begun) * u64::from(batch.seqs);
            end_ns += self.pace.of_step(batch.seqs.into(), batch.seqs.into(), computed);
            begun += 1;
            let skip = end_ns < self.until_ns;
            if !skip || begun == most {
                self.begun += u64::from(begun);
                return SteadySteps { begun, end_ns, skip };
            }
        }
    }

    fn generate(&mut self, request: RequestId, numbers: Range<u32>, tokens: &mut Vec<Token>) {
        tokens.extend(numbers.map(|n| token(request, n)));
    }

    fn on_tokens(&mut self, _: RequestId, _: u32) {}
}

impl<'a> Run<'a> {
    fn new(load: &'a Load, fast_forwards: bool) -> Self {
        let core = Core::new(load.config.clone()).expect("the limits are within their ranges");
        Self {
            load,
            fast_forwards,
            outcome: Outcome { ends: Vec::new(), refused: Vec::new(), stats: core.stats(), digest: 0 },
            core,
            now_ns: 0,
            actions: Vec::new(),
            step_end_ns: None,
            step: None,
            under_way: BinaryHeap::new(),
            skipped: 0,
        }
    }

    fn run(mut self) -> (Outcome, u64) {
        self.event(Event::WorkerJoined);
        let mut requests = self.load.requests.iter().peekable();
        for _ in 0..EVENTS_MAX {
            let comes_ns = requests.peek().map(|(at_ns, _)| *at_ns);
            let ends_ns = self.under_way.peek().map(|Reverse((at_ns, ..))| *at_ns);
            let due_ns = self.core.next_deadline_ns();
            let Some(now_ns) = [comes_ns, ends_ns, due_ns, self.step_end_ns].into_iter().flatten().min() else {
                self.core.check();
                (self.outcome.stats, self.outcome.digest) = (self.core.stats(), self.core.digest());
                return (self.outcome, self.skipped);
            };
            self.now_ns = self.now_ns.max(now_ns);
            if comes_ns == Some(now_ns) {
                let (_, request) = requests.next().expect("a request comes");
                self.event(Event::Submit(Box::new(request.clone())));
            } else if due_ns == Some(now_ns) {
                self.event(Event::Tick);
            } else if ends_ns == Some(now_ns) {
                self.end_answer();
            } else {
                let until_ns = [comes_ns, ends_ns].into_iter().flatten().min();
                self.end_step(until_ns.unwrap_or(u64::MAX));
            }
        }
        panic!("the load never ends: {:?}", self.core.stats());
    }

    fn event(&mut self, event: Event) {
        self.core.handle(self.now_ns, event, &mut self.actions);
        self.perform();
    }

    /// Ends a copy or a look-up.
    fn end_answer(&mut self) {
        let Some(Reverse((_, _, answer))) = self.under_way.pop() else { return };
        self.event(match answer {
            Answer::Lookup(lookup) => Event::LookupEnded { lookup, found: (mixed(lookup) % 4) as u32 },
            Answer::Transfer(id) if mixed(id) % 100 < self.load.pace.failures => match id % 2 {
                0 => Event::TransferFailed(id),
                _ => Event::TransferInterrupted(id),
            },
            Answer::Transfer(id) => Event::TransferFinished(id),
        });
    }

    fn end_step(&mut self, until_ns: u64) {
        self.step_end_ns = None;
        if self.fast_forwards {
            let mut driver = Patient { pace: self.load.pace, until_ns, begun: 0 };
            let result = self.core.fast_forward(self.now_ns, &mut driver, &mut self.actions);
            self.skipped += driver.begun;
            match result {
                FastForwardResult::NotSteady => {}
                FastForwardResult::Paused { end_ns, .. } => {
                    (self.step, self.step_end_ns) = (None, Some(end_ns));
                    return;
                }
                FastForwardResult::Ended { begin_ns, .. } => {
                    (self.step, self.now_ns) = (None, begin_ns);
                    return self.perform();
                }
            }
        }
        let step = self.step.take().expect("a step in flight ends");
        let mut result = StepResult { step: step.id, ..StepResult::default() };
        for seq in &step.seqs {
            let sampled = [token(seq.request, seq.n_generated)];
            result.push(if seq.sample { &sampled } else { &[] });
        }
        self.event(Event::StepFinished(result));
    }

    fn perform(&mut self) {
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::RunStep(step) => {
                    let computed = step.seqs.iter().map(|seq| u64::from(seq.computed)).sum();
                    let ns = self.load.pace.of_step(step.seqs.len() as u64, u64::from(step.n_tokens()), computed);
                    (self.step_end_ns, self.step) = (Some(self.now_ns + ns), Some(step));
                }
                Action::Transfer(transfer) => {
                    let ns = self.load.pace.copy_ns * transfer.pairs.len() as u64 + mixed(transfer.id) % 97;
                    self.under_way.push(Reverse((self.now_ns + ns, transfer.id, Answer::Transfer(transfer.id))));
                }
                Action::Lookup(lookup) => {
                    let ns = self.load.pace.copy_ns + mixed(lookup.id) % 53;
                    self.under_way.push(Reverse((self.now_ns + ns, lookup.id, Answer::Lookup(lookup.id))));
                }
                Action::Finish { request, reason, usage } => {
                    self.outcome.ends.push((self.now_ns, request.0, reason, usage));
                }
                Action::Refuse { request, .. } => self.outcome.refused.push((self.now_ns, request.0)),
                Action::Token { .. } | Action::Release { .. } | Action::Cancel { .. } => {}
                other => panic!("{other:?} was not to be expected"),
            }
        }
    }
}
