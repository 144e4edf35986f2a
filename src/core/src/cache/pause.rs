//! The pause before something that failed is tried again: every retry that nobody asks for has one.

use crate::Place;
use crate::config::TIERS_MAX;

/// Shortest pause of a copy, nanoseconds: about what an event takes.
const LEAST_NS: u64 = 1_000_000;
/// Longest pause of a copy, nanoseconds: after a fault that passed, a place serves again within a minute.
const MOST_NS: u64 = 60_000_000_000;

/// Failures in a row, and the time until which nothing is tried. The first pause is as long as the attempt that failed, each further one at
/// least twice as long as the one before, between two limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    least_ns: u64,
    most_ns: u64,
    until_ns: u64,
    last_ns: u64,
}

impl Default for Pause {
    /// Creates the pauses of copies, without any so far.
    fn default() -> Self {
        Self::between(LEAST_NS, MOST_NS)
    }
}

impl Pause {
    /// Creates pauses between two lengths, without any so far.
    #[must_use]
    pub fn between(least_ns: u64, most_ns: u64) -> Self {
        Self { least_ns, most_ns, until_ns: 0, last_ns: 0 }
    }

    /// Takes note of an attempt that failed after so long.
    pub fn failed(&mut self, now_ns: u64, took_ns: u64) {
        self.last_ns = self.last_ns.saturating_mul(2).max(took_ns).clamp(self.least_ns, self.most_ns);
        self.until_ns = now_ns.saturating_add(self.last_ns);
    }

    /// Takes note of an attempt that succeeded.
    pub fn succeeded(&mut self) {
        *self = Self::between(self.least_ns, self.most_ns);
    }

    /// Returns `true` while nothing is to be tried.
    #[must_use]
    pub fn is_on(&self, now_ns: u64) -> bool {
        now_ns < self.until_ns
    }

    /// Returns the length of the last pause since a success, nanoseconds; 0 without one.
    #[must_use]
    pub fn last_ns(&self) -> u64 {
        self.last_ns
    }
}

/// Pauses of the copies to the host, to each tier, and to the device from each tier. A swapped request whose copy back failed is computed, so there is no
/// pause for that way.
#[derive(Debug, Default)]
pub(crate) struct CopyPauses([Pause; 1 + 2 * TIERS_MAX]);

impl CopyPauses {
    /// Returns the pause that a copy counts for, if there is one.
    pub fn of(&mut self, from: Place, to: Place) -> Option<&mut Pause> {
        number(from, to).map(|number| &mut self.0[number])
    }

    /// Returns `true` while no copy from one place to the other is to begin, because the last ones failed or were late.
    pub fn is_on(&self, from: Place, to: Place, now_ns: u64) -> bool {
        number(from, to).is_some_and(|number| self.0[number].is_on(now_ns))
    }
}

fn number(from: Place, to: Place) -> Option<usize> {
    match (from, to) {
        (_, Place::Host) => Some(0),
        (_, Place::Tier(tier)) => Some(1 + tier as usize),
        (Place::Tier(tier), Place::Device) => Some(1 + TIERS_MAX + tier as usize),
        _ => None,
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
            assert_eq!(pause.until_ns - now_ns, pause.last_ns());
            lengths.push(pause.last_ns() / 1_000_000_000);
            now_ns = pause.until_ns;
            assert!(!pause.is_on(now_ns));
        }
        assert_eq!(lengths, [5, 10, 20, 40, 60, 60]);
        pause.succeeded();
        pause.failed(now_ns, 0);
        assert_eq!(pause.until_ns - now_ns, LEAST_NS, "what failed at once is tried again soon, once");
    }
}
