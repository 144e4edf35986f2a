//! Settings of engines running prompts before decodes, and the form as text: `chunks:reserve_permille=700`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::ConfigError;
use crate::names::registry::{Entry, Registry};
use crate::names::spec::Param;

const PERMILLE: u64 = 1_000;

const PARAMS: [Param; 6] = [
    Param {
        key: "reserve_permille",
        about: "share of the tokens that running requests may still generate, kept free when another is admitted; 0 is none",
        default: 0,
        min: 0,
        max: PERMILLE,
    },
    Param { key: "least_permille", about: "share that the reserve falls to", default: 0, min: 0, max: PERMILLE },
    Param {
        key: "decay_steps",
        about: "steps of decodes in which the reserve falls to the least",
        default: 600,
        min: 1,
        max: 1 << 30,
    },
    Param {
        key: "await_prefix",
        about: "1 to let a request wait for a prefix that another is computing, 0 to compute the prefix in both",
        default: 1,
        min: 0,
        max: 1,
    },
    Param {
        key: "find_chunks",
        about: "1 to let requests find a chunk of a prompt as soon as the next step is made, 0 when the step of the chunk has ended",
        default: 0,
        min: 0,
        max: 1,
    },
    Param {
        key: "take_together",
        about: "1 to let the prompts of a step take the blocks of their chunks when all of them hold their cached prefixes, 0 one after \
                another with the blocks of whole prompts",
        default: 0,
        min: 0,
        max: 1,
    },
];

/// All ways to run prompts before decodes.
static REGISTRY: Registry<PrefillFirst> = Registry::new(
    "prefill-first mode",
    &[
        Entry { name: "false", about: "prefills alongside decodes", params: &[], make: |_, ()| PrefillFirst::Off },
        Entry { name: "true", about: "whole prompts alone", params: &[], make: |_, ()| PrefillFirst::Whole },
        Entry {
            name: "padded",
            about: "whole prompts alone, each counted as the longest of the step",
            params: &[],
            make: |_, ()| PrefillFirst::Padded,
        },
        Entry {
            name: "chunks",
            about: "prompts alone, the last of a step in chunks",
            params: &PARAMS,
            make: |values, ()| {
                let [reserve, least, steps] = [0, 1, 2].map(|at| values[at] as u32);
                let reserve =
                    OutputReserve { permille: reserve, least_permille: least.min(reserve), decay_steps: steps };
                let [awaits_prefix, finds_chunks, takes_together] = [3, 4, 5].map(|at| values[at] == 1);
                PrefillFirst::Chunks(Chunks { reserve, awaits_prefix, finds_chunks, takes_together })
            },
        },
    ],
);

/// Order of prefills and decodes: together, or prefills before decodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "String")]
pub enum PrefillFirst {
    /// Prefills run alongside decodes.
    #[default]
    Off,
    /// A step runs whole prompts alone, as long as some can run, else all decodes.
    Whole,
    /// As [`Self::Whole`], but the number of prompts in a step times the length of the longest is within the token budget, as in engines
    /// with padded prompts.
    Padded,
    /// As [`Self::Whole`], but a step takes prompts up to the token budget, and the last prompt may continue in the next step.
    Chunks(Chunks),
}

/// Details of [`PrefillFirst::Chunks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunks {
    /// Room kept for the output of running requests.
    pub reserve: OutputReserve,
    /// `true` if a request waits while another computes a prefix of the prompt.
    pub awaits_prefix: bool,
    /// `true` if a request finds the blocks of a chunk of another prompt, except the last, from the next scheduling pass on, while a step
    /// in flight computes the chunk: steps run in order. Without effect with layer groups.
    pub finds_chunks: bool,
    /// `true` if the prompts of a step take the blocks of their chunks when all of them hold their cached prefixes: then no prompt evicts
    /// what another one of the step found. Without effect without reserve for prompts, and with layer groups, tiers, hits within a step and policies that
    /// count service, but for the blocks being taken chunk by chunk.
    pub takes_together: bool,
}

/// Room left by an admission for tokens not generated yet: SGLang's new-token ratio. The share falls from step to step, and
/// is estimated again by a preemption. The admitted request counts with its whole output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputReserve {
    /// Thousandths of the tokens left to generate for running requests; 0 is no reserve, also not for the admitted request.
    pub permille: u32,
    /// Least thousandths, reached after `decay_steps`.
    pub least_permille: u32,
    /// Steps of decodes from the first share to the least.
    pub decay_steps: u32,
}

