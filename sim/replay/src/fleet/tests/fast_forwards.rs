//! Fast-forward against single steps: equal decisions at equal times.

use trunkline_cluster::Role;
use trunkline_core::config::StepTarget;
use trunkline_core::{Preemption, TierConfig, Write};

use super::*;
use crate::fleet::replay_source;
use trunkline_sim_perf::link::TierLink;
use trunkline_sim_report::observer::{Observer, StepSeen};
use trunkline_sim_workload::synthetic::{Generator, Spec};
use trunkline_sim_workload::trace::{Content, Turn};

/// Observer of every step, which disables fast-forward.
#[derive(Default)]
struct Shown {
    outcomes: Vec<Outcome>,
    steps: u64,
}

impl Observer for Shown {
    fn ended(&mut self, outcome: &Outcome) -> ControlFlow<()> {
        self.outcomes.push(*outcome);
        ControlFlow::Continue(())
    }

    fn wants_steps(&self) -> bool {
        true
    }

    fn step(&mut self, _: &StepSeen<'_>) {
        self.steps += 1;
    }
}

/// Cost model with a different duration for each batch shape.
pub(super) struct Linear;

impl CostModel for Linear {
    fn name(&self) -> &str {
        "linear"
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        MS + 7_919 * shape.tokens + 13 * shape.decode_kv_tokens + 5 * shape.decode_kv_max
    }
}

/// Cost model with different durations on odd and even replicas.
struct Uneven;

impl CostModel for Uneven {
    fn name(&self) -> &str {
        "uneven"
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        Linear.step_ns(shape)
    }

    fn replica_step_ns(&self, replica: usize, shape: &StepShape) -> u64 {
        self.step_ns(shape) * (10 + replica as u64 % 2) / 10
    }
}

/// Replays with and without fast-forward, and expects equal reports and outcomes.
pub(super) fn same(trace: &Trace, settings: &Settings, cost: &dyn CostModel) -> Report {
    let mut outcomes = Vec::new();
    let mut watch = |outcome: &Outcome| {
        outcomes.push(*outcome);
        ControlFlow::Continue(())
    };
    let fast = replay_watched(trace, settings, cost, &mut watch).unwrap();
    let mut shown = Shown::default();
    let stepped = replay_watched(trace, settings, cost, &mut shown).unwrap();
    assert_eq!(shown.steps, stepped.batches.steps);
    assert_eq!(outcomes, shown.outcomes);
    let fast = Report { wall_s: 0.0, ..fast };
    assert_eq!(fast, Report { wall_s: 0.0, ..stepped });
    fast
}

#[test]
fn fast_forward_equals_single_steps() {
    let mut preemptions = 0;
    for seed in 0..6 {
        let trace = conversations(150, seed);
        for block_size in [4, 16, 64] {
            for blocks in [250, 40_000] {
                let mut settings = settings(block_size, blocks * 64 / block_size);
                settings.replicas = 1 + seed as u32 % 3;
                settings.core.max_batch_size = [256, 5][seed as usize % 2];
                settings.routing.router = ["added_time", "least_loaded", "prefix_affinity"][seed as usize % 3].into();
                preemptions += same(&trace, &settings, &Linear).preemptions;
            }
        }
    }

    assert!(preemptions > 0, "no block was missing during a fast-forward");
}

#[test]
fn replicas_that_take_turns_fast_forward_past_arrivals_elsewhere() {
    let host = |write| TierConfig { name: "host".into(), blocks: 600, write, eviction: "lru".into(), shared: false };
    for seed in 0..6 {
        let trace = conversations(150, 40 + seed);
        for replicas in [2, 3, 7] {
            let mut settings = Settings { replicas, ..settings(16, [300, 5_000][seed as usize % 2]) };
            settings.core.max_batch_size = [256, 5][seed as usize / 3];
            if seed % 3 == 1 {
                settings.core.tiers = vec![host(Write::Through)];
            }
            same(&trace, &settings, &Uneven);
        }
    }
}

