//! Gathers the output of many streams of a connection into one write.
//!
//! Streams of an HTTP/2 connection are tasks of their own, and each wakes the task of the connection when it has output. The
//! runtime runs a task that was just woken next, so without further ado every message would become a system call of its own:
//! more work than everything else that the server does for a token. [`Gathered`] lets the task of the connection go to the end
//! of the runtime's queue once before each write; the streams ahead in the queue add their output to the same write. If nothing
//! else is in the queue, the write follows at once.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection whose writes wait until the tasks that are ready have run.
pub(crate) struct Gathered<T> {
    io: T,
    /// `true` if the other tasks have had their turn since the last write.
    has_yielded: bool,
}

impl<T> Gathered<T> {
    pub(crate) fn new(io: T) -> Self {
        Self { io, has_yielded: false }
    }

    /// Yields once before each write.
    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.has_yielded = !self.has_yielded;
        if self.has_yielded {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Gathered<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Gathered<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_turn(cx));
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.poll_turn(cx));
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::{Wake, Waker};

    use super::*;

    /// Counts its wake-ups.
    #[derive(Default)]
    struct Woken(AtomicU32);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn each_write_waits_for_one_turn_of_the_other_tasks() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let cx = &mut Context::from_waker(&waker);
        let mut gathered = Gathered::new(io::Cursor::new(Vec::new()));
        for turn in 1..=3 {
            assert!(Pin::new(&mut gathered).poll_write(cx, b"early").is_pending());
            assert_eq!(woken.0.load(Ordering::Relaxed), turn, "it is polled again after the tasks that are ready");
            let bufs = [IoSlice::new(b"a"), IoSlice::new(b"b")];
            assert!(Pin::new(&mut gathered).poll_write_vectored(cx, &bufs).is_ready());
        }
        assert!(Pin::new(&mut gathered).poll_flush(cx).is_ready());
        assert_eq!(gathered.io.into_inner(), b"ababab");
    }
}
