//! Core limits that resemble the scheduling of known engines, for comparisons.

use trunkline_core::config::{Chunks, OutputReserve, PipelineBatches, PrefillFirst};
use trunkline_core::names::registry::{Entry, Registry, RegistryError};
use trunkline_core::{Config, Preemption, WorkerFacts};

use crate::engine_memory::{BadRelease, EngineMemory, Release, V0_LIBRARIES_MIB};
use crate::settings::Settings;
use trunkline_sim_perf::hardware::Hardware;
use trunkline_sim_perf::memory::{MemoryUse, States, Total, Workspace};
use trunkline_sim_perf::model::{Hybrid, Model};

/// Engine with imitated scheduling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Engine {
    max_batch_tokens: u32,
    max_batch_size: u32,
    /// Limits that follow from the device, instead of the ones above.
    by_device: ByDevice,
    whole_block_hits: bool,
    in_step_hits: bool,
    reserve_prompts: bool,
    prefill_first: PrefillFirst,
    max_steps_in_flight: u32,
    pipeline_batches: PipelineBatches,
    policy: &'static str,
    eviction: Option<&'static str>,
    preemption: Preemption,
    /// Memory that is not for KV blocks, for a device whose number of blocks nobody gave.
    pub memory: EngineMemory,
    /// Bytes of an element of a recurrent layer's state, unless the model says otherwise; `None` for the model's 16 bits.
    state_dtype_bytes: Option<u64>,
}

/// SGLang's share of the output that it expects of running requests: 0.7 at first, and 0.14 of that after 600 steps of decodes.
const NEW_TOKEN_RATIO: OutputReserve = OutputReserve { permille: 700, least_permille: 98, decay_steps: 600 };

/// Limits of an engine's server that follow from the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ByDevice {
    None,
    /// [`VLLM_DEVICES`].
    Vllm,
    /// [`SGLANG_DEVICES`].
    Sglang,
}

/// Token and sequence limits of vLLM's server on a device with at least so many GiB, the largest device first; but for an A100, and below
/// the last, those of [`PLAIN`]. From `EngineArgs.get_batch_defaults` of vLLM 0.33.
const VLLM_DEVICES: [(u64, u32, u32); 2] = [(160, 16_384, 1024), (70, 8192, 1024)];

/// Tokens of a chunk of SGLang's server on a device with at least so many GiB, the largest device first. From
/// `ServerArgs._handle_gpu_memory_settings` of SGLang 0.5.
const SGLANG_DEVICES: [(u64, u32); 4] = [(160, 16_384), (60, 8192), (35, 4096), (0, 2048)];

/// An engine with mixed steps, one in flight.
const PLAIN: Engine = Engine {
    max_batch_tokens: 2048,
    max_batch_size: 256,
    by_device: ByDevice::None,
    whole_block_hits: false,
    in_step_hits: false,
    reserve_prompts: true,
    prefill_first: PrefillFirst::Off,
    max_steps_in_flight: 1,
    pipeline_batches: PipelineBatches::Ready,
    policy: "fcfs",
    eviction: None,
    preemption: Preemption::Recompute,
    memory: EngineMemory::Same(MemoryUse::DEFAULT),
    state_dtype_bytes: None,
};

/// vLLM's V0 engine, whose sampler sorts: 40 bytes for each logit, -2 to +1 by published logs, of which it is not recorded which.
const VLLM_V0_MEMORY: EngineMemory = EngineMemory::Same(MemoryUse {
    utilization: 0.9,
    of: Total::Usable(0),
    workspace: Some(Workspace { logit_tenths: 400, other_bytes: V0_LIBRARIES_MIB << 20 }),
    states: States::Reserved,
    tiled: true,
});

