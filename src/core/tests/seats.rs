//! Seats of a full batch: who gives one up, to whom, how, and how often.

use std::collections::BTreeMap;

use trunkline_core::config::{PipelineBatches, PrefillFirst, StepTarget};
use trunkline_core::{
    Config, H2oConfig, Keeps, Namespace, Preemption, Request, RequestId, ReuseConfig, Token, WorkerFacts, h2o,
};
use trunkline_driver::Driver;

const BLOCK: u32 = 4;
const MS: u64 = 1_000_000;

fn config(policy: &str) -> Config {
    Config {
        block_size: BLOCK,
        device_blocks: 200,
        max_batch_tokens: 64,
        max_batch_size: 2,
        max_context: 400,
        policy: policy.into(),
        ..Config::default()
    }
}

fn request(id: u64, priority: i32, max_tokens: u32) -> Request {
    let prompt = (0..9).map(|at| id as Token * 1000 + at).collect();
    Request { priority, ..Request::new(RequestId(id), Namespace::default().root(), prompt, max_tokens) }
}

fn due(id: u64, deadline_ns: Option<u64>, max_tokens: u32) -> Request {
    Request { deadline_ns, ..request(id, 0, max_tokens) }
}

/// A full batch of two requests, 1 and 2, with some tokens each.
fn full(config: Config, requests: [Request; 2]) -> Driver {
    let mut driver = Driver::new(config);
    requests.into_iter().for_each(|request| driver.submit_request(request));
    driver.answer_until(|driver| driver.said(2).len() > 3);
    assert_eq!(driver.ids(), [1, 2]);
    driver
}

/// Answers `n` steps. Returns the requests of the step in flight after each.
fn steps(driver: &mut Driver, n: usize) -> Vec<Vec<u64>> {
    (0..n)
        .map(|_| {
            driver.answer();
            driver.ids()
        })
        .collect()
}

#[test]
fn the_last_in_the_order_gives_up_its_seat_and_comes_back() {
    let mut driver = full(config("priority"), [request(1, 5, 40), request(2, 5, 40)]);
    driver.submit_request(request(3, 4, 3));
    // The step after the arrival runs both: the seat is wanted once their tokens are in it. The next one leaves 2 out, for 3.
    assert_eq!(steps(&mut driver, 5), [vec![1, 2], vec![1, 3], vec![1, 3], vec![1, 3], vec![1, 2]]);
    assert_eq!((driver.ends[0].0, driver.said(3).len(), driver.stats().preemptions), (3, 3, 1));
    driver.run_to_end();
    driver.assert_all_said([1, 2, 3]);
    assert_eq!(driver.stats().preemptions, 1);
}

#[test]
fn the_least_urgent_goes_whenever_it_came() {
    let mut driver = full(config("priority"), [request(1, 9, 40), request(2, 5, 40)]);
    driver.submit_request(request(3, 4, 3));
    assert_eq!(steps(&mut driver, 3), [vec![1, 2], vec![2, 3], vec![2, 3]]);
    driver.run_to_end();
    driver.assert_all_said([1, 2, 3]);
}

#[test]
fn an_equal_or_less_urgent_request_waits() {
    for priority in [5, 6] {
        let mut driver = full(config("priority:ageing_ms=0"), [request(1, 5, 12), request(2, 5, 12)]);
        driver.submit_request(request(3, priority, 3));
        driver.answer_until(|driver| driver.has_ended(3));
        assert_eq!((driver.stats().preemptions, driver.ends[0].0), (0, 1), "priority {priority}");
    }
}

#[test]
fn a_request_that_has_run_and_waited_long_enough_is_not_behind() {
    // One level is worth 100 ms: the second request of level 1 came 99 ms before, the first 101 ms.
    for (ms, seats) in [(99, 1), (101, 0)] {
        let mut driver = Driver::new(Config { max_batch_size: 1, ..config("priority:ageing_ms=100") });
        driver.submit_request(request(1, 1, 40));
        driver.answer();
        driver.now_ns += ms * MS;
        driver.submit_request(request(2, 0, 3));
        driver.answer_until(|driver| driver.has_ended(2));
        assert_eq!(driver.stats().preemptions, seats, "{ms} ms");
    }
}

