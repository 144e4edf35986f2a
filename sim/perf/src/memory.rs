//! KV blocks that fit on a device next to the weights, and in a host's memory.

mod pages;
mod parts;
mod tiles;

pub use self::pages::StatePages;
pub use self::parts::{MemoryParts, WorkspaceParts};

use crate::cost::{Parallel, Weights};
use crate::hardware::Hardware;
use crate::model::Model;

/// Maximum number of blocks that a core can manage.
const BLOCKS_MAX: u64 = 1 << 30;
/// Bytes of an activation.
const ACTIVATION_BYTES: u64 = 2;

/// Use of a device's memory by other things than KV blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryUse {
    /// Share of the device's memory for weights, workspace and KV, above 0 and at most 1: `--gpu-memory-utilization` of vLLM.
    pub utilization: f64,
    /// Memory that is shared out.
    pub of: Total,
    /// Memory that an engine measures and takes out of this share before it counts blocks; `None` if the rest of the device's memory has room for it.
    pub workspace: Option<Workspace>,
    /// Place of the states of recurrent layers.
    pub states: States,
    /// `true` for weights as the kernels of an engine want them, instead of as they are published: MXFP4 in whole tiles.
    pub tiled: bool,
}

/// Memory of a device that is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Total {
    /// All that the driver reports.
    Board,
    /// All that programs see, less so many bytes that are in use before an engine looks.
    Usable(u64),
}

/// Place of the states of recurrent layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum States {
    /// Memory for a full batch, next to the blocks.
    Reserved,
    /// Pages of the pool of blocks, as sequences run (vLLM): see [`StatePages`].
    Pages,
}

/// Memory that an engine takes out of its share of a device before it counts blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workspace {
    /// Tenths of a byte of the sampler for each sequence of a full batch and each entry of the vocabulary: logits, their copies, and probabilities.
    pub logit_tenths: u64,
    /// Bytes of libraries, links among devices and graphs.
    pub other_bytes: u64,
}

impl MemoryUse {
    /// Nine tenths of the memory for weights and KV; activations and the runtime take the rest.
    pub const DEFAULT: Self =
        Self { utilization: 0.9, of: Total::Board, workspace: None, states: States::Reserved, tiled: false };
}

