//! Answers to steps: encoded by a worker, checked by the server against the step that was sent.

use std::collections::HashSet;

use trunkline_port::{
    FailedSeq, PromptLogprobs, RequestId, SeqFault, Step, StepOutput, StepResult, StepSeq, Token, TokenLogprobs,
    WeightReads,
};

use crate::wire;
use crate::wire::SequenceFault as WireFault;

/// A step that was sent, as far as its answer depends on the step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SentStep {
    /// Number of the step.
    pub id: u64,
    /// Life of the step.
    pub life: u64,
    /// Number of token ids: every sampled token is below this number.
    pub vocab_size: u32,
    /// Sequences of the step, in order.
    pub seqs: Vec<SentSeq>,
    /// Log probabilities of prompts expected in the answer, in the order of the sequences.
    pub prompts: Vec<SentPrompt>,
}

/// Tokens of a prompt whose log probabilities are expected in an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SentPrompt {
    /// Index of the sequence in the step.
    pub seq: u32,
    /// Position of the first of the tokens.
    pub first: u32,
    /// The tokens.
    pub tokens: Vec<Token>,
    /// Most likely tokens to report with each.
    pub n_top: u32,
}

/// A sequence of a step that was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SentSeq {
    /// Request of the sequence.
    pub request: RequestId,
    /// `true` if the step samples a token for the sequence.
    pub sample: bool,
    /// Maximum number of drafts of the sequence in the step.
    pub n_drafts: u32,
    /// Most likely tokens to report with each token; `None` without log probabilities.
    pub logprobs: Option<u32>,
    /// Number of attention scores expected, one for each entry of the block table with a position.
    pub n_scores: u32,
}

/// Reason for refusing the answer to a step.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("the answer to step {step}: {reason}")]
pub struct DoneFault {
    /// Number of the step that was sent.
    pub step: u64,
    /// Rule broken by the answer.
    pub reason: DoneReason,
}

/// Rule of the protocol broken by the answer to a step.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DoneReason {
    /// The answer names another step or life.
    #[error("it names step {id} of life {life}; answers come in the order of the steps")]
    OtherStep {
        /// Step of the answer.
        id: u64,
        /// Life of the answer.
        life: u64,
    },
    /// A list has the wrong length.
    #[error("{list} has {len} entries instead of {expected}")]
    Length {
        /// Name of the list.
        list: &'static str,
        /// Entries in the answer.
        len: usize,
        /// Entries expected.
        expected: usize,
    },
    /// A sequence has too few or too many sampled tokens.
    #[error("counts[{index}] is {count}; the sequence has {least} to {most} sampled tokens")]
    Count {
        /// Index of the sequence in the step.
        index: usize,
        /// Number in the answer.
        count: u32,
        /// Minimum number of sampled tokens.
        least: u32,
        /// Maximum number of sampled tokens.
        most: u32,
    },
    /// A token id is not in the vocabulary.
    #[error("{list} contains token {token}; token ids are below {vocab_size}")]
    Token {
        /// Name of the list.
        list: &'static str,
        /// Token at fault.
        token: u32,
        /// Number of token ids.
        vocab_size: u32,
    },
    /// The reason for the failure of a sequence is unknown.
    #[error("faults[{index}] is {fault}; there are 0, 1 and 2")]
    Fault {
        /// Index of the sequence in the step.
        index: usize,
        /// Number in the answer.
        fault: i32,
    },
    /// The counts of drafts contradict the step or each other.
    #[error("{accepted} of {drafted} drafts were accepted, of at most {allowed}")]
    Drafts {
        /// Drafted tokens in the answer.
        drafted: u32,
        /// Accepted drafts in the answer.
        accepted: u32,
        /// Drafts allowed by the step.
        allowed: u64,
    },
}

/// Converts the output of a step to a message. `busy_us` is the time spent on the step, microseconds.
pub fn encode_done(step: &Step, output: StepOutput, life: u64, busy_us: u64) -> wire::StepDone {
    let StepOutput { result, logprobs, prompts, drafted, accepted, weights } = output;
    let samples = |i: usize, seq: &StepSeq| seq.sample && result.fault_of(i).is_none();
    let regular = result.ends.len() == step.seqs.len()
        && step.seqs.iter().enumerate().all(|(i, seq)| result.of(i).len() == usize::from(samples(i, seq)));
    let counts = if regular { Vec::new() } else { (0..result.ends.len()).map(|i| result.of(i).len() as u32).collect() };
    let n_faults = if result.failed.is_empty() { 0 } else { step.seqs.len() };
    let mut faults = vec![WireFault::None.into(); n_faults];
    result.failed.iter().for_each(|failed| faults[failed.seq as usize] = to_wire(failed.fault).into());
    let logprob = |token: TokenLogprobs| wire::WorkerLogprob {
        logprob: token.logprob,
        top_ids: token.top.iter().map(|(id, _)| *id).collect(),
        top_logprobs: token.top.iter().map(|(_, logprob)| *logprob).collect(),
    };
    wire::StepDone {
        id: step.id,
        life,
        tokens: result.tokens,
        counts,
        logprobs: logprobs.into_iter().map(logprob).collect(),
        scores: result.scores,
        drafted: drafted.min(u32::MAX.into()) as u32,
        accepted: accepted.min(u32::MAX.into()) as u32,
        busy_us,
        faults,
        prompt_logprobs: prompts.into_iter().flat_map(|prompt| prompt.tokens).map(logprob).collect(),
        weights: (weights.steps > 0).then_some(wire::WorkerWeightReads {
            bytes: weights.bytes,
            reading_ns: weights.reading_ns,
            exposed_ns: weights.exposed_ns,
            step_ns: weights.step_ns,
            failed_reads: weights.failed_reads,
        }),
    }
}

