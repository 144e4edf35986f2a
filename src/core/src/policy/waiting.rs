//! The queue of requests waiting for admission, in the order of a policy.
//!
//! The policy ranks; [`Waiting`] keeps the order. For most policies the order is one sorted set of requests. For policies that
//! share among tenants it has two levels, the requests of each tenant and the tenants by standing, so that a tenant moves as
//! a whole when it is served. Every operation takes logarithmic time in the number of waiting requests, except
//! [`Waiting::next`], which counts the cached tokens of [`RECOUNTS_MAX`] requests at most, and [`Waiting::wake`], which takes
//! that time for each request woken. A policy may have the whole queue sorted instead, up to a length (`sorting.rs`).
//!
//! **Parked requests.** A request that waits for a block which another request is about to publish is parked under the hash of
//! the block: it keeps its place in the order, costs nothing until the block is published or the other request stops, and lets
//! requests behind it pass.
//!
//! **Background requests** ([`RequestView::is_background`]) stand behind all others, in the order of the policy among themselves. Tenants do not
//! count there: nobody who is served waits behind them.

mod sorting;
mod watches;

use std::collections::{BTreeMap, BTreeSet};

pub use self::sorting::Beginning;
use self::watches::Watches;
use crate::blocks::hash::BlockHash;
use crate::policy::{Policy, RequestView, Sorting};

/// Maximum number of requests whose cached tokens one [`Waiting::next`] counts again.
pub const RECOUNTS_MAX: usize = 256;

/// Places added at once are merged with the ones there if there is one for so many, and inserted one by one otherwise.
const MERGED_FROM_SHARE: usize = 16;

/// Added to the rank of a hopeless request, beyond all ranks.
const HOPELESS: i128 = 1 << 100;
/// Added to the rank of a background request where it is compared with those of others, beyond hopeless ones.
const BACKGROUND: i128 = 1 << 110;

/// Position of a request in the order: (rank, arrival, slot).
type Place = (i128, u64, usize);

/// The cached prefix of a waiting request, as counted by the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedPrefix {
    /// Leading tokens in the cache.
    pub tokens: u32,
    /// Hash of the block after them; `None` if the prompt has no further full block.
    pub next: Option<BlockHash>,
}

#[derive(Debug)]
struct Entry {
    view: RequestView,
    rank: i128,
    /// Block for which the request is parked.
    parked: Option<BlockHash>,
    /// Block after the cached prefix, watched; `None` while the request is parked.
    watched: Option<BlockHash>,
    /// Number of evictions at the last count of cached tokens.
    counted_at: u64,
    /// `true` once the request cannot meet its deadline any more.
    is_hopeless: bool,
}

impl Entry {
    fn place(&self, slot: usize) -> Place {
        (self.seat_rank(), self.view.arrival, slot)
    }

    /// Returns the rank, of a hopeless request behind all others.
    fn seat_rank(&self) -> i128 {
        self.rank + if self.is_hopeless { HOPELESS } else { 0 }
    }
}

/// The waiting requests, by slots of the caller's choice, and the policy for the order.
#[derive(Debug)]
pub struct Waiting {
    policy: Box<dyn Policy>,
    /// Rules of sorting, if the policy has any.
    sorting: Option<Sorting>,
    /// Waiting requests by slot.
    entries: Vec<Option<Entry>>,
    /// Requests without the parked ones and those in the background.
    order: Order,
    /// Background requests without the parked ones: behind all others.
    background: BTreeSet<Place>,
    /// (block, slot) of parked requests.
    parked: BTreeSet<(BlockHash, usize)>,
    /// (latest start, slot) of requests with a deadline that are not hopeless, if the policy weighs service.
    latest_starts: BTreeSet<(u64, usize)>,
    /// Blocks that would lengthen cached prefixes; `None` unless the policy ranks by the cache.
    watches: Option<Watches>,
    /// Tenant of each token generated and not counted yet.
    generated: Vec<u64>,
    /// Slots to count again; empty between calls.
    to_recount: Vec<usize>,
    len: usize,
    tokens: u64,
}

impl Waiting {
    /// Creates an empty queue ordered by `policy`.
    pub fn new(policy: Box<dyn Policy>) -> Self {
        Self {
            sorting: policy.sorting(),
            entries: Vec::new(),
            order: if policy.by_tenant() { Order::Tenants(Tenants::default()) } else { Order::Plain(BTreeSet::new()) },
            background: BTreeSet::new(),
            parked: BTreeSet::new(),
            latest_starts: BTreeSet::new(),
            watches: policy.ranks_by_cache().then(Watches::default),
            generated: Vec::new(),
            to_recount: Vec::new(),
            len: 0,
            tokens: 0,
            policy,
        }
    }

