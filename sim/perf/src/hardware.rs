//! Devices: peak rates, and the shares of the peaks reached by kernels.
//!
//! A TOML file describes a device: a preset from `sim/perf/hardware/`, built in, or a user's own file, such as calibration writes.
//! [`mod@file`] documents the fields.
//!
//! Peaks come from the vendors' data sheets: dense, with FP32 accumulation, without sparsity; each file names its source. Memory is
//! the total reported by the driver (`nvidia-smi`); ECC and firmware make the total slightly smaller than the label. Programs see
//! less still (`cudaMemGetInfo`), and that is what engines divide up: the presets have the figures of engines' logs and of out-of-memory messages.
//!
//! The host link is the rate of copies between pinned host memory and the device in common bandwidth tests, each direction, rather
//! than the label: PCIe 5.0 x16 (63 GB/s after line coding) 55 GB/s, PCIe 4.0 x16 (31.5 GB/s) 25 GB/s. Boards with a narrower slot
//! or a shared switch have less.
//!
//! The peer link is the rate of an all-reduce of 8 MiB over two to eight devices, counted as `2 (n - 1) / n` of its bytes: on A100,
//! H100 and H200 from aiconfigurator's measurements of vLLM's kernel (Apache-2.0 licence), elsewhere an assumption: twice the H100
//! on B200, a share of PCIe on boards without NVLink.
//!
//! The node link joins a device with those of other nodes. The presets have the label of the network of NVIDIA's DGX system, one port a device:
//! 25 GB/s on A100, 50 on H100, H200 and B200, and an assumed latency. Nobody measured it here.
//!
//! A file without efficiency factors gets [`Efficiency::ASSUMED`].

use std::path::Path;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use trunkline_sim_workload::UnknownName;

use crate::model::{Arithmetic, Bits, Model};

mod curve;
pub mod file;
mod step_errors;

pub use curve::{Curve, Piece};
pub use file::{HardwareError, parse};
pub use step_errors::{Residuals, StepErrors};

/// Device with its peaks, links and efficiency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hardware {
    /// Name of the preset or file.
    pub name: &'static str,
    /// Dense BF16 peak, FLOP/s.
    pub peak_flops_s: f64,
    /// Dense peaks of narrower arithmetic.
    pub narrow: NarrowPeaks,
    /// Memory bandwidth peak, bytes/s.
    pub bandwidth_bytes_s: f64,
    /// Memory of the device, and of its host.
    pub memory: DeviceMemory,
    /// Generation of the device as CUDA counts it, such as 9.0 for Hopper: engines lay weights out by it. `None` if the file does not say.
    pub compute_capability: Option<f64>,
    /// Rate of copies between host and device, each direction, bytes/s.
    pub host_link_bytes_s: f64,
    /// Latency of such a copy, independent of its size, seconds.
    pub host_link_latency_s: f64,
    /// Rate of an all-reduce among devices, bytes/s.
    pub peer_link_bytes_s: f64,
    /// Latency of an all-reduce, independent of its size, seconds.
    pub peer_link_latency_s: f64,
    /// `true` if the file has no peer link, and devices exchange over the host link.
    pub peers_use_host_link: bool,
    /// Devices that the peer link joins: those of a node.
    pub peer_devices: u32,
    /// Link of each device to those of other nodes; `None` if the file does not say.
    pub node_link: Option<NodeLink>,
    /// Number of multiprocessors of the device.
    pub processors: f64,
    /// Shares of the peaks reached by kernels.
    pub efficiency: Efficiency,
    /// Overhead of a step beyond arithmetic and memory, such as launches and the gap between steps, seconds.
    pub step_overhead_s: f64,
    /// Overhead of a layer, seconds.
    pub layer_overhead_s: f64,
    /// Measured errors of rooflines with these factors, by model and number of devices.
    pub errors: &'static [RooflineError],
    /// Measured step times with one model; `None` without a measurement.
    pub step_time: Option<StepTime>,
}

