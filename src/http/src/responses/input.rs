//! The body of `/v1/responses`, and its input as the messages of a chat.

use serde::Deserialize;
use serde_json::value::Value as Json;
use trunkline_quote::quoted;
use trunkline_template::Value;

use crate::failure::Failure;
use crate::structure::ResponseFormat;

/// Body of a request, besides the fields of [`Asked`](crate::asked::Asked) and [`CachingAsked`](crate::caching::CachingAsked). Unknown fields are ignored.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct ResponsesAsked {
    pub(crate) input: Option<Input>,
    pub(crate) instructions: Option<String>,
    pub(crate) max_output_tokens: Option<u32>,
    pub(crate) parallel_tool_calls: Option<bool>,
    pub(crate) reasoning: Option<ReasoningAsked>,
    pub(crate) text: Option<TextAsked>,
    pub(crate) include: Option<Vec<String>>,
    /// Comes back in the answer.
    pub(crate) metadata: Option<Json>,
    pub(crate) prompt_cache_key: Option<String>,
    store: Option<bool>,
    background: Option<bool>,
    truncation: Option<String>,
    previous_response_id: Option<Json>,
    conversation: Option<Json>,
    context_management: Option<Json>,
    n: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of items")]
pub(crate) enum Input {
    Text(String),
    Items(Vec<Value>),
}

#[derive(Debug, Deserialize)]
pub(crate) struct ReasoningAsked {
    /// Passed on to the template.
    pub(crate) effort: Option<String>,
    summary: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct TextAsked {
    /// Comes back in the answer.
    pub(crate) format: Option<Json>,
    /// Passed on to the template.
    pub(crate) verbosity: Option<String>,
}

/// Things to include in an answer that are there.
const INCLUDES: [&str; 2] = [LOGPROBS, "reasoning.encrypted_content"];
/// Log probabilities of the text.
pub(crate) const LOGPROBS: &str = "message.output_text.logprobs";

impl ResponsesAsked {
    /// Refuses what cannot be honoured.
    ///
    /// # Errors
    /// Names the field.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let refused = |param: &str, why: &str| Err(Failure::invalid(param, format!("{param} {why}")));
        let is_given = |value: &Option<Json>| value.as_ref().is_some_and(|value| !value.is_null());
        let unstored = "is not supported: no response is stored; send the whole input";
        if is_given(&self.previous_response_id) {
            return refused("previous_response_id", unstored);
        }
        if is_given(&self.conversation) {
            return refused("conversation", unstored);
        }
        if self.store == Some(true) {
            return refused("store", "must be false: no response is stored");
        }
        if self.background == Some(true) {
            return refused("background", "is not supported: no response is stored");
        }
        if is_given(&self.context_management) {
            return refused("context_management", "is not supported; sessions over gRPC compact their history");
        }
        if self.truncation.as_deref().is_some_and(|truncation| truncation != "disabled") {
            return refused("truncation", "may be disabled alone: no item is left out");
        }
        if self.n.is_some_and(|n| n != 1) {
            return refused("n", "must be 1; a response has no choices");
        }
        if self.reasoning.as_ref().and_then(|of| of.summary.as_deref()).is_some_and(|summary| summary != "auto") {
            return refused("reasoning.summary", "may be auto alone: reasoning comes whole");
        }
        let includes = self.include.iter().flatten();
        match includes.into_iter().find(|name| !INCLUDES.contains(&name.as_str())) {
            Some(name) => refused("include", &format!("has {}, which this server does not have", quoted(name))),
            None => Ok(()),
        }
    }

    /// Returns `text.format` in the form of chats.
    ///
    /// # Errors
    /// If it is malformed.
    pub(crate) fn response_format(&self) -> Result<Option<ResponseFormat>, Failure> {
        let Some(format) = self.text.as_ref().and_then(|text| text.format.as_ref()) else { return Ok(None) };
        ResponseFormat::of_text(format)
    }

    /// Returns `true` for log probabilities of the text.
    pub(crate) fn wants_logprobs(&self) -> bool {
        self.include.iter().flatten().any(|name| name == LOGPROBS)
    }