    /// Returns the number of waiting requests, parked ones included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns `true` if no request waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the tokens that need KV once all waiting requests, parked ones included, are admitted.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Returns `true` if a slot holds a waiting request, parked or not.
    pub fn contains(&self, slot: usize) -> bool {
        self.entries.get(slot).is_some_and(Option::is_some)
    }

    /// Adds a request that has just [`Self::joined`] or was preempted. The slot MUST be free, and no other waiting request
    /// may have the same arrival.
    ///
    /// # Panics
    /// Panics if the slot holds a waiting request.
    pub fn push(&mut self, slot: usize, view: &RequestView) {
        self.enter(slot, view);
        self.show(slot);
    }

    /// Adds a request. Returns its place, which is not in the order yet.
    fn enter(&mut self, slot: usize, view: &RequestView) -> Place {
        assert!(!self.contains(slot), "slot {slot} waits already");
        if self.entries.len() <= slot {
            self.entries.resize_with(slot + 1, || None);
        }
        if !view.is_background {
            self.arrive(view.tenant);
        }
        self.give_seat(view.tenant);
        let rank = self.policy.rank(view);
        if let Some(latest_ns) = view.latest_start_ns().filter(|_| self.policy.weighs_service()) {
            self.latest_starts.insert((latest_ns, slot));
        }
        let (parked, watched, counted_at, is_hopeless) = (None, None, 0, false);
        self.entries[slot] = Some(Entry { view: *view, rank, parked, watched, counted_at, is_hopeless });
        self.len += 1;
        self.tokens += u64::from(view.tokens);
        (rank, view.arrival, slot)
    }

    /// Counts in a waiting request of a tenant that is served in its turn.
    fn arrive(&mut self, tenant: u64) {
        if let Order::Tenants(tenants) = &mut self.order
            && tenants.arrive(tenant)
        {
            self.policy.queued(tenant);
        }
    }

    /// Adds requests, as [`Self::push`] does for each. Faster for many.
    pub fn push_all(&mut self, requests: impl Iterator<Item = (usize, RequestView)>) {
        let mut places: Vec<(u64, Place)> = Vec::new();
        for (slot, view) in requests {
            let place = self.enter(slot, &view);
            if view.is_background {
                self.show(slot);
                continue;
            }
            places.push((if self.counts_service() { view.tenant } else { 0 }, place));
        }
        places.sort_unstable();
        for places in places.chunk_by(|(tenant, _), (other, _)| tenant == other) {
            let tenant = places[0].0;
            let new = places.iter().map(|(_, place)| *place);
            match &mut self.order {
                Order::Plain(order) => merge(order, new),
                Order::Tenants(tenants) => {
                    merge(tenants.places(tenant), new);
                    tenants.place(tenant, self.policy.standing(tenant));
                }
            }
        }
    }

    /// Lets a request just pushed watch the block after its cached prefix, as counted after so many evictions. Only for policies that
    /// rank by the cache ([`Self::ranks_by_cache`]).
    pub fn watch(&mut self, slot: usize, next: Option<BlockHash>, evictions: u64) {
        let Some(watches) = &mut self.watches else { return };
        let entry = self.entries[slot].as_mut().expect("only a waiting request watches a block");
        entry.counted_at = evictions;
        if let Some(before) = std::mem::replace(&mut entry.watched, next) {
            watches.remove(before, slot);
        }
        if let Some(next) = next {
            watches.add(next, slot);
        }
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
        if let Some(latest_ns) = entry.view.latest_start_ns() {
            self.latest_starts.remove(&(latest_ns, slot));
        }
        if let Some(hash) = entry.parked {
            self.parked.remove(&(hash, slot));
        }
        if let (Some(watches), Some(hash)) = (&mut self.watches, entry.watched) {
            watches.remove(hash, slot);
        }
        if let Order::Tenants(tenants) = &mut self.order
            && !entry.view.is_background
            && tenants.depart(entry.view.tenant)
        {
            self.policy.unqueued(entry.view.tenant);
        }
        self.take_seat(entry.view.tenant);
        true
    }

    /// Returns `true` if ranks depend on the expected service of a request.
    pub fn weighs_service(&self) -> bool {
        self.policy.weighs_service()
    }

