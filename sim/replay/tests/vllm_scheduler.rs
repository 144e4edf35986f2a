//! `--engine vllm-v1` against vLLM's own scheduler under a virtual clock: `vllm_scheduler/make.py` drove it with a formula for the time
//! of a step, and wrote down when each request's first and last token came.

mod scheduled;

use scheduled::{Engine, Truth, worst};
use trunkline_sim_replay::engines;

#[test]
fn every_request_is_answered_when_vllm_would_answer_it() {
    let truth: Truth = serde_json::from_str(include_str!("vllm_scheduler/truth.json")).unwrap();
    for case in &truth.cases {
        let config = engines::by_name("vllm-v1").unwrap().core(case.blocks);
        let mut engine = Engine::new(&truth, case, config);
        let steps = engine.run();
        let (equal, error) = (engine.equal(), worst(engine.latencies()));
        let preemptions: u32 = engine.answered.iter().map(|ours| ours.preemptions).sum();
        println!(
            "{:34} {equal:3} of {} equal, {steps} steps, {preemptions} preemptions, error {:.2} %",
            case.name,
            engine.answered.len(),
            error * 100.0
        );
        assert_eq!((equal, steps), (engine.answered.len(), case.steps), "{}", case.name);
    }
}
