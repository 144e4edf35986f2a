//! Hand-over from prefill engines to decode engines (prefill / decode disaggregation).
//!
//! A new request goes to an engine that prefills. If that engine does nothing else ([`Role::Prefill`]), its core is given the
//! request with one token to generate, and the cluster keeps a copy of the request here. With the first token the request ends in that
//! core; the cluster does not report this end but submits the copy, with the token, to an engine that decodes. Peers split requests the
//! same way (a prefill request with `max_tokens` = 1 in vLLM's and Dynamo's disaggregated serving).
//!
//! The decode engine finds the prompt in its own cache or computes it: KV does not travel yet. A copy of KV blocks belongs between the
//! end on one engine and the submission to the other, in this file.

use trunkline_core::{FinishReason, Request, Token};

use crate::engine::Role;

/// A request whose prefill runs on a prefill engine: the request as it continues afterwards.
#[derive(Debug)]
pub(crate) struct HandOver(Box<Request>);

impl HandOver {
    /// Cuts a request for an engine of `role` to its first token, and returns the whole of it for later. Returns `None`, and
    /// leaves the request as it is, if the request stays on that engine to its end.
    pub fn split(role: Role, request: &mut Request) -> Option<Self> {
        let first = request.generated.len() as u32 + 1;
        if role != Role::Prefill || request.max_tokens <= first {
            return None;
        }
        let whole = Self(Box::new(request.clone()));
        request.max_tokens = first;
        Some(whole)
    }

    /// Notes a token that the prefill engine generated.
    pub fn push(&mut self, token: Token) {
        self.0.generated.push(token);
    }

    /// Returns `true` if an end on the prefill engine is only the end of the prefill.
    pub fn continues_after(&self, reason: FinishReason) -> bool {
        reason == FinishReason::Length
    }

    /// Returns the whole request in the stead of the part that a prefill engine gave back before its end.
    pub fn take_over(self, part: Request) -> Box<Request> {
        let mut whole = self.0;
        debug_assert_eq!(whole.generated, part.generated, "both have the tokens so far");
        whole.worker_failures = part.worker_failures;
        whole
    }

    /// Returns the request to submit to the decode engine.
    pub fn into_request(self) -> Box<Request> {
        self.0
    }
}
