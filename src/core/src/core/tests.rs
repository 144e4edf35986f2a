//! Facts about the inside of a core that no action shows.

use trunkline_port::Keeps;

use super::*;
use crate::blocks::hash::Namespace;
use crate::cache::transfer_table::TransferEnd;
use crate::config::{Preemption, TierConfig, WorkerFacts, Write};
use crate::policy::RequestView;
use crate::{schedule::readers, schedule::transfer_end};

/// A core whose worker answers each step at once.
struct Bench {
    core: Core,
    step: Option<Box<Step>>,
    /// Transfers in flight.
    copies: Vec<u64>,
    now_ns: u64,
    actions: Vec<Action>,
}

impl Bench {
    fn new(config: Config) -> Self {
        let config = Config { block_size: 4, launch_watermark: 0.0, max_context: 200, ..config };
        let mut bench =
            Self { core: Core::new(config).unwrap(), step: None, copies: Vec::new(), now_ns: 0, actions: Vec::new() };
        bench.event(Event::WorkerJoined);
        bench
    }

    fn event(&mut self, event: Event) {
        self.core.handle(self.now_ns, event, &mut self.actions);
        for action in self.actions.drain(..) {
            match action {
                Action::RunStep(step) => self.step = Some(step),
                Action::Transfer(transfer) => self.copies.push(transfer.id),
                _ => {}
            }
        }
    }

    fn submit(&mut self, id: u64, prompt: Vec<u32>, max_tokens: u32, deadline_ns: Option<u64>) {
        let mut request = Request::new(RequestId(id), Namespace::default().root(), prompt, max_tokens);
        request.deadline_ns = deadline_ns;
        request.hash_prompt(4);
        self.event(Event::Submit(Box::new(request)));
    }

    fn answer(&mut self) {
        let step = self.step.take().expect("a step is in flight");
        let mut result = StepResult { step: step.id, ..StepResult::default() };
        step.seqs.iter().for_each(|seq| result.push(if seq.sample { &[7] } else { &[] }));
        self.event(Event::StepFinished(result));
    }

    /// Ends the copies in flight.
    fn end_copies(&mut self) {
        let copies = std::mem::take(&mut self.copies);
        copies.into_iter().for_each(|id| self.event(Event::TransferFinished(id)));
    }

    fn live(&self, id: u64) -> bool {
        self.core.by_id.contains_key(&RequestId(id))
    }
}

#[test]
fn deadlines_of_ended_requests_take_no_memory_behind_the_next_one_either() {
    let mut bench = Bench::new(Config { device_blocks: 100, ..Config::default() });
    bench.submit(0, vec![1; 3], 190, Some(1_000));
    for id in 1..=1000 {
        bench.submit(id, vec![2; 3], 1, Some(1_000_000 + id));
        bench.event(Event::Abort(RequestId(id)));
        if id % 10 == 0 {
            bench.answer();
        }
        assert!(bench.core.deadlines.len() <= DEADLINES_SPARE + 2 * bench.core.by_id.len() + 1);
    }
    bench.event(Event::Abort(RequestId(0)));
    bench.answer();
    assert_eq!(bench.core.deadlines.len(), 0);
}

fn tier(write: Write) -> TierConfig {
    TierConfig { name: "tier".into(), blocks: 100, write, eviction: "lru".into(), shared: false }
}

/// Requests 1 and 2 share two blocks; 2 is preempted with six more published, and 1 takes two of those before 2 is back.
fn preempted() -> Bench {
    let mut bench = Bench::new(Config { device_blocks: 12, preemption: Preemption::Recompute, ..Config::default() });
    bench.submit(1, (0..9).collect(), 24, None);
    bench.answer();
    bench.submit(2, (0..8).chain(100..109).collect(), 28, None);
    while bench.core.stats().preemptions == 0 {
        bench.answer();
    }
    while bench.live(1) || bench.core.is_waiting(RequestId(2)) {
        bench.answer();
    }
    bench
}

#[test]
fn only_blocks_left_idle_by_a_preemption_count_as_found_again() {
    // Of five or six blocks left idle about two thirds are found; with the two shared ones it would be all.
    let expected = preempted().core.state.rehit.expect(1024);
    assert!((513..560).contains(&expected), "{expected}");
}

