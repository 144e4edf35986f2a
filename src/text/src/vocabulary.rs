//! The tokens of a GGUF file: names, kinds, texts, and ends of answers.
//!
//! Files say little about tokens, so llama.cpp also goes by names: a token with a name from [`ENDS`] or [`ROLES`] is a control token whatever
//! the kind in the file, and names of `ENDS` end an answer. Names and exceptions are taken from `src/llama-vocab.cpp` of llama.cpp b11549.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::codec::{Pieces, byte_level_alphabet, fallback_byte};
use crate::metadata::Keys;

/// Way in which a kind of tokens gets into the tokens of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum InText {
    /// The name is found in a text before anything else.
    Matched,
    /// By the merges, or byte by byte.
    Merged,
    /// Not at all.
    Never,
}

/// Text of a kind of tokens in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Printed {
    Always,
    /// Only if special tokens are shown.
    Special,
    Never,
}

/// A kind of tokens, `tokenizer.ggml.token_type`.
#[derive(Debug, PartialEq, Eq)]
struct Kind {
    /// Number of the kind in files.
    number: i64,
    in_text: InText,
    printed: Printed,
}

const NORMAL: i64 = 1;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const BYTE: i64 = 6;

/// All kinds, by number: undefined, normal, unknown, control, user-defined, unused, byte.
static KINDS: [Kind; 7] = [
    Kind { number: 0, in_text: InText::Never, printed: Printed::Never },
    Kind { number: NORMAL, in_text: InText::Merged, printed: Printed::Always },
    Kind { number: 2, in_text: InText::Matched, printed: Printed::Special },
    Kind { number: CONTROL, in_text: InText::Matched, printed: Printed::Special },
    Kind { number: USER_DEFINED, in_text: InText::Matched, printed: Printed::Always },
    Kind { number: 5, in_text: InText::Never, printed: Printed::Never },
    Kind { number: BYTE, in_text: InText::Merged, printed: Printed::Always },
];

/// Names of tokens that end an answer.
const ENDS: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// A role of one token, found by a key of the file, or else by name.
struct Role {
    key: &'static str,
    names: &'static [&'static str],
    /// `true` if the token ends an answer.
    ends: bool,
}

/// Roles with keys: the end of text, of a turn and of a message, and the marks of text to fill in.
const ROLES: [Role; 9] = [
    Role { key: EOS, names: &[], ends: true },
    Role { key: "tokenizer.ggml.eot_token_id", names: &[], ends: true },
    Role { key: "tokenizer.ggml.eom_token_id", names: &[], ends: true },
    Role {
        key: "tokenizer.ggml.fim_pad_token_id",
        names: &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
        ends: true,
    },
    Role {
        key: "tokenizer.ggml.fim_rep_token_id",
        names: &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
        ends: true,
    },
    Role { key: "tokenizer.ggml.fim_sep_token_id", names: &["<|file_sep|>"], ends: true },
    Role {
        key: "tokenizer.ggml.fim_pre_token_id",
        names: &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
        ends: false,
    },
    Role {
        key: "tokenizer.ggml.fim_suf_token_id",
        names: &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
        ends: false,
    },
    Role {
        key: "tokenizer.ggml.fim_mid_token_id",
        names: &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
        ends: false,
    },
];

const EOS: &str = "tokenizer.ggml.eos_token_id";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const UNKNOWN: &str = "tokenizer.ggml.unknown_token_id";

/// Tokens of SentencePiece vocabularies whose files do not name the tokens.
const SENTENCE_PIECE: [(&str, i64); 3] = [(UNKNOWN, 0), (BOS, 1), (EOS, 2)];

