//! The interface of the core: input arrives as an [`Event`], output leaves as an [`Action`].

use serde::{Deserialize, Serialize};
use trunkline_port::{BlockFault, KnownBlock};

use crate::names::ids::{RequestId, Token};
use crate::request::{FinishReason, Refusal, Request, Usage};
use crate::{Lookup, Place, Transfer};
use crate::{Step, StepResult};

/// Input for the core, delivered with the time of the event.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// A client sent a request.
    Submit(Box<Request>),
    /// A client aborted a request. Unknown ids are ignored: the request may just have ended.
    Abort(RequestId),
    /// The driver found a stop string in the text of a request, which ends with [`FinishReason::Stop`].
    Stop(RequestId),
    /// Takes a request back, to run elsewhere. Answered with [`Action::Withdrawn`] once no step in flight runs the
    /// request, or with [`Action::Finish`] if the request ends first. Unknown ids are ignored.
    Withdraw(RequestId),
    /// The worker cannot compute a request, in any batch; the request ends with [`FinishReason::Error`].
    Fail(RequestId),
    /// The worker names a request as the cause of the step in flight, which is about to fail. The request is handed back, to be tried on another
    /// worker: answered as [`Event::Withdraw`], and nobody else is blamed.
    Accuse(RequestId),
    /// The worker is ready to run steps, with empty KV blocks. A worker that was there before is lost.
    WorkerJoined,
    /// The worker is gone with all KV on the device and on the host; blocks in tiers stay. The step and the transfers in flight
    /// will not be answered, and write nothing more.
    WorkerLost,
    /// The worker is gone as after [`Event::WorkerLost`], for a reason outside its steps in flight, as when a worker that it runs in lock step with
    /// was lost: no request is to blame.
    WorkerTaken,
    /// The worker is back after a broken connection, with all KV and no sequence: each is sent again, with
    /// [`crate::StepSeq::start`]. The steps in flight will not be answered, and write nothing more. Ignored if no worker was there.
    WorkerResumed,
    /// The worker drafts so many tokens of a sequence in one step, at most; above [`crate::Config::max_drafts`] that limit holds. MUST come while no
    /// step is in flight that the worker will answer, as before [`Event::WorkerJoined`] or [`Event::WorkerResumed`].
    DraftsLimited(u32),
    /// The step in flight ended.
    StepFinished(StepResult),
    /// The transfer with this id ended: the destinations hold the contents of the sources. Ids not in flight are ignored.
    TransferFinished(u64),
    /// The transfer with this id failed: the contents of the destinations are undefined. Costs a recomputation, never contents. Blocks
    /// of a tier that could not be loaded count as bad, and leave the tier.
    TransferFailed(u64),
    /// The transfer with this id failed on the way, as when a connection broke: the contents of the destinations are undefined, the
    /// sources are good and stay in their tier.
    TransferInterrupted(u64),
    /// The transfer ended, and some blocks did not arrive. Bad blocks of a tier leave the tier. After a refusal a tier takes no more until
    /// the transfers to the tier have ended.
    TransferPartial {
        /// Number of the transfer.
        transfer: u64,
        /// Reasons, by index of the pair; all other pairs arrived.
        faults: Vec<(u32, BlockFault)>,
    },
    /// A tier holds blocks from before this core began, as on a disk. MUST come before the first request. Blocks MUST be numbered from
    /// 0 on, without a gap, oldest first. Without room for all, the newest are taken; the others are released.
    /// Blocks beyond the slots of the tier are left out.
    TierFound {
        /// Number of the tier, 0 for the nearest.
        tier: u8,
        /// Blocks in the tier.
        blocks: Vec<KnownBlock>,
    },
    /// A tier holds further blocks from before this core began, found while requests run, as on a slow disk. The storage numbers the blocks, which
    /// come oldest first, and gets [`Action::Adopt`]. After [`Event::FlushCache`] none is taken.
    TierFoundLater {
        /// Number of the tier, 0 for the nearest.
        tier: u8,
        /// Blocks in the tier's storage, in none of its slots.
        blocks: Vec<KnownBlock>,
    },
    /// So many blocks fit in a tier from now on, at most as many as configured: the size of stored blocks has changed.
    TierResized {
        /// Number of the tier, 0 for the nearest.
        tier: u8,
        /// Blocks that fit.
        blocks: u32,
    },
    /// The look-up with this id ended: a shared tier holds the first `found` of the blocks asked for. Ids not in flight are ignored. A
    /// block that turns out to be missing later costs a recomputation.
    LookupEnded {
        /// Number of the look-up.
        lookup: u64,
        /// Leading blocks found; 0 without an answer.
        found: u32,
    },
    /// Time passed; deadlines of requests, transfers or look-ups may be due.
    Tick,
    /// Drops every cached block, on the device and in the tiers, as after a change of the weights: requests that run keep their blocks
    /// to the end, and no other request finds these, or what transfers in flight bring to a tier.
    FlushCache,
    /// Refuses new requests from now on; accepted requests run to their end.
    Drain,
    /// Refuses new requests from now on; accepted requests are aborted.
    Shutdown,
}

