//! Hints to the processor to load memory ahead of its use.
//!
//! Neighbouring slots are neighbours in every array of the tree, but the next run of a prefix lies anywhere in a pool that has been
//! used. Hints for all lines of a run let the processor load them at once, while the runs before are still compared.

/// Bytes that the processor loads at a time.
const LINE: usize = 64;

/// Requests all the cache lines of some values.
#[inline]
pub(crate) fn prefetch<T>(values: &[T]) {
    let begin = values.as_ptr().cast::<i8>();
    for line in lines(begin.addr(), size_of_val(values)) {
        request(begin.with_addr(line));
    }
}

/// Requests all the cache lines of a value. There need not be a value at the address.
#[inline]
pub(crate) fn prefetch_at<T>(at: *const T) {
    let begin = at.cast::<i8>();
    for line in lines(begin.addr(), size_of::<T>()) {
        request(begin.with_addr(line));
    }
}

/// Returns the addresses of the cache lines that `bytes` bytes from `begin` on lie in.
#[inline]
fn lines(begin: usize, bytes: usize) -> impl Iterator<Item = usize> {
    let first = begin / LINE;
    let after = if bytes == 0 { first } else { (begin + bytes).div_ceil(LINE) };
    (first..after).map(|line| line * LINE)
}

/// Requests the cache line at an address; does nothing on machines other than x86-64.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "a prefetch takes an address")]
#[inline(always)]
fn request(at: *const i8) {
    // SAFETY: a prefetch is a hint. It accepts any address, reads nothing into the program and writes nothing; the instruction is
    // part of every x86-64.
    unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at) }
}

#[cfg(not(target_arch = "x86_64"))]
fn request(_: *const i8) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_lies_in_a_requested_line_and_every_line_has_a_byte() {
        for (begin, bytes) in [(0, 64), (0, 65), (60, 8), (63, 1), (64, 0), (70, 0), (100, 300)] {
            let of_bytes: std::collections::BTreeSet<usize> =
                (begin..begin + bytes).map(|at| at & !(LINE - 1)).collect();
            assert!(lines(begin, bytes).eq(of_bytes), "{bytes} bytes from {begin} on");
        }
    }
}
