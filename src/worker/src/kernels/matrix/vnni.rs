//! Vectors of sixteen words with AVX-512 and VNNI, which multiply two pairs of 16-bit integers and add both products in one instruction. The
//! results are those of [`crate::kernels::matrix::words::Plain`].

use pulp::NullaryFnOnce;
use pulp::x86::V4;

use crate::kernels::matrix::words::Words;

/// The instructions, which the machine has.
#[derive(Clone, Copy)]
pub(super) struct Vnni(V4);

impl Vnni {
    /// Returns the instructions if the machine has them.
    #[inline]
    pub(super) fn try_new() -> Option<Self> {
        V4::try_new().filter(|_| std::is_x86_feature_detected!("avx512vnni")).map(Self)
    }

    /// Runs `work` compiled for these instructions.
    #[expect(unsafe_code, reason = "the compiler does not know the machine")]
    pub(super) fn vectorize<F: NullaryFnOnce>(self, work: F) -> F::Output {
        // SAFETY: the machine has the instructions, else there would be no `self`.
        unsafe { with_vnni(work) }
    }
}

/// Runs `work` with the instructions of [`V4`] and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vnni,avx2,fma,bmi1,bmi2,lzcnt,popcnt")]
fn with_vnni<F: NullaryFnOnce>(work: F) -> F::Output {
    work.call()
}

impl Words for Vnni {
    type Vector = pulp::i32x16;

    const ROWS: usize = 8;

    #[inline(always)]
    fn zero(self) -> pulp::i32x16 {
        pulp::cast([0u32; 16])
    }

    #[inline(always)]
    fn load(self, words: &[u32; 16]) -> pulp::i32x16 {
        pulp::cast(*words)
    }

    #[inline(always)]
    fn nibbles<const SHIFT: i32>(self, words: pulp::i32x16) -> pulp::i32x16 {
        let avx512 = self.0.avx512f;
        let words = pulp::cast(words);
        let shifted = match SHIFT {
            0 => words,
            4 => avx512._mm512_srli_epi32::<4>(words),
            8 => avx512._mm512_srli_epi32::<8>(words),
            _ => {
                const { assert!(SHIFT == 0 || SHIFT == 4 || SHIFT == 8 || SHIFT == 12) };
                avx512._mm512_srli_epi32::<12>(words)
            }
        };
        pulp::cast(avx512._mm512_and_si512(shifted, pulp::cast([0x000f_000fu32; 16])))
    }

    #[inline(always)]
    fn bytes(self, words: pulp::i32x16) -> [pulp::i32x16; 2] {
        let avx512 = self.0.avx512bw;
        let low = avx512._mm512_srai_epi16::<8>(avx512._mm512_slli_epi16::<8>(pulp::cast(words)));
        [pulp::cast(low), pulp::cast(avx512._mm512_srai_epi16::<8>(pulp::cast(words)))]
    }

    /// Multiplies and adds, which compilers know as one instruction.
    #[inline(always)]
    fn add_products(self, sums: pulp::i32x16, words: pulp::i32x16, other: u32) -> pulp::i32x16 {
        let products = self.0.avx512bw._mm512_madd_epi16(pulp::cast(words), pulp::cast([other; 16]));
        pulp::cast(self.0.avx512f._mm512_add_epi32(pulp::cast(sums), products))
    }

    #[inline(always)]
    fn add(self, a: pulp::i32x16, b: pulp::i32x16) -> pulp::i32x16 {
        pulp::cast(self.0.avx512f._mm512_add_epi32(pulp::cast(a), pulp::cast(b)))
    }

    #[inline(always)]
    fn values(self, sums: pulp::i32x16) -> [f32; 16] {
        pulp::cast(self.0.avx512f._mm512_cvtepi32_ps(pulp::cast(sums)))
    }
}
