//! The file that describes a device.
//!
//! ```toml
//! name = "h100-80g"
//! source = "the vendor's data sheet"  # for people
//! bf16_tflops = 989.4                 # dense
//! fp8_tflops = 1978.9                 # dense; optional, else the BF16 rate
//! int8_tops = 1978.9                  # dense; optional, else the FP8 rate
//! fp4_tflops = 9000.0                 # dense; only of devices that multiply 4 bits
//! memory_gb_s = 3350.0
//! memory_mib = 81559                  # as nvidia-smi says
//! usable_mib = 81080                  # as programs see it; optional, else 512 less
//! compute_capability = 9.0            # optional; engines lay MXFP4 weights out by it
//! host_memory_mib = 65536             # of the host, for each replica; optional: weights and KV there are checked against it
//! processors = 132                    # multiprocessors
//!
//! [host_link]                         # copies between host and device, each direction
//! gb_s = 55.0
//! latency_us = 10.0
//!
//! [peer_link]                         # all-reduces among devices; optional, else the host link's
//! gb_s = 240.0
//! latency_us = 6.0
//! devices = 8                         # devices that it joins, those of a node; optional, else 8
//!
//! [node_link]                         # of each device to those of other nodes; optional, else as if the peer link joined all
//! gb_s = 50.0
//! latency_us = 25.0
//!
//! [efficiency]                        # shares of the peaks that kernels reach; each is optional
//! linear_flops = 0.65                 # of products in 16 bits
//! narrow_flops = 0.45                 # of products in 8 and in 4 bits
//! attention_flops = 0.4
//! weight_bandwidth = 0.7
//! kv_bandwidth = 0.78
//! mixed_rows = 1.0                    # rows computed for a decode alongside prefills
//!
//! [overhead]                          # optional
//! step_us = 100.0
//! layer_us = 15.0
//!
//! [roofline_error]                    # of the roofline, against measurements that these factors were not fitted to; optional
//! against = "which measurements"
//! of = [                              # median, 95th percentile and bias by kind of batch; each is optional
//!     { model = "llama-3.1-8b", tensor = 1, prefill = [0.05, 0.12, 0.01], decode = [0.04, 0.1, 0.0], mixed = [0.05, 0.13, -0.01] },
//!     { model = "mixtral-8x7b", tensor = 2, expert = 2, decode = [0.1, 0.2, 0.0] },  # whole experts on each; slices without it
//! ]
//!
//! [step_time]                         # what steps of one model take here; optional; made by calibration
//! model = "llama-3.1-8b"
//! model_bytes = [16060522496, 131072] # of its weights, and of the KV of a token in 16 bits: it is known by them under any name; optional
//! parallel = "tp2pp1"                 # optional, else one device
//! constant_us = 180.0                 # each step
//! token_us = 21.0                     # each token run
//! sequence_us = [[0, 4.0], [8, 6.5]]  # each sequence in the step: 4 us up to 8 of them, 6.5 us beyond; token_us can be such a list, too
//! context_token_ns = 40.0             # each token of context that decodes read
//! mixed_context_token_ns = 70.0       # the same alongside a prefill, in addition; optional
//! prefill_pair_ns = 0.9               # each pair of a prefill's token and one it attends to
//! largest = { sequences = 64, tokens = 2048 }  # largest steps measured; optional
//!
//! [step_time.error]                   # against steps left out of the fit; optional
//! against = "which steps"
//! decode = [0.02, 0.05, -0.01]
//! ```

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use trunkline_quote::of_parser;

use super::{
    Curve, DeviceMemory, Efficiency, Hardware, Largest, NarrowPeaks, NodeLink, Piece, Residuals, RooflineError,
    StepErrors, StepTime,
};
use trunkline_sim_workload::UnknownName;

