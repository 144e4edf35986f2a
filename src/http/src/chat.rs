//! `POST /v1/chat/completions`: the messages of a chat, made a prompt by the model's template, and continued.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Body;
use axum::extract::State;
use axum::http::{Request, Response};
use serde::{Deserialize, Serialize};
use trunkline_server::proto::TokenIds;
use trunkline_server::proto::generate_request::Prompt as WirePrompt;
use trunkline_server::proto::sampling::Structure;
use trunkline_template::{ChatTemplate, Conversation, TemplateError, Value};
use trunkline_text::Tokenizer;

use crate::answers::{Api, Part, StopReason};
use crate::asked::{Asked, Logprobs, Own};
use crate::body::{bytes, parse};
use crate::caching::{CachingAsked, breakpoints};
use crate::failure::Failure;
use crate::logprobs::{Spelled, spelled};
use crate::marks::Rendered;
use crate::prompt_values::{Prompt, Wanted};
use crate::reader::{Reading, ToolCall};
use crate::run::{Run, run};
use crate::strict::{strict_names, structure};
use crate::tool_choice::ToolChoice;
use crate::{Context, Shared};

/// The form of answers of `/v1/chat/completions`.
pub(crate) struct Chats;

#[derive(Serialize)]
struct Event<'a> {
    index: usize,
    delta: Delta<'a>,
    logprobs: Option<Spelled>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<&'a StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
}

#[derive(Serialize)]
struct Delta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(flatten)]
    read: Read<'a>,
}

/// What was read alongside the content.
#[derive(Default, Serialize)]
struct Read<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    reasoning: &'a str,
    /// The reasoning again, where older clients of vLLM look for it.
    #[serde(skip_serializing_if = "str::is_empty")]
    reasoning_content: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tool_calls: Cow<'a, [ToolCall]>,
}

impl<'a> Read<'a> {
    fn of(part: &'a Part) -> Self {
        let tool_calls = Cow::Borrowed(&*part.calls);
        Self { reasoning: &part.reasoning, reasoning_content: &part.reasoning, tool_calls }
    }

    /// Leaves out the places of the calls, which are those of the list.
    fn whole(mut self) -> Self {
        self.tool_calls.to_mut().iter_mut().for_each(|call| call.index = None);
        self
    }
}

#[derive(Serialize)]
struct Whole<'a> {
    index: usize,
    message: Message<'a>,
    logprobs: Option<Spelled>,
    finish_reason: Option<&'static str>,
    stop_reason: Option<&'a StopReason>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<&'a [u32]>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: Option<&'a str>,
    refusal: Option<()>,
    #[serde(flatten)]
    read: Read<'a>,
}

/// Returns the content; `None` where there is reasoning or a call instead.
fn content(part: &Part) -> Option<&str> {
    let has_other = !part.reasoning.is_empty() || !part.calls.is_empty();
    Some(&*part.text).filter(|text| !text.is_empty() || !has_other)
}

fn logprobs(part: &Part, tokenizer: &Tokenizer) -> Option<Spelled> {
    (!part.logprobs.is_empty()).then(|| spelled(tokenizer, &part.logprobs))
}

impl Api for Chats {
    const ID: &'static str = "chatcmpl-";
    const OBJECTS: [&'static str; 2] = ["chat.completion.chunk", "chat.completion"];

    fn opening(index: usize) -> Option<impl Serialize> {
        let delta = Delta { role: Some("assistant"), content: Some(""), read: Read::default() };
        Some(Event { index, delta, logprobs: None, finish_reason: None, stop_reason: None, token_ids: None })
    }

    fn event<'a>(part: &'a Part, _: Option<&'a Prompt>, tokenizer: &'a Tokenizer) -> impl Serialize + use<'a> {
        Event {
            index: part.index,
            delta: Delta { role: None, content: content(part), read: Read::of(part) },
            logprobs: logprobs(part, tokenizer),
            finish_reason: part.finish_reason,
            stop_reason: part.stop_reason.as_ref(),
            token_ids: part.token_ids.as_deref(),
        }
    }

    fn whole<'a>(part: &'a Part, _: &'a Prompt, tokenizer: &'a Tokenizer) -> impl Serialize + use<'a> {
        Whole {
            index: part.index,
            message: Message { role: "assistant", content: content(part), refusal: None, read: Read::of(part).whole() },
            logprobs: logprobs(part, tokenizer),
            finish_reason: part.finish_reason,
            stop_reason: part.stop_reason.as_ref(),
            token_ids: part.token_ids.as_deref(),
        }
    }
}

