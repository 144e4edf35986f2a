//! The answer to a request for text: parts of its choices, sent as they come or all at once.

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use tokio_stream::StreamExt;
use tonic::Status;
use trunkline_server::Generation;
use trunkline_server::proto::finish::StoppedBy;
use trunkline_server::proto::{Finish, FinishReason, TokenLogprob};
use trunkline_text::Tokenizer;

use crate::choices::{Choices, Piece};
use crate::events::Writer;
use crate::failure::Failure;
use crate::prompt_values::{Prompt, Shown, Wanted};
use crate::reader::{Reader, Reading, ToolCall};
use crate::usage::{Metrics, Usage};

/// Last event of a stream.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// A form of answers: that of completions or that of chats.
pub(crate) trait Api: Send + Unpin + 'static {
    /// Beginning of the ids of answers; empty for answers with the request's id.
    const ID: &'static str;
    /// `object` of events, and of a whole answer.
    const OBJECTS: [&'static str; 2];
    /// `true` if `prompt_logprobs` stands next to the choices, not in each.
    const VALUES_AT_TOP: bool = true;

    /// Returns the choice in the first event of each choice, if there is one before its first text.
    fn opening(index: usize) -> Option<impl Serialize>;

    /// Returns what an event has of a choice; the first has the values of its prompt.
    fn event<'a>(
        part: &'a Part,
        prompt: Option<&'a Prompt>,
        tokenizer: &'a Tokenizer,
    ) -> impl Serialize + use<'a, Self>;

    /// Returns a choice of a whole answer.
    fn whole<'a>(part: &'a Part, prompt: &'a Prompt, tokenizer: &'a Tokenizer) -> impl Serialize + use<'a, Self>;
}

/// Wishes of a client for the form of its answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Form {
    /// Id of the request; the answer's begins with that of the form.
    pub(crate) id: String,
    pub(crate) created_s: u64,
    pub(crate) model: String,
    /// Answers to each prompt.
    pub(crate) n: usize,
    /// Send the usage in an event of its own at the end.
    pub(crate) include_usage: bool,
    /// Send the usage so far with each event.
    pub(crate) continuous_usage: bool,
    pub(crate) token_ids: bool,
    /// Tokens of each prompt that are to be kept in the cache, at most.
    pub(crate) marked: u32,
    /// What is read in the text.
    pub(crate) reading: Reading,
    /// Text of each prompt, to begin its choices with; empty for none.
    pub(crate) echoes: Vec<String>,
    /// Log probabilities of the prompts.
    pub(crate) wanted: Wanted,
    /// Leave the answers out: the prompts alone are asked for.
    pub(crate) prompts_alone: bool,
}

/// A part of a choice: what is new, or all so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Part {
    pub(crate) index: usize,
    /// Characters of the choice's text before this part.
    pub(crate) offset: usize,
    /// Characters of the prompt at the beginning of the text.
    pub(crate) echoed: usize,
    pub(crate) text: String,
    pub(crate) reasoning: String,
    pub(crate) calls: Vec<ToolCall>,
    pub(crate) logprobs: Vec<TokenLogprob>,
    pub(crate) token_ids: Option<Vec<u32>>,
    pub(crate) finish_reason: Option<&'static str>,
    pub(crate) stop_reason: Option<StopReason>,
}

/// `stop_reason`: the stop string or the stop token, as vLLM reports it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub(crate) enum StopReason {
    Token(u32),
    Text(String),
}

/// An answer under way.
pub(crate) struct Answers<A> {
    form: Form,
    /// The beginning of all events: [`Head`] as JSON, without its closing brace.
    head: Vec<u8>,
    tokenizer: Tokenizer,
    /// Characters sent of each choice; `None` before its first part.
    sent: Vec<Option<usize>>,
    /// Log probabilities of the prompts, which come before the first token of the first choice of each.
    prompts: Vec<Prompt>,
    /// Readers of each choice; empty if nothing is read.
    readers: Vec<Reader>,
    usage: Usage,
    metrics: Metrics,
    api: std::marker::PhantomData<A>,
}

/// Fields in front of the choices: the same in each event of an answer.
#[derive(Serialize)]
struct Head<'a> {
    id: &'a str,
    /// The id again, where clients look for it under this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    object: &'static str,
    created: u64,
    model: &'a str,
}

