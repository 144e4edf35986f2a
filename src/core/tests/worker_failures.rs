//! Blame for failed steps: a request that makes a worker fail ends, and requests in the same step do not.

use trunkline_core::{
    Config, Event, FinishReason, Namespace, Request, RequestId, StepResult, TierConfig, WORKER_FAILURES_MAX, Write,
};
use trunkline_driver::Driver;

const BLOCK: u32 = 4;

fn config() -> Config {
    Config {
        block_size: BLOCK,
        device_blocks: 64,
        max_batch_tokens: 64,
        max_batch_size: 4,
        max_context: 200,
        ..Config::default()
    }
}

fn request(id: u64, n: u32, max_tokens: u32) -> Request {
    let prompt = (0..n).map(|at| (id as u32).wrapping_mul(1000) + at).collect();
    Request::new(RequestId(id), Namespace::default().root(), prompt, max_tokens)
}

/// Loses the worker, and has another join.
fn lose(driver: &mut Driver) {
    driver.lose_worker();
    driver.join();
}

#[test]
fn requests_beside_a_guilty_one_stay_even_if_its_client_gave_up_in_the_failing_step() {
    type GivesUp = fn(&mut Driver, u64);
    let ways: [(FinishReason, GivesUp); 4] = [
        (FinishReason::Abort, |driver, id| driver.abort(id)),
        (FinishReason::Stop, |driver, id| driver.event(Event::Stop(RequestId(id)))),
        (FinishReason::Timeout, |driver, _| {
            driver.now_ns += 1_000_000;
            driver.event(Event::Tick);
        }),
        (FinishReason::Error, |driver, id| driver.event(Event::Withdraw(RequestId(id)))),
    ];
    for (reason, gives_up) in ways {
        let mut driver = Driver::new(config());
        driver.submit_request(request(1, 9, 100));
        for guilty in 10..20 {
            let mut poison = request(guilty, 9, 5);
            poison.deadline_ns = Some(driver.now_ns + 500_000);
            driver.submit_request(poison);
            driver.answer();
            assert_eq!(driver.ids(), [1, guilty]);
            gives_up(&mut driver, guilty);
            driver.event(Event::Fail(RequestId(guilty)));
            lose(&mut driver);
            assert_eq!(driver.reason(guilty), Some(reason));
        }
        // Not one token was lost to a failure of its own: it ran between them, and once without any.
        driver.run_to_end();
        assert_eq!(driver.reason(1), Some(FinishReason::Length), "{reason:?}");
    }
}

#[test]
fn without_progress_between_them_the_guilty_ones_failures_still_count_for_nobody_else() {
    let mut driver = Driver::without_worker(config());
    // Not one step of request 1 succeeds, so only the blame keeps the request alive.
    for guilty in 10..14 {
        if guilty == 10 {
            driver.submit_request(request(1, 9, 4));
        }
        driver.submit_request(request(guilty, 9, 5));
        driver.join();
        assert_eq!(driver.ids(), [1, guilty]);
        driver.abort(guilty);
        driver.event(Event::Fail(RequestId(guilty)));
        driver.lose_worker();
        assert_eq!(driver.reason(guilty), Some(FinishReason::Abort));
    }
    assert!(driver.tokens.is_empty());
    driver.join();
    driver.run_to_end();
    assert_eq!(driver.reason(1), Some(FinishReason::Length));
}

#[test]
fn only_failures_in_a_row_end_a_request_and_each_failure_before_a_token_allows_one_more() {
    // Each round is two lone failures and a token, which says that the worker failed by itself.
    for (rounds, calm, limit) in [(0, 0, 3), (1, 0, 5), (2, 0, 6), (9, 0, 6), (9, 1022, 6), (9, 1023, 3)] {
        let mut driver = Driver::new(Config { device_blocks: 400, max_context: 1500, ..config() });
        driver.submit_request(request(1, 9, 1400));
        for _ in 0..rounds {
            lose(&mut driver);
            lose(&mut driver);
            driver.answer();
        }
        assert_eq!(driver.said(1).len(), rounds, "each life of the worker but a few gave a token");
        (0..calm).for_each(|_| driver.answer());
        for failures in 1..=limit {
            assert!(!driver.has_ended(1));
            lose(&mut driver);
            assert_eq!(driver.has_ended(1), failures == limit, "{rounds} rounds, {calm} steps: {failures}");
        }
        assert_eq!(driver.ends, [(1, FinishReason::Error)]);
    }
}

