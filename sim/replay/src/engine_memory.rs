//! Memory of a device that is not for KV blocks, as the servers of engines count it.

use std::fmt;
use std::str::FromStr;

use trunkline_quote::quoted;
use trunkline_sim_perf::cost::Parallel;
use trunkline_sim_perf::hardware::Hardware;
use trunkline_sim_perf::memory::{MemoryUse, States, Total, Workspace};
use trunkline_sim_perf::model::Model;

/// Rule of an engine for the memory that is not for KV blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EngineMemory {
    /// The same use of every device.
    Same(MemoryUse),
    /// vLLM's V1 engine, of a release or of any that serves the model, with a share of the device or the release's own.
    Vllm {
        /// Release, if it is given.
        release: Option<Release>,
        /// Share of the device, if it is given: `--gpu-memory-utilization`.
        utilization: Option<f64>,
    },
    /// SGLang's server, with a share of the device (`--mem-fraction-static`) or its default, by the device, the devices that share the model, and the tokens
    /// of a chunk.
    Sglang {
        /// Share of the device, if it is given.
        utilization: Option<f64>,
    },
}

/// Release of vLLM, without its patch number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release(u32);

/// Text that names no release of vLLM.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the release of vLLM is {}; it must be from 0.8 on, such as 0.11", quoted(.0))]
pub struct BadRelease(pub String);

impl Release {
    /// First release with the V1 engine by default.
    const FIRST: Self = Self(8);
    /// First release that samples by a kernel instead of sorting all logits: vllm#33538, merged in February 2026.
    const KERNEL: Self = Self(17);
    /// First release that counts CUDA graphs ("default since v0.21.0" in its log), and takes 0.92 of a device instead of 0.9.
    const GRAPHS: Self = Self(21);
}

impl FromStr for Release {
    type Err = BadRelease;

    fn from_str(text: &str) -> Result<Self, BadRelease> {
        let bad = || BadRelease(text.into());
        let mut numbers = text.strip_prefix('v').unwrap_or(text).split('.');
        let is_major = numbers.next() == Some("0");
        let minor = numbers.next().and_then(|minor| minor.parse().ok()).ok_or_else(bad)?;
        let is_patch = |patch: &str| patch.starts_with(|c: char| c.is_ascii_digit());
        let release = Self(minor);
        let is_known = is_major && release >= Self::FIRST && minor < 1000 && numbers.next().is_none_or(is_patch);
        (is_known && numbers.next().is_none()).then_some(release).ok_or_else(bad)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0.{}", self.0)
    }
}

/// Families of models with the first release that serves them, by the beginning of their names.
const FIRST_RELEASES: [(&str, Release); 7] = [
    ("gpt_oss", Release(10)),
    ("qwen3_next", Release(10)),
    ("deepseek_v32", Release(11)),
    ("kimi_linear", Release(11)),
    // vllm-project/recipes#551.
    ("qwen3_5", Release(17)),
    ("gemma4", Release(19)),
    ("deepseek_v4", Release(20)),
];

/// Tenths of a byte of a sampler that sorts, for each logit: 38.3 to 38.6 bytes in a log of vLLM 0.11 with four vocabularies; 40 by vllm#33538.
const SORTED_TENTHS: u64 = 385;
/// The same of the kernel: 12 bytes by vllm#33538.
const KERNEL_TENTHS: u64 = 120;
/// Memory of libraries outside of PyTorch, MiB, of one device and of several: 0.13 to 0.14, and 0.54 to 0.55 GiB in logs of vLLM 0.11 on H100.
const LIBRARIES_MIB: [u64; 2] = [135, 560];
/// The same of the V0 engine: 0.20 to 0.39 GiB in logs of 0.6.4 to 0.8.
pub(crate) const V0_LIBRARIES_MIB: u64 = 290;
/// CUDA graphs, MiB, of all and of each. Of one published log, which is not recorded ("Estimated CUDA graph memory"): 0.17 to 0.8 GiB for 16 to 86
/// graphs, of which these are within ±125 MiB at both ends. Large models take up to 2 GiB.
const GRAPHS_MIB: [u64; 2] = [200, 6];

