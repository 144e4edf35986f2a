//! Text and tokens: tokenizers, incremental detokenization and stop strings.
//!
//! * [`Tokenizer`] turns a prompt into tokens, with the `tokenizer.json` of a model folder or the tokenizer in a GGUF file.
//! * [`Parts`] turns a long prompt into tokens in parts, so that the work can be ended early.
//! * [`Detokenizer`] turns generated tokens into text, one token at a time, and never splits a character.
//! * [`StopMatcher`] finds the strings at which a text ends, however the text is cut into pieces.
//!
//! **Boundary:** this crate depends on no other crate of Trunkline, and knows no model, no scheduler and no protocol.
//! [`Tokenizer::load`] is the only function with access to files.
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

mod codec;
mod detokenizer;
mod error;
mod gguf;
mod parts;
mod stop_strings;
mod tokenizer;

pub use crate::detokenizer::{Detokenizer, PROMPT_END};
pub use crate::error::TokenizerError;
pub use crate::parts::Parts;
pub use crate::stop_strings::StopMatcher;
pub use crate::tokenizer::Tokenizer;