/// Names of the marks of gpt-oss, which are part of an answer.
const PARTS_OF_ANSWERS: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// A name of [`ENDS`] without this meaning next to others: `<|end|>` ends a message of gpt-oss and Solar, and not the turn; `</s>` is a word of
/// Gemma 4 and PLaMo.
struct Exception {
    name: &'static str,
    /// Lists of ends. The exception holds in a file that has all ends of a list.
    ends: &'static [&'static [&'static str]],
    /// Kind of the token instead.
    kind: i64,
}

const EXCEPTIONS: [Exception; 2] = [
    Exception {
        name: "<|end|>",
        ends: &[
            &["<|return|>", "<|call|>"],
            &["<|return|>", "<|calls|>"],
            &["<|flush|>", "<|call|>"],
            &["<|flush|>", "<|calls|>"],
        ],
        kind: USER_DEFINED,
    },
    Exception { name: "</s>", ends: &[&["<|tool_response>"], &["<|plamo:eos|>"]], kind: NORMAL },
];

/// Source of an end that no key of the file names.
const BY_NAME: &str = "its name";
/// Source of an end that is the same in all vocabularies of the kind.
const BY_DEFAULT: &str = "SentencePiece";

/// The tokens of a file.
pub(crate) struct Vocabulary<'a> {
    names: Vec<&'a str>,
    kinds: Vec<&'static Kind>,
    /// Ends of answers, ascending, each with the keys of the file, or [`BY_NAME`].
    ends: Vec<(i64, Vec<&'static str>)>,
    /// `true` if the file has kinds.
    has_kinds: bool,
    is_sentence_piece: bool,
}

impl<'a> Vocabulary<'a> {
    /// Reads the tokens; a file may have none.
    ///
    /// # Errors
    ///
    /// Metadata is malformed.
    pub(crate) fn read(keys: Keys<'a>) -> Result<Self, String> {
        let names: Vec<&str> = keys.texts("tokenizer.ggml.tokens")?.collect::<Result<_, _>>()?;
        let numbers = keys.integers("tokenizer.ggml.token_type")?;
        if !numbers.is_empty() && numbers.len() != names.len() {
            return Err(format!("there are {} kinds of {} tokens", numbers.len(), names.len()));
        }
        let kind_at = |id: usize| kind(numbers.get(id).copied().unwrap_or(NORMAL));
        let mut vocabulary = Self {
            kinds: (0..names.len()).map(kind_at).collect(),
            names,
            ends: Vec::new(),
            has_kinds: !numbers.is_empty(),
            is_sentence_piece: keys.text("tokenizer.ggml.model")? == Some("llama"),
        };
        vocabulary.find_ends(keys)?;
        Ok(vocabulary)
    }

    /// Finds the ends of answers, and gives tokens the kinds that go with their names.
    fn find_ends(&mut self, keys: Keys<'a>) -> Result<(), String> {
        let mut ids: HashMap<&str, usize> = HashMap::new();
        for (id, name) in self.names.iter().enumerate().rev() {
            ids.insert(name, id);
        }
        for name in ENDS {
            if let Some(id) = ids.get(name) {
                self.end(*id as i64, BY_NAME);
                self.kinds[*id] = kind(CONTROL);
            }
        }
        for role in &ROLES {
            let named = self.special(keys, role.key)?;
            let found = role.names.iter().find_map(|name| ids.get(name)).filter(|_| named.is_none());
            if let Some(id) = found {
                self.kinds[*id] = kind(CONTROL);
            }
            let source = match (keys.integer(role.key)?, named) {
                (Some(_), _) => role.key,
                (None, Some(_)) => BY_DEFAULT,
                (None, None) => BY_NAME,
            };
            if let Some(id) = named.or(found.map(|id| *id as i64)).filter(|_| role.ends) {
                self.end(id, source);
            }
        }
        for id in PARTS_OF_ANSWERS.iter().filter_map(|name| ids.get(name)) {
            self.kinds[*id] = kind(USER_DEFINED);
        }
        for exception in &EXCEPTIONS {
            let is_end = |name: &&str| self.ends.iter().any(|(id, _)| self.name_of(*id) == Some(name));
            let applies = exception.ends.iter().any(|names| names.iter().all(is_end));
            if applies && let Some(at) = self.ends.iter().position(|(id, _)| self.name_of(*id) == Some(exception.name))
            {
                let (id, _) = self.ends.remove(at);
                self.kinds[id as usize] = kind(exception.kind);
            }
        }
        Ok(())
    }

    /// Notes an end; a key says more than a name.
    fn end(&mut self, id: i64, source: &'static str) {
        match self.ends.binary_search_by_key(&id, |(id, _)| *id) {
            Ok(at) => {
                self.ends[at].1.retain(|known| *known != BY_NAME);
                self.ends[at].1.push(source);
            }
            Err(at) => self.ends.insert(at, (id, vec![source])),
        }
    }

