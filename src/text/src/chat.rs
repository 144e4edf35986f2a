//! The chat template of a model and the tokens that a template names, as the files have them.

use std::path::Path;

use gguf_rs_lib::prelude::Metadata;
use serde_json::{Map, Value};

use crate::added::{self, CONFIG};
use crate::error::FactsError;
use crate::folder::Files;
use crate::gguf;
use crate::metadata::Keys;
use crate::vocabulary::Vocabulary;

/// Files with a chat template, other than `tokenizer_config.json`.
pub(crate) const TEMPLATES: [&str; 2] = ["chat_template.jinja", "chat_template.json"];
/// Key of a chat template in files of JSON.
const TEMPLATE: &str = "chat_template";
/// Key of a chat template in a GGUF file; further templates are under `tokenizer.chat_template.NAME`.
pub(crate) const GGUF_TEMPLATE: &str = "tokenizer.chat_template";
/// Name of the template of all conversations.
const DEFAULT: &str = "default";
/// Name of the template of conversations with tools.
const TOOL_USE: &str = "tool_use";
/// Tokens with a role that a GGUF file names.
const GGUF_ROLES: [(&str, &str); 5] = [
    ("bos_token", "tokenizer.ggml.bos_token_id"),
    ("eos_token", "tokenizer.ggml.eos_token_id"),
    ("unk_token", "tokenizer.ggml.unknown_token_id"),
    ("sep_token", "tokenizer.ggml.seperator_token_id"),
    ("pad_token", "tokenizer.ggml.padding_token_id"),
];

/// The chat templates of a model, not yet compiled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatSource {
    /// Templates by name: `default`, and others such as `tool_use`.
    pub templates: Vec<(String, String)>,
    /// Special tokens by role, such as `bos_token`, for the variables of the same names.
    pub tokens: Vec<(String, String)>,
}

impl ChatSource {
    /// Returns a template of all conversations.
    pub fn of_text(template: impl Into<String>) -> Self {
        Self { templates: vec![(DEFAULT.to_owned(), template.into())], tokens: Vec::new() }
    }

    /// Reads the templates of the model in a Hugging Face folder or a GGUF file; `None` if there are none.
    ///
    /// # Errors
    ///
    /// There is no such folder or file, or a file is malformed.
    pub fn read(path: &Path) -> Result<Option<Self>, FactsError> {
        if path.is_file() {
            return Self::of_gguf(path, gguf::open(path)?.metadata());
        }
        if !path.exists() {
            return Err(FactsError::Absent { path: path.to_owned() });
        }
        Self::of_files(Files::Folder(path))
    }

    /// Reads the templates of a model with these files; `None` if there are none.
    ///
    /// # Errors
    ///
    /// A file is malformed.
    pub fn of_files(files: Files<'_>) -> Result<Option<Self>, FactsError> {
        let config = files.json::<Map<String, Value>>(CONFIG)?.unwrap_or_default();
        let [text, json] = TEMPLATES;
        let templates = if let Some(bytes) = files.read(text)? {
            let wrong = |_| files.malformed(text, "it is not UTF-8");
            vec![(DEFAULT.to_owned(), String::from_utf8(bytes.into_owned()).map_err(wrong)?)]
        } else {
            let map = files.json::<Map<String, Value>>(json)?.unwrap_or_default();
            let of_json = templates(files, json, &map)?;
            if of_json.is_empty() { templates(files, CONFIG, &config)? } else { of_json }
        };
        if templates.is_empty() {
            return Ok(None);
        }
        let tokens = added::roles(files, &config)?;
        Ok(Some(Self { templates, tokens }))
    }

    /// Returns the templates in the metadata of the GGUF file at `path`; `None` if there are none.
    ///
    /// # Errors
    ///
    /// A value is malformed.
    pub fn of_gguf(path: &Path, metadata: &Metadata) -> Result<Option<Self>, FactsError> {
        Self::of_keys(Keys { metadata })
            .map_err(|problem| FactsError::invalid(path, format!("its metadata is wrong: {problem}")))
    }

    fn of_keys(keys: Keys<'_>) -> Result<Option<Self>, String> {
        let Some(template) = keys.text(GGUF_TEMPLATE)? else { return Ok(None) };
        let mut source = Self::of_text(template);
        if let Some(template) = keys.text(&format!("{GGUF_TEMPLATE}.{TOOL_USE}"))? {
            source.templates.push((TOOL_USE.to_owned(), template.to_owned()));
        }
        let vocabulary = Vocabulary::read(keys)?;
        for (role, key) in GGUF_ROLES {
            if let Some(name) = vocabulary.special(keys, key)?.and_then(|id| vocabulary.name_of(id)) {
                source.tokens.push((role.to_owned(), name.to_owned()));
            }
        }
        Ok(Some(source))
    }
}

/// Returns the templates of a file: a text, or a list of objects with name and template.
fn templates(files: Files<'_>, name: &str, map: &Map<String, Value>) -> Result<Vec<(String, String)>, FactsError> {
    let wrong =
        || files.malformed(name, "chat_template must be a text, or a list of objects with the texts name and template");
    match map.get(TEMPLATE) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![(DEFAULT.to_owned(), text.clone())]),
        Some(Value::Array(list)) => {
            let text =
                |item: &Value, key: &str| item.get(key).and_then(Value::as_str).map(str::to_owned).ok_or_else(wrong);
            list.iter().map(|item| Ok((text(item, "name")?, text(item, "template")?))).collect()
        }
        Some(_) => Err(wrong()),
    }
}

#[cfg(test)]
#[path = "chat_tests.rs"]
mod tests;
