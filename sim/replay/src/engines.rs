//! Core limits that resemble the scheduling of known engines, for comparisons.

use trunkline_core::{Config, Preemption};

use crate::settings::Settings;
use trunkline_sim_workload::UnknownName;

/// Engine with imitated scheduling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engine {
    /// Name of the preset.
    pub name: &'static str,
    /// Imitated and missing features.
    pub about: &'static str,
    max_batch_tokens: u32,
    max_batch_size: u32,
}

/// All presets.
pub const PRESETS: &[Engine] = &[
    Engine {
        name: "vllm-v1",
        about: "vLLM's V1 engine on one device: chunked prefill, recomputation, no reserve of blocks. Unlike it, a request \
                takes all blocks of its prompt when it is admitted, and others may be admitted after a preemption",
        max_batch_tokens: 2048,
        max_batch_size: 256,
    },
    Engine {
        name: "sarathi",
        about: "Sarathi-Serve with chunks of 512 tokens and 128 sequences",
        max_batch_tokens: 512,
        max_batch_size: 128,
    },
];

impl Engine {
    /// Returns the limits for a device with `device_blocks` blocks of 16 tokens.
    pub fn core(&self, device_blocks: u32) -> Config {
        Config {
            block_size: 16,
            device_blocks,
            max_batch_tokens: self.max_batch_tokens,
            max_batch_size: self.max_batch_size,
            align_chunks: false,
            launch_watermark: 0.0,
            swap_in_watermark: 0.0,
            host_blocks: 0,
            preemption: Preemption::Recompute,
            ..Settings::core()
        }
    }
}

/// Returns the preset called `name`.
///
/// # Errors
///
/// [`UnknownName`] with the known presets.
pub fn by_name(name: &str) -> Result<&'static Engine, UnknownName> {
    PRESETS.iter().find(|preset| preset.name == name).ok_or_else(|| UnknownName {
        kind: "engine",
        name: name.into(),
        known: PRESETS.iter().map(|preset| preset.name).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_can_work_under_every_preset() {
        for preset in PRESETS {
            assert_eq!(by_name(preset.name).unwrap(), preset);
            assert_eq!(preset.core(1000).validate(), Ok(()));
        }
        let message = by_name("orca").unwrap_err().to_string();
        assert_eq!(message, "unknown engine 'orca'; there are: vllm-v1, sarathi");
    }
}
