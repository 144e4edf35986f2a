//! The texts of a crate's errors, kept in one file next to its tests: `tests/errors.txt`.
//!
//! A test of a crate includes this file by its path: `tests/errors.rs`, or `src/errors_tests.rs` if some errors are not public. After a change
//! of a text, `TRUNKLINE_WRITE_DOCS=1 cargo test texts_of_errors` writes the file again; look at the difference as a user would. All other
//! tests assert the variant.

use std::fs;
use std::path::Path;

/// Appends the name of an error type and the text of a sample of each variant to a `String`. Does not compile if a variant is missing.
macro_rules! texts {
    ($out:ident, $error:ident { $($variant:ident: $sample:expr),+ $(,)? }) => {{
        // Without `_`.
        let _ = |error: &$error| match error {
            $($error::$variant { .. } => {})+
        };
        $out.push_str(concat!(stringify!($error), "\n"));
        $({
            let sample: $error = $sample;
            assert!(matches!(sample, $error::$variant { .. }), "{sample:?} is no {}", stringify!($variant));
            $out.push_str(&format!("  {}: {sample}\n", stringify!($variant)));
        })+
    }};
    // A struct, whose fields are its only variant.
    ($out:ident, $error:ident = $sample:expr) => {{
        let sample: $error = $sample;
        $out.push_str(&format!("{}\n  {sample}\n", stringify!($error)));
    }};
}
pub(crate) use texts;

/// Compares the texts with `tests/errors.txt` of the crate in a folder, or writes that file.
pub fn compare(folder: &str, texts: &str) {
    let path = Path::new(folder).join("tests/errors.txt");
    if std::env::var_os("TRUNKLINE_WRITE_DOCS").is_some() {
        return fs::write(&path, texts).unwrap();
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    let pairs = kept.lines().zip(texts.lines()).find(|(kept, text)| kept != text);
    assert!(
        kept == texts,
        "{} is not what the errors say (first difference: {pairs:?}); write it again with TRUNKLINE_WRITE_DOCS=1 cargo test texts_of_errors",
        path.display()
    );
}
