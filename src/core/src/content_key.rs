//! Identities of blocks by content: equal in every process, so that a tier can outlive one, or serve several.
//!
//! A key chains SHA-256, cut to 128 bits, over the key before and the block's tokens. The hashes of [`crate::hash`] are faster and can be
//! forged. On the device a forged hash fails the comparison of the blocks before; a tier holds blocks without the blocks before, and a
//! forged key would be a wrong hit there.

use sha2::{Digest as _, Sha256};
use trunkline_port::BlockKey;

use crate::hash::{BlockHash, cut};
use crate::ids::Token;

/// Tokens hashed at once.
const AT_ONCE: usize = 16;

/// Returns the key of a block with `tokens` behind the block `parent`, or of the first block in the namespace of `root`.
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
    BlockKey {
        root: root.0,
        parent: before,
        hash: cut(&sha.finalize()),
        fingerprint: hash.fingerprint(),
        first_token: parent.map_or(0, |parent| parent.first_token + tokens.len() as u32),
        group: 0,
    }
}

/// Returns the key of the block with the same tokens in layer group `group`, counted from 0; `key` is the block's in the first group.
///
/// Such a block is found by itself, not behind the block before: its `parent` is its own hash. A hash over 17 bytes stands for no
/// prefix, because the hash of a prefix is one over 16 bytes and some tokens of 4 bytes.
pub(crate) fn in_group(key: &BlockKey, group: usize) -> BlockKey {
    if group == 0 {
        return *key;
    }
    let group = u8::try_from(group).expect("a model has few layer groups");
    let hash = cut(&Sha256::new_with_prefix(key.hash.to_le_bytes()).chain_update([group]).finalize());
    BlockKey { parent: hash, hash, fingerprint: hash as u64, group, ..*key }
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
        // printf '\x22\x01\xaa\x14\xc1\xdc\xc0\x92\x0e\x1b\xeb\x43\xfe\x32\x83\x88\x01' | sha256sum
        assert_eq!(one.hash, IN_GROUP_ONE);
        assert_eq!((one.parent, one.fingerprint), (one.hash, one.hash as u64));
        assert_eq!((one.root, one.first_token, one.group), (first.root, first.first_token, 1));
        assert_ne!((one.hash, one.fingerprint), (two.hash, two.fingerprint));
    }

    const IN_GROUP_ONE: u128 = 0x5e3d_d364_682b_2e6e_91f6_fa76_5e97_7504;
    const FIRST: u128 = 0x8883_32fe_43eb_1b0e_92c0_dcc1_14aa_0122;
}