/// Fields behind the choices.
#[derive(Serialize)]
struct Tail<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Shown<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Usage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<Metrics>,
}

impl<A: Api> Answers<A> {
    /// Begins the answer of `streams`.
    pub(crate) fn new(mut form: Form, tokenizer: Tokenizer, streams: &[Generation]) -> Self {
        form.id.insert_str(0, A::ID);
        let mut usage = Usage::default();
        streams.iter().step_by(form.n.max(1)).for_each(|first| usage.add_prompt(first.prompt_tokens()));
        let sent = vec![None; streams.len()];
        let readers = streams.iter().filter_map(|_| Reader::new(form.reading)).collect();
        let prompts = (0..streams.len().div_ceil(form.n.max(1))).map(|number| form.wanted.prompt(number)).collect();
        Self {
            head: head::<A>(&form, A::OBJECTS[0]),
            form,
            tokenizer,
            sent,
            prompts,
            readers,
            usage,
            metrics: Metrics::default(),
            api: std::marker::PhantomData,
        }
    }

    /// Keeps the log probabilities of a prompt that a piece brings. Returns `true` if it brings nothing else.
    fn keep_values(&mut self, piece: &mut Piece) -> bool {
        let Some(chunk) = &mut piece.chunk else { return false };
        let values = std::mem::take(&mut chunk.prompt_logprobs);
        let is_all =
            !values.is_empty() && chunk.token_ids.is_empty() && chunk.text.is_empty() && piece.finish.is_none();
        self.prompts[piece.choice / self.form.n.max(1)].values.extend(values);
        is_all
    }

    /// Takes a piece, and returns the part of its choice; `None` if it is of the prompt alone.
    fn take(&mut self, mut piece: Piece) -> Option<Part> {
        if self.keep_values(&mut piece) {
            return None;
        }
        let Piece { choice: index, chunk, finish } = piece;
        let chunk = chunk.filter(|_| !self.form.prompts_alone);
        let sent = &mut self.sent[index];
        let mut part = Part { index, offset: sent.unwrap_or(0), ..Part::default() };
        if sent.is_none()
            && let Some(echo) = self.form.echoes.get(index / self.form.n.max(1))
        {
            part.text.clone_from(echo);
            part.echoed = part.text.chars().count();
        }
        part.token_ids = self.form.token_ids.then(Vec::new);
        let mut tokens = Vec::new();
        if let Some(chunk) = chunk {
            self.usage.add_tokens(chunk.token_ids.len());
            if part.text.is_empty() {
                part.text = chunk.text;
            } else {
                part.text.push_str(&chunk.text);
            }
            part.logprobs = chunk.logprobs;
            part.token_ids = part.token_ids.map(|_| chunk.token_ids.clone());
            tokens = chunk.token_ids;
        }
        *sent = Some(part.offset + part.text.chars().count());
        if let Some(reader) = self.readers.get_mut(index) {
            let mut read = reader.push(&part.text, &tokens, &self.tokenizer);
            if let Some(finish) = &finish {
                read.add(reader.finish(matches!(finish.stopped_by, Some(StoppedBy::StopTokenId(_)))));
            }
            (part.text, part.reasoning, part.calls) = (read.text, read.reasoning, read.calls);
            self.usage.set_reasoning(self.readers.iter().map(Reader::reasoning_tokens).sum());
        }
        if let Some(finish) = finish {
            self.metrics.add(&finish);
            if index.is_multiple_of(self.form.n.max(1)) {
                self.usage.add_cached(&finish.usage.unwrap_or_default(), self.form.marked);
            }
            let called = self.readers.get(index).is_some_and(Reader::has_calls);
            part.finish_reason = Some(match reason(&finish) {
                "stop" if called => "tool_calls",
                reason => reason,
            });
            part.stop_reason = finish.stopped_by.map(|by| match by {
                StoppedBy::StopTokenId(token) => StopReason::Token(token),
                StoppedBy::StopString(text) => StopReason::Text(text),
            });
            if self.form.prompts_alone {
                (part.finish_reason, part.stop_reason) = (Some("length"), None);
            }
        }
        Some(part)
    }

