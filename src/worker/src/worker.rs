//! The worker: runs the steps of a scheduler on a model and a KV cache.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use trunkline_port::{CopyError, Place, Step, StepError, StepOutput, StepRunner, Token, TokenLogprobs, Transfer};

use crate::attention::Sequence;
use crate::error::{TransferFault, WorkerError};
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
    /// KV blocks of the host, for [`Worker::transfer`]; 0 is none. As large as the others, and allocated at once too: what
    /// the scheduler calls the device is this machine's memory as well.
    pub host_blocks: u32,
    /// Tokens to draft for a sequence in one step at most; 0 is off, and no tokens are kept. MUST be above 0 only if the
    /// scheduler's `max_drafts` is: every sequence has to start with its history.
    pub max_drafts: u32,
    /// Threads to compute with, at most 1024; 0 is one for each core.
    pub threads: usize,
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
    host: KvCache,
    mirror: Mirror,
    scratch: Scratch,
}

/// A sequence of a step that samples.
struct Sampled {
    /// Which entry of [`Step::seqs`].
    index: usize,
    /// The first of its rows in the logits: one for the token after its own, and one for each draft.
    logit_row: usize,
    /// Guesses of what follows its own tokens, run with them.
    drafts: Vec<Token>,
}

/// What was sampled for a sequence: up to and including the first token that differs from its draft.
#[derive(Default)]
struct Picked {
    tokens: Vec<Token>,
    logprobs: Vec<TokenLogprobs>,
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
        let host = KvCache::new(model.config(), config.block_size, config.host_blocks)?;
        let limits = Limits {
            block_size: config.block_size,
            n_blocks: config.device_blocks,
            vocab: model.config().vocab_size,
            context: model.config().max_context,
            max_drafts: config.max_drafts,
        };
        Ok(Self { model, threads, kv, host, mirror: Mirror::new(limits), scratch: Scratch::default() })
    }

    /// Runs a step: all its tokens in one pass, then samples for the sequences that are to.
    ///
    /// # Errors
    ///
    /// A step that contradicts itself or what the worker holds, see [`WorkerError`]; it has changed nothing. Logits that
    /// are not finite.
    pub fn run(&mut self, step: &Step) -> Result<StepOutput, WorkerError> {
        Ok(self.run_step(step)?.0)
    }

    /// Like [`Worker::run`], and returns the logits behind each sampled token, in step order: for tests and tools.
    ///
    /// # Errors
    ///
    /// Those of [`Worker::run`].
    pub fn run_with_logits(&mut self, step: &Step) -> Result<(StepOutput, Vec<Vec<f32>>), WorkerError> {
        let (output, sampled) = self.run_step(step)?;
        let rows = sampled.iter().flat_map(|sampled| {
            let n = output.result.of(sampled.index).len();
            (sampled.logit_row..sampled.logit_row + n).map(|row| self.logits(row).to_vec())
        });
        let rows = rows.collect();
        Ok((output, rows))
    }

    /// Copies blocks of all layers between device and host, one pair after another.
    ///
    /// # Errors
    ///
    /// A block that there is not, or two pairs with one destination, see [`TransferFault`]; nothing was copied.
    pub fn transfer(&mut self, transfer: &Transfer) -> Result<(), WorkerError> {
        self.check_transfer(transfer)?;
        for (from, to) in &transfer.pairs {
            match transfer.to {
                Place::Device => self.kv.copy_block(*to, &self.host, *from),
                _ => self.host.copy_block(*to, &self.kv, *from),
            }
        }
        Ok(())
    }

    /// Forgets every sequence. The next step of each MUST start it.
    pub fn reset(&mut self) {
        self.mirror.clear();
    }

    fn check_transfer(&self, transfer: &Transfer) -> Result<(), WorkerError> {
        let (device_blocks, host_blocks) = (self.kv.n_blocks(), self.host.n_blocks());
        let mut destinations = HashSet::with_capacity(transfer.pairs.len());
        for (index, (from, to)) in transfer.pairs.iter().copied().enumerate() {
            let (device, host) = match (transfer.from, transfer.to) {
                (Place::Device, Place::Host) => (from, to),
                (Place::Host, Place::Device) => (to, from),
                _ => return Err(WorkerError::Transfer { transfer: transfer.id, index, fault: TransferFault::NoTier }),
            };
            let fault = if device >= device_blocks {
                TransferFault::DeviceBlock { block: device, limit: device_blocks }
            } else if host >= host_blocks {
                TransferFault::HostBlock { block: host, limit: host_blocks }
            } else if !destinations.insert(to) {
                TransferFault::DestinationTwice { block: to }
            } else {
                continue;
            };
            return Err(WorkerError::Transfer { transfer: transfer.id, index, fault });
        }
        Ok(())
    }

    fn run_step(&mut self, step: &Step) -> Result<(StepOutput, Vec<Sampled>), WorkerError> {
        self.mirror.apply(step)?;
        let sampled = self.forward(step);
        let picked = self.pick(step, &sampled)?;
        Ok((self.answer(step, &sampled, picked), sampled))
    }

    /// Drafts, runs the model, and returns the sequences that sample: their logits lie in the scratch memory.
    fn forward(&mut self, step: &Step) -> Vec<Sampled> {
        let Self { model, threads, kv, mirror, scratch, .. } = self;
        let mut tokens = Vec::with_capacity(step.n_tokens() as usize);
        let mut sequences = Vec::with_capacity(step.seqs.len());
        let (mut sampled, mut logit_rows) = (Vec::new(), Vec::new());
        for (index, seq) in step.seqs.iter().enumerate() {
            let row = tokens.len();
            tokens.extend_from_slice(step.run_tokens(seq));
            if seq.sample {
                let drafts = mirror.draft(seq);
                let logit_row = logit_rows.len();
                logit_rows.extend(tokens.len() - 1..tokens.len() + drafts.len());
                tokens.extend_from_slice(&drafts);
                sampled.push(Sampled { index, logit_row, drafts });
            }
            sequences.push(Sequence {
                table: &mirror.slot(seq).table,
                row,
                n_rows: tokens.len() - row,
                position: seq.computed,
                write_from: seq.kv_write_from,
            });
        }
        let batch = Batch { tokens: &tokens, sequences: &sequences, logit_rows: &logit_rows };
        threads.enter(|| model.forward(&batch, kv, scratch, threads));
        sampled
    }

    /// Row `row` of the logits of the last forward pass.
    fn logits(&self, row: usize) -> &[f32] {
        let vocab = self.model.config().vocab_size as usize;
        &self.scratch.logits[row * vocab..(row + 1) * vocab]
    }

    /// Picks tokens for each of the sequences `sampled`.
    fn pick(&self, step: &Step, sampled: &[Sampled]) -> Result<Vec<Picked>, WorkerError> {
        let cost = self.scratch.logits.len() * SAMPLE_COST;
        let picked = self.threads.map(sampled.len(), cost, |i| self.pick_for(step, &sampled[i]));
        picked.into_iter().collect()
    }

    /// Picks the token after a sequence's own, and as long as the token is what was drafted there, the next one: each as
    /// it would be picked in a step of its own.
    fn pick_for(&self, step: &Step, sampled: &Sampled) -> Result<Picked, WorkerError> {
        let seq = &step.seqs[sampled.index];
        let slot = self.mirror.slot(seq);
        // With a right draft the sequence has one token more that counts as seen; what is wrong never does.
        let mut seen = Cow::Borrowed(&slot.seen);
        let mut picked = Picked::default();
        for n in 0..=sampled.drafts.len() {
            let logits = self.logits(sampled.logit_row + n);
            if !logits.iter().all(|logit| logit.is_finite()) {
                return Err(WorkerError::NonFinite { step: step.id, request: seq.request });
            }
            let token = sample(logits, &slot.sampling, &seen, seq.n_generated + n as u32);
            picked.tokens.push(token);
            picked.logprobs.extend(slot.sampling.logprobs.map(|n_top| {
                let (logprob, top) = log_probabilities(logits, token, n_top);
                TokenLogprobs { request: seq.request, token, logprob, top }
            }));
            if sampled.drafts.get(n) != Some(&token) {
                break;
            }
            if slot.sampling.needs_history() {
                seen.to_mut().insert(token);
            }
        }
        Ok(picked)
    }

    /// Notes what was picked and puts it together.
    fn answer(&mut self, step: &Step, sampled: &[Sampled], picked: Vec<Picked>) -> StepOutput {
        let mut output = StepOutput::default();
        output.result.step = step.id;
        let mut picked = sampled.iter().zip(picked).peekable();
        for (index, seq) in step.seqs.iter().enumerate() {
            let Some((sampled, picked)) = picked.next_if(|(sampled, _)| sampled.index == index) else {
                output.result.push(&[]);
                continue;
            };
            self.mirror.note(seq, &picked.tokens, sampled.drafts.len());
            output.result.push(&picked.tokens);
            output.logprobs.extend(picked.logprobs);
            output.drafted += sampled.drafts.len() as u64;
            output.accepted += picked.tokens.len() as u64 - 1;
        }
        output
    }
}

