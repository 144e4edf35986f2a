//! The device's KV blocks as bytes, for copies on any thread while steps run.

use std::sync::Arc;

use trunkline_port::{CopyError, DeviceBlocks};

use crate::error::WorkerError;
use crate::kv::KvMemory;

/// The blocks of a worker as `[layer][keys, values][token][head][dim]`, little-endian. Shares the memory with the worker of origin.
#[derive(Clone)]
pub struct Blocks {
    memory: Arc<KvMemory>,
}

impl Blocks {
    pub(crate) fn new(memory: Arc<KvMemory>) -> Self {
        Self { memory }
    }

    fn check(&self, block: u32) -> Result<(), CopyError> {
        let limit = self.memory.n_blocks();
        if block < limit { Ok(()) } else { Err(CopyError::new(WorkerError::NoBlock { block, limit })) }
    }
}

impl DeviceBlocks for Blocks {
    fn block_bytes(&self) -> usize {
        self.memory.block_bytes()
    }

    fn read(&self, block: u32, bytes: &mut [u8]) -> Result<(), CopyError> {
        self.check(block)?;
        self.memory.export(block, bytes);
        Ok(())
    }

    fn write(&self, block: u32, bytes: &[u8]) -> Result<(), CopyError> {
        self.check(block)?;
        self.memory.import(block, bytes);
        Ok(())
    }
}
