//! Writes to remote storage that look-ups of other stores wait for.

use std::sync::Arc;

use trunkline_port::{BlockKey, Place, Transfer};

use crate::places::{Places, Tier};

/// A write on its way to remote storage. Look-ups in shared memory wait until it is dropped.
pub struct Announced {
    places: Arc<Places>,
    to: Place,
    key: BlockKey,
}

impl Announced {
    /// Announces the write of a pair of a transfer. Returns `None` if the destination is not remote storage.
    pub fn of(places: &Arc<Places>, transfer: &Transfer, pair: usize) -> Option<Self> {
        let Some(Tier::Remote(remote, _)) = places.tier(transfer.to) else { return None };
        let key = *transfer.keys.get(pair)?;
        remote.announce(&key);
        Some(Self { places: Arc::clone(places), to: transfer.to, key })
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        if let Some(Tier::Remote(remote, _)) = self.places.tier(self.to) {
            remote.settle(&self.key);
        }
    }
}
