//! The requests that wait to be admitted, in the order of a policy.
//!
//! The policy ranks; the order is kept here. Most policies rank requests among each other, which is one sorted set.
//! Where tenants take turns it has two levels: each tenant's requests, and the tenants by where they stand, so that a
//! tenant that is served moves as a whole. Every operation takes logarithmic time in the number of waiting requests,
//! but [`Waiting::refresh`], which is bounded.

use std::collections::{BTreeMap, BTreeSet};

use crate::policy::{Policy, RequestView};

/// Requests whose cached tokens are counted again in one [`Waiting::refresh`] at most.
pub const REFRESH_MAX: usize = 256;

/// Where a request stands: (rank, arrival, slot).
type Place = (i128, u64, usize);

#[derive(Debug)]
struct Entry {
    view: RequestView,
    rank: i128,
    aside: bool,
}

impl Entry {
    fn place(&self, slot: usize) -> Place {
        (self.rank, self.view.arrival, slot)
    }
}

/// The waiting requests, by the caller's slots, and the policy that orders them.
#[derive(Debug)]
pub struct Waiting {
    policy: Box<dyn Policy>,
    /// By slot.
    entries: Vec<Option<Entry>>,
    /// Those that are not set aside.
    order: Order,
    /// Slots that were set aside since the last restore. Some may be gone, or waiting anew.
    aside: Vec<usize>,
    /// Slots by arrival, if the policy ranks by the cache.
    by_arrival: Option<BTreeMap<u64, usize>>,
    /// The next refresh begins with the first request that arrived here or later.
    refresh_from: u64,
    /// Slots to be refreshed; empty between calls.
    to_refresh: Vec<usize>,
    len: usize,
    tokens: u64,
}

impl Waiting {
    /// Nothing waits.
    pub fn new(policy: Box<dyn Policy>) -> Self {
        Self {
            entries: Vec::new(),
            order: if policy.by_tenant() { Order::Tenants(Tenants::default()) } else { Order::Plain(BTreeSet::new()) },
            aside: Vec::new(),
            by_arrival: policy.ranks_by_cache().then(BTreeMap::new),
            refresh_from: 0,
            to_refresh: Vec::new(),
            len: 0,
            tokens: 0,
            policy,
        }
    }

    /// Requests that wait, set aside or not.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Tokens that need KV when all that wait, set aside or not, are admitted.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Whether the request in a slot waits, set aside or not.
    pub fn contains(&self, slot: usize) -> bool {
        self.entries.get(slot).is_some_and(Option::is_some)
    }

