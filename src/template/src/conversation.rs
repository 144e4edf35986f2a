//! A conversation, and its messages as transformers hands them to a template.

use std::collections::BTreeMap;
use std::time::SystemTime;

use minijinja::Value;
use minijinja::value::ValueKind;

use crate::error::TemplateError;
use crate::objects::{fields, object, with};
use crate::python::{stripped, stripped_behind};

/// Text after the message to continue, by which it is found in the prompt.
const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";
/// Keys of reasoning, the first of which templates read. Templates of gpt-oss read the second.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// Variables that a client must not set: fields of the conversation, or arguments of `apply_chat_template`.
const OWN_VARIABLES: [&str; 8] = [
    "messages",
    "conversation",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template",
    "tokenize",
];

/// Messages and all else that a template sees.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// Messages, each an object with `role` and mostly `content`. Keys keep their order: templates print objects.
    pub messages: Vec<Value>,
    /// Tools that the model may call, each an object; `None` is not an empty list to a template.
    pub tools: Option<Vec<Value>>,
    /// Documents to answer from, each an object.
    pub documents: Option<Vec<Value>>,
    /// `true` for the marks that begin an answer.
    pub add_generation_prompt: bool,
    /// `true` if the last message is to go on: the prompt ends with its text.
    pub continue_final_message: bool,
    /// More variables, such as `enable_thinking`: `chat_template_kwargs` of a request.
    pub variables: BTreeMap<String, Value>,
    /// Time for templates that tell the model the date; in UTC.
    pub now: SystemTime,
}

impl Conversation {
    /// Returns a conversation that asks for an answer to these messages.
    pub fn new(messages: Vec<Value>, now: SystemTime) -> Self {
        Self {
            messages,
            tools: None,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            variables: BTreeMap::new(),
            now,
        }
    }

    /// Checks what does not depend on the template.
    pub(crate) fn check(&self) -> Result<(), TemplateError> {
        let wrong = |problem: String| Err(TemplateError::conversation(problem));
        if self.messages.is_empty() {
            return wrong("messages is empty; send at least one message".to_owned());
        }
        if self.continue_final_message && self.add_generation_prompt {
            return wrong(
                "continue_final_message and add_generation_prompt exclude each other; set add_generation_prompt to false"
                    .to_owned(),
            );
        }
        let lists = [
            ("messages", Some(&self.messages)),
            ("tools", self.tools.as_ref()),
            ("documents", self.documents.as_ref()),
        ];
        for (name, list) in lists {
            if let Some(at) = list.and_then(|list| list.iter().position(|item| item.kind() != ValueKind::Map)) {
                return wrong(format!("{name}[{at}] must be an object"));
            }
        }
        match OWN_VARIABLES.into_iter().find(|name| self.variables.contains_key(*name)) {
            Some(name) => wrong(format!("chat_template_kwargs has {name}, which is a field of its own; give it there")),
            None => Ok(()),
        }
    }
}

/// A message to continue.
#[derive(Debug)]
pub(crate) struct Continued {
    text: String,
}

/// Returns the messages as transformers changes them: keys without a value are left out, and reasoning is there under each of its names.
pub(crate) fn messages(messages: &[Value]) -> Vec<Value> {
    messages.iter().map(message).collect()
}

fn message(message: &Value) -> Value {
    let mut fields: Vec<(Value, Value)> = fields(message).filter(|(_, value)| !value.is_none()).collect();
    let at = |fields: &[(Value, Value)], name: &str| fields.iter().position(|(key, _)| key.as_str() == Some(name));
    let reasoning = REASONING.iter().find_map(|name| at(&fields, name)).map(|at| fields[at].1.clone());
    if let Some(reasoning) = reasoning {
        if at(&fields, "thinking").is_none() {
            fields.insert(0, (Value::from("thinking"), reasoning.clone()));
        } else if let Some(here) = at(&fields, "thinking") {
            // Python's `{"thinking": ..., **message}` keeps the first place and the last value.
            let field = fields.remove(here);
            fields.insert(0, field);
        }
        match at(&fields, "reasoning_content") {
            Some(here) => fields[here].1 = reasoning,
            None => fields.push((Value::from("reasoning_content"), reasoning)),
        }
    }
    object(fields)
}

impl Continued {
    /// Marks the end of the last message, as transformers does.
    ///
    /// # Errors
    ///
    /// The last message has no text, or the template does not print texts.
    pub(crate) fn mark(messages: &mut [Value], source: &str) -> Result<Self, TemplateError> {
        let wrong = |problem: &str| Err(TemplateError::conversation(format!("continue_final_message: {problem}")));
        let Some(last) = messages.last_mut() else { return wrong("there is no message to continue") };
        let content = last.get_attr("content").unwrap_or_default();
        if !source.contains("content") {
            return wrong("the chat template does not print the content of messages; leave it out");
        }
        if let Some(text) = content.as_str() {
            *last = with(last, "content", &Value::from(text.to_owned() + TAG));
            return Ok(Self { text: text.to_owned() });
        }
        if content.kind() != ValueKind::Seq {
            return wrong("the last message has no content to continue; give it a text");
        }
        let mut parts: Vec<Value> = content.try_iter().map(Iterator::collect).unwrap_or_default();
        let text_of = |part: &Value| part.get_attr("text").ok().and_then(|text| text.as_str().map(str::to_owned));
        let found = parts.iter_mut().rev().find_map(|part| text_of(part).map(|text| (part, text)));
        let Some((part, text)) = found else {
            return wrong("the last message has no text to continue; give it a text");
        };
        *part = with(part, "text", &Value::from(text.clone() + TAG));
        *last = with(last, "content", &Value::from(parts));
        Ok(Self { text })
    }

    /// Cuts the prompt after the text of the last message.
    ///
    /// # Errors
    ///
    /// The prompt does not have all of the text.
    pub(crate) fn cut(&self, mut prompt: String) -> Result<String, TemplateError> {
        let found = prompt.rfind(stripped(TAG)).filter(|_| prompt.contains(stripped(&self.text)));
        let Some(at) = found else {
            return Err(TemplateError::conversation(
                "continue_final_message: the chat template leaves out parts of the last message; send it without them, or leave out the field",
            ));
        };
        // A template that strips messages also stripped the space at the end of the tag.
        let is_whole = prompt[at..].starts_with(TAG);
        prompt.truncate(at);
        let length = if is_whole { prompt.len() } else { stripped_behind(&prompt).len() };
        prompt.truncate(length);
        Ok(prompt)
    }
}
