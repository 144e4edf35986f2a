//! Prompts and blocks of a check, made to fit the worker.

use super::peer::{Failure, Peer, ensure};
use super::player::Seq;
use crate::wire;

/// Tokens generated for each prompt.
pub(super) const N_NEW: usize = 8;
/// Multiplier of a linear congruential generator (Knuth's MMIX).
const MULTIPLIER: u64 = 6_364_136_223_846_793_005;

/// Prompts and block tables.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    pub(super) block_size: u32,
    /// Blocks of one layer group; a table names blocks of the first group (see [`Peer::in_group`]).
    blocks: u32,
    /// Blocks of a sequence with all its tokens.
    table_len: u32,
    prompts: Vec<Vec<u32>>,
    /// Log probabilities to ask for.
    logprobs: Option<u32>,
}

impl Shape {
    /// Number of prompts.
    pub(super) const PROMPTS: usize = 4;
    /// Prompt that begins with the full blocks of the first.
    pub(super) const SHARING: usize = 3;

    /// Makes prompts of two and a half blocks, as long as the context allows.
    ///
    /// # Errors
    /// If the worker has too few blocks or too short a context.
    pub(super) fn new(peer: &Peer) -> Result<Self, Failure> {
        let (hello, session) = (&peer.hello, &peer.session);
        if let Some(place) = &hello.lock_step {
            ensure(place.size == 1, || {
                format!("the worker runs alongside {} others of its group; check it as a group of 1", place.size - 1)
            })?;
        }
        let block_size = session.block_size;
        let context = hello.model.max_context;
        let n_new = N_NEW as u32;
        let n_prompt = (2 * block_size + block_size / 2 + 3).min(context.saturating_sub(n_new));
        ensure(n_prompt > block_size, || {
            format!(
                "max_context is {context}; the checks need more than a block of {block_size} tokens and {n_new} more"
            )
        })?;
        let table_len = (n_prompt + n_new).div_ceil(block_size);
        let needed = table_len * 4 * hello.model.n_groups();
        ensure(session.blocks >= needed, || {
            format!("the worker has {} blocks of {block_size} tokens; the checks need {needed}", session.blocks)
        })?;
        let vocab = u64::from(hello.model.vocab_size);
        let mut state = 1_u64;
        let mut token = || {
            state = state.wrapping_mul(MULTIPLIER).wrapping_add(1);
            ((state >> 33) % vocab) as u32
        };
        let mut prompts: Vec<Vec<u32>> =
            (0..Self::PROMPTS).map(|i| (0..n_prompt - (i as u32 % 3)).map(|_| token()).collect()).collect();
        let shared = ((n_prompt - 3) / block_size * block_size) as usize;
        let (first, rest) = prompts.split_at_mut(Self::SHARING);
        rest[0][..shared].copy_from_slice(&first[0][..shared]);
        let logprobs = (hello.abilities.max_logprobs > 0).then_some(1);
        Ok(Self { block_size, blocks: peer.group_blocks(), table_len, prompts, logprobs })
    }

    /// Returns prompt `i` as a sequence in a slot: greedy.
    pub(super) fn seq(&self, i: usize, slot: u32) -> Seq {
        let tokens = self.prompts[i].clone();
        let sampling = wire::WorkerSampling {
            top_p: 1.0,
            repetition_penalty: 1.0,
            logprobs: self.logprobs,
            ..wire::WorkerSampling::default()
        };
        Seq {
            slot,
            request: 1000 + i as u64,
            n_prompt: tokens.len() as u32,
            tokens,
            computed: 0,
            n_generated: 0,
            table: Vec::new(),
            sampling,
            fresh: true,
            logprobs: Vec::new(),
        }
    }

    /// Returns table `i` of four, with blocks that no other has.
    pub(super) fn table(&self, i: usize) -> Vec<u32> {
        let begin = i as u32 * self.table_len;
        (begin..begin + self.table_len).collect()
    }

    /// Returns blocks from the last one down, with gaps.
    pub(super) fn scattered(&self) -> Vec<u32> {
        (0..self.table_len).map(|i| self.blocks - 1 - 2 * i).collect()
    }

    /// Returns the number of full blocks shared by the first prompt and [`Self::SHARING`].
    pub(super) fn shared_blocks(&self) -> usize {
        (self.prompts[0].len() as u32 - 3) as usize / self.block_size as usize
    }

    /// Returns the tokens of one chunk of prompt `i` in a batch.
    pub(super) fn chunk(&self, i: usize) -> u32 {
        (self.block_size / 2 + 1 + i as u32).max(2)
    }
}