/// Fields of `/v1/chat/completions` besides those of [`Asked`] and [`CachingAsked`].
#[derive(Debug, Default, Deserialize)]
struct ChatAsked {
    /// `false` for one call of a tool at most: further ones are left out.
    parallel_tool_calls: Option<bool>,
}

pub(crate) async fn complete(State(shared): Context, request: Request<Body>) -> Result<Response<Body>, Failure> {
    let (parts, body) = request.into_parts();
    let body = bytes(&shared.front, body).await?;
    let (mut asked, chat): (Asked, ChatAsked) = (parse(&body)?, parse(&body)?);
    asked.check()?;
    shared.check_model(asked.model.as_deref())?;
    let of_cache: CachingAsked = parse(&body)?;
    let caching = of_cache.check(&shared)?;
    let logprobs = top_logprobs(&asked)?;
    shared.template()?;
    let conversation = conversation(&mut asked)?;
    let breakpoints = breakpoints(&conversation.messages)?;
    let text = shared.render(conversation.clone()).await?;
    let reading = shared.reading(&text, conversation.tools.is_some());
    let choice = ToolChoice::of(asked.tool_choice.as_ref())?;
    let (reading, forced) =
        asked.force(reading, &choice, conversation.tools.as_deref(), chat.parallel_tool_calls, shared.structures())?;
    let add_special_tokens = asked.add_special_tokens.unwrap_or(false);
    let ids = shared.tokens_of(&parts, text, add_special_tokens).await?;
    let prompt = Rendered { conversation: &conversation, add_special_tokens, ids: &ids };
    let marks = shared.cache_hints(&parts, caching, breakpoints, prompt).await?;
    let hints = shared.kv_hints(of_cache.kv_hints.as_ref(), marks)?;
    let room = shared.front.room_for(ids.len()).map_err(|status| Failure::of(&status))?;
    let max_tokens = asked.max_completion_tokens.or(asked.max_tokens).unwrap_or(room);
    let prefetch = hints.prefetches(asked.max_completion_tokens.or(asked.max_tokens), asked.n())?;
    let retention = hints.retention;
    let prompts = vec![WirePrompt::TokenIds(TokenIds { ids })];
    let wanted = Wanted { shown: asked.prompt_logprobs()?, ..Wanted::default() };
    let own = Own { max_tokens, logprobs, retention, prefetch, wanted, forced };
    run::<Chats>(&shared, &parts, Run { asked, own, prompts, reading, echoes: Vec::new(), prompts_alone: false }).await
}

impl Asked {
    /// Returns what is to be read in the answers, and their structure if they have to call one of `tools`, or to be strict where they do. Marks that are special tokens are shown then,
    /// unless the client says otherwise.
    ///
    /// # Errors
    /// If no call can be forced.
    pub(crate) fn force(
        &mut self,
        reading: Reading,
        choice: &ToolChoice,
        tools: Option<&[Value]>,
        parallel_tool_calls: Option<bool>,
        offer: Option<&Tokenizer>,
    ) -> Result<(Reading, Option<Structure>), Failure> {
        let one_call = parallel_tool_calls == Some(false);
        let forced = choice.structure(tools, one_call)?;
        if forced.is_some() && self.structured_outputs.is_some() {
            let why = "structured_outputs is set alongside a tool_choice that forces a call; send one of them";
            return Err(Failure::invalid("structured_outputs", why));
        }
        let mut reading = Reading { one_call, ..reading };
        let free = forced.is_none() && self.structure()?.is_none();
        if !free {
            reading = reading.structured(forced.is_some());
        }
        // Where nothing else is asked of the answer, and the workers can do it.
        let offer = offer.filter(|_| free && self.ignore_eos != Some(true));
        let strict = structure(reading.calls, tools, &self.strict, offer)?;
        let forced = forced.or(strict);
        match self.skip_special_tokens {
            Some(_) => reading.hides_stop = false,
            None => self.skip_special_tokens = reading.hides_stop.then_some(false),
        }
        Ok((reading, forced))
    }
}

