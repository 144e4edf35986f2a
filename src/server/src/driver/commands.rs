//! Commands to the core's thread.

use std::ops::AddAssign;

use tokio::sync::oneshot;
use tonic::Status;
use trunkline_cluster::{EngineId, EngineStatus};
use trunkline_core::{Refusal, Request, RequestId, Stats};
use trunkline_port::{KnownBlock, StepRunner, WeightReads};
use trunkline_store::StoreStats;

use crate::engines::idle::Idle;
use crate::engines::link::{LinkEnd, LinkQueue, LinkStats};
use crate::engines::losses::WorkerCounts;
use crate::engines::seats::{Occupant, Resume, SeatState};
use crate::engines::step_figures::StepFigures;
use crate::engines::worker_thread::{WorkerEvent, WorkerReport};
use crate::requests::outbox::OutboxSender;
use crate::requests::request_events::Label;
use crate::requests::request_times::RequestFigures;

/// Request to the core's thread.
pub(crate) enum Command {
    Submit {
        request: Box<Request>,
        /// Arrival of the call, nanoseconds.
        arrival_ns: u64,
        /// Names of the request in logs.
        label: Label,
        /// Takes the request's outputs.
        outputs: OutboxSender,
        /// Receives the core's decision: accepted, or refused with a reason.
        accepted: oneshot::Sender<Result<(), Refusal>>,
    },
    Abort(Vec<RequestId>),
    Stop(RequestId),
    FlushCache(oneshot::Sender<u32>),
    Snapshot(oneshot::Sender<Snapshot>),
    Drain,
    Shutdown,
    /// Ends the requests that a drain has waited for long enough.
    CutShort,
    Worker(WorkerReport),
    /// A worker with a Hello that fits wants to attach.
    Attach(Box<Attaching>),
    /// An attached worker reports.
    Linked {
        engine: EngineId,
        /// Number of the connection.
        link: u64,
        life: u64,
        event: WorkerEvent,
    },
    /// The connection of an attached worker has ended.
    Detached {
        engine: EngineId,
        /// Number of the connection.
        link: u64,
        end: LinkEnd,
    },
    /// The store of an engine answers a look-up.
    LookedUp {
        engine: EngineId,
        lookup: u64,
        found: u32,
    },
    /// The search of a tier's disk found blocks from before.
    Found {
        engine: EngineId,
        tier: u8,
        blocks: Vec<KnownBlock>,
    },
    /// A worker was made again, or could not be.
    WorkerMade {
        engine: EngineId,
        made: Result<Box<dyn StepRunner>, Box<dyn std::error::Error + Send + Sync>>,
    },
}

/// A worker that fits the server and wants to attach.
pub(crate) struct Attaching {
    pub(crate) worker: Occupant,
    /// The session to continue, if the worker has one.
    pub(crate) resume: Option<Resume>,
    /// The connection. Dropping the queue ends the connection.
    pub(crate) queue: LinkQueue,
    /// Receives the engine of the worker, or the reason for none.
    pub(crate) seated: oneshot::Sender<Result<EngineId, Status>>,
}

impl Attaching {
    /// Refuses the worker, and ends its connection.
    pub(crate) fn refuse(self, why: Status) {
        // The call may be gone.
        let _ = self.seated.send(Err(why));
    }
}

/// The attached worker of an engine, between two events.
#[derive(Clone)]
pub(crate) struct WorkerSnapshot {
    pub(crate) name: String,
    pub(crate) program: String,
    pub(crate) state: SeatState,
    /// Name of its lock-step group, and its rank there.
    pub(crate) lock_step: Option<(String, u32)>,
    /// `true` while other members of the group are missing.
    pub(crate) waits_for_group: bool,
    pub(crate) life: u64,
    pub(crate) stats: LinkStats,
}

/// Counts of the workers' steps, kept by the driver: the core sees tokens, neither drafts nor weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepCounts {
    /// Number of tokens drafted.
    pub drafted: u64,
    /// Number of drafts equal to the sampled token.
    pub accepted: u64,
    /// Reads of streamed weights by embedded workers.
    pub weights: WeightReads,
}

impl AddAssign for StepCounts {
    fn add_assign(&mut self, other: Self) {
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        self.weights += other.weights;
    }
}

/// One engine between two events.
#[derive(Clone)]
pub(crate) struct EngineSnapshot {
    pub(crate) status: EngineStatus,
    /// Names of the tiers, nearest first.
    pub(crate) tiers: Vec<String>,
    pub(crate) store: StoreStats,
    pub(crate) counts: StepCounts,
    pub(crate) steps: StepFigures,
    /// Time without a step.
    pub(crate) idle: Idle,
    /// Beginnings and losses of the engine's workers.
    pub(crate) workers: WorkerCounts,
    /// Workers left behind in a step that never ended.
    pub(crate) abandoned: u32,
    /// The attached worker, if the engine has one.
    pub(crate) worker: Option<WorkerSnapshot>,
}

/// The state of the cluster between two inputs.
#[derive(Clone)]
pub(crate) struct Snapshot {
    pub(crate) engines: Vec<EngineSnapshot>,
    pub(crate) requests: RequestFigures,
    pub(crate) digest: u64,
    pub(crate) draining: bool,
}

impl Snapshot {
    /// Returns the gauges and counters of all engines together.
    pub(crate) fn totals(&self) -> (Stats, StepCounts) {
        let mut totals = (Stats::default(), StepCounts::default());
        for engine in &self.engines {
            totals.0 += engine.status.stats;
            totals.1 += engine.counts;
        }
        totals
    }
}