#[test]
fn failed_steps_of_a_poison_are_no_evidence_for_others_when_it_has_ended() {
    let mut driver = Driver::new(config());
    for id in 1..9 {
        driver.submit_request(request(id, 9, 40));
        for failures in 1..=WORKER_FAILURES_MAX {
            assert!(!driver.has_ended(id));
            lose(&mut driver);
            assert_eq!(driver.has_ended(id), failures == WORKER_FAILURES_MAX);
        }
    }
}

/// Runs 64 requests at a time, 640 in all, on workers that die by themselves: each step is the last of its worker with a chance of one in
/// `mortality`. A step with a poison is the last always. Returns the deaths.
fn run_on_mortal_workers(mortality: u64, seed: u64, poisons: &[u64]) -> u32 {
    let limits = Config { device_blocks: 1000, max_batch_size: 64, max_batch_tokens: 128, max_queue: 1000, ..config() };
    let mut driver = Driver::without_worker(limits);
    let (mut n, mut deaths, mut random) = (0, 0, seed);
    driver.join();
    loop {
        while n < 640 && driver.live.len() < 64 {
            driver.submit_request(request(n, 5 + n as u32 % 40, 2 + n as u32 % 7));
            n += 1;
        }
        if driver.steps.is_empty() {
            break;
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let is_poisoned = driver.ids().iter().any(|id| poisons.contains(id));
        if is_poisoned || (random >> 33).is_multiple_of(mortality) {
            deaths += 1;
            lose(&mut driver);
        } else {
            driver.answer();
        }
    }
    for id in 0..n {
        let reason = if poisons.contains(&id) { FinishReason::Error } else { FinishReason::Length };
        assert_eq!(driver.reason(id), Some(reason), "request {id}, seed {seed}");
    }
    deaths
}

#[test]
fn workers_that_die_by_themselves_end_no_request_and_a_poison_among_them_is_found() {
    let mut deaths = [0; 2];
    for seed in 0..20 {
        deaths[0] += run_on_mortal_workers(5, seed, &[]);
        deaths[1] += run_on_mortal_workers(20, seed, &[77, 300, 301]);
    }
    assert!(deaths[0] > 1500 && deaths[1] > 500, "{deaths:?}");
}

#[test]
fn a_prompt_that_fails_behind_its_first_chunk_ends_though_the_chunk_succeeds() {
    let mut driver = Driver::new(Config { max_batch_tokens: 16, ..config() });
    driver.submit_request(request(1, 40, 4));
    for _ in 0..WORKER_FAILURES_MAX {
        assert_eq!(driver.running(), [(1, 0, 16, false)]);
        driver.answer();
        lose(&mut driver);
    }
    assert_eq!(driver.ends, [(1, FinishReason::Error)]);
}

#[test]
fn failures_travel_with_a_request_and_a_token_clears_them() {
    let withdrawn = |answers: u32| {
        let mut driver = Driver::new(config());
        driver.submit_request(request(1, 9, 40));
        lose(&mut driver);
        lose(&mut driver);
        (0..answers).for_each(|_| driver.answer());
        driver.event(Event::Withdraw(RequestId(1)));
        driver.answer();
        driver.withdrawn.remove(0)
    };
    assert_eq!((withdrawn(0).worker_failures, withdrawn(1).worker_failures), (2, 0));
    assert_eq!(withdrawn(0).suspicion, 0);
    let mut driver = Driver::new(config());
    driver.submit_request(withdrawn(0));
    lose(&mut driver);
    assert_eq!(driver.ends, [(1, FinishReason::Error)], "the third failure, counted over two cores");
}

#[test]
fn failures_beside_others_stay_suspicions_on_another_core() {
    let mut driver = Driver::without_worker(config());
    (1..3).for_each(|id| driver.submit_request(request(id, 9, 40)));
    driver.join();
    lose(&mut driver);
    lose(&mut driver);
    driver.lose_worker();
    driver.event(Event::Withdraw(RequestId(1)));
    let moved = driver.withdrawn.remove(0);
    // Two suspects fail together twice, then the first runs alone.
    assert_eq!((moved.worker_failures, moved.suspicion), (1, 2));
    let mut driver = Driver::new(config());
    driver.submit_request(moved);
    lose(&mut driver);
    assert!(!driver.has_ended(1), "two of its failures were together with another request");
    lose(&mut driver);
    assert_eq!(driver.ends, [(1, FinishReason::Error)]);
}

#[test]
fn failures_on_another_core_are_no_evidence_about_this_one() {
    let mut driver = Driver::new(config());
    driver.submit_request(request(2, 9, 40));
    lose(&mut driver);
    lose(&mut driver);
    driver.answer();
    driver.abort(2);
    driver.answer();
    // Two steps failed here without the request: two more failures are allowed.
    driver.submit_request(Request { worker_failures: 2, ..request(1, 9, 40) });
    lose(&mut driver);
    lose(&mut driver);
    assert!(!driver.has_ended(1));
    lose(&mut driver);
    assert_eq!(driver.reason(1), Some(FinishReason::Error));
    // The end explains three failed steps here. Two without a known cause are left.
    driver.submit_request(request(3, 9, 40));
    driver.answer();
    (0..4).for_each(|_| lose(&mut driver));
    assert!(!driver.has_ended(3));
    lose(&mut driver);
    assert_eq!(driver.reason(3), Some(FinishReason::Error));
}

#[test]
fn a_worker_that_is_taken_away_blames_nobody() {
    let mut driver = Driver::new(config());
    driver.submit_request(request(1, 9, 4));
    for _ in 0..9 {
        driver.event(Event::WorkerTaken);
        driver.join();
        assert_eq!(driver.running(), [(1, 0, 9, true)], "all of it is computed again");
    }
    // Nor does it count as a failure of another cause.
    for failures in 1..=WORKER_FAILURES_MAX {
        assert!(!driver.has_ended(1));
        lose(&mut driver);
        assert_eq!(driver.has_ended(1), failures == WORKER_FAILURES_MAX);
    }
}

#[test]
fn what_a_guilty_request_computed_is_neither_published_nor_copied_to_a_tier() {
    let tier =
        TierConfig { name: "tier".into(), blocks: 50, write: Write::Through, eviction: "lru".into(), shared: false };
    for aborts in [false, true] {
        let mut driver = Driver::new(Config { tiers: vec![tier.clone()], ..config() });
        driver.submit_request(request(1, 9, 5));
        if aborts {
            driver.abort(1);
        }
        driver.event(Event::Fail(RequestId(1)));
        driver.answer();
        let (stats, reason) = (driver.stats(), driver.reason(1).unwrap());
        assert_eq!(reason, if aborts { FinishReason::Abort } else { FinishReason::Error });
        assert_eq!((stats.published_blocks, stats.tiers[0].stored_blocks, driver.copies.len()), (0, 0, 0));
        // Blocks published before the failure are good, but no copy of them is worth the time.
        driver.submit_request(request(2, 9, 5));
        driver.answer();
        driver.event(Event::Fail(RequestId(2)));
        driver.answer();
        assert_eq!((driver.stats().published_blocks, driver.stats().tiers[0].stored_blocks), (2, 0));
    }
}

#[test]
fn nothing_of_a_guilty_request_outside_the_step_is_copied_to_a_tier() {
    let tier =
        TierConfig { name: "tier".into(), blocks: 50, write: Write::Through, eviction: "lru".into(), shared: false };
    let mut driver = Driver::new(Config { tiers: vec![tier], pipeline_stages: 2, ..config() });
    for id in [1, 2] {
        driver.submit_request(request(id, 9, 40));
    }
    driver.answer_until(|driver| driver.ids().len() == 1 && driver.stats().published_blocks > 0);
    let outside = if driver.ids() == [1] { 2 } else { 1 };
    driver.event(Event::Fail(RequestId(outside)));
    assert_eq!(driver.reason(outside), Some(FinishReason::Error), "at once: no step runs the request");
    assert_eq!(driver.copies.len(), 0, "nothing that a failing request computed is worth a copy");
    driver.run_to_end();
    assert!(driver.stats().tiers[0].stored_blocks > 0, "the other request's blocks are");
}

#[test]
fn an_answer_of_the_wrong_shape_is_not_believed() {
    type Spoils = fn(&mut StepResult);
    // The step runs a decode, which samples, and a chunk of a prompt, which does not.
    let ways: [(&str, Spoils); 8] = [
        ("a sequence too few", |result| _ = result.ends.pop()),
        ("a sequence too many", |result| result.push(&[])),
        ("a token too many", |result| {
            result.tokens.push(9);
            result.ends.iter_mut().for_each(|end| *end += 1);
        }),
        ("no token", |result| {
            result.tokens.clear();
            result.ends.fill(0);
        }),
        ("a token for a chunk", |result| {
            result.tokens.push(9);
            *result.ends.last_mut().unwrap() += 1;
        }),
        ("tokens of nobody", |result| result.tokens.push(9)),
        ("ends beyond the tokens", |result| result.ends.fill(7)),
        ("ends that go back", |result| result.ends = vec![1, 0]),
    ];
    for (what, spoil) in ways {
        let mut driver = Driver::new(Config { max_batch_tokens: 16, ..config() });
        driver.submit_request(request(1, 5, 9));
        driver.answer();
        driver.submit_request(request(2, 40, 2));
        driver.answer();
        assert_eq!(driver.seqs().map(|seq| seq.sample).collect::<Vec<_>>(), [true, false]);
        let said = driver.tokens.len();
        let mut result = driver.end_step();
        spoil(&mut result);
        driver.event(Event::StepFinished(result));
        assert_eq!((driver.resets, driver.joined, driver.tokens.len()), (1, false, said), "{what}");
        driver.join();
        driver.run_to_end();
        assert_eq!(driver.ends.len(), 2, "{what}");
    }
}

#[test]
fn the_answer_to_a_step_that_is_not_in_flight_changes_nothing() {
    let mut driver = Driver::new(config());
    driver.submit_request(request(1, 5, 9));
    let first = driver.step().unwrap().id;
    driver.answer();
    for step in [first, 0, 77, u64::MAX] {
        driver.event(Event::StepFinished(StepResult { step, tokens: vec![9], ends: vec![1], ..StepResult::default() }));
    }
    assert_eq!((driver.resets, driver.tokens.len(), driver.steps.len()), (0, 1, 1));
}

#[test]
fn refusals_are_decisions_and_so_are_their_reasons() {
    let digest = |refused: Option<Request>| {
        let mut driver = Driver::new(Config { device_blocks: 8, ..config() });
        refused.into_iter().for_each(|request| driver.submit_request(request));
        driver.core.digest()
    };
    let digests =
        [None, Some(request(1, 0, 5)), Some(request(1, 5, 0)), Some(request(1, 9, 500)), Some(request(1, 99, 5))]
            .map(digest);
    let distinct: std::collections::BTreeSet<u64> = digests.into_iter().collect();
    assert_eq!(distinct.len(), digests.len(), "no refusal; empty; nothing asked; too long; never fits");
}

#[test]
fn ids_that_differ_in_any_bit_give_different_digests() {
    let digest = |id| {
        let mut driver = Driver::new(config());
        driver.submit_request(request(id, 5, 1));
        driver.core.digest()
    };
    assert_ne!(digest(1), digest(1 | 1 << 62));
}

/// The search for requests that make a worker fail, which names none: poisons among innocents.
struct Search {
    driver: Driver,
    poisons: Vec<u64>,
    /// Failed steps, with the requests of each.
    failed: Vec<Vec<u64>>,
}

impl Search {
    /// Runs requests `0..n` to their ends; a step with a poison fails.
    fn run(n: u64, poisons: &[u64]) -> Self {
        let config = Config {
            device_blocks: 1000,
            max_batch_size: n as u32,
            max_batch_tokens: 16 * n as u32,
            max_queue: 1000,
            ..config()
        };
        let mut search = Self { driver: Driver::without_worker(config), poisons: poisons.to_vec(), failed: Vec::new() };
        (0..n).for_each(|id| search.driver.submit_request(request(id, 9, 6)));
        search.driver.join();
        search.finish();
        search
    }

    fn finish(&mut self) {
        while !self.driver.steps.is_empty() {
            let ids = self.driver.ids();
            if ids.iter().any(|id| self.poisons.contains(id)) {
                self.failed.push(ids);
                lose(&mut self.driver);
            } else {
                self.driver.answer();
            }
        }
    }

    /// Asserts that the poisons ended with an error, and the others with all their tokens.
    fn check(&self, n: u64) {
        assert_eq!(self.driver.ends.len(), n as usize);
        for id in 0..n {
            let reason = if self.poisons.contains(&id) { FinishReason::Error } else { FinishReason::Length };
            assert_eq!(self.driver.reason(id), Some(reason), "request {id}");
        }
    }
}

#[test]
fn a_request_that_makes_the_worker_fail_is_found_and_costs_the_others_nothing_but_time() {
    // 1 + log2(n) failed steps until the cause is alone, and three of it alone.
    for (n, failed) in [(8, 7), (64, 10)] {
        for poison in 0..n {
            let search = Search::run(n, &[poison]);
            search.check(n);
            let sizes: Vec<usize> = search.failed.iter().map(Vec::len).collect();
            assert_eq!(sizes.len(), failed, "request {poison} of {n}: {sizes:?}");
            assert_eq!((sizes[0], sizes[1], sizes[2]), (n as usize, n as usize, n as usize / 2));
            assert!(sizes[failed - 3..].iter().all(|size| *size == 1), "{sizes:?}");
        }
    }
}

#[test]
fn several_requests_that_make_the_worker_fail_are_found() {
    // Adjacent ones fail in a row, and each ends after three steps alone; others may need three more.
    let mut failed = Vec::new();
    for poisons in [[0, 1, 2, 3], [28, 29, 30, 31], [0, 8, 16, 24], [3, 4, 17, 30]] {
        let search = Search::run(32, &poisons);
        search.check(32);
        failed.push(search.failed.len());
    }
    assert_eq!(failed, [19, 19, 40, 39]);
    for poisons in [[0, 1, 2, 3, 4, 5, 6, 7], [0, 8, 16, 24, 32, 40, 48, 56], [1, 2, 20, 21, 22, 40, 62, 63]] {
        Search::run(64, &poisons).check(64);
    }
}

#[test]
fn a_worker_that_always_fails_ends_all_requests_after_a_bounded_number_of_steps() {
    let all: Vec<u64> = (0..64).collect();
    let search = Search::run(64, &all);
    search.check(64);
    assert_eq!(search.failed.len(), 32 + WORKER_FAILURES_MAX as usize, "the worker is blamed from the 33rd failure on");
}

#[test]
fn a_request_that_fails_alone_later_is_found_too_and_those_that_come_meanwhile_wait() {
    let mut search = Search::run(4, &[2]);
    search.check(4);
    // The cause of now is a request that came last, behind others that were there.
    search.poisons = vec![12];
    (10..14).for_each(|id| search.driver.submit_request(request(id, 9, 6)));
    search.driver.answer();
    search.driver.submit_request(request(14, 9, 6));
    search.finish();
    let reasons: Vec<_> = (10..15).map(|id| search.driver.reason(id)).collect();
    let [length, error] = [Some(FinishReason::Length), Some(FinishReason::Error)];
    assert_eq!(reasons, [length, length, error, length, length]);
}
