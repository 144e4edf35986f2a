//! Files that look like traces and are of no known format, each with a remedy.

use super::detect::{Near, TEXTS, has_any, object_fields};
use super::format::csv::Dialect;
use super::format::{Format, Lookalike, Reading};
use super::formats::joined;

/// First bytes of compressions that are not read.
const PACKINGS: [(&[u8], &str); 4] =
    [(b"\xfd7zXZ", "xz"), (b"PK\x03\x04", "zip"), (b"BZh", "bzip2"), (b"\x04\x22\x4d\x18", "lz4")];
/// Longest part of a first line that an error quotes, characters.
const QUOTED: usize = 200;
/// Maximum number of formats whose missing fields an error names.
const NEAR: usize = 3;
/// Description of JSON that does not have an object on each line.
const IS_JSON: &str = "is JSON without an object on each line; write one line for each request, as `jq -c '.[]'` does with an array (examples: \
                       docs/reference/traces.md, Other files)";
/// Description of requests with texts instead of lengths.
const ARE_TEXTS: &str = "holds texts, without numbers of tokens or arrivals; count tokens with the model's tokenizer and write timestamp \
                         (milliseconds), input_length and output_length for each request, or describe a workload (docs/reference/traces.md, Workloads)";

/// Returns what a file is, with a remedy, if it stands for another one that was not fetched.
pub(super) fn is_stand_in(head: &[u8]) -> Option<&'static str> {
    let begins = |text: &str| head.get(..text.len()).is_some_and(|head| head.eq_ignore_ascii_case(text.as_bytes()));
    if begins("version https://git-lfs.github.com/spec/") {
        return Some("is a pointer of Git LFS, which stands for the large file; fetch the file with `git lfs pull`");
    }
    let is_page = ["<!doctype html", "<html", "<?xml", "<!--", "<head"].into_iter().any(begins);
    is_page.then_some(
        "is a web page, not a trace; download the file itself: its raw form, logged in if the site asks for it",
    )
}

/// Describes a file in no format of `formats` by its first lines, all of them if the first is `{`, and by the formats that are near.
pub(super) fn describe(head: &[u8], near: &[Near], formats: &[Format]) -> String {
    let first = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    if let Some(packed) = not_text(first) {
        return packed;
    }
    let Ok(text) = std::str::from_utf8(first) else { return other(formats) };
    if text.contains('\r') {
        return "has lines that end in a carriage return alone; change them, as `tr '\\r' '\\n'` does".into();
    }
    let known = |is: &dyn Fn(&Lookalike) -> bool| formats.iter().flat_map(|it| it.0.lookalikes).find(|it| is(it));
    if let Some(known) = known(&|it| it.begins.iter().any(|begin| text.starts_with(begin))) {
        return format!("is {}", known.is);
    }
    if first.starts_with(b"[") {
        let head = String::from_utf8_lossy(head);
        return if TEXTS.iter().any(|name| head.contains(&format!("\"{name}\":"))) { ARE_TEXTS } else { IS_JSON }
            .into();
    }
    // Lines of an object, or a line with an object.
    let is_lines = first == b"{";
    let fields = object_fields(if is_lines { head } else { first });
    if let Some(fields) = &fields {
        if let Some(known) = known(&|it| has_any(fields, it.fields)) {
            return format!("is {}", known.is);
        }
        if has_any(fields, &TEXTS) && !near.iter().any(|it| it.has_prompt) {
            return ARE_TEXTS.into();
        }
    }
    let names = fields.map(|fields| quoted(&fields.into_keys().collect::<Vec<_>>().join(", ")));
    match (names, near) {
        _ if is_lines => IS_JSON.into(),
        (names, [_, ..]) => {
            let lacking = near
                .iter()
                .take(NEAR)
                .map(|it| format!("{} also has {}", it.format, joined(it.lacks.iter().copied(), "and")));
            format!(
                "has the fields {}, but no format in full: {}; add what is missing, or name the format with --format",
                names.unwrap_or_else(|| quoted(text)),
                lacking.collect::<Vec<_>>().join("; ")
            )
        }
        (Some(names), []) => format!(
            "has the fields {names}, which are of no known format; a request has timestamp in milliseconds, input_length and output_length \
             (examples: docs/reference/traces.md, Other files)"
        ),
        (None, []) if text.contains([',', ';', '\t']) && !text.contains(|c: char| c.is_control() && c != '\t') => {
            format!(
                "the first line names no columns of a known format: {}; name them arrived_at (seconds), num_prefill_tokens and \
                 num_decode_tokens, separated by commas",
                quoted(text)
            )
        }
        (None, []) => other(formats),
    }
}

/// Returns what a file is that does not begin with text in UTF-8; `None` for others.
fn not_text(first: &[u8]) -> Option<String> {
    if let Some((_, name)) = PACKINGS.iter().find(|(bytes, _)| first.starts_with(bytes)) {
        return Some(format!("is packed with {name}; unpack it, or pack it with gzip or zstd"));
    }
    if first.starts_with(b"\xff\xfe") || first.starts_with(b"\xfe\xff") {
        return Some("is text in UTF-16; save it in UTF-8".into());
    }
    let is_table = first.starts_with(b"PAR1");
    is_table.then(|| {
        "is a table in Parquet; write it as CSV or JSON lines (examples: docs/reference/traces.md, Other files)".into()
    })
}

fn quoted(text: &str) -> String {
    text.chars().take(QUOTED).flat_map(|c| if c.is_control() { c.escape_debug().collect() } else { vec![c] }).collect()
}

/// Describes a file of which nothing is known, by the first format in JSON lines and the first in CSV.
fn other(formats: &[Format]) -> String {
    let json = formats.iter().find_map(|it| match &it.0.reading {
        Reading::Lines { .. } => Some(format!("{} JSON lines (first line begins with '{{')", it.0.title)),
        _ => None,
    });
    let csv = formats.iter().find_map(|it| match &it.0.reading {
        Reading::Csv(Dialect { time, input, output, .. }) => {
            Some(format!("{} CSV (header {time},{input},{output})", it.0.title))
        }
        _ => None,
    });
    format!(
        "neither {} nor any other format that is known; convert it to lengths or ids of tokens, or force one of {} if the first line is unusual",
        json.into_iter().chain(csv).collect::<Vec<_>>().join(" nor "),
        formats.iter().filter(|it| it.is_read()).map(|it| it.as_str()).collect::<Vec<_>>().join(", ")
    )
}
