//! The added tokens of a Hugging Face folder, in `tokenizer.json` and in other files.
//!
//! The rules are the rules of transformers 5.24 and 4.57 (`PreTrainedTokenizerBase._from_pretrained`): entries of
//! `added_tokens_decoder` in `tokenizer_config.json` are tokens, with flags that win over the flags in `tokenizer.json`. Without the key
//! `added_tokens.json` and `special_tokens_map.json` count. Tokens with a role, such as `eos_token`, are special tokens, too. transformers numbers
//! new tokens behind all others; here the id in the file wins.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use trunkline_quote::quoted;

use crate::codec::Added;
use crate::error::FactsError;
use crate::folder::Files;

pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const CONFIG: &str = "tokenizer_config.json";
pub(crate) const ROLES_FILE: &str = "special_tokens_map.json";
pub(crate) const ADDED_FILE: &str = "added_tokens.json";

/// Keys of tokens with a role.
const ROLES: [&str; 7] = ["bos_token", EOS, "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];
const EOS: &str = "eos_token";
/// Keys of lists of special tokens without a role, in both generations of transformers.
const LISTS: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];
/// Maximum number of names in a note.
const NAMES_MAX: usize = 8;

/// Parts of `tokenizer.json`.
#[derive(Deserialize)]
struct Listing {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    model: ListedModel,
}

#[derive(Default, Deserialize)]
struct ListedModel {
    #[serde(default)]
    vocab: Vocab,
}

/// Id by name, in a file a map, or a list of pairs whose first is the name.
#[derive(Default)]
struct Vocab(HashMap<String, u32>);

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        struct Both;
        impl<'de> Visitor<'de> for Both {
            type Value = Vocab;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a vocabulary")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
                let mut ids = HashMap::new();
                while let Some((name, id)) = map.next_entry()? {
                    ids.insert(name, id);
                }
                Ok(Vocab(ids))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocab, A::Error> {
                let mut ids = HashMap::new();
                while let Some((name, _)) = list.next_element::<(String, f64)>()? {
                    ids.insert(name, ids.len() as u32);
                }
                Ok(Vocab(ids))
            }
        }
        source.deserialize_any(Both)
    }
}

/// A token of `tokenizer_config.json`: the content alone, or an object.
#[derive(Clone, Deserialize)]
#[serde(untagged)]
enum Token {
    Content(String),
    Object(Added),
}

impl Token {
    fn content(&self) -> &str {
        match self {
            Self::Content(content) => content,
            Self::Object(token) => &token.content,
        }
    }
}

/// Special tokens of one or two files, each with its file.
#[derive(Default)]
struct Specials {
    /// By key of the role.
    roles: BTreeMap<&'static str, (Token, &'static str)>,
    /// Those without a role.
    others: Vec<(Token, &'static str)>,
}

impl Specials {
    /// Reads the keys of a file; roles win over roles read before.
    fn read(&mut self, files: Files<'_>, source: &'static str, map: &Map<String, Value>) -> Result<(), FactsError> {
        let token = |key: &str, value: &Value| {
            let wrong = format!("{key} is not a token: it must be a text, or an object with content");
            Token::deserialize(value).map(|token| (token, source)).map_err(|_| files.malformed(source, &wrong))
        };
        for key in ROLES {
            if let Some(value) = map.get(key).filter(|value| !value.is_null()) {
                self.roles.insert(key, token(key, value)?);
            }
        }
        for key in LISTS {
            let values: Vec<&Value> = match map.get(key) {
                Some(Value::Array(values)) => values.iter().collect(),
                Some(Value::Object(values)) => values.values().collect(),
                _ => Vec::new(),
            };
            for value in values {
                self.others.push(token(key, value)?);
            }
        }
        Ok(())
    }

    fn has(&self, content: &str) -> bool {
        self.roles.values().chain(&self.others).any(|(token, _)| token.content() == content)
    }
}

