//! Detection of the format of a file: the one with the most matching fields, or columns.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::de::IgnoredAny;

use super::format::csv;
use super::format::{Field, Format, Reading};
use crate::python_json::strict;

/// Fields of which requests with texts have one: batch APIs, ShareGPT, datasets of benchmarks, traces of agents.
pub(super) const TEXTS: [&str; 11] = [
    "custom_id",
    "conversations",
    "messages",
    "text_input",
    "payload",
    "prompt",
    "experiments",
    "input",
    "text",
    "texts",
    "turns",
];

/// Bytes of a damaged object in which names of fields are looked for.
const DAMAGED_BYTES: usize = 1 << 16;

/// Fields of a JSON object.
pub(super) type Fields = BTreeMap<String, IgnoredAny>;

/// Returns the fields of an object, also as Python writes it; of the first of several.
pub(super) fn object_fields(object: &[u8]) -> Option<Fields> {
    let first = |text: &[u8]| serde_json::Deserializer::from_slice(text).into_iter().next()?.ok();
    first(object).or_else(|| first(strict(std::str::from_utf8(object).ok()?).as_bytes()))
}

pub(super) fn has_any(fields: &Fields, names: &[&str]) -> bool {
    names.iter().any(|name| fields.contains_key(*name))
}

/// Format of which a file has a required field.
pub(super) struct Near {
    pub format: Format,
    /// Number of its fields that the file has.
    pub n_matching: usize,
    /// Required fields that the file lacks.
    pub lacks: Vec<&'static str>,
    /// `true` if the file has the length or the tokens of prompts.
    pub has_prompt: bool,
}

impl Near {
    fn of(format: Format, has: &dyn Fn(&str) -> bool) -> Option<Self> {
        let mut it = Self { format, n_matching: 0, lacks: Vec::new(), has_prompt: false };
        let mut n_required = 0;
        for field in format.fields() {
            let names = field.names();
            let is_there = names.iter().any(|name| has(name));
            it.n_matching += usize::from(is_there);
            it.has_prompt |= is_there && matches!(field, Field::Prompt(_));
            match field {
                Field::Optional(_) => {}
                _ if is_there => n_required += 1,
                _ => it.lacks.push(names[0]),
            }
        }
        (n_required > 0).then_some(it)
    }

    /// Orders formats from the nearest to the farthest.
    fn key(&self) -> (Reverse<usize>, usize) {
        (Reverse(self.n_matching), self.lacks.len())
    }
}

/// Returns the format of a file by its first line, or by all lines of a document: the one with the most matching fields. If a file lacks fields of it,
/// fewer than it has, the parser names them; no other format may be as near then.
///
/// # Errors
///
/// The formats that are near, the nearest first, if none is near enough.
pub(super) fn detect(head: &[u8], formats: &[Format]) -> Result<Format, Vec<Near>> {
    let is_object = head.starts_with(b"{");
    let is_document = head == b"{" || head.starts_with(b"{\n");
    let is_candidate = |format: &Format| match &format.0.reading {
        Reading::Csv(_) => !is_object,
        Reading::Document { .. } => is_object,
        Reading::Lines { .. } | Reading::Refused { .. } => is_object && !is_document,
    };
    let candidates: Vec<Format> = formats.iter().copied().filter(is_candidate).collect();
    let near = |has: &dyn Fn(&str) -> bool| {
        let mut near: Vec<Near> = candidates.iter().filter_map(|format| Near::of(*format, has)).collect();
        near.sort_by_key(Near::key);
        near
    };
    if !is_object {
        let header = std::str::from_utf8(head).unwrap_or_default();
        let columns: Vec<&str> = csv::fields(header, csv::separator(head)).collect();
        return nearest(near(&|name| columns.contains(&name)));
    }
    let fields = object_fields(head).filter(|fields| !fields.is_empty());
    match &fields {
        Some(fields) => {
            let near = near(&|name| fields.contains_key(name));
            let has_texts = has_any(fields, &TEXTS) && !near.iter().any(|it| it.has_prompt);
            if has_texts && near.first().is_some_and(|it| !it.lacks.is_empty()) { Err(near) } else { nearest(near) }
        }
        None if is_document => Err(Vec::new()),
        // What is wrong with a damaged or empty object is for a parser to say.
        None => {
            let text = String::from_utf8_lossy(&head[..head.len().min(DAMAGED_BYTES)]);
            let near = near(&|name| text.contains(&format!("\"{name}\"")));
            near.first().map(|it| it.format).or(candidates.first().copied()).ok_or(near)
        }
    }
}

fn nearest(near: Vec<Near>) -> Result<Format, Vec<Near>> {
    match &near[..] {
        [it, ..] if it.lacks.is_empty() => Ok(it.format),
        [it, others @ ..]
            if it.n_matching > it.lacks.len() && others.first().is_none_or(|other| it.key() < other.key()) =>
        {
            Ok(it.format)
        }
        _ => Err(near),
    }
}
