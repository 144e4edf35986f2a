//! Frames of the codec "Gear Predictive" of MNN's KV compression.
//!
//! A frame holds words of 16 or 32 bits as one stream for each byte of a word, because the exponents of neighbours resemble each other and
//! the lower bytes of mantissas resemble nothing. All integers are little endian:
//!
//! ```text
//! frame  = words:u32 | stream of byte 0 of each word | stream of byte 1 | ...
//! stream = predictor:u8 | method:u8 | raw_len:u32 | payload_len:u32 | payload
//! ```
//!
//! A predictor (0 none, 1 difference, 2 exclusive or) is applied from byte to byte, modulo 256, from 0. The method is run-length
//! encoding (0) or zstd level 3 (1). The encoder tries every predictor and method and keeps the shortest payload, the first of equals.
//! Incompressible data grows: a frame has no stored form, and users compare lengths.
//!
//! Source: `CPUAttention.cpp` of the MNN fork Livia-Tassel/MNN at 3e0f511e, format only. Frames have no checksum, so an error in the data of a
//! frame may go unnoticed.
//!
//! # Example
//!
//! ```
//! use trunkline_codec::gear::{self, Predictors, Word};
//!
//! let values: Vec<u8> = (0..512u16).flat_map(|i| (0x3c00 + i / 4).to_le_bytes()).collect();
//! let mut frame = Vec::new();
//! gear::Encoder::new().encode(Word::F16, &[Predictors::ALL; 2], &values, &mut frame)?;
//! assert!(frame.len() < values.len() / 8);
//!
//! let mut back = Vec::new();
//! gear::decode(Word::F16, &frame, values.len(), &mut back)?;
//! assert_eq!(back, values);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod predictor;
mod rle;
mod stream;

use thiserror::Error;

pub use self::predictor::{Predictor, Predictors};
pub use self::stream::{Method, StreamInfo};

/// Width of the words in a frame. The frame does not name the width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Two bytes: FP16 or BF16 values.
    F16,
    /// Four bytes: FP32 values.
    F32,
}

impl Word {
    /// Returns the bytes of a word, which is the number of streams in a frame.
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// Reason for refusing to encode.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum EncodeError {
    /// The input is empty or ends within a word.
    #[error("{len} bytes are not whole words of {word} bytes")]
    NoWholeWords {
        /// Bytes of input, as given.
        len: usize,
        /// Bytes of a word.
        word: usize,
    },
    /// The frame counts words in 32 bits.
    #[error("{words} words are more than the 4294967295 that a frame can count")]
    TooLong {
        /// Words of input, as given.
        words: usize,
    },
    /// A list of predictors is needed for each byte of a word.
    #[error("{given} lists of predictors for words of {word} bytes: give one for each byte")]
    WrongPredictors {
        /// Lists of predictors, as given.
        given: usize,
        /// Bytes of a word.
        word: usize,
    },
}

/// Reason for refusing a frame, with the byte offset of the part at fault.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DecodeError {
    /// The frame ends within a header or payload.
    #[error("the frame ends at byte {at}, within {part}")]
    Truncated {
        /// Length of the frame.
        at: usize,
        /// Part that is cut short.
        part: &'static str,
    },
    /// The frame holds no word.
    #[error("the frame holds no word")]
    Empty,
    /// The frame holds more than the caller takes.
    #[error("the frame holds {len} bytes, more than the {limit} allowed")]
    TooLong {
        /// Bytes by the header of the frame.
        len: u64,
        /// Most bytes that the caller takes.
        limit: usize,
    },
    /// No predictor has the number.
    #[error("unknown predictor {number} at byte {at}")]
    UnknownPredictor {
        /// Number in the stream.
        number: u8,
        /// Offset of the number.
        at: usize,
    },
    /// No method has the number.
    #[error("unknown method {number} at byte {at}")]
    UnknownMethod {
        /// Number in the stream.
        number: u8,
        /// Offset of the number.
        at: usize,
    },
    /// A stream and the frame disagree about the number of words.
    #[error("the stream at byte {at} holds {raw_len} bytes for {words} words")]
    LengthMismatch {
        /// Offset of the stream.
        at: usize,
        /// Bytes by the header of the stream.
        raw_len: u32,
        /// Words of the frame.
        words: u32,
    },
    /// The payload of a stream is malformed, or of another length than the stream says.
    #[error("the {method} payload at byte {at} is malformed")]
    BadPayload {
        /// Method of the stream.
        method: Method,
        /// Offset of the payload.
        at: usize,
    },
    /// Bytes follow the last stream.
    #[error("{n} bytes follow the frame")]
    TrailingBytes {
        /// Number of bytes that follow.
        n: usize,
    },
}