#[test]
fn an_arrival_elsewhere_pauses_no_fast_forward_if_replicas_take_turns() {
    // A long answer on each of eight replicas, and a short one more every 10 ms, ten for each replica.
    let mut requests: Vec<TraceRequest> = (0..8).map(|n| request(0, 100, 1_000, &[n])).collect();
    requests.extend((1..=80).map(|n| request(10 * n, 20, 1, &[1_000 + n as u32])));
    let fast_forwards = |router: &str| {
        let mut settings = Settings { replicas: 8, ..settings(16, 1_000) };
        settings.routing.router = router.into();
        let trace = trace(requests.clone());
        let (mut source, mut watch) = (trace.source(), |_: &Outcome| ControlFlow::Continue(()));
        let mut fleet = Fleet::new(&mut source, &settings, &OneMs, Watched::by(&mut watch)).unwrap();
        fleet.run().unwrap();
        fleet.totals.fast_forwards
    };
    // Each arrival at a replica pauses one, which then resumes and ends for the prompt; another begins after the prompt.
    assert_eq!(fast_forwards("round_robin"), 8 * (3 * 10 + 1));
    assert!(fast_forwards("least_loaded") > 8 * 80 / 2, "every replica stops at every arrival");
}

#[test]
fn nearly_all_steps_of_lone_decodes_are_fast_forwarded() {
    let trace = trace(vec![request(0, 100, 500, &[1]), request(5, 90, 300, &[2])]);
    let settings = settings(16, 1000);
    let (mut source, mut watch) = (trace.source(), |_: &Outcome| ControlFlow::Continue(()));
    let mut fleet = Fleet::new(&mut source, &settings, &OneMs, Watched::by(&mut watch)).unwrap();
    fleet.run().unwrap();
    let (fast_forwarded, report) = (fleet.totals.fast_forwarded, fleet.report());
    // Run singly: each prefill and the step after it (1, 2, 7, 8), the last of the second and the step after it (306, 307), and the
    // last of the first (500).
    assert_eq!((report.batches.steps, fast_forwarded), (500, 493));
}

#[test]
fn fast_forward_equals_single_steps_under_every_policy_and_arrival_process() {
    let trace = conversations(120, 9);
    for policy in ["fcfs", "sjf", "lpm", "vtc", "priority"] {
        for arrivals in [Arrivals::Traced { speed: 0.37 }, Arrivals::Serial, Arrivals::AtOnce] {
            let mut settings = settings(16, 1600);
            settings.replicas = 2;
            settings.core.policy = policy.into();
            settings.core.eviction = "arc".into();
            settings.arrivals = arrivals;
            same(&trace, &settings, &Linear);
            settings.routing.router = "prefix_affinity".into();
            settings.core.max_batch_size = 3;
            same(&trace, &settings, &Uneven);
        }
    }
}

#[test]
fn fast_forward_equals_single_steps_with_copies() {
    let trace = conversations(150, 4);
    for write in [Write::Through, Write::SecondUse] {
        let mut settings = settings(16, 1200);
        settings.replicas = 2;
        (settings.core.host_blocks, settings.core.preemption) = (500, Preemption::Swap);
        settings.core.tiers =
            vec![TierConfig { name: "host".into(), blocks: 3000, write, eviction: "lru".into(), shared: false }];
        // So slow that copies share the link.
        settings.hardware.host_link_bytes_s = 8e9;
        same(&trace, &settings, &Linear);
        let mut watch = |_: &Outcome| ControlFlow::Continue(());
        let mut source = trace.source();
        let mut fleet = Fleet::new(&mut source, &settings, &Linear, Watched::by(&mut watch)).unwrap();
        fleet.run().unwrap();
        assert!(fleet.totals.fast_forwarded > 0, "there is time between copies");
        assert!(fleet.report().swaps.link_in.blocks > 0);
    }
}

