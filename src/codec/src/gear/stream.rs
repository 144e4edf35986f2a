//! Streams of a frame: one byte of each word, predicted and compressed.

use std::io::Read;

use super::predictor::{Predictor, Predictors};
use super::{DecodeError, rle};

/// Compression level of the reference.
const ZSTD_LEVEL: i32 = 3;

/// Compression of a stream's residuals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Run-length encoding: literals and repeats.
    Rle = 0,
    /// zstd at level 3.
    Zstd = 1,
}

impl std::fmt::Display for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Rle => "run-length",
            Self::Zstd => "zstd",
        })
    }
}

/// Header of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// Prediction that was chosen.
    pub predictor: Predictor,
    /// Compression that was chosen.
    pub method: Method,
    /// Bytes of the payload.
    pub payload_len: u32,
}

/// Encoder of streams, with buffers and a zstd context that are used again.
#[derive(Default)]
pub(super) struct StreamEncoder {
    zstd: Option<zstd::bulk::Compressor<'static>>,
    residuals: Vec<u8>,
    candidate: Vec<u8>,
    best: Vec<u8>,
}

impl StreamEncoder {
    /// Appends the stream of `bytes`, which MUST be one byte at least and fewer than 2^32.
    pub(super) fn encode(&mut self, bytes: &[u8], predictors: Predictors, out: &mut Vec<u8>) {
        let mut best = (usize::MAX, Predictor::Raw, Method::Rle);
        for predictor in Predictor::ALL.into_iter().filter(|predictor| predictors.contains(*predictor)) {
            self.residuals.clear();
            predictor.apply(bytes, &mut self.residuals);
            // Only a shorter payload replaces the best one, so the first of equals stays.
            if let Some(len) = rle::encoded_len(&self.residuals, best.0) {
                best = (len, predictor, Method::Rle);
                self.best.clear();
                rle::encode(&self.residuals, &mut self.best);
            }
            self.zstd();
            if self.candidate.len() < best.0 {
                best = (self.candidate.len(), predictor, Method::Zstd);
                std::mem::swap(&mut self.best, &mut self.candidate);
            }
        }
        let (payload_len, predictor, method) = best;
        out.extend([predictor as u8, method as u8]);
        out.extend((bytes.len() as u32).to_le_bytes());
        out.extend((payload_len as u32).to_le_bytes());
        out.extend(&self.best);
    }

    /// Compresses the residuals into the candidate.
    fn zstd(&mut self) {
        let zstd = self.zstd.get_or_insert_with(|| {
            zstd::bulk::Compressor::new(ZSTD_LEVEL).expect("level 3 is among the levels of zstd")
        });
        self.candidate.clear();
        self.candidate.resize(zstd::zstd_safe::compress_bound(self.residuals.len()), 0);
        let len = zstd
            .compress_to_buffer(&self.residuals, &mut self.candidate[..])
            .expect("the buffer is as long as zstd may need");
        self.candidate.truncate(len);
    }
}

/// Reader of the parts of a frame.
pub(super) struct Reader<'a> {
    frame: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(frame: &'a [u8]) -> Self {
        Self { frame, at: 0 }
    }

    fn take(&mut self, n: usize, part: &'static str) -> Result<&'a [u8], DecodeError> {
        let rest = &self.frame[self.at..];
        let Some(taken) = rest.get(..n) else {
            return Err(DecodeError::Truncated { at: self.frame.len(), part });
        };
        self.at += n;
        Ok(taken)
    }

    fn number(&mut self, part: &'static str) -> Result<u32, DecodeError> {
        let bytes = self.take(4, part)?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes were taken")))
    }

    /// Reads the number of words that a frame begins with: one at least.
    pub(super) fn word_count(&mut self) -> Result<u32, DecodeError> {
        match self.number("the number of words")? {
            0 => Err(DecodeError::Empty),
            words => Ok(words),
        }
    }

    /// Reads a stream of one byte for each word.
    pub(super) fn stream(&mut self, words: u32) -> Result<(StreamInfo, Vec<u8>), DecodeError> {
        let begin = self.at;
        let numbers = self.take(2, "the header of a stream")?;
        let raw_len = self.number("the header of a stream")?;
        let payload_len = self.number("the header of a stream")?;
        let predictor = Predictor::from_number(numbers[0])
            .ok_or(DecodeError::UnknownPredictor { number: numbers[0], at: begin })?;
        let method = match numbers[1] {
            0 => Method::Rle,
            1 => Method::Zstd,
            number => return Err(DecodeError::UnknownMethod { number, at: begin + 1 }),
        };
        if raw_len != words {
            return Err(DecodeError::LengthMismatch { at: begin, raw_len, words });
        }
        let at = self.at;
        let payload = self.take(payload_len as usize, "a payload")?;
        let decoded = match method {
            Method::Rle => rle::decode(payload, raw_len as usize),
            Method::Zstd => unzstd(payload, raw_len as usize),
        };
        let mut bytes = decoded.ok_or(DecodeError::BadPayload { method, at })?;
        predictor.undo(&mut bytes);
        Ok((StreamInfo { predictor, method, payload_len }, bytes))
    }

    /// Checks that nothing follows.
    pub(super) fn end(self) -> Result<(), DecodeError> {
        match self.frame.len() - self.at {
            0 => Ok(()),
            n => Err(DecodeError::TrailingBytes { n }),
        }
    }
}

/// Returns exactly `len` decompressed bytes, or `None`. Memory grows with the bytes produced, whatever the payload says it holds.
fn unzstd(payload: &[u8], len: usize) -> Option<Vec<u8>> {
    let decoder = zstd::stream::read::Decoder::with_buffer(payload).ok()?;
    let mut bytes = Vec::new();
    // One byte more shows that the payload is too long.
    decoder.take(len as u64 + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() == len).then_some(bytes)
}
