//! Limits: tokens in the queue, watermarks, the length of a step.

use std::ops::Range;

use trunkline_core::config::StepTarget;
use trunkline_core::{Config, ConfigError, Core, Refusal};
use trunkline_driver::{Direction, Driver};

use crate::prompts::{config, submit_filler, text};

#[test]
fn tokens_in_the_queue_are_limited_but_one_request_always_gets_in() {
    let mut rig = Driver::without_worker(Config { max_queued_tokens: 100, ..config() });
    rig.submit(1, text(1, 150), 1);
    rig.submit(2, text(2, 1), 1);
    assert_eq!(rig.refusals, [(2, Refusal::QueueTokensFull { queued_tokens: 150, limit: 100 })]);
    rig.abort(1);
    rig.submit(3, text(3, 60), 1);
    rig.submit(4, text(4, 40), 1);
    rig.submit(5, text(5, 1), 1);
    assert_eq!(rig.refusals[1..], [(5, Refusal::QueueTokensFull { queued_tokens: 100, limit: 100 })]);
    rig.join();
    rig.submit(6, text(6, 1), 1);
    assert_eq!(rig.refusals.len(), 2, "those that run are not in the queue");
}

#[test]
fn a_request_comes_back_only_if_blocks_are_left_for_those_that_run() {
    // A filler, and twelve small requests that each give one block back. The victim needs 6 blocks, 5 are usable.
    for (watermark, aborts) in [(0.0, 1), (0.5, 5), (1.0, 7), (2.0, 9)] {
        let mut rig = Driver::without_worker(Config { swap_in_watermark: watermark, ..config() });
        submit_filler(&mut rig, 1, 82, 2);
        (10..22).for_each(|id| rig.submit(id, text(id as u32, 2), 14));
        rig.submit(2, text(2, 82), 40);
        rig.join();
        rig.answer_until(|rig| !rig.copies.is_empty());
        rig.finish_copy(0);
        rig.flush();
        rig.answer();
        assert_eq!((rig.usable(), rig.stats().running), (5, 13));
        for n in 0..aborts {
            assert!(rig.copies.is_empty(), "watermark {watermark}: back after {n}");
            rig.abort_now(10 + n);
        }
        assert_eq!(rig.moves(), [(Direction::In, 6)], "watermark {watermark}");
    }
}

#[test]
fn steps_with_decodes_stay_near_the_target() {
    const TOKEN_NS: u64 = 5_000;
    const TARGET_NS: u64 = 1_000_000;
    let limits = Config { device_blocks: 1000, max_batch_tokens: 1024, max_context: 16_384, ..config() };
    for (target_step_ns, is_kept) in [(StepTarget::Ns(TARGET_NS), true), (StepTarget::Off, false)] {
        let mut rig = Driver::new(Config { target_step_ns, ..limits.clone() });
        rig.submit(2, text(2, 1100), 1);
        assert_eq!(rig.running(), [(2, 0, 1024, false)], "nothing decodes: nobody waits for the step");
        rig.run_to_end();
        rig.submit(1, text(1, 5), 500);
        rig.answer();
        rig.submit(3, text(3, 8000), 1);
        rig.answer();
        let mut took = Vec::new();
        while rig.said(3).is_empty() {
            let took_ns = u64::from(rig.step().unwrap().n_tokens()) * TOKEN_NS;
            took.push(took_ns);
            rig.now_ns += took_ns - 1;
            rig.answer();
        }
        let late = took[4..].iter().filter(|ns| **ns > TARGET_NS * 11 / 10).count();
        assert_eq!(late == 0, is_kept, "{took:?}");
        let short = took[4..took.len() - 1].iter().filter(|ns| **ns < TARGET_NS / 2).count();
        assert!(short == 0 || !is_kept, "{took:?}");
    }
}

/// Runs a prompt of 4,000 tokens alongside a stream, on a worker that takes a fixed time and a time for each prompt token. Returns the longest time between
/// two tokens of the stream, and their number until the prompt is done; the stream has had some tokens before.
fn stream_beside_a_long_prompt(target_step_ns: StepTarget, fixed_ns: u64, token_ns: u64) -> (u64, usize) {
    let limits = Config { device_blocks: 1000, max_batch_tokens: 2048, max_context: 16_384, ..config() };
    let mut rig = Driver::new(Config { target_step_ns, ..limits });
    let answer = |rig: &mut Driver| {
        let prompt_tokens = u64::from(rig.step().unwrap().n_tokens()) - 1;
        rig.now_ns += fixed_ns + prompt_tokens * token_ns;
        rig.answer();
        fixed_ns + prompt_tokens * token_ns
    };
    rig.submit(1, text(1, 5), 5_000);
    rig.join();
    (0..5).for_each(|_| _ = answer(&mut rig));
    rig.submit(3, text(3, 4_000), 1);
    let (before, mut longest_ns) = (rig.said(1).len(), 0);
    while rig.said(3).is_empty() {
        longest_ns = longest_ns.max(answer(&mut rig));
    }
    (longest_ns, rig.said(1).len() - before)
}

