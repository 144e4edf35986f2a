//! Choice of the blocks that KV heads drop: by scores of each head, or of all heads together.

use anyhow::anyhow;
use clap::ValueEnum;
use trunkline_port::{Keeps, LAYER_GROUPS_MAX, ModelInfo};
use trunkline_quote::quoted;

/// Name of the setting in a server and a worker.
pub const SETTING: &str = "h2o-choice";

/// Choice of the blocks to be dropped by KV heads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// By the scores of each head. A head is a layer group with its own block tables.
    #[default]
    Own,
    /// By one score for all heads. Heads with equal shares are a layer group, and drop the same blocks.
    Shared,
}

impl Choice {
    /// Reads a choice from text; messages name it `setting`.
    ///
    /// # Errors
    /// If the text is neither `own` nor `shared`.
    pub fn parse(setting: &str, text: &str) -> anyhow::Result<Self> {
        Self::from_str(text, false).map_err(|_| anyhow!("{setting} is {text}; give own or shared", text = quoted(text)))
    }

    /// Returns the name of the choice, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Shared => "shared",
        }
    }

    /// Returns the choice for a model: [`Self::Shared`] if it has more KV heads than a core has layer groups.
    #[must_use]
    pub fn of(self, model: &ModelInfo) -> Self {
        if (model.n_layers * model.n_kv_heads) as usize > LAYER_GROUPS_MAX { Self::Shared } else { self }
    }

    /// Returns `true` if the groups of a divided model have scores of their own.
    pub fn is_by_group(self, model: &ModelInfo) -> bool {
        self == Self::Own && model.groups.iter().filter(|group| group.keeps == Keeps::Scored).count() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_own_or_shared() {
        assert_eq!(Choice::parse(SETTING, "own").unwrap(), Choice::Own);
        assert_eq!(Choice::parse(SETTING, "shared").unwrap(), Choice::Shared);
        let error = Choice::parse(SETTING, "mine").unwrap_err().to_string();
        assert_eq!(error, "h2o-choice is 'mine'; give own or shared");
    }

    #[test]
    fn heads_of_large_models_share_their_choice() {
        let of = |n_layers| Choice::Own.of(&ModelInfo { n_layers, n_kv_heads: 8, ..ModelInfo::default() });
        assert_eq!([of(32), of(33)], [Choice::Own, Choice::Shared]);
    }
}
