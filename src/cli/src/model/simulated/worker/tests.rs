//! Durations and tokens of simulated steps, under a clock that passes at once.

use trunkline_port::{RequestId, Sampling, SeqStart, StepSeq};
use trunkline_sim_perf::cost::CostModel;
use trunkline_text::Tokenizer;

use super::super::clock::ManualTime;
use super::*;

/// A step takes a microsecond for each token and 10 microseconds more.
struct Linear;

impl CostModel for Linear {
    fn name(&self) -> &str {
        "linear"
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        10_000 + 1_000 * shape.tokens
    }
}

fn worker(kind: TextKind) -> (SimulatedWorker, Arc<ManualTime>) {
    let clock = Arc::new(ManualTime::default());
    let tokenizer = Tokenizer::bytes();
    let device = Device {
        cost: Box::new(Linear),
        link: BlockTimes { block_ns: 1, latency_ns: 1 },
        clock: clock.clone(),
        text: Text::new(kind, &tokenizer, Some(257)).unwrap(),
        vocab_size: tokenizer.vocab_size(),
    };
    (SimulatedWorker::new(Arc::new(device)), clock)
}

/// A step of sequences as (slot, start, tokens to run, drafts).
fn step(id: u64, seqs: &[(u32, bool, u32, u32)]) -> Step {
    let seq = |(slot, start, n_tokens, n_drafts): (u32, bool, u32, u32)| StepSeq {
        request: RequestId(u64::from(slot)),
        slot,
        start,
        computed: 0,
        n_tokens,
        n_history: 0,
        tokens_at: 0,
        input_from_last: false,
        kv_write_from: 0,
        table_keep: 0,
        blocks_at: 0,
        n_blocks: 0,
        sample: true,
        n_generated: if start { 0 } else { 1 },
        n_drafts,
    };
    let starting = seqs.iter().filter(|(_, start, ..)| *start);
    let starts = starting.map(|(slot, _, n_prompt, _)| SeqStart {
        sampling: Sampling { seed: u64::from(*slot), logprobs: Some(1), ..Sampling::default() },
        n_prompt: *n_prompt,
        n_ahead: 0,
    });
    Step {
        id,
        starts: starts.collect(),
        seqs: seqs.iter().map(|of| seq(*of)).collect(),
        tokens: (65..97).collect(),
        ..Step::default()
    }
}

#[test]
fn steps_of_one_request_end_where_their_durations_add_up_to() {
    let (mut worker, clock) = worker(TextKind::Random);
    clock.pass(500_000);
    worker.run(&step(1, &[(0, true, 20, 0)])).unwrap();
    assert_eq!(clock.now_ns(), 530_000, "the first step begins when it is sent");
    for n in 1..=100 {
        // The server's own time between two steps.
        clock.pass(9_000);
        worker.run(&step(1 + n, &[(0, false, 1, 0), (1, n == 1, 1, 0)])).unwrap();
        assert_eq!(clock.now_ns(), 530_000 + n * 12_000);
    }
    clock.pass(3_000);
    worker.run(&step(102, &[(2, true, 1, 0)])).unwrap();
    assert_eq!(clock.now_ns(), 530_000 + 1_200_000 + 3_000 + 11_000, "another request's step begins when it is sent");
}

#[test]
fn a_server_that_falls_behind_catches_up_and_a_long_pause_is_idle_time() {
    let (mut worker, clock) = worker(TextKind::Random);
    worker.run(&step(1, &[(0, true, 1, 0)])).unwrap();
    clock.pass(30_000);
    for n in 2..=4 {
        worker.run(&step(n, &[(0, false, 1, 0)])).unwrap();
    }
    assert_eq!(clock.now_ns(), 4 * 11_000, "three steps in the time of three, of which two were due already");
    clock.pass(QUEUED_NS + 1);
    let now_ns = clock.now_ns();
    worker.run(&step(5, &[(0, false, 1, 0)])).unwrap();
    assert_eq!(clock.now_ns(), now_ns + 11_000);
}

#[test]
fn tokens_follow_from_seed_and_position_and_drafts_change_none() {
    let (mut one, _) = worker(TextKind::Random);
    let (mut two, _) = worker(TextKind::Random);
    let first = one.run(&step(1, &[(3, true, 5, 0)])).unwrap();
    assert_eq!((first.result.step, first.logprobs.len(), first.logprobs[0].top.len()), (1, 1, 1));
    two.run(&step(1, &[(0, true, 2, 0), (3, true, 5, 0)])).unwrap();
    let next = one.run(&step(2, &[(3, false, 1, 0)])).unwrap();
    let drafted = two.run(&step(2, &[(3, false, 1, 40)])).unwrap();
    assert_eq!((drafted.drafted, drafted.accepted), (40, drafted.result.of(0).len() as u64 - 1));
    let drafted = drafted.result.of(0).to_vec();
    assert_eq!(next.result.of(0), &drafted[..1]);
    assert!((1..=41).contains(&drafted.len()), "{}", drafted.len());
}

#[test]
fn an_echo_takes_the_prompt_of_each_sequence() {
    let (mut worker, _) = worker(TextKind::Echo);
    let answer = worker.run(&step(1, &[(0, true, 3, 0)])).unwrap();
    assert_eq!(answer.result.of(0), [65]);
    let answer = worker.run(&step(2, &[(0, false, 1, 0)])).unwrap();
    assert_eq!(answer.result.of(0), [66]);
    worker.reset();
    assert_eq!(worker.run(&step(3, &[(0, true, 2, 0)])).unwrap().result.of(0), [65]);
}
