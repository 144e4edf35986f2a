//! Tiers: the blocks that are there from before, and how many more fit.

use tracing::{debug, info};
use trunkline_cluster::{EngineId, Input};
use trunkline_core::Event;
use trunkline_port::KnownBlock;
use trunkline_store::Store;

use super::Driver;
use crate::driver::commands::Command;
use crate::driver::queue::DriverHandle;

/// Has the blocks that a search of the store's disks finds from now on sent to the core's thread.
pub(super) fn take_later(store: &Store, engine: EngineId, handle: &DriverHandle) {
    let handle = handle.clone();
    store.offer_to(move |tier, blocks| {
        // A core's thread that has ended needs no blocks.
        handle.send_blocking(Command::Found { engine, tier, blocks });
    });
}

impl Driver {
    /// Reports the blocks found in the tiers, and how many more fit there.
    pub(super) fn begin_tiers(&mut self, found: Vec<Vec<Vec<KnownBlock>>>) {
        for (engine, tiers) in (0..).map(EngineId).zip(found) {
            self.resize_tiers(engine);
            for (tier, blocks) in (0..).zip(tiers).filter(|(_, blocks)| !blocks.is_empty()) {
                info!(%engine, tier, blocks = blocks.len(), "found blocks from before");
                self.apply(Input::Engine(engine, Event::TierFound { tier, blocks }));
            }
        }
    }

    /// Reports blocks that were found in a tier after the start.
    pub(super) fn find_later(&mut self, engine: EngineId, tier: u8, blocks: Vec<KnownBlock>) {
        debug!(%engine, tier, blocks = blocks.len(), "found further blocks from before");
        self.apply(Input::Engine(engine, Event::TierFoundLater { tier, blocks }));
        self.resize_tiers(engine);
    }

    /// Reports tiers in which more or fewer blocks fit than before.
    pub(super) fn resize_tiers(&mut self, engine: EngineId) {
        let sizes = &mut self.tier_sizes[engine.index()];
        if sizes.is_empty() {
            return;
        }
        for (tier, blocks) in sizes.changes(&self.workers.store(engine).stats()) {
            debug!(%engine, tier, blocks, "other blocks fit in a tier");
            self.apply(Input::Engine(engine, Event::TierResized { tier, blocks }));
        }
    }
}
