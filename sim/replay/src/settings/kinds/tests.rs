//! Fleets of several kinds: how they are written, and what they do.

use super::*;
use crate::group::FleetSpec;
use crate::{Routing, replay};
use trunkline_sim_perf::cost::StepShape;
use trunkline_sim_perf::{hardware, model};
use trunkline_sim_report::Report;
use trunkline_sim_workload::Trace;
use trunkline_sim_workload::trace::{Content, TraceRequest, formats};

fn preset(name: &str) -> Hardware {
    *hardware::by_name(name).unwrap()
}

/// Replicas of one kind.
fn settings(hardware: &str, replicas: u32) -> Settings {
    let mut settings = Settings {
        replicas,
        draft_acceptance: 0.5,
        ..Settings::new(preset(hardware), *model::by_name("llama-3.1-8b").unwrap())
    };
    settings.core.device_blocks = settings.fitting_device_blocks().unwrap();
    settings
}

fn estimated(mut settings: Settings) -> Settings {
    let cost = settings.cost_model().unwrap();
    settings.estimate_costs(&*cost);
    settings
}

/// Two H100s, then four pairs of A100s.
fn mixed() -> Settings {
    let mut settings = settings("h100-80g", 2);
    settings.add_group(preset("a100-80g"), "tp2".parse().unwrap(), 4, None).unwrap();
    estimated(settings)
}

fn trace(n: u32) -> Trace {
    let request = |i: u32| TraceRequest {
        arrival_ns: u64::from(i) * 40_000_000,
        input_tokens: 1_000 + i * 53 % 500,
        output_tokens: 30,
        content: Content::Unique(i),
        ..TraceRequest::default()
    };
    Trace { format: formats::AZURE, requests: (0..n).map(request).collect() }
}

fn run(settings: &Settings, n: u32) -> Report {
    replay(&trace(n), settings, &*settings.cost_model().unwrap(), &mut |_| {}).unwrap()
}

#[test]
fn each_device_copies_its_share_of_a_block_over_its_own_link() {
    let spread = |parallel: &str| {
        let settings = Settings { parallel: parallel.parse().unwrap(), ..settings("h100-80g", 1) };
        (settings.device_block_bytes(settings.parallel), estimated(settings).core.swap_block_ns)
    };
    // 2 MiB at 55 GB/s. Eight KV heads are divided among up to eight devices, and layers among stages.
    assert_eq!(spread("tp1"), (2 << 20, 38_131));
    assert_eq!(spread("tp8"), (1 << 18, 4_767));
    assert_eq!(spread("tp16"), (1 << 18, 4_767));
    assert_eq!(spread("tp2pp2"), (1 << 19, 9_533));
    let settings = mixed();
    assert_eq!(settings.block_bytes(), 2 << 20);
    assert_eq!(settings.others[0].swap_block_ns, 41_944, "1 MiB at 25 GB/s");
}

#[test]
fn written_and_read() {
    let spec: FleetSpec = "h100-80g*2, a100-80g:tp2*4,my/own.toml".parse().unwrap();
    assert_eq!(spec.to_string(), "h100-80g:tp1pp1*2,a100-80g:tp2pp1*4,my/own.toml:tp1pp1*1");
    assert_eq!(spec.to_string().parse(), Ok(spec));
    for bad in ["", "h100-80g*0", "h100-80g*", "*2", "h100-80g,", "h100-80g:x", "a*4096,b", "a*-1", "a*99999999999"] {
        let error = bad.parse::<FleetSpec>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("fleet is '{bad}'; give HARDWARE[:SHAPE][*REPLICAS]")), "{error}");
    }
}