fn weights_of(reads: &wire::WorkerWeightReads) -> WeightReads {
    let wire::WorkerWeightReads { bytes, reading_ns, exposed_ns, step_ns, failed_reads } = *reads;
    WeightReads { steps: 1, bytes, reading_ns, exposed_ns, step_ns, failed_reads }
}

fn to_wire(fault: SeqFault) -> WireFault {
    match fault {
        SeqFault::NotFinite => WireFault::NotFinite,
        SeqFault::Unsupported => WireFault::Unsupported,
    }
}

impl SentStep {
    /// Converts the answer to an output, and checks every field against the step. A sequence with scores or log probabilities that are not finite
    /// counts as failed, as if the worker had said so.
    ///
    /// # Errors
    /// If the answer breaks a rule of the protocol or does not fit the step.
    pub fn decode(&self, done: wire::StepDone) -> Result<StepOutput, DoneFault> {
        self.output_of(done).map_err(|reason| DoneFault { step: self.id, reason })
    }

    fn output_of(&self, done: wire::StepDone) -> Result<StepOutput, DoneReason> {
        if (done.id, done.life) != (self.id, self.life) {
            return Err(DoneReason::OtherStep { id: done.id, life: done.life });
        }
        let failed = self.failed_of(&done.faults)?;
        let ends = self.ends_of(&done.counts, &failed)?;
        let expected = ends.last().copied().unwrap_or(0) as usize;
        check_length("tokens", done.tokens.len(), expected)?;
        self.check_tokens("tokens", &done.tokens)?;
        self.check_drafts(&done)?;
        let n_scores: usize = self.seqs.iter().map(|seq| seq.n_scores as usize).sum();
        if !done.scores.is_empty() {
            check_length("scores", done.scores.len(), n_scores)?;
        }
        let logprobs = self.logprobs_of(&ends, &done)?;
        let prompts = self.prompts_of(&failed, &done.prompt_logprobs)?;
        let result = StepResult { step: self.id, tokens: done.tokens, ends, scores: done.scores, failed };
        let (drafted, accepted) = (done.drafted.into(), done.accepted.into());
        let weights = done.weights.as_ref().map(weights_of).unwrap_or_default();
        let mut output = StepOutput { result, logprobs, prompts, drafted, accepted, weights };
        self.fail_unfit(&mut output);
        Ok(output)
    }

    /// Fails the sequences with numbers that are not finite, and drops what was said of them.
    fn fail_unfit(&self, output: &mut StepOutput) {
        let StepOutput { result, logprobs, prompts, .. } = output;
        let is_fit =
            |entry: &TokenLogprobs| entry.logprob.is_finite() && entry.top.iter().all(|(_, of)| of.is_finite());
        let all = logprobs.iter().chain(prompts.iter().flat_map(|prompt| &prompt.tokens));
        let unfit: HashSet<RequestId> = all.filter(|of| !is_fit(of)).map(|of| of.request).collect();
        if result.failed.is_empty() && unfit.is_empty() && result.scores.iter().all(|score| score.is_finite()) {
            return;
        }
        let (step, mut scores) = (result.step, std::mem::take(&mut result.scores));
        let before = std::mem::replace(result, StepResult { step, ..StepResult::default() });
        let mut rest = scores.as_mut_slice();
        for (index, seq) in self.seqs.iter().enumerate() {
            let own = rest.split_off_mut(..(seq.n_scores as usize).min(rest.len())).unwrap_or_default();
            let is_unfit = unfit.contains(&seq.request) || own.iter().any(|score| !score.is_finite());
            match before.fault_of(index).or(is_unfit.then_some(SeqFault::NotFinite)) {
                Some(fault) => {
                    own.fill(0.0);
                    logprobs.retain(|of| of.request != seq.request);
                    prompts.retain(|of| of.request != seq.request);
                    result.push_failed(fault);
                }
                None => result.push(before.of(index)),
            }
        }
        result.scores = scores;
    }

    /// Returns the sequences that failed.
    fn failed_of(&self, faults: &[i32]) -> Result<Vec<FailedSeq>, DoneReason> {
        if !faults.is_empty() {
            check_length("faults", faults.len(), self.seqs.len())?;
        }
        let failed = faults.iter().copied().enumerate().filter_map(|(index, fault)| {
            let fault = match WireFault::try_from(fault) {
                Ok(WireFault::None) => return None,
                Ok(WireFault::NotFinite) => SeqFault::NotFinite,
                Ok(WireFault::Unsupported) => SeqFault::Unsupported,
                Err(_) => return Some(Err(DoneReason::Fault { index, fault })),
            };
            Some(Ok(FailedSeq { seq: index as u32, fault }))
        });
        failed.collect()
    }

