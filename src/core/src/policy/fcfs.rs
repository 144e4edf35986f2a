//! First come, first served.

use super::{Policy, RequestView};

/// Requests are admitted in the order in which they were accepted; the youngest is preempted first.
#[derive(Debug)]
pub(super) struct Fcfs;

impl Policy for Fcfs {
    fn rank(&self, _: &RequestView) -> i128 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{make, order};
    use super::*;

    #[test]
    fn nothing_counts_but_arrival() {
        let view = RequestView::default();
        let views = [
            RequestView { tokens: 900, priority: 9, ..view },
            RequestView { cached_tokens: 5, priority: -9, deadline_ns: Some(1), ..view },
            view,
        ];
        assert_eq!(order("fcfs", &views), [0, 1, 2]);
        let keep = views.map(|view| make("fcfs").keep(&view));
        assert_eq!(keep, [0; 3], "so that the latest arrival is the victim");
    }
}
