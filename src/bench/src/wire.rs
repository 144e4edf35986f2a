//! Wire benchmark: steps to an attached worker without a model and back, and blocks, over loopback.

mod blocks;

use std::time::{Duration, Instant};

use prost::Message;
use trunkline_attach::loopback::{Loopback, LoopbackError};
use trunkline_attach::{Abilities, Hello, KvRoom, Mirror, Session, StepEncoder, StepLimits, encode_done, wire};
use trunkline_port::{ModelInfo, RequestId, SeqStart, Step, StepRunner, StepSeq};

use super::allocations::counted;
use super::measure::{Report, quantile};
use trunkline::model::null_worker::NullWorker;

const NOTES: [&str; 5] = [
    "A server's end and a worker in one process, joined by gRPC over loopback; steps of 64 or 256 decodes after prompts of 100 tokens.",
    "A round trip is the time from a step of the core to its checked output, with a worker that answers at once; each run is the median of 500 steps.",
    "Idle is the share of time in which a worker with steps of 5 ms does not run one.",
    "A copy is that of 64 blocks of 256 KiB out of the memory of a worker or there, in messages or through shared memory, four at a time.",
    "Allocations are those of one step on both sides without the network: they grow with the number of columns, not of tokens.",
];
const BLOCK_SIZE: u32 = 16;
const VOCAB: u32 = 32_000;
/// Tokens of each prompt.
const PROMPT: u32 = 100;
/// Duration of a step for the idle share.
const STEP: Duration = Duration::from_millis(5);

/// Measures round trips and idle shares.
///
/// # Errors
/// If threads or sockets cannot be had.
pub fn run(quick: bool) -> anyhow::Result<Report> {
    let mut report = Report::new("wire", quick, NOTES.to_vec());
    let (rounds, runs, steps) = if quick { (20, 2, 10) } else { (500, 9, 200) };
    for n in [64, 256] {
        let mut wire = Wire::new(n, Duration::ZERO)?;
        wire.round_trip_us(rounds)?;
        let us = (0..runs).map(|_| wire.round_trip_us(rounds));
        report.add("round trip", format!("{n} decodes"), "us", us.collect::<Result<_, LoopbackError>>()?);
    }
    for n in [64, 256] {
        for in_flight in [1, 2] {
            let mut wire = Wire::new(n, STEP)?;
            wire.time_of(10, in_flight)?;
            let idle = (0..runs).map(|_| {
                let before = wire.loopback.busy();
                let seconds = wire.time_of(steps, in_flight)?;
                Ok((1.0 - (wire.loopback.busy() - before).as_secs_f64() / seconds).max(0.0) * 100.0)
            });
            let case = format!("{n} decodes, {in_flight} in flight");
            report.add("idle", case, "%", idle.collect::<Result<_, LoopbackError>>()?);
        }
    }
    blocks::measure(&mut report, if quick { 2 } else { 25 })?;
    for n in [64, 256] {
        report.add("allocations", format!("{n} decodes"), "", allocations(n, 2 * BLOCK_SIZE)?);
    }
    Ok(report)
}

/// Steps of decoding sequences.
struct Decodes {
    step: Step,
    n: u32,
    /// Position of the next decode of every sequence.
    position: u32,
}

impl Decodes {
    /// Makes the step that prefills `n` prompts.
    fn new(n: u32) -> Self {
        let n_blocks = PROMPT.div_ceil(BLOCK_SIZE);
        let mut step = Step { id: 1, ..Step::default() };
        for slot in 0..n {
            step.seqs.push(StepSeq {
                start: true,
                n_tokens: PROMPT,
                tokens_at: slot * PROMPT,
                blocks_at: slot * n_blocks,
                n_blocks,
                ..seq(slot)
            });
            step.tokens.extend((0..PROMPT).map(|i| i + slot));
            step.blocks.extend((0..n_blocks).map(|i| slot * 64 + i));
            step.starts.push(SeqStart { n_prompt: PROMPT, ..SeqStart::default() });
        }
        Self { step, n, position: PROMPT }
    }

    /// Makes the next step: a decode of every sequence.
    fn next(&mut self) {
        let (id, position) = (self.step.id + 1, self.position);
        let held = position.div_ceil(BLOCK_SIZE);
        let n_blocks = (position + 1).div_ceil(BLOCK_SIZE) - held;
        self.step.clear();
        self.step.id = id;
        for slot in 0..self.n {
            self.step.seqs.push(StepSeq {
                computed: position,
                kv_write_from: position,
                n_tokens: 1,
                tokens_at: slot,
                input_from_last: true,
                table_keep: held,
                blocks_at: self.step.blocks.len() as u32,
                n_blocks,
                n_generated: position - PROMPT + 1,
                ..seq(slot)
            });
            self.step.tokens.push(0);
            self.step.blocks.extend((0..n_blocks).map(|i| slot * 64 + i));
        }
        self.position += 1;
    }
}

