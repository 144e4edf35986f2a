//! Scenarios 54 to 65: admission and refusal.

use trunkline_core::{Config, Refusal};
use trunkline_driver::Driver;

use crate::prompts::{BLOCK, config, fork, submit_filler, text};
use crate::scenes::victim;

/// A rig in which `n` requests of one block each decode.
fn decoding(config: Config, n: u64) -> Driver {
    let mut rig = Driver::without_worker(config);
    (1..=n).for_each(|id| rig.submit(id, text(id as u32, 5), 9));
    rig.join();
    rig.answer();
    assert_eq!(rig.stats().running as u64, n);
    rig
}

#[test]
fn scenario_054_a_full_batch_admits_nothing() {
    let mut rig = decoding(Config { max_batch_size: 8, ..config() }, 8);
    rig.submit(9, text(9, 5), 1);
    rig.answer();
    assert_eq!((rig.ids(), rig.stats().waiting), ((1..=8).collect(), 1));
    rig.run_to_end();
    rig.assert_empty();
}

/// KsanaLLM: a prefill is charged its whole length; here: what it runs, because cached tokens cost the step nothing.
#[test]
fn scenario_055_cached_tokens_are_not_charged() {
    let mut rig = Driver::new(Config { device_blocks: 1000, max_context: 8192, ..config() });
    rig.submit(20, text(20, 4000), 1);
    rig.run_to_end();
    (1..=10).for_each(|id| rig.submit(id, text(id as u32, 5), 9));
    rig.answer_until(|rig| rig.stats().running == 10 && rig.seqs().all(|seq| seq.computed >= 5));
    rig.submit(21, fork(20, 4000, 21, 90), 1);
    rig.answer();
    assert_eq!(rig.running()[10], (21, 4000, 90, true));
    assert_eq!(rig.ids().len(), 11);
}

/// KsanaLLM: the second waits for a step that takes all of it; here: it runs what the step has left, because chunks are always
/// on.
#[test]
fn scenario_056_requests_behind_one_that_does_not_fit_wait() {
    let mut rig = Driver::without_worker(Config { device_blocks: 400, max_context: 4096, ..config() });
    for (id, tokens) in [(1, 3000), (2, 1200), (3, 500)] {
        rig.submit(id, text(id as u32, tokens), 3);
    }
    rig.join();
    assert_eq!(rig.running(), [(1, 0, 3000, true), (2, 0, 1088, false)], "1096 are left: 68 blocks");
    rig.answer();
    assert_eq!(rig.running(), [(1, 3000, 1, true), (2, 1088, 112, true), (3, 0, 500, true)]);
}

#[test]
fn scenario_057_admission_leaves_blocks_for_those_that_run() {
    for (tokens, admitted) in [(64, true), (65, false)] {
        let mut rig = decoding(Config { device_blocks: 28, launch_watermark: 2.0, ..config() }, 8);
        assert_eq!(rig.usable(), 20);
        rig.submit(9, text(9, tokens), 1);
        rig.answer();
        assert_eq!(rig.ids().contains(&9), admitted, "8 x 2 stay usable");
    }
}

/// KsanaLLM: a request whose sampled positions do not fit waits; here: a request samples once and drafts get what is left,
/// because a draft is never worth a wait.
#[test]
fn scenario_058_positions_sampled_in_a_step_are_limited() {
    let limits = Config { max_batch_size: 8, max_step_logits: 9, max_drafts: 1, ..config() };
    let rig = decoding(limits, 7);
    assert_eq!(rig.seqs().map(|seq| seq.n_drafts).collect::<Vec<_>>(), [1, 0, 0, 0, 0, 0, 0]);
}

/// KsanaLLM: a group is accepted or refused whole; here: requests come one by one, because groups are the server's.
#[test]
fn scenario_059_a_full_queue_refuses() {
    let mut rig = Driver::without_worker(config());
    (0..255).for_each(|id| rig.submit(id, text(1, 3), 1));
    rig.submit(255, text(1, 3), 1);
    assert!(rig.refusals.is_empty());
    rig.submit(256, text(1, 3), 1);
    assert_eq!(rig.refusals, [(256, Refusal::QueueFull { limit: 256 })]);
}

