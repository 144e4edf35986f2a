//! Hardware: what a device can do at best, and what share of it kernels reach.
//!
//! A device is described by a TOML file: a preset, all of which are in `sim/hardware/` and built in, or a file of the user's, such as
//! [`trunkline_sim_replay::calibrate`] writes. [`mod@file`] says what is in one.
//!
//! Peaks are those of the vendor's data sheets: dense, with FP32 accumulation, without sparsity; each file names its source. Memory is
//! what the driver reports as total (`nvidia-smi`), which is what an engine divides up; it is a little less than the label where ECC or
//! firmware takes a share.
//!
//! The link to the host is what copies between pinned host memory and the device commonly reach in bandwidth tests, each direction,
//! not the label: PCIe 5.0 x16 (63 GB/s after line coding) 55 GB/s, PCIe 4.0 x16 (31.5 GB/s) 25 GB/s. Boards with a narrower slot, or
//! that share a switch, have less.
//!
//! The link to peers is what an all-reduce of 8 MiB over two to eight devices reaches, counted as `2 (n - 1) / n` of its bytes: on
//! A100, H100 and H200 from aiconfigurator's measurements of vLLM's kernel (Apache-2.0 licence), else an assumption: twice the H100 on
//! B200, a share of PCIe on boards without NVLink.
//!
//! Factors that a file does not give are those of [`Efficiency::ASSUMED`].

use std::path::Path;
use std::sync::LazyLock;

use trunkline_sim_workload::UnknownName;

pub mod file;

pub use file::{HardwareError, parse};

/// A device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hardware {
    /// The preset's name.
    pub name: &'static str,
    /// Dense BF16 peak, FLOP/s.
    pub peak_flops_s: f64,
    /// Dense FP8 peak, FLOP/s; that of BF16 if the device has none.
    pub fp8_flops_s: f64,
    /// Memory bandwidth peak, bytes/s.
    pub bandwidth_bytes_s: f64,
    /// Memory, bytes.
    pub memory_bytes: u64,
    /// What copies between host and device reach, each direction, bytes/s.
    pub host_link_bytes_s: f64,
    /// Time of such a copy that does not depend on its size, seconds.
    pub host_link_latency_s: f64,
    /// What an all-reduce among devices reaches, bytes/s.
    pub peer_link_bytes_s: f64,
    /// Time of an all-reduce that does not depend on its size, seconds.
    pub peer_link_latency_s: f64,
    /// Multiprocessors.
    pub processors: f64,
    /// The shares of the peaks that kernels reach.
    pub efficiency: Efficiency,
    /// Time of a step that is neither arithmetic nor memory: launches, the gap between steps. Seconds.
    pub step_overhead_s: f64,
    /// The same of a layer, seconds.
    pub layer_overhead_s: f64,
    /// How far `step_time`, or else a roofline with these factors, is from measurements, if that is known.
    pub fit: Option<Fit>,
    /// What steps take on this device with one model, if they were measured.
    pub step_time: Option<StepTime>,
}

/// Shares of the peaks, each above 0 and at most 1, and what else kernels are like.
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
    /// Rows of queries that a call of attention computes for a decode if it computes prefills too: kernels for prefills work on tiles of
    /// rows, all but one of which are empty then. 1 if they do not.
    pub mixed_rows: f64,
}

/// How far a model is from measured steps: the relative error of a step's time, without its sign.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// What it was compared with.
    pub against: &'static str,
    /// Half of the steps are nearer than this.
    pub median_error: f64,
    /// Of 100 steps 95 are nearer than this.
    pub p95_error: f64,
}

/// What a step takes: the sum of these times what it has of each. None is below 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepTime {
    /// The model that was served.
    pub model: &'static str,
    /// Every step, seconds.
    pub constant_s: f64,
    /// Each token run, seconds.
    pub token_s: f64,
    /// Each sequence, seconds.
    pub sequence_s: f64,
    /// Each token of context that decodes read, seconds.
    pub context_token_s: f64,
    /// Each pair of a prefill's token and one it attends to, seconds.
    pub prefill_pair_s: f64,
}

