//! Files that look like traces and are of no known format, each with a remedy.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::IgnoredAny;

use super::Format;
use crate::python_json::strict;

/// Fields of which the summaries of benchmarks have one: vLLM and SGLang, AIPerf and GenAI-Perf.
const SUMMARY: [&str; 3] = ["request_throughput", "total_input_tokens", "input_config"];
/// Fields of which requests with texts have one: batch APIs, ShareGPT, datasets of AIPerf, exports of GenAI-Perf, traces of agents.
const TEXTS: [&str; 9] =
    ["custom_id", "conversations", "messages", "text_input", "payload", "prompt", "experiments", "input", "text"];
/// Fields with the length of a prompt.
const LENGTHS: [&str; 3] = ["input_length", "input_tokens", "input_tok_ids"];
/// First words of a report of GuideLLM in YAML, whose keys are sorted, and of one in CSV.
const GUIDELLM: [&str; 3] = ["args:", "benchmarks:", "Run Info,"];
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
    /// Figures of a benchmark without its requests.
    Summary,
    /// Requests with texts instead of lengths.
    Texts,
    /// Report of GuideLLM in YAML or CSV.
    GuideLlm,
    /// Table in Parquet.
    Parquet,
    /// JSON object with other fields.
    Fields(String),
    /// Line with separators: other columns, or no header.
    Columns(String),
    /// Anything else.
    Other,
}

impl Unknown {
    /// Describes an array by the names of fields in its first lines.
    fn of_array(head: &[u8]) -> Self {
        let head = String::from_utf8_lossy(head);
        match TEXTS.iter().any(|name| head.contains(&format!("\"{name}\":"))) {
            true => Self::Texts,
            false => Self::Json,
        }
    }

    /// Describes a file of no known format by its first lines: all of them if the first is `{`.
    pub(super) fn of(head: &[u8]) -> Self {
        let first = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
        if let Some((_, name)) = PACKINGS.iter().find(|(bytes, _)| first.starts_with(bytes)) {
            return Self::Packed(name);
        }
        if first.starts_with(b"\xff\xfe") || first.starts_with(b"\xfe\xff") {
            return Self::Utf16;
        }
        if first.starts_with(b"PAR1") {
            return Self::Parquet;
        }
        let Ok(text) = std::str::from_utf8(first) else { return Self::Other };
        if GUIDELLM.iter().any(|begin| text.starts_with(begin)) {
            return Self::GuideLlm;
        }
        if first.starts_with(b"[") {
            return Self::of_array(head);
        }
        // Lines of an object, or a line with an object.
        let is_lines = first == b"{";
        match fields(if is_lines { head } else { first }) {
            Some(fields) if has_any(&fields, &SUMMARY) => return Self::Summary,
            Some(fields) if has_any(&fields, &TEXTS) => return Self::Texts,
            _ if is_lines => return Self::Json,
            Some(fields) => return Self::Fields(quoted(&fields.into_keys().collect::<Vec<_>>().join(", "))),
            None => {}
        }
        let is_text = !text.contains(|c: char| c.is_control() && c != '\t');
        match is_text && text.contains([',', ';', '\t']) {
            true => Self::Columns(quoted(text)),
            false => Self::Other,
        }
    }
}

/// Returns `true` if `first` is an object with some fields, of which none is in `known`, with a text instead of a length, or an object over
/// several lines.
pub(super) fn is_other_object(first: &[u8], known: &[&str]) -> bool {
    let is_text = |fields: &Fields| has_any(fields, &TEXTS) && !has_any(fields, &LENGTHS);
    let is_other = |fields: Fields| !fields.is_empty() && (!has_any(&fields, known) || is_text(&fields));
    first == b"{" || first.starts_with(b"{\n") || fields(first).is_some_and(is_other)
}

type Fields = BTreeMap<String, IgnoredAny>;

fn has_any(fields: &Fields, names: &[&str]) -> bool {
    names.iter().any(|name| fields.contains_key(*name))
}

/// Returns the fields of an object, also as Python writes it.
fn fields(object: &[u8]) -> Option<Fields> {
    let of_python = || serde_json::from_str(&strict(std::str::from_utf8(object).ok()?)).ok();
    serde_json::from_slice(object).ok().or_else(of_python)
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
                 docs/reference/traces.md, Other files)"
            ),
            Self::Summary => write!(
                f,
                "is the summary of a benchmark, without its requests; run it with --save-detailed (vLLM) or --output-details (SGLang), and of \
                 AIPerf take profile_export.jsonl"
            ),
            Self::Texts => write!(
                f,
                "holds texts, without numbers of tokens or arrivals; count tokens with the model's tokenizer and write timestamp (milliseconds), \
                 input_length and output_length for each request, or describe a workload (docs/reference/traces.md, Workloads)"
            ),
            Self::GuideLlm => {
                write!(f, "is a report of GuideLLM in YAML or CSV; write it as JSON, which has the requests")
            }
            Self::Parquet => {
                write!(
                    f,
                    "is a table in Parquet; write it as CSV or JSON lines (examples: docs/reference/traces.md, Other files)"
                )
            }
            Self::Fields(fields) => write!(
                f,
                "has the fields {fields}, which are of no known format; a request has timestamp in milliseconds, input_length and \
                 output_length (examples: docs/reference/traces.md, Other files)"
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
