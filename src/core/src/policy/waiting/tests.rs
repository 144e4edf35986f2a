//! The order of waiting requests against a plain list, under every policy.

use proptest::prelude::*;

use super::*;
use crate::policy;
use crate::policy::tests::make;

fn at(arrival: u64) -> RequestView {
    RequestView { arrival, tokens: 10, ..RequestView::default() }
}

fn waiting(spec: &str, n: u64) -> Waiting {
    let mut waiting = Waiting::new(make(spec));
    for arrival in 0..n {
        waiting.joined(0);
        waiting.push(arrival as usize, &at(arrival));
    }
    waiting
}

const ONE: BlockHash = BlockHash(1);
const OTHER: BlockHash = BlockHash(1 << 64 | 1);

/// Returns the next request if no cached prefix changed.
fn next(waiting: &mut Waiting) -> Option<usize> {
    waiting.next(0, &mut |_| CachedPrefix::default())
}

/// Admits all requests that are not parked. Returns their slots, in order.
fn drain(waiting: &mut Waiting) -> Vec<usize> {
    std::iter::from_fn(|| next(waiting).inspect(|slot| assert!(waiting.remove(*slot)))).collect()
}

#[test]
fn parked_requests_are_passed_until_their_block_wakes_them_into_the_old_order() {
    for entry in policy::REGISTRY.entries() {
        let mut waiting = waiting(entry.name, 6);
        waiting.park(0, ONE);
        waiting.park(1, OTHER);
        waiting.park(3, ONE);
        waiting.park(4, ONE);
        assert_eq!((next(&mut waiting), waiting.len(), waiting.tokens()), (Some(2), 6, 60));
        assert!(waiting.contains(0));
        assert!(waiting.remove(4) && !waiting.remove(4), "a parked request can end");
        assert_eq!(waiting.parked().collect::<Vec<_>>(), [(ONE, 0), (ONE, 3), (OTHER, 1)]);
        waiting.push(4, &at(9));
        waiting.wake(ONE);
        assert_eq!(waiting.parked().collect::<Vec<_>>(), [(OTHER, 1)], "{}", entry.name);
        assert_eq!(drain(&mut waiting), [0, 2, 3, 5, 4], "{}", entry.name);
        waiting.wake(ONE);
        assert_eq!((next(&mut waiting), waiting.len()), (None, 1));
        waiting.wake(OTHER);
        assert_eq!((drain(&mut waiting), waiting.tokens(), waiting.is_empty()), (vec![1], 0, true));
    }
}

#[test]
fn hopeless_requests_go_behind_all_others_once_and_parked_ones_when_they_wake() {
    let mut waiting = Waiting::new(make("edf"));
    let due = |n: u64, deadline_ns: Option<u64>| RequestView { deadline_ns, service_ns: 10, ..at(n) };
    for (slot, deadline_ns) in [Some(30), Some(40), Some(50), Some(60), None].into_iter().enumerate() {
        waiting.joined(0);
        waiting.push(slot, &due(slot as u64, deadline_ns));
    }
    waiting.park(1, ONE);
    assert!(waiting.remove(0));
    assert_eq!(waiting.give_up(20), 0);
    assert_eq!(waiting.give_up(41), 2, "those to begin by 30 and 40");
    assert_eq!(waiting.give_up(41), 0);
    waiting.wake(ONE);
    assert_eq!(drain(&mut waiting), [3, 4, 1, 2]);
    let mut others = Waiting::new(make("sjf"));
    others.joined(0);
    others.push(0, &due(0, Some(1)));
    assert_eq!(others.give_up(u64::MAX), 0, "no other policy weighs deadlines");
}

#[test]
fn woken_requests_come_in_the_order_of_the_policy() {
    let orders =
        [("fcfs", [0, 1, 2, 3, 4]), ("priority", [3, 4, 1, 0, 2]), ("edf", [2, 0, 4, 1, 3]), ("sjf", [4, 2, 0, 1, 3])];
    for (name, order) in orders {
        let mut waiting = Waiting::new(make(name));
        // (priority, deadline, tokens)
        let requests = [(5, 20, 300), (2, 90, 400), (7, 10, 200), (-1, 95, 500), (0, 40, 100)];
        for (slot, (priority, deadline_ns, tokens)) in requests.into_iter().enumerate() {
            let (deadline_ns, service_ns) = (Some(1_000 + deadline_ns), 1_000);
            let view = RequestView { priority, deadline_ns, service_ns, tokens, ..at(slot as u64) };
            waiting.joined(0);
            waiting.push(slot, &view);
        }
        [2, 0, 3].into_iter().for_each(|slot| waiting.park(slot, ONE));
        waiting.wake(ONE);
        assert_eq!(drain(&mut waiting), order, "{name}");
    }
}

