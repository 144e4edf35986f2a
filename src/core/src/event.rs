//! The two doors of the core: everything that happens enters as an [`Event`], everything it wants leaves as an [`Action`].

use serde::{Deserialize, Serialize};

use crate::ids::{RequestId, Token};
use crate::request::{FinishReason, Refusal, Request, Usage};
use crate::step::{Step, StepResult};
use crate::transfer::Transfer;

/// Something that happened. Each is given to the core with the time at which it happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A client sent a request.
    Submit(Box<Request>),
    /// A client gave up. Unknown ids are ignored: the request may just have ended.
    Abort(RequestId),
    /// The driver found a stop string in the text of a request: it ends with [`FinishReason::Stop`].
    Stop(RequestId),
    /// Takes a request back, to run elsewhere. Answered with [`Action::Withdrawn`] once no step and no copy works on the
    /// request, or with [`Action::Finish`] if it ends first. Unknown ids are ignored.
    Withdraw(RequestId),
    /// The worker cannot compute a request, whatever else is in the step: it ends with [`FinishReason::Error`].
    Fail(RequestId),
    /// The worker is ready to run steps; its KV blocks hold nothing.
    WorkerJoined,
    /// The worker is gone and with it all KV, on the device and on the host; what tiers hold stays. A step and transfers in
    /// flight will not be answered, and write nothing more.
    WorkerLost,
    /// The step in flight ended.
    StepFinished(StepResult),
    /// A copy ended: its destinations hold what its sources held. An id the core does not wait for is ignored.
    TransferFinished(u64),
    /// A copy ended and its destinations hold nothing of use. Costs a recomputation, never content.
    TransferFailed(u64),
    /// Time passed; deadlines may be due.
    Tick,
    /// Forget every block, on the device and in the tiers, that no sequence holds and no copy works on.
    FlushCache,
    /// Take no new request; let those that are here end.
    Drain,
    /// Take no new request; end those that are here.
    Shutdown,
}

/// Something the core wants done. The driver MUST perform actions in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Run this step and answer with [`Event::StepFinished`]. The driver MAY give the emptied box back with
    /// [`crate::Core::recycle`].
    RunStep(Box<Step>),
    /// The worker answered a step with what is no answer to it, so its KV is not to be trusted. Reset it and send
    /// [`Event::WorkerJoined`]. A step and transfers in flight count as lost.
    ResetWorker,
    /// Copy these blocks and answer with [`Event::TransferFinished`] or [`Event::TransferFailed`].
    Transfer(Box<Transfer>),
    /// A request generated a token.
    Token {
        /// The request.
        request: RequestId,
        /// The token.
        token: Token,
    },
    /// A request ended. Every accepted request gets exactly one of these, and nothing after it.
    Finish {
        /// The request.
        request: RequestId,
        /// Why.
        reason: FinishReason,
        /// What it consumed.
        usage: Usage,
    },
    /// The answer to [`Event::Withdraw`]: the request with the tokens generated so far in [`Request::generated`], ready
    /// to be submitted to another core. This core has forgotten it.
    Withdrawn(Box<Request>),
    /// A request was not accepted. It gets nothing else.
    Refuse {
        /// The request.
        request: RequestId,
        /// Why.
        refusal: Refusal,
    },
    /// The answer to [`Event::FlushCache`].
    Flushed {
        /// Blocks that were forgotten.
        blocks: u32,
    },
    /// Nothing is left in the core after a request to drain or shut down. Comes once.
    Drained,
}
