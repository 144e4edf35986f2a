//! Figures of weights that are read from a disk while a model computes: one definition for workers and simulator.

use std::iter::Sum;
use std::ops::{Add, AddAssign};

/// Reads of weights for one step, or the sum over steps. All zeros if no weights are streamed.
///
/// A group of weights counts for the step that computes with the group, also if it was read during the step before.
///
/// ```text
/// step     = computing + exposed         wall time
/// serial   = computing + reading         the same step if nothing overlapped
/// hidden   = reading - exposed           = serial - step: time saved
/// hidden share = hidden / reading        1 if the reads cost nothing
/// saved share  = hidden / serial         of the time without overlap
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WeightReads {
    /// Steps with streamed weights.
    pub steps: u64,
    /// Bytes read, with padding; compressed weights count as they are on the disk.
    pub bytes: u64,
    /// Time during which groups were read, each from its request to the comparison of its checksum and its decoding, nanoseconds. Where several are read at once, the time
    /// counts once, for the group that is there first.
    pub reading_ns: u64,
    /// Sum of the times for which computation waited for a group, nanoseconds.
    pub exposed_ns: u64,
    /// Sum of the durations of the forward passes, waiting included, nanoseconds.
    pub step_ns: u64,
    /// Failed reads, each tried again until the steps could go on.
    pub failed_reads: u64,
}

impl WeightReads {
    /// Returns the time of the reads during which computation did not wait, nanoseconds: the time saved against reading without overlap.
    pub fn hidden_ns(&self) -> u64 {
        self.reading_ns.saturating_sub(self.exposed_ns)
    }

    /// Returns the time of the steps without the time spent waiting, nanoseconds.
    pub fn computing_ns(&self) -> u64 {
        self.step_ns.saturating_sub(self.exposed_ns)
    }

    /// Returns the time of the steps if nothing had overlapped, nanoseconds.
    pub fn serial_ns(&self) -> u64 {
        self.computing_ns().saturating_add(self.reading_ns)
    }

    /// Returns the share of the reads that is hidden, 0 to 1; `None` without reads.
    pub fn hidden_share(&self) -> Option<f64> {
        (self.reading_ns > 0).then(|| self.hidden_ns() as f64 / self.reading_ns as f64)
    }

    /// Returns the share of the time without overlap that was saved, 0 to 1; `None` without reads.
    pub fn saved_share(&self) -> Option<f64> {
        (self.reading_ns > 0).then(|| self.hidden_ns() as f64 / self.serial_ns() as f64)
    }
}

impl Add for WeightReads {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            // Workers of any kind report them.
            steps: self.steps.saturating_add(other.steps),
            bytes: self.bytes.saturating_add(other.bytes),
            reading_ns: self.reading_ns.saturating_add(other.reading_ns),
            exposed_ns: self.exposed_ns.saturating_add(other.exposed_ns),
            step_ns: self.step_ns.saturating_add(other.step_ns),
            failed_reads: self.failed_reads.saturating_add(other.failed_reads),
        }
    }
}

impl AddAssign for WeightReads {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for WeightReads {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_definitions() {
        // A layer computes for 100 ms and reads for 110 ms, of which computation waits for 10 ms.
        let layer = WeightReads { steps: 1, bytes: 5, reading_ns: 110, exposed_ns: 10, step_ns: 110, failed_reads: 1 };
        assert_eq!((layer.hidden_ns(), layer.computing_ns(), layer.serial_ns()), (100, 100, 210));
        assert_eq!(layer.serial_ns() - layer.step_ns, layer.hidden_ns());
        let all: WeightReads = [layer, layer].into_iter().sum();
        let twice = WeightReads { steps: 2, bytes: 10, reading_ns: 220, exposed_ns: 20, step_ns: 220, failed_reads: 2 };
        assert_eq!(all, twice);
        assert_eq!((all.hidden_share(), all.saved_share()), (Some(100.0 / 110.0), Some(100.0 / 210.0)));
        assert_eq!(WeightReads::default().hidden_share(), None);
    }

    #[test]
    fn reads_slower_than_any_overlap_save_nothing() {
        let waits = WeightReads { reading_ns: 5, exposed_ns: 7, step_ns: 9, ..WeightReads::default() };
        assert_eq!((waits.hidden_ns(), waits.hidden_share()), (0, Some(0.0)));
    }
}