#[test]
fn a_deadline_takes_the_seat_of_a_later_one_and_of_none() {
    let quick = Config { recompute_token_ns: 1, ..config("edf") };
    let mut driver = full(quick, [due(1, Some(50_000), 40), due(2, None, 40)]);
    driver.submit_request(due(3, Some(90_000), 4));
    assert_eq!(steps(&mut driver, 2), [vec![1, 2], vec![1, 3]]);
    driver.submit_request(due(4, Some(70_000), 2));
    assert_eq!(steps(&mut driver, 3), [vec![1, 3], vec![1, 4], vec![1, 4]]);
    driver.submit_request(due(5, None, 2));
    driver.answer_until(|driver| driver.has_ended(3));
    assert_eq!(driver.stats().preemptions, 2, "5 has no deadline either");
    driver.run_to_end();
    driver.assert_all_said([1, 2, 3, 4, 5]);
}

#[test]
fn under_other_policies_and_by_choice_a_full_batch_stays() {
    for policy in ["fcfs", "sjf", "lpm", "lpm_sorted", "vtc:take_seats=0", "priority:take_seats=0", "edf:take_seats=0"]
    {
        let mut driver = full(config(policy), [request(1, 5, 12), request(2, 5, 12)]);
        let urgent = Request { tenant: 7, deadline_ns: Some(50_000), prompt: vec![1], ..request(3, -5, 3) };
        driver.submit_request(urgent);
        driver.answer_until(|driver| driver.has_ended(3));
        assert_eq!((driver.stats().preemptions, driver.ends[0].0), (0, 1), "{policy}");
    }
}

#[test]
fn nobody_gives_up_a_seat_for_a_request_without_blocks() {
    // Two requests of 9 and 40 tokens take 13 blocks each; 3 needs 10 at once.
    let limits = Config { device_blocks: 15, launch_watermark: 0.0, ..config("priority") };
    let mut driver = full(limits, [request(1, 5, 12), request(2, 5, 12)]);
    driver.submit_request(Request { prompt: (0..38).collect(), ..request(3, 0, 2) });
    driver.answer_until(|driver| driver.has_ended(1));
    assert_eq!((driver.stats().preemptions, driver.said(2).len()), (0, 11), "2 came a step later, and ran on");
    driver.run_to_end();
    driver.assert_all_said([1, 2, 3]);
}

#[test]
fn a_seat_that_is_about_to_be_free_is_waited_for() {
    let limits = Config { max_steps_in_flight: 2, ..config("priority") };
    let mut driver = full(limits, [request(1, 5, 40), request(2, 5, 40)]);
    driver.abort(1);
    driver.submit_request(request(3, 0, 3));
    let steps = steps(&mut driver, 6);
    assert!(steps.iter().all(|ids| ids.contains(&2)), "{steps:?}");
    assert_eq!((driver.has_ended(3), driver.stats().preemptions), (true, 0));
    driver.run_to_end();
}

#[test]
fn a_request_that_came_back_keeps_its_seat_until_its_next_token() {
    // A prompt of 60 tokens takes five steps or more.
    let mut driver = Driver::new(Config { max_batch_size: 1, max_batch_tokens: 12, ..config("priority") });
    let long = |id, priority| Request {
        prompt: (0..60).map(|at| id as Token * 1000 + at).collect(),
        ..request(id, priority, 40)
    };
    driver.submit_request(long(1, 5));
    driver.answer_until(|driver| driver.said(1).len() == 2);
    for id in 2..8 {
        let said = driver.said(1).len();
        // Comes while the prompt of 1 is computed again.
        driver.submit_request(Request { max_tokens: 1, ..long(id, 0) });
        driver.answer_until(|driver| driver.ids() == [id]);
        assert!(driver.said(1).len() > said, "{id} took the seat before the next token");
        driver.evict_idle();
        driver.answer_until(|driver| driver.has_ended(id));
    }
    assert_eq!(driver.stats().preemptions, 6);
    driver.run_to_end();
    driver.assert_all_said(1..8);
}

#[test]
fn a_request_left_out_of_a_step_runs_on_if_nobody_wants_its_seat_any_more() {
    let mut driver = Driver::new(Config { max_batch_size: 1, ..config("priority") });
    driver.submit_request(request(1, 5, 10));
    driver.answer();
    driver.submit_request(request(2, 0, 3));
    driver.answer();
    driver.abort(2);
    assert_eq!(steps(&mut driver, 2), [[1], [1]]);
    driver.run_to_end();
    assert_eq!((driver.said(1).len(), driver.stats().preemptions), (10, 0));
}

