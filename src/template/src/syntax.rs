//! Syntax of templates, and the library's errors about it in words.

use minijinja::Error;
use minijinja::syntax::SyntaxConfig;

/// Returns the syntax: a line break behind a tag and spaces in front of one count as nothing.
pub(crate) fn syntax() -> SyntaxConfig {
    // Delimiters are those of Jinja, which fit together.
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().unwrap_or_default()
}

/// Returns an error of the library on one line, without the name of the template.
pub(crate) fn in_words(error: &Error) -> String {
    let mut words = error.kind().to_string();
    if let Some(detail) = error.detail() {
        words = format!("{words}: {detail}");
    }
    match error.line() {
        Some(line) => format!("line {line}: {}", words.replace(['\n', '\r'], " ")),
        None => words.replace(['\n', '\r'], " "),
    }
}
