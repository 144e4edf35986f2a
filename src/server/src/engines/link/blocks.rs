//! The blocks of an attached worker, read and written over the connection: through shared memory if the worker has opened any, else in
//! messages.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tonic::Status;
use tonic::codegen::Bytes;
use trunkline_attach::Region;
use trunkline_port::{CopyError, DeviceBlocks};

use super::{BlockAnswer, Contents, Copies, Job, Link, Waiting, lock};

/// Time for the answer to a block that is read or written.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The blocks of a worker during one life of the worker, for the threads of the store.
pub(crate) struct LinkBlocks {
    link: Arc<Link>,
    life: u64,
    block_bytes: usize,
}

/// A slot of shared memory in the hands of one copy; dropped, the slot is free.
struct Slot<'a> {
    link: &'a Link,
    region: Arc<Region>,
    number: u32,
    /// `true` once the worker may touch the slot without end.
    is_left: bool,
}

impl Slot<'_> {
    /// Leaves the slot to the worker, who may still touch it.
    fn leave(mut self) {
        self.is_left = true;
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        if self.is_left {
            return;
        }
        if let Some(slots) = &mut lock(&self.link.copies).slots {
            slots.put(self.number);
        }
        self.link.slot_free.notify_one();
    }
}

impl LinkBlocks {
    pub(crate) fn new(link: Arc<Link>, life: u64, block_bytes: usize) -> Self {
        Self { link, life, block_bytes }
    }

    /// Returns an error if the worker takes no copy of this life any more.
    fn check(&self, copies: &Copies) -> Result<(), CopyError> {
        if copies.is_closed {
            return Err(CopyError::new("the connection to the worker is broken"));
        }
        if copies.life != self.life {
            return Err(CopyError::new("the worker was reset"));
        }
        Ok(())
    }

    /// Takes a slot of shared memory, and waits while other copies have all of them. Returns `None` if blocks travel in messages.
    fn slot(&self) -> Result<Option<Slot<'_>>, CopyError> {
        let link = &*self.link;
        let mut copies = lock(&link.copies);
        loop {
            self.check(&copies)?;
            let Some(slots) = copies.slots.as_mut().filter(|slots| slots.take_blocks_of(self.block_bytes)) else {
                return Ok(None);
            };
            if let Some((region, number)) = slots.take() {
                return Ok(Some(Slot { link, region, number, is_left: false }));
            }
            // Every copy ends: with its answer, with the life, or with the connection.
            copies = link.slot_free.wait(copies).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sends a job, and waits for the answer. Returns the slot again once the worker does not touch it any more.
    fn ask<'a>(
        &self,
        slot: Option<Slot<'a>>,
        job: impl FnOnce(u64, Option<u32>) -> Job,
    ) -> Result<(Option<Slot<'a>>, Contents), CopyError> {
        let (answer, answered) = sync_channel::<BlockAnswer>(1);
        let number = slot.as_ref().map(|slot| slot.number);
        let id = {
            let mut copies = lock(&self.link.copies);
            self.check(&copies)?;
            copies.next += 1;
            let id = copies.next;
            copies.waiting.insert(id, Waiting { answer, slot: number });
            // Sent under the lock: behind a reset, no copy of an earlier life is sent.
            let sent = self.link.jobs.upgrade().is_some_and(|jobs| jobs.send(job(id, number)).is_ok());
            if !sent {
                copies.waiting.remove(&id);
                return Err(CopyError::new("the connection to the worker is broken"));
            }
            id
        };
        match answered.recv_timeout(ANSWER_TIMEOUT) {
            Ok(answer) => answer.map(|contents| (slot, contents)).map_err(CopyError::new),
            Err(RecvTimeoutError::Disconnected) => {
                slot.into_iter().for_each(Slot::leave);
                Err(CopyError::new("the worker was reset, or its connection broke"))
            }
            Err(RecvTimeoutError::Timeout) => {
                slot.into_iter().for_each(Slot::leave);
                lock(&self.link.copies).waiting.remove(&id);
                // A write may still take place, into a block that has other uses by then: the KV of the worker is lost.
                self.link.end(Status::aborted(format!("a block was not copied within {ANSWER_TIMEOUT:?}")));
                Err(CopyError::new("the worker did not answer"))
            }
        }
    }

    /// Checks the number of bytes that the worker has read.
    fn check_length(&self, n_bytes: u64, expected: usize) -> Result<(), CopyError> {
        if n_bytes == expected as u64 {
            return Ok(());
        }
        let message = format!("the worker read {n_bytes} bytes of a block of {expected} bytes");
        self.link.end_faulty(message.clone());
        Err(CopyError::new(message))
    }

    fn count(&self, is_shared: bool, n_bytes: usize) {
        let counters = &self.link.counters;
        let counter = if is_shared { &counters.shared_bytes } else { &counters.message_bytes };
        counter.fetch_add(n_bytes as u64, Ordering::Relaxed);
    }
}

impl DeviceBlocks for LinkBlocks {
    fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    fn read(&self, block: u32, bytes: &mut [u8]) -> Result<(), CopyError> {
        let slot = self.slot()?;
        let (slot, contents) = self.ask(slot, |id, slot| Job::Read { id, life: self.life, block, slot })?;
        match (contents, &slot) {
            (Contents::Slot(n_bytes), Some(slot)) => {
                self.check_length(n_bytes, bytes.len())?;
                slot.region.read(slot.number, bytes).map_err(|fault| CopyError::new(fault.to_string()))?;
                self.count(true, bytes.len());
            }
            (Contents::Slot(n_bytes), None) => self.check_length(n_bytes, 0)?,
            (Contents::Message(data), _) => {
                self.check_length(data.len() as u64, bytes.len())?;
                bytes.copy_from_slice(&data);
                self.count(false, bytes.len());
            }
        }
        Ok(())
    }

    fn write(&self, block: u32, bytes: &[u8]) -> Result<(), CopyError> {
        // Without memory for the slot, the bytes travel in the message.
        let slot = self.slot()?.filter(|slot| slot.region.write(slot.number, bytes).is_ok());
        let (life, is_shared, slot_bytes) = (self.life, slot.is_some(), bytes.len() as u64);
        let data = if is_shared { Bytes::new() } else { Bytes::copy_from_slice(bytes) };
        let job = |id, slot| Job::Write { id, life, block, data, slot, slot_bytes };
        self.ask(slot, job)?;
        self.count(is_shared, bytes.len());
        Ok(())
    }
}
