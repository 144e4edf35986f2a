//! Slots of the memory that the server shares with an attached worker, and who uses each.
//!
//! A slot belongs to one copy, from before the job is sent to after the answer. If a reset comes in between, the worker may touch the slot
//! until the worker reports the new life, so the slot waits for that.

use std::sync::Arc;

use tracing::{debug, info, warn};
use trunkline_attach::Region;
use trunkline_attach::wire;

/// Maximum number of slots of a connection: more than the store has threads that copy at once.
const SLOTS_MAX: u64 = 16;
/// Memory shared with one worker, bytes; one slot may have more. The system takes memory for a slot when it is first used.
const BYTES_MAX: u64 = 256 << 20;

/// Creates the memory of a connection for blocks of `block_bytes`; `None` if the system has none.
pub(crate) fn share(block_bytes: u64) -> Option<Region> {
    let mut secret = [0; 32];
    if let Err(err) = getrandom::fill(&mut secret) {
        warn!("no random bits for shared memory: {err}");
        return None;
    }
    let slots = (BYTES_MAX / block_bytes.max(1)).clamp(1, SLOTS_MAX) as u32;
    match Region::create(slots, block_bytes, secret) {
        Ok(region) => Some(region),
        Err(fault) => {
            info!("blocks of an attached worker travel in messages: {fault}");
            None
        }
    }
}

/// Slots of a connection.
pub(super) struct Slots {
    region: Arc<Region>,
    /// `true` once the worker has opened the memory.
    is_open: bool,
    /// Free slots; the last freed is used first, so that few take memory.
    free: Vec<u32>,
    /// Slots of copies that a reset interrupted.
    interrupted: Vec<u32>,
}

impl Slots {
    /// Makes free slots in memory that the worker has not opened yet.
    pub(super) fn new(region: Region) -> Self {
        let free = (0..region.slots()).rev().collect();
        Self { region: Arc::new(region), is_open: false, free, interrupted: Vec::new() }
    }

    /// Returns the offer for the worker.
    pub(super) fn offer(&self) -> wire::SharedMemory {
        self.region.offer()
    }

    /// Notes that the worker has opened the memory. Returns `false` if the message does not prove that, or is the second.
    pub(super) fn open(&mut self, opened: &wire::SharedMemoryOpened) -> bool {
        let is_proof = !self.is_open && self.region.is_proved_by(opened);
        self.is_open |= is_proof;
        is_proof
    }

    /// Returns `true` if blocks of so many bytes travel through the memory.
    pub(super) fn take_blocks_of(&self, n_bytes: usize) -> bool {
        self.is_open && n_bytes as u64 <= self.region.slot_bytes()
    }

    /// Takes a free slot.
    pub(super) fn take(&mut self) -> Option<(Arc<Region>, u32)> {
        self.free.pop().map(|slot| (Arc::clone(&self.region), slot))
    }

    /// Frees a slot that the worker does not touch any more.
    pub(super) fn put(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Notes that the copy of a slot was interrupted by a reset.
    pub(super) fn interrupt(&mut self, slot: u32) {
        self.interrupted.push(slot);
    }

    /// Frees the slots of interrupted copies: the worker has begun a later life.
    pub(super) fn end_life(&mut self) {
        if !self.interrupted.is_empty() {
            debug!(slots = self.interrupted.len(), "slots of interrupted copies are free");
        }
        self.free.append(&mut self.interrupted);
    }

    /// Returns `true` if the worker has opened the memory.
    pub(super) fn is_open(&self) -> bool {
        self.is_open
    }
}
