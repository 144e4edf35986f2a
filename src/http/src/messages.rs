//! `POST /v1/messages`: Anthropic's form of a chat, whose `cache_control` marks what the prefix cache is to keep.
//!
//! A mark within a message counts from the message's end.

mod blocks;

use std::time::SystemTime;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse;
use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use tokio_stream::StreamExt;
use tonic::Status;
use trunkline_quote::quoted;
use trunkline_server::Generation;
use trunkline_server::proto::finish::StoppedBy;
use trunkline_server::proto::generate_request::Prompt as WirePrompt;
use trunkline_server::proto::sampling::Structure;
use trunkline_server::proto::{self, Finish, FinishReason, RetentionHint, TokenIds};
use trunkline_template::{Conversation, Value};
use trunkline_text::Tokenizer;

use crate::body::{json_of, read, stream};
use crate::choices::{Choices, Piece};
use crate::events::{Events, Writer};
use crate::failure::Failure;
use crate::marks::{Rendered, hints, marked};
use crate::messages::blocks::{Block, Blocks, event};
use crate::reader::{Read, Reader, Reading};
use crate::run::{REQUEST_ID, named};
use crate::strict::{strict_names, structure};
use crate::tool_choice::ToolChoice;
use crate::{Context, Shared};

/// Marks of one request, at most, as in Anthropic's API.
const MARKS_MAX: usize = 4;
/// Times of a mark by name, milliseconds; the first is the default.
const TTLS: [(&str, u64); 2] = [("5m", 300_000), ("1h", 3_600_000)];

/// Body of a request. Unknown fields are ignored.
#[derive(Debug, Deserialize)]
pub(crate) struct MessagesAsked {
    model: Option<String>,
    max_tokens: u32,
    system: Option<Content>,
    messages: Vec<Message>,
    stop_sequences: Option<Vec<String>>,
    stream: Option<bool>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Choice>,
    thinking: Option<Thinking>,
}

