//! Jobs that copy the pairs of a transfer, a few at a time.

use std::sync::Arc;

use trunkline_port::{BlockKey, DeviceBlocks, Place, Transfer};

use crate::answer::Pair;
use crate::counters::Fault;
use crate::held::{Coding, Held};
use crate::places::{Failure, Places, Scratch};

/// Pair to copy, with the claims of its slots.
pub struct Item {
    /// Pair of the transfer, to be answered.
    pub pair: Pair,
    /// Generation of the source slot when the transfer was submitted.
    pub source_generation: u64,
    /// Claim of the destination slot.
    pub generation: u64,
}

/// Pairs of a transfer, to be copied by one thread.
pub struct Copying {
    /// Places that hold sources and destinations.
    pub places: Arc<Places>,
    /// Device of the worker that the transfer is for.
    pub device: Arc<dyn DeviceBlocks>,
    /// Transfer with the pairs.
    pub transfer: Arc<Transfer>,
    /// Pairs to copy, in the order of the transfer.
    pub items: Vec<Item>,
}

/// Contents of a source, and where the bytes are.
enum Source {
    /// Uncompressed, in [`Scratch::raw`].
    Raw,
    /// In host memory, compressed or not.
    Held(Arc<Held>),
}

impl Copying {
    /// Copies all pairs and answers each.
    pub fn run(self, scratch: &mut Scratch) {
        let Self { places, device, transfer, items } = self;
        for item in items {
            let copy = Copy { places: &places, device: device.as_ref(), transfer: &transfer };
            let result = copy.load(scratch, &item).and_then(|source| copy.deliver(scratch, &item, source));
            match result {
                Ok(stored_bytes) => item.pair.arrived(stored_bytes),
                Err(failure) => {
                    if let Failure::Unproven(fault) = failure {
                        places.count_fault(transfer.from, fault);
                    }
                    item.pair.failed(failure.into());
                }
            }
        }
    }
}

struct Copy<'a> {
    places: &'a Arc<Places>,
    device: &'a dyn DeviceBlocks,
    transfer: &'a Transfer,
}

impl Copy<'_> {
    fn slots(&self, item: &Item) -> (u32, u32) {
        self.transfer.pairs[item.pair.index()]
    }

    fn key(&self, item: &Item) -> Option<BlockKey> {
        self.transfer.keys.get(item.pair.index()).copied()
    }

    /// Reads the source and proves its identity.
    fn load(&self, scratch: &mut Scratch, item: &Item) -> Result<Source, Failure> {
        let (slot, _) = self.slots(item);
        if self.transfer.from == Place::Device {
            scratch.raw.resize(self.device.block_bytes(), 0);
            return match self.device.read(slot, &mut scratch.raw) {
                Ok(()) => Ok(Source::Raw),
                Err(_) => Err(Failure::Interrupted),
            };
        }
        let place = self.places.host_place(self.transfer.from).ok_or(Failure::Unproven(Fault::Missing))?;
        let (generation, kept) = place.slots().get(slot).ok_or(Failure::Unproven(Fault::Missing))?;
        let is_tier = self.transfer.from != Place::Host;
        if is_tier && kept.key() != self.key(item) {
            return Err(Failure::Unproven(Fault::Swapped));
        }
        if generation != item.source_generation {
            return Err(Failure::Unproven(Fault::Stale));
        }
        Ok(Source::Held(Arc::clone(kept.held())))
    }

    /// Writes the contents to the destination. Returns the bytes taken there.
    fn deliver(&self, scratch: &mut Scratch, item: &Item, source: Source) -> Result<u64, Failure> {
        let (_, slot) = self.slots(item);
        if self.transfer.to == Place::Device {
            return self.deliver_to_device(scratch, slot, &source);
        }
        let place = self.places.host_place(self.transfer.to).ok_or(Failure::Refused)?;
        let key = self.key(item);
        let position = key.map(|key| key.first_token);
        let held = match source {
            Source::Held(held) => held,
            Source::Raw => {
                self.places.learn(&scratch.raw, position);
                self.places.hold_block(scratch, position).ok_or(Failure::Refused)?
            }
        };
        let key = key.filter(|_| self.transfer.to != Place::Host);
        let stored_bytes = held.stored_bytes();
        if !place.fill(slot, item.generation, key, &held) {
            // A later write owns the slot: nobody waits for this one.
            return Err(Failure::Interrupted);
        }
        self.places.compress_later(&held, position);
        Ok(stored_bytes)
    }

    fn deliver_to_device(&self, scratch: &mut Scratch, slot: u32, source: &Source) -> Result<u64, Failure> {
        let Scratch { engine, raw, .. } = scratch;
        let write = |bytes: &[u8]| {
            if bytes.len() != self.device.block_bytes() {
                return Err(Failure::Unproven(Fault::Stale));
            }
            self.device.write(slot, bytes).map_err(|_| Failure::Interrupted)?;
            Ok(bytes.len() as u64)
        };
        let held = match source {
            Source::Raw => return write(raw),
            Source::Held(held) => held,
        };
        {
            let body = held.body();
            body.verify().map_err(Failure::Unproven)?;
            if body.coding() == Coding::Raw {
                return write(body.bytes());
            }
        }
        if let Some(decoded) = self.places.cache.get(held.id()) {
            let body = decoded.body();
            if body.verify().is_ok() {
                return write(body.bytes());
            }
        }
        self.places.coder.decode(engine, held.body().bytes(), raw).map_err(Failure::Unproven)?;
        if self.places.cache.takes(raw.len() as u64)
            && let Some(decoded) = Held::new(&self.places.arena, raw, Coding::Raw)
        {
            self.places.cache.insert(held.id(), decoded);
        }
        write(raw)
    }
}
