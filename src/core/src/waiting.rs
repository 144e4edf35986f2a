//! The queue of requests waiting for admission, in the order of a policy.
//!
//! The policy ranks; [`Waiting`] keeps the order. For most policies the order is one sorted set of requests. For policies that
//! share among tenants it has two levels, the requests of each tenant and the tenants by standing, so that a tenant moves as
//! a whole when it is served. Every operation takes logarithmic time in the number of waiting requests, except
//! [`Waiting::refresh`], which is bounded by [`REFRESH_MAX`].

use std::collections::{BTreeMap, BTreeSet};

use crate::policy::{Policy, RequestView};

/// Requests whose cached tokens one [`Waiting::refresh`] counts again, at most.
pub const REFRESH_MAX: usize = 256;

/// Position of a request in the order: (rank, arrival, slot).
type Place = (i128, u64, usize);

#[derive(Debug)]
struct Entry {
    view: RequestView,
    rank: i128,
    deferred: bool,
}

impl Entry {
    fn place(&self, slot: usize) -> Place {
        (self.rank, self.view.arrival, slot)
    }
}

/// The waiting requests, by slots of the caller's choice, and the policy that orders them.
#[derive(Debug)]
pub struct Waiting {
    policy: Box<dyn Policy>,
    /// Waiting requests by slot.
    entries: Vec<Option<Entry>>,
    /// Requests that are not deferred.
    order: Order,
    /// Slots deferred since the last restore. A slot may be free by now, or hold a new request.
    deferred: Vec<usize>,
    /// Slots by arrival; `None` unless the policy ranks by the cache.
    by_arrival: Option<BTreeMap<u64, usize>>,
    /// Arrival at which the next refresh begins.
    refresh_from: u64,
    /// Slots to refresh; empty between calls.
    to_refresh: Vec<usize>,
    len: usize,
    tokens: u64,
}

impl Waiting {
    /// Creates an empty queue ordered by `policy`.
    pub fn new(policy: Box<dyn Policy>) -> Self {
        Self {
            entries: Vec::new(),
            order: if policy.by_tenant() { Order::Tenants(Tenants::default()) } else { Order::Plain(BTreeSet::new()) },
            deferred: Vec::new(),
            by_arrival: policy.ranks_by_cache().then(BTreeMap::new),
            refresh_from: 0,
            to_refresh: Vec::new(),
            len: 0,
            tokens: 0,
            policy,
        }
    }

    /// Returns the number of waiting requests, deferred ones included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if no request waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the tokens that need KV once all waiting requests, deferred ones included, are admitted.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Returns `true` if a slot holds a waiting request, deferred or not.
    pub fn contains(&self, slot: usize) -> bool {
        self.entries.get(slot).is_some_and(Option::is_some)
    }

    /// Adds a request that has just [`Self::joined`] or was preempted. The slot MUST be free, and no other waiting request
    /// may have the same arrival.
    ///
    /// # Panics
    /// Panics if the slot holds a waiting request.
    pub fn push(&mut self, slot: usize, view: &RequestView) {
        assert!(!self.contains(slot), "slot {slot} waits already");
        if self.entries.len() <= slot {
            self.entries.resize_with(slot + 1, || None);
        }
        if let Order::Tenants(tenants) = &mut self.order
            && tenants.arrive(view.tenant)
        {
            self.policy.queued(view.tenant);
        }
        self.entries[slot] = Some(Entry { view: *view, rank: self.policy.rank(view), deferred: false });
        self.len += 1;
        self.tokens += u64::from(view.tokens);
        if let Some(by_arrival) = &mut self.by_arrival {
            by_arrival.insert(view.arrival, slot);
        }
        self.show(slot);
    }

