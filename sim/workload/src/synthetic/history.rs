//! Compaction of a session's history, by the rule of the server's sessions ([`trunkline_chat`]).
//!
//! An answer that takes the recent turns above `high` tokens is followed by a request for a summary after the whole prompt, then by a
//! request for one token behind the new context, which brings the context into the prefix cache. The user's next message waits for both: in
//! a server the message may come before. Without a summary the oldest turns just leave.

use super::spec::CompactionSpec;
use crate::trace::Piece;

/// Tokens of the request for a summary after the history.
pub(super) const INSTRUCTION_TOKENS: u32 = 32;
/// Levels of priority of both requests behind those of turns.
pub(super) const PRIORITY_BEHIND: i32 = 100;

/// Kind of a request of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Message of the user, or the output of a tool.
    Turn,
    /// Request for a summary.
    Summary,
    /// Computation of the new context ahead.
    Ahead,
}

/// Returns the tokens of the recent turns: all pieces after the first `fixed` ones.
pub(super) fn recent_tokens(said: &[Piece], fixed: usize) -> u64 {
    said.iter().skip(fixed).map(|piece| u64::from(piece.tokens)).sum()
}

/// Lets the oldest turns leave: keeps the first `system` pieces, then the summary if there is one, then the newest turns. A turn is two
/// pieces, message and answer. Returns the number of pieces before the recent turns.
pub(super) fn compact(
    said: &mut Vec<Piece>,
    (system, fixed): (usize, usize),
    summary: Option<Piece>,
    spec: &CompactionSpec,
) -> usize {
    let recent = said.split_off(fixed);
    let lengths = recent.rchunks(2).map(|turn| turn.iter().map(|piece| piece.tokens).fold(0, u32::saturating_add));
    let newest = trunkline_chat::newest_kept(spec.low, spec.high);
    let kept = trunkline_chat::kept_turns(lengths, spec.low.into(), newest) as usize;
    said.truncate(system);
    said.extend(summary);
    let fixed = said.len();
    said.extend_from_slice(&recent[recent.len() - 2 * kept..]);
    fixed
}
