//! `--engine sglang` against SGLang's own scheduler under a virtual clock: `sglang_scheduler/make.py` drove it with a formula for the time
//! of a step, and wrote down when each request's first and last token came.

mod scheduled;

use scheduled::{Case, Engine, Truth, worst};
use trunkline_sim_replay::engines;

/// Cases that are not equal in blocks of one token, which SGLang has: the reason, the equal answers, and a bound on the relative error of
/// means, medians and percentiles.
const INEXACT: [(&str, &str, usize, f64); 1] = [(
    "retractions, lpm",
    "SGLang forgets the output of a retracted request and evicts ahead, and the order feeds on what is left",
    22,
    0.13,
)];
/// Greatest relative error of the other cases in blocks of 16 tokens.
const BLOCKS_OF_16: f64 = 0.10;
/// Case with 125 such blocks, in which few tokens decide who is retracted, and the error.
const FEW_BLOCKS: (&str, f64) = ("retractions", 0.55);

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
        let (equal, steps, error) = compare(engine(&truth, case, 1), case);
        match INEXACT.iter().find(|(name, ..)| *name == case.name) {
            Some((_, reason, pinned, most)) => {
                assert_eq!(equal, *pinned, "{}; known: {reason}", case.name);
                assert!(error < *most, "{}: {error}; known: {reason}", case.name);
            }
            None => assert_eq!((equal, steps), (case.requests.len(), case.steps), "{}", case.name),
        }
    }
}

#[test]
fn blocks_of_16_tokens_change_little() {
    let truth = truth();
    for case in truth.cases.iter().filter(|case| INEXACT.iter().all(|(name, ..)| *name != case.name)) {
        let (.., error) = compare(engine(&truth, case, 16), case);
        let most = if case.name == FEW_BLOCKS.0 { FEW_BLOCKS.1 } else { BLOCKS_OF_16 };
        assert!(error < most, "{}: {error}", case.name);
    }
}
