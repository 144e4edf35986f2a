//! Counts the heap allocations of a piece of work.
//!
//! The system's allocator does the work; while nobody counts, this costs one load of a flag that never changes. Counting is
//! for one thread at a time: others that allocate meanwhile are counted too.

#![expect(unsafe_code, reason = "an allocator cannot be written without")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, which can be asked how often it was called.
pub struct Counting;

/// What a piece of work did to the heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Calls that asked for memory, or for more of it.
    pub allocations: u64,
    /// Bytes taken and not given back.
    pub bytes: i64,
}

/// Does the work and counts.
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, Counted) {
    ALLOCATIONS.store(0, Relaxed);
    BYTES.store(0, Relaxed);
    COUNTING.store(true, Relaxed);
    let out = work();
    COUNTING.store(false, Relaxed);
    (out, Counted { allocations: ALLOCATIONS.load(Relaxed), bytes: BYTES.load(Relaxed) })
}

fn count(allocations: u64, bytes: i64) {
    if COUNTING.load(Relaxed) {
        ALLOCATIONS.fetch_add(allocations, Relaxed);
        BYTES.fetch_add(bytes, Relaxed);
    }
}

// SAFETY: every call is passed on to the system's allocator unchanged, so its guarantees are ours.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, layout.size() as i64);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(0, -(layout.size() as i64));
        // SAFETY: `at` came from the system's allocator with this layout, because all of ours do.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, size as i64 - layout.size() as i64);
        // SAFETY: `at` came from the system's allocator with this layout, because all of ours do.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_allocator_gives_can_be_used_grown_and_given_back() {
        let layout = Layout::array::<u64>(4).unwrap();
        // SAFETY: the layout is not empty, what is read was written, and everything is given back with its own layout.
        unsafe {
            let at = Counting.alloc(layout).cast::<u64>();
            at.write(7);
            let at = Counting.realloc(at.cast(), layout, 1 << 16).cast::<u64>();
            assert_eq!(at.read(), 7);
            Counting.dealloc(at.cast(), Layout::array::<u64>(1 << 13).unwrap());
            let zeroed = Counting.alloc_zeroed(layout).cast::<u64>();
            assert_eq!(zeroed.add(3).read(), 0);
            Counting.dealloc(zeroed.cast(), layout);
        }
    }

    #[test]
    fn what_stays_and_what_was_asked_for_is_counted() {
        // Tests share the allocator with other threads, so this is a lower bound.
        let (kept, counted) = counted(|| (vec![0u8; 1 << 20], drop(vec![1u8; 10])));
        assert!(counted.allocations >= 2 && counted.bytes >= 1 << 20, "{counted:?}");
        drop(kept);
    }
}
