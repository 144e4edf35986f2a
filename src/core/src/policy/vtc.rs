//! Virtual Token Counter (Sheng et al., *Fairness in Serving Large Language Models*, OSDI 2024).
//!
//! Each tenant has a counter of what it was served: tokens of prompts that were computed, weighed with `prompt_weight`,
//! and tokens generated, with `output_weight`. The tenant with the least counter goes first, and within a tenant the
//! first to come. The server is never idle for fairness' sake. The weights are the paper's, 1 and 2: an output token
//! takes a forward pass of its own, a prompt token a share of one.
//!
//! *Lift.* Who was away saves up nothing. A tenant that starts to wait gets at least the least counter of those
//! waiting; if there are none, that of the tenant that was the last to wait. Here that number is the `floor`. It never
//! falls.
//!
//! *Bound* (the paper's theorem for clients that are backlogged). Of two tenants that have requests waiting all the
//! time, neither is ever served more than `2 max(prompt_weight * longest prompt, output_weight * tokens the batch can
//! hold)` more than the other, for any length of time. A tenant that asks for less than its share waits for its share
//! only, however many requests another one sends.
//!
//! *Memory.* A tenant without a request whose counter is at or below the floor is forgotten. That is exact: it would be
//! lifted to the floor anyway. Of those above it, [`GONE_MAX`] are remembered; if there are more, the one nearest to
//! the floor is forgotten, which forgives it what it was served above the floor.
//!
//! *Victims.* The tenant that was served most gives way first, and of its requests the latest. Its next turn is the
//! last as well, so what was taken from it is not given back at once.

use std::collections::{BTreeMap, BTreeSet};

use super::{Policy, RequestView};
use crate::spec::Param;

/// At a token per nanosecond and this weight, a counter of 64 bits lasts for half a year; at a real rate for ever.
const WEIGHT_MAX: u64 = 1_000;
/// Tenants without requests that are remembered at most.
const GONE_MAX: usize = 1 << 16;

pub(super) const PARAMS: [Param; 2] = [
    Param {
        key: "prompt_weight",
        about: "what computing a token of a prompt counts",
        default: 1,
        min: 0,
        max: WEIGHT_MAX,
    },
    Param { key: "output_weight", about: "what generating a token counts", default: 2, min: 0, max: WEIGHT_MAX },
];

#[derive(Debug)]
struct Tenant {
    counter: u64,
    /// Requests waiting or running.
    requests: u64,
    queued: bool,
}

/// The tenant that was served least is admitted first and preempted last.
#[derive(Debug)]
pub(super) struct Vtc {
    prompt_weight: u64,
    output_weight: u64,
    tenants: BTreeMap<u64, Tenant>,
    /// (counter, tenant) of those with a request waiting.
    queued: BTreeSet<(u64, u64)>,
    /// (counter, tenant) of those without any request. All counters are above the floor.
    gone: BTreeSet<(u64, u64)>,
    /// The least a tenant gets that starts to wait.
    floor: u64,
    /// Who was the last to wait, while nobody does.
    last_queued: Option<u64>,
}

impl Vtc {
    pub(super) fn new(values: &[u64]) -> Self {
        Self {
            prompt_weight: values[0],
            output_weight: values[1],
            tenants: BTreeMap::new(),
            queued: BTreeSet::new(),
            gone: BTreeSet::new(),
            floor: 0,
            last_queued: None,
        }
    }

    /// Moves the floor to the least counter of those waiting, or else to that of the last who was, and forgets whom it
    /// reaches.
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

    fn keep(&self, request: &RequestView) -> i128 {
        -i128::from(self.standing(request.tenant))
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