    /// Puts requests that cannot meet their deadline any more behind all others. Returns their number.
    pub fn give_up(&mut self, now_ns: u64) -> u64 {
        let mut hopeless = 0;
        while let Some((_, slot)) = self.latest_starts.first().copied().filter(|(latest_ns, _)| *latest_ns < now_ns) {
            self.latest_starts.pop_first();
            let is_parked = self.entries[slot].as_ref().is_some_and(|entry| entry.parked.is_some());
            if !is_parked {
                self.hide(slot);
            }
            self.entries[slot].as_mut().expect("a request with a latest start waits").is_hopeless = true;
            if !is_parked {
                self.show(slot);
            }
            hopeless += 1;
        }
        hopeless
    }

    /// Lets a request, if it waits in the background, stand among all others from now on.
    pub fn promote(&mut self, slot: usize) {
        let Some(entry) = self.entries.get(slot).and_then(Option::as_ref).filter(|entry| entry.view.is_background)
        else {
            return;
        };
        let (tenant, is_parked) = (entry.view.tenant, entry.parked.is_some());
        if !is_parked {
            self.hide(slot);
        }
        self.entries[slot].as_mut().expect("the request waits").view.is_background = false;
        self.arrive(tenant);
        if !is_parked {
            self.show(slot);
        }
    }

    /// Returns `true` if a request that is not in the background waits, parked ones left out.
    pub fn has_served(&self) -> bool {
        match &self.order {
            Order::Plain(places) => !places.is_empty(),
            Order::Tenants(tenants) => !tenants.firsts.is_empty(),
        }
    }

    /// Returns `true` if the policy counts the service of tenants: then the caller reports [`Self::served`].
    pub fn counts_service(&self) -> bool {
        matches!(self.order, Order::Tenants(_))
    }

    /// Returns the first `n` requests in order, parked ones left out. With a policy ordering tenants, the first request of each.
    pub fn first_unparked(&self, n: usize) -> Vec<usize> {
        let behind = self.background.iter().map(|(.., slot)| *slot);
        match &self.order {
            Order::Plain(places) => places.iter().map(|(.., slot)| *slot).chain(behind).take(n).collect(),
            Order::Tenants(tenants) => {
                let tenants = tenants.firsts.iter().map(|(_, (.., slot))| *slot);
                tenants.chain(behind).take(n).collect()
            }
        }
    }

    /// Returns the next request to admit by the cached tokens counted so far, parked ones left out.
    pub fn first(&self) -> Option<usize> {
        let first = match &self.order {
            Order::Plain(places) => places.first().map(|(.., slot)| *slot),
            Order::Tenants(tenants) => tenants.first(),
        };
        first.or_else(|| self.background.first().map(|(.., slot)| *slot))
    }

    /// Returns the next request to admit, parked ones left out, after counting cached tokens again as far as the order depends
    /// on them: of requests with a longer prefix in the cache than before, and of the first request if blocks were evicted
    /// since its last count. `evictions` is the number of blocks evicted so far, and `count` counts by slot, [`RECOUNTS_MAX`]
    /// times at most.
    pub fn next(&mut self, evictions: u64, count: &mut dyn FnMut(usize) -> CachedPrefix) -> Option<usize> {
        let Some(watches) = &mut self.watches else { return self.first() };
        let mut slots = std::mem::take(&mut self.to_recount);
        watches.take_grown(RECOUNTS_MAX, &mut slots);
        for slot in &slots {
            self.recount(*slot, evictions, count);
        }
        let recounts = slots.len();
        slots.clear();
        self.to_recount = slots;
        for _ in recounts..RECOUNTS_MAX {
            let slot = self.first()?;
            let entry = self.entries[slot].as_ref().expect("the first request waits");
            if entry.counted_at == evictions {
                return Some(slot);
            }
            self.recount(slot, evictions, count);
        }
        self.first()
    }

    fn recount(&mut self, slot: usize, evictions: u64, count: &mut dyn FnMut(usize) -> CachedPrefix) {
        let prefix = count(slot);
        self.watch(slot, prefix.next, evictions);
        let entry = self.entries[slot].as_mut().expect("only a waiting request is counted");
        if prefix.tokens != entry.view.cached_tokens {
            entry.view.cached_tokens = prefix.tokens;
            let rank = self.policy.rank(&entry.view);
            self.hide(slot);
            self.entries[slot].as_mut().expect("the slot holds a waiting request").rank = rank;
            self.show(slot);
        }
    }

    /// Hides a waiting request from [`Self::next`] until the block is published, or its owner stops: until [`Self::wake`].
    ///
    /// # Panics
    /// Panics if the slot holds no waiting request, or a parked one.
    pub fn park(&mut self, slot: usize, hash: BlockHash) {
        self.hide(slot);
        self.watch(slot, None, 0);
        let entry = self.entries[slot].as_mut().expect("only a waiting request can be parked");
        assert!(entry.parked.replace(hash).is_none(), "slot {slot} is parked already");
        self.parked.insert((hash, slot));
    }

