//! The clock of the server's events.

use std::time::{Duration, Instant};

/// Monotonic clock of all events, in nanoseconds since the server started.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { start: Instant::now() }
    }

    pub(crate) fn now_ns(self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).expect("a server runs for less than 500 years")
    }

    /// Returns the time of an instant; 0 for one before the start.
    pub(crate) fn at_ns(self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.start).as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn instant(self, at_ns: u64) -> Option<Instant> {
        self.start.checked_add(Duration::from_nanos(at_ns))
    }
}
