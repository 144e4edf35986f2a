//! Counts of turns and compactions of all sessions.

use std::sync::atomic::{AtomicU64, Ordering};

/// End of a compaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compacted {
    /// The new context is there.
    Done,
    /// There is no summary; the old context stays.
    Failed,
    /// Another call cancelled the compaction, or the session was deleted.
    Cancelled,
}

/// Names of the ends, in the order of the numbers.
const ENDS: [&str; 3] = ["done", "failed", "cancelled"];

/// Turns and compactions since the server started.
#[derive(Default)]
pub(crate) struct SessionCounts {
    turns: AtomicU64,
    compactions: [AtomicU64; ENDS.len()],
}

impl SessionCounts {
    /// Counts a turn accepted by the core.
    pub(crate) fn note_turn(&self) {
        self.turns.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a compaction.
    pub(crate) fn note_compaction(&self, end: Compacted) {
        self.compactions[end as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of turns.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Returns the number of compactions by their end.
    pub(crate) fn compactions(&self) -> impl Iterator<Item = (&'static str, u64)> {
        ENDS.into_iter().zip(&self.compactions).map(|(end, count)| (end, count.load(Ordering::Relaxed)))
    }
}
