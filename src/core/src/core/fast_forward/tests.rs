//! Fast-forwards that pause, and events that may come then. Whole replays, fast-forwarded and stepped, are compared in the simulator.

use trunkline_port::Keeps;

use super::*;
use crate::StepResult;
use crate::blocks::hash::Namespace;
use crate::config::{Config, H2oConfig, TierConfig, WorkerFacts, Write};
use crate::core::Core;
use crate::core::event::{Action, Event};
use crate::h2o::Mode;
use crate::request::retention::RetentionHint;
use crate::request::{FinishReason, Request};

const STEP_NS: u64 = 10;
const TOKEN: Token = 7;

/// Produces tokens, and skips steps that end before the next request comes.
struct Patient {
    until_ns: u64,
    begun: u64,
}

impl FastForwardDriver for Patient {
    fn on_steps_begin(&mut self, begin_ns: u64, _: &SteadyBatch, most: u32) -> SteadySteps {
        let end_of = |begun: u32| begin_ns + u64::from(begun) * STEP_NS;
        let begun = (1..most).find(|begun| end_of(*begun) >= self.until_ns).unwrap_or(most);
        self.begun += u64::from(begun);
        SteadySteps { begun, end_ns: end_of(begun), skip: end_of(begun) < self.until_ns }
    }

    fn generate(&mut self, _: RequestId, numbers: Range<u32>, tokens: &mut Vec<Token>) {
        tokens.extend(numbers.map(|_| TOKEN));
    }

    fn on_tokens(&mut self, _: RequestId, _: u32) {}
}

/// Runs requests that come at given times, leaping or stepping, with ticks at deadlines. Returns what ended when and why, the digest,
/// and how many steps were skipped over.
fn run(config: Config, requests: &[(u64, Request)], fast_forwards: bool) -> (Vec<(u64, u64, FinishReason)>, u64, u64) {
    let block_size = config.block_size;
    let mut core = Core::new(config).unwrap();
    let (mut actions, mut ends, mut rest) = (Vec::new(), Vec::new(), requests);
    let (mut now_ns, mut step_end_ns, mut step, mut skipped) = (0, None, None, 0);
    core.handle(0, Event::WorkerJoined, &mut actions);
    loop {
        for action in actions.drain(..) {
            match action {
                Action::RunStep(begun) => (step_end_ns, step) = (Some(now_ns + STEP_NS), Some(begun)),
                Action::Finish { request, reason, .. } => ends.push((now_ns, request.0, reason)),
                Action::Token { .. } => {}
                other => panic!("{other:?} was not to be expected"),
            }
        }
        let comes_ns = rest.first().map(|(at_ns, _)| *at_ns);
        let times = [comes_ns, core.next_deadline_ns(), step_end_ns];
        let Some(next_ns) = times.into_iter().flatten().min() else { break };
        now_ns = next_ns;
        if comes_ns == Some(now_ns) {
            let mut request = rest[0].1.clone();
            request.hash_prompt(block_size);
            rest = &rest[1..];
            core.handle(now_ns, Event::Submit(Box::new(request)), &mut actions);
        } else if times[1] == Some(now_ns) {
            core.handle(now_ns, Event::Tick, &mut actions);
        } else {
            step_end_ns = None;
            let mut driver = Patient { until_ns: comes_ns.unwrap_or(u64::MAX), begun: 0 };
            let result = if fast_forwards {
                core.fast_forward(now_ns, &mut driver, &mut actions)
            } else {
                FastForwardResult::NotSteady
            };
            skipped += driver.begun;
            match result {
                FastForwardResult::Paused { end_ns, .. } => step_end_ns = Some(end_ns),
                FastForwardResult::Ended { begin_ns, .. } => now_ns = begin_ns,
                FastForwardResult::NotSteady => {
                    let step = step.take().expect("a step in flight ends");
                    let tokens: Vec<_> = step.seqs.iter().filter(|seq| seq.sample).map(|_| TOKEN).collect();
                    let ends = step.seqs.iter().scan(0, |end, seq| {
                        *end += u32::from(seq.sample);
                        Some(*end)
                    });
                    let answer = StepResult { step: step.id, ends: ends.collect(), tokens, ..StepResult::default() };
                    core.handle(now_ns, Event::StepFinished(answer), &mut actions);
                }
            }
        }
    }
    core.check();
    (ends, core.digest(), skipped)
}