/// Memory in use before SGLang looks, MiB: a CUDA context (0.61 GiB on H100), and the links of two devices and of more (0.93 and 1.8 to 2.0 GiB over
/// NVLink, 0.39 without: sglang#11716, #40558).
const SGLANG_IN_USE_MIB: [u64; 3] = [625, 950, 1950];
const SGLANG_PCIE_MIB: u64 = 400;

/// Sequences of the largest graph of SGLang's server on a device with at least so many GiB, the largest device first: of a server of up to three tensor-parallel
/// devices, and of one with more. From `ServerArgs._handle_gpu_memory_settings` of SGLang 0.5.
const SGLANG_GRAPHS: [(u64, u64, u64); 5] = [(160, 512, 512), (60, 256, 512), (35, 32, 160), (20, 24, 80), (0, 8, 8)];

const MIB: u64 = 1 << 20;

/// Replica whose memory an engine divides up.
#[derive(Clone, Copy, Debug)]
pub struct Replica<'a> {
    /// Device, one of those that share the model.
    pub device: &'a Hardware,
    /// Devices of the replica.
    pub parallel: Parallel,
    /// Model that is served.
    pub model: &'a Model,
    /// Maximum number of tokens in one step.
    pub batch_tokens: u32,
    /// Maximum number of sequences in one step.
    pub batch_size: u32,
}

impl EngineMemory {
    /// vLLM's V1 engine, of any release.
    pub const VLLM: Self = Self::Vllm { release: None, utilization: None };
    /// SGLang's server by default.
    pub const SGLANG: Self = Self::Sglang { utilization: None };

    /// Returns the rule with the share `utilization` of every device.
    #[must_use]
    pub fn with_utilization(self, share: f64) -> Self {
        match self {
            Self::Same(memory) => Self::Same(MemoryUse { utilization: share, ..memory }),
            Self::Vllm { release, .. } => Self::Vllm { release, utilization: Some(share) },
            Self::Sglang { .. } => Self::Sglang { utilization: Some(share) },
        }
    }

    /// Returns `true` if the states of recurrent layers are pages of the pool of blocks.
    pub fn has_state_pages(self) -> bool {
        matches!(self, Self::Vllm { .. })
    }

    /// Returns the uses of each device of a replica: one for each release that counts differently if the release is not given, else one.
    pub fn uses(self, replica: &Replica<'_>) -> Vec<(Option<Release>, MemoryUse)> {
        match self {
            Self::Same(memory) => vec![(None, memory)],
            Self::Vllm { release, utilization } => {
                let releases = release.map_or_else(|| releases_of(replica.model), |release| vec![release]);
                let of = |release: Release| (Some(release), vllm(release, utilization, replica));
                releases.into_iter().map(of).collect()
            }
            Self::Sglang { utilization } => vec![(None, sglang(utilization, replica))],
        }
    }
}

/// Returns the releases that serve a model, of those that count equally the first.
fn releases_of(model: &Model) -> Vec<Release> {
    let first = FIRST_RELEASES.iter().find(|(family, _)| model.extras.family.starts_with(family));
    let first = first.map_or(Release::FIRST, |(_, release)| *release);
    std::iter::once(first)
        .chain([Release::KERNEL, Release::GRAPHS].into_iter().filter(|later| *later > first))
        .collect()
}

fn vllm(release: Release, utilization: Option<f64>, replica: &Replica<'_>) -> MemoryUse {
    let has_graphs = release >= Release::GRAPHS;
    let several = usize::from(replica.parallel.tensor * replica.parallel.data > 1);
    let graphs = if has_graphs { GRAPHS_MIB[0] + GRAPHS_MIB[1] * n_graphs(replica.batch_size) } else { 0 };
    MemoryUse {
        utilization: utilization.unwrap_or(if has_graphs { 0.92 } else { 0.9 }),
        of: Total::Usable(0),
        workspace: Some(Workspace {
            logit_tenths: if release < Release::KERNEL { SORTED_TENTHS } else { KERNEL_TENTHS },
            other_bytes: (LIBRARIES_MIB[several] + graphs) * MIB,
        }),
        states: States::Pages,
        tiled: true,
    }
}

/// Returns the number of graphs that vLLM captures for steps of up to so many sequences: some in pieces, of up to 512 tokens, and some whole.
fn n_graphs(sequences: u32) -> u64 {
    let up_to = |most: u64| 3 + most.min(255) / 8 + most.checked_sub(256).map_or(0, |beyond| beyond / 16 + 1);
    let sequences = u64::from(sequences);
    up_to((2 * sequences).min(512)) + up_to(sequences.min(512))
}

