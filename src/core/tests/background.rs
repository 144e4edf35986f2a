//! Background requests, under every policy: who runs alongside them, what they give up, and when they rank as any other. The last test measures the
//! time to the first token on a virtual clock.

use std::collections::BTreeMap;

use trunkline_core::config::StepTarget;
use trunkline_core::policy::REGISTRY;
use trunkline_core::{BACKGROUND_NS, Config, Namespace, Preemption, Request, RequestId};
use trunkline_driver::{Direction, Driver, prompt};

const BLOCK: u32 = 4;

fn policies() -> impl Iterator<Item = &'static str> {
    REGISTRY.entries().iter().map(|entry| entry.name)
}

fn config(policy: &str) -> Config {
    Config {
        policy: policy.into(),
        block_size: BLOCK,
        device_blocks: 200,
        max_batch_tokens: 200,
        max_batch_size: 2,
        max_context: 400,
        launch_watermark: 0.0,
        swap_in_watermark: 0.0,
        preemption: Preemption::Recompute,
        ..Config::default()
    }
}

fn request(id: u64, tokens: u32, max_tokens: u32) -> Request {
    Request::new(RequestId(id), Namespace::default().root(), prompt(id as u32, tokens), max_tokens)
}

fn background(id: u64, tokens: u32, max_tokens: u32) -> Request {
    Request { background: true, ..request(id, tokens, max_tokens) }
}

fn ends(driver: &Driver) -> Vec<u64> {
    driver.ends.iter().map(|(id, _)| *id).collect()
}

#[test]
fn a_background_request_gives_up_its_seat_and_ends_last() {
    for policy in policies() {
        let mut driver = Driver::new(config(policy));
        driver.submit_request(background(1, 8, 20));
        (0..3).for_each(|_| driver.answer());
        assert_eq!(driver.ids(), [1], "{policy}: nobody else is there");
        for id in 2..=4 {
            driver.submit_request(request(id, 8, 5));
        }
        driver.answer();
        assert_eq!(driver.ids(), [2, 3], "{policy}: two seats");
        driver.answer_until(|driver| driver.ends.len() == 3);
        driver.run_to_end();
        assert_eq!(ends(&driver), [2, 3, 4, 1], "{policy}");
        assert_eq!((driver.usages[&1].preemptions, driver.stats().preemptions), (1, 1), "{policy}");
    }
}

#[test]
fn a_background_request_that_came_back_gives_up_its_seat_again() {
    for policy in policies() {
        let mut driver = Driver::new(Config { max_batch_size: 1, max_batch_tokens: 16, ..config(policy) });
        driver.submit_request(background(1, 60, 4));
        driver.submit_request(request(2, 8, 2));
        driver.answer_until(|driver| driver.has_ended(2));
        assert_eq!(driver.ids(), [1], "{policy}");
        driver.submit_request(request(3, 8, 2));
        driver.answer();
        assert_eq!(driver.ids(), [3], "{policy}: the other has generated nothing since it came back");
        driver.run_to_end();
        assert_eq!((ends(&driver), driver.usages[&1].preemptions), (vec![2, 3, 1], 2), "{policy}");
    }
}

#[test]
fn requests_in_the_background_wait_behind_all_that_come_later() {
    for policy in policies() {
        let mut driver = Driver::without_worker(Config { max_batch_size: 1, ..config(policy) });
        driver.submit_request(background(1, 8, 3));
        driver.submit_request(Request { deadline_ns: Some(1 << 40), tenant: 1, ..background(2, 8, 3) });
        for id in 3..=5 {
            driver.submit_request(Request { tenant: id, priority: 9, ..request(id, 40, 3) });
        }
        driver.join();
        driver.run_to_end();
        let ends = ends(&driver);
        assert_eq!(ends[..3], [3, 4, 5], "{policy}");
        let first = if policy == "edf" { 2 } else { 1 };
        assert_eq!(ends[3], first, "{policy}: the order of the policy holds among them");
        assert_eq!(driver.stats().preemptions, 0, "{policy}");
    }
}

#[test]
fn prompts_and_tokens_of_the_background_run_while_others_decode_alone() {
    for policy in policies() {
        let mut driver = Driver::new(Config { max_batch_size: 4, max_batch_tokens: 24, ..config(policy) });
        driver.submit_request(background(1, 8, 40));
        driver.answer();
        assert_eq!(driver.running(), [(1, 8, 1, true)], "{policy}");
        driver.submit_request(request(2, 40, 10));
        driver.answer();
        assert_eq!(driver.running(), [(2, 0, 24, false)], "{policy}: the step has one prompt, and nothing else");
        driver.submit_request(background(3, 60, 1));
        driver.answer();
        assert_eq!(driver.running(), [(2, 24, 16, true)], "{policy}: there is room for eight tokens more");
        driver.answer();
        assert_eq!(driver.running(), [(1, 9, 1, true), (2, 40, 1, true), (3, 0, 20, false)], "{policy}");
        driver.run_to_end();
    }
}

