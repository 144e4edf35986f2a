//! The worker: runs the steps of a scheduler on a model and a KV cache.

pub(crate) mod cell_copies;
pub(crate) mod drafter;
pub(crate) mod mirror;
pub(crate) mod past;
mod prompts;
pub(crate) mod sampler;
pub(crate) mod structure;

use std::borrow::Cow;
use std::sync::Arc;

use trunkline_grammar::Grammars;
use trunkline_port::{DeviceBlocks, Keeps, SeqFault, Step, StepError, StepOutput, StepRunner, Token, TokenLogprobs};

use crate::error::WorkerError;
use crate::kv::block_tables::BlockTables;
use crate::kv::blocks::Blocks;
use crate::kv::table::Table;
use crate::kv::{KvCache, KvDtype, KvMemory};
use crate::layers::attention::Sequence;
use crate::layers::scores::ScoredRows;
use crate::layers::threads::Threads;
use crate::model::{Batch, Model, Scratch};
use crate::stream::Stream;
use crate::worker::mirror::{Limits, Mirror};
use crate::worker::prompts::ValuedPrompt;
use crate::worker::sampler::{log_probabilities, sample};
use crate::worker::structure::Structures;

/// About how many operations picking a token takes for each token of the vocabulary.
const SAMPLE_COST: usize = 16;

/// Token run in the place of one that could not be sampled, by steps sent before the core knew.
const NO_TOKEN: Token = 0;

/// More threads than this are a mistake.
const THREADS_MAX: usize = 1024;

/// Memory and threads of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerConfig {
    /// Tokens in a KV block. Multiples of 16 are fastest.
    pub block_size: u32,
    /// Number of KV blocks of the device, for all layer groups together, allocated at once. A block has room for `block_size` tokens in the
    /// layers of the largest group.
    pub device_blocks: u32,
    /// Tokens to draft for a sequence in one step at most; 0 is off, and no tokens are kept. MUST be above 0 only if the
    /// scheduler's `max_drafts` is above 0: every sequence has to start with the tokens of the sequence's history.
    pub max_drafts: u32,
    /// Threads to compute with, at most 1024; 0 is one for each core.
    pub threads: usize,
}

/// A model, a KV cache and the mirror of the sequences in the cache.
///
/// The tokens sampled for a sequence depend on the sequence's tokens, sampling parameters and the model; never on the other
/// sequences of a step, on the division of the prompt into steps, on the number of threads, or on the request for which the blocks
/// were computed (the sequence's own or another request with the same prefix). This holds for every bit of the logits.
pub struct Worker {
    model: Arc<Model>,
    threads: Threads,
    kv: KvCache,
    mirror: Mirror,
    structures: Structures,
    scratch: Scratch,
    /// Weights that are not in memory.
    stream: Option<Stream>,
}

/// A sampling sequence of a step.
struct Sampled {
    /// Index of the sequence in [`Step::seqs`].
    index: usize,
    /// The sequence's first row in the logits: one row for the token after the sequence's last, and one for each draft.
    logit_row: usize,
    /// Drafts of the next tokens, run in the same pass.
    drafts: Vec<Token>,
}

/// Tokens sampled for a sequence: up to and including the first token unequal to the draft, or before the first logits that are not finite.
/// Empty if no logits are.
#[derive(Default)]
struct Picked {
    tokens: Vec<Token>,
    logprobs: Vec<TokenLogprobs>,
    /// Reason for having no token; `None` for logits that are not finite.
    fault: Option<SeqFault>,
}

impl Worker {
    /// Starts the threads and allocates the cache.
    ///
    /// # Errors
    ///
    /// A block size or a number of blocks of 0, too many threads, no memory for the cache, or no threads.
    pub fn new(model: Arc<Model>, config: WorkerConfig) -> Result<Worker, WorkerError> {
        let kv_dtype = model.kv_dtype();
        Self::with_kv_dtype(model, kv_dtype, config)
    }

