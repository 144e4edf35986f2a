//! Turns of a chat: input of the client, and answers of the model.

use std::ops::AddAssign;
use std::sync::Arc;

use trunkline_port::Token;

/// Memory lost with each allocation, bytes: the allocator's header, and the mean of rounding up small sizes.
const ALLOCATION_BYTES: usize = 24;
/// Memory of a turn besides tokens and texts, bytes: the shared turn with its two counts, its place in a queue that doubles, and five
/// allocations (turn, id, input, tokens and text of the answer).
const TURN_BYTES: u64 =
    (size_of::<Turn>() + 2 * size_of::<usize>() + 2 * size_of::<Arc<Turn>>() + 5 * ALLOCATION_BYTES) as u64;

/// One turn: input, an answer, or both.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Number of the turn, from 0.
    pub number: u64,
    /// Name of the turn, unique in the chat.
    pub id: String,
    /// Tokens from the client.
    pub input: Vec<Token>,
    /// Answer of the model; `None` for input alone.
    pub answer: Option<Answer>,
    /// Kept word for word when the history is compacted.
    pub pinned: bool,
}

/// An answer that ended by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Tokens generated, the stop token included.
    pub tokens: Vec<Token>,
    /// Text of the tokens, as the client got the text.
    pub text: String,
    /// Cause of the end.
    pub end: End,
    /// Tokens consumed by the request.
    pub usage: Usage,
}

/// Cause of the end of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// All tokens asked for were generated.
    Length,
    /// A stop token or an end-of-sequence token was generated.
    StopToken(Token),
    /// A stop string appeared.
    StopString(String),
}

/// Tokens consumed by a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: u32,
    /// Tokens of the prompt found in the prefix cache.
    pub cached: u32,
    /// Tokens generated, at most those asked for.
    pub completion: u32,
    /// Preemptions of the request.
    pub preemptions: u32,
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        self.prompt += other.prompt;
        self.cached += other.cached;
        self.completion += other.completion;
        self.preemptions += other.preemptions;
    }
}

impl Turn {
    /// Returns the number of tokens.
    pub fn len(&self) -> u32 {
        let answer = self.answer.as_ref().map_or(0, |answer| answer.tokens.len());
        u32::try_from(self.input.len() + answer).unwrap_or(u32::MAX)
    }

    /// Returns `true` if the turn has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the tokens in the order of the prompt.
    pub fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        let answer = self.answer.iter().flat_map(|answer| &answer.tokens);
        self.input.iter().chain(answer).copied()
    }

    /// Returns the memory of the turn, bytes.
    pub fn bytes(&self) -> u64 {
        bytes_of(u64::from(self.len()), 0) + self.text_bytes()
    }

    /// Returns the memory of the name and the texts, bytes: unknown before the turn has ended.
    pub(crate) fn text_bytes(&self) -> u64 {
        let text = self.answer.as_ref().map_or(0, |answer| {
            let stop = if let End::StopString(stop) = &answer.end { stop.len() } else { 0 };
            answer.text.len() + stop
        });
        (self.id.len() + text) as u64
    }
}

/// Returns the memory of a turn of `tokens` tokens with `text` bytes of text.
pub(crate) fn bytes_of(tokens: u64, text: usize) -> u64 {
    TURN_BYTES + tokens * size_of::<Token>() as u64 + text as u64
}
