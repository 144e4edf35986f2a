//! A device for tests of the store, whose blocks hold what their numbers say. A test includes this file by its path.

use std::collections::HashMap;
use std::sync::Mutex;

use trunkline_port::{CopyError, DeviceBlocks};

/// Device that makes what is read, and keeps what is written.
pub struct Device {
    contents: fn(u32) -> Vec<u8>,
    bytes: usize,
    /// Blocks written.
    pub written: Mutex<HashMap<u32, Vec<u8>>>,
}

impl Device {
    /// Creates a device with blocks of so many bytes, made by `contents`.
    pub fn new(contents: fn(u32) -> Vec<u8>, bytes: usize) -> Self {
        Self { contents, bytes, written: Mutex::default() }
    }
}

impl DeviceBlocks for Device {
    fn block_bytes(&self) -> usize {
        self.bytes
    }

    fn read(&self, block: u32, bytes: &mut [u8]) -> Result<(), CopyError> {
        bytes.copy_from_slice(&(self.contents)(block));
        Ok(())
    }

    fn write(&self, block: u32, bytes: &[u8]) -> Result<(), CopyError> {
        self.written.lock().unwrap().insert(block, bytes.to_vec());
        Ok(())
    }
}
