//! Counts the heap allocations of a function.
//!
//! The system's allocator does the work; while nothing is counted, the overhead is one check of a thread-local flag.
//! Allocations of other threads are not counted.

#![expect(unsafe_code, reason = "an allocator cannot be written without")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    // Constant and without a destructor, so that the allocator may look at it at any time.
    static COUNTING: Cell<Option<Counted>> = const { Cell::new(None) };
}

/// The system's allocator, with a count of calls for the current thread.
pub struct Counting;

/// Effect of a function on the heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Calls that allocated or grew memory.
    pub allocations: u64,
    /// Bytes allocated and not freed.
    pub bytes: i64,
}

/// Runs a function and counts the allocations of this thread meanwhile.
pub fn counted<T>(work: impl FnOnce() -> T) -> (T, Counted) {
    COUNTING.set(Some(Counted::default()));
    let out = work();
    (out, COUNTING.take().unwrap_or_default())
}

fn count(allocations: u64, bytes: i64) {
    // A thread that ends may allocate when its variables are gone.
    let _ = COUNTING.try_with(|counting| {
        if let Some(counted) = counting.get() {
            let (allocations, bytes) = (counted.allocations + allocations, counted.bytes + bytes);
            counting.set(Some(Counted { allocations, bytes }));
        }
    });
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
    fn allocated_memory_can_be_used_grown_and_freed() {
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
    fn calls_and_bytes_not_freed_are_counted() {
        let (kept, counted) = counted(|| (vec![0u8; 1 << 20], drop(std::hint::black_box(vec![1u8; 10]))));
        assert_eq!(counted, Counted { allocations: 2, bytes: 1 << 20 });
        drop(kept);
    }
}
