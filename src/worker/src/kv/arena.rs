//! Memory of all blocks of a device: one piece, on huge pages where the system has them, with a lock for each block.
//!
//! Attention reads blocks in any order. In one piece of memory the place of a block follows from its number, and on pages of 2 MiB the
//! processor remembers where most of them are.

use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytemuck::allocation::try_zeroed_slice_box;

/// Bytes of a line of the cache; each block begins with one.
pub(super) const LINE: usize = 64;

/// Unit of the memory. With a larger alignment the allocator would touch every page to make it zero.
type Unit = UnsafeCell<u128>;
const UNIT: usize = size_of::<Unit>();

/// Memory of blocks of one size.
///
/// **Invariant:** the bytes of a block are reached while its lock is held alone: for reading with a share of the lock, for writing with the
/// whole. Blocks do not overlap.
pub(super) struct Arena {
    units: Box<[Unit]>,
    /// Number of units before the first line.
    first: usize,
    locks: Box<[RwLock<()>]>,
    block_bytes: usize,
}

// SAFETY: by the invariant, bytes that one thread writes are reached by no other thread at that time; the lock of a block orders the accesses.
#[expect(unsafe_code, reason = "memory that locks divide among threads")]
unsafe impl Sync for Arena {}

impl Arena {
    /// Allocates zeros for `n_blocks` blocks of `block_bytes` bytes, or returns `None` if memory is short. The system gives pages as they are touched
    /// first.
    pub(super) fn zeroed(block_bytes: usize, n_blocks: u32) -> Option<Self> {
        let per_line = LINE / UNIT;
        // The first line may begin later than the memory.
        let n_units =
            block_bytes.div_ceil(LINE).checked_mul(n_blocks as usize)?.checked_add(1)?.checked_mul(per_line)?;
        let mut locks = Vec::new();
        locks.try_reserve_exact(n_blocks as usize).ok()?;
        locks.resize_with(n_blocks as usize, || RwLock::new(()));
        let units = try_zeroed_slice_box::<Unit>(n_units).ok()?.into_vec();
        trunkline_pages::advise(&units);
        let first = units.as_ptr().addr().wrapping_neg() % LINE / UNIT;
        Some(Self { units: units.into_boxed_slice(), first, locks: locks.into_boxed_slice(), block_bytes })
    }

    /// Touches the memory of every block: what is promised but not there is missed now, not in the middle of a request.
    pub(super) fn touch(&self) {
        for block in 0..self.n_blocks() {
            self.write(block).fill(0);
        }
    }

    /// Returns the number of blocks.
    pub(super) fn n_blocks(&self) -> u32 {
        self.locks.len() as u32
    }

    /// Returns the size of a block, in bytes.
    pub(super) fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    /// Waits for a block that others may read at the same time.
    ///
    /// # Panics
    /// If there is no such block.
    // A panic while a block is locked leaves bytes in it, which are thrown away when the worker is reset.
    pub(super) fn read(&self, block: u32) -> BlockRead<'_> {
        let lock = self.locks[block as usize].read().unwrap_or_else(PoisonError::into_inner);
        BlockRead { bytes: self.bytes(block), _lock: lock }
    }

    /// Waits for a block that nobody else reaches.
    ///
    /// # Panics
    /// If there is no such block.
    pub(super) fn write(&self, block: u32) -> BlockWrite<'_> {
        let lock = self.locks[block as usize].write().unwrap_or_else(PoisonError::into_inner);
        BlockWrite { bytes: self.bytes(block), _lock: lock }
    }

    fn bytes(&self, block: u32) -> Bytes<'_> {
        let per_block = self.block_bytes.div_ceil(LINE) * (LINE / UNIT);
        let units = &self.units[self.first + block as usize * per_block..][..per_block];
        Bytes { at: NonNull::from(units).cast(), len: self.block_bytes, memory: PhantomData }
    }

    #[cfg(test)]
    pub(super) fn is_free(&self, block: u32, to_write: bool) -> bool {
        let lock = &self.locks[block as usize];
        if to_write { lock.try_write().is_ok() } else { lock.try_read().is_ok() }
    }
}

