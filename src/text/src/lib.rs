//! Text and tokens: tokenizers, incremental detokenization and stop strings.
//!
//! * [`Tokenizer`] turns a prompt into tokens, with the `tokenizer.json` of a model folder or the tokenizer in a GGUF file.
//! * [`Parts`] turns a long prompt into tokens in parts, so that the work can be ended early.
//! * [`Detokenizer`] turns generated tokens into text, one token at a time, and never splits a character.
//! * [`StopMatcher`] finds the strings at which a text ends, however the text is cut into pieces.
//! * [`ModelFacts`] has what the files of a model say in words: tokens that end an answer, added tokens, the longest context.
//! * [`ChatSource`] has the chat template of a model with the tokens that a template names.
//! * [`Mistake`] recognises what people give instead of a model.
//!
//! The tokenizers library runs behind one door (`library.rs`): a file is checked before, texts are tried at load, and a panic is an error of one line.
//!
//! **Boundary:** this crate depends on `trunkline-foreign` alone, and knows no weights, no scheduler and no protocol.
//! Files are read only to load a tokenizer, to read facts, and to recognise mistakes.
//!
//! # Example
//!
//! ```
//! use trunkline_text::{StopMatcher, Tokenizer};
//!
//! let tokenizer = Tokenizer::bytes();
//! let mut detokenizer = tokenizer.detokenizer(true);
//! let mut stops = StopMatcher::new(vec!["END".into()]);
//! let mut text = String::new();
//! for token in tokenizer.encode("grün END and more")? {
//!     let piece = detokenizer.push(token);
//!     if stops.push(&piece, true, &mut text).is_some() {
//!         break;
//!     }
//! }
//! assert_eq!(text, "grün ");
//! # Ok::<(), trunkline_text::TokenizerError>(())
//! ```

#![forbid(unsafe_code)]

mod added;
mod chat;
mod codec;
mod context;
mod detokenizer;
mod error;
#[cfg(test)]
mod errors_tests;
mod facts;
mod folder;
mod gguf;
mod library;
mod metadata;
mod mistakes;
#[cfg(test)]
mod model_rig;
mod parts;
mod probe;
mod reader;
mod shape;
mod split;
mod stop_strings;
mod tokenizer;
mod vocabulary;

pub use crate::chat::ChatSource;
pub use crate::context::{Context, context_of};
pub use crate::detokenizer::{Detokenizer, PROMPT_END};
pub use crate::error::{FactsError, TokenizerError};
pub use crate::facts::{EndToken, ModelFacts};
pub use crate::folder::Files;
pub use crate::mistakes::{Lacks, Mistake};
pub use crate::parts::Parts;
pub use crate::reader::{GgufReader, open_gguf};
pub use crate::split::{gguf_name, gguf_parts};
pub use crate::stop_strings::StopMatcher;
pub use crate::tokenizer::Tokenizer;
