//! Settings of the planner: floors, block size, trigger and target.

use std::fmt;
use std::ops::RangeInclusive;

/// Most tokens that a floor or the trigger may have: as many as exact `f32` counts of tokens allow.
const TOKENS_MAX: u32 = 1 << 24;
const BLOCK_TOKENS: RangeInclusive<u32> = 1..=4096;
const INTERVAL: RangeInclusive<u32> = 1..=65_536;
const LOSSY_RATIO: RangeInclusive<f32> = 1.0..=64.0;
const WEIGHT: RangeInclusive<f32> = 0.0..=64.0;
const UNIT: RangeInclusive<f32> = 0.0..=1.0;

/// Share of a sequence's tokens to keep in the evicting layers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// A share of one token of so many, `1.0..=64.0`.
    Adaptive {
        /// Tokens of the sequence for each kept token.
        lossy_ratio: f32,
    },
    /// A fixed share of the tokens is kept, `0.0..=1.0`.
    Static {
        /// Kept share of the tokens.
        keep_ratio: f32,
    },
}

impl Target {
    /// Returns the share of tokens to keep, `0.0..=1.0`. Numbers outside the ranges of [`Target`] count as the nearest end.
    pub fn keep_ratio(self) -> f32 {
        match self {
            // `max` also turns NaN into 1: a broken setting drops nothing.
            Self::Adaptive { lossy_ratio } => 1.0 / lossy_ratio.max(1.0),
            Self::Static { keep_ratio } if keep_ratio.is_nan() => 1.0,
            Self::Static { keep_ratio } => keep_ratio.clamp(0.0, 1.0),
        }
    }
}

/// Settings of the planner, one set for all sequences of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// First tokens of a sequence, never dropped, rounded up to whole blocks; `0..=2^24`. Attention leans on the first tokens
    /// whatever the text (StreamingLLM, arXiv 2309.17453).
    pub sink_tokens: u32,
    /// Last tokens of a sequence, never dropped, with the rest of the block in which they begin; `0..=2^24`.
    pub recent_tokens: u32,
    /// Tokens kept or dropped together, `1..=4096`. MUST be a multiple of the size of a KV block.
    pub block_tokens: u32,
    /// Length of a sequence from which on plans are made, in tokens; `0..=2^24`, and 0 counts as 1.
    pub trigger_tokens: u32,
    /// Token steps of a sequence between two plans, at least; `1..=65536`.
    pub interval_steps: u32,
    /// Weight of the past in the moving average of scores, `0.0..=1.0`: after n steps, a score has `alpha^n` of its weight.
    pub alpha: f32,
    /// Decode steps of a sequence from one whose attention is scored to the next, `1..=65536`; more than `interval_steps` count as these, so
    /// that plans never lack scores.
    pub score_interval: u32,
    /// Share of the tokens to keep, on average over the layer groups.
    pub target: Target,
    /// Tokens kept beyond the floors, in units of the mean over the layer groups; `0.0..=64.0`, and 1 keeps the mean.
    pub weight: f32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sink_tokens: 32,
            recent_tokens: 256,
            block_tokens: 64,
            trigger_tokens: 512,
            interval_steps: 16,
            alpha: 0.9,
            score_interval: 4,
            target: Target::Adaptive { lossy_ratio: 3.5 },
            weight: 1.0,
        }
    }
}

impl Settings {
    /// Checks every number against its range, and the block size against `kv_block`, the tokens of a KV block.
    ///
    /// # Errors
    /// If a number is outside its range, or `block_tokens` is not a multiple of `kv_block`; the first such fault.
    pub fn validate(&self, kv_block: u32) -> Result<(), SettingsError> {
        check("h2o sink", self.sink_tokens, 0..=TOKENS_MAX)?;
        check("h2o recent", self.recent_tokens, 0..=TOKENS_MAX)?;
        check("h2o block", self.block_tokens, BLOCK_TOKENS)?;
        check("h2o trigger", self.trigger_tokens, 0..=TOKENS_MAX)?;
        check("h2o interval", self.interval_steps, INTERVAL)?;
        check("h2o alpha", self.alpha, UNIT)?;
        check("h2o score interval", self.score_interval, INTERVAL)?;
        check("h2o weight", self.weight, WEIGHT)?;
        match self.target {
            Target::Adaptive { lossy_ratio } => check("h2o ratio", lossy_ratio, LOSSY_RATIO)?,
            Target::Static { keep_ratio } => check("h2o keep ratio", keep_ratio, UNIT)?,
        }
        if kv_block == 0 || !self.block_tokens.is_multiple_of(kv_block) {
            return Err(SettingsError::NoMultiple { block_tokens: self.block_tokens, kv_block });
        }
        Ok(())
    }

