//! The response stream of a turn: a stored answer, or one being generated, which becomes part of the session with its end.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio_stream::Stream;
use tonic::Status;
use trunkline_chat::{Answer, Turn};
use trunkline_core::Token;

use crate::access::caller::Caller;
use crate::proto;
use crate::proto::generate_response::Event;
use crate::service::sessions::compactor::Compactor;
use crate::service::sessions::entry::RunningTurn;
use crate::service::sessions::messages::{end_of, finish};
use crate::service::stream::Generation;

/// The response stream of a turn. Dropping the stream before the end of the answer gives up the turn.
pub(crate) enum TurnStream {
    /// Messages of a stored answer.
    Stored(VecDeque<proto::GenerateResponse>),
    /// An answer being generated.
    Running(Box<RunningStream>),
}

/// An answer being generated.
pub(crate) struct RunningStream {
    generation: Generation,
    /// `None` once the turn has ended or was given up.
    turn: Option<RunningTurn>,
    tokens: Vec<Token>,
    text: String,
    caller: Caller,
    compactor: Arc<Compactor>,
}

impl TurnStream {
    /// Returns the stream of a stored answer, without log probabilities.
    pub(crate) fn stored(turn: &Turn) -> Self {
        let message = |event| proto::GenerateResponse { request_id: String::new(), event: Some(event) };
        let messages = turn.answer.iter().flat_map(|answer| {
            let chunk =
                proto::Chunk { token_ids: answer.tokens.clone(), text: answer.text.clone(), ..proto::Chunk::default() };
            [message(Event::Chunk(chunk)), message(Event::Finish(finish(answer)))]
        });
        Self::Stored(messages.collect())
    }

    /// Returns the stream of a turn that runs.
    pub(crate) fn running(
        generation: Generation,
        turn: RunningTurn,
        caller: Caller,
        compactor: Arc<Compactor>,
    ) -> Self {
        let (tokens, text) = (Vec::new(), String::new());
        Self::Running(Box::new(RunningStream { generation, turn: Some(turn), tokens, text, caller, compactor }))
    }
}

impl RunningStream {
    /// Takes note of a message before the client gets the message.
    fn note(&mut self, message: &proto::GenerateResponse) {
        match &message.event {
            Some(Event::Chunk(chunk)) => {
                self.tokens.extend_from_slice(&chunk.token_ids);
                self.text.push_str(&chunk.text);
            }
            Some(Event::Finish(finish)) => self.end(finish),
            None => {}
        }
    }

    /// Ends the turn if the answer is whole, and begins a compaction if one is due. An answer that is not whole leaves no turn.
    fn end(&mut self, finish: &proto::Finish) {
        let Some(mut turn) = self.turn.take() else { return };
        let Some((end, usage)) = end_of(finish) else { return };
        let (tokens, text) = (std::mem::take(&mut self.tokens), std::mem::take(&mut self.text));
        turn.end(Answer { tokens, text, end, usage });
        self.compactor.start_if_long(turn.entry(), &self.caller);
    }
}

impl Stream for TurnStream {
    type Item = Result<proto::GenerateResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match &mut *self {
            Self::Stored(messages) => Poll::Ready(messages.pop_front().map(Ok)),
            Self::Running(running) => {
                let message = ready!(Pin::new(&mut running.generation).poll_next(cx));
                match &message {
                    Some(Ok(message)) => running.note(message),
                    Some(Err(_)) | None => running.turn = None,
                }
                Poll::Ready(message)
            }
        }
    }
}