    /// Takes out a request that was admitted or has ended. Returns `false` if the slot held none.
    pub fn remove(&mut self, slot: usize) -> bool {
        if !self.contains(slot) {
            return false;
        }
        self.hide(slot);
        let entry = self.entries[slot].take().expect("the slot holds a waiting request");
        self.len -= 1;
        self.tokens -= u64::from(entry.view.tokens);
        if let Some(by_arrival) = &mut self.by_arrival {
            by_arrival.remove(&entry.view.arrival);
        }
        if let Order::Tenants(tenants) = &mut self.order
            && tenants.depart(entry.view.tenant)
        {
            self.policy.unqueued(entry.view.tenant);
        }
        true
    }

    /// Returns `true` if the policy counts the service of tenants: then the caller reports [`Self::served`].
    pub fn counts_service(&self) -> bool {
        matches!(self.order, Order::Tenants(_))
    }

    /// Returns the next request to admit, deferred ones left out.
    pub fn first(&self) -> Option<usize> {
        match &self.order {
            Order::Plain(places) => places.first().map(|(.., slot)| *slot),
            Order::Tenants(tenants) => tenants.first(),
        }
    }

    /// Hides a waiting request from [`Self::first`] until [`Self::restore`].
    ///
    /// # Panics
    /// Panics if the slot holds no waiting request.
    pub fn defer(&mut self, slot: usize) {
        self.hide(slot);
        let entry = self.entries[slot].as_mut().expect("only a waiting request can be deferred");
        if !entry.deferred {
            entry.deferred = true;
            self.deferred.push(slot);
        }
    }

    /// Puts all deferred requests back, each into its place in the order.
    pub fn restore(&mut self) {
        while let Some(slot) = self.deferred.pop() {
            if let Some(entry) = self.entries[slot].as_mut()
                && entry.deferred
            {
                entry.deferred = false;
                self.show(slot);
            }
        }
    }

    /// Returns `true` if the order depends on cached tokens.
    pub fn needs_refresh(&self) -> bool {
        self.by_arrival.is_some()
    }

    /// Counts the cached tokens of waiting requests again, if the order depends on them. `cached_tokens` counts by slot. One
    /// call counts [`REFRESH_MAX`] requests at most, in order of arrival, and the next call continues behind them.
    pub fn refresh(&mut self, cached_tokens: &mut dyn FnMut(usize) -> u32) {
        let Some(by_arrival) = &self.by_arrival else { return };
        let (later, earlier) = (by_arrival.range(self.refresh_from..), by_arrival.range(..self.refresh_from));
        for (arrival, slot) in later.chain(earlier).take(REFRESH_MAX) {
            self.to_refresh.push(*slot);
            self.refresh_from = arrival + 1;
        }
        for at in 0..self.to_refresh.len() {
            self.recount(self.to_refresh[at], cached_tokens);
        }
        self.to_refresh.clear();
    }

    fn recount(&mut self, slot: usize, cached_tokens: &mut dyn FnMut(usize) -> u32) {
        let entry = self.entries[slot].as_mut().expect("a slot by arrival holds a waiting request");
        let cached_tokens = cached_tokens(slot);
        if cached_tokens == entry.view.cached_tokens {
            return;
        }
        entry.view.cached_tokens = cached_tokens;
        let (rank, deferred) = (self.policy.rank(&entry.view), entry.deferred);
        if !deferred {
            self.hide(slot);
        }
        self.entries[slot].as_mut().expect("the slot holds a waiting request").rank = rank;
        if !deferred {
            self.show(slot);
        }
    }

    /// Counts in a request of a tenant that was accepted. MUST be called before the request is pushed.
    pub fn joined(&mut self, tenant: u64) {
        self.policy.joined(tenant);
    }

    /// Counts out a request of a tenant that has ended, in any state. MUST be called after the request was removed and all its
    /// tokens were reported as served.
    pub fn left(&mut self, tenant: u64) {
        self.policy.left(tenant);
    }

