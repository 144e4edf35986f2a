//! Facts about a model in words: ends of answers, added tokens, and the longest context.
//!
//! Each fact is in one of several files, and files contradict each other; [`ModelFacts`] has one answer with its sources. Tokenizer and embedded
//! worker take the facts from here, and the server logs the same.

use std::fmt;
use std::path::Path;

use gguf_rs_lib::prelude::Metadata;
use serde::Deserialize;
use serde_json::Value;
use trunkline_quote::quoted;

use crate::added::{AddedTokens, CONFIG};
use crate::chat::{GGUF_TEMPLATE, TEMPLATES};
use crate::context::{Context, context_of, context_of_gguf};
use crate::error::FactsError;
use crate::folder::Files;
use crate::metadata::Keys;
use crate::split::check;
use crate::vocabulary::Vocabulary;
use crate::{added, gguf};

/// File with the shape of a model.
const MODEL: &str = "config.json";
/// Files with `eos_token_id`.
const END_FILES: [&str; 2] = [MODEL, "generation_config.json"];
/// Maximum number of tokens in the line for the log.
const TOKENS_MAX: usize = 16;

/// A token that ends an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndToken {
    /// Id of the token.
    pub id: u32,
    /// Name of the token, if a file has the name.
    pub name: Option<String>,
    /// Files or keys that say so.
    pub sources: Vec<&'static str>,
}

/// Facts about a model, each with its source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelFacts {
    /// Tokens that end an answer, ascending.
    pub ends: Vec<EndToken>,
    /// Number of added tokens by file.
    pub added: Vec<(&'static str, usize)>,
    /// Longest context, if a file says.
    pub context: Option<Context>,
    /// File or key with a chat template.
    pub template: Option<&'static str>,
    /// Oddities of the files.
    pub notes: Vec<String>,
}

/// The end tokens in `config.json` and in `generation_config.json`.
#[derive(Deserialize)]
struct RawEnds {
    eos_token_id: Option<Ids>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "eos_token_id must be a token id or a list of token ids")]
enum Ids {
    One(i64),
    Many(Vec<i64>),
}

impl ModelFacts {
    /// Reads the facts about the model in a Hugging Face folder or a GGUF file. Files may be missing.
    ///
    /// # Errors
    ///
    /// There is no such folder or file, or a file is malformed.
    pub fn read(path: &Path) -> Result<Self, FactsError> {
        if path.is_file() {
            let reader = gguf::open(path)?;
            return Self::of_keys(Keys { metadata: reader.metadata() }).map_err(|problem| wrong(path, &problem));
        }
        if !path.exists() {
            return Err(FactsError::Absent { path: path.to_owned() });
        }
        Self::of_files(Files::Folder(path))
    }

    /// Reads the facts about a model with these files.
    ///
    /// # Errors
    ///
    /// A file is malformed.
    pub fn of_files(files: Files<'_>) -> Result<Self, FactsError> {
        let tokens = AddedTokens::read(files)?;
        let mut facts = Self { notes: tokens.notes.clone(), ..Self::default() };
        for name in END_FILES {
            let ids = match files.json::<RawEnds>(name)?.and_then(|raw| raw.eos_token_id) {
                None => Vec::new(),
                Some(Ids::One(id)) => vec![id],
                Some(Ids::Many(ids)) => ids,
            };
            for id in ids {
                let wrong = |_| files.malformed(name, &format!("eos_token_id is {id}; it must be a token id"));
                facts.end(u32::try_from(id).map_err(wrong)?, name);
            }
        }
        if let Some((content, source)) = &tokens.end {
            match tokens.id(content) {
                Some(id) => facts.end(id, source),
                None => facts.notes.push(format!(
                    "{source} has eos_token {}, which is not a token of the vocabulary",
                    quoted(content)
                )),
            }
        }
        for end in &mut facts.ends {
            end.name = tokens.name(end.id).map(str::to_owned);
        }
        for source in [added::TOKENIZER, CONFIG, added::ROLES_FILE, added::ADDED_FILE] {
            let n = tokens.tokens.iter().filter(|(_, of)| *of == source).count();
            facts.added.extend((n > 0).then_some((source, n)));
        }
        if let Some(config) = files.json::<Value>(MODEL)? {
            let (context, note) = context_of(&config, None);
            facts.context = context;
            facts.notes.extend(note);
        }
        let template = TEMPLATES.into_iter().find(|name| files.has(name));
        facts.template = template.or(tokens.has_template.then_some(CONFIG));
        Ok(facts)
    }

