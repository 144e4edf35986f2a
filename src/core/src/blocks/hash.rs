//! Identity of a block: a chained 128-bit hash over (namespace, parent, token ids).
//!
//! The tokens of a block are mixed into 128 bits, and chained to the 128-bit parent with one more multiply. The long computation of
//! so each block is independent of other blocks, and only the short one is serial. Blocks of fewer than 64 tokens are mixed in
//! four independent lanes of folded multiplies (as in wyhash), longer ones in eight lanes of short multiplies (as in XXH3), of which
//! any processor takes several at a time, and whose sums are folded at the end. A hash is a *name*, not a proof: after a lookup by hash the tokens are compared (see [`crate::cache::tree`]), so a
//! collision costs time, never contents.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use xxhash_rust::const_xxh3::const_custom_default_secret;

use crate::names::ids::Token;

const SECRET: [u8; 192] = const_custom_default_secret(0x7472_756e_6b6c_696e);

/// Tokens mixed by the lanes in one round.
const STRIDE: usize = 16;
const LANES: usize = 4;
/// Tokens of a block from which on the wide lanes are the faster ones.
const WIDE_FROM: usize = 64;
const WIDE_LANES: usize = 8;
/// Rounds of the wide lanes with keys of their own; then the lanes are scrambled, and the keys begin again.
const WIDE_ROUNDS: usize = 4;
/// Distance of the keys of two rounds, so that the last round has the last keys but one.
const WIDE_STEP: usize = 5;
const KEYS_ALL: usize = SECRET.len() / 8;
/// Keys mixed into the lanes: numbers whose halves are not token ids, because a factor of 0 would hide the other factor. The four
/// lanes take the first eight.
const KEYS: [u64; KEYS_ALL] = {
    let mut keys = [0; KEYS_ALL];
    let mut i = 0;
    while i < keys.len() * 8 {
        keys[i / 8] |= (SECRET[i] as u64) << (i % 8 * 8);
        i += 1;
    }
    keys
};

/// The chained hash of a block, over its tokens and all tokens before. Serialised as 32 hex digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct BlockHash(pub u128);

impl BlockHash {
    /// Returns the low 64 bits, by which the tree and the tiers find blocks. Equal contents have equal fingerprints; after a
    /// lookup by fingerprint the tokens MUST be compared.
    #[inline]
    pub fn fingerprint(self) -> u64 {
        // The bits of a chained hash are well mixed.
        self.0 as u64
    }
}

impl std::fmt::Debug for BlockHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl From<BlockHash> for String {
    fn from(hash: BlockHash) -> Self {
        format!("{hash:?}")
    }
}

impl TryFrom<String> for BlockHash {
    type Error = std::num::ParseIntError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        u128::from_str_radix(&text, 16).map(Self)
    }
}

/// Scope within which prefixes are shared: all properties that change the contents of KV for equal tokens, and the owners of
/// the contents. The hash of the namespace is the parent of a prompt's first block, so prompts of different namespaces never share
/// a block, on the device or in any tier.
///
/// Every field is empty for "none", and an empty field is a value like any other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace<'a> {
    /// Model name.
    pub model: &'a str,
    /// Revision of the weights: a commit, or a hash of the files.
    pub revision: &'a str,
    /// Element type and layout of the KV cache.
    pub kv_dtype: &'a str,
    /// Adapter of the weights, for example the name of a LoRA.
    pub adapter: &'a str,
    /// Tenant with a cache of its own; empty for the cache that tenants share.
    pub tenant: &'a str,
    /// Salt as the client sent it.
    pub salt: &'a str,
    /// Whatever else the KV of the prompt depends on, in order: for example hashes of images in the place of tokens.
    pub extra_keys: &'a [String],
}

