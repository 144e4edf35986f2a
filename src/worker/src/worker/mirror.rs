//! The worker's memory of each sequence, slot by slot, and the check of a step against the memory.
//!
//! The scheduler sends only changes: a table is cut and extended, sampling parameters come once. A step is checked whole before any
//! part is applied, so a refused step leaves no trace.

use std::collections::HashSet;

use trunkline_port::{Keeps, PromptRows, RequestId, Sampling, SeqStart, Step, StepSeq, Token};

use crate::error::{SequenceFault, WorkerError};
use crate::kv::block_tables::{BlockTables, Changes};
use crate::worker::drafter::draft;
use crate::worker::past::Past;
use crate::worker::sampler::check_sampling;

/// Slots there can be. Slots are small and dense; a number beyond this is a mistake, not a long table.
const SLOTS_MAX: u32 = 1 << 16;

/// Limits of a worker, for the check of steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Number of tokens in a block.
    pub(crate) block_size: u32,
    /// Number of blocks on the device.
    pub(crate) n_blocks: u32,
    /// Number of token ids.
    pub(crate) vocab: u32,
    /// Longest sequence in tokens.
    pub(crate) context: u32,
    /// Tokens to draft for a sequence in one step at most; with 0 no tokens are kept.
    pub(crate) max_drafts: u32,
}

/// Mirror of a sequence in the worker.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Slot {
    pub(crate) request: RequestId,
    /// Blocks of positions `0 .. block_size`, and so on, in each layer group.
    pub(crate) tables: BlockTables,
    pub(crate) sampling: Sampling,
    /// Number of tokens of the prompt.
    n_prompt: u32,
    /// Tokens of the sequence so far, as sampling needs them.
    pub(crate) past: Past,
    /// Tokens of the sequence in order; kept only with speculative decoding.
    pub(crate) tokens: Vec<Token>,
    /// The last sampled token, and the token's position.
    last: Option<(u32, Token)>,
    /// Tokens to draft next at most: see [`Mirror::note`].
    draft_limit: u32,
}

impl Slot {
    fn new(request: RequestId, start: &SeqStart, n_groups: usize) -> Self {
        Self {
            request,
            tables: BlockTables::new(n_groups),
            sampling: start.sampling.clone(),
            n_prompt: start.n_prompt,
            past: Past::default(),
            tokens: Vec::new(),
            last: None,
            draft_limit: u32::MAX,
        }
    }
}

/// Mirrors of all sequences, by slot.
pub(crate) struct Mirror {
    limits: Limits,
    /// Positions kept by each layer group; one entry at least.
    keeps: Vec<Keeps>,
    slots: Vec<Option<Slot>>,
}

impl Mirror {
    pub(crate) fn new(limits: Limits, keeps: Vec<Keeps>) -> Self {
        Self { limits, keeps, slots: Vec::new() }
    }

    /// Forgets every sequence, in all slots.
    pub(crate) fn clear(&mut self) {
        self.slots.clear();
    }

    /// The sequence in a slot used by the last step.
    pub(crate) fn slot(&self, seq: &StepSeq) -> &Slot {
        self.slots[seq.slot as usize].as_ref().expect("the step was applied")
    }

    /// Returns the tokens to run of sequence `seq` of an applied step: tokens of the step, or the last sampled token.
    pub(crate) fn run_tokens<'a>(&'a self, step: &'a Step, seq: &StepSeq) -> &'a [Token] {
        match &self.slot(seq).last {
            Some((_, last)) if seq.input_from_last => std::slice::from_ref(last),
            _ => step.run_tokens(seq),
        }
    }

