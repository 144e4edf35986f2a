//! The running digest of decisions: equal inputs give equal digests, on every driver and machine.

/// Kinds of decisions in the digest. The numbers are part of recordings: never reuse a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Decision {
    /// A request was accepted; amount: tokens of the prompt.
    Accept = 1,
    /// A request was refused.
    Refuse = 2,
    /// A request entered the batch; amount: tokens with KV.
    Admit = 3,
    /// A request left the batch to be recomputed; amount: tokens that had KV.
    Preempt = 4,
    /// A sequence runs in a step; amount: tokens with KV and tokens run. Followed by the new blocks of its table.
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
        self.fold(subject.wrapping_mul(8) ^ (decision as u64).wrapping_shl(56));
        self.fold(amount);
    }

    /// Returns the digest of all numbers so far.
    pub fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
