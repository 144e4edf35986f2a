//! Places that stop answering: nobody waits for them much longer than for computing, and other requests do not notice.

use std::collections::BTreeMap;

use trunkline_core::{Config, Event, Place, Preemption, TierConfig, Token, Transfer, Write};
use trunkline_driver::Driver;

const MS: u64 = 1_000_000;
/// Time of a copy or an answer that hangs.
const HANG_NS: u64 = 15_000 * MS;
/// Times that a request may take, in computing it, if it waits first: see the core's `wait.rs`.
const TIMES: u64 = 3;

/// A core, a worker that takes a millisecond for each prompt token and for each step of decodes, and places whose copies take a time of their own.
struct World {
    rig: Driver,
    /// Time of a copy.
    copy_ns: fn(&Transfer) -> u64,
    /// Time of an answer to a look-up.
    answer_ns: u64,
    /// Time of a step with decodes, without its prompts.
    decode_ns: u64,
    /// `true` if a copy that hangs ends a millisecond after it was cancelled.
    cancels: bool,
    /// Ends of the step, the copies and the look-ups in flight.
    step: Option<(u64, u64)>,
    copies: BTreeMap<u64, u64>,
    lookups: BTreeMap<u64, u64>,
    submitted: BTreeMap<u64, u64>,
    /// Steps with each request.
    steps: BTreeMap<u64, u32>,
    took_ns: BTreeMap<u64, u64>,
    /// Longest times between two steps with each request, and beginning of the last.
    gaps_ns: BTreeMap<u64, (u64, u64)>,
}

impl World {
    fn new(rig: Driver, copy_ns: fn(&Transfer) -> u64) -> Self {
        let (copies, lookups, submitted) = Default::default();
        let (steps, took_ns, gaps_ns) = Default::default();
        let (answer_ns, decode_ns, cancels, step) = (MS, MS, false, None);
        Self { rig, copy_ns, answer_ns, decode_ns, cancels, step, copies, lookups, submitted, steps, took_ns, gaps_ns }
    }

    fn submit(&mut self, id: u64, prompt: Vec<Token>, max_tokens: u32) {
        self.submitted.insert(id, self.rig.now_ns);
        self.rig.submit(id, prompt, max_tokens);
    }

    /// Goes on to the next end of something.
    fn go_on(&mut self) {
        let now_ns = self.rig.now_ns;
        if let Some(step) = self.rig.step().filter(|step| self.step.is_none_or(|(id, _)| id != step.id)) {
            let prompt_tokens: u32 = step.seqs.iter().filter(|seq| seq.n_tokens > 1).map(|seq| seq.n_tokens).sum();
            let decodes = step.seqs.iter().any(|seq| seq.n_tokens == 1);
            self.step = Some((step.id, now_ns + u64::from(prompt_tokens) * MS + u64::from(decodes) * self.decode_ns));
            for id in step.seqs.iter().map(|seq| seq.request.0) {
                *self.steps.entry(id).or_default() += 1;
                let (gap_ns, last_ns) = self.gaps_ns.get(&id).copied().unwrap_or((0, now_ns));
                self.gaps_ns.insert(id, (gap_ns.max(now_ns - last_ns), now_ns));
            }
        }
        for copy in &self.rig.copies {
            let cancelled = (self.cancels && self.rig.cancelled.contains(&copy.id)).then_some(now_ns + MS);
            let end_ns = self.copies.entry(copy.id).or_insert(now_ns + (self.copy_ns)(copy));
            *end_ns = cancelled.into_iter().fold(*end_ns, u64::min);
        }
        for lookup in &self.rig.lookups {
            self.lookups.entry(lookup.id).or_insert(now_ns + self.answer_ns);
        }
        let step_ns = self.rig.steps.front().and(self.step).map(|(_, end_ns)| end_ns);
        let copy = self.rig.copies.iter().enumerate().map(|(at, copy)| (self.copies[&copy.id], at)).min();
        let lookup = self.rig.lookups.iter().enumerate().map(|(at, lookup)| (self.lookups[&lookup.id], at)).min();
        let due_ns = self.rig.core.next_deadline_ns();
        let ends = [step_ns, copy.map(|(end_ns, _)| end_ns), lookup.map(|(end_ns, _)| end_ns), due_ns];
        let next_ns = ends.into_iter().flatten().min().expect("something is in flight");
        self.rig.now_ns = self.rig.now_ns.max(next_ns);
        if step_ns == Some(next_ns) {
            self.rig.answer();
        } else if let Some((_, at)) = copy.filter(|(end_ns, _)| *end_ns == next_ns) {
            match self.cancels && self.rig.cancelled.contains(&self.rig.copies[at].id) {
                true => self.rig.interrupt_copy(at),
                false => self.rig.finish_copy(at),
            }
        } else if let Some((_, at)) = lookup.filter(|(end_ns, _)| *end_ns == next_ns) {
            self.rig.end_lookup(at);
        } else {
            self.rig.event(Event::Tick);
        }
        for (id, _) in &self.rig.ends {
            self.took_ns.entry(*id).or_insert(self.rig.now_ns - self.submitted[id]);
        }
    }

