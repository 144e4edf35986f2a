//! The worker: runs the steps of a scheduler on a model and a KV cache.

use std::sync::Arc;

use trunkline_core::{RequestId, Step, StepResult};

use crate::attention::Sequence;
use crate::error::WorkerError;
use crate::kv::KvCache;
use crate::mirror::{Limits, Mirror};
use crate::model::{Batch, Model, Scratch};
use crate::sampler::{log_probabilities, sample};
use crate::threads::Threads;

/// About how many operations picking a token takes for each token of the vocabulary.
const SAMPLE_COST: usize = 16;

/// More threads than this are a mistake.
const THREADS_MAX: usize = 1024;

/// How much memory and how many threads a worker takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Tokens in a KV block. Multiples of 16 are fastest.
    pub block_size: u32,
    /// KV blocks. They are allocated at once, [`Model::kv_bytes_per_token`] times `block_size` bytes each.
    pub device_blocks: u32,
    /// Threads to compute with, at most 1024; 0 is one for each core.
    pub threads: usize,
}

/// What a step produced.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepOutput {
    /// The sampled tokens.
    pub result: StepResult,
    /// One for each sampled token of a sequence that asked for log probabilities, in step order.
    pub logprobs: Vec<TokenLogprobs>,
}

/// Log probabilities at one sampled token: natural logarithms of a softmax over the model's own logits, before
/// repetition penalty, temperature and truncation.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The request.
    pub request: RequestId,
    /// The token that was sampled.
    pub token: u32,
    /// Its log probability.
    pub logprob: f32,
    /// The most likely tokens and theirs, as many as were asked for, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// A model, a KV cache and the mirror of the sequences in them.
///
/// What is sampled for a sequence depends on its tokens, its sampling parameters and the model; never on the other
/// sequences of a step, on how its prompt was cut into steps, on the number of threads, or on whether its blocks were
/// computed for it or for another request with the same prefix. This holds for every bit of the logits.
pub struct Worker {
    model: Arc<Model>,
    threads: Threads,
    kv: KvCache,
    mirror: Mirror,
    scratch: Scratch,
}

impl Worker {
    /// Starts the threads and allocates the cache.
    ///
    /// # Errors
    ///
    /// A block size or a number of blocks of 0, too many threads, no memory for the cache, or no threads.
    pub fn new(model: Arc<Model>, config: WorkerConfig) -> Result<Worker, WorkerError> {
        for (field, value) in [("block_size", config.block_size), ("device_blocks", config.device_blocks)] {
            if value == 0 {
                return Err(WorkerError::Config { field, value: 0, expected: "at least 1" });
            }
        }
        if config.threads > THREADS_MAX {
            let value = config.threads as u64;
            return Err(WorkerError::Config { field: "threads", value, expected: "at most 1024" });
        }
        let threads = Threads::new(config.threads)?;
        let kv = KvCache::new(model.config(), config.block_size, config.device_blocks)?;
        let limits = Limits {
            block_size: config.block_size,
            n_blocks: config.device_blocks,
            vocab: model.config().vocab_size,
            context: model.config().max_context,
        };
        Ok(Self { model, threads, kv, mirror: Mirror::new(limits), scratch: Scratch::default() })
    }

    /// Runs a step: all its tokens in one pass, then samples for the sequences that are to.
    ///
    /// # Errors
    ///
    /// A step that contradicts itself or what the worker holds, see [`WorkerError`]; it has changed nothing. Logits that
    /// are not finite.
    pub fn run(&mut self, step: &Step) -> Result<StepOutput, WorkerError> {
        self.mirror.apply(step)?;
        let sampled = self.forward(step);
        self.sample(step, &sampled)
    }

    /// Like [`Worker::run`], and returns the logits behind each sampled token, in step order: for tests and tools.
    ///
    /// # Errors
    ///
    /// Those of [`Worker::run`].
    pub fn run_with_logits(&mut self, step: &Step) -> Result<(StepOutput, Vec<Vec<f32>>), WorkerError> {
        let output = self.run(step)?;
        let vocab = self.model.config().vocab_size as usize;
        Ok((output, self.scratch.logits.chunks_exact(vocab).map(<[f32]>::to_vec).collect()))
    }

    /// Forgets every sequence. The next step of each MUST start it.
    pub fn reset(&mut self) {
        self.mirror.clear();
    }