#[test]
fn only_requests_whose_cached_prefix_may_have_changed_are_counted_again() {
    let n = 2 * RECOUNTS_MAX + 10;
    let mut waiting = waiting("lpm", n as u64);
    // All but the last three miss one block.
    (0..n).for_each(|slot| waiting.watch(slot, Some(if slot < n - 3 { ONE } else { OTHER }), 0));
    let mut asked = Vec::new();
    let mut ask = |waiting: &mut Waiting, evictions, tokens: u32| {
        asked.clear();
        let first = waiting.next(evictions, &mut |slot| {
            asked.push(slot);
            CachedPrefix { tokens, next: None }
        });
        (first, asked.clone())
    };
    assert_eq!(ask(&mut waiting, 0, 9), (Some(0), vec![]), "nothing was published or evicted");
    waiting.published(OTHER);
    assert_eq!(ask(&mut waiting, 0, 9), (Some(n - 3), vec![n - 3, n - 2, n - 1]), "the longest prefix is first");
    waiting.published(OTHER);
    assert_eq!(ask(&mut waiting, 0, 9).1, Vec::<usize>::new(), "the requests watch the block after it");
    waiting.published(ONE);
    assert_eq!(ask(&mut waiting, 0, 16), (Some(0), (0..RECOUNTS_MAX).collect()), "a bounded number at once");
    assert_eq!(ask(&mut waiting, 0, 16).1, (RECOUNTS_MAX..2 * RECOUNTS_MAX).collect::<Vec<_>>());
    assert!(waiting.remove(2 * RECOUNTS_MAX));
    assert_eq!(ask(&mut waiting, 0, 16).1, (2 * RECOUNTS_MAX + 1..n - 3).collect::<Vec<_>>());
    assert_eq!(ask(&mut waiting, 0, 16).1, Vec::<usize>::new());
    // Blocks were evicted: a first request that lost its prefix is overtaken.
    assert_eq!(ask(&mut waiting, 1, 16), (Some(0), vec![0]));
    assert_eq!(ask(&mut waiting, 1, 0), (Some(0), vec![]));
    assert_eq!(ask(&mut waiting, 2, 0).1, (0..RECOUNTS_MAX).collect::<Vec<_>>());
}

#[test]
fn a_policy_that_ignores_the_cache_counts_nothing() {
    for entry in policy::REGISTRY.entries() {
        let mut waiting = waiting(entry.name, 5);
        (0..5).for_each(|slot| waiting.watch(slot, Some(ONE), 0));
        waiting.published(ONE);
        let mut asked = Vec::new();
        waiting.next(7, &mut |slot| {
            asked.push(slot);
            CachedPrefix::default()
        });
        assert_eq!(waiting.ranks_by_cache(), ["sjf", "lpm"].contains(&entry.name));
        assert_eq!(asked, if waiting.ranks_by_cache() { vec![0, 1, 2, 3, 4] } else { vec![] });
    }
}

#[test]
fn a_woken_request_is_counted_again() {
    let mut waiting = waiting("lpm", 3);
    (0..3).for_each(|slot| waiting.watch(slot, Some(ONE), 0));
    waiting.park(2, OTHER);
    waiting.published(ONE);
    let mut count = |slot| CachedPrefix { tokens: 10 * slot as u32, next: Some(ONE) };
    assert_eq!(waiting.next(0, &mut count), Some(1));
    waiting.wake(OTHER);
    assert_eq!(waiting.next(0, &mut count), Some(2));
}

#[test]
#[should_panic = "slot 1 waits already"]
fn a_slot_is_taken_once() {
    waiting("fcfs", 2).push(1, &at(7));
}

/// A request of the model.
#[derive(Clone, Debug)]
struct Modelled {
    slot: usize,
    view: RequestView,
    waits: bool,
    parked: Option<BlockHash>,
}

/// Reference model: all requests in a list, and a counter for every tenant ever seen, as in the paper.
struct Model {
    name: &'static str,
    requests: Vec<Modelled>,
    counters: BTreeMap<u64, u64>,
    last_queued: Option<u64>,
    next_arrival: u64,
}

impl Model {
    fn counter(&self, tenant: u64) -> u64 {
        self.counters.get(&tenant).copied().unwrap_or(0)
    }

    fn waiting(&self) -> impl Iterator<Item = &Modelled> {
        self.requests.iter().filter(|request| request.waits)
    }

