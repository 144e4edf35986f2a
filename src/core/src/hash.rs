//! Identity of a block: a chained 128-bit hash over (namespace, parent, token ids).
//!
//! A block's own tokens are hashed by XXH3-64 and chained to the 128-bit parent with one folded multiply, so the long
//! computation of each block is independent of the others and only the short one is serial. A hash is a *name*, not a
//! proof: whoever finds a block by its hash compares the tokens (see [`crate::tree`]), so a collision costs time, never content.

use serde::{Deserialize, Serialize};
use xxhash_rust::const_xxh3::const_custom_default_secret;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_secret, xxh3_128_with_secret};

use crate::ids::Token;

/// Inputs above this many bytes make XXH3 derive a secret per call unless it is given one.
const XXH3_SHORT_BYTES_MAX: usize = 240;
const SECRET: [u8; 192] = const_custom_default_secret(0x7472_756e_6b6c_696e);

/// The chained hash of a block: of its tokens and of everything before them.
/// Written as 32 hex digits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct BlockHash(pub u128);

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

/// What a prefix may be shared within: every part that changes the contents of KV for equal tokens. Its hash is the
/// parent of a prompt's first block, so prompts of different namespaces never share a block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespace<'a> {
    /// Model and revision.
    pub model: &'a str,
    /// Element type and layout of the KV cache.
    pub kv_dtype: &'a str,
    /// Tenant salt as the client sent it; empty for none.
    pub salt: &'a str,
}

impl Namespace<'_> {
    /// The hash that stands for the empty prefix in this namespace.
    pub fn root(&self) -> BlockHash {
        // Lengths go first, so that ("ab", "c") and ("a", "bc") differ.
        let mut bytes = Vec::with_capacity(64);
        for part in [self.model, self.kv_dtype, self.salt] {
            bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
            bytes.extend_from_slice(part.as_bytes());
        }
        BlockHash(xxh3_128_with_secret(&bytes, &SECRET))
    }
}

/// The hash of the block `tokens` after `parent`.
#[inline]
pub fn chain(parent: BlockHash, tokens: &[Token]) -> BlockHash {
    let bytes: &[u8] = bytemuck::cast_slice(tokens);
    let local = if bytes.len() <= XXH3_SHORT_BYTES_MAX { xxh3_64(bytes) } else { xxh3_64_with_secret(bytes, &SECRET) };
    let low = parent.0 as u64 ^ local;
    let high = (parent.0 >> 64) as u64 ^ local.rotate_left(32);
    let folded = u128::from(low ^ 0x9e37_79b9_7f4a_7c15) * u128::from(high ^ 0xc2b2_ae3d_27d4_eb4f);
    BlockHash(folded ^ (u128::from(low) << 64 | u128::from(high)).rotate_left(37))
}

/// Appends to `hashes` the hash of every full block of `tokens` that it does not have yet. `hashes` MUST be the hashes of a
/// prefix of the same tokens. Nothing that was hashed before is hashed again.
pub fn extend_hashes(hashes: &mut Vec<BlockHash>, root: BlockHash, block_size: u32, tokens: &[Token]) {
    let size = block_size as usize;
    assert!(size > 0, "block size is at least one token");
    assert!(hashes.len() * size <= tokens.len(), "more hashes than full blocks");
    let mut parent = hashes.last().copied().unwrap_or(root);
    for block in tokens[hashes.len() * size..].chunks_exact(size) {
        parent = chain(parent, block);
        hashes.push(parent);
    }
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
    fn namespace_parts_do_not_run_into_each_other() {
        let a = Namespace { model: "ab", kv_dtype: "c", salt: "" }.root();
        let b = Namespace { model: "a", kv_dtype: "bc", salt: "" }.root();
        let c = Namespace { model: "a", kv_dtype: "b", salt: "c" }.root();
        assert!(a != b && b != c && a != c);
    }

    #[test]
    fn no_collision_among_many_near_equal_blocks() {
        let root = Namespace::default().root();
        let mut seen = std::collections::BTreeSet::new();
        for a in 0..300u32 {
            for b in 0..300u32 {
                let mut tokens = [7u32; 16];
                tokens[3] = a;
                tokens[11] = b;
                assert!(seen.insert(chain(root, &tokens)), "collision at {a}, {b}");
            }
        }
    }
}
