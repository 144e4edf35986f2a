//! Copies, drafts, and what is counted of steps.

use trunkline_core::Preemption;
use trunkline_core::transfer::{Place, Transfer};

use super::*;

#[test]
fn a_transfer_takes_the_link_and_its_end_is_told() {
    let trace = trace(vec![request(0, 10, 1, &[0])]);
    let mut settings = settings(16, 100);
    // 2 MiB blocks, one in 100 us after 10 us.
    settings.hardware.host_link_bytes_s = 2_097_152.0 / 100e-6;
    let mut watch = |_: &Outcome| ControlFlow::Continue(());
    let mut source = trace.source();
    let mut fleet = Fleet::new(&mut source, &settings, &OneMs, &mut watch).unwrap();
    let copy = |id, from, to, n| Action::Transfer(Box::new(Transfer { id, from, to, pairs: vec![(0, 0); n] }));
    let out = |id| copy(id, Place::Device, Place::Host, 2);
    let back = |id, n| copy(id, Place::Host, Place::Device, n);
    fleet.perform(fleet.now_ns, 0, out(1));
    fleet.perform(fleet.now_ns, 0, out(2));
    fleet.perform(fleet.now_ns, 0, back(3, 2));
    let ends: Vec<_> =
        fleet.queue.clone().into_sorted_vec().into_iter().rev().map(|Reverse(it)| (it.at_ns, it.what)).collect();
    let end = |id| What::TransferEnd { replica: 0, life: 0, id };
    assert_eq!(ends, [(210_000, end(1)), (210_000, end(3)), (420_000, end(2))]);
    // The core waits for none of them, so the replay goes on as if there were none, and their ends do not make it longer.
    fleet.perform(fleet.now_ns, 0, back(4, 2));
    fleet.perform(fleet.now_ns, 0, back(5, 100));
    fleet.run().unwrap();
    assert!(fleet.now_ns > 10 * MS);
    let report = fleet.report();
    assert_eq!((report.link_out.transfers, report.link_out.blocks, report.link_in.blocks), (2, 4, 104));
    assert_eq!((report.link_out.busy_s, report.duration_s), (420e-6, 0.001));
}

#[test]
fn requests_are_swapped_over_the_link_and_back() {
    let requests = (0..8).map(|i| request(0, 64, 200, &[i])).collect();
    let trace = trace(requests);
    let mut settings = settings(16, 60);
    (settings.core.host_blocks, settings.core.preemption) = (200, Preemption::Swap);
    let report = run(&trace, &settings);
    assert_eq!((report.completed, report.output_tokens), (8, 1600));
    assert!(report.swap_outs > 0 && report.swap_outs == report.swap_ins, "{} {}", report.swap_outs, report.swap_ins);
    assert!(report.link_out.blocks > 0 && report.link_in.blocks > 0);
    let least_s = report.link_out.blocks as f64 * 2_097_152.0 / 55e9;
    assert!(report.link_out.busy_s > least_s, "{} {least_s}", report.link_out.busy_s);
    assert_eq!(report, Report { wall_s: report.wall_s, ..run(&trace, &settings) });
    // A link on which a block takes as long as a hundred steps makes the requests that were swapped late.
    settings.hardware.host_link_bytes_s = 2_097_152.0 / 100e-3;
    assert!(run(&trace, &settings).duration_s > report.duration_s + 0.1);
}

#[test]
fn costs_are_estimated_from_hardware_and_model() {
    let mut settings = settings(16, 100);
    settings.estimate_costs(&OneMs);
    // 2 MiB at 55 GB/s; a millisecond for 2,048 tokens.
    assert_eq!((settings.core.swap_block_ns, settings.core.recompute_token_ns), (38_131, 489));
}

#[test]
fn drafts_that_are_right_save_steps() {
    let trace = trace(vec![request(0, 64, 100, &[0])]);
    let steps = |max_drafts, draft_acceptance| {
        let mut settings = Settings { draft_acceptance, ..settings(16, 100) };
        settings.core.max_drafts = max_drafts;
        let report = run(&trace, &settings);
        assert_eq!(report.output_tokens, 100);
        assert_eq!(
            report.steps + report.accepted_drafts,
            100,
            "every step gives a token, and one for every right draft"
        );
        assert!(report.accepted_drafts <= report.drafted_tokens);
        report.steps
    };
    assert_eq!((steps(0, 1.0), steps(4, 0.0)), (100, 100));
    assert!((20..30).contains(&steps(4, 1.0)), "{}", steps(4, 1.0));
    assert!((35..60).contains(&steps(4, 0.6)), "{}", steps(4, 0.6));
}

#[test]
fn means_of_steps() {
    let settings = settings(16, 100);
    let report = run(&trace(vec![request(0, 10, 3, &[0]), request(0, 20, 2, &[1])]), &settings);
    // The first alone: it came first. Then its decode and the other's prompt, then two decodes.
    assert_eq!((report.steps, report.mean_batch), (3, 5.0 / 3.0));
    assert_eq!(report.mean_step_tokens, (10.0 + 21.0 + 2.0) / 3.0);
    assert_eq!((report.drafted_tokens, report.requests_s), (0, 2.0 / 0.003));
}