#[test]
fn a_long_prompt_slows_a_stream_to_a_third_and_goes_on_whatever_it_costs() {
    const MS: u64 = 1_000_000;
    let with_prompt = |target, fixed_ns, token_ns| stream_beside_a_long_prompt(target, fixed_ns, token_ns);
    // 50 us for a prompt token: the whole budget of a step stops the stream for 127 ms; the limit is 75 ms.
    let uncut = with_prompt(StepTarget::Off, 25 * MS, 50_000);
    let cut = with_prompt(StepTarget::SERVED, 25 * MS, 50_000);
    // Tokens that nobody notices are not held up: chunks of 16, 32, ... 2,048.
    let cheap = with_prompt(StepTarget::SERVED, 25 * MS, 1_000);
    // A token that takes as long as ten steps runs alone, like one more decode, and one step in 33 has none.
    let dear = with_prompt(StepTarget::SERVED, MS, 10 * MS);
    assert_eq!([uncut, cut, cheap, dear], [(126_600_000, 3), (55_400_000, 14), (26_968_000, 9), (161_000_000, 4_110)]);
}

/// Submits a prompt of 50 tokens while one of 4,000 runs, on a worker that takes 2 ms for a step and 1 ms more for each prompt token, alongside this many
/// streams. Returns the time to its first token in milliseconds, and the number of steps until the long prompt is done.
fn newcomer_behind_a_long_prompt(target_step_ns: StepTarget, streams: u64) -> (u64, u64) {
    const MS: u64 = 1_000_000;
    let limits = Config { device_blocks: 1000, max_batch_tokens: 2048, max_context: 16_384, ..config() };
    let mut rig = Driver::new(Config { target_step_ns, ..limits });
    let answer = |rig: &mut Driver| {
        let step = rig.step().unwrap();
        rig.now_ns +=
            2 * MS + u64::from(step.n_tokens() - step.seqs.iter().filter(|seq| seq.n_tokens == 1).count() as u32) * MS;
        rig.answer();
    };
    rig.join();
    rig.submit(1, text(1, 5), 5);
    while !rig.has_ended(1) {
        answer(&mut rig);
    }
    for id in 2..2 + streams {
        rig.submit(id, text(id as u32, 5), 9_000);
    }
    (0..2 * streams).for_each(|_| answer(&mut rig));
    rig.submit(100, text(100, 4_000), 1);
    let first = rig.step().unwrap().id;
    answer(&mut rig);
    let came_ns = rig.now_ns;
    rig.submit(101, text(101, 50), 1);
    while rig.said(101).is_empty() {
        answer(&mut rig);
    }
    let waited_ns = rig.now_ns - came_ns;
    while rig.said(100).is_empty() {
        answer(&mut rig);
    }
    (waited_ns / MS, rig.stats().steps - first)
}

#[test]
fn a_short_prompt_does_not_wait_for_the_end_of_a_long_one() {
    let behind = newcomer_behind_a_long_prompt;
    let found = [(StepTarget::Off, 0), (StepTarget::Off, 3), (StepTarget::SERVED, 0), (StepTarget::SERVED, 3)];
    let found = found.map(|(target, streams)| behind(target, streams));
    // With the limit the short one takes two steps of three, and each of its tokens costs a millisecond.
    assert_eq!(found, [(2_006, 2), (4_054, 3), (95, 500), (120, 1_045)]);
}

/// Submits a prompt of 4,000 tokens to a core that has measured nothing, and four of 64 while it runs. Returns the steps until these have their first
/// tokens, and until the long one has.
fn steps_of_a_new_core(policy: &str) -> (usize, usize) {
    let limits =
        Config { device_blocks: 1000, max_batch_tokens: 256, max_context: 16_384, policy: policy.into(), ..config() };
    let mut rig = Driver::new(Config { target_step_ns: StepTarget::SERVED, ..limits });
    rig.join();
    rig.submit(100, text(100, 4_000), 1);
    rig.answer();
    (1..5).for_each(|id| rig.submit(id, text(id as u32, 64), 1));
    let mut steps_until = |ids: Range<u64>| {
        let before = rig.stats().steps;
        rig.answer_until(|rig| ids.clone().all(|id| rig.has_ended(id)));
        (rig.stats().steps - before) as usize
    };
    let short = steps_until(1..5);
    (short, short + steps_until(100..101))
}

#[test]
fn prompts_take_turns_from_the_first_one_on() {
    for policy in ["fcfs", "vtc", "sjf", "edf", "priority", "lpm"] {
        assert_eq!(steps_of_a_new_core(policy), (2, 15), "{policy}");
    }
}

#[test]
fn limits_that_cannot_be_are_refused() {
    let error = |config: Config| Core::new(config).err().expect("no core can work under these limits");
    let watermark = error(Config { launch_watermark: -1.0, ..config() });
    assert!(matches!(watermark, ConfigError::OutOfRange { name: "launch_watermark", .. }));
    let watermark = error(Config { swap_in_watermark: f64::NAN, ..config() });
    assert!(matches!(watermark, ConfigError::OutOfRange { name: "swap_in_watermark", .. }));
    let logits = error(Config { max_step_logits: 15, ..config() });
    assert_eq!(logits, ConfigError::StepLogitsBelowSize { logits: 15, size: 16 });
}