impl Fit {
    /// For the names of cost models, which reports carry.
    pub fn describe(fit: Option<Self>) -> String {
        match fit {
            None => "error not measured".into(),
            Some(Self { against, median_error, p95_error }) => {
                let (median, p95) = (100.0 * median_error, 100.0 * p95_error);
                format!("median error {median:.1} %, p95 {p95:.1} % against {against}")
            }
        }
    }
}

impl Efficiency {
    /// For devices without a table of their own; the others' files say what was fitted to theirs. From closed forms fitted to published
    /// kernel timings, not to whole steps:
    ///
    /// * `linear_flops` 0.65: the slope of all linear operations of a layer over tokens in Vidur's profiles (MIT licence):
    ///   A100 8B 0.67, A100 70B 0.71, H100 7B 0.64, H100 70B 0.66, A40 7B 0.72.
    /// * `attention_flops` 0.40: prefill attention, A100, 32 query heads, the same profiles (127 of 312 TFLOPS).
    /// * `weight_bandwidth` 0.70: the floor of the same linear operations at few tokens, A100 8B.
    /// * `kv_bandwidth` 0.78: decode attention, A100, 32 query and 8 KV heads, aiconfigurator's tables (Apache-2.0 licence):
    ///   1.60 of 2.04 TB/s.
    /// * `mixed_rows` 1: of calls that mix there is a table for one device only.
    pub const ASSUMED: Self =
        Self { linear_flops: 0.65, attention_flops: 0.40, weight_bandwidth: 0.70, kv_bandwidth: 0.78, mixed_rows: 1.0 };
}

impl Hardware {
    /// The peak for weights of so many bytes an element, FLOP/s.
    pub fn flops_s(&self, dtype_bytes: u64) -> f64 {
        match dtype_bytes {
            0 | 1 => self.fp8_flops_s,
            2 => self.peak_flops_s,
            // No preset's data sheet has a greater one for 32 bits: TF32 takes half of the BF16 rate.
            _ => self.peak_flops_s / 2.0,
        }
    }
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        [$(include_str!(concat!("../hardware/", $name, ".toml"))),*]
    };
}

/// The files of all presets, in the order they are listed.
const FILES: &[&str] = &presets![
    "h100-80g",
    "h200-141g",
    "b200-180g",
    "a100-80g",
    "a100-40g",
    "l40s-48g",
    "l4-24g",
    "rtx4090-24g",
    "rtxpro6000-96g",
];

static PRESETS: LazyLock<Vec<Hardware>> =
    LazyLock::new(|| FILES.iter().map(|text| parse(text).expect("a built-in file is right")).collect());

/// All presets.
pub fn presets() -> &'static [Hardware] {
    &PRESETS
}

/// The preset called `name`.
pub fn by_name(name: &str) -> Result<&'static Hardware, UnknownName> {
    presets().iter().find(|preset| preset.name == name).ok_or_else(|| UnknownName {
        kind: "hardware",
        name: name.into(),
        known: presets().iter().map(|preset| preset.name).collect(),
    })
}

/// The preset called `text`, or what the file `text` says if it is the name of a TOML file.
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
            let share = preset.memory_bytes as f64 / (label_gib << 30) as f64;
            assert!((0.9..=1.0).contains(&share), "{}: {share}", preset.name);
        }
    }

    #[test]
    fn an_unknown_name_lists_what_there_is() {
        let message = by_name("tpu").unwrap_err().to_string();
        assert!(message.starts_with("unknown hardware 'tpu'; there are: h100-80g, h200-141g, "), "{message}");
        assert_eq!(find("tpu").unwrap_err().to_string(), message);
        assert_eq!(find("l4-24g").unwrap(), *by_name("l4-24g").unwrap());
    }
}
