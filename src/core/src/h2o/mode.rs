//! Modes of eviction within a sequence.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::names::registry::{UnknownName, choose};

/// Eviction within a sequence: of a core by default, or of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// All blocks are kept, and the worker reports no scores.
    #[default]
    Off,
    /// Plans are made and counted, and no block is dropped: shows what would be saved.
    Probe,
    /// Blocks are dropped as planned, in the layer groups that evict.
    On,
}

impl Mode {
    /// All modes, with the names users write.
    pub const ALL: [(&'static str, Self); 3] = [("off", Self::Off), ("probe", Self::Probe), ("on", Self::On)];

    /// Returns the name users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Probe => "probe",
            Self::On => "on",
        }
    }
}

impl FromStr for Mode {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        choose("h2o mode", &Self::ALL, text)
    }
}
