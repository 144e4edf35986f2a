//! The worker's end over a socket: runners that fail and panic, and the end of a worker.

use std::sync::Arc;

use trunkline_attach::fake::{FakeConfig, FakeWorker};
use trunkline_attach::loopback::{Loopback, LoopbackError, Offered};
use trunkline_port::{
    DeviceBlocks, FailedSeq, RequestId, SeqFault, SeqStart, Step, StepError, StepOutput, StepResult, StepRunner,
    StepSeq,
};

const CONFIG: FakeConfig = FakeConfig { block_size: 16, blocks: 64, scored_groups: 0, bad_token: None, fault: None };

/// Runner whose second step fails.
struct Failing {
    inner: FakeWorker,
    steps: u32,
    panics: bool,
}

impl StepRunner for Failing {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        self.steps += 1;
        match self.steps {
            2 if self.panics => panic!("on purpose"),
            2 => Err(StepError::new("no memory").caused_by(RequestId(7))),
            _ => self.inner.run(step),
        }
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        self.inner.blocks()
    }

    fn reset(&mut self) {
        self.inner.reset();
    }
}

fn prompt(id: u64) -> Step {
    let seq =
        StepSeq { request: RequestId(7), start: true, n_tokens: 3, n_blocks: 1, sample: true, ..StepSeq::default() };
    let starts = vec![SeqStart { n_prompt: 3, ..SeqStart::default() }];
    Step { id, seqs: vec![seq], tokens: vec![1, 2, 3], blocks: vec![5], starts, ..Step::default() }
}

#[test]
fn an_attached_runner_answers_as_one_in_process() {
    let mut own = FakeWorker::new(CONFIG);
    let hello = FakeWorker::hello("fake", &CONFIG);
    let mut wire = Loopback::start(hello, Box::new(|_| Ok(Box::new(FakeWorker::new(CONFIG))))).unwrap();
    let expected = own.run(&prompt(1)).unwrap();
    wire.send(&prompt(1));
    assert_eq!(wire.receive().unwrap(), expected);

    // Two decodes in flight: the second runs the first one's token, which the sender does not know.
    let decode = |id, computed| {
        let seq = StepSeq {
            request: RequestId(7),
            computed,
            n_tokens: 1,
            input_from_last: true,
            table_keep: 1,
            sample: true,
            n_generated: computed - 2,
            ..StepSeq::default()
        };
        Step { id, seqs: vec![seq], tokens: vec![0], ..Step::default() }
    };
    wire.send(&decode(2, 3));
    wire.send(&decode(3, 4));
    let mut last = expected.result.tokens[0];
    for (id, computed) in [(2, 3), (3, 4)] {
        let mut step = decode(id, computed);
        (step.tokens[0], step.seqs[0].input_from_last) = (last, false);
        let expected: StepResult = own.run(&step).unwrap().result;
        assert_eq!(wire.receive().unwrap().result, expected);
        last = expected.tokens[0];
    }
}

#[test]
fn a_runner_that_fails_a_sequence_answers_that_step_and_those_on_the_way() {
    let config = FakeConfig { bad_token: Some(3), ..CONFIG };
    let hello = FakeWorker::hello("fake", &config);
    let mut wire = Loopback::start(hello, Box::new(move |_| Ok(Box::new(FakeWorker::new(config))))).unwrap();
    let decode = Step {
        id: 2,
        seqs: vec![StepSeq {
            computed: 3,
            input_from_last: true,
            start: false,
            n_tokens: 1,
            n_blocks: 0,
            table_keep: 1,
            n_generated: 1,
            ..prompt(2).seqs[0]
        }],
        tokens: vec![0],
        ..Step::default()
    };
    wire.send(&prompt(1));
    wire.send(&decode);
    wire.send(&prompt(3));
    let failed = vec![FailedSeq { seq: 0, fault: SeqFault::NotFinite }];
    let expected = [(1, failed.clone()), (2, Vec::new()), (3, failed)];
    for (step, failed) in expected {
        let result = wire.receive().unwrap().result;
        assert_eq!((result.step, result.tokens.len(), &result.failed), (step, usize::from(failed.is_empty()), &failed));
    }
}

#[test]
fn a_runner_that_fails_or_panics_fails_the_step_and_no_more() {
    for (panics, expected) in [(false, "no memory"), (true, "the worker panicked")] {
        let hello = FakeWorker::hello("fake", &CONFIG);
        let make = move |_: &_| {
            let runner: Box<dyn StepRunner> = Box::new(Failing { inner: FakeWorker::new(CONFIG), steps: 0, panics });
            Ok(runner)
        };
        let mut wire = Loopback::start(hello, Box::new(make)).unwrap();
        wire.send(&prompt(1));
        wire.receive().unwrap();
        wire.send(&prompt(2));
        let Err(LoopbackError::Failed { id, reason }) = wire.receive() else { panic!("the step did not fail") };
        assert_eq!((id, reason.as_str()), (2, expected));
    }
}

#[test]
fn blocks_come_back_as_they_went_through_shared_memory_or_in_messages() {
    for (offered, announced, is_shared) in [
        (Some(Offered::Here), true, true),
        (Some(Offered::Here), false, false),
        (Some(Offered::Elsewhere), true, false),
        (None, true, false),
    ] {
        let mut hello = FakeWorker::hello("fake", &CONFIG);
        hello.abilities.shared_memory = announced;
        let make = Box::new(|_: &_| Ok(Box::new(FakeWorker::new(CONFIG)) as _));
        let mut wire = Loopback::start_sharing(hello, make, offered).unwrap();
        // Cells of 8 bytes, 16 in a block.
        let written: Vec<u8> = (0..64 * 128_u32).map(|at| (at * 7 % 251) as u8).collect();
        // Before the first answer nothing is shared.
        for _ in 0..2 {
            let mut read = vec![0; written.len()];
            wire.write_blocks(&written).unwrap();
            wire.read_blocks(&mut read).unwrap();
            assert!(read == written, "{offered:?}, announced: {announced}");
            assert_eq!(wire.is_shared(), is_shared, "{offered:?}, announced: {announced}");
        }
    }
}
