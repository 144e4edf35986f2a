//! The texts of all errors of files and tokenizers.

#[path = "../../../tests/harness/error_texts.rs"]
mod harness;

use std::io;

use harness::texts;
use trunkline_foreign::Panicked;

use crate::library::Fault;
use crate::{FactsError, Mistake, TokenizerError};

fn panicked() -> Panicked {
    trunkline_foreign::call(|| std::panic::resume_unwind(Box::new(()))).unwrap_err()
}

#[test]
fn the_texts_of_errors_are_as_reviewed() {
    let mut text = String::new();
    let out = &mut text;
    let path = || "/model/tokenizer.json".into();
    let absent = || FactsError::Absent { path: "/model".into() };
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("model.gguf");
    std::fs::write(&empty, "").unwrap();
    let mistake = || {
        let mut mistake = Mistake::of_file(&empty).unwrap();
        mistake.path = path();
        mistake
    };
    texts!(out, Mistake = mistake());
    texts!(
        out,
        FactsError {
            Absent: absent(),
            Read: FactsError::Read {
                path: path(),
                source: io::Error::new(io::ErrorKind::PermissionDenied, "permission denied")
            },
            Invalid: FactsError::Invalid { path: path(), problem: "vocab_size is 0".into() },
            Gguf: FactsError::Gguf { path: path(), problem: "it ends within a tensor".into() },
            Mistake: FactsError::Mistake(mistake()),
        }
    );
    texts!(
        out,
        TokenizerError {
            MissingFile: TokenizerError::MissingFile { path: path() },
            Facts: TokenizerError::Facts(absent()),
            Invalid: TokenizerError::Invalid { path: path(), problem: "missing field `model`".into() },
            Gguf: TokenizerError::Gguf { path: path(), problem: "tokenizer model rwkv is not supported".into() },
            Encode: TokenizerError::Encode { problem: "no token for a byte".into() },
            Panicked: TokenizerError::Panicked(panicked()),
        }
    );
    texts!(out, Fault { Refused: Fault::Refused("no token for a byte".into()), Panicked: Fault::Panicked(panicked()) });
    harness::compare(env!("CARGO_MANIFEST_DIR"), out);
}
