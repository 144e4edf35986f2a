//! A step of the model: the batch for a worker to run, and the worker's answer.
//!
//! A step is flat: `seqs` point into shared `tokens` and `blocks` arrays, so a step of a thousand decodes is four vectors used
//! again, not a thousand small ones. The worker keeps a mirror of each sequence's block table and receives only changes.

use serde::{Deserialize, Serialize};

use crate::ids::{RequestId, Token};
use crate::sampling::Sampling;

/// Entry of a block table without a block: the sequence dropped the KV of these positions in this layer group. Attention MUST skip the
/// positions; all other entries stand for the positions that their place in the table says.
pub const NO_BLOCK: u32 = u32::MAX;

/// A batch of prefill chunks and decodes to run in one forward pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// Number of the step; counts up from 1 for the lifetime of the core.
    pub id: u64,
    /// The sequences, decodes first.
    pub seqs: Vec<StepSeq>,
    /// The tokens of all sequences, one range after another.
    pub tokens: Vec<Token>,
    /// New tails of block tables, one range after another. With several layer groups, each range holds `n_blocks` entries for each
    /// group, in the order of [`crate::ModelInfo::groups`].
    pub blocks: Vec<u32>,
    /// Entries that sequences dropped from their block tables, in the order of the sequences; empty without eviction.
    pub drops: Vec<Dropped>,
    /// Sequences with attention scores asked for, in the order of the sequences; empty without eviction.
    pub scored: Vec<Scored>,
    /// Kind of all scores of the step.
    pub score_kind: ScoreKind,
    /// Lists of scores reported for each scored sequence: one for each layer group of [`crate::Keeps::Scored`], in the order of the groups; 0 for one
    /// list of all these groups together.
    pub score_lists: u32,
    /// Facts about the sequences with `start`, in order.
    pub starts: Vec<SeqStart>,
    /// Copies within the device, to be made in order before the step runs its tokens; empty unless the core reuses text that is not a prefix.
    pub copies: Vec<CellCopy>,
    /// Rows with log probabilities of prompt tokens asked for, in the order of the sequences, each once.
    pub prompt_rows: Vec<PromptRows>,
}

/// Copy of the KV of neighbouring tokens from one block to another, in all layers. Sources are full blocks that nobody writes; destinations
/// belong to a sequence of the step. Only for models with one layer group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellCopy {
    /// Block of the sources.
    pub from: u32,
    /// First token in the block of the sources.
    pub from_cell: u32,
    /// Block of the destinations.
    pub to: u32,
    /// First token in the block of the destinations.
    pub to_cell: u32,
    /// Number of tokens.
    pub n_tokens: u32,
    /// Position of the first token in its new sequence.
    pub position: u32,
    /// Positions by which the tokens lie further back in their new sequence, negative if further to the front: keys with rotary embeddings MUST
    /// be turned by as many.
    pub shift: i32,
}

/// Facts about a sequence, sent once with [`StepSeq::start`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeqStart {
    /// Parameters for picking tokens.
    pub sampling: Sampling,
    /// Number of tokens of the prompt; the tokens behind are generated.
    pub n_prompt: u32,
    /// Tokens of the sequence after the tokens to run, in [`Step::tokens`] after them: the rest of a prompt whose first chunk the step
    /// runs. Sent if the core's configuration says that workers want all tokens at the start; otherwise 0.
    pub n_ahead: u32,
}

impl From<Sampling> for SeqStart {
    fn from(sampling: Sampling) -> Self {
        Self { sampling, ..Self::default() }
    }
}