/// Output of the core. The driver MUST perform actions in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Run this step and answer with [`Event::StepFinished`]. The driver MAY return the emptied box with
    /// [`crate::Core::recycle`].
    RunStep(Box<Step>),
    /// The worker's result does not fit the step in flight, so the KV cannot be trusted. Reset the worker and send
    /// [`Event::WorkerJoined`]. The step and the transfers in flight count as lost.
    ResetWorker,
    /// Copy these blocks and answer with [`Event::TransferFinished`] or [`Event::TransferFailed`].
    Transfer(Box<Transfer>),
    /// Nobody waits for this transfer any more: blocks that are not yet copied need not be. The transfer is answered as any other, and MAY be
    /// answered earlier, with the rest interrupted. Comes behind the transfer, and at times behind the driver's answer.
    Cancel {
        /// Number of the transfer.
        transfer: u64,
    },
    /// Ask the storage of a shared tier for these blocks and answer with [`Event::LookupEnded`].
    Lookup(Box<Lookup>),
    /// Blocks behind the device hold nothing of use any more: their memory can be freed. Needs no answer. Comes before the transfers of
    /// the same event.
    Release {
        /// Place of the blocks, never the device.
        place: Place,
        /// Free blocks, ascending.
        blocks: Vec<u32>,
    },
    /// The answer to [`Event::TierFoundLater`]: these blocks of a tier's storage are in slots from now on, in this order; the others can be freed. Comes before
    /// the transfers of the same event.
    Adopt {
        /// Number of the tier.
        tier: u8,
        /// Numbers of the blocks in the storage, each with its slot, if it has got one.
        blocks: Vec<(u32, Option<u32>)>,
    },
    /// The log probabilities of these tokens of a prompt, in the answer that the worker gave last, count. Each token comes once, in order and before
    /// the first [`Action::Token`]; a request that moved to another core begins again from the first.
    PromptValued {
        /// Request of the prompt.
        request: RequestId,
        /// Position of the first of the tokens.
        first: u32,
        /// Number of tokens.
        n: u32,
    },
    /// A request generated a token.
    Token {
        /// Request that generated the token.
        request: RequestId,
        /// Token generated by the worker.
        token: Token,
    },
    /// A request ended. Every accepted request gets exactly one `Finish`, and nothing after the `Finish`.
    Finish {
        /// Request ended by the core.
        request: RequestId,
        /// Reason for the end.
        reason: FinishReason,
        /// Tokens and preemptions of the request.
        usage: Usage,
    },
    /// The answer to [`Event::Withdraw`]: the request with the tokens generated so far in [`Request::generated`], ready
    /// to be submitted to another core. This core has forgotten the request.
    Withdrawn(Box<Request>),
    /// A request was not accepted. No other action follows for the request.
    Refuse {
        /// Request that was refused.
        request: RequestId,
        /// Reason for the refusal.
        refusal: Refusal,
    },
    /// The answer to [`Event::FlushCache`].
    Flushed {
        /// Device blocks dropped from the cache.
        blocks: u32,
    },
    /// No request is left after [`Event::Drain`] or [`Event::Shutdown`], and no blocks are being copied to a tier, unless the copies
    /// are overdue. Sent once.
    Drained,
}
