//! Limits of a chat, and their defaults from the model's context.
//!
//! A compaction costs the computation of a new context, less the prefix. With a summary of S tokens, a low watermark L and a high
//! watermark H, each new token of the chat costs (S + L) / (H - L) tokens computed again, on average: 2.1 for S = 256, L = 4096,
//! H = 6144, and 0.39 for the default, L = H / 4. A window that slides by a turn computes all of itself at every turn: about 20
//! tokens for each new one with 4096 tokens and turns of 200.

/// Tokens of a summary, at most, by default.
const SUMMARY_DEFAULT: u32 = 256;
/// Tokens of pinned turns, at most, by default.
const PINS_DEFAULT: u32 = 512;
/// High watermark of recent turns, at most, by default: a window of 4096 tokens and 2048 more before a compaction.
const HIGH_DEFAULT: u32 = 6144;
/// Share of the context that summaries and pins may take each by default.
const CONTEXT_SHARE: u32 = 16;
/// The least high watermark: below, nearly every turn would be a compaction.
const HIGH_MIN: u32 = 16;

/// Limits of a chat, in tokens unless the name says otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Prompt and answer together, at most.
    pub context: u32,
    /// Summary, at most, without the frame.
    pub summary: u32,
    /// Pinned turns together, at most.
    pub pins: u32,
    /// High watermark: more recent turns begin a compaction.
    pub high: u32,
    /// Low watermark: recent turns left by a compaction, at most.
    pub low: u32,
    /// Memory of prefix, turns, pinned ones included, and layouts, at most, bytes. Beyond, the oldest turns outside of the context are forgotten.
    pub bytes: u64,
}

/// Limits asked for; `None` for the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Tokens of a summary without frame.
    pub summary: Option<u32>,
    /// Tokens of all pinned turns.
    pub pins: Option<u32>,
    /// High watermark of recent turns, tokens.
    pub high: Option<u32>,
    /// Low watermark of recent turns, tokens.
    pub low: Option<u32>,
}

/// Tokens of the parts of a chat that do not change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fixed {
    /// Prefix of all prompts.
    pub prefix: u32,
    /// Text around the summary.
    pub frame: u32,
    /// Request for a summary, after the history.
    pub instruction: u32,
}

/// Reason for refusing limits: a field and its range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitFault {
    /// The context has no room for turns.
    #[error(
        "system has {prefix} tokens; with summary, pins and instruction they leave {room} of {context} tokens for turns, and {HIGH_MIN} are the least"
    )]
    NoRoom {
        /// Tokens of the prefix.
        prefix: u32,
        /// Tokens left for turns.
        room: u32,
        /// Tokens of the context.
        context: u32,
    },
    /// The summary would be empty.
    #[error("summary_max is 0; ask for at least one token")]
    NoSummary,
    /// The high watermark is out of range.
    #[error("recent_high is {high}; it must be between {HIGH_MIN} and {most} for this context")]
    High {
        /// Watermark asked for, tokens.
        high: u32,
        /// Highest watermark possible, tokens.
        most: u32,
    },
    /// The low watermark is not below the high one.
    #[error("recent_low is {low}; it must be below recent_high, {high}")]
    Low {
        /// Low watermark.
        low: u32,
        /// High watermark.
        high: u32,
    },
}

impl Limits {
    /// Fills in the limits of a chat whose prompts and answers have `context` tokens, at most.
    ///
    /// Room for turns is the context without prefix, frame, pins, and summary, and without what a request for a summary needs behind
    /// the history. The high watermark is three quarters of the room by default, so that a quarter is left for turns while a summary
    /// is being written, and the low watermark a quarter of the high one.
    ///
    /// # Errors
    /// If the parts do not fit; the error names the field.
    pub fn new(context: u32, fixed: Fixed, wanted: Wanted, bytes: u64) -> Result<Self, LimitFault> {
        let share = context / CONTEXT_SHARE;
        let summary = wanted.summary.unwrap_or(SUMMARY_DEFAULT.min(share).max(1));
        if summary == 0 {
            return Err(LimitFault::NoSummary);
        }
        let pins = wanted.pins.unwrap_or(PINS_DEFAULT.min(share));
        let taken = [fixed.prefix, fixed.frame, pins, summary, fixed.instruction, summary];
        let room = taken.into_iter().fold(context, u32::saturating_sub);
        if room < HIGH_MIN {
            return Err(LimitFault::NoRoom { prefix: fixed.prefix, room, context });
        }
        let high = wanted.high.unwrap_or(HIGH_DEFAULT.min(room - room / 4).max(HIGH_MIN));
        if !(HIGH_MIN..=room).contains(&high) {
            return Err(LimitFault::High { high, most: room });
        }
        let low = wanted.low.unwrap_or(high / 4);
        if low >= high {
            return Err(LimitFault::Low { low, high });
        }
        Ok(Self { context, summary, pins, high, low, bytes })
    }

    /// Returns the memory of pinned turns, at most, bytes: these stay for good, and the latest turns need the rest.
    pub(crate) fn pins_bytes(&self) -> u64 {
        self.bytes / 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(context: u32, wanted: Wanted) -> Result<Limits, String> {
        let fixed = Fixed { prefix: 100, frame: 20, instruction: 30 };
        Limits::new(context, fixed, wanted, 1 << 20).map_err(|fault| fault.to_string())
    }

    #[test]
    fn a_large_context_has_the_full_defaults_and_a_small_one_shares_of_them() {
        let large = limits(32_768, Wanted::default()).unwrap();
        assert_eq!((large.summary, large.pins, large.high, large.low), (256, 512, 6144, 1536));
        let small = limits(1024, Wanted::default()).unwrap();
        assert_eq!((small.summary, small.pins), (64, 64));
        // 1024 - 100 - 20 - 64 - 64 - 30 - 64 = 682.
        assert_eq!((small.high, small.low), (512, 128));
    }

    #[test]
    fn limits_that_do_not_fit_are_refused_by_name() {
        let wanted = Wanted::default();
        let message = |wanted| limits(1024, wanted).unwrap_err();
        assert_eq!(message(Wanted { summary: Some(0), ..wanted }), "summary_max is 0; ask for at least one token");
        assert_eq!(
            message(Wanted { high: Some(683), ..wanted }),
            "recent_high is 683; it must be between 16 and 682 for this context"
        );
        assert_eq!(
            message(Wanted { low: Some(512), ..wanted }),
            "recent_low is 512; it must be below recent_high, 512"
        );
        assert!(message(Wanted { pins: Some(2000), ..wanted }).starts_with("system has 100 tokens; with summary"));
        assert!(limits(256, wanted).is_ok() && limits(190, wanted).is_err());
    }
}
