//! Blocks in host memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError};

use trunkline_port::BlockKey;
use xxhash_rust::xxh3::xxh3_64;

use crate::arena::{Arena, Piece, rounded};
use crate::counters::Fault;
use crate::slots::Slots;

/// Form of a stored block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// Bytes of the block as they are.
    Raw = 0,
    /// Frame of the codec.
    Frame = 1,
}

/// Stored form of a block, with a checksum.
#[derive(Debug)]
pub struct Body {
    piece: Piece,
    coding: Coding,
    checksum: u64,
}

impl Body {
    /// Returns the stored bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.piece
    }

    /// Returns the form of the bytes.
    pub fn coding(&self) -> Coding {
        self.coding
    }

    /// Checks the bytes against their checksum.
    ///
    /// # Errors
    /// If a byte changed since the bytes were stored.
    pub fn verify(&self) -> Result<(), Fault> {
        if xxh3_64(&self.piece) == self.checksum { Ok(()) } else { Err(Fault::Flipped) }
    }
}

/// Block in host memory, shared by all slots and copies that need the same contents.
#[derive(Debug)]
pub struct Held {
    id: u64,
    /// Stored form. A copy holds the lock for as long as the device takes, so nobody waits to write it.
    body: RwLock<Body>,
    /// Memory of the body, in a lock of its own: slots are filled and emptied while copies read the body.
    size: Mutex<Size>,
}

/// Memory of a block.
#[derive(Debug)]
struct Size {
    bytes: u64,
    /// Sizes of the places that hold the block, once for each slot.
    places: Vec<Arc<AtomicU64>>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(0);

impl Held {
    /// Copies bytes into the arena. Returns `None` if there is no memory for them.
    pub fn new(arena: &Arc<Arena>, bytes: &[u8], coding: Coding) -> Option<Arc<Self>> {
        let mut piece = arena.allocate(bytes.len())?;
        piece.copy_from_slice(bytes);
        let body = Body { piece, coding, checksum: xxh3_64(bytes) };
        let size = Size { bytes: rounded(bytes.len()) as u64, places: Vec::new() };
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Some(Arc::new(Self { id, body: RwLock::new(body), size: Mutex::new(size) }))
    }

    /// Returns a number that no other block of this process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns the stored form, for reading.
    pub fn body(&self) -> RwLockReadGuard<'_, Body> {
        self.body.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the memory taken, bytes.
    pub fn stored_bytes(&self) -> u64 {
        self.size().bytes
    }

    fn size(&self) -> MutexGuard<'_, Size> {
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the stored form, for a change; `None` while a copy reads the form.
    fn body_mut(&self) -> Option<RwLockWriteGuard<'_, Body>> {
        match self.body.try_write() {
            Ok(body) => Some(body),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Replaces an uncompressed body by its frame. Returns `false` if the frame takes as much memory, or a copy reads the body: a device that
    /// hangs keeps the body for as long.
    pub fn compress(&self, arena: &Arc<Arena>, frame: &[u8]) -> bool {
        let Some(mut body) = self.body_mut() else { return false };
        if body.coding == Coding::Frame || rounded(frame.len()) >= rounded(body.piece.len()) {
            return false;
        }
        let piece = std::mem::replace(&mut body.piece, arena.nothing());
        body.piece = arena.exchange(piece, frame.len());
        body.piece.copy_from_slice(frame);
        body.coding = Coding::Frame;
        body.checksum = xxh3_64(frame);
        let mut size = self.size();
        let saved = size.bytes - rounded(frame.len()) as u64;
        size.bytes -= saved;
        for place in &size.places {
            place.fetch_sub(saved, Ordering::Relaxed);
        }
        true
    }
}

/// Contents of a slot in host memory.
#[derive(Debug)]
pub struct Kept {
    key: Option<BlockKey>,
    held: Arc<Held>,
    size: Arc<AtomicU64>,
}

impl Kept {
    /// Returns the identity of the contents; `None` for blocks of swapped-out requests.
    pub fn key(&self) -> Option<BlockKey> {
        self.key
    }