/// All presets, with their imitated and missing features.
pub static PRESETS: Registry<Engine> = Registry::new(
    "engine",
    &[
        Entry {
            name: "vllm-v1",
            about: "vLLM's V1 engine on one device: chunked prefill, recomputation, no reserve of blocks, hits of whole blocks \
                    below the last token; steps of 2,048 tokens and 256 sequences, from 70 GiB of memory on 8,192 and 1,024 but for an \
                    A100, from 160 GiB on 16,384 and 1,024, as vLLM's server has by default; vllm-v1@0.11 divides memory as that release does, and without \
                    one as the release that leaves least for KV; with --max-steps-in-flight 2, its asynchronous scheduling",
            params: &[],
            make: |_, ()| Engine {
                by_device: ByDevice::Vllm,
                whole_block_hits: true,
                in_step_hits: true,
                reserve_prompts: false,
                preemption: Preemption::RecomputeAtOnce,
                memory: EngineMemory::VLLM,
                ..PLAIN
            },
        },
        Entry {
            name: "vllm-v0",
            about: "vLLM's V0 engine without chunked prefill: while a waiting request can be admitted, a step runs whole prompts alone, of \
                    8,192 tokens together at most, else all decodes; recomputation of the latest. Unlike it, a \
                    longer prompt runs in chunks instead of being refused, and no hundredth of the blocks is kept free",
            params: &[],
            make: |_, ()| Engine {
                max_batch_tokens: 8192,
                max_batch_size: 256,
                whole_block_hits: true,
                prefill_first: PrefillFirst::Whole,
                pipeline_batches: PipelineBatches::Apart,
                memory: VLLM_V0_MEMORY,
                ..PLAIN
            },
        },
        Entry {
            name: "sglang",
            about: "SGLang 0.5 with prompts first and never alongside decodes, in chunks; two steps in flight (its overlap); the longest cached \
                    prefix first, in its queue of up to 128 sorted requests (--policy fcfs for its default); room kept for output, 0.7 of \
                    it at first (its new-token ratio); retraction of the least output; whole leaves of its tree evicted; chunks of 2,048 to 16,384 tokens \
                    by the memory of the device; states of recurrent layers of 32 bits, unless the model says otherwise. Unlike it, blocks have 16 tokens instead of one (--block-size 1 is equal to it and much slower)",
            params: &[],
            make: |_, ()| Engine {
                max_batch_tokens: 8192,
                max_batch_size: 2048,
                by_device: ByDevice::Sglang,
                whole_block_hits: true,
                in_step_hits: false,
                reserve_prompts: true,
                prefill_first: PrefillFirst::Chunks(Chunks {
                    reserve: NEW_TOKEN_RATIO,
                    awaits_prefix: false,
                    finds_chunks: true,
                    takes_together: true,
                }),
                max_steps_in_flight: 2,
                pipeline_batches: PipelineBatches::Ready,
                policy: "lpm_sorted",
                eviction: Some("leaves"),
                preemption: Preemption::RetractAtOnce,
                memory: EngineMemory::SGLANG,
                state_dtype_bytes: Some(4),
            },
        },
        Entry {
            name: "sarathi",
            about: "Sarathi-Serve with chunks of 512 tokens and 128 sequences",
            params: &[],
            make: |_, ()| Engine {
                max_batch_tokens: 512,
                max_batch_size: 128,
                whole_block_hits: false,
                pipeline_batches: PipelineBatches::Apart,
                ..PLAIN
            },
        },
    ],
);

impl Engine {
    /// Returns the engine with the limits of a server on these kinds of devices; of several the smallest.
    #[must_use]
    pub fn on(self, devices: &[Hardware]) -> Self {
        let smallest = devices.iter().map(|device| self.on_device(device));
        smallest.min_by_key(|engine| (engine.max_batch_tokens, engine.max_batch_size)).unwrap_or(self)
    }

    /// Returns the engine with the limits of a server on a device.
    fn on_device(self, device: &Hardware) -> Self {
        let gib = device.memory.total_bytes >> 30;
        match self.by_device {
            ByDevice::None => self,
            ByDevice::Vllm => {
                let gib = if device.name.to_lowercase().contains("a100") { 0 } else { gib };
                let row = VLLM_DEVICES.iter().find(|(least_gib, ..)| gib >= *least_gib);
                row.map_or(self, |&(_, max_batch_tokens, max_batch_size)| Self {
                    max_batch_tokens,
                    max_batch_size,
                    ..self
                })
            }
            ByDevice::Sglang => {
                let row = SGLANG_DEVICES.iter().find(|(least_gib, _)| gib >= *least_gib);
                row.map_or(self, |&(_, max_batch_tokens)| Self { max_batch_tokens, ..self })
            }
        }
    }

