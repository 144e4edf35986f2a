//! Frames: a KV block with all that a reader needs but the side table, and checksums of the stored bytes and of the block.
//!
//! All integers are little endian:
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | `TKVF` |
//! | 4 | 1 | version, 2 |
//! | 5 | 1 | element type: 0 BF16, 1 FP16, 2 F32, 3 E4M3, 4 E5M2, 5 Q8_0, 6 Q4_0 |
//! | 6 | 1 | transform: 0 stored, 1 plain, 2 predicted, 3 fixed |
//! | 7 | 1 | 0 |
//! | 8 | 8 | layers, tokens, heads, elements of a head: 16 bits each |
//! | 16 | 4 | position of the first token; 0 unless predicted |
//! | 20 | 4 | bytes of the payload |
//! | 24 | 8 | id of the side table; 0 unless predicted |
//! | 32 | 8 | XXH3 of the block |
//! | 40 | 8 | XXH3 of the payload, seeded with the XXH3 of the 40 bytes before |
//! | 48 | | payload |
//!
//! Where a transform saves nothing the block is stored, so a frame is never more than 48 bytes longer than its block.

use thiserror::Error;

use crate::checksum::{self, checksum};
use crate::fixed;
use crate::lanes;
use crate::plain::Plain;
use crate::predicted::Predicted;
use crate::quantised::Quantised;
use crate::rows::Place;
use crate::shape::{Dtype, Shape};
use crate::side_table::SideTable;

/// Bytes before the payload.
pub const HEADER: usize = 48;
const MAGIC: [u8; 4] = *b"TKVF";
const VERSION: u8 = 2;

/// Way in which a frame holds a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transform {
    /// The bytes of the block as they are.
    Stored = 0,
    /// Exponents by a code made for the block.
    Plain = 1,
    /// Signs and exponents, or quantised integers, by codes that a side table and the position choose.
    Predicted = 2,
    /// Exponents by codes of four bits.
    Fixed = 3,
}

/// KV block to be encoded.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Shape of the block.
    pub shape: Shape,
    /// Position of the first token; `None` if unknown. Keys lose what the position says about them then.
    pub position: Option<u32>,
    /// Elements in the order of [`Shape`], little endian.
    pub bytes: &'a [u8],
}

/// Header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameInfo {
    /// Type of the elements.
    pub dtype: Dtype,
    /// Shape of the block.
    pub shape: Shape,
    /// Way in which the frame holds the block.
    pub transform: Transform,
    /// Id of the side table that the frame needs, if it needs one.
    pub table: Option<u64>,
    /// Bytes of the block.
    pub block_len: usize,
    /// Bytes of the frame.
    pub frame_len: usize,
}

/// Reason for refusing a block.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BlockError {
    /// The bytes are not as many as the shape has.
    #[error("{len} bytes for a block of {expected}")]
    WrongLength {
        /// Bytes as given.
        len: usize,
        /// Bytes of the shape.
        expected: usize,
    },
    /// The shape is empty, has more than 4 GiB, or has rows that are not a whole number of scales.
    #[error("a block of this shape is empty, beyond 4 GiB, or has rows of no whole number of scales")]
    WrongShape,
}

/// Reason for refusing a frame.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// The frame does not begin as a frame.
    #[error("the bytes are not a KV frame")]
    NotAFrame,
    /// The frame is of another version.
    #[error("the frame has version {version}; this program reads version 2")]
    OtherVersion {
        /// Version of the frame.
        version: u8,
    },
    /// The frame is shorter or longer than its header says.
    #[error("the frame has {len} of {expected} bytes")]
    WrongLength {
        /// Bytes as given.
        len: usize,
        /// Bytes by the header.
        expected: usize,
    },
    /// Stored bytes changed since the frame was made.
    #[error("the checksum of the stored bytes does not match")]
    Damaged,
    /// A field of the header has no meaning.
    #[error("the header has an unknown {field}")]
    BadHeader {
        /// Field at fault.
        field: &'static str,
    },
    /// The block is larger than the caller takes.
    #[error("the block has {len} bytes, more than the {limit} allowed")]
    TooLong {
        /// Bytes of the block.
        len: usize,
        /// Most bytes that the caller takes.
        limit: usize,
    },
    /// The block has another length than the place for it.
    #[error("the block has {len} bytes, for a place of {expected}")]
    OtherLength {
        /// Bytes of the block.
        len: usize,
        /// Bytes of the place.
        expected: usize,
    },
    /// The side table is not there.
    #[error("the frame needs side table {id:016x}")]
    NoTable {
        /// Id of the table.
        id: u64,
    },
    /// The payload is not an encoding of a block, though its checksum matches.
    #[error("the payload is malformed")]
    BadPayload,
    /// The payload stands for another block than was encoded.
    #[error("the checksum of the block does not match")]
    WrongBlock,
}

