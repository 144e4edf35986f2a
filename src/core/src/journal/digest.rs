//! The running digest of decisions: equal inputs give equal digests, on every driver and machine.
//!
//! The numbers of each decision differ from the numbers of any other decisions, so two different sequences of decisions
//! have equal digests only by chance, about once in 2^64.

use crate::StepSeq;

/// First bit of a [`Decision`] in the first word of [`Decision::Run`]. The first words of all other decisions are smaller.
const RUN_KIND_AT: u32 = 59;
/// First bit of the tokens with KV in that word: 31 bits.
const RUN_COMPUTED_AT: u32 = 24;

/// Kinds of decisions in the digest. The numbers are part of recordings: never reuse a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Decision {
    /// A request was accepted; amount: tokens of the prompt.
    Accept = 1,
    /// A request was refused; amount: the number of the reason, [`crate::Refusal::number`].
    Refuse = 2,
    /// A request entered the batch; amount: tokens with KV.
    Admit = 3,
    /// A request left the batch to be recomputed; amount: tokens that had KV.
    Preempt = 4,
    /// A sequence runs in a step: all of its [`StepSeq`], and the new blocks of its table. See [`Digest::run`].
    Run = 5,
    /// A step began; amount: blocks evicted so far.
    Step = 6,
    /// A request ended; amount: tokens generated, and the reason.
    Finish = 7,
    /// The cache was flushed; amount: blocks dropped.
    Flush = 8,
    /// The worker was lost; amount: the step in flight.
    WorkerLost = 9,
    /// A swap-out began; amount: blocks copied. Followed by the pairs of blocks.
    SwapOut = 10,
    /// A swap-in began; amount: blocks found on the device, and blocks copied. Followed by the pairs of blocks.
    SwapIn = 11,
    /// A transfer ended; amount: its id.
    TransferFinished = 12,
    /// A transfer failed; amount: its id.
    TransferFailed = 13,
    /// A request out of the batch released all blocks to be recomputed; amount: tokens with KV.
    StartOver = 14,
    /// A transfer from or to a tier began; subject: the two places; amount: blocks copied. Followed by the pairs of blocks.
    Copy = 15,
    /// A request was admitted and loads blocks from tiers first; amount: tokens with KV on the device.
    Load = 16,
    /// A request was handed back; amount: tokens generated.
    Withdraw = 17,
    /// A transfer did not end in time; subject: the request that waited, if one did; amount: its id.
    TransferOverdue = 18,
    /// A transfer failed on the way, with good sources; amount: its id.
    TransferInterrupted = 19,
    /// Some blocks of a transfer did not arrive; amount: its id. Followed by the pairs and the reasons.
    TransferPartial = 20,
    /// A tier holds blocks from before this core; subject: the tier; amount: blocks adopted.
    TierFound = 21,
    /// The number of blocks that fit in a tier changed; subject: the tier; amount: blocks that fit.
    TierResized = 22,
    /// A shared tier was asked for blocks; subject: id of the look-up, and 1 in the highest bit if requests wait; amount: blocks.
    Lookup = 23,
    /// A look-up ended; subject: its id; amount: blocks found.
    LookupEnded = 24,
    /// Requests wait no longer for a look-up; subject: its id.
    LookupOverdue = 25,
    /// Entries of a sequence's block tables were dropped; amount: tokens held before and after. Followed by the ranges of positions.
    Drop = 26,
    /// The worker came back with its KV; amount: the oldest step in flight, which will not be answered.
    WorkerResumed = 27,
    /// A part of a prompt is to be read again; amount: its first block and the one behind it.
    Reread = 28,
    /// The worker drafts fewer or more tokens than the one before; amount: drafts of a sequence in one step, at most.
    DraftsLimited = 29,
    /// Runs of tokens are copied from other places in the cache; amount: tokens. Followed by the runs.
    Reuse = 30,
    /// The worker could not compute a sequence of a step; amount: the reason.
    SequenceFailed = 31,
    /// Blocks that a failed sequence was to compute left the cache; amount: their number.
    StruckOut = 32,
    /// A tier holds further blocks from before this core; subject: the tier; amount: blocks adopted. Followed by hash and slot of each.
    TierFoundLater = 33,
}

/// A 64-bit fold of numbers, order-sensitive. Finds differences; not cryptographic, so no protection against forgery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0x7472_756e_6b6c_696e)
    }
}

impl Digest {
    /// Folds one number in.
    #[inline]
    pub fn fold(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93;
        self.0 = (product as u64).rotate_left(23) ^ (product >> 64) as u64 ^ value;
    }

    /// Folds a decision in: the kind, the subject (usually a request id), and an amount.
    #[inline]
    pub fn decide(&mut self, decision: Decision, subject: u64, amount: u64) {
        self.fold(decision as u64);
        self.fold(subject);
        self.fold(amount);
    }

