//! Messages of the protocol from and to chats.

use std::sync::Arc;

use tonic::Status;
use trunkline_chat::{Answer, End, Layout, News, Notice, Phase, Refusal, SavedFault, SegmentKind, Turn, Usage};
use trunkline_text::Tokenizer;

use crate::proto;
use crate::proto::finish::StoppedBy;
use crate::service::sessions::entry::Entry;
use crate::service::validate::{Invalid, ensure_ids};

/// Maximum number of bytes of a turn's id.
const TURN_ID_BYTES_MAX: usize = 256;

impl From<SavedFault> for Invalid {
    fn from(fault: SavedFault) -> Self {
        Self(format!("session.{fault}"))
    }
}

/// Returns the status of a refused operation.
pub(crate) fn refused(refusal: Refusal) -> Status {
    let message = refusal.to_string();
    match refusal {
        Refusal::StillRunning(_) | Refusal::IdTaken(_) => Status::already_exists(message),
        Refusal::Busy(_) => Status::aborted(message),
        Refusal::Forgotten { .. } => Status::failed_precondition(message),
        Refusal::Empty
        | Refusal::NoInput
        | Refusal::Pins { .. }
        | Refusal::PinBytes { .. }
        | Refusal::NeverFits { .. }
        | Refusal::NoTurn(_) => Status::invalid_argument(message),
    }
}

/// Checks a turn's id.
pub(crate) fn check_turn_id(id: &str) -> Result<(), Invalid> {
    let bytes = id.len();
    if bytes > TURN_ID_BYTES_MAX {
        return Err(Invalid(format!("turn_id has {bytes} bytes; at most {TURN_ID_BYTES_MAX} are allowed")));
    }
    if id.contains(char::is_control) {
        return Err(Invalid("turn_id has a control character; use letters, digits and signs".into()));
    }
    Ok(())
}

/// Returns the end of an answer, or `None` for an answer that is not whole.
pub(crate) fn end_of(finish: &proto::Finish) -> Option<(End, Usage)> {
    let end = match (finish.reason(), &finish.stopped_by) {
        (proto::FinishReason::Length, None) => End::Length,
        (proto::FinishReason::Stop, Some(StoppedBy::StopTokenId(token))) => End::StopToken(*token),
        (proto::FinishReason::Stop, Some(StoppedBy::StopString(text))) => End::StopString(text.clone()),
        _ => return None,
    };
    let usage = finish.usage.unwrap_or_default();
    let usage = Usage {
        prompt: usage.prompt_tokens,
        cached: usage.cached_tokens,
        completion: usage.completion_tokens,
        preemptions: usage.preemptions,
    };
    Some((end, usage))
}

/// Returns the last message of an answer.
pub(crate) fn finish(answer: &Answer) -> proto::Finish {
    let (reason, stopped_by) = match &answer.end {
        End::Length => (proto::FinishReason::Length, None),
        End::StopToken(token) => (proto::FinishReason::Stop, Some(StoppedBy::StopTokenId(*token))),
        End::StopString(text) => (proto::FinishReason::Stop, Some(StoppedBy::StopString(text.clone()))),
    };
    let Usage { prompt, cached, completion, preemptions } = answer.usage;
    let usage = proto::Usage {
        prompt_tokens: prompt,
        cached_tokens: cached,
        completion_tokens: completion,
        preemptions,
        ..proto::Usage::default()
    };
    proto::Finish { reason: reason.into(), usage: Some(usage), timings: None, stopped_by }
}

/// Returns the message of a turn, with the token ids or without.
pub(crate) fn turn(turn: &Turn, with_ids: bool) -> proto::Turn {
    let ids = |tokens: &[u32]| if with_ids { tokens.to_vec() } else { Vec::new() };
    proto::Turn {
        number: turn.number,
        id: turn.id.clone(),
        input: with_ids.then(|| proto::TokenIds { ids: turn.input.clone() }),
        input_tokens: turn.input.len() as u32,
        answer: turn.answer.as_ref().map(|answer| proto::Chunk {
            token_ids: ids(&answer.tokens),
            text: answer.text.clone(),
            ..proto::Chunk::default()
        }),
        finish: turn.answer.as_ref().map(finish),
        pinned: turn.pinned,
    }
}

