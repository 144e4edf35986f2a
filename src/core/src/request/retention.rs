//! Retention hints: priorities of a request's tokens in the prefix cache, asked for by the client.
//!
//! A hint gives a range of tokens a priority from 0 to [`PRIORITY_MAX`] and a time to live. Tokens without a hint have
//! [`PRIORITY_DEFAULT`], the default of TensorRT-LLM's `KvCacheRetentionConfig`. Idle blocks of lower priority are evicted first.
//! Priorities fall into six classes: `0..=34` (evicted early), 35, and [`CLASSES_ABOVE`] classes of equal width above:
//! `36..=51`, `52..=67`, `68..=83`, `84..=100`. The eviction policy orders the blocks of the default class alone; blocks of
//! another class leave in the order of least recent use.
//!
//! **Life.** A hint takes effect when the request releases blocks: at the end, at a preemption, at the end of a swap-out. The
//! time to live begins there. A hint `n` classes above the default falls by one class after each `n`-th of the time to live, and
//! to the default at the end; the block then counts as just used. A hint below the default has no time to live.
//!
//! **Blocks.** A block is of no use without the blocks before it, so a hint above the default holds for the blocks before the
//! range too, and a hint below the default takes effect only where all later blocks of the request have such a hint. A block used
//! by several requests has the strongest hint that has not ended; no hint is stronger than a hint below the default. A block
//! that leaves the device loses the hint.
//!
//! **Demotion.** A hint below the default may demote: where all later blocks of the request have such a hint, the blocks do not wait for eviction, but
//! leave the device for the nearest tier in the next scheduling pass. A block that was also used with another hint, or without one, stays by that one.
//!
//! **Pins.** A pin is stronger than every priority, and does not fall before its time, [`PIN_NS_MAX`] at most: blocks that a pin holds leave the
//! device when nothing else is idle, just before a request would wait or be preempted for them. They are copied to the nearest tier when the
//! request ends, whatever [`crate::Write`] says, and stay in tiers as on the device: until the pin ends, behind all others, within the bounds of the tier's
//! blocks. A request of the tenant may prolong a pin, and none can shorten it.
//!
//! **Bounds.** Blocks above the default are charged to the tenant that strengthened the hint last. One tenant has a share of the
//! device's blocks at most, all tenants together half, or one tenant's share if greater ([`crate::Config::retained_blocks`]). Beyond
//! a bound a hint is ignored for the rest of the request's blocks.

use serde::{Deserialize, Serialize};

/// Maximum number of hints of a request.
pub const HINTS_MAX: usize = 16;
/// Priority of tokens without a hint.
pub const PRIORITY_DEFAULT: u8 = 35;
/// Highest priority.
pub const PRIORITY_MAX: u8 = 100;
/// Classes of priorities above the default.
pub const CLASSES_ABOVE: usize = 4;
/// Class above the default of a pin, the highest.
pub const PINNED: usize = CLASSES_ABOVE + 1;
/// Longest time of a pin, nanoseconds: a day.
pub const PIN_NS_MAX: u64 = 86_400_000_000_000;
/// Value of [`RetentionHint::to`] for the end of the answer.
pub const TO_END: u32 = u32::MAX;

/// Ends of a hint, nanoseconds on the clock of the events: entry `n` for the classes up to `n + 1` above the default. 0 is never begun,
/// [`u64::MAX`] without an end.
pub(crate) type Ends = [u64; PINNED];

/// Priority of a range of tokens in the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetentionHint {
    /// First token, counted from the beginning of the prompt.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub from: u32,
    /// Token after the last one; [`TO_END`] for the end of the answer. Tokens after the prompt are generated ones.
    #[serde(default = "to_end", skip_serializing_if = "is_end")]
    pub to: u32,
    /// Priority, 0 to [`PRIORITY_MAX`]; lower is evicted first.
    pub priority: u8,
    /// Time from the release of the blocks to the default priority, nanoseconds; 0 is without an end.
    #[serde(default, skip_serializing_if = "is_zero_ns")]
    pub ttl_ns: u64,
    /// Leave the device for the nearest tier at once; for priorities below [`PRIORITY_DEFAULT`].
    #[serde(default, skip_serializing_if = "is_false")]
    pub demote: bool,
    /// Keep the full priority for all of the time to live, behind all other hints; for [`PRIORITY_MAX`] with a time to live.
    #[serde(default, skip_serializing_if = "is_false")]
    pub pin: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