/// Dense peaks of products of 8 bits and of 4.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NarrowPeaks {
    /// FP8, FLOP/s; the BF16 peak on devices without it.
    pub float8_s: f64,
    /// INT8, operations/s; the FP8 peak if the file does not say.
    pub int8_s: f64,
    /// FP4, FLOP/s; `None` on devices without it, where weights of 4 bits are widened.
    pub float4_s: Option<f64>,
}

/// Memory of a device, and of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceMemory {
    /// Total that the driver reports (`nvidia-smi`), bytes.
    pub total_bytes: u64,
    /// Total that programs see (`cudaMemGetInfo`), which engines divide up, bytes: 0.3 to 0.75 GiB less than the driver's.
    pub usable_bytes: u64,
    /// Memory of the host that a replica can have, bytes; `None` if the file does not say.
    pub host_bytes: Option<u64>,
}

/// Link of a device to devices of other nodes, such as its own port of an InfiniBand network.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeLink {
    /// Rate in each direction, bytes/s.
    pub bytes_s: f64,
    /// Latency of an exchange, independent of its size, seconds.
    pub latency_s: f64,
}

/// Shares of the peaks, each above 0 and at most 1, and other properties of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Efficiency {
    /// Share of peak FLOP/s in matrix products with weights, in 16 bits.
    pub linear_flops: f64,
    /// The same in 8 and in 4 bits, of the peak for these, with the rounding of the activations.
    pub narrow_flops: f64,
    /// Share of peak FLOP/s in attention.
    pub attention_flops: f64,
    /// Share of peak bandwidth in reading weights.
    pub weight_bandwidth: f64,
    /// Share of peak bandwidth in reading KV for attention.
    pub kv_bandwidth: f64,
    /// Query rows computed per decode in an attention call shared with prefills. Prefill kernels work on tiles of rows, and a
    /// decode fills one row of a tile. 1 for kernels without such tiles.
    pub mixed_rows: f64,
}

/// Errors of a roofline for one model on some devices, against a table that its factors were not fitted to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RooflineError {
    /// Name of a model's preset.
    pub model: &'static str,
    /// Tensor parallelism: number of devices that share each layer.
    pub tensor: u32,
    /// Expert parallelism: number of devices with whole experts, 1 for slices of each.
    pub expert: u32,
    /// Reference of the comparison.
    pub against: &'static str,
    /// Errors by kind of batch.
    pub errors: StepErrors,
}

/// Step times of one model as a sum of terms, none of them negative.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTime {
    /// Name of the model served during the measurement.
    pub model: &'static str,
    /// Its [`Model::size`]; `None` for a file without one.
    pub model_bytes: Option<[u64; 2]>,
    /// Its spread over devices, as [`crate::cost::Parallel`] is written; empty for one device.
    pub parallel: &'static str,
    /// Time of every step, seconds.
    pub constant_s: f64,
    /// Time of the tokens run.
    pub tokens: Curve,
    /// Time of the sequences.
    pub sequences: Curve,
    /// Time per token of context read by decodes, seconds.
    pub context_token_s: f64,
    /// Time per token of context read by decodes alongside a prefill, in addition, seconds: some kernels run both as prefills.
    pub mixed_context_token_s: f64,
    /// Time per (query, key) pair of prefill attention, seconds.
    pub prefill_pair_s: f64,
    /// Largest steps of the measurement: times of larger ones are extrapolated. `None` if that is not known.
    pub largest: Option<Largest>,
    /// Reference of the errors.
    pub against: &'static str,
    /// Errors against steps left out of the fit.
    pub errors: StepErrors,
}

impl StepTime {
    /// Returns `true` if these are times of `model` spread like `parallel`.
    pub fn is_of(&self, model: &Model, parallel: &str) -> bool {
        let is_model = match self.model_bytes {
            Some(bytes) => bytes == model.size(),
            None => self.model == model.name,
        };
        is_model && (self.parallel == parallel || self.parallel.is_empty() && parallel == "tp1pp1")
    }
}

/// Largest steps of a measurement, or of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Largest {
    /// Most sequences in a step.
    pub sequences: u64,
    /// Most tokens run in a step.
    pub tokens: u64,
    /// Longest context of decodes, on average over a step, tokens. `None` if times beyond the measured ones are no less certain: what was fitted is
    /// linear in the context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u64>,
}

