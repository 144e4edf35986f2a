//! Structured output: the tokens that may follow in an answer with a given structure.
//!
//! A [`Grammar`](trunkline_port::Grammar) is a JSON schema, a regular expression or a grammar in Lark's syntax. [`Grammars::compile`] compiles one for the
//! vocabulary of a model, and a [`Matcher`] follows one answer: it takes in each token that was picked, and says which may be next ([`Allowed`]). The end of
//! the answer is among them only where the grammar may end.
//!
//! Parser and masks are those of the library `llguidance`, behind the feature of its name; without the feature every grammar is refused. Its calls are
//! bounded: sources by size and shape ([`sources`]), compiling and masks by the library's own limits, and a panic is an error of one line.
//!
//! **Boundary:** this crate knows tokenizers, and no scheduler, no worker and no protocol.
//!
//! ```
//! use trunkline_grammar::Grammars;
//! use trunkline_port::{Grammar, GrammarKind};
//! use trunkline_text::Tokenizer;
//!
//! # if cfg!(feature = "llguidance") {
//! let grammars = Grammars::new(Tokenizer::bytes(), 258, vec![257]);
//! let compiled = grammars.compile(&Grammar::new(GrammarKind::Regex, "[ab]c")).unwrap();
//! let mut matcher = compiled.matcher();
//! assert_eq!(matcher.allowed().unwrap().tokens().collect::<Vec<_>>(), [97, 98]);
//! matcher.push(97).unwrap();
//! matcher.push(99).unwrap();
//! assert_eq!(matcher.allowed().unwrap().tokens().collect::<Vec<_>>(), [257]);
//! # }
//! ```

#![forbid(unsafe_code)]

mod allowed;
mod error;
mod gbnf;
mod grammars;
#[cfg_attr(feature = "llguidance", path = "library.rs")]
#[cfg_attr(not(feature = "llguidance"), path = "without_library.rs")]
mod library;
#[cfg(all(test, feature = "llguidance"))]
mod matcher_tests;
mod schema;
pub mod sources;

pub use crate::allowed::Allowed;
pub use crate::error::{GrammarError, MatchError};
pub use crate::grammars::{Compiled, Grammars};
pub use crate::library::Matcher;
