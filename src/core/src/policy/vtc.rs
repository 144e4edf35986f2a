//! Virtual Token Counter (Sheng et al., *Fairness in Serving Large Language Models*, OSDI 2024).
//!
//! Each tenant has a counter of service: prompt tokens computed, weighted with `prompt_weight`, plus output tokens generated,
//! weighted with `output_weight`. The tenant with the lowest counter is served first, and within a tenant the oldest request.
//! The policy is work-conserving. The default weights, 1 and 2, are the paper's: an output token takes a forward pass of its
//! own, a prompt token a share of one.
//!
//! *Lift.* An absent tenant saves up no credit. A tenant that begins to wait is lifted to the lowest counter of the waiting
//! tenants or, if there are none, to the counter of the last tenant that waited. This number, the `floor`, never falls.
//!
//! *Bound* (the paper's theorem for backlogged clients). Of two tenants that always have waiting requests, neither is ever
//! served more than `2 max(prompt_weight * longest prompt, output_weight * tokens the batch can hold)` more than the other,
//! over any interval. A tenant that asks for less than its share waits for its own share only, however many requests others
//! send.
//!
//! *Seats.* Counters say who is admitted next, and nothing of a batch that is full of one tenant's long answers. The head of the queue
//! therefore takes a seat from the tenant with most (`seats.rs`), so that each tenant gets its share of the batch within the
//! steps that an exchange takes, and not after the longest answer of another.
//!
//! *Memory.* A tenant without requests and with a counter at or below the floor is forgotten, which is exact: the tenant
//! would be lifted to the floor anyway. Above the floor, [`GONE_MAX`] such tenants are remembered; beyond that, the tenant
//! nearest to the floor is forgotten, and with it the service above the floor.
//!
//! *Victims.* The tenant served most is preempted first, and of that tenant's requests the latest. The tenant is also
//! admitted last, so blocks taken from a tenant do not return at once.

use std::collections::{BTreeMap, BTreeSet};

use super::{Policy, RequestView, TAKES_SEATS};
use crate::names::spec::Param;

/// At a token per nanosecond and this weight, a counter of 64 bits lasts for half a year; at a real rate for ever.
const WEIGHT_MAX: u64 = 1_000;
/// Maximum number of remembered tenants without requests.
const GONE_MAX: usize = 1 << 16;

pub(super) const PARAMS: [Param; 3] = [
    Param { key: "prompt_weight", about: "weight of a prompt token computed", default: 1, min: 0, max: WEIGHT_MAX },
    Param { key: "output_weight", about: "weight of an output token generated", default: 2, min: 0, max: WEIGHT_MAX },
    TAKES_SEATS,
];

#[derive(Debug)]
struct Tenant {
    counter: u64,
    /// Number of requests waiting or running.
    requests: u64,
    queued: bool,
}

/// The tenant served least is admitted first and preempted last.
#[derive(Debug)]
pub(super) struct Vtc {
    prompt_weight: u64,
    output_weight: u64,
    takes_seats: bool,
    tenants: BTreeMap<u64, Tenant>,
    /// (counter, tenant) of tenants with a waiting request.
    queued: BTreeSet<(u64, u64)>,
    /// (counter, tenant) of tenants without requests. All counters are above the floor.
    gone: BTreeSet<(u64, u64)>,
    /// Lower bound for the counter of a tenant on beginning to wait.
    floor: u64,
    /// Last tenant to wait, while none does.
    last_queued: Option<u64>,
}

impl Vtc {
    pub(super) fn new(values: &[u64]) -> Self {
        Self {
            prompt_weight: values[0],
            output_weight: values[1],
            takes_seats: values[2] > 0,
            tenants: BTreeMap::new(),
            queued: BTreeSet::new(),
            gone: BTreeSet::new(),
            floor: 0,
            last_queued: None,
        }
    }

    /// Raises the floor to the lowest counter of the waiting tenants, or else of the last tenant to wait, and forgets the
    /// tenants reached.
    fn raise_floor(&mut self) {
        let least = match self.queued.first() {
            Some((counter, _)) => Some(*counter),
            None => self.last_queued.and_then(|last| self.tenants.get(&last)).map(|tenant| tenant.counter),
        };
        self.floor = self.floor.max(least.unwrap_or(0));
        while let Some((counter, tenant)) = self.gone.first().copied() {
            if counter > self.floor && self.gone.len() <= GONE_MAX {
                break;
            }
            self.gone.pop_first();
            self.tenants.remove(&tenant);
        }
    }
}

impl Policy for Vtc {
    fn rank(&self, _: &RequestView) -> i128 {
        0
    }

    fn preemption_rank(&self, request: &RequestView) -> i128 {
        -i128::from(self.standing(request.tenant))
    }

    fn takes_seats(&self) -> bool {
        self.takes_seats
    }

    fn by_tenant(&self) -> bool {
        true
    }

    fn standing(&self, tenant: u64) -> u64 {
        self.tenants.get(&tenant).map_or(self.floor, |tenant| tenant.counter)
    }

    fn joined(&mut self, tenant: u64) {
        let new = Tenant { counter: self.floor, requests: 0, queued: false };
        let entry = self.tenants.entry(tenant).or_insert(new);
        if entry.requests == 0 {
            self.gone.remove(&(entry.counter, tenant));
        }
        entry.requests += 1;
    }

    fn left(&mut self, tenant: u64) {
        let entry = self.tenants.get_mut(&tenant).expect("the tenant has joined");
        entry.requests -= 1;
        if entry.requests == 0 {
            debug_assert!(!entry.queued, "a request that has left waits no more");
            self.gone.insert((entry.counter, tenant));
            self.raise_floor();
        }
    }

    fn queued(&mut self, tenant: u64) {
        let entry = self.tenants.get_mut(&tenant).expect("the tenant has joined");
        entry.counter = entry.counter.max(self.floor);
        entry.queued = true;
        self.queued.insert((entry.counter, tenant));
        self.raise_floor();
    }

    fn unqueued(&mut self, tenant: u64) {
        let entry = self.tenants.get_mut(&tenant).expect("the tenant has joined");
        entry.queued = false;
        self.queued.remove(&(entry.counter, tenant));
        self.last_queued = Some(tenant);
        self.raise_floor();
    }

    fn served(&mut self, tenant: u64, prompt_tokens: u32, output_tokens: u32) {
        let entry = self.tenants.get_mut(&tenant).expect("the tenant has joined");
        let before = entry.counter;
        let cost = u64::from(prompt_tokens) * self.prompt_weight + u64::from(output_tokens) * self.output_weight;
        entry.counter = before.saturating_add(cost);
        if entry.queued {
            self.queued.remove(&(before, tenant));
            self.queued.insert((entry.counter, tenant));
        }
        self.raise_floor();
    }
}

#[cfg(test)]
mod tests;