#[test]
fn each_replica_has_what_its_device_has() {
    let mixed = mixed();
    assert_eq!(mixed.validate(), Ok(()));
    assert_eq!((mixed.n_replicas(), mixed.devices()), (6, "2 x h100-80g, 4 x a100-80g tp2pp1".into()));
    let alone = |name: &str, shape: &str| {
        let parallel = shape.parse().unwrap();
        let mut alone = Settings { parallel, ..settings(name, 1) };
        alone.core.device_blocks = alone.fitting_device_blocks().unwrap();
        estimated(alone)
    };
    for (replica, alone) in [
        (0, alone("h100-80g", "tp1")),
        (1, alone("h100-80g", "tp1")),
        (2, alone("a100-80g", "tp2")),
        (5, alone("a100-80g", "tp2")),
    ] {
        assert_eq!(mixed.hardware_of(replica).name, alone.hardware.name, "{replica}");
        let (found, expected) = (mixed.core_of(replica), &alone.core);
        assert_eq!(found.device_blocks, expected.device_blocks, "{replica}");
        assert_eq!(
            (found.swap_block_ns, found.recompute_token_ns),
            (expected.swap_block_ns, expected.recompute_token_ns)
        );
        let shape = StepShape::prefill(2_000, 0).and(StepShape::decodes(7, 300));
        let step_ns = |settings: &Settings, replica| settings.cost_model().unwrap().replica_step_ns(replica, &shape);
        assert_eq!(step_ns(&mixed, replica), step_ns(&alone, 0), "{replica}");
    }
    assert!(mixed.core_of(2).device_blocks > mixed.core_of(0).device_blocks, "two devices hold more than one");
}

#[test]
fn a_fleet_of_two_groups_of_one_kind_is_a_fleet_of_one() {
    let one = estimated(settings("h100-80g", 5));
    let mut two = settings("h100-80g", 2);
    two.add_group(preset("h100-80g"), Parallel::ONE, 3, None).unwrap();
    let two = estimated(two);
    for router in ["round_robin", "least_loaded", "prefix_affinity"] {
        let routed = |settings: &Settings| {
            let routing = Routing { router: router.into(), ..Routing::default() };
            run(&Settings { routing, ..settings.clone() }, 120)
        };
        let (one, two) = (routed(&one), routed(&two));
        assert_eq!(
            (one.digest, one.latencies.ttft_s, one.latencies.e2e_s),
            (two.digest, two.latencies.ttft_s, two.latencies.e2e_s),
            "{router}"
        );
        assert_eq!((one.settings.groups.len(), two.settings.groups.len(), two.settings.replicas), (1, 2, 5));
    }
}

#[test]
fn a_faster_kind_makes_a_faster_fleet() {
    let slow = run(&estimated(settings("l4-24g", 2)), 60);
    let mut half = settings("l4-24g", 1);
    half.add_group(preset("h100-80g"), Parallel::ONE, 1, None).unwrap();
    let half = run(&estimated(half), 60);
    let fast = run(&estimated(settings("h100-80g", 2)), 60);
    assert!(
        slow.latencies.e2e_s.mean > half.latencies.e2e_s.mean && half.latencies.e2e_s.mean > fast.latencies.e2e_s.mean
    );
    assert_eq!((half.completed, half.settings.groups[1].hardware), (60, "h100-80g"));
    let name = &half.settings.cost_model;
    assert!(
        name.starts_with("1 x l4-24g: roofline (error not") && name.contains("; 1 x h100-80g: roofline (held-out"),
        "{name}"
    );
}

#[test]
fn what_cannot_work_is_told() {
    let mut none = mixed();
    none.others[0].replicas = 0;
    assert_eq!(none.validate().unwrap_err().to_string(), "replicas is 0; it must be at least 1");
    let mut small = mixed();
    small.others[0].device_blocks = 0;
    assert!(small.validate().unwrap_err().to_string().starts_with("device_blocks is 0; it must be"));
    let mut beyond = mixed();
    beyond.routing.slow = vec!["5:2".parse().unwrap()];
    assert_eq!(beyond.validate(), Ok(()));
    beyond.routing.slow = vec!["6:2".parse().unwrap()];
    assert_eq!(beyond.validate().unwrap_err().to_string(), "replica 6 is to be slow, but there are 6, numbered from 0");
    let mut large = Settings { model: *model::by_name("llama-3.1-70b").unwrap(), ..settings("h100-80g", 1) };
    let error = large.add_group(preset("l4-24g"), Parallel::ONE, 1, None).unwrap_err().to_string();
    assert!(error.starts_with("llama-3.1-70b does not fit on l4-24g"), "{error}");
    assert!(large.add_group(preset("l4-24g"), Parallel::ONE, 1, Some(100)).is_ok());
}
