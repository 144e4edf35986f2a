//! Copies of a worker's blocks for the server, alongside the steps: read and written on a thread of their own, within one life of the KV.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::mpsc::UnboundedSender;
use trunkline_port::DeviceBlocks;

use crate::shared_memory::Region;
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
    pub(super) copy: Copy,
    /// Memory shared with the server on this connection.
    pub(super) region: Option<Arc<Region>>,
    /// Way back to the server.
    pub(super) answers: UnboundedSender<wire::FromWorker>,
}

/// Direction of a copy, and the place of the bytes.
pub(super) enum Copy {
    /// Read the block, into a slot of shared memory if the server names one.
    Read { slot: Option<u32> },
    /// Write bytes of the message.
    Write { data: Vec<u8> },
    /// Write the first `n_bytes` of a slot of shared memory.
    WriteSlot { slot: u32, n_bytes: u64 },
}

impl Copy {
    /// Returns the copy of a message.
    pub(super) fn of(write: wire::WriteBlock) -> Self {
        match write.slot {
            Some(slot) => Self::WriteSlot { slot, n_bytes: write.slot_bytes },
            None => Self::Write { data: write.data },
        }
    }
}

/// Blocks of the present life. A copy holds the lock while it touches a block, so a change of the life waits for the copy.
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

    /// Makes a copy by way of a buffer, and returns the answer; `None` if the job is of another connection or of an ended life.
    fn pass(&self, job: &CopyJob, buffer: &mut Vec<u8>) -> Option<Message> {
        let open = self.lock();
        if !self.is_connected(job.connection) || open.as_ref().is_some_and(|open| job.life < open.life) {
            return None;
        }
        let outcome = match open.as_ref() {
            Some(open) if open.life == job.life => catch_unwind(AssertUnwindSafe(|| open.copy(job, buffer)))
                .unwrap_or_else(|_| Err("the worker panicked".into())),
            Some(_) => Err(format!("life {} has not begun", job.life)),
            None => Err("the worker waits for a reset".into()),
        };
        let id = job.id;
        Some(match (&job.copy, outcome) {
            (Copy::Read { .. }, Ok(read)) => Message::BlockRead(wire::BlockRead { id, ..read }),
            (Copy::Read { .. }, Err(error)) => Message::BlockRead(wire::BlockRead { id, error, ..Default::default() }),
            (_, outcome) => Message::BlockWritten(wire::BlockWritten { id, error: outcome.err().unwrap_or_default() }),
        })
    }
}

impl Open {
    /// Reads or writes a block; returns the bytes of a reading, or their number in the slot.
    fn copy(&self, job: &CopyJob, buffer: &mut Vec<u8>) -> Result<wire::BlockRead, String> {
        let block = job.block;
        if block >= self.n_blocks {
            return Err(format!("there is no block {block}; the session has {} blocks", self.n_blocks));
        }
        let n_bytes = self.blocks.block_bytes();
        let read = |bytes: &mut [u8]| self.blocks.read(block, bytes).map_err(|error| error.to_string());
        let write = |bytes: &[u8]| self.blocks.write(block, bytes).map_err(|error| error.to_string());
        let wrong = |sent: u64| Err(format!("a block has {n_bytes} bytes, and {sent} were sent"));
        match (&job.copy, job.region.as_deref()) {
            (Copy::Read { slot }, region) => {
                buffer.resize(n_bytes, 0);
                read(buffer)?;
                let put = slot.zip(region).map(|(slot, region)| region.write(slot, buffer));
                Ok(match put {
                    Some(Ok(())) => wire::BlockRead { slot_bytes: n_bytes as u64, ..Default::default() },
                    // The server takes the bytes either way.
                    Some(Err(_)) | None => wire::BlockRead { data: std::mem::take(buffer), ..Default::default() },
                })
            }
            (Copy::Write { data }, _) if data.len() == n_bytes => write(data).map(|()| wire::BlockRead::default()),
            (Copy::Write { data }, _) => wrong(data.len() as u64),
            (Copy::WriteSlot { n_bytes: sent, .. }, _) if *sent != n_bytes as u64 => wrong(*sent),
            (Copy::WriteSlot { .. }, None) => Err("a slot was named without shared memory".into()),
            (Copy::WriteSlot { slot, .. }, Some(region)) => {
                buffer.resize(n_bytes, 0);
                region.read(*slot, buffer).map_err(|fault| fault.to_string())?;
                write(buffer).map(|()| wire::BlockRead::default())
            }
        }
    }
}

/// Makes copies in the order of the jobs until nobody sends any more.
pub(super) fn serve(jobs: &Receiver<CopyJob>, fence: &Fence) {
    let mut buffer = Vec::new();
    for job in jobs {
        if let Some(message) = fence.pass(&job, &mut buffer) {
            // A connection that is gone needs no answer.
            let _ = job.answers.send(wire::FromWorker { message: Some(message) });
        }
    }
}
