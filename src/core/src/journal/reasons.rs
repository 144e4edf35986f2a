//! Reasons behind decisions, for those who explain from outside why a request waited or what became of its cached blocks.

use crate::names::ids::RequestId;

/// Cause for which a waiting request was not admitted in a scheduling pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lack {
    /// Too few device blocks are free or idle.
    Blocks,
    /// The batch is full.
    Seat,
    /// The step being made has no room for its first tokens.
    Tokens,
    /// Another request is about to publish its next blocks.
    Prefix,
    /// A shared tier was asked for its next blocks.
    Lookup,
    /// Requests that ran before come back first.
    Turn,
}

impl Lack {
    /// Returns the name of the cause.
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocks => "blocks",
            Self::Seat => "seat",
            Self::Tokens => "tokens",
            Self::Prefix => "prefix",
            Self::Lookup => "lookup",
            Self::Turn => "turn",
        }
    }
}

/// A waiting request that a pass considered and did not admit. Those behind it were mostly not considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAdmitted {
    /// The request.
    pub request: RequestId,
    /// Its lack.
    pub lack: Lack,
}

/// Cached blocks that left the device to make room.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evicted {
    /// Fingerprint of each block: [`crate::BlockHash::fingerprint`].
    pub fingerprints: Vec<u64>,
    /// Request that took blocks in the same move; `None` for room made ahead of any need.
    pub by: Option<RequestId>,
}

/// Reasons behind the decisions of the last input.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reasons {
    /// Admissions tried without success, in order.
    pub not_admitted: Vec<NotAdmitted>,
    /// Evictions, in order.
    pub evicted: Vec<Evicted>,
}
