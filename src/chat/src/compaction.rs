//! Compaction: from a plan over a summary to a new layout, or to none.

use std::sync::Arc;

use trunkline_port::Token;

use crate::chat::Chat;
use crate::layout::Layout;
use crate::limits::Limits;
use crate::notice::News;
use crate::phase::{Phase, PhaseEvent, TurnPhase};
use crate::sample::sample;
use crate::turn::{Usage, bytes_of};

/// Size that a compaction shall leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Want {
    /// Maximum number of tokens of recent turns kept; `None` for the low watermark.
    pub keep: Option<u32>,
    /// Tokens of the next turn, for which the context needs room.
    pub room: u64,
}

/// Plan of a compaction: everything that a request for a summary needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Number of the plan, for the reports about it.
    pub number: u64,
    /// Context in use.
    pub context: Vec<Token>,
    /// Old summary, without its frame, and the turns that leave the context.
    pub dropped: Vec<Token>,
}

impl Plan {
    /// Returns the prompt for a summary after the whole context, whose tokens are in the prefix cache.
    pub fn context_prompt(&self, instruction: &[Token]) -> Vec<Token> {
        [&self.context, instruction].concat()
    }

    /// Returns the prompt for a summary of `budget` tokens of the old summary and of the turns that leave the context, behind the
    /// tokens `lead` that begin every text.
    pub fn sampled_prompt(&self, lead: &[Token], budget: usize, instruction: &[Token]) -> Vec<Token> {
        [lead, &sample(&self.dropped, budget), instruction].concat()
    }
}

/// Returns the number of newest turns that a compaction keeps: the longest run of whole turns with `keep` tokens at most, or the
/// newest turn alone with `newest` tokens at most. The lengths are those of the turns, newest first.
pub fn kept_turns(newest_first: impl IntoIterator<Item = u32>, keep: u64, newest: u64) -> u64 {
    let (mut tokens, mut kept) = (0, 0);
    for turn in newest_first {
        tokens += u64::from(turn);
        if tokens > if kept == 0 { newest } else { keep } {
            break;
        }
        kept += 1;
    }
    kept
}

/// Returns the tokens that the newest turn alone may have between two watermarks: half of the way, because the next input mostly
/// answers to this turn.
pub fn newest_kept(low: u32, high: u32) -> u64 {
    low.midpoint(high).into()
}

impl Chat {
    /// Returns the phase of the compaction.
    pub fn phase(&self) -> Phase {
        self.pending.phase
    }

    /// Returns `true` if the recent turns are above the high watermark and no compaction is under way.
    pub fn is_long(&self) -> bool {
        let recent = self.layout().first_recent;
        let bytes: u64 = self.recent(recent).map(|turn| turn.bytes()).sum();
        let long = self.recent_tokens() > self.limits.high || bytes > self.limits.bytes / 2;
        long && self.pending.phase == Phase::Idle
    }

    /// Begins a compaction that keeps the newest whole turns, and returns the plan. Returns `None` if a compaction is under way, or no
    /// turn would leave the context.
    pub fn plan(&mut self, want: Want) -> Option<Plan> {
        let first_recent = self.first_kept(want);
        let layout = self.layout();
        if first_recent == layout.first_recent || self.pending.phase != Phase::Idle {
            return None;
        }
        let mut dropped = layout.summary.to_vec();
        let leaving = self.recent(layout.first_recent).take_while(|turn| turn.number < first_recent);
        leaving.for_each(|turn| dropped.extend(turn.tokens()));
        let context = self.context();
        self.step_compaction(PhaseEvent::Planned);
        self.pending.number += 1;
        self.pending.first_recent = first_recent;
        Some(Plan { number: self.pending.number, context, dropped })
    }

    /// Reports the summary of a plan; returns the tokens of the new context, to be computed ahead. Returns `None` if the plan was
    /// cancelled, or the summary is empty: then the compaction has failed.
    pub fn summarised(&mut self, number: u64, mut summary: Vec<Token>, usage: Usage) -> Option<Vec<Token>> {
        if self.pending.phase != Phase::Summarising || self.pending.number != number {
            return None;
        }
        self.totals.summary_prompt += u64::from(usage.prompt);
        self.totals.summary_cached += u64::from(usage.cached);
        self.totals.summary_completion += u64::from(usage.completion);
        summary.truncate(self.limits.summary as usize);
        if summary.is_empty() {
            self.failed(number, "the model wrote an empty summary");
            return None;
        }
        self.step_compaction(PhaseEvent::Summarised);
        let first_recent = self.pending.first_recent;
        let layout = Layout {
            version: self.next_version,
            since: self.n_turns(),
            first_recent,
            covered: first_recent,
            summary: Arc::from(summary),
        };
        self.next_version += 1;
        let context = self.context_of(&layout);
        self.pending.layout = Some(layout);
        Some(context)
    }

