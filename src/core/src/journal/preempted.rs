//! Preemptions with their causes, for those who follow a request from outside.

use crate::names::ids::RequestId;

/// Cause of a preemption.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreemptionCause {
    /// A decode needed a block, and none was free.
    Block,
    /// The next chunk of the request's own prompt found no block.
    Prompt,
    /// A request before it in the order of the policy took its seat.
    Seat,
}

impl PreemptionCause {
    /// Returns the name of the cause.
    pub fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::Prompt => "prompt",
            Self::Seat => "seat",
        }
    }
}

/// A running request that gave up its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preempted {
    /// Request that went.
    pub request: RequestId,
    /// Reason.
    pub cause: PreemptionCause,
    /// Request that needed the block or took the seat; `None` if it was this one, or all waited for copies.
    pub by: Option<RequestId>,
    /// `true` if its KV goes to host memory, `false` if it is computed again.
    pub swapped: bool,
}
