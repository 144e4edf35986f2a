//! Hardware presets: what a device can do at best, and what share of it kernels reach.
//!
//! Peaks are those of the vendor's data sheets: dense BF16 with FP32 accumulation, without sparsity. Memory is what the driver
//! reports as total (`nvidia-smi`), which is what an engine divides up; it is a little less than the label where ECC or firmware
//! takes a share.
//!
//! | preset | source |
//! |---|---|
//! | `h100-80g` | NVIDIA H100 Tensor Core GPU data sheet, SXM5: 1,979 TFLOPS with sparsity = 989.4 dense; 3.35 TB/s |
//! | `h200-141g` | NVIDIA H200 data sheet, SXM: compute as H100; 4.8 TB/s |
//! | `a100-80g` | NVIDIA A100 data sheet, 80 GB SXM4: 312 TFLOPS; 2,039 GB/s |
//! | `a100-40g` | the same, 40 GB SXM4: 1,555 GB/s |
//! | `l40s-48g` | NVIDIA L40S data sheet: 362.05 TFLOPS; 864 GB/s |
//! | `l4-24g` | NVIDIA L4 data sheet: 242 TFLOPS with sparsity = 121 dense; 300 GB/s |
//! | `rtx4090-24g` | NVIDIA Ada GPU architecture white paper, RTX 4090: 165.2 TFLOPS; 1,008 GB/s |
//!
//! The link to the host is what copies between pinned host memory and the device commonly reach in bandwidth tests, each direction,
//! not the label: PCIe 5.0 x16 (H100, H200; 63 GB/s after line coding) 55 GB/s, PCIe 4.0 x16 (all others; 31.5 GB/s) 25 GB/s. Boards
//! with a narrower slot, or that share a switch, have less.
//!
//! All presets share one set of [`Efficiency`] factors, [`Efficiency::FITTED_ON_A100`], and its documentation says where each comes from.

use crate::UnknownName;

/// A device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hardware {
    /// The preset's name.
    pub name: &'static str,
    /// Dense BF16 peak, FLOP/s.
    pub peak_flops_s: f64,
    /// Memory bandwidth peak, bytes/s.
    pub bandwidth_bytes_s: f64,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// What copies between host and device reach, each direction, bytes/s.
    pub host_link_bytes_s: f64,
    /// Time of such a copy that does not depend on its size, seconds.
    pub host_link_latency_s: f64,
    /// The shares of the peaks that kernels reach.
    pub efficiency: Efficiency,
}

/// Shares of the peaks, each above 0 and at most 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Efficiency {
    /// Of peak FLOP/s, in matrix products with weights.
    pub linear_flops: f64,
    /// Of peak FLOP/s, in attention.
    pub attention_flops: f64,
    /// Of peak bandwidth, reading weights.
    pub weight_bandwidth: f64,
    /// Of peak bandwidth, reading KV in attention.
    pub kv_bandwidth: f64,
}

impl Efficiency {
    /// Factors from closed forms fitted to published kernel timings, not to whole steps:
    ///
    /// * `linear_flops` 0.65: the slope of all linear operations of a layer over tokens in Vidur's profiles (MIT licence):
    ///   A100 8B 0.67, A100 70B 0.71, H100 7B 0.64, H100 70B 0.66, A40 7B 0.72.
    /// * `attention_flops` 0.40: prefill attention, A100, 32 query heads, the same profiles (127 of 312 TFLOPS).
    /// * `weight_bandwidth` 0.70: the floor of the same linear operations at few tokens, A100 8B.
    /// * `kv_bandwidth` 0.78: decode attention, A100, 32 query and 8 KV heads, aiconfigurator's tables (Apache-2.0 licence):
    ///   1.60 of 2.04 TB/s.
    ///
    /// They are used for every device, so what they say about devices other than the A100 is an assumption.
    pub const FITTED_ON_A100: Self =
        Self { linear_flops: 0.65, attention_flops: 0.40, weight_bandwidth: 0.70, kv_bandwidth: 0.78 };
}

const PCIE_4_X16_BYTES_S: f64 = 25e9;
const PCIE_5_X16_BYTES_S: f64 = 55e9;
/// To launch a copy and to notice that it ended. An assumption, not a measurement.
const HOST_LINK_LATENCY_S: f64 = 10e-6;

const fn preset(
    name: &'static str,
    peak_tflops_s: f64,
    bandwidth_gb_s: f64,
    memory_mib: u64,
    host_link_bytes_s: f64,
) -> Hardware {
    Hardware {
        name,
        peak_flops_s: peak_tflops_s * 1e12,
        bandwidth_bytes_s: bandwidth_gb_s * 1e9,
        memory_bytes: memory_mib << 20,
        host_link_bytes_s,
        host_link_latency_s: HOST_LINK_LATENCY_S,
        efficiency: Efficiency::FITTED_ON_A100,
    }
}

/// All presets.
pub const PRESETS: &[Hardware] = &[
    preset("h100-80g", 989.4, 3350.0, 81_559, PCIE_5_X16_BYTES_S),
    preset("h200-141g", 989.4, 4800.0, 143_771, PCIE_5_X16_BYTES_S),
    preset("a100-80g", 312.0, 2039.0, 81_920, PCIE_4_X16_BYTES_S),
    preset("a100-40g", 312.0, 1555.0, 40_960, PCIE_4_X16_BYTES_S),
    preset("l40s-48g", 362.05, 864.0, 46_068, PCIE_4_X16_BYTES_S),
    preset("l4-24g", 121.0, 300.0, 23_034, PCIE_4_X16_BYTES_S),
    preset("rtx4090-24g", 165.2, 1008.0, 24_564, PCIE_4_X16_BYTES_S),
];

/// The preset called `name`.
pub fn by_name(name: &str) -> Result<&'static Hardware, UnknownName> {
    PRESETS.iter().find(|preset| preset.name == name).ok_or_else(|| UnknownName {
        kind: "hardware",
        name: name.into(),
        known: PRESETS.iter().map(|preset| preset.name).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_found_and_sane() {
        for preset in PRESETS {
            assert_eq!(by_name(preset.name).unwrap(), preset);
            let Efficiency { linear_flops, attention_flops, weight_bandwidth, kv_bandwidth } = preset.efficiency;
            for share in [linear_flops, attention_flops, weight_bandwidth, kv_bandwidth] {
                assert!(share > 0.0 && share <= 1.0, "{}", preset.name);
            }
            assert!(preset.host_link_bytes_s < preset.bandwidth_bytes_s / 10.0, "{}", preset.name);
            assert!((0.0..1e-3).contains(&preset.host_link_latency_s), "{}", preset.name);
            // The label in the name is in units of 2^30 bytes; no more than a tenth of it may be missing.
            let label_gib: u64 = preset.name.rsplit_once('-').unwrap().1.trim_end_matches('g').parse().unwrap();
            let share = preset.memory_bytes as f64 / (label_gib << 30) as f64;
            assert!((0.9..=1.0).contains(&share), "{}: {share}", preset.name);
        }
    }

    #[test]
    fn an_unknown_name_lists_what_there_is() {
        let message = by_name("tpu").unwrap_err().to_string();
        assert!(message.starts_with("unknown hardware 'tpu'; there are: h100-80g, h200-141g, "), "{message}");
    }
}