#[test]
fn a_background_request_gives_its_blocks_to_a_waiting_one() {
    for policy in policies() {
        // 1 and 2 have ten blocks each, and 3 needs twelve.
        let mut driver = Driver::new(Config { device_blocks: 25, max_batch_size: 8, ..config(policy) });
        driver.submit_request(request(1, 36, 5));
        driver.submit_request(background(2, 36, 5));
        driver.answer();
        driver.submit_request(request(3, 45, 2));
        driver.answer_until(|driver| driver.has_ended(3));
        driver.run_to_end();
        assert_eq!(ends(&driver).last(), Some(&2), "{policy}");
        let preempted = |id| driver.usages[&id].preemptions;
        assert_eq!([1, 2, 3].map(preempted), [0, 1, 0], "{policy}");
    }
}

#[test]
fn the_background_is_preempted_first_and_comes_back_last() {
    for policy in policies() {
        for preemption in [Preemption::Swap, Preemption::Recompute] {
            // 60 tokens each, and room for 100: 1 came first, and is in the background.
            let limits = Config { device_blocks: 25, host_blocks: 40, max_batch_size: 8, preemption, ..config(policy) };
            let mut driver = Driver::without_worker(limits);
            driver.submit_request(Request { priority: -5, ..background(1, 20, 40) });
            driver.submit_request(request(2, 20, 40));
            driver.join();
            driver.run_to_end();
            assert_eq!(ends(&driver), [2, 1], "{policy}, {preemption:?}");
            assert_eq!(driver.usages[&2].preemptions, 0, "{policy}, {preemption:?}");
            assert!(driver.usages[&1].preemptions > 0, "{policy}, {preemption:?}");
        }
    }
}

#[test]
fn nobody_waits_for_blocks_that_the_background_is_to_compute() {
    for policy in policies() {
        let mut driver = Driver::new(Config { max_batch_tokens: 16, ..config(policy) });
        let shared = |request: Request| Request { prompt: prompt(7, 60), ..request };
        driver.submit_request(shared(background(1, 60, 2)));
        driver.submit_request(shared(request(2, 60, 2)));
        driver.answer();
        // A block of the first chunk is found; the rest is computed at once.
        assert_eq!(driver.running(), [(2, 16, 16, false)], "{policy}");
        driver.run_to_end();
        assert_eq!(ends(&driver), [2, 1], "{policy}");
    }
}

#[test]
fn a_background_request_ranks_as_any_other_after_its_time() {
    for policy in policies() {
        let mut driver = Driver::new(Config { max_batch_size: 1, ..config(policy) });
        driver.submit_request(request(1, 8, 2));
        let arrived_ns = driver.now_ns + 1;
        driver.submit_request(background(2, 8, 6));
        // There are always two others.
        let mut id = 3;
        let mut begun_ns = None;
        while begun_ns.is_none() && driver.now_ns < 2 * BACKGROUND_NS {
            while driver.live.len() < 4 {
                driver.submit_request(request(id, 8, 2));
                id += 1;
            }
            driver.now_ns += 1_000_000_000;
            driver.answer();
            begun_ns = driver.ids().contains(&2).then_some(driver.now_ns);
        }
        let waited_ns = begun_ns.expect("it runs") - arrived_ns;
        assert!((BACKGROUND_NS..BACKGROUND_NS + 10_000_000_000).contains(&waited_ns), "{policy}: {waited_ns}");
        // It keeps its seat now.
        driver.submit_request(request(1_000, 8, 2));
        driver.answer_until(|driver| driver.has_ended(2));
        assert_eq!(driver.usages[&2].preemptions, 0, "{policy}");
        driver.run_to_end();
    }
}

#[test]
fn a_swapped_request_whose_time_has_come_is_admitted_before_others() {
    let limits = Config { preemption: Preemption::Swap, host_blocks: 40, max_batch_size: 1, ..config("fcfs") };
    let mut driver = Driver::new(limits);
    driver.submit_request(background(1, 20, 30));
    (0..2).for_each(|_| driver.answer());
    driver.submit_request(request(2, 20, 8));
    driver.submit_request(request(3, 20, 8));
    driver.answer();
    assert_eq!(driver.moves(), [(Direction::Out, 6)]);
    driver.finish_copy(0);
    driver.answer_until(|driver| driver.ids() == [2]);
    driver.now_ns += BACKGROUND_NS;
    driver.answer_until(|driver| driver.has_ended(2));
    assert_eq!(driver.moves(), [(Direction::In, 1)], "it comes back before any is admitted, and finds its full blocks");
    driver.run_to_end();
    assert_eq!(ends(&driver), [2, 1, 3]);
}