#[test]
fn a_lost_worker_says_nothing_of_blocks_found_again() {
    let mut bench = Bench::new(Config { device_blocks: 40, ..Config::default() });
    bench.submit(1, (0..19).collect(), 24, None);
    bench.answer();
    bench.event(Event::WorkerLost);
    bench.event(Event::WorkerJoined);
    bench.answer();
    assert_eq!(bench.core.state.rehit.expect(1024), 512, "as in the beginning");
}

#[test]
fn a_preemption_teaches_once_how_many_blocks_are_found_again_also_if_a_load_hangs() {
    let costs = Config { device_blocks: 12, recompute_token_ns: 1 << 40, ..Config::default() };
    let mut bench =
        Bench::new(Config { preemption: Preemption::Recompute, tiers: vec![tier(Write::Through)], ..costs });
    bench.submit(1, (0..17).collect(), 1, None);
    bench.answer();
    bench.end_copies();
    bench.submit(2, (1000..1009).collect(), 38, None);
    bench.answer();
    bench.submit(3, (0..17).collect(), 20, None);
    while bench.live(2) {
        bench.answer();
    }
    bench.end_copies();
    // Request 2 took the whole device before its end, so request 3, preempted, finds blocks in the tier alone.
    assert_eq!((bench.core.stats().preemptions, bench.core.stats().loading), (1, 1));
    let learned = bench.core.state.rehit.expect(1024);
    assert!(learned < 512, "{learned}: fewer than expected were found");
    while bench.core.stats().loading > 0 {
        bench.now_ns = bench.core.next_deadline_ns().expect("copies have a deadline");
        bench.event(Event::Tick);
    }
    bench.answer();
    assert_eq!((bench.core.state.rehit.expect(1024), bench.core.stats().preemptions), (learned, 1));
}

#[test]
fn sequences_in_neighbouring_slots_are_neighbours_in_memory() {
    // Sequences are requested from memory by address.
    let mut bench = Bench::new(Config { device_blocks: 64, ..Config::default() });
    for id in 0..3 {
        bench.submit(id, vec![1; 3], 4, None);
    }
    let sequences = &bench.core.state.sequences;
    let at = |slot: usize| (&raw const sequences[slot]).addr();
    assert_eq!([at(1) - at(0), at(2) - at(0)], [1, 2].map(|n| n * size_of::<Sequence>()));
}

/// Requests 1 and 2 share two blocks, and 2, with more of its own, is aborted while it is swapped out.
fn orphaned(groups: &[Keeps]) -> Bench {
    let mut bench = Bench::new(Config {
        device_blocks: 14,
        host_blocks: 50,
        preemption: Preemption::Swap,
        worker: WorkerFacts { groups: groups.to_vec(), ..WorkerFacts::default() },
        ..Config::default()
    });
    bench.submit(1, (0..9).collect(), 40, None);
    bench.answer();
    bench.submit(2, (0..8).chain(100..109).collect(), 40, None);
    while bench.copies.is_empty() {
        bench.answer();
    }
    bench.event(Event::Abort(RequestId(2)));
    assert!(!bench.live(2));
    bench
}

/// Blocks on the device are on their way to a tier that takes what is about to be evicted.
fn demoting() -> Bench {
    let mut bench = Bench::new(Config { device_blocks: 64, tiers: vec![tier(Write::Back)], ..Config::default() });
    bench.submit(1, (0..13).collect(), 1, None);
    bench.answer();
    bench.submit(2, (1000..1190).collect(), 1, None);
    bench.answer();
    bench.submit(3, (2000..2050).collect(), 20, None);
    while bench.copies.is_empty() {
        bench.answer();
    }
    bench
}

/// Ended requests are being stored in a tier: each has the prompt of the one before, and two blocks more.
fn storing(requests: u32, groups: &[Keeps]) -> Bench {
    let worker = WorkerFacts { groups: groups.to_vec(), ..WorkerFacts::default() };
    let tiers = vec![tier(Write::Through)];
    let mut bench = Bench::new(Config { device_blocks: 64, tiers, worker, ..Config::default() });
    for n in 1..=requests {
        bench.submit(u64::from(n), (0..8 * n + 1).collect(), 1, None);
        bench.answer();
        bench.now_ns += 1000;
    }
    assert_eq!(bench.copies.len(), requests as usize);
    bench
}