/// Default overhead of a step: launches and the gap between steps. An assumption, not a measurement.
const STEP_OVERHEAD_US: f64 = 100.0;
/// Default overhead of an attention call: 13 to 17 us in fits to decode attention on A100, RTX 4090 and RTX PRO 6000.
const LAYER_OVERHEAD_US: f64 = 15.0;
/// Memory that programs do not see, if the file does not say: 346 to 768 MiB on eleven boards.
const HIDDEN_MIB: u64 = 512;
/// Pieces of a curve, one for each doubling of its number.
const PIECES_MAX: usize = 64;
/// Largest number in a file, in the units of the file: a thousand times the greatest of today.
const NUMBER_MAX: f64 = 1e9;

/// Failure to load a device.
#[derive(Debug, thiserror::Error)]
pub enum HardwareError {
    /// Name of no known preset.
    #[error(transparent)]
    UnknownName(#[from] UnknownName),
    /// File cannot be read.
    #[error("{}: cannot be read: {fault}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        fault: std::io::Error,
    },
    /// Fault in a file.
    #[error("{}: {fault}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Fault found at that place.
        fault: Box<Self>,
    },
    /// Invalid TOML, or a missing or unknown field.
    #[error("not a description of a device: {0}")]
    Malformed(String),
    /// Number out of range.
    #[error("{field} is {value}; it must be {expected}")]
    OutOfRange {
        /// Name of the field.
        field: &'static str,
        /// Value as found in the input.
        value: f64,
        /// Permitted values, in words.
        expected: &'static str,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    source: String,
    bf16_tflops: f64,
    fp8_tflops: Option<f64>,
    int8_tops: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    fp4_tflops: Option<f64>,
    memory_gb_s: f64,
    memory_mib: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    usable_mib: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    compute_capability: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_memory_mib: Option<u64>,
    processors: u32,
    host_link: LinkFile,
    peer_link: Option<PeerLinkFile>,
    node_link: Option<LinkFile>,
    #[serde(default)]
    efficiency: Efficiency,
    #[serde(default)]
    overhead: OverheadFile,
    roofline_error: Option<RooflineErrorFile>,
    step_time: Option<StepTimeFile>,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkFile {
    gb_s: f64,
    latency_us: f64,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PeerLinkFile {
    gb_s: f64,
    latency_us: f64,
    #[serde(default = "eight")]
    devices: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct OverheadFile {
    step_us: f64,
    layer_us: f64,
}

impl Default for OverheadFile {
    fn default() -> Self {
        Self { step_us: STEP_OVERHEAD_US, layer_us: LAYER_OVERHEAD_US }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RooflineErrorFile {
    against: String,
    of: Vec<ModelErrorFile>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ModelErrorFile {
    model: String,
    tensor: u32,
    #[serde(default = "one", skip_serializing_if = "is_one")]
    expert: u32,
    prefill: Option<[f64; 3]>,
    decode: Option<[f64; 3]>,
    mixed: Option<[f64; 3]>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepErrorFile {
    against: String,
    prefill: Option<[f64; 3]>,
    decode: Option<[f64; 3]>,
    mixed: Option<[f64; 3]>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StepTimeFile {
    model: String,
    /// Bytes of the weights, and of the KV of a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    model_bytes: Option<[u64; 2]>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    parallel: String,
    constant_us: f64,
    token_us: CurveFile,
    sequence_us: CurveFile,
    context_token_ns: f64,
    #[serde(default)]
    mixed_context_token_ns: f64,
    prefill_pair_ns: f64,
    largest: Option<Largest>,
    error: Option<StepErrorFile>,
}

/// Pieces of a [`Curve`]: where each begins, and microseconds.
#[derive(Serialize)]
struct CurveFile(Vec<(u64, f64)>);

fn one() -> u32 {
    1
}

fn eight() -> u32 {
    8
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_one(n: &u32) -> bool {
    *n == 1
}

/// Errors of the kinds of batch: prefills, decodes, both.
type KindsFile = [Option<[f64; 3]>; 3];

fn errors([prefill, decode, mixed]: KindsFile) -> StepErrors {
    let of = |figures: Option<[f64; 3]>| figures.map(|[median, p95, bias]| Residuals { median, p95, bias });
    StepErrors { prefill: of(prefill), decode: of(decode), mixed: of(mixed) }
}

fn kinds(StepErrors { prefill, decode, mixed }: StepErrors) -> KindsFile {
    [prefill, decode, mixed].map(|errors| errors.map(|Residuals { median, p95, bias }| [median, p95, bias]))
}

impl RooflineErrorFile {
    fn errors(self) -> &'static [RooflineError] {
        let against: &'static str = self.against.leak();
        let of = |ModelErrorFile { model, tensor, expert, prefill, decode, mixed }: ModelErrorFile| {
            let errors = errors([prefill, decode, mixed]);
            RooflineError { model: model.leak(), tensor, expert, against, errors }
        };
        self.of.into_iter().map(of).collect::<Vec<_>>().leak()
    }

    fn of(errors: &[RooflineError]) -> Option<Self> {
        let of = |error: &RooflineError| {
            let [prefill, decode, mixed] = kinds(error.errors);
            ModelErrorFile {
                model: error.model.into(),
                tensor: error.tensor,
                expert: error.expert,
                prefill,
                decode,
                mixed,
            }
        };
        Some(Self { against: errors.first()?.against.into(), of: errors.iter().map(of).collect() })
    }

    /// Returns all figures of the file.
    fn figures(&self) -> impl Iterator<Item = [f64; 3]> {
        self.of.iter().flat_map(|of| [of.prefill, of.decode, of.mixed]).flatten()
    }
}

impl StepTimeFile {
    fn step_time(self) -> StepTime {
        let (against, errors): (&'static str, _) = match self.error {
            Some(error) => (error.against.leak(), errors([error.prefill, error.decode, error.mixed])),
            None => ("", StepErrors::default()),
        };
        StepTime {
            model: self.model.leak(),
            model_bytes: self.model_bytes,
            parallel: self.parallel.leak(),
            constant_s: self.constant_us / 1e6,
            tokens: self.token_us.curve(),
            sequences: self.sequence_us.curve(),
            context_token_s: self.context_token_ns / 1e9,
            mixed_context_token_s: self.mixed_context_token_ns / 1e9,
            prefill_pair_s: self.prefill_pair_ns / 1e9,
            largest: self.largest,
            against,
            errors,
        }
    }

    /// Returns all figures of the errors.
    fn figures(&self) -> impl Iterator<Item = [f64; 3]> {
        self.error.iter().flat_map(|error| [error.prefill, error.decode, error.mixed]).flatten()
    }
}

impl CurveFile {
    fn curve(self) -> Curve {
        Curve::new(self.0.into_iter().map(|(from, us)| Piece { from, each_s: us / 1e6 }).collect())
    }

    fn of(curve: Curve) -> Self {
        Self(curve.0.iter().map(|piece| (piece.from, piece.each_s * 1e6)).collect())
    }
}

/// Reads a number, for a straight line, or a list of pieces.
impl<'de> Deserialize<'de> for CurveFile {
    fn deserialize<D: Deserializer<'de>>(file: D) -> Result<Self, D::Error> {
        struct Pieces;

        impl<'de> Visitor<'de> for Pieces {
            type Value = CurveFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("microseconds, or a list of [FROM, MICROSECONDS]")
            }

            fn visit_f64<E: Error>(self, us: f64) -> Result<CurveFile, E> {
                Ok(CurveFile(vec![(0, us)]))
            }

            fn visit_i64<E: Error>(self, us: i64) -> Result<CurveFile, E> {
                self.visit_f64(us as f64)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<CurveFile, A::Error> {
                let mut pieces = Vec::new();
                while let Some(piece) = list.next_element()? {
                    pieces.push(piece);
                }
                Ok(CurveFile(pieces))
            }
        }

        file.deserialize_any(Pieces)
    }
}

impl StepErrorFile {
    fn of(time: &StepTime) -> Option<Self> {
        let [prefill, decode, mixed] = kinds(time.errors);
        (!time.errors.is_empty()).then(|| Self { against: time.against.into(), prefill, decode, mixed })
    }
}

/// Reads the file at `path`.
///
/// # Errors
///
/// [`HardwareError`] if the file cannot be read or is invalid.
pub fn load(path: &Path) -> Result<Hardware, HardwareError> {
    let text = std::fs::read_to_string(path).map_err(|fault| HardwareError::Unreadable { path: path.into(), fault })?;
    parse(&text).map_err(|fault| HardwareError::File { path: path.into(), fault: fault.into() })
}

/// Parses the text of a file. Names stay in memory for the life of the program.
///
/// # Errors
///
/// [`HardwareError`] if the text is invalid.
pub fn parse(text: &str) -> Result<Hardware, HardwareError> {
    let file: File = toml::from_str(text).map_err(|fault| {
        // What is missing is missing in no line.
        let line = fault.span().filter(|span| span.start > 0).map(|span| text[..span.start].lines().count());
        let place = line.map_or(String::new(), |line| format!("line {line}: "));
        HardwareError::Malformed(format!("{place}{}", of_parser(&fault.message().replace('\n', " "))))
    })?;
    file.check()?;
    Ok(file.hardware())
}

/// Returns the text of a file with the description of `hardware`.
pub fn to_toml(hardware: &Hardware) -> String {
    // Strings, numbers and tables of them, which always serialise.
    toml::to_string(&File::of(hardware)).expect("a device serialises")
}

impl File {
    fn check(&self) -> Result<(), HardwareError> {
        let out = |field, value, expected| Err(HardwareError::OutOfRange { field, value, expected });
        let peer_link = self.peer_link();
        let peaks = [
            ("bf16_tflops", self.bf16_tflops),
            ("fp8_tflops", self.fp8_tflops.unwrap_or(1.0)),
            ("int8_tops", self.int8_tops.unwrap_or(1.0)),
            ("fp4_tflops", self.fp4_tflops.unwrap_or(1.0)),
            ("memory_gb_s", self.memory_gb_s),
            ("memory_mib", self.memory_mib as f64),
            ("usable_mib", self.usable_mib.map_or(1.0, |mib| mib as f64)),
            ("compute_capability", self.compute_capability.unwrap_or(1.0)),
            ("host_memory_mib", self.host_memory_mib.map_or(1.0, |mib| mib as f64)),
            ("processors", f64::from(self.processors)),
            ("efficiency.mixed_rows", self.efficiency.mixed_rows),
            ("host_link.gb_s", self.host_link.gb_s),
            ("peer_link.gb_s", peer_link.gb_s),
            ("peer_link.devices", f64::from(peer_link.devices)),
            ("node_link.gb_s", self.node_link.map_or(1.0, |link| link.gb_s)),
        ];
        if let Some((field, value)) = peaks.into_iter().find(|(_, value)| !(*value > 0.0 && *value < NUMBER_MAX)) {
            return out(field, value, "above 0 and below a billion");
        }
        if let Some(mib) = self.usable_mib.filter(|mib| *mib > self.memory_mib) {
            return out("usable_mib", mib as f64, "at most memory_mib");
        }
        let shares = [
            ("efficiency.linear_flops", self.efficiency.linear_flops),
            ("efficiency.narrow_flops", self.efficiency.narrow_flops),
            ("efficiency.attention_flops", self.efficiency.attention_flops),
            ("efficiency.weight_bandwidth", self.efficiency.weight_bandwidth),
            ("efficiency.kv_bandwidth", self.efficiency.kv_bandwidth),
        ];
        if let Some((field, value)) = shares.into_iter().find(|(_, value)| !(*value > 0.0 && *value <= 1.0)) {
            return out(field, value, "above 0 and at most 1");
        }
        let mut times = vec![
            ("host_link.latency_us", self.host_link.latency_us),
            ("peer_link.latency_us", peer_link.latency_us),
            ("node_link.latency_us", self.node_link.map_or(0.0, |link| link.latency_us)),
            ("overhead.step_us", self.overhead.step_us),
            ("overhead.layer_us", self.overhead.layer_us),
        ];
        if let Some(time) = &self.step_time {
            times.extend([
                ("step_time.constant_us", time.constant_us),
                ("step_time.context_token_ns", time.context_token_ns),
                ("step_time.mixed_context_token_ns", time.mixed_context_token_ns),
                ("step_time.prefill_pair_ns", time.prefill_pair_ns),
            ]);
            times.extend(time.token_us.0.iter().map(|(_, us)| ("step_time.token_us", *us)));
            times.extend(time.sequence_us.0.iter().map(|(_, us)| ("step_time.sequence_us", *us)));
        }
        if let Some((field, value)) = times.into_iter().find(|(_, value)| !(0.0..NUMBER_MAX).contains(value)) {
            return out(field, value, "at least 0 and below a billion");
        }
        self.check_curves()?;
        self.check_errors()
    }

    fn check_curves(&self) -> Result<(), HardwareError> {
        let curves = self
            .step_time
            .iter()
            .flat_map(|time| [("step_time.token_us", &time.token_us), ("step_time.sequence_us", &time.sequence_us)]);
        for (field, CurveFile(pieces)) in curves {
            if pieces.len() > PIECES_MAX {
                let expected = "pieces, 64 at most";
                return Err(HardwareError::OutOfRange { field, value: pieces.len() as f64, expected });
            }
            let mut below = None;
            for (from, _) in pieces {
                if below.map_or(*from != 0, |below| *from <= below) {
                    let expected = "the beginning of a piece: 0 for the first, and rising";
                    return Err(HardwareError::OutOfRange { field, value: *from as f64, expected });
                }
                below = Some(*from);
            }
        }
        Ok(())
    }

    fn check_errors(&self) -> Result<(), HardwareError> {
        let of_roofline = self.roofline_error.iter().flat_map(RooflineErrorFile::figures);
        let of_steps = self.step_time.iter().flat_map(StepTimeFile::figures);
        let all = of_roofline.map(|it| ("roofline_error", it)).chain(of_steps.map(|it| ("step_time.error", it)));
        for (field, [median, p95, bias]) in all {
            let fault = [median, p95, bias.abs()].into_iter().find(|value| !(0.0..NUMBER_MAX).contains(value));
            if let Some(value) = fault {
                let expected = "a median and a 95th percentile of at least 0, and a bias";
                return Err(HardwareError::OutOfRange { field, value, expected });
            }
        }
        Ok(())
    }

    /// Returns the link among devices: by default that to the host.
    fn peer_link(&self) -> PeerLinkFile {
        let LinkFile { gb_s, latency_us } = self.host_link;
        self.peer_link.unwrap_or(PeerLinkFile { gb_s, latency_us, devices: eight() })
    }

    fn hardware(self) -> Hardware {
        let (peer_link, peers_use_host_link) = (self.peer_link(), self.peer_link.is_none());
        let fp8_tflops = self.fp8_tflops.unwrap_or(self.bf16_tflops);
        Hardware {
            name: self.name.leak(),
            peak_flops_s: self.bf16_tflops * 1e12,
            narrow: NarrowPeaks {
                float8_s: fp8_tflops * 1e12,
                int8_s: self.int8_tops.unwrap_or(fp8_tflops) * 1e12,
                float4_s: self.fp4_tflops.map(|tflops| tflops * 1e12),
            },
            bandwidth_bytes_s: self.memory_gb_s * 1e9,
            memory: DeviceMemory {
                total_bytes: self.memory_mib << 20,
                usable_bytes: self.usable_mib.unwrap_or(self.memory_mib.saturating_sub(HIDDEN_MIB)) << 20,
                host_bytes: self.host_memory_mib.map(|mib| mib << 20),
            },
            compute_capability: self.compute_capability,
            host_link_bytes_s: self.host_link.gb_s * 1e9,
            host_link_latency_s: self.host_link.latency_us / 1e6,
            peer_link_bytes_s: peer_link.gb_s * 1e9,
            peer_link_latency_s: peer_link.latency_us / 1e6,
            peers_use_host_link,
            peer_devices: peer_link.devices,
            node_link: self
                .node_link
                .map(|LinkFile { gb_s, latency_us }| NodeLink { bytes_s: gb_s * 1e9, latency_s: latency_us / 1e6 }),
            processors: f64::from(self.processors),
            efficiency: self.efficiency,
            step_overhead_s: self.overhead.step_us / 1e6,
            layer_overhead_s: self.overhead.layer_us / 1e6,
            errors: self.roofline_error.map_or(&[], RooflineErrorFile::errors),
            step_time: self.step_time.map(StepTimeFile::step_time),
        }
    }

    fn of(hardware: &Hardware) -> Self {
        let link = |bytes_s: f64, latency_s: f64| LinkFile { gb_s: bytes_s / 1e9, latency_us: latency_s * 1e6 };
        Self {
            name: hardware.name.into(),
            source: String::new(),
            bf16_tflops: hardware.peak_flops_s / 1e12,
            fp8_tflops: Some(hardware.narrow.float8_s / 1e12),
            int8_tops: Some(hardware.narrow.int8_s / 1e12),
            fp4_tflops: hardware.narrow.float4_s.map(|flops_s| flops_s / 1e12),
            memory_gb_s: hardware.bandwidth_bytes_s / 1e9,
            memory_mib: hardware.memory.total_bytes >> 20,
            usable_mib: Some(hardware.memory.usable_bytes >> 20),
            compute_capability: hardware.compute_capability,
            host_memory_mib: hardware.memory.host_bytes.map(|bytes| bytes >> 20),
            host_link: link(hardware.host_link_bytes_s, hardware.host_link_latency_s),
            peer_link: (!hardware.peers_use_host_link).then(|| PeerLinkFile {
                gb_s: hardware.peer_link_bytes_s / 1e9,
                latency_us: hardware.peer_link_latency_s * 1e6,
                devices: hardware.peer_devices,
            }),
            node_link: hardware.node_link.map(|NodeLink { bytes_s, latency_s }| link(bytes_s, latency_s)),
            processors: hardware.processors as u32,
            efficiency: hardware.efficiency,
            overhead: OverheadFile {
                step_us: hardware.step_overhead_s * 1e6,
                layer_us: hardware.layer_overhead_s * 1e6,
            },
            roofline_error: RooflineErrorFile::of(hardware.errors),
            step_time: hardware.step_time.map(|time| StepTimeFile {
                model: time.model.into(),
                model_bytes: time.model_bytes,
                parallel: time.parallel.into(),
                constant_us: time.constant_s * 1e6,
                token_us: CurveFile::of(time.tokens),
                sequence_us: CurveFile::of(time.sequences),
                context_token_ns: time.context_token_s * 1e9,
                mixed_context_token_ns: time.mixed_context_token_s * 1e9,
                prefill_pair_ns: time.prefill_pair_s * 1e9,
                largest: time.largest,
                error: StepErrorFile::of(&time),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardware::presets;

    const LEAST: &str = "name = 'x'\nbf16_tflops = 100\nmemory_gb_s = 1000\nmemory_mib = 8192\nprocessors = 9\n\
                         host_link = { gb_s = 10, latency_us = 5 }\n";

    #[test]
    fn a_device_survives_being_written_and_read() {
        let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-12;
        for preset in presets() {
            let read = parse(&to_toml(preset)).unwrap();
            assert_eq!((read.name, read.memory, read.errors), (preset.name, preset.memory, preset.errors));
            assert_eq!(read.compute_capability, preset.compute_capability);
            assert!(near(read.peak_flops_s, preset.peak_flops_s) && near(read.narrow.float8_s, preset.narrow.float8_s));
            assert!(near(read.narrow.int8_s, preset.narrow.int8_s) && read.peer_devices == preset.peer_devices);
            assert_eq!(read.narrow.float4_s, preset.narrow.float4_s);
            assert!(near(read.bandwidth_bytes_s, preset.bandwidth_bytes_s));
            let link =
                |device: &Hardware| device.node_link.map(|link| (link.bytes_s.round(), (link.latency_s * 1e9).round()));
            assert_eq!(link(&read), link(preset));
            assert_eq!(read.efficiency, preset.efficiency);
        }
    }

    #[test]
    fn what_is_left_out_is_assumed() {
        let least = parse(LEAST).unwrap();
        assert_eq!(least.efficiency, Efficiency::ASSUMED);
        assert_eq!((least.narrow.float8_s, least.narrow.int8_s, least.peer_link_bytes_s), (1e14, 1e14, 1e10));
        assert_eq!((least.peer_devices, least.errors, least.node_link), (8, &[][..], None));
        assert!(least.peers_use_host_link && parse(&to_toml(&least)).unwrap().peers_use_host_link);
        assert!(presets().iter().all(|preset| !preset.peers_use_host_link));
        assert_eq!((least.memory.usable_bytes, least.compute_capability), (7680 << 20, None));
        let all = LEAST.replace("memory_mib = 8192", "memory_mib = 8192\nusable_mib = 8192");
        assert_eq!(parse(&all).unwrap().memory.usable_bytes, 8192 << 20);
        let more = parse(&all.replace("usable_mib = 8192", "usable_mib = 8193")).unwrap_err().to_string();
        assert_eq!(more, "usable_mib is 8193; it must be at most memory_mib");
        let fp8 = parse(&LEAST.replace("memory_gb_s", "fp8_tflops = 200\nmemory_gb_s")).unwrap();
        assert_eq!((fp8.peak_flops_s, fp8.narrow.float8_s, fp8.narrow.int8_s), (1e14, 2e14, 2e14));
        let one = parse(&format!("{LEAST}[efficiency]\nkv_bandwidth = 0.5\n")).unwrap();
        assert_eq!(one.efficiency, Efficiency { kv_bandwidth: 0.5, ..Efficiency::ASSUMED });
    }

    #[test]
    fn a_curve_is_a_number_or_pieces_in_rising_order() {
        let with = |token_us: &str| {
            let time = format!("model = 'm'\nconstant_us = 100\ntoken_us = {token_us}\nsequence_us = 4.5\n");
            parse(&format!("{LEAST}[step_time]\n{time}context_token_ns = 40.0\nprefill_pair_ns = 1\n"))
        };
        let time = |token_us| with(token_us).unwrap().step_time.unwrap();
        assert!((time("20").tokens.time_s(10) / 200e-6 - 1.0).abs() < 1e-12);
        assert!((time("20").sequences.time_s(2) / 9e-6 - 1.0).abs() < 1e-12);
        assert!((time("[[0, 20.0], [8, 30.5]]").tokens.time_s(10) / 221e-6 - 1.0).abs() < 1e-12);
        let bent = with("[[0, 20.0], [8, 30.5]]").unwrap();
        let again = parse(&to_toml(&bent)).unwrap().step_time.unwrap().tokens;
        assert!((again.time_s(10) / 221e-6 - 1.0).abs() < 1e-12, "{again:?}");

        let error = |token_us| with(token_us).unwrap_err().to_string();
        let rising = "it must be the beginning of a piece: 0 for the first, and rising";
        assert_eq!(error("[[4, 20.0]]"), format!("step_time.token_us is 4; {rising}"));
        assert_eq!(error("[[0, 20.0], [0, 1.0]]"), format!("step_time.token_us is 0; {rising}"));
        assert_eq!(error("[[0, -1.0]]"), "step_time.token_us is -1; it must be at least 0 and below a billion");
        let kind = error("'fast'");
        assert!(kind.ends_with("expected microseconds, or a list of [FROM, MICROSECONDS]"), "{kind}");
    }

    #[test]
    fn a_fault_is_told_in_one_line() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(error(""), "not a description of a device: missing field `name`");
        assert_eq!(
            error(&format!("{LEAST}[efficiency]\nkv_bandwidth = 1.5\n")),
            "efficiency.kv_bandwidth is 1.5; it must be above 0 and at most 1"
        );
        assert_eq!(error(&LEAST.replace("1000", "nan")), "memory_gb_s is NaN; it must be above 0 and below a billion");
        let unknown = error(&format!("{LEAST}speed = 1\n"));
        assert!(unknown.starts_with("not a description of a device: line ") && unknown.contains("speed"), "{unknown}");
        assert!(!unknown.contains('\n'));
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let message = crate::hardware::find("no/such.toml").unwrap_err().to_string();
        assert!(message.starts_with("no/such.toml: cannot be read: "), "{message}");
    }
}
