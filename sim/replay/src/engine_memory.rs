//! Memory of a device that is not for KV blocks, as the servers of engines count it.

use trunkline_sim_perf::cost::Parallel;
use trunkline_sim_perf::hardware::Hardware;
use trunkline_sim_perf::memory::{MemoryUse, Workspace};

/// Rule of an engine for the memory that is not for KV blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum EngineMemory {
    /// The same use of every device.
    Same(MemoryUse),
    /// That of SGLang's server by default (`--mem-fraction-static`), by the device, the devices that share the model, and the tokens of a chunk.
    Sglang,
}

/// Sequences of the largest graph of SGLang's server on a device with at least so many GiB, the largest device first: of a server of up to three tensor-parallel
/// devices, and of one with more. From `ServerArgs._handle_gpu_memory_settings` of SGLang 0.5.
const SGLANG_GRAPHS: [(u64, u64, u64); 5] = [(160, 512, 512), (60, 256, 512), (35, 32, 160), (20, 24, 80), (0, 8, 8)];

/// Memory that SGLang does not see when it starts: what the driver and the libraries keep of the device. About as much as vLLM does not see.
const SGLANG_UNSEEN: Workspace = Workspace::Fixed(900 << 20);

impl EngineMemory {
    /// Returns the rule with the share `utilization` of every device.
    #[must_use]
    pub fn with_utilization(self, utilization: f64) -> Self {
        let workspace = match self {
            Self::Same(memory) => memory.workspace,
            Self::Sglang => Some(SGLANG_UNSEEN),
        };
        Self::Same(MemoryUse { utilization, workspace })
    }

    /// Returns the use of each device of a replica with steps of up to `batch_tokens` tokens.
    #[must_use]
    pub fn on(self, device: &Hardware, parallel: Parallel, batch_tokens: u32) -> MemoryUse {
        match self {
            Self::Same(memory) => memory,
            Self::Sglang => {
                let utilization = 1.0 - sglang_reserve(device, parallel, batch_tokens) / device.memory_bytes as f64;
                // Devices that are smaller than the reserve have no room, which `DoesNotFit` says.
                MemoryUse { utilization: utilization.max(0.01), workspace: Some(SGLANG_UNSEEN) }
            }
        }
    }
}

/// Returns the bytes of a device that SGLang leaves free: 512 MiB, 1.5 for each token of a chunk, 128 for each device of the server, 2 for each sequence of the
/// largest graph, 3 more for each rank of data-parallel attention and 4.5 for those of graphs of more than 300, but at least 10 GiB of a device with more than 60.
fn sglang_reserve(device: &Hardware, parallel: Parallel, chunk: u32) -> f64 {
    // The ranks of a group are one server, and count as tensor-parallel devices.
    let tensor = parallel.tensor * parallel.data;
    let gib = device.memory_bytes >> 30;
    let row = SGLANG_GRAPHS.iter().find(|(least_gib, ..)| gib >= *least_gib);
    let graph = row.map_or(0, |(_, few, many)| if tensor < 4 { *few } else { *many }) as f64;
    let mut mib = 512.0 + 1.5 * f64::from(chunk.max(2048)) + 2.0 * graph;
    mib += 128.0 * f64::from(tensor * parallel.pipeline);
    if parallel.data > 1 {
        mib += graph * f64::from(parallel.data) * if graph > 300.0 { 4.5 } else { 3.0 };
    }
    if device.memory_bytes > 60 << 30 {
        mib = mib.max(10.0 * 1024.0);
    }
    mib * f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use trunkline_sim_perf::hardware;

    use super::*;

    /// Returns the MiB of a device that SGLang leaves free.
    fn reserve(name: &str, parallel: &str, chunk: u32) -> f64 {
        let device = hardware::by_name(name).unwrap();
        let memory = EngineMemory::Sglang.on(device, parallel.parse().unwrap(), chunk);
        assert_eq!(memory.workspace, Some(SGLANG_UNSEEN));
        ((1.0 - memory.utilization) * device.memory_bytes as f64 / f64::from(1 << 20)).round()
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
    fn a_share_that_is_given_holds_on_every_device() {
        let device = hardware::by_name("h100-80g").unwrap();
        let on = |memory: EngineMemory| memory.with_utilization(0.7).on(device, Parallel::ONE, 8192);
        assert_eq!(on(EngineMemory::Sglang), MemoryUse { utilization: 0.7, workspace: Some(SGLANG_UNSEEN) });
        let workspace = Some(Workspace::Fixed(1));
        let same = EngineMemory::Same(MemoryUse { utilization: 0.9, workspace });
        assert_eq!(on(same), MemoryUse { utilization: 0.7, workspace });
    }
}