    /// Returns the ends of answers, ascending, each with the sources. Keys may name tokens beyond the vocabulary.
    pub(crate) fn ends(&self) -> &[(i64, Vec<&'static str>)] {
        &self.ends
    }

    /// Returns the number of tokens.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// Returns the token that a key names, or the vocabulary's kind without the key.
    pub(crate) fn special(&self, keys: Keys<'a>, key: &str) -> Result<Option<i64>, String> {
        let default = SENTENCE_PIECE.iter().find(|(known, id)| *known == key && (*id as usize) < self.names.len());
        Ok(keys.integer(key)?.or(default.filter(|_| self.is_sentence_piece).map(|(_, id)| *id)))
    }

    /// Returns the token at the start of a text, at the end, and for text without tokens.
    pub(crate) fn frame(&self, keys: Keys<'a>) -> Result<[Option<i64>; 3], String> {
        Ok([self.special(keys, BOS)?, self.special(keys, EOS)?, self.special(keys, UNKNOWN)?])
    }

    /// Returns the name of a token.
    pub(crate) fn name_of(&self, id: i64) -> Option<&'a str> {
        usize::try_from(id).ok().and_then(|id| self.names.get(id)).copied()
    }

    /// Returns the name of a token that the metadata refers to.
    pub(crate) fn name(&self, id: i64) -> Result<&'a str, String> {
        self.name_of(id).ok_or_else(|| format!("token {id} is not in the vocabulary of {} tokens", self.names.len()))
    }

    /// Returns the tokens with a name and a use: id, name, kind.
    fn used(&self) -> impl Iterator<Item = (usize, &'a str, &'static Kind)> {
        let all = self.names.iter().zip(&self.kinds).enumerate().map(|(id, (name, kind))| (id, *name, *kind));
        all.filter(|(_, name, kind)| !name.is_empty() && kind.in_text != InText::Never)
    }

    /// Returns id and name of the normal tokens.
    pub(crate) fn normal(&self) -> Vec<(usize, &'a str)> {
        self.used().filter(|(_, _, kind)| kind.number == NORMAL).map(|(id, name, _)| (id, name)).collect()
    }

    /// Returns the ids by name, for merges. Of two tokens with one name the token found by merges wins.
    pub(crate) fn ids(&self) -> Map<String, Value> {
        let mut ids = Map::new();
        for wanted in [InText::Matched, InText::Merged] {
            for (id, name, _) in self.used().filter(|(_, _, kind)| kind.in_text == wanted) {
                ids.insert(name.to_owned(), json!(id));
            }
        }
        ids
    }

    /// Returns the tokens found in a text before anything else: id, name, and `true` for special tokens.
    pub(crate) fn matched(&self) -> impl Iterator<Item = (usize, &'a str, bool)> {
        let matched = self.used().filter(|(_, _, kind)| kind.in_text == InText::Matched);
        matched.map(|(id, name, kind)| (id, name, kind.printed == Printed::Special))
    }

    /// Returns the text of every token.
    pub(crate) fn pieces(&self) -> Pieces {
        let (alphabet, mut pieces) = (byte_level_alphabet(), Pieces::default());
        let last = self.used().map(|(id, _, _)| id).last().map_or(0, |last| last + 1);
        for (name, kind) in self.names.iter().zip(&self.kinds).take(last) {
            let bytes = match kind.in_text {
                InText::Never => Vec::new(),
                InText::Matched => name.as_bytes().to_vec(),
                InText::Merged => self.merged_bytes(name, kind, &alphabet),
            };
            pieces.push(&bytes, kind.printed == Printed::Special);
        }
        pieces
    }

    fn merged_bytes(&self, name: &str, kind: &Kind, alphabet: &[Option<u8>]) -> Vec<u8> {
        // Files without kinds have bytes by name alone.
        let is_byte = kind.number == BYTE || (self.is_sentence_piece && !self.has_kinds);
        match fallback_byte(name).filter(|_| is_byte) {
            Some(byte) => vec![byte],
            None if self.is_sentence_piece => name.replace('\u{2581}', " ").into_bytes(),
            None => crate::codec::byte_level_bytes(name, alphabet),
        }
    }
}

fn kind(number: i64) -> &'static Kind {
    usize::try_from(number).ok().and_then(|number| KINDS.get(number)).unwrap_or(&KINDS[0])
}

#[cfg(test)]
#[path = "vocabulary_tests.rs"]
mod tests;