#[test]
fn the_background_counts_for_no_tenant() {
    // Tenant 1 would pay 140 tokens, more than tenant 3 has been served by then, and wait behind tenant 2.
    let mut driver = Driver::new(config("vtc"));
    driver.submit_request(Request { tenant: 3, ..request(2, 8, 60) });
    driver.answer();
    driver.submit_request(Request { tenant: 1, ..background(1, 100, 20) });
    driver.answer_until(|driver| driver.has_ended(1));
    for (id, tenant) in [(3, 1), (4, 2)] {
        driver.submit_request(Request { tenant, ..request(id, 8, 9) });
    }
    driver.answer();
    assert_eq!(driver.ids(), [2, 3]);
    driver.run_to_end();
}

#[test]
fn a_step_of_the_background_alone_is_not_sent_ahead() {
    let mut driver = Driver::new(Config { max_steps_in_flight: 2, ..config("vtc") });
    driver.submit_request(background(1, 8, 20));
    assert_eq!(driver.steps.len(), 1);
    driver.answer();
    assert_eq!(driver.steps.len(), 1, "who comes now waits for one step");
    driver.submit_request(request(2, 8, 20));
    assert_eq!(driver.steps.len(), 2);
    driver.answer();
    assert_eq!(driver.steps.len(), 2, "and requests that are served run ahead");
    driver.run_to_end();
}

/// What stands alongside the turns of a [`mean_ttft_ns`].
#[derive(Clone, Copy, PartialEq)]
enum Alongside {
    Nothing,
    Summaries,
    Background,
}

/// Returns the mean time to the first token of the turns of six chats, nanoseconds. A step takes 10 ms, 50 us for each token of a prompt and 100 us for each
/// decode. Alongside the turns, a summary of 80 tokens follows another all the time.
fn mean_ttft_ns(policy: &str, alongside: Alongside) -> u64 {
    let limits = Config {
        max_batch_size: 16,
        max_batch_tokens: 2048,
        device_blocks: 4096,
        max_context: 2048,
        block_size: 16,
        max_steps_in_flight: 2,
        target_step_ns: StepTarget::SERVED,
        ..config(policy)
    };
    let mut driver = Driver::new(limits);
    let (mut next_turn, mut next_summary) = (1, 1_000);
    let mut begun: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut total_ns, mut step_end_ns, mut seen) = (0, None, 0);
    // Between 50 and 450 ms from one turn to the next.
    let mut arrival_ns = 400_000_000;
    while ends(&driver).iter().filter(|id| **id < 1_000).count() < TURNS as usize {
        if alongside != Alongside::Nothing && !driver.live.iter().any(|id| id.0 >= 1_000) {
            let summary = Request { background: alongside == Alongside::Background, ..request(next_summary, 600, 80) };
            driver.submit_request(Request { tenant: next_summary % 6, ..summary });
            next_summary += 1;
        }
        if step_end_ns.is_none()
            && let Some(step) = driver.step()
        {
            let decodes = step.seqs.iter().filter(|seq| seq.n_tokens == 1).count() as u64;
            let tokens = step.n_tokens() as u64 - decodes;
            step_end_ns = Some(driver.now_ns + 10_000_000 + 50_000 * tokens + 100_000 * decodes);
        }
        if next_turn <= TURNS && step_end_ns.is_none_or(|end_ns| arrival_ns < end_ns) {
            driver.now_ns = driver.now_ns.max(arrival_ns - 1);
            begun.insert(next_turn, arrival_ns);
            driver.submit_request(Request { tenant: next_turn % 6, ..request(next_turn, 400, 24) });
            arrival_ns += 50_000_000 + next_turn * 97_000_003 % 400_000_000;
            next_turn += 1;
            continue;
        }
        driver.now_ns = driver.now_ns.max(step_end_ns.take().expect("something runs") - 1);
        driver.answer();
        for (id, _) in &driver.tokens[seen..] {
            total_ns += begun.remove(id).map_or(0, |begun_ns| driver.now_ns - begun_ns);
        }
        seen = driver.tokens.len();
    }
    total_ns / TURNS
}

/// Turns of which the mean is taken.
const TURNS: u64 = 60;

#[test]
fn turns_alongside_summaries_wait_little_longer_under_every_policy() {
    for policy in policies() {
        let [alone, alongside, behind] = [Alongside::Nothing, Alongside::Summaries, Alongside::Background]
            .map(|alongside| mean_ttft_ns(policy, alongside));
        println!(
            "{policy}: {alone} ns alone, {alongside} ns alongside summaries, {behind} ns with summaries in the background"
        );
        assert!(behind <= alone + alone / 10, "{policy}: {behind} ns instead of {alone}");
        assert!(alongside > alone + alone / 10, "{policy}: {alongside} ns, so the load shows nothing");
    }
}
