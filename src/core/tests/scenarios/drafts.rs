//! Speculative decoding: drafts only use steps, blocks and tokens that nothing else needs.

use trunkline_core::{Config, Event, FinishReason};
use trunkline_driver::Driver;

use crate::prompts::{BLOCK, config, request, text};

fn drafting() -> Config {
    Config { max_drafts: 15, ..config() }
}

/// Returns the number of drafts that each sequence of the step may make.
fn n_drafts(rig: &Driver) -> Vec<u32> {
    rig.seqs().map(|seq| seq.n_drafts).collect()
}

#[test]
fn max_drafts_limits_what_the_load_allows() {
    let mut rig = Driver::new(Config { max_drafts: 3, ..config() });
    rig.submit(1, text(1, 5), 60);
    rig.answer();
    assert_eq!(n_drafts(&rig), [3]);
    let mut rig = Driver::new(config());
    rig.submit(1, text(1, 5), 60);
    rig.answer();
    assert_eq!(n_drafts(&rig), [0], "off unless asked for");
}

#[test]
fn the_text_is_the_same_however_many_drafts_are_right() {
    for right in 0..6 {
        let mut rig = Driver::without_worker(drafting());
        (1..=3).for_each(|id| rig.submit(id, text(id as u32, 30 + id as u32), 50));
        rig.join();
        while !rig.steps.is_empty() {
            rig.answer_drafting(right);
        }
        rig.assert_all_said(1..=3);
        rig.assert_empty();
        let stats = rig.stats();
        assert_eq!(stats.drafts.accepted_draft_tokens > 0, right > 0);
        assert!(stats.drafts.accepted_draft_tokens <= stats.drafts.draft_tokens);
        assert!(right == 0 || stats.steps < 50, "that is what they are for");
    }
}

#[test]
fn drafts_never_go_beyond_max_tokens() {
    for max_tokens in 1..20 {
        let mut rig = Driver::new(drafting());
        rig.submit(1, text(1, 20), max_tokens);
        rig.answer();
        while !rig.steps.is_empty() {
            assert!(rig.seqs().all(|seq| seq.n_generated + 1 + seq.n_drafts <= max_tokens));
            rig.answer_drafting(1);
        }
        rig.assert_all_said([1]);
        assert_eq!(rig.said(1).len() as u32, max_tokens);
    }
}

#[test]
fn what_is_drafted_after_the_end_is_dropped() {
    let mut rig = Driver::new(drafting());
    let mut stopped = request(1, text(1, 20), 60);
    stopped.stop_token_ids = vec![rig.says(1, 3)];
    rig.submit_request(stopped);
    rig.answer();
    rig.answer_drafting(9);
    assert_eq!(rig.ends, [(1, FinishReason::Stop)]);
    assert_eq!((rig.said(1).len(), rig.usages[&1].completion_tokens), (4, 4));
    assert_eq!(rig.stats().idle_blocks, 1, "20 + 3 tokens have KV that is told of");
    rig.assert_empty();
}

#[test]
fn a_prefill_gets_its_block_whatever_is_drafted() {
    for budget in [24, 36, 40, 64] {
        let mut rig = Driver::new(Config { max_batch_tokens: budget, max_batch_size: 4, ..drafting() });
        rig.submit(1, text(1, 5), 200);
        rig.answer();
        rig.submit(2, text(2, 300), 2);
        rig.answer();
        while rig.said(2).is_empty() {
            let (_, computed, n_tokens, _) = *rig.running().last().expect("both run");
            assert_eq!(rig.ids(), [1, 2], "budget {budget}");
            assert!(n_tokens >= BLOCK.min(300 - computed), "budget {budget}: a chunk of {n_tokens}");
            rig.answer();
        }
    }
}

#[test]
fn a_waiting_request_is_admitted_whatever_is_drafted() {
    let mut rig = Driver::new(Config { max_batch_tokens: 24, max_batch_size: 4, ..drafting() });
    rig.submit(1, text(1, 5), 200);
    rig.answer();
    assert_eq!(n_drafts(&rig), [15]);
    rig.submit(2, text(2, 16), 2);
    rig.answer();
    assert_eq!(rig.ids(), [1, 2]);
    assert!(n_drafts(&rig)[0] < 24 - 16);
}

#[test]
fn drafts_take_no_block_that_another_may_need() {
    // Two decodes and two usable blocks, one for each of them.
    let mut rig = Driver::without_worker(Config { device_blocks: 4, ..drafting() });
    (1..=2).for_each(|id| rig.submit(id, text(id as u32, 12), 30));
    rig.join();
    rig.answer();
    assert_eq!((n_drafts(&rig), rig.usable()), (vec![3, 3], 2), "what their blocks have room for");
    rig.answer();
    assert_eq!(n_drafts(&rig), [2, 2]);
    rig.run_to_end();
    rig.assert_empty();

    let mut rig = Driver::without_worker(Config { device_blocks: 6, ..drafting() });
    (1..=2).for_each(|id| rig.submit(id, text(id as u32, 12), 30));
    rig.join();
    rig.answer();
    assert_eq!((n_drafts(&rig), rig.usable()), (vec![7, 7], 2), "where blocks abound they take some");
    rig.abort(1);
    rig.abort(2);
    rig.answer();
    rig.assert_empty();
}

