//! Steps of the server as values of the port, on the worker's side.
//!
//! Tokens travel once, at the start of a sequence, so a worker keeps the tokens of each slot and adds what it samples. [`Mirror::decode`]
//! restores a step from the message and the slots; [`Mirror::note`] adds the sampled tokens. A step is checked whole before any part is
//! applied, and a step is decoded only after the results of all earlier steps were noted: then every token to run is known.

mod prompt_rows;

use trunkline_port::{
    Dropped, Keeps, NO_BLOCK, RequestId, Sampling, ScoreKind, Scored, SeqStart, Step, StepResult, StepSeq, Token,
};

use crate::hello::Hello;
use crate::sampling::{SamplingFault, decode_sampling};
use crate::session::Session;
use crate::wire;

/// Slots there can be. Slots are small and dense: a number beyond this is a mistake, not a long table.
const SLOTS_MAX: u32 = 1 << 16;
/// Token of a slot in the place of one that could not be sampled.
const NO_TOKEN: Token = 0;
/// Entries of a block table there can be.
const TABLE_MAX: u64 = 1 << 30;

/// Limits on the steps of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimits {
    /// Number of token ids.
    pub vocab_size: u32,
    /// Longest sequence in tokens.
    pub max_context: u32,
    /// Tokens of a block.
    pub block_size: u32,
    /// Blocks in use, numbered from 0.
    pub blocks: u32,
    /// Layer groups, at least 1.
    pub n_groups: u32,
    /// Maximum number of sequences of a step.
    pub max_sequences: u32,
    /// Maximum number of tokens of a step.
    pub max_tokens: u32,
    /// Maximum number of drafts of a sequence in a step.
    pub max_drafts: u32,
    /// Maximum number of log probabilities of a token.
    pub max_logprobs: u32,
    /// `true` if penalties for generated tokens and biases of logits are honoured.
    pub penalties: bool,
    /// `true` if answers get the structure that a request asks for.
    pub grammars: bool,
    /// `true` if log probabilities of the tokens of prompts are reported.
    pub prompt_logprobs: bool,
    /// `true` if KV below `kv_write_from` stays unwritten.
    pub partial_writes: bool,
    /// `true` if the worker reports scores.
    pub scores: bool,
    /// Layer groups with scores, if the worker reports scores of each by itself; otherwise 0.
    pub score_lists: u32,
}

impl StepLimits {
    /// Collects the limits from a worker's announcement and the server's answer.
    pub fn new(hello: &Hello, session: &Session) -> Self {
        let abilities = &hello.abilities;
        let scored_groups = hello.model.groups.iter().filter(|group| group.keeps == Keeps::Scored).count() as u32;
        Self {
            vocab_size: hello.model.vocab_size,
            max_context: hello.model.max_context,
            block_size: session.block_size,
            blocks: session.blocks,
            n_groups: hello.model.n_groups(),
            max_sequences: abilities.max_sequences,
            max_tokens: abilities.max_tokens,
            max_drafts: session.max_drafts,
            max_logprobs: abilities.max_logprobs,
            penalties: abilities.penalties,
            grammars: abilities.grammars,
            prompt_logprobs: abilities.prompt_logprobs,
            partial_writes: abilities.partial_writes,
            scores: abilities.scores,
            score_lists: if abilities.scores_by_group { scored_groups } else { 0 },
        }
    }
}

/// Reason for refusing a step of the server.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("step {step}: {reason}")]
pub struct StepFault {
    /// Number of the step.
    pub step: u64,
    /// Rule broken by the step.
    pub reason: StepReason,
}