    fn go_on_until(&mut self, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            self.go_on();
        }
    }

    /// Runs a request of one output token alone, to its end and to that of its copies.
    fn ask(&mut self, id: u64, prompt: Vec<Token>) {
        self.submit(id, prompt, 1);
        self.go_on_until(|world| world.rig.has_ended(id) && world.rig.copies.is_empty());
    }

    /// Ends all requests, and checks what they said, and that each took at most so many times as long as in a world where all is computed.
    fn assert_as_fast_as(mut self, mut computing: Self, ids: &[u64], bystanders: &[u64]) {
        for world in [&mut self, &mut computing] {
            world.go_on_until(|world| ids.iter().chain(bystanders).all(|id| world.rig.has_ended(*id)));
            world.rig.assert_texts();
        }
        for id in ids {
            let (took_ns, computed_ns) = (self.took_ns[id], computing.took_ns[id]);
            assert!(took_ns <= TIMES * computed_ns, "{id}: {took_ns} ns, {computed_ns} ns if computed");
        }
        for id in bystanders {
            assert_eq!(self.steps[id], computing.steps[id], "{id}");
        }
    }
}

fn tokens(from: u32, n: u32) -> Vec<Token> {
    (from..from + n).collect()
}

fn config() -> Config {
    Config {
        block_size: 4,
        device_blocks: 13,
        launch_watermark: 0.0,
        swap_in_watermark: 0.0,
        swap_block_ns: 100_000,
        recompute_token_ns: MS,
        ..Config::default()
    }
}

fn tier(shared: bool) -> Vec<TierConfig> {
    vec![TierConfig { name: "tier".into(), blocks: 100, write: Write::Through, eviction: "lru".into(), shared }]
}

/// Two requests with more tokens, in the end, than twenty blocks hold, so that the second is preempted.
fn preempting(config: Config, copy_ns: fn(&Transfer) -> u64) -> World {
    let mut world = World::new(Driver::new(Config { device_blocks: 20, ..config }), copy_ns);
    world.submit(1, tokens(100, 44), 16);
    world.submit(2, tokens(200, 24), 10);
    world
}

#[test]
fn a_preempted_request_is_computed_if_its_way_to_the_host_or_back_hangs() {
    let swaps = || Config { host_blocks: 50, preemption: Preemption::Swap, ..config() };
    let computes = || preempting(Config { preemption: Preemption::Recompute, ..config() }, |_| MS);
    // A copy that hangs in the middle has the blocks that the first request needs, and nobody can be preempted for others: it has to end.
    let mut out = preempting(swaps(), |_| HANG_NS);
    out.cancels = true;
    out.go_on_until(|world| !world.rig.copies.is_empty());
    out.assert_as_fast_as(computes(), &[2], &[1]);
    let mut back = preempting(swaps(), |copy| if copy.to == Place::Host { MS } else { HANG_NS });
    back.go_on_until(|world| world.rig.copies.iter().any(|copy| copy.from == Place::Host));
    back.assert_as_fast_as(computes(), &[2], &[1]);
}

#[test]
fn a_request_that_has_joined_the_copy_of_a_longer_one_does_not_wait_for_as_long() {
    let swaps = Config { host_blocks: 100, preemption: Preemption::Swap, swap_in_watermark: 100.0, ..config() };
    let copy_ns: fn(&Transfer) -> u64 =
        |copy| if copy.to == Place::Host || copy.pairs.len() < 10 { MS } else { HANG_NS };
    let mut world = World::new(Driver::new(Config { device_blocks: 50, ..swaps }), copy_ns);
    world.submit(1, tokens(1000, 40), 159);
    world.submit(2, tokens(200, 100), 60);
    world.submit(3, [tokens(200, 20), tokens(300, 4)].concat(), 60);
    world.go_on_until(|world| world.rig.has_ended(1));
    let (back_ns, steps) = (world.rig.now_ns, world.steps[&3]);
    let lengths: Vec<usize> = world.rig.copies.iter().map(|copy| copy.pairs.len()).collect();
    assert!(lengths.len() == 2 && lengths[0] > 30 && lengths[1] < 6, "one brings the shared blocks: {lengths:?}");
    world.go_on_until(|world| world.steps[&3] > steps);
    let (waited_ns, copies) = (world.rig.now_ns - back_ns, world.rig.copies.len());
    // It has eleven blocks of four tokens, and the other, which waits still, has more than 30.
    assert!(copies == 1 && waited_ns <= 2 * 44 * MS, "{waited_ns} ns");
    world.cancels = true;
    world.go_on_until(|world| world.rig.ends.len() == 3);
    world.rig.assert_texts();
}

