//! Horizon of a closed source: times before which the next requests cannot arrive, whatever the requests in flight do.

/// Requests read from the source at a time beyond those asked for, so that few arrivals need another look at the source.
const SPARE: usize = 16;

/// Lower bounds of the times of the next arrivals, nanoseconds.
///
/// The times of scheduled requests are known. A request that arrives may itself end at once, and cause another arrival after the reaction
/// of its session; the bounds hold for that too.
#[derive(Clone, Debug, Default)]
pub(super) struct Horizon {
    /// Times of the first scheduled requests and the reactions to their answers, in order.
    first: Vec<(u64, u64)>,
    /// `true` if no other request is scheduled.
    is_all: bool,
}

impl Horizon {
    /// Returns the number of requests to read for the `n`-th arrival from now, from 0; `None` if enough are known.
    pub fn lacks(&self, n: usize) -> Option<usize> {
        (self.first.len() <= n && !self.is_all).then_some(n + 1 + SPARE)
    }

    /// Replaces the known requests by the first `n` of those scheduled, which are in any order. All others are scheduled behind `n` of them.
    pub fn fill(&mut self, scheduled: impl Iterator<Item = (u64, u64)>, n: usize) {
        self.first.clear();
        self.first.extend(scheduled);
        self.first.sort();
        self.is_all = self.first.len() < n;
        self.first.truncate(n);
    }

    /// Adds a request that was scheduled.
    pub fn add(&mut self, at_ns: u64, reaction_ns: u64) {
        let request = (at_ns, reaction_ns);
        if self.is_all || self.first.last().is_some_and(|last| request < *last) {
            let at = self.first.partition_point(|other| *other < request);
            self.first.insert(at, request);
        }
    }

    /// Removes a request that arrives.
    pub fn remove(&mut self, at_ns: u64, reaction_ns: u64) {
        if self.first.first() == Some(&(at_ns, reaction_ns)) {
            self.first.remove(0);
        } else {
            // Of requests at one time another came first, or none is known.
            *self = Self::default();
        }
    }

    /// Returns the bound of the `n`-th arrival from now, from 0. [`Self::lacks`] MUST be `None`.
    pub fn at_ns(&self, n: usize) -> u64 {
        let caused_ns = self.first.iter().take(n).map(|(at_ns, reaction_ns)| at_ns.saturating_add(*reaction_ns)).min();
        let scheduled_ns = self.first.get(n).map(|(at_ns, _)| *at_ns);
        caused_ns.into_iter().chain(scheduled_ns).min().unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(horizon: &Horizon, n: usize) -> Vec<u64> {
        assert_eq!(horizon.lacks(n - 1), None);
        (0..n).map(|n| horizon.at_ns(n)).collect()
    }

    #[test]
    fn an_arrival_is_as_scheduled_or_caused_by_one_before() {
        let mut horizon = Horizon::default();
        assert_eq!(horizon.lacks(3), Some(4 + SPARE));
        horizon.fill([(40, 5), (10, 100), (30, u64::MAX), (20, 22)].into_iter(), 6);
        let expected = [10, 20, 30, 40, 42, 42];
        assert_eq!(bounds(&horizon, 6), expected, "the request of 20 may end at once, and be followed at 42");
        horizon.fill([(30, u64::MAX), (10, u64::MAX), (20, 0)].into_iter(), 2);
        assert_eq!((bounds(&horizon, 2), horizon.lacks(2)), (vec![10, 20], Some(3 + SPARE)));
        horizon.fill([(10, u64::MAX)].into_iter(), 2);
        assert_eq!(bounds(&horizon, 3), [10, u64::MAX, u64::MAX], "nothing else is scheduled");
    }

    #[test]
    fn requests_come_and_go_without_another_look_at_the_source() {
        let mut horizon = Horizon::default();
        horizon.fill([(10, 90), (20, 90), (40, 90)].into_iter(), 3);
        horizon.add(30, 5);
        horizon.add(50, 0);
        assert_eq!(bounds(&horizon, 4), [10, 20, 30, 35], "the request of 50 is behind those known");
        assert!(horizon.lacks(4).is_some());
        horizon.remove(10, 90);
        assert_eq!(bounds(&horizon, 3), [20, 30, 35]);
        horizon.remove(20, 91);
        assert!(horizon.lacks(0).is_some(), "another request of that time came first");
        horizon.fill([(20, 90)].into_iter(), 2);
        horizon.add(50, 0);
        assert_eq!(bounds(&horizon, 4), [20, 50, 50, 50], "all are known");
    }
}