    /// Returns the model as the engine keeps it in memory.
    #[must_use]
    pub fn keeps(&self, model: Model) -> Model {
        let typed = |hybrid: Hybrid| self.state_dtype_bytes.map_or(hybrid, |bytes| hybrid.with_states_of(bytes));
        Model { hybrid: model.hybrid.map(typed), ..model }
    }

    /// Returns the limits for a device with `device_blocks` blocks of 16 tokens.
    pub fn core(&self, device_blocks: u32) -> Config {
        let plain = Settings::core();
        Config {
            block_size: 16,
            device_blocks,
            max_batch_tokens: self.max_batch_tokens,
            max_batch_size: self.max_batch_size,
            align_chunks: false,
            launch_watermark: 0.0,
            reserve_prompts: self.reserve_prompts,
            swap_in_watermark: 0.0,
            host_blocks: 0,
            preemption: self.preemption,
            prefill_first: self.prefill_first,
            max_steps_in_flight: self.max_steps_in_flight,
            policy: self.policy.into(),
            eviction: self.eviction.map_or(plain.eviction, String::from),
            worker: WorkerFacts {
                whole_block_hits: self.whole_block_hits,
                in_step_hits: self.in_step_hits,
                pipeline_batches: self.pipeline_batches,
                ..WorkerFacts::default()
            },
            ..plain
        }
    }
}

