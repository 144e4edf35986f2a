//! Scenarios 88 and 94: the first step behind a hand-over, and decodes over the stages of a pipeline.

use trunkline_core::Config;
use trunkline_driver::Driver;

use crate::prompts::{config, request, text};

/// KsanaLLM: plans 1 generated token and 1 draft at once, and no prefill; here: with the prompt's blocks cached, the first step runs the
/// token handed over, and the next one has the draft, because drafts follow a token sampled here.
#[test]
fn scenario_088_a_request_handed_over_runs_its_token_and_then_drafts() {
    let mut rig = Driver::new(Config { max_drafts: 1, ..config() });
    // Another request brings the prompt's five blocks, and the token that a prefill engine would say after it.
    rig.submit(1, text(1, 80), 1);
    rig.run_to_end();
    let mut handed_over = request(2, text(1, 80), 5);
    handed_over.generated = vec![rig.says(2, 0)];
    rig.submit_request(handed_over);
    assert_eq!(rig.running(), [(2, 80, 1, true)], "no token of the prompt runs again");
    assert_eq!(rig.seqs().map(|seq| seq.n_drafts).collect::<Vec<_>>(), [0]);
    rig.answer();
    let drafts: Vec<_> = rig.seqs().map(|seq| (seq.computed, seq.n_drafts)).collect();
    assert_eq!(drafts, [(81, 1)]);
    rig.run_to_end();
    rig.assert_empty();
}

/// KsanaLLM: moves waiting and decoding requests from the batch of one step to the batch of another; here: no request belongs to a
/// batch, because each step takes an equal share of the decodes that are not under way.
#[test]
fn scenario_094_the_steps_of_a_pipeline_share_all_decodes_evenly() {
    let limits = Config { max_steps_in_flight: 2, pipeline_stages: 2, max_batch_size: 10, max_drafts: 0, ..config() };
    let mut rig = Driver::new(limits);
    rig.submit(1, text(1, 20), 60);
    rig.answer();
    (2..=10).for_each(|id| rig.submit(id, text(id as u32, 20), 60));
    // Two wait, and one more arrives: the batch is full.
    (11..=13).for_each(|id| rig.submit(id, text(id as u32, 20), 60));
    (0..8).for_each(|_| rig.answer());
    let shares: Vec<Vec<u64>> =
        rig.steps.iter().map(|step| step.seqs.iter().map(|seq| seq.request.0).collect()).collect();
    assert_eq!(shares.iter().map(Vec::len).collect::<Vec<_>>(), [5, 5], "{shares:?}");
    let tokens = |at: usize| rig.steps[at].seqs.iter().map(|seq| seq.n_tokens).sum::<u32>();
    assert_eq!((tokens(0), tokens(1)), (5, 5));
    let mut all = shares.concat();
    all.sort_unstable();
    assert!(all.iter().copied().eq(1..=10), "each decode is in one of them: {all:?}");
    assert_eq!(rig.stats().waiting, 3);
    rig.run_to_end();
    rig.assert_empty();
}
