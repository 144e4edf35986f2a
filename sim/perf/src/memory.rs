//! KV blocks that fit on a device beside the weights, and in a host's memory.

use crate::cost::{Parallel, Weights};
use crate::hardware::Hardware;
use crate::model::Model;

/// Usable share of a device's memory for weights and KV, per cent; activations and the runtime take the rest.
pub const USABLE_PERCENT: u64 = 90;
/// Blocks that a core can manage, at most.
const BLOCKS_MAX: u64 = 1 << 30;

/// Model too large for the device: no room for KV.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "{model} does not fit on {hardware}: weights{} and one KV block need {:.2} GB, {USABLE_PERCENT} % of the memory is {:.2} GB, \
     {:.2} GB are missing; choose larger hardware or a smaller model, let weights stream, or set the number of device blocks by hand",
    describe(*state_bytes), *needed_bytes as f64 / 1e9, *usable_bytes as f64 / 1e9, (needed_bytes - usable_bytes) as f64 / 1e9
)]
pub struct DoesNotFit {
    /// Name of the model.
    pub model: &'static str,
    /// Name of the device.
    pub hardware: &'static str,
    /// Bytes of recurrent states, for the sequences of a full batch.
    pub state_bytes: u64,
    /// Bytes of the weights, the states and one block.
    pub needed_bytes: u64,
    /// Usable bytes of the device.
    pub usable_bytes: u64,
}

/// Returns the part of a message about recurrent states; nothing if there are none.
fn describe(state_bytes: u64) -> String {
    match state_bytes {
        0 => String::new(),
        bytes => format!(", recurrent states of a full batch ({:.2} GB; see --max-batch-size)", bytes as f64 / 1e9),
    }
}

/// Returns the number of blocks of `block_size` tokens that fit beside the weights. `block_size` MUST be at least 1.
///
/// # Errors
///
/// [`DoesNotFit`] if no block fits.
pub fn device_blocks(hardware: &Hardware, model: &Model, block_size: u32) -> Result<u32, DoesNotFit> {
    parallel_device_blocks(hardware, model, Parallel::ONE, block_size)
}

/// Returns the number of blocks of `block_size` tokens that fit beside the weights of a model spread over devices, on the fullest
/// device. `block_size` MUST be at least 1.
///
/// # Errors
///
/// [`DoesNotFit`] if no block fits.
pub fn parallel_device_blocks(
    hardware: &Hardware,
    model: &Model,
    parallel: Parallel,
    block_size: u32,
) -> Result<u32, DoesNotFit> {
    blocks_beside(parallel.weight_bytes(model), 0, hardware, model, parallel, block_size)
}

/// Returns the number of blocks of `block_size` tokens that fit beside the resident or streamed weights, and the recurrent states of
/// `sequences` sequences. `block_size` MUST be at least 1.
///
/// # Errors
///
/// [`DoesNotFit`] if no block fits.
pub fn device_blocks_beside(
    weights: Weights,
    hardware: &Hardware,
    model: &Model,
    parallel: Parallel,
    block_size: u32,
    sequences: u32,
) -> Result<u32, DoesNotFit> {
    let weight_bytes = match weights {
        Weights::Resident => parallel.weight_bytes(model),
        Weights::Streamed(streamed) => streamed.device_bytes(model),
        Weights::Windowed(windowed) => windowed.memory_bytes(model),
    };
    let state_bytes = parallel.state_bytes(model).saturating_mul(sequences.into());
    blocks_beside(weight_bytes, state_bytes, hardware, model, parallel, block_size)
}