    /// Runs the model and returns the indices of the sequences that sample: their logits lie in the scratch memory.
    fn forward(&mut self, step: &Step) -> Vec<usize> {
        let Self { model, threads, kv, mirror, scratch } = self;
        let mut tokens = Vec::with_capacity(step.n_tokens() as usize);
        let mut sequences = Vec::with_capacity(step.seqs.len());
        let (mut sampled, mut logit_rows) = (Vec::new(), Vec::new());
        for (i, seq) in step.seqs.iter().enumerate() {
            sequences.push(Sequence {
                table: &mirror.slot(seq).table,
                row: tokens.len(),
                n_rows: seq.n_tokens as usize,
                position: seq.computed,
                write_from: seq.kv_write_from,
            });
            tokens.extend_from_slice(step.run_tokens(seq));
            if seq.sample {
                sampled.push(i);
                logit_rows.push(tokens.len() - 1);
            }
        }
        let batch = Batch { tokens: &tokens, sequences: &sequences, logit_rows: &logit_rows };
        threads.enter(|| model.forward(&batch, kv, scratch, threads));
        sampled
    }

    /// Picks a token for each of the sequences `sampled`.
    fn sample(&mut self, step: &Step, sampled: &[usize]) -> Result<StepOutput, WorkerError> {
        let vocab = self.model.config().vocab_size as usize;
        let (mirror, logits) = (&self.mirror, &self.scratch.logits);
        let picked = self.threads.map(sampled.len(), sampled.len() * vocab * SAMPLE_COST, |i| {
            let logits = &logits[i * vocab..(i + 1) * vocab];
            let seq = &step.seqs[sampled[i]];
            if !logits.iter().all(|logit| logit.is_finite()) {
                return Err(WorkerError::NonFinite { step: step.id, request: seq.request });
            }
            let slot = mirror.slot(seq);
            let token = sample(logits, &slot.sampling, &slot.seen, seq.n_generated);
            let logprobs = slot.sampling.logprobs.map(|n| {
                let (logprob, top) = log_probabilities(logits, token, n);
                TokenLogprobs { request: seq.request, token, logprob, top }
            });
            Ok((token, logprobs))
        });
        let mut output = StepOutput::default();
        output.result.step = step.id;
        let picked = picked.into_iter().collect::<Result<Vec<_>, _>>()?;
        let mut picked = picked.into_iter();
        for seq in &step.seqs {
            let next = if seq.sample { picked.next() } else { None };
            let Some((token, logprobs)) = next else {
                output.result.push(&[]);
                continue;
            };
            self.mirror.note(seq, token);
            output.result.push(&[token]);
            output.logprobs.extend(logprobs);
        }
        Ok(output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_that_cannot_work_are_refused() {
        let model = Arc::new(Model::seeded(0));
        let good = WorkerConfig { block_size: 16, device_blocks: 4, threads: 1 };
        for (config, field) in [
            (WorkerConfig { block_size: 0, ..good }, "block_size"),
            (WorkerConfig { device_blocks: 0, ..good }, "device_blocks"),
            (WorkerConfig { threads: 5000, ..good }, "threads"),
        ] {
            let Err(WorkerError::Config { field: found, .. }) = Worker::new(Arc::clone(&model), config) else {
                panic!("accepted")
            };
            assert_eq!(found, field);
        }
        let huge = WorkerConfig { device_blocks: u32::MAX, block_size: 1 << 20, ..good };
        assert!(matches!(Worker::new(Arc::clone(&model), huge), Err(WorkerError::KvMemory { .. })));
        let mut worker = Worker::new(model, good).unwrap();
        assert_eq!(worker.run(&Step { id: 3, ..Step::default() }).unwrap().result.step, 3);
    }

    #[test]
    fn logits_that_are_not_finite_are_an_error_and_not_a_token() {
        let mut worker = Worker::new(
            Arc::new(Model::seeded_with_a_nan()),
            WorkerConfig { block_size: 16, device_blocks: 1, threads: 1 },
        )
        .unwrap();
        let seq = trunkline_core::StepSeq {
            request: RequestId(4),
            slot: 0,
            start: true,
            computed: 0,
            n_tokens: 1,
            n_history: 0,
            tokens_at: 0,
            kv_write_from: 0,
            table_keep: 0,
            blocks_at: 0,
            n_blocks: 1,
            sample: true,
            n_generated: 0,
            n_drafts: 0,
        };
        let sampling = vec![trunkline_core::Sampling::default()];
        let step = Step { id: 1, seqs: vec![seq], tokens: vec![1], blocks: vec![0], sampling };
        assert_eq!(worker.run(&step), Err(WorkerError::NonFinite { step: 1, request: RequestId(4) }));
    }
}
