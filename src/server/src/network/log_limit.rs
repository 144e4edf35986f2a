//! Log lines that a client or a broken store can cause at any rate, written at most once in ten seconds.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::network::clock::Clock;

/// Time between two lines, nanoseconds.
const INTERVAL_NS: u64 = 10_000_000_000;

/// Limits the number of log lines of one kind.
#[derive(Default)]
pub(crate) struct LogLimit {
    /// Earliest time of the next line.
    next_ns: AtomicU64,
    /// Events since the last line.
    events: AtomicU64,
}

impl LogLimit {
    /// Notes an event and calls `line` with the number of events since the last line, unless the last line is too recent.
    pub(crate) fn log(&self, clock: Clock, line: impl FnOnce(u64)) {
        self.log_at(clock.now_ns(), line);
    }

    fn log_at(&self, now_ns: u64, line: impl FnOnce(u64)) {
        let events = self.events.fetch_add(1, Ordering::Relaxed) + 1;
        let next_ns = self.next_ns.load(Ordering::Relaxed);
        let is_due = now_ns >= next_ns;
        let after_ns = now_ns.saturating_add(INTERVAL_NS);
        if is_due && self.next_ns.compare_exchange(next_ns, after_ns, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            self.events.store(0, Ordering::Relaxed);
            line(events);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_counts_the_events_without_one() {
        let limit = LogLimit::default();
        let mut lines = Vec::new();
        for now_ns in [0, 1, 2, INTERVAL_NS, INTERVAL_NS + 1] {
            limit.log_at(now_ns, |n| lines.push((now_ns, n)));
        }
        assert_eq!(lines, [(0, 1), (INTERVAL_NS, 3)]);
    }
}
