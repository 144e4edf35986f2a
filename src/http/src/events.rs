//! Server-sent events of an answer under way.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame};
use tokio_stream::Stream;
use tonic::Status;
use trunkline_server::Generation;

use crate::choices::{Choices, Piece};
use crate::failure::Failure;

/// Room for the event of a token.
const EVENT_BYTES: usize = 512;
/// Memory for events of one answer: used again once the connection has sent them.
const EVENTS_BYTES: usize = 4 * EVENT_BYTES;

/// Writes the events of an answer.
pub(crate) trait Writer: Send + Unpin + 'static {
    /// Appends the events in front of all pieces.
    fn opening(&mut self, out: &mut BytesMut);

    /// Appends the events of a piece.
    fn piece(&mut self, out: &mut BytesMut, piece: Piece);

    /// Appends the events behind all pieces.
    fn end(&mut self, out: &mut BytesMut);

    /// Appends the events of a failure, after which nothing comes. The status of the response is gone already.
    fn failure(&mut self, out: &mut BytesMut, failure: &Failure);
}

/// Body of a stream of events: choices as they come. Dropping it aborts them.
pub(crate) struct Events<W> {
    writer: W,
    choices: Choices,
    state: State,
    out: BytesMut,
}

enum State {
    Opening,
    Streaming,
    Ended,
}

impl<W: Writer> Events<W> {
    pub(crate) fn new(writer: W, streams: Vec<Generation>) -> Self {
        Self {
            writer,
            choices: Choices::new(streams),
            state: State::Opening,
            out: BytesMut::with_capacity(EVENTS_BYTES),
        }
    }
}

impl<W: Writer> Body for Events<W> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        this.out.reserve(EVENT_BYTES);
        match this.state {
            State::Opening => {
                this.state = State::Streaming;
                this.writer.opening(&mut this.out);
                if !this.out.is_empty() {
                    return Poll::Ready(Some(Ok(Frame::data(this.out.split().freeze()))));
                }
            }
            State::Streaming => {}
            State::Ended => return Poll::Ready(None),
        }
        // A piece may have nothing to tell.
        while this.out.is_empty() && !matches!(this.state, State::Ended) {
            match ready!(Pin::new(&mut this.choices).poll_next(cx)) {
                Some(Ok(piece)) => this.writer.piece(&mut this.out, piece),
                Some(Err(status)) => {
                    this.state = State::Ended;
                    this.writer.failure(&mut this.out, &Failure::of(&status));
                }
                None => {
                    this.state = State::Ended;
                    this.writer.end(&mut this.out);
                }
            }
        }
        Poll::Ready(Some(Ok(Frame::data(this.out.split().freeze()))))
    }
}
