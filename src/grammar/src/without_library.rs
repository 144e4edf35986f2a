//! The place of the library in a build without it.

use trunkline_port::Token;
use trunkline_text::Tokenizer;

use crate::allowed::Allowed;
use crate::error::{GrammarError, MatchError};
use crate::sources::Source;

/// A library that refuses every grammar.
pub(crate) struct Library;

impl Library {
    pub(crate) fn new(_: Tokenizer, _: u32, _: Vec<Token>) -> Self {
        Self
    }

    pub(crate) fn matcher(&self, _: Source) -> Result<Matcher, GrammarError> {
        Err(GrammarError::NotBuilt)
    }
}

/// A matcher that nobody has.
pub enum Matcher {}

impl Matcher {
    pub(crate) fn fork(&self) -> Self {
        match *self {}
    }

    /// Takes in a token.
    ///
    /// # Errors
    ///
    /// None: nobody has a matcher.
    pub fn push(&mut self, _: Token) -> Result<(), MatchError> {
        match *self {}
    }

    /// Returns the tokens that may be next.
    ///
    /// # Errors
    ///
    /// None: nobody has a matcher.
    pub fn allowed(&mut self) -> Result<Allowed, MatchError> {
        match *self {}
    }
}
