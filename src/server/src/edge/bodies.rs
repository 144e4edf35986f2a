//! Bodies of requests and responses, watched for clients that do not send or do not read.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http_body::{Body, Frame, SizeHint};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::codegen::http::HeaderMap;
use tonic::codegen::{Bytes, StdError};

use crate::edge::panics::failed;
use crate::network::Call;

/// Maximum number of bytes of a stream without end before the service accepts it: the Hello of a worker takes some kilobytes.
const UNACCEPTED_BYTES_MAX: u64 = 1 << 20;

/// Mark of a stream of messages without end, set by the service that accepts the sender.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accepted(Arc<AtomicBool>);

impl Accepted {
    /// Ends the bounds on the stream.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Body of a request: bounded in time, and its bytes in the connection's and the server's limits until the body is dropped. The body of
/// a stream without end is bounded in bytes until the service accepts the stream. From then on the service reads message after message,
/// and the connection's window bounds the rest.
pub(crate) struct RequestBody<B> {
    body: B,
    call: Arc<Call>,
    /// Time for the whole body; `None` for a stream without end.
    limit: Option<Duration>,
    /// Mark of a stream without end; `None` for a request with one message.
    accepted: Option<Accepted>,
    /// Set once the body had to wait.
    late: Option<Pin<Box<Sleep>>>,
}

impl<B> RequestBody<B> {
    /// Wraps the body of a request that MUST arrive within `limit` of its headers.
    pub(crate) fn new(body: B, call: Arc<Call>, limit: Duration) -> Self {
        Self { body, call, limit: Some(limit), accepted: None, late: None }
    }

    /// Wraps the body of a stream of messages without end, which the service bounds in time.
    pub(crate) fn unbounded(body: B, call: Arc<Call>, accepted: Accepted) -> Self {
        Self { body, call, limit: None, accepted: Some(accepted), late: None }
    }

    /// Counts bytes that arrived in the limits of the body, the connection and the server.
    fn count(&mut self, bytes: u64) -> Result<(), Status> {
        if self.accepted.as_ref().is_some_and(Accepted::is_set) {
            self.call.remove_incoming();
            return Ok(());
        }
        if self.accepted.is_some() && self.call.incoming_bytes() + bytes > UNACCEPTED_BYTES_MAX {
            let message = format!("more than {UNACCEPTED_BYTES_MAX} bytes before the Hello was accepted");
            return Err(Status::resource_exhausted(message));
        }
        self.call.add_incoming(bytes)
    }
}

impl<B> Body for RequestBody<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<StdError>,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, StdError>>> {
        let this = &mut *self;
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) else {
            let Some(limit) = this.limit else { return Poll::Pending };
            let late = this.late.get_or_insert_with(|| Box::pin(sleep(limit)));
            ready!(late.as_mut().poll(cx));
            let message = format!("the request's message did not arrive within {limit:?}");
            return Poll::Ready(Some(Err(Status::deadline_exceeded(message).into())));
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(err)) => return Poll::Ready(Some(Err(err.into()))),
            None => return Poll::Ready(None),
        };
        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
        Poll::Ready(Some(this.count(bytes).map(|()| frame).map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for RequestBody<B> {
    fn drop(&mut self) {
        self.call.remove_incoming();
    }
}

/// Waits until the server ends the call, for the status.
pub(crate) type End = Pin<Box<dyn Future<Output = Status> + Send>>;

/// Body of a response. Notes when output waits for the client, and leaves nothing behind in the connection's buffers: the last
/// byte before the trailers is a frame of its own, which the connection asks for only once the client's window has taken the rest.
pub(crate) struct ResponseBody<B> {
    body: B,
    call: Arc<Call>,
    /// Frames taken from the body ahead of the connection, in order: at most two.
    next: [Option<Frame<Bytes>>; 2],
    /// `true` once the body has no more frames.
    ended: bool,
    /// The end of a call that the server ends; `None` if it has come.
    end: Option<End>,
}

impl<B> ResponseBody<B> {
    pub(crate) fn new(body: B, call: Arc<Call>, end: Option<End>) -> Self {
        Self { body, call, next: [None, None], ended: false, end }
    }

    /// Returns the trailers of a call that the server ends.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Frame<Bytes>> {
        let Some(end) = &mut self.end else { return Poll::Pending };
        let status = ready!(end.as_mut().poll(cx));
        (self.end, self.next, self.ended) = (None, [None, None], true);
        let mut trailers = HeaderMap::new();
        // A status of our own is a header.
        let _ = status.add_header(&mut trailers);
        Poll::Ready(Frame::trailers(trailers))
    }
}

impl<B> ResponseBody<B>
where
    B: Body<Data = Bytes, Error = Status> + Unpin,
{
    /// Asks the service for the next frame. Its panic ends the call with a status, and the service is not asked again.
    fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        trunkline_foreign::call(|| Pin::new(&mut self.body).poll_frame(cx)).unwrap_or_else(|panicked| {
            self.ended = true;
            let (status, mut trailers) = (failed("stream", &panicked), HeaderMap::new());
            Poll::Ready(Some(status.add_header(&mut trailers).map(|()| Frame::trailers(trailers))))
        })
    }
}

impl<B> Body for ResponseBody<B>
where
    B: Body<Data = Bytes, Error = Status> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        this.call.note_read();
        if let Poll::Ready(trailers) = this.poll_end(cx) {
            return Poll::Ready(Some(Ok(trailers)));
        }
        if let Some(frame) = this.next[0].take() {
            this.next.swap(0, 1);
            this.call.note_unread();
            return Poll::Ready(Some(Ok(frame)));
        }
        if this.ended {
            return Poll::Ready(None);
        }
        let frame = ready!(this.poll_body(cx));
        let Some(Ok(frame)) = frame else { return Poll::Ready(frame) };
        this.call.note_unread();
        let Ok(mut data) = frame.into_data().map_err(|frame| this.next[0] = Some(frame)) else {
            return Poll::Ready(this.next[0].take().map(Ok));
        };
        match this.poll_body(cx) {
            Poll::Ready(Some(Ok(after))) if after.is_trailers() && data.len() > 1 => {
                let last = data.split_off(data.len() - 1);
                this.next = [Some(Frame::data(last)), Some(after)];
            }
            Poll::Ready(Some(Ok(after))) => this.next[0] = Some(after),
            Poll::Ready(Some(Err(status))) => return Poll::Ready(Some(Err(status))),
            Poll::Ready(None) => this.ended = true,
            Poll::Pending => {}
        }
        // The frame is unread until the next one is asked for, though all output was taken.
        this.call.note_unread();
        Poll::Ready(Some(Ok(Frame::data(data))))
    }

    fn is_end_stream(&self) -> bool {
        self.next[0].is_none() && (self.ended || self.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