fn request(id: u64, deadline_ns: Option<u64>) -> Request {
    let prompt = (0..10).map(|at| id as u32 * 100 + at).collect();
    Request { deadline_ns, ..Request::new(RequestId(id), Namespace::default().root(), prompt, 60) }
}

#[test]
fn deadlines_of_requests_that_come_in_a_fast_forward_pass_on_time() {
    let config = Config { max_batch_size: 1, block_size: 4, ..Config::default() };
    // The first runs alone. One waits without an end over several steps, one within a step, one until a step ends; the last has the time.
    let requests = [
        (0, request(0, None)),
        (35, request(1, Some(72))),
        (205, request(2, Some(208))),
        (305, request(3, Some(310))),
        (405, request(4, Some(10_000))),
    ];
    let (ends, digest, skipped) = run(config.clone(), &requests, true);
    let timeouts = [(72, 1), (208, 2), (310, 3)].map(|(at_ns, id)| (at_ns, id, FinishReason::Timeout));
    assert_eq!(ends[..3], timeouts);
    assert_eq!(ends[3..], [(600, 0, FinishReason::Length), (1200, 4, FinishReason::Length)]);
    assert!(skipped > 10, "{skipped} steps were skipped over");
    assert_eq!(run(config, &requests, false), (ends, digest, 0));
}

#[test]
fn duplicates_that_merge_in_a_fast_forward_are_free_at_once() {
    // Two equal requests fill equal blocks in the same steps: one of each two is a duplicate. There is room for no more.
    let config = Config { block_size: 4, device_blocks: 20, launch_watermark: 0.0, ..Config::default() };
    let equal = |id| Request { prompt: (0..10).collect(), ..request(id, None) };
    let requests = [(0, equal(0)), (0, equal(1))];
    let (ends, digest, skipped) = run(config.clone(), &requests, true);
    assert!(skipped > 10, "{skipped} steps were skipped over");
    assert_eq!(run(config, &requests, false), (ends, digest, 0));
}

#[test]
fn retention_hints_end_in_a_fast_forward() {
    // Two prompts of two blocks are kept, then an answer needs all 18 blocks. The stronger hint ends first, while steps are skipped over.
    let config = Config {
        block_size: 4,
        device_blocks: 18,
        launch_watermark: 0.0,
        eviction: "lru:retain_percent=100".into(),
        ..Config::default()
    };
    let hinted = |id, priority, ttl_ns| Request {
        retention: vec![RetentionHint { from: 0, to: 8, priority, ttl_ns, demote: false, pin: false }],
        max_tokens: 1,
        ..request(id, None)
    };
    let requests = |ttl_ns| [(0, hinted(0, 100, ttl_ns)), (20, hinted(1, 40, 0)), (40, request(2, None))];
    let (ends, digest, skipped) = run(config.clone(), &requests(300), true);
    assert!(skipped > 10, "{skipped} steps were skipped over");
    assert_eq!(run(config.clone(), &requests(300), false), (ends, digest, 0));
    assert_ne!(run(config, &requests(0), false).1, digest, "the order of eviction does not depend on the hint");
}

#[test]
fn no_step_is_skipped_while_the_answer_to_a_look_up_may_come() {
    let tier =
        TierConfig { name: "remote".into(), blocks: 64, write: Write::Through, eviction: "lru".into(), shared: true };
    let config = Config { block_size: 4, tiers: vec![tier], swap_block_ns: 1, ..Config::default() };
    let mut core = Core::new(config).unwrap();
    let mut actions = Vec::new();
    let submit = |core: &mut Core, now_ns, prompt: Vec<Token>, actions: &mut Vec<Action>| {
        let mut request = Request { prompt, ..request(now_ns, None) };
        request.hash_prompt(4);
        core.handle(now_ns, Event::Submit(Box::new(request)), actions);
    };
    core.handle(0, Event::WorkerJoined, &mut actions);
    submit(&mut core, 1, vec![1, 2], &mut actions);
    let mut now_ns = STEP_NS;
    for prompt in [Vec::new(), (0..10).collect()] {
        let Some(Action::RunStep(step)) = actions.pop() else { panic!("the first prompt has no full block") };
        if !prompt.is_empty() {
            submit(&mut core, now_ns, prompt, &mut actions);
        }
        now_ns += STEP_NS;
        let answer = StepResult { step: step.id, ends: vec![1], tokens: vec![TOKEN], ..StepResult::default() };
        core.handle(now_ns, Event::StepFinished(answer), &mut actions);
    }
    let asked = actions.iter().filter(|action| matches!(action, Action::Lookup(_))).count();
    assert_eq!(asked, 1, "{actions:?}");
    // Past the wait, nobody waits for the answer; a transfer or a request that could be admitted would end the skipping, too.
    let due_ns = core.next_deadline_ns().expect("the wait has an end");
    let mut driver = Patient { until_ns: u64::MAX, begun: 0 };
    for now_ns in [now_ns + 1, due_ns] {
        core.handle(now_ns, Event::Tick, &mut actions);
        actions.clear();
        assert_eq!(core.fast_forward(now_ns, &mut driver, &mut actions), FastForwardResult::NotSteady);
    }
}

