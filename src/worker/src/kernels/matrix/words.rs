//! Vectors of sixteen words, for sums of products of 16-bit integers: AVX-512 with VNNI or AVX2 where the machine has it, else plain arrays with
//! the same results.
//!
//! A word holds two integers of 16 bits, the first in the low half. One instruction multiplies the halves of two words and adds
//! both products to one sum of 32 bits. Integer sums are exact, so their order does not show.

/// Operations on vectors of sixteen words, one for each output of a panel.
pub(super) trait Words: Copy {
    /// Sixteen words.
    type Vector: Copy;

    /// Rows computed side by side, so that their sums and the weights fill the registers: 4 or 8.
    const ROWS: usize;

    /// Returns zeros.
    fn zero(self) -> Self::Vector;

    /// Loads words.
    fn load(self, words: &[u32; 16]) -> Self::Vector;

    /// Returns the lowest 4 bits of both halves of each word, after a shift by `SHIFT` bits to the right: 0, 4, 8 or 12.
    fn nibbles<const SHIFT: i32>(self, words: Self::Vector) -> Self::Vector;

    /// Returns the low and then the high bytes of the halves of each word, with their signs.
    fn bytes(self, words: Self::Vector) -> [Self::Vector; 2];

    /// Adds to each sum the products of both halves of a word with both halves of `other`, all with signs.
    fn add_products(self, sums: Self::Vector, words: Self::Vector, other: u32) -> Self::Vector;

    /// Adds sums.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;

    /// Returns sums as F32, rounded to the nearest.
    fn values(self, sums: Self::Vector) -> [f32; 16];
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
    type Vector = [u32; 16];

    const ROWS: usize = 4;

    #[inline(always)]
    fn zero(self) -> [u32; 16] {
        [0; 16]
    }

    #[inline(always)]
    fn load(self, words: &[u32; 16]) -> [u32; 16] {
        *words
    }

    #[inline(always)]
    fn nibbles<const SHIFT: i32>(self, words: [u32; 16]) -> [u32; 16] {
        words.map(|word| word >> SHIFT & 0x000f_000f)
    }

    #[inline(always)]
    fn bytes(self, words: [u32; 16]) -> [[u32; 16]; 2] {
        let word = |low: u8, high: u8| u32::from(low as i8 as u16) | u32::from(high as i8 as u16) << 16;
        let bytes = words.map(u32::to_le_bytes);
        [bytes.map(|bytes| word(bytes[0], bytes[2])), bytes.map(|bytes| word(bytes[1], bytes[3]))]
    }

    #[inline(always)]
    fn add_products(self, sums: [u32; 16], words: [u32; 16], other: u32) -> [u32; 16] {
        let [low, high] = halves(other);
        let mut out = sums;
        for (sum, word) in out.iter_mut().zip(words) {
            let [a, b] = halves(word);
            *sum = sum.wrapping_add((a * low + b * high) as u32);
        }
        out
    }

    #[inline(always)]
    fn add(self, a: [u32; 16], b: [u32; 16]) -> [u32; 16] {
        std::array::from_fn(|at| a[at].wrapping_add(b[at]))
    }

    #[inline(always)]
    fn values(self, sums: [u32; 16]) -> [f32; 16] {
        sums.map(|sum| sum as i32 as f32)
    }
}

/// Two vectors of eight words.
#[cfg(target_arch = "x86_64")]
impl Words for pulp::x86::V3 {
    type Vector = [pulp::u32x8; 2];

    const ROWS: usize = 4;

    #[inline(always)]
    fn zero(self) -> [pulp::u32x8; 2] {
        pulp::cast([0u32; 16])
    }

    #[inline(always)]
    fn load(self, words: &[u32; 16]) -> [pulp::u32x8; 2] {
        pulp::cast(*words)
    }

    #[inline(always)]
    fn nibbles<const SHIFT: i32>(self, [a, b]: [pulp::u32x8; 2]) -> [pulp::u32x8; 2] {
        let mask = pulp::cast([0x000f_000fu32; 8]);
        let (a, b) = (self.shr_const_u32x8::<SHIFT>(a), self.shr_const_u32x8::<SHIFT>(b));
        [self.and_u32x8(a, mask), self.and_u32x8(b, mask)]
    }

    #[inline(always)]
    fn bytes(self, [a, b]: [pulp::u32x8; 2]) -> [[pulp::u32x8; 2]; 2] {
        let (a, b): (pulp::i16x16, pulp::i16x16) = (pulp::cast(a), pulp::cast(b));
        let (low_a, low_b) = (self.shl_const_i16x16::<8>(a), self.shl_const_i16x16::<8>(b));
        let high = [pulp::cast(self.shr_const_i16x16::<8>(a)), pulp::cast(self.shr_const_i16x16::<8>(b))];
        [[pulp::cast(self.shr_const_i16x16::<8>(low_a)), pulp::cast(self.shr_const_i16x16::<8>(low_b))], high]
    }