    /// Returns the facts in the metadata of the GGUF file at `path`, the first part of a split one.
    ///
    /// # Errors
    ///
    /// A value is malformed, or the file is a part of a split model under another name.
    pub fn of_gguf(path: &Path, metadata: &Metadata) -> Result<Self, FactsError> {
        let keys = Keys { metadata };
        check(path, keys)?;
        Self::of_keys(keys).map_err(|problem| wrong(path, &problem))
    }

    fn of_keys(keys: Keys<'_>) -> Result<Self, String> {
        let vocabulary = Vocabulary::read(keys)?;
        let mut facts = Self::default();
        for (id, sources) in vocabulary.ends() {
            let wrong = |_| format!("{} is {id}", sources[0]);
            let (id, name) = (u32::try_from(*id).map_err(wrong)?, vocabulary.name_of(*id).map(str::to_owned));
            facts.ends.push(EndToken { id, name, sources: sources.clone() });
        }
        let n = vocabulary.matched().count();
        facts.added.extend((n > 0).then_some(("tokenizer.ggml.token_type", n)));
        let architecture = keys.text("general.architecture")?.unwrap_or_default();
        let key = |name: &str| format!("{architecture}.{name}");
        let count = |name: &str| keys.integer(&key(name)).map(|n| n.and_then(|n| u32::try_from(n).ok()));
        if let Some(context) = count("context_length")? {
            let kind = keys.text(&key("rope.scaling.type"))?.unwrap_or_default();
            let factor = keys.real(&key("rope.scaling.factor"))?.unwrap_or(1.0);
            let original = count("rope.scaling.original_context_length")?;
            facts.context = Some(context_of_gguf(context, kind, factor, original));
        }
        facts.template = keys.text(GGUF_TEMPLATE)?.map(|_| GGUF_TEMPLATE);
        Ok(facts)
    }

    fn end(&mut self, id: u32, source: &'static str) {
        match self.ends.binary_search_by_key(&id, |end| end.id) {
            Ok(at) if self.ends[at].sources.contains(&source) => {}
            Ok(at) => self.ends[at].sources.push(source),
            Err(at) => self.ends.insert(at, EndToken { id, name: None, sources: vec![source] }),
        }
    }

    /// Returns the ids of the tokens that end an answer, ascending.
    pub fn end_ids(&self) -> Vec<u32> {
        self.ends.iter().map(|end| end.id).collect()
    }

    /// Leaves out ends beyond the vocabulary of the model, of `vocab_size` tokens, that no file states as an id, with a note.
    ///
    /// # Errors
    ///
    /// Returns an end beyond the vocabulary that a file states as an id, with the file or key.
    pub fn within(mut self, vocab_size: u32) -> Result<Self, (u32, &'static str)> {
        let (fit, beyond): (Vec<_>, Vec<_>) = self.ends.into_iter().partition(|end| end.id < vocab_size);
        self.ends = fit;
        for end in beyond {
            let states = |source: &&&'static str| END_FILES.contains(*source) || source.ends_with("_token_id");
            if let Some(source) = end.sources.iter().find(states) {
                return Err((end.id, source));
            }
            self.notes.push(format!("{end} is beyond the {vocab_size} tokens of the model, and ends nothing"));
        }
        Ok(self)
    }
}

fn wrong(path: &Path, problem: &str) -> FactsError {
    FactsError::invalid(path, format!("its metadata is wrong: {problem}"))
}

impl fmt::Display for EndToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name} ")?;
        }
        write!(f, "{} ({})", self.id, self.sources.join(", "))
    }
}

impl fmt::Display for ModelFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends: Vec<String> = self.ends.iter().take(TOKENS_MAX).map(EndToken::to_string).collect();
        let more = self.ends.len().saturating_sub(TOKENS_MAX);
        match ends.as_slice() {
            [] => f.write_str("no token ends an answer")?,
            ends => write!(f, "an answer ends at {}", ends.join(", "))?,
        }
        if more > 0 {
            write!(f, " and {more} more")?;
        }
        for (source, n) in &self.added {
            write!(f, "; {n} added token{} ({source})", if *n == 1 { "" } else { "s" })?;
        }
        if let Some(Context { tokens, source }) = &self.context {
            write!(f, "; context {tokens} ({source})")?;
        }
        if let Some(source) = self.template {
            write!(f, "; chat template ({source}), which clients apply")?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "facts_tests.rs"]
mod tests;
