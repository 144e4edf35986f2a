//! Tiers of the prefix cache behind the device: flags, and the tiers and links made from them.

use std::path::PathBuf;

use anyhow::ensure;
use clap::{ArgGroup, Args};
use trunkline_core::{TierConfig, Write};
use trunkline_sim_perf::hardware::Hardware;
use trunkline_sim_perf::link::TierLink;
use trunkline_sim_perf::memory::host_blocks;
use trunkline_sim_replay::Settings;

use super::measured::Measured;
use crate::settings::sizes::{one_or_each, parse_size};

/// Bandwidth of a disk that was not measured, GB/s.
const DISK_GB_S: f64 = 6.0;

/// Name of the tier in host memory that all replicas share.
const SHARED: &str = "shared";

/// Tiers of the prefix cache, and the links to them.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("tier").args(["host_mem", "shared_mem"]).multiple(true)))]
#[command(group(ArgGroup::new("far_tier").args(["disk_size", "remote"]).multiple(true)))]
pub(crate) struct TierArgs {
    /// Host memory of each replica for cached blocks beyond the device, such as 64GB.
    #[arg(long, value_name = "SIZE")]
    host_mem: Option<String>,

    /// Disk of each replica for cached blocks beyond the host, such as 2TB.
    #[arg(long, value_name = "SIZE", requires = "host_mem")]
    disk_size: Option<String>,

    /// Host memory for cached blocks that all replicas share, such as 64GB, as on one machine: a decode replica (--roles) takes the prompts of prefill
    /// replicas from there, over the link between host and device.
    #[arg(long, value_name = "SIZE", conflicts_with = "remote")]
    shared_mem: Option<String>,

    /// Remote storage of each replica for cached blocks beyond host and disk, such as 10TB.
    #[arg(long, value_name = "SIZE", requires = "host_mem")]
    remote: Option<String>,

    /// Let all replicas share one remote storage: each finds the prefixes that the others stored, after a look-up.
    #[arg(long, requires = "remote")]
    remote_shared: bool,

    /// Links and compression as measured: a report of `trunkline-bench disk`, `swap` or `codec` with --json, for the disk, the host link and the
    /// first element type of the codec's report. May be given more than once; flags have precedence [default: none].
    #[arg(long, value_name = "REPORT")]
    links: Vec<PathBuf>,

    /// Bandwidth of the disk, GB/s in each direction [default: 6].
    #[arg(long, value_name = "GB/S", requires = "disk_size")]
    disk_gb_s: Option<f64>,

    /// Bandwidth of the network to remote storage, GB/s in each direction.
    #[arg(long, value_name = "GB/S", default_value_t = 10.0, requires = "remote")]
    remote_gb_s: f64,

    /// Latency of each copy from or to the disk, microseconds.
    #[arg(long, value_name = "US", default_value_t = 100.0, requires = "disk_size", allow_negative_numbers = true)]
    disk_latency_us: f64,

    /// Latency of each copy from or to remote storage, microseconds.
    #[arg(long, value_name = "US", default_value_t = 500.0, requires = "remote", allow_negative_numbers = true)]
    remote_latency_us: f64,

    /// Size of a block on disk and in remote storage over its size on the device; below 1 if compressed [default: 1].
    #[arg(long, value_name = "RATIO", requires = "far_tier")]
    compression: Option<f64>,

    /// Speed of compression and of decompression in each replica, GB/s of uncompressed blocks, for the disk and for remote
    /// storage separately [default: no limit].
    #[arg(long, value_name = "GB/S", requires = "compression")]
    compression_gb_s: Option<f64>,

    /// Moment at which a tier takes a block: through (at the end of its request), prefill (when its prompt is
    /// computed, and answers at the end), second_use (after a prefix hit) or back (before eviction). One for all tiers, or one for each, separated by commas.
    #[arg(long, value_name = "WHEN", default_value = "through", requires = "tier")]
    tier_write: String,

    /// Eviction policy of the tiers; an unknown name lists all. One for all tiers, or one for each, separated by commas.
    #[arg(long, value_name = "NAME", default_value = "lru", requires = "tier")]
    tier_eviction: String,
}

