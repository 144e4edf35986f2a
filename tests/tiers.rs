//! The tiers of the prefix cache behind the device, with a worker whose cells carry their contents.

use std::collections::BTreeMap;

use trunkline_core::{
    Action, Config, Core, Event, FinishReason, Namespace, Request, RequestId, Step, TierConfig, Token, Transfer, Usage,
    Write, eviction,
};
use trunkline_tests::oracle::OracleWorker;

/// Tokens in a block.
const BLOCK: u32 = 4;
const DEVICE_BLOCKS: u32 = 48;

struct Rig {
    core: Core,
    worker: OracleWorker,
    step: Option<Box<Step>>,
    copies: Vec<Transfer>,
    now_ns: u64,
    ends: BTreeMap<u64, (FinishReason, Usage)>,
}

fn tier(blocks: u32, write: Write, eviction: &str) -> TierConfig {
    TierConfig { name: "tier".into(), blocks, write, eviction: eviction.into() }
}

/// Forty-eight blocks on the device, and these tiers.
fn config(tiers: Vec<TierConfig>) -> Config {
    Config {
        block_size: BLOCK,
        device_blocks: DEVICE_BLOCKS,
        max_batch_tokens: 200,
        max_batch_size: 4,
        max_context: 200,
        launch_watermark: 0.0,
        tiers,
        ..Config::default()
    }
}

/// A prompt of its own kind.
fn prompt(kind: u32, n: u32) -> Vec<Token> {
    (0..n).map(|i| (kind * 131 + i * 7 + kind * i) % 997).collect()
}

impl Rig {
    fn new(config: Config) -> Self {
        let worker = OracleWorker::new(&config, 1);
        let core = Core::new(config).unwrap();
        let mut rig = Self { core, worker, step: None, copies: Vec::new(), now_ns: 0, ends: BTreeMap::new() };
        rig.event(Event::WorkerJoined);
        rig
    }

    fn event(&mut self, event: Event) {
        self.now_ns += 1;
        let mut actions = Vec::new();
        self.core.handle(self.now_ns, event, &mut actions);
        self.core.check();
        for action in actions {
            match action {
                Action::RunStep(step) => {
                    self.worker.begin_step(&step);
                    assert!(self.step.replace(step).is_none());
                }
                Action::Transfer(transfer) => {
                    self.worker.begin_transfer(&transfer);
                    self.copies.push(*transfer);
                }
                Action::Finish { request, reason, usage } => {
                    assert!(self.ends.insert(request.0, (reason, usage)).is_none());
                }
                Action::Token { .. } | Action::Flushed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn submit(&mut self, id: u64, prompt: Vec<Token>, max_tokens: u32) {
        let mut request = Request::new(RequestId(id), Namespace::default().root(), prompt, max_tokens);
        request.hash_prompt(BLOCK);
        self.worker.expect(&request);
        self.event(Event::Submit(Box::new(request)));
    }

    fn answer(&mut self) {
        let step = self.step.take().expect("a step is in flight");
        let result = self.worker.end_step(&step);
        self.event(Event::StepFinished(result));
    }

    fn end_copy(&mut self, ok: bool) {
        let id = self.copies.remove(0).id;
        self.worker.end_transfer(id, ok);
        self.event(if ok { Event::TransferFinished(id) } else { Event::TransferFailed(id) });
    }

    /// Runs until nothing is under way.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            match (self.step.is_some(), self.copies.is_empty()) {
                (true, _) => self.answer(),
                (false, false) => self.end_copy(true),
                (false, true) => return,
            }
        }
        panic!("it never settles");
    }

    /// Runs a request to its end; gives the tokens of its prompt that were in the cache.
    fn ask(&mut self, id: u64, prompt: Vec<Token>) -> u32 {
        self.submit(id, prompt, 1);
        self.settle();
        self.ends[&id].1.cached_tokens
    }

    /// Asks many other things, a block each, so that what was on the device is gone from it, and slowly enough for
    /// writing back.
    fn overrun(&mut self) {
        for _ in 0..DEVICE_BLOCKS + 4 {
            let id = 1000 + self.ends.len() as u64;
            self.ask(id, prompt(id as u32, BLOCK + 1));
        }
    }
}

#[test]
fn what_the_device_evicted_comes_back_from_the_tier() {
    for write in [Write::Through, Write::Back] {
        let mut rig = Rig::new(config(vec![tier(100, write, "lru")]));
        assert_eq!(rig.ask(1, prompt(1, 33)), 0);
        rig.overrun();
        assert!(rig.ask(4, prompt(1, 33)) > 0, "{write:?}: {:?}", rig.core.stats());
        assert!(rig.core.stats().tiers[0].hit_blocks > 0);
    }
    let mut rig = Rig::new(config(Vec::new()));
    rig.ask(1, prompt(1, 33));
    rig.overrun();
    assert_eq!(rig.ask(3, prompt(1, 33)), 0, "without a tier it is gone");
}

#[test]
fn second_use_takes_what_was_found_before_and_nothing_else() {
    let mut rig = Rig::new(config(vec![tier(100, Write::SecondUse, "lru")]));
    rig.ask(1, prompt(1, 33));
    assert_eq!(rig.core.stats().tiers[0].stored_blocks, 0);
    rig.ask(2, prompt(1, 33));
    assert_eq!(rig.core.stats().tiers[0].stored_blocks, 8);
}