    /// Starts as [`Self::new`] does, with another type of KV than the model's: workers of several types share the weights of one model.
    ///
    /// # Errors
    ///
    /// As [`Self::new`].
    pub fn with_kv_dtype(model: Arc<Model>, kv_dtype: KvDtype, config: WorkerConfig) -> Result<Worker, WorkerError> {
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
        let memory = KvMemory::new(
            model.config(),
            model.groups().block_shape(),
            kv_dtype,
            config.block_size,
            config.device_blocks,
        )?;
        let kv = KvCache::new(Arc::new(memory));
        let limits = Limits {
            block_size: config.block_size,
            n_blocks: config.device_blocks,
            vocab: model.config().vocab_size,
            context: model.config().max_context,
            max_drafts: config.max_drafts,
        };
        let mirror = Mirror::new(limits, model.groups().keeps().to_vec());
        let stream = model.stream()?;
        let (structures, scratch) = (Structures::new(threads.count()), Scratch::of(&model));
        Ok(Self { model, threads, kv, mirror, structures, scratch, stream })
    }

    /// Takes the memory of all KV blocks from the system now, not when a block is used first: memory that is promised but not there is missed at the start,
    /// not in the middle of a request.
    #[must_use]
    pub fn with_resident_kv(self) -> Self {
        self.kv.memory().touch();
        self
    }

    /// Lets requests ask for a structure of their answers. Without this, a sequence with a grammar fails.
    #[must_use]
    pub fn with_grammars(mut self, grammars: Arc<Grammars>) -> Self {
        self.structures.set_grammars(grammars);
        self
    }

    /// Runs a step: all tokens in one pass, then samples for the sequences with `sample`.
    ///
    /// # Errors
    ///
    /// A step in contradiction to itself or to the worker's state, see [`WorkerError`]; the worker is unchanged. Streamed weights that cannot
    /// be read. Logits that are not finite fail their sequence alone, see [`trunkline_port::StepResult::failed`].
    pub fn run(&mut self, step: &Step) -> Result<StepOutput, WorkerError> {
        Ok(self.run_step(step)?.0)
    }

    /// Like [`Worker::run`], and returns the logits behind each sampled token, in step order: for tests and tools.
    ///
    /// # Errors
    ///
    /// The errors of [`Worker::run`].
    pub fn run_with_logits(&mut self, step: &Step) -> Result<(StepOutput, Vec<Vec<f32>>), WorkerError> {
        let (output, sampled) = self.run_step(step)?;
        let rows = sampled.iter().flat_map(|sampled| {
            let n = output.result.of(sampled.index).len();
            (sampled.logit_row..sampled.logit_row + n).map(|row| self.logits(row).to_vec())
        });
        let rows = rows.collect();
        Ok((output, rows))
    }

    /// Returns this worker's blocks as bytes, for use on other threads while steps run.
    pub fn blocks(&self) -> Blocks {
        Blocks::new(Arc::clone(self.kv.memory()))
    }

    /// Forgets every sequence. The next step of each MUST start the sequence again.
    pub fn reset(&mut self) {
        self.mirror.clear();
        self.structures.clear();
    }

    fn run_step(&mut self, step: &Step) -> Result<(StepOutput, Vec<Sampled>), WorkerError> {
        if !step.copies.is_empty() {
            self.copy_cells(step)?;
        }
        self.mirror.apply(step)?;
        self.structures.apply(step, &self.mirror)?;
        let (sampled, logit_rows) = self.forward(step)?;
        let prompts = self.value_prompts(step);
        let Self { model, threads, scratch, .. } = self;
        threads.enter(|| model.head(logit_rows.into_iter(), scratch, threads));
        let picked = self.pick(step, &sampled);
        self.structures.look_ahead(step)?;
        Ok((self.answer(step, &sampled, picked, prompts), sampled))
    }

    /// Makes the copies of a step, if the whole step can be run.
    fn copy_cells(&self, step: &Step) -> Result<(), WorkerError> {
        let memory = self.kv.memory();
        cell_copies::check(step, self.mirror.limits(), memory.dtype(), self.model.groups().keeps().len())?;
        self.mirror.check(step)?;
        self.threads.enter(|| cell_copies::run(&step.copies, memory, self.model.rope(), &self.threads));
        Ok(())
    }

