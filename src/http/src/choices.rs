//! The streams of all choices of a request, as one.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio_stream::Stream;
use tonic::Status;
use trunkline_server::Generation;
use trunkline_server::proto::generate_response::Event;
use trunkline_server::proto::{Chunk, Finish, GenerateResponse};

/// News of one choice. The end comes with the last tokens if it is there already, as clients count messages.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Piece {
    pub(crate) choice: usize,
    pub(crate) chunk: Option<Chunk>,
    pub(crate) finish: Option<Finish>,
}

/// Streams of answers, by choice.
pub(crate) struct Choices<S = Generation> {
    streams: Vec<Option<S>>,
    /// A message taken ahead, and its choice.
    ahead: Option<(usize, GenerateResponse)>,
    /// The choice that is asked first.
    next: usize,
}

impl<S> Choices<S> {
    pub(crate) fn new(streams: Vec<S>) -> Self {
        Self { streams: streams.into_iter().map(Some).collect(), ahead: None, next: 0 }
    }
}

/// Message of a choice's stream.
type Message = Option<Result<GenerateResponse, Status>>;

impl<S: Stream<Item = Result<GenerateResponse, Status>> + Unpin> Choices<S> {
    fn poll_choice(&mut self, choice: usize, cx: &mut Context<'_>) -> Poll<Message> {
        let Some(stream) = &mut self.streams[choice] else { return Poll::Pending };
        let polled = Pin::new(stream).poll_next(cx);
        if let Poll::Ready(None) = polled {
            self.streams[choice] = None;
        }
        polled
    }

    /// Returns the piece that begins with a message, with the end if that is there.
    fn piece(&mut self, choice: usize, message: GenerateResponse, cx: &mut Context<'_>) -> Result<Piece, Status> {
        match message.event {
            Some(Event::Finish(finish)) => {
                self.streams[choice] = None;
                Ok(Piece { choice, chunk: None, finish: Some(finish) })
            }
            Some(Event::Chunk(chunk)) => {
                let mut piece = Piece { choice, chunk: Some(chunk), finish: None };
                let is_next_there = self.streams[choice].as_ref().is_some_and(|stream| stream.size_hint().0 > 0);
                if !is_next_there {
                    return Ok(piece);
                }
                match self.poll_choice(choice, cx) {
                    Poll::Ready(Some(Ok(GenerateResponse { event: Some(Event::Finish(finish)), .. }))) => {
                        self.streams[choice] = None;
                        piece.finish = Some(finish);
                    }
                    Poll::Ready(Some(Ok(message))) => self.ahead = Some((choice, message)),
                    Poll::Ready(Some(Err(status))) => return Err(status),
                    Poll::Ready(None) | Poll::Pending => {}
                }
                Ok(piece)
            }
            None => Ok(Piece { choice, ..Piece::default() }),
        }
    }
}

impl<S: Stream<Item = Result<GenerateResponse, Status>> + Unpin> Stream for Choices<S> {
    type Item = Result<Piece, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if let Some((choice, message)) = this.ahead.take() {
            return Poll::Ready(Some(this.piece(choice, message, cx)));
        }
        let n = this.streams.len();
        for at in 0..n {
            let choice = (this.next + at) % n;
            if let Poll::Ready(Some(message)) = this.poll_choice(choice, cx) {
                this.next = choice + 1;
                return Poll::Ready(Some(message.and_then(|message| this.piece(choice, message, cx))));
            }
        }
        if this.streams.iter().all(Option::is_none) { Poll::Ready(None) } else { Poll::Pending }
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio_stream::iter;

    use super::*;

    fn chunk(text: &str) -> GenerateResponse {
        let chunk = Chunk { text: text.into(), ..Chunk::default() };
        GenerateResponse { request_id: "r".into(), event: Some(Event::Chunk(chunk)) }
    }

    fn finish() -> GenerateResponse {
        GenerateResponse { request_id: "r".into(), event: Some(Event::Finish(Finish::default())) }
    }

    fn pieces(streams: Vec<Vec<Result<GenerateResponse, Status>>>) -> Vec<String> {
        let mut choices = Choices::new(streams.into_iter().map(iter).collect());
        let mut cx = Context::from_waker(Waker::noop());
        let mut pieces = Vec::new();
        while let Poll::Ready(Some(piece)) = Pin::new(&mut choices).poll_next(&mut cx) {
            pieces.push(match piece {
                Ok(Piece { choice, chunk, finish }) => {
                    let end = if finish.is_some() { "." } else { "" };
                    format!("{choice}{}{end}", chunk.map_or_else(String::new, |chunk| chunk.text))
                }
                Err(status) => status.message().to_owned(),
            });
        }
        pieces
    }

    #[test]
    fn choices_take_turns_and_end_with_their_last_tokens() {
        let a = vec![Ok(chunk("a")), Ok(chunk("b")), Ok(finish())];
        assert_eq!(pieces(vec![a.clone()]), ["0a", "0b."]);
        assert_eq!(pieces(vec![a, vec![Ok(chunk("c")), Ok(finish())], vec![Ok(finish())]]), ["0a", "0b.", "1c.", "2."]);
        assert_eq!(pieces(vec![vec![Ok(chunk("a")), Err(Status::internal("no"))]]), ["no"]);
        assert!(pieces(vec![]).is_empty());
    }
}