/// Returns the announcement of a worker for `n` sequences.
fn hello(n: u32) -> Hello {
    Hello {
        name: "bench".into(),
        model: ModelInfo { n_layers: 1, kv_bytes_per_token: 1, ..NullWorker::info(VOCAB) },
        kv: KvRoom { block_sizes: vec![BLOCK_SIZE], tokens: 1 << 24, block_io: false },
        abilities: Abilities { max_sequences: n, max_tokens: 1 << 16, steps_in_flight: 2, ..Abilities::default() },
        ..Hello::default()
    }
}

/// Returns the allocations of each of several steps of `n` decodes, on both sides and without the network: from a step of the core to its
/// checked output, the worker's own included.
fn allocations(n: u32, steps: u32) -> anyhow::Result<Vec<f64>> {
    let session = Session { block_size: BLOCK_SIZE, blocks: 1 << 20, ..Session::default() };
    let mut encoder = StepEncoder::new(1, BLOCK_SIZE, VOCAB);
    let mut mirror = Mirror::new(StepLimits::new(&hello(n), &session));
    let (mut decodes, mut step) = (Decodes::new(n), Step::default());
    let mut worker = NullWorker::new(Duration::ZERO, VOCAB);
    let mut all = Vec::new();
    for _ in 0..=steps {
        let (round, counted) = counted(|| -> anyhow::Result<()> {
            let (message, sent) = encoder.encode(&decodes.step);
            let message = wire::Step::decode(&message.encode_to_vec()[..])?;
            mirror.decode(&message, &mut step)?;
            let output = worker.run(&step)?;
            mirror.note(&step, &output.result);
            let done = encode_done(&step, output, 1, 0);
            sent.decode(wire::StepDone::decode(&done.encode_to_vec()[..])?)?;
            encoder.recycle(sent);
            Ok(())
        });
        round?;
        all.push(counted.allocations as f64);
        decodes.next();
    }
    // The first step prefills.
    Ok(all.split_off(1))
}

/// Decoding sequences, and the worker behind a socket.
struct Wire {
    loopback: Loopback,
    decodes: Decodes,
}

impl Wire {
    /// Starts a worker with steps of duration `step`, and prefills `n` prompts.
    fn new(n: u32, step: Duration) -> Result<Self, LoopbackError> {
        let make = Box::new(move |_: &Session| {
            let worker: Box<dyn StepRunner> = Box::new(NullWorker::new(step, VOCAB));
            Ok(worker)
        });
        let mut wire = Self { loopback: Loopback::start(hello(n), make)?, decodes: Decodes::new(n) };
        wire.loopback.send(&wire.decodes.step);
        wire.loopback.receive()?;
        Ok(wire)
    }

    /// Sends a decode of every sequence.
    fn decode(&mut self) {
        self.decodes.next();
        self.loopback.send(&self.decodes.step);
    }

    /// Runs steps one after another; returns the median of their round trips, microseconds.
    fn round_trip_us(&mut self, steps: u32) -> Result<f64, LoopbackError> {
        let mut us = Vec::with_capacity(steps as usize);
        for _ in 0..steps {
            us.push(self.time_of(1, 1)? * 1e6);
        }
        us.sort_by(f64::total_cmp);
        Ok(quantile(&us, 0.5))
    }

    /// Runs steps with a number of them in flight; returns seconds.
    fn time_of(&mut self, steps: u32, in_flight: u32) -> Result<f64, LoopbackError> {
        let begin = Instant::now();
        let mut sent = 0;
        for received in 0..steps {
            while sent < steps.min(received + in_flight) {
                self.decode();
                sent += 1;
            }
            self.loopback.receive()?;
        }
        Ok(begin.elapsed().as_secs_f64())
    }
}

fn seq(slot: u32) -> StepSeq {
    StepSeq { request: RequestId(slot.into()), slot, sample: true, ..StepSeq::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_token_takes_an_allocation_of_its_own() {
        let median = |n| {
            let mut all = allocations(n, 16).unwrap();
            all.sort_by(f64::total_cmp);
            quantile(&all, 0.5)
        };
        // Lists that are read from the wire grow by doubling.
        let (few, many) = (median(64), median(512));
        assert!(many - few < 64.0, "{few} allocations for 64 decodes, {many} for 512");
    }

    #[test]
    fn every_figure_is_measured() {
        let text = run(true).unwrap().render();
        assert_eq!((text.matches("round trip").count(), text.matches("in flight").count()), (3, 4), "{text}");
        assert_eq!(text.matches("copy  ").count(), 5, "{text}");
    }
}
