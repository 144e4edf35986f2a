//! Structures of answers: from messages to grammars, compiled before the core has the request.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time;
use trunkline_grammar::{GrammarError, Grammars};
use trunkline_port::{Grammar, GrammarKind, ModelInfo};
use trunkline_text::Tokenizer;

use crate::proto;
use crate::proto::sampling::Structure;

/// Grammars that are compiled at once; other requests wait for their turn.
const COMPILING_MAX: usize = 2;
/// Longest time for compiling one grammar. The bounds of its source let none come near on a machine that is not overloaded.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(10);

/// A structure that no answer gets.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StructureFault {
    /// In one line, which begins with the structure's field.
    #[error("{0}")]
    Refused(String),
    /// The thread that compiled it panicked.
    #[error("the library of grammars failed on the structure of the answer")]
    Failed,
}

/// Returns the name of a structure's field.
fn field(structure: &Structure) -> &'static str {
    match structure {
        Structure::JsonSchema(_) => "json_schema",
        Structure::Regex(_) => "regex",
        Structure::Grammar(_) => "grammar",
        Structure::Choice(_) => "choice",
    }
}

/// Returns the grammar of a message.
///
/// # Errors
/// If the structure is empty.
pub(crate) fn grammar(structure: Option<Structure>) -> Result<Option<Grammar>, StructureFault> {
    let Some(structure) = structure else { return Ok(None) };
    let field = field(&structure);
    let (kind, text) = match structure {
        Structure::JsonSchema(text) => (GrammarKind::JsonSchema, text),
        Structure::Regex(text) => (GrammarKind::Regex, text),
        Structure::Grammar(text) => (GrammarKind::Lark, text),
        Structure::Choice(choices) => (GrammarKind::Regex, alternatives(&choices)?),
    };
    if text.is_empty() {
        return Err(StructureFault::Refused(format!(
            "{field} is empty; leave it out for an answer without a structure"
        )));
    }
    Ok(Some(Grammar::new(kind, text)))
}

/// Returns an expression that matches the texts and no others.
fn alternatives(choices: &proto::Choices) -> Result<String, StructureFault> {
    if choices.texts.is_empty() {
        return Err(StructureFault::Refused("choice has no texts; give at least one".into()));
    }
    if let Some(at) = choices.texts.iter().position(String::is_empty) {
        return Err(StructureFault::Refused(format!("choice[{at}] is empty; each text needs at least one byte")));
    }
    let quoted = |text: &String| {
        let quote = |c: char| [Some('\\').filter(|_| c.is_ascii_punctuation() && !"<>".contains(c)), Some(c)];
        text.chars().flat_map(quote).flatten().collect::<String>()
    };
    Ok(choices.texts.iter().map(quoted).collect::<Vec<_>>().join("|"))
}

/// Compiles the grammars of requests, so that a bad one is refused.
pub(crate) struct Compiler {
    grammars: Arc<Grammars>,
    turns: Arc<Semaphore>,
}

impl Compiler {
    pub(crate) fn new(model: &ModelInfo, tokenizer: &Tokenizer) -> Self {
        let grammars = Grammars::new(tokenizer.clone(), model.vocab_size, model.eos_token_ids.clone());
        Self { grammars: Arc::new(grammars), turns: Arc::new(Semaphore::new(COMPILING_MAX)) }
    }

    /// Compiles a grammar unless a request before had the same one.
    pub(crate) async fn check(&self, grammar: &Grammar) -> Result<(), StructureFault> {
        if self.grammars.kept(grammar).is_some() {
            return Ok(());
        }
        let turn = Arc::clone(&self.turns).acquire_owned().await.map_err(|_| StructureFault::Failed)?;
        let (grammars, compiled) = (Arc::clone(&self.grammars), grammar.clone());
        // A thread that is at it still keeps its turn.
        let job = tokio::task::spawn_blocking(move || {
            let checked = grammars.compile(&compiled).map(drop);
            drop(turn);
            checked
        });
        let too_long = || GrammarError::TooComplex(format!("compiling takes longer than {COMPILE_TIMEOUT:?}"));
        let checked = match time::timeout(COMPILE_TIMEOUT, job).await {
            Ok(Ok(checked)) => checked,
            Ok(Err(_)) => return Err(StructureFault::Failed),
            Err(_) => Err(too_long()),
        };
        let field = match grammar.kind {
            GrammarKind::JsonSchema => "json_schema",
            GrammarKind::Regex => "regex",
            GrammarKind::Lark => "grammar",
        };
        checked.map_err(|error| StructureFault::Refused(format!("{field} is refused: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(texts: &[&str]) -> Result<Option<Grammar>, StructureFault> {
        let texts = texts.iter().map(|text| (*text).to_owned()).collect();
        grammar(Some(Structure::Choice(proto::Choices { texts })))
    }

    #[test]
    fn structures_become_grammars_and_empty_ones_are_refused_by_name() {
        assert_eq!(grammar(None), Ok(None));
        for (structure, kind) in [
            (Structure::JsonSchema("{}".into()), GrammarKind::JsonSchema),
            (Structure::Regex("{}".into()), GrammarKind::Regex),
            (Structure::Grammar("{}".into()), GrammarKind::Lark),
        ] {
            assert_eq!(grammar(Some(structure)), Ok(Some(Grammar::new(kind, "{}"))));
        }
        let expression = choice(&["a.b", "<c>\u{E9}\n", "/"]).unwrap().unwrap();
        assert_eq!((expression.kind, expression.text()), (GrammarKind::Regex, "a\\.b|<c>\u{E9}\n|\\/"));
        for (structure, message) in [
            (Structure::JsonSchema(String::new()), "json_schema is empty"),
            (Structure::Regex(String::new()), "regex is empty"),
            (Structure::Grammar(String::new()), "grammar is empty"),
        ] {
            let told = grammar(Some(structure)).unwrap_err().to_string();
            assert!(told.starts_with(message), "{told}");
        }
        assert!(choice(&[]).unwrap_err().to_string().starts_with("choice has no texts"));
        assert!(choice(&["a", ""]).unwrap_err().to_string().starts_with("choice[1] is empty"));
    }
}