/// Encoder with buffers that are used again for each frame.
#[derive(Default)]
pub struct Encoder {
    lane: Vec<u8>,
    streams: stream::StreamEncoder,
}

impl std::fmt::Debug for Encoder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Encoder").finish_non_exhaustive()
    }
}

impl Encoder {
    /// Creates an encoder without buffers, which grow with use.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the frame of `input` to `out`. `predictors` are the predictors to try, for each byte of a word.
    ///
    /// # Errors
    /// If the input is not a whole number of words, empty, or too long, or `predictors` has another length than a word. `out` is unchanged then.
    pub fn encode(
        &mut self,
        word: Word,
        predictors: &[Predictors],
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), EncodeError> {
        let lanes = word.bytes();
        if predictors.len() != lanes {
            return Err(EncodeError::WrongPredictors { given: predictors.len(), word: lanes });
        }
        if input.is_empty() || !input.len().is_multiple_of(lanes) {
            return Err(EncodeError::NoWholeWords { len: input.len(), word: lanes });
        }
        let words = input.len() / lanes;
        let count = u32::try_from(words).map_err(|_| EncodeError::TooLong { words })?;
        out.extend(count.to_le_bytes());
        for (at, predictors) in predictors.iter().enumerate() {
            self.lane.clear();
            self.lane.extend(input.iter().skip(at).step_by(lanes));
            self.streams.encode(&self.lane, *predictors, out);
        }
        Ok(())
    }
}

/// Appends the words of a frame to `out`, `max_len` bytes at most. Returns the streams as found in the frame.
///
/// # Errors
/// If the frame is malformed, or holds more than `max_len` bytes. `out` is unchanged then.
pub fn decode(word: Word, frame: &[u8], max_len: usize, out: &mut Vec<u8>) -> Result<Vec<StreamInfo>, DecodeError> {
    let mut reader = stream::Reader::new(frame);
    let words = reader.word_count()?;
    let lanes = word.bytes();
    let len = u64::from(words) * lanes as u64;
    if len > max_len as u64 {
        return Err(DecodeError::TooLong { len, limit: max_len });
    }
    // The lanes are decoded before `out` grows, so that only a frame that holds so much takes so much.
    let mut decoded = Vec::with_capacity(lanes);
    for _ in 0..lanes {
        decoded.push(reader.stream(words)?);
    }
    reader.end()?;
    let start = out.len();
    out.resize(start + len as usize, 0);
    for (at, (_, lane)) in decoded.iter().enumerate() {
        out[start + at..].iter_mut().step_by(lanes).zip(lane).for_each(|(to, from)| *to = *from);
    }
    Ok(decoded.into_iter().map(|(info, _)| info).collect())
}

/// Hash by which the reference compares blocks: FNV-1a of 64 bits, but from another offset basis (0x14650fb0739d0383, the standard one
/// without its last digit). `seed` is the hash of the bytes before, or [`HASH_SEED`].
pub fn hash(bytes: &[u8], seed: u64) -> u64 {
    bytes.iter().fold(seed, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// Seed of [`hash`] for the first bytes.
pub const HASH_SEED: u64 = 1_469_598_103_934_665_603;

#[cfg(test)]
mod tests;
