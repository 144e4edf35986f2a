//! Identities of blocks by content: equal in every process, so that a tier can outlive one, or serve several.
//!
//! A key chains SHA-256, cut to 128 bits, over the key before and the block's tokens. The hashes of [`crate::blocks::hash`] are faster and can be
//! forged. On the device a forged hash fails the comparison of the blocks before; a tier holds blocks without the blocks before, and a
//! forged key would be a wrong hit there.

use sha2::{Digest as _, Sha256};
use trunkline_port::BlockKey;

use crate::blocks::hash::{BlockHash, cut};
use crate::names::ids::Token;

/// Tokens hashed at once.
const AT_ONCE: usize = 16;
/// Constant of the second layer group, 2^128 divided by the golden ratio; those of further groups are multiples. Odd, and so is the lower
/// half, so that no two groups have equal constants, or constants with equal lower halves.
const GROUP_SPREAD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

/// Returns the key of a block with `tokens` after the block `parent`, or of the first block in the namespace of `root`.
pub(crate) fn after(root: BlockHash, parent: Option<&BlockKey>, hash: BlockHash, tokens: &[Token]) -> BlockKey {
    let before = parent.map_or(root.0, |parent| parent.hash);
    let mut sha = Sha256::new_with_prefix(before.to_le_bytes());
    for tokens in tokens.chunks(AT_ONCE) {
        let mut bytes = [0; 4 * AT_ONCE];
        for (bytes, token) in bytes.chunks_exact_mut(4).zip(tokens) {
            bytes.copy_from_slice(&token.to_le_bytes());
        }
        sha.update(&bytes[..4 * tokens.len()]);
    }
    key(root, parent, hash, cut(&sha.finalize()), tokens.len())
}

/// As [`after`], with the hash of the tree as the block's name, where no store sees it and nobody forges hashes: in simulations.
pub(crate) fn by_hash(root: BlockHash, parent: Option<&BlockKey>, hash: BlockHash, tokens: &[Token]) -> BlockKey {
    key(root, parent, hash, hash.0, tokens.len())
}

fn key(root: BlockHash, parent: Option<&BlockKey>, of_tree: BlockHash, hash: u128, n_tokens: usize) -> BlockKey {
    BlockKey {
        root: root.0,
        parent: parent.map_or(root.0, |parent| parent.hash),
        hash,
        fingerprint: of_tree.fingerprint(),
        first_token: parent.map_or(0, |parent| parent.first_token + n_tokens as u32),
        group: 0,
    }
}

/// Returns the key of the block with the same tokens in layer group `group`, counted from 0; `key` is the block's in the first group.
///
/// Such a block is found by itself, not after the block before: its `parent` is its own hash. The hash is the first group's, XOR a
/// constant of the group: a model may have hundreds of groups, and SHA-256 for each block of each would take milliseconds of the core's
/// thread at the end of a long request. It is as good as one more SHA-256:
///
/// * Within a group, two hashes are equal if and only if the first group's are, so two prefixes of one key take the 2^64 attempts of a
///   collision of SHA-256 cut to 128 bits.
/// * Between two groups, equal hashes of two prefixes take fewer attempts, 2^56 with 256 groups. So a caller that finds a block by its hash
///   MUST compare the group too: [`crate::cache::tier::Tier::find`], host memory that workers share, and the records on disks and in remote
///   stores do.
pub(crate) fn in_group(key: &BlockKey, group: usize) -> BlockKey {
    if group == 0 {
        return *key;
    }
    let group = u8::try_from(group).expect("a model has few layer groups");
    let hash = key.hash ^ u128::from(group).wrapping_mul(GROUP_SPREAD);
    BlockKey { parent: hash, hash, fingerprint: hash as u64, group, ..*key }
}

/// Returns the hash that a block's prefix has in the first layer group, whatever the group of its key.
pub(crate) fn in_first_group(key: &BlockKey) -> u128 {
    key.hash ^ u128::from(key.group).wrapping_mul(GROUP_SPREAD)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Disks and remote stores hold these keys: a change makes them unreadable.
    #[test]
    fn keys_chain_the_sha_256_of_parent_and_tokens() {
        let root = BlockHash(7);
        let first = after(root, None, BlockHash(1 << 64 | 5), &[1, 2]);
        // printf '\x07' + 15 zero bytes + '\x01\0\0\0\x02\0\0\0' | sha256sum, its first 16 bytes from the last to the first
        let expected = BlockKey { root: 7, parent: 7, hash: FIRST, fingerprint: 5, first_token: 0, group: 0 };
        assert_eq!(first, expected);
        let second = after(root, Some(&first), BlockHash(6), &[3, 4]);
        assert_eq!((second.parent, second.first_token, second.root), (FIRST, 2, 7));
        assert_ne!(second.hash, after(root, Some(&first), BlockHash(6), &[3, 5]).hash);
        assert_ne!(after(BlockHash(8), None, BlockHash(5), &[1, 2]).hash, FIRST);
    }

    #[test]
    fn a_layer_group_has_keys_of_its_own() {
        let first = after(BlockHash(7), None, BlockHash(5), &[1, 2]);
        let (one, two) = (in_group(&first, 1), in_group(&first, 2));
        assert_eq!(one.hash, IN_GROUP_ONE);
        assert_eq!((one.parent, one.fingerprint), (one.hash, one.hash as u64));
        assert_eq!((one.root, one.first_token, one.group), (first.root, first.first_token, 1));
        assert_eq!([&first, &one, &two].map(in_first_group), [first.hash; 3]);
        assert_ne!((one.hash, one.fingerprint), (two.hash, two.fingerprint));
    }

    #[test]
    fn keys_of_groups_differ_in_both_halves_and_say_which_block_of_the_first_group_they_stand_beside() {
        let keys = [1, 2].map(|token| after(BlockHash(7), None, BlockHash(5), &[token]));
        let of_groups = |key: &BlockKey| (0..256).map(|group| in_group(key, group)).collect::<Vec<_>>();
        let all: Vec<BlockKey> = keys.iter().flat_map(of_groups).collect();
        let mut hashes: Vec<u128> = all.iter().map(|key| key.hash).collect();
        let mut fingerprints: Vec<u64> = all.iter().map(|key| key.hash as u64).collect();
        let mut upper: Vec<u64> = all.iter().map(|key| (key.hash >> 64) as u64).collect();
        hashes.sort_unstable();
        hashes.dedup();
        for half in [&mut fingerprints, &mut upper] {
            half.sort_unstable();
            half.dedup();
            assert_eq!(half.len(), 512);
        }
        assert_eq!(hashes.len(), 512);
        // The distance of two blocks is the same in each group: equal keys in one group are equal keys in all.
        let distance = keys[0].hash ^ keys[1].hash;
        assert!((0..256).all(|group| all[group].hash ^ all[256 + group].hash == distance));
    }

    const IN_GROUP_ONE: u128 = 0x16b4_4b47_3ca1_671b_615c_1ca1_4847_c917;
    const FIRST: u128 = 0x8883_32fe_43eb_1b0e_92c0_dcc1_14aa_0122;
}
