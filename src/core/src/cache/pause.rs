//! The pause before something that failed is tried again: every retry of the core that nobody asks for has one.

/// Shortest pause, nanoseconds: about what an event takes.
const LEAST_NS: u64 = 1_000_000;
/// Longest pause, nanoseconds: after a fault that passed, a place serves again within a minute.
const MOST_NS: u64 = 60_000_000_000;

/// Failures in a row, and the time until which nothing is tried. The first pause is as long as the attempt that failed, each further one at
/// least twice as long as the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pause {
    until_ns: u64,
    /// Length of the next pause, at least.
    next_ns: u64,
}

impl Pause {
    /// Takes note of an attempt that failed after so long.
    pub fn failed(&mut self, now_ns: u64, took_ns: u64) {
        let pause_ns = self.next_ns.max(took_ns).clamp(LEAST_NS, MOST_NS);
        self.until_ns = now_ns.saturating_add(pause_ns);
        self.next_ns = pause_ns.saturating_mul(2);
    }

    /// Takes note of an attempt that succeeded.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Returns `true` while nothing is to be tried.
    pub fn is_on(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_from_the_time_of_the_attempt_to_a_minute_and_end_with_a_success() {
        let mut pause = Pause::default();
        assert!(!pause.is_on(0));
        let (mut now_ns, mut lengths) = (0, Vec::new());
        for _ in 0..6 {
            pause.failed(now_ns, 5_000_000_000);
            assert!(pause.is_on(now_ns));
            lengths.push((pause.until_ns - now_ns) / 1_000_000_000);
            now_ns = pause.until_ns;
            assert!(!pause.is_on(now_ns));
        }
        assert_eq!(lengths, [5, 10, 20, 40, 60, 60]);
        pause.succeeded();
        pause.failed(now_ns, 0);
        assert_eq!(pause.until_ns - now_ns, LEAST_NS, "what failed at once is tried again soon, once");
    }
}