    /// Returns the block in memory.
    pub fn held(&self) -> &Arc<Held> {
        &self.held
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        let mut size = self.held.size();
        self.size.fetch_sub(size.bytes, Ordering::Relaxed);
        if let Some(at) = size.places.iter().position(|place| Arc::ptr_eq(place, &self.size)) {
            size.places.swap_remove(at);
        }
    }
}

/// Place in host memory: slots, and the memory that their blocks take.
#[derive(Debug, Default)]
pub struct HostPlace {
    slots: Slots<Arc<Kept>>,
    size: Arc<AtomicU64>,
}

impl HostPlace {
    /// Returns the slots of the place.
    pub fn slots(&self) -> &Slots<Arc<Kept>> {
        &self.slots
    }

    /// Returns the memory that the blocks take, bytes; a block in several slots counts for each.
    pub fn stored_bytes(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Fills a slot; returns `false` if a later claim owns the slot.
    pub fn fill(&self, slot: u32, generation: u64, key: Option<BlockKey>, held: &Arc<Held>) -> bool {
        let mut size = held.size();
        self.size.fetch_add(size.bytes, Ordering::Relaxed);
        size.places.push(Arc::clone(&self.size));
        drop(size);
        let kept = Kept { key, held: Arc::clone(held), size: Arc::clone(&self.size) };
        self.slots.fill(slot, generation, Arc::new(kept)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_arena_compresses_in_place_and_changed_bytes_are_found() {
        let arena = Arena::new(2 << 20);
        let held = [1, 2].map(|byte| Held::new(&arena, &vec![byte; 1 << 20], Coding::Raw).unwrap());
        assert!(Held::new(&arena, &[0; 64], Coding::Raw).is_none());
        assert_ne!(held[0].id(), held[1].id());
        assert!(!held[0].compress(&arena, &vec![5; 1 << 20]));
        assert!(held[0].compress(&arena, &vec![5; 700_000]));
        assert!(!held[0].compress(&arena, &[6; 100]), "a frame stays");
        assert_eq!(held[0].stored_bytes(), rounded(700_000) as u64);
        assert_eq!((held[0].body().coding(), held[0].body().bytes()[699_999]), (Coding::Frame, 5));
        assert_eq!((held[0].body().verify(), held[1].body().verify()), (Ok(()), Ok(())));
        held[1].body_mut().unwrap().piece[77] ^= 4;
        assert_eq!(held[1].body().verify(), Err(Fault::Flipped));
    }

    #[test]
    fn places_know_the_size_of_their_blocks_through_compression_and_sharing() {
        let arena = Arena::new(8 << 20);
        let [near, far] = [(); 2].map(|()| HostPlace::default());
        let held = Held::new(&arena, &vec![1; 1 << 20], Coding::Raw).unwrap();
        let (generation, _) = near.slots().claim(0);
        assert!(near.fill(0, generation, None, &held));
        let (generation, _) = far.slots().claim(7);
        assert!(far.fill(7, generation, None, &held));
        assert_eq!((near.stored_bytes(), far.stored_bytes(), arena.stats().used_bytes), (1 << 20, 1 << 20, 1 << 20));
        assert!(held.compress(&arena, &vec![5; 500_000]));
        let compressed = rounded(500_000) as u64;
        assert_eq!((near.stored_bytes(), far.stored_bytes()), (compressed, compressed));
        assert!(!far.fill(7, generation - 1, None, &held), "a later claim owns the slot");
        drop(near.slots().release(0));
        assert_eq!((near.stored_bytes(), far.stored_bytes()), (0, compressed));
        drop(far.slots().claim(7));
        drop(held);
        assert_eq!((far.stored_bytes(), arena.stats().used_bytes), (0, 0));
    }

    #[test]
    fn slots_are_filled_and_emptied_while_a_copy_reads_the_block() {
        let arena = Arena::new(8 << 20);
        let place = HostPlace::default();
        let held = Held::new(&arena, &vec![1; 1 << 20], Coding::Raw).unwrap();
        let reading = held.body();
        let (generation, _) = place.slots().claim(0);
        assert!(place.fill(0, generation, None, &held));
        assert_eq!((place.stored_bytes(), held.stored_bytes()), (1 << 20, 1 << 20));
        assert!(!held.compress(&arena, &[5; 100]), "the copy reads what is there");
        drop(place.slots().release(0));
        assert_eq!(place.stored_bytes(), 0);
        drop(reading);
        assert!(held.compress(&arena, &[5; 100]));
    }
}