/// Rule of the protocol broken by a step.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum StepReason {
    /// A column has neither one entry for each sequence nor none.
    #[error("column {column} has {len} entries for {n} sequences")]
    Column {
        /// Name of the column.
        column: &'static str,
        /// Entries in the message.
        len: usize,
        /// Sequences of the step.
        n: usize,
    },
    /// An entry of a column or a list is outside its range.
    #[error("sequence {index}: {field} is {value}; it must be at most {most}")]
    TooLarge {
        /// Index of the sequence.
        index: usize,
        /// Name of the field.
        field: &'static str,
        /// Value in the message.
        value: u64,
        /// Largest valid value.
        most: u64,
    },
    /// An entry must not be 0.
    #[error("sequence {index}: {field} is 0; it must be at least 1")]
    Zero {
        /// Index of the sequence.
        index: usize,
        /// Name of the field.
        field: &'static str,
    },
    /// The whole step is larger than the worker announced.
    #[error("the step has {value} {unit}; the worker takes at most {most}")]
    Size {
        /// Number in the message.
        value: u64,
        /// Unit of the number.
        unit: &'static str,
        /// Limit of the worker.
        most: u64,
    },
    /// Two sequences have one slot.
    #[error("sequence {index}: slot {slot} comes twice")]
    SlotTwice {
        /// Index of the second sequence.
        index: usize,
        /// Slot of both sequences.
        slot: u32,
    },
    /// A sequence continues in a slot where none has begun.
    #[error("sequence {index}: no sequence has begun in slot {slot}")]
    NotStarted {
        /// Index of the sequence.
        index: usize,
        /// Slot of the sequence.
        slot: u32,
    },
    /// A list with indexes of sequences is not sorted, or names a sequence twice or beyond the last.
    #[error("{list} contains sequence {index}: entries must be in the order of the sequences, below {n}")]
    Order {
        /// Name of the list.
        list: &'static str,
        /// Index in the message.
        index: u32,
        /// Sequences of the step.
        n: usize,
    },
    /// A sequence starts without sampling parameters.
    #[error("sequence {index}: it starts without sampling parameters")]
    NoSampling {
        /// Index of the sequence.
        index: usize,
    },
    /// A sequence starts with a sampling parameter outside its range.
    #[error("sequence {index}: {fault}")]
    Sampling {
        /// Index of the sequence.
        index: usize,
        /// Parameter at fault.
        fault: SamplingFault,
    },
    /// The tokens to run are not known to the worker.
    #[error("sequence {index}: tokens up to position {end} are to run, and {known} are known")]
    Unknown {
        /// Index of the sequence.
        index: usize,
        /// End of the tokens to run.
        end: u64,
        /// Tokens of the slot.
        known: usize,
    },
    /// A token is to be sampled after a token other than the last.
    #[error("sequence {index}: it samples after position {end} of {known}; it must sample after the last token")]
    SampleInside {
        /// Index of the sequence.
        index: usize,
        /// End of the tokens to run.
        end: u64,
        /// Tokens of the slot.
        known: usize,
    },
    /// The block table does not reach to the last token to run.
    #[error("sequence {index}: the block table has room for {room} tokens, and {end} are to be held")]
    TableShort {
        /// Index of the sequence.
        index: usize,
        /// Positions that the table has room for.
        room: u64,
        /// End of the tokens to run.
        end: u64,
    },
    /// The list of new blocks does not have the announced length.
    #[error("blocks has {len} entries; n_blocks asks for {expected}")]
    Blocks {
        /// Entries in the message.
        len: usize,
        /// Entries by the columns.
        expected: u64,
    },
    /// The number of the kind of scores is unknown.
    #[error("score_kind is {kind}; there are 0 and 1")]
    ScoreKind {
        /// Number in the message.
        kind: i32,
    },
    /// The step needs an ability that the worker does not have.
    #[error("{field} is set; the worker did not announce {ability}")]
    Ability {
        /// Name of the field.
        field: &'static str,
        /// Name of the ability.
        ability: &'static str,
    },
}

/// Sequence in a slot.
#[derive(Clone, Debug)]
struct Slot {
    request: RequestId,
    /// Tokens of the sequence, prompt and generated.
    tokens: Vec<Token>,
    /// Entries of the block table in each layer group.
    table_len: u32,
}

/// Tokens and lengths of block tables of a worker's sequences, by slot.
#[derive(Clone, Debug)]
pub struct Mirror {
    limits: StepLimits,
    slots: Vec<Option<Slot>>,
    /// Number of the last check that met a slot.
    met: Vec<u64>,
    checks: u64,
}

/// Columns of a step, of equal length or empty.
struct Columns<'a> {
    message: &'a wire::Step,
}

impl Columns<'_> {
    fn new(message: &wire::Step) -> Result<Columns<'_>, StepReason> {
        let n = message.slots.len();
        let columns = [
            ("computed", &message.computed),
            ("n_tokens", &message.n_tokens),
            ("sample", &message.sample),
            ("n_generated", &message.n_generated),
            ("table_keep", &message.table_keep),
            ("n_blocks", &message.n_blocks),
            ("kv_write_from", &message.kv_write_from),
            ("n_drafts", &message.n_drafts),
            ("scored_rows", &message.scored_rows),
        ];
        match columns.into_iter().find(|(_, column)| !column.is_empty() && column.len() != n) {
            Some((name, column)) => Err(StepReason::Column { column: name, len: column.len(), n }),
            None => Ok(Columns { message }),
        }
    }

    /// Returns the part of sequence `i` that the columns hold.
    fn seq(&self, i: usize) -> StepSeq {
        let of = |column: &[u32]| column.get(i).copied().unwrap_or(0);
        let message = self.message;
        let computed = of(&message.computed);
        StepSeq {
            slot: message.slots[i],
            computed,
            n_tokens: of(&message.n_tokens),
            sample: of(&message.sample) != 0,
            n_generated: of(&message.n_generated),
            table_keep: of(&message.table_keep),
            n_blocks: of(&message.n_blocks),
            kv_write_from: of(&message.kv_write_from).max(computed),
            n_drafts: of(&message.n_drafts),
            ..StepSeq::default()
        }
    }
}