#[derive(Debug, Deserialize)]
struct Message {
    role: String,
    content: Content,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text or a list of blocks")]
enum Content {
    Text(String),
    Blocks(Vec<Given>),
}

/// A block of a message of the conversation.
#[derive(Debug, Deserialize)]
struct Given {
    r#type: String,
    text: Option<String>,
    /// Of the reasoning before an answer.
    thinking: Option<String>,
    cache_control: Option<CacheControl>,
    /// Of a call of a tool.
    id: Option<String>,
    name: Option<String>,
    input: Option<serde_json::Value>,
    /// Of a tool's result.
    tool_use_id: Option<String>,
    content: Option<Box<Content>>,
}

#[derive(Debug, Deserialize)]
struct CacheControl {
    ttl: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Choice {
    r#type: String,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct Thinking {
    r#type: String,
}

/// Messages for the template, and marks: how many of them each covers, and its time.
#[derive(Debug, Default)]
struct Translated {
    messages: Vec<Value>,
    marks: Vec<(usize, u64)>,
}

impl Translated {
    fn push(&mut self, fields: Vec<(&'static str, Value)>) {
        self.messages.push(Value::from_pairs(fields));
    }

    /// Adds a message, whose place in the request is `at`.
    fn add(&mut self, at: &str, role: &str, content: &Content) -> Result<(), Failure> {
        let blocks = match content {
            Content::Text(text) => {
                self.push(vec![("role", role.into()), ("content", text.as_str().into())]);
                return Ok(());
            }
            Content::Blocks(blocks) => blocks,
        };
        let (mut text, mut thinking, mut calls, mut mark) = (String::new(), String::new(), Vec::new(), None);
        for (n, block) in blocks.iter().enumerate() {
            let place = format!("{at}.content[{n}]");
            match block.r#type.as_str() {
                "text" => {
                    let new = block.text.as_deref().ok_or_else(|| missing(&place, "text"))?;
                    text.push_str(if text.is_empty() { "" } else { "\n" });
                    text.push_str(new);
                }
                "thinking" => {
                    thinking.push_str(block.thinking.as_deref().ok_or_else(|| missing(&place, "thinking"))?);
                }
                "tool_use" => calls.push(call(&place, block)?),
                "tool_result" => {
                    let id = block.tool_use_id.as_deref().ok_or_else(|| missing(&place, "tool_use_id"))?;
                    let result =
                        block.content.as_deref().map_or(Ok(String::new()), |content| plain(&place, content))?;
                    self.push(vec![("role", "tool".into()), ("tool_call_id", id.into()), ("content", result.into())]);
                }
                other => {
                    let why = "this server takes text, thinking, tool_use and tool_result";
                    return Err(Failure::invalid("messages", format!("{place} is of type {}; {why}", quoted(other))));
                }
            }
            if let Some(control) = &block.cache_control {
                mark = Some(ttl_ms(&place, control)?);
            }
        }
        if !text.is_empty() || !calls.is_empty() {
            let mut fields = vec![("role", role.into()), ("content", text.into())];
            if !thinking.is_empty() {
                fields.push(("reasoning_content", thinking.into()));
            }
            if !calls.is_empty() {
                fields.push(("tool_calls", Value::from(calls)));
            }
            self.push(fields);
        }
        // A mark within a message counts from its end: the tokens of a part of a message are not known.
        self.marks.extend(mark.map(|ttl_ms| (self.messages.len(), ttl_ms)));
        Ok(())
    }
}

fn missing(place: &str, field: &str) -> Failure {
    Failure::invalid("messages", format!("{place} has no {field}"))
}

/// Returns a call of a tool as OpenAI's API has it, which templates know.
fn call(place: &str, block: &Given) -> Result<Value, Failure> {
    let name = block.name.as_deref().ok_or_else(|| missing(place, "name"))?;
    let arguments = block.input.as_ref().map_or_else(|| "{}".to_owned(), serde_json::Value::to_string);
    let function = Value::from_pairs([("name", name), ("arguments", &arguments)]);
    let id = block.id.clone().unwrap_or_default();
    Ok(Value::from_pairs([("id", id.into()), ("type", "function".into()), ("function", function)]))
}

/// Returns the text of a tool's result.
fn plain(place: &str, content: &Content) -> Result<String, Failure> {
    let blocks = match content {
        Content::Text(text) => return Ok(text.clone()),
        Content::Blocks(blocks) => blocks,
    };
    let text = |block: &Given| block.text.clone().ok_or_else(|| missing(place, "text"));
    Ok(blocks.iter().map(text).collect::<Result<Vec<_>, _>>()?.join("\n"))
}

fn ttl_ms(place: &str, control: &CacheControl) -> Result<u64, Failure> {
    let Some(name) = control.ttl.as_deref() else { return Ok(TTLS[0].1) };
    let known = TTLS.iter().find(|(known, _)| *known == name);
    let wrong =
        || Failure::invalid("cache_control", format!("{place} has the ttl {}; it may be 5m or 1h", quoted(name)));
    known.map(|(_, ttl_ms)| *ttl_ms).ok_or_else(wrong)
}

impl MessagesAsked {
    fn translate(&self) -> Result<Translated, Failure> {
        if self.thinking.as_ref().is_some_and(|thinking| thinking.r#type != "disabled") {
            return Err(Failure::invalid(
                "thinking",
                "thinking cannot be asked for; a model that thinks has thinking blocks with --reasoning-parser",
            ));
        }
        let mut translated = Translated::default();
        if let Some(system) = &self.system {
            translated.add("system", "system", system)?;
        }
        for (n, message) in self.messages.iter().enumerate() {
            translated.add(&format!("messages[{n}]"), &message.role, &message.content)?;
        }
        if translated.marks.len() > MARKS_MAX {
            let n = translated.marks.len();
            return Err(Failure::invalid(
                "cache_control",
                format!("{n} blocks have cache_control; at most {MARKS_MAX} may"),
            ));
        }
        Ok(translated)
    }

    fn choice(&self) -> Result<ToolChoice, Failure> {
        let Some(choice) = &self.tool_choice else { return Ok(ToolChoice::Auto) };
        match (choice.r#type.as_str(), &choice.name) {
            ("auto", _) => Ok(ToolChoice::Auto),
            ("none", _) => Ok(ToolChoice::None),
            ("any", _) => Ok(ToolChoice::Required),
            ("tool", Some(name)) => Ok(ToolChoice::Named(name.clone())),
            ("tool", None) => Err(Failure::invalid("tool_choice", "tool_choice is of type tool, and has no name")),
            (other, _) => {
                let why = format!("tool_choice is of type {}; it may be auto, none, any or tool", quoted(other));
                Err(Failure::invalid("tool_choice", why))
            }
        }
    }

