//! The texts of all errors of the codec.

#[path = "../../../tests/harness/error_texts.rs"]
mod error_texts;

use error_texts::texts;
use trunkline_codec::frame::{BlockError, FrameError};
use trunkline_codec::gear::{DecodeError, EncodeError, Method};
use trunkline_codec::quant::QuantError;

#[test]
fn the_texts_of_errors_are_as_reviewed() {
    let mut text = String::new();
    let out = &mut text;
    texts!(
        out,
        BlockError {
            WrongLength: BlockError::WrongLength { len: 100, expected: 128 },
            WrongShape: BlockError::WrongShape
        }
    );
    texts!(
        out,
        FrameError {
            NotAFrame: FrameError::NotAFrame,
            OtherVersion: FrameError::OtherVersion { version: 3 },
            WrongLength: FrameError::WrongLength { len: 90, expected: 96 },
            Damaged: FrameError::Damaged,
            BadHeader: FrameError::BadHeader { field: "kind" },
            TooLong: FrameError::TooLong { len: 1 << 20, limit: 1 << 16 },
            OtherLength: FrameError::OtherLength { len: 64, expected: 128 },
            NoTable: FrameError::NoTable { id: 0xfeed },
            BadPayload: FrameError::BadPayload,
            WrongBlock: FrameError::WrongBlock,
        }
    );
    texts!(
        out,
        EncodeError {
            NoWholeWords: EncodeError::NoWholeWords { len: 7, word: 2 },
            TooLong: EncodeError::TooLong { words: 5_000_000_000 },
            WrongPredictors: EncodeError::WrongPredictors { given: 1, word: 2 },
        }
    );
    texts!(
        out,
        DecodeError {
            Truncated: DecodeError::Truncated { at: 12, part: "the header" },
            Empty: DecodeError::Empty,
            TooLong: DecodeError::TooLong { len: 1 << 20, limit: 1 << 16 },
            UnknownPredictor: DecodeError::UnknownPredictor { number: 9, at: 8 },
            UnknownMethod: DecodeError::UnknownMethod { number: 9, at: 9 },
            LengthMismatch: DecodeError::LengthMismatch { at: 9, raw_len: 30, words: 32 },
            BadPayload: DecodeError::BadPayload { method: Method::Zstd, at: 20 },
            TrailingBytes: DecodeError::TrailingBytes { n: 3 },
        }
    );
    texts!(
        out,
        QuantError {
            NoWholeBlocks: QuantError::NoWholeBlocks { len: 33, unit: "values", block: 32 },
            NotFinite: QuantError::NotFinite { at: 5, value: f32::NAN },
            TooLarge: QuantError::TooLarge { at: 32, value: 1e9 },
        }
    );
    error_texts::compare(env!("CARGO_MANIFEST_DIR"), out);
}
