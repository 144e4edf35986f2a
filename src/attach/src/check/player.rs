//! Sequences of a check, and the steps that run them.

use trunkline_port::{RequestId, StepOutput};

use super::peer::{Failure, Peer, ensure};
use crate::done::{SentSeq, SentStep};
use crate::wire;
use crate::wire::to_worker::Message as ToWorker;

/// Difference between two log probabilities of one token that rounding explains.
const LOGPROB_TOLERANCE: f32 = 0.1;

/// Sequence of a check.
#[derive(Clone, Debug)]
pub(super) struct Seq {
    pub(super) slot: u32,
    pub(super) request: u64,
    /// Tokens known to the check.
    pub(super) tokens: Vec<u32>,
    pub(super) n_prompt: u32,
    /// Positions with KV.
    pub(super) computed: u32,
    /// Tokens sampled, or to be sampled by steps in flight.
    pub(super) n_generated: u32,
    /// Block table of the worker.
    pub(super) table: Vec<u32>,
    pub(super) sampling: wire::WorkerSampling,
    /// `true` until the first step.
    pub(super) fresh: bool,
    /// Log probabilities of the generated tokens, if the worker has them.
    pub(super) logprobs: Vec<f32>,
}

/// Tokens of a sequence to run in a step.
pub(super) struct Part<'a> {
    pub(super) seq: &'a mut Seq,
    /// Tokens to run.
    pub(super) n_tokens: u32,
    /// `true` to sample after the last of them.
    pub(super) sample: bool,
    /// Block table of the first layer group for the step. Block tables of the other groups follow.
    pub(super) table: &'a [u32],
    /// Position from which on KV may be written, for workers with partial writes.
    pub(super) write_from: Option<u32>,
    /// Layer group and entry of the group's table to drop before the step.
    pub(super) drops: Option<(u32, u32)>,
}

impl<'a> Part<'a> {
    /// A part whose blocks are all the sequence's own.
    pub(super) fn new(seq: &'a mut Seq, n_tokens: u32, sample: bool, table: &'a [u32]) -> Self {
        Self { seq, n_tokens, sample, table, write_from: None, drops: None }
    }
}

/// A step that was sent.
pub(super) struct Flying {
    pub(super) sent: SentStep,
}

impl Seq {
    /// Tokens generated so far.
    pub(super) fn generated(&self) -> &[u32] {
        &self.tokens[self.n_prompt as usize..]
    }

    /// The sequence again, to be started over in a slot with the tokens it has.
    pub(super) fn restarted(&self, slot: u32) -> Self {
        Self {
            slot,
            request: self.request,
            tokens: self.tokens.clone(),
            n_prompt: self.n_prompt,
            computed: 0,
            n_generated: self.generated().len() as u32,
            table: Vec::new(),
            sampling: self.sampling.clone(),
            fresh: true,
            logprobs: self.logprobs.clone(),
        }
    }

    /// Compares the generated tokens, and log probabilities up to rounding.
    pub(super) fn same_as(&self, expected: &Self) -> Result<(), Failure> {
        let (own, other) = (self.generated(), expected.generated());
        let at = own.iter().zip(other).position(|(a, b)| a != b);
        let text = |at: usize| format!("generated token {at} is {} instead of {}", own[at], other[at]);
        ensure(at.is_none(), || text(at.unwrap_or(0)))?;
        ensure(own.len() == other.len(), || format!("{} tokens instead of {}", own.len(), other.len()))?;
        let pairs = self.logprobs.iter().zip(&expected.logprobs);
        let far = pairs.enumerate().find(|(_, (a, b))| (*a - *b).abs() > LOGPROB_TOLERANCE);
        match far {
            Some((at, (a, b))) => {
                Err(Failure(format!("the log probability of generated token {at} is {a} instead of {b}")))
            }
            None => Ok(()),
        }
    }
}

