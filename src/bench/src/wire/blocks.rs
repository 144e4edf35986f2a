//! Copies of blocks between a server's end and a worker, in messages and through shared memory.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::ensure;
use trunkline_attach::loopback::{Loopback, LoopbackError, Offered};
use trunkline_attach::{Abilities, Hello, KvRoom, Session};
use trunkline_port::{CopyError, DeviceBlocks, ModelInfo, Step, StepError, StepOutput, StepRunner};

use super::{BLOCK_SIZE, VOCAB};
use crate::measure::Report;
use trunkline::model::null_worker::NullWorker;

/// Bytes of a block.
const BLOCK_BYTES: usize = 256 << 10;
/// Blocks of a copy.
const BLOCKS: usize = 64;

/// Measures copies out of a worker and there, and a copy within memory to compare.
pub(super) fn measure(report: &mut Report, runs: usize) -> anyhow::Result<()> {
    let bytes: Vec<u8> = (0..BLOCKS * BLOCK_BYTES).map(|at| (at * 31 % 251) as u8).collect();
    let mut copy = vec![0; bytes.len()];
    let within = times(runs, || {
        copy.copy_from_slice(&bytes);
        Ok(())
    })?;
    report.add("copy", "within memory", "ms", within);
    for (name, offered) in [("in messages", None), ("shared memory", Some(Offered::Here))] {
        let make = |_: &Session| Ok(Box::new(Memory::new()) as Box<dyn StepRunner>);
        let mut wire = Loopback::start_sharing(hello(), Box::new(make), offered)?;
        // The worker opens the memory before it answers the first copy.
        wire.write_blocks(&bytes)?;
        ensure!(wire.is_shared() == offered.is_some(), "the worker did not open the shared memory");
        let to_worker = times(runs, || wire.write_blocks(&bytes))?;
        report.add("copy", format!("in, {name}"), "ms", to_worker);
        copy.fill(0);
        let from_worker = times(runs, || wire.read_blocks(&mut copy))?;
        report.add("copy", format!("out, {name}"), "ms", from_worker);
        ensure!(copy == bytes, "blocks came back with other bytes");
    }
    Ok(())
}

/// Returns the milliseconds of each run, after one that does not count.
fn times(runs: usize, mut copy: impl FnMut() -> Result<(), LoopbackError>) -> Result<Vec<f64>, LoopbackError> {
    copy()?;
    let mut one = || {
        let begin = Instant::now();
        copy()?;
        Ok(begin.elapsed().as_secs_f64() * 1e3)
    };
    (0..runs).map(|_| one()).collect()
}

/// Returns the announcement of a worker whose blocks are memory.
fn hello() -> Hello {
    let token_bytes = (BLOCK_BYTES / BLOCK_SIZE as usize) as u64;
    Hello {
        name: "bench".into(),
        model: ModelInfo { n_layers: 1, kv_bytes_per_token: token_bytes, ..NullWorker::info(VOCAB) },
        kv: KvRoom { block_sizes: vec![BLOCK_SIZE], tokens: (BLOCKS as u64) * u64::from(BLOCK_SIZE), block_io: true },
        abilities: Abilities { shared_memory: true, ..Abilities::default() },
        ..Hello::default()
    }
}

/// Worker that runs no step and keeps blocks in memory.
struct Memory(Arc<Blocks>);

struct Blocks(Vec<Mutex<Vec<u8>>>);

impl Memory {
    fn new() -> Self {
        Self(Arc::new(Blocks((0..BLOCKS).map(|_| Mutex::new(vec![0; BLOCK_BYTES])).collect())))
    }
}

impl StepRunner for Memory {
    fn run(&mut self, _: &Step) -> Result<StepOutput, StepError> {
        Err(StepError::new("a worker of blocks runs no step"))
    }

    fn blocks(&mut self) -> Arc<dyn DeviceBlocks> {
        self.0.clone()
    }

    fn reset(&mut self) {}
}

impl Blocks {
    fn with(&self, block: u32, copy: impl FnOnce(&mut Vec<u8>)) -> Result<(), CopyError> {
        let block = self.0.get(block as usize).ok_or_else(|| CopyError::new("there is no such block"))?;
        copy(&mut block.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }
}

impl DeviceBlocks for Blocks {
    fn block_bytes(&self) -> usize {
        BLOCK_BYTES
    }

    fn read(&self, block: u32, bytes: &mut [u8]) -> Result<(), CopyError> {
        self.with(block, |contents| bytes.copy_from_slice(contents))
    }

    fn write(&self, block: u32, bytes: &[u8]) -> Result<(), CopyError> {
        self.with(block, |contents| contents.copy_from_slice(bytes))
    }
}
