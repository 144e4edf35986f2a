//! The counters, and the bound on unfairness in a small server.

use super::super::tests::{make, order};
use super::*;
use crate::policy::waiting::Waiting;

fn vtc() -> Vtc {
    Vtc::new(&PARAMS.map(|param| param.default))
}

fn of(tenant: u64) -> RequestView {
    RequestView { tenant, ..RequestView::default() }
}

/// A request of a tenant that waits, runs so many tokens, and ends.
fn visit(vtc: &mut Vtc, tenant: u64, prompt_tokens: u32, output_tokens: u32) {
    vtc.joined(tenant);
    vtc.queued(tenant);
    vtc.unqueued(tenant);
    vtc.served(tenant, prompt_tokens, output_tokens);
    vtc.left(tenant);
}

#[test]
fn within_a_tenant_the_first_to_come_and_among_equals_too() {
    assert_eq!(order("vtc", &[of(5), of(5), of(1), of(5), of(2)]), [0, 1, 2, 3, 4]);
}

#[test]
fn the_tenant_served_least_goes_first_by_the_weights() {
    let turns = |spec| {
        let mut waiting = Waiting::new(make(spec));
        for slot in 0..8 {
            waiting.joined(slot % 2);
            waiting.push(slot as usize, &RequestView { arrival: slot, ..of(slot % 2) });
        }
        let mut turns = Vec::new();
        while let Some(slot) = waiting.first() {
            waiting.remove(slot);
            // Tenant 0 has long prompts, tenant 1 long answers.
            let (tenant, prompt_tokens, output_tokens) = if slot % 2 == 0 { (0, 30, 1) } else { (1, 2, 10) };
            waiting.served(tenant, prompt_tokens, output_tokens);
            turns.push(tenant);
        }
        turns
    };
    // 32 against 22 a turn, and 30 against 2, and 1 against 10.
    assert_eq!(turns("vtc"), [0, 1, 1, 0, 1, 0, 1, 0]);
    assert_eq!(turns("vtc:output_weight=0"), [0, 1, 1, 1, 1, 0, 0, 0]);
    assert_eq!(turns("vtc:prompt_weight=0,output_weight=1"), [0, 1, 0, 0, 0, 1, 1, 1]);
}

#[test]
fn who_was_away_saves_up_nothing_and_is_forgiven_nothing() {
    let mut vtc = vtc();
    vtc.joined(1);
    vtc.queued(1);
    vtc.served(1, 1_000, 0);
    vtc.joined(2);
    assert_eq!(vtc.standing(2), 1_000, "lifted to the least of those waiting");
    vtc.queued(2);
    vtc.served(2, 300, 0);
    vtc.unqueued(2);
    vtc.left(2);
    vtc.joined(2);
    vtc.queued(2);
    assert_eq!(vtc.standing(2), 1_300, "what it was served above the others still counts");
    vtc.unqueued(1);
    assert_eq!(vtc.floor, 1_300);
    vtc.unqueued(2);
    vtc.served(2, 0, 100);
    vtc.joined(3);
    vtc.queued(3);
    assert_eq!(vtc.standing(3), 1_500, "nobody waits, so the last to wait is the measure, with all that it was served");
    vtc.queued(1);
    assert_eq!(vtc.standing(1), 1_500, "a preempted request brings no credit either");
}

#[test]
fn a_victim_is_of_the_tenant_served_most() {
    let mut vtc = vtc();
    for tenant in 1..4 {
        vtc.joined(tenant);
    }
    vtc.served(1, 100, 10);
    vtc.served(2, 100, 11);
    vtc.served(3, 121, 0);
    assert_eq!([1, 2, 3].map(|tenant| vtc.preemption_rank(&of(tenant))), [-120, -122, -121]);
}

#[test]
fn tenants_at_the_floor_are_forgotten() {
    let mut vtc = vtc();
    vtc.joined(0);
    vtc.queued(0);
    for tenant in 1..=100 {
        visit(&mut vtc, tenant, tenant as u32, 0);
    }
    assert_eq!(vtc.tenants.len(), 101, "all were served more than the one that waits");
    vtc.served(0, 60, 0);
    assert_eq!((vtc.tenants.len(), vtc.gone.len()), (41, 40));
    vtc.served(0, 1_000, 0);
    assert_eq!((vtc.tenants.len(), vtc.gone.len()), (1, 0));
    vtc.unqueued(0);
    vtc.left(0);
    assert_eq!((vtc.tenants.len(), vtc.queued.len(), vtc.floor), (0, 0, 1_060));
    visit(&mut vtc, 7, 40, 0);
    assert_eq!((vtc.tenants.len(), vtc.floor), (0, 1_100), "alone, a tenant is its own measure");
}

#[test]
fn of_tenants_above_the_floor_only_so_many_are_remembered() {
    let mut vtc = vtc();
    vtc.joined(0);
    vtc.queued(0);
    let last = GONE_MAX as u64 + 10;
    for tenant in 1..=last {
        visit(&mut vtc, tenant, tenant as u32, 0);
    }
    assert_eq!((vtc.gone.len(), vtc.tenants.len()), (GONE_MAX, GONE_MAX + 1));
    assert_eq!((vtc.standing(10), vtc.standing(11), vtc.standing(last)), (0, 11, last), "the nearest are forgotten");
}

