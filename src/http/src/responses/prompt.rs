//! The prompt of a conversation.

use std::time::SystemTime;

use axum::http::request::Parts;
use trunkline_template::{Conversation, Value};

use crate::Shared;
use crate::asked::Asked;
use crate::chat::tools;
use crate::failure::Failure;
use crate::reader::Reading;
use crate::responses::input::{ResponsesAsked, functions};

/// A conversation with its tokens, and what is read in an answer to it.
#[derive(Debug)]
pub(crate) struct Prompt {
    pub(crate) conversation: Conversation,
    pub(crate) ids: Vec<u32>,
    pub(crate) reading: Reading,
}

impl Prompt {
    /// Returns the prompt of these messages; all else is of `base`.
    ///
    /// # Errors
    /// If the template or the tokenizer takes no such text.
    pub(crate) async fn new(
        shared: &Shared,
        parts: &Parts,
        base: &Conversation,
        messages: Vec<Value>,
    ) -> Result<Self, Failure> {
        let conversation = Conversation { messages, ..base.clone() };
        let text = shared.render(conversation.clone()).await?;
        let reading = shared.reading(&text, conversation.tools.is_some());
        let ids = shared.tokens_of(parts, text, false).await?;
        Ok(Self { conversation, ids, reading })
    }
}

/// Returns the conversation of a request without its messages.
///
/// # Errors
/// If a tool is no function.
pub(crate) fn base(responses: &ResponsesAsked, asked: &mut Asked) -> Result<Conversation, Failure> {
    let mut conversation = Conversation::new(Vec::new(), SystemTime::now());
    conversation.tools = tools(asked)?.map(|tools| functions(&tools)).transpose()?;
    conversation.variables = asked.chat_template_kwargs.take().unwrap_or_default();
    let effort = responses.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
    let verbosity = responses.text.as_ref().and_then(|text| text.verbosity.as_deref());
    for (name, value) in [("reasoning_effort", effort), ("verbosity", verbosity)] {
        if let Some(value) = value {
            conversation.variables.entry(name.into()).or_insert_with(|| Value::from(value));
        }
    }
    Ok(conversation)
}
