//! `POST /v1/responses`: the newer form of a chat in OpenAI's API, as far as it needs no memory: a response is not stored.

mod input;
mod items;

use std::time::SystemTime;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use bytes::BytesMut;
use serde::Serialize;
use serde_json::json;
use serde_json::value::Value as Json;
use tokio_stream::StreamExt;
use tonic::Status;
use trunkline_server::Generation;
use trunkline_server::proto::finish::StoppedBy;
use trunkline_server::proto::generate_request::Prompt as WirePrompt;
use trunkline_server::proto::{Finish, FinishReason, TokenIds};
use trunkline_template::{Conversation, Value};
use trunkline_text::Tokenizer;

use crate::asked::{Asked, Own};
use crate::body::{bytes, json_of, parse, stream};
use crate::caching::{CachingAsked, breakpoints};
use crate::chat::tools;
use crate::choices::{Choices, Piece};
use crate::events::{Events, Writer};
use crate::failure::Failure;
use crate::logprobs::spelled;
use crate::marks::{Rendered, marked};
use crate::reader::{Read, Reader};
use crate::responses::input::{ResponsesAsked, functions};
use crate::responses::items::{Item, Output};
use crate::run::{REQUEST_ID, named};
use crate::tool_choice::ToolChoice;
use crate::{Context, now_s};

/// Fields of a request that its answer has again.
#[derive(Debug, Serialize)]
struct Echo {
    model: String,
    instructions: Option<String>,
    max_output_tokens: Option<u32>,
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_logprobs: u32,
    tools: Vec<Value>,
    tool_choice: Json,
    parallel_tool_calls: bool,
    metadata: Option<Json>,
    prompt_cache_key: Option<String>,
    reasoning: ReasoningEcho,
    text: TextEcho,
    truncation: &'static str,
    previous_response_id: Option<()>,
    store: bool,
    background: bool,
}

#[derive(Debug, Serialize)]
struct ReasoningEcho {
    effort: Option<String>,
    summary: Option<()>,
}

#[derive(Debug, Serialize)]
struct TextEcho {
    format: Json,
}

/// Tokens of a response.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Usage {
    input_tokens: u32,
    input_tokens_details: InputDetails,
    output_tokens: u32,
    output_tokens_details: OutputDetails,
    total_tokens: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct InputDetails {
    cached_tokens: u32,
    cache_write_tokens: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct OutputDetails {
    reasoning_tokens: usize,
}

#[derive(Serialize)]
struct ResponseJson<'a> {
    id: &'a str,
    object: &'static str,
    created_at: u64,
    status: &'static str,
    error: Option<ErrorJson<'a>>,
    incomplete_details: Option<Incomplete>,
    output: &'a [Item],
    usage: Option<Usage>,
    #[serde(flatten)]
    echo: &'a Echo,
}

#[derive(Serialize)]
struct ErrorJson<'a> {
    code: &'static str,
    message: &'a str,
}

#[derive(Serialize)]
struct Incomplete {
    reason: &'static str,
}

#[derive(Serialize)]
struct OfResponse<'a> {
    response: ResponseJson<'a>,
}

