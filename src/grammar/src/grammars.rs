//! Compiled grammars of one model, the latest ones kept.

use std::sync::{Arc, Mutex, PoisonError};

use trunkline_port::{Grammar, Token};
use trunkline_text::Tokenizer;

use crate::allowed::Allowed;
use crate::error::GrammarError;
use crate::library::{Library, Matcher};
use crate::sources;

/// Compiled grammars that are kept: those of as many applications as share a server.
const KEPT_MAX: usize = 32;

/// Compiles grammars for the vocabulary of one model.
pub struct Grammars {
    library: Library,
    /// The latest ones, the last one used last.
    kept: Mutex<Vec<Arc<Compiled>>>,
}

/// A compiled grammar.
pub struct Compiled {
    grammar: Grammar,
    /// At the beginning of an answer.
    start: Mutex<Matcher>,
    first: Allowed,
}

impl Grammars {
    /// `false` in a build without the library, which refuses every grammar.
    pub const ARE_SUPPORTED: bool = cfg!(feature = "llguidance");

    /// Notes the vocabulary; tables are made for the first grammar. The model has token ids below `vocab_size`, and `ends` end an answer.
    pub fn new(tokenizer: Tokenizer, vocab_size: u32, ends: Vec<Token>) -> Self {
        Self { library: Library::new(tokenizer, vocab_size, ends), kept: Mutex::default() }
    }

    /// Returns a grammar that is kept.
    pub fn kept(&self, grammar: &Grammar) -> Option<Arc<Compiled>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|compiled| compiled.grammar == *grammar)?;
        let found = kept.remove(at);
        kept.push(Arc::clone(&found));
        Some(found)
    }

    /// Compiles a grammar, or returns the one that is kept. Takes milliseconds, and at the limits about a second.
    ///
    /// # Errors
    ///
    /// The grammar is malformed, too complex, or fits no answer.
    pub fn compile(&self, grammar: &Grammar) -> Result<Arc<Compiled>, GrammarError> {
        if let Some(kept) = self.kept(grammar) {
            return Ok(kept);
        }
        let source = sources::check(grammar)?;
        let mut start = self.library.matcher(source)?;
        let first = start.allowed().map_err(|_| GrammarError::Unsatisfiable)?;
        let compiled = Arc::new(Compiled { grammar: grammar.clone(), start: Mutex::new(start), first });
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() == KEPT_MAX {
            kept.remove(0);
        }
        kept.push(Arc::clone(&compiled));
        Ok(compiled)
    }
}

impl Compiled {
    /// Returns a matcher at the beginning of an answer. It shares nothing with others: what one answer costs is no concern of another.
    pub fn matcher(&self) -> Matcher {
        self.start.lock().unwrap_or_else(PoisonError::into_inner).fork()
    }

    /// Returns the tokens that may be the first of an answer.
    pub fn first(&self) -> &Allowed {
        &self.first
    }
}