/// Encoder and decoder of frames, with buffers that are used again.
///
/// Once the buffers fit the blocks, neither encoding nor decoding allocates, but for `out`.
pub struct Codec {
    predicted: Predicted,
    quantised: Quantised,
    plain: Plain,
    lanes: Vec<u16>,
    escaped: Vec<u8>,
}

impl Default for Codec {
    fn default() -> Self {
        Self {
            predicted: Predicted::new(),
            quantised: Quantised::new(),
            plain: Plain::new(),
            lanes: Vec::new(),
            escaped: Vec::new(),
        }
    }
}

impl std::fmt::Debug for Codec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Codec").finish_non_exhaustive()
    }
}

/// Returns the elements and bytes of a shape.
fn size(dtype: Dtype, shape: &Shape) -> Option<(usize, usize)> {
    let elements = shape.elements().filter(|n| *n > 0)?;
    let bytes = dtype.block_len(shape).filter(|n| u32::try_from(*n).is_ok())?;
    Some((elements, bytes))
}

impl Codec {
    /// Creates a codec.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the frame of a block to `out`. `table` holds the model's statistics, if there are some.
    ///
    /// # Errors
    /// If the bytes are not those of the shape. `out` is unchanged then.
    pub fn encode(
        &mut self,
        block: &Block<'_>,
        table: Option<&SideTable>,
        out: &mut Vec<u8>,
    ) -> Result<Transform, BlockError> {
        let (begin, n) = begin(block, out)?;
        let usable = table.filter(|table| table.fits(&block.shape) && (block.position.is_some() || !table.rotates()));
        let place = Place { dtype: block.dtype, shape: block.shape, position: block.position.unwrap_or(0) };
        let (mut transform, mut named) = (Transform::Plain, (0, 0));
        if let Some(table) = usable {
            match block.dtype.is_quantised() {
                true => self.quantised.encode(&place, table, block.bytes, out),
                false => self.predicted.encode(&place, table, block.bytes, out),
            }
            (transform, named) = (Transform::Predicted, (place.position, table.id()));
        }
        if block.dtype.is_quantised() {
            if usable.is_none() {
                transform = Transform::Stored;
            }
            return Ok(end(block, begin, transform, named, out));
        }
        // Statistics of another model may make a block longer.
        if usable.is_none() || out.len() - begin - HEADER >= block.bytes.len() {
            (transform, named) = (Transform::Plain, (0, 0));
            out.truncate(begin + HEADER);
            self.lanes.resize(n, 0);
            pulp::Arch::new().dispatch(|| lanes::split(block.dtype, block.bytes, &mut self.lanes));
            self.plain.encode(block.dtype, &block.shape, (block.bytes, &mut self.lanes), out);
        }
        Ok(end(block, begin, transform, named, out))
    }

    /// Appends the frame of a block to `out`, for links and tiers that are faster than [`Self::encode`]: blocks of BF16 and F32 by codes of four bits, all
    /// others stored. BF16 becomes 1.33 times shorter at most.
    ///
    /// # Errors
    /// As [`Self::encode`].
    pub fn encode_fast(&mut self, block: &Block<'_>, out: &mut Vec<u8>) -> Result<Transform, BlockError> {
        let (begin, _) = begin(block, out)?;
        let mut transform = Transform::Stored;
        if fixed::suits(block.dtype) {
            fixed::encode(block.dtype, &block.shape, block.bytes, &mut self.escaped, out);
            transform = Transform::Fixed;
        }
        Ok(end(block, begin, transform, (0, 0), out))
    }

