//! Settings of eviction within sequences, and their form as text: `on:ratio=4,recent=128`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use trunkline_port::{Keeps, LayerGroup};

use super::ConfigError;
use crate::h2o::{Mode, REGISTRY, Scorer, Settings, Target};

/// Eviction within a sequence (H2O, arXiv 2306.14048): mode, scorer, and numbers of the planner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct H2oConfig {
    /// Mode of requests that ask for none.
    pub mode: Mode,
    /// Way to rank the blocks of a sequence: a name in [`crate::h2o::REGISTRY`], with parameters if needed.
    pub scorer: String,
    /// Tokens of a sequence for each token kept in the layer groups that evict, 1 to 64; `None` is [`Self::RATIO`]. Who knows the sizes of the groups may
    /// derive another ratio while none is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f32>,
    /// First tokens of a sequence that are never dropped, in whole blocks.
    pub sink: u32,
    /// Last tokens of a sequence that are never dropped, in whole blocks.
    pub recent: u32,
    /// Tokens kept or dropped together, a multiple of the block size; 0 is one block.
    pub block: u32,
    /// Length of a sequence from which on tokens are dropped.
    pub trigger: u32,
    /// Tokens generated between two plans of a sequence, at least 1.
    pub interval: u32,
    /// Weight of the past in the moving average of scores, 0 to 1.
    pub alpha: f32,
    /// Decode steps from one whose attention is scored to the next, at least 1; the interval of plans at most.
    // Recordings from before the setting have no such field.
    #[serde(default = "every_step")]
    pub score_interval: u32,
    /// Tokens kept beyond the floors in each layer group that evicts, in the order of the groups and in units of the mean of all groups; at most
    /// 64 each. Empty: 1 for all.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<f32>,
    /// Follows from the model and has no key. `true` if each layer group that evicts drops the blocks that it reads least itself, by scores of its own; else all drop by the same scores.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_group: bool,
}

fn every_step() -> u32 {
    1
}

impl Default for H2oConfig {
    /// Returns the settings under which a calibrated split of the layers was measured to keep recall: see `docs/results/h2o.md`.
    fn default() -> Self {
        Self {
            mode: Mode::Off,
            scorer: "h2o".into(),
            ratio: None,
            sink: 32,
            recent: 256,
            block: 0,
            trigger: 512,
            interval: 16,
            alpha: 0.9,
            score_interval: 4,
            weights: Vec::new(),
            by_group: false,
        }
    }
}

impl H2oConfig {
    /// Ratio of the layer groups that evict, if none is set.
    pub const RATIO: f32 = 6.0;

    /// Keys of the numbers, as in `on:ratio=4`, and of the scorer.
    pub const KEYS: [&str; 10] =
        ["scorer", "ratio", "sink", "recent", "block", "trigger", "interval", "alpha", "score-interval", "weights"];

    /// Returns the settings of the planner for KV blocks of `block_size` tokens.
    pub fn settings(&self, block_size: u32) -> Settings {
        Settings {
            sink_tokens: self.sink,
            recent_tokens: self.recent,
            block_tokens: if self.block == 0 { block_size } else { self.block },
            trigger_tokens: self.trigger,
            interval_steps: self.interval,
            alpha: self.alpha,
            score_interval: self.score_interval,
            target: Target::Adaptive { lossy_ratio: self.ratio.unwrap_or(Self::RATIO) },
            weight: 1.0,
        }
    }

    /// Returns the settings of each layer group that evicts, or one for all if the groups have no weights.
    pub fn group_settings(&self, block_size: u32) -> Vec<Settings> {
        let mean = self.settings(block_size);
        match self.weights.as_slice() {
            [] => vec![mean],
            weights => weights.iter().map(|weight| Settings { weight: *weight, ..mean }).collect(),
        }
    }

    /// Returns the weights of the layer groups that evict, in units of their mean; empty if the groups have none.
    pub fn weights_of(groups: &[LayerGroup]) -> Vec<f32> {
        if groups.iter().all(|group| group.weight == 0) {
            return Vec::new();
        }
        let scored = groups.iter().filter(|group| group.keeps == Keeps::Scored);
        scored.map(|group| group.weight as f32 / 1000.0).collect()
    }

    /// Takes the weights of the layer groups, unless weights are set.
    pub fn weigh(&mut self, groups: &[LayerGroup]) {
        if self.weights.is_empty() {
            self.weights = Self::weights_of(groups);
        }
    }

    /// Makes the scorer.
    ///
    /// # Errors
    /// If no scorer has the name, or a parameter is unknown or outside its range.
    pub fn make_scorer(&self, block_size: u32) -> Result<Box<dyn Scorer>, ConfigError> {
        Ok(REGISTRY.make(&self.scorer, self.settings(block_size))?)
    }

    /// Checks every number against its range, and the name of the scorer.
    ///
    /// # Errors
    /// If a number is outside its range, the block is not a multiple of `block_size`, or the scorer is unknown; the first such fault.
    pub fn validate(&self, block_size: u32) -> Result<(), ConfigError> {
        self.group_settings(block_size).iter().try_for_each(|settings| settings.validate(block_size))?;
        self.make_scorer(block_size).map(|_| ())
    }

