//! Jobs that copy the pairs of a transfer, a few at a time.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use trunkline_files::Aligned;
use trunkline_port::{BlockKey, DeviceBlocks, Place, Token, Transfer};

use crate::announced::Announced;
use crate::answer::Pair;
use crate::coder::Origin;
use crate::counters::Fault;
use crate::disk::{Disk, Write};
use crate::held::{Coding, Held};
use crate::places::{Failure, Places, Scratch, Tier};
use crate::record::{header_len, seal};
use crate::remote::{NoBlock, Remote};

/// Pair to copy, with the claims of its slots.
pub struct Item {
    /// Pair of the transfer, to be answered.
    pub pair: Pair,
    /// Generation of the source slot when the transfer was submitted.
    pub source_generation: u64,
    /// Claim of the destination slot.
    pub generation: u64,
    /// Write to remote storage that look-ups wait for.
    pub announced: Option<Announced>,
}

/// A transfer under way.
#[derive(Debug)]
pub struct UnderWay {
    pub transfer: Transfer,
    is_cancelled: AtomicBool,
}

impl UnderWay {
    /// A transfer that begins.
    pub fn new(transfer: Transfer) -> Self {
        Self { transfer, is_cancelled: AtomicBool::new(false) }
    }

    /// Interrupts the pairs not begun yet.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Relaxed);
    }
}

/// Pairs of a transfer, to be copied by one thread.
pub struct Copying {
    /// Places that hold sources and destinations.
    pub places: Arc<Places>,
    /// Device of the worker that the transfer is for.
    pub device: Arc<dyn DeviceBlocks>,
    /// Transfer with the pairs.
    pub under_way: Arc<UnderWay>,
    /// Pairs to copy, in the order of the transfer.
    pub items: Vec<Item>,
}

/// Contents of a source, and where the bytes are.
enum Source {
    /// On the device, to be read straight into a record.
    Device,
    /// Uncompressed, in [`Scratch::raw`].
    Raw,
    /// In host memory, compressed or not.
    Held(Arc<Held>),
    /// Payload of a record in [`Scratch::record`].
    Record(Coding, Range<usize>),
}

impl Copying {
    /// Copies all pairs and answers each. The pairs of a cancelled transfer end as interrupted.
    pub fn run(self, scratch: &mut Scratch) {
        let Self { places, device, under_way, items } = self;
        let transfer = &under_way.transfer;
        for Item { pair, source_generation, generation, announced } in items {
            if under_way.is_cancelled.load(Ordering::Relaxed) {
                pair.cancelled();
                continue;
            }
            let (from, to) = transfer.pairs[pair.index()];
            let key = transfer.keys.get(pair.index()).copied();
            let tokens = if key.is_some() { transfer.tokens_of(pair.index()) } else { &[] };
            let copy = Copy {
                places: &places,
                device: device.as_ref(),
                transfer,
                from,
                to,
                key,
                tokens,
                source_generation,
                generation,
            };
            copy.run(scratch, pair);
            drop(announced);
        }
    }
}

impl From<NoBlock> for Failure {
    fn from(reason: NoBlock) -> Self {
        match reason {
            NoBlock::Unproven(fault) => Self::Unproven(fault),
            NoBlock::Unanswered => Self::Interrupted,
            NoBlock::Refused => Self::Refused,
        }
    }
}

struct Copy<'a> {
    places: &'a Arc<Places>,
    device: &'a dyn DeviceBlocks,
    transfer: &'a Transfer,
    from: u32,
    to: u32,
    key: Option<BlockKey>,
    tokens: &'a [Token],
    source_generation: u64,
    generation: u64,
}