impl PrefillFirst {
    /// Returns `true` if prefills run before decodes.
    pub fn is_on(self) -> bool {
        self != Self::Off
    }

    /// Returns `true` if a prompt within the token budget runs in one step.
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Whole | Self::Padded)
    }

    /// Returns the room kept for output, if any.
    pub fn reserve(self) -> Option<OutputReserve> {
        match self {
            Self::Chunks(Chunks { reserve, .. }) => Some(reserve).filter(|reserve| reserve.permille > 0),
            Self::Off | Self::Whole | Self::Padded => None,
        }
    }

    /// Returns `true` if a request waits while another computes a prefix of the prompt.
    pub fn awaits_prefix(self) -> bool {
        !matches!(self, Self::Chunks(Chunks { awaits_prefix: false, .. }))
    }

    /// Returns `true` if requests find chunks computed by steps in flight.
    pub fn finds_chunks(self) -> bool {
        matches!(self, Self::Chunks(Chunks { finds_chunks: true, .. }))
    }

    /// Returns `true` if the prompts of a step take their blocks together.
    pub fn takes_together(self) -> bool {
        matches!(self, Self::Chunks(Chunks { takes_together: true, .. }))
    }
}

impl fmt::Display for PrefillFirst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Chunks(Chunks { reserve, awaits_prefix, finds_chunks, takes_together }) = self else {
            return f.write_str(match self {
                Self::Off => "false",
                Self::Padded => "padded",
                _ => "true",
            });
        };
        f.write_str("chunks")?;
        let OutputReserve { permille, least_permille, decay_steps } = *reserve;
        let [awaits, finds, together] = [awaits_prefix, finds_chunks, takes_together].map(|flag| u32::from(*flag));
        let values = [permille, least_permille, decay_steps, awaits, finds, together].map(u64::from);
        let changed = PARAMS.iter().zip(values).filter(|(param, value)| param.default != *value);
        for (at, (param, value)) in changed.enumerate() {
            write!(f, "{}{}={value}", if at == 0 { ':' } else { ',' }, param.key)?;
        }
        Ok(())
    }
}

impl FromStr for PrefillFirst {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        Ok(REGISTRY.make(text, ())?)
    }
}

/// A mode in a file. Recordings of versions with two modes have `true` or `false`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Flag(bool),
    Text(String),
}

impl TryFrom<Written> for PrefillFirst {
    type Error = ConfigError;

    fn try_from(written: Written) -> Result<Self, ConfigError> {
        match written {
            Written::Flag(true) => Ok(Self::Whole),
            Written::Flag(false) => Ok(Self::Off),
            Written::Text(text) => text.parse(),
        }
    }
}

impl From<PrefillFirst> for String {
    fn from(mode: PrefillFirst) -> Self {
        mode.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_is_read_back_from_its_text() {
        for text in [
            "false",
            "true",
            "padded",
            "chunks",
            "chunks:reserve_permille=700,least_permille=98,await_prefix=0",
            "chunks:find_chunks=1",
            "chunks:find_chunks=1,take_together=1",
        ] {
            let mode: PrefillFirst = text.parse().unwrap();
            assert_eq!(mode.to_string(), text);
            assert_eq!(serde_json::from_str::<PrefillFirst>(&serde_json::to_string(&mode).unwrap()).unwrap(), mode);
        }
        let written = |json: &str| serde_json::from_str::<PrefillFirst>(json).unwrap();
        assert_eq!((written("true"), written("false")), (PrefillFirst::Whole, PrefillFirst::Off));
        let reserve = |text: &str| text.parse::<PrefillFirst>().unwrap().reserve();
        assert_eq!((reserve("true"), reserve("chunks"), reserve("chunks:least_permille=9")), (None, None, None));
        let half = OutputReserve { permille: 500, least_permille: 500, decay_steps: 7 };
        assert_eq!(reserve("chunks:reserve_permille=500,least_permille=600,decay_steps=7"), Some(half));
    }

    #[test]
    fn unknown_modes_and_parameters_are_reported_in_one_line() {
        let fault = |text: &str| text.parse::<PrefillFirst>().unwrap_err().to_string();
        assert_eq!(fault("1"), "unknown prefill-first mode '1'; there are: false, true, padded, chunks");
        assert_eq!(
            fault("chunks:reserve_permille=1001"),
            "prefill-first mode 'chunks': reserve_permille is '1001'; it must be a whole number between 0 and 1000"
        );
    }
}
