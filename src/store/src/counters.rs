//! Counters of blocks that were not as they should be.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Reason for not using a stored block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Fault {
    /// The end of a record is not there: its writer ended in the middle.
    #[error("the record is torn")]
    Torn,
    /// The file or object is shorter than its record.
    #[error("the record is short")]
    Short,
    /// The record is of another version, layout, or earlier use of its space.
    #[error("the record is stale")]
    Stale,
    /// The record is whole, but another one than was asked for.
    #[error("the record is another one")]
    Swapped,
    /// Bytes changed since the record was written.
    #[error("bytes of the record changed")]
    Flipped,
    /// The slot, file or object holds no record.
    #[error("there is no record")]
    Missing,
    /// The system could not read the record.
    #[error("the record cannot be read")]
    Unreadable,
}

impl Fault {
    /// All faults, in the order of [`FaultCounts`].
    pub const ALL: [Self; 7] =
        [Self::Torn, Self::Short, Self::Stale, Self::Swapped, Self::Flipped, Self::Missing, Self::Unreadable];

    /// Returns the name of the fault, one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Torn => "torn",
            Self::Short => "short",
            Self::Stale => "stale",
            Self::Swapped => "swapped",
            Self::Flipped => "flipped",
            Self::Missing => "missing",
            Self::Unreadable => "unreadable",
        }
    }
}

/// Number of stored blocks that failed verification, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts(pub [u64; 7]);

impl FaultCounts {
    /// Returns the number for one reason.
    pub fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }

    /// Returns the number for all reasons.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns each reason with its number.
    pub fn each(self) -> impl Iterator<Item = (Fault, u64)> {
        Fault::ALL.into_iter().zip(self.0)
    }

    /// Counts a fault of one block.
    pub fn add(&mut self, fault: Fault) {
        self.add_n(fault, 1);
    }

    /// Counts a fault of `n` blocks.
    pub fn add_n(&mut self, fault: Fault, n: u64) {
        self.0[fault as usize] += n;
    }
}

/// Reasons with their numbers, those of 0 left out: `3 flipped, 1 torn`.
impl fmt::Display for FaultCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each: Vec<_> =
            self.each().filter(|(_, n)| *n > 0).map(|(fault, n)| format!("{n} {}", fault.name())).collect();
        f.write_str(&each.join(", "))
    }
}

/// [`FaultCounts`] that many threads add to.
#[derive(Debug, Default)]
pub struct FaultCounters([AtomicU64; 7]);

impl FaultCounters {
    /// Counts a fault of one block.
    pub fn add(&self, fault: Fault) {
        self.0[fault as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> FaultCounts {
        FaultCounts(std::array::from_fn(|at| self.0[at].load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_counted_by_reason() {
        let counters = FaultCounters::default();
        for (at, fault) in Fault::ALL.into_iter().enumerate() {
            (0..=at).for_each(|_| counters.add(fault));
            assert_eq!(counters.counts().of(fault), at as u64 + 1, "{}", fault.name());
        }
        assert_eq!(counters.counts().total(), 28);
    }
}
