//! Notices for the client: changes of the context that the client did not ask for, and counts.

use std::collections::VecDeque;

/// Maximum number of notices kept; older ones are gone.
pub const NOTICES_MAX: usize = 64;

/// News for the client, numbered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    /// Number of the notice, from 1.
    pub number: u64,
    /// Turns of the chat at the time.
    pub turns: u64,
    /// Subject of the notice.
    pub news: News,
}

/// Subject of a notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// The history was compacted, as planned.
    Compacted {
        /// Version of the new layout.
        version: u64,
        /// Tokens of the context before.
        before: u32,
        /// Tokens of the context after.
        after: u32,
        /// Turns that left the context.
        turns: u64,
    },
    /// A compaction failed; the context stays.
    Failed {
        /// Reason for having no summary, one line.
        reason: String,
    },
    /// The context was full: the oldest turns left the context without a summary.
    Dropped {
        /// Turns that left the context.
        turns: u64,
        /// Tokens of the turns.
        tokens: u32,
    },
    /// The transcript was full: the oldest turns outside of the context are gone for good.
    Forgotten {
        /// Turns that left the transcript.
        turns: u64,
    },
}

/// Tokens and events of a chat since its beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Prompt tokens of all turns.
    pub prompt: u64,
    /// Prompt tokens of all turns found in the prefix cache.
    pub cached: u64,
    /// Tokens generated for all turns.
    pub completion: u64,
    /// Prompt tokens of requests for summaries.
    pub summary_prompt: u64,
    /// Prompt tokens of requests for summaries found in the prefix cache.
    pub summary_cached: u64,
    /// Tokens generated for summaries.
    pub summary_completion: u64,
    /// Prompt tokens of new contexts computed ahead.
    pub warm_prompt: u64,
    /// Prompt tokens of new contexts that were in the prefix cache before.
    pub warm_cached: u64,
    /// Compactions that took effect.
    pub compactions: u64,
    /// Compactions without a summary.
    pub failed: u64,
    /// Turns dropped without a summary.
    pub dropped: u64,
    /// Turns no longer in the transcript.
    pub forgotten: u64,
}

/// The latest notices, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notices {
    kept: VecDeque<Notice>,
    last: u64,
}

impl Notices {
    pub(crate) fn add(&mut self, turns: u64, news: News) {
        self.last += 1;
        if self.kept.len() == NOTICES_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(Notice { number: self.last, turns, news });
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Notice> {
        self.kept.iter()
    }
}