    #[inline(always)]
    fn add_products(self, sums: [pulp::u32x8; 2], [a, b]: [pulp::u32x8; 2], other: u32) -> [pulp::u32x8; 2] {
        let other: pulp::i16x16 = pulp::cast([other; 8]);
        let a = self.multiply_wrapping_add_adjacent_i16x16(pulp::cast(a), other);
        let b = self.multiply_wrapping_add_adjacent_i16x16(pulp::cast(b), other);
        self.add(sums, [pulp::cast(a), pulp::cast(b)])
    }

    #[inline(always)]
    fn add(self, a: [pulp::u32x8; 2], b: [pulp::u32x8; 2]) -> [pulp::u32x8; 2] {
        [self.wrapping_add_u32x8(a[0], b[0]), self.wrapping_add_u32x8(a[1], b[1])]
    }

    #[inline(always)]
    fn values(self, [a, b]: [pulp::u32x8; 2]) -> [f32; 16] {
        pulp::cast([self.convert_i32x8_to_f32x8(pulp::cast(a)), self.convert_i32x8_to_f32x8(pulp::cast(b))])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Results of every operation for some words.
    fn results<W: Words>(vectors: W, words: &[u32; 16], other: u32) -> Vec<[f32; 16]> {
        let words = vectors.load(words);
        let parts = [vectors.nibbles::<0>(words), vectors.nibbles::<4>(words), vectors.nibbles::<12>(words)];
        let all = parts.into_iter().chain(vectors.bytes(words)).chain([words]);
        all.flat_map(|part| {
            let once = vectors.add_products(vectors.zero(), part, other);
            let twice = vectors.add_products(once, words, other.rotate_left(7));
            [vectors.values(part), vectors.values(twice), vectors.values(vectors.add(twice, part))]
        })
        .collect()
    }

    #[test]
    fn operations_by_hand() {
        let mut words = [0; 16];
        (words[0], words[1]) = (0x1234_5678, 0x80ff_7f01);
        let at = |vector: [u32; 16]| vector[..2].to_vec();
        assert_eq!(at(Plain.nibbles::<4>(words)), [0x0003_0007, 0x000f_0000]);
        let [low, high] = Plain.bytes(words);
        assert_eq!((at(low), at(high)), (vec![0x0034_0078, 0xffff_0001], vec![0x0012_0056, 0xff80_007f]));
        // 1 + 2 * 0x5678 - 3 * 0x1234, and 1 + 2 * 0x7f01 - 3 * -0x7f01.
        assert_eq!(at(Plain.add_products([1; 16], words, 0xfffd_0002)), [1 + 2 * 0x5678 - 3 * 0x1234, 1 + 5 * 0x7f01]);
        words[0] = u32::MAX;
        words[1] = 7;
        assert_eq!(Plain.values(words)[..3], [-1.0, 7.0, 0.0]);
    }

    /// Words, among them the extreme ones, and a number.
    #[cfg(target_arch = "x86_64")]
    fn samples() -> impl Iterator<Item = ([u32; 16], u32)> {
        let extremes = [0x8000_7fff, 0x0123_4567, 0x89ab_cdef, 0xffff_ffff, 0x7f80_807f, 1, 1 << 31, 0];
        let first: [u32; 16] = std::array::from_fn(|at| extremes[at % 8] ^ (at as u32 / 8) << 12);
        let next =
            |words: &[u32; 16]| Some(words.map(|word| word.wrapping_mul(0x9e37_79b9).rotate_left(5) ^ 0x5bd1_e995));
        std::iter::successors(Some(first), next).take(200).map(|words| (words, words[5]))
    }

    /// Results of both vectors, to be computed with those of the machine.
    #[cfg(target_arch = "x86_64")]
    struct Both<'a, W>(W, &'a [u32; 16], u32);

    #[cfg(target_arch = "x86_64")]
    impl<W: Words> pulp::NullaryFnOnce for Both<'_, W> {
        type Output = Vec<[f32; 16]>;

        #[inline(always)]
        fn call(self) -> Self::Output {
            results(self.0, self.1, self.2)
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_vectors_of_the_machine_give_the_results_of_plain_arrays() {
        use crate::kernels::matrix::vnni::Vnni;
        for (words, other) in samples() {
            let expected = results(Plain, &words, other);
            if let Some(avx2) = pulp::x86::V3::try_new() {
                assert_eq!(avx2.vectorize(Both(avx2, &words, other)), expected);
            }
            if let Some(vnni) = Vnni::try_new() {
                assert_eq!(vnni.vectorize(Both(vnni, &words, other)), expected);
            }
        }
    }
}
