//! Worker benchmark: prefill and decode of a model with random weights, for every kind of weights, or of a model from a file.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, ensure};
use tempfile::TempDir;
use trunkline_core::names::registry;
use trunkline_port::streaming::{parts, pass};
use trunkline_port::{RequestId, SeqStart, Step, StepOutput, StepSeq, WeightReads};
use trunkline_worker::{Kernel, Model, StreamInfo, WeightKind, Worker, WorkerConfig};

use super::measure::{Report, time_ns};
use trunkline::h2o::numbers::Numbers;
use trunkline::model::model_source::ModelSource;
use trunkline::model::weights_settings::{Placement, Streaming};

const NOTES: [&str; 2] = [
    "Without a file, a model of the shape of SmolLM2-135M with random weights. Prefill is one prompt of 512 tokens in one step.",
    "Decode is a step of one token for each sequence of a batch, after prompts of 128 tokens.",
];
/// Notes on figures of streamed weights.
const STREAM_NOTES: [&str; 2] = [
    "Streamed weights: reading is the sum of the durations of the reads for a step, exposed the time for which the step waited for weights, hidden",
    "reading - exposed; serial is the step without overlap, and the recurrence the one of the simulator, with the times of that step.",
];
/// Layers of the models with random weights.
const LAYERS: u32 = 30;
const SEED: u64 = 1;
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

/// Measures the model at `path`, or random weights of one kind or every kind, with a number of threads and weights in the places of `placement`; a quick run
/// has a few layers of random weights and few steps.
///
/// # Errors
/// If the model cannot be read, has a context that is too short, or the worker's memory cannot be had.
pub fn run(
    path: Option<&Path>,
    kind: Option<&str>,
    threads: usize,
    placement: &Placement,
    quick: bool,
) -> anyhow::Result<Report> {
    let mut notes = NOTES.to_vec();
    if *placement != Placement::Resident {
        notes.extend(STREAM_NOTES);
    }
    let mut report = Report::new("worker", quick, notes);
    let (placement, _temporary) = in_a_folder(placement)?;
    if let Some(path) = path {
        let source = ModelSource::Path(path);
        let revision = if placement == Placement::Resident { String::new() } else { source.revision()? };
        let model = source.placed(&placement, &revision, 1)?;
        let context = model.config().max_context;
        ensure!(context > PREFILL, "the model's context is {context} tokens; the benchmark needs more than {PREFILL}");
        let name = model.name().to_owned();
        measure(&mut report, &name, model, threads, quick)?;
        return Ok(report);
    }
    let known = KINDS.map(|kind| (kind.name(), kind));
    let one = kind.map(|name| registry::choose("kind of weights", &known, name)).transpose()?;
    for kind in KINDS.into_iter().filter(|kind| one.is_none_or(|one| one == *kind)) {
        let layers = match (quick, &placement) {
            (false, _) => LAYERS,
            (true, Placement::Resident) => 1,
            (true, Placement::Stream(_)) => 4,
        };
        let model = Model::seeded_like_smollm2(kind, layers, SEED);
        let model = match &placement {
            Placement::Resident => model,
            Placement::Stream(streaming) => {
                streaming.place(model, &format!("random {SEED} {} {layers}", kind.name()), 1)?
            }
        };
        measure(&mut report, kind.name(), model, threads, quick)?;
    }
    Ok(report)
}

/// Gives streamed weights without a folder a temporary one. Dropping the second value removes the temporary one.
fn in_a_folder(placement: &Placement) -> anyhow::Result<(Placement, Option<TempDir>)> {
    let Placement::Stream(streaming @ Streaming { dir: None, .. }) = placement else {
        return Ok((placement.clone(), None));
    };
    let folder =
        tempfile::tempdir().context("cannot make a folder for temporary files; give weights 'stream' dir=PATH")?;
    let dir = Some(folder.path().to_owned());
    Ok((Placement::Stream(Streaming { dir, ..streaming.clone() }), Some(folder)))
}

/// Adds the figures of one model, with the fastest kernel of the machine.
fn measure(report: &mut Report, name: &str, model: Model, threads: usize, quick: bool) -> anyhow::Result<()> {
    let model = model.with_kernel(Kernel::of_machine());
    let vocab = model.config().vocab_size;
    let config = WorkerConfig {
        block_size: BLOCK_SIZE,
        device_blocks: BLOCKS * BATCHES[BATCHES.len() - 1],
        max_drafts: 0,
        threads,
    };
    let stream = model.stream_info().cloned();
    let worker = Worker::new(Arc::new(model), config)?;
    let mut runner = Runner { worker, vocab, numbers: Numbers::from_seed(0), steps: 0, reads: Vec::new() };
    let (prefills, decodes) = if quick { (1, 1) } else { (5, DECODES) };
    let times = (0..prefills).map(|_| runner.prefill(1, PREFILL)).collect::<Result<Vec<_>, _>>()?;
    report.add("prefill", name, "tokens/s", times.iter().map(|ns| f64::from(PREFILL) * 1e9 / ns).collect());
    add_reads(report, "prefill", name, stream.as_ref(), &mut runner);
    for batch in BATCHES {
        runner.prefill(batch, PROMPT)?;
        runner.reads.clear();
        let times = (0..decodes).map(|n| runner.decode(batch, n)).collect::<Result<Vec<_>, _>>()?;
        let case = format!("{name}, batch {batch}");
        report.add("decode", case.as_str(), "tokens/s", times.iter().map(|ns| f64::from(batch) * 1e9 / ns).collect());
        add_reads(report, "decode", &case, stream.as_ref(), &mut runner);
    }
    Ok(())
}

