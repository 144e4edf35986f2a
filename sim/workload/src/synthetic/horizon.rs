//! Horizon of a closed source: times before which the next requests cannot arrive, whatever the requests in flight do.

/// Lower bounds of the times of the next arrivals, nanoseconds.
///
/// The times of scheduled requests are known. A request that arrives may itself end at once, and cause another arrival after the reaction
/// of its session; the bounds hold for that too.
#[derive(Clone, Debug, Default)]
pub(super) struct Horizon {
    bounds_ns: Vec<u64>,
    /// Scheduled times and reactions; empty between calls.
    scheduled: Vec<(u64, u64)>,
}

impl Horizon {
    /// Forgets all bounds: a request was scheduled, or arrived.
    pub fn clear(&mut self) {
        self.bounds_ns.clear();
    }

    /// Returns the number of bounds.
    pub fn len(&self) -> usize {
        self.bounds_ns.len()
    }

    /// Returns the bound of the `n`-th arrival from now, which MUST be known.
    pub fn at_ns(&self, n: usize) -> u64 {
        self.bounds_ns[n]
    }

    /// Computes `n` bounds from the times of scheduled requests and the reactions to their answers, in any order. All other requests are
    /// scheduled behind `n` of them.
    pub fn fill(&mut self, scheduled: impl Iterator<Item = (u64, u64)>, n: usize) {
        self.scheduled.extend(scheduled);
        self.scheduled.sort();
        self.bounds_ns.clear();
        let mut caused_ns = u64::MAX;
        for (at_ns, reaction_ns) in self.scheduled.drain(..).take(n) {
            self.bounds_ns.push(caused_ns.min(at_ns));
            caused_ns = caused_ns.min(at_ns.saturating_add(reaction_ns));
        }
        self.bounds_ns.resize(n, caused_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_arrival_is_as_scheduled_or_caused_by_one_before() {
        let mut horizon = Horizon::default();
        let bounds = |horizon: &Horizon| (0..horizon.len()).map(|n| horizon.at_ns(n)).collect::<Vec<_>>();
        horizon.fill([(40, 5), (10, 100), (30, u64::MAX), (20, 22)].into_iter(), 6);
        assert_eq!(
            bounds(&horizon),
            [10, 20, 30, 40, 42, 42],
            "the request of 20 may end at once, and be followed at 42"
        );
        horizon.fill([(30, u64::MAX), (10, u64::MAX), (20, 0)].into_iter(), 2);
        assert_eq!(bounds(&horizon), [10, 20]);
        horizon.fill([(10, u64::MAX)].into_iter(), 2);
        assert_eq!(bounds(&horizon), [10, u64::MAX], "nothing else is scheduled");
        horizon.clear();
        assert_eq!(horizon.len(), 0);
    }
}