/// Returns the tokens with a role by key, as transformers hands them to a chat template: those of `tokenizer_config.json`, also others whose key ends in
/// `_token`. `special_tokens_map.json` counts in a folder without `added_tokens_decoder`.
///
/// # Errors
///
/// A file cannot be read, or is malformed.
pub(crate) fn roles(files: Files<'_>, config: &Map<String, Value>) -> Result<Vec<(String, String)>, FactsError> {
    let mut specials = Specials::default();
    specials.read(files, CONFIG, config)?;
    if config.get("added_tokens_decoder").is_none_or(Value::is_null) {
        let map = files.json::<Map<String, Value>>(ROLES_FILE)?.unwrap_or_default();
        specials.read(files, ROLES_FILE, &map)?;
    }
    let mut roles: Vec<(String, String)> =
        specials.roles.iter().map(|(key, (token, _))| ((*key).to_owned(), token.content().to_owned())).collect();
    for (key, value) in config.iter().filter(|(key, _)| key.ends_with("_token") && !ROLES.contains(&key.as_str())) {
        if let Ok(token) = Token::deserialize(value) {
            roles.push((key.clone(), token.content().to_owned()));
        }
    }
    if let Some(Value::Object(named)) = config.get("extra_special_tokens") {
        let texts = named.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        roles.extend(texts);
    }
    Ok(roles)
}

