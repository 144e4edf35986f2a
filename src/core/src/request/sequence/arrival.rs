//! What a sequence takes from its request when it arrives.

use crate::policy::RequestView;
use crate::request::Request;

/// Returns a number of failures, or the largest there is room for.
pub(super) fn saturated(n: u32) -> u8 {
    u8::try_from(n).unwrap_or(u8::MAX)
}

/// Returns the policy's view of a request at its arrival.
pub(super) fn view(request: &Request, arrival: u64, now_ns: u64) -> RequestView {
    RequestView {
        arrival,
        arrival_ns: now_ns,
        tenant: request.tenant,
        priority: request.priority,
        is_background: request.background,
        deadline_ns: request.deadline_ns,
        prompt_tokens: request.prompt.len() as u32,
        max_tokens: request.client_limit.unwrap_or(request.max_tokens),
        tokens: (request.prompt.len() + request.generated.len()) as u32,
        cached_tokens: 0,
        uncached_tokens: 0,
        service_ns: 0,
    }
}
