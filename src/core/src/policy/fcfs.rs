//! First come, first served.

use super::{Policy, RequestView};

/// Requests are admitted in order of acceptance; the youngest is preempted first.
#[derive(Debug)]
pub(super) struct Fcfs;

impl Policy for Fcfs {
    fn rank(&self, _: &RequestView) -> i128 {
        0
    }

    fn has_preemption_ranks(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{make, order};
    use super::*;

    #[test]
    fn only_arrival_counts() {
        let view = RequestView::default();
        let views = [
            RequestView { tokens: 900, priority: 9, ..view },
            RequestView { cached_tokens: 5, priority: -9, deadline_ns: Some(1), ..view },
            view,
        ];
        assert_eq!(order("fcfs", &views), [0, 1, 2]);
        let ranks = views.map(|view| make("fcfs").preemption_rank(&view));
        assert_eq!(ranks, [0; 3], "so that the latest arrival is the victim");
    }
}