impl TierArgs {
    /// Returns the tiers, nearest first, and the links to those behind the first.
    ///
    /// # Errors
    /// If a size, a ratio or a name is malformed, or a tier is smaller than one block.
    pub(super) fn tiers(
        &self,
        settings: &Settings,
        measured: &Measured,
    ) -> anyhow::Result<(Vec<TierConfig>, Vec<TierLink>)> {
        let asked =
            [("host", &self.host_mem), ("disk", &self.disk_size), (SHARED, &self.shared_mem), ("remote", &self.remote)];
        let asked: Vec<_> = asked.iter().filter_map(|(name, size)| Some((*name, size.as_ref()?))).collect();
        let writes = one_or_each("tier-write", &self.tier_write, asked.len())?;
        let evictions = one_or_each("tier-eviction", &self.tier_eviction, asked.len())?;
        for (flag, us) in [("disk", self.disk_latency_us), ("remote", self.remote_latency_us)] {
            ensure!(us >= 0.0 && us.is_finite(), "{flag}-latency-us is {us}; it must be at least 0");
        }
        let (mut tiers, mut links) = (Vec::new(), Vec::new());
        for (at, (name, size)) in asked.into_iter().enumerate() {
            let ratio = if ["host", SHARED].contains(&name) { 1.0 } else { self.ratio(measured) };
            ensure!(ratio > 0.0 && ratio.is_finite(), "compression is {ratio}; it must be above 0, such as 0.5");
            let bytes = parse_size(&format!("the size of the {name} tier"), size)? / ratio;
            let blocks = host_blocks(bytes as u64, settings.block_bytes()).min(1 << 30);
            ensure!(blocks > 0, "the {name} tier of {size} has no room for one block");
            let write: Write = writes[at].parse()?;
            let shared = name == SHARED || self.remote_shared && name == "remote";
            tiers.push(TierConfig { name: name.into(), blocks, write, eviction: evictions[at].into(), shared });
            match name {
                "disk" => {
                    let gb_s = self.disk_gb_s.or(measured.disk_gb_s).unwrap_or(DISK_GB_S);
                    links.push(self.link(gb_s, self.disk_latency_us, measured));
                }
                "remote" => links.push(self.link(self.remote_gb_s, self.remote_latency_us, measured)),
                // The first tier has the link of the host; behind others, shared memory has one as fast.
                SHARED if at > 0 => links.push(host_link(&settings.hardware)),
                _ => {}
            }
        }
        Ok((tiers, links))
    }

    /// Returns `true` if there is a tier in host memory.
    pub(super) fn has_host(&self) -> bool {
        self.host_mem.is_some()
    }

    /// Returns `true` if all replicas share host memory.
    pub(super) fn has_shared_memory(&self) -> bool {
        self.shared_mem.is_some()
    }

    /// Returns the figures of the reports that are given.
    ///
    /// # Errors
    /// If a file is not a report of a whole run.
    pub(super) fn measured(&self) -> anyhow::Result<Measured> {
        Measured::read(&self.links)
    }

    fn ratio(&self, measured: &Measured) -> f64 {
        self.compression.or(measured.compression).unwrap_or(1.0)
    }

    fn link(&self, gb_s: f64, latency_us: f64, measured: &Measured) -> TierLink {
        // A ratio that is given comes without the speed of a codec with another one.
        let measured_gb_s = measured.compression_gb_s.filter(|_| self.compression.is_none());
        TierLink {
            bytes_s: gb_s * 1e9,
            latency_s: latency_us / 1e6,
            ratio: self.ratio(measured),
            codec_bytes_s: self.compression_gb_s.or(measured_gb_s).map(|gb_s| gb_s * 1e9),
        }
    }
}

/// Returns a link with the rate and latency of the link between host and device.
fn host_link(hardware: &Hardware) -> TierLink {
    let (bytes_s, latency_s) = (hardware.host_link_bytes_s, hardware.host_link_latency_s);
    TierLink { bytes_s, latency_s, ratio: 1.0, codec_bytes_s: None }
}
