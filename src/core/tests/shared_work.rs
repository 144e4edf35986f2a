//! Requests that wait for blocks which another request computes or loads: parked, woken, and passed by others.

use trunkline_core::{Config, Event, Namespace, Place, Request, RequestId, TierConfig, Token, Write};
use trunkline_driver::Driver;

/// Limits with a tier that takes all blocks, and a device of `blocks` blocks of 4 tokens.
fn config(blocks: u32) -> Config {
    let tier =
        TierConfig { name: "tier".into(), blocks: 100, write: Write::Through, eviction: "lru".into(), shared: false };
    Config {
        block_size: 4,
        device_blocks: blocks,
        max_batch_size: 256,
        max_queue: 2000,
        launch_watermark: 0.0,
        // Loading pays, whatever it takes.
        recompute_token_ns: 1 << 40,
        tiers: vec![tier],
        ..Config::default()
    }
}

/// Returns `shared` tokens that all prompts begin with, then `own` tokens of one request.
fn prompt(shared: u32, id: u64, own: u32) -> Vec<Token> {
    (0..shared).chain((0..own).map(|at| 10_000 + id as u32 * 100 + at)).collect()
}

/// Leaves the first 40 tokens of [`prompt`] in the tier alone.
fn load_the_tier(rig: &mut Driver) {
    rig.submit(5000, prompt(40, 5000, 1), 1);
    rig.run_to_end();
    rig.submit(5001, (70_000..70_239).collect(), 1);
    rig.run_to_end();
}

#[test]
fn a_burst_of_equal_prefixes_does_not_block_those_behind() {
    for n in [1, 16, 17, 40, 1000] {
        let mut rig = Driver::new(config(60));
        load_the_tier(&mut rig);
        for id in 0..n {
            rig.submit(id, prompt(40, id, 2), 4);
        }
        rig.submit(9999, vec![7; 9], 4);
        assert_eq!(
            rig.copies.iter().map(|copy| (copy.from, copy.to)).collect::<Vec<_>>(),
            [(Place::Tier(0), Place::Device)]
        );
        assert_eq!((rig.stats().loading, rig.ids()), (1, vec![9999]), "{n} requests of one prefix");
        assert_eq!(rig.stats().waiting as u64, n - 1);
        rig.run_to_end();
        assert_eq!(rig.stats().tokens.cached_tokens, 40 * n, "every request reads the loaded prefix");
    }
}

#[test]
fn requests_wait_until_all_blocks_that_they_share_are_there() {
    let mut rig = Driver::new(Config { max_batch_tokens: 8, max_batch_size: 4, tiers: Vec::new(), ..config(100) });
    rig.submit(0, prompt(32, 0, 5), 2);
    // One shares 12 tokens, the other 32.
    let mut short = prompt(12, 1, 0);
    short.extend([900; 5]);
    rig.submit(1, short, 1);
    rig.submit(2, prompt(32, 2, 3), 1);
    let mut steps = Vec::new();
    while !rig.live.is_empty() {
        steps.push(rig.ids());
        rig.answer();
    }
    // Request 0 computes two blocks a step: blocks 1 to 3 are there after two steps, and all 8 after four.
    assert_eq!(steps[..2], [vec![0], vec![0]]);
    assert_eq!(rig.usages[&1].cached_tokens, 12);
    assert_eq!(rig.usages[&2].cached_tokens, 32);
    let first = |id| steps.iter().position(|step| step.contains(&id)).unwrap();
    assert!(first(1) >= 2 && first(2) >= 4, "{steps:?}");
    assert_eq!(rig.stats().merged_blocks, 0, "nothing is computed twice");
}

/// Way for a request to stop computing its prompt, by name.
type End = (&'static str, fn(&mut Driver));

#[test]
fn when_the_owner_goes_the_first_of_those_that_wait_takes_over() {
    let ends: [End; 3] = [
        ("abort", |rig| rig.abort(0)),
        ("worker lost", |rig| {
            rig.lose_worker();
            rig.abort(0);
            rig.join();
        }),
        ("failed", |rig| rig.event(Event::Fail(RequestId(0)))),
    ];
    for (name, end) in ends {
        let mut rig = Driver::new(Config { max_batch_tokens: 8, max_batch_size: 4, tiers: Vec::new(), ..config(100) });
        rig.submit(0, prompt(32, 0, 5), 2);
        (1..=3).for_each(|id| rig.submit(id, prompt(32, id, 2), 1));
        rig.answer();
        end(&mut rig);
        rig.answer_until(|rig| rig.ids() == [1]);
        assert_eq!(rig.stats().waiting, 2, "{name}: the others wait for the next owner");
        rig.run_to_end();
        assert_eq!(rig.ends.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 1, 2, 3], "{name}");
        assert!(rig.usages[&2].cached_tokens >= 32 && rig.usages[&3].cached_tokens >= 32, "{name}");
    }
}

#[test]
fn woken_requests_are_admitted_in_the_order_of_the_policy() {
    for (policy, order) in [("fcfs", [1, 2, 3]), ("priority:ageing_ms=0", [3, 1, 2])] {
        let config =
            Config { max_batch_tokens: 12, max_batch_size: 2, policy: policy.into(), tiers: Vec::new(), ..config(100) };
        let mut rig = Driver::new(config);
        rig.submit(0, prompt(32, 0, 5), 1);
        for (id, priority) in [(1, 5), (2, 7), (3, -2)] {
            let mut request = Request::new(RequestId(id), Namespace::default().root(), prompt(32, id, 2), 1);
            request.priority = priority;
            rig.submit_request(request);
        }
        rig.run_to_end();
        let ends: Vec<u64> = rig.ends.iter().map(|(id, _)| *id).filter(|id| *id > 0).collect();
        assert_eq!(ends, order, "{policy}");
    }
}
