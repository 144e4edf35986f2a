//! The bounded queue of commands to the core's thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use trunkline_core::RequestId;

use crate::driver::commands::Command;
use crate::network::clock::Clock;

/// Pause before a full queue is tried again. The core's thread takes thousands of commands in this time.
const FULL_PAUSE: Duration = Duration::from_millis(1);

/// Reason for not taking a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotTaken {
    /// The queue is full.
    Full,
    /// The core's thread has ended.
    Stopped,
}

/// Sending end of the command queue, for all threads but the core's.
#[derive(Clone)]
pub(crate) struct DriverHandle {
    commands: Sender<Command>,
    clock: Clock,
    /// Set by an abort on a full queue: the core's thread then looks for streams without a reader.
    abort_missed: Arc<AtomicBool>,
    /// `true` once someone has asked the server to stop.
    stopping: Arc<AtomicBool>,
}

impl DriverHandle {
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns the flag of missed aborts. The core's thread clears the flag before looking for streams without a reader.
    pub(crate) fn abort_missed(&self) -> Arc<AtomicBool> {
        self.abort_missed.clone()
    }

    /// Marks the server as stopping.
    pub(crate) fn set_stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Returns `true` once someone has asked the server to stop.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Puts a command on the queue without waiting.
    pub(crate) fn send(&self, command: Command) -> Result<(), NotTaken> {
        self.commands.try_send(command).map_err(|err| match err {
            TrySendError::Full(_) => NotTaken::Full,
            TrySendError::Disconnected(_) => NotTaken::Stopped,
        })
    }

    /// Puts a command on the queue and waits while the queue is full; returns `true` if the queue took the command. Not for async
    /// code.
    pub(crate) fn send_blocking(&self, command: Command) -> bool {
        self.commands.send(command).is_ok()
    }

    /// Puts a command on the queue and waits while the queue is full, without blocking the thread; returns `true` if the queue took the
    /// command.
    pub(crate) async fn send_patiently(&self, mut command: Command) -> bool {
        loop {
            command = match self.commands.try_send(command) {
                Ok(()) => return true,
                Err(TrySendError::Disconnected(_)) => return false,
                Err(TrySendError::Full(command)) => command,
            };
            tokio::time::sleep(FULL_PAUSE).await;
        }
    }

    /// Aborts a request whose outputs have been closed. Never waits and is never lost.
    pub(crate) fn abort_dropped(&self, id: RequestId) {
        if self.send(Command::Abort(vec![id])) == Err(NotTaken::Full) {
            self.abort_missed.store(true, Ordering::Release);
            // Either this is taken, or the queue is full now that the flag is up, and the thread that takes a command from it sees
            // the flag after that.
            let _ = self.send(Command::Abort(vec![id]));
        }
    }
}

/// Makes a queue for `commands_max` commands and starts the clock.
pub(crate) fn queue(commands_max: usize) -> (DriverHandle, Receiver<Command>) {
    let (sender, commands) = bounded(commands_max);
    let (clock, abort_missed, stopping) = (Clock::start(), Arc::default(), Arc::default());
    (DriverHandle { commands: sender, clock, abort_missed, stopping }, commands)
}