/// Part of one sequence in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepSeq {
    /// Request of the sequence.
    pub request: RequestId,
    /// Index of the worker's mirror of this sequence: small, dense, used again by later sequences.
    pub slot: u32,
    /// The worker MUST forget the earlier contents of `slot` and take the next entry of [`Step::starts`].
    pub start: bool,
    /// Tokens below this position have KV in the block table already, or after [`Step::copies`].
    pub computed: u32,
    /// Tokens to run through the model: positions `computed .. computed + n_tokens`.
    pub n_tokens: u32,
    /// Leading entries of this sequence's range in [`Step::tokens`] that are not run: the last tokens before `computed`. With `start` all of them,
    /// and later those copied since the last step of the sequence ([`Step::copies`]). Sent if sampling needs them, the core's `max_drafts` is above
    /// 0, or workers want all tokens at the start; otherwise 0.
    pub n_history: u32,
    /// Start of this sequence's `n_history + n_tokens` tokens in [`Step::tokens`].
    pub tokens_at: u32,
    /// `true` if the first token to run is not in the step: the token sampled by this sequence's previous step, still unknown to
    /// the core. The worker MUST use the worker's own record of the token; the entry in [`Step::tokens`] is a placeholder.
    /// `n_tokens` is 1 then, and `start` is `false`.
    pub input_from_last: bool,
    /// The worker MUST write KV only at positions from here on: earlier ones lie in blocks read by other sequences.
    pub kv_write_from: u32,
    /// The mirror of the block table is cut to this length, then the new blocks are appended.
    pub table_keep: u32,
    /// Start of this sequence's new blocks in [`Step::blocks`].
    pub blocks_at: u32,
    /// Number of new blocks in each layer group.
    pub n_blocks: u32,
    /// `true` to sample after the last token; `false` for a prefill chunk other than the last.
    pub sample: bool,
    /// Tokens sampled so far, including one not seen by the core yet: the index of the token to be sampled.
    pub n_generated: u32,
    /// Tokens the worker MAY draft to follow the tokens to run, and run in the same pass. The worker then answers with every
    /// sampled token up to and including the first unequal to the draft: one to `n_drafts + 1` tokens, equal to the tokens of as
    /// many single steps. The block table has room for the drafts' KV.
    pub n_drafts: u32,
}

/// Measures of the attention that a block gets. All count the layers of groups that evict ([`crate::Keeps::Scored`]), or all
/// layers if no group does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScoreKind {
    /// Softmax probability given to the positions of the block, averaged over scored rows, heads and layers: the scores of a sequence
    /// add up to 1. If groups keep different shares ([`crate::LayerGroup::weight`]), heads SHOULD count with the square of the weight.
    #[default]
    Mean,
    /// The largest softmax probability given to one position of the block by any scored row, head and layer, from a distance of at
    /// least 32 positions; 0 if all are nearer.
    Max,
}

/// Rows of a sequence whose attention counts for [`StepResult::scores`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scored {
    /// Index of the sequence in [`Step::seqs`].
    pub seq: u32,
    /// Number of rows: the last ones that the sequence runs, `n_tokens` at most and at least one.
    pub rows: u32,
}

/// Neighbouring rows of a sequence that are each followed by a token of the prompt, whose log probability is wanted
/// ([`crate::StepOutput::prompts`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptRows {
    /// Index of the sequence in [`Step::seqs`].
    pub seq: u32,
    /// First of the rows, counted from the first that the sequence runs.
    pub first: u32,
    /// Number of rows, at least one; all are rows that the sequence runs.
    pub rows: u32,
    /// Token behind the last of the rows, which a later step may run.
    pub next: Token,
    /// Number of most likely tokens to report with each.
    pub n_top: u32,
}

/// A range of entries that leave a block table: their places hold [`NO_BLOCK`] from now on. The worker drops them before it cuts the table
/// and appends the new blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Index of the sequence in [`Step::seqs`].
    pub seq: u32,
    /// Number of the layer group.
    pub group: u32,
    /// First entry of the range.
    pub first: u32,
    /// Number of entries, at least one.
    pub n: u32,
}

impl Step {
    /// Returns the tokens to run of sequence `seq`.
    pub fn run_tokens(&self, seq: &StepSeq) -> &[Token] {
        let at = (seq.tokens_at + seq.n_history) as usize;
        &self.tokens[at..at + seq.n_tokens as usize]
    }

    /// Returns the tokens before the tokens to run, if present in the step.
    pub fn history(&self, seq: &StepSeq) -> &[Token] {
        let at = seq.tokens_at as usize;
        &self.tokens[at..at + seq.n_history as usize]
    }

    /// Returns the new tail of the block table of sequence `seq`, for a model with one layer group.
    pub fn new_blocks(&self, seq: &StepSeq) -> &[u32] {
        let at = seq.blocks_at as usize;
        &self.blocks[at..at + seq.n_blocks as usize]
    }

    /// Returns the new tail of the block table of sequence `seq` in layer group `group`.
    pub fn new_blocks_of(&self, seq: &StepSeq, group: usize) -> &[u32] {
        let n = seq.n_blocks as usize;
        &self.blocks[seq.blocks_at as usize + group * n..][..n]
    }