impl Default for MemoryUse {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl Total {
    /// Returns the bytes on a device.
    pub fn bytes(self, hardware: &Hardware) -> u64 {
        match self {
            Self::Board => hardware.memory.total_bytes,
            Self::Usable(in_use) => hardware.memory.usable_bytes.saturating_sub(in_use),
        }
    }
}

impl Workspace {
    /// Returns the parts on the fullest device, as vLLM measures them with a full step and a full batch of dummy requests: the layers' or, as one follows
    /// the other, the sampler's with the hidden states of the step. A layer holds the residual and a few rows of hidden width, and both halves of the
    /// feed-forward network with their product, or those of the chosen experts: of whole experts all of the width, and of a group of ranks those of the
    /// tokens of all, which each gathers.
    pub fn parts(self, model: &Model, parallel: Parallel, batch_tokens: u32, batch_size: u32) -> WorkspaceParts {
        let tokens = u64::from(batch_tokens);
        let dense = tokens.saturating_mul(3 * model.intermediate.div_ceil(parallel.tensor.into()));
        let of_experts = model.experts.map_or(0, |experts| {
            let slices = if parallel.expert > 1 { 1 } else { u64::from(parallel.expert_devices()).max(1) };
            let width = experts.width.div_ceil(slices);
            let of_token = experts.active * (model.hidden.max(2 * width) + width);
            tokens.saturating_mul(parallel.data.into()).saturating_mul(of_token)
        });
        let elements = tokens.saturating_mul(3 * model.hidden).saturating_add(dense.max(of_experts));
        let sampler = u64::from(batch_size).saturating_mul(model.vocab).saturating_mul(self.logit_tenths) / 10;
        WorkspaceParts {
            layers: elements.saturating_mul(ACTIVATION_BYTES),
            sampler: sampler.saturating_add(tokens * model.hidden * ACTIVATION_BYTES),
            other: self.other_bytes,
        }
    }
}

/// Model that a device has no room for.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum DoesNotFit {
    /// No room for KV.
    #[error(
        "{model} does not fit on {hardware}: weights{} and one KV block need {:.2} GB, {} % of the memory is {:.2} GB, \
         {:.2} GB are missing; choose larger hardware or a smaller model, let weights stream, or set the number of device blocks by hand",
        describe(*state_bytes, *workspace_bytes), *needed_bytes as f64 / 1e9, per_cent(*utilization), *usable_bytes as f64 / 1e9,
        (needed_bytes - usable_bytes) as f64 / 1e9
    )]
    Memory {
        /// Name of the model.
        model: &'static str,
        /// Name of the device.
        hardware: &'static str,
        /// Bytes of recurrent states, for the sequences of a full batch.
        state_bytes: u64,
        /// Bytes of the engine's workspace.
        workspace_bytes: u64,
        /// Bytes of the weights, the states, the workspace and one block.
        needed_bytes: u64,
        /// Share of the device's memory that is used.
        utilization: f64,
        /// Bytes of that share.
        usable_bytes: u64,
    },
    /// Fewer pages than sequences, each of which has a state in one.
    #[error(
        "max-batch-size is {sequences}, more than the {pages} blocks of {model} on {hardware}: each sequence that runs has the states of its \
         recurrent layers in blocks; lower max-batch-size to at most {pages}, or raise gpu-memory-utilization"
    )]
    Pages {
        /// Name of the model.
        model: &'static str,
        /// Name of the device.
        hardware: &'static str,
        /// Sequences of a full batch.
        sequences: u32,
        /// Blocks of the pool.
        pages: u64,
    },
}

/// Returns a share, per cent, to a tenth.
fn per_cent(share: f64) -> f64 {
    (share * 1000.0).round() / 10.0
}

/// Returns the part of a message about recurrent states and the workspace; nothing if there are none.
fn describe(state_bytes: u64, workspace_bytes: u64) -> String {
    let mut text = String::new();
    if state_bytes > 0 {
        text +=
            &format!(", recurrent states of a full batch ({:.2} GB; see --max-batch-size)", state_bytes as f64 / 1e9);
    }
    if workspace_bytes > 0 {
        text += &format!(", the engine's workspace ({:.2} GB)", workspace_bytes as f64 / 1e9);
    }
    text
}

/// A model on a device, with the steps that the device has to have room for.
#[derive(Clone, Copy, Debug)]
pub struct Placement<'a> {
    /// Device, one of those that share the model.
    pub hardware: &'a Hardware,
    /// Model with its KV cache.
    pub model: &'a Model,
    /// Devices of a replica.
    pub parallel: Parallel,
    /// Weights, resident or streamed.
    pub weights: Weights,
    /// Memory that is not for blocks.
    pub memory: MemoryUse,
    /// Maximum number of tokens in one step.
    pub batch_tokens: u32,
    /// Maximum number of sequences in one step: each has recurrent states, if the model has any.
    pub batch_size: u32,
}

