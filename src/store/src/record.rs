//! Records: a stored block with its whole identity and checksums, as on disk and in remote storage.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | `TKVR` |
//! | 4 | 2 | version, 1 |
//! | 6 | 1 | form of the payload: 0 the block's bytes, 1 a KV frame |
//! | 7 | 1 | layer group of the key |
//! | 8 | 8 | id of the layout |
//! | 16 | 8 | sequence: the number of the write, rising |
//! | 24 | 8 | number of the segment; 0 in remote storage |
//! | 32 | 8 | offset in the segment; 0 in remote storage |
//! | 40 | 48 | root, parent and hash of the key, 16 each |
//! | 88 | 8 | fingerprint of the key |
//! | 96 | 4 | position of the first token |
//! | 100 | 4 | number of tokens |
//! | 104 | 8 | bytes of the payload |
//! | 112 | 8 | XXH3 of the payload |
//! | 120 | 8 | XXH3 of the 120 bytes before and of the tokens |
//! | 128 | | tokens, 4 bytes each; then the payload |

use trunkline_port::{BlockKey, Token};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_64};

use crate::counters::Fault;
use crate::held::Coding;

/// Bytes before the tokens.
pub const FIXED: usize = 128;
const MAGIC: [u8; 4] = *b"TKVR";
const VERSION: u16 = 1;
/// Most tokens of a record that a reader believes in.
const TOKENS_MAX: usize = 1 << 16;
/// Longest payload read, bytes: the largest block, and the header of a frame.
const PAYLOAD_MAX: u64 = (1 << 30) + 1024;

/// Place of a record on disk, and the number of the write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Number of the write; a later write has a higher one.
    pub sequence: u64,
    /// Number of the segment.
    pub segment: u64,
    /// Offset in the segment, bytes.
    pub offset: u64,
}

/// Header of a record, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Form of the payload.
    pub coding: Coding,
    /// Layout of the block.
    pub layout: u64,
    /// Place of the record.
    pub address: Address,
    /// Identity of the block.
    pub key: BlockKey,
    /// Tokens of the block, all of them.
    pub tokens: Vec<Token>,
    /// Bytes of the payload.
    pub payload_len: usize,
    payload_checksum: u64,
}

/// Returns the bytes of a header with `n` tokens.
pub fn header_len(n: usize) -> usize {
    FIXED + 4 * n
}

/// Writes the header of a record whose payload is in its place behind.
///
/// # Panics
/// If `record` is shorter than a header.
pub fn seal(record: &mut [u8], layout: u64, coding: Coding, key: &BlockKey, tokens: &[Token]) {
    let (header, payload) = record.split_at_mut(header_len(tokens.len()));
    header.fill(0);
    header[..4].copy_from_slice(&MAGIC);
    header[4..6].copy_from_slice(&VERSION.to_le_bytes());
    header[6] = coding as u8;
    header[7] = key.group;
    header[8..16].copy_from_slice(&layout.to_le_bytes());
    header[40..56].copy_from_slice(&key.root.to_le_bytes());
    header[56..72].copy_from_slice(&key.parent.to_le_bytes());
    header[72..88].copy_from_slice(&key.hash.to_le_bytes());
    header[88..96].copy_from_slice(&key.fingerprint.to_le_bytes());
    header[96..100].copy_from_slice(&key.first_token.to_le_bytes());
    header[100..104].copy_from_slice(&(tokens.len() as u32).to_le_bytes());
    header[104..112].copy_from_slice(&(payload.len() as u64).to_le_bytes());
    header[112..120].copy_from_slice(&xxh3_64(payload).to_le_bytes());
    for (bytes, token) in header[FIXED..].as_chunks_mut::<4>().0.iter_mut().zip(tokens) {
        *bytes = token.to_le_bytes();
    }
    place(record, tokens.len(), Address::default());
}