/// Returns the number of most likely tokens to report with each token; `None` for no log probabilities.
fn top_logprobs(asked: &Asked) -> Result<Option<u32>, Failure> {
    match (asked.logprobs, asked.top_logprobs) {
        (Some(Logprobs::Switch(true)), top) => Ok(Some(top.unwrap_or(0))),
        (Some(Logprobs::Number(_)), _) => Err(Failure::invalid(
            "logprobs",
            "logprobs is a number; in a chat it is true or false, and top_logprobs the number",
        )),
        (_, Some(1..)) => Err(Failure::invalid("top_logprobs", "top_logprobs needs logprobs to be true")),
        _ => Ok(None),
    }
}

impl Shared {
    /// Returns what is to be read in the answers to a prompt, with special tokens shown if marks may be such.
    pub(crate) fn reading(&self, prompt: &str, has_tools: bool) -> Reading {
        Reading::of((self.settings.reasoning_parser, self.settings.tool_call_parser), prompt, has_tools)
    }

    /// Returns the tokenizer of a server whose workers can do structured output.
    pub(crate) fn structures(&self) -> Option<&Tokenizer> {
        self.front.tokenizer().ok().filter(|_| self.front.has_grammars())
    }

    /// Returns the prompt of a chat.
    ///
    /// # Errors
    /// If the model has no template, or the conversation is none for it.
    pub(crate) async fn prompt(&self, asked: &mut Asked) -> Result<String, Failure> {
        self.template()?;
        self.render(conversation(asked)?).await
    }

    /// Returns the prompt of a conversation.
    ///
    /// # Errors
    /// If the model has no template, or the conversation is none for it.
    pub(crate) async fn render(&self, conversation: Conversation) -> Result<String, Failure> {
        let template = self.template()?;
        // Templates are programs: a long conversation takes a while.
        let rendered = tokio::task::spawn_blocking(move || template.render_openai(&conversation)).await;
        let failed = |err| Failure::of(&tonic::Status::internal(format!("the chat template failed: {err}")));
        rendered.map_err(failed)?.map_err(|err| of_template(&err))
    }

    fn template(&self) -> Result<Arc<ChatTemplate>, Failure> {
        self.front.model().map_err(|status| Failure::of(&status))?;
        let missing = "the model has no chat template; send a prompt to /v1/completions, or start the server with --chat-template";
        self.settings.template.clone().ok_or_else(|| Failure::invalid("messages", missing))
    }
}

/// Returns the conversation of a request.
fn conversation(asked: &mut Asked) -> Result<Conversation, Failure> {
    let missing = || Failure::invalid("messages", "messages is missing");
    let messages = asked.messages.take().ok_or_else(missing)?;
    if asked.chat_template.is_some() {
        let why = "chat_template is the server's: a template is a program; start the server with --chat-template";
        return Err(Failure::invalid("chat_template", why));
    }
    let mut conversation = Conversation::new(messages, SystemTime::now());
    conversation.continue_final_message = asked.continue_final_message == Some(true);
    conversation.add_generation_prompt = asked.add_generation_prompt.unwrap_or(!conversation.continue_final_message);
    conversation.tools = tools(asked)?;
    conversation.documents = asked.documents.take();
    conversation.variables = asked.chat_template_kwargs.take().unwrap_or_default();
    if let Some(effort) = asked.reasoning_effort.take() {
        conversation.variables.entry("reasoning_effort".into()).or_insert_with(|| Value::from(effort));
    }
    Ok(conversation)
}

/// Returns the tools for the template: none if the model is to call none.
pub(crate) fn tools(asked: &mut Asked) -> Result<Option<Vec<Value>>, Failure> {
    let choice = ToolChoice::of(asked.tool_choice.as_ref())?;
    let tools = asked.tools.take().filter(|tools| !tools.is_empty());
    asked.strict = tools.as_deref().map(strict_names).unwrap_or_default();
    Ok(tools.filter(|_| choice != ToolChoice::None))
}

fn of_template(err: &TemplateError) -> Failure {
    match err.is_of_the_conversation() {
        true => Failure::invalid("messages", err.to_string()),
        false => Failure::of(&tonic::Status::internal(err.to_string())),
    }
}