#[test]
fn several_get_seats_in_one_step_as_far_as_their_prompts_fit_into_it() {
    let limits = Config { max_batch_size: 6, max_batch_tokens: 30, ..config("priority") };
    let mut driver = Driver::new(limits);
    (1..=6).for_each(|id| driver.submit_request(request(id, 5, 40)));
    driver.answer_until(|driver| driver.said(6).len() > 2);
    (7..=10).for_each(|id| driver.submit_request(request(id, 0, 40)));
    // 24 tokens alongside six decodes: three of the prompts of 9 tokens fit in, the third without its end. They leave no token to 10.
    let three = vec![1, 2, 3, 7, 8, 9];
    assert_eq!(steps(&mut driver, 4), [vec![1, 2, 3, 4, 5, 6], three.clone(), three, vec![1, 2, 7, 8, 9, 10]]);
    driver.run_to_end();
    driver.assert_all_said(1..=10);
}

#[test]
fn a_seat_is_given_up_behind_the_steps_in_flight_and_nobody_else_waits() {
    let limits = Config { max_steps_in_flight: 2, ..config("priority") };
    let mut driver = full(limits, [request(1, 5, 40), request(2, 5, 40)]);
    driver.submit_request(request(3, 0, 3));
    // 2 is in the two steps on their way, and 1 in each of those that follow.
    let steps = steps(&mut driver, 6);
    assert!(steps.iter().all(|ids| ids.contains(&1)), "{steps:?}");
    assert_eq!(steps.iter().position(|ids| ids.contains(&3)), Some(3), "{steps:?}");
    driver.run_to_end();
    driver.assert_all_said([1, 2, 3]);
}

#[test]
fn seats_are_taken_however_steps_are_made_up() {
    let apart = WorkerFacts { pipeline_batches: PipelineBatches::Apart, ..WorkerFacts::default() };
    let cases = [
        ("decodes take all tokens", Config { max_batch_tokens: 2, ..config("priority") }),
        ("prompts first", Config { prefill_first: PrefillFirst::Whole, ..config("priority") }),
        (
            "prompts first in chunks, two steps in flight",
            Config { prefill_first: "chunks".parse().unwrap(), max_steps_in_flight: 2, ..config("priority") },
        ),
        ("drafts", Config { max_drafts: 3, ..config("priority") }),
        ("stages", Config { pipeline_stages: 2, max_steps_in_flight: 2, ..config("priority") }),
        ("stages apart", Config { pipeline_stages: 2, max_steps_in_flight: 2, worker: apart, ..config("priority") }),
        ("retraction", Config { preemption: Preemption::Retract, ..config("priority") }),
        (
            "retraction at once",
            Config { preemption: Preemption::RetractAtOnce, max_steps_in_flight: 2, ..config("priority") },
        ),
        (
            "recomputation at once",
            Config { preemption: Preemption::RecomputeAtOnce, max_steps_in_flight: 2, ..config("priority") },
        ),
        ("a step-time target", Config { target_step_ns: StepTarget::Ns(1000), ..config("priority") }),
    ];
    for (case, limits) in cases {
        let mut driver = Driver::new(limits);
        (1..=2).for_each(|id| driver.submit_request(request(id, 5, 60)));
        driver.answer_until(|driver| driver.said(2).len() > 3);
        driver.submit_request(request(3, 0, 3));
        driver.answer_until(|driver| driver.has_ended(3));
        let said = driver.said(1).len();
        assert!(said < 40, "{case}: 3 waited until 1 had {said} tokens");
        driver.run_to_end();
        driver.assert_all_said([1, 2, 3]);
        assert_eq!(driver.stats().preemptions, 1, "{case}");
    }
}

#[test]
fn a_prompt_gives_up_its_seat_within() {
    let together = "chunks:await_prefix=0,find_chunks=1,take_together=1";
    for (prefill_first, in_flight) in
        [("false", 1), ("false", 2), ("chunks", 1), (together, 1), (together, 2), ("true", 1)]
    {
        let limits = Config { max_batch_size: 1, max_batch_tokens: 12, ..config("priority") };
        let prefill_first = prefill_first.parse().unwrap();
        let mut driver = Driver::new(Config { prefill_first, max_steps_in_flight: in_flight, ..limits });
        let prompt = (0..200).map(|at| 7000 + at).collect();
        driver.submit_request(Request { prompt, ..request(1, 5, 4) });
        driver.answer();
        driver.submit_request(request(2, 0, 3));
        driver.answer_until(|driver| driver.has_ended(2));
        assert!(driver.said(1).is_empty(), "{prefill_first}");
        driver.run_to_end();
        driver.assert_all_said([1, 2]);
        assert_eq!(driver.stats().preemptions, 1, "{prefill_first}");
    }
}

