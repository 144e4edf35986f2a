//! What the other threads say to the core's thread, and how they say it: one bounded queue of commands.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use tokio::sync::{mpsc, oneshot};
use trunkline_core::{FinishReason, Refusal, Request, RequestId, Stats, Token, Usage};
use trunkline_port::TokenLogprobs;

use crate::worker_thread::WorkerReport;

/// The clock of all events: nanoseconds since the server started.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    pub(crate) fn now_ns(self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).expect("a server runs for less than 500 years")
    }

    pub(crate) fn instant(self, at_ns: u64) -> Option<Instant> {
        self.start.checked_add(Duration::from_nanos(at_ns))
    }
}

/// What the core's thread is asked to do.
pub(crate) enum Command {
    Submit {
        request: Box<Request>,
        /// Where tokens go. MUST have room for all the tokens that the request may generate and one more.
        outputs: mpsc::Sender<Output>,
        /// Told whether the core accepted the request.
        accepted: oneshot::Sender<Result<(), Refusal>>,
    },
    Abort(Vec<RequestId>),
    Stop(RequestId),
    FlushCache(oneshot::Sender<u32>),
    Snapshot(oneshot::Sender<Snapshot>),
    Drain,
    Shutdown,
    Worker(WorkerReport),
}

/// What a request is told after it was accepted.
pub(crate) enum Output {
    Token { token: Token, logprobs: Option<TokenLogprobs> },
    Finish { reason: FinishReason, usage: Usage },
}

/// How well the worker guessed, which the core cannot know: it sees tokens, not drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafts {
    /// Tokens that were drafted.
    pub drafted: u64,
    /// Those of them that were right.
    pub accepted: u64,
}

/// The state of the core between two events.
#[derive(Clone, Copy)]
pub(crate) struct Snapshot {
    pub(crate) stats: Stats,
    pub(crate) drafts: Drafts,
    pub(crate) digest: u64,
    pub(crate) draining: bool,
}

/// Why a command was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// The queue is full.
    Full,
    /// The core's thread has ended.
    Stopped,
}

/// The other threads' end of the command queue.
#[derive(Clone)]
pub(crate) struct DriverHandle {
    commands: Sender<Command>,
    clock: Clock,
    /// An abort found the queue full: the core's thread looks for streams that nobody reads any more.
    abort_missed: Arc<AtomicBool>,
}

impl DriverHandle {
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// The flag that the core's thread takes down before it looks for streams that nobody reads any more.
    pub(crate) fn abort_missed(&self) -> Arc<AtomicBool> {
        self.abort_missed.clone()
    }

    /// Puts a command on the queue without waiting.
    pub(crate) fn send(&self, command: Command) -> Result<(), NotTaken> {
        self.commands.try_send(command).map_err(|err| match err {
            TrySendError::Full(_) => NotTaken::Full,
            TrySendError::Disconnected(_) => NotTaken::Stopped,
        })
    }

    /// Puts a command on the queue and waits while it is full; returns whether it was taken. Not for async code.
    pub(crate) fn send_blocking(&self, command: Command) -> bool {
        self.commands.send(command).is_ok()
    }

    /// Aborts a request whose outputs have been closed. Never waits and is never lost.
    pub(crate) fn abort_dropped(&self, id: RequestId) {
        if self.send(Command::Abort(vec![id])) == Err(NotTaken::Full) {
            self.abort_missed.store(true, Ordering::Release);
            // Either this is taken, or the queue is full now that the flag is up, and whoever takes a command from it sees
            // the flag after that.
            let _ = self.send(Command::Abort(vec![id]));
        }
    }
}

/// A queue for `commands_max` commands, and the clock, which starts now.
pub(crate) fn queue(commands_max: usize) -> (DriverHandle, Receiver<Command>) {
    let (sender, commands) = bounded(commands_max);
    (DriverHandle { commands: sender, clock: Clock::start(), abort_missed: Arc::default() }, commands)
}
