//! Commands to the core's thread, and its outputs to requests.

use tokio::sync::{mpsc, oneshot};
use trunkline_core::{FinishReason, Refusal, Request, RequestId, Stats, Token, Usage};
use trunkline_port::TokenLogprobs;

use crate::worker_thread::WorkerReport;

/// Request to the core's thread.
pub(crate) enum Command {
    Submit {
        request: Box<Request>,
        /// Channel of the request's outputs. MUST have room for all the tokens that the request may generate and one more.
        outputs: mpsc::Sender<Output>,
        /// Receives the core's decision: accepted, or refused with a reason.
        accepted: oneshot::Sender<Result<(), Refusal>>,
    },
    Abort(Vec<RequestId>),
    Stop(RequestId),
    FlushCache(oneshot::Sender<u32>),
    Snapshot(oneshot::Sender<Snapshot>),
    Drain,
    Shutdown,
    Worker(WorkerReport),
}

/// Output of an accepted request.
pub(crate) enum Output {
    Token { token: Token, logprobs: Option<TokenLogprobs> },
    Finish { reason: FinishReason, usage: Usage },
}

/// Counts of speculative decoding, kept by the driver: the core sees tokens, not drafts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafts {
    /// Number of tokens drafted.
    pub drafted: u64,
    /// Number of drafts that equalled the sampled token.
    pub accepted: u64,
}

/// The state of the core between two events.
#[derive(Clone, Copy)]
pub(crate) struct Snapshot {
    pub(crate) stats: Stats,
    pub(crate) drafts: Drafts,
    pub(crate) digest: u64,
    pub(crate) draining: bool,
}