impl Namespace<'_> {
    /// Returns the hash of the empty prefix in this namespace: SHA-256, cut to 128 bits, because clients choose salts and keys.
    ///
    /// The hashed bytes are, each with its length before it, so that ("ab", "c") and ("a", "bc") differ: model, KV type and salt;
    /// then nothing, or, if any is not empty, revision, adapter, tenant and the extra keys, and the number of extra keys.
    pub fn root(&self) -> BlockHash {
        let mut bytes = Vec::with_capacity(64);
        let mut put = |part: &str| {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part.as_bytes());
        };
        [self.model, self.kv_dtype, self.salt].into_iter().for_each(&mut put);
        let others = [self.revision, self.adapter, self.tenant];
        if others.iter().any(|part| !part.is_empty()) || !self.extra_keys.is_empty() {
            others.into_iter().for_each(&mut put);
            self.extra_keys.iter().for_each(|key| put(key));
            bytes.extend_from_slice(&(self.extra_keys.len() as u64).to_le_bytes());
        }
        BlockHash(cut(&Sha256::digest(&bytes)))
    }
}

/// Returns the first 128 bits of a SHA-256.
pub(crate) fn cut(sha: &[u8]) -> u128 {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&sha[..16]);
    u128::from_le_bytes(bytes)
}

/// Returns the chained hash of a block with `tokens` after `parent`.
#[inline]
pub fn chain(parent: BlockHash, tokens: &[Token]) -> BlockHash {
    whole(link(halves(parent), mix(tokens)))
}

/// The low and the high half of a hash. The chain works on halves, so that a hash stays in registers from block to block.
type Halves = (u64, u64);

#[inline(always)]
fn halves(hash: BlockHash) -> Halves {
    (hash.0 as u64, (hash.0 >> 64) as u64)
}

#[inline(always)]
fn whole((low, high): Halves) -> BlockHash {
    BlockHash(u128::from(low) | u128::from(high) << 64)
}

/// Folds two factors into one number that depends on every bit of both.
#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// Mixes the tokens of a block into two numbers, independent of the blocks before.
#[inline(always)]
fn mix(tokens: &[Token]) -> Halves {
    if tokens.len() < WIDE_FROM { mix_few(tokens) } else { mix_many(tokens) }
}

#[inline(always)]
fn mix_few(tokens: &[Token]) -> Halves {
    let length = tokens.len() as u64;
    let mut lanes = [KEYS[0] ^ length, KEYS[2] ^ length, KEYS[4] ^ length, KEYS[6] ^ length];
    let (strides, rest) = tokens.as_chunks::<STRIDE>();
    for stride in strides {
        absorb(&mut lanes, stride);
    }
    if !rest.is_empty() {
        absorb(&mut lanes, &padded(rest));
    }
    (lanes[0] ^ lanes[1].rotate_left(29), lanes[2] ^ lanes[3].rotate_left(29))
}

#[inline(always)]
fn absorb(lanes: &mut [u64; LANES], tokens: &[Token; STRIDE]) {
    let pair = |at: usize| u64::from(tokens[at]) | u64::from(tokens[at + 1]) << 32;
    for (i, lane) in lanes.iter_mut().enumerate() {
        *lane = fold(*lane ^ pair(4 * i), pair(4 * i + 2) ^ KEYS[2 * i + 1]).wrapping_add(lane.rotate_left(17));
    }
}

/// Returns the last tokens of a block, fewer than a stride, with zeros behind.
#[inline(always)]
fn padded(rest: &[Token]) -> [Token; STRIDE] {
    let mut padded = [0; STRIDE];
    padded[..rest.len()].copy_from_slice(rest);
    padded
}

#[inline(always)]
fn mix_many(tokens: &[Token]) -> Halves {
    let mut lanes: [u64; WIDE_LANES] = *KEYS.last_chunk().expect("there are more keys than lanes");
    let (strides, rest) = tokens.as_chunks::<STRIDE>();
    for (at, stride) in strides.iter().enumerate() {
        absorb_wide(&mut lanes, stride, at);
    }
    if !rest.is_empty() {
        absorb_wide(&mut lanes, &padded(rest), strides.len());
    }
    let length = tokens.len() as u64;
    let pair = |at: usize, length: u64| fold(lanes[at] ^ KEYS[at] ^ length, lanes[at + 1] ^ KEYS[at + 1]);
    (pair(0, length) ^ pair(2, 0).rotate_left(29), pair(4, length) ^ pair(6, 0).rotate_left(29))
}

