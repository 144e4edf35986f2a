//! Settings of the reuse of cached text that is not a prefix: copies that steps ask workers for.

use serde::{Deserialize, Serialize};

use super::table::{Kind, Notation, Plain, Setting, check, read};
use super::{Config, ConfigError, TOKENS_MAX};
use crate::h2o::Mode;

/// Reuse of cached text that is not a prefix, by copies within the device. Not with layer groups, eviction within sequences, prompts that take their
/// blocks chunk by chunk, or prompts before decodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReuseConfig {
    /// Minimum number of tokens of a run worth a copy; 0 is off.
    pub anywhere: u32,
    /// Tokens computed again at the beginning of each run.
    pub recompute: u32,
    /// `true` to copy only for requests that ask for it: [`crate::Request::reuse`].
    pub on_request: bool,
}

/// The settings, as users see them: none unless the crate is built with the feature `reuse-anywhere`.
pub(super) const SETTINGS: &[Setting] = if cfg!(feature = "reuse-anywhere") { &EXPERIMENTAL } else { &[] };

const EXPERIMENTAL: [Setting; 3] = [
    Setting {
        name: "reuse_anywhere",
        flag: "reuse-anywhere",
        value_name: Some("TOKENS"),
        kind: Kind::U32,
        get: |config| <Plain as Notation<u32>>::show(&config.worker.reuse.anywhere),
        set: |config, text| read::<u32, Plain>("reuse_anywhere", &mut config.worker.reuse.anywhere, text),
        range: || Some(("0".into(), TOKENS_MAX.to_string())),
        doc: &[
            "Experimental, in builds with the feature `reuse-anywhere`: reuse of cached text that is not a prefix, as a document after another",
            "question: tokens of a run that is worth a copy, at least; 0 is off. Approximate: the copied KV was computed after other tokens.",
        ],
    },
    Setting {
        name: "reuse_recompute",
        flag: "reuse-recompute",
        value_name: Some("TOKENS"),
        kind: Kind::U32,
        get: |config| <Plain as Notation<u32>>::show(&config.worker.reuse.recompute),
        set: |config, text| read::<u32, Plain>("reuse_recompute", &mut config.worker.reuse.recompute, text),
        range: || Some(("0".into(), TOKENS_MAX.to_string())),
        doc: &["Tokens computed again at the beginning of each run that `--reuse-anywhere` copies."],
    },
    Setting {
        name: "reuse_on_request",
        flag: "reuse-on-request",
        value_name: Some("BOOL"),
        kind: Kind::Bool,
        get: |config| <Plain as Notation<bool>>::show(&config.worker.reuse.on_request),
        set: |config, text| read::<bool, Plain>("reuse_on_request", &mut config.worker.reuse.on_request, text),
        range: || None,
        doc: &["Copy runs only for requests that ask for it, with `reuse: \"anywhere\"` in the API."],
    },
];

impl ReuseConfig {
    /// Returns `true` if nothing is set.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Checks the numbers, and their conflicts with other settings.
    pub(super) fn validate(self, config: &Config) -> Result<(), ConfigError> {
        check("reuse_anywhere", &self.anywhere, &(0..=TOKENS_MAX))?;
        check("reuse_recompute", &self.recompute, &(0..=TOKENS_MAX))?;
        let h2o = config.h2o.mode;
        let obstacles = [
            (h2o == Mode::Probe, "--h2o probe", "its scores count computed tokens, and copied ones have none"),
            (h2o == Mode::On, "--h2o on", "its scores count computed tokens, and copied ones have none"),
            (config.n_groups() > 1, "a sliding window, or --h2o-layers", "blocks of layer groups come and go"),
            (config.prefill_first.is_on(), "--prefill-first", "it takes blocks chunk by chunk"),
            (!config.reserve_prompts, "--reserve-prompts false", "a copy needs all blocks of a prompt"),
        ];
        match obstacles.into_iter().find(|(is_there, ..)| *is_there && self.anywhere > 0) {
            Some((_, setting, reason)) => Err(ConfigError::ReuseAnywhere { setting, reason }),
            None => Ok(()),
        }
    }
}