#[test]
fn nobody_is_left_out_for_a_request_whose_tokens_another_prompt_takes() {
    let limits = Config { max_batch_size: 2, max_batch_tokens: 12, ..config("priority") };
    let mut driver = Driver::new(limits);
    driver.submit_request(request(1, 5, 60));
    driver.answer_until(|driver| driver.said(1).len() == 3);
    let prompt = (0..200).map(|at| 7000 + at).collect();
    driver.submit_request(Request { prompt, ..request(2, 4, 30) });
    driver.answer();
    driver.submit_request(request(3, 0, 3));
    while driver.said(2).is_empty() {
        assert_eq!(driver.ids(), [1, 2], "1 runs alongside the prompt of 2");
        driver.answer();
    }
    driver.answer();
    assert_eq!(driver.ids(), [2, 3]);
    driver.run_to_end();
    driver.assert_all_said([1, 2, 3]);
}

#[test]
fn a_swapped_request_lets_those_ahead_of_it_pass_and_nobody_else() {
    for is_late in [false, true] {
        let limits = Config { host_blocks: 50, preemption: Preemption::Swap, ..config("priority") };
        let mut driver = full(limits, [request(1, 4, 40), request(2, 5, 40)]);
        driver.submit_request(request(3, 0, 3));
        steps(&mut driver, 2);
        assert_eq!((driver.ids(), driver.copies.len()), (vec![1, 3], 1), "2 is on its way to the host");
        // 4 comes behind 2, and 5 before.
        driver.submit_request(request(4, 5, 3));
        driver.submit_request(request(5, 4, 3));
        if !is_late {
            driver.finish_copy(0);
        }
        driver.answer_until(|driver| driver.has_ended(5));
        assert_eq!(driver.ends.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [3, 5]);
        if is_late {
            assert_eq!(driver.ids(), [1], "4 waits for 2, which is still on its way");
            driver.finish_copy(0);
        }
        driver.run_to_end();
        assert_eq!(driver.ends.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [3, 5, 1, 4, 2]);
        let stats = driver.stats();
        assert_eq!((stats.preemptions, stats.swaps.swap_outs, stats.swaps.swap_ins), (1, 1, 1));
        driver.assert_all_said([1, 2, 3, 4, 5]);
    }
}

/// Runs a request until another takes its seat. Returns the swap-outs.
fn swapped(mut driver: Driver, request: Request) -> u64 {
    driver.submit_request(request);
    driver.answer_until(|driver| driver.said(1).len() > 5);
    driver.submit_request(self::request(2, 0, 3));
    driver.run_to_end();
    assert_eq!(driver.stats().preemptions, 1);
    driver.stats().swaps.swap_outs
}

#[test]
fn a_request_that_might_go_on_with_other_tokens_is_swapped_though_it_costs_more() {
    let dear = Config { max_batch_size: 1, host_blocks: 100, swap_block_ns: 1 << 40, ..config("priority") };
    let groups = |keeps| WorkerFacts { groups: vec![Keeps::All, keeps], ..WorkerFacts::default() };
    let h2o = |mode| H2oConfig { mode, ratio: Some(3.0), sink: 4, recent: 4, ..H2oConfig::default() };
    let on = Config { worker: groups(Keeps::Scored), h2o: h2o(h2o::Mode::On), ..dear.clone() };
    let cases = [
        ("nothing is dropped", dear.clone(), 0),
        ("blocks are dropped", on.clone(), 1),
        ("blocks are counted", Config { h2o: h2o(h2o::Mode::Probe), ..on.clone() }, 0),
        ("no group drops any", Config { worker: groups(Keeps::Window(40)), ..on.clone() }, 0),
        ("the host has no room", Config { host_blocks: 2, ..on.clone() }, 0),
        ("by choice", Config { preemption: Preemption::Recompute, ..on.clone() }, 0),
    ];
    for (case, limits, expected) in cases {
        assert_eq!(swapped(Driver::new(limits), request(1, 5, 40)), expected, "{case}");
    }
    let asks_for_all = Request { h2o: Some(h2o::Mode::Off), ..request(1, 5, 40) };
    assert_eq!(swapped(Driver::new(on), asks_for_all), 0);
}