impl Mirror {
    /// Makes a mirror without sequences.
    pub fn new(limits: StepLimits) -> Self {
        Self { limits, slots: Vec::new(), met: Vec::new(), checks: 0 }
    }

    /// Forgets every sequence: a life or a connection begins.
    pub fn clear(&mut self) {
        self.slots.clear();
    }

    /// Converts a message to a step in `out`, whose memory is used again, and takes in the changes of the slots. Every token to run is in
    /// the step: [`StepSeq::input_from_last`] is never set.
    ///
    /// # Errors
    /// If the step breaks a rule of the protocol. Nothing has changed then, and `out` is of no use.
    pub fn decode(&mut self, message: &wire::Step, out: &mut Step) -> Result<(), StepFault> {
        out.clear();
        out.id = message.id;
        let reason = |reason| StepFault { step: message.id, reason };
        self.check(message).map_err(reason)?;
        self.apply(message, out).map_err(reason)
    }

    /// Adds the tokens sampled in a step to its slots.
    pub fn note(&mut self, step: &Step, result: &StepResult) {
        for (i, seq) in step.seqs.iter().enumerate().take(result.ends.len()) {
            if let Some(Some(slot)) = self.slots.get_mut(seq.slot as usize) {
                slot.tokens.extend_from_slice(result.of(i));
                // Steps that were on the way may run it.
                let lacks_token = seq.sample && result.fault_of(i).is_some();
                slot.tokens.extend(lacks_token.then_some(NO_TOKEN));
            }
        }
    }

    fn check(&mut self, message: &wire::Step) -> Result<(), StepReason> {
        let columns = Columns::new(message)?;
        let n = message.slots.len();
        self.check_size(message, n)?;
        self.checks += 1;
        let mut starts = message.starts.iter().peekable();
        let (mut blocks, mut tokens) = (0_u64, 0_u64);
        for index in 0..n {
            let seq = columns.seq(index);
            let start = starts.next_if(|start| start.index as usize == index);
            self.check_slot(index, seq.slot)?;
            self.check_seq(index, &seq, start)?;
            if message.sample.get(index).is_some_and(|sample| *sample > 1) {
                let value = message.sample[index].into();
                return Err(StepReason::TooLarge { index, field: "sample", value, most: 1 });
            }
            blocks += u64::from(seq.n_blocks) * u64::from(self.limits.n_groups);
            tokens += u64::from(seq.n_tokens);
        }
        let most = u64::from(self.limits.max_tokens);
        if tokens > most {
            return Err(StepReason::Size { value: tokens, unit: "tokens", most });
        }
        self.check_blocks(message, blocks)?;
        self.check_drops(message, &columns)?;
        self.check_scored(message, &columns)?;
        self.check_prompt_rows(message, &columns)
    }

    fn check_size(&self, message: &wire::Step, n: usize) -> Result<(), StepReason> {
        let most = u64::from(self.limits.max_sequences);
        if n as u64 > most {
            return Err(StepReason::Size { value: n as u64, unit: "sequences", most });
        }
        let mut next = 0;
        for start in &message.starts {
            if start.index < next || start.index as usize >= n {
                return Err(StepReason::Order { list: "starts", index: start.index, n });
            }
            next = start.index + 1;
        }
        // Tokens of the step in the port's form are counted in 32 bits.
        let tokens: u64 = message.starts.iter().map(|start| start.tokens.len() as u64).sum();
        let most = u64::from(u32::MAX - self.limits.max_tokens);
        if tokens > most {
            return Err(StepReason::Size { value: tokens, unit: "tokens of starting sequences", most });
        }
        Ok(())
    }

    fn check_slot(&mut self, index: usize, slot: u32) -> Result<(), StepReason> {
        if slot >= SLOTS_MAX {
            let most = u64::from(SLOTS_MAX - 1);
            return Err(StepReason::TooLarge { index, field: "slot", value: slot.into(), most });
        }
        let at = slot as usize;
        if self.met.len() <= at {
            self.met.resize(at + 1, 0);
        }
        if std::mem::replace(&mut self.met[at], self.checks) == self.checks {
            return Err(StepReason::SlotTwice { index, slot });
        }
        Ok(())
    }

