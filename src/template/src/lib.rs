//! Chat templates: from the messages of a conversation to the text of a prompt.
//!
//! A model comes with a template in the language Jinja, which puts roles, tools and special tokens around the messages. [`ChatTemplate`] renders it with
//! `minijinja`, and the prompts are those of `apply_chat_template` in transformers; `check/README.md` has the comparison, and what differs.
//!
//! A template is a program of others. It reads nothing but the conversation, its steps and its memory have limits that grow with the conversation, values
//! nest to a limited depth, and a panic is an error of one line. The version of `minijinja` is pinned: newer ones print differently, and the limits work on
//! its instructions.
//!
//! **Boundary:** this crate knows no protocol and no scheduler, and reads files only through `trunkline-text`. The time is an argument.
//!
//! ```
//! use std::time::SystemTime;
//!
//! use trunkline_template::{ChatSource, ChatTemplate, Conversation};
//!
//! let text = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}";
//! let template = ChatTemplate::new(ChatSource::of_text(text))?;
//! let messages = serde_json::from_str(r#"[{"role": "user", "content": "Hello"}]"#).unwrap();
//! assert_eq!(template.render(&Conversation::new(messages, SystemTime::UNIX_EPOCH))?, "[user] Hello\n[assistant] ");
//! # Ok::<(), trunkline_template::TemplateError>(())
//! ```

#![forbid(unsafe_code)]

mod budget;
mod conversation;
mod date;
mod environment;
mod error;
#[cfg(test)]
mod errors_tests;
mod guard;
mod json;
mod objects;
mod openai;
mod printed;
mod python;
mod scan;
mod stack;
mod syntax;
mod template;

/// A value of JSON whose objects keep the order of their keys; `serde_json` reads it.
pub use minijinja::Value;
pub use trunkline_text::ChatSource;

pub use crate::conversation::Conversation;
pub use crate::error::TemplateError;
pub use crate::template::ChatTemplate;
