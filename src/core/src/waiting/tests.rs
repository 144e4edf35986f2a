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

#[test]
fn deferred_requests_are_hidden_until_restored() {
    for entry in policy::REGISTRY.entries() {
        let mut waiting = waiting(entry.name, 4);
        waiting.defer(0);
        waiting.defer(1);
        waiting.defer(1);
        assert_eq!((waiting.first(), waiting.len(), waiting.tokens()), (Some(2), 4, 40));
        assert!(waiting.contains(0));
        assert!(waiting.remove(0) && !waiting.remove(0));
        waiting.defer(2);
        waiting.defer(3);
        assert_eq!((waiting.first(), waiting.len(), waiting.tokens()), (None, 3, 30));
        waiting.push(0, &at(9));
        assert_eq!(waiting.first(), Some(0), "the slot has another request now");
        waiting.restore();
        assert_eq!((waiting.first(), waiting.len()), (Some(1), 4));
        waiting.restore();
        let order: Vec<_> =
            std::iter::from_fn(|| waiting.first().inspect(|slot| assert!(waiting.remove(*slot)))).collect();
        assert_eq!((order, waiting.tokens(), waiting.is_empty()), (vec![1, 2, 3, 0], 0, true));
    }
}

#[test]
fn refreshes_go_round_in_order_of_arrival() {
    let n = REFRESH_MAX as u64 * 2 + 10;
    let mut waiting = waiting("lpm", n);
    let mut asked = Vec::new();
    let mut refresh = |waiting: &mut Waiting| {
        asked.clear();
        waiting.refresh(&mut |slot| {
            asked.push(slot);
            slot as u32
        });
        asked.clone()
    };
    assert!(waiting.needs_refresh());
    assert_eq!(refresh(&mut waiting), (0..REFRESH_MAX).collect::<Vec<_>>());
    assert_eq!(waiting.first(), Some(REFRESH_MAX - 1));
    // The last one refreshed and the next one to refresh are gone.
    assert!(waiting.remove(REFRESH_MAX - 1) && waiting.remove(REFRESH_MAX));
    assert_eq!(refresh(&mut waiting), (REFRESH_MAX + 1..=2 * REFRESH_MAX).collect::<Vec<_>>());
    let round = (2 * REFRESH_MAX + 1..n as usize).chain(0..REFRESH_MAX - 9);
    assert_eq!(refresh(&mut waiting), round.collect::<Vec<_>>());
    assert_eq!(waiting.first(), Some(n as usize - 1));
}

#[test]
fn a_refresh_counts_each_request_once_and_none_if_the_policy_ignores_the_cache() {
    for entry in policy::REGISTRY.entries() {
        let mut waiting = waiting(entry.name, 5);
        let mut asked = Vec::new();
        waiting.refresh(&mut |slot| {
            asked.push(slot);
            0
        });
        assert_eq!(waiting.needs_refresh(), ["sjf", "lpm"].contains(&entry.name));
        assert_eq!(asked, if waiting.needs_refresh() { vec![0, 1, 2, 3, 4] } else { vec![] });
    }
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
    deferred: bool,
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
                "fcfs" => 0,
                "priority" => i128::from(view.priority) * 30_000_000_000 + at_ns,
                "sjf" => (i128::from(view.tokens) - cached).max(0) * 1_000_000 + at_ns,
                "lpm" => at_ns - cached * 1_000_000,
                "edf" => view.deadline_ns.map_or(i128::MAX, i128::from),
                "vtc" => i128::from(self.counter(view.tenant)),
                other => unreachable!("{other} has no model"),
            };
            (rank, view.arrival)
        };
        self.waiting().filter(|request| !request.deferred).min_by_key(key).map(|request| request.slot)
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

/// Applies the same operations to the order and to the model, and compares the two after each.
fn run(name: &'static str, ops: &[(u8, usize, u64)]) -> Result<(), TestCaseError> {
    let mut waiting = Waiting::new(make(name));
    let (counters, last_queued) = (BTreeMap::new(), None);
    let mut model = Model { name, requests: Vec::new(), counters, last_queued, next_arrival: 0 };
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
                    deadline_ns: (draw % 3 > 0).then_some(draw % 17),
                    prompt_tokens: 1 + (draw % 50) as u32,
                    max_tokens: 5,
                    tokens: 1 + (draw % 50) as u32,
                    cached_tokens: cached(slot, 0),
                };
                model.next_arrival += 1;
                model.lift(view.tenant);
                model.requests.push(Modelled { slot, view, waits: true, deferred: false });
                waiting.joined(view.tenant);
                waiting.push(slot, &view);
            }
            // The first is admitted.
            4 | 5 => {
                let Some(slot) = waiting.first() else { continue };
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
                model.requests[at].deferred = true;
                waiting.defer(model.requests[at].slot);
            }
            8 => {
                model.requests.iter_mut().for_each(|request| request.deferred = false);
                waiting.restore();
            }
            9 => {
                let ranked = waiting.needs_refresh();
                for request in model.requests.iter_mut().filter(|request| ranked && request.waits) {
                    request.view.cached_tokens = cached(request.slot, draw);
                }
                waiting.refresh(&mut |slot| cached(slot, draw));
            }
            // One generates.
            10 | 11 => {
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
                (request.waits, request.deferred) = (true, false);
                waiting.push(request.slot, &request.view);
            }
            // One ends while it runs.
            _ => {
                let Some(at) = model.pick(false, pick) else { continue };
                waiting.left(model.requests.remove(at).view.tenant);
            }
        }
        prop_assert_eq!(waiting.first(), model.first());
        prop_assert_eq!(waiting.len(), model.waiting().count());
        prop_assert_eq!(waiting.is_empty(), model.waiting().next().is_none());
        prop_assert_eq!(waiting.tokens(), model.waiting().map(|request| u64::from(request.view.tokens)).sum::<u64>());
        for request in &model.requests {
            prop_assert_eq!(waiting.contains(request.slot), request.waits);
            if name == "vtc" {
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