    /// Folds a sequence of a step in, and the new blocks of its table. A plain decode (one token, nothing new in the block table, KV
    /// written from that token on) takes two numbers.
    #[inline(always)]
    pub fn run(&mut self, seq: &StepSeq, blocks: impl Iterator<Item = u32>) {
        let is_plain = !seq.start
            && (seq.n_tokens, seq.n_drafts, seq.n_blocks) == (1, 0, 0)
            && (seq.kv_write_from, seq.n_history) == (seq.computed, 0);
        let flags = [seq.start, seq.sample, seq.input_from_last, is_plain];
        let flags = flags.iter().fold(0, |bits, flag| bits << 1 | u64::from(*flag)) << (RUN_KIND_AT - 4);
        let kind = (Decision::Run as u64) << RUN_KIND_AT;
        self.fold(kind | flags | u64::from(seq.computed) << RUN_COMPUTED_AT | u64::from(seq.slot));
        self.fold(seq.request.0);
        if !is_plain {
            self.fold_pair(seq.n_tokens, seq.n_drafts);
            self.fold_pair(seq.kv_write_from, seq.table_keep);
            self.fold_pair(seq.n_generated, seq.n_history);
            self.fold(u64::from(seq.n_blocks));
            blocks.for_each(|block| self.fold(u64::from(block)));
        }
    }

    fn fold_pair(&mut self, first: u32, second: u32) {
        self.fold(u64::from(first) << 32 | u64::from(second));
    }

    /// Returns the digest of all numbers so far.
    pub fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::ids::RequestId;

    #[test]
    fn order_and_every_number_count_and_the_value_is_pinned() {
        let digest = |values: &[u64]| {
            let mut digest = Digest::default();
            values.iter().for_each(|value| digest.fold(*value));
            digest.value()
        };
        assert_ne!(digest(&[1, 2]), digest(&[2, 1]));
        assert_ne!(digest(&[0]), digest(&[0, 0]));
        assert_ne!(digest(&[1, 2, 3]), digest(&[1, 2, 4]));
        // Recordings carry digests, so the fold must not change between versions unnoticed.
        assert_eq!(digest(&[1, 2, 3]), 953_540_064_065_831_355);
    }
    #[test]
    fn every_decision_has_numbers_of_its_own() {
        let digest = |decision, subject, amount| {
            let mut digest = Digest::default();
            digest.decide(decision, subject, amount);
            digest.value()
        };
        let one = digest(Decision::Finish, 1, 2);
        assert_ne!(one, digest(Decision::Preempt, 1, 2));
        assert_ne!(one, digest(Decision::Finish, 1, 3));
        for bit in 0..64 {
            assert_ne!(one, digest(Decision::Finish, 1 ^ 1 << bit, 2), "bit {bit} of the subject");
        }
    }

    #[test]
    fn every_field_of_a_run_sequence_counts() {
        let decode = StepSeq {
            request: RequestId(9),
            slot: 3,
            start: false,
            computed: 64,
            n_tokens: 1,
            n_history: 0,
            tokens_at: 0,
            input_from_last: false,
            kv_write_from: 64,
            table_keep: 4,
            blocks_at: 0,
            n_blocks: 0,
            sample: true,
            n_generated: 5,
            n_drafts: 0,
        };
        let prefill = StepSeq { n_tokens: 32, n_blocks: 2, kv_write_from: 70, ..decode };
        let digest = |seq: StepSeq, blocks: [u32; 2]| {
            let mut digest = Digest::default();
            digest.run(&seq, blocks.into_iter().take(seq.n_blocks as usize));
            digest.value()
        };
        for seq in [decode, prefill] {
            let mut digests = vec![digest(seq, [7, 8])];
            let mut add = |change: fn(&mut StepSeq)| {
                let mut other = seq;
                change(&mut other);
                digests.push(digest(other, [7, 8]));
            };
            add(|seq| seq.request.0 ^= 1 << 63);
            add(|seq| seq.slot += 1);
            add(|seq| seq.start = true);
            add(|seq| seq.computed += 1);
            add(|seq| seq.n_tokens += 1);
            add(|seq| seq.n_drafts += 1);
            add(|seq| (seq.n_tokens, seq.n_drafts) = (seq.n_tokens + 1, seq.n_drafts + 1));
            add(|seq| seq.n_history += 1);
            add(|seq| seq.input_from_last = true);
            add(|seq| seq.kv_write_from += 1);
            add(|seq| (seq.n_blocks, seq.n_generated) = (1, seq.n_generated + 1));
            add(|seq| (seq.n_blocks, seq.table_keep) = (1, seq.table_keep - 1));
            add(|seq| seq.n_blocks = 1);
            add(|seq| seq.sample = false);
            digests.push(digest(StepSeq { n_blocks: 2, ..seq }, [7, 9]));
            let n = digests.len();
            digests.sort_unstable();
            digests.dedup();
            assert_eq!(digests.len(), n, "two changes of {seq:?} have one digest");
        }
    }
}
