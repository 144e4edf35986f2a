//! The texts of errors of grammars.

#[path = "../../../tests/harness/error_texts.rs"]
mod error_texts;

use error_texts::texts;
use trunkline_grammar::{GrammarError, MatchError};

#[test]
fn the_texts_of_errors_are_as_reviewed() {
    let mut out = String::new();
    texts!(
        out,
        GrammarError {
            TooLong: GrammarError::TooLong { bytes: 300_000, max: 262_144 },
            Malformed: GrammarError::Malformed("unknown type \"numbr\"".into()),
            TooComplex: GrammarError::TooComplex("too many states".into()),
            Unsatisfiable: GrammarError::Unsatisfiable,
            Tokenizer: GrammarError::Tokenizer,
            NoEnd: GrammarError::NoEnd,
            NotBuilt: GrammarError::NotBuilt,
        }
    );
    texts!(out, MatchError { Token: MatchError::Token(17), Stuck: MatchError::Stuck("no token may follow".into()) });
    error_texts::compare(env!("CARGO_MANIFEST_DIR"), &out);
}