fn is_zero_ns(n: &u64) -> bool {
    *n == 0
}

fn to_end() -> u32 {
    TO_END
}

fn is_end(to: &u32) -> bool {
    *to == TO_END
}

/// Fault in the hints of a request. Hints count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RetentionError {
    /// More hints than [`HINTS_MAX`].
    #[error("retention has {n} hints; send at most {HINTS_MAX}")]
    TooMany {
        /// Number of hints.
        n: usize,
    },
    /// Priority above [`PRIORITY_MAX`].
    #[error("retention[{at}]: priority is {priority}; it must be 0 to {PRIORITY_MAX}")]
    Priority {
        /// Number of the hint.
        at: usize,
        /// Priority as sent.
        priority: u32,
    },
    /// Range without a token.
    #[error("retention[{at}]: no token is in the range {from}..{to}; end the range after its first token")]
    Empty {
        /// Number of the hint.
        at: usize,
        /// First token.
        from: u32,
        /// Token after the last one.
        to: u32,
    },
    /// Range that begins before the end of the range before.
    #[error(
        "retention[{at}]: the range begins at token {from}, before the end of the range before; order ranges and let none overlap"
    )]
    Unordered {
        /// Number of the hint.
        at: usize,
        /// First token.
        from: u32,
    },
    /// Time to live of a hint below the default priority.
    #[error("retention[{at}]: a priority below {PRIORITY_DEFAULT} has no time to live; leave it out")]
    LivesBelowDefault {
        /// Number of the hint.
        at: usize,
    },
    /// Demotion of tokens that are to stay.
    #[error("retention[{at}]: demote needs a priority below {PRIORITY_DEFAULT}; set 0, or leave demote out")]
    DemotesAboveEarly {
        /// Number of the hint.
        at: usize,
    },
    /// Pin without a time, or for too long.
    #[error("retention[{at}]: a pin needs a time to live, a day at most; set ttl_ms to 1 to {}", PIN_NS_MAX / 1_000_000)]
    PinTime {
        /// Number of the hint.
        at: usize,
    },
    /// Pin below the highest priority.
    #[error("retention[{at}]: pin needs the priority {PRIORITY_MAX}; set it, or leave pin out")]
    PinsBelowHighest {
        /// Number of the hint.
        at: usize,
    },
}

/// Checks the hints of a request.
///
/// # Errors
/// The first fault, if there is one.
pub fn check(hints: &[RetentionHint]) -> Result<(), RetentionError> {
    if hints.len() > HINTS_MAX {
        return Err(RetentionError::TooMany { n: hints.len() });
    }
    let mut before = 0;
    for (at, hint) in hints.iter().enumerate() {
        let RetentionHint { from, to, priority, ttl_ns, demote, pin } = *hint;
        if priority > PRIORITY_MAX {
            return Err(RetentionError::Priority { at, priority: priority.into() });
        }
        if from < before {
            return Err(RetentionError::Unordered { at, from });
        }
        if from >= to {
            return Err(RetentionError::Empty { at, from, to });
        }
        if priority < PRIORITY_DEFAULT && ttl_ns > 0 {
            return Err(RetentionError::LivesBelowDefault { at });
        }
        if demote && priority >= PRIORITY_DEFAULT {
            return Err(RetentionError::DemotesAboveEarly { at });
        }
        if pin && priority != PRIORITY_MAX {
            return Err(RetentionError::PinsBelowHighest { at });
        }
        if pin && !(1..=PIN_NS_MAX).contains(&ttl_ns) {
            return Err(RetentionError::PinTime { at });
        }
        before = to;
    }
    Ok(())
}

