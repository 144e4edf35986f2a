//! JSON as Python writes it, with numbers that JSON lacks.

/// Returns `text` with `Infinity` and `NaN` outside of strings as `"inf"` and `null`: Python's `json` writes such
/// words, in the benchmarks of vLLM and SGLang for an unlimited request rate and for means of nothing.
pub fn strict(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut in_string) = (text, false);
    while let Some(at) = rest.find(['"', '\\', 'I', 'N', '-']) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let words = [("Infinity", "\"inf\""), ("-Infinity", "null"), ("NaN", "null")];
        let word = words.iter().find(|(word, _)| !in_string && from.starts_with(word));
        // An escaped character is taken with its backslash.
        let taken = match word {
            Some((word, _)) => word.len(),
            None if from.starts_with('\\') => 1 + from[1..].chars().next().map_or(0, char::len_utf8),
            None => 1,
        };
        in_string ^= from.starts_with('"');
        out.push_str(word.map_or(&from[..taken], |(_, strict)| strict));
        rest = &from[taken..];
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::strict;

    #[test]
    fn numbers_that_json_lacks_become_words_and_strings_stay() {
        assert_eq!(
            strict(r#"{"a": Infinity, "b": [-Infinity, NaN, -1.5]}"#),
            r#"{"a": "inf", "b": [null, null, -1.5]}"#
        );
        let text = r#"{"NaN": "Infinity \" NaN \\", "é": "-\é"}"#;
        assert_eq!(strict(text), text);
    }
}