    fn check_seq(&self, index: usize, seq: &StepSeq, start: Option<&wire::Start>) -> Result<(), StepReason> {
        let (known, table_len) = match start {
            Some(start) => {
                self.check_start(index, start)?;
                (start.tokens.len(), 0)
            }
            None => match self.slots.get(seq.slot as usize) {
                Some(Some(slot)) => (slot.tokens.len(), slot.table_len),
                _ => return Err(StepReason::NotStarted { index, slot: seq.slot }),
            },
        };
        let end = u64::from(seq.computed) + u64::from(seq.n_tokens);
        let blocks = u64::from(seq.table_keep) + u64::from(seq.n_blocks);
        let context = u64::from(self.limits.max_context);
        for (field, value, most) in [
            ("table_keep", u64::from(seq.table_keep), u64::from(table_len)),
            ("the length of the block table", blocks, TABLE_MAX),
            ("the end of the tokens to run", end, context),
            ("n_drafts", seq.n_drafts.into(), self.limits.max_drafts.into()),
        ] {
            if value > most {
                return Err(StepReason::TooLarge { index, field, value, most });
            }
        }
        if seq.n_tokens == 0 {
            return Err(StepReason::Zero { index, field: "n_tokens" });
        }
        if end > known as u64 {
            return Err(StepReason::Unknown { index, end, known });
        }
        if seq.sample && end != known as u64 {
            return Err(StepReason::SampleInside { index, end, known });
        }
        let room = blocks * u64::from(self.limits.block_size);
        if end > room {
            return Err(StepReason::TableShort { index, room, end });
        }
        Ok(())
    }

    fn check_start(&self, index: usize, start: &wire::Start) -> Result<(), StepReason> {
        let n = start.tokens.len();
        let sampling = start.sampling.as_ref().ok_or(StepReason::NoSampling { index })?;
        let sampling = decode_sampling(sampling).map_err(|fault| StepReason::Sampling { index, fault })?;
        if n == 0 {
            return Err(StepReason::Zero { index, field: "the number of tokens" });
        }
        if let Some(field) = sampling.penalty().filter(|_| !self.limits.penalties) {
            return Err(StepReason::Ability { field, ability: "penalties" });
        }
        if sampling.grammar.is_some() && !self.limits.grammars {
            return Err(StepReason::Ability { field: "grammar", ability: "grammars" });
        }
        let largest = start.tokens.iter().copied().max().unwrap_or(0);
        let biased = sampling.logit_bias.entries().last().map_or(0, |(token, _)| *token);
        for (field, value, most) in [
            ("the number of tokens", n as u64, u64::from(self.limits.max_context)),
            ("the largest token", largest.into(), u64::from(self.limits.vocab_size) - 1),
            ("the largest token of logit_bias", biased.into(), u64::from(self.limits.vocab_size) - 1),
            ("n_prompt", start.n_prompt.into(), n as u64),
            ("logprobs", sampling.logprobs.unwrap_or(0).into(), self.limits.max_logprobs.into()),
        ] {
            if value > most {
                return Err(StepReason::TooLarge { index, field, value, most });
            }
        }
        Ok(())
    }

    fn check_blocks(&self, message: &wire::Step, expected: u64) -> Result<(), StepReason> {
        if message.blocks.len() as u64 != expected {
            return Err(StepReason::Blocks { len: message.blocks.len(), expected });
        }
        let blocks = self.limits.blocks;
        if let Some(index) = message.blocks.iter().position(|block| *block >= blocks && *block != NO_BLOCK) {
            let (value, most) = (message.blocks[index].into(), u64::from(blocks) - 1);
            return Err(StepReason::TooLarge { index, field: "an entry of blocks", value, most });
        }
        if !self.limits.partial_writes && !message.kv_write_from.is_empty() {
            let above = |i: &usize| message.kv_write_from[*i] > message.computed.get(*i).copied().unwrap_or(0);
            if (0..message.slots.len()).any(|i| above(&i)) {
                return Err(StepReason::Ability { field: "kv_write_from", ability: "partial_writes" });
            }
        }
        Ok(())
    }