    /// Returns the tools in the form of OpenAI's API.
    fn tools(&self, choice: &ToolChoice) -> Option<Vec<Value>> {
        let tools = self.tools.as_ref().filter(|tools| *choice != ToolChoice::None && !tools.is_empty())?;
        let tool = |tool: &Value| {
            let field = |name: &str| tool.get_attr(name).unwrap_or_default();
            let function = Value::from_pairs([
                ("name", field("name")),
                ("description", field("description")),
                ("parameters", field("input_schema")),
            ]);
            Value::from_pairs([("type", Value::from("function")), ("function", function)])
        };
        Some(tools.iter().map(tool).collect())
    }

    fn request(
        &self,
        ids: Vec<u32>,
        retention: Vec<RetentionHint>,
        shows_special: bool,
        forced: Option<Structure>,
        request_id: String,
    ) -> proto::GenerateRequest {
        let sampling = proto::Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k.unwrap_or(0),
            structure: forced,
            ..proto::Sampling::default()
        };
        let stop = self.stop_sequences.clone().unwrap_or_default();
        let stopping = proto::Stopping { max_tokens: Some(self.max_tokens), stop, ..proto::Stopping::default() };
        proto::GenerateRequest {
            request_id,
            prompt: Some(WirePrompt::TokenIds(TokenIds { ids })),
            sampling: Some(sampling),
            stopping: Some(stopping),
            output: Some(proto::Output {
                skip_special_tokens: shows_special.then_some(false),
                ..proto::Output::default()
            }),
            retention,
            ..proto::GenerateRequest::default()
        }
    }
}

/// Answers a request; failures have Anthropic's form.
pub(crate) async fn answer(State(shared): Context, request: Request<Body>) -> Response<Body> {
    let answered = try_answer(&shared, request).await;
    answered.unwrap_or_else(|failure| {
        let body = error_json(&failure);
        let mut response = failure.into_response();
        *response.body_mut() = Body::from(body);
        if response.status() == StatusCode::SERVICE_UNAVAILABLE {
            // Anthropic's clients know this one.
            *response.status_mut() = StatusCode::from_u16(529).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
        }
        response
    })
}

#[derive(Serialize)]
struct ErrorJson<'a> {
    r#type: &'static str,
    error: ErrorOf<'a>,
}

#[derive(Serialize)]
struct ErrorOf<'a> {
    r#type: &'a str,
    message: &'a str,
}

