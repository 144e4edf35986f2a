//! Output of one request on the way from the core's thread to the stream of the response.
//!
//! The core's thread never waits for a client. Output waits here, bounded in bytes and in time by
//! [`NetworkLimits`](crate::network::limits::NetworkLimits): beyond, the output is discarded, the sender learns from the next output that
//! nobody reads, and the stream ends with RESOURCE_EXHAUSTED.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use tonic::Status;
use trunkline_core::{FinishReason, Token, Usage};
use trunkline_port::TokenLogprobs;

use crate::network::shares::Share;
use crate::network::{Backlog, Call};
use crate::requests::request_events::Reader;
use crate::requests::request_times::{End, RequestTimes};

/// Output of an accepted request.
pub(crate) enum Output {
    /// Log probabilities of the next tokens of the prompt.
    Prompt(Vec<TokenLogprobs>),
    Token {
        token: Token,
        logprobs: Option<TokenLogprobs>,
    },
    Finish {
        reason: FinishReason,
        usage: Usage,
        times: RequestTimes,
    },
    /// The request failed alone on its worker, and `elsewhere` on another one before.
    Failed {
        elsewhere: bool,
    },
    Unavailable(Unavailable),
}

/// Reason for the end of a request with UNAVAILABLE, after which clients send the request again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unavailable {
    /// No worker is left that could run the request.
    NoWorker,
    /// The server stops, and has waited for the request as long as it waits.
    Stopping,
}

impl Unavailable {
    pub(crate) fn message(self) -> &'static str {
        match self {
            Self::NoWorker => "no worker is left to run the request; try again later",
            Self::Stopping => "the server stops, and the request took longer than the time for that; send it again",
        }
    }

    /// Returns the end for metrics and logs.
    pub(crate) fn end(self) -> End {
        match self {
            Self::NoWorker => End::NoWorker,
            Self::Stopping => End::CutShort,
        }
    }

    /// Returns `true` if a request that ends for `reason` ends so for this one.
    pub(crate) fn explains(self, reason: FinishReason) -> bool {
        match self {
            // With the last worker the server stops, too.
            Self::NoWorker => matches!(reason, FinishReason::Error | FinishReason::Abort),
            Self::Stopping => reason == FinishReason::Abort,
        }
    }
}

impl Output {
    /// Returns the memory of the output, bytes.
    fn bytes(&self) -> u64 {
        let top = match self {
            Self::Prompt(tokens) => {
                size_of_val(tokens.as_slice()) + tokens.iter().map(|of| size_of_val(of.top.as_slice())).sum::<usize>()
            }
            Self::Token { logprobs: Some(logprobs), .. } => size_of_val(logprobs.top.as_slice()),
            Self::Token { logprobs: None, .. } | Self::Finish { .. } | Self::Failed { .. } | Self::Unavailable(_) => 0,
        };
        (size_of::<Self>() + top) as u64
    }
}

/// Makes an outbox for the request of a call.
pub(crate) fn outbox(call: Arc<Call>) -> (OutboxSender, OutboxReceiver) {
    let shared = Arc::new(Shared { call, queue: Mutex::default() });
    let backlog: Weak<Shared> = Arc::downgrade(&shared);
    shared.call.set_backlog(backlog);
    (OutboxSender(shared.clone()), OutboxReceiver(shared))
}

/// Sending end, of the core's thread.
pub(crate) struct OutboxSender(Arc<Shared>);

/// Receiving end, of the response stream. Dropping the receiver closes the outbox.
pub(crate) struct OutboxReceiver(Arc<Shared>);

struct Shared {
    call: Arc<Call>,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    outputs: VecDeque<Output>,
    bytes: u64,
    /// The receiver takes no more: the stream is gone, or the output was discarded.
    closed: bool,
    discarded: bool,
    sender_gone: bool,
    /// Share of the requests on the way to their first token.
    on_the_way: Option<Share>,
    /// Share of the open requests.
    open: Option<Share>,
    waker: Option<Waker>,
}

impl OutboxSender {
    /// Keeps a request's shares: `on_the_way` until the first token or the end, and both until the sender is dropped.
    pub(crate) fn keep(&self, on_the_way: Share, open: Share) {
        let mut queue = self.0.lock();
        queue.on_the_way = Some(on_the_way);
        queue.open = Some(open);
    }