    /// Takes in a step's changes, or refuses the step and changes nothing.
    pub(crate) fn apply(&mut self, step: &Step) -> Result<(), WorkerError> {
        self.check(step)?;
        let mut starts = step.starts.iter();
        for (index, seq) in step.seqs.iter().enumerate() {
            let at = seq.slot as usize;
            if seq.start {
                let start = starts.next().expect("counted by the check");
                self.slots.resize(self.slots.len().max(at + 1), None);
                self.slots[at] = Some(Slot::new(seq.request, start, self.keeps.len()));
            }
            let slot = self.slots[at].as_mut().expect("checked to be held");
            let last = slot.last.filter(|_| seq.input_from_last).map(|(_, token)| [token]);
            let run = last.as_ref().map_or(step.run_tokens(seq), <[Token; 1]>::as_slice);
            slot.tables.apply(step, index);
            let history = step.history(seq);
            if self.limits.max_drafts > 0 {
                // What a step that failed has left is sent again.
                slot.tokens.truncate(seq.computed as usize - history.len());
                slot.tokens.extend_from_slice(history);
                slot.tokens.extend_from_slice(run);
            }
            if slot.sampling.needs_history() {
                slot.past.put(&slot.sampling, slot.n_prompt, seq.computed - seq.n_history, history);
                slot.past.put(&slot.sampling, slot.n_prompt, seq.computed, run);
            }
        }
        Ok(())
    }

    /// Notes the tokens picked for a sequence, with `n_drafts` drafts. After bad drafts a sequence drafts less in the next step,
    /// twice the number of right drafts and one more: where drafts fail, drafting costs one row.
    pub(crate) fn note(&mut self, seq: &StepSeq, picked: &[Token], n_drafts: usize) {
        let slot = self.slots[seq.slot as usize].as_mut().expect("the step was applied");
        picked.iter().for_each(|token| slot.past.push(&slot.sampling, *token));
        if let Some(token) = picked.last() {
            slot.last = Some((seq.computed + seq.n_tokens + picked.len() as u32 - 1, *token));
        }
        if n_drafts > 0 {
            slot.draft_limit = 2 * (picked.len() as u32 - 1) + 1;
        }
        if self.limits.max_drafts > 0 {
            slot.tokens.extend_from_slice(picked);
        }
    }

    /// Drafts the tokens after the tokens run by an applied step for a sequence: as many as the step allows, as recent drafts
    /// justify, and as the context and the block table have room for.
    pub(crate) fn draft(&self, seq: &StepSeq) -> Vec<Token> {
        let slot = self.slot(seq);
        let end = seq.computed + seq.n_tokens;
        // A draft's KV is its own, so it has no place where others read.
        if !seq.sample || end < seq.kv_write_from {
            return Vec::new();
        }
        let capacity = slot.tables.len() as u64 * u64::from(self.limits.block_size);
        let room = capacity.min(self.limits.context.into()).saturating_sub(end.into());
        let n = u64::from(seq.n_drafts.min(self.limits.max_drafts).min(slot.draft_limit)).min(room);
        draft(&slot.tokens, n as usize)
    }

    /// Returns the limits of the worker.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Checks a step whole, and changes nothing.
    pub(crate) fn check(&self, step: &Step) -> Result<(), WorkerError> {
        let starts = step.seqs.iter().filter(|seq| seq.start).count();
        if starts != step.starts.len() {
            return Err(WorkerError::StartCount { step: step.id, starts, sent: step.starts.len() });
        }
        check_order(step)?;
        let mut used = HashSet::with_capacity(step.seqs.len());
        let mut starts = step.starts.iter();
        for (index, seq) in step.seqs.iter().enumerate() {
            let new = if seq.start { starts.next() } else { None };
            let fault = if used.insert(seq.slot) {
                self.check_sequence(step, index, new).err()
            } else {
                Some(SequenceFault::SlotTwice)
            };
            if let Some(fault) = fault {
                let (request, slot) = (seq.request, seq.slot);
                return Err(WorkerError::Sequence { step: step.id, index, request, slot, fault });
            }
        }
        Ok(())
    }