    /// Reports that the new context of a plan was computed, with its usage, or could not be. The new context takes effect at once,
    /// or at the end of the turn being generated.
    pub fn warmed(&mut self, number: u64, usage: Usage) {
        if self.pending.phase != Phase::Warming || self.pending.number != number {
            return;
        }
        self.totals.warm_prompt += u64::from(usage.prompt);
        self.totals.warm_cached += u64::from(usage.cached);
        self.step_compaction(PhaseEvent::Warmed);
        if self.turn_phase == TurnPhase::Quiet {
            self.boundary();
        }
    }

    /// Lets the new context take effect without being computed ahead, for a turn that waits; returns `false` if no summary is there yet.
    pub fn skip_warming(&mut self) -> bool {
        let is_warming = self.pending.phase == Phase::Warming;
        if is_warming {
            self.warmed(self.pending.number, Usage::default());
        }
        is_warming
    }

    /// Reports that there is no summary for a plan. The old context stays.
    pub fn failed(&mut self, number: u64, reason: &str) {
        if self.pending.phase != Phase::Summarising || self.pending.number != number {
            return;
        }
        self.step_compaction(PhaseEvent::Failed);
        self.totals.failed += 1;
        self.notices.add(self.n_turns(), News::Failed { reason: reason.into() });
    }

    /// Cancels the compaction under way, if there is one. Later reports about the plan have no effect.
    pub fn cancel(&mut self) {
        if self.pending.phase != Phase::Idle {
            self.step_compaction(PhaseEvent::Cancelled);
            self.pending.layout = None;
        }
    }

    /// Cancels a plan, unless its new context is ready or another plan was begun since.
    pub fn cancel_unready(&mut self, number: u64) {
        if self.pending.number == number && self.pending.phase != Phase::Ready {
            self.cancel();
        }
    }

    /// Drops the oldest turns from the context, without a summary, until a turn of `needed` tokens fits in addition to the longest summary and
    /// as many pinned turns as allowed. The watermarks do not matter. Returns `true` if turns
    /// were dropped. Cancels a compaction under way.
    pub fn drop_oldest(&mut self, needed: u64) -> bool {
        let (room, bytes) = self.room_beside(needed);
        let first_recent = self.first_within(room, room, bytes);
        let Layout { first_recent: before, covered, summary, .. } = self.layout().clone();
        if self.turn_phase != TurnPhase::Quiet || first_recent <= before {
            return false;
        }
        self.cancel();
        let left = self.recent(before).take_while(|turn| turn.number < first_recent);
        let tokens = left.map(|turn| turn.len()).fold(0, u32::saturating_add);
        let (version, since) = (self.next_version, self.n_turns());
        self.next_version += 1;
        self.layouts.push(Layout { version, since, first_recent, covered, summary });
        self.totals.dropped += first_recent - before;
        self.notices.add(self.n_turns(), News::Dropped { turns: first_recent - before, tokens });
        self.boundary();
        true
    }

    /// Lets the new context take effect if there is one.
    pub(crate) fn swap_if_ready(&mut self) {
        let Some(mut layout) = self.pending.layout.take_if(|_| self.pending.phase == Phase::Ready) else { return };
        // A summary may be longer than the turns in its place, and the chat went on meanwhile.
        if !self.is_within(&layout) {
            self.step_compaction(PhaseEvent::Cancelled);
            self.totals.failed += 1;
            self.notices.add(self.n_turns(), News::Failed { reason: "the new context would be too long".into() });
            return;
        }
        self.step_compaction(PhaseEvent::Swapped);
        let (before, turns) = (self.context_tokens(), layout.first_recent - self.layout().first_recent);
        layout.since = self.n_turns();
        let version = layout.version;
        self.layouts.push(layout);
        self.totals.compactions += 1;
        let after = self.context_tokens();
        self.notices.add(self.n_turns(), News::Compacted { version, before, after, turns });
    }

    /// Returns the tokens and the bytes that recent turns may have in addition to a turn of `needed` tokens.
    fn room_beside(&self, needed: u64) -> (u64, u64) {
        let Limits { context, pins, bytes, .. } = self.limits;
        let tokens = u64::from(context).saturating_sub(self.fixed_tokens() + u64::from(pins) + needed);
        (tokens, bytes.saturating_sub(self.fixed_bytes() + bytes_of(needed, 0)))
    }

    /// Returns the first turn that a compaction keeps.
    fn first_kept(&self, want: Want) -> u64 {
        let limits = &self.limits;
        let (room, bytes) = self.room_beside(want.room);
        let keep = u64::from(want.keep.unwrap_or(limits.low)).min(room);
        let newest = if want.keep.is_some() { keep } else { newest_kept(limits.low, limits.high).min(room) };
        self.first_within(keep, newest, bytes.min(limits.bytes / 4))
    }

    /// Returns the first of the newest turns that have `most` bytes at most, and `keep` tokens, or one turn of `newest` tokens.
    fn first_within(&self, keep: u64, newest: u64, most: u64) -> u64 {
        let mut bytes = 0;
        let within = self.recent(self.layout().first_recent).rev().take_while(|turn| {
            bytes += turn.bytes();
            bytes <= most
        });
        self.n_turns() - kept_turns(within.map(|turn| turn.len()), keep, newest)
    }