    /// Writes a message of `choices` behind its head.
    fn write<C: Serialize>(&self, out: &mut BytesMut, head: &[u8], choices: &[C], ends: bool, usage: bool) {
        let prompt = self.prompts.first().filter(|_| A::VALUES_AT_TOP);
        let tail = Tail {
            prompt_logprobs: prompt.and_then(|prompt| prompt.shown(&self.tokenizer)),
            usage: usage.then_some(self.usage),
            metrics: ends.then_some(self.metrics),
        };
        out.put_slice(head);
        out.put_slice(b",\"choices\":");
        // Nothing in a message can fail to be JSON.
        let _ = serde_json::to_writer(out.writer(), choices);
        let at = out.len();
        let _ = serde_json::to_writer(out.writer(), &tail);
        match &mut out[at..] {
            // `{}`: there is nothing behind the choices.
            [_, _] => out.truncate(at),
            [brace, .., _] => {
                *brace = b',';
                return;
            }
            _ => {}
        }
        out.put_u8(b'}');
    }

    /// Appends an event with these choices.
    fn event<C: Serialize>(&self, out: &mut BytesMut, choices: &[C], ends: bool) {
        out.put_slice(b"data: ");
        self.write(out, &self.head, choices, ends, ends || self.form.continuous_usage);
        out.put_slice(b"\n\n");
    }

    /// Waits for all choices, and returns the whole answer.
    ///
    /// # Errors
    /// The first failure of a choice; the others are aborted.
    pub(crate) async fn whole(mut self, streams: Vec<Generation>) -> Result<Bytes, Status> {
        let mut parts: Vec<Part> = (0..streams.len()).map(|index| Part { index, ..Part::default() }).collect();
        let mut choices = Choices::new(streams);
        while let Some(piece) = choices.next().await {
            if let Some(part) = self.take(piece?) {
                parts[part.index].add(part);
            }
        }
        let mut out = BytesMut::new();
        let n = self.form.n.max(1);
        let choice = |part| A::whole(part, &self.prompts[part.index / n], &self.tokenizer);
        let choices: Vec<_> = parts.iter().map(choice).collect();
        self.write(&mut out, &head::<A>(&self.form, A::OBJECTS[1]), &choices, true, true);
        Ok(out.freeze())
    }
}

impl<A: Api> Writer for Answers<A> {
    fn opening(&mut self, out: &mut BytesMut) {
        for opening in (0..self.sent.len()).filter_map(A::opening) {
            self.event(out, &[opening], false);
        }
    }

    fn piece(&mut self, out: &mut BytesMut, piece: Piece) {
        let begins = self.sent[piece.choice].is_none();
        let Some(part) = self.take(piece) else { return };
        let prompt = begins.then(|| &self.prompts[part.index / self.form.n.max(1)]);
        let choice = A::event(&part, prompt, &self.tokenizer);
        self.event(out, &[choice], false);
    }

    fn end(&mut self, out: &mut BytesMut) {
        if self.form.include_usage {
            self.event::<()>(out, &[], true);
        }
        out.put_slice(DONE);
    }

    fn failure(&mut self, out: &mut BytesMut, failure: &Failure) {
        out.put_slice(b"data: ");
        out.put_slice(failure.json().as_bytes());
        out.put_slice(b"\n\n");
        out.put_slice(DONE);
    }
}

impl Part {
    /// Adds what came next.
    fn add(&mut self, next: Self) {
        self.text.push_str(&next.text);
        self.echoed += next.echoed;
        self.reasoning.push_str(&next.reasoning);
        self.calls.extend(next.calls);
        self.logprobs.extend(next.logprobs);
        match (&mut self.token_ids, next.token_ids) {
            (Some(ids), Some(more)) => ids.extend(more),
            (ids, more) => *ids = ids.take().or(more),
        }
        self.finish_reason = next.finish_reason.or(self.finish_reason);
        self.stop_reason = next.stop_reason.or(self.stop_reason.take());
    }
}

/// Returns the beginning of a message, up to its choices.
fn head<A: Api>(form: &Form, object: &'static str) -> Vec<u8> {
    let Form { id, created_s, model, .. } = form;
    let request_id = A::ID.is_empty().then_some(id.as_str());
    let mut head = serde_json::to_vec(&Head { id, request_id, object, created: *created_s, model }).unwrap_or_default();
    head.pop();
    head
}

/// Returns the reason of an end as clients know it.
fn reason(finish: &Finish) -> &'static str {
    match finish.reason() {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Abort | FinishReason::Unspecified => "abort",
    }
}
