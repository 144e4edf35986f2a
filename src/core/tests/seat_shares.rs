//! Seats of a full batch under a policy that orders tenants: a tenant with few takes from the one with most, as far as shares differ.

use std::collections::BTreeMap;

use trunkline_core::{Config, Namespace, Preemption, Request, RequestId, Token};
use trunkline_driver::Driver;

fn config(seats: u32) -> Config {
    Config {
        block_size: 4,
        device_blocks: 800,
        max_batch_tokens: 64,
        max_batch_size: seats,
        max_context: 400,
        policy: "vtc".into(),
        ..Config::default()
    }
}

fn request(tenant: u64, id: u64, max_tokens: u32) -> Request {
    let prompt = (0..9).map(|at| id as Token * 1000 + at).collect();
    Request { tenant, ..Request::new(RequestId(id), Namespace::default().root(), prompt, max_tokens) }
}

/// A core whose batch is full of long answers of tenant 1, the requests from 1 on.
fn full(config: Config) -> Driver {
    let seats = u64::from(config.max_batch_size);
    let mut driver = Driver::new(config);
    (1..=seats).for_each(|id| driver.submit_request(request(1, id, 300)));
    driver.answer_until(|driver| driver.said(seats).len() > 3);
    driver
}

/// Returns the requests of the step in flight after each of `n` steps.
fn steps(driver: &mut Driver, n: usize) -> Vec<Vec<u64>> {
    let answer = |driver: &mut Driver| {
        driver.answer();
        driver.ids()
    };
    (0..n).map(|_| answer(driver)).collect()
}

#[test]
fn a_tenant_without_a_seat_takes_one_of_the_tenant_with_all() {
    let mut driver = full(config(3));
    driver.submit_request(request(2, 8, 3));
    // The step after the arrival runs the three; the next one leaves the latest out, for 8.
    assert_eq!(steps(&mut driver, 5), [vec![1, 2, 3], vec![1, 2, 8], vec![1, 2, 8], vec![1, 2, 8], vec![1, 2, 3]]);
    driver.run_to_end();
    driver.assert_all_said([1, 2, 3, 8]);
    assert_eq!(driver.stats().preemptions, 1);
}

#[test]
fn a_tenant_takes_seats_up_to_its_share_and_not_one_more() {
    for (seats, taken) in [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2)] {
        let mut driver = full(config(seats));
        (11..=20).for_each(|id| driver.submit_request(request(2, id, 300)));
        for _ in 0..100 {
            driver.answer();
        }
        let of_two = driver.ids().iter().filter(|id| **id > 10).count();
        assert_eq!((of_two, driver.stats().preemptions), (taken, taken as u64), "{seats} seats");
        driver.run_to_end();
    }
}

#[test]
fn of_three_tenants_the_one_with_most_gives_and_its_latest_request_goes() {
    let mut driver = Driver::new(config(6));
    (1..=4).for_each(|id| driver.submit_request(request(1, id, 300)));
    (11..=12).for_each(|id| driver.submit_request(request(2, id, 300)));
    driver.answer_until(|driver| driver.said(12).len() > 3);
    driver.submit_request(request(3, 21, 3));
    driver.answer_until(|driver| driver.has_ended(21));
    driver.submit_request(request(3, 22, 300));
    driver.submit_request(request(3, 23, 300));
    driver.answer_until(|driver| driver.said(23).len() > 3);
    let mut ids = driver.ids();
    ids.sort_unstable();
    assert_eq!(ids, [1, 2, 11, 12, 22, 23]);
    driver.run_to_end();
}

#[test]
fn several_seats_are_taken_in_one_step() {
    let mut driver = full(config(6));
    (11..=13).for_each(|id| driver.submit_request(request(2, id, 300)));
    let steps = steps(&mut driver, 2);
    assert_eq!(steps, [vec![1, 2, 3, 4, 5, 6], vec![1, 2, 3, 11, 12, 13]]);
    driver.run_to_end();
}

#[test]
fn the_seat_goes_to_the_one_it_was_taken_for_though_the_one_that_left_is_next() {
    // Tenant 1 was served less than tenant 2 before, and has the earlier request.
    let mut driver = Driver::new(config(2));
    driver.submit_request(request(2, 30, 40));
    driver.answer_until(|driver| driver.has_ended(30));
    (1..=2).for_each(|id| driver.submit_request(request(1, id, 300)));
    driver.answer();
    driver.submit_request(request(2, 31, 300));
    driver.answer_until(|driver| driver.said(31).len() == 3);
    assert_eq!((driver.ids(), driver.stats().preemptions), (vec![1, 31], 1));
    driver.run_to_end();
    assert_eq!(driver.stats().preemptions, 1);
}