    /// Returns `true` if a request is parked.
    pub fn parks(&self) -> bool {
        !self.parked.is_empty()
    }

    /// Puts all requests that are parked for a block back, each into its place in the order.
    pub fn wake(&mut self, hash: BlockHash) {
        while let Some(place) = self.parked.range((hash, 0)..=(hash, usize::MAX)).next().copied() {
            let (_, slot) = place;
            self.parked.remove(&place);
            let entry = self.entries[slot].as_mut().expect("a parked request waits");
            let (evictions, _) = (entry.counted_at, entry.parked.take());
            // Its cached prefix may be longer by now: count it again as if the block had just been published.
            self.watch(slot, Some(hash), evictions);
            self.show(slot);
        }
        self.published(hash);
    }

    /// Takes note of a published block that may lengthen the cached prefix of waiting requests.
    pub fn published(&mut self, hash: BlockHash) {
        if let Some(watches) = &mut self.watches {
            watches.published(hash);
        }
    }

    /// Returns the parked requests: the block waited for, and the slot.
    pub fn parked(&self) -> impl Iterator<Item = (BlockHash, usize)> {
        self.parked.iter().copied()
    }

    /// Returns `true` if the order depends on cached tokens.
    pub fn ranks_by_cache(&self) -> bool {
        self.watches.is_some()
    }

    /// Counts in a request of a tenant that was accepted. MUST be called before the request is pushed.
    pub fn joined(&mut self, tenant: u64) {
        self.policy.joined(tenant);
        self.take_seat(tenant);
    }

    /// Counts out a request of a tenant that has ended, in any state. MUST be called after the request was removed and all its
    /// tokens were reported as served.
    pub fn left(&mut self, tenant: u64) {
        self.policy.left(tenant);
        self.give_seat(tenant);
    }

    /// Counts a seat that a tenant takes. The caller does so when a swapped request begins to come back, or ends; the queue itself, for
    /// all requests that join or are admitted.
    pub fn take_seat(&mut self, tenant: u64) {
        if let Order::Tenants(tenants) = &mut self.order {
            *tenants.seats.entry(tenant).or_default() += 1;
        }
    }

    /// Counts a seat that a tenant gives up. The caller does so when a request begins to be swapped out; the queue itself, for all
    /// requests that wait or leave.
    pub fn give_seat(&mut self, tenant: u64) {
        if let Order::Tenants(tenants) = &mut self.order {
            let seats = tenants.seats.get_mut(&tenant).expect("the tenant has a seat");
            *seats -= 1;
            if *seats == 0 {
                tenants.seats.remove(&tenant);
            }
        }
    }

    /// Returns the seats of a tenant: requests that joined and neither wait nor are swapped out nor have left. 0 without order by tenant.
    pub fn seats(&self, tenant: u64) -> u32 {
        match &self.order {
            Order::Plain(_) => 0,
            Order::Tenants(tenants) => tenants.seats.get(&tenant).copied().unwrap_or(0),
        }
    }

    /// Counts tokens run for a tenant: prompt tokens computed and output tokens generated. Cached tokens do not count.
    pub fn served(&mut self, tenant: u64, prompt_tokens: u32, output_tokens: u32) {
        self.policy.served(tenant, prompt_tokens, output_tokens);
        if let Order::Tenants(tenants) = &mut self.order {
            tenants.place(tenant, self.policy.standing(tenant));
        }
    }

    /// Notes a token generated for a tenant, which counts from [`Self::serve_generated`] on.
    pub fn note_generated(&mut self, tenant: u64) {
        self.generated.push(tenant);
    }

    /// Counts the tokens noted since the last call, as [`Self::served`] does: once for each tenant, not for each token.
    pub fn serve_generated(&mut self) {
        if self.generated.is_empty() {
            return;
        }
        let mut generated = std::mem::take(&mut self.generated);
        generated.sort_unstable();
        for tokens in generated.chunk_by(|a, b| a == b) {
            self.served(tokens[0], 0, tokens.len() as u32);
        }
        generated.clear();
        self.generated = generated;
    }

    /// Returns `true` if running requests differ in their preemption ranks.
    pub fn has_preemption_ranks(&self) -> bool {
        self.policy.has_preemption_ranks()
    }

    /// Returns the preemption rank of a running request. The lowest is preempted first, and of equals the last to arrive.
    pub fn preemption_rank(&self, view: &RequestView) -> i128 {
        self.policy.preemption_rank(view) - behind(view)
    }

