//! The interface of a cluster: every [`Input`] with a time goes in, every [`Output`] comes out.

use trunkline_core::{Action, Event, RequestId};

use crate::engine::EngineId;
use crate::health::{Health, HealthEvent};

/// Something that happened. Each input is delivered with the time of the event.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// From clients, operators or the clock: `Submit`, `Abort`, `Stop`, `Fail`, `Tick`, `FlushCache`, `Drain`, `Shutdown`.
    /// The cluster finds the engines concerned. An event of a worker panics.
    Client(Event),
    /// From the worker or the store of one engine: `WorkerJoined`, `WorkerLost`, `StepFinished`, the ends of transfers and look-ups, blocks found in
    /// tiers. A number of no engine panics. A `Submit` places a request on this engine without asking the router.
    Engine(EngineId, Event),
    /// The worker of an engine is lost for good. The engine's requests move to other engines, with all tokens generated so far.
    Retire(EngineId),
    /// Takes an engine out of service: waiting requests move to other engines, running ones end on the engine. Answered with
    /// [`Output::Emptied`] once no request is left there.
    DrainEngine(EngineId),
    /// Takes a drained or retired engine back into service.
    OpenEngine(EngineId),
}

/// Something the cluster wants done. The driver MUST perform outputs in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// An action of the core of one engine. `RunStep`, `Transfer` and `ResetWorker` are for the engine's worker; the driver MAY
    /// give the emptied box of a step back with [`crate::Cluster::recycle`]. `Token`, `Finish` and `Refuse` are for the client.
    Engine(EngineId, Action),
    /// An action of the cluster: a `Refuse` if no engine is in service, the `Finish` of a request without an engine to take over,
    /// and the joint `Flushed` and `Drained` of all engines.
    Cluster(Action),
    /// A new request goes to an engine. Comes before every action of the engine's core on the request.
    Placed {
        /// Identifier of the new request.
        request: RequestId,
        /// Engine chosen for the request.
        engine: EngineId,
    },
    /// A request continues on another engine. The client sees a pause and nothing else.
    Moved {
        /// Identifier of the moved request.
        request: RequestId,
        /// Engine of the request until now.
        from: EngineId,
        /// Engine of the request from now on.
        to: EngineId,
        /// Occasion of the move.
        why: Move,
    },
    /// An engine is trusted less, or again.
    Health {
        /// The engine.
        engine: EngineId,
        /// Its health from now on.
        health: Health,
        /// Event that changed the health.
        why: HealthEvent,
    },
    /// The answer to [`Input::DrainEngine`]: no request is left on the engine.
    Emptied(EngineId),
}

/// Occasion of a request's move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// The engine of the request lost the worker for good.
    Lost,
    /// The engine of the request is being drained.
    Drained,
    /// The request failed alone on the engine: another worker is tried.
    Failed,
    /// The steps of the engine fail in a row, whatever they run.
    Suspected,
    /// The prefill ended on a prefill-only engine.
    HandedOver,
}

/// Returns `true` for an event of the worker or the store of one engine.
pub(crate) fn is_from_worker(event: &Event) -> bool {
    matches!(
        event,
        Event::WorkerJoined
            | Event::WorkerLost
            | Event::WorkerTaken
            | Event::WorkerResumed
            | Event::DraftsLimited(_)
            | Event::StepFinished(_)
            | Event::TransferFinished(_)
            | Event::TransferFailed(_)
            | Event::TransferInterrupted(_)
            | Event::TransferPartial { .. }
            | Event::TierFound { .. }
            | Event::TierFoundLater { .. }
            | Event::TierResized { .. }
            | Event::LookupEnded { .. }
    )
}