    /// Returns all tokens of a starting sequence that are in the step: history, tokens to run, and tokens ahead.
    pub fn all_tokens(&self, seq: &StepSeq, start: &SeqStart) -> &[Token] {
        let n = seq.n_history + seq.n_tokens + start.n_ahead;
        &self.tokens[seq.tokens_at as usize..][..n as usize]
    }

    /// Returns the entries that the `i`-th sequence dropped from its block tables.
    pub fn drops_of(&self, i: usize) -> &[Dropped] {
        let begin = self.drops.partition_point(|drop| (drop.seq as usize) < i);
        let n = self.drops[begin..].partition_point(|drop| drop.seq as usize == i);
        &self.drops[begin..][..n]
    }

    /// Returns the number of last rows of the `i`-th sequence whose attention counts for scores; 0 for no scores.
    pub fn scored_rows(&self, i: usize) -> u32 {
        self.scored.binary_search_by_key(&(i as u32), |scored| scored.seq).map_or(0, |at| self.scored[at].rows)
    }

    /// Returns the tokens behind some rows of a prompt, one for each row.
    pub fn tokens_behind(&self, rows: &PromptRows) -> impl Iterator<Item = Token> + '_ {
        let run = self.run_tokens(&self.seqs[rows.seq as usize]);
        let behind = &run[rows.first as usize + 1..(rows.first + rows.rows) as usize];
        behind.iter().copied().chain(std::iter::once(rows.next))
    }

    /// Returns the number of tokens run by the whole step.
    pub fn n_tokens(&self) -> u32 {
        self.seqs.iter().map(|seq| seq.n_tokens).sum()
    }

    /// Empties the step and keeps the memory.
    pub fn clear(&mut self) {
        self.seqs.clear();
        self.tokens.clear();
        self.blocks.clear();
        self.drops.clear();
        self.scored.clear();
        self.starts.clear();
        self.copies.clear();
        self.prompt_rows.clear();
    }
}

/// Sampled tokens: the answer of a worker to a [`Step`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepResult {
    /// Number of the step, [`Step::id`].
    pub step: u64,
    /// Sampled tokens of all sequences, in the order of [`Step::seqs`].
    pub tokens: Vec<Token>,
    /// End of each sequence's tokens in `tokens`. A sequence without `sample`, or in `failed`, has no tokens; any other has at least one,
    /// and at most one more than the sequence's drafts.
    pub ends: Vec<u32>,
    /// Attention scores of the sequences of [`Step::scored`], in order: for each, the score of every entry of the block table that holds
    /// a position below `computed + n_tokens`, without drafts. Dropped entries have 0, and so have all entries of sequences in `failed`. A
    /// worker that cannot score leaves this empty in every step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scores: Vec<f32>,
    /// Sequences that the worker could not compute, in the order of [`Step::seqs`]; all others of the step are as good as without them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedSeq>,
}

/// A sequence that a worker could not compute in a step, while it computed the others. The request ends. Steps sent before the worker's answer
/// may still run the sequence on a token that was never sampled: the worker MUST run some token there, and the core ignores what comes
/// of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedSeq {
    /// Index of the sequence in [`Step::seqs`].
    pub seq: u32,
    /// Reason of the failure.
    pub fault: SeqFault,
}

/// Reason for the failure of one sequence of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum SeqFault {
    /// The model computed NaN or infinity for the sequence.
    #[error("the model's logits are not finite (NaN or infinity)")]
    NotFinite,
    /// The worker cannot honour a parameter of the request.
    #[error("the worker cannot honour the sampling parameters")]
    Unsupported,
}

impl StepResult {
    /// Returns the tokens sampled for the `i`-th sequence of the step.
    #[inline]
    pub fn of(&self, i: usize) -> &[Token] {
        let begin = if i == 0 { 0 } else { self.ends[i - 1] as usize };
        &self.tokens[begin..self.ends[i] as usize]
    }

    /// Adds the next sequence's tokens.
    pub fn push(&mut self, tokens: &[Token]) {
        self.tokens.extend_from_slice(tokens);
        self.ends.push(self.tokens.len() as u32);
    }

    /// Adds the next sequence, which failed.
    pub fn push_failed(&mut self, fault: SeqFault) {
        self.failed.push(FailedSeq { seq: self.ends.len() as u32, fault });
        self.push(&[]);
    }

    /// Returns the reason why the `i`-th sequence of the step failed, if it did.
    pub fn fault_of(&self, i: usize) -> Option<SeqFault> {
        let at = self.failed.binary_search_by_key(&(i as u32), |failed| failed.seq);
        at.ok().map(|at| self.failed[at].fault)
    }
}
