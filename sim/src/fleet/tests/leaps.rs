//! Leaping over steps against going through them one by one: the same decisions at the same times.

use trunkline_core::TierConfig;

use super::*;
use crate::fleet::replay_source;
use crate::observer::{Observer, StepSeen};
use crate::workload::{Generator, Spec};

/// Wants to see every step, so that none is leapt over.
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

/// Every step takes a time of its own.
struct Linear;

impl CostModel for Linear {
    fn name(&self) -> &str {
        "linear"
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        MS + 7_919 * shape.tokens + 13 * shape.decode_kv_tokens + 5 * shape.decode_kv_max
    }
}

/// Replays leaping and stepping, and expects the same of both. Returns how many requests were preempted.
fn same(trace: &Trace, settings: &Settings) -> u64 {
    let mut outcomes = Vec::new();
    let mut watch = |outcome: &Outcome| {
        outcomes.push(*outcome);
        ControlFlow::Continue(())
    };
    let leapt = replay_watched(trace, settings, &Linear, &mut watch).unwrap();
    let mut shown = Shown::default();
    let stepped = replay_watched(trace, settings, &Linear, &mut shown).unwrap();
    assert_eq!(shown.steps, stepped.steps);
    // They are told of in another order only if they ended at one time on different replicas.
    outcomes.sort_by_key(|outcome| outcome.request);
    shown.outcomes.sort_by_key(|outcome| outcome.request);
    assert_eq!(outcomes, shown.outcomes);
    assert_eq!(Report { wall_s: 0.0, ..leapt }, Report { wall_s: 0.0, ..stepped });
    leapt.preemptions
}

#[test]
fn a_leap_is_the_steps_it_leaps_over() {
    let mut preemptions = 0;
    for seed in 0..6 {
        let trace = conversations(150, seed);
        for block_size in [4, 16, 64] {
            for blocks in [400, 40_000] {
                let mut settings = settings(block_size, blocks * 64 / block_size);
                settings.replicas = 1 + seed as u32 % 3;
                settings.core.max_batch_size = [256, 5][seed as usize % 2];
                settings.routing.router = ["round_robin", "least_loaded", "prefix_affinity"][seed as usize % 3].into();
                preemptions += same(&trace, &settings);
            }
        }
    }
    assert!(preemptions > 0, "some blocks were missing in a leap");
}

#[test]
fn nearly_all_steps_of_lone_decodes_are_in_leaps() {
    let trace = trace(vec![request(0, 100, 500, &[1]), request(5, 90, 300, &[2])]);
    let settings = settings(16, 1000);
    let (mut source, mut watch) = (trace.source(), |_: &Outcome| ControlFlow::Continue(()));
    let mut fleet = Fleet::new(&mut source, &settings, &OneMs, &mut watch).unwrap();
    fleet.run().unwrap();
    let (leapt, report) = (fleet.leapt, fleet.report());
    // Not in leaps: each prefill and the step after it (1, 2, 7, 8), the last of the second and the step after it (306, 307), and the
    // last of the first (500).
    assert_eq!((report.steps, leapt), (500, 493));
}

#[test]
fn whatever_the_policies_and_the_arrivals() {
    let trace = conversations(120, 9);
    for policy in ["fcfs", "sjf", "lpm", "vtc", "priority"] {
        for arrivals in [Arrivals::Traced { speed: 0.37 }, Arrivals::Serial, Arrivals::AtOnce] {
            let mut settings = settings(16, 1600);
            settings.replicas = 2;
            settings.core.policy = policy.into();
            settings.core.eviction = "reuse".into();
            settings.arrivals = arrivals;
            same(&trace, &settings);
        }
    }
}

#[test]
fn whatever_is_copied_between() {
    let trace = conversations(150, 4);
    for write in [trunkline_core::Write::Through, trunkline_core::Write::SecondUse] {
        let mut settings = settings(16, 1200);
        settings.replicas = 2;
        (settings.core.host_blocks, settings.core.preemption) = (500, trunkline_core::Preemption::Swap);
        settings.core.tiers = vec![TierConfig { name: "host".into(), blocks: 3000, write, eviction: "lru".into() }];
        // So slow that copies share the link.
        settings.hardware.host_link_bytes_s = 8e9;
        same(&trace, &settings);
        let mut watch = |_: &Outcome| ControlFlow::Continue(());
        let mut source = trace.source();
        let mut fleet = Fleet::new(&mut source, &settings, &Linear, &mut watch).unwrap();
        fleet.run().unwrap();
        assert!(fleet.leapt > 0, "there is time between copies");
        assert!(fleet.report().link_in.blocks > 0);
    }
}

#[test]
fn a_closed_source_too() {
    let spec = r#"
        seed = 3
        requests = 300
        [[population]]
        name = "chat"
        arrivals = { process = "poisson", sessions-per-s = 8 }
        input-tokens = { kind = "lognormal", mean = 200, cv = 0.5, max = 1000 }
        output-tokens = { kind = "lognormal", mean = 60, cv = 0.8, max = 300 }
        session = { turns = { kind = "constant", value = 4 }, think-s = { kind = "exponential", mean = 0.3 } }
    "#;
    let spec = Spec::parse(spec).unwrap();
    let mut settings = settings(16, 2000);
    settings.replicas = 3;
    let run = |observer: &mut dyn Observer| {
        let mut source = Generator::new(&spec).unwrap();
        assert!(source.waits_for_ends());
        Report { wall_s: 0.0, ..replay_source(&mut source, &settings, &Linear, observer).unwrap() }
    };
    let stepped = run(&mut Shown::default());
    let leapt = run(&mut |_: &Outcome| ControlFlow::Continue(()));
    assert_eq!(leapt, stepped);
    assert_eq!(leapt.completed, 300);
}