    /// Returns the end of each sequence's tokens.
    fn ends_of(&self, counts: &[u32], failed: &[FailedSeq]) -> Result<Vec<u32>, DoneReason> {
        if !counts.is_empty() {
            check_length("counts", counts.len(), self.seqs.len())?;
        }
        let mut ends = Vec::with_capacity(self.seqs.len());
        let mut end = 0_u32;
        let mut failed = failed.iter().map(|failed| failed.seq as usize).peekable();
        for (index, seq) in self.seqs.iter().enumerate() {
            let samples = seq.sample && failed.next_if_eq(&index).is_none();
            let least = u32::from(samples);
            let most = if samples { seq.n_drafts.saturating_add(1) } else { 0 };
            let count = counts.get(index).copied().unwrap_or(least);
            end = match end.checked_add(count) {
                Some(end) if (least..=most).contains(&count) => end,
                _ => return Err(DoneReason::Count { index, count, least, most }),
            };
            ends.push(end);
        }
        Ok(ends)
    }

    fn check_tokens(&self, list: &'static str, tokens: &[u32]) -> Result<(), DoneReason> {
        match tokens.iter().find(|token| **token >= self.vocab_size) {
            Some(token) => Err(DoneReason::Token { list, token: *token, vocab_size: self.vocab_size }),
            None => Ok(()),
        }
    }

    fn check_drafts(&self, done: &wire::StepDone) -> Result<(), DoneReason> {
        let allowed = self.seqs.iter().filter(|seq| seq.sample).map(|seq| u64::from(seq.n_drafts)).sum();
        let (drafted, accepted) = (done.drafted, done.accepted);
        let good = accepted <= drafted && u64::from(drafted) <= allowed;
        if good { Ok(()) } else { Err(DoneReason::Drafts { drafted, accepted, allowed }) }
    }

    fn logprobs_of(&self, ends: &[u32], done: &wire::StepDone) -> Result<Vec<TokenLogprobs>, DoneReason> {
        let mut begin = 0;
        let mut expected = 0;
        for (seq, end) in self.seqs.iter().zip(ends) {
            let asked = seq.logprobs.is_some();
            expected += if asked { (end - begin) as usize } else { 0 };
            begin = *end;
        }
        check_length("logprobs", done.logprobs.len(), expected)?;
        let mut out = Vec::with_capacity(expected);
        let mut given = done.logprobs.iter();
        let mut begin = 0;
        for (seq, end) in self.seqs.iter().zip(ends) {
            let tokens = &done.tokens[begin as usize..*end as usize];
            begin = *end;
            let Some(most) = seq.logprobs else { continue };
            for (token, entry) in tokens.iter().zip(&mut given) {
                let top = self.top_of(entry, most)?;
                out.push(TokenLogprobs { request: seq.request, token: *token, logprob: entry.logprob, top });
            }
        }
        Ok(out)
    }

    fn prompts_of(
        &self,
        failed: &[FailedSeq],
        given: &[wire::WorkerLogprob],
    ) -> Result<Vec<PromptLogprobs>, DoneReason> {
        let has_failed = |sent: &&SentPrompt| failed.iter().any(|failed| failed.seq == sent.seq);
        let expected = || self.prompts.iter().filter(|sent| !has_failed(sent));
        check_length("prompt_logprobs", given.len(), expected().map(|sent| sent.tokens.len()).sum())?;
        let mut given = given.iter();
        let prompt = |sent: &SentPrompt| {
            let request = self.seqs[sent.seq as usize].request;
            let token = |(token, entry): (&Token, &wire::WorkerLogprob)| {
                let top = self.top_of(entry, sent.n_top)?;
                Ok(TokenLogprobs { request, token: *token, logprob: entry.logprob, top })
            };
            let tokens: Result<_, _> = sent.tokens.iter().zip(given.by_ref()).map(token).collect();
            Ok(PromptLogprobs { request, first: sent.first, tokens: tokens? })
        };
        expected().map(prompt).collect()
    }

    fn top_of(&self, entry: &wire::WorkerLogprob, most: u32) -> Result<Vec<(u32, f32)>, DoneReason> {
        let expected = most.min(self.vocab_size) as usize;
        check_length("top_ids", entry.top_ids.len(), expected)?;
        check_length("top_logprobs", entry.top_logprobs.len(), expected)?;
        self.check_tokens("top_ids", &entry.top_ids)?;
        Ok(entry.top_ids.iter().copied().zip(entry.top_logprobs.iter().copied()).collect())
    }
}

fn check_length(list: &'static str, len: usize, expected: usize) -> Result<(), DoneReason> {
    if len == expected { Ok(()) } else { Err(DoneReason::Length { list, len, expected }) }
}