    /// Returns `true` if waiting requests take the seats of running ones, and not of those in the background alone.
    pub fn takes_seats(&self) -> bool {
        self.policy.takes_seats()
    }

    /// Returns the rank of a request out of the batch in a claim to a seat: the policy's, or the number that the seat would have among
    /// those of the tenant. Under a policy that takes no seats all are equal, but for those in the background.
    pub fn seat_rank(&self, view: &RequestView) -> i128 {
        let rank = match &self.order {
            _ if !self.takes_seats() => 0,
            Order::Plain(_) => self.policy.rank(view),
            Order::Tenants(_) => i128::from(self.seats(view.tenant)) + 1,
        };
        rank + behind(view)
    }

    /// Returns the rank of a waiting request in a claim to a seat.
    pub fn seat_rank_of(&self, slot: usize) -> i128 {
        let entry = self.entries[slot].as_ref().expect("the slot holds a waiting request");
        match &self.order {
            Order::Plain(_) if self.takes_seats() => entry.seat_rank() + behind(&entry.view),
            _ => self.seat_rank(&entry.view),
        }
    }

    /// Returns the rank of a running request that a claim to its seat has to be below; of several of a tenant the rank of the last.
    pub fn held_rank(&self, view: &RequestView) -> i128 {
        match &self.order {
            Order::Tenants(_) if self.takes_seats() => i128::from(self.seats(view.tenant)) + behind(view),
            _ => self.seat_rank(view),
        }
    }

    /// Returns the next `n` requests to claim seats, with their ranks, parked ones left out. With a policy ordering tenants, those of the
    /// first tenant: its next one is not known to be the second until the first is admitted.
    pub fn seat_claims(&self, n: usize) -> Vec<(i128, usize)> {
        let claim = |(.., slot): &Place| (self.seat_rank_of(*slot), *slot);
        match &self.order {
            Order::Plain(places) => places.iter().chain(&self.background).take(n).map(claim).collect(),
            Order::Tenants(tenants) => {
                let Some(first) = tenants.first() else { return self.background.iter().take(n).map(claim).collect() };
                let tenant = self.entries[first].as_ref().expect("the first request waits").view.tenant;
                let places = tenants.by_id[&tenant].places.iter().take(n);
                if !self.takes_seats() {
                    return places.map(claim).collect();
                }
                (i128::from(self.seats(tenant)) + 1..).zip(places.map(|(.., slot)| *slot)).collect()
            }
        }
    }

    /// Puts a request into the order.
    fn show(&mut self, slot: usize) {
        let entry = self.entries[slot].as_ref().expect("only a waiting request can be shown");
        match &mut self.order {
            _ if entry.view.is_background => {
                self.background.insert(entry.place(slot));
            }
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

    /// Takes a request out of the order; does nothing if the request is parked.
    fn hide(&mut self, slot: usize) {
        let entry = self.entries[slot].as_ref().expect("only a waiting request can be hidden");
        match &mut self.order {
            _ if entry.view.is_background => {
                self.background.remove(&entry.place(slot));
            }
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

/// Returns the distance of a request to those that are not in the background, in ranks.
fn behind(view: &RequestView) -> i128 {
    if view.is_background { BACKGROUND } else { 0 }
}

/// Adds sorted places to a set.
fn merge(order: &mut BTreeSet<Place>, places: impl ExactSizeIterator<Item = Place>) {
    if places.len() >= order.len() / MERGED_FROM_SHARE {
        // Both are walked through once, and nothing is searched for.
        order.append(&mut places.collect());
    } else {
        order.extend(places);
    }
}

#[derive(Debug)]
enum Order {
    Plain(BTreeSet<Place>),
    Tenants(Tenants),
}

/// Tenants by standing, each with ordered requests.
#[derive(Debug, Default)]
struct Tenants {
    by_id: BTreeMap<u64, Tenant>,
    /// (standing, place of the first request) of each tenant with requests that are not parked.
    firsts: BTreeSet<(u64, Place)>,
    /// Seats of each tenant that has some.
    seats: BTreeMap<u64, u32>,
}

#[derive(Debug, Default)]
struct Tenant {
    /// Number of waiting requests, parked ones included.
    waiting: usize,
    /// Places of the requests that are not parked.
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
        self.places(tenant).insert(place);
    }

    /// Returns the places of a tenant's requests.
    fn places(&mut self, tenant: u64) -> &mut BTreeSet<Place> {
        &mut self.by_id.get_mut(&tenant).expect("the tenant has a request").places
    }

    fn hide(&mut self, tenant: u64, place: &Place) {
        self.places(tenant).remove(place);
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