    /// Adds an output and wakes the reader; returns `false` if nobody reads the outbox.
    #[cfg(test)]
    pub(crate) fn send(&self, output: Output) -> bool {
        let mut wakers = Vec::new();
        let is_read = self.put(output, &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
        is_read
    }

    /// Adds an output, and the waker of a reader who waits; returns `false` if nobody reads the outbox. The caller wakes when it has done what
    /// is more urgent, and the reader then takes all outputs of a step at once.
    pub(crate) fn put(&self, output: Output, wakers: &mut Vec<Waker>) -> bool {
        let bytes = output.bytes();
        let is_of_prompt = matches!(output, Output::Prompt(_));
        let ends = !is_of_prompt && !matches!(output, Output::Token { .. });
        let mut queue = self.0.lock();
        let arrived = if is_of_prompt { None } else { queue.on_the_way.take() };
        if queue.closed {
            return false;
        }
        // A step computes as much of a prompt as it has room for: that is no fault of a client who has read all before.
        let has_room = ends || (is_of_prompt && queue.outputs.is_empty());
        queue.outputs.push_back(output);
        queue.bytes += bytes;
        let within = self.0.call.add_unread(bytes);
        // The end of a request is worth its few bytes in any case.
        if !within && !has_room {
            drop(queue);
            self.0.call.discard();
            return false;
        }
        wakers.extend(queue.waker.take());
        drop(queue);
        drop(arrived);
        true
    }

    /// Returns `true` if nobody reads the outbox.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.lock().closed
    }

    /// Returns what became of the reader of the outbox.
    pub(crate) fn reader(&self) -> Reader {
        let queue = self.0.lock();
        match (queue.discarded, queue.closed) {
            (true, _) => Reader::Slow,
            (false, true) => Reader::Gone,
            (false, false) => Reader::There,
        }
    }
}

impl OutboxReceiver {
    /// Takes up to `max` outputs, at least one; ready with 0 if none is to come any more.
    pub(crate) fn poll_recv_many(&self, cx: &mut Context<'_>, taken: &mut Vec<Output>, max: usize) -> Poll<usize> {
        let mut queue = self.0.lock();
        let n = queue.outputs.len().min(max);
        if n == 0 {
            if queue.sender_gone || queue.closed {
                return Poll::Ready(0);
            }
            match &mut queue.waker {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            return Poll::Pending;
        }
        let from = taken.len();
        taken.extend(queue.outputs.drain(..n));
        let bytes = taken[from..].iter().map(Output::bytes).sum();
        queue.bytes -= bytes;
        drop(queue);
        self.0.call.take_unread(bytes);
        Poll::Ready(n)
    }

    /// Returns `true` if output was discarded because the client did not read.
    pub(crate) fn is_discarded(&self) -> bool {
        self.0.lock().discarded
    }

    /// Returns the status with which the server ended the call, if it did.
    pub(crate) fn end_status(&self) -> Option<Status> {
        self.0.call.end_status()
    }

    /// Takes one output, if there is one.
    #[cfg(test)]
    pub(crate) fn try_recv(&self) -> Option<Output> {
        let mut taken = Vec::new();
        let _ = self.poll_recv_many(&mut Context::from_waker(Waker::noop()), &mut taken, 1);
        taken.pop()
    }

    /// Takes no more output.
    pub(crate) fn close(&self) {
        let mut queue = self.0.lock();
        queue.closed = true;
        self.0.clear(queue);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets waiting output.
    fn clear(&self, mut queue: MutexGuard<'_, Queue>) {
        let outputs = std::mem::take(&mut queue.outputs);
        let bytes = std::mem::take(&mut queue.bytes);
        let waker = queue.waker.take();
        drop(queue);
        drop(outputs);
        self.call.remove_unread(bytes);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Backlog for Shared {
    fn discard(&self) {
        let mut queue = self.lock();
        queue.closed = true;
        queue.discarded = true;
        self.clear(queue);
    }
}

impl Drop for OutboxSender {
    fn drop(&mut self) {
        let mut queue = self.0.lock();
        queue.sender_gone = true;
        let (waker, arrived) = (queue.waker.take(), (queue.on_the_way.take(), queue.open.take()));
        drop(queue);
        drop(arrived);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Drop for OutboxReceiver {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests;