/// Reads a turn of an export; `name` is the field's.
pub(crate) fn read_turn(name: &str, turn: proto::Turn, vocab_size: u32) -> Result<Arc<Turn>, Invalid> {
    let input = turn.input.unwrap_or_default().ids;
    ensure_ids(&format!("{name}.input.ids"), &input, vocab_size)?;
    check_turn_id(&turn.id).map_err(|Invalid(text)| Invalid(format!("{name}: {text}")))?;
    let (tokens, n) = (turn.input_tokens, input.len());
    if tokens != 0 && tokens as usize != n {
        return Err(Invalid(format!("{name}.input_tokens is {tokens}; input has {n} ids")));
    }
    let answer = match (turn.answer, turn.finish) {
        (Some(chunk), Some(finish)) => {
            ensure_ids(&format!("{name}.answer.token_ids"), &chunk.token_ids, vocab_size)?;
            let logprobs = [("logprobs", &chunk.logprobs), ("prompt_logprobs", &chunk.prompt_logprobs)];
            if let Some((field, _)) = logprobs.iter().find(|(_, of)| !of.is_empty()) {
                return Err(Invalid(format!("{name}.answer.{field} is set; sessions keep no log probabilities")));
            }
            let usage = finish.usage.unwrap_or_default();
            let not_kept =
                [("copied", usage.copied_tokens), ("loaded", usage.loaded_tokens), ("pinned", usage.pinned_tokens)];
            if let Some((what, n)) = not_kept.into_iter().find(|(_, n)| *n != 0) {
                return Err(Invalid(format!("{name}.finish.usage.{what}_tokens is {n}; sessions keep no such number")));
            }
            if finish.timings.is_some() {
                return Err(Invalid(format!("{name}.finish.timings is set; sessions keep no times")));
            }
            let wrong = || Invalid(format!("{name}.finish is not that of a whole answer"));
            let (end, usage) = end_of(&finish).ok_or_else(wrong)?;
            Some(Answer { tokens: chunk.token_ids, text: chunk.text, end, usage })
        }
        (None, None) => None,
        _ => return Err(Invalid(format!("{name} has one of answer and finish; send both or none"))),
    };
    Ok(Arc::new(Turn { number: turn.number, id: turn.id, input, answer, pinned: turn.pinned }))
}

/// Returns the message of a layout, with the summary's token ids or without.
pub(crate) fn layout(layout: &Layout, with_ids: bool) -> proto::Layout {
    proto::Layout {
        version: layout.version,
        since: layout.since,
        first_recent: layout.first_recent,
        covered: layout.covered,
        summary: with_ids.then(|| proto::TokenIds { ids: layout.summary.to_vec() }),
    }
}

/// Reads a layout of an export; `name` is the field's.
pub(crate) fn read_layout(name: &str, layout: proto::Layout, vocab_size: u32) -> Result<Layout, Invalid> {
    let summary = layout.summary.unwrap_or_default().ids;
    ensure_ids(&format!("{name}.summary.ids"), &summary, vocab_size)?;
    Ok(Layout {
        version: layout.version,
        since: layout.since,
        first_recent: layout.first_recent,
        covered: layout.covered,
        summary: summary.into(),
    })
}

fn notice(notice: &Notice) -> proto::SessionNotice {
    use proto::session_notice::News as Wire;
    let news = match &notice.news {
        News::Compacted { version, before, after, turns } => Wire::Compacted(proto::Compacted {
            version: *version,
            before_tokens: *before,
            after_tokens: *after,
            turns: *turns,
        }),
        News::Failed { reason } => Wire::Failed(reason.clone()),
        News::Dropped { turns, tokens } => Wire::Dropped(proto::Dropped { turns: *turns, tokens: *tokens }),
        News::Forgotten { turns } => Wire::ForgottenTurns(*turns),
    };
    proto::SessionNotice { number: notice.number, turns: notice.turns, news: Some(news) }
}

/// Returns the state of a session, with the turns of the transcript or without.
pub(crate) fn session(entry: &Entry, tokenizer: &Tokenizer, with_turns: bool) -> proto::Session {
    let state = entry.lock();
    let chat = &state.chat;
    let segments = chat.segments().map(|segment| {
        let name = match segment.kind {
            SegmentKind::Prefix => "prefix",
            SegmentKind::Pins => "pins",
            SegmentKind::Summary => "summary",
            SegmentKind::Recent => "recent",
        };
        proto::Segment { name: name.into(), tokens: segment.tokens, version: segment.version }
    });
    let phase = match chat.phase() {
        Phase::Idle => "idle",
        Phase::Summarising => "summarising",
        Phase::Warming => "warming",
        Phase::Ready => "ready",
    };
    let limits = chat.limits();
    proto::Session {
        session_id: entry.id.clone(),
        segments: segments.to_vec(),
        context_tokens: chat.context_tokens(),
        turns: chat.turns().filter(|_| with_turns).map(|of| turn(of, false)).collect(),
        layouts: chat.layouts().iter().map(|of| layout(of, false)).collect(),
        summary: tokenizer.decode(&chat.layout().summary),
        totals: Some(totals(chat.totals())),
        notices: chat.notices().map(notice).collect(),
        limits: Some(proto::SessionLimits {
            context: limits.context,
            recent_high: limits.high,
            recent_low: limits.low,
            summary_max: limits.summary,
            pins_max: limits.pins,
            transcript_bytes: limits.bytes,
        }),
        compaction_phase: phase.into(),
        running_turn_id: chat.running_turn().unwrap_or_default().into(),
    }
}

fn totals(totals: &trunkline_chat::Totals) -> proto::SessionTotals {
    proto::SessionTotals {
        prompt_tokens: totals.prompt,
        cached_tokens: totals.cached,
        completion_tokens: totals.completion,
        summary_prompt_tokens: totals.summary_prompt,
        summary_cached_tokens: totals.summary_cached,
        summary_completion_tokens: totals.summary_completion,
        ahead_prompt_tokens: totals.warm_prompt,
        ahead_cached_tokens: totals.warm_cached,
        compactions: totals.compactions,
        failed_compactions: totals.failed,
        dropped_turns: totals.dropped,
        forgotten_turns: totals.forgotten,
    }
}