    /// Appends the block of a frame to `out`. `table` looks up a side table by its id.
    ///
    /// # Errors
    /// If the frame is damaged or malformed, needs a side table that is not there, or holds more than `max_len` bytes. `out` is unchanged
    /// then.
    pub fn decode<'t>(
        &mut self,
        frame: &[u8],
        table: impl FnOnce(u64) -> Option<&'t SideTable>,
        max_len: usize,
        out: &mut Vec<u8>,
    ) -> Result<FrameInfo, FrameError> {
        let header = Header::read(frame)?;
        let (begin, len) = (out.len(), header.info.block_len);
        if len > max_len {
            return Err(FrameError::TooLong { len, limit: max_len });
        }
        out.resize(begin + len, 0);
        let decoded = self.decode_payload(&header, &frame[HEADER..], table, &mut out[begin..]);
        if decoded.is_err() {
            out.truncate(begin);
        }
        decoded.map(|()| header.info)
    }

    /// Decodes a frame into the place of its block. `table` looks up a side table by its id.
    ///
    /// # Errors
    /// As [`Self::decode`], and if the block has another length than `out`. The bytes of `out` are then unspecified.
    pub fn decode_into<'t>(
        &mut self,
        frame: &[u8],
        table: impl FnOnce(u64) -> Option<&'t SideTable>,
        out: &mut [u8],
    ) -> Result<FrameInfo, FrameError> {
        let header = Header::read(frame)?;
        let len = header.info.block_len;
        if len != out.len() {
            return Err(FrameError::OtherLength { len, expected: out.len() });
        }
        self.decode_payload(&header, &frame[HEADER..], table, out).map(|()| header.info)
    }

    fn decode_payload<'t>(
        &mut self,
        header: &Header,
        payload: &[u8],
        table: impl FnOnce(u64) -> Option<&'t SideTable>,
        out: &mut [u8],
    ) -> Result<(), FrameError> {
        let FrameInfo { dtype, shape, transform, table: id, .. } = header.info;
        let place = Place { dtype, shape, position: header.position };
        match transform {
            Transform::Stored => {
                out.copy_from_slice(payload);
                Some(())
            }
            Transform::Plain if dtype.is_quantised() => None,
            Transform::Plain => self.plain.decode(dtype, &shape, payload, out),
            Transform::Predicted => {
                let id = id.unwrap_or(0);
                let table = table(id).filter(|table| table.id() == id && table.fits(&shape));
                let table = table.ok_or(FrameError::NoTable { id })?;
                match dtype.is_quantised() {
                    true => self.quantised.decode(&place, table, payload, out),
                    false => self.predicted.decode(&place, table, payload, out),
                }
            }
            Transform::Fixed => fixed::decode(dtype, &shape, payload, out),
        }
        .ok_or(FrameError::BadPayload)?;
        if checksum(out) == header.block_checksum { Ok(()) } else { Err(FrameError::WrongBlock) }
    }
}

/// Checks a block, and appends room for a header to `out`. Returns the start of the header, and the elements of the block.
fn begin(block: &Block<'_>, out: &mut Vec<u8>) -> Result<(usize, usize), BlockError> {
    let (n, len) = size(block.dtype, &block.shape).ok_or(BlockError::WrongShape)?;
    if block.bytes.len() != len {
        return Err(BlockError::WrongLength { len: block.bytes.len(), expected: len });
    }
    let begin = out.len();
    out.resize(begin + HEADER, 0);
    Ok((begin, n))
}