/// The added tokens of a folder, with the names of all tokens.
#[derive(Default)]
pub(crate) struct AddedTokens {
    /// Tokens, each with its file.
    pub(crate) tokens: Vec<(Added, &'static str)>,
    /// Content of the token that ends a text, with its file.
    pub(crate) end: Option<(String, &'static str)>,
    /// `true` if `tokenizer_config.json` has a chat template.
    pub(crate) has_template: bool,
    /// Oddities of the files, for the log.
    pub(crate) notes: Vec<String>,
    ids: HashMap<String, u32>,
}

impl AddedTokens {
    /// Reads the files of a folder that has a tokenizer.
    ///
    /// # Errors
    ///
    /// A file cannot be read, or is malformed.
    pub(crate) fn read(files: Files<'_>) -> Result<Self, FactsError> {
        let Some(listing) = files.json::<Listing>(TOKENIZER)? else { return Ok(Self::default()) };
        let tokens = listing.added_tokens.into_iter().map(|token| (token, TOKENIZER)).collect();
        let mut all = Self { tokens, ids: listing.model.vocab.0, ..Self::default() };
        let mut config = files.json::<Map<String, Value>>(CONFIG)?.unwrap_or_default();
        all.has_template = config.get("chat_template").is_some_and(|template| !template.is_null());
        let decoder = config.remove("added_tokens_decoder").filter(|decoder| !decoder.is_null());
        let mut specials = Specials::default();
        specials.read(files, CONFIG, &config)?;
        match decoder {
            Some(decoder) => all.add_listed(files, decoder)?,
            None => {
                let map = files.json::<Map<String, Value>>(ROLES_FILE)?.unwrap_or_default();
                specials.read(files, ROLES_FILE, &map)?;
                all.add_legacy(files, &specials)?;
            }
        }
        all.end = specials.roles.get(EOS).map(|(token, source)| (token.content().to_owned(), *source));
        all.add_specials(specials.roles.into_values().chain(specials.others));
        Ok(all)
    }

    /// Adds the tokens of `added_tokens.json`: content to id. Tokens of `tokenizer.json` keep their flags.
    fn add_legacy(&mut self, files: Files<'_>, specials: &Specials) -> Result<(), FactsError> {
        let named = files.json::<BTreeMap<String, u32>>(ADDED_FILE)?.unwrap_or_default();
        let mut named: Vec<Added> =
            named.iter().map(|(name, id)| Added::legacy(*id, name, specials.has(name))).collect();
        named.sort_by_key(|token| token.id);
        named.retain(|token| self.tokens.iter().all(|(known, _)| known.content != token.content));
        named.into_iter().for_each(|token| self.add(token, ADDED_FILE));
        Ok(())
    }

    /// Adds the tokens of `added_tokens_decoder`: id to token.
    fn add_listed(&mut self, files: Files<'_>, decoder: Value) -> Result<(), FactsError> {
        let wrong = |problem: String| files.malformed(CONFIG, &format!("added_tokens_decoder {problem}"));
        let listed =
            BTreeMap::<String, Added>::deserialize(decoder).map_err(|error| wrong(format!("is malformed: {error}")))?;
        let mut tokens = Vec::new();
        for (id, token) in listed {
            let id = id.parse().map_err(|_| wrong(format!("has the id {}; it must be a whole number", quoted(&id))))?;
            tokens.push(Added { id, ..token });
        }
        tokens.sort_by_key(|token| token.id);
        tokens.into_iter().for_each(|token| self.add(token, CONFIG));
        Ok(())
    }

    /// Adds a token, or gives a token that is there the flags of `token`.
    fn add(&mut self, token: Added, source: &'static str) {
        if token.content.is_empty() {
            return;
        }
        let here = self.id(&token.content);
        if let Some(here) = here.filter(|here| *here != token.id) {
            self.notes.push(format!(
                "{source} has {} as token {}, {TOKENIZER} as {here}",
                quoted(&token.content),
                token.id
            ));
        }
        if let Some((known, _)) = self.tokens.iter_mut().find(|(known, _)| known.content == token.content) {
            *known = Added { id: known.id, ..token };
            return;
        }
        let id = here.unwrap_or(token.id);
        if here.is_none()
            && let Some(taken) = self.name(id)
        {
            self.notes.push(format!(
                "{source} has {} as token {id}, which is {}: it is not a token",
                quoted(&token.content),
                quoted(taken)
            ));
            return;
        }
        self.tokens.push((Added { id, ..token }, source));
    }

    /// Makes special tokens of the tokens with a role, and of those in lists.
    fn add_specials(&mut self, specials: impl Iterator<Item = (Token, &'static str)>) {
        let (mut new, mut next) = (Vec::new(), None);
        for (token, source) in specials {
            let content = token.content().to_owned();
            if content.is_empty() || self.tokens.iter().any(|(known, _)| known.content == content) {
                continue;
            }
            let id = self.id(&content).unwrap_or_else(|| {
                let next = next.get_or_insert_with(|| self.last() + 1);
                *next += 1;
                new.push(content.clone());
                *next - 1
            });
            let token = match token {
                Token::Content(content) => Added::new(id, &content, true),
                Token::Object(token) => Added { id, special: true, ..token },
            };
            self.tokens.push((token, source));
        }
        if !new.is_empty() {
            let n = new.len();
            new.truncate(NAMES_MAX);
            let names = new.iter().map(|name| quoted(name).to_string()).collect::<Vec<_>>().join(", ");
            self.notes.push(format!(
                "{n} special tokens have no id in any file, and get the next ones, as in transformers: {names}"
            ));
        }
    }

    /// Returns the largest id.
    fn last(&self) -> u32 {
        self.tokens.iter().map(|(token, _)| token.id).chain(self.ids.values().copied()).max().unwrap_or(0)
    }

    /// Returns the id of a token.
    pub(crate) fn id(&self, content: &str) -> Option<u32> {
        let added = self.tokens.iter().find(|(token, _)| token.content == content);
        added.map(|(token, _)| token.id).or_else(|| self.ids.get(content).copied())
    }

    /// Returns the name of a token.
    pub(crate) fn name(&self, id: u32) -> Option<&str> {
        let added = self.tokens.iter().find(|(token, _)| token.id == id).map(|(token, _)| token.content.as_str());
        added.or_else(|| self.ids.iter().find(|(_, known)| **known == id).map(|(name, _)| name.as_str()))
    }
}

#[cfg(test)]
#[path = "added_tests.rs"]
mod tests;