impl Placement<'_> {
    /// Returns the memory of the fullest device by its parts.
    pub fn parts(&self) -> MemoryParts {
        let Self { hardware, model, parallel, memory, .. } = *self;
        let weights = match self.weights {
            Weights::Resident => {
                let padding = if memory.tiled { tiles::padding_bytes(model, parallel, hardware) } else { 0 };
                parallel.weight_bytes(model).saturating_add(padding)
            }
            Weights::Streamed(streamed) => streamed.device_bytes(model),
            Weights::Windowed(windowed) => windowed.memory_bytes(model),
        };
        let states = match memory.states {
            States::Reserved => parallel.state_bytes(model).saturating_mul(self.batch_size.into()),
            States::Pages => 0,
        };
        let total = memory.of.bytes(hardware);
        let workspace = memory.workspace.map_or(WorkspaceParts::default(), |workspace| {
            workspace.parts(model, parallel, self.batch_tokens, self.batch_size)
        });
        let budget = (total as f64 * memory.utilization) as u64;
        MemoryParts { total, budget, weights, states, workspace }
    }

    /// Returns the number of blocks of `block_size` tokens that fit on the fullest device. `block_size` MUST be at least 1.
    ///
    /// # Errors
    ///
    /// [`DoesNotFit`] if no block fits.
    pub fn blocks(&self, block_size: u32) -> Result<u32, DoesNotFit> {
        assert!(block_size > 0, "block size is at least one token");
        let parts = self.parts();
        let block_bytes = self.parallel.kv_bytes_per_token(self.model) * u64::from(block_size);
        let needed_bytes = parts.taken().saturating_add(block_bytes);
        if needed_bytes > parts.budget {
            return Err(DoesNotFit::Memory {
                model: self.model.name,
                hardware: self.hardware.name,
                state_bytes: parts.states,
                workspace_bytes: parts.workspace.bytes(),
                needed_bytes,
                utilization: self.memory.utilization,
                usable_bytes: parts.budget,
            });
        }
        Ok((parts.kv() / block_bytes).min(BLOCKS_MAX) as u32)
    }
}

