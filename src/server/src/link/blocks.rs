//! The blocks of an attached worker, read and written over the connection.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use tonic::Status;
use tonic::codegen::Bytes;
use trunkline_port::{CopyError, DeviceBlocks};

use super::{BlockAnswer, Job, Link, lock};

/// Time for the answer to a block that is read or written.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The blocks of a worker during one life of the worker, for the threads of the store.
pub(crate) struct LinkBlocks {
    link: Arc<Link>,
    life: u64,
    block_bytes: usize,
}

impl LinkBlocks {
    pub(crate) fn new(link: Arc<Link>, life: u64, block_bytes: usize) -> Self {
        Self { link, life, block_bytes }
    }

    /// Sends a job and waits for the answer.
    fn ask(&self, job: impl FnOnce(u64) -> Job) -> Result<Bytes, CopyError> {
        let (waiting, answered) = sync_channel::<BlockAnswer>(1);
        let id = {
            let mut copies = lock(&self.link.copies);
            if copies.is_closed {
                return Err(CopyError::new("the connection to the worker is broken"));
            }
            if copies.life != self.life {
                return Err(CopyError::new("the worker was reset"));
            }
            copies.next += 1;
            let id = copies.next;
            copies.waiting.insert(id, waiting);
            // Sent under the lock: behind a reset, no copy of an earlier life is sent.
            let sent = self.link.jobs.upgrade().is_some_and(|jobs| jobs.send(job(id)).is_ok());
            if !sent {
                copies.waiting.remove(&id);
                return Err(CopyError::new("the connection to the worker is broken"));
            }
            id
        };
        match answered.recv_timeout(ANSWER_TIMEOUT) {
            Ok(answer) => answer.map_err(CopyError::new),
            Err(RecvTimeoutError::Disconnected) => Err(CopyError::new("the worker was reset, or its connection broke")),
            Err(RecvTimeoutError::Timeout) => {
                lock(&self.link.copies).waiting.remove(&id);
                // A write may still take place, into a block that has other uses by then: the KV of the worker is lost.
                self.link.end(Status::aborted(format!("a block was not copied within {ANSWER_TIMEOUT:?}")));
                Err(CopyError::new("the worker did not answer"))
            }
        }
    }
}

impl DeviceBlocks for LinkBlocks {
    fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    fn read(&self, block: u32, bytes: &mut [u8]) -> Result<(), CopyError> {
        let data = self.ask(|id| Job::Read { id, life: self.life, block })?;
        if data.len() != bytes.len() {
            let message = format!("the worker read {} bytes of a block of {} bytes", data.len(), bytes.len());
            self.link.end_faulty(message.clone());
            return Err(CopyError::new(message));
        }
        bytes.copy_from_slice(&data);
        Ok(())
    }

    fn write(&self, block: u32, bytes: &[u8]) -> Result<(), CopyError> {
        self.ask(|id| Job::Write { id, life: self.life, block, data: Bytes::copy_from_slice(bytes) }).map(drop)
    }
}
