//! Record of a request: its text so far, and its answer.

use trunkline_core::{FinishReason, Request, Token};

use crate::oracle::continuation;

/// A request as the driver remembers it.
#[derive(Debug)]
pub struct Known {
    /// Request as it was first submitted.
    pub request: Request,
    /// Tokens generated so far, including those that it brought along.
    pub text: Vec<Token>,
    /// Tokens of its prompt with log probabilities, from the second on.
    pub valued: u32,
    /// Reason for its end, once it has ended.
    pub end: Option<FinishReason>,
    /// `true` if the core refused it.
    pub refused: bool,
    /// `true` if a core gave it back at least once.
    pub withdrawn: bool,
    /// `true` if tokens were copied for it from other places in the cache.
    pub has_copies: bool,
    /// `true` if the driver found a stop string in its text, so that it may end anywhere.
    pub told_to_stop: bool,
}

impl Known {
    /// Records a request that is being submitted.
    pub fn new(request: &Request) -> Self {
        let text = request.generated.clone();
        let withdrawn = !text.is_empty();
        Self {
            request: request.clone(),
            text,
            valued: 0,
            end: None,
            refused: false,
            withdrawn,
            has_copies: false,
            told_to_stop: false,
        }
    }

    /// Returns `true` if the request has had its answer.
    pub fn is_answered(&self) -> bool {
        self.end.is_some() || self.refused
    }

    /// Returns `true` if the request ran to its own end: its last token, or a stop token.
    pub fn is_complete(&self) -> bool {
        let stopped = self.text.last().is_some_and(|token| self.request.stop_token_ids.contains(token));
        self.end == Some(FinishReason::Length) || self.end.is_some() && stopped
    }

    /// Returns the text that the request would have alone: dictated by `says`, or computed from the cells.
    fn alone(&self, says: Option<fn(u64, u32) -> Token>) -> Vec<Token> {
        let Self { request, .. } = self;
        let mut alone = match says {
            Some(says) => (0..request.max_tokens).map(|n| says(request.id.0, n)).collect(),
            None => continuation(request.root, &request.prompt, request.max_tokens as usize),
        };
        let first = request.min_tokens.max(1) as usize - 1;
        let stop = alone.iter().skip(first).position(|token| request.stop_token_ids.contains(token));
        if let Some(stop) = stop {
            alone.truncate(first + stop + 1);
        }
        alone
    }

    /// Returns `true` if the core chose the end: all tokens, or a stop token.
    pub fn has_ended_by_itself(&self) -> bool {
        match self.end {
            Some(FinishReason::Length) => true,
            Some(FinishReason::Stop) => !self.told_to_stop,
            _ => false,
        }
    }

    /// Asserts that the text is the one that the request would have alone, or a beginning of it if the request was interrupted.
    ///
    /// # Panics
    /// If the text differs, or lacks tokens though the core chose the end.
    pub fn assert_text(&self, says: Option<fn(u64, u32) -> Token>) {
        if self.has_copies && says.is_none() {
            // What it says depends on what was copied; the worker compared each cell.
            return;
        }
        let (id, alone) = (self.request.id, self.alone(says));
        assert!(alone.starts_with(&self.text), "request {id} says {:?}, alone it says {alone:?}", self.text);
        if self.has_ended_by_itself() {
            assert_eq!(self.text.len(), alone.len(), "request {id} ends by {:?}, alone it says {alone:?}", self.end);
        }
    }
}