/// Ends a frame whose payload follows the room for the header at `begin`. A payload that is not shorter than the block is replaced by the block.
fn end(
    block: &Block<'_>,
    begin: usize,
    mut transform: Transform,
    mut named: (u32, u64),
    out: &mut Vec<u8>,
) -> Transform {
    if transform == Transform::Stored || out.len() - begin - HEADER >= block.bytes.len() {
        (transform, named) = (Transform::Stored, (0, 0));
        out.truncate(begin + HEADER);
        out.extend_from_slice(block.bytes);
    }
    let (header, payload) = out[begin..].split_first_chunk_mut::<HEADER>().expect("a header and a payload");
    header[..4].copy_from_slice(&MAGIC);
    header[4..8].copy_from_slice(&[VERSION, block.dtype.number(), transform as u8, 0]);
    let Shape { layers, tokens, heads, head_dim } = block.shape;
    for (field, value) in header[8..16].as_chunks_mut::<2>().0.iter_mut().zip([layers, tokens, heads, head_dim]) {
        *field = value.to_le_bytes();
    }
    header[16..20].copy_from_slice(&named.0.to_le_bytes());
    header[20..24].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[24..32].copy_from_slice(&named.1.to_le_bytes());
    header[32..40].copy_from_slice(&checksum(block.bytes).to_le_bytes());
    let checksum = stored_checksum(&header[..40], payload);
    header[40..].copy_from_slice(&checksum.to_le_bytes());
    transform
}

/// Hashes the fields of a header, and with the hash as seed the payload.
fn stored_checksum(fields: &[u8], payload: &[u8]) -> u64 {
    checksum::seeded(payload, checksum(fields))
}

/// Reads and checks the header and the stored bytes of a frame, without decoding.
///
/// # Errors
/// As [`Codec::decode`], but for what only decoding shows.
pub fn inspect(frame: &[u8]) -> Result<FrameInfo, FrameError> {
    Header::read(frame).map(|header| header.info)
}

/// Returns the id of the side table that the header of a frame names. Nothing else is checked: decoding does.
pub fn table_named_by(frame: &[u8]) -> Option<u64> {
    let header: &[u8; HEADER] = frame.first_chunk()?;
    let names_table = header[..4] == MAGIC && header[4] == VERSION && header[6] == Transform::Predicted as u8;
    names_table.then(|| u64::from_le_bytes(std::array::from_fn(|at| header[24 + at])))
}

struct Header {
    info: FrameInfo,
    position: u32,
    block_checksum: u64,
}

impl Header {
    fn read(frame: &[u8]) -> Result<Self, FrameError> {
        let header: &[u8; HEADER] = frame.first_chunk().ok_or(FrameError::NotAFrame)?;
        if header[..4] != MAGIC {
            return Err(FrameError::NotAFrame);
        }
        if header[4] != VERSION {
            return Err(FrameError::OtherVersion { version: header[4] });
        }
        let short = |at: usize| u16::from_le_bytes([header[at], header[at + 1]]);
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
        let expected = HEADER.saturating_add(word(20) as usize);
        if frame.len() != expected {
            return Err(FrameError::WrongLength { len: frame.len(), expected });
        }
        if stored_checksum(&header[..40], &frame[HEADER..]) != long(40) {
            return Err(FrameError::Damaged);
        }
        let dtype = *Dtype::ALL.get(usize::from(header[5])).ok_or(FrameError::BadHeader { field: "element type" })?;
        let transform = match header[6] {
            0 => Transform::Stored,
            1 => Transform::Plain,
            2 => Transform::Predicted,
            3 => Transform::Fixed,
            _ => return Err(FrameError::BadHeader { field: "transform" }),
        };
        let shape = Shape { layers: short(8), tokens: short(10), heads: short(12), head_dim: short(14) };
        let (elements, block_len) = size(dtype, &shape).ok_or(FrameError::BadHeader { field: "shape" })?;
        // A code has at least one bit: no short frame makes a decoder take much memory.
        let (least, most) =
            if transform == Transform::Stored { (block_len, block_len) } else { (elements / 8, usize::MAX) };
        if !(least..=most).contains(&(expected - HEADER)) {
            return Err(FrameError::BadHeader { field: "length" });
        }
        let table = (transform == Transform::Predicted).then(|| long(24));
        let info = FrameInfo { dtype, shape, transform, table, block_len, frame_len: expected };
        Ok(Self { info, position: word(16), block_checksum: long(32) })
    }
}

#[cfg(test)]
mod tests;