/// Mixes the `at`-th stride of a block into the wide lanes. Two tokens are multiplied with each other in their own lane and added to the
/// neighbour, so that no change of them alone is without effect.
#[inline(always)]
fn absorb_wide(lanes: &mut [u64; WIDE_LANES], tokens: &[Token; STRIDE], at: usize) {
    let round = at % WIDE_ROUNDS;
    if round == 0 && at > 0 {
        for (lane, key) in lanes.iter_mut().zip(KEYS) {
            *lane = (*lane ^ *lane >> 47 ^ key).wrapping_mul(0x9e37_79b1);
        }
    }
    let words: [u64; WIDE_LANES] =
        std::array::from_fn(|i| u64::from(tokens[2 * i]) | u64::from(tokens[2 * i + 1]) << 32);
    for i in 0..WIDE_LANES {
        let keyed = words[i] ^ KEYS[WIDE_STEP * round + i];
        let product = (keyed & u64::from(u32::MAX)) * (keyed >> 32);
        lanes[i] = lanes[i].wrapping_add(product).wrapping_add(words[i ^ 1]);
    }
}

/// Chains the mixed tokens of a block, `local`, to the hash of the block before.
#[inline(always)]
fn link(parent: Halves, local: Halves) -> Halves {
    let (low, high) = (parent.0 ^ local.0, parent.1 ^ local.1);
    let product = u128::from(low) * u128::from(high);
    // The lowest and the highest bits of a product are mixed least: fold each into bits that are mixed well.
    let (below, above) = (product as u64, (product >> 64) as u64);
    (below ^ above ^ low.rotate_left(37), below.rotate_left(32) ^ above ^ high.rotate_left(11))
}

/// Appends to `hashes` the chained hashes of the full blocks of `tokens` that are not hashed yet. `hashes` MUST be the hashes
/// of a prefix of the same tokens.
///
/// # Panics
/// Panics if `block_size` is 0, or `hashes` has more entries than `tokens` has full blocks.
pub fn extend_hashes(hashes: &mut Vec<BlockHash>, root: BlockHash, block_size: u32, tokens: &[Token]) {
    let size = block_size as usize;
    assert!(size > 0, "block size is at least one token");
    assert!(hashes.len() * size <= tokens.len(), "more hashes than full blocks");
    let parent = hashes.last().copied().unwrap_or(root);
    let new = &tokens[hashes.len() * size..];
    // For the usual sizes the compiler knows how long a block is.
    match size {
        16 => hashes.extend(chained(parent, new.as_chunks::<16>().0.iter())),
        32 => hashes.extend(chained(parent, new.as_chunks::<32>().0.iter())),
        64 => hashes.extend(chained(parent, new.as_chunks::<64>().0.iter())),
        _ => hashes.extend(chained(parent, new.chunks_exact(size))),
    }
}