impl RetentionHint {
    /// Returns the class above the default, 1 to [`CLASSES_ABOVE`], or [`PINNED`]; 0 for the default and below.
    pub fn class_above(&self) -> usize {
        if self.pin {
            return PINNED;
        }
        let above = usize::from(self.priority.saturating_sub(PRIORITY_DEFAULT));
        (above * CLASSES_ABOVE).div_ceil(usize::from(PRIORITY_MAX - PRIORITY_DEFAULT)).min(CLASSES_ABOVE)
    }

    /// Returns the ends of a hint that takes effect at `now_ns`.
    fn ends(&self, now_ns: u64) -> Ends {
        let mut ends = [0; PINNED];
        let class = self.class_above();
        for (below, end) in ends[..class].iter_mut().enumerate() {
            let falls = if self.pin { class } else { class - below };
            let ns = u128::from(self.ttl_ns) * falls as u128 / class as u128;
            *end = if self.ttl_ns == 0 { u64::MAX } else { now_ns.saturating_add(ns as u64) };
        }
        ends
    }
}

/// Pin of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pin {
    /// End of the pin, nanoseconds on the clock of the events.
    pub until_ns: u64,
    /// Tenant charged for the block.
    pub tenant: u64,
}

/// Maximum number of blocks above the default priority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RetainedBlocks {
    /// Blocks charged to one tenant.
    pub of_tenant: u32,
    /// Blocks of all tenants.
    pub of_all: u32,
}

/// Hints of a request about to release blocks.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// Tenant of the request, charged for the blocks.
    pub tenant: u64,
    /// Hints, as [`check`] demands; empty for the default priority.
    pub hints: &'a [RetentionHint],
}

impl Claim<'_> {
    /// Returns the ends of the strongest hints for the block `at` of `n`, and the first block behind with other ends; `None` if no hint above
    /// the default holds from there on.
    pub(crate) fn ends_at(&self, at: usize, n: usize, block_size: usize, now_ns: u64) -> Option<(Ends, usize)> {
        let begins = |hint: &&RetentionHint| (hint.from as usize) < n * block_size;
        let holds = |hint: &&RetentionHint| hint.to as usize > at * block_size && hint.class_above() > 0;
        let mut strongest = None;
        for hint in self.hints.iter().filter(begins).filter(holds) {
            let (mut ends, mut until) = strongest.unwrap_or(([0; PINNED], n));
            ends.iter_mut().zip(hint.ends(now_ns)).for_each(|(end, other)| *end = other.max(*end));
            until = until.min((hint.to as usize).div_ceil(block_size));
            strongest = Some((ends, until));
        }
        strongest
    }

    /// Returns the number of leading blocks of `n` that a pin holds.
    pub(crate) fn pinned_to(&self, n: usize, block_size: usize) -> usize {
        let pins = self.hints.iter().filter(|hint| hint.pin && (hint.from as usize) < n * block_size);
        pins.map(|hint| (hint.to as usize).div_ceil(block_size).min(n)).max().unwrap_or(0)
    }

    /// Returns the first of `n` blocks from which on all tokens have a hint below the default; `n` if the last token has none.
    pub(crate) fn early_from(&self, n: usize, block_size: usize) -> usize {
        self.last_from(n, block_size, |hint| hint.priority < PRIORITY_DEFAULT)
    }

    /// Returns the first of `n` blocks from which on all tokens have a hint that demotes; `n` if the last token has none.
    pub(crate) fn demoted_from(&self, n: usize, block_size: usize) -> usize {
        self.last_from(n, block_size, |hint| hint.demote)
    }

    /// Returns the first of `n` blocks from which on all tokens have such a hint; `n` if the last token has none.
    fn last_from(&self, n: usize, block_size: usize, is_such: impl Fn(&RetentionHint) -> bool) -> usize {
        let mut begin = n * block_size;
        for hint in self.hints.iter().rev().filter(|hint| (hint.from as usize) < n * block_size) {
            if !is_such(hint) || (hint.to as usize) < begin {
                break;
            }
            begin = hint.from as usize;
        }
        begin.div_ceil(block_size)
    }
}

/// Returns the class above the default at a time, by the ends of the hints; 0 is the default.
pub(crate) fn class_at(ends: &Ends, now_ns: u64) -> usize {
    ends.iter().take_while(|end| **end > now_ns).count()
}

#[cfg(test)]
mod tests;