/// Sends a step with these parts.
pub(super) fn send(peer: &mut Peer, parts: &mut [Part<'_>]) -> Flying {
    let id = peer.id();
    let mut step = wire::Step { id, life: peer.life, ..wire::Step::default() };
    let mut sent = SentStep {
        id,
        life: peer.life,
        vocab_size: peer.hello.model.vocab_size,
        seqs: Vec::new(),
        ..SentStep::default()
    };
    for (index, part) in parts.iter_mut().enumerate() {
        let seq = &mut *part.seq;
        if std::mem::take(&mut seq.fresh) {
            seq.table.clear();
            step.starts.push(wire::Start {
                index: index as u32,
                request: seq.request,
                tokens: seq.tokens.clone(),
                n_prompt: seq.n_prompt,
                sampling: Some(seq.sampling.clone()),
            });
        }
        let keep = seq.table.iter().zip(part.table).take_while(|(a, b)| a == b).count();
        let new = &part.table[keep..];
        step.slots.push(seq.slot);
        step.computed.push(seq.computed);
        step.n_tokens.push(part.n_tokens);
        step.sample.push(part.sample.into());
        step.n_generated.push(seq.n_generated);
        step.table_keep.push(keep as u32);
        step.n_blocks.push(new.len() as u32);
        for group in 0..peer.hello.model.n_groups() {
            step.blocks.extend(new.iter().map(|block| peer.in_group(*block, group)));
        }
        step.drops.extend(part.drops.map(|(group, first)| wire::Drop { index: index as u32, group, first, n: 1 }));
        step.kv_write_from.push(part.write_from.unwrap_or(seq.computed));
        sent.seqs.push(SentSeq {
            request: RequestId(seq.request),
            sample: part.sample,
            n_drafts: 0,
            logprobs: seq.sampling.logprobs,
            n_scores: 0,
        });
        seq.table = part.table.to_vec();
        seq.computed += part.n_tokens;
        seq.n_generated += u32::from(part.sample);
    }
    if parts.iter().all(|part| part.write_from.is_none()) {
        step.kv_write_from.clear();
    }
    peer.send(Some(ToWorker::Step(step)));
    Flying { sent }
}

/// Waits for the answer to a step, and adds the sampled tokens to its sequences.
pub(super) async fn receive(peer: &mut Peer, flying: &Flying, seqs: &mut [&mut Seq]) -> Result<(), Failure> {
    let output = peer.done(&flying.sent).await?;
    note(&output, seqs)
}

fn note(output: &StepOutput, seqs: &mut [&mut Seq]) -> Result<(), Failure> {
    let mut logprobs = output.logprobs.iter();
    for (i, seq) in seqs.iter_mut().enumerate() {
        let fault = output.result.fault_of(i);
        ensure(fault.is_none(), || format!("the sequence in slot {} failed: {fault:?}", seq.slot))?;
        let tokens = output.result.of(i);
        seq.tokens.extend_from_slice(tokens);
        if seq.sampling.logprobs.is_some() {
            seq.logprobs.extend(logprobs.by_ref().take(tokens.len()).map(|entry| entry.logprob));
        }
    }
    Ok(())
}

/// Runs a step to its end.
pub(super) async fn run(peer: &mut Peer, mut parts: Vec<Part<'_>>) -> Result<(), Failure> {
    let flying = send(peer, &mut parts);
    let mut seqs: Vec<&mut Seq> = parts.into_iter().map(|part| part.seq).collect();
    receive(peer, &flying, &mut seqs).await
}

/// Runs a sequence alone until it has `n_new` generated tokens, in blocks of `table` as far as tokens need them.
pub(super) async fn finish(peer: &mut Peer, seq: &mut Seq, table: &[u32], n_new: usize) -> Result<(), Failure> {
    while seq.generated().len() < n_new {
        let left = seq.tokens.len() as u32 - seq.computed;
        let n_tokens = left.min(peer.hello.abilities.max_tokens);
        let end = seq.computed + n_tokens;
        let n_blocks = end.div_ceil(peer.session.block_size).max(seq.table.len() as u32) as usize;
        run(peer, vec![Part::new(seq, n_tokens, n_tokens == left, &table[..n_blocks])]).await?;
    }
    Ok(())
}
