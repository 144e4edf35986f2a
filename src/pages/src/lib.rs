//! Huge pages for large arrays.
//!
//! A prefix in a used pool touches a few lines in many places, and attention reads blocks in any order. On pages of 4 KiB most
//! places cost a walk through the page table in addition to the load; on pages of 2 MiB the processor remembers every one.
//!
//! ```
//! let mut values: Vec<u64> = trunkline_pages::with_capacity(1 << 20);
//! values.push(7);
//! assert!(values.capacity() >= 1 << 20 && values == [7]);
//! ```

/// Bytes of an array from which on huge pages are requested: smaller arrays need few pages of any size.
#[cfg(target_os = "linux")]
const BYTES_MIN: usize = 1 << 20;

/// Returns an empty vector with memory for `len` values, on huge pages if the system grants any. Memory never touched costs
/// nothing.
pub fn with_capacity<T>(len: usize) -> Vec<T> {
    let values = Vec::with_capacity(len);
    advise(&values);
    values
}

/// Asks the system to back the memory of a vector with huge pages. Returns `true` if the system takes the advice.
#[cfg(target_os = "linux")]
#[expect(unsafe_code, reason = "advice takes an address")]
pub fn advise<T>(values: &Vec<T>) -> bool {
    const PAGE: usize = 4096;
    let bytes = values.capacity() * size_of::<T>();
    if bytes < BYTES_MIN {
        return false;
    }
    let offset = values.as_ptr().addr() % PAGE;
    let first = values.as_ptr().wrapping_byte_sub(offset).cast_mut();
    // SAFETY: the pages from `first` on hold the memory of the vector, and at both ends perhaps other memory of the allocator. The
    // advice changes the size of pages, never their contents or their protection; an address that cannot be advised is an error,
    // which is ignored.
    let result = unsafe { libc::madvise(first.cast(), (offset + bytes).next_multiple_of(PAGE), libc::MADV_HUGEPAGE) };
    result == 0
}

#[cfg(not(target_os = "linux"))]
pub fn advise<T>(_: &Vec<T>) -> bool {
    false
}