    /// Drafts, runs the model, and returns the sampling sequences with the rows of the batch whose logits they need.
    fn forward(&mut self, step: &Step) -> Result<(Vec<Sampled>, Vec<usize>), WorkerError> {
        let Self { model, threads, kv, mirror, scratch, stream, .. } = self;
        if let Some(stream) = stream {
            stream.begin(step.seqs.iter().any(|seq| seq.n_tokens > 1));
        }
        let mut tokens = Vec::with_capacity(step.n_tokens() as usize);
        let mut sequences = Vec::with_capacity(step.seqs.len());
        let (mut sampled, mut logit_rows) = (Vec::new(), Vec::new());
        for (index, seq) in step.seqs.iter().enumerate() {
            let row = tokens.len();
            tokens.extend_from_slice(mirror.run_tokens(step, seq));
            if seq.sample {
                let drafts = mirror.draft(seq);
                let logit_row = logit_rows.len();
                logit_rows.extend(tokens.len() - 1..tokens.len() + drafts.len());
                tokens.extend_from_slice(&drafts);
                sampled.push(Sampled { index, logit_row, drafts });
            }
            sequences.push(Sequence {
                tables: tables(&mirror.slot(seq).tables, model.groups().keeps(), kv.block_size()),
                row,
                n_rows: tokens.len() - row,
                position: seq.computed,
                write_from: seq.kv_write_from,
                scored: scored_rows(step, index, kv.block_size()),
            });
        }
        let batch = Batch { tokens: &tokens, sequences: &sequences };
        let ran = threads.enter(|| model.forward(&batch, kv, scratch, threads, stream));
        ran.map_err(|fault| WorkerError::Weights { step: step.id, fault })?;
        Ok((sampled, logit_rows))
    }

    /// Returns row `row` of the logits of the last forward pass.
    fn logits(&self, row: usize) -> &[f32] {
        let vocab = self.model.config().vocab_size as usize;
        &self.scratch.logits[row * vocab..(row + 1) * vocab]
    }

    /// Picks tokens for each of the sequences `sampled`.
    fn pick(&self, step: &Step, sampled: &[Sampled]) -> Vec<Picked> {
        let cost = self.scratch.logits.len() * SAMPLE_COST;
        self.threads.map(sampled.len(), cost, |i| self.pick_for(step, &sampled[i]))
    }

    /// Picks the token after a sequence's last, and as long as the picked token equals the draft, the next one: each as in a step
    /// without drafts.
    fn pick_for(&self, step: &Step, sampled: &Sampled) -> Picked {
        let seq = &step.seqs[sampled.index];
        let slot = self.mirror.slot(seq);
        // With a right draft the sequence has one token more that counts; what is wrong never does.
        let mut past = Cow::Borrowed(&slot.past);
        let mut picked = Picked::default();
        let mut structure = self.structures.of(seq);
        for n in 0..=sampled.drafts.len() {
            let logits = self.logits(sampled.logit_row + n);
            if !logits.iter().all(|logit| logit.is_finite()) {
                // Behind a right draft the next step comes here again, and fails.
                break;
            }
            let masked = match &mut structure {
                None => None,
                Some(structure) => match structure.allowed() {
                    Ok(allowed) => Some(allowed.masked(logits)),
                    Err(_) => {
                        picked.fault = Some(SeqFault::Unsupported);
                        break;
                    }
                },
            };
            let token = sample(masked.as_deref().unwrap_or(logits), &slot.sampling, &past, seq.n_generated + n as u32);
            if let Some(structure) = &mut structure {
                structure.push(token);
            }
            picked.tokens.push(token);
            picked.logprobs.extend(slot.sampling.logprobs.map(|n_top| {
                let (logprob, top) = log_probabilities(logits, token, n_top);
                TokenLogprobs { request: seq.request, token, logprob, top }
            }));
            if sampled.drafts.get(n) != Some(&token) {
                break;
            }
            if slot.sampling.needs_history() {
                past.to_mut().push(&slot.sampling, token);
            }
        }
        picked
    }

