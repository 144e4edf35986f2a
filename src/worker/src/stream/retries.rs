//! Repeated reads: a passing fault of a disk costs a pause, and no step.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Maximum number of tries of a read.
const TRIES: u32 = 5;
/// Time between two lines of the log.
const INTERVAL: Duration = Duration::from_secs(10);

/// Calls `read` until a try succeeds, five times at most. `pause` gets the fault of a try and the time before the next one, `first` at the beginning and twice as
/// long each time, and returns `false` to give up early.
///
/// # Errors
///
/// The fault of the last try.
pub(crate) fn try_again<E>(
    first: Duration,
    mut read: impl FnMut() -> Result<(), E>,
    mut pause: impl FnMut(&E, Duration) -> bool,
) -> Result<(), E> {
    let mut pauses = (0..TRIES - 1).map(|n| first * 2u32.pow(n));
    loop {
        let result = read();
        let (Err(fault), Some(length)) = (&result, pauses.next()) else { return result };
        if !pause(fault, length) {
            return result;
        }
    }
}

/// Failed reads of a file, for the log.
#[derive(Default)]
pub(crate) struct FailedReads {
    /// Time of the last line, and failed reads since then.
    state: Mutex<(Option<Instant>, u64)>,
}

impl FailedReads {
    /// Counts a failed read. Returns the number since the last line if the log gets a line at `now`.
    pub(crate) fn note(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1 += 1;
        if state.0.is_some_and(|last| now.saturating_duration_since(last) < INTERVAL) {
            return None;
        }
        let (_, failed) = std::mem::replace(&mut *state, (Some(now), 0));
        Some(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads with `faults` failures at first. Returns the outcome and the pauses, milliseconds; the pause before try `stops` gives up.
    fn run(faults: usize, stops: usize) -> (Result<(), usize>, Vec<u128>) {
        let (mut reads, mut pauses) = (0, Vec::new());
        let read = || {
            reads += 1;
            if reads > faults { Ok(()) } else { Err(reads) }
        };
        let result = try_again(Duration::from_millis(100), read, |_, pause| {
            pauses.push(pause.as_millis());
            pauses.len() < stops
        });
        (result, pauses)
    }

    #[test]
    fn pauses_double_and_the_fifth_fault_in_a_row_counts() {
        assert_eq!(run(0, 9), (Ok(()), vec![]));
        assert_eq!(run(2, 9), (Ok(()), vec![100, 200]));
        assert_eq!(run(4, 9), (Ok(()), vec![100, 200, 400, 800]));
        assert_eq!(run(5, 9), (Err(5), vec![100, 200, 400, 800]));
        assert_eq!(run(4, 2), (Err(2), vec![100, 200]), "the second pause gives up");
    }

    #[test]
    fn a_line_counts_the_failed_reads_without_one() {
        let (failed, begin) = (FailedReads::default(), Instant::now());
        let lines = [0, 1, 9, 10, 11].map(|seconds| failed.note(begin + Duration::from_secs(seconds)));
        assert_eq!(lines, [Some(1), None, None, Some(3), None]);
    }
}