    fn check_drops(&self, message: &wire::Step, columns: &Columns<'_>) -> Result<(), StepReason> {
        let n = message.slots.len();
        let mut last = 0;
        for drop in &message.drops {
            let index = drop.index as usize;
            if drop.index < last || index >= n {
                return Err(StepReason::Order { list: "drops", index: drop.index, n });
            }
            last = drop.index;
            let keep = u64::from(columns.seq(index).table_keep);
            let end = u64::from(drop.first) + u64::from(drop.n);
            let most = u64::from(self.limits.n_groups) - 1;
            if u64::from(drop.group) > most {
                return Err(StepReason::TooLarge {
                    index,
                    field: "the group of a drop",
                    value: drop.group.into(),
                    most,
                });
            }
            if drop.n == 0 {
                return Err(StepReason::Zero { index, field: "the length of a drop" });
            }
            if end > keep {
                return Err(StepReason::TooLarge { index, field: "the end of a drop", value: end, most: keep });
            }
        }
        Ok(())
    }

    fn check_scored(&self, message: &wire::Step, columns: &Columns<'_>) -> Result<(), StepReason> {
        if wire::ScoreKind::try_from(message.score_kind).is_err() {
            return Err(StepReason::ScoreKind { kind: message.score_kind });
        }
        if message.scores_by_group && self.limits.score_lists == 0 {
            return Err(StepReason::Ability { field: "scores_by_group", ability: "scores_by_group" });
        }
        for (index, rows) in message.scored_rows.iter().enumerate().filter(|(_, rows)| **rows > 0) {
            if !self.limits.scores {
                return Err(StepReason::Ability { field: "scored_rows", ability: "scores" });
            }
            let most = u64::from(columns.seq(index).n_tokens);
            if u64::from(*rows) > most {
                return Err(StepReason::TooLarge { index, field: "scored_rows", value: (*rows).into(), most });
            }
        }
        Ok(())
    }

    /// Takes in a checked step.
    fn apply(&mut self, message: &wire::Step, out: &mut Step) -> Result<(), StepReason> {
        let columns = Columns { message };
        let mut starts = message.starts.iter().peekable();
        let mut blocks_at = 0;
        for index in 0..message.slots.len() {
            let mut seq = columns.seq(index);
            let at = seq.slot as usize;
            if let Some(start) = starts.next_if(|start| start.index as usize == index) {
                let held = Slot { request: RequestId(start.request), tokens: start.tokens.clone(), table_len: 0 };
                if self.slots.len() <= at {
                    self.slots.resize(at + 1, None);
                }
                self.slots[at] = Some(held);
                seq.start = true;
                let n_ahead = start.tokens.len() as u32 - (seq.computed + seq.n_tokens);
                let sampling = sampling_of(index, start)?;
                out.starts.push(SeqStart { sampling, n_prompt: start.n_prompt, n_ahead });
            }
            let held = self.slots.get_mut(at).and_then(Option::as_mut);
            let slot = held.ok_or(StepReason::NotStarted { index, slot: seq.slot })?;
            slot.table_len = seq.table_keep + seq.n_blocks;
            seq.request = slot.request;
            seq.blocks_at = blocks_at;
            blocks_at += seq.n_blocks * self.limits.n_groups;
            put_tokens(&mut seq, slot, out);
            out.seqs.push(seq);
        }
        out.blocks.extend_from_slice(&message.blocks);
        let drops = message.drops.iter();
        out.drops.extend(drops.map(|drop| Dropped {
            seq: drop.index,
            group: drop.group,
            first: drop.first,
            n: drop.n,
        }));
        put_scored(message, self.limits.score_lists, out);
        self.put_prompt_rows(message, out);
        Ok(())
    }
}

fn sampling_of(index: usize, start: &wire::Start) -> Result<Sampling, StepReason> {
    let sampling = start.sampling.as_ref().ok_or(StepReason::NoSampling { index })?;
    decode_sampling(sampling).map_err(|fault| StepReason::Sampling { index, fault })
}

/// Adds the tokens of a sequence: those to run, and at its start all others too.
fn put_tokens(seq: &mut StepSeq, slot: &Slot, out: &mut Step) {
    seq.tokens_at = out.tokens.len() as u32;
    let (begin, end) = match seq.start {
        true => (0, slot.tokens.len()),
        false => (seq.computed as usize, (seq.computed + seq.n_tokens) as usize),
    };
    seq.n_history = seq.computed - begin as u32;
    out.tokens.extend_from_slice(&slot.tokens[begin..end]);
}

fn put_scored(message: &wire::Step, score_lists: u32, out: &mut Step) {
    out.score_lists = if message.scores_by_group { score_lists } else { 0 };
    out.score_kind = if message.score_kind() == wire::ScoreKind::Max { ScoreKind::Max } else { ScoreKind::Mean };
    let rows = (0..).zip(&message.scored_rows).filter(|(_, rows)| **rows > 0);
    out.scored.extend(rows.map(|(seq, rows)| Scored { seq, rows: *rows }));
}
