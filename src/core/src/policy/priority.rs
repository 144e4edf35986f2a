//! Strict priorities.

use super::{Policy, RequestView};

/// The lowest `priority` value is admitted first and preempted last; equals go by arrival. As in vLLM, lower is more
/// urgent. There is no ageing: a steady stream of urgent requests starves the others.
pub(super) struct Priority;

impl Policy for Priority {
    fn rank(&self, request: &RequestView) -> i64 {
        i64::from(request.priority)
    }
}
