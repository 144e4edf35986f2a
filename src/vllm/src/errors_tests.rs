//! The texts of all errors of the files that gateways load.

#[path = "../../../tests/harness/error_texts.rs"]
mod harness;

use std::io;

use harness::texts;

use crate::files::FilesError;

#[test]
fn the_texts_of_errors_are_as_reviewed() {
    let mut text = String::new();
    let out = &mut text;
    let refused = || io::Error::new(io::ErrorKind::PermissionDenied, "permission denied");
    texts!(
        out,
        FilesError {
            Missing: FilesError::Missing,
            TooLarge: FilesError::TooLarge,
            Read: FilesError::Read { path: "/model/tokenizer.json".into(), source: refused() },
            Compress: FilesError::Compress(refused()),
        }
    );
    harness::compare(env!("CARGO_MANIFEST_DIR"), out);
}