/// Writes the address into a sealed record of `n` tokens.
///
/// # Panics
/// If `record` is shorter than a header.
pub fn place(record: &mut [u8], n: usize, address: Address) {
    record[16..24].copy_from_slice(&address.sequence.to_le_bytes());
    record[24..32].copy_from_slice(&address.segment.to_le_bytes());
    record[32..40].copy_from_slice(&address.offset.to_le_bytes());
    let checksum = checksum(&record[..header_len(n)]);
    record[120..128].copy_from_slice(&checksum.to_le_bytes());
}

fn checksum(header: &[u8]) -> u64 {
    let mut hasher = Xxh3Default::new();
    hasher.update(&header[..120]);
    hasher.update(&header[FIXED..]);
    hasher.digest()
}

/// Returns the bytes of the header that begins with `bytes`, or `None` if no record begins so. Nothing else is checked.
pub fn announced_len(bytes: &[u8]) -> Option<usize> {
    let fixed: &[u8; FIXED] = bytes.first_chunk()?;
    let n = u32::from_le_bytes(std::array::from_fn(|at| fixed[100 + at])) as usize;
    (fixed[..4] == MAGIC && n <= TOKENS_MAX).then(|| header_len(n))
}

impl Header {
    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// If no whole header of this version is there.
    pub fn read(bytes: &[u8]) -> Result<Self, Fault> {
        let Some(fixed) = bytes.first_chunk::<FIXED>() else { return Err(Fault::Short) };
        if fixed.iter().all(|byte| *byte == 0) {
            return Err(Fault::Torn);
        }
        let len = announced_len(bytes).ok_or(Fault::Flipped)?;
        let header = bytes.get(..len).ok_or(Fault::Short)?;
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| fixed[at + i]));
        let wide = |at: usize| u128::from_le_bytes(std::array::from_fn(|i| fixed[at + i]));
        if checksum(header) != long(120) {
            return Err(Fault::Flipped);
        }
        let coding = match fixed[6] {
            0 => Coding::Raw,
            1 => Coding::Frame,
            _ => return Err(Fault::Stale),
        };
        if u16::from_le_bytes([fixed[4], fixed[5]]) != VERSION {
            return Err(Fault::Stale);
        }
        let payload_len = long(104);
        if payload_len > PAYLOAD_MAX {
            return Err(Fault::Flipped);
        }
        let first_token = u32::from_le_bytes(std::array::from_fn(|at| fixed[96 + at]));
        let [root, parent, hash] = [wide(40), wide(56), wide(72)];
        let key = BlockKey { root, parent, hash, fingerprint: long(88), first_token, group: fixed[7] };
        Ok(Self {
            coding,
            layout: long(8),
            address: Address { sequence: long(16), segment: long(24), offset: long(32) },
            key,
            tokens: header[FIXED..].as_chunks::<4>().0.iter().map(|token| Token::from_le_bytes(*token)).collect(),
            payload_len: payload_len as usize,
            payload_checksum: long(112),
        })
    }

    /// Returns where in the record the payload is.
    pub fn payload_range(&self) -> std::ops::Range<usize> {
        header_len(self.tokens.len())..self.record_len()
    }

    /// Returns the bytes of the whole record.
    pub fn record_len(&self) -> usize {
        header_len(self.tokens.len()).saturating_add(self.payload_len)
    }

    /// Returns the payload of the record in `bytes`, checked.
    ///
    /// # Errors
    /// If the payload is not whole, or changed.
    pub fn payload<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], Fault> {
        let payload = bytes.get(self.payload_range()).ok_or(Fault::Short)?;
        if xxh3_64(payload) == self.payload_checksum { Ok(payload) } else { Err(Fault::Flipped) }
    }

    /// Proves that the record is of a block.
    ///
    /// # Errors
    /// If the record is of another layout or block.
    pub fn prove(&self, layout: u64, key: &BlockKey, tokens: &[Token]) -> Result<(), Fault> {
        if self.layout != layout {
            return Err(Fault::Stale);
        }
        if self.key != *key || self.tokens != tokens {
            return Err(Fault::Swapped);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
