//! KV blocks of a simulated device: copies take the time of the link to the host and move no KV.

use std::sync::{Arc, Mutex, PoisonError};

use trunkline_port::{CopyError, DeviceBlocks};

use super::clock::Clock;

/// Bytes that a store keeps of a block, whatever the size of the block on the device: host memory for a simulated terabyte is two
/// gigabytes with blocks of 2 MiB.
pub const STORED_BYTES: usize = 4096;
/// Longest time after a copy within which the next one counts as queued behind that copy. Covers the time of the thread that copies.
const QUEUED_NS: u64 = 1_000_000;

/// Blocks without contents.
pub struct SimulatedBlocks {
    clock: Arc<dyn Clock>,
    link: BlockTimes,
    /// End of the last copy of a block from and to the device, nanoseconds.
    ends: [Mutex<u64>; 2],
}

/// Times of the link between device and host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockTimes {
    /// Time of the bytes of one block, nanoseconds.
    pub block_ns: u64,
    /// Time before the first block of a copy, nanoseconds.
    pub latency_ns: u64,
}

impl SimulatedBlocks {
    /// Makes the blocks of a device with an idle link.
    pub fn new(clock: Arc<dyn Clock>, link: BlockTimes) -> Self {
        Self { clock, link, ends: [Mutex::new(0), Mutex::new(0)] }
    }

    /// Waits for one block in a direction. Blocks of one direction follow one another, and both directions move at once.
    fn copy(&self, direction: usize) {
        let now_ns = self.clock.now_ns();
        let end_ns = {
            let mut end_ns = self.ends[direction].lock().unwrap_or_else(PoisonError::into_inner);
            let is_queued = *end_ns > 0 && now_ns <= *end_ns + QUEUED_NS;
            let begin_ns = if is_queued { *end_ns } else { now_ns + self.link.latency_ns };
            *end_ns = begin_ns + self.link.block_ns;
            *end_ns
        };
        self.clock.wait_until(end_ns);
    }
}

impl DeviceBlocks for SimulatedBlocks {
    fn block_bytes(&self) -> usize {
        STORED_BYTES
    }

    fn read(&self, _: u32, _: &mut [u8]) -> Result<(), CopyError> {
        self.copy(0);
        Ok(())
    }

    fn write(&self, _: u32, _: &[u8]) -> Result<(), CopyError> {
        self.copy(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::ManualTime;
    use super::*;

    #[test]
    fn blocks_of_one_direction_take_the_time_of_the_link_one_after_another() {
        let clock = Arc::new(ManualTime::default());
        let blocks = SimulatedBlocks::new(clock.clone(), BlockTimes { block_ns: 100, latency_ns: 7 });
        clock.pass(1_000);
        blocks.read(0, &mut []).unwrap();
        assert_eq!(clock.now_ns(), 1_107);
        clock.pass(50);
        blocks.read(1, &mut []).unwrap();
        assert_eq!(clock.now_ns(), 1_207, "the thread's own time does not add up");
        blocks.write(1, &[]).unwrap();
        assert_eq!(clock.now_ns(), 1_314, "the other direction was idle");
        clock.pass(QUEUED_NS + 1);
        blocks.write(2, &[]).unwrap();
        assert_eq!(clock.now_ns(), 1_314 + QUEUED_NS + 1 + 107, "an idle link has its latency again");
    }
}