    /// Sets the value of one of [`Self::KEYS`] from text.
    ///
    /// # Errors
    /// If there is no such key, or the text is not a value of the key's type.
    pub fn set(&mut self, key: &str, text: &str) -> Result<(), ConfigError> {
        fn read<T: FromStr>(field: &mut T, key: &str, text: &str) -> Result<(), ConfigError> {
            *field = number(key, text)?;
            Ok(())
        }
        fn number<T: FromStr>(key: &str, text: &str) -> Result<T, ConfigError> {
            text.parse().map_err(|_| ConfigError::MalformedH2o { key: key.into(), value: text.into() })
        }
        match key {
            "scorer" => self.scorer = text.into(),
            "ratio" => self.ratio = Some(number(key, text)?),
            "sink" => read(&mut self.sink, key, text)?,
            "recent" => read(&mut self.recent, key, text)?,
            "block" => read(&mut self.block, key, text)?,
            "trigger" => read(&mut self.trigger, key, text)?,
            "interval" => read(&mut self.interval, key, text)?,
            "alpha" => read(&mut self.alpha, key, text)?,
            "score-interval" => read(&mut self.score_interval, key, text)?,
            "weights" => {
                self.weights = text.split('/').map(|weight| number(key, weight)).collect::<Result<_, _>>()?;
            }
            _ => return Err(ConfigError::UnknownH2o { key: key.into(), keys: Self::KEYS.join(", ") }),
        }
        Ok(())
    }

    fn get(&self, key: &str) -> String {
        match key {
            "scorer" => self.scorer.clone(),
            "ratio" => self.ratio.map(|ratio| ratio.to_string()).unwrap_or_default(),
            "sink" => self.sink.to_string(),
            "recent" => self.recent.to_string(),
            "block" => self.block.to_string(),
            "trigger" => self.trigger.to_string(),
            "interval" => self.interval.to_string(),
            "score-interval" => self.score_interval.to_string(),
            "weights" => self.weights.iter().map(f32::to_string).collect::<Vec<_>>().join("/"),
            _ => self.alpha.to_string(),
        }
    }
}

impl fmt::Display for H2oConfig {
    /// Writes the mode, and the values that differ from the default: `on:ratio=4,recent=128`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default();
        let differs = |key: &&str| self.get(key) != default.get(key);
        let values: Vec<_> =
            Self::KEYS.iter().copied().filter(differs).map(|key| format!("{key}={}", self.get(key))).collect();
        let separator = if values.is_empty() { "" } else { ":" };
        write!(f, "{}{separator}{}", self.mode.name(), values.join(","))
    }
}

impl FromStr for H2oConfig {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let (mode, values) = text.split_once(':').unwrap_or((text, ""));
        let mut config = Self { mode: mode.parse()?, ..Self::default() };
        for value in values.split(',').filter(|value| !value.is_empty()) {
            let (key, value) = value.split_once('=').unwrap_or((value, ""));
            config.set(key.trim(), value.trim())?;
        }
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_the_settings_is_read_back() {
        for text in [
            "off",
            "probe",
            "on:ratio=3.5,recent=128",
            "on:scorer=snapkv,block=64,interval=1,alpha=0.5,score-interval=2",
            "on:weights=1.5/0.5",
        ] {
            assert_eq!(text.parse::<H2oConfig>().unwrap().to_string(), text);
        }
        let defaults =
            "on:sink=32,recent=256,block=0,trigger=512,interval=16,alpha=0.9,score-interval=4".parse::<H2oConfig>();
        assert_eq!(defaults.unwrap(), H2oConfig { mode: Mode::On, ..H2oConfig::default() });
        let ratio = |text: &str| match text.parse::<H2oConfig>().unwrap().settings(16).target {
            Target::Adaptive { lossy_ratio } => lossy_ratio,
            Target::Static { .. } => unreachable!("no text gives it"),
        };
        assert_eq!([ratio("on"), ratio("on:ratio=6"), ratio("on:ratio=2.5")], [6.0, 6.0, 2.5]);
    }

    #[test]
    fn recordings_without_a_score_interval_scored_every_step() {
        let mut config = serde_json::to_value(H2oConfig::default()).unwrap();
        assert_eq!(config.as_object_mut().unwrap().remove("score_interval"), Some(4.into()));
        assert_eq!(serde_json::from_value::<H2oConfig>(config).unwrap().score_interval, 1);
    }

    #[test]
    fn faults_are_named() {
        let fault = |text: &str| text.parse::<H2oConfig>().unwrap_err().to_string();
        assert_eq!(fault("yes"), "unknown h2o mode 'yes'; there are: off, probe, on");
        assert_eq!(
            fault("on:rato=3"),
            "unknown h2o setting 'rato'; there are: scorer, ratio, sink, recent, block, trigger, interval, alpha, score-interval, weights"
        );
        assert_eq!(fault("on:sink=few"), "h2o sink is 'few'; give a number");
        assert_eq!(fault("on:weights=1/x"), "h2o weights is 'x'; give a number");
        let invalid = |text: &str| text.parse::<H2oConfig>().unwrap().validate(16).unwrap_err().to_string();
        assert_eq!(invalid("on:weights=1/-1"), "h2o weight is -1; it must be between 0 and 64");
        assert_eq!(invalid("on:ratio=0.5"), "h2o ratio is 0.5; it must be between 1 and 64");
        assert_eq!(
            invalid("on:block=24"),
            "h2o block is 24 tokens; it must be a multiple of the KV block of 16 tokens"
        );
        assert!(invalid("on:scorer=best").starts_with("unknown h2o scorer 'best'"), "{}", invalid("on:scorer=best"));
    }
}