impl Copy<'_> {
    fn run(&self, scratch: &mut Scratch, pair: Pair) {
        if self.places.is_left_alone(self.transfer.to) {
            return self.fail(pair, Failure::Refused);
        }
        let source = match self.load(scratch) {
            Ok(source) => source,
            Err(failure) => return self.fail(pair, failure),
        };
        if let Source::Raw = source {
            self.places.learn(&scratch.raw, self.origin());
        }
        let result = match self.places.tier(self.transfer.to) {
            Some(Tier::Disk(disk, _)) => match self.disk_record(scratch, disk, source) {
                Ok(record) => return self.write(disk, record, pair),
                Err(failure) => Err(failure),
            },
            Some(Tier::Remote(remote, _)) => self.deliver_to_remote(scratch, remote, source),
            _ if self.transfer.to == Place::Device => self.deliver_to_device(scratch, source),
            _ => self.deliver_to_host(scratch, source),
        };
        // The source is dropped by now: the receiver of the answer may count on its memory.
        match result {
            Ok(stored_bytes) => pair.arrived(stored_bytes),
            Err(failure) => self.fail(pair, failure),
        }
    }

    fn fail(&self, pair: Pair, failure: Failure) {
        if let Failure::Unproven(fault) = failure {
            self.places.count_fault(self.transfer.from, fault);
        }
        pair.failed(failure.into());
    }

    /// Returns `true` if the destination holds records.
    fn is_to_records(&self) -> bool {
        matches!(self.places.tier(self.transfer.to), Some(Tier::Disk(..) | Tier::Remote(..)))
    }

    fn origin(&self) -> Option<Origin> {
        self.key.map(Origin::from)
    }

    /// Reads the source and proves its identity.
    fn load(&self, scratch: &mut Scratch) -> Result<Source, Failure> {
        if self.transfer.from == Place::Device {
            if let Some(held) = self.in_host_memory() {
                return Ok(Source::Held(held));
            }
            if self.places.stores_unchanged() && self.is_to_records() {
                return Ok(Source::Device);
            }
            scratch.raw.resize(self.device.block_bytes(), 0);
            return match self.device.read(self.from, &mut scratch.raw) {
                Ok(()) => Ok(Source::Raw),
                Err(_) => Err(Failure::Interrupted),
            };
        }
        if let Some(Tier::Disk(disk, _)) = self.places.tier(self.transfer.from) {
            let key = self.key.ok_or(Failure::Unproven(Fault::Missing))?;
            let header = disk.read(self.from, &key, self.tokens, &mut scratch.record).map_err(Failure::Unproven)?;
            return Ok(Source::Record(header.coding, header.payload_range()));
        }
        if let Some(Tier::Remote(remote, _)) = self.places.tier(self.transfer.from) {
            return self.load_from_remote(scratch, remote);
        }
        let place = self.places.host_place(self.transfer.from).ok_or(Failure::Unproven(Fault::Missing))?;
        let (generation, kept) = place.slots().get(self.from).ok_or(Failure::Unproven(Fault::Missing))?;
        let is_tier = self.transfer.from != Place::Host;
        if is_tier && kept.key() != self.key {
            return Err(Failure::Unproven(Fault::Swapped));
        }
        if generation != self.source_generation {
            return Err(Failure::Unproven(Fault::Stale));
        }
        Ok(Source::Held(Arc::clone(kept.held())))
    }

    /// Returns a block of the device that is in host memory already, if it goes there.
    fn in_host_memory(&self) -> Option<Arc<Held>> {
        self.places.host_place(self.transfer.to)?;
        self.places.named.share(&self.key?)
    }

    fn load_from_remote(&self, scratch: &mut Scratch, remote: &Remote) -> Result<Source, Failure> {
        let key = self.key.ok_or(Failure::Unproven(Fault::Missing))?;
        let (header, record) = remote.get(&key, self.tokens, self.places.record_max)?;
        let range = header.payload_range();
        if header.coding == Coding::Frame {
            self.places.fetch_table(remote, &record[range.clone()])?;
        }
        scratch.record = Aligned::from(record);
        Ok(Source::Record(header.coding, range))
    }

    /// Fills a slot in host memory. Returns the memory taken.
    fn deliver_to_host(&self, scratch: &mut Scratch, source: Source) -> Result<u64, Failure> {
        let place = self.places.host_place(self.transfer.to).ok_or(Failure::Refused)?;
        let origin = self.origin();
        let held = match source {
            Source::Held(held) => Some(held),
            Source::Device => return Err(Failure::Interrupted),
            Source::Raw => self.places.hold_block(scratch, origin),
            Source::Record(coding, range) => self.places.hold(&scratch.record.as_slice()[range], coding),
        };
        let held = held.ok_or(Failure::Refused)?;
        let key = self.key.filter(|_| self.transfer.to != Place::Host);
        let stored_bytes = held.stored_bytes();
        if !place.fill(self.to, self.generation, key, &held) {
            // A later write owns the slot: nobody waits for this one.
            return Err(Failure::Interrupted);
        }
        if let Some(key) = &self.key {
            self.places.named.insert(key, &held);
        }
        self.places.compress_later(&held, origin);
        Ok(stored_bytes)
    }

    /// Makes the record of a block for a disk, in whole pages.
    fn disk_record(&self, scratch: &mut Scratch, disk: &Disk, source: Source) -> Result<(Aligned, BlockKey), Failure> {
        if !disk.has_room(self.places.record_max) {
            return Err(Failure::Refused);
        }
        let mut buffer = disk.buffer();
        let (_, key) = self.record(scratch, source, &mut buffer)?;
        buffer.pad();
        Ok((buffer, key))
    }

    /// Writes the record of a block to remote storage, and before that the side table that its frame needs.
    fn deliver_to_remote(&self, scratch: &mut Scratch, remote: &Remote, source: Source) -> Result<u64, Failure> {
        let mut buffer = Aligned::default();
        let (coding, key) = self.record(scratch, source, &mut buffer)?;
        let record = buffer.into_vec();
        let payload = &record[header_len(self.tokens.len())..];
        let table =
            Some(payload).filter(|_| coding == Coding::Frame).and_then(|frame| self.places.coder.table_of(frame));
        if let Some(id) = table {
            remote.put_table(id, Instant::now(), || self.places.coder.table(id))?;
        }
        let stored_bytes = remote.put(&key, record)?;
        remote.fill(self.to, self.generation, stored_bytes);
        Ok(stored_bytes)
    }

    /// Makes the record of a block.
    fn record(
        &self,
        scratch: &mut Scratch,
        source: Source,
        buffer: &mut Aligned,
    ) -> Result<(Coding, BlockKey), Failure> {
        let key = self.key.ok_or(Failure::Refused)?;
        let begin = header_len(self.tokens.len());
        if let Source::Device = source {
            buffer.resize(begin + self.device.block_bytes());
            let block = &mut buffer.as_mut_slice()[begin..];
            self.device.read(self.from, block).map_err(|_| Failure::Interrupted)?;
            seal(buffer.as_mut_slice(), self.places.layout, Coding::Raw, &key, self.tokens);
            return Ok((Coding::Raw, key));
        }
        buffer.resize(begin);
        let Scratch { engine, raw, record, .. } = scratch;
        let mut encode = |block: &[u8], out: &mut Vec<u8>| {
            if self.places.encode(engine, block, self.origin(), out) {
                return Coding::Frame;
            }
            out.extend_from_slice(block);
            Coding::Raw
        };
        let coding = buffer.append(|out| -> Result<Coding, Failure> {
            match source {
                Source::Device => Err(Failure::Interrupted),
                Source::Raw => Ok(encode(raw, out)),
                Source::Held(held) => {
                    let body = held.body();
                    body.verify().map_err(Failure::Unproven)?;
                    if body.coding() == Coding::Raw {
                        return Ok(encode(body.bytes(), out));
                    }
                    out.extend_from_slice(body.bytes());
                    Ok(Coding::Frame)
                }
                Source::Record(coding, range) => {
                    out.extend_from_slice(&record.as_slice()[range]);
                    Ok(coding)
                }
            }
        })?;
        seal(buffer.as_mut_slice(), self.places.layout, coding, &key, self.tokens);
        Ok((coding, key))
    }

    /// Queues a record for a disk; the writer answers.
    fn write(&self, disk: &Disk, (record, key): (Aligned, BlockKey), pair: Pair) {
        let done = Box::new(move |result| match result {
            Ok(stored_bytes) => pair.arrived(stored_bytes),
            Err(fault) => pair.failed(fault),
        });
        let (slot, generation, n_tokens) = (self.to, self.generation, self.tokens.len());
        disk.write(Write { record, n_tokens, key, slot, generation, done });
    }

    fn deliver_to_device(&self, scratch: &mut Scratch, source: Source) -> Result<u64, Failure> {
        let Scratch { engine, raw, record, .. } = scratch;
        let write = |bytes: &[u8]| {
            if bytes.len() != self.device.block_bytes() {
                return Err(Failure::Unproven(Fault::Stale));
            }
            self.device.write(self.to, bytes).map_err(|_| Failure::Interrupted)?;
            Ok(bytes.len() as u64)
        };
        let held = match source {
            Source::Device => return Err(Failure::Interrupted),
            Source::Raw => return write(raw),
            Source::Record(Coding::Raw, range) => return write(&record.as_slice()[range]),
            Source::Record(Coding::Frame, range) => {
                let frame = &record.as_slice()[range];
                self.places.coder.decode(engine, frame, raw).map_err(Failure::Unproven)?;
                return write(raw);
            }
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
