//! Copies of KV blocks between device and host, on any thread, while steps run.

use std::collections::HashSet;
use std::sync::Arc;

use trunkline_port::{BlockCopier, CopyError, Place, Transfer};

use crate::error::{TransferFault, WorkerError};
use crate::kv::KvMemory;

/// Copies blocks of all layers between the device's KV memory and the host's. Shares both memories with the worker of origin, and
/// may run on another thread than the worker's steps.
#[derive(Clone)]
pub struct Copier {
    device: Arc<KvMemory>,
    host: Arc<KvMemory>,
}

impl Copier {
    pub(crate) fn new(device: Arc<KvMemory>, host: Arc<KvMemory>) -> Self {
        Self { device, host }
    }

    /// Copies the blocks of a transfer, one pair after another.
    ///
    /// # Errors
    ///
    /// A block out of range, or two pairs with one destination, see [`TransferFault`]; nothing was copied.
    pub fn copy(&self, transfer: &Transfer) -> Result<(), WorkerError> {
        self.check(transfer)?;
        for (from, to) in &transfer.pairs {
            match transfer.to {
                Place::Device => self.device.copy_block(*to, &self.host, *from),
                _ => self.host.copy_block(*to, &self.device, *from),
            }
        }
        Ok(())
    }

    fn check(&self, transfer: &Transfer) -> Result<(), WorkerError> {
        let (device_blocks, host_blocks) = (self.device.n_blocks(), self.host.n_blocks());
        let mut destinations = HashSet::with_capacity(transfer.pairs.len());
        for (index, (from, to)) in transfer.pairs.iter().copied().enumerate() {
            let (device, host) = match (transfer.from, transfer.to) {
                (Place::Device, Place::Host) => (from, to),
                (Place::Host, Place::Device) => (to, from),
                _ => return Err(WorkerError::Transfer { transfer: transfer.id, index, fault: TransferFault::NoTier }),
            };
            let fault = if device >= device_blocks {
                TransferFault::DeviceBlock { block: device, limit: device_blocks }
            } else if host >= host_blocks {
                TransferFault::HostBlock { block: host, limit: host_blocks }
            } else if !destinations.insert(to) {
                TransferFault::DestinationTwice { block: to }
            } else {
                continue;
            };
            return Err(WorkerError::Transfer { transfer: transfer.id, index, fault });
        }
        Ok(())
    }
}

impl BlockCopier for Copier {
    fn copy(&mut self, transfer: &Transfer) -> Result<(), CopyError> {
        Self::copy(self, transfer).map_err(CopyError::new)
    }
}
