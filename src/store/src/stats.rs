//! Figures of a store.

use crate::arena::ArenaStats;
use crate::cache::CacheStats;
use crate::coder::CodecStats;
use crate::counters::FaultCounts;
use crate::disk::{Disk, DiskStats};
use crate::held::HostPlace;
use crate::links::LinkStats;
use crate::places::{Places, Tier};
use crate::remote::{Remote, RemoteStats};
use crate::residency::Residency;

/// State of a store, for metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreStats {
    /// Memory of host slots, host tiers and the decode cache.
    pub arena: ArenaStats,
    /// Blocks of swapped-out requests.
    pub host: PlaceStats,
    /// Blocks of each tier, nearest first.
    pub tiers: Vec<PlaceStats>,
    /// Copies, by link; links without copies are left out.
    pub links: Vec<LinkStats>,
    /// Work done by the codec.
    pub codec: CodecStats,
    /// Decoded blocks kept for the next use.
    pub cache: CacheStats,
    /// Jobs that wait for a thread.
    pub queued_jobs: u64,
    /// Blocks that host memory held already, for another place: nothing was copied.
    pub shared_blocks: u64,
}

/// State of a place, for metrics.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlaceStats {
    /// Blocks held now, one for each slot.
    pub blocks: u64,
    /// Bytes that the blocks take.
    pub stored_bytes: u64,
    /// Most bytes that blocks can take; 0 for places without a limit.
    pub limit_bytes: u64,
    /// Blocks that failed verification, by reason.
    pub faults: FaultCounts,
    /// Times that blocks spent in the place.
    pub residency: Residency,
    /// Work of a disk; `None` for other media.
    pub disk: Option<DiskStats>,
    /// State of a remote store; `None` for other media.
    pub remote: Option<RemoteStats>,
}

impl PlaceStats {
    /// Returns the mean bytes of a stored block; `None` without blocks.
    pub fn mean_stored_bytes(&self) -> Option<f64> {
        (self.blocks > 0).then(|| self.stored_bytes as f64 / self.blocks as f64)
    }

    fn of_host(places: &Places, place: &HostPlace, faults: FaultCounts) -> Self {
        Self {
            blocks: place.slots().filled(),
            stored_bytes: place.stored_bytes(),
            limit_bytes: places.arena.stats().limit_bytes,
            faults,
            residency: place.slots().residency(),
            ..Self::default()
        }
    }

    fn of_disk(disk: &Disk, faults: FaultCounts) -> Self {
        let (blocks, stored_bytes, limit_bytes) = disk.usage();
        let residency = disk.residency();
        Self { blocks, stored_bytes, limit_bytes, faults, residency, disk: Some(disk.stats()), remote: None }
    }

    fn of_remote(remote: &Remote, faults: FaultCounts) -> Self {
        Self {
            blocks: remote.slots().filled(),
            stored_bytes: remote.stored_bytes(),
            faults,
            residency: remote.slots().residency(),
            remote: Some(remote.stats()),
            ..Self::default()
        }
    }
}

impl StoreStats {
    pub(crate) fn of(places: &Places) -> Self {
        let faults = |at: usize| places.faults.get(at).map(|counters| counters.counts()).unwrap_or_default();
        let tier = |(at, tier): (usize, &Tier)| match tier {
            Tier::Host(place) => PlaceStats::of_host(places, place, faults(at + 1)),
            Tier::Disk(disk, _) => PlaceStats::of_disk(disk, faults(at + 1)),
            Tier::Remote(remote, _) => PlaceStats::of_remote(remote, faults(at + 1)),
        };
        Self {
            arena: places.arena.stats(),
            host: PlaceStats::of_host(places, &places.host, faults(0)),
            tiers: places.tiers.iter().enumerate().map(tier).collect(),
            links: places.links().iter().map(|link| link.stats()).collect(),
            codec: places.coder.stats(),
            cache: places.cache.stats(),
            queued_jobs: places.queue.len() as u64,
            shared_blocks: places.named.shared(),
        }
    }
}