    fn first(&self) -> Option<usize> {
        let key = |request: &&Modelled| {
            let view = &request.view;
            let (at_ns, cached) = (i128::from(view.arrival_ns), i128::from(view.cached_tokens));
            let rank = match self.name {
                // Nothing is sorted here; `sorting.rs` has a model of its own.
                "fcfs" | "lpm_sorted" => 0,
                "priority" => i128::from(view.priority) * 30_000_000_000 + at_ns,
                "sjf" => (i128::from(view.tokens) - cached).max(0) * 1_000_000 + at_ns,
                "lpm" => at_ns - cached * 1_000_000,
                "edf" => view
                    .latest_start_ns()
                    .map_or(1 << 90, |latest_ns| i128::from(latest_ns) + i128::from(view.uncached_tokens) * 1_000_000),
                "vtc" => i128::from(self.counter(view.tenant)),
                other => unreachable!("{other} has no model"),
            };
            (rank, view.arrival)
        };
        self.waiting().filter(|request| request.parked.is_none()).min_by_key(key).map(|request| request.slot)
    }

    /// Lifts the counter of a tenant whose request is about to wait.
    fn lift(&mut self, tenant: u64) {
        if self.waiting().all(|request| request.view.tenant != tenant) {
            let least = self.waiting().map(|request| self.counter(request.view.tenant)).min();
            let floor = least.or(self.last_queued.map(|last| self.counter(last))).unwrap_or(0);
            let counter = self.counter(tenant).max(floor);
            self.counters.insert(tenant, counter);
        }
    }

    /// Notes the last tenant to wait, after a request was taken out.
    fn unqueue(&mut self, tenant: u64) {
        if self.waiting().all(|request| request.view.tenant != tenant) {
            self.last_queued = Some(tenant);
        }
    }

    fn serve(&mut self, tenant: u64, prompt_tokens: u32, output_tokens: u32) {
        let counter = self.counter(tenant) + u64::from(prompt_tokens) + 2 * u64::from(output_tokens);
        self.counters.insert(tenant, counter);
    }

    /// Returns the `pick`-th waiting request, or the `pick`-th running one.
    fn pick(&self, waits: bool, pick: usize) -> Option<usize> {
        let of: Vec<_> = (0..self.requests.len()).filter(|at| self.requests[*at].waits == waits).collect();
        (!of.is_empty()).then(|| of[pick % of.len()])
    }
}

fn cached(slot: usize, salt: u64) -> u32 {
    (slot as u64 * 7 + salt * 13) as u32 % 40
}

/// Returns the block that would lengthen the cached prefix of a request.
fn watched(slot: usize) -> BlockHash {
    BlockHash(slot as u128 % 5)
}

fn count(slot: usize, salt: u64) -> CachedPrefix {
    CachedPrefix { tokens: cached(slot, salt), next: Some(watched(slot)) }
}

