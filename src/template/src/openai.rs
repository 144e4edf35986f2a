//! Messages of OpenAI's API, as templates expect messages.

use minijinja::Value;
use minijinja::value::ValueKind;
use trunkline_quote::quoted;

use crate::error::TemplateError;
use crate::objects::{fields, with};

/// Types of parts with text, and the key of the text.
const TEXTS: [(&str, &str); 4] =
    [("text", "text"), ("input_text", "text"), ("output_text", "text"), ("refusal", "refusal")];

/// Returns messages with the content and the arguments of tool calls as templates expect them.
///
/// A list of parts becomes a text, its parts joined by line breaks, unless the template has a loop over parts. Arguments of tool calls, which are JSON in
/// a text, become objects. vLLM does both.
///
/// # Errors
///
/// A part has no text, or arguments are not JSON; the message names the place.
pub(crate) fn messages(messages: &[Value], takes_parts: bool) -> Result<Vec<Value>, TemplateError> {
    let numbered = messages.iter().enumerate();
    numbered.map(|(at, message)| calls(at, &content(at, message, takes_parts)?)).collect()
}

fn wrong<T>(problem: String) -> Result<T, TemplateError> {
    Err(TemplateError::conversation(problem))
}

fn content(at: usize, message: &Value, takes_parts: bool) -> Result<Value, TemplateError> {
    let parts = message.get_attr("content").unwrap_or_default();
    if parts.kind() != ValueKind::Seq {
        return match parts.kind() {
            ValueKind::String | ValueKind::None | ValueKind::Undefined => Ok(message.clone()),
            kind => wrong(format!("messages[{at}].content is a {kind}; it must be a text or a list of parts")),
        };
    }
    let parts: Vec<Value> = parts.try_iter().map(Iterator::collect).unwrap_or_default();
    let texts = parts.iter().enumerate().map(|(n, part)| part_text(at, n, part));
    let texts: Vec<Value> = texts.collect::<Result<_, _>>()?;
    let content = if takes_parts {
        let part = |text: Value| Value::from_pairs([("type", Value::from("text")), ("text", text)]);
        texts.into_iter().map(part).collect()
    } else {
        Value::from(texts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n"))
    };
    Ok(with(message, "content", &content))
}

/// Returns the text of a part.
fn part_text(at: usize, n: usize, part: &Value) -> Result<Value, TemplateError> {
    let place = format!("messages[{at}].content[{n}]");
    if part.kind() == ValueKind::String {
        return Ok(part.clone());
    }
    let field = |name: &str| part.get_attr(name).ok().filter(|value| value.kind() == ValueKind::String);
    let Some(kind) = field("type") else {
        return wrong(format!("{place} has no type; a part is an object with type and text"));
    };
    let kind = kind.as_str().unwrap_or_default();
    let Some((_, key)) = TEXTS.iter().find(|(name, _)| *name == kind) else {
        return wrong(format!("{place} is of type {}, and this server takes parts of type 'text' alone", quoted(kind)));
    };
    match field(key) {
        Some(text) => Ok(text),
        None => wrong(format!("{place} has no {key}; a part of type {} has its text there", quoted(kind))),
    }
}

/// Parses the arguments of the tool calls of a message.
fn calls(at: usize, message: &Value) -> Result<Value, TemplateError> {
    let calls = message.get_attr("tool_calls").unwrap_or_default();
    match calls.kind() {
        ValueKind::Undefined | ValueKind::None => return Ok(message.clone()),
        ValueKind::Seq => {}
        kind => return wrong(format!("messages[{at}].tool_calls is a {kind}; it must be a list")),
    }
    let numbered = calls.try_iter().into_iter().flatten().enumerate();
    let parsed: Vec<Value> = numbered.map(|(n, call)| parsed(at, n, &call)).collect::<Result<_, _>>()?;
    Ok(with(message, "tool_calls", &Value::from(parsed)))
}

fn parsed(at: usize, n: usize, call: &Value) -> Result<Value, TemplateError> {
    let place = format!("messages[{at}].tool_calls[{n}].function");
    let function = call.get_attr("function").unwrap_or_default();
    if function.kind() != ValueKind::Map {
        return wrong(format!("{place} must be an object with name and arguments"));
    }
    let arguments = function.get_attr("arguments").unwrap_or_default();
    let arguments = match arguments.as_str() {
        Some(text) if !text.is_empty() => match serde_json::from_str::<Value>(text) {
            Ok(arguments) if arguments.kind() == ValueKind::Map => arguments,
            Ok(arguments) => {
                return wrong(format!("{place}.arguments is JSON of a {}; it must be an object", arguments.kind()));
            }
            Err(error) => return wrong(format!("{place}.arguments is not JSON: {error}")),
        },
        _ if arguments.is_true() => return Ok(call.clone()),
        _ => Value::from_pairs(std::iter::empty::<(Value, Value)>()),
    };
    let has = fields(&function).any(|(name, _)| name.as_str() == Some("arguments"));
    let function = if has {
        with(&function, "arguments", &arguments)
    } else {
        Value::from_pairs(fields(&function).chain([(Value::from("arguments"), arguments)]))
    };
    Ok(with(call, "function", &function))
}