    /// A request waits: one that has just [`Self::joined`], or one that was preempted. Its slot MUST be free, and its
    /// arrival MUST be that of no other.
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
        self.entries[slot] = Some(Entry { view: *view, rank: self.policy.rank(view), aside: false });
        self.len += 1;
        self.tokens += u64::from(view.tokens);
        if let Some(by_arrival) = &mut self.by_arrival {
            by_arrival.insert(view.arrival, slot);
        }
        self.show(slot);
    }

    /// A request waits no more, because it was admitted or has ended. Returns whether it did wait.
    pub fn remove(&mut self, slot: usize) -> bool {
        if !self.contains(slot) {
            return false;
        }
        self.hide(slot);
        let entry = self.entries[slot].take().expect("it is contained");
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

    /// Whether the policy wants to know who was served.
    pub fn counts_service(&self) -> bool {
        matches!(self.order, Order::Tenants(_))
    }

    /// Whose turn it is, of those not set aside.
    pub fn first(&self) -> Option<usize> {
        match &self.order {
            Order::Plain(places) => places.first().map(|(.., slot)| *slot),
            Order::Tenants(tenants) => tenants.first(),
        }
    }

    /// Hides a waiting request from [`Self::first`] until [`Self::restore`].
    pub fn set_aside(&mut self, slot: usize) {
        self.hide(slot);
        let entry = self.entries[slot].as_mut().expect("who is set aside waits");
        if !entry.aside {
            entry.aside = true;
            self.aside.push(slot);
        }
    }

    /// Shows those that were set aside, each in its place.
    pub fn restore(&mut self) {
        while let Some(slot) = self.aside.pop() {
            if let Some(entry) = self.entries[slot].as_mut()
                && entry.aside
            {
                entry.aside = false;
                self.show(slot);
            }
        }
    }

    /// Whether the order depends on what is in the cache.
    pub fn needs_refresh(&self) -> bool {
        self.by_arrival.is_some()
    }

    /// Counts the cached tokens of waiting requests again, by slot, if the order depends on them: those of
    /// [`REFRESH_MAX`] at most, in order of arrival and from where the last call stopped, so that all have their turn.
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
        let entry = self.entries[slot].as_mut().expect("who has a place by arrival waits");
        let cached_tokens = cached_tokens(slot);
        if cached_tokens == entry.view.cached_tokens {
            return;
        }
        entry.view.cached_tokens = cached_tokens;
        let (rank, aside) = (self.policy.rank(&entry.view), entry.aside);
        if !aside {
            self.hide(slot);
        }
        self.entries[slot].as_mut().expect("it waits").rank = rank;
        if !aside {
            self.show(slot);
        }
    }

    /// A request of a tenant was accepted. MUST come before it is pushed.
    pub fn joined(&mut self, tenant: u64) {
        self.policy.joined(tenant);
    }

    /// A request of a tenant has ended, from whatever state. MUST come after it was removed and all its tokens served.
    pub fn left(&mut self, tenant: u64) {
        self.policy.left(tenant);
    }

    /// Tokens were run for a tenant: so many of prompts, and so many generated. Cached tokens are not run.
    pub fn served(&mut self, tenant: u64, prompt_tokens: u32, output_tokens: u32) {
        self.policy.served(tenant, prompt_tokens, output_tokens);
        if let Order::Tenants(tenants) = &mut self.order {
            tenants.place(tenant, self.policy.standing(tenant));
        }
    }

    /// How dear a running request is: the least dear is preempted first, and of equals the last to arrive.
    pub fn keep(&self, view: &RequestView) -> i128 {
        self.policy.keep(view)
    }

    /// Puts a request into the order.
    fn show(&mut self, slot: usize) {
        let entry = self.entries[slot].as_ref().expect("who is shown waits");
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

    /// Takes a request out of the order, if it is in it.
    fn hide(&mut self, slot: usize) {
        let entry = self.entries[slot].as_ref().expect("who is hidden waits");
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

/// Tenants by where they stand, each with its requests in order.
#[derive(Debug, Default)]
struct Tenants {
    by_id: BTreeMap<u64, Tenant>,
    /// (standing, place of its first request) of tenants with one that is not set aside.
    firsts: BTreeSet<(u64, Place)>,
}

#[derive(Debug, Default)]
struct Tenant {
    /// Requests, set aside or not.
    waiting: usize,
    /// Those that are not set aside.
    places: BTreeSet<Place>,
    /// Its entry in `firsts`.
    first: Option<(u64, Place)>,
}

impl Tenants {
    fn first(&self) -> Option<usize> {
        self.firsts.first().map(|(_, (.., slot))| *slot)
    }

    /// Counts a request in. Returns whether the tenant had none.
    fn arrive(&mut self, tenant: u64) -> bool {
        let tenant = self.by_id.entry(tenant).or_default();
        tenant.waiting += 1;
        tenant.waiting == 1
    }

    /// Counts a request out that is not in the order any more. Returns whether the tenant has none.
    fn depart(&mut self, id: u64) -> bool {
        let tenant = self.by_id.get_mut(&id).expect("it has a request");
        tenant.waiting -= 1;
        let none = tenant.waiting == 0;
        if none {
            debug_assert!(tenant.first.is_none() && tenant.places.is_empty());
            self.by_id.remove(&id);
        }
        none
    }

    fn show(&mut self, tenant: u64, place: Place) {
        self.by_id.get_mut(&tenant).expect("it has a request").places.insert(place);
    }

    fn hide(&mut self, tenant: u64, place: &Place) {
        self.by_id.get_mut(&tenant).expect("it has a request").places.remove(place);
    }

    /// Puts a tenant where it stands, if any of its requests is in the order.
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
