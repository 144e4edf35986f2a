//! Hints to the processor to load memory ahead of its use.
//!
//! A part of a panel is used by many multiplications before the next part is touched. Without a hint the memory would be idle in
//! the meantime, and the multiplications would wait afterwards.

/// Bytes that the processor loads at a time.
const LINE: usize = 64;

/// A run of memory to be read soon, requested a few lines at a time.
pub(crate) struct Ahead {
    at: *const i8,
    lines: usize,
    per_step: usize,
}

impl Ahead {
    /// Begins a run that takes at most `steps` calls of [`Ahead::step`].
    #[inline(always)]
    pub(crate) fn new<T>(values: &[T], steps: usize) -> Self {
        let lines = size_of_val(values).div_ceil(LINE);
        Self { at: values.as_ptr().cast(), lines, per_step: lines.div_ceil(steps.max(1)) }
    }

    /// Requests the next few lines of the run.
    #[inline(always)]
    pub(crate) fn step(&mut self) {
        let lines = self.per_step.min(self.lines);
        for _ in 0..lines {
            request(self.at);
            self.at = self.at.wrapping_add(LINE);
        }
        self.lines -= lines;
    }
}

/// Requests the line at an address for the second-level cache; does nothing on machines other than x86-64.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "a prefetch takes an address")]
#[inline(always)]
fn request(at: *const i8) {
    // SAFETY: a prefetch is a hint. It accepts any address, reads nothing into the program and writes nothing; the instruction is
    // part of every x86-64.
    unsafe { std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T1 }>(at) }
}

#[cfg(not(target_arch = "x86_64"))]
fn request(_: *const i8) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_requested_once_in_the_number_of_steps() {
        for (len, steps) in [(0, 3), (1, 3), (16, 1), (100, 4), (1000, 7), (64, 0)] {
            let values = vec![0.0f32; len];
            let mut ahead = Ahead::new(&values, steps);
            let first = ahead.at;
            for _ in 0..steps.max(1) {
                ahead.step();
            }
            assert_eq!((ahead.lines, ahead.at), (0, first.wrapping_add((4 * len).next_multiple_of(LINE))));
            ahead.step();
            assert_eq!(ahead.lines, 0);
        }
    }
}
