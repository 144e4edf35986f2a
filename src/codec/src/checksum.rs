//! XXH3 with 64 bits, of long inputs with the widest vectors of the processor.
//!
//! The crate `xxhash-rust` uses the vectors that every processor of the target has. The loop over long inputs is here once more, compiled for
//! several and chosen at run time; short inputs are left to the crate. Equal results are tested. Source of the algorithm: the specification of XXH3
//! (github.com/Cyan4973/xxHash, doc/xxhash_spec.md).

use pulp::{Simd, WithSimd};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Longest input that is left to the crate, bytes.
const SHORT: usize = 1024;
/// Bytes taken in by one step.
const STRIPE: usize = 64;
/// Numbers of 64 bits in a stripe.
const LANES: usize = 8;
/// Words of the secret.
const SECRET: usize = 24;
/// Stripes between two scrambles.
const STRIPES: usize = SECRET - LANES;
/// Bytes between two scrambles.
const BLOCK: usize = STRIPES * STRIPE;
const PRIME32: [u64; 3] = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d];
const PRIME64: [u64; 5] =
    [0x9e37_79b1_85eb_ca87, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9, 0x85eb_ca77_c2b2_ae63, 0x27d4_eb2f_1656_67c5];
/// Secret of the specification, in words.
const WORDS: [u64; SECRET] = [
    0xbe4b_a423_396c_feb8,
    0x1cad_21f7_2c81_017c,
    0xdb97_9083_e96d_d4de,
    0x1f67_b3b7_a4a4_4072,
    0x78e5_c0cc_4ee6_79cb,
    0x2172_ffcc_7dd0_5a82,
    0x8e24_43f7_7446_08b8,
    0x4c26_3a81_e690_35e0,
    0xcb00_c391_bb52_283c,
    0xa32e_531b_8b65_d088,
    0x4ef9_0da2_9748_6471,
    0xd8ac_dea9_46ef_1938,
    0x3f34_9ce3_3f76_faa8,
    0x1d4f_0bc7_c7bb_dcf9,
    0x3159_b4cd_4be0_518a,
    0x6473_78d9_c97e_9fc8,
    0xc3eb_d334_83ac_c5ea,
    0xeb63_13fa_ffa0_81c5,
    0x49da_f0b7_51dd_0d17,
    0x9e68_d429_2655_16d3,
    0xfca1_477d_58be_162b,
    0xce31_d07a_d1b8_f88f,
    0x2804_1695_8f3a_cb45,
    0x7e40_4bbb_cafb_d7af,
];

/// Returns the XXH3 of bytes.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    seeded(bytes, 0)
}

/// Returns the XXH3 of bytes with a seed.
pub(crate) fn seeded(bytes: &[u8], seed: u64) -> u64 {
    if bytes.len() <= SHORT { xxh3_64_with_seed(bytes, seed) } else { pulp::Arch::new().dispatch(Long(bytes, seed)) }
}

/// Input longer than [`SHORT`], and the seed.
struct Long<'a>(&'a [u8], u64);

impl WithSimd for Long<'_> {
    type Output = u64;

    #[inline(always)]
    fn with_simd<V: Simd>(self, _: V) -> u64 {
        let Self(bytes, seed) = self;
        let word = |at: usize| {
            if at.is_multiple_of(2) { WORDS[at].wrapping_add(seed) } else { WORDS[at].wrapping_sub(seed) }
        };
        let secret: [u64; SECRET] = std::array::from_fn(word);
        let [a, b, c, d, e] = PRIME64;
        let mut sums = [PRIME32[2], a, b, c, d, PRIME32[1], e, PRIME32[0]];
        // The last stripe is taken in on its own, so a block ends before the last byte.
        let (blocks, rest) = bytes.split_at((bytes.len() - 1) / BLOCK * BLOCK);
        for block in blocks.as_chunks::<BLOCK>().0 {
            for (at, stripe) in block.as_chunks::<STRIPE>().0.iter().enumerate() {
                add(&mut sums, stripe, secret[at..].first_chunk().expect("words for each stripe"));
            }
            for (sum, word) in sums.iter_mut().zip(&secret[STRIPES..]) {
                *sum = (*sum ^ *sum >> 47 ^ word).wrapping_mul(PRIME32[0]);
            }
        }
        for (at, stripe) in rest[..rest.len() - 1].as_chunks::<STRIPE>().0.iter().enumerate() {
            add(&mut sums, stripe, secret[at..].first_chunk().expect("words for each stripe"));
        }
        let last = bytes.last_chunk().expect("more than a stripe");
        add(&mut sums, last, &unaligned(&secret, SECRET * 8 - STRIPE - 7));
        let mut hash = (bytes.len() as u64).wrapping_mul(a);
        for (pair, words) in sums.as_chunks::<2>().0.iter().zip(unaligned::<LANES>(&secret, 11).as_chunks::<2>().0) {
            let product = u128::from(pair[0] ^ words[0]) * u128::from(pair[1] ^ words[1]);
            hash = hash.wrapping_add(product as u64 ^ (product >> 64) as u64);
        }
        hash = (hash ^ hash >> 37).wrapping_mul(0x1656_6791_9e37_79f9);
        hash ^ hash >> 32
    }
}

/// Returns the words of a secret from a byte on.
fn unaligned<const N: usize>(secret: &[u64; SECRET], begin: usize) -> [u64; N] {
    let (word, shift) = (begin / 8, begin % 8 * 8);
    std::array::from_fn(|at| secret[word + at] >> shift | secret[word + at + 1] << (64 - shift))
}

/// Takes in a stripe.
#[inline(always)]
fn add(sums: &mut [u64; LANES], stripe: &[u8; STRIPE], secret: &[u64; LANES]) {
    let mut values = [0; LANES];
    for (value, bytes) in values.iter_mut().zip(stripe.as_chunks::<8>().0) {
        *value = u64::from_le_bytes(*bytes);
    }
    for at in 0..LANES {
        let keyed = values[at] ^ secret[at];
        let product = (keyed & 0xffff_ffff) * (keyed >> 32);
        sums[at] = sums[at].wrapping_add(product).wrapping_add(values[at ^ 1]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xxhash_rust::xxh3::xxh3_64;

    #[test]
    fn sums_are_those_of_the_crate() {
        let bytes: Vec<u8> = (0..70_000u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect();
        let lengths = [0, 1, 240, 1000, 1023, 1024, 1025, 1087, 1088, 1089, 2047, 2048, 2049, 3000, 65_536, 70_000];
        for len in lengths.into_iter().chain(4096..4300) {
            let bytes = &bytes[..len];
            assert_eq!(checksum(bytes), xxh3_64(bytes), "{len} bytes");
            for seed in [1, 0x9e37_79b9_7f4a_7c15, u64::MAX] {
                assert_eq!(seeded(bytes, seed), xxh3_64_with_seed(bytes, seed), "{len} bytes");
            }
        }
    }
}