fn error_json(failure: &Failure) -> String {
    let (kind, message) = failure.kind_and_message();
    let kind = match kind {
        "internal_server_error" => "api_error",
        "service_unavailable_error" => "overloaded_error",
        kind => kind,
    };
    serde_json::to_string(&ErrorJson { r#type: "error", error: ErrorOf { r#type: kind, message } }).unwrap_or_default()
}

async fn try_answer(shared: &Shared, request: Request<Body>) -> Result<Response<Body>, Failure> {
    let (parts, body) = request.into_parts();
    let asked: MessagesAsked = read(&shared.front, body).await?;
    let model = shared.check_model(asked.model.as_deref())?;
    let translated = asked.translate()?;
    let mut conversation = Conversation::new(translated.messages, SystemTime::now());
    let choice = asked.choice()?;
    conversation.tools = asked.tools(&choice);
    let text = shared.render(conversation.clone()).await?;
    let one_call = asked.tool_choice.as_ref().and_then(|choice| choice.disable_parallel_tool_use) == Some(true);
    let forced = choice.structure(conversation.tools.as_deref(), one_call)?;
    let reading = Reading { one_call, ..shared.reading(&text, conversation.tools.is_some()) };
    let (reading, forced) = match forced {
        Some(_) => (reading.structured(true), forced),
        None => {
            let strict = asked.tools.as_deref().map(strict_names).unwrap_or_default();
            let strict = structure(reading.calls, conversation.tools.as_deref(), &strict, shared.structures())?;
            (reading, strict)
        }
    };
    let ids = shared.tokens_of(&parts, text, false).await?;
    let prompt = Rendered { conversation: &conversation, add_special_tokens: false, ids: &ids };
    let mut ends = Vec::new();
    for (n, ttl_ms) in translated.marks {
        ends.push((shared.end(&parts, conversation.messages[..n].to_vec(), prompt).await?, ttl_ms));
    }
    let hints = hints(&ends);
    let marked = marked(&hints);
    let request_id = parts.headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned();
    let forces = forced.is_some();
    let message = asked.request(ids, hints, reading.hides_stop, forced, request_id);
    let generation = match shared.front.generate(&parts.extensions, message, None).await {
        Ok(generation) => generation,
        Err(status) => return Err(shared.refused(&status).await.of_call(forces)),
    };
    let id = generation.client_id().to_owned();
    let writer = MessageWriter {
        id: format!("msg_{id}"),
        model,
        prompt: generation.prompt_tokens(),
        marked,
        reader: Reader::new(reading),
        tokenizer: Some(shared.front.tokenizer().map_err(|status| Failure::of(&status))?.clone()),
        ..Default::default()
    };
    let response = if asked.stream == Some(true) {
        stream(Events::new(writer, vec![generation]))
    } else {
        writer.whole(generation).await.map_err(|status| Failure::of(&status))?
    };
    Ok(named(response, &id))
}

#[derive(Default)]
struct MessageWriter {
    id: String,
    model: String,
    /// Tokens of the prompt, and those up to the last mark.
    prompt: u32,
    marked: u32,
    generated: u32,
    blocks: Blocks,
    reader: Option<Reader>,
    /// For the reader.
    tokenizer: Option<Tokenizer>,
    finish: Option<Finish>,
}

#[derive(Serialize)]
struct MessageJson<'a> {
    id: &'a str,
    r#type: &'static str,
    role: &'static str,
    model: &'a str,
    content: &'a [Block],
    stop_reason: Option<&'static str>,
    stop_sequence: Option<&'a str>,
    usage: Usage,
}

/// Tokens of a message; those of the input are in one of three places.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Usage {
    input_tokens: u32,
    cache_creation_input_tokens: u32,
    cache_read_input_tokens: u32,
    output_tokens: u32,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[expect(clippy::enum_variant_names, reason = "the names of the API")]
enum Event<'a> {
    MessageStart { message: MessageJson<'a> },
    MessageDelta { delta: Ended<'a>, usage: Usage },
    MessageStop,
}

#[derive(Serialize)]
struct Ended<'a> {
    stop_reason: Option<&'static str>,
    stop_sequence: Option<&'a str>,
}

impl MessageWriter {
    fn usage(&self) -> Usage {
        let usage = self.finish.as_ref().and_then(|finish| finish.usage).unwrap_or_default();
        let read = usage.cached_tokens + usage.copied_tokens;
        let created = self.marked.saturating_sub(read);
        Usage {
            input_tokens: self.prompt.saturating_sub(read + created),
            cache_creation_input_tokens: created,
            cache_read_input_tokens: read,
            output_tokens: self.generated,
        }
    }

    fn ended(&self) -> Ended<'_> {
        let Some(finish) = &self.finish else { return Ended { stop_reason: None, stop_sequence: None } };
        let stop_sequence = match &finish.stopped_by {
            Some(StoppedBy::StopString(text)) => Some(text.as_str()),
            _ => None,
        };
        let stop_reason = Some(match finish.reason() {
            FinishReason::Stop if stop_sequence.is_some() => "stop_sequence",
            FinishReason::Length => "max_tokens",
            _ if self.reader.as_ref().is_some_and(Reader::has_calls) => "tool_use",
            _ => "end_turn",
        });
        Ended { stop_reason, stop_sequence }
    }

    fn message(&self) -> MessageJson<'_> {
        let Ended { stop_reason, stop_sequence } = self.ended();
        let (id, model, content, usage) = (&self.id, &self.model, &self.blocks.all, self.usage());
        MessageJson { id, r#type: "message", role: "assistant", model, content, stop_reason, stop_sequence, usage }
    }

    fn take(&mut self, out: &mut BytesMut, piece: Piece) {
        let chunk = piece.chunk.unwrap_or_default();
        self.generated += u32::try_from(chunk.token_ids.len()).unwrap_or(u32::MAX);
        let read = match (&mut self.reader, &self.tokenizer) {
            (Some(reader), Some(tokenizer)) => {
                let mut read = reader.push(&chunk.text, &chunk.token_ids, tokenizer);
                if let Some(finish) = &piece.finish {
                    read.add(reader.finish(matches!(finish.stopped_by, Some(StoppedBy::StopTokenId(_)))));
                }
                read
            }
            _ => Read { text: chunk.text, ..Read::default() },
        };
        self.blocks.add(out, read);
        self.finish = piece.finish.or(self.finish.take());
    }

    async fn whole(mut self, generation: Generation) -> Result<Response<Body>, Status> {
        let (mut choices, mut unsent) = (Choices::new(vec![generation]), BytesMut::new());
        while let Some(piece) = choices.next().await {
            self.take(&mut unsent, piece?);
            unsent.clear();
        }
        self.blocks.end(&mut unsent);
        Ok(json_of(&self.message()))
    }
}