/// Applies the same operations to the order and to the model, and compares the two after each.
fn run(name: &'static str, ops: &[(u8, usize, u64)]) -> Result<(), TestCaseError> {
    let mut waiting = Waiting::new(make(name));
    let (counters, last_queued) = (BTreeMap::new(), None);
    let mut model = Model { name, requests: Vec::new(), counters, last_queued, next_arrival: 0 };
    let (mut salt, mut evictions) = (0, 0);
    for &(op, pick, draw) in ops {
        match op {
            // A new request.
            0..=3 => {
                let slot = (0..).find(|slot| model.requests.iter().all(|other| other.slot != *slot)).unwrap();
                let view = RequestView {
                    arrival: model.next_arrival,
                    arrival_ns: model.next_arrival * 10_000_000,
                    tenant: draw % 5,
                    priority: (draw / 5 % 4) as i32 - 2,
                    is_background: false,
                    deadline_ns: (draw % 3 > 0).then_some(model.next_arrival * 10_000_000 + draw % 17 * 3_000_000),
                    prompt_tokens: 1 + (draw % 50) as u32,
                    max_tokens: 5,
                    tokens: 1 + (draw % 50) as u32,
                    cached_tokens: cached(slot, salt),
                    uncached_tokens: (draw % 11) as u32,
                    service_ns: draw % 7 * 4_000_000,
                };
                model.next_arrival += 1;
                model.lift(view.tenant);
                model.requests.push(Modelled { slot, view, waits: true, parked: None });
                waiting.joined(view.tenant);
                waiting.push(slot, &view);
                waiting.watch(slot, Some(watched(slot)), evictions);
            }
            // The first is admitted.
            4 | 5 => {
                let Some(slot) = waiting.next(evictions, &mut |slot| count(slot, salt)) else { continue };
                let request = model.requests.iter_mut().find(|request| request.slot == slot).unwrap();
                request.waits = false;
                let view = request.view;
                model.unqueue(view.tenant);
                prop_assert!(waiting.remove(slot));
                model.serve(view.tenant, view.prompt_tokens, 0);
                waiting.served(view.tenant, view.prompt_tokens, 0);
            }
            // One ends while it waits.
            6 => {
                let Some(at) = model.pick(true, pick) else { continue };
                let Modelled { slot, view, .. } = model.requests.remove(at);
                model.unqueue(view.tenant);
                prop_assert!(waiting.remove(slot));
                waiting.left(view.tenant);
            }
            7 => {
                let Some(at) = model.pick(true, pick) else { continue };
                let request = &mut model.requests[at];
                if request.parked.is_none() {
                    let hash = BlockHash(u128::from(draw % 3));
                    request.parked = Some(hash);
                    waiting.park(request.slot, hash);
                }
            }
            8 => {
                let hash = BlockHash(u128::from(draw % 3));
                model.requests.iter_mut().filter(|request| request.parked == Some(hash)).for_each(|r| r.parked = None);
                waiting.wake(hash);
            }
            // Blocks are published and evicted: some prefixes grow, others shrink.
            9 => {
                salt = draw;
                evictions += 1;
                let ranked = waiting.ranks_by_cache();
                for request in model.requests.iter_mut().filter(|request| ranked && request.waits) {
                    let before = std::mem::replace(&mut request.view.cached_tokens, cached(request.slot, salt));
                    if request.view.cached_tokens > before {
                        waiting.published(watched(request.slot));
                    }
                }
            }
            // Two generate in turns, in one step.
            11 => {
                let (Some(a), Some(b)) = (model.pick(false, pick), model.pick(false, pick + 1)) else { continue };
                for at in [a, b, b, a, b].repeat(draw as usize % 6) {
                    let tenant = model.requests[at].view.tenant;
                    model.serve(tenant, 0, 1);
                    waiting.note_generated(tenant);
                }
                waiting.serve_generated();
            }
            // One generates.
            10 => {
                let Some(at) = model.pick(false, pick) else { continue };
                let tenant = model.requests[at].view.tenant;
                model.serve(tenant, 0, draw as u32 % 30);
                waiting.served(tenant, 0, draw as u32 % 30);
            }
            // One is preempted.
            12 => {
                let Some(at) = model.pick(false, pick) else { continue };
                model.lift(model.requests[at].view.tenant);
                let request = &mut model.requests[at];
                request.view.tokens += draw as u32 % 5;
                (request.waits, request.parked) = (true, None);
                request.view.cached_tokens = cached(request.slot, salt);
                waiting.push(request.slot, &request.view);
                waiting.watch(request.slot, Some(watched(request.slot)), evictions);
            }
            // One ends while it runs.
            _ => {
                let Some(at) = model.pick(false, pick) else { continue };
                waiting.left(model.requests.remove(at).view.tenant);
            }
        }
        prop_assert_eq!(waiting.next(evictions, &mut |slot| count(slot, salt)), model.first());
        prop_assert_eq!(waiting.len(), model.waiting().count());
        prop_assert_eq!(waiting.is_empty(), model.waiting().next().is_none());
        prop_assert_eq!(waiting.tokens(), model.waiting().map(|request| u64::from(request.view.tokens)).sum::<u64>());
        for request in &model.requests {
            prop_assert_eq!(waiting.contains(request.slot), request.waits);
            if name == "vtc" {
                let tenant = request.view.tenant;
                let seated = model.requests.iter().filter(|other| other.view.tenant == tenant && !other.waits).count();
                prop_assert_eq!(waiting.seats(tenant) as usize, seated);
                prop_assert_eq!(
                    waiting.preemption_rank(&request.view),
                    -i128::from(model.counter(request.view.tenant))
                );
            }
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn the_order_is_the_order_of_a_list(ops in prop::collection::vec((0u8..14, 0usize..64, 0u64..10_000), 0..120)) {
        for name in policy::REGISTRY.names() {
            run(name, &ops)?;
        }
    }
}

#[test]
fn requests_added_at_once_stand_where_they_would_one_by_one() {
    for entry in policy::REGISTRY.entries() {
        // Few among many are inserted, many are merged.
        for (there, added) in [(0, 5), (3, 40), (200, 4)] {
            let view = |slot: usize| RequestView {
                tenant: slot as u64 * 7 % 3,
                priority: slot as i32 * 5 % 4,
                deadline_ns: Some(1000 - slot as u64 * 13 % 11),
                tokens: 10 + slot as u32 * 3 % 5,
                // Those added arrived among the others.
                ..at(slot as u64 * 97 % 251)
            };
            let slots = there..there + added;
            let [mut at_once, mut one_by_one] = [0; 2].map(|_| {
                let mut waiting = Waiting::new(make(entry.name));
                (0..there + added).for_each(|slot| waiting.joined(view(slot).tenant));
                (0..there).for_each(|slot| waiting.push(slot, &view(slot)));
                waiting
            });
            at_once.push_all(slots.clone().map(|slot| (slot, view(slot))));
            slots.for_each(|slot| one_by_one.push(slot, &view(slot)));
            assert_eq!((at_once.len(), at_once.tokens()), (one_by_one.len(), one_by_one.tokens()));
            assert_eq!(drain(&mut at_once), drain(&mut one_by_one), "{}: {added} after {there}", entry.name);
        }
    }
}
