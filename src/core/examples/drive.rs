//! Drives a core with a worker of your own: `cargo run -p trunkline-core --example drive`.
//!
//! Here a step takes a millisecond and 20 µs for each token, and the model says one more than the last token. Put a model instead of
//! [`run`], and a clock instead of `now_ns`, and this is a server's loop. The front page of `Core` says what a driver must do.

use std::collections::BTreeMap;

use trunkline_core::{Action, Config, Core, Event, Namespace, Request, RequestId, Step, StepResult, Token};

/// Runs a step: returns a token for each sequence that samples, and the time taken, nanoseconds.
fn run(step: &Step, last: &mut BTreeMap<RequestId, Token>) -> (StepResult, u64) {
    let mut result = StepResult { step: step.id, ..StepResult::default() };
    for seq in &step.seqs {
        if !seq.input_from_last {
            last.insert(seq.request, *step.run_tokens(seq).last().expect("a sequence runs a token"));
        }
        match seq.sample {
            true => {
                let token = last.get_mut(&seq.request).expect("it has run before");
                *token += 1;
                result.push(&[*token]);
            }
            false => result.push(&[]),
        }
    }
    (result, 1_000_000 + 20_000 * u64::from(step.n_tokens()))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config { device_blocks: 64, max_batch_tokens: 64, max_batch_size: 8, ..Config::default() };
    let mut core = Core::new(config.clone())?;
    let (mut now_ns, mut actions) = (0, Vec::new());
    core.handle(now_ns, Event::WorkerJoined, &mut actions);

    // Three questions about one document of 96 tokens: it is computed once.
    for id in 1..=3 {
        let mut prompt: Vec<Token> = (0..96).collect();
        prompt.push(1_000 * id as Token);
        let mut request = Request::new(RequestId(id), Namespace::default().root(), prompt, 4);
        request.hash_prompt(config.block_size);
        request.deadline_ns = Some(1_000_000_000);
        core.handle(now_ns, Event::Submit(Box::new(request)), &mut actions);
    }
    core.handle(now_ns, Event::Drain, &mut actions);

    let (mut last, mut texts) = (BTreeMap::new(), BTreeMap::<RequestId, Vec<Token>>::new());
    let mut in_flight = std::collections::VecDeque::new();
    loop {
        for action in std::mem::take(&mut actions) {
            match action {
                Action::RunStep(step) => in_flight.push_back(step),
                Action::Token { request, token } => texts.entry(request).or_default().push(token),
                Action::Finish { request, reason, usage } => {
                    let ms = now_ns as f64 / 1e6;
                    let cached = usage.cached_tokens;
                    println!("{ms:6.2} ms  request {request}: {:?}, {reason:?}, {cached} cached", texts[&request]);
                }
                Action::Drained => {
                    println!("{} steps, digest {:016x}", core.stats().steps, core.digest());
                    return Ok(());
                }
                other => unreachable!("{other:?}: there are no tiers, and no request is refused"),
            }
        }
        let event = match in_flight.pop_front() {
            Some(step) => {
                let (result, took_ns) = run(&step, &mut last);
                now_ns += took_ns;
                core.recycle(step);
                Event::StepFinished(result)
            }
            // Nothing runs until the next deadline.
            None => {
                now_ns = core.next_deadline_ns().ok_or("the core waits for nothing")?;
                Event::Tick
            }
        };
        core.handle(now_ns, event, &mut actions);
    }
}