/// Adds the figures of the reads since the last call, if weights are streamed.
fn add_reads(report: &mut Report, what: &str, case: &str, stream: Option<&StreamInfo>, runner: &mut Runner) {
    let reads = std::mem::take(&mut runner.reads);
    let Some(stream) = stream.filter(|_| reads.iter().any(|reads| reads.bytes > 0)) else { return };
    let mut add = |figure: &str, unit, of: &dyn Fn(&WeightReads) -> f64| {
        report.add(&format!("{what}: {figure}"), case, unit, reads.iter().map(of).collect());
    };
    add("bytes read", "MB", &|reads| reads.bytes as f64 / 1e6);
    add("rate of the reads", "GB/s", &|reads| reads.bytes as f64 / reads.reading_ns.max(1) as f64);
    add("reading", "ms", &|reads| reads.reading_ns as f64 / 1e6);
    add("exposed", "ms", &|reads| reads.exposed_ns as f64 / 1e6);
    add("step", "ms", &|reads| reads.step_ns as f64 / 1e6);
    add("hidden share", "of reading", &|reads| reads.hidden_share().unwrap_or(0.0));
    add("saved share", "of serial", &|reads| reads.saved_share().unwrap_or(0.0));
    add("step by the recurrence", "ms", &|reads| predicted(stream, reads).step_ns as f64 / 1e6);
}

/// Returns the step that the recurrence of streamed weights predicts from the rate of the reads and the time of the computation.
fn predicted(stream: &StreamInfo, reads: &WeightReads) -> WeightReads {
    let groups: Vec<(u64, bool)> = stream.groups.iter().map(|group| (group.bytes, group.is_pinned)).collect();
    let streamed: u64 = groups.iter().filter(|(_, is_pinned)| !is_pinned).map(|(bytes, _)| bytes).sum();
    let read_s_per_byte = reads.reading_ns as f64 * 1e-9 / streamed.max(1) as f64;
    let visits = parts(&groups, stream.head_bytes, read_s_per_byte, reads.computing_ns() as f64 * 1e-9);
    pass(&visits, stream.slots as usize)
}

/// A worker, and the tokens and numbers of its steps.
struct Runner {
    worker: Worker,
    vocab: u32,
    numbers: Numbers,
    steps: u64,
    /// Reads of weights of each step.
    reads: Vec<WeightReads>,
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
        let mut result = Ok(StepOutput::default());
        let time = time_ns(|| result = self.worker.run(&step));
        let output = result?;
        if let Some(failed) = output.result.failed.first() {
            anyhow::bail!("{}; check the model's weights", failed.fault);
        }
        self.reads.push(output.weights);
        Ok(time)
    }
}

/// One sampled token of a sequence.
fn decode_of(slot: u32) -> StepSeq {
    StepSeq { request: RequestId(u64::from(slot)), slot, n_tokens: 1, sample: true, ..StepSeq::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_weights_go_to_a_temporary_folder_that_is_removed_unless_a_folder_is_given() {
        let (model, given) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let small = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/llama-biases-f32");
        for entry in std::fs::read_dir(small).unwrap().map(Result::unwrap) {
            std::fs::copy(entry.path(), model.path().join(entry.file_name())).unwrap();
        }
        let packed = |folder: &Path| {
            let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            names.filter(|path| path.extension().is_some_and(|is| is == "packed")).count()
        };
        // The model is placed, and then its context is too short to be measured.
        let bench = |spec: &str| {
            let error = run(Some(model.path()), None, 1, &spec.parse().unwrap(), true).unwrap_err().to_string();
            assert!(error.starts_with("the model's context is "), "{error}");
        };
        bench("stream:memory_mib=64");
        assert_eq!(packed(model.path()), 0);
        bench(&format!("stream:memory_mib=64,dir={}", given.path().display()));
        assert_eq!((packed(model.path()), packed(given.path())), (0, 1));
        let (placement, temporary) = in_a_folder(&"stream:memory_mib=64".parse().unwrap()).unwrap();
        let Placement::Stream(Streaming { dir: Some(dir), .. }) = placement else { panic!("no folder") };
        assert!(dir.starts_with(std::env::temp_dir()) && dir.exists());
        drop(temporary);
        assert!(!dir.exists());
    }
}
