//! A generation under way: its text, read, and its tokens.

use serde::Serialize;
use tonic::Status;
use trunkline_server::Generation;
use trunkline_server::proto::finish::StoppedBy;
use trunkline_server::proto::{Finish, FinishReason};
use trunkline_text::Tokenizer;

use crate::Shared;
use crate::choices::Piece;
use crate::logprobs::{Token, spelled};
use crate::reader::{Read, Reader, Reading};

/// Tokens of a response, or of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Usage {
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

/// A generation under way.
pub(crate) struct Generated {
    reader: Option<Reader>,
    tokenizer: Tokenizer,
    /// Tokens of the prompt, and those that the cache is to keep.
    prompt: u32,
    marked: u32,
    tokens: u32,
    finish: Option<Finish>,
}

impl Generated {
    /// Begins a generation whose prompt has `marked` tokens for the cache.
    ///
    /// # Errors
    /// UNAVAILABLE before the server knows its model.
    pub(crate) fn new(shared: &Shared, of: &Generation, reading: Reading, marked: u32) -> Result<Self, Status> {
        let (reader, tokenizer) = (Reader::new(reading), shared.front.tokenizer()?.clone());
        Ok(Self { reader, tokenizer, prompt: of.prompt_tokens(), marked, tokens: 0, finish: None })
    }

    /// Takes a piece; returns its text with the log probabilities.
    pub(crate) fn take(&mut self, piece: Piece) -> (Read, Vec<Token>) {
        let chunk = piece.chunk.unwrap_or_default();
        self.tokens += u32::try_from(chunk.token_ids.len()).unwrap_or(u32::MAX);
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
        self.finish = piece.finish.or(self.finish.take());
        (read, logprobs)
    }

    /// Returns the reason of the end; `None` before it.
    pub(crate) fn reason(&self) -> Option<FinishReason> {
        self.finish.as_ref().map(Finish::reason)
    }

    /// Returns the tokens so far.
    pub(crate) fn usage(&self) -> Usage {
        let usage = self.finish.as_ref().and_then(|finish| finish.usage).unwrap_or_default();
        let cached = usage.cached_tokens;
        let written = self.marked.min(self.prompt).saturating_sub(cached + usage.copied_tokens);
        Usage {
            input_tokens: self.prompt,
            input_tokens_details: InputDetails { cached_tokens: cached, cache_write_tokens: written },
            output_tokens: self.tokens,
            output_tokens_details: OutputDetails {
                reasoning_tokens: self.reader.as_ref().map_or(0, Reader::reasoning_tokens),
            },
            total_tokens: self.prompt + self.tokens,
        }
    }
}
