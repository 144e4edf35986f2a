//! Copies of a worker's blocks: begun in the engine's store, and kept to the life of the worker that they are meant for.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard, Weak};

use crossbeam_channel::Receiver;
use tracing::{error, warn};
use trunkline_port::{BlockFault, CopyError, DeviceBlocks, Transfer};
use trunkline_store::{Announced, Store};

use super::WorkerEvent;
use crate::network::clock::Clock;
use crate::network::log_limit::LogLimit;

/// A job for the thread of copies.
pub(crate) enum CopyJob {
    /// A transfer to make.
    Begin {
        /// Life of the worker meant by the transfer.
        life: u64,
        transfer: Box<Transfer>,
        /// Writes that look-ups wait for, until the store has begun the transfer.
        announced: Vec<Announced>,
    },
    /// A transfer begun earlier that nobody waits for any more.
    Cancel { transfer: u64 },
}

/// Keeps copies of an earlier life of the worker from the blocks of a later one.
#[derive(Default)]
pub(super) struct Fence {
    /// First life whose copies may still touch a block.
    open_from: AtomicU64,
    /// Held for reading while a block is read or written.
    in_use: RwLock<()>,
}

impl Fence {
    /// Lets no copy of a life before `life` touch another block. Never waits: a block may be in use.
    pub(super) fn close(&self, life: u64) {
        self.open_from.fetch_max(life, Ordering::SeqCst);
    }

    /// Waits until no block is in use. No copy of any life touches a block while the guard lives.
    pub(super) fn wait(&self) -> RwLockWriteGuard<'_, ()> {
        // The next to take the lock sees the lives that were closed before.
        self.in_use.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_open(&self, life: u64) -> bool {
        self.open_from.load(Ordering::SeqCst) <= life
    }

    /// Calls `touch` unless `life` has ended; a reset waits meanwhile. A panic is an error.
    fn pass(&self, life: u64, touch: impl FnOnce() -> Result<(), CopyError>) -> Result<(), CopyError> {
        let _in_use = self.in_use.read().unwrap_or_else(PoisonError::into_inner);
        if !self.is_open(life) {
            return Err(CopyError::new("the worker was reset"));
        }
        catch_unwind(AssertUnwindSafe(touch)).unwrap_or_else(|_| {
            error!("the worker panicked while it copied a block");
            Err(CopyError::new("the worker panicked"))
        })
    }
}

/// The blocks of a worker during one life of the worker.
pub(super) struct LifeBlocks {
    life: u64,
    blocks: Arc<dyn DeviceBlocks>,
    fence: Arc<Fence>,
}

impl LifeBlocks {
    pub(super) fn new(life: u64, blocks: &Arc<dyn DeviceBlocks>, fence: &Arc<Fence>) -> Self {
        Self { life, blocks: Arc::clone(blocks), fence: Arc::clone(fence) }
    }
}

impl DeviceBlocks for LifeBlocks {
    fn block_bytes(&self) -> usize {
        self.blocks.block_bytes()
    }

    fn read(&self, block: u32, bytes: &mut [u8]) -> Result<(), CopyError> {
        self.fence.pass(self.life, || self.blocks.read(block, bytes))
    }

    fn write(&self, block: u32, bytes: &[u8]) -> Result<(), CopyError> {
        self.fence.pass(self.life, || self.blocks.write(block, bytes))
    }
}

/// Begins incoming transfers in the store until nobody sends any more, or the store is gone. `of_life` returns the blocks of the worker
/// as they are in one life. The answers arrive through `report`, in any order.
pub(crate) fn serve(
    store: &Weak<Store>,
    jobs: &Receiver<CopyJob>,
    of_life: &dyn Fn(u64) -> Arc<dyn DeviceBlocks>,
    report: &(impl Fn(u64, WorkerEvent) -> bool + Clone + Send + 'static),
) {
    // A remote store that is down fails every transfer.
    let (clock, limit) = (Clock::start(), Arc::<LogLimit>::default());
    for job in jobs {
        let Some(store) = store.upgrade() else { return };
        let (life, transfer, announced) = match job {
            CopyJob::Begin { life, transfer, announced } => (life, transfer, announced),
            CopyJob::Cancel { transfer } => {
                store.cancel(transfer);
                continue;
            }
        };
        let device = of_life(life);
        let (id, from, to, report) = (transfer.id, transfer.from, transfer.to, report.clone());
        let limit = Arc::clone(&limit);
        let done = move |answer: trunkline_port::TransferReport| {
            if let Some((_, fault)) = answer.faults.first().filter(|_| !answer.is_cancelled) {
                limit.log(clock, |transfers| {
                    let blocks = answer.faults.len();
                    warn!(transfer = id, ?from, ?to, blocks, transfers, "blocks were not copied: {}", cause(*fault));
                });
            }
            // A driver that has stopped needs no answer.
            report(life, WorkerEvent::Transferred { transfer: id, report: answer });
        };
        store.begin(device, *transfer, Box::new(done));
        drop(announced);
    }
}

/// Returns the cause of a fault, for the log.
fn cause(fault: BlockFault) -> &'static str {
    match fault {
        BlockFault::Bad => "the source is gone or failed verification; trunkline_tier_faults_total has the reason",
        BlockFault::Interrupted => "the copy failed on the way",
        BlockFault::Refused => "the destination is full or busy",
    }
}