#[test]
fn a_request_with_copied_text_is_swapped_though_it_costs_more() {
    let reuse = ReuseConfig { anywhere: 16, ..ReuseConfig::default() };
    let worker = WorkerFacts { reuse, ..WorkerFacts::default() };
    let limits = Config { max_batch_size: 1, host_blocks: 100, swap_block_ns: 1 << 40, worker, ..config("priority") };
    let known: Vec<Token> = (100..140).collect();
    for (behind, expected) in [(vec![7; 5], 1), (vec![], 0)] {
        let mut driver = Driver::with_content(limits.clone(), 1);
        driver.join();
        driver.submit(9, known.clone(), 1);
        driver.run_to_end();
        let prompt = [behind, known.clone()].concat();
        assert_eq!(swapped(driver, Request { prompt, ..request(1, 5, 40) }), expected);
    }
}

/// Priorities and preemptions of a random run: nobody is preempted but for a more urgent one that comes in, nor twice between two tokens.
struct Watch {
    priorities: BTreeMap<u64, i32>,
    running: Vec<u64>,
    preempted_at: BTreeMap<u64, usize>,
    preemptions: u64,
}

impl Watch {
    fn look(&mut self, driver: &Driver) {
        let is_running = |id: &u64| driver.live.contains(&RequestId(*id)) && !driver.core.is_waiting(RequestId(*id));
        let running: Vec<u64> = self.priorities.keys().copied().filter(is_running).collect();
        let level = |ids: &[u64]| {
            let mut levels: Vec<i32> = ids.iter().map(|id| self.priorities[id]).collect();
            levels.sort_unstable();
            levels
        };
        let goes = |id: &u64| driver.core.is_waiting(RequestId(*id));
        let gone: Vec<u64> = self.running.iter().copied().filter(goes).collect();
        let come: Vec<u64> = running.iter().copied().filter(|id| !self.running.contains(id)).collect();
        // The most urgent that came, one for each that went.
        let (gone_levels, come_levels) = (level(&gone), level(&come));
        assert!(gone_levels.len() <= come_levels.len(), "{gone:?} went, {come:?} came");
        for (went, came) in gone_levels.iter().zip(&come_levels) {
            assert!(came < went, "priority {went} went for {came}");
        }
        for id in gone {
            let said = driver.said(id).len();
            assert_ne!(self.preempted_at.insert(id, said), Some(said), "{id} went twice between two tokens");
            self.preemptions += 1;
        }
        self.running = running;
    }
}

#[test]
fn seats_go_to_more_urgent_requests_alone_and_everybody_ends() {
    let mut seed = 11u64;
    let mut draw = |n: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    };
    let mut preemptions = 0;
    for round in 0..40 {
        let limits = Config {
            device_blocks: 4000,
            max_batch_size: 1 + draw(6) as u32,
            max_batch_tokens: 12 + draw(50) as u32,
            max_steps_in_flight: 1 + round % 3,
            preemption: [Preemption::Recompute, Preemption::Retract][draw(2) as usize],
            align_chunks: draw(2) == 0,
            ..config("priority:ageing_ms=0")
        };
        let mut driver = Driver::with_content(limits, round.into());
        driver.join();
        let mut watch =
            Watch { priorities: BTreeMap::new(), running: Vec::new(), preempted_at: BTreeMap::new(), preemptions: 0 };
        for id in 0..40 {
            let priority = draw(4) as i32;
            watch.priorities.insert(id, priority);
            let prompt = (0..1 + draw(60)).map(|at| (id * 1000 + at) as Token).collect();
            driver.submit_request(Request { prompt, ..request(id, priority, 1 + draw(40) as u32) });
            watch.look(&driver);
            if draw(8) == 0 {
                driver.evict_idle();
            }
            for _ in 0..draw(7) {
                if !driver.steps.is_empty() {
                    driver.answer();
                    watch.look(&driver);
                }
            }
        }
        while !driver.steps.is_empty() {
            driver.answer();
            watch.look(&driver);
        }
        driver.assert_empty();
        driver.assert_texts();
        assert_eq!(driver.ends.len(), 40, "everybody ends");
        assert_eq!(watch.preemptions, driver.stats().preemptions, "all of them were seen");
        preemptions += watch.preemptions;
    }
    assert!(preemptions > 200, "{preemptions} seats were taken");
}