/// Runs requests leaping and stepping, with equal ends and decisions. Returns what ended when and why, and how many steps were skipped over.
fn run_both(config: &Config, requests: &[(u64, Request)]) -> (Vec<(u64, u64, FinishReason)>, u64) {
    let (ends, digest, skipped) = run(config.clone(), requests, true);
    assert_eq!(run(config.clone(), requests, false), (ends.clone(), digest, 0));
    (ends, skipped)
}

#[test]
fn a_request_alone_is_skipped_through_block_after_block() {
    let config = Config { block_size: 4, ..Config::default() };
    let (ends, skipped) = run_both(&config, &[(0, request(0, None))]);
    // A step for the prompt gives the first of 60 tokens. The first decode, begun as a step, and the last one are not skipped over.
    assert_eq!((ends, skipped), (vec![(600, 0, FinishReason::Length)], 57));
}

#[test]
fn a_fast_forward_ends_where_a_block_is_missing() {
    // 18 blocks each, and room for 20: one of them is preempted, and comes back.
    let config = Config { block_size: 4, device_blocks: 20, launch_watermark: 0.0, ..Config::default() };
    let (ends, skipped) = run_both(&config, &[(0, request(0, None)), (0, request(1, None))]);
    assert!(skipped > 10, "{skipped} steps were skipped over");
    assert_eq!(ends[0], (600, 0, FinishReason::Length));
    assert!(ends[1].0 > 620, "{ends:?}: request 1 waits for blocks");
}

#[test]
fn a_request_that_comes_in_a_fast_forward_is_admitted_after_the_step_in_flight() {
    let config = Config { block_size: 4, max_batch_size: 2, ..Config::default() };
    let (ends, skipped) = run_both(&config, &[(0, request(0, None)), (205, request(1, None))]);
    assert!(skipped > 10, "{skipped} steps were skipped over");
    assert_eq!(ends, [(600, 0, FinishReason::Length), (810, 1, FinishReason::Length)]);
}

#[test]
fn a_fast_forward_ends_where_a_waiting_request_takes_a_seat() {
    let policy = "priority:ageing_ms=0".into();
    let config = Config { block_size: 4, max_batch_size: 2, policy, ..Config::default() };
    let urgent = |id, priority, max_tokens| Request { priority, max_tokens, ..request(id, None) };
    // Request 2 takes the seat of 1 within a fast-forward, also where 1 has just filled a block; 3 is equal to 0, and waits.
    for later_ns in [0, 10, 20, 30] {
        let requests = [
            (0, urgent(0, 1, 60)),
            (0, urgent(1, 2, 60)),
            (205 + later_ns, urgent(2, 0, 20)),
            (215 + later_ns, urgent(3, 1, 20)),
        ];
        let (ends, skipped) = run_both(&config, &requests);
        assert!(skipped > 40, "{skipped} steps were skipped over");
        // The step after the arrival runs both; the next one is the prompt's, whose token is the first of 20.
        assert_eq!(ends[..2], [(420 + later_ns, 2, FinishReason::Length), (600, 0, FinishReason::Length)]);
        assert_eq!(ends.iter().map(|(_, id, _)| *id).collect::<Vec<_>>(), [2, 0, 3, 1]);
    }
    // Request 2 ends before it has the seat: 1 is left out of a step all the same.
    let gives_up = Request { deadline_ns: Some(212), ..urgent(2, 0, 20) };
    let (ends, skipped) = run_both(&config, &[(0, urgent(0, 1, 60)), (0, urgent(1, 2, 60)), (205, gives_up)]);
    assert!(skipped > 40, "{skipped} steps were skipped over");
    let [timeout, first, last] =
        [(212, 2, FinishReason::Timeout), (600, 0, FinishReason::Length), (620, 1, FinishReason::Length)];
    assert_eq!(ends, [timeout, first, last]);
}

