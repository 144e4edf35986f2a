//! Weights in whole tiles of the kernels: MXFP4 as vLLM loads it.
//!
//! From `Mxfp4MoEMethod.create_weights` and `_swizzle_mxfp4` of vLLM 0.10 to 0.19. An expert has two matrices, to twice its width and back:
//!
//! | device | kernel | padded |
//! |---|---|---|
//! | before Hopper, and boards without a kernel of their own | Marlin | width of an expert's slice to 128, hidden width to 256, with scales |
//! | Hopper | Triton | values along the width that is summed to 256; scales stay |
//! | Blackwell (10.x) | FlashInfer | both widths to 256, with scales |
//!
//! Logged: 13.47 and 64.38 GiB of gpt-oss-20b and 120b on an H100, 65.97 with Marlin; published weights are 12.8 and 60.7.

use crate::cost::Parallel;
use crate::hardware::Hardware;
use crate::model::{Bits, Model};

/// Bits of an element of MXFP4 with its scale, and of the value alone.
const WITH_SCALE: Bits = Bits::grouped(4, 8, 32);
const VALUE: Bits = Bits::each(4);

/// Returns the bytes by which the experts of a model grow on the fullest device; 0 for other formats.
pub(super) fn padding_bytes(model: &Model, parallel: Parallel, hardware: &Hardware) -> u64 {
    let Some(moe) = model.experts.filter(|_| model.precision.experts == WITH_SCALE) else { return 0 };
    // Whole experts, or a slice of each.
    let (count, width) = match parallel.expert {
        2.. => (moe.count.div_ceil(parallel.expert.into()), moe.width),
        _ => (moe.count, moe.width.div_ceil(parallel.expert_devices().into())),
    };
    let hidden = moe.latent_width.unwrap_or(model.hidden);
    let per_expert = match hardware.compute_capability {
        Some(capability) if (9.0..10.0).contains(&capability) => {
            // Gate and input sum over the hidden width, the output over the expert's.
            let padded = 2 * width * up(hidden, 256) + hidden * up(width, 256);
            VALUE.bytes(padded.saturating_sub(3 * width * hidden))
        }
        Some(capability) if (10.0..11.0).contains(&capability) => {
            WITH_SCALE.bytes(3 * (up(width, 256) * up(hidden, 256)).saturating_sub(width * hidden))
        }
        _ => WITH_SCALE.bytes(3 * (up(width, 128) * up(hidden, 256)).saturating_sub(width * hidden)),
    };
    let layers = model.expert_layers().div_ceil(parallel.pipeline.into());
    per_expert.saturating_mul(count).saturating_mul(layers)
}

fn up(width: u64, tile: u64) -> u64 {
    width.div_ceil(tile) * tile
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware;
    use crate::model::{Experts, Precision, by_name};

    /// gpt-oss with so many layers and experts.
    fn gpt_oss(layers: u64, count: u64) -> Model {
        let experts = Experts { count, active: 4, width: 2880, shared_width: 0, dense_layers: 0, latent_width: None };
        Model {
            layers,
            hidden: 2880,
            heads: 64,
            kv_heads: 8,
            head_dim: 64,
            intermediate: 2880,
            vocab: 201_088,
            experts: Some(experts),
            precision: Precision { experts: WITH_SCALE, ..Precision::BITS_16 },
            ..*by_name("llama-3.1-8b").unwrap()
        }
    }

    #[test]
    fn experts_of_mxfp4_take_as_much_as_logs_say() {
        let gib = |model: &Model, device: &str, parallel: &str| {
            let (device, parallel) = (hardware::by_name(device).unwrap(), parallel.parse::<Parallel>().unwrap());
            (parallel.weight_bytes(model) + padding_bytes(model, parallel, device)) as f64 / f64::from(1 << 30)
        };
        let (small, large) = (gpt_oss(24, 32), gpt_oss(36, 128));
        for (model, device, logged) in
            [(&small, "h100-80g", 13.47), (&large, "h100-80g", 64.38), (&large, "a100-80g", 65.97)]
        {
            let found = gib(model, device, "tp1");
            assert!((found / logged - 1.0).abs() < 0.01, "{device}: {found:.2} for {logged}");
        }
        // Slices of 720 become 768.
        assert!(gib(&large, "a100-80g", "tp4") > gib(&large, "a100-80g", "tp1") / 4.0);
        assert_eq!(
            padding_bytes(by_name("mixtral-8x7b").unwrap(), Parallel::ONE, hardware::by_name("h100-80g").unwrap()),
            0
        );
    }
}
