//! Gathers the output of many streams of a connection into one write.
//!
//! Streams of an HTTP/2 connection are tasks of their own, and each wakes the task of the connection when it has output. The
//! runtime runs a task that was just woken next, so without further ado every message would become a system call of its own:
//! more work than everything else that the server does for a token. [`Gathered`] lets the task of the connection go to the end
//! of the runtime's queue once before each write; the streams ahead in the queue add their output to the same write. If nothing
//! else is in the queue, the write follows at once.
//!
//! Likewise a connection that always has bytes to read goes to the end of the queue after [`READ_BYTES_MAX`]: the calls that these bytes
//! began run, and drop what they do not need, before the connection decodes more. A byte may stand for a hundred times as much memory. A
//! *turn* is one poll of the connection's task, in which the HTTP/2 library may read more than once.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf, Take};

/// Maximum number of bytes read in one turn.
const READ_BYTES_MAX: u64 = 16 << 10;

/// Number of the present turn of a connection.
#[derive(Clone, Default)]
pub(crate) struct Turns(Arc<AtomicU64>);

impl Turns {
    /// Runs the task of a connection, and counts its turns.
    pub(crate) async fn count<F: Future>(self, task: F) -> F::Output {
        let mut task = pin!(task);
        poll_fn(|cx| {
            self.0.fetch_add(1, Ordering::Relaxed);
            task.as_mut().poll(cx)
        })
        .await
    }

    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection whose writes wait until the tasks that are ready have run.
pub(crate) struct Gathered<T> {
    /// The connection, limited to the bytes of one turn.
    io: Take<T>,
    turns: Turns,
    /// Turn of the last read.
    turn: u64,
    /// `true` if the other tasks have had their turn since the last write.
    has_yielded: bool,
}

impl<T: AsyncRead> Gathered<T> {
    pub(crate) fn new(io: T, turns: Turns) -> Self {
        Self { io: io.take(READ_BYTES_MAX), turn: turns.now(), turns, has_yielded: false }
    }
}

impl<T> Gathered<T> {
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
        let turn = self.turns.now();
        if turn != self.turn {
            self.turn = turn;
            self.io.set_limit(READ_BYTES_MAX);
        }
        if self.io.limit() == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Gathered<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_turn(cx));
        Pin::new(self.io.get_mut()).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_turn(cx));
        Pin::new(self.io.get_mut()).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.get_ref().is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.io.get_mut()).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(self.io.get_mut()).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::task::{Wake, Waker};

    use tokio::io as tokio_io;

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
        let mut gathered = Gathered::new(io::Cursor::new(Vec::new()), Turns::default());
        for turn in 1..=3 {
            assert!(Pin::new(&mut gathered).poll_write(cx, b"early").is_pending());
            assert_eq!(woken.0.load(Ordering::Relaxed), turn, "it is polled again after the tasks that are ready");
            let bufs = [IoSlice::new(b"a"), IoSlice::new(b"b")];
            assert!(Pin::new(&mut gathered).poll_write_vectored(cx, &bufs).is_ready());
        }
        assert!(Pin::new(&mut gathered).poll_flush(cx).is_ready());
        assert_eq!(gathered.io.into_inner().into_inner(), b"ababab");
    }

    #[test]
    fn a_client_that_always_sends_lets_the_other_tasks_have_their_turns() {
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let cx = &mut Context::from_waker(&waker);
        let (turns, quarter) = (Turns::default(), READ_BYTES_MAX as usize / 4);
        let mut gathered = Gathered::new(tokio_io::repeat(7), turns.clone());
        for _ in 0..3 {
            let mut into = vec![0; quarter];
            let mut read = Vec::new();
            for _ in 0..7 {
                let mut buf = ReadBuf::new(&mut into);
                let is_ready = Pin::new(&mut gathered).poll_read(cx, &mut buf).is_ready();
                read.push(if is_ready { buf.filled().len() } else { 0 });
            }
            assert_eq!(read, [quarter, quarter, quarter, quarter, 0, 0, 0], "however often it is asked in one turn");
            assert!(woken.0.swap(0, Ordering::Relaxed) > 0, "it is polled again");
            let _ = pin!(turns.clone().count(std::future::pending::<()>())).poll(cx);
        }
    }
}