#[test]
fn fast_forward_equals_single_steps_with_hand_overs() {
    let trace = conversations(150, 7);
    for (roles, shared_memory) in [("pd", false), ("pd", true), ("ppdd", true), ("pdb", true)] {
        let mut settings = settings(16, 1200);
        settings.replicas = roles.len() as u32;
        let role = |role| match role {
            'p' => Role::Prefill,
            'd' => Role::Decode,
            _ => Role::Both,
        };
        settings.routing.roles = roles.chars().map(role).collect();
        settings.shared_memory = shared_memory;
        if shared_memory {
            let (write, eviction) = (Write::Through, "lru".into());
            settings.core.tiers =
                vec![TierConfig { name: "shared".into(), blocks: 3000, write, eviction, shared: true }];
        }
        let report = same(&trace, &settings, &Linear);
        assert_eq!((report.completed, report.fleet.rerouted), (150, 0));
        assert_eq!(report.tiers.first().is_some_and(|tier| tier.hit_blocks > 0), shared_memory);
    }
}

/// Returns a workload of `requests` requests of people and of an agent, who react soon to short answers.
fn closed_loop(seed: u64, requests: u64, deadline: &str) -> Spec {
    let spec = format!(
        r#"
        seed = {seed}
        requests = {requests}
        [[population]]
        name = "chat"
        arrivals = {{ process = "poisson", sessions-per-s = 8 }}
        input-tokens = {{ kind = "lognormal", mean = 200, cv = 0.5, max = 1000 }}
        output-tokens = {{ kind = "lognormal", mean = 60, cv = 0.8, max = 300 }}
        session = {{ turns = {{ kind = "constant", value = 4 }}, think-s = {{ kind = "exponential", mean = 0.3 }} }}
        {deadline}
        [[population]]
        name = "agents"
        arrivals = {{ process = "constant", sessions-per-s = 1.5 }}
        input-tokens = {{ kind = "constant", value = 300 }}
        output-tokens = {{ kind = "constant", value = 100 }}
        [population.agent]
        calls = {{ kind = "constant", value = 5 }}
        call-tokens = {{ kind = "constant", value = 30 }}
        tool-s = {{ kind = "exponential", mean = 0.02 }}
        tool-output-tokens = {{ kind = "constant", value = 90 }}
    "#
    );
    Spec::parse(&spec).unwrap()
}

#[test]
fn fast_forward_equals_single_steps_in_a_closed_loop() {
    let routers = ["round_robin", "least_loaded", "prefix_affinity", "round_robin"];
    for (seed, router) in (0..).zip(routers) {
        let spec = closed_loop(seed, 250, ["", "deadline-s = 0.4"][seed as usize / 3]);
        for (replicas, speed) in [(1, 1.0), (3, 1.0), (7, 1.0), (3, 0.3), (3, 2.5)] {
            let mut settings = settings(16, [300, 2000][seed as usize % 2]);
            (settings.replicas, settings.routing.router) = (replicas, router.into());
            settings.arrivals = Arrivals::Traced { speed };
            let run = |observer: &mut dyn Observer| {
                let mut source = Generator::new(&spec).unwrap();
                assert!(source.waits_for_ends());
                Report { wall_s: 0.0, ..replay_source(&mut source, &settings, &Uneven, observer).unwrap() }
            };
            let mut stepped = Shown::default();
            let expected = run(&mut stepped);
            let mut outcomes = Vec::new();
            let fast = run(&mut |outcome: &Outcome| {
                outcomes.push(*outcome);
                ControlFlow::Continue(())
            });
            assert_eq!((fast, &outcomes), (expected, &stepped.outcomes), "{router} {replicas} {speed}");
            assert_eq!(outcomes.len(), 250);
        }
    }
}

