//! `--engine sglang` against SGLang's own scheduler under a virtual clock: `sglang_scheduler/make.py` drove it with a formula for the time
//! of a step, and wrote down when each request's first and last token came.

mod scheduled;

use scheduled::{Case, Engine, Truth, worst};
use trunkline_sim_replay::engines;

/// Greatest relative error of means, medians and percentiles in blocks of 16 tokens.
const BLOCKS_OF_16: f64 = 0.10;
/// Cases with 62 to 156 such blocks, in which few tokens decide who is retracted, and their errors, at most.
const FEW_BLOCKS: [(&str, f64); 6] = [
    ("retractions", 0.55),
    ("retractions of shared prompts", 0.55),
    ("retractions, lpm", 0.25),
    ("retractions while others end", 0.15),
    ("little room, answers end early", 0.15),
    ("long answers, lpm", 0.55),
];

fn truth() -> Truth {
    serde_json::from_str(include_str!("sglang_scheduler/truth.json")).unwrap()
}

fn engine<'a>(truth: &'a Truth, case: &'a Case, block_size: u32) -> Engine<'a> {
    let mut config = engines::by_name("sglang").unwrap().core(case.blocks / block_size);
    config.block_size = block_size;
    Engine::new(truth, case, config)
}

/// Answers every request of a case, prints how close the answers are, and returns the equal answers, the steps and the error.
fn compare(mut engine: Engine, case: &Case) -> (usize, u64, f64) {
    let steps = engine.run();
    let (equal, error) = (engine.equal(), worst(engine.latencies()));
    let preemptions: u32 = engine.answered.iter().map(|ours| ours.preemptions).sum();
    let n = engine.answered.len();
    println!(
        "{:40} {equal:3} of {n} equal, {steps} of {} steps, {preemptions} preemptions, error {:.2} %",
        case.name,
        case.steps,
        error * 100.0
    );
    (equal, steps, error)
}

#[test]
fn every_request_is_answered_when_sglang_would_answer_it() {
    let truth = truth();
    for case in &truth.cases {
        let (equal, steps, _) = compare(engine(&truth, case, 1), case);
        assert_eq!((equal, steps), (case.requests.len(), case.steps), "{}", case.name);
    }
}

#[test]
fn blocks_of_16_tokens_change_little() {
    let truth = truth();
    for case in &truth.cases {
        let (.., error) = compare(engine(&truth, case, 16), case);
        let most = FEW_BLOCKS.iter().find(|(name, _)| *name == case.name).map_or(BLOCKS_OF_16, |(_, most)| *most);
        assert!(error < most, "{}: {error}", case.name);
    }
}