fn sglang(utilization: Option<f64>, replica: &Replica<'_>) -> MemoryUse {
    let Replica { device, parallel, batch_tokens, .. } = *replica;
    let has_nvlink = device.peer_link_bytes_s > 2.0 * device.host_link_bytes_s;
    let [context, two, more] = SGLANG_IN_USE_MIB;
    let links = match parallel.tensor * parallel.data {
        0 | 1 => 0,
        _ if !has_nvlink => SGLANG_PCIE_MIB,
        2 => two,
        _ => more,
    };
    let by_default = || 1.0 - sglang_reserve(device, parallel, batch_tokens) / device.memory.total_bytes as f64;
    MemoryUse {
        // Devices that are smaller than the reserve have no room, which `DoesNotFit` says.
        utilization: utilization.unwrap_or_else(by_default).max(0.01),
        of: Total::Usable((context + links) * MIB),
        workspace: None,
        states: States::Reserved,
        tiled: true,
    }
}

/// Returns the bytes of a device that SGLang leaves free: 512 MiB, 1.5 for each token of a chunk, 128 for each device of the server, 2 for each sequence of the
/// largest graph, 3 more for each rank of data-parallel attention and 4.5 for those of graphs of more than 300, but at least 10 GiB of a device with more than 60.
fn sglang_reserve(device: &Hardware, parallel: Parallel, chunk: u32) -> f64 {
    // The ranks of a group are one server, and count as tensor-parallel devices.
    let tensor = parallel.tensor * parallel.data;
    let gib = device.memory.total_bytes >> 30;
    let row = SGLANG_GRAPHS.iter().find(|(least_gib, ..)| gib >= *least_gib);
    let graph = row.map_or(0, |(_, few, many)| if tensor < 4 { *few } else { *many }) as f64;
    let mut mib = 512.0 + 1.5 * f64::from(chunk.max(2048)) + 2.0 * graph;
    mib += 128.0 * f64::from(tensor * parallel.pipeline);
    if parallel.data > 1 {
        mib += graph * f64::from(parallel.data) * if graph > 300.0 { 4.5 } else { 3.0 };
    }
    if device.memory.total_bytes > 60 << 30 {
        mib = mib.max(10.0 * 1024.0);
    }
    mib * f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use trunkline_sim_perf::{hardware, model};

    use super::*;

    fn on(memory: EngineMemory, device: &str, parallel: &str, model: &Model, batch: (u32, u32)) -> Vec<MemoryUse> {
        let (batch_tokens, batch_size) = batch;
        let device = hardware::by_name(device).unwrap();
        let replica = Replica { device, parallel: parallel.parse().unwrap(), model, batch_tokens, batch_size };
        memory.uses(&replica).into_iter().map(|(_, memory)| memory).collect()
    }

    fn llama() -> Model {
        *model::by_name("llama-3.1-8b").unwrap()
    }

    /// Returns the MiB of a device that SGLang leaves free.
    fn reserve(name: &str, parallel: &str, chunk: u32) -> f64 {
        let uses = on(EngineMemory::SGLANG, name, parallel, &llama(), (chunk, 256));
        let device = hardware::by_name(name).unwrap();
        assert_eq!((uses.len(), uses[0].workspace), (1, None));
        ((1.0 - uses[0].utilization) * device.memory.total_bytes as f64 / f64::from(1 << 20)).round()
    }

    #[test]
    fn sglang_keeps_room_for_chunks_graphs_and_devices() {
        for (name, chunk, mib) in [
            ("h100-80g", 8192, 13_440.0),
            ("rtx4090-24g", 2048, 3760.0),
            ("a100-40g", 4096, 6848.0),
            // The chunk that is given counts; small ones as 2,048 tokens, and 10 GiB of a large device are free.
            ("h100-80g", 16_384, 25_728.0),
            ("h100-80g", 2048, 10_240.0),
            ("rtx4090-24g", 16, 3760.0),
        ] {
            assert_eq!(reserve(name, "tp1", chunk), mib, "{name} {chunk}");
        }
        for (name, parallel, mib) in [
            ("h100-80g", "tp2", 13_440.0 + 128.0),
            ("h100-80g", "tp8", 13_440.0 + 7.0 * 128.0 + 2.0 * 256.0),
            ("h100-80g", "tp2pp2", 13_440.0 + 3.0 * 128.0),
            ("h100-80g", "dp2ep2", 13_440.0 + 128.0 + 256.0 * 2.0 * 3.0),
            ("h100-80g", "dp4ep4", 13_440.0 + 3.0 * 128.0 + 2.0 * 256.0 + 512.0 * 4.0 * 4.5),
        ] {
            assert_eq!(reserve(name, parallel, 8192), mib, "{name} {parallel}");
        }
        assert_eq!(reserve("rtx4090-24g", "tp4", 2048), 3760.0 + 3.0 * 128.0 + 2.0 * 56.0);
    }

    #[test]
    fn sglang_sees_less_the_more_devices_are_linked() {
        let in_use = |device: &str, parallel: &str| match on(
            EngineMemory::SGLANG,
            device,
            parallel,
            &llama(),
            (8192, 256),
        )[0]
        .of
        {
            Total::Usable(bytes) => bytes / MIB,
            Total::Board => panic!("what programs see"),
        };
        assert_eq!(["tp1", "tp2", "tp4", "tp8"].map(|shape| in_use("h200-141g", shape)), [625, 1575, 2575, 2575]);
        assert_eq!(["tp1", "tp2", "tp8"].map(|shape| in_use("rtx4090-24g", shape)), [625, 1025, 1025]);
    }

    #[test]
    fn releases_of_vllm_count_differently() {
        let of = |release: &str| {
            let memory = EngineMemory::Vllm { release: Some(release.parse().unwrap()), utilization: None };
            let [memory] = on(memory, "h100-80g", "tp1", &llama(), (8192, 1024))[..] else { panic!("one use") };
            let Workspace { logit_tenths, other_bytes } = memory.workspace.unwrap();
            (memory.utilization, logit_tenths, other_bytes / MIB)
        };
        assert_eq!(of("0.11"), (0.9, 385, 135));
        assert_eq!((of("0.16.2"), of("v0.17.0rc1")), (of("0.11"), (0.9, 120, 135)));
        // 51 graphs in pieces, and as many whole.
        assert_eq!(of("0.33"), (0.92, 120, 135 + 200 + 6 * 102));
        assert_eq!((n_graphs(256), n_graphs(128)), (51 + 35, 35 + 19), "as logs of 0.18 and 0.21 say");
        for text in ["", "11", "0.7", "1.0", "0.x", "0.11.x", "0.11.2.1", "0.99999"] {
            let message = text.parse::<Release>().unwrap_err().to_string();
            assert!(message.starts_with(&format!("the release of vLLM is '{text}'; it must be")), "{message}");
        }
    }

    #[test]
    fn without_a_release_those_count_that_serve_the_model() {
        let of = |family: &'static str| {
            let mut model = llama();
            model.extras.family = family;
            releases_of(&model).iter().map(Release::to_string).collect::<Vec<_>>().join(" ")
        };
        assert_eq!([of("llama"), of("")], ["0.8 0.17 0.21"; 2]);
        assert_eq!(
            (of("gpt_oss"), of("qwen3_5_moe_text"), of("gemma4")),
            ("0.10 0.17 0.21".into(), "0.17 0.21".into(), "0.19 0.21".into())
        );
        let several = on(EngineMemory::VLLM, "h100-80g", "tp2", &llama(), (8192, 1024));
        assert_eq!(several.len(), 3);
        assert!(several.iter().all(|memory| memory.tiled && memory.states == States::Pages));
        assert_eq!(several[0].workspace.unwrap().other_bytes, 560 * MIB);
    }

    #[test]
    fn a_share_that_is_given_holds_on_every_device() {
        let all = |memory: EngineMemory| {
            let uses = on(memory.with_utilization(0.7), "h100-80g", "tp1", &llama(), (8192, 256));
            uses.iter().all(|memory| memory.utilization == 0.7)
        };
        assert!(
            [EngineMemory::SGLANG, EngineMemory::VLLM, EngineMemory::Same(MemoryUse::DEFAULT)].into_iter().all(all)
        );
    }
}