    /// Returns `true` if a plan is due for a sequence of `tokens` tokens, `steps` token steps after the last plan.
    pub fn is_due(&self, tokens: u32, steps: u32) -> bool {
        tokens >= self.trigger_tokens.max(1) && steps >= self.interval_steps.max(1)
    }

    /// Returns the decode steps from one whose attention is scored to the next, at least 1.
    pub fn scored_every(&self) -> u32 {
        self.score_interval.min(self.interval_steps).max(1)
    }

    /// Returns the number of planner blocks of a sequence of `tokens` tokens; the last may be partial.
    pub fn n_blocks(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_tokens.max(1))
    }
}

fn check<T: PartialOrd + fmt::Display>(
    name: &'static str,
    value: T,
    range: RangeInclusive<T>,
) -> Result<(), SettingsError> {
    if range.contains(&value) {
        return Ok(());
    }
    let (min, max) = range.into_inner();
    Err(SettingsError::OutOfRange { name, value: value.to_string(), min: min.to_string(), max: max.to_string() })
}

/// A fault in [`Settings`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// Number outside its range, or NaN.
    #[error("{name} is {value}; it must be between {min} and {max}")]
    OutOfRange {
        /// Name of the setting.
        name: &'static str,
        /// Value as given by the user.
        value: String,
        /// Lowest value allowed, inclusive.
        min: String,
        /// Highest value allowed, inclusive.
        max: String,
    },
    /// Block of the planner with a part of a KV block.
    #[error("h2o block is {block_tokens} tokens; it must be a multiple of the KV block of {kv_block} tokens")]
    NoMultiple {
        /// Tokens of a block of the planner.
        block_tokens: u32,
        /// Tokens of a KV block.
        kv_block: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid_and_every_number_has_a_range() {
        let valid = Settings::default();
        assert_eq!(valid.validate(16), Ok(()));
        let faults = [
            (Settings { sink_tokens: u32::MAX, ..valid }, "h2o sink"),
            (Settings { recent_tokens: u32::MAX, ..valid }, "h2o recent"),
            (Settings { block_tokens: 0, ..valid }, "h2o block"),
            (Settings { trigger_tokens: u32::MAX, ..valid }, "h2o trigger"),
            (Settings { interval_steps: 0, ..valid }, "h2o interval"),
            (Settings { score_interval: 0, ..valid }, "h2o score interval"),
            (Settings { score_interval: 65_537, ..valid }, "h2o score interval"),
            (Settings { alpha: 1.7, ..valid }, "h2o alpha"),
            (Settings { alpha: f32::NAN, ..valid }, "h2o alpha"),
            (Settings { target: Target::Adaptive { lossy_ratio: 0.5 }, ..valid }, "h2o ratio"),
            (Settings { target: Target::Static { keep_ratio: 1.5 }, ..valid }, "h2o keep ratio"),
        ];
        for (settings, setting) in faults {
            let fault = settings.validate(16);
            let is_named = matches!(&fault, Err(SettingsError::OutOfRange { name, .. }) if *name == setting);
            assert!(is_named, "{setting}: {fault:?}");
        }
    }

    #[test]
    fn a_planner_block_consists_of_whole_kv_blocks() {
        let settings = Settings { block_tokens: 48, ..Settings::default() };
        assert_eq!(settings.validate(16), Ok(()));
        assert_eq!(settings.validate(32), Err(SettingsError::NoMultiple { block_tokens: 48, kv_block: 32 }));
        assert!(settings.validate(0).is_err());
    }

    #[test]
    fn a_plan_is_due_at_the_trigger_and_at_the_interval_and_not_before() {
        let settings = Settings::default();
        assert!(settings.is_due(512, 16));
        assert!(!settings.is_due(511, 16));
        assert!(!settings.is_due(512, 15));
        let zero = Settings { trigger_tokens: 0, ..settings };
        assert!(zero.is_due(1, 16) && !zero.is_due(0, 16));
    }

    #[test]
    fn a_target_outside_its_range_counts_as_the_nearest_end() {
        let adaptive = |lossy_ratio| Target::Adaptive { lossy_ratio }.keep_ratio();
        let fixed = |keep_ratio| Target::Static { keep_ratio }.keep_ratio();
        assert_eq!([adaptive(4.0), adaptive(0.5), adaptive(f32::NAN)], [0.25, 1.0, 1.0]);
        assert_eq!([fixed(0.3), fixed(-1.0), fixed(2.0), fixed(f32::NAN)], [0.3, 0.0, 1.0, 1.0]);
    }
}