/// Returns the number of blocks of `block_bytes` bytes that fit in `bytes` of host memory. `block_bytes` MUST be at least 1.
pub fn host_blocks(bytes: u64, block_bytes: u64) -> u32 {
    assert!(block_bytes > 0, "a block holds at least one token");
    (bytes / block_bytes).min(BLOCKS_MAX) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::qwen3_next;
    use crate::{hardware, model};

    fn placement<'a>(hardware: &'a Hardware, model: &'a Model) -> Placement<'a> {
        let (parallel, weights, memory) = (Parallel::ONE, Weights::Resident, MemoryUse::DEFAULT);
        Placement { hardware, model, parallel, weights, memory, batch_tokens: 2048, batch_size: 256 }
    }

    #[test]
    fn blocks_fill_what_the_weights_leave() {
        let (h100, llama) = (hardware::by_name("h100-80g").unwrap(), model::by_name("llama-3.1-8b").unwrap());
        let blocks = placement(h100, llama).blocks(16).unwrap();
        let filled = llama.weight_bytes() + u64::from(blocks) * 16 * llama.kv_bytes_per_token();
        let usable = h100.memory.total_bytes as f64 * 0.9;
        assert!(filled as f64 <= usable && (filled + 16 * llama.kv_bytes_per_token()) as f64 > usable);
        assert_eq!(blocks, 29_043);
        assert_eq!(placement(h100, llama).blocks(32).unwrap(), blocks / 2);
        let memory = MemoryUse { utilization: 0.45, ..MemoryUse::DEFAULT };
        let half = Placement { memory, ..placement(h100, llama) }.blocks(16).unwrap();
        let missing = u64::from(blocks - half) * 16 * llama.kv_bytes_per_token();
        assert!((missing as f64 / (h100.memory.total_bytes as f64 * 0.45) - 1.0).abs() < 1e-4);
    }

    #[test]
    fn a_workspace_is_that_of_the_layers_or_of_the_sampler() {
        let llama = model::by_name("llama-3.1-8b").unwrap();
        let workspace = Workspace { logit_tenths: 120, other_bytes: 1000 };
        let bytes = |parallel, tokens, sequences| workspace.parts(llama, parallel, tokens, sequences).bytes();
        assert_eq!(bytes(Parallel::ONE, 2048, 256), 256 * 128_256 * 12 + 2048 * 4096 * 2 + 1000);
        assert_eq!(bytes(Parallel::ONE, 8192, 16), 8192 * 2 * (3 * 14_336 + 3 * 4096) + 1000);
        assert_eq!(bytes(Parallel::tensor(2), 8192, 16), 8192 * 2 * (3 * 7168 + 3 * 4096) + 1000);
        let qwen = model::by_name("qwen3-30b-a3b").unwrap();
        // Eight experts of 768: rows of hidden width, which is wider than both halves, and their product.
        let of_qwen = workspace.parts(qwen, Parallel::ONE, 8192, 1).bytes();
        assert_eq!(of_qwen, 8192 * 2 * (3 * 2048 + 8 * (2048 + 768)) + 1000);
        // Slices of each expert on four devices; whole ones, for the tokens of all four ranks.
        let of_qwen = |text: &str| workspace.parts(qwen, text.parse().unwrap(), 8192, 1).bytes();
        assert_eq!(of_qwen("tp4"), 8192 * 2 * (3 * 2048 + 8 * (2048 + 192)) + 1000);
        assert_eq!(of_qwen("tp4ep4"), 8192 * 2 * (3 * 2048 + 8 * (2048 + 768)) + 1000);
        assert_eq!(of_qwen("dp4ep4"), 8192 * 2 * (3 * 2048 + 4 * 8 * (2048 + 768)) + 1000);
        assert!(bytes(Parallel::ONE, u32::MAX, u32::MAX) > u64::from(u32::MAX) * 128_256 * 12);
        // Peak activations in a log of vLLM 0.11, by vocabulary and width.
        let v0_11 = Workspace { logit_tenths: 385, other_bytes: 0 };
        for (vocab, hidden, gib) in [
            (128_256, 4096, 4.76),
            (128_256, 8192, 4.84),
            (151_936, 1024, 5.56),
            (151_936, 5120, 5.64),
            (201_088, 2880, 7.38),
        ] {
            let model = Model { vocab, hidden, intermediate: 1, ..*llama };
            let found = v0_11.parts(&model, Parallel::ONE, 8192, 1024).sampler as f64 / f64::from(1 << 30);
            assert!((found - gib).abs() < 0.05, "{vocab} {hidden}: {found:.3} for {gib}");
        }
    }

    #[test]
    fn a_workspace_leaves_fewer_blocks() {
        let (rtx, llama) = (hardware::by_name("rtx4090-24g").unwrap(), model::by_name("llama-3.1-8b").unwrap());
        let workspace = Workspace { logit_tenths: 100, other_bytes: 500 << 20 };
        let memory = MemoryUse { workspace: Some(workspace), ..MemoryUse::DEFAULT };
        let blocks = |memory| Placement { memory, ..placement(rtx, llama) }.blocks(16).unwrap();
        let taken = workspace.parts(llama, Parallel::ONE, 2048, 256).bytes();
        let taken = taken.div_ceil(16 * llama.kv_bytes_per_token());
        assert!((blocks(MemoryUse::DEFAULT) - blocks(memory)).abs_diff(taken as u32) <= 1);
        let error = Placement { memory, batch_size: 8192, ..placement(rtx, llama) }.blocks(16).unwrap_err().to_string();
        assert!(error.contains("weights, the engine's workspace (11.05 GB) and one KV block need"), "{error}");
        // Programs see less than the board has.
        let seen = blocks(MemoryUse { of: Total::Usable(0), ..MemoryUse::DEFAULT });
        let in_use = blocks(MemoryUse { of: Total::Usable(1 << 30), ..MemoryUse::DEFAULT });
        assert!(blocks(MemoryUse::DEFAULT) > seen && (seen - in_use).abs_diff((0.9 * 512.0) as u32) <= 1);
    }

    #[test]
    fn devices_together_hold_what_one_does_not() {
        let (h100, llama) = (hardware::by_name("h100-80g").unwrap(), model::by_name("llama-3.1-70b").unwrap());
        assert!(placement(h100, llama).blocks(16).is_err());
        let blocks = |text: &str| Placement { parallel: text.parse().unwrap(), ..placement(h100, llama) }.blocks(16);
        assert!(blocks("tp2").is_ok_and(|blocks| blocks < 3_000));
        // Of 8 * 77 GB weights take 141; a block of 16 tokens takes 5.2 MB.
        assert!(blocks("tp8").is_ok_and(|blocks| (88_000..92_000).contains(&blocks)), "{:?}", blocks("tp8"));
    }

    #[test]
    fn weights_that_stream_leave_room() {
        let (rtx, llama) = (hardware::by_name("rtx4090-24g").unwrap(), model::by_name("llama-3.1-70b").unwrap());
        let blocks = |text: &str| Placement { weights: text.parse().unwrap(), ..placement(rtx, llama) }.blocks(16);
        assert!(blocks("resident").is_err());
        // Of 23.2 GB a window of two layers takes 3.4, embedding and output matrix 4.2; a block takes 5.2 MB.
        let all_move = blocks("stream").unwrap();
        assert!((2_900..3_000).contains(&all_move), "{all_move}");
        // Each layer that stays takes 326 blocks.
        let four_stay = blocks("stream:device_layers=4").unwrap();
        assert!((1_300..1_310).contains(&(all_move - four_stay)), "{four_stay}");
        assert!(blocks("stream:device_layers=12").is_err());
    }

    #[test]
    fn recurrent_states_of_a_full_batch_take_room() {
        let (h200, qwen) = (hardware::by_name("h200-141g").unwrap(), qwen3_next());
        let two: Parallel = "tp2".parse().unwrap();
        let blocks = |batch_size| Placement { parallel: two, batch_size, ..placement(h200, &qwen) }.blocks(16);
        let (none, full) = (blocks(0).unwrap(), blocks(256).unwrap());
        // 36 states of 32 heads of 128 by 128 elements, and three inputs of 8,192 channels, of 16 bits; half on each device.
        let state_bytes = 36 * (32 * 128 * 128 + 3 * 8192) * 2 / 2;
        assert_eq!(two.state_bytes(&qwen), state_bytes);
        let block_bytes = 16 * two.kv_bytes_per_token(&qwen);
        assert!(u64::from(none - full).abs_diff(256 * state_bytes / block_bytes) <= 1, "{none} {full}");
        // Four stages have nine of the states each.
        assert_eq!("pp4".parse::<Parallel>().unwrap().state_bytes(&qwen), state_bytes / 2);
        let error = blocks(1 << 20).unwrap_err().to_string();
        assert!(
            error.contains("weights, recurrent states of a full batch (20718.92 GB; see --max-batch-size)"),
            "{error}"
        );
    }

    #[test]
    fn a_host_holds_as_many_blocks_as_fit() {
        let llama = model::by_name("llama-3.1-8b").unwrap();
        let blocks = |bytes| host_blocks(bytes, 16 * llama.kv_bytes_per_token());
        assert_eq!([0, 2_097_151, 2_097_152, 64_000_000_000].map(blocks), [0, 0, 1, 30_517]);
        assert_eq!(blocks(u64::MAX), 1 << 30);
    }

    #[test]
    fn what_does_not_fit_says_how_much_is_missing() {
        let (l4, llama) = (hardware::by_name("l4-24g").unwrap(), model::by_name("llama-3.1-70b").unwrap());
        let error = placement(l4, llama).blocks(16).unwrap_err();
        assert_eq!(
            error.to_string(),
            "llama-3.1-70b does not fit on l4-24g: weights and one KV block need 141.11 GB, 90 % of the memory is 21.74 GB, \
             119.37 GB are missing; choose larger hardware or a smaller model, let weights stream, or set the number of device blocks by hand"
        );
        let said = |utilization: f64| {
            let memory = MemoryUse { utilization, ..MemoryUse::DEFAULT };
            Placement { memory, ..placement(l4, llama) }.blocks(16).unwrap_err().to_string()
        };
        assert!(said(0.925).contains(" 92.5 % of the memory") && said(0.005).contains(" 0.5 % of the memory"));
    }
}