impl Largest {
    /// Returns the larger one of each number.
    #[must_use]
    pub fn or_larger(self, other: Self) -> Self {
        Self {
            sequences: self.sequences.max(other.sequences),
            tokens: self.tokens.max(other.tokens),
            context: self.context.max(other.context),
        }
    }

    /// Returns `true` if a step of the other is larger than any of these.
    pub fn is_exceeded_by(&self, other: &Self) -> bool {
        let context = self.context.is_some_and(|context| other.context > Some(context));
        other.sequences > self.sequences || other.tokens > self.tokens || context
    }
}

impl Efficiency {
    /// Factors for devices without a table of their own; files with fitted factors name their source. They come from closed forms
    /// fitted to published kernel timings, not to whole steps:
    ///
    /// * `linear_flops` 0.65: the slope of all linear operations of a layer over tokens in Vidur's profiles (MIT licence): A100 8B
    ///   0.67, A100 70B 0.71, H100 7B 0.64, H100 70B 0.66, A40 7B 0.72.
    /// * `narrow_flops` 0.45: the H100's, as much less as `linear_flops` is. On H100 and H200 it is the median of FP8 products, scaled by tensor
    ///   or by block, of more than 512 tokens with at least 16 million weights, in aiconfigurator's tables of vLLM 0.24.
    /// * `attention_flops` 0.40: prefill attention, A100, 32 query heads, same profiles (127 of 312 TFLOPS).
    /// * `weight_bandwidth` 0.70: the floor of the same linear operations at few tokens, A100 8B.
    /// * `kv_bandwidth` 0.78: decode attention, A100, 32 query and 8 KV heads, aiconfigurator's tables (Apache-2.0 licence): 1.60
    ///   of 2.04 TB/s.
    /// * `mixed_rows` 1: a table of mixed calls exists for one device only.
    pub const ASSUMED: Self = Self {
        linear_flops: 0.65,
        narrow_flops: 0.45,
        attention_flops: 0.40,
        weight_bandwidth: 0.70,
        kv_bandwidth: 0.78,
        mixed_rows: 1.0,
    };
}

impl Default for Efficiency {
    fn default() -> Self {
        Self::ASSUMED
    }
}

/// Share of the rate of 16-bit products that kernels reach if they widen the weights first, on data-centre boards from Hopper on: such kernels
/// multiply with `mma.sync`, which gets 62.9 % of the tensor cores there (arXiv 2402.13499).
const WIDENED: f64 = 0.629;
/// Compute capabilities of these boards.
const WIDENING_COSTS: std::ops::Range<f64> = 9.0..12.0;

impl Hardware {
    /// Returns the peak for products in `arithmetic`, FLOP/s.
    pub fn flops_s(&self, arithmetic: Arithmetic) -> f64 {
        match arithmetic {
            Arithmetic::Float8 => self.narrow.float8_s,
            Arithmetic::Int8 => self.narrow.int8_s,
            Arithmetic::Float4 => self.narrow.float4_s.unwrap_or(self.peak_flops_s),
            Arithmetic::Bits16 => self.peak_flops_s,
        }
    }

    /// Returns the rate that kernels reach in products in `arithmetic` with weights of so many bits, FLOP/s.
    pub fn linear_flops_s(&self, arithmetic: Arithmetic, weights: Bits) -> f64 {
        let (peak, e) = (self.flops_s(arithmetic), self.efficiency);
        if arithmetic != Arithmetic::Bits16 && peak > self.peak_flops_s {
            return peak * e.narrow_flops;
        }
        let is_slow = self.compute_capability.is_some_and(|it| WIDENING_COSTS.contains(&it));
        let widened = if is_slow && weights.bytes_each() < 1.0 { WIDENED } else { 1.0 };
        peak * e.linear_flops * widened
    }
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        [$(include_str!(concat!("../hardware/", $name, ".toml"))),*]
    };
}