#[test]
fn blocks_that_transfers_in_flight_free_are_counted_as_they_will_be() {
    let benches = [
        ("a demotion", demoting()),
        ("stores", storing(3, &[])),
        ("stores with layer groups", storing(3, &[Keeps::All, Keeps::All])),
        ("a swap-out of nobody", orphaned(&[])),
        ("a swap-out of nobody with layer groups", orphaned(&[Keeps::All, Keeps::All])),
    ];
    for (name, mut bench) in benches {
        let (counted, usable) = (readers::future_free(&bench.core.state), bench.core.state.kv.usable());
        assert!(counted > 2, "{name}: {counted}");
        for id in bench.copies {
            // Without a scheduling pass, which would take some of them.
            transfer_end::end(&mut bench.core.state, id, TransferEnd::Finished);
        }
        assert_eq!(bench.core.state.kv.usable() - usable, counted, "{name}");
    }
}

#[test]
fn blocks_read_by_a_transfer_that_hangs_are_not_counted_as_freed_by_another() {
    let mut bench = storing(2, &[]);
    assert_eq!(readers::future_free(&bench.core.state), 4);
    bench.now_ns = bench.core.next_deadline_ns().expect("the first store has a deadline");
    bench.event(Event::Tick);
    assert_eq!(readers::future_free(&bench.core.state), 2, "the first two blocks are read by the first store too");
}

/// Submits a request of a tenant.
fn submit_for(bench: &mut Bench, tenant: u64, id: u64, n_prompt: u32, max_tokens: u32) {
    let prompt = (0..n_prompt).map(|at| id as u32 * 1000 + at).collect();
    let mut request = Request::new(RequestId(id), Namespace::default().root(), prompt, max_tokens);
    request.tenant = tenant;
    request.hash_prompt(4);
    bench.event(Event::Submit(Box::new(request)));
}

/// Returns the service of a tenant as `vtc` counts it: a token of a prompt is 1, a token of output 2.
fn service(bench: &Bench, tenant: u64) -> i128 {
    -bench.core.state.waiting.preemption_rank(&RequestView { tenant, ..RequestView::default() })
}

#[test]
fn a_tenant_pays_for_each_token_once_though_the_worker_is_lost_within_the_prompt() {
    let limits = Config { device_blocks: 100, max_batch_tokens: 20, policy: "vtc".into(), ..Config::default() };
    let mut bench = Bench::new(Config { max_batch_size: 4, ..limits });
    bench.event(Event::WorkerLost);
    submit_for(&mut bench, 2, 2, 8, 9);
    submit_for(&mut bench, 1, 1, 40, 5);
    bench.event(Event::WorkerJoined);
    assert_eq!((service(&bench, 1), service(&bench, 2)), (12, 8), "12 of 40 tokens fit into the step");
    bench.event(Event::WorkerLost);
    bench.event(Event::Abort(RequestId(2)));
    bench.event(Event::WorkerJoined);
    // A chunk of 20, of which 12 were paid for.
    assert_eq!(service(&bench, 1), 20);
    bench.answer();
    assert_eq!(service(&bench, 1), 40);
    for said in 1..=5 {
        bench.answer();
        assert_eq!(service(&bench, 1), 40 + 2 * said);
    }
    assert!(!bench.live(1));
}

#[test]
fn a_tenant_pays_for_each_token_once_though_the_request_is_preempted() {
    let limits = Config { device_blocks: 12, preemption: Preemption::Recompute, ..Config::default() };
    let mut bench = Bench::new(Config { policy: "vtc".into(), ..limits });
    bench.event(Event::WorkerLost);
    submit_for(&mut bench, 2, 2, 5, 30);
    submit_for(&mut bench, 1, 1, 24, 12);
    bench.event(Event::WorkerJoined);
    while bench.core.stats().preemptions == 0 {
        bench.answer();
    }
    assert!(bench.core.is_waiting(RequestId(1)), "its tenant was served more");
    bench.core.evict_idle();
    while bench.live(1) || bench.live(2) {
        bench.answer();
    }
    assert_eq!((service(&bench, 1), service(&bench, 2)), (24 + 2 * 12, 5 + 2 * 30));
}