/// A core with a prompt of 33 tokens in its tier, if it has one, and not on the device.
fn pushed_off(tiers: Vec<TierConfig>) -> World {
    let config = Config { device_blocks: 30, tiers, ..config() };
    let mut world = World::new(Driver::new(config), |_| MS);
    world.ask(1000, tokens(0, 33));
    world.ask(1001, tokens(1000, 110));
    world
}

#[test]
fn a_request_is_computed_if_its_load_hangs() {
    let ask = |mut world: World| {
        world.copy_ns = |_| HANG_NS;
        world.submit(1, tokens(2000, 4), 20);
        world.submit(2, tokens(0, 33), 3);
        world
    };
    let mut hangs = ask(pushed_off(tier(false)));
    hangs.go_on_until(|world| world.rig.stats().loading == 1);
    hangs.assert_as_fast_as(ask(pushed_off(Vec::new())), &[2], &[1]);
}

#[test]
fn a_request_is_computed_if_its_look_up_hangs() {
    let ask = |tiers: Vec<TierConfig>| {
        let config = Config { device_blocks: 30, tiers, ..config() };
        let mut world = World::new(Driver::new(config).restarted(), |_| MS);
        world.ask(1000, vec![1, 2, 3]);
        world.answer_ns = HANG_NS;
        world.submit(1, tokens(2000, 3), 20);
        world.submit(2, tokens(0, 33), 3);
        world
    };
    let mut hangs = ask(tier(true));
    hangs.go_on_until(|world| world.rig.lookups.len() == 1 && world.rig.stats().waiting == 1);
    hangs.assert_as_fast_as(ask(Vec::new()), &[2], &[1]);
}

/// A core of six blocks of 16 tokens. The first request leaves `blocks` on their way to the tier, if there is one.
fn writing(tiers: Vec<TierConfig>, blocks: u32) -> World {
    let mut world =
        World::new(Driver::new(Config { block_size: 16, device_blocks: 6, tiers, ..config() }), |_| HANG_NS);
    world.submit(1000, tokens(0, blocks * 16 + 1), 1);
    world.go_on_until(|world| world.rig.has_ended(1000));
    world
}

#[test]
fn a_decode_takes_the_block_of_another_if_the_write_hangs_that_has_one() {
    let decode = |mut world: World| {
        world.decode_ns = 20 * MS;
        world.submit(1, tokens(100, 18), 14);
        world.submit(2, tokens(200, 14), 10);
        world.submit(3, tokens(300, 18), 14);
        world.go_on_until(|world| world.rig.has_ended(2));
        world
    };
    let hangs = decode(writing(tier(false), 1));
    assert_eq!((hangs.rig.copies.len(), hangs.rig.stats().preemptions), (1, 1), "the copy has its block still");
    let computes = decode(writing(Vec::new(), 1));
    let [gap_ns, usual_ns] = [&hangs, &computes].map(|world| world.gaps_ns[&2].0);
    // A block is computed in 16 ms.
    assert!(gap_ns <= usual_ns + TIMES * 16 * MS, "{gap_ns} ns between two steps, {usual_ns} without a write");
    hangs.assert_as_fast_as(computes, &[2, 3], &[1]);
}

#[test]
fn a_request_that_does_not_fit_beside_a_write_that_hangs_has_it_cancelled() {
    let admit = |mut world: World| {
        world.cancels = true;
        world.submit(1, tokens(100, 4), 8);
        world.submit(2, tokens(200, 60), 3);
        world
    };
    let hangs = admit(writing(tier(false), 4));
    assert_eq!((hangs.rig.copies.len(), hangs.rig.stats().waiting), (1, 1));
    hangs.assert_as_fast_as(admit(writing(Vec::new(), 4)), &[2], &[1]);
}

#[test]
fn a_place_whose_copies_were_late_is_left_alone_ever_longer() {
    let swaps = Config { host_blocks: 50, preemption: Preemption::Swap, ..config() };
    let mut world = World::new(Driver::new(swaps), |_| HANG_NS);
    world.cancels = true;
    for id in 0..200 {
        world.submit(id, tokens(id as u32 * 100, 20), 12);
    }
    world.go_on_until(|world| world.rig.ends.len() == 200);
    let stats = world.rig.stats();
    assert!(stats.preemptions > 50 && (4..=12).contains(&stats.swaps.swap_outs), "{stats:?}");
}
