//! Chat templates: from the messages of a conversation to the text of a prompt.

#![forbid(unsafe_code)]

mod budget;
mod conversation;
mod date;
mod environment;
mod error;
mod guard;
mod json;
mod printed;
mod openai;
mod python;
mod scan;
mod stack;
mod template;

pub use minijinja::Value;
pub use trunkline_text::ChatSource;

pub use crate::conversation::Conversation;
pub use crate::error::TemplateError;
pub use crate::template::ChatTemplate;
