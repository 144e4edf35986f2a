//! Files that look like traces and are of no known format, each with a remedy.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::IgnoredAny;

use super::Format;

/// Field that the results of benchmarks of vLLM and SGLang have.
const BENCHMARK: &str = "input_lens";
/// First bytes of compressions that are not read.
const PACKINGS: [(&[u8], &str); 4] =
    [(b"\xfd7zXZ", "xz"), (b"PK\x03\x04", "zip"), (b"BZh", "bzip2"), (b"\x04\x22\x4d\x18", "lz4")];
/// Longest part of a first line that an error quotes, characters.
const QUOTED: usize = 200;

/// File of no known format, by its first line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// Compression that is not read.
    Packed(&'static str),
    /// Text in UTF-16.
    Utf16,
    /// JSON that does not have an object on each line.
    Json,
    /// Result of a benchmark of vLLM or SGLang.
    Benchmark,
    /// JSON object with other fields.
    Fields(String),
    /// Line with separators: other columns, or no header.
    Columns(String),
    /// Anything else.
    Other,
}

impl Unknown {
    /// Describes a first line that is of no known format.
    pub(super) fn of(first: &[u8]) -> Self {
        if let Some((_, name)) = PACKINGS.iter().find(|(bytes, _)| first.starts_with(bytes)) {
            return Self::Packed(name);
        }
        if first.starts_with(b"\xff\xfe") || first.starts_with(b"\xfe\xff") {
            return Self::Utf16;
        }
        let Ok(text) = std::str::from_utf8(first) else { return Self::Other };
        if text.starts_with('[') || text == "{" {
            return Self::Json;
        }
        if let Some(fields) = fields(first) {
            return match fields.contains_key(BENCHMARK) {
                true => Self::Benchmark,
                false => Self::Fields(quoted(&fields.into_keys().collect::<Vec<_>>().join(", "))),
            };
        }
        let is_text = !text.contains(|c: char| c.is_control() && c != '\t');
        match is_text && text.contains([',', ';', '\t']) {
            true => Self::Columns(quoted(text)),
            false => Self::Other,
        }
    }
}

/// Returns `true` if `first` is an object with some fields, of which none is in `known`, or the first line of an object over several lines.
pub(super) fn is_other_object(first: &[u8], known: &[&str]) -> bool {
    let is_other = |fields: BTreeMap<String, IgnoredAny>| {
        !fields.is_empty() && !fields.keys().any(|name| known.contains(&&**name))
    };
    first == b"{" || fields(first).is_some_and(is_other)
}

fn fields(first: &[u8]) -> Option<BTreeMap<String, IgnoredAny>> {
    serde_json::from_slice(first).ok()
}

fn quoted(text: &str) -> String {
    text.chars().take(QUOTED).collect()
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packed(name) => write!(f, "is packed with {name}; unpack it, or pack it with gzip or zstd"),
            Self::Utf16 => write!(f, "is text in UTF-16; save it in UTF-8"),
            Self::Json => write!(
                f,
                "is JSON without an object on each line; write one line for each request, as `jq -c '.[]'` does with an array (examples: \
                 docs/traces.md, Other files)"
            ),
            Self::Benchmark => write!(
                f,
                "is the result of a benchmark, for `trunkline calibrate --benchmark`; docs/traces.md (Other files) makes a trace of it"
            ),
            Self::Fields(fields) => write!(
                f,
                "has the fields {fields}, which are of no known format; a request has timestamp in milliseconds, input_length and \
                 output_length (examples: docs/traces.md, Other files)"
            ),
            Self::Columns(line) => write!(
                f,
                "the first line names no columns of a known format: {line}; name them arrived_at (seconds), num_prefill_tokens and \
                 num_decode_tokens, separated by commas"
            ),
            Self::Other => write!(
                f,
                "neither Mooncake JSON lines (first line begins with '{{') nor Azure CSV (header TIMESTAMP,ContextTokens,GeneratedTokens) \
                 nor any other format that is known; convert it to lengths or ids of tokens, or force one of {} if the first line is \
                 unusual",
                Format::ALL.map(Format::as_str).join(", ")
            ),
        }
    }
}