    /// Counts tokens run for a tenant: prompt tokens computed and output tokens generated. Cached tokens do not count.
    pub fn served(&mut self, tenant: u64, prompt_tokens: u32, output_tokens: u32) {
        self.policy.served(tenant, prompt_tokens, output_tokens);
        if let Order::Tenants(tenants) = &mut self.order {
            tenants.place(tenant, self.policy.standing(tenant));
        }
    }

    /// Returns the preemption rank of a running request. The lowest is preempted first, and of equals the last to arrive.
    pub fn preemption_rank(&self, view: &RequestView) -> i128 {
        self.policy.preemption_rank(view)
    }

    /// Puts a request into the order.
    fn show(&mut self, slot: usize) {
        let entry = self.entries[slot].as_ref().expect("only a waiting request can be shown");
        match &mut self.order {
            Order::Plain(places) => {
                places.insert(entry.place(slot));
            }
            Order::Tenants(tenants) => {
                let tenant = entry.view.tenant;
                tenants.show(tenant, entry.place(slot));
                tenants.place(tenant, self.policy.standing(tenant));
            }
        }
    }

    /// Takes a request out of the order; does nothing if the request is deferred.
    fn hide(&mut self, slot: usize) {
        let entry = self.entries[slot].as_ref().expect("only a waiting request can be hidden");
        match &mut self.order {
            Order::Plain(places) => {
                places.remove(&entry.place(slot));
            }
            Order::Tenants(tenants) => {
                let tenant = entry.view.tenant;
                tenants.hide(tenant, &entry.place(slot));
                tenants.place(tenant, self.policy.standing(tenant));
            }
        }
    }
}

#[derive(Debug)]
enum Order {
    Plain(BTreeSet<Place>),
    Tenants(Tenants),
}

/// Tenants by standing, each with its requests in order.
#[derive(Debug, Default)]
struct Tenants {
    by_id: BTreeMap<u64, Tenant>,
    /// (standing, place of the first request) of each tenant with a request that is not deferred.
    firsts: BTreeSet<(u64, Place)>,
}

#[derive(Debug, Default)]
struct Tenant {
    /// Number of waiting requests, deferred ones included.
    waiting: usize,
    /// Places of the requests that are not deferred.
    places: BTreeSet<Place>,
    /// Entry of this tenant in `firsts`.
    first: Option<(u64, Place)>,
}

impl Tenants {
    fn first(&self) -> Option<usize> {
        self.firsts.first().map(|(_, (.., slot))| *slot)
    }

    /// Counts a request in. Returns `true` if the tenant had none.
    fn arrive(&mut self, tenant: u64) -> bool {
        let tenant = self.by_id.entry(tenant).or_default();
        tenant.waiting += 1;
        tenant.waiting == 1
    }

    /// Counts out a request that is no longer in the order. Returns `true` if the tenant has none left.
    fn depart(&mut self, id: u64) -> bool {
        let tenant = self.by_id.get_mut(&id).expect("the tenant has a request");
        tenant.waiting -= 1;
        let none = tenant.waiting == 0;
        if none {
            debug_assert!(tenant.first.is_none() && tenant.places.is_empty());
            self.by_id.remove(&id);
        }
        none
    }

    fn show(&mut self, tenant: u64, place: Place) {
        self.by_id.get_mut(&tenant).expect("the tenant has a request").places.insert(place);
    }

    fn hide(&mut self, tenant: u64, place: &Place) {
        self.by_id.get_mut(&tenant).expect("the tenant has a request").places.remove(place);
    }

    /// Moves a tenant to its standing, if a request of the tenant is in the order.
    fn place(&mut self, tenant: u64, standing: u64) {
        let Some(tenant) = self.by_id.get_mut(&tenant) else { return };
        let first = tenant.places.first().map(|place| (standing, *place));
        if first == tenant.first {
            return;
        }
        if let Some(before) = std::mem::replace(&mut tenant.first, first) {
            self.firsts.remove(&before);
        }
        self.firsts.extend(first);
    }
}

#[cfg(test)]
mod tests;
