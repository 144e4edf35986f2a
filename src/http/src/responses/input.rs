//! The body of `/v1/responses`.

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
    pub(crate) previous_response_id: Option<String>,
    context_management: Option<Vec<ContextManagement>>,
    store: Option<bool>,
    background: Option<bool>,
    truncation: Option<String>,
    conversation: Option<Json>,
    n: Option<u32>,
}

/// A way to keep a conversation within the context.
#[derive(Debug, Deserialize)]
struct ContextManagement {
    r#type: String,
    /// Tokens of a prompt beyond which it is compacted.
    compact_threshold: Option<u32>,
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
    /// Refuses what a server cannot honour that `keeps` responses or not.
    ///
    /// # Errors
    /// Names the field.
    pub(crate) fn check(&self, keeps: bool) -> Result<(), Failure> {
        let refused = |param: &str, why: &str| Err(Failure::invalid(param, format!("{param} {why}")));
        let unkept = "this server keeps no responses (--response-bytes 0)";
        if self.previous_response_id.is_some() && !keeps {
            return refused("previous_response_id", &format!("is not supported: {unkept}; send the whole input"));
        }
        if self.store == Some(true) && !keeps {
            return refused("store", &format!("must be false: {unkept}"));
        }
        if self.conversation.as_ref().is_some_and(|conversation| !conversation.is_null()) {
            return refused("conversation", "is not supported; go on by previous_response_id");
        }
        if self.background == Some(true) {
            return refused("background", "is not supported; a response ends with its request");
        }
        for ContextManagement { r#type, compact_threshold } in self.context_management.iter().flatten() {
            if r#type != "compaction" {
                return refused(
                    "context_management",
                    &format!("has the type {}; it must be compaction", quoted(r#type)),
                );
            }
            if *compact_threshold == Some(0) {
                return refused("context_management", "has a compact_threshold of 0; it must be at least 1");
            }
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

    /// Returns `true` if the response is to be kept by a server that `keeps` responses.
    pub(crate) fn stores(&self, keeps: bool) -> bool {
        keeps && self.store != Some(false)
    }

    /// Returns the tokens of a prompt beyond which it is compacted, in a context of `context` tokens: three quarters of it by default.
    pub(crate) fn compact_threshold(&self, context: u32) -> Option<usize> {
        let of_each = |of: &ContextManagement| of.compact_threshold.unwrap_or(context - context / 4) as usize;
        self.context_management.iter().flatten().map(of_each).min()
    }

    /// Returns `true` for log probabilities of the text.
    pub(crate) fn wants_logprobs(&self) -> bool {
        self.include.iter().flatten().any(|name| name == LOGPROBS)
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
    fn what_cannot_be_honoured_is_refused_by_name() {
        for (json, param) in [
            (r#"{"conversation": {"id": "c"}}"#, "conversation"),
            (r#"{"background": true}"#, "background"),
            (r#"{"context_management": [{"type": "truncation"}]}"#, "context_management"),
            (r#"{"context_management": [{"type": "compaction", "compact_threshold": 0}]}"#, "context_management"),
            (r#"{"truncation": "auto"}"#, "truncation"),
            (r#"{"n": 2}"#, "n"),
            (r#"{"reasoning": {"summary": "detailed"}}"#, "reasoning.summary"),
            (r#"{"include": ["file_search_call.results"]}"#, "include"),
        ] {
            let error = asked(json).check(true).unwrap_err().json();
            assert!(error.contains(&format!(r#""param":"{param}""#)), "{json}: {error}");
        }
        for (json, param) in
            [(r#"{"previous_response_id": "r"}"#, "previous_response_id"), (r#"{"store": true}"#, "store")]
        {
            assert!(asked(json).check(true).is_ok() && asked(json).stores(true));
            let error = asked(json).check(false).unwrap_err().json();
            assert!(error.contains(&format!(r#""param":"{param}""#)), "{json}: {error}");
        }
        let harmless = r#"{"input": "x", "store": false, "previous_response_id": null, "context_management": null, "truncation": "disabled", "background": false,
            "reasoning": {"effort": "low", "summary": "auto"}, "text": {"format": {"type": "text"}, "verbosity": "low"},
            "include": ["reasoning.encrypted_content"], "user": "u"}"#;
        assert!(asked(harmless).check(false).is_ok() && !asked(harmless).stores(true));
        assert!(!asked("{}").stores(false));
        let tools =
            parse::<Vec<Value>>(br#"[{"type": "function", "name": "f", "parameters": {}}, {"type": "web_search"}]"#)
                .unwrap();
        let shown = functions(&tools[..1]).unwrap()[0].to_string();
        assert_eq!(shown, "{'type': 'function', 'function': {'name': 'f', 'parameters': {}}}");
        assert!(functions(&tools).unwrap_err().json().contains("tools[1] is of type 'web_search'"));
    }

    #[test]
    fn the_threshold_of_a_compaction_is_the_least_one_or_three_quarters_of_the_context() {
        let threshold = |json: &str| asked(&format!(r#"{{"context_management": {json}}}"#)).compact_threshold(1000);
        assert_eq!((threshold("null"), threshold("[]")), (None, None));
        assert_eq!(threshold(r#"[{"type": "compaction"}]"#), Some(750));
        let two =
            r#"[{"type": "compaction", "compact_threshold": 90}, {"type": "compaction", "compact_threshold": 80}]"#;
        assert_eq!(threshold(two), Some(80));
    }
}
