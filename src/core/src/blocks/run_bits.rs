//! Which blocks are the children of the block in the slot before: one bit a slot.
//!
//! A chain in neighbouring slots is found to be one without reading the parent of each block: a million blocks have 128 KB of bits,
//! which stay in the processor's caches.

const BITS: usize = u64::BITS as usize;

/// A bit for each slot: set if the block there is published and its parent lies in the slot before.
#[derive(Debug, Default)]
pub(crate) struct RunBits {
    words: Vec<u64>,
}

impl RunBits {
    /// Creates no slots, with memory reserved for `slots`.
    pub fn with_capacity(slots: usize) -> Self {
        Self { words: trunkline_pages::with_capacity(slots.div_ceil(BITS)) }
    }

    /// Creates slots up to `len`, whose bits are not set.
    pub fn open(&mut self, len: usize) {
        self.words.resize(len.div_ceil(BITS), 0);
    }

    /// Removes all slots.
    pub fn close(&mut self) {
        self.words.clear();
    }

    /// Returns the bit of a slot; `false` beyond the last slot.
    #[inline]
    pub fn get(&self, slot: usize) -> bool {
        self.words.get(slot / BITS).is_some_and(|word| word >> (slot % BITS) & 1 == 1)
    }

    /// Sets the bits of `len` slots from `first` on.
    pub fn set(&mut self, first: usize, len: usize) {
        self.for_masks(first, len, |word, mask| *word |= mask);
    }

    /// Clears the bits of `len` slots from `first` on.
    pub fn clear(&mut self, first: usize, len: usize) {
        self.for_masks(first, len, |word, mask| *word &= !mask);
    }

    /// Returns the number of set bits from slot `first` on before the first that is not set, at most `most`.
    #[inline]
    pub fn ones_from(&self, first: usize, most: usize) -> usize {
        let mut n = 0;
        while n < most {
            let at = first + n;
            let Some(word) = self.words.get(at / BITS) else { break };
            let ones = (!(word >> (at % BITS))).trailing_zeros() as usize;
            let left = BITS - at % BITS;
            n += ones.min(left);
            if ones < left {
                break;
            }
        }
        n.min(most)
    }

    /// Returns the number of set bits from slot `last` down before the first that is not set, at most `most`.
    #[inline]
    pub fn ones_down_from(&self, last: usize, most: usize) -> usize {
        let mut n = 0;
        while n < most.min(last + 1) {
            let at = last - n;
            let there = at % BITS + 1;
            let ones = (self.words[at / BITS] << (BITS - there)).leading_ones() as usize;
            n += ones.min(there);
            if ones < there {
                break;
            }
        }
        n.min(most)
    }

    fn for_masks(&mut self, first: usize, len: usize, mut each: impl FnMut(&mut u64, u64)) {
        let (mut at, end) = (first, first + len);
        while at < end {
            let n = (BITS - at % BITS).min(end - at);
            each(&mut self.words[at / BITS], u64::MAX >> (BITS - n) << (at % BITS));
            at += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SLOTS: usize = 300;

    proptest! {
        #[test]
        fn bits_agree_with_a_list_of_flags(ops in prop::collection::vec((0..SLOTS, 0usize..150, any::<bool>()), 1..20)) {
            let mut bits = RunBits::default();
            bits.open(SLOTS);
            let mut model = [false; SLOTS];
            for (first, len, is_set) in ops {
                let len = len.min(SLOTS - first);
                model[first..first + len].fill(is_set);
                if is_set { bits.set(first, len) } else { bits.clear(first, len) }
            }
            for at in 0..SLOTS {
                let up = model[at..].iter().take_while(|is_set| **is_set).count();
                let down = model[..=at].iter().rev().take_while(|is_set| **is_set).count();
                prop_assert_eq!(bits.get(at), model[at]);
                for most in [0, 1, 63, 64, 65, SLOTS] {
                    prop_assert_eq!(bits.ones_from(at, most), up.min(most), "up from {}", at);
                    prop_assert_eq!(bits.ones_down_from(at, most), down.min(most), "down from {}", at);
                }
            }
            prop_assert!(!bits.get(10 * SLOTS));
        }
    }
}