/// Answers a request.
pub(crate) async fn answer(State(shared): Context, request: Request<Body>) -> Result<Response<Body>, Failure> {
    let (parts, body) = request.into_parts();
    let body = bytes(&shared.front, body).await?;
    let (responses, mut asked): (ResponsesAsked, Asked) = (parse(&body)?, parse(&body)?);
    responses.check()?;
    asked.response_format = responses.response_format()?;
    asked.check()?;
    refuse_values(&asked)?;
    let model = shared.check_model(asked.model.as_deref())?;
    let of_cache: CachingAsked = parse(&body)?;
    let caching = of_cache.check(&shared)?;
    let echo = echo(model, &responses, &asked);
    let conversation = conversation(&responses, &mut asked)?;
    let breakpoints = breakpoints(&conversation.messages)?;
    let text = shared.render(conversation.clone()).await?;
    let choice = ToolChoice::of(asked.tool_choice.as_ref())?;
    let reading = shared.reading(&text, conversation.tools.is_some());
    let parallel = responses.parallel_tool_calls;
    let (reading, forced) = asked.force(reading, &choice, conversation.tools.as_deref(), parallel)?;
    let ids = shared.tokens_of(&parts, text, false).await?;
    let prompt = Rendered { conversation: &conversation, add_special_tokens: false, ids: &ids };
    let marks = shared.cache_hints(&parts, caching, breakpoints, prompt).await?;
    let retention = shared.kv_hints_of_answer(of_cache.kv_hints.as_ref(), marks)?;
    let of = |status| Failure::of(&status);
    let room = shared.front.room_for(ids.len()).map_err(of)?;
    let logprobs = responses.wants_logprobs().then(|| asked.top_logprobs.unwrap_or(0));
    let marked = marked(&retention);
    let max_tokens = responses.max_output_tokens.unwrap_or(room);
    let forces = forced.is_some();
    let own = Own { max_tokens, logprobs, retention, forced, ..Own::default() };
    let header = parts.headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).map(str::to_owned);
    let request_id = asked.request_id.take().or(header).unwrap_or_default();
    let message = asked.message(WirePrompt::TokenIds(TokenIds { ids }), &own, 0, request_id);
    let generation = match shared.front.generate(&parts.extensions, message, None).await {
        Ok(generation) => generation,
        Err(status) => {
            return Err(shared.refused(&status).await.of_call(forces).renamed("response_format", "text.format"));
        }
    };
    let id = generation.client_id().to_owned();
    let writer = ResponseWriter {
        id: format!("resp_{id}"),
        created_at: now_s(),
        echo,
        output: Output::new(id.clone(), asked.streams()),
        reader: Reader::new(reading),
        tokenizer: shared.front.tokenizer().map_err(of)?.clone(),
        prompt: generation.prompt_tokens(),
        marked,
        generated: 0,
        finish: None,
    };
    let response = match asked.streams() {
        true => stream(Events::new(writer, vec![generation])),
        false => writer.whole(generation).await.map_err(|status| Failure::of(&status))?,
    };
    Ok(named(response, &id))
}

fn refuse_values(asked: &Asked) -> Result<(), Failure> {
    let message = "prompt_logprobs has no place in a response; /v1/chat/completions reports them";
    match asked.prompt_logprobs {
        Some(_) => Err(Failure::invalid("prompt_logprobs", message)),
        None => Ok(()),
    }
}

fn echo(model: String, responses: &ResponsesAsked, asked: &Asked) -> Echo {
    let given = |value: Option<&Json>| value.filter(|value| !value.is_null()).cloned();
    let format = responses.text.as_ref().and_then(|text| given(text.format.as_ref()));
    Echo {
        model,
        instructions: responses.instructions.clone(),
        max_output_tokens: responses.max_output_tokens,
        temperature: asked.temperature,
        top_p: asked.top_p,
        top_logprobs: asked.top_logprobs.unwrap_or(0),
        tools: asked.tools.clone().unwrap_or_default(),
        tool_choice: given(asked.tool_choice.as_ref()).unwrap_or_else(|| "auto".into()),
        parallel_tool_calls: responses.parallel_tool_calls.unwrap_or(true),
        metadata: responses.metadata.clone(),
        prompt_cache_key: responses.prompt_cache_key.clone(),
        reasoning: ReasoningEcho {
            effort: responses.reasoning.as_ref().and_then(|of| of.effort.clone()),
            summary: None,
        },
        text: TextEcho { format: format.unwrap_or_else(|| json!({"type": "text"})) },
        truncation: "disabled",
        previous_response_id: None,
        store: false,
        background: false,
    }
}