    /// `new` are the facts of a starting sequence.
    fn check_sequence(&self, step: &Step, index: usize, new: Option<&SeqStart>) -> Result<(), SequenceFault> {
        let seq = &step.seqs[index];
        if seq.slot >= SLOTS_MAX {
            return Err(SequenceFault::SlotTooLarge { limit: SLOTS_MAX });
        }
        let held = if let Some(start) = new {
            check_sampling(&start.sampling, self.limits.vocab)?;
            None
        } else {
            let held = self.slots.get(seq.slot as usize).and_then(Option::as_ref);
            Some(&held.filter(|slot| slot.request == seq.request).ok_or(SequenceFault::NotHeld)?.tables)
        };
        let ahead = new.map_or(0, |start| start.n_ahead);
        let tokens = u64::from(seq.n_history) + u64::from(seq.n_tokens) + u64::from(ahead);
        let (end, len) = (u64::from(seq.tokens_at) + tokens, step.tokens.len());
        if end > len as u64 {
            return Err(SequenceFault::Range { what: "tokens", end, len });
        }
        let scored = step.scored_rows(index);
        if scored > seq.n_tokens {
            return Err(SequenceFault::ScoredRows { scored, n_tokens: seq.n_tokens });
        }
        let changes = Changes { step, index, held, keeps: &self.keeps };
        changes.check(self.limits.n_blocks, self.limits.block_size)?;
        let end = u64::from(seq.computed) + u64::from(seq.n_tokens);
        if end > u64::from(self.limits.context) {
            return Err(SequenceFault::Context { end, context: self.limits.context });
        }
        let capacity = (u64::from(seq.table_keep) + u64::from(seq.n_blocks)) * u64::from(self.limits.block_size);
        if end > capacity {
            return Err(SequenceFault::TableShort { end, capacity });
        }
        if seq.input_from_last {
            self.check_last(seq)?;
        }
        let vocab = self.limits.vocab;
        // In the place of a token that only the worker knows there may be anything.
        let run = if seq.input_from_last { &[] } else { step.run_tokens(seq) };
        let mut tokens = step.history(seq).iter().chain(run);
        if let Some(token) = tokens.find(|token| **token >= vocab) {
            return Err(SequenceFault::Token { token: *token, vocab });
        }
        if seq.sample && seq.n_tokens == 0 {
            return Err(SequenceFault::NothingToSample);
        }
        if seq.n_history > seq.computed {
            return Err(SequenceFault::History { computed: seq.computed, sent: seq.n_history });
        }
        self.check_prompt_rows(step, index)?;
        self.check_history(seq, new)
    }

    fn check_prompt_rows(&self, step: &Step, index: usize) -> Result<(), SequenceFault> {
        let Ok(at) = step.prompt_rows.binary_search_by_key(&(index as u32), |rows| rows.seq) else { return Ok(()) };
        let PromptRows { first, rows, next, .. } = step.prompt_rows[at];
        let (n_tokens, end) = (step.seqs[index].n_tokens, u64::from(first) + u64::from(rows));
        if rows == 0 || end > n_tokens.into() {
            return Err(SequenceFault::PromptRows { first, end, n_tokens });
        }
        let vocab = self.limits.vocab;
        if next < vocab { Ok(()) } else { Err(SequenceFault::Token { token: next, vocab }) }
    }

    /// Checks that the worker has sampled the token still unknown to the core.
    fn check_last(&self, seq: &StepSeq) -> Result<(), SequenceFault> {
        let held = if seq.start { None } else { self.slots[seq.slot as usize].as_ref() };
        let position = held.and_then(|slot| slot.last).map(|(position, _)| position);
        if position == Some(seq.computed) && seq.n_tokens == 1 {
            Ok(())
        } else {
            Err(SequenceFault::NotSampled { computed: seq.computed, n_tokens: seq.n_tokens, sampled: position })
        }
    }

    /// Checks that the worker knows every token before the tokens to run, if sampling or drafting needs a history.
    fn check_history(&self, seq: &StepSeq, new: Option<&SeqStart>) -> Result<(), SequenceFault> {
        let drafts = self.limits.max_drafts > 0;
        let (computed, sent) = (seq.computed, seq.n_history);
        match new {
            Some(start) if (drafts || start.sampling.needs_history()) && sent != computed => {
                Err(SequenceFault::History { computed, sent })
            }
            None if drafts => {
                let known = self.slots[seq.slot as usize].as_ref().map_or(0, |slot| slot.tokens.len());
                if known + (sent as usize) < computed as usize {
                    Err(SequenceFault::Gap { computed, known })
                } else {
                    Ok(())
                }
            }
            _ => Ok(()),
        }
    }
}