#[test]
fn with_one_tenant_and_by_choice_nobody_gives_up_a_seat() {
    for (policy, tenant) in [("vtc", 1), ("vtc:take_seats=0", 2)] {
        let mut driver = full(Config { policy: policy.into(), ..config(2) });
        driver.submit_request(request(tenant, 8, 3));
        driver.answer_until(|driver| driver.has_ended(8));
        assert_eq!((driver.stats().preemptions, driver.ends[0].0), (0, 1), "{policy}");
        driver.run_to_end();
    }
}

fn draws(mut seed: u64) -> impl FnMut(u64) -> u64 {
    move |n| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % n
    }
}

/// Runs 40 requests of some tenants, and calls `look` after each event. Returns the core's digest.
fn random(limits: Config, seed: u64, tenants: u64, mut look: impl FnMut(&Driver, &BTreeMap<u64, u64>)) -> (u64, u64) {
    let mut draw = draws(seed);
    let mut driver = Driver::with_content(limits, seed);
    driver.join();
    let mut tenant_of = BTreeMap::new();
    let mut copies = draws(seed + 1);
    for id in 0..40 {
        let tenant = draw(tenants);
        tenant_of.insert(id, tenant);
        let prompt = (0..1 + draw(60)).map(|at| (id * 1000 + at) as Token).collect();
        driver.submit_request(Request { prompt, ..request(tenant, id, 1 + draw(40) as u32) });
        look(&driver, &tenant_of);
        for _ in 0..draw(7) {
            if !driver.copies.is_empty() && copies(3) == 0 {
                driver.finish_copy(0);
            } else if !driver.steps.is_empty() {
                driver.answer();
            }
            look(&driver, &tenant_of);
        }
    }
    while !driver.steps.is_empty() || !driver.copies.is_empty() {
        if driver.steps.is_empty() || !driver.copies.is_empty() && copies(3) == 0 {
            driver.finish_copy(0);
        } else {
            driver.answer();
        }
        look(&driver, &tenant_of);
    }
    driver.assert_empty();
    driver.assert_texts();
    assert_eq!(driver.ends.len(), 40, "everybody ends");
    (driver.core.digest(), driver.stats().preemptions)
}

fn random_limits(round: u64, blocks: u32) -> Config {
    let mut draw = draws(round);
    Config {
        device_blocks: blocks,
        host_blocks: 200,
        max_batch_tokens: 12 + draw(50) as u32,
        max_steps_in_flight: 1 + round as u32 % 3,
        preemption: [Preemption::Recompute, Preemption::Swap, Preemption::Cost][draw(3) as usize],
        align_chunks: draw(2) == 0,
        ..config(1 + draw(6) as u32)
    }
}

#[test]
fn one_tenant_decides_as_if_no_seat_could_be_taken() {
    let mut preemptions = 0;
    for round in 0..60 {
        let limits = random_limits(round, 40);
        let plain = Config { policy: "vtc:take_seats=0".into(), ..limits.clone() };
        let taking = random(limits, round, 1, |_, _| {});
        assert_eq!(taking, random(plain, round, 1, |_, _| {}), "round {round}");
        preemptions += taking.1;
    }
    assert!(preemptions > 100, "{preemptions} preemptions for want of blocks");
}

/// A request leaves the batch for another tenant's alone, whose tenant has no more seats then than that of the one that left.
#[test]
fn seats_move_to_tenants_with_fewer_alone_and_everybody_ends() {
    let mut preemptions = 0;
    for round in 0..60 {
        let (mut before, mut seen) = (Vec::new(), 0);
        let limits = Config { preemption: Preemption::Recompute, ..random_limits(round, 4000) };
        let (_, all) = random(limits, round, 3, |driver, tenant_of| {
            let runs = |id: &u64| driver.live.contains(&RequestId(*id)) && !driver.core.is_waiting(RequestId(*id));
            let running: Vec<u64> = tenant_of.keys().copied().filter(runs).collect();
            let seats = |tenant: u64| running.iter().filter(|id| tenant_of[id] == tenant).count();
            let gone = before.iter().filter(|id| driver.core.is_waiting(RequestId(**id)));
            let come: Vec<u64> = running.iter().copied().filter(|id| !before.contains(id)).collect();
            for went in gone {
                let fewest = come.iter().map(|id| seats(tenant_of[id])).min().expect("a seat is taken for a request");
                assert!(fewest <= seats(tenant_of[went]), "round {round}: {went} went, {come:?} came");
                assert!(come.iter().any(|id| tenant_of[id] != tenant_of[went]));
                seen += 1;
            }
            before = running;
        });
        assert_eq!(seen, all, "all preemptions were seen");
        preemptions += all;
    }
    assert!(preemptions > 100, "{preemptions} seats were taken");
}