#[test]
fn logits_that_sequences_may_need_are_not_drafted_on() {
    for (logits, drafts) in [(4, vec![0, 0]), (5, vec![1, 0]), (12, vec![7, 1]), (18, vec![7, 7]), (400, vec![7, 7])] {
        let mut rig = Driver::without_worker(Config { max_batch_size: 4, max_step_logits: logits, ..drafting() });
        (1..=2).for_each(|id| rig.submit(id, text(id as u32, 12), 30));
        rig.join();
        rig.answer();
        assert_eq!(n_drafts(&rig), drafts, "{logits} logits");
    }
}

#[test]
fn drafts_are_made_however_many_steps_may_be_in_flight() {
    let run = |max_steps_in_flight: u32| {
        let mut rig = Driver::without_worker(Config { max_steps_in_flight, ..drafting() });
        (1..=3).for_each(|id| rig.submit(id, text(id as u32, 30 + id as u32), 50));
        rig.join();
        while !rig.steps.is_empty() {
            rig.answer_drafting(2);
        }
        rig.assert_all_said(1..=3);
        rig.assert_empty();
        let stats = rig.stats();
        (stats.steps, stats.drafts.draft_tokens, stats.drafts.accepted_draft_tokens)
    };
    let one = run(1);
    assert!(one.0 < 25 && one.2 > 60, "{one:?}");
    assert_eq!([run(2), run(4)], [one, one], "decodes that draft wait for their results");
}

#[test]
fn a_batch_too_large_for_drafts_is_sent_ahead() {
    let mut rig = Driver::without_worker(Config { max_steps_in_flight: 2, ..drafting() });
    (1..=9).for_each(|id| rig.submit(id, text(id as u32, 5), if id == 9 { 4 } else { 60 }));
    rig.join();
    rig.answer();
    assert_eq!((rig.steps.len(), n_drafts(&rig)), (2, vec![0; 9]));
    rig.answer_until(|rig| rig.ends.len() == 1);
    rig.answer();
    assert_eq!((rig.steps.len(), n_drafts(&rig)), (1, vec![1; 8]), "eight draft, and wait for the results");
    rig.run_to_end();
    rig.assert_empty();
}

#[test]
fn a_prompt_computed_beside_no_decode_is_sent_ahead() {
    let mut rig = Driver::without_worker(Config { max_steps_in_flight: 2, max_batch_tokens: 64, ..drafting() });
    rig.submit(1, text(1, 192), 60);
    rig.join();
    assert_eq!(rig.steps.len(), 2);
    rig.answer();
    assert_eq!(rig.steps.len(), 2);
    rig.answer();
    assert_eq!(rig.steps.len(), 1, "the first decode waits for the token before it");
    rig.run_to_end();
    rig.assert_empty();
}

#[test]
fn sequences_in_other_stages_of_a_pipeline_draft_beside_one_another() {
    for max_steps_in_flight in [2, 4] {
        let mut rig = Driver::without_worker(Config { max_steps_in_flight, pipeline_stages: 2, ..drafting() });
        (1..=2).for_each(|id| rig.submit(id, text(id as u32, 20), 60));
        rig.join();
        (0..6).for_each(|_| rig.answer_drafting(1));
        assert_eq!(rig.steps.len(), 2);
        let drafts: Vec<u32> = rig.steps.iter().flat_map(|step| step.seqs.iter().map(|seq| seq.n_drafts)).collect();
        assert!(drafts.len() == 2 && drafts.iter().all(|n| *n > 0), "{drafts:?}");
        rig.run_to_end();
        rig.assert_empty();
    }
}

#[test]
fn a_worker_that_drafts_less_than_the_limit_is_asked_for_no_more() {
    let mut rig = Driver::without_worker(Config { max_steps_in_flight: 2, ..drafting() });
    rig.event(Event::DraftsLimited(0));
    rig.submit(1, text(1, 20), 60);
    rig.join();
    rig.answer();
    assert_eq!((rig.steps.len(), n_drafts(&rig)), (2, vec![0]), "steps are sent ahead as without drafts");
    rig.event(Event::WorkerLost);
    rig.event(Event::DraftsLimited(99));
    rig.join();
    rig.answer();
    assert_eq!((rig.steps.len(), n_drafts(&rig)), (1, vec![15]), "the next worker drafts as much as the limit");
    rig.event(Event::WorkerLost);
    rig.event(Event::DraftsLimited(2));
    rig.join();
    rig.answer();
    assert_eq!(n_drafts(&rig), [2]);
    rig.run_to_end();
    rig.assert_empty();
}

#[test]
fn no_step_waits_for_decodes_that_cannot_draft() {
    // One token each: the prompts of a prefill engine, for example.
    let mut rig = Driver::without_worker(Config { max_steps_in_flight: 2, max_batch_tokens: 80, ..drafting() });
    (1..=12).for_each(|id| rig.submit(id, text(id as u32, 40), 1));
    rig.join();
    assert_eq!(rig.steps.len(), 2, "the next prompts are sent ahead");
    rig.run_to_end();
    rig.assert_empty();
}

#[test]
fn a_pipeline_drafts_by_the_load_of_all_stages() {
    let stages = Config { max_steps_in_flight: 4, pipeline_stages: 2, max_batch_size: 30, ..drafting() };
    let mut rig = Driver::without_worker(stages);
    (1..=24).for_each(|id| rig.submit(id, text(id as u32, 5), 40));
    rig.join();
    rig.run_to_end();
    assert_eq!(rig.stats().drafts.draft_tokens, 0, "24 decodes are too many, 12 in a stage or not");
    rig.assert_empty();
}
