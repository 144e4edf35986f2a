//! A copy of KV blocks from one place to another, requested by the core.

use serde::{Deserialize, Serialize};

use crate::ids::Token;

/// Memory for KV blocks. Each place numbers the place's blocks from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The device: the blocks read and written by steps.
    #[default]
    Device,
    /// Host memory for swapped-out requests (`host_blocks` of the core's configuration).
    Host,
    /// A tier of the prefix cache behind the device (`tiers` of the core's configuration); 0 is the nearest.
    Tier(u8),
}

/// Blocks to copy, asynchronously. The driver answers once, with the event `TransferFinished`, `TransferPartial` (some blocks did not
/// arrive), `TransferFailed` (none did, the sources may be bad) or `TransferInterrupted` (none did, the sources are good) of the core;
/// several copies may run at once, between any places, and end in any order.
///
/// From the action to the answer nobody writes the sources, and nobody but the copy reads or writes the destinations.
/// Steps and other copies may read published sources meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transfer {
    /// Number of the copy; counts up from 1 for the lifetime of the core.
    pub id: u64,
    /// Place of the sources.
    pub from: Place,
    /// Place of the destinations; never equal to `from`.
    pub to: Place,
    /// Pairs (block in `from`, block in `to`).
    pub pairs: Vec<(u32, u32)>,
    /// Identity of each pair's contents, if `from` or `to` is a tier. Of a copy to the host, identities of the first pairs, as far as
    /// known. Else empty.
    pub keys: Vec<BlockKey>,
    /// Tokens of the blocks in `keys`, equally many for each, if `from` or `to` is a tier; else empty.
    pub tokens: Vec<Token>,
    /// `true` if a request waits for the end.
    pub is_urgent: bool,
}

impl Transfer {
    /// Returns the tokens of the contents of pair number `pair`; none for a copy to the host.
    ///
    /// # Panics
    /// If the transfer has no keys, or no such pair.
    pub fn tokens_of(&self, pair: usize) -> &[Token] {
        let block_size = self.tokens.len() / self.keys.len();
        &self.tokens[pair * block_size..][..block_size]
    }
}

/// Identity of a full block of a prefix, by content: equal on every machine and after every restart. Hashes are cryptographic, cut
/// to 128 bits, so equal keys stand for equal tokens in equal namespaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct BlockKey {
    /// Hash of the namespace: model, revision, KV type, adapter, tenant, salt and further keys.
    #[serde(with = "hex")]
    pub root: u128,
    /// Chained hash of the prefix before the block; `root` for the first block of a prefix. For a block of a layer group after the
    /// first, which is found by itself, `hash`.
    #[serde(with = "hex")]
    pub parent: u128,
    /// Chained hash of the prefix with the block; of a layer group after the first, XOR a constant of the group. Tells blocks of one
    /// group apart, and those of two groups together with `group` alone.
    #[serde(with = "hex")]
    pub hash: u128,
    /// Number by which a core finds the block before it compares the rest; not unique.
    #[serde(with = "hex")]
    pub fingerprint: u64,
    /// Position of the block's first token in the prefix.
    pub first_token: u32,
    /// Layer group of the block; 0 for the first.
    #[serde(default, skip_serializing_if = "is_first")]
    pub group: u8,
}

fn is_first(group: &u8) -> bool {
    *group == 0
}

/// A block held by a tier, with key and tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownBlock {
    /// Number of the block in the tier.
    pub block: u32,
    /// Identity of the contents.
    pub key: BlockKey,
    /// Tokens of the block, all of them.
    pub tokens: Vec<Token>,
}

/// A question to a tier whose storage other cores fill too: the number of leading blocks that are there. The driver answers with the
/// event `LookupEnded` of the core, in any order, and with 0 if the storage does not answer. No transfer need wait for a look-up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lookup {
    /// Number of the look-up; counts up from 1 for the lifetime of the core.
    pub id: u64,
    /// Number of the tier, 0 for the nearest.
    pub tier: u8,
    /// Identities of blocks, at least one; each counts only if those before it are there.
    pub keys: Vec<BlockKey>,
}

/// Reason for a block of a transfer not to arrive. The block's destination holds nothing of use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BlockFault {
    /// The source is missing, damaged, or holds other contents. The block MUST leave the source's place.
    Bad,
    /// The copy failed on the way, as when a connection broke: the source is good.
    Interrupted,
    /// The destination took nothing: full, or too busy. The source is good.
    Refused,
}

/// The answer to a [`Transfer`], sent when no block is read or written for the transfer any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TransferReport {
    /// Pairs that failed, by index in [`Transfer::pairs`], ascending. All others arrived.
    pub faults: Vec<(u32, BlockFault)>,
    /// Size of the arrived blocks at the destination, in bytes.
    pub stored_bytes: u64,
    /// `true` if the transfer was cancelled before the last block was copied. The blocks not copied count as interrupted.
    pub is_cancelled: bool,
}

/// Hashes in JSON: a number beyond 53 bits is not safe there.
mod hex {
    use std::fmt::LowerHex;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};
    use trunkline_quote::quoted;

    pub(super) fn serialize<T: LowerHex, S: Serializer>(hash: &T, out: S) -> Result<S::Ok, S::Error> {
        out.serialize_str(&format!("{hash:x}"))
    }

    pub(super) fn deserialize<'a, T: TryFrom<u128>, D: Deserializer<'a>>(input: D) -> Result<T, D::Error> {
        let text = String::deserialize(input)?;
        let hash = u128::from_str_radix(&text, 16).map_err(D::Error::custom)?;
        T::try_from(hash).map_err(|_| D::Error::custom(format!("{} has too many digits", quoted(&text))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: BlockKey = BlockKey { root: 1, parent: 1, hash: 2, fingerprint: 3, first_token: 0, group: 0 };

    #[test]
    fn a_known_block_survives_json_with_all_bits_of_its_hashes() {
        let key =
            BlockKey { parent: u128::MAX, hash: 1 << 127 | 5, fingerprint: u64::MAX - 1, first_token: 16, ..FIRST };
        let block = KnownBlock { block: 7, key, tokens: vec![1, 2] };
        let text = serde_json::to_string(&block).unwrap();
        assert!(text.contains("\"fingerprint\":\"fffffffffffffffe\"") && !text.contains("group"), "{text}");
        let in_group = KnownBlock { key: BlockKey { group: 1, ..key }, ..block.clone() };
        let text_in_group = serde_json::to_string(&in_group).unwrap();
        assert_eq!(serde_json::from_str::<KnownBlock>(&text_in_group).unwrap(), in_group);
        assert_eq!(serde_json::from_str::<KnownBlock>(&text).unwrap(), block);
        let long = text.replace("fffffffffffffffe", "1fffffffffffffffe");
        assert!(serde_json::from_str::<KnownBlock>(&long).is_err());
    }
}