    fn step_compaction(&mut self, event: PhaseEvent) {
        self.pending.phase = self.pending.phase.after(event).expect("the caller checked the phase");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chat::Added;
    use crate::layout::Frame;
    use crate::limits::{Fixed, Wanted};

    #[test]
    fn a_full_context_drops_no_more_than_the_next_turn_needs() {
        let wanted = Wanted { summary: Some(8), pins: Some(20), high: Some(60), low: Some(10) };
        let limits = Limits::new(256, Fixed::default(), wanted, 1 << 20).unwrap();
        let mut chat = Chat::new(Vec::new(), Frame::default(), limits);
        (0..25).for_each(|_| drop(chat.append("", &[2; 10], false).unwrap()));
        assert_eq!(chat.append("", &[2; 10], false), Ok(Added::Full));
        assert!(chat.drop_oldest(10));
        // 256 - 8 - 20 - 10 = 218 tokens stay, in whole turns.
        assert_eq!(chat.recent_tokens(), 210);
        assert!(matches!(chat.append("", &[2; 10], false), Ok(Added::Turn(_))));
        assert!(!chat.drop_oldest(8), "there is room");
    }

    #[test]
    fn a_turn_that_waits_gets_the_new_context_before_it_is_computed() {
        let wanted = Wanted { summary: Some(8), pins: Some(20), high: Some(60), low: Some(10) };
        let limits = Limits::new(256, Fixed::default(), wanted, 1 << 20).unwrap();
        let mut chat = Chat::new(Vec::new(), Frame::default(), limits);
        (0..8).for_each(|_| drop(chat.append("", &[2; 10], false).unwrap()));
        let plan = chat.plan(Want::default()).unwrap();
        assert!(!chat.skip_warming(), "no summary yet");
        chat.summarised(plan.number, vec![7; 8], Usage::default()).unwrap();
        assert!(chat.skip_warming());
        assert_eq!((chat.phase(), chat.totals().compactions), (Phase::Idle, 1));
        assert!(!chat.skip_warming());
    }

    #[test]
    fn a_new_context_that_the_chat_has_outgrown_does_not_take_effect() {
        let wanted = Wanted { summary: Some(8), pins: Some(0), high: Some(60), low: Some(10) };
        let limits = Limits::new(100, Fixed::default(), wanted, 1 << 20).unwrap();
        // The summary has four tokens more than the turn in its place. The chat goes on until the old context has `last` tokens.
        for (last, fits) in [(96, true), (97, false), (100, false)] {
            let mut chat = Chat::new(Vec::new(), Frame::default(), limits);
            let lengths = [4, 50];
            lengths.iter().for_each(|n| drop(chat.append("", &vec![2; *n], false).unwrap()));
            let plan = chat.plan(Want { keep: Some(50), room: 0 }).unwrap();
            assert_eq!(plan.dropped.len(), 4);
            chat.summarised(plan.number, vec![7; 8], Usage::default()).unwrap();
            assert!(matches!(chat.append("", &vec![3; last - 54], false), Ok(Added::Turn(_))));
            chat.warmed(plan.number, Usage::default());
            let expected = if fits { (last as u32 + 4, 1, 0) } else { (last as u32, 0, 1) };
            assert_eq!((chat.context_tokens(), chat.totals().compactions, chat.totals().failed), expected);
            assert_eq!(chat.phase(), Phase::Idle);
        }
    }

    #[test]
    fn a_compaction_leaves_room_for_the_turn_that_it_is_for() {
        let wanted = Wanted { summary: Some(8), pins: Some(0), high: Some(60), low: Some(40) };
        let limits = Limits::new(100, Fixed::default(), wanted, 1 << 20).unwrap();
        // After a summary of eight tokens and a turn of `room` there is space for this many tokens of three turns of 20.
        for (room, keep, kept) in [(32, Some(60), 60), (33, Some(60), 40), (60, None, 20), (73, None, 0)] {
            let mut chat = Chat::new(Vec::new(), Frame::default(), limits);
            (0..4).for_each(|_| drop(chat.append("", &[2; 20], false).unwrap()));
            let plan = chat.plan(Want { keep, room }).unwrap();
            assert_eq!(plan.dropped.len(), 80 - kept, "room for {room}, keep {keep:?}");
            chat.summarised(plan.number, vec![7; 8], Usage::default()).unwrap();
            chat.warmed(plan.number, Usage::default());
            assert!(chat.fits(room as usize, 0) && u64::from(chat.context_tokens()) + room <= 100);
        }
    }

    #[test]
    fn a_full_memory_drops_no_more_than_the_next_turn_needs() {
        let wanted = Wanted { summary: Some(8), pins: Some(20), high: Some(60), low: Some(10) };
        let limits = Limits::new(256, Fixed::default(), wanted, 2000).unwrap();
        let mut chat = Chat::new(Vec::new(), Frame::default(), limits);
        while matches!(chat.append("", &[2], false), Ok(Added::Turn(_))) {}
        let turns = chat.n_turns();
        assert!(chat.drop_oldest(1));
        assert_eq!(chat.layout().first_recent, 1, "one of {turns} turns makes room");
        assert!(matches!(chat.append("", &[2], false), Ok(Added::Turn(_))));
    }
}
