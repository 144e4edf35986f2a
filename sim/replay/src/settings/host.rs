//! Memory of the host of a replica: layers of streamed weights, and KV.

use trunkline_sim_perf::cost::Weights;
use trunkline_sim_perf::hardware::Hardware;

use super::Settings;

/// Bytes in the memory of a replica's host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostBytes {
    /// Weights of layers that stay there, or that the disk reads ahead.
    pub weights: u64,
    /// KV of swapped-out requests and of the first tier.
    pub kv: u64,
}

/// Weights and KV larger than the memory of the host.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error(
    "a host of {hardware} has {:.2} GB of memory, and {:.2} GB of weights and {:.2} GB of KV are to be there; lower host_layers of --weights, or \
     --host-mem",
    *memory as f64 / 1e9, bytes.weights as f64 / 1e9, bytes.kv as f64 / 1e9
)]
pub struct HostMemoryError {
    /// Name of the device.
    pub hardware: &'static str,
    /// Memory of the host, bytes.
    pub memory: u64,
    /// Bytes to be there.
    pub bytes: HostBytes,
}

impl Settings {
    /// Returns the bytes in the memory of a replica's host.
    pub fn host_bytes(&self) -> HostBytes {
        let weights = match self.weights {
            Weights::Resident | Weights::Windowed(_) => 0,
            Weights::Streamed(streamed) => streamed.host_bytes(&self.model),
        };
        let tier = self.core.tiers.first().filter(|tier| tier.name == "host").map_or(0, |tier| tier.blocks);
        let blocks = u64::from(self.core.host_blocks) + u64::from(tier);
        HostBytes { weights, kv: blocks.saturating_mul(self.block_bytes()) }
    }

    /// Checks that the hosts have memory for weights and KV, where the files of the hardware say how much there is.
    pub(super) fn check_host_memory(&self) -> Result<(), HostMemoryError> {
        let bytes = self.host_bytes();
        let fits = |hardware: &Hardware| match hardware.memory.host_bytes {
            Some(memory) if bytes.weights.saturating_add(bytes.kv) > memory => {
                Err(HostMemoryError { hardware: hardware.name, memory, bytes })
            }
            _ => Ok(()),
        };
        std::iter::once(&self.hardware).chain(self.others.iter().map(|group| &group.hardware)).try_for_each(fits)
    }
}

#[cfg(test)]
mod tests {
    use trunkline_core::{TierConfig, Write};
    use trunkline_sim_perf::{hardware, model};

    use super::*;

    #[test]
    fn weights_and_kv_share_the_memory_of_the_host() {
        let mut hardware = *hardware::by_name("rtx4090-24g").unwrap();
        hardware.memory.host_bytes = Some(100_000_000_000);
        let llama = model::by_name("llama-3.1-70b").unwrap();
        let mut settings = Settings::new(hardware, *llama);
        assert_eq!(settings.host_bytes(), HostBytes::default());
        let layer = 1_711_276_032;
        settings.weights = "stream:host_layers=50,host_window=4".parse().unwrap();
        assert_eq!(settings.host_bytes().weights, 54 * layer, "50 layers, and 4 read ahead");
        assert_eq!(settings.check_host_memory(), Ok(()));
        let (write, eviction) = (Write::Through, "lru".into());
        let tier = TierConfig { name: "host".into(), blocks: 1_500, write, eviction, shared: false };
        settings.core.tiers.push(tier);
        assert_eq!(settings.host_bytes().kv, 1_500 * settings.block_bytes());
        let line = "a host of rtx4090-24g has 100.00 GB of memory, and 92.41 GB of weights and 7.86 GB of KV are to be there; lower host_layers of --weights, or --host-mem";
        assert_eq!(settings.check_host_memory().unwrap_err().to_string(), line);
        settings.hardware.memory.host_bytes = None;
        assert_eq!(settings.check_host_memory(), Ok(()), "nobody knows how much there is");
        settings.weights = "stream".parse().unwrap();
        assert_eq!(settings.host_bytes().weights, 80 * layer, "the disk has none to read ahead");
    }
}