/// Files of all presets, in the order of their listing.
const FILES: &[&str] = &presets![
    "h100-80g",
    "h200-141g",
    "b200-180g",
    "a100-80g",
    "a100-40g",
    "l40s-48g",
    "l4-24g",
    "rtx4090-24g",
    "rtx3090-24g",
    "rtx5090-32g",
    "rtxpro6000-96g",
];

static PRESETS: LazyLock<Vec<Hardware>> =
    LazyLock::new(|| FILES.iter().map(|text| parse(text).expect("a built-in file is right")).collect());

/// Returns all presets, built into the program.
pub fn presets() -> &'static [Hardware] {
    &PRESETS
}

/// Returns the preset called `name`.
///
/// # Errors
///
/// [`UnknownName`] with the known presets.
pub fn by_name(name: &str) -> Result<&'static Hardware, UnknownName> {
    presets().iter().find(|preset| preset.name == name).ok_or_else(|| UnknownName {
        kind: "hardware",
        name: name.into(),
        known: presets().iter().map(|preset| preset.name).collect(),
    })
}

/// Returns the preset called `text`, or reads the TOML file at the path `text`.
///
/// # Errors
///
/// [`HardwareError`] for an unknown preset, or an unreadable or invalid file.
pub fn find(text: &str) -> Result<Hardware, HardwareError> {
    if text.ends_with(".toml") {
        return file::load(Path::new(text));
    }
    Ok(*by_name(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_found_and_sane() {
        for preset in presets() {
            assert_eq!(by_name(preset.name).unwrap(), preset);
            assert!(preset.host_link_bytes_s < preset.bandwidth_bytes_s / 10.0, "{}", preset.name);
            assert!((0.0..1e-3).contains(&preset.host_link_latency_s), "{}", preset.name);
            // The label in the name is in units of 2^30 bytes; no more than a tenth of it may be missing.
            let label_gib: u64 = preset.name.rsplit_once('-').unwrap().1.trim_end_matches('g').parse().unwrap();
            let share = preset.memory.total_bytes as f64 / (label_gib << 30) as f64;
            assert!((0.9..=1.0).contains(&share), "{}: {share}", preset.name);
            let hidden_mib = (preset.memory.total_bytes - preset.memory.usable_bytes) >> 20;
            assert!((250..800).contains(&hidden_mib), "{}: {hidden_mib}", preset.name);
            assert!(preset.compute_capability.is_some_and(|it| (8.0..=12.0).contains(&it)), "{}", preset.name);
        }
    }

    #[test]
    fn kernels_reach_rates_by_arithmetic_bits_and_generation() {
        let rate = |device: &str, arithmetic, bits| by_name(device).unwrap().linear_flops_s(arithmetic, bits) / 1e12;
        let near = |found: f64, expected: f64| assert!((found / expected - 1.0).abs() < 1e-9, "{found} {expected}");
        let (whole, eight, four) = (Bits::each(16), Bits::each(8), Bits::grouped(4, 8, 32));
        near(rate("h200-141g", Arithmetic::Bits16, whole), 989.4 * 0.713);
        near(rate("h200-141g", Arithmetic::Float8, eight), 1978.9 * 0.505);
        near(rate("h200-141g", Arithmetic::Bits16, four), 989.4 * 0.713 * 0.629);
        near(rate("h200-141g", Arithmetic::Float4, four), 989.4 * 0.713 * 0.629);
        near(rate("b200-180g", Arithmetic::Float4, four), 9000.0 * 0.45);
        // Without FP8 weights are widened, which costs nothing before Hopper.
        near(rate("a100-80g", Arithmetic::Float8, eight), 312.0 * 0.675);
        near(rate("a100-80g", Arithmetic::Bits16, four), 312.0 * 0.675);
        near(rate("rtx5090-32g", Arithmetic::Bits16, four), 209.5 * 0.65);
    }

    #[test]
    fn an_unknown_name_lists_what_there_is() {
        let message = by_name("tpu").unwrap_err().to_string();
        assert!(message.starts_with("unknown hardware 'tpu'; there are: h100-80g, h200-141g, "), "{message}");
        assert_eq!(find("tpu").unwrap_err().to_string(), message);
        assert_eq!(find("l4-24g").unwrap(), *by_name("l4-24g").unwrap());
    }
}
