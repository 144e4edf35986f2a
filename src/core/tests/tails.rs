//! Prefixes in a tier: their beginning is computed while the rest is loaded.

use std::collections::BTreeMap;

use trunkline_core::{
    BlockFault, Config, Event, LoadCounters, Namespace, Place, Request, RequestId, TierConfig, Token, Write,
};
use trunkline_driver::Driver;

const BLOCK: u32 = 4;
/// Time to compute a token, nanoseconds: a block takes 4 us.
const TOKEN_NS: u64 = 1_000;
/// Tokens of a prompt of forty blocks and one token.
const LONG: u32 = 161;

fn config(copy_ns: u64) -> Config {
    let tier =
        TierConfig { name: "tier".into(), blocks: 400, write: Write::Through, eviction: "lru".into(), shared: false };
    Config {
        block_size: BLOCK,
        device_blocks: 96,
        max_batch_tokens: 16,
        max_batch_size: 4,
        max_context: 200,
        launch_watermark: 0.0,
        recompute_token_ns: TOKEN_NS,
        swap_block_ns: copy_ns,
        tiers: vec![tier],
        ..Config::default()
    }
}

fn prompt(kind: u32, n: u32) -> Vec<Token> {
    (0..n).map(|i| (kind * 131 + i * 7 + kind * i) % 997).collect()
}

/// A worker that runs steps and copies at once, each of which takes its time.
struct Clock {
    rig: Driver,
    copy_ns: u64,
    step_end_ns: Option<(u64, u64)>,
    copy_ends_ns: BTreeMap<u64, u64>,
}

impl Clock {
    /// Creates a core that has computed a long prompt of kind 1, and has it in the tier alone.
    fn new(config: Config) -> Self {
        let (copy_ns, rig) = (config.swap_block_ns, Driver::with_content(config, 1));
        let mut clock = Self { rig, copy_ns, step_end_ns: None, copy_ends_ns: BTreeMap::new() };
        clock.rig.join();
        clock.ask(1, 1);
        clock.rig.evict_idle();
        clock
    }

    fn ask(&mut self, id: u64, kind: u32) {
        self.rig.submit(id, prompt(kind, LONG), 1);
        self.run();
    }

    /// Lets the step or the copy end that does so next. Returns `false` if there is none.
    fn next(&mut self) -> bool {
        let now_ns = self.rig.now_ns;
        if let Some(step) = self.rig.step().filter(|step| self.step_end_ns.is_none_or(|(id, _)| id != step.id)) {
            self.step_end_ns = Some((step.id, now_ns + u64::from(step.n_tokens()) * TOKEN_NS));
        }
        for copy in &self.rig.copies {
            self.copy_ends_ns.entry(copy.id).or_insert(now_ns + copy.pairs.len() as u64 * self.copy_ns);
        }
        let ends = self.rig.copies.iter().enumerate().map(|(at, copy)| (self.copy_ends_ns[&copy.id], at));
        let step_ns = self.rig.step().and(self.step_end_ns).map_or(u64::MAX, |(_, end_ns)| end_ns);
        match ends.min() {
            Some((end_ns, at)) if end_ns < step_ns => {
                self.rig.now_ns = end_ns.max(now_ns);
                self.rig.finish_copy(at);
            }
            _ if step_ns < u64::MAX => {
                self.rig.now_ns = step_ns.max(now_ns);
                self.rig.answer();
            }
            _ => return false,
        }
        true
    }

    fn run(&mut self) {
        while self.next() {}
        self.rig.assert_texts();
    }

    /// Asks for the long prompt again. Returns the time to its token, in times that a block takes to be computed, the blocks that were computed while
    /// others were loaded, and the tokens that counted as cached.
    fn ask_again(&mut self) -> (u64, u64, u32) {
        let begin_ns = self.rig.now_ns;
        let heads = self.rig.stats().loads.head_blocks;
        self.rig.submit(2, prompt(1, LONG), 1);
        while !self.rig.has_ended(2) {
            assert!(self.next());
        }
        let took_ns = self.rig.now_ns - begin_ns;
        self.run();
        let head = self.rig.stats().loads.head_blocks - heads;
        (took_ns / (u64::from(BLOCK) * TOKEN_NS), head, self.rig.usages[&2].cached_tokens)
    }
}

