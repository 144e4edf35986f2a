//! Worker benchmark: prefill and decode of a model with random weights, for every kind of weights, or of a model from a file.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use trunkline_port::{RequestId, SeqStart, Step, StepSeq};
use trunkline_worker::{Model, WeightKind, Worker, WorkerConfig};

use super::measure::{Numbers, Report, time_ns};

const NOTES: [&str; 2] = [
    "Without a file, a model of the shape of SmolLM2-135M with random weights. Prefill is one prompt of 512 tokens in one step.",
    "Decode is a step of one token for each sequence of a batch, after prompts of 128 tokens.",
];
const BLOCK_SIZE: u32 = 32;
/// Tokens of the prompt of a prefill.
const PREFILL: u32 = 512;
/// Tokens of each prompt before decodes.
const PROMPT: u32 = 128;
/// Steps of decode at each batch size.
const DECODES: u32 = 15;
/// Blocks of a sequence: the longest prompt and decodes.
const BLOCKS: u32 = PREFILL.div_ceil(BLOCK_SIZE) + 1;
/// Sequences of each batch, ascending: few rows take other loops than one and many.
const BATCHES: [u32; 5] = [1, 2, 4, 8, 32];

/// Kinds of weights: those whose blocks divide the rows of the model.
const KINDS: [WeightKind; 6] =
    [WeightKind::F32, WeightKind::Bf16, WeightKind::F16, WeightKind::Q8_0, WeightKind::Q4_0, WeightKind::Q4_1];

/// Measures the model at `path`, or random weights of every kind, with a number of threads; a quick run has one layer of random
/// weights and few steps.
///
/// # Errors
/// If the model cannot be read, has a context that is too short, or the worker's memory cannot be had.
pub fn run(path: Option<&Path>, threads: usize, quick: bool) -> anyhow::Result<Report> {
    let mut report = Report::new("worker", quick, NOTES.to_vec());
    if let Some(path) = path {
        let model = Model::load(path).with_context(|| format!("cannot load the model {}", path.display()))?;
        let context = model.config().max_context;
        ensure!(context > PREFILL, "the model's context is {context} tokens; the benchmark needs more than {PREFILL}");
        let name = model.name().to_owned();
        measure(&mut report, &name, model, threads, quick)?;
        return Ok(report);
    }
    for kind in KINDS {
        let layers = if quick { 1 } else { 30 };
        measure(&mut report, kind.name(), Model::seeded_like_smollm2(kind, layers, 1), threads, quick)?;
    }
    Ok(report)
}

/// Adds the figures of one model.
fn measure(report: &mut Report, name: &str, model: Model, threads: usize, quick: bool) -> anyhow::Result<()> {
    let vocab = model.config().vocab_size;
    let config = WorkerConfig {
        block_size: BLOCK_SIZE,
        device_blocks: BLOCKS * BATCHES[BATCHES.len() - 1],
        max_drafts: 0,
        threads,
    };
    let worker = Worker::new(Arc::new(model), config)?;
    let mut runner = Runner { worker, vocab, numbers: Numbers::new(), steps: 0 };
    let (prefills, decodes) = if quick { (1, 1) } else { (5, DECODES) };
    let times = (0..prefills).map(|_| runner.prefill(1, PREFILL)).collect::<Result<Vec<_>, _>>()?;
    report.add("prefill", name, "tokens/s", times.iter().map(|ns| f64::from(PREFILL) * 1e9 / ns).collect());
    for batch in BATCHES {
        runner.prefill(batch, PROMPT)?;
        let times = (0..decodes).map(|n| runner.decode(batch, n)).collect::<Result<Vec<_>, _>>()?;
        let case = format!("{name}, batch {batch}");
        report.add("decode", case, "tokens/s", times.iter().map(|ns| f64::from(batch) * 1e9 / ns).collect());
    }
    Ok(())
}

/// A worker, and the tokens and numbers of its steps.
struct Runner {
    worker: Worker,
    vocab: u32,
    numbers: Numbers,
    steps: u64,
}

impl Runner {
    /// Starts `batch` sequences with prompts of `len` tokens. Returns the time of the step, nanoseconds.
    fn prefill(&mut self, batch: u32, len: u32) -> anyhow::Result<f64> {
        let seqs = (0..batch).map(|slot| StepSeq {
            start: true,
            n_tokens: len,
            tokens_at: slot * len,
            blocks_at: slot * BLOCKS,
            n_blocks: BLOCKS,
            ..decode_of(slot)
        });
        let (seqs, starts) = (seqs.collect(), vec![SeqStart::default(); batch as usize]);
        self.run(Step { seqs, starts, blocks: (0..batch * BLOCKS).collect(), ..Step::default() }, batch * len)
    }

    /// Runs the `n`-th token after the prompts of `batch` sequences. Returns the time of the step, nanoseconds.
    fn decode(&mut self, batch: u32, n: u32) -> anyhow::Result<f64> {
        let seqs = (0..batch).map(|slot| StepSeq {
            computed: PROMPT + n,
            tokens_at: slot,
            table_keep: BLOCKS,
            n_generated: n + 1,
            ..decode_of(slot)
        });
        self.run(Step { seqs: seqs.collect(), ..Step::default() }, batch)
    }

    fn run(&mut self, mut step: Step, n_tokens: u32) -> anyhow::Result<f64> {
        self.steps += 1;
        step.id = self.steps;
        step.tokens = (0..n_tokens).map(|_| self.numbers.below(self.vocab as usize) as u32).collect();
        let mut result = Ok(());
        let time = time_ns(|| result = self.worker.run(&step).map(drop));
        result?;
        Ok(time)
    }
}

/// One sampled token of a sequence.
fn decode_of(slot: u32) -> StepSeq {
    StepSeq { request: RequestId(u64::from(slot)), slot, n_tokens: 1, sample: true, ..StepSeq::default() }
}