/// Place of a block's bytes.
struct Bytes<'a> {
    at: NonNull<u8>,
    len: usize,
    memory: PhantomData<&'a [Unit]>,
}

/// A block locked for reading.
pub(super) struct BlockRead<'a> {
    bytes: Bytes<'a>,
    _lock: RwLockReadGuard<'a, ()>,
}

impl Deref for BlockRead<'_> {
    type Target = [u8];

    #[expect(unsafe_code, reason = "bytes of a block whose lock is held")]
    fn deref(&self) -> &[u8] {
        // SAFETY: `at` points to `len` initialised bytes of the arena, which is borrowed; the share of the lock keeps writers away.
        unsafe { slice::from_raw_parts(self.bytes.at.as_ptr(), self.bytes.len) }
    }
}

/// A block locked for writing.
pub(super) struct BlockWrite<'a> {
    bytes: Bytes<'a>,
    _lock: RwLockWriteGuard<'a, ()>,
}

impl Deref for BlockWrite<'_> {
    type Target = [u8];

    #[expect(unsafe_code, reason = "bytes of a block whose lock is held")]
    fn deref(&self) -> &[u8] {
        // SAFETY: `at` points to `len` initialised bytes of the arena, which is borrowed; the lock keeps all others away.
        unsafe { slice::from_raw_parts(self.bytes.at.as_ptr(), self.bytes.len) }
    }
}

impl DerefMut for BlockWrite<'_> {
    #[expect(unsafe_code, reason = "bytes of a block whose lock is held")]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for reading; `self` is borrowed exclusively, and the bytes lie in cells, which shared references let change.
        unsafe { slice::from_raw_parts_mut(self.bytes.at.as_ptr(), self.bytes.len) }
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("n_blocks", &self.n_blocks()).field("block_bytes", &self.block_bytes).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn blocks_have_bytes_of_their_own_and_begin_at_lines() {
        // 100 bytes take two lines.
        let arena = Arena::zeroed(100, 3).unwrap();
        assert_eq!((arena.n_blocks(), arena.block_bytes()), (3, 100));
        assert!((0..3).all(|block| arena.read(block).as_ptr().addr().is_multiple_of(LINE)));
        arena.touch();
        arena.write(1).fill(7);
        let sums: Vec<u32> = (0..3).map(|block| arena.read(block).iter().map(|byte| u32::from(*byte)).sum()).collect();
        assert_eq!(sums, [0, 700, 0]);
        // Miri ends the program when it has no memory.
        assert!(Arena::zeroed(usize::MAX, 2).is_none() && (cfg!(miri) || Arena::zeroed(1 << 60, 2).is_none()));
    }

    #[test]
    fn threads_see_each_block_whole() {
        // Each writer counts all bytes of a block up, each reader finds them equal.
        let (arena, rounds) = (Arena::zeroed(70, 2).unwrap(), if cfg!(miri) { 5 } else { 200 });
        thread::scope(|scope| {
            for block in [0, 1, 0, 1] {
                let arena = &arena;
                scope.spawn(move || {
                    for _ in 0..rounds {
                        arena.write(block).iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
                        let read = arena.read(block);
                        assert!(read.iter().all(|byte| *byte == read[0]));
                    }
                });
            }
        });
        let ends: Vec<u8> = (0..2).map(|block| arena.read(block)[69]).collect();
        assert_eq!(ends, [(2 * rounds) as u8; 2]);
    }

    #[test]
    fn a_lock_keeps_writers_out_and_lets_readers_in() {
        let arena = Arena::zeroed(1, 2).unwrap();
        let read = arena.read(0);
        assert!(arena.is_free(0, false) && !arena.is_free(0, true) && arena.is_free(1, true));
        drop(read);
        let write = arena.write(0);
        assert!(!arena.is_free(0, false) && arena.is_free(1, false));
        drop(write);
        assert!(arena.is_free(0, true));
    }
}
