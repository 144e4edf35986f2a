//! Prompts that take turns: short ones alongside long ones, on a worker whose tokens cost the more the deeper they are.

use std::collections::BTreeMap;

use trunkline_core::config::StepTarget;
use trunkline_core::{Config, StepSeq};
use trunkline_driver::Driver;

use crate::prompts::{config, text};

const MS: u64 = 1_000_000;

/// A millisecond for a step, and for a prompt token 20 us and one more for each token before it: behind 2,000 it takes two steps of decodes.
fn step_ns(seqs: &[StepSeq]) -> u64 {
    let prompts = seqs.iter().filter(|seq| seq.n_generated == 0);
    let cost_us = prompts.map(|seq| u64::from(seq.n_tokens) * (20 + u64::from(seq.computed + seq.n_tokens / 2)));
    MS + cost_us.sum::<u64>() * 1_000
}

/// Clients, each of which asks again when its answer is there.
struct Clients {
    rig: Driver,
    /// Number of clients, tokens of their prompts and of their answers.
    kinds: Vec<(u64, u32, u32)>,
    /// Kind, time of submission, and time of the last token, of each request under way.
    live: BTreeMap<u64, (usize, u64, Option<u64>)>,
    next: u64,
    /// Times to the first token, of each kind.
    firsts_ns: Vec<Vec<u64>>,
    /// Longest time between two tokens, of each kind.
    gaps_ns: Vec<u64>,
}

impl Clients {
    fn new(target_step_ns: StepTarget, max_steps_in_flight: u32, kinds: &[(u64, u32, u32)]) -> Self {
        let limits = Config { device_blocks: 3000, max_batch_tokens: 2048, max_context: 4096, ..config() };
        let mut rig = Driver::new(Config { target_step_ns, max_steps_in_flight, ..limits });
        rig.join();
        let (live, n) = (BTreeMap::new(), kinds.len());
        let mut clients =
            Self { rig, kinds: kinds.to_vec(), live, next: 0, firsts_ns: vec![vec![]; n], gaps_ns: vec![0; n] };
        // Decodes are measured first.
        clients.rig.submit(0, text(999, 5), 9);
        while !clients.rig.has_ended(0) {
            clients.rig.now_ns += MS;
            clients.rig.answer();
        }
        for (kind, (count, ..)) in kinds.iter().enumerate() {
            (0..*count).for_each(|_| clients.submit(kind));
        }
        clients
    }

    fn submit(&mut self, kind: usize) {
        self.next += 1;
        let (_, prompt, answer) = self.kinds[kind];
        self.live.insert(self.next, (kind, self.rig.now_ns, None));
        self.rig.submit(self.next, text(1000 + self.next as u32, prompt), answer);
    }

    fn step(&mut self) {
        self.rig.now_ns += step_ns(&self.rig.step().expect("a step is in flight").seqs);
        let sampled: Vec<u64> = self.rig.seqs().filter(|seq| seq.sample).map(|seq| seq.request.0).collect();
        self.rig.answer();
        for id in sampled {
            let (now_ns, live) = (self.rig.now_ns, self.live.get_mut(&id).expect("it is under way"));
            let (kind, came_ns, last_ns) = (live.0, live.1, live.2.replace(now_ns));
            match last_ns {
                None => self.firsts_ns[kind].push(now_ns - came_ns),
                Some(last_ns) => self.gaps_ns[kind] = self.gaps_ns[kind].max(now_ns - last_ns),
            }
            if self.rig.has_ended(id) {
                self.live.remove(&id);
                self.submit(kind);
            }
        }
    }

    /// Runs so many steps. Returns the longest time to a first token and between two tokens of the first kind, microseconds, and the answers of the second.
    fn run(mut self, steps: u32) -> (u64, u64, usize) {
        (0..steps).for_each(|_| self.step());
        // The first of each client come at once, before anything is known of the costs.
        let first_ns = self.firsts_ns[0][4..].iter().max().expect("some were answered");
        (first_ns / 1000, self.gaps_ns[0] / 1000, self.firsts_ns.get(1).map_or(0, Vec::len))
    }
}

#[test]
fn long_prompts_do_not_make_short_ones_wait_however_many_there_are() {
    for in_flight in [1, 2] {
        let short = (2, 40, 40);
        let (first_us, gap_us, _) = Clients::new(StepTarget::SERVED, in_flight, &[short]).run(1_000);
        for n in [1, 8] {
            let (beside_us, beside_gap_us, answers) =
                Clients::new(StepTarget::SERVED, in_flight, &[short, (n, 2_000, 1)]).run(4_000);
            let figures = (in_flight, n, first_us, gap_us, beside_us, beside_gap_us, answers);
            assert!(beside_us <= 3 * first_us && beside_gap_us <= 3 * gap_us && answers > 0, "{figures:?}");
        }
    }
}

#[test]
fn a_flood_of_short_prompts_does_not_stop_a_long_one() {
    let mut clients = Clients::new(StepTarget::SERVED, 1, &[(12, 400, 1), (2, 2_000, 1)]);
    let mut steps = 0;
    while clients.firsts_ns[1].len() < 2 {
        clients.step();
        steps += 1;
        assert!(steps < 20_000, "{:?}", clients.firsts_ns.iter().map(Vec::len).collect::<Vec<_>>());
    }
    assert!(clients.firsts_ns[0].len() > 20, "nor does it stop them");
}
