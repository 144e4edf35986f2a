//! First come, first served.

use super::{Policy, RequestView};

/// Requests are admitted in the order in which they were accepted; the youngest is preempted first.
pub(super) struct Fcfs;

impl Policy for Fcfs {
    fn rank(&self, _: &RequestView) -> i64 {
        0
    }
}
