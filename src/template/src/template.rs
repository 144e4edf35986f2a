//! The chat template of a model.

use std::collections::BTreeMap;
use std::path::Path;

use minijinja::{Environment, Error, ErrorKind, Value};
use trunkline_text::ChatSource;

use crate::budget::Budget;
use crate::conversation::{Continued, Conversation, messages};
use crate::environment::{Raised, STRFTIME, clock, environment, in_words};
use crate::error::TemplateError;
use crate::openai;
use crate::scan::{prepare, takes_parts};
use crate::stack::on_a_deep_stack;

/// Template of all conversations, or of those without tools.
const DEFAULT: &str = "default";
/// Template of conversations with tools.
const TOOL_USE: &str = "tool_use";

/// A template, as it was read.
#[derive(Clone, Debug)]
struct Source {
    text: String,
    /// `true` if the template has a loop over the parts of a message.
    takes_parts: bool,
}

/// The chat template of a model: from a conversation to a prompt, as `apply_chat_template(tokenize=False)` of transformers does it.
///
/// A template is a program that came with a model. Its steps and its memory are limited by the size of the conversation, and it reads nothing else.
#[derive(Clone, Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    sources: BTreeMap<&'static str, Source>,
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
        let mut environment = environment();
        for name in [DEFAULT, TOOL_USE] {
            let Some((_, text)) = source.templates.iter().find(|(known, _)| known == name) else { continue };
            let prepared = prepare(text).map_err(|problem| wrong(name, problem))?;
            let parts = takes_parts(&prepared);
            environment = on_a_deep_stack(Budget::COMPILE, || {
                environment.add_template_owned(name, prepared).map(|()| environment)
            })?
            .map_err(|error| wrong(name, in_words(&error)))?;
            sources.insert(name, Source { text: text.clone(), takes_parts: parts });
        }
        if !sources.contains_key(DEFAULT) {
            let names: Vec<&str> = source.templates.iter().map(|(name, _)| name.as_str()).collect();
            return Err(wrong(
                DEFAULT,
                format!("the model has templates named {}, and none of this name", names.join(", ")),
            ));
        }
        Ok(Self { environment, sources, tokens: source.tokens })
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
    /// As [`ChatTemplate::render`]; a part of a message is no text, or the arguments of a tool call are not JSON.
    pub fn render_openai(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        conversation.check()?;
        let (_, source) = self.choose(conversation);
        let messages = openai::messages(&conversation.messages, source.is_some_and(|source| source.takes_parts))?;
        self.render_messages(conversation, &messages)
    }

    /// Returns the template for a conversation.
    fn choose(&self, conversation: &Conversation) -> (&'static str, Option<&Source>) {
        let has_tools = conversation.tools.is_some() && self.sources.contains_key(TOOL_USE);
        let name = if has_tools { TOOL_USE } else { DEFAULT };
        (name, self.sources.get(name))
    }

    fn render_messages(&self, conversation: &Conversation, given: &[Value]) -> Result<String, TemplateError> {
        let (name, source) = self.choose(conversation);
        let mut messages = messages(given);
        let continued = match source {
            Some(source) if conversation.continue_final_message => Some(Continued::mark(&mut messages, &source.text)?),
            _ => None,
        };
        let budget = Budget::of(conversation);
        let mut environment = self.environment.clone();
        environment.set_fuel(Some(budget.fuel));
        let variables = self.variables(conversation, messages);
        let rendered = on_a_deep_stack(budget.stack_bytes, move || {
            environment.get_template(name).and_then(|template| template.render(variables))
        })?;
        let prompt = rendered.map_err(|error| fault(&error, budget.fuel))?;
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