#[test]
fn the_first_half_is_computed_where_loading_takes_as_long() {
    // Copies of a block take as long as computing it, a quarter of that, a sixteenth, and twice as long.
    let found = [4_000, 1_000, 250, 8_000].map(|copy_ns| {
        let mut clock = Clock::new(config(copy_ns));
        let again = clock.ask_again();
        let loads = clock.rig.stats().loads;
        (again, loads.hidden_load_us, loads.exposed_load_us)
    });
    let expected = [
        ((20, 20, 80), 80, 0),
        ((8, 8, 128), 32, 0),
        // Not worth the step.
        ((2, 0, 160), 0, 10),
        ((27, 27, 52), 104, 0),
    ];
    assert_eq!(found, expected);
}

#[test]
fn nobody_waits_for_the_load_of_a_prefetch() {
    let mut clock = Clock::new(config(1_000));
    let root = Namespace::default().root();
    clock.rig.submit_request(Request { prefetch: true, ..Request::new(RequestId(2), root, prompt(1, LONG), 0) });
    clock.run();
    let stats = clock.rig.stats();
    assert_eq!((stats.tokens.prefetched_tokens, stats.loads), (96, LoadCounters::default()));
}

#[test]
fn what_does_not_arrive_is_computed() {
    for (good, cached) in [(0, 0), (5, 20)] {
        let mut clock = Clock::new(config(4_000));
        clock.rig.submit(2, prompt(1, LONG), 1);
        assert_eq!((clock.rig.copies.len(), clock.rig.copies[0].pairs.len()), (1, 20));
        // Pairs come tail first.
        let faults: Vec<(u32, BlockFault)> = (0..20 - good).map(|pair| (pair, BlockFault::Bad)).collect();
        clock.rig.end_copy_partly(0, &faults);
        clock.run();
        assert_eq!(clock.rig.usages[&2].cached_tokens, cached);
    }
}

#[test]
fn nothing_is_computed_early_while_another_prompt_waits_or_has_a_tail() {
    for at_once in [true, false] {
        let mut clock = Clock::new(config(1_000));
        clock.ask(7, 7);
        clock.rig.evict_idle();
        clock.rig.submit(3, prompt(3, 16), 1);
        if at_once {
            clock.rig.submit(2, prompt(1, 81), 1);
        } else {
            clock.rig.answer();
            clock.rig.submit(2, prompt(1, 81), 1);
            assert_eq!(clock.rig.stats().loads.head_blocks, 4);
        }
        clock.rig.submit(4, prompt(7, 81), 1);
        clock.run();
        let cached = [2, 4].map(|id| clock.rig.usages[&id].cached_tokens);
        let heads = clock.rig.stats().loads.head_blocks;
        assert_eq!((heads, cached), if at_once { (0, [80, 80]) } else { (4, [64, 80]) });
    }
}

#[test]
fn those_that_leave_with_a_tail_in_flight_harm_nobody() {
    let leaves: [fn(&mut Driver); 4] = [
        |rig| rig.abort(2),
        |rig| rig.event(Event::Withdraw(RequestId(2))),
        |rig| {
            rig.lose_worker();
            rig.join();
        },
        Driver::flush,
    ];
    for (number, leave) in leaves.into_iter().enumerate() {
        for answers in [0, 1, 5] {
            let mut clock = Clock::new(config(4_000));
            clock.rig.submit(2, prompt(1, LONG), 1);
            (0..answers).for_each(|_| clock.rig.answer());
            assert!(clock.rig.copies.iter().any(|copy| copy.to == Place::Device), "{number}");
            leave(&mut clock.rig);
            clock.ask(5, 5);
            clock.ask(6, 1);
            let stats = clock.rig.stats();
            assert_eq!(stats.free_blocks + stats.idle_blocks, 96, "{number} after {answers}: {stats:?}");
        }
    }
}

#[test]
fn who_waits_for_a_tail_too_long_computes_it() {
    let mut clock = Clock::new(config(4_000));
    clock.rig.submit(2, prompt(1, LONG), 1);
    while clock.rig.step().is_some() {
        clock.rig.answer();
    }
    clock.rig.now_ns += 60_000_000_000;
    clock.rig.event(Event::Tick);
    while clock.rig.step().is_some() {
        clock.rig.answer();
    }
    assert!(clock.rig.has_ended(2), "{:?}", clock.rig.stats());
    assert_eq!(clock.rig.usages[&2].preemptions, 1);
    clock.run();
}
