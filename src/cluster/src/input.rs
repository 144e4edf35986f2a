//! The interface of a cluster: every [`Input`] with its time goes in, every [`Output`] comes out.

use trunkline_core::{Action, Event, RequestId};

use crate::engine::EngineId;

/// Something that happened. Each input is delivered with the time at which it happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// From clients, operators or the clock: `Submit`, `Abort`, `Stop`, `Fail`, `Tick`, `FlushCache`, `Drain`, `Shutdown`.
    /// The cluster finds the engines concerned.
    Client(Event),
    /// From the worker of one engine: `WorkerJoined`, `WorkerLost`, `StepFinished`, `TransferFinished`, `TransferFailed`. A
    /// `Submit` places a request on this engine without asking the router.
    Engine(EngineId, Event),
    /// The worker of an engine is lost for good. Its requests move to other engines, with the tokens they have.
    Retire(EngineId),
    /// Takes an engine out of service: waiting requests move to other engines, running ones end where they are. Answered
    /// with [`Output::Emptied`] when no request is left there.
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
    /// An action of the cluster itself: a `Refuse` if no engine is in service, the `Finish` of a request that no engine could
    /// take over, and the joint `Flushed` and `Drained` of all engines.
    Cluster(Action),
    /// A new request goes to an engine. Comes before anything that the engine's core does about the request.
    Placed {
        /// Identifier of the new request.
        request: RequestId,
        /// Engine chosen for the request.
        engine: EngineId,
    },
    /// A request continues on another engine. Its client sees nothing of that but a pause.
    Moved {
        /// Identifier of the moved request.
        request: RequestId,
        /// Engine that had the request.
        from: EngineId,
        /// Engine that has the request now.
        to: EngineId,
        /// Occasion of the move.
        why: Move,
    },
    /// The answer to [`Input::DrainEngine`]: no request is left on the engine.
    Emptied(EngineId),
}

/// Occasion on which a request moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Its engine lost its worker for good.
    Lost,
    /// Its engine is being drained.
    Drained,
    /// Its prefill ended on an engine that only prefills.
    HandedOver,
}
