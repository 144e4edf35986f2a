//! Earliest deadline first (Liu and Layland, 1973).
//!
//! If any order meets all deadlines of a single server, this one does; when none can, it tells nothing about who should
//! lose. There is no ageing: a deadline comes nearer by itself. Those without one wait for as long as others have one.

use super::{Policy, RequestView};

/// The request that must end first is admitted first and preempted last; those without a deadline come last, in order
/// of arrival.
#[derive(Debug)]
pub(super) struct Edf;

impl Policy for Edf {
    fn rank(&self, request: &RequestView) -> i128 {
        i128::from(request.deadline_ns.unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{make, order};
    use super::*;

    fn until(deadline_ns: Option<u64>) -> RequestView {
        RequestView { deadline_ns, ..RequestView::default() }
    }

    #[test]
    fn the_earliest_deadline_goes_first_and_those_without_one_last() {
        let views = [None, Some(9), Some(8), None, Some(9), Some(u64::MAX)].map(until);
        assert_eq!(order("edf", &views), [2, 1, 4, 0, 3, 5]);
        let keep = |deadline_ns| make("edf").keep(&until(deadline_ns));
        assert!(keep(None) < keep(Some(9)) && keep(Some(9)) < keep(Some(8)));
    }
}