/// Returns the hashes of consecutive blocks after `parent`.
fn chained<'a, B: AsRef<[Token]> + ?Sized + 'a>(
    parent: BlockHash,
    blocks: impl ExactSizeIterator<Item = &'a B>,
) -> impl ExactSizeIterator<Item = BlockHash> {
    let mut parent = halves(parent);
    blocks.map(move |block| {
        parent = link(parent, mix(block.as_ref()));
        whole(parent)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(root: BlockHash, size: u32, tokens: &[Token]) -> Vec<BlockHash> {
        let mut out = Vec::new();
        extend_hashes(&mut out, root, size, tokens);
        out
    }

    #[test]
    fn only_full_blocks_are_hashed_and_a_prefix_keeps_its_hashes() {
        let root = Namespace::default().root();
        let tokens: Vec<Token> = (0..1000).collect();
        for size in [1, 3, 16, 64, 256] {
            let all = hashes(root, size, &tokens);
            assert_eq!(all.len(), 1000 / size as usize);
            let mut grown = hashes(root, size, &tokens[..517]);
            extend_hashes(&mut grown, root, size, &tokens);
            assert_eq!(grown, all);
        }
    }

    #[test]
    fn a_hash_depends_on_every_token_before_it_and_on_the_namespace() {
        let root = Namespace::default().root();
        let tokens: Vec<Token> = (0..64).collect();
        let base = hashes(root, 16, &tokens);
        for changed in 0..64 {
            let mut other = tokens.clone();
            other[changed] ^= 1 << 17;
            let other = hashes(root, 16, &other);
            let first = changed / 16;
            assert_eq!(base[..first], other[..first]);
            assert!(base[first..].iter().zip(&other[first..]).all(|(a, b)| a != b));
        }
        let salted = Namespace { salt: "tenant-a", ..Namespace::default() }.root();
        assert!(base.iter().zip(hashes(salted, 16, &tokens)).all(|(a, b)| *a != b));
    }

    #[test]
    fn namespaces_that_differ_in_any_field_or_in_the_place_of_a_text_have_different_roots() {
        let none = Namespace::default();
        let (a, b, ab) = (["a".to_owned()], ["b".to_owned()], ["a".to_owned(), "b".to_owned()]);
        let (empty, joined, swapped) = ([String::new()], ["ab".to_owned()], ["b".to_owned(), "a".to_owned()]);
        let keys = |extra_keys| Namespace { extra_keys, ..Namespace::default() };
        let namespaces = [
            none.clone(),
            Namespace { model: "a", ..none.clone() },
            Namespace { revision: "a", ..none.clone() },
            Namespace { kv_dtype: "a", ..none.clone() },
            Namespace { adapter: "a", ..none.clone() },
            Namespace { tenant: "a", ..none.clone() },
            Namespace { salt: "a", ..none.clone() },
            Namespace { model: "ab", kv_dtype: "c", ..none.clone() },
            Namespace { model: "a", kv_dtype: "bc", ..none.clone() },
            Namespace { model: "a", kv_dtype: "b", salt: "c", ..none.clone() },
            Namespace { revision: "a", tenant: "b", ..none.clone() },
            Namespace { revision: "a", adapter: "b", ..none.clone() },
            Namespace { tenant: "a", extra_keys: &b, ..none.clone() },
            keys(&a),
            keys(&b),
            keys(&ab),
            keys(&joined),
            keys(&swapped),
            keys(&empty),
        ];
        let roots: std::collections::BTreeSet<BlockHash> = namespaces.iter().map(Namespace::root).collect();
        assert_eq!(roots.len(), namespaces.len());
    }

    #[test]
    fn roots_are_pinned() {
        // Tiers that outlive a server and recordings have these hashes.
        let keys = ["image 1".to_owned(), "image 2".to_owned()];
        let model = Namespace { model: "llama", kv_dtype: "f32", salt: "s", ..Namespace::default() };
        let all = Namespace { revision: "r", adapter: "lora", tenant: "acme", extra_keys: &keys, ..model.clone() };
        let roots = [Namespace::default(), model, all].map(|namespace| format!("{:?}", namespace.root()));
        assert_eq!(
            roots,
            [
                "886c4e507c9ab4f8de56b2b6cf8e909d",
                "bf9154a0634e0ed28a15a17d0c6d481a",
                "0362cb0ef2206357402bbcf8c4fa3df3",
            ]
        );
    }

    #[test]
    fn hashing_at_once_and_block_by_block_agree() {
        let root = Namespace::default().root();
        let tokens: Vec<Token> = (0..600).map(|at| at * 7919 % 1009).collect();
        for size in [1, 15, 16, 17, 32, 48, 64, 100] {
            let mut parent = root;
            let one_by_one = tokens.chunks_exact(size).map(|block| {
                parent = chain(parent, block);
                parent
            });
            assert_eq!(hashes(root, size as u32, &tokens), one_by_one.collect::<Vec<_>>(), "{size}");
        }
    }

    #[test]
    fn every_bit_of_a_block_turns_about_half_of_the_bits_of_its_hash() {
        let root = Namespace::default().root();
        for size in [16usize, 24, 32, 64, 160] {
            let tokens: Vec<Token> = (0..size as u32).collect();
            let base = chain(root, &tokens).0;
            let mut turned_at = [0u32; 128];
            for bit in 0..size * 32 {
                let mut other = tokens.clone();
                other[bit / 32] ^= 1 << (bit % 32);
                let turned = chain(root, &other).0 ^ base;
                for half in [turned as u64, (turned >> 64) as u64] {
                    let n = half.count_ones();
                    assert!((8..=56).contains(&n), "bit {bit} of {size} tokens turns {n} bits of a half");
                }
                turned_at.iter_mut().enumerate().for_each(|(at, n)| *n += (turned >> at) as u32 & 1);
            }
            let (least, most) = (size as u32 * 32 * 2 / 5, size as u32 * 32 * 3 / 5);
            assert!(turned_at.iter().all(|n| (least..=most).contains(n)), "{size}: {turned_at:?}");
        }
    }

    #[test]
    fn blocks_of_swapped_or_repeated_tokens_differ() {
        let root = Namespace::default().root();
        let mut seen = std::collections::BTreeSet::new();
        for size in [16usize, 32, 64, 160] {
            for (a, b) in (0..size).flat_map(|a| (0..a).map(move |b| (a, b))) {
                let mut tokens: Vec<Token> = (0..size as u32).collect();
                tokens.swap(a, b);
                assert!(seen.insert(chain(root, &tokens)), "swapped {a} and {b} of {size}");
            }
            assert!((0..1000).all(|token| seen.insert(chain(root, &vec![token; size]))));
        }
    }

    #[test]
    fn strides_in_another_order_differ() {
        let root = Namespace::default().root();
        let mut seen = std::collections::BTreeSet::new();
        for (a, b) in (0..12).flat_map(|a| (0..=a).map(move |b| (a, b))) {
            let mut strides: Vec<u32> = (0..12).collect();
            strides.swap(a, b);
            let tokens: Vec<Token> = strides.into_iter().flat_map(|stride| [stride; STRIDE]).collect();
            assert_eq!(seen.insert(chain(root, &tokens)), a != b || a == 0, "strides {a} and {b}");
        }
    }

    #[test]
    fn hashes_are_pinned() {
        // Every machine gives the same hashes: ghosts of evicted blocks, and so decisions, depend on them.
        let tokens: Vec<Token> = (0..100).map(|at| at * 7919 % 1009).collect();
        let pinned = [0, 16, 32, 63, 64, 100].map(|size| format!("{:?}", chain(BlockHash(1), &tokens[..size])));
        assert_eq!(
            pinned,
            [
                "f297f4f949dbd681245c21ed32dd82da",
                "f2b63c400d5e8c7b0089f6b5ea28b726",
                "1b7962d0984b2ddef92f5f25490262d7",
                "7d954430dbc39fec08e410a7081e7eb9",
                "7f690d4c2daf67cf851c2bb6257343c6",
                "d86829b1170db98c6057ca7ca5b42b40",
            ]
        );
    }

    #[test]
    fn no_collision_among_many_near_equal_blocks() {
        let root = Namespace::default().root();
        // Tokens of one word, of two lanes, and of one lane in two rounds.
        for (size, first, second) in [(16usize, 3, 11), (64, 2, 3), (64, 3, 11), (64, 4, 21), (160, 2, 66)] {
            let mut seen = std::collections::BTreeSet::new();
            for a in 0..300u32 {
                for b in 0..300u32 {
                    let mut tokens = vec![7u32; size];
                    (tokens[first], tokens[second]) = (a, b);
                    assert!(seen.insert(chain(root, &tokens)), "collision at {a}, {b} of {size}");
                }
            }
        }
    }
}