/// Checks that drops, scores and values of prompts are in the order of the sequences, and of sequences in the step.
fn check_order(step: &Step) -> Result<(), WorkerError> {
    let n = step.seqs.len() as u32;
    let drops = step.drops.iter().map(|drop| drop.seq).is_sorted() && step.drops.last().is_none_or(|drop| drop.seq < n);
    let scored = step.scored.is_sorted_by(|a, b| a.seq < b.seq) && step.scored.last().is_none_or(|last| last.seq < n);
    let rows = &step.prompt_rows;
    let prompts = rows.is_sorted_by(|a, b| a.seq < b.seq) && rows.last().is_none_or(|last| last.seq < n);
    let lists = [("drops", drops), ("scored", scored), ("prompt_rows", prompts)];
    match lists.into_iter().find(|(_, ordered)| !ordered) {
        Some((list, _)) => Err(WorkerError::Order { step: step.id, list }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use trunkline_port::{Dropped, Scored};

    use super::*;

    fn mirror() -> Mirror {
        let limits = Limits { block_size: 4, n_blocks: 10, vocab: 100, context: 24, max_drafts: 0 };
        Mirror::new(limits, vec![Keeps::All])
    }

    /// A step that starts one request in slot 3 with `tokens` in `blocks`.
    fn start(tokens: &[u32], blocks: &[u32]) -> Step {
        let seq = StepSeq {
            request: RequestId(7),
            slot: 3,
            start: true,
            n_tokens: tokens.len() as u32,
            n_blocks: blocks.len() as u32,
            sample: true,
            ..StepSeq::default()
        };
        Step {
            id: 1,
            seqs: vec![seq],
            tokens: tokens.to_vec(),
            blocks: blocks.to_vec(),
            starts: vec![SeqStart::default()],
            ..Step::default()
        }
    }

    /// A step that goes on with it: keeps `keep` blocks and adds `blocks`.
    fn go_on(computed: u32, keep: u32, blocks: &[u32]) -> Step {
        let mut step = start(&[5], blocks);
        step.starts.clear();
        step.seqs[0] = StepSeq { start: false, computed, table_keep: keep, n_generated: 1, ..step.seqs[0] };
        step
    }

    #[test]
    fn tables_are_cut_and_extended_and_a_start_forgets() {
        let mut mirror = mirror();
        mirror.apply(&start(&[1, 2, 3, 4, 5], &[9, 2])).unwrap();
        let step = go_on(5, 2, &[4, 6]);
        mirror.apply(&step).unwrap();
        assert_eq!(mirror.slot(&step.seqs[0]).tables.of(0), [9, 2, 4, 6]);
        // The same step once more, after a failure, leads to the same table.
        mirror.apply(&step).unwrap();
        assert_eq!(mirror.slot(&step.seqs[0]).tables.of(0), [9, 2, 4, 6]);
        mirror.apply(&go_on(6, 1, &[7])).unwrap();
        assert_eq!(mirror.slot(&step.seqs[0]).tables.of(0), [9, 7]);
        let mut other = start(&[1], &[0]);
        other.seqs[0].request = RequestId(8);
        mirror.apply(&other).unwrap();
        assert_eq!(mirror.slot(&other.seqs[0]).tables.of(0), [0]);
        assert!(mirror.apply(&go_on(1, 1, &[])).is_err());
        mirror.clear();
        assert!(mirror.apply(&go_on(6, 0, &[7])).is_err());
    }

    #[test]
    fn history_is_kept_only_where_sampling_needs_it() {
        let mut mirror = mirror();
        let mut step = start(&[1, 2, 3], &[9]);
        mirror.apply(&step).unwrap();
        mirror.note(&step.seqs[0], &[50], 0);
        assert_eq!(mirror.slot(&step.seqs[0]).past, Past::default());
        step.starts[0].sampling.repetition_penalty = 1.5;
        step.seqs[0] = StepSeq { computed: 2, n_history: 2, n_tokens: 1, ..step.seqs[0] };
        mirror.apply(&step).unwrap();
        mirror.note(&step.seqs[0], &[50], 0);
        mirror.apply(&go_on(3, 1, &[])).unwrap();
        assert_eq!(mirror.slot(&step.seqs[0]).past.seen().collect::<Vec<_>>(), [1, 2, 3, 5, 50]);
    }

    #[test]
    fn the_token_sampled_last_is_run_and_seen_in_place_of_the_placeholder() {
        let mut mirror = mirror();
        mirror.limits.max_drafts = 2;
        let mut first = start(&[1, 2, 3], &[9, 2]);
        first.starts[0].sampling.repetition_penalty = 1.5;
        mirror.apply(&first).unwrap();
        let mut next = go_on(3, 2, &[]);
        next.tokens[0] = u32::MAX;
        next.seqs[0].input_from_last = true;
        let sampled = |result: Result<(), WorkerError>| match result {
            Err(WorkerError::Sequence { fault: SequenceFault::NotSampled { sampled, .. }, .. }) => sampled,
            other => panic!("{other:?}"),
        };
        assert_eq!(sampled(mirror.apply(&next)), None);
        mirror.note(&first.seqs[0], &[50], 0);
        // The step may be sent again after a failure.
        for _ in 0..2 {
            mirror.apply(&next).unwrap();
            assert_eq!(mirror.run_tokens(&next, &next.seqs[0]), [50]);
            assert_eq!(mirror.slot(&next.seqs[0]).tokens, [1, 2, 3, 50]);
        }
        mirror.note(&next.seqs[0], &[51, 52], 1);
        assert_eq!(mirror.slot(&next.seqs[0]).past.seen().collect::<Vec<_>>(), [1, 2, 3, 50, 51, 52]);
        // With a draft that was right the last token is one position further.
        let wrong = StepSeq { computed: 4, ..next.seqs[0] };
        assert_eq!(sampled(mirror.apply(&Step { seqs: vec![wrong], ..next.clone() })), Some(5));
        next.seqs[0].computed = 5;
        mirror.apply(&next).unwrap();
        assert_eq!(mirror.run_tokens(&next, &next.seqs[0]), [52]);
        let two = StepSeq { n_tokens: 2, computed: 5, ..next.seqs[0] };
        assert_eq!(sampled(mirror.apply(&Step { seqs: vec![two], tokens: vec![0, 0], ..next.clone() })), Some(5));
        mirror.apply(&first).unwrap();
        assert_eq!(sampled(mirror.apply(&next)), None, "a start forgets");
        first.seqs[0].input_from_last = true;
        assert_eq!(sampled(mirror.apply(&first)), None, "a start samples nothing before");
    }

    /// A mirror that keeps tokens to draft from, and knows 1 2 3 1 2 in blocks for eight.
    fn drafting() -> Mirror {
        let mut mirror = mirror();
        mirror.limits.max_drafts = 8;
        mirror.apply(&start(&[1, 2, 3, 1, 2], &[9, 2])).unwrap();
        mirror
    }

    #[test]
    fn tokens_follow_what_is_run_and_picked() {
        let mut mirror = drafting();
        let mut step = go_on(5, 2, &[]);
        mirror.note(&step.seqs[0], &[3, 1], 1);
        assert_eq!(mirror.slot(&step.seqs[0]).tokens, [1, 2, 3, 1, 2, 3, 1]);
        // The scheduler runs the last of them, twice because of a failure.
        step = go_on(6, 2, &[]);
        step.tokens[0] = 1;
        for _ in 0..2 {
            mirror.apply(&step).unwrap();
            assert_eq!(mirror.slot(&step.seqs[0]).tokens, [1, 2, 3, 1, 2, 3, 1]);
        }
        let Err(WorkerError::Sequence { fault, .. }) = mirror.apply(&go_on(8, 2, &[1])) else { panic!("accepted") };
        assert_eq!(fault, SequenceFault::Gap { computed: 8, known: 7 });
        let mut step = start(&[4, 5], &[0]);
        step.seqs[0].computed = 1;
        let Err(WorkerError::Sequence { fault, .. }) = mirror.apply(&step) else { panic!("accepted") };
        assert_eq!(fault, SequenceFault::History { computed: 1, sent: 0 });
        step.seqs[0] = StepSeq { n_history: 1, n_tokens: 1, ..step.seqs[0] };
        mirror.apply(&step).unwrap();
        assert_eq!(mirror.slot(&step.seqs[0]).tokens, [4, 5]);
    }

    #[test]
    fn bad_guesses_make_a_sequence_guess_less() {
        let mut mirror = drafting();
        let step = StepSeq { n_drafts: 64, ..go_on(5, 2, &[]).seqs[0] };
        mirror.limits.block_size = 100;
        for (picked, n_drafts, next) in [
            (&[9][..], 8, 1),
            (&[3, 1], 1, 3),
            (&[9], 0, 3),
            (&[3, 1, 2, 3], 3, 7),
            (&[3, 1, 2, 3, 1, 2, 3, 1], 7, 8),
            (&[9], 8, 1),
        ] {
            let tokens = mirror.slot(&step).tokens.clone();
            mirror.note(&step, picked, n_drafts);
            mirror.slots[3].as_mut().unwrap().tokens = tokens;
            assert_eq!(mirror.draft(&step).len(), next);
        }
    }

    #[test]
    fn drafts_stay_within_what_was_allowed_and_where_there_is_room() {
        let mirror = drafting();
        let seq = StepSeq { n_drafts: 2, ..start(&[1, 2, 3, 1, 2], &[]).seqs[0] };
        assert_eq!(mirror.draft(&seq), [3, 1]);
        assert_eq!(mirror.draft(&StepSeq { n_drafts: 64, ..seq }), [3, 1, 2]);
        assert_eq!(mirror.draft(&StepSeq { kv_write_from: 5, ..seq }), [3, 1]);
        for none in [
            StepSeq { n_drafts: 0, ..seq },
            StepSeq { sample: false, ..seq },
            StepSeq { kv_write_from: 6, ..seq },
            StepSeq { n_tokens: 8, ..seq },
        ] {
            assert!(mirror.draft(&none).is_empty());
        }
        for (limits, drafts) in [
            (Limits { max_drafts: 1, ..mirror.limits }, 1),
            (Limits { context: 7, ..mirror.limits }, 2),
            (Limits { block_size: 100, ..mirror.limits }, 8),
        ] {
            let mirror = Mirror { limits, keeps: mirror.keeps.clone(), slots: mirror.slots.clone() };
            assert_eq!(mirror.draft(&StepSeq { n_drafts: 64, ..seq }).len(), drafts);
        }
    }

    #[test]
    fn every_fault_of_a_step_is_named_and_leaves_no_trace() {
        type Change = fn(&mut Step);
        let faults: [(Change, SequenceFault); 15] = [
            (|step| step.seqs[0].slot = 1 << 16, SequenceFault::SlotTooLarge { limit: 1 << 16 }),
            (|step| step.seqs[0].request = RequestId(99), SequenceFault::NotHeld),
            (|step| step.seqs[0].slot = 2, SequenceFault::NotHeld),
            (|step| step.seqs[0].tokens_at = 1, SequenceFault::Range { what: "tokens", end: 2, len: 1 }),
            (|step| step.seqs[0].n_history = u32::MAX, SequenceFault::Range { what: "tokens", end: 1 << 32, len: 1 }),
            (|step| step.seqs[0].blocks_at = u32::MAX, SequenceFault::Range { what: "blocks", end: 1 << 32, len: 1 }),
            (
                |step| step.scored = vec![Scored { seq: 0, rows: 2 }],
                SequenceFault::ScoredRows { scored: 2, n_tokens: 1 },
            ),
            (|step| step.seqs[0].table_keep = 3, SequenceFault::TableKeep { keep: 3, len: 2 }),
            (|step| step.blocks[0] = 10, SequenceFault::Block { block: 10, limit: 10 }),
            (|step| step.seqs[0].computed = 24, SequenceFault::Context { end: 25, context: 24 }),
            (|step| step.seqs[0].computed = u32::MAX, SequenceFault::Context { end: 1 << 32, context: 24 }),
            (|step| step.seqs[0].computed = 12, SequenceFault::TableShort { end: 13, capacity: 12 }),
            (|step| step.tokens[0] = 100, SequenceFault::Token { token: 100, vocab: 100 }),
            (|step| step.seqs[0].n_tokens = 0, SequenceFault::NothingToSample),
            (|step| step.seqs.push(step.seqs[0]), SequenceFault::SlotTwice),
        ];
        for (change, expected) in faults {
            let mut mirror = mirror();
            mirror.apply(&start(&[1, 2, 3, 4, 5], &[9, 2])).unwrap();
            let before = mirror.slots.clone();
            let mut step = go_on(5, 2, &[4]);
            change(&mut step);
            match mirror.apply(&step) {
                Err(WorkerError::Sequence { fault, .. }) => assert_eq!(fault, expected),
                other => panic!("{expected}: {other:?}"),
            }
            assert_eq!(mirror.slots, before);
        }
    }

    #[test]
    fn sampling_entries_are_counted_and_checked() {
        let mut step = start(&[1], &[0]);
        step.starts.clear();
        let error = mirror().apply(&step).unwrap_err();
        assert_eq!(error, WorkerError::StartCount { step: 1, starts: 1, sent: 0 });
        let mut step = start(&[1], &[0]);
        step.drops = vec![Dropped { seq: 1, group: 0, first: 0, n: 1 }];
        assert_eq!(mirror().apply(&step), Err(WorkerError::Order { step: 1, list: "drops" }));
        step.drops.clear();
        step.scored = vec![Scored { seq: 0, rows: 1 }; 2];
        assert_eq!(mirror().apply(&step), Err(WorkerError::Order { step: 1, list: "scored" }));
        let valued = |first, rows, next| PromptRows { seq: 0, first, rows, next, n_top: 0 };
        let mut step = start(&[1, 2, 3], &[0]);
        step.prompt_rows = vec![valued(0, 1, 1); 2];
        assert_eq!(mirror().apply(&step), Err(WorkerError::Order { step: 1, list: "prompt_rows" }));
        for (rows, fault) in [
            (valued(1, 0, 1), SequenceFault::PromptRows { first: 1, end: 1, n_tokens: 3 }),
            (valued(2, 2, 1), SequenceFault::PromptRows { first: 2, end: 4, n_tokens: 3 }),
            (valued(0, u32::MAX, 1), SequenceFault::PromptRows { first: 0, end: u32::MAX.into(), n_tokens: 3 }),
            (valued(0, 3, 100), SequenceFault::Token { token: 100, vocab: 100 }),
        ] {
            step.prompt_rows = vec![rows];
            let Err(WorkerError::Sequence { fault: found, .. }) = mirror().apply(&step) else { panic!("accepted") };
            assert_eq!(found, fault);
        }
        step.prompt_rows = vec![valued(0, 3, 99)];
        assert_eq!(mirror().apply(&step), Ok(()));
        let mut step = start(&[1], &[0]);
        step.starts[0].sampling.top_p = 2.0;
        let error = mirror().apply(&step).unwrap_err();
        assert!(error.to_string().contains("top_p is 2"), "{error}");
        let mut step = start(&[1], &[0]);
        step.starts[0].sampling.repetition_penalty = 2.0;
        step.seqs[0].computed = 2;
        let Err(WorkerError::Sequence { fault, .. }) = mirror().apply(&step) else { panic!("accepted") };
        assert_eq!(fault, SequenceFault::History { computed: 2, sent: 0 });
    }
}
