//! The answers to a request, as vLLM's service sends them.
//!
//! A stream has a `chunk` for new tokens, with the numbers of new tokens and of prompt tokens, and at the end of each answer a `complete` without
//! tokens: gateways take the tokens from the chunks. Without a stream there is one `complete` with all tokens for each answer. `complete` has
//! the sums of the answer in both. Log probabilities of the prompt come with the first choice alone: with its first chunk, or with its `complete`.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio_stream::{Stream, StreamMap};
use tonic::Status;
use trunkline_server::Generation;
use trunkline_server::proto::finish::StoppedBy;
use trunkline_server::proto::generate_response::Event;
use trunkline_server::proto::{Finish, FinishReason, TokenLogprob};

use crate::parents::Parent;
use crate::proto::vllm::grpc::engine::generate_complete::MatchedStop;
use crate::proto::vllm::grpc::engine::generate_response::Response;
use crate::proto::vllm::grpc::engine::{
    GenerateComplete, GenerateResponse, GenerateStreamChunk, InputLogProbs, InputTokenLogProb, OutputLogProbs,
    TopLogProbs,
};

/// The answers to come, of all choices. Dropping them aborts the request.
pub(crate) struct Answers {
    choices: StreamMap<u32, Generation>,
    /// Tokens of each choice that are not sent yet, without a stream.
    gathered: Vec<(Vec<u32>, Vec<TokenLogprob>)>,
    streams: bool,
    prompt_tokens: u32,
    /// First token of the prompt.
    first_token: u32,
    /// Log probabilities of the others that are not sent yet.
    prompt: Vec<TokenLogprob>,
    /// Stop tokens of the request: the others that end an answer are the model's, of which vLLM says nothing.
    stop_token_ids: Vec<u32>,
    _parent: Option<Parent>,
}

impl Answers {
    pub(crate) fn new(
        choices: Vec<Generation>,
        streams: bool,
        stop_token_ids: Vec<u32>,
        first_token: u32,
        parent: Option<Parent>,
    ) -> Self {
        let prompt_tokens = choices.first().map_or(0, Generation::prompt_tokens);
        let gathered = choices.iter().map(|_| Default::default()).collect();
        let choices = (0..).zip(choices).collect();
        let prompt = Vec::new();
        Self { choices, gathered, streams, prompt_tokens, first_token, prompt, stop_token_ids, _parent: parent }
    }

    /// Returns the log probabilities of the prompt for the first message of the first choice; `None` if the request did not ask for them.
    fn input_logprobs(&mut self, index: u32) -> Option<InputLogProbs> {
        let prompt = if index == 0 { std::mem::take(&mut self.prompt) } else { Vec::new() };
        let has_top = !prompt.first()?.top.is_empty();
        let ids = std::iter::once(self.first_token).chain(prompt.iter().map(|of| of.token_id));
        let values = std::iter::once(None).chain(prompt.iter().map(|of| Some(of.logprob)));
        let tops = std::iter::once(TopLogProbs::default()).chain(prompt.iter().map(top));
        Some(InputLogProbs {
            token_ids: ids.collect(),
            token_logprobs: values.map(|value| InputTokenLogProb { value }).collect(),
            top_logprobs: tops.filter(|_| has_top).collect(),
        })
    }

    /// Returns the message for an event of a choice, if there is one.
    fn message(&mut self, index: u32, mut event: Event) -> Option<GenerateResponse> {
        if let Event::Chunk(chunk) = &mut event {
            self.prompt.append(&mut chunk.prompt_logprobs);
        }
        let response = match event {
            Event::Chunk(chunk) if self.streams => {
                // Text alone, left from before the end.
                if chunk.token_ids.is_empty() {
                    return None;
                }
                Response::Chunk(GenerateStreamChunk {
                    completion_tokens: chunk.token_ids.len() as u32,
                    output_logprobs: logprobs(&chunk.logprobs),
                    input_logprobs: self.input_logprobs(index),
                    token_ids: chunk.token_ids,
                    prompt_tokens: self.prompt_tokens,
                    index,
                    ..GenerateStreamChunk::default()
                })
            }
            Event::Chunk(chunk) => {
                let (ids, logprobs) = self.gathered.get_mut(index as usize)?;
                ids.extend(chunk.token_ids);
                logprobs.extend(chunk.logprobs);
                return None;
            }
            Event::Finish(finish) => Response::Complete(self.complete(index, finish)),
        };
        Some(GenerateResponse { response: Some(response) })
    }

    fn complete(&mut self, index: u32, finish: Finish) -> GenerateComplete {
        let (output_ids, of_tokens) = self.gathered.get_mut(index as usize).map(std::mem::take).unwrap_or_default();
        let finish_reason = match finish.reason() {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::Abort | FinishReason::Unspecified => "abort",
        };
        let matched_stop = match finish.stopped_by {
            Some(StoppedBy::StopString(text)) => Some(MatchedStop::MatchedStopStr(text)),
            Some(StoppedBy::StopTokenId(id)) => {
                self.stop_token_ids.contains(&id).then_some(MatchedStop::MatchedTokenId(id))
            }
            None => None,
        };
        let usage = finish.usage.unwrap_or_default();
        GenerateComplete {
            output_ids,
            finish_reason: finish_reason.into(),
            prompt_tokens: self.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            cached_tokens: usage.cached_tokens,
            output_logprobs: logprobs(&of_tokens),
            input_logprobs: self.input_logprobs(index),
            index,
            matched_stop,
            ..GenerateComplete::default()
        }
    }
}

/// Returns the most likely tokens in the place of one.
fn top(of: &TokenLogprob) -> TopLogProbs {
    TopLogProbs {
        values: of.top.iter().map(|other| other.logprob).collect(),
        token_ids: of.top.iter().map(|other| other.token_id).collect(),
    }
}

/// Returns the log probabilities of tokens; `None` if the request did not ask for them.
fn logprobs(tokens: &[TokenLogprob]) -> Option<OutputLogProbs> {
    (!tokens.is_empty()).then(|| OutputLogProbs {
        token_logprobs: tokens.iter().map(|of| of.logprob).collect(),
        token_ids: tokens.iter().map(|of| of.token_id).collect(),
        top_logprobs: tokens.iter().filter(|of| !of.top.is_empty()).map(top).collect(),
    })
}

impl Stream for Answers {
    type Item = Result<GenerateResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let Some((index, response)) = ready!(Pin::new(&mut self.choices).poll_next(cx)) else {
                return Poll::Ready(None);
            };
            match response {
                Ok(response) => {
                    if let Some(message) = response.event.and_then(|event| self.message(index, event)) {
                        return Poll::Ready(Some(Ok(message)));
                    }
                }
                Err(status) => {
                    // The other answers have nobody to go to.
                    self.choices.clear();
                    return Poll::Ready(Some(Err(status)));
                }
            }
        }
    }
}