impl Writer for MessageWriter {
    fn opening(&mut self, out: &mut BytesMut) {
        event(out, "message_start", &Event::MessageStart { message: self.message() });
    }

    fn piece(&mut self, out: &mut BytesMut, piece: Piece) {
        self.take(out, piece);
    }

    fn end(&mut self, out: &mut BytesMut) {
        self.blocks.end(out);
        event(out, "message_delta", &Event::MessageDelta { delta: self.ended(), usage: self.usage() });
        event(out, "message_stop", &Event::MessageStop);
    }

    fn failure(&mut self, out: &mut BytesMut, failure: &Failure) {
        out.put_slice(b"event: error\ndata: ");
        out.extend_from_slice(&Bytes::from(error_json(failure)));
        out.put_slice(b"\n\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::parse;

    fn asked(json: &str) -> MessagesAsked {
        parse(json.as_bytes()).unwrap()
    }

    #[test]
    fn blocks_become_messages_that_templates_know_and_marks_count_them() {
        let asked = asked(
            r#"{"max_tokens": 5, "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
            "messages": [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"x": 1}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "one"}]},
                    {"type": "text", "text": "and?", "cache_control": {"type": "ephemeral"}}]}
            ]}"#,
        );
        let Translated { messages, marks } = asked.translate().unwrap();
        let shown: Vec<String> = messages.iter().map(ToString::to_string).collect();
        assert_eq!(shown[0], "{'role': 'system', 'content': 'be brief'}");
        assert!(shown[2].contains(r#"'arguments': '{"x":1}'"#), "{}", shown[2]);
        assert_eq!(shown[3], "{'role': 'tool', 'tool_call_id': 't', 'content': 'one'}");
        assert_eq!(shown[4], "{'role': 'user', 'content': 'and?'}");
        assert_eq!(marks, [(1, 3_600_000), (5, 300_000)]);
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_with_its_place() {
        let refused = |json: &str| {
            let asked = asked(json);
            asked.choice().and_then(|_| asked.translate()).unwrap_err().json()
        };
        for (part, why) in [
            (
                r#""messages": [{"role": "user", "content": [{"type": "image"}]}]"#,
                "messages[0].content[0] is of type 'image'",
            ),
            (r#""messages": [{"role": "user", "content": [{"type": "text"}]}]"#, "messages[0].content[0] has no text"),
            (r#""messages": [], "tool_choice": {"type": "all"}"#, "it may be auto, none, any or tool"),
            (r#""messages": [], "tool_choice": {"type": "tool"}"#, "is of type tool, and has no name"),
            (r#""messages": [], "thinking": {"type": "enabled", "budget_tokens": 9}"#, "thinking cannot be asked for"),
            (
                r#""messages": [], "system": [{"type": "text", "text": "a", "cache_control": {"ttl": "1d"}}]"#,
                "it may be 5m or 1h",
            ),
        ] {
            let json = refused(&format!("{{\"max_tokens\": 5, {part}}}"));
            assert!(json.contains(why), "{json}");
        }
    }

    #[test]
    fn the_input_is_counted_once() {
        let finish = |cached_tokens| {
            let usage = proto::Usage { cached_tokens, ..proto::Usage::default() };
            Some(Finish { usage: Some(usage), ..Finish::default() })
        };
        let usage =
            |cached| MessageWriter { prompt: 100, marked: 80, finish: finish(cached), ..Default::default() }.usage();
        let counts =
            |usage: Usage| (usage.input_tokens, usage.cache_creation_input_tokens, usage.cache_read_input_tokens);
        assert_eq!(counts(usage(0)), (20, 80, 0));
        assert_eq!(counts(usage(64)), (20, 16, 64));
        assert_eq!(counts(usage(96)), (4, 0, 96));
    }
}
