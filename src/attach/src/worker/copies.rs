//! Copies of a worker's blocks for the server, beside the steps: read and written on a thread of their own, within one life of the KV.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::UnboundedSender;
use trunkline_port::DeviceBlocks;

use crate::wire;
use crate::wire::from_worker::Message;

/// Copy of one block to or from the server.
pub(super) struct CopyJob {
    /// Number of the connection that asked for the copy.
    pub(super) connection: u64,
    /// Life named by the server.
    pub(super) life: u64,
    /// Number for the answer.
    pub(super) id: u64,
    pub(super) block: u32,
    /// Contents to write; `None` reads the block.
    pub(super) write: Option<Vec<u8>>,
    /// Way back to the server.
    pub(super) answers: UnboundedSender<wire::FromWorker>,
}

/// Blocks of the present life. A copy holds the lock while it touches a block, so whoever changes the life waits for the copy.
#[derive(Default)]
pub(super) struct Fence {
    /// Number of the connection whose jobs count; all jobs of other connections are dropped.
    connection: AtomicU64,
    open: Mutex<Option<Open>>,
}

/// A life whose blocks may be copied.
struct Open {
    life: u64,
    n_blocks: u32,
    blocks: Arc<dyn DeviceBlocks>,
}

impl Fence {
    /// Drops all jobs of other connections from now on. Never waits.
    pub(super) fn connect(&self, connection: u64) {
        self.connection.store(connection, Ordering::SeqCst);
    }

    /// Returns `true` if jobs of a connection count.
    pub(super) fn is_connected(&self, connection: u64) -> bool {
        self.connection.load(Ordering::SeqCst) == connection
    }

    /// Opens the blocks of a life, `n_blocks` of them. Waits for a copy under way.
    pub(super) fn open(&self, life: u64, n_blocks: u32, blocks: Arc<dyn DeviceBlocks>) {
        *self.lock() = Some(Open { life, n_blocks, blocks });
    }

    /// Lets no copy touch a block until the next life is open. Waits for a copy under way.
    pub(super) fn close(&self) {
        *self.lock() = None;
    }

    /// Waits for a copy under way.
    pub(super) fn wait(&self) {
        drop(self.lock());
    }

    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a copy, and returns the answer; `None` if the job is of another connection or of an ended life.
    fn pass(&self, job: &CopyJob) -> Option<Message> {
        let open = self.lock();
        if !self.is_connected(job.connection) || open.as_ref().is_some_and(|open| job.life < open.life) {
            return None;
        }
        let outcome = match open.as_ref() {
            Some(open) if open.life == job.life => {
                catch_unwind(AssertUnwindSafe(|| open.copy(job))).unwrap_or_else(|_| Err("the worker panicked".into()))
            }
            Some(_) => Err(format!("life {} has not begun", job.life)),
            None => Err("the worker waits for a reset".into()),
        };
        Some(match (&job.write, outcome) {
            (None, Ok(data)) => Message::BlockRead(wire::BlockRead { id: job.id, data, error: String::new() }),
            (None, Err(error)) => Message::BlockRead(wire::BlockRead { id: job.id, data: Vec::new(), error }),
            (Some(_), Ok(_)) => Message::BlockWritten(wire::BlockWritten { id: job.id, error: String::new() }),
            (Some(_), Err(error)) => Message::BlockWritten(wire::BlockWritten { id: job.id, error }),
        })
    }
}

impl Open {
    /// Reads or writes a block; returns the bytes of a reading.
    fn copy(&self, job: &CopyJob) -> Result<Vec<u8>, String> {
        let block = job.block;
        if block >= self.n_blocks {
            return Err(format!("there is no block {block}; the session has {} blocks", self.n_blocks));
        }
        let n_bytes = self.blocks.block_bytes();
        match &job.write {
            None => {
                let mut bytes = vec![0; n_bytes];
                self.blocks.read(block, &mut bytes).map_err(|error| error.to_string())?;
                Ok(bytes)
            }
            Some(bytes) if bytes.len() == n_bytes => {
                self.blocks.write(block, bytes).map_err(|error| error.to_string())?;
                Ok(Vec::new())
            }
            Some(bytes) => Err(format!("a block has {n_bytes} bytes, and {} were sent", bytes.len())),
        }
    }
}

/// Makes copies in the order of the jobs until nobody sends any more.
pub(super) fn serve(jobs: &Receiver<CopyJob>, fence: &Fence) {
    for job in jobs {
        if let Some(message) = fence.pass(&job) {
            // A connection that is gone needs no answer.
            let _ = job.answers.send(wire::FromWorker { message: Some(message) });
        }
    }
}
