//! Seeded runs of the core with the content oracle.
//!
//! `TRUNKLINE_SEEDS=10000 cargo test -p trunkline-core --test oracle every_request` runs more of them, and `TRUNKLINE_REQUESTS=5000`
//! makes each longer. `TRUNKLINE_SEEDS=1000000 cargo test -p trunkline-core --test oracle small` runs many small ones. A failure prints the
//! command that runs it again.

use trunkline_driver::pressure::{Outcome, run, run_small, run_valued};
use trunkline_driver::seeds::{self, REQUESTS, Sample, seeds};

const SEEDS_DEFAULT: usize = 400;
const SMALL_DEFAULT: usize = 5_000;

fn run_one(seed: u64, requests: u64) -> Outcome {
    seeds::run_one("-p trunkline-core --test oracle every_request", seed, requests, run)
}

/// Runs the seeds and adds up what they came to.
fn run_all(sample: &Sample) -> Outcome {
    let sum = seeds::run_all("-p trunkline-core --test oracle every_request", sample, run, Outcome::plus);
    eprintln!("{} seeds of {} requests: {sum:?}", sample.seeds.len(), sample.requests);
    sum
}

#[test]
fn every_request_gets_the_text_it_would_have_alone() {
    let sample = Sample::from_env(1, SEEDS_DEFAULT);
    let sum = run_all(&sample);
    if sample.is_whole(SEEDS_DEFAULT) {
        assert_pressure(&sum, sample.seeds.len() as u64);
    }
}

/// The runs must have been under pressure, or they prove nothing.
fn assert_pressure(sum: &Outcome, seeds: u64) {
    assert!(sum.completed > 5 * seeds && sum.cut_short > seeds && sum.refused > 0 && sum.timed_out > seeds / 2);
    assert!(sum.preemptions > seeds && sum.evicted_blocks > seeds);
    assert!(sum.preempted_in_steps > seeds / 12, "{} preemptions in steps", sum.preempted_in_steps);
    assert!(sum.cached_tokens > 10 * seeds && sum.merged_blocks > seeds / 2);
    assert!(sum.workers_lost > seeds / 10 && sum.nonsense > seeds / 10);
    assert!(sum.workers_resumed > seeds / 20, "{} connections broke", sum.workers_resumed);
    assert!(sum.poisoned > seeds, "one poison fails several steps");
    assert!(sum.failed_alone > 2 * seeds, "{} sequences failed alongside others", sum.failed_alone);
    assert!(sum.started_over > seeds / 40, "{} requests read what another failed to compute", sum.started_over);
    assert!(sum.swaps_out > seeds / 3, "{} swaps out", sum.swaps_out);
    assert!(sum.blocks_out >= sum.swaps_out, "{} blocks of {} swaps", sum.blocks_out, sum.swaps_out);
    assert!(sum.swaps_in > seeds / 5 && sum.blocks_in >= sum.swaps_in);
    assert!(sum.groups_in >= seeds / 200, "{} swap-ins with layer groups", sum.groups_in);
    assert!(sum.groups_loaded > seeds / 20, "{} loads with layer groups", sum.groups_loaded);
    assert!(sum.loads > seeds / 2 && sum.blocks_loaded > sum.loads && sum.stores > seeds && sum.blocks_stored > seeds);
    assert!(sum.dropped_blocks > seeds, "{} blocks dropped", sum.dropped_blocks);
    assert!(sum.evicted_retained > seeds / 10, "{} blocks evicted above the default priority", sum.evicted_retained);
    assert!(sum.ignored_retained > seeds / 10, "{} blocks beyond the bounds of hints", sum.ignored_retained);
    assert!(sum.prefetched_tokens > seeds / 8, "{} tokens prefetched", sum.prefetched_tokens);
    assert!(sum.head_blocks > seeds / 200, "{} blocks computed while others were loaded", sum.head_blocks);
    assert!(sum.pinned_tokens > seeds / 4, "{} tokens pinned", sum.pinned_tokens);
    assert!(sum.looked_up > seeds / 4, "{} blocks of others", sum.looked_up);
    assert!(sum.failed_transfers > seeds / 20 && sum.lost_transfers > 0);
    assert!(sum.drafts_accepted > seeds && sum.drafts_allowed > sum.drafts_accepted);
    assert!(sum.refused_by_tokens > seeds / 10 && sum.withdrawn > seeds / 2);
    assert!(sum.steps_ahead > 10 * seeds && sum.reused_ids > seeds);
}

