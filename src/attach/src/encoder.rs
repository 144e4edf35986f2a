//! Steps of the core as messages, on the server's side.

use trunkline_port::{ScoreKind, Step, StepSeq};

use crate::done::{SentPrompt, SentSeq, SentStep};
use crate::sampling::encode_sampling;
use crate::wire;

/// Converts the steps of a worker's life to messages, and notes what each answer must look like.
#[derive(Clone, Debug)]
pub struct StepEncoder {
    life: u64,
    block_size: u32,
    vocab_size: u32,
    /// Log probabilities asked for, by slot: sent at the start of a sequence alone.
    logprobs: Vec<Option<u32>>,
    spare: Vec<Vec<SentSeq>>,
}

impl StepEncoder {
    /// Makes an encoder for blocks of `block_size` tokens and token ids below `vocab_size`.
    pub fn new(life: u64, block_size: u32, vocab_size: u32) -> Self {
        Self { life, block_size, vocab_size, logprobs: Vec::new(), spare: Vec::new() }
    }

    /// Begins a life: all sequences start again.
    pub fn begin_life(&mut self, life: u64) {
        self.life = life;
        self.logprobs.clear();
    }

    /// Returns the present life.
    pub fn life(&self) -> u64 {
        self.life
    }

    /// Converts a step to a message, and returns the shape of the expected answer.
    pub fn encode(&mut self, step: &Step) -> (wire::Step, SentStep) {
        let mut out = wire::Step { id: step.id, life: self.life, ..wire::Step::default() };
        let mut seqs = self.spare.pop().unwrap_or_default();
        seqs.clear();
        self.encode_starts(step, &mut out);
        encode_columns(step, &mut out);
        encode_scored(step, &mut out);
        let prompts = encode_prompt_rows(step, &mut out);
        out.blocks.extend_from_slice(&step.blocks);
        for (i, seq) in step.seqs.iter().enumerate() {
            let scored = out.scored_rows.get(i).is_some_and(|rows| *rows > 0);
            let entries = (seq.computed + seq.n_tokens).div_ceil(self.block_size);
            seqs.push(SentSeq {
                request: seq.request,
                sample: seq.sample,
                n_drafts: seq.n_drafts,
                logprobs: self.logprobs.get(seq.slot as usize).copied().flatten(),
                n_scores: if scored { entries * step.score_lists.max(1) } else { 0 },
            });
        }
        (out, SentStep { id: step.id, life: self.life, vocab_size: self.vocab_size, seqs, prompts })
    }

    /// Takes the memory of an answered step back, for a later one.
    pub fn recycle(&mut self, sent: SentStep) {
        self.spare.push(sent.seqs);
    }

    fn encode_starts(&mut self, step: &Step, out: &mut wire::Step) {
        let mut starts = step.starts.iter();
        for (index, seq) in step.seqs.iter().enumerate().filter(|(_, seq)| seq.start) {
            let Some(start) = starts.next() else { break };
            let at = seq.slot as usize;
            if self.logprobs.len() <= at {
                self.logprobs.resize(at + 1, None);
            }
            self.logprobs[at] = start.sampling.logprobs;
            out.starts.push(wire::Start {
                index: index as u32,
                request: seq.request.0,
                tokens: step.all_tokens(seq, start).to_vec(),
                n_prompt: start.n_prompt,
                sampling: Some(encode_sampling(&start.sampling)),
            });
        }
    }
}

/// Writes the columns that stand in [`StepSeq`].
fn encode_columns(step: &Step, out: &mut wire::Step) {
    out.slots.extend(step.seqs.iter().map(|seq| seq.slot));
    put(step, &mut out.computed, |seq| seq.computed);
    put(step, &mut out.n_tokens, |seq| seq.n_tokens);
    put(step, &mut out.sample, |seq| seq.sample.into());
    put(step, &mut out.n_generated, |seq| seq.n_generated);
    put(step, &mut out.table_keep, |seq| seq.table_keep);
    put(step, &mut out.n_blocks, |seq| seq.n_blocks);
    put(step, &mut out.n_drafts, |seq| seq.n_drafts);
    if step.seqs.iter().any(|seq| seq.kv_write_from > seq.computed) {
        put(step, &mut out.kv_write_from, |seq| seq.kv_write_from.max(seq.computed));
    }
}

/// Writes one column: nothing if all entries are 0.
fn put(step: &Step, out: &mut Vec<u32>, entry: impl Fn(&StepSeq) -> u32) {
    if step.seqs.iter().any(|seq| entry(seq) != 0) {
        out.extend(step.seqs.iter().map(entry));
    }
}

/// Writes the rows with log probabilities of prompts. Returns what is expected of each.
fn encode_prompt_rows(step: &Step, out: &mut wire::Step) -> Vec<SentPrompt> {
    let rows = step.prompt_rows.iter();
    out.prompt_rows.extend(rows.clone().map(|rows| wire::PromptRows {
        index: rows.seq,
        first: rows.first,
        n: rows.rows,
        top: rows.n_top,
    }));
    rows.map(|rows| SentPrompt {
        seq: rows.seq,
        first: step.seqs[rows.seq as usize].computed + rows.first + 1,
        tokens: step.tokens_behind(rows).collect(),
        n_top: rows.n_top,
    })
    .collect()
}

/// Writes dropped entries and scored rows.
fn encode_scored(step: &Step, out: &mut wire::Step) {
    let drops = step.drops.iter();
    out.drops.extend(drops.map(|drop| wire::Drop { index: drop.seq, group: drop.group, first: drop.first, n: drop.n }));
    if !step.scored.is_empty() {
        out.scored_rows.resize(step.seqs.len(), 0);
        step.scored.iter().for_each(|scored| out.scored_rows[scored.seq as usize] = scored.rows);
    }
    out.scores_by_group = step.score_lists > 1;
    out.set_score_kind(match step.score_kind {
        ScoreKind::Mean => wire::ScoreKind::Mean,
        ScoreKind::Max => wire::ScoreKind::Max,
    });
}
