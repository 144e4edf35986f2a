//! The structure that an answer must have: a grammar, as its client wrote it.

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Language of a [`Grammar`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrammarKind {
    /// A JSON schema: the answer is JSON that is valid by it.
    JsonSchema,
    /// A regular expression: the whole answer matches it.
    Regex,
    /// A context-free grammar in Lark's syntax, from its rule `start`; or in GBNF, from its rule `root`.
    Lark,
}

/// Structure of an answer. Tokens that would leave it are not picked, and the end of the answer only where the structure may end. Copies share the
/// text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Grammar {
    /// Language of the text.
    pub kind: GrammarKind,
    #[serde(serialize_with = "write_text", deserialize_with = "read_text")]
    text: Arc<str>,
}

impl Grammar {
    /// Makes a grammar; nothing is checked.
    pub fn new(kind: GrammarKind, text: impl Into<Arc<str>>) -> Self {
        Self { kind, text: text.into() }
    }

    /// Returns the text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

fn write_text<S: Serializer>(text: &Arc<str>, to: S) -> Result<S::Ok, S::Error> {
    text.serialize(to)
}

fn read_text<'de, D: Deserializer<'de>>(from: D) -> Result<Arc<str>, D::Error> {
    String::deserialize(from).map(Arc::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grammar_is_read_back_as_it_was_written() {
        let grammar = Grammar::new(GrammarKind::JsonSchema, r#"{"type": "object"}"#);
        let json = serde_json::to_string(&grammar).unwrap();
        assert_eq!(json, r#"{"kind":"json_schema","text":"{\"type\": \"object\"}"}"#);
        assert_eq!(serde_json::from_str::<Grammar>(&json).unwrap(), grammar);
    }
}
