//! A scheduling policy of your own, without an edit of the crate: `cargo run -p trunkline-core --example policy`.
//!
//! `docs/guide/policies.md` shows how a policy joins the registry, and so the flags of `serve` and `replay`.

use trunkline_core::policy::{Policy, RequestView};
use trunkline_core::{Action, Config, Core, Event, Namespace, Request, RequestId, StepResult};

/// Short answers first. A request that has waited for a second goes before one that may be a thousand tokens shorter.
#[derive(Debug)]
struct ShortAnswers;

impl Policy for ShortAnswers {
    fn rank(&self, request: &RequestView) -> i128 {
        i128::from(request.max_tokens) * 1_000_000 + i128::from(request.arrival_ns)
    }
}

/// Submits requests with these limits of tokens while another one runs, and returns the limits in the order of the ends. One runs at a time.
fn order(mut core: Core, limits: &[u32]) -> Vec<u32> {
    let (mut actions, mut ended) = (Vec::new(), Vec::new());
    core.handle(0, Event::WorkerJoined, &mut actions);
    for (at, max_tokens) in limits.iter().enumerate() {
        let prompt = vec![at as u32; 20];
        let mut request = Request::new(RequestId(at as u64), Namespace::default().root(), prompt, *max_tokens);
        request.hash_prompt(core.config().block_size);
        core.handle(at as u64 + 1, Event::Submit(Box::new(request)), &mut actions);
    }
    let mut now_ns = 1_000_000;
    while !actions.is_empty() {
        let mut results = Vec::new();
        for action in actions.drain(..) {
            match action {
                Action::RunStep(step) => {
                    let mut result = StepResult { step: step.id, ..StepResult::default() };
                    step.seqs.iter().for_each(|seq| result.push(if seq.sample { &[7] } else { &[] }));
                    results.push(result);
                }
                Action::Finish { request, .. } => ended.push(limits[request.0 as usize]),
                _ => {}
            }
        }
        for result in results {
            now_ns += 1_000_000;
            core.handle(now_ns, Event::StepFinished(result), &mut actions);
        }
    }
    ended
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = || Config { max_batch_size: 1, policy: "fcfs".into(), ..Config::default() };
    let limits = [30, 500, 20, 100];
    let (fcfs, own) =
        (order(Core::new(config())?, &limits), order(Core::with_policy(config(), Box::new(ShortAnswers))?, &limits));
    println!("fcfs          {fcfs:?}\nshort answers {own:?}");
    assert_eq!((fcfs, own), (vec![30, 500, 20, 100], vec![30, 20, 100, 500]));
    Ok(())
}
