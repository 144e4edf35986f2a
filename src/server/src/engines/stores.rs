//! The stores of the engines, and the number of blocks that fit in each tier.
//!
//! A tier has a limit in bytes, and the core counts blocks. How many fit depends on how well blocks compress, so the number follows the
//! mean size of the blocks that the tier holds ([`TierSizes`]).

use trunkline_core::Config;
use trunkline_port::{KnownBlock, ModelInfo};
use trunkline_store::{BlockLayout, Compression, Store, StoreError, StoreSettings, StoreStats, TierMedium};

/// Blocks from which on their mean size counts alone: a tier with fewer is taken to hold others at their full size, up to this number.
const PRIOR_BLOCKS: u64 = 32;
/// Change of the number of blocks that the core gets to know of: one in so many.
const CHANGE_SHARE: u32 = 64;

/// Storage of one engine's blocks behind the device, with the blocks found there.
pub struct EngineStore {
    /// Copies the blocks.
    pub store: Store,
    /// Blocks found in each tier, nearest first.
    pub found: Vec<Vec<KnownBlock>>,
}

impl EngineStore {
    /// Opens a store.
    ///
    /// # Errors
    /// If a setting has no meaning, or a tier cannot be used.
    pub fn open(settings: StoreSettings) -> Result<Self, StoreError> {
        let (store, found) = Store::open(settings)?;
        Ok(Self { store, found })
    }

    /// Opens a store in host memory, uncompressed, with room for all blocks of a core's limits.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub fn in_host_memory(model: &ModelInfo, core: &Config) -> Result<Self, StoreError> {
        let mut settings = StoreSettings::new(layout(model, core.block_size), u64::MAX);
        let further = core.tiers.iter().enumerate().map(|(at, _)| u64::from(core.tier_capacity(at)));
        let blocks = u64::from(core.host_capacity()) + further.sum::<u64>();
        settings.host_bytes = blocks.saturating_mul(settings.layout.memory_bytes());
        settings.tiers = vec![TierMedium::Host; core.tiers.len()];
        settings.compression = Compression::Off;
        Self::open(settings)
    }
}

/// Returns the layout of a model's blocks, without the rotation of keys, which a model's facts do not have.
pub fn layout(model: &ModelInfo, block_size: u32) -> BlockLayout {
    let narrow = |n: u32| u16::try_from(n).ok();
    let (layers, heads) = model.block_shape();
    let shape = || {
        Some(trunkline_store::Shape {
            layers: narrow(layers)?,
            tokens: narrow(block_size)?,
            heads: narrow(heads)?,
            head_dim: narrow(model.head_dim)?,
        })
    };
    BlockLayout {
        dtype: model.kv_dtype.clone(),
        shape: shape().filter(|shape| shape.elements().is_some_and(|elements| elements > 0)),
        block_bytes: model.block_bytes(block_size).max(1) as usize,
        block_size,
        frequencies: None,
    }
}

/// Blocks that fit in each tier of an engine, as the core knows them.
pub(crate) struct TierSizes {
    block_bytes: f64,
    /// Blocks that fit at most, and blocks that fit to the core's knowledge.
    tiers: Vec<(u32, u32)>,
}

impl TierSizes {
    /// Starts with the limits of a core, which has all of each tier's blocks at first.
    pub(crate) fn new(core: &Config, block_bytes: usize) -> Self {
        let limits = (0..core.tiers.len()).map(|tier| core.tier_capacity(tier));
        Self { block_bytes: block_bytes as f64, tiers: limits.map(|limit| (limit, limit)).collect() }
    }

    /// Returns `true` if the engine has no tier.
    pub(crate) fn is_empty(&self) -> bool {
        self.tiers.is_empty()
    }

    /// Returns the tiers whose number of blocks changed, with the new number.
    pub(crate) fn changes(&mut self, stats: &StoreStats) -> Vec<(u8, u32)> {
        let mut changes = Vec::new();
        for ((at, (limit, known)), place) in (0..).zip(&mut self.tiers).zip(&stats.tiers) {
            if place.limit_bytes == 0 {
                continue;
            }
            // Few blocks say little of the blocks to come.
            let others = PRIOR_BLOCKS.saturating_sub(place.blocks) as f64;
            let mean = (place.stored_bytes as f64 + others * self.block_bytes) / (place.blocks as f64 + others);
            let fits = ((place.limit_bytes as f64 / mean) as u32).min(*limit);
            if fits.abs_diff(*known) > *known / CHANGE_SHARE {
                *known = fits;
                changes.push((at, fits));
            }
        }
        changes
    }
}

/// Returns a store for tests that copy nothing.
#[cfg(test)]
pub(crate) fn without_memory() -> std::sync::Arc<Store> {
    let layout = BlockLayout { block_bytes: 1, block_size: 16, ..BlockLayout::default() };
    std::sync::Arc::new(Store::open(StoreSettings::new(layout, 0)).expect("threads start").0)
}

#[cfg(test)]
mod tests {
    use trunkline_core::{TierConfig, Write};
    use trunkline_store::PlaceStats;

    use super::*;

    #[test]
    fn the_number_of_blocks_follows_the_mean_size_and_small_changes_are_kept_from_the_core() {
        let tier = |blocks| TierConfig {
            name: "disk".into(),
            blocks,
            write: Write::Through,
            eviction: "lru".into(),
            shared: false,
        };
        let core = Config { tiers: vec![tier(200), tier(50)], ..Config::default() };
        let mut sizes = TierSizes::new(&core, 1000);
        let stats = |blocks, stored_bytes| {
            let place = PlaceStats { blocks, stored_bytes, limit_bytes: 100_000, ..PlaceStats::default() };
            StoreStats { tiers: vec![place, PlaceStats::default()], ..StoreStats::default() }
        };
        assert_eq!(sizes.changes(&stats(0, 0)), [(0, 100)], "at full size, and no limit of the second");
        assert_eq!(sizes.changes(&stats(2, 1400)), [], "too small a change");
        let compressed = sizes.changes(&stats(10_000, 6_000_000));
        assert_eq!(compressed, [(0, 166)]);
        assert_eq!(sizes.changes(&stats(10_000, 1_000_000)), [(0, 200)], "no more than there are");
        assert_eq!(sizes.changes(&stats(10_000, 10_000_000)), [(0, 100)]);
    }
}