#[test]
fn with_prompts_first_a_request_is_admitted_before_the_decodes_take_their_blocks() {
    // Request 1 needs the 11 blocks that are free at the end of the step in which it comes, and the decode needs one of them.
    let request = |id, tokens, max_tokens| {
        let prompt = (0..tokens).map(|at| id as u32 * 100 + at).collect();
        Request { prompt, max_tokens, ..request(id, None) }
    };
    let requests = [(0, request(0, 2, 27)), (185, request(1, 11, 15))];
    for prefill_first in ["true", "padded", "chunks", "chunks:await_prefix=0,find_chunks=1", "false"] {
        let config = Config {
            block_size: 1,
            device_blocks: 31,
            launch_watermark: 0.0,
            prefill_first: prefill_first.parse().unwrap(),
            ..Config::default()
        };
        let (ends, skipped) = run_both(&config, &requests);
        // A step for the prompt of request 1 delays request 0.
        let end_ns = if config.prefill_first.is_on() { 280 } else { 270 };
        assert_eq!(ends[0], (end_ns, 0, FinishReason::Length), "{prefill_first}");
        assert!(skipped > 10, "{prefill_first}: {skipped} steps were skipped over");
    }
}

#[test]
fn no_step_is_skipped_where_a_step_does_more_than_decode() {
    let groups = vec![Keeps::All, Keeps::Window(8)];
    let worker = WorkerFacts { groups, ..WorkerFacts::default() };
    let h2o =
        H2oConfig { mode: Mode::Probe, ratio: Some(3.0), sink: 4, recent: 4, trigger: 24, ..H2oConfig::default() };
    let tier =
        TierConfig { name: "tier".into(), blocks: 64, write: Write::Back, eviction: "lru".into(), shared: false };
    let plain = Config { block_size: 4, ..Config::default() };
    let cases = [
        ("layer groups", Config { worker, ..plain.clone() }),
        ("eviction within sequences", Config { h2o, ..plain.clone() }),
        ("shares of tenants", Config { policy: "vtc".into(), ..plain.clone() }),
        ("a tier that is written back to", Config { tiers: vec![tier], ..plain }),
    ];
    for (name, config) in cases {
        let (ends, skipped) = run_both(&config, &[(0, request(0, None))]);
        assert_eq!((ends, skipped), (vec![(600, 0, FinishReason::Length)], 0), "{name}");
    }
}

/// Notes the batches of the steps that begin, and lets none be skipped.
#[derive(Default)]
struct Noting(Vec<SteadyBatch>);

impl FastForwardDriver for Noting {
    fn on_steps_begin(&mut self, begin_ns: u64, batch: &SteadyBatch, _: u32) -> SteadySteps {
        self.0.push(*batch);
        SteadySteps { begun: 1, end_ns: begin_ns + STEP_NS, skip: false }
    }

    fn generate(&mut self, _: RequestId, numbers: Range<u32>, tokens: &mut Vec<Token>) {
        tokens.extend(numbers.map(|_| TOKEN));
    }

    fn on_tokens(&mut self, _: RequestId, _: u32) {}
}

#[test]
fn the_driver_of_a_fast_forward_learns_how_long_the_decodes_are_in_each_step() {
    let mut core = Core::new(Config { block_size: 4, ..Config::default() }).unwrap();
    let mut actions = Vec::new();
    for (id, tokens) in [(1, 5), (2, 12)] {
        let prompt = (0..tokens).map(|at| id as u32 * 100 + at).collect();
        let mut request = Request { prompt, ..request(id, None) };
        request.hash_prompt(4);
        core.handle(0, Event::Submit(Box::new(request)), &mut actions);
    }
    core.handle(0, Event::WorkerJoined, &mut actions);
    let Some(Action::RunStep(step)) = actions.pop() else { panic!("both prompts run") };
    let answer = StepResult { step: step.id, ends: vec![1, 2], tokens: vec![TOKEN; 2], ..StepResult::default() };
    core.handle(STEP_NS, Event::StepFinished(answer), &mut actions);
    let mut driver = Noting::default();
    for step in 2..=12 {
        let result = core.fast_forward(step * STEP_NS, &mut driver, &mut actions);
        assert_eq!(result, FastForwardResult::Paused { end_ns: (step + 1) * STEP_NS, tokens: 2 });
    }
    // With KV are the prompts, and in the second decode the first token generated.
    let batches = (1..=11).map(|n| SteadyBatch { seqs: 2, computed: 5 + 12 + 2 * n, computed_max: 12 + n as u32 });
    assert_eq!(driver.0, batches.collect::<Vec<_>>());
}
