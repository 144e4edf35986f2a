//! Vectors of eight words, for sums of products of 16-bit integers: AVX2 where the machine has it, else plain arrays with the same
//! results.
//!
//! A word holds two integers of 16 bits, the first in the low half. One instruction multiplies the halves of two words and adds
//! both products to one sum of 32 bits. Integer sums are exact, so their order does not show.

/// Operations on vectors of eight words.
pub(super) trait Words: Copy {
    /// Eight words.
    type Vector: Copy;

    /// Returns eight zeros.
    fn zero(self) -> Self::Vector;

    /// Loads eight words.
    fn load(self, words: &[u32; 8]) -> Self::Vector;

    /// Returns the lowest 4 bits of both halves of each word, after a shift by `SHIFT` bits to the right.
    fn nibbles<const SHIFT: i32>(self, words: Self::Vector) -> Self::Vector;

    /// Returns the low and then the high bytes of the halves of each word, with their signs.
    fn bytes(self, words: Self::Vector) -> [Self::Vector; 2];

    /// Adds to each sum the products of both halves of a word with both halves of `other`, all with signs.
    fn add_products(self, sums: Self::Vector, words: Self::Vector, other: u32) -> Self::Vector;

    /// Returns sums as F32, rounded to the nearest.
    fn values(self, sums: Self::Vector) -> [f32; 8];
}

/// Plain arrays, for machines without AVX2.
#[derive(Clone, Copy)]
pub(super) struct Plain;

/// Returns both halves of a word, with their signs.
#[inline(always)]
fn halves(word: u32) -> [i32; 2] {
    [i32::from(word as i16), i32::from((word >> 16) as i16)]
}

impl Words for Plain {
    type Vector = [u32; 8];

    #[inline(always)]
    fn zero(self) -> [u32; 8] {
        [0; 8]
    }

    #[inline(always)]
    fn load(self, words: &[u32; 8]) -> [u32; 8] {
        *words
    }

    #[inline(always)]
    fn nibbles<const SHIFT: i32>(self, words: [u32; 8]) -> [u32; 8] {
        words.map(|word| word >> SHIFT & 0x000f_000f)
    }

    #[inline(always)]
    fn bytes(self, words: [u32; 8]) -> [[u32; 8]; 2] {
        let word = |low: u8, high: u8| u32::from(low as i8 as u16) | u32::from(high as i8 as u16) << 16;
        let bytes = words.map(u32::to_le_bytes);
        [bytes.map(|bytes| word(bytes[0], bytes[2])), bytes.map(|bytes| word(bytes[1], bytes[3]))]
    }

    #[inline(always)]
    fn add_products(self, sums: [u32; 8], words: [u32; 8], other: u32) -> [u32; 8] {
        let [low, high] = halves(other);
        let mut out = sums;
        for (sum, word) in out.iter_mut().zip(words) {
            let [a, b] = halves(word);
            *sum = sum.wrapping_add((a * low + b * high) as u32);
        }
        out
    }

    #[inline(always)]
    fn values(self, sums: [u32; 8]) -> [f32; 8] {
        sums.map(|sum| sum as i32 as f32)
    }
}

#[cfg(target_arch = "x86_64")]
impl Words for pulp::x86::V3 {
    type Vector = pulp::u32x8;

    #[inline(always)]
    fn zero(self) -> pulp::u32x8 {
        pulp::u32x8(0, 0, 0, 0, 0, 0, 0, 0)
    }

    #[inline(always)]
    fn load(self, words: &[u32; 8]) -> pulp::u32x8 {
        pulp::cast(*words)
    }

    #[inline(always)]
    fn nibbles<const SHIFT: i32>(self, words: pulp::u32x8) -> pulp::u32x8 {
        self.and_u32x8(self.shr_const_u32x8::<SHIFT>(words), pulp::cast([0x000f_000fu32; 8]))
    }

    #[inline(always)]
    fn bytes(self, words: pulp::u32x8) -> [pulp::u32x8; 2] {
        let low: pulp::i16x16 = self.shl_const_i16x16::<8>(pulp::cast(words));
        [pulp::cast(self.shr_const_i16x16::<8>(low)), pulp::cast(self.shr_const_i16x16::<8>(pulp::cast(words)))]
    }

    #[inline(always)]
    fn add_products(self, sums: pulp::u32x8, words: pulp::u32x8, other: u32) -> pulp::u32x8 {
        let other: pulp::i16x16 = pulp::cast([other; 8]);
        let products = self.multiply_wrapping_add_adjacent_i16x16(pulp::cast(words), other);
        self.wrapping_add_u32x8(sums, pulp::cast(products))
    }

    #[inline(always)]
    fn values(self, sums: pulp::u32x8) -> [f32; 8] {
        pulp::cast(self.convert_i32x8_to_f32x8(pulp::cast(sums)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of every operation for some words.
    fn results<W: Words>(vectors: W, words: &[u32; 8], other: u32) -> Vec<[f32; 8]> {
        let words = vectors.load(words);
        let parts = [vectors.nibbles::<0>(words), vectors.nibbles::<4>(words), vectors.nibbles::<12>(words)];
        let all = parts.into_iter().chain(vectors.bytes(words)).chain([words]);
        all.flat_map(|part| {
            let once = vectors.add_products(vectors.zero(), part, other);
            [vectors.values(part), vectors.values(vectors.add_products(once, words, other.rotate_left(7)))]
        })
        .collect()
    }

    #[test]
    fn operations_by_hand() {
        let words = [0x1234_5678, 0x80ff_7f01, 0, 0, 0, 0, 0, 0];
        let at = |vector: [u32; 8]| vector[..2].to_vec();
        assert_eq!(at(Plain.nibbles::<4>(words)), [0x0003_0007, 0x000f_0000]);
        let [low, high] = Plain.bytes(words);
        assert_eq!((at(low), at(high)), (vec![0x0034_0078, 0xffff_0001], vec![0x0012_0056, 0xff80_007f]));
        // 1 + 2 * 0x5678 - 3 * 0x1234, and 1 + 2 * 0x7f01 - 3 * -0x7f01.
        assert_eq!(at(Plain.add_products([1; 8], words, 0xfffd_0002)), [1 + 2 * 0x5678 - 3 * 0x1234, 1 + 5 * 0x7f01]);
        assert_eq!(Plain.values([u32::MAX, 7, 0, 0, 0, 0, 0, 0])[..3], [-1.0, 7.0, 0.0]);
    }

    #[test]
    fn the_vectors_of_the_machine_give_the_results_of_plain_arrays() {
        #[cfg(target_arch = "x86_64")]
        if let Some(vectors) = pulp::x86::V3::try_new() {
            let mut words = [0x8000_7fffu32, 0x0123_4567, 0x89ab_cdef, 0xffff_ffff, 0x7f80_807f, 1, 1 << 31, 0];
            for _ in 0..200 {
                let (found, expected) = vectors.vectorize(
                    #[inline(always)]
                    || (results(vectors, &words, words[5]), results(Plain, &words, words[5])),
                );
                assert_eq!(found, expected);
                words = words.map(|word| word.wrapping_mul(0x9e37_79b9).rotate_left(5) ^ 0x5bd1_e995);
            }
        }
    }
}
