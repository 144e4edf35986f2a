//! The answer to a request for a response, as events or whole.

use std::sync::Arc;
use std::time::Instant;

use bytes::BytesMut;
use serde::Serialize;
use serde_json::json;
use serde_json::value::Value as Json;
use tokio_stream::StreamExt;
use tonic::Status;
use trunkline_server::proto::FinishReason;
use trunkline_server::{Client, Generation};
use trunkline_template::Value;

use crate::asked::Asked;
use crate::choices::{Choices, Piece};
use crate::events::Writer;
use crate::failure::Failure;
use crate::memory::{Found, Kept, Memory};
use crate::responses::generated::{Generated, Usage};
use crate::responses::input::ResponsesAsked;
use crate::responses::items::{Item, Output};
use crate::responses::references::InputItems;

/// Fields of a request that its answer has again.
#[derive(Debug, Serialize)]
pub(crate) struct Echo {
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
    previous_response_id: Option<String>,
    /// The response is kept, or is to be.
    pub(crate) store: bool,
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

impl Echo {
    /// Returns the fields of a request for `model`, whose response is kept if `store`.
    pub(crate) fn new(model: String, responses: &ResponsesAsked, asked: &Asked, store: bool) -> Self {
        let given = |value: Option<&Json>| value.filter(|value| !value.is_null()).cloned();
        let format = responses.text.as_ref().and_then(|text| given(text.format.as_ref()));
        Self {
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
            previous_response_id: responses.previous_response_id.clone(),
            store,
            background: false,
        }
    }
}

/// Tokens of a response, and of the compaction before it.
#[derive(Serialize)]
struct AllUsage {
    #[serde(flatten)]
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    compaction: Option<Usage>,
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
    usage: Option<AllUsage>,
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

/// Memory for a response that is to be kept.
pub(crate) struct Keeping {
    pub(crate) memory: Arc<Memory>,
    pub(crate) client: Client,
    /// The response that this one went on from, unless a compaction has replaced what was before.
    pub(crate) previous: Option<Found>,
    /// Items of the request's own input.
    pub(crate) input: InputItems,
}

/// A response under way.
pub(crate) struct ResponseWriter {
    pub(crate) id: String,
    pub(crate) created_at: u64,
    pub(crate) echo: Echo,
    pub(crate) output: Output,
    pub(crate) generated: Generated,
    pub(crate) compaction: Option<Usage>,
    pub(crate) keeping: Option<Keeping>,
}

impl ResponseWriter {
    /// Returns the status at the end, and why the response is not complete.
    fn status(&self) -> (&'static str, Option<Incomplete>) {
        match self.generated.reason() {
            None => ("in_progress", None),
            Some(FinishReason::Stop) => ("completed", None),
            Some(FinishReason::Length) => ("incomplete", Some(Incomplete { reason: "max_output_tokens" })),
            Some(FinishReason::Abort | FinishReason::Unspecified) => ("cancelled", None),
        }
    }

    fn response(&self) -> ResponseJson<'_> {
        let (status, incomplete_details) = self.status();
        let ended = self.generated.reason().is_some();
        let usage = || AllUsage { usage: self.generated.usage(), compaction: self.compaction };
        ResponseJson {
            id: &self.id,
            object: "response",
            created_at: self.created_at,
            status,
            error: None,
            incomplete_details,
            output: &self.output.items,
            usage: ended.then(usage),
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
        let (read, logprobs) = self.generated.take(piece);
        self.output.add(out, read, logprobs);
    }

    /// Ends the last item, and keeps the response if that is asked for; it says whether it is kept.
    fn close(&mut self, out: &mut BytesMut) {
        let (status, _) = self.status();
        self.output.close(out, if status == "completed" { status } else { "incomplete" });
        let Some(Keeping { memory, client, previous, input }) = self.keeping.take() else { return };
        self.echo.store = matches!(status, "completed" | "incomplete") && {
            // Nothing in a response can fail to be JSON.
            let response = serde_json::to_vec(&self.response()).unwrap_or_default().into();
            let InputItems { json: input, mut ids } = input;
            ids.extend(self.output.items.iter().map(|item| item.id.as_str().into()));
            memory.keep(&client, &self.id, previous.as_ref(), Kept { input, response, ids }, Instant::now())
        };
    }

    /// Waits for the end, and returns the whole response.
    ///
    /// # Errors
    /// If the request fails.
    pub(crate) async fn whole(mut self, generation: Generation) -> Result<Vec<u8>, Status> {
        let (mut choices, mut unsent) = (Choices::new(vec![generation]), BytesMut::new());
        self.output.begin(&mut unsent);
        while let Some(piece) = choices.next().await {
            self.take(&mut unsent, piece?);
        }
        self.close(&mut unsent);
        Ok(serde_json::to_vec(&self.response()).unwrap_or_default())
    }
}

impl Writer for ResponseWriter {
    fn opening(&mut self, out: &mut BytesMut) {
        self.write(out, "response.created");
        self.write(out, "response.in_progress");
        self.output.begin(out);
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
        // A response that failed is not kept.
        self.echo.store = false;
        let mut events = std::mem::take(&mut self.output.events);
        let error = Some(ErrorJson { code, message });
        let response = ResponseJson { status: "failed", error, ..self.response() };
        events.write(out, "response.failed", &OfResponse { response });
        self.output.events = events;
    }
}
