//! Body of a call with many questions, read ahead of the answers.
//!
//! The window of a connection bounds the bytes that the server has not read, of all calls together. A service that waits for the client to
//! read its answers reads no questions, and a client that goes on asking would fill the window: no other call of the connection could
//! send its message. A task of its own therefore reads the questions, and the call ends with too many of them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use http_body::{Body, Frame};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::Status;
use tonic::codegen::{Bytes, StdError};

/// Questions that wait for the service, at most, bytes.
const AHEAD_BYTES_MAX: usize = 64 << 10;

/// Item of a body.
type Item = Result<Frame<Bytes>, StdError>;

/// Questions that were read, and those to come.
pub(crate) struct Questions {
    read: UnboundedReceiver<Item>,
    /// Bytes in `read`.
    ahead: Arc<AtomicUsize>,
}

impl Questions {
    /// Begins to read a body.
    pub(crate) fn of<B>(body: B) -> Self
    where
        B: Body<Data = Bytes, Error = StdError> + Unpin + Send + 'static,
    {
        let (items, read) = unbounded_channel();
        let ahead = Arc::<AtomicUsize>::default();
        tokio::spawn(read_all(body, items, ahead.clone()));
        Self { read, ahead }
    }
}

/// Reads a body until its end, or until nobody wants the rest.
async fn read_all<B>(mut body: B, items: UnboundedSender<Item>, ahead: Arc<AtomicUsize>)
where
    B: Body<Data = Bytes, Error = StdError> + Unpin,
{
    loop {
        let item = tokio::select! {
            item = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)) => item,
            () = items.closed() => return,
        };
        let Some(item) = item else { return };
        let bytes = bytes_of(&item);
        if ahead.fetch_add(bytes, Ordering::Relaxed) + bytes > AHEAD_BYTES_MAX {
            let message = format!("more than {AHEAD_BYTES_MAX} bytes of questions whose answers were not read");
            // Nobody may wait for it.
            let _ = items.send(Err(Status::resource_exhausted(message).into()));
            return;
        }
        let is_end = item.is_err();
        if items.send(item).is_err() || is_end {
            return;
        }
    }
}

fn bytes_of(item: &Item) -> usize {
    item.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::len)
}

impl Body for Questions {
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let item = ready!(self.read.poll_recv(cx));
        let bytes = item.as_ref().map_or(0, bytes_of);
        self.ahead.fetch_sub(bytes, Ordering::Relaxed);
        Poll::Ready(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A body of pieces of 16 KiB that are all there.
    struct Pieces(usize);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = StdError;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Item>> {
            let left = self.0.checked_sub(1);
            self.0 = left.unwrap_or(0);
            Poll::Ready(left.map(|_| Ok(Frame::data(Bytes::from_static(&[7; 16 << 10])))))
        }
    }

    async fn next(questions: &mut Questions) -> Option<Item> {
        std::future::poll_fn(|cx| Pin::new(&mut *questions).poll_frame(cx)).await
    }

    #[tokio::test]
    async fn questions_are_read_ahead_up_to_a_bound() {
        let mut few = Questions::of(Pieces(4));
        for _ in 0..4 {
            assert!(next(&mut few).await.is_some_and(|item| item.is_ok()));
        }
        assert!(next(&mut few).await.is_none());
        let mut many = Questions::of(Pieces(usize::MAX));
        tokio::task::yield_now().await;
        for _ in 0..4 {
            assert!(next(&mut many).await.is_some_and(|item| item.is_ok()));
        }
        let status = next(&mut many).await.unwrap().unwrap_err().downcast::<Status>().unwrap();
        assert_eq!(status.message(), "more than 65536 bytes of questions whose answers were not read");
        assert!(next(&mut many).await.is_none());
    }
}
