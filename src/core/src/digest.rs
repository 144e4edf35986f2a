//! The running digest of decisions: equal inputs give equal digests, on every driver and machine.

/// A 64-bit fold of numbers, order-sensitive. Not cryptographic: it finds differences, it does not resist forgery.
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

    /// Folds a decision in: what was decided, on whom, and how much.
    #[inline]
    pub fn decide(&mut self, kind: u64, who: u64, how_much: u64) {
        self.fold(who.wrapping_mul(8) ^ kind.wrapping_shl(56));
        self.fold(how_much);
    }

    /// The digest so far.
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