/// A server that holds `CAPACITY` tokens and generates one token for each running request in a step.
struct Server {
    waiting: Waiting,
    /// By slot: tenant, tokens of the prompt, tokens of the answer.
    requests: Vec<(u64, u32, u32)>,
    /// Slots, and tokens that are still to be generated.
    running: Vec<(usize, u32)>,
    /// What each tenant was served.
    work: [i64; 2],
    queued: [u32; 2],
    seed: u64,
}

const CAPACITY: u32 = 2_000;
const PROMPT_MAX: u32 = 300;

impl Server {
    fn new(spec: &str) -> Self {
        let waiting = Waiting::new(make(spec));
        Self { waiting, requests: Vec::new(), running: Vec::new(), work: [0; 2], queued: [0; 2], seed: 1 }
    }

    fn draw(&mut self, max: u32) -> u32 {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.seed >> 33) as u32 % max + 1
    }

    fn submit(&mut self, tenant: u64, prompt_tokens_max: u32, output_tokens_max: u32) -> usize {
        let (prompt_tokens, output_tokens) = (self.draw(prompt_tokens_max), self.draw(output_tokens_max));
        let slot = self.requests.len();
        self.requests.push((tenant, prompt_tokens, output_tokens));
        self.waiting.joined(tenant);
        self.waiting.push(slot, &RequestView { arrival: slot as u64, ..of(tenant) });
        self.queued[tenant as usize] += 1;
        slot
    }

    fn serve(&mut self, tenant: u64, prompt_tokens: u32, output_tokens: u32) {
        self.waiting.served(tenant, prompt_tokens, output_tokens);
        self.work[tenant as usize] += i64::from(prompt_tokens) + 2 * i64::from(output_tokens);
    }

    /// Returns the slots that were admitted.
    fn step(&mut self) -> Vec<usize> {
        let mut admitted = Vec::new();
        let held = |(slot, _): &(usize, u32)| self.requests[*slot].1 + self.requests[*slot].2;
        let mut used: u32 = self.running.iter().map(held).sum();
        while let Some(slot) = self.waiting.first() {
            let (tenant, prompt_tokens, output_tokens) = self.requests[slot];
            if used + prompt_tokens + output_tokens > CAPACITY {
                break;
            }
            used += prompt_tokens + output_tokens;
            self.waiting.remove(slot);
            self.queued[tenant as usize] -= 1;
            self.serve(tenant, prompt_tokens, 0);
            self.running.push((slot, output_tokens));
            admitted.push(slot);
        }
        for at in 0..self.running.len() {
            self.running[at].1 -= 1;
            self.serve(self.requests[self.running[at].0].0, 0, 1);
        }
        for (slot, _) in self.running.extract_if(.., |(_, left)| *left == 0) {
            self.waiting.left(self.requests[slot].0);
        }
        admitted
    }

    /// How much the lead of one tenant over the other varies while one floods the queue and both always wait.
    fn spread_of_lead(spec: &str) -> i64 {
        let mut server = Self::new(spec);
        let (mut least, mut most) = (0, 0);
        for _ in 0..10_000 {
            while server.queued[0] < 1_000 {
                server.submit(0, PROMPT_MAX, 200);
            }
            while server.queued[1] < 100 {
                server.submit(1, 40, 30);
            }
            server.step();
            assert!(server.queued.iter().all(|queued| *queued > 0), "else the bound promises nothing");
            let lead = server.work[0] - server.work[1];
            (least, most) = (least.min(lead), most.max(lead));
        }
        most - least
    }
}

#[test]
fn two_tenants_that_always_wait_are_served_alike_within_the_bound_of_the_paper() {
    let bound = i64::from(2 * PROMPT_MAX.max(2 * CAPACITY));
    let spread = Server::spread_of_lead("vtc");
    assert!(spread <= bound, "{spread} > {bound}");
    let spread = Server::spread_of_lead("fcfs");
    assert!(spread > 10 * bound, "the flood would have won: {spread}");
}

#[test]
fn who_asks_for_less_than_its_share_does_not_wait_for_the_flood() {
    let longest_wait = |spec| {
        let mut server = Server::new(spec);
        let mut longest_steps = 0;
        for i in 0..40 {
            while server.queued[0] < 500 {
                server.submit(0, PROMPT_MAX, 200);
            }
            if i > 0 {
                let slot = server.submit(1, 40, 30);
                let steps = (0..).take_while(|_| !server.step().contains(&slot)).count();
                longest_steps = longest_steps.max(steps);
            }
            for _ in 0..50 {
                server.step();
            }
        }
        longest_steps
    };
    // Room comes when a running request ends: the longest answer has 200 tokens.
    assert!(longest_wait("vtc") <= 200, "{}", longest_wait("vtc"));
    assert!(longest_wait("fcfs") > 1_000, "{}", longest_wait("fcfs"));
}