/// Returns the conversation of a request.
fn conversation(responses: &ResponsesAsked, asked: &mut Asked) -> Result<Conversation, Failure> {
    let mut conversation = Conversation::new(responses.messages()?, SystemTime::now());
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

/// A response under way.
struct ResponseWriter {
    id: String,
    created_at: u64,
    echo: Echo,
    output: Output,
    reader: Option<Reader>,
    tokenizer: Tokenizer,
    /// Tokens of the prompt, and those that the cache is to keep.
    prompt: u32,
    marked: u32,
    generated: u32,
    finish: Option<Finish>,
}

impl ResponseWriter {
    fn usage(&self) -> Usage {
        let usage = self.finish.as_ref().and_then(|finish| finish.usage).unwrap_or_default();
        let cached = usage.cached_tokens;
        let written = self.marked.min(self.prompt).saturating_sub(cached + usage.copied_tokens);
        Usage {
            input_tokens: self.prompt,
            input_tokens_details: InputDetails { cached_tokens: cached, cache_write_tokens: written },
            output_tokens: self.generated,
            output_tokens_details: OutputDetails {
                reasoning_tokens: self.reader.as_ref().map_or(0, Reader::reasoning_tokens),
            },
            total_tokens: self.prompt + self.generated,
        }
    }

    /// Returns the status at the end, and why the response is not complete.
    fn status(&self) -> (&'static str, Option<Incomplete>) {
        match self.finish.as_ref().map(Finish::reason) {
            None => ("in_progress", None),
            Some(FinishReason::Stop) => ("completed", None),
            Some(FinishReason::Length) => ("incomplete", Some(Incomplete { reason: "max_output_tokens" })),
            Some(FinishReason::Abort | FinishReason::Unspecified) => ("cancelled", None),
        }
    }

    fn response(&self) -> ResponseJson<'_> {
        let (status, incomplete_details) = self.status();
        ResponseJson {
            id: &self.id,
            object: "response",
            created_at: self.created_at,
            status,
            error: None,
            incomplete_details,
            output: &self.output.items,
            usage: self.finish.is_some().then(|| self.usage()),
            echo: &self.echo,
        }
    }

    /// Appends an event with the response.
    fn write(&mut self, out: &mut BytesMut, name: &str) {
        let mut events = std::mem::take(&mut self.output.events);
        events.write(out, name, &OfResponse { response: self.response() });
        self.output.events = events;
    }

    fn take(&mut self, out: &mut BytesMut, piece: Piece) {
        let chunk = piece.chunk.unwrap_or_default();
        self.generated += u32::try_from(chunk.token_ids.len()).unwrap_or(u32::MAX);
        let mut logprobs = spelled(&self.tokenizer, &chunk.logprobs).content;
        let read = match &mut self.reader {
            None => Read { text: chunk.text, ..Read::default() },
            Some(reader) => {
                let mut read = reader.push(&chunk.text, &chunk.token_ids, &self.tokenizer);
                if let Some(finish) = &piece.finish {
                    read.add(reader.finish(matches!(finish.stopped_by, Some(StoppedBy::StopTokenId(_)))));
                }
                if read.text.is_empty() {
                    // Of reasoning, or of a call.
                    logprobs.clear();
                }
                read
            }
        };
        self.output.add(out, read, logprobs);
        self.finish = piece.finish.or(self.finish.take());
    }

    fn close(&mut self, out: &mut BytesMut) {
        let (status, _) = self.status();
        self.output.close(out, if status == "completed" { status } else { "incomplete" });
    }

    async fn whole(mut self, generation: Generation) -> Result<Response<Body>, Status> {
        let (mut choices, mut unsent) = (Choices::new(vec![generation]), BytesMut::new());
        while let Some(piece) = choices.next().await {
            self.take(&mut unsent, piece?);
        }
        self.close(&mut unsent);
        Ok(json_of(&self.response()))
    }
}

impl Writer for ResponseWriter {
    fn opening(&mut self, out: &mut BytesMut) {
        self.write(out, "response.created");
        self.write(out, "response.in_progress");
    }

    fn piece(&mut self, out: &mut BytesMut, piece: Piece) {
        self.take(out, piece);
    }

    fn end(&mut self, out: &mut BytesMut) {
        self.close(out);
        let name = match self.status() {
            ("completed", _) => "response.completed",
            _ => "response.incomplete",
        };
        self.write(out, name);
    }

    fn failure(&mut self, out: &mut BytesMut, failure: &Failure) {
        let (kind, message) = failure.kind_and_message();
        let code = if kind == "rate_limit_error" { "rate_limit_exceeded" } else { "server_error" };
        let mut events = std::mem::take(&mut self.output.events);
        let error = Some(ErrorJson { code, message });
        let response = ResponseJson { status: "failed", error, ..self.response() };
        events.write(out, "response.failed", &OfResponse { response });
        self.output.events = events;
    }
}
