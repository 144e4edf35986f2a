//! Records that wait for the writer of a disk tier.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use trunkline_files::Aligned;
use trunkline_port::{BlockFault, BlockKey};

/// Maximum number of bytes of buffers without a record: the records that are made while as many are written.
const SPARE_BYTES: u64 = 16 << 20;

/// Record to be written.
pub struct Write {
    /// Record, sealed, in whole pages.
    pub record: Aligned,
    /// Tokens of the block.
    pub n_tokens: usize,
    /// Identity of the block.
    pub key: BlockKey,
    /// Slot for the record.
    pub slot: u32,
    /// Claim of the slot.
    pub generation: u64,
    /// Receiver of the bytes written, or the reason for none.
    pub done: Box<dyn FnOnce(Result<u64, BlockFault>) + Send>,
}

/// Queue with a limit in bytes.
#[derive(Default)]
pub struct WriteQueue {
    state: Mutex<State>,
    wake: Condvar,
    limit: u64,
}

impl std::fmt::Debug for WriteQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WriteQueue").field("limit", &self.limit).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct State {
    writes: VecDeque<Write>,
    bytes: u64,
    is_closed: bool,
    /// Buffers of written records, for the next ones.
    spare: Vec<Aligned>,
    spare_bytes: u64,
}

impl WriteQueue {
    /// Creates an empty queue for at most `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self { limit, ..Self::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns `true` if a record of `bytes` fits.
    pub fn has_room(&self, bytes: u64) -> bool {
        let state = self.state();
        !state.is_closed && (state.bytes == 0 || state.bytes + bytes <= self.limit)
    }

    /// Returns a buffer for a record.
    pub fn buffer(&self) -> Aligned {
        let mut state = self.state();
        let buffer = state.spare.pop().unwrap_or_default();
        state.spare_bytes -= buffer.as_slice().len() as u64;
        buffer
    }

    /// Adds a record behind the others. A full or closed queue answers at once that the record is refused.
    pub fn push(&self, write: Write) {
        let bytes = write.record.as_slice().len() as u64;
        let mut state = self.state();
        if state.is_closed || state.bytes > 0 && state.bytes + bytes > self.limit {
            drop(state);
            return (write.done)(Err(BlockFault::Refused));
        }
        state.bytes += bytes;
        state.writes.push_back(write);
        drop(state);
        self.wake.notify_one();
    }

    /// Waits for records. Returns the first, and those behind up to `bytes` in all; nothing once the queue is closed and empty.
    pub fn take(&self, bytes: usize) -> Vec<Write> {
        let mut state = self.state();
        while state.writes.is_empty() && !state.is_closed {
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let (mut taken, mut len) = (Vec::new(), 0);
        while let Some(next) = state.writes.front() {
            len += next.record.as_slice().len();
            if len > bytes && !taken.is_empty() {
                break;
            }
            taken.extend(state.writes.pop_front());
        }
        taken
    }

    /// Returns the room and the buffers of records that were written.
    pub fn written(&self, buffers: Vec<Aligned>) {
        let mut state = self.state();
        for buffer in buffers {
            state.bytes -= buffer.as_slice().len() as u64;
            if state.spare_bytes + buffer.as_slice().len() as u64 <= SPARE_BYTES {
                state.spare_bytes += buffer.as_slice().len() as u64;
                state.spare.push(buffer);
            }
        }
    }

    /// Returns the bytes of all records not yet written.
    pub fn queued_bytes(&self) -> u64 {
        self.state().bytes
    }

    /// Takes no further records. Those in the queue are written.
    pub fn close(&self) {
        self.state().is_closed = true;
        self.wake.notify_all();
    }
}