    /// Returns the messages of the conversation.
    ///
    /// # Errors
    /// Names the place of an item that is no message, call or result.
    pub(crate) fn messages(&self) -> Result<Vec<Value>, Failure> {
        let mut messages = Messages::default();
        if let Some(instructions) = &self.instructions {
            messages.push(vec![("role", "system".into()), ("content", instructions.as_str().into())]);
        }
        match &self.input {
            None => return Err(Failure::invalid("input", "input is missing")),
            Some(Input::Text(text)) => messages.push(vec![("role", "user".into()), ("content", text.as_str().into())]),
            Some(Input::Items(items)) => {
                for (at, item) in items.iter().enumerate() {
                    messages.add(item).map_err(|why| Failure::invalid("input", format!("input[{at}]{why}")))?;
                }
            }
        }
        messages.end();
        Ok(messages.all)
    }
}

/// Messages, and what the next answer of the model had before its text.
#[derive(Debug, Default)]
struct Messages {
    all: Vec<Value>,
    reasoning: String,
    /// Text of an answer, to which calls may be added.
    answer: Option<Value>,
    calls: Vec<Value>,
}

impl Messages {
    fn push(&mut self, fields: Vec<(&'static str, Value)>) {
        self.all.push(Value::from_pairs(fields));
    }

    /// Ends an answer of the model: text, calls and the reasoning before them are one message to a template.
    fn end(&mut self) {
        let (answer, calls) = (self.answer.take(), std::mem::take(&mut self.calls));
        if answer.is_none() && calls.is_empty() {
            return;
        }
        let mut fields = vec![("role", "assistant".into()), ("content", answer.unwrap_or_else(|| "".into()))];
        let reasoning = std::mem::take(&mut self.reasoning);
        if !reasoning.is_empty() {
            fields.push(("reasoning_content", reasoning.into()));
        }
        if !calls.is_empty() {
            fields.push(("tool_calls", Value::from(calls)));
        }
        self.push(fields);
    }

    fn add(&mut self, item: &Value) -> Result<(), String> {
        let field = |name: &str| item.get_attr(name).ok().filter(|value| !value.is_undefined() && !value.is_none());
        let text = |name: &str| {
            let value = field(name).ok_or_else(|| format!(" has no {name}"))?;
            value.as_str().map(str::to_owned).ok_or_else(|| format!(".{name} is not text"))
        };
        let kind = field("type").map_or_else(|| "message".to_owned(), |kind| kind.to_string());
        match kind.as_str() {
            "message" => {
                let content = field("content").ok_or(" has no content")?;
                match text("role")?.as_str() {
                    "assistant" => {
                        self.end();
                        self.answer = Some(content);
                    }
                    role => {
                        self.end();
                        // Templates know no developers.
                        let role = if role == "developer" { "system" } else { role };
                        self.push(vec![("role", role.into()), ("content", content)]);
                    }
                }
            }
            "function_call" => {
                let function = Value::from_pairs([("name", text("name")?), ("arguments", text("arguments")?)]);
                let call = [("id", text("call_id")?.into()), ("type", "function".into()), ("function", function)];
                self.calls.push(Value::from_pairs(call));
            }
            "function_call_output" => {
                self.end();
                let output = field("output").ok_or(" has no output")?;
                let id = text("call_id")?;
                self.push(vec![("role", "tool".into()), ("tool_call_id", id.into()), ("content", output)]);
            }
            "reasoning" => {
                self.end();
                for part in field("content").and_then(|parts| parts.try_iter().ok()).into_iter().flatten() {
                    let text = part.get_attr("text").unwrap_or_default();
                    self.reasoning.push_str(text.as_str().unwrap_or_default());
                }
            }
            "item_reference" => return Err(" is an item_reference: no response is stored; send the item".into()),
            kind => {
                let known = "message, function_call, function_call_output and reasoning";
                return Err(format!(" is of type {}; this server takes {known}", quoted(kind)));
            }
        }
        Ok(())
    }
}

/// Returns tools in the form of chats, which templates know.
///
/// # Errors
/// Names the place of a tool that is no function.
pub(crate) fn functions(tools: &[Value]) -> Result<Vec<Value>, Failure> {
    let function = |(at, tool): (usize, &Value)| {
        let field = |name: &str| tool.get_attr(name).unwrap_or_default();
        if field("type").as_str() != Some("function") {
            let why =
                format!("tools[{at}] is of type {}; only functions are supported", quoted(&field("type").to_string()));
            return Err(Failure::invalid("tools", why));
        }
        let fields = ["name", "description", "parameters"].map(|name| (name, field(name)));
        let given = fields.into_iter().filter(|(_, value)| !value.is_undefined() && !value.is_none());
        let function = Value::from_pairs(given);
        Ok(Value::from_pairs([("type", Value::from("function")), ("function", function)]))
    };
    tools.iter().enumerate().map(function).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::parse;

    fn asked(json: &str) -> ResponsesAsked {
        parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn items_become_messages_that_templates_know() {
        let asked = asked(
            r#"{"instructions": "be brief", "input": [
            {"role": "developer", "content": "d"},
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "1 + 2?"}]},
            {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "easy"}]},
            {"type": "function_call", "call_id": "a", "name": "add", "arguments": "{}"},
            {"type": "function_call", "call_id": "b", "name": "now", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "3"},
            {"type": "function_call_output", "call_id": "b", "output": "noon"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "3"}]},
            {"role": "user", "content": "more"}]}"#,
        );
        asked.check().unwrap();
        let shown: Vec<String> = asked.messages().unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(shown[..2], ["{'role': 'system', 'content': 'be brief'}", "{'role': 'system', 'content': 'd'}"]);
        assert!(
            shown[3].starts_with("{'role': 'assistant', 'content': '', 'reasoning_content': 'easy', 'tool_calls': ["),
            "{shown:?}"
        );
        assert!(shown[3].contains("'id': 'a'") && shown[3].contains("'id': 'b'"), "{shown:?}");
        assert_eq!(shown[5], "{'role': 'tool', 'tool_call_id': 'b', 'content': 'noon'}");
        assert_eq!((shown.len(), shown[7].as_str()), (8, "{'role': 'user', 'content': 'more'}"));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (json, param) in [
            (r#"{"previous_response_id": "r"}"#, "previous_response_id"),
            (r#"{"conversation": {"id": "c"}}"#, "conversation"),
            (r#"{"store": true}"#, "store"),
            (r#"{"background": true}"#, "background"),
            (r#"{"context_management": [{"type": "compaction"}]}"#, "context_management"),
            (r#"{"truncation": "auto"}"#, "truncation"),
            (r#"{"n": 2}"#, "n"),
            (r#"{"reasoning": {"summary": "detailed"}}"#, "reasoning.summary"),
            (r#"{"include": ["file_search_call.results"]}"#, "include"),
            ("{}", "input"),
            (r#"{"input": [{"type": "web_search_call"}]}"#, "input"),
            (r#"{"input": [{"type": "item_reference", "id": "i"}]}"#, "input"),
            (r#"{"input": [{"role": "user"}]}"#, "input"),
            (r#"{"input": [{"type": "function_call", "call_id": "a", "name": 7}]}"#, "input"),
        ] {
            let asked = asked(json);
            let error = asked.check().and_then(|()| asked.messages().map(drop)).unwrap_err().json();
            assert!(error.contains(&format!(r#""param":"{param}""#)), "{json}: {error}");
        }
        let harmless = r#"{"input": "x", "store": false, "previous_response_id": null, "truncation": "disabled", "background": false,
            "reasoning": {"effort": "low", "summary": "auto"}, "text": {"format": {"type": "text"}, "verbosity": "low"},
            "include": ["reasoning.encrypted_content"], "user": "u"}"#;
        assert!(asked(harmless).check().is_ok());
        let tools =
            parse::<Vec<Value>>(br#"[{"type": "function", "name": "f", "parameters": {}}, {"type": "web_search"}]"#)
                .unwrap();
        let shown = functions(&tools[..1]).unwrap()[0].to_string();
        assert_eq!(shown, "{'type': 'function', 'function': {'name': 'f', 'parameters': {}}}");
        assert!(functions(&tools).unwrap_err().json().contains("tools[1] is of type 'web_search'"));
    }
}