#[test]
fn small_runs_give_each_request_the_text_it_would_have_alone() {
    let sample = Sample::from_env(7, SMALL_DEFAULT);
    let run = |seed, _| run_small(seed);
    let sum = seeds::run_all("-p trunkline-core --test oracle small", &sample, run, Outcome::plus);
    eprintln!("{} small seeds: {sum:?}", sample.seeds.len());
}

/// Small runs that failed once: a tier copied a block that a step in flight still computed for a request preempted at once; the worker idled alongside
/// copies, because a preempted decode still counted among those that wait (twice); blocks of a failed step stayed, given up at once, found by
/// the hash of another prefix, or after a block merged with one of the failed request (three); sound blocks of another request were struck out
/// with those that a preempted one had given up; a token sampled from a block that its owner had given up and then failed to compute was sent,
/// and so was one behind a copy of such a block. The others were faults of the oracle.
#[test]
fn small_runs_that_failed_once_hold() {
    for seed in [
        246_315_993_817_843,
        136_730_282_503_786,
        162_279_144_835_010,
        165_145_061_109_938,
        38_162_651_352_650,
        274_831_691_710_652,
        104_274_754_525_836,
        122_915_109_046_211,
        226_802_770_864_258,
        74_134_958_241_725,
        261_456_582_297_030,
        103_485_645_768_690,
        85_123_243_010_394,
        259_895_755_265_494,
        7_512_106_158_673,
        247_963_475_929_591,
        145_520_489_446_216,
        227_826_854_169_695,
        243_822_212_860_572,
        87_252_208_955_844,
        94_165_717_101_124,
    ] {
        seeds::run_one("-p trunkline-core --test oracle small", seed, REQUESTS, |seed, _| run_small(seed));
    }
}

/// A block of the prompt was merged into that of another request, whose step was still in flight, and copied to a tier that takes prompts.
#[test]
fn a_prompt_goes_to_a_tier_without_blocks_that_a_step_in_flight_computes() {
    assert!(run_one(110_451_219_260_591, REQUESTS).blocks_stored > 0);
}

#[test]
fn thousands_of_requests_share_prefixes() {
    let sum = run_all(&Sample { seeds: seeds(3, 5), requests: 2000 });
    assert!(sum.completed > 1000 && sum.cached_tokens > 10_000);
}

#[test]
fn the_same_seed_decides_the_same() {
    for seed in seeds(2, 10) {
        assert_eq!(run_one(seed, REQUESTS), run_one(seed, REQUESTS));
    }
}

#[test]
fn each_token_of_a_prompt_is_valued_once_whatever_happens_to_the_request() {
    let sample = Sample::from_env(11, SMALL_DEFAULT / 2);
    let run = |seed, _| run_valued(seed);
    let sum = seeds::run_all("-p trunkline-core --test oracle valued", &sample, run, Outcome::plus);
    eprintln!("{} small seeds with values: {sum:?}", sample.seeds.len());
    if sample.is_whole(SMALL_DEFAULT / 2) {
        let seeds = sample.seeds.len() as u64;
        assert!(sum.completed > seeds && sum.preemptions > seeds / 4 && sum.workers_lost > seeds / 50);
        assert!(sum.merged_blocks > seeds / 4, "what is computed again is cached once");
    }
}
