//! Waits for the first step by class: the priority of a request, and a deadline or none.

use std::collections::BTreeMap;

use trunkline_sim_report::report::ClassReport;
use trunkline_sim_workload::summary::Kept;
use trunkline_sim_workload::trace::Terms;

/// Maximum number of classes kept apart.
const CLASSES_MAX: usize = 16;

/// Waits of all classes, the most urgent first: (priority, no deadline).
#[derive(Default)]
pub(super) struct Waits(BTreeMap<(i32, bool), (u64, Kept)>);

impl Waits {
    /// Counts the wait of a request until the first step, or until the end of a request that never ran. A class beyond
    /// [`CLASSES_MAX`] counts with the next one known, less urgent if there is one.
    pub fn record(&mut self, terms: &Terms, wait_ns: u64) {
        let mut class = (terms.priority, terms.deadline_ns.is_none());
        if self.0.len() == CLASSES_MAX && !self.0.contains_key(&class) {
            let less_urgent = self.0.range(class..).next();
            class = *less_urgent.or(self.0.last_key_value()).expect("there are classes").0;
        }
        let (requests, waits) = self.0.entry(class).or_default();
        *requests += 1;
        waits.record(wait_ns);
    }

    /// Returns the report of each class, the most urgent first; empty for a single class.
    pub fn end(self) -> Vec<ClassReport> {
        let report = |((priority, no_deadline), (requests, waits)): ((i32, bool), (u64, Kept))| ClassReport {
            priority,
            deadline: !no_deadline,
            requests,
            queue_s: waits.summary(),
        };
        if self.0.len() < 2 { Vec::new() } else { self.0.into_iter().map(report).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waits(requests: impl IntoIterator<Item = (i32, Option<u64>, u64)>) -> Vec<(i32, bool, u64, f64)> {
        let mut waits = Waits::default();
        for (priority, deadline_ns, wait_ns) in requests {
            waits.record(&Terms { priority, deadline_ns, ..Terms::default() }, wait_ns);
        }
        waits.end().iter().map(|class| (class.priority, class.deadline, class.requests, class.queue_s.max)).collect()
    }

    #[test]
    fn priorities_and_deadlines_make_classes_and_the_most_urgent_is_first() {
        assert_eq!(waits([(3, None, 5), (3, None, 9)]), [], "one class says no more than the whole");
        let expected = [(-1, false, 1, 2e-9), (3, true, 1, 7e-9), (3, false, 2, 9e-9)];
        assert_eq!(waits([(3, None, 5), (3, Some(1), 7), (-1, None, 2), (3, None, 9)]), expected);
    }

    #[test]
    fn further_classes_count_with_the_next() {
        let many = waits((0..16).map(|n| (2 * n, None, 1)).chain([(3, None, 8), (99, None, 9)]));
        assert_eq!(many.len(), 16);
        assert_eq!((many[2], many[15]), ((4, false, 2, 8e-9), (30, false, 2, 9e-9)));
    }
}