fn blocks_beside(
    weight_bytes: u64,
    state_bytes: u64,
    hardware: &Hardware,
    model: &Model,
    parallel: Parallel,
    block_size: u32,
) -> Result<u32, DoesNotFit> {
    assert!(block_size > 0, "block size is at least one token");
    let usable_bytes = hardware.memory_bytes / 100 * USABLE_PERCENT;
    let block_bytes = parallel.kv_bytes_per_token(model) * u64::from(block_size);
    let taken_bytes = weight_bytes.saturating_add(state_bytes);
    let needed_bytes = taken_bytes.saturating_add(block_bytes);
    if needed_bytes > usable_bytes {
        let (model, hardware) = (model.name, hardware.name);
        return Err(DoesNotFit { model, hardware, state_bytes, needed_bytes, usable_bytes });
    }
    Ok(((usable_bytes - taken_bytes) / block_bytes).min(BLOCKS_MAX) as u32)
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

    #[test]
    fn blocks_fill_what_the_weights_leave() {
        let (h100, llama) = (hardware::by_name("h100-80g").unwrap(), model::by_name("llama-3.1-8b").unwrap());
        let blocks = device_blocks(h100, llama, 16).unwrap();
        let filled = llama.weight_bytes() + u64::from(blocks) * 16 * llama.kv_bytes_per_token();
        let usable = h100.memory_bytes as f64 * 0.9;
        assert!(filled as f64 <= usable && (filled + 16 * llama.kv_bytes_per_token()) as f64 > usable);
        assert_eq!(blocks, 29_043);
        assert_eq!(device_blocks(h100, llama, 32).unwrap(), blocks / 2);
    }

    #[test]
    fn devices_together_hold_what_one_does_not() {
        let (h100, llama) = (hardware::by_name("h100-80g").unwrap(), model::by_name("llama-3.1-70b").unwrap());
        assert!(device_blocks(h100, llama, 16).is_err());
        let blocks = |text: &str| parallel_device_blocks(h100, llama, text.parse().unwrap(), 16);
        assert!(blocks("tp2").is_ok_and(|blocks| blocks < 3_000));
        // Of 8 * 77 GB weights take 141; a block of 16 tokens takes 5.2 MB.
        assert!(blocks("tp8").is_ok_and(|blocks| (88_000..92_000).contains(&blocks)), "{:?}", blocks("tp8"));
    }

    #[test]
    fn weights_that_stream_leave_room() {
        let (rtx, llama) = (hardware::by_name("rtx4090-24g").unwrap(), model::by_name("llama-3.1-70b").unwrap());
        let blocks = |text: &str| device_blocks_beside(text.parse().unwrap(), rtx, llama, Parallel::ONE, 16, 256);
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
        let blocks = |parallel: Parallel, sequences| {
            device_blocks_beside(Weights::Resident, h200, &qwen, parallel, 16, sequences).unwrap()
        };
        let two: Parallel = "tp2".parse().unwrap();
        let (none, full) = (blocks(two, 0), blocks(two, 256));
        // 36 states of 32 heads of 128 by 128 elements, and three inputs of 8,192 channels, of 16 bits; half on each device.
        let state_bytes = 36 * (32 * 128 * 128 + 3 * 8192) * 2 / 2;
        assert_eq!(two.state_bytes(&qwen), state_bytes);
        let block_bytes = 16 * two.kv_bytes_per_token(&qwen);
        assert!(u64::from(none - full).abs_diff(256 * state_bytes / block_bytes) <= 1, "{none} {full}");
        // Four stages have nine of the states each.
        assert_eq!("pp4".parse::<Parallel>().unwrap().state_bytes(&qwen), state_bytes / 2);
        let error = device_blocks_beside(Weights::Resident, h200, &qwen, two, 16, 1 << 20).unwrap_err().to_string();
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
        let error = device_blocks(l4, llama, 16).unwrap_err();
        assert_eq!(
            error.to_string(),
            "llama-3.1-70b does not fit on l4-24g: weights and one KV block need 141.11 GB, 90 % of the memory is 21.74 GB, \
             119.37 GB are missing; choose larger hardware or a smaller model, let weights stream, or set the number of device blocks by hand"
        );
    }
}
