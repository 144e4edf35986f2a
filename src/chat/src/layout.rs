//! Layouts: divisions of the transcript into pins, summary, and recent turns.
//!
//! A layout and the transcript decide every prompt. All layouts that a rewind may need are kept, oldest first, so the summaries
//! of a chat have a lineage: a version, and the turns behind each.

use std::sync::Arc;

use trunkline_port::Token;

/// Version of the division of a transcript.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Number of the version; versions grow, and none is used again.
    pub version: u64,
    /// Turns of the chat when the layout took effect.
    pub since: u64,
    /// First recent turn: earlier turns are in the context only if pinned.
    pub first_recent: u64,
    /// Turns from 0 on that the summary speaks of. Turns between these and the recent ones were dropped without a summary.
    pub covered: u64,
    /// Summary; empty for none.
    pub summary: Arc<[Token]>,
}

impl Layout {
    /// Returns the layout of a chat that has not been compacted.
    pub fn first() -> Self {
        Self { version: 0, since: 0, first_recent: 0, covered: 0, summary: Arc::from([]) }
    }

    /// Returns the memory of the layout, bytes.
    pub(crate) fn bytes(&self) -> u64 {
        Self::bytes_of(self.summary.len() as u64)
    }

    /// Returns the memory of a layout whose summary has `tokens` tokens, bytes.
    pub(crate) fn bytes_of(tokens: u64) -> u64 {
        size_of::<Self>() as u64 + tokens * size_of::<Token>() as u64
    }
}

/// Text around the summary in a prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Tokens before the summary.
    pub before: Arc<[Token]>,
    /// Tokens after the summary.
    pub behind: Arc<[Token]>,
}

/// Kind of a segment of the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentKind {
    /// Fixed beginning of all prompts.
    Prefix,
    /// Pinned turns from before the recent turns.
    Pins,
    /// Summary of earlier turns, with its frame.
    Summary,
    /// Recent turns, word for word.
    Recent,
}

/// Segment of the context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Kind of the segment.
    pub kind: SegmentKind,
    /// Tokens of the segment, with the frame of a summary.
    pub tokens: u32,
    /// Version of the layout since which the segment's beginning is as it is.
    pub version: u64,
}
