//! Requests read ahead of their arrival, for fleets whose router sends requests to the replicas in turn.
//!
//! The next arrival of each replica is known then, whatever the other replicas do, and a fast-forward need not end at an arrival
//! elsewhere. One round of requests is read ahead.

use std::collections::VecDeque;

use trunkline_cluster::router;
use trunkline_sim_workload::trace::{Source, TraceError, TraceRequest};

use crate::settings::{Arrivals, Settings};

/// The next round of requests and arrival times.
#[derive(Debug)]
pub(super) struct Turns {
    /// Arrival times and requests, in order.
    ahead: VecDeque<(u64, TraceRequest)>,
    replicas: usize,
    /// Replica of the first of them.
    next: usize,
}

/// Returns `true` if the replica of a request depends on the order of arrivals alone, and nothing else on other replicas.
pub(super) fn are_taken(settings: &Settings) -> bool {
    let apart = !settings.replicas_change() && !settings.core.tiers.iter().any(|tier| tier.shared);
    apart && router::is_in_turn(&settings.routing.router) && settings.routing.roles.is_empty()
}

/// Returns `true` if all requests arrive at once, and a router with a choice sends them.
pub(super) fn are_routed_at_once(settings: &Settings) -> bool {
    let has_choice = settings.n_replicas() > 1 && !router::is_in_turn(&settings.routing.router);
    settings.arrivals == Arrivals::AtOnce && has_choice
}

impl Turns {
    /// Returns the turns of a fleet; `None` if the replica of a request depends on more than the order of arrivals, if ends cause arrivals, or
    /// if the replicas share storage, so that one finds what another stored before.
    pub fn new(settings: &Settings, source: &dyn Source) -> Option<Self> {
        let replicas = settings.n_replicas() as usize;
        let known = matches!(settings.arrivals, Arrivals::Traced { .. }) && !source.waits_for_ends();
        (replicas > 1 && known && are_taken(settings)).then(|| Self { ahead: VecDeque::new(), replicas, next: 0 })
    }

    /// Reads ahead. Returns the time of the next arrival, nanoseconds; `None` if no request is left.
    pub fn next_arrival_ns(&mut self, source: &mut dyn Source) -> Result<Option<u64>, TraceError> {
        while self.ahead.len() < self.replicas
            && let Some(at_ns) = source.next_arrival_ns()?
            && let Some(request) = source.next_request()?
        {
            self.ahead.push_back((at_ns, request));
        }
        Ok(self.ahead.front().map(|(at_ns, _)| *at_ns))
    }

    /// Returns the next request, if one is left.
    pub fn next_request(&mut self) -> Option<TraceRequest> {
        let (_, request) = self.ahead.pop_front()?;
        self.next = (self.next + 1) % self.replicas;
        Some(request)
    }

    /// Returns the time of the next arrival at a replica, nanoseconds; `None` if no request is left for the replica.
    pub fn next_at(&self, replica: usize) -> Option<u64> {
        let turn = (replica + self.replicas - self.next) % self.replicas;
        self.ahead.get(turn).map(|(at_ns, _)| *at_ns)
    }

    /// Returns the replica of request `number`, from 0.
    pub fn replica_of(&self, number: u64) -> usize {
        (number % self.replicas as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use trunkline_sim_perf::{hardware, model};
    use trunkline_sim_workload::Trace;
    use trunkline_sim_workload::trace::formats;

    use super::*;

    fn settings(replicas: u32, router: &str) -> Settings {
        let (hardware, model) = (hardware::by_name("h100-80g").unwrap(), model::by_name("llama-3.1-8b").unwrap());
        let mut settings = Settings { replicas, ..Settings::new(*hardware, *model) };
        settings.routing.router = router.into();
        settings
    }

    fn trace(arrivals: &[u64]) -> Trace {
        let request = |arrival_ns: &u64| TraceRequest { arrival_ns: *arrival_ns, ..TraceRequest::default() };
        Trace { format: formats::MOONCAKE, requests: arrivals.iter().map(request).collect() }
    }

    #[test]
    fn each_replica_has_its_own_next_arrival() {
        let trace = trace(&[10, 20, 30, 40, 50]);
        let mut source = trace.source();
        let mut turns = Turns::new(&settings(3, "round_robin"), &source).unwrap();
        let of_all = |turns: &Turns| [0, 1, 2].map(|replica| turns.next_at(replica));
        assert_eq!(turns.next_arrival_ns(&mut source).unwrap(), Some(10));
        assert_eq!(of_all(&turns), [Some(10), Some(20), Some(30)]);
        assert_eq!(turns.next_request().unwrap().arrival_ns, 10);
        assert_eq!(turns.next_arrival_ns(&mut source).unwrap(), Some(20));
        assert_eq!(of_all(&turns), [Some(40), Some(20), Some(30)]);
        for at_ns in [20, 30, 40] {
            assert_eq!(turns.next_request().unwrap().arrival_ns, at_ns);
            turns.next_arrival_ns(&mut source).unwrap();
        }
        assert_eq!(of_all(&turns), [None, Some(50), None], "two replicas get no more requests");
        assert_eq!((turns.replica_of(0), turns.replica_of(4)), (0, 1));
        turns.next_request().unwrap();
        assert_eq!((turns.next_arrival_ns(&mut source).unwrap(), turns.next_request()), (None, None));
    }

    #[test]
    fn other_routers_need_more_than_the_order() {
        let trace = trace(&[10]);
        let source = trace.source();
        assert!(Turns::new(&settings(1, "round_robin"), &source).is_none(), "one replica has all arrivals");
        for router in ["least_loaded", "random2", "prefix_affinity:stale_ms=5"] {
            assert!(Turns::new(&settings(2, router), &source).is_none(), "{router}");
        }
        let mut at_once = settings(2, "round_robin");
        assert!(Turns::new(&at_once, &source).is_some());
        at_once.arrivals = Arrivals::AtOnce;
        assert!(Turns::new(&at_once, &source).is_none());
    }
}
