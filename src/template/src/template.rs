//! The chat template of a model.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use minijinja::machinery::{Instructions, eval, make_string_output};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use trunkline_text::ChatSource;

use crate::budget::fuel;
use crate::conversation::{Continued, Conversation, messages};
use crate::environment::{Raised, STRFTIME, clock, environment};
use crate::error::TemplateError;
use crate::guard::compile;
use crate::openai;
use crate::scan::{prepare, takes_parts};
use crate::stack::on_a_deep_stack;
use crate::syntax::in_words;

/// Template of all conversations, or of those without tools.
const DEFAULT: &str = "default";
/// Template of conversations with tools.
const TOOL_USE: &str = "tool_use";

/// A template, as it was read.
#[derive(Clone)]
struct Source {
    text: String,
    /// `true` if the template has a loop over the parts of a message.
    takes_parts: bool,
    code: &'static Instructions<'static>,
}

/// The chat template of a model: from a conversation to a prompt, as `apply_chat_template(tokenize=False)` of transformers does it.
///
/// A template is a program that came with a model. Its steps and its memory are limited by the size of the conversation, and it reads nothing else.
#[derive(Clone)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    default: Source,
    with_tools: Option<Source>,
    /// Special tokens by role, such as `bos_token`.
    tokens: Vec<(String, String)>,
}

impl ChatTemplate {
    /// Reads the template of the model in a Hugging Face folder or a GGUF file.
    ///
    /// # Errors
    ///
    /// There is no model, the model has no template, or the template cannot be used.
    pub fn of_model(path: &Path) -> Result<Self, TemplateError> {
        let absent = || TemplateError::Absent { path: path.to_owned() };
        Self::new(ChatSource::read(path)?.ok_or_else(absent)?)
    }

    /// Compiles a template with the special tokens of its model.
    ///
    /// # Errors
    ///
    /// The template is malformed or beyond a limit, or there are several and none for all conversations.
    pub fn new(source: ChatSource) -> Result<Self, TemplateError> {
        let wrong = |name: &str, problem: String| TemplateError::Template { name: name.to_owned(), problem };
        let mut sources = BTreeMap::new();
        let environment = environment();
        for name in [DEFAULT, TOOL_USE] {
            let Some((_, text)) = source.templates.iter().find(|(known, _)| known == name) else { continue };
            let prepared =
                prepare(&text.replace("\r\n", "\n").replace('\r', "\n")).map_err(|problem| wrong(name, problem))?;
            let parts = takes_parts(&prepared);
            // The code borrows from the text, and a process has few templates: they stay.
            let prepared: &'static str = prepared.leak();
            let code = on_a_deep_stack(|| compile(name, prepared))?.map_err(|error| wrong(name, in_words(&error)))?;
            sources.insert(name, Source { text: text.clone(), takes_parts: parts, code: Box::leak(Box::new(code)) });
        }
        let with_tools = sources.remove(TOOL_USE);
        let Some(default) = sources.remove(DEFAULT) else {
            let names: Vec<&str> = source.templates.iter().map(|(name, _)| name.as_str()).collect();
            return Err(wrong(
                DEFAULT,
                format!("the model has templates named {}, and not this one", names.join(", ")),
            ));
        };
        Ok(Self { environment, default, with_tools, tokens: source.tokens })
    }

    /// Renders a conversation as transformers does.
    ///
    /// # Errors
    ///
    /// The conversation is malformed, the template refuses it or fails on it, or a limit is reached.
    pub fn render(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        conversation.check()?;
        self.render_messages(conversation, &conversation.messages)
    }

    /// Renders a conversation of OpenAI's API: parts of messages become texts unless the template takes parts, and the arguments of tool calls objects.
    ///
    /// # Errors
    ///
    /// As [`ChatTemplate::render`]; a part of a message is not text, or the arguments of a tool call are not JSON.
    pub fn render_openai(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        conversation.check()?;
        let messages = openai::messages(&conversation.messages, self.choose(conversation).takes_parts)?;
        self.render_messages(conversation, &messages)
    }

    /// Returns the template for a conversation.
    fn choose(&self, conversation: &Conversation) -> &Source {
        conversation.tools.as_ref().and(self.with_tools.as_ref()).unwrap_or(&self.default)
    }

    fn render_messages(&self, conversation: &Conversation, given: &[Value]) -> Result<String, TemplateError> {
        let source = self.choose(conversation);
        let mut messages = messages(given);
        let continued = match conversation.continue_final_message {
            true => Some(Continued::mark(&mut messages, &source.text)?),
            false => None,
        };
        let fuel = fuel(conversation);
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let (variables, blocks, mut prompt) = (self.variables(conversation, messages), BTreeMap::new(), String::new());
        let rendered = trunkline_foreign::call(|| {
            let out = &mut make_string_output(&mut prompt);
            eval(&environment, source.code, variables, &blocks, out, AutoEscape::None).map(|_| ())
        })?;
        rendered.map_err(|error| fault(&error, fuel))?;
        match continued {
            Some(continued) => continued.cut(prompt),
            None => Ok(prompt),
        }
    }

    /// Returns the variables of a rendering. Those of the client win over special tokens.
    fn variables(&self, conversation: &Conversation, messages: Vec<Value>) -> Value {
        let list = |list: &Option<Vec<Value>>| list.as_ref().map_or(Value::from(()), |list| Value::from(list.clone()));
        let mut all: BTreeMap<&str, Value> = BTreeMap::new();
        all.insert(STRFTIME, clock(conversation.now));
        all.extend(self.tokens.iter().map(|(role, token)| (role.as_str(), Value::from(token.as_str()))));
        all.extend(conversation.variables.iter().map(|(name, value)| (name.as_str(), value.clone())));
        all.insert("messages", Value::from(messages));
        all.insert("tools", list(&conversation.tools));
        all.insert("documents", list(&conversation.documents));
        all.insert("add_generation_prompt", Value::from(conversation.add_generation_prompt));
        Value::from_pairs(all)
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatTemplate").field("default", &self.default.text).finish_non_exhaustive()
    }
}

/// Returns the fault of a rendering.
fn fault(error: &Error, fuel: u64) -> TemplateError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return TemplateError::Refused { message: message.replace(['\n', '\r'], " ") };
        }
        source = cause.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return TemplateError::TooMuchWork { fuel };
    }
    TemplateError::Failed { problem: in_words(error) }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