/// Failure to find an engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// Name of no preset.
    #[error(transparent)]
    Name(#[from] RegistryError),
    /// Release that is not known.
    #[error(transparent)]
    Release(#[from] BadRelease),
    /// Release of an engine of which one is known.
    #[error("{0} has one set of rules, whatever the release; leave out the release")]
    NoReleases(String),
}

/// Returns the preset called `name`, or `name@RELEASE`.
///
/// # Errors
///
/// [`EngineError`] if no preset has the name, with those that are known, or if the release is not known.
pub fn by_name(name: &str) -> Result<Engine, EngineError> {
    let (name, release) = name.split_once('@').map_or((name, None), |(name, release)| (name, Some(release)));
    let engine = PRESETS.make(name, ())?;
    let memory = match (engine.memory, release) {
        (memory, None) => memory,
        (EngineMemory::Vllm { utilization, .. }, Some(release)) => {
            EngineMemory::Vllm { release: Some(release.parse::<Release>()?), utilization }
        }
        (_, Some(_)) => return Err(EngineError::NoReleases(name.into())),
    };
    Ok(Engine { memory, ..engine })
}

#[cfg(test)]
mod tests {
    use trunkline_core::policy::Sorting;
    use trunkline_sim_perf::{hardware, model};

    use super::*;

    #[test]
    fn sglang_keeps_recurrent_states_in_32_bits_unless_the_model_says_their_type() {
        let states = |engine: &str, state_dtype_bytes| {
            let hybrid = Hybrid {
                attention_layers: 12,
                recurrent_layers: 36,
                feed_forward_layers: 48,
                elements: 1 << 20,
                state_elements: 1000,
                state_dtype_bytes,
                convolution_bytes: 64,
            };
            let model = Model { hybrid: Some(hybrid), ..*model::by_name("qwen3-8b").unwrap() };
            by_name(engine).unwrap().keeps(model).hybrid.unwrap().sequence_bytes()
        };
        assert_eq!(states("vllm-v1", None), 36 * (2000 + 64));
        assert_eq!(states("sglang", None), 36 * (4000 + 64));
        assert_eq!(states("sglang", Some(2)), 36 * (2000 + 64));
    }

    #[test]
    fn a_core_can_work_under_every_preset() {
        assert_eq!(PRESETS.names().collect::<Vec<_>>(), ["vllm-v1", "vllm-v0", "sglang", "sarathi"]);
        for name in PRESETS.names() {
            assert_eq!(by_name(name).unwrap().core(1000).validate(), Ok(()));
        }
        let limits = |name: &str| (by_name(name).unwrap().max_batch_tokens, by_name(name).unwrap().max_batch_size);
        assert_eq!((limits("vllm-v1"), limits("sarathi")), ((2048, 256), (512, 128)));
        let core = |name: &str| by_name(name).unwrap().core(1000);
        let prefill_first = |name: &str| core(name).prefill_first.to_string();
        let sglang = "chunks:reserve_permille=700,least_permille=98,await_prefix=0,find_chunks=1,take_together=1";
        assert_eq!(["vllm-v1", "vllm-v0", "sglang"].map(prefill_first), ["false", "true", sglang]);
        assert!(core("vllm-v1").worker.whole_block_hits && !core("sarathi").worker.whole_block_hits);
        for name in ["vllm-v1", "vllm-v0", "sarathi"] {
            let Config { max_steps_in_flight, policy, .. } = core(name);
            assert_eq!((max_steps_in_flight, &*policy), (1, "fcfs"), "{name}");
        }
        let preemptions = PRESETS.names().map(|name| core(name).preemption.name()).collect::<Vec<_>>();
        assert_eq!(preemptions, ["recompute_at_once", "recompute", "retract_at_once", "recompute"]);
        let batches = PRESETS.names().map(|name| core(name).worker.pipeline_batches.name()).collect::<Vec<_>>();
        assert_eq!(batches, ["ready", "apart", "ready", "apart"]);
        let message = by_name("orca").unwrap_err().to_string();
        assert_eq!(message, "unknown engine 'orca'; there are: vllm-v1, vllm-v0, sglang, sarathi");
    }

    #[test]
    fn engines_have_the_limits_of_their_servers_on_the_device() {
        let limits = |engine: &str, names: &[&str]| {
            let devices: Vec<_> = names.iter().map(|name| *hardware::by_name(name).unwrap()).collect();
            let core = by_name(engine).unwrap().on(&devices).core(1000);
            (core.max_batch_tokens, core.max_batch_size)
        };
        for small in ["rtx4090-24g", "l40s-48g", "a100-40g", "a100-80g"] {
            assert_eq!(limits("vllm-v1", &[small]), (2048, 256), "{small}");
        }
        for large in ["h100-80g", "h200-141g", "rtxpro6000-96g"] {
            assert_eq!(limits("vllm-v1", &[large]), (8192, 1024), "{large}");
        }
        assert_eq!(limits("vllm-v1", &["b200-180g"]), (16_384, 1024));
        assert_eq!(limits("vllm-v1", &["h100-80g", "a100-80g"]), (2048, 256));
        assert_eq!(limits("vllm-v1", &[]), (2048, 256));
        let chunk = |names: &[&str]| limits("sglang", names).0;
        assert_eq!(
            ["l4-24g", "a100-40g", "a100-80g", "h200-141g", "b200-180g"].map(|name| chunk(&[name])),
            [2048, 4096, 8192, 8192, 16_384]
        );
        assert_eq!((chunk(&["h100-80g", "rtx4090-24g"]), limits("sglang", &[])), (2048, (8192, 2048)));
        let sarathi = by_name("sarathi").unwrap();
        assert_eq!(sarathi.on(&[*hardware::by_name("h100-80g").unwrap()]), sarathi);
    }

    #[test]
    fn sglang_overlaps_steps_and_orders_by_the_cache() {
        let config = by_name("sglang").unwrap().core(1000);
        assert_eq!((config.max_steps_in_flight, config.preemption), (2, Preemption::RetractAtOnce));
        assert_eq!((&*config.eviction, &*by_name("vllm-v1").unwrap().core(1000).eviction), ("leaves", "lru"));
        let sorting = Sorting { queue_max: 128, check_tokens: 32, shared_tokens: 32 };
        assert_eq!(config.make_policy().unwrap().sorting(), Some(sorting));
    }
}