/// Forty sessions of five turns, of which the third of every eighth is refused, being too long.
fn session_trace() -> Trace {
    let requests = (0..200u32).map(|n| {
        let (turn, session) = (n / 40, n % 40);
        // Some turns wait for their own time too.
        let own_ms = u64::from(session / 4 * 100 + turn * (session % 5) * 50);
        let place = Turn { session, delay_ns: u64::from(session % 3) * 40_000_000, is_last: turn == 4 };
        let of_turn = request(own_ms, 100 + 50 * turn, 1 + session * 3, &[session]);
        match turn == 2 && session % 8 == 0 {
            true => TraceRequest { turn: Some(place), input_tokens: 100_000, content: Content::Unique(n), ..of_turn },
            false => TraceRequest { turn: Some(place), ..of_turn },
        }
    });
    let mut requests: Vec<_> = requests.collect();
    requests.sort_by_key(|request| request.arrival_ns);
    trace(requests)
}

#[test]
fn fast_forward_equals_single_steps_with_sessions_of_a_trace() {
    let trace = session_trace();
    for router in ["round_robin", "least_loaded", "prefix_affinity", "added_time"] {
        for (replicas, speed) in [(1, 1.0), (3, 1.0), (7, 1.0), (3, 0.3), (3, 2.5)] {
            let mut settings = settings(16, 400);
            (settings.replicas, settings.routing.router) = (replicas, router.into());
            settings.arrivals = Arrivals::Traced { speed };
            let run = |observer: &mut dyn Observer| Report {
                wall_s: 0.0,
                ..replay_source(&mut trace.source(), &settings, &Uneven, observer).unwrap()
            };
            let mut stepped = Shown::default();
            let expected = run(&mut stepped);
            let mut outcomes = Vec::new();
            let fast = run(&mut |outcome: &Outcome| {
                outcomes.push(*outcome);
                ControlFlow::Continue(())
            });
            assert_eq!((&fast, &outcomes), (&expected, &stepped.outcomes), "{router} {replicas} {speed}");
            assert_eq!((fast.requests, fast.refused), (200, 5), "{router}");
        }
        // All at once, nobody waits.
        let settings = Settings { arrivals: Arrivals::AtOnce, ..settings(16, 400) };
        let at_once =
            replay_source(&mut trace.source(), &settings, &Uneven, &mut |_: &Outcome| ControlFlow::Continue(()));
        assert_eq!(at_once.unwrap().requests, 200);
    }
}

#[test]
fn an_end_elsewhere_pauses_no_fast_forward_before_the_session_reacts() {
    // Twenty sessions of two long answers each, half a minute apart; all arrive within a second.
    let spec = r#"
        requests = 40
        [[population]]
        arrivals = { process = "constant", sessions-per-s = 20 }
        input-tokens = { kind = "constant", value = 100 }
        output-tokens = { kind = "constant", value = 2000 }
        session = { turns = { kind = "constant", value = 2 }, think-s = { kind = "constant", value = 30 } }
    "#;
    let spec = Spec::parse(spec).unwrap();
    for router in ["round_robin", "least_loaded"] {
        let mut settings = Settings { replicas: 4, ..settings(16, 10_000) };
        settings.routing.router = router.into();
        let (mut source, mut watch) = (Generator::new(&spec).unwrap(), |_: &Outcome| ControlFlow::Continue(()));
        let mut fleet = Fleet::new(&mut source, &settings, &OneMs, Watched::by(&mut watch)).unwrap();
        fleet.run().unwrap();
        let (steps, pauses) = (fleet.totals.fast_forwarded, fleet.totals.fast_forwards);
        assert!(steps > 10_000 && pauses < 400, "{router}: {steps} steps in {pauses} fast-forwards");
    }
}

/// Returns requests with short prompts, some with a shared prefix, and long answers: blocks run out during decode-only batches.
fn long_answers(numbers: &mut Numbers) -> Trace {
    let mut arrival_ms = 0;
    let requests = (0..60).map(|_| {
        arrival_ms += numbers.below(30);
        let (first, input_tokens) = (numbers.below(12) as u32, 20 + numbers.below(300) as u32);
        request(arrival_ms, input_tokens, 1 + numbers.below(400) as u32, &[first])
    });
    trace(requests.collect())
}

