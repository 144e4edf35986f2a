//! Log lines about writes that the system refuses: few, also where writes fail and succeed in turns, as on a disk that is full.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Shortest time between two lines about refused writes.
const INTERVAL: Duration = Duration::from_secs(10);

/// Decides which refused writes are logged: the first of several in a row, unless the last line is too recent.
#[derive(Debug, Default)]
pub struct Failures {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `true` between a line about a refused write and the next write that succeeds.
    is_logged: bool,
    /// Refused writes since the last line.
    since_line: u64,
    /// Earliest time of the next line.
    next: Option<Instant>,
}

impl Failures {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a refused write. Returns the refused writes since the last line, this one included, if there is to be a line.
    pub fn failed(&self, now: Instant) -> Option<u64> {
        let mut state = self.state();
        state.since_line += 1;
        if state.is_logged || state.next.is_some_and(|at| now < at) {
            return None;
        }
        state.is_logged = true;
        state.next = Some(now + INTERVAL);
        Some(std::mem::take(&mut state.since_line))
    }

    /// Notes a write that succeeded. Returns `true` if the last line says that writes fail.
    pub fn succeeded(&self) -> bool {
        std::mem::take(&mut self.state().is_logged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_that_fail_and_succeed_in_turns_have_a_line_in_ten_seconds() {
        let (failures, start) = (Failures::default(), Instant::now());
        let lines: Vec<_> = (0..101)
            .filter_map(|tenth| {
                let logged = failures.failed(start + Duration::from_millis(100 * tenth));
                assert_eq!(failures.succeeded(), logged.is_some(), "the end of what was logged alone is logged");
                logged.map(|n| (tenth, n))
            })
            .collect();
        assert_eq!(lines, [(0, 1), (100, 100)]);
    }

    #[test]
    fn failures_in_a_row_have_one_line_however_long() {
        let (failures, start) = (Failures::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!([0, 5, 60].map(|seconds| failures.failed(at(seconds))), [Some(1), None, None]);
        assert!(failures.succeeded() && !failures.succeeded());
        assert_eq!(failures.failed(at(61)), Some(3));
    }
}