impl StepRunner for Worker {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        Self::run(self, step).map_err(StepError::from)
    }

    fn transfer(&mut self, transfer: &Transfer) -> Result<(), CopyError> {
        Self::transfer(self, transfer).map_err(CopyError::new)
    }

    fn reset(&mut self) {
        Self::reset(self);
    }
}

#[cfg(test)]
mod tests {
    use trunkline_port::{RequestId, Sampling, StepSeq};

    use super::*;

    #[test]
    fn configurations_that_cannot_work_are_refused() {
        let model = Arc::new(Model::seeded(0));
        let good = WorkerConfig { block_size: 16, device_blocks: 4, host_blocks: 0, max_drafts: 0, threads: 1 };
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
        let huge = WorkerConfig { host_blocks: u32::MAX, ..good };
        assert!(matches!(Worker::new(Arc::clone(&model), huge), Err(WorkerError::KvMemory { blocks: u32::MAX, .. })));
        let mut worker = Worker::new(model, good).unwrap();
        assert_eq!(worker.run(&Step { id: 3, ..Step::default() }).unwrap().result.step, 3);
    }

    #[test]
    fn logits_that_are_not_finite_are_an_error_and_not_a_token() {
        let mut worker = Worker::new(
            Arc::new(Model::seeded_with_a_nan()),
            WorkerConfig { block_size: 16, device_blocks: 1, host_blocks: 0, max_drafts: 0, threads: 1 },
        )
        .unwrap();
        let seq = StepSeq {
            request: RequestId(4),
            slot: 0,
            start: true,
            computed: 0,
            n_tokens: 1,
            n_history: 0,
            tokens_at: 0,
            input_from_last: false,
            kv_write_from: 0,
            table_keep: 0,
            blocks_at: 0,
            n_blocks: 1,
            sample: true,
            n_generated: 0,
            n_drafts: 0,
        };
        let sampling = vec![Sampling::default()];
        let step = Step { id: 1, seqs: vec![seq], tokens: vec![1], blocks: vec![0], sampling };
        assert_eq!(worker.run(&step), Err(WorkerError::NonFinite { step: 1, request: RequestId(4) }));
    }
}