/// Returns settings with a random mix of features: tiers of all kinds, swapping, drafts, tenants, failures, slow replicas, groups.
fn anything(numbers: &mut Numbers, least_tokens: u32) -> Settings {
    let mut pick = |n: u64| numbers.below(n) as usize;
    let block_size = [4, 16, 64][pick(3)];
    let blocks = |tokens: u32| tokens.div_ceil(block_size);
    let mut settings = settings(block_size, blocks([1, 1, 2, 100][pick(4)] * least_tokens));
    settings.replicas = 1 + pick(3) as u32;
    settings.arrivals = match pick(8) {
        0 => Arrivals::AtOnce,
        1 => Arrivals::Serial,
        _ => Arrivals::Traced { speed: [0.05, 0.3, 1.0][pick(3)] },
    };
    settings.routing.router =
        ["round_robin", "least_loaded", "random2", "prefix_affinity", "added_time"][pick(5)].into();
    let core = &mut settings.core;
    core.policy = ["fcfs", "sjf", "lpm", "priority", "edf", "vtc"][pick(12).min(5)].into();
    if core.policy == "vtc" && pick(2) == 0 {
        core.policy = "fcfs".into();
    }
    core.eviction = ["lru", "lfu", "s3fifo", "arc", "cost"][pick(5)].into();
    core.preemption = [Preemption::Swap, Preemption::Recompute, Preemption::Cost][pick(3)];
    core.max_batch_size = [3, 8, 256][pick(3)];
    core.max_batch_tokens = [600, 8192][pick(2)];
    core.align_chunks = pick(2) == 0;
    core.target_step_ns = [StepTarget::Off, StepTarget::Ns(2 * MS), StepTarget::SERVED][pick(3)];
    core.host_blocks = blocks([0, least_tokens / 2, 10 * least_tokens][pick(3)]);
    core.max_drafts = [0, 0, 0, 3][pick(4)];
    for (at, name) in ["host", "disk", "remote"].into_iter().enumerate().take(pick(7).saturating_sub(3)) {
        let write = [Write::Through, Write::SecondUse, Write::Through, Write::SecondUse, Write::Back][pick(5)];
        let tier = blocks([1, 4, 50][pick(3)] * least_tokens);
        core.tiers.push(TierConfig {
            name: name.into(),
            blocks: tier,
            write,
            eviction: ["lru", "s3fifo"][pick(2)].into(),
            shared: at > 0 && pick(2) == 0,
        });
        if at > 0 {
            settings.far_links.push(TierLink {
                bytes_s: [1e9, 20e9][pick(2)],
                latency_s: 1e-4,
                ratio: 1.0,
                codec_bytes_s: None,
            });
        }
    }
    if pick(3) == 0 {
        let hardware = *hardware::by_name("a100-80g").unwrap();
        settings.add_group(hardware, Parallel::ONE, 1 + pick(2) as u32, Some(blocks(3 * least_tokens))).unwrap();
    }
    if pick(3) == 0 {
        settings.routing.slow.push("0:2.5".parse().unwrap());
    }
    if pick(6) == 0 && settings.n_replicas() > 1 && settings.arrivals != Arrivals::AtOnce {
        settings.routing.failures.push(["1@0.3..0.6", "0@0.5"][pick(2)].parse().unwrap());
    }
    if pick(6) == 0 {
        settings.tenants = "0.7,0.3".parse().unwrap();
    }
    settings
}

#[test]
fn fast_forward_equals_single_steps_with_random_settings() {
    let mut numbers = Numbers(11);
    let (mut preemptions, mut swaps, mut copies, mut hits) = (0, 0, 0, 0);
    for seed in 0..15 {
        for (trace, least_tokens) in [(conversations(60, seed), 25_600), (long_answers(&mut numbers), 1_600)] {
            let report = same(&trace, &anything(&mut numbers, least_tokens), &Uneven);
            preemptions += report.preemptions;
            swaps += report.swaps.swap_ins;
            copies += report.swaps.link_out.transfers;
            hits += report.tokens.prefix_hit_tokens;
        }
    }
    assert!(preemptions > swaps && swaps > 0 && copies > swaps && hits > 0, "{preemptions} {swaps} {copies} {hits}");
}