    /// Notes the picked tokens and assembles the output.
    fn answer(
        &mut self,
        step: &Step,
        sampled: &[Sampled],
        picked: Vec<Picked>,
        prompts: Vec<ValuedPrompt>,
    ) -> StepOutput {
        let weights = self.stream.as_ref().map(Stream::reads).unwrap_or_default();
        let mut output = StepOutput { weights, ..StepOutput::default() };
        output.result.step = step.id;
        let mut picked = sampled.iter().zip(picked).peekable();
        let mut prompts = prompts.into_iter().peekable();
        for (index, seq) in step.seqs.iter().enumerate() {
            let first = output.result.scores.len();
            output.result.scores.extend(self.scratch.scores.of(index));
            let scores = &mut output.result.scores[first..];
            let picked = picked.next_if(|(sampled, _)| sampled.index == index);
            let lacking = picked.as_ref().filter(|(_, picked)| picked.tokens.is_empty());
            let fault = lacking.map(|(_, picked)| picked.fault.unwrap_or(SeqFault::NotFinite));
            let prompt = prompts.next_if(|prompt| prompt.index == index);
            let lacks_values = prompt.as_ref().is_some_and(|prompt| prompt.values.is_none());
            let fault = fault.or(lacks_values.then_some(SeqFault::NotFinite));
            if fault.is_some() || scores.iter().any(|score| !score.is_finite()) {
                scores.fill(0.0);
                output.result.push_failed(fault.unwrap_or(SeqFault::NotFinite));
                if seq.sample {
                    // Steps on the way may run the token.
                    self.mirror.note(seq, &[NO_TOKEN], 0);
                }
                continue;
            }
            output.prompts.extend(prompt.and_then(|prompt| prompt.values));
            let Some((sampled, picked)) = picked else {
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

/// Returns the block tables of a sequence as attention reads them.
fn tables<'a>(tables: &'a BlockTables, keeps: &[Keeps], block_size: usize) -> Vec<Table<'a>> {
    let table = |(group, keeps): (usize, &Keeps)| match keeps {
        Keeps::Scored => Table::without_holes(tables.of(group), block_size),
        Keeps::All | Keeps::Window(_) => Table::whole(tables.of(group), block_size),
    };
    keeps.iter().enumerate().map(table).collect()
}

/// Returns the rows of a sequence that count for scores: the last rows without drafts.
fn scored_rows(step: &Step, index: usize, block_size: usize) -> Option<ScoredRows> {
    let (seq, rows) = (&step.seqs[index], step.scored_rows(index));
    (rows > 0).then(|| ScoredRows {
        rows: (seq.n_tokens - rows) as usize..seq.n_tokens as usize,
        kind: step.score_kind,
        entries: (seq.computed as usize + seq.n_tokens as usize).div_ceil(block_size),
        by_group: step.score_lists > 1,
    })
}

impl StepRunner for Worker {
    fn run(&mut self, step: &Step) -> Result<StepOutput, StepError> {
        Self::run(self, step).map_err(StepError::from)
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        Arc::new(Self::blocks(self))
    }

    fn reset(&mut self) {
        Self::reset(self);
    }
}

#[cfg(test)]
mod tests {
    use trunkline_port::{FailedSeq, RequestId, SeqStart, StepResult, StepSeq};

    use super::*;

    #[test]
    fn configurations_that_cannot_work_are_refused() {
        let model = Arc::new(Model::seeded(0));
        let good = WorkerConfig { block_size: 16, device_blocks: 4, max_drafts: 0, threads: 1 };
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
    fn the_seeded_model_has_the_vocabulary_of_the_byte_tokenizer() {
        assert_eq!(Model::seeded(0).info().vocab_size, trunkline_text::Tokenizer::bytes().vocab_size());
    }

    /// A worker whose model answers with NaN for token 9, and with blocks of 16 tokens.
    fn worker_with_a_nan() -> Worker {
        let config = WorkerConfig { block_size: 16, device_blocks: 3, max_drafts: 0, threads: 1 };
        Worker::new(Arc::new(Model::seeded_with_nan_for(9)), config).unwrap()
    }

    /// A step that starts sequences with these prompts, each in the block given.
    fn starts(prompts: &[(&[Token], u32)]) -> Step {
        let mut step = Step { id: 1, starts: vec![SeqStart::default(); prompts.len()], ..Step::default() };
        for (slot, (prompt, block)) in (0..).zip(prompts) {
            step.seqs.push(StepSeq {
                request: RequestId(u64::from(slot) + 4),
                slot,
                start: true,
                n_tokens: prompt.len() as u32,
                tokens_at: step.tokens.len() as u32,
                blocks_at: slot,
                n_blocks: 1,
                sample: true,
                ..StepSeq::default()
            });
            step.tokens.extend_from_slice(prompt);
            step.blocks.push(*block);
        }
        step
    }

    /// The step after [`starts`]: each sequence decodes the token that the step sampled for it.
    fn decodes(prompts: &[(&[Token], u32)]) -> Step {
        let mut step = starts(prompts);
        (step.id, step.starts, step.blocks) = (2, Vec::new(), Vec::new());
        for seq in &mut step.seqs {
            let computed = seq.n_tokens;
            *seq = StepSeq {
                start: false,
                computed,
                kv_write_from: computed,
                n_tokens: 1,
                n_generated: 1,
                input_from_last: true,
                table_keep: 1,
                blocks_at: 0,
                n_blocks: 0,
                ..*seq
            };
        }
        step
    }

    #[test]
    fn logits_that_are_not_finite_fail_their_sequence_alone_and_steps_on_the_way_run_on() {
        let sound: [(&[Token], u32); 2] = [(&[1, 2], 0), (&[5], 2)];
        let all = [sound[0], (&[3, 9, 4], 1), sound[1]];
        let (mut alone, mut together) = (worker_with_a_nan(), worker_with_a_nan());
        for next in [starts, decodes] {
            let expected = alone.run(&next(&sound)).unwrap().result;
            let found = together.run(&next(&all)).unwrap();
            assert_eq!(found.result.failed, [FailedSeq { seq: 1, fault: SeqFault::NotFinite }]);
            let tokens = |result: &StepResult, at: [usize; 2]| at.map(|i| result.of(i).to_vec());
            assert_eq!(tokens(&found.result, [0, 2]), tokens(&expected, [0, 1]));
        }
    }

    #[test]
    fn behind_a_right_draft_logits_that_are_not_finite_end_the_draft_and_not_the_sequence() {
        let config = WorkerConfig { block_size: 16, device_blocks: 3, max_drafts: 2, threads: 1 };
        // A prompt of known KV, whose next token is `next`, and that has said so before: the draft is right.
        let run = |model: Model, next: Token| {
            let mut step = starts(&[(&[8, 7, next, 8, 7], 0)]);
            step.seqs[0] =
                StepSeq { computed: 4, kv_write_from: 4, n_history: 4, n_tokens: 1, n_drafts: 2, ..step.seqs[0] };
            Worker::new(Arc::new(model), config).unwrap().run(&step).unwrap().result
        };
        let next = run(Model::seeded(0), 200).of(0)[0];
        assert!(run(Model::seeded(0), next).of(0).len() > 1, "the draft is right");
        let result = run(Model::seeded_with_nan_for(next), next);
        assert_eq!((result.of(0), result.failed.len()), (&[next][..], 0));
    }

    #[test]
    fn nan_left_in_a_block_does_not_reach_its_next_owner() {
        let clean = starts(&[(&[1, 2, 3], 1)]);
        let expected = worker_with_a_nan().run_with_logits(&clean).unwrap();
        let mut worker = worker_with_a_nan();
        assert_eq!(worker.run(&starts(&[(&[9; 16], 1)])).unwrap().result.failed.len(), 1);
        assert_eq!(worker.run_with_logits(&clean).unwrap(), expected);
    }
}