#[test]
fn a_tier_drops_the_tail_of_a_prefix_before_its_head() {
    for name in eviction::REGISTRY.names() {
        let mut rig = Rig::new(config(vec![tier(10, Write::Through, name)]));
        rig.ask(1, prompt(1, 33));
        // Four more blocks: two of the eight there must go.
        rig.ask(2, prompt(2, 17));
        // What cannot be computed takes every block of the device and leaves nothing in the tier.
        rig.submit(3, prompt(3, DEVICE_BLOCKS * BLOCK - 1), 1);
        assert_eq!(rig.core.stats().idle_blocks, 0, "{name}: all are taken");
        rig.event(Event::Fail(RequestId(3)));
        rig.settle();
        let cached = rig.ask(4, prompt(1, 33));
        assert!(cached >= 16, "{name}: {cached} of 32 tokens are left");
    }
}

#[test]
fn blocks_go_on_to_the_tier_behind_and_come_back_from_it() {
    for (near, far) in [(Write::Through, Write::Through), (Write::Through, Write::Back), (Write::Back, Write::Back)] {
        let mut rig = Rig::new(config(vec![tier(60, near, "lru"), tier(800, far, "lru")]));
        rig.ask(1, prompt(1, 33));
        (0..4).for_each(|_| rig.overrun());
        assert!(rig.ask(9, prompt(1, 33)) > 0, "{near:?} {far:?}: {:?}", rig.core.stats().tiers);
        assert!(rig.core.stats().tiers[1].hit_blocks > 0, "{near:?} {far:?}");
    }
}

#[test]
fn a_copy_that_fails_costs_a_recomputation() {
    let mut rig = Rig::new(config(vec![tier(100, Write::Through, "lru")]));
    rig.ask(1, prompt(1, 33));
    rig.overrun();
    rig.submit(3, prompt(1, 33), 2);
    assert_eq!((rig.core.stats().loading, rig.copies.len()), (1, 1));
    rig.end_copy(false);
    rig.settle();
    let (reason, usage) = rig.ends[&3];
    assert_eq!((reason, usage.cached_tokens), (FinishReason::Length, 0));
}

#[test]
fn a_request_that_loads_ends_when_its_copies_end_and_leaves_nothing() {
    let (abort, stop) = (Event::Abort(RequestId(3)), Event::Stop(RequestId(3)));
    for (end, reason) in [(abort, FinishReason::Abort), (stop, FinishReason::Stop)] {
        let mut rig = Rig::new(config(vec![tier(100, Write::Through, "lru")]));
        rig.ask(1, prompt(1, 33));
        rig.overrun();
        rig.submit(3, prompt(1, 33), 2);
        assert_eq!(rig.core.stats().loading, 1);
        rig.event(end);
        assert!(!rig.ends.contains_key(&3), "its blocks are being written");
        rig.settle();
        assert_eq!(rig.ends[&3].0, reason);
        let stats = rig.core.stats();
        assert_eq!((stats.free_blocks + stats.idle_blocks, stats.moving_blocks), (DEVICE_BLOCKS, 0));
    }
}

#[test]
fn tiers_outlive_a_worker_and_a_late_copy_of_it_is_ignored() {
    let mut rig = Rig::new(config(vec![tier(100, Write::Through, "lru")]));
    rig.ask(1, prompt(1, 33));
    rig.overrun();
    rig.submit(3, prompt(1, 33), 2);
    let late = rig.copies.remove(0).id;
    rig.worker.reset();
    rig.event(Event::WorkerLost);
    rig.event(Event::TransferFinished(late));
    rig.event(Event::WorkerJoined);
    rig.settle();
    let (reason, usage) = rig.ends[&3];
    assert_eq!((reason, usage.cached_tokens), (FinishReason::Length, 32));
}

#[test]
fn a_flush_empties_the_tiers_too() {
    let mut rig = Rig::new(config(vec![tier(100, Write::Through, "lru")]));
    rig.ask(1, prompt(1, 33));
    rig.event(Event::FlushCache);
    assert_eq!(rig.core.stats().tiers[0].blocks, 0);
    assert_eq!(rig.ask(2, prompt(1, 33)), 0);
}

#[test]
fn what_a_worker_could_not_compute_is_not_published_and_does_not_count_against_others() {
    let mut rig = Rig::new(config(vec![tier(100, Write::Through, "lru")]));
    rig.submit(1, prompt(1, 9), 30);
    for guilty in 10..16 {
        rig.answer();
        rig.submit(guilty, prompt(guilty as u32, 9), 5);
        rig.answer();
        assert_eq!(rig.step.as_ref().unwrap().seqs.len(), 2);
        rig.event(Event::Fail(RequestId(guilty)));
        (rig.step, rig.copies) = (None, Vec::new());
        rig.worker.reset();
        rig.event(Event::WorkerLost);
        rig.event(Event::WorkerJoined);
        assert_eq!(rig.ends[&guilty].0, FinishReason::Error);
    }
    rig.settle();
    assert_eq!(rig.ends[&1].0, FinishReason::Length);
    let published = rig.core.stats().published_blocks;
    rig.submit(2, prompt(2, 33), 1);
    rig.event(Event::Fail(RequestId(2)));
    rig.settle();
    assert_eq!(rig.core.stats().published_blocks, published);
}