/// KsanaLLM: counts the prompt; here: the prompt and what is asked for, because both must fit the model.
#[test]
fn scenario_060_requests_beyond_the_context_are_refused() {
    let mut rig = Driver::new(Config { device_blocks: 200, ..config() });
    rig.submit(1, text(1, 2049), 1);
    rig.submit(2, text(1, 2048), 1);
    rig.submit(3, text(1, 2047), 1);
    let refusal = |prompt_tokens| Refusal::ContextTooLong { prompt_tokens, max_tokens: 1, context: 2048 };
    assert_eq!(rig.refusals, [(1, refusal(2049)), (2, refusal(2048))]);
    assert_eq!(rig.ids(), [3]);
}

#[test]
fn scenario_061_requests_beyond_the_batch_wait() {
    let mut rig = Driver::without_worker(Config { max_batch_size: 8, ..config() });
    (1..=20).for_each(|id| rig.submit(id, text(id as u32, 5), 2));
    rig.join();
    assert_eq!((rig.stats().running, rig.stats().waiting), (8, 12));
    assert_eq!(rig.ids(), (1..=8).collect::<Vec<_>>());
    rig.run_to_end();
    rig.assert_all_said(1..=20);
}

/// KsanaLLM: admits others while the copy to the host runs; here: not even then, because they would take the very blocks it
/// releases.
#[test]
fn scenario_063_nothing_is_admitted_while_a_request_is_swapped() {
    for copied in [false, true] {
        let mut rig = Driver::without_worker(config());
        submit_filler(&mut rig, 1, 91, 2);
        rig.submit(3, text(3, 40), 60);
        rig.submit_request(victim());
        rig.join();
        rig.answer_until(|rig| !rig.copies.is_empty());
        rig.submit(9, text(9, 5), 1);
        if copied {
            rig.finish_copy(0);
            rig.answer();
        } else {
            rig.abort_now(3);
        }
        assert!(rig.usable() >= 2, "one would do for 9");
        assert_eq!(rig.ids(), if copied { vec![1, 3] } else { vec![1] });
        assert_eq!((rig.stats().swapped, rig.stats().waiting), (1, 1));
        rig.run_to_end();
        assert!(rig.has_ended(9));
        rig.assert_empty();
    }
}

/// KsanaLLM: a decode with drafts is charged its whole length; here: its token and its drafts, because that is what runs.
#[test]
fn scenario_064_a_decode_is_charged_what_it_runs() {
    let limits = Config { max_drafts: 2, max_batch_tokens: 32, max_batch_size: 10, device_blocks: 200, ..config() };
    for (n, drafts) in [(5, 2), (10, 0)] {
        let mut rig = Driver::without_worker(limits.clone());
        (1..=n).for_each(|id| rig.submit(id, text(1, 1000), 60));
        rig.join();
        rig.answer_until(|rig| rig.seqs().count() as u64 == n && rig.seqs().all(|seq| seq.computed >= 1000));
        assert!(rig.seqs().all(|seq| (seq.n_tokens, seq.n_drafts) == (1, drafts)));
    }
}

/// KsanaLLM: accepts it, and it blocks the queue; here: refused on submission, because it could not run alone.
#[test]
fn scenario_065_requests_that_can_never_run_are_refused_at_once() {
    let mut rig = Driver::without_worker(config());
    rig.submit(1, text(1, 1700), 5);
    let never = Refusal::NeverFits { prompt_tokens: 1700, max_tokens: 5, needed: 107, capacity: 100 };
    assert_eq!(rig.refusals, [(1, never)]);
    rig.submit(2, text(1, 100 * BLOCK - 4), 5);
    assert_eq!(rig.refusals.len(), 1, "100 blocks do for 1600 tokens with KV");
}
