//! A scheduler for tests: lays out the steps of a few sequences by hand.

use std::sync::Arc;

use trunkline_port::{PromptRows, RequestId, Sampling, SeqStart, Step, StepOutput, StepSeq};
use trunkline_worker::{Model, Worker, WorkerConfig};

/// A worker and the blocks that nobody has yet.
pub struct Rig {
    /// The worker.
    pub worker: Worker,
    block_size: u32,
    /// Tokens that a decode may draft.
    pub max_drafts: u32,
    /// Steps leave out the token that the step before sampled, as if they were made before it was known.
    pub ahead: bool,
    /// Blocks that nobody has yet.
    pub free: Vec<u32>,
    /// Steps run.
    pub steps: u64,
    /// Sequences that ran without their last token.
    pub steps_ahead: u64,
    /// Tokens drafted.
    pub drafted: u64,
    /// Drafts that were right.
    pub accepted: u64,
}

/// One sequence: its tokens so far, and how many of them are in the cache.
#[derive(Clone)]
pub struct Seq {
    /// Its request and its slot.
    pub id: u32,
    /// Prompt and generated tokens.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub prompt_len: usize,
    /// Tokens whose KV is in the blocks.
    pub computed: usize,
    /// Its blocks.
    pub table: Vec<u32>,
    /// Positions that others read.
    pub write_from: u32,
    /// How it samples.
    pub sampling: Sampling,
    /// Most likely tokens reported with each token of the prompt; `None` without log probabilities.
    pub prompt_logprobs: Option<u32>,
    sent_blocks: usize,
    started: bool,
}

impl Seq {
    /// A sequence that has not begun.
    pub fn new(id: u32, prompt: &[u32], sampling: Sampling) -> Self {
        Self {
            id,
            tokens: prompt.to_vec(),
            prompt_len: prompt.len(),
            computed: 0,
            table: Vec::new(),
            write_from: 0,
            sampling,
            prompt_logprobs: None,
            sent_blocks: 0,
            started: false,
        }
    }

    /// Gives it the blocks that hold the first `n` tokens of another sequence.
    pub fn share(mut self, other: &Self, block_size: u32, n: usize) -> Self {
        assert_eq!(self.tokens[..n], other.tokens[..n]);
        self.table = other.table[..n.div_ceil(block_size as usize)].to_vec();
        self.write_from = n as u32;
        // The last token is run in any case: its logits are wanted.
        self.computed = n.min(self.tokens.len() - 1);
        self
    }

    /// What it generated.
    pub fn output(&self) -> &[u32] {
        &self.tokens[self.prompt_len..]
    }
}

impl Rig {
    /// A worker whose blocks are given out in a scattered order.
    pub fn new(model: &Arc<Model>, block_size: u32, device_blocks: u32, threads: usize) -> Self {
        let config = WorkerConfig { block_size, device_blocks, max_drafts: 0, threads };
        Self::with(model, config)
    }

    /// The same for any configuration. Every sequence that decodes may draft as much as the worker does.
    pub fn with(model: &Arc<Model>, config: WorkerConfig) -> Self {
        let WorkerConfig { block_size, device_blocks, max_drafts, .. } = config;
        let mut free: Vec<u32> = (0..device_blocks).collect();
        free.sort_by_key(|block| block.wrapping_mul(2_654_435_761));
        let worker = Worker::new(Arc::clone(model), config).unwrap();
        Self { worker, block_size, max_drafts, ahead: false, free, steps: 0, steps_ahead: 0, drafted: 0, accepted: 0 }
    }

    /// Runs at most `limit` further tokens of each sequence in one step and returns the output and the logits of those
    /// that sampled.
    pub fn step(&mut self, seqs: &mut [&mut Seq], limit: usize) -> (StepOutput, Vec<Vec<f32>>) {
        self.steps += 1;
        let mut step = Step { id: self.steps, ..Step::default() };
        for seq in seqs.iter_mut() {
            let n = limit.min(seq.tokens.len() - seq.computed);
            let end = seq.computed + n;
            // As in a core, only a decode drafts.
            let decodes = end == seq.tokens.len() && end > seq.prompt_len;
            let n_drafts = if decodes { self.max_drafts } else { 0 };
            while seq.table.len() * (self.block_size as usize) < end + n_drafts as usize {
                seq.table.push(self.free.pop().expect("the rig has blocks enough"));
            }
            let input_from_last = self.ahead && decodes && seq.started && n == 1;
            let needs_history = self.max_drafts > 0 || seq.sampling.needs_history();
            let n_history = if !seq.started && needs_history { seq.computed } else { 0 };
            step.seqs.push(StepSeq {
                request: RequestId(seq.id.into()),
                slot: seq.id,
                start: !seq.started,
                computed: seq.computed as u32,
                n_tokens: n as u32,
                n_history: n_history as u32,
                tokens_at: step.tokens.len() as u32,
                input_from_last,
                kv_write_from: seq.write_from,
                table_keep: seq.sent_blocks as u32,
                blocks_at: step.blocks.len() as u32,
                n_blocks: (seq.table.len() - seq.sent_blocks) as u32,
                sample: end == seq.tokens.len(),
                n_generated: (seq.tokens.len() - seq.prompt_len) as u32,
                n_drafts,
            });
            if input_from_last {
                step.tokens.push(u32::MAX);
                self.steps_ahead += 1;
            } else {
                step.tokens.extend_from_slice(&seq.tokens[seq.computed - n_history..end]);
            }
            step.blocks.extend_from_slice(&seq.table[seq.sent_blocks..]);
            if !seq.started {
                let (sampling, n_prompt) = (seq.sampling.clone(), seq.prompt_len as u32);
                step.starts.push(SeqStart { sampling, n_prompt, n_ahead: 0 });
            }
            let last = end.min(seq.prompt_len - 1);
            if let Some(n_top) = seq.prompt_logprobs.filter(|_| seq.computed < last) {
                let (at, rows, next) = (step.seqs.len() as u32 - 1, (last - seq.computed) as u32, seq.tokens[last]);
                step.prompt_rows.push(PromptRows { seq: at, first: 0, rows, next, n_top });
            }
            seq.computed = end;
            seq.sent_blocks = seq.table.len();
            seq.started = true;
        }
        let (output, logits) = self.worker.run_with_logits(&step).unwrap();
        assert_eq!((output.result.step, output.result.ends.len()), (step.id, seqs.len()));
        (self.drafted, self.accepted) = (self.drafted + output.drafted, self.accepted + output.accepted);
        for (i, seq) in seqs.iter_mut().enumerate() {
            let sampled = output.result.of(i);
            assert!(step.seqs[i].sample != sampled.is_empty() && sampled.len() <= step.seqs[i].n_drafts as usize + 1);
            // Drafts that were right are computed, too.
            seq.computed += sampled.len().saturating_sub(1);
            seq.tokens.extend_from_slice(sampled);
        }
        (output, logits)
    }

    /// Runs one sequence until it has generated `n` tokens, or with drafts a few more; its prompt in chunks of `chunk`.
    /// Returns the logits of each generated token.
    pub fn generate(&mut self, seq: &mut Seq, n: usize, chunk: usize) -> Vec<Vec<f32>> {
        let mut all = Vec::new();
        while seq.output().len() < n {
            all.extend(self.step(&mut [seq], chunk).1);
        }
        all
    }
}
