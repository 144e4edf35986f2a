//! Copies, drafts, and what is counted of steps.

use trunkline_cluster::Role;
use trunkline_core::{Place, Transfer};
use trunkline_core::{Preemption, TierConfig, Write};

use super::*;
use trunkline_sim_perf::link::{self, TierLink};
use trunkline_sim_report::observer::TransferSeen;

/// The copies that were told of, in that order.
#[derive(Default)]
struct Copies(Vec<TransferSeen>);

impl Observer for Copies {
    fn ended(&mut self, _: &Outcome) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn transfer(&mut self, transfer: &TransferSeen) {
        self.0.push(*transfer);
    }
}

#[test]
fn transfers_share_the_link_and_their_ends_are_told() {
    let trace = trace(vec![request(0, 10, 1, &[0])]);
    let mut settings = settings(16, 100);
    // 2 MiB blocks, one in 100 us after 10 us.
    settings.hardware.host_link_bytes_s = 2_097_152.0 / 100e-6;
    let mut copies = Copies::default();
    let mut source = trace.source();
    let mut fleet = Fleet::new(&mut source, &settings, &OneMs, Watched::by(&mut copies)).unwrap();
    let copy = |id, from, to, n| {
        Action::Transfer(Box::new(Transfer { id, from, to, pairs: vec![(0, 0); n], ..Transfer::default() }))
    };
    let out = |id| copy(id, Place::Device, Place::Host, 2);
    let back = |id, n| copy(id, Place::Host, Place::Device, n);
    for copy in [out(1), out(2), back(3, 2), back(4, 4), back(5, 100)] {
        fleet.perform_action(fleet.now_ns, 0, copy);
    }
    // A direction has one wake_up on the queue, whatever waits for it; ends are in the order of their numbers.
    let wake_up = |direction| (10_000, SimEvent::LinkWakeUp { replica: 0, direction, version: 1 });
    let mut queued: Vec<_> = fleet.queue.iter().map(|Reverse(it)| (it.at_ns, it.what)).collect();
    queued.sort_unstable();
    assert_eq!(queued, [wake_up(0), wake_up(1)]);
    // The core waits for none of them, so the replay goes on as if there were none, and their ends do not make it longer.
    fleet.run().unwrap();
    let report = fleet.report();
    assert_eq!(
        (report.swaps.link_out.transfers, report.swaps.link_out.blocks, report.swaps.link_in.blocks),
        (2, 4, 106)
    );
    assert_eq!((report.swaps.link_out.busy_s, report.swaps.link_in.busy_s), (400e-6, 10.6e-3));
    assert_eq!(report.duration_s, 0.001);
    // Halves out. In: thirds until the shortest has its 200 us, halves until the next has its other 200, the rest alone.
    let ends = copies.0.iter().map(|copy| (copy.end_ns, copy.blocks)).collect::<Vec<_>>();
    assert_eq!(ends, [(410_000, 2), (410_000, 2), (610_000, 2), (1_010_000, 4), (10_610_000, 100)]);
    assert!(copies.0.iter().all(|copy| (copy.asked_ns, copy.begin_ns, copy.interrupted) == (0, 10_000, false)));
}

/// Every step takes a millisecond, and a fortieth of one more for each token of a prompt, so that loading blocks pays.
pub(super) struct SlowPrefill;

impl CostModel for SlowPrefill {
    fn name(&self) -> &str {
        "slow prefill"
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        MS + MS / 40 * shape.prefill_tokens
    }
}

/// Two replicas with swapping, and tiers in host memory and on disk.
fn with_tiers() -> Settings {
    let mut settings = Settings { replicas: 2, ..settings(16, 900) };
    (settings.core.host_blocks, settings.core.preemption) = (500, Preemption::Swap);
    let tier = |name: &str, blocks| TierConfig {
        name: name.into(),
        blocks,
        write: Write::Through,
        eviction: "lru".into(),
        shared: false,
    };
    settings.core.tiers = vec![tier("host", 600), tier("disk", 20_000)];
    settings.far_links = vec![TierLink { bytes_s: 6e9, latency_s: 100e-6, ratio: 0.5, codec_bytes_s: Some(5e9) }];
    settings
}

/// A replay names blocks by the hashes of the tree and keeps no tokens of tiers; a recording runs as it did in a server, with both.
#[test]
fn blocks_of_tiers_are_found_in_a_replay_as_in_a_server() {
    let (trace, settings) = (conversations(200, 5), with_tiers());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("r.jsonl.gz");
    let mut nobody = |_: &Outcome| ControlFlow::Continue(());
    let report = record(&mut trace.source(), &settings, &SlowPrefill, &mut nobody, &path).unwrap();
    assert!(report.tiers.iter().all(|tier| tier.hit_blocks > 0), "{:?}", report.tiers);
    assert_eq!(crate::recorded::replay_recorded(&path, &mut |_| {}).unwrap().matches, Some(true));
}

#[test]
fn every_copy_is_told_of_once_when_it_is_over() {
    let (trace, mut settings) = (conversations(200, 5), with_tiers());
    // A link so slow that copies overlap.
    settings.hardware.host_link_bytes_s = 10e9;
    settings.routing.failures = vec!["0@0.5005..0.7".parse().unwrap(), "1@0.8005..0.9".parse().unwrap()];
    let mut copies = Copies::default();
    let report = replay_watched(&trace, &settings, &SlowPrefill, &mut copies).unwrap();
    let copies = copies.0;
    assert_eq!(report.completed, 200);
    assert!(copies.is_sorted_by_key(|copy| copy.end_ns));
    let begin_of = |copy: &TransferSeen| copy.asked_ns <= copy.begin_ns && copy.begin_ns <= copy.end_ns;
    assert!(copies.iter().all(begin_of));
    let cut: Vec<_> = copies.iter().filter(|copy| copy.interrupted).map(|copy| (copy.end_ns, copy.replica)).collect();
    let failures = [(500_500_000, 0), (800_500_000, 1)];
    assert!(
        failures.iter().all(|failure| cut.contains(failure)) && cut.iter().all(|it| failures.contains(it)),
        "{cut:?}"
    );
    for (direction, link) in report.tiers.iter().flat_map(|tier| [tier.link_out, tier.link_in]).enumerate() {
        let of_direction = || copies.iter().filter(|copy| link::direction(copy.from, copy.to) == direction);
        let blocks = of_direction().map(|copy| u64::from(copy.blocks)).sum::<u64>();
        assert_eq!((link.transfers, link.blocks), (of_direction().count() as u64, blocks), "direction {direction}");
        assert!(link.transfers > 0, "direction {direction}");
        // A link is busy as long as what came over it takes: sharing loses nothing, but for what was cut.
        let block_s = 2_097_152.0 / [10e9, 5e9][direction / 2];
        let whole =
            of_direction().filter(|copy| !copy.interrupted).map(|copy| f64::from(copy.blocks) * block_s).sum::<f64>();
        let least_s = whole - 1e-6;
        assert!(
            (least_s..blocks as f64 * block_s + 1e-6).contains(&link.busy_s),
            "direction {direction}: {} {whole}",
            link.busy_s
        );
    }
    let again = replay(&trace, &settings, &SlowPrefill, &mut |_| {}).unwrap();
    assert_eq!(report, Report { wall_s: report.wall_s, ..again });
}

#[test]
fn a_replica_finds_in_shared_storage_what_another_stored_there() {
    // Request by request to another replica.
    let trace = trace((0..4).map(|i| request(i * 1000, 65, 1, &[1, 2, 3, 4, 5])).collect());
    let mut settings = Settings { replicas: 2, ..settings(16, 100) };
    let tier = |name: &str| TierConfig {
        name: name.into(),
        blocks: 100,
        write: Write::Through,
        eviction: "lru".into(),
        shared: false,
    };
    settings.core.tiers = vec![tier("host"), tier("remote")];
    settings.far_links = vec![TierLink { bytes_s: 6e9, latency_s: 100e-6, ratio: 1.0, codec_bytes_s: None }];
    let hits = |settings: &Settings| {
        let report = replay(&trace, settings, &SlowPrefill, &mut |_| {}).unwrap();
        (report.tiers[1].hit_blocks, report.tokens.prefix_hit_tokens)
    };
    let (alone, cached) = hits(&settings);
    settings.core.tiers[1].shared = true;
    let (shared, cached_shared) = hits(&settings);
    assert_eq!((alone, shared), (0, 4), "the second replica's first request loads what the first one stored");
    assert_eq!(cached_shared, cached + 4 * 16);
}

#[test]
fn shared_memory_holds_as_many_blocks_as_it_has_room_for() {
    // Four prompts of four blocks, twice in the same order, each time to the other replica.
    let prompt = |i: u32| {
        request(u64::from(i) * 1000, 65, 1, &[10 * (i % 4), 10 * (i % 4) + 1, 10 * (i % 4) + 2, 10 * (i % 4) + 3, 99])
    };
    let mut requests: Vec<_> = (0..8).map(prompt).collect();
    // An odd number between the rounds changes the replicas of the second one.
    requests.insert(4, request(3_500, 10, 1, &[500]));
    let trace = trace(requests);
    let found = |blocks| {
        let mut settings = Settings { replicas: 2, shared_memory: true, ..settings(16, 100) };
        let (name, write, eviction) = ("shared".into(), Write::Through, "lru".into());
        settings.core.tiers = vec![TierConfig { name, blocks, write, eviction, shared: true }];
        let report = replay(&trace, &settings, &SlowPrefill, &mut |_| {}).unwrap();
        assert_eq!((report.completed, report.refused), (9, 0));
        // Of the one memory, however many replicas know of a block.
        let tier = &report.tiers[0];
        assert_eq!(tier.blocks, u64::from(blocks.min(16)));
        assert_eq!(tier.stored_blocks - tier.evicted_blocks, tier.blocks);
        report.tiers[0].hit_blocks
    };
    assert_eq!(found(100), 16, "all of the second round");
    assert_eq!(found(12), 0, "the block wanted next is always the one dropped last");
}

#[test]
fn requests_are_swapped_over_the_link_and_back() {
    let requests = (0..8).map(|i| request(0, 64, 200, &[i])).collect();
    let trace = trace(requests);
    let mut settings = settings(16, 60);
    (settings.core.host_blocks, settings.core.preemption) = (200, Preemption::Swap);
    let report = run(&trace, &settings);
    assert_eq!((report.completed, report.tokens.output_tokens), (8, 1600));
    assert!(
        report.swaps.swap_outs > 0 && report.swaps.swap_outs == report.swaps.swap_ins,
        "{} {}",
        report.swaps.swap_outs,
        report.swaps.swap_ins
    );
    assert!(report.swaps.link_out.blocks > 0 && report.swaps.link_in.blocks > 0);
    let bytes_s = report.swaps.link_out.blocks as f64 * 2_097_152.0 / 55e9;
    assert!((report.swaps.link_out.busy_s - bytes_s).abs() < 1e-6, "{} {bytes_s}", report.swaps.link_out.busy_s);
    assert_eq!(report, Report { wall_s: report.wall_s, ..run(&trace, &settings) });
    // On a link where a block takes as long as a hundred steps, the requests are computed again before their copies end.
    settings.hardware.host_link_bytes_s = 2_097_152.0 / 100e-3;
    let slow = run(&trace, &settings);
    assert_eq!((slow.completed, slow.tokens.output_tokens), (8, 1600));
    assert!(slow.swaps.swap_ins < report.swaps.swap_ins, "{} {}", slow.swaps.swap_ins, report.swaps.swap_ins);
    assert!(slow.duration_s < 2.0 * report.duration_s, "{} {}", slow.duration_s, report.duration_s);
}

#[test]
fn costs_are_estimated_from_hardware_and_model() {
    let mut settings = settings(16, 100);
    settings.estimate_costs(&OneMs);
    // 2 MiB at 55 GB/s; a millisecond for 2,048 tokens.
    assert_eq!((settings.core.swap_block_ns, settings.core.recompute_token_ns), (38_131, 489));
}

#[test]
fn drafts_that_are_right_save_steps() {
    let trace = trace(vec![request(0, 64, 100, &[0])]);
    let steps = |max_drafts, draft_acceptance| {
        let mut settings = Settings { draft_acceptance, ..settings(16, 100) };
        settings.core.max_drafts = max_drafts;
        let report = run(&trace, &settings);
        assert_eq!(report.tokens.output_tokens, 100);
        assert_eq!(
            report.batches.steps + report.batches.accepted_drafts,
            100,
            "every step gives a token, and one for every right draft"
        );
        assert!(report.batches.accepted_drafts <= report.batches.drafted_tokens);
        report.batches.steps
    };
    assert_eq!((steps(0, 1.0), steps(4, 0.0)), (100, 100));
    assert!((20..30).contains(&steps(4, 1.0)), "{}", steps(4, 1.0));
    assert!((35..60).contains(&steps(4, 0.6)), "{}", steps(4, 0.6));
}

#[test]
fn means_of_steps() {
    let settings = settings(16, 100);
    let report = run(&trace(vec![request(0, 10, 3, &[0]), request(0, 20, 2, &[1])]), &settings);
    // The first alone: it came first. Then its decode and the other's prompt, then two decodes.
    assert_eq!((report.batches.steps, report.batches.mean_batch), (3, 5.0 / 3.0));
    assert_eq!(report.batches.mean_step_tokens, (10.0 + 21.0 + 2.0) / 3.0);
    assert_eq!((report.batches.drafted_tokens, report.requests_s), (0, 2.0 / 0.003));
}

/// A prefill and a decode replica that share host memory, whose link takes `latency_s` for a copy.
fn apart(latency_s: f64) -> Settings {
    let mut settings = Settings { replicas: 2, shared_memory: true, ..settings(16, 100) };
    settings.hardware.host_link_latency_s = latency_s;
    settings.routing.roles = vec![Role::Prefill, Role::Decode];
    settings.core.tiers = vec![TierConfig {
        name: "shared".into(),
        blocks: 100,
        write: Write::Through,
        eviction: "lru".into(),
        shared: true,
    }];
    settings
}

#[test]
fn a_decode_replica_takes_the_prompt_from_shared_memory_and_waits_for_copies_under_way() {
    let trace =
        trace((0..4u32).map(|i| request(u64::from(i) * 1000, 65, 4, &[1 + i, 2 + i, 3 + i, 4 + i, 5 + i])).collect());
    let run = |settings: &Settings| replay(&trace, settings, &SlowPrefill, &mut |_| {}).unwrap();
    let together = run(&Settings { replicas: 2, ..settings(16, 100) });
    let travels = run(&apart(10e-6));
    let mut recomputed = apart(10e-6);
    (recomputed.core.tiers, recomputed.shared_memory) = (Vec::new(), false);
    let recomputed = run(&recomputed);
    assert_eq!((travels.completed, travels.fleet.rerouted), (4, 0));
    assert_eq!(travels.tiers[0].hit_blocks, 4 * 4, "four whole blocks of each prompt travel");
    let ttft = |report: &Report| report.latencies.ttft_s.mean;
    let e2e = |report: &Report| report.latencies.e2e_s.mean;
    let look_up_s = ttft(&travels) - ttft(&recomputed);
    assert!((look_up_s - 10e-6).abs() < 1e-9, "the prefill replica looks the prompt up first: {look_up_s}");
    assert!(e2e(&travels) < e2e(&recomputed), "{} {}", e2e(&travels), e2e(&recomputed));
    assert!(e2e(&travels) > e2e(&together), "copies take time");
    // The look-up is answered after one latency, and the copies end later: without waiting nothing would be found.
    let mut hasty = apart(10e-6);
    hasty.shared_memory = false;
    assert_eq!(run(&hasty).tiers[0].hit_blocks, 0);
    let again = run(&apart(10e-6));
    assert_eq!(travels, Report { wall_s: travels.wall_s, ..again });
}

#[test]
fn a_prefill_replica_that_fails_in_the_middle_of_copies_leaves_no_look_up_waiting() {
    let trace =
        trace((0..40u32).map(|i| request(u64::from(i) * 3, 65, 4, &[1 + i, 2 + i, 3 + i, 4 + i, 5 + i])).collect());
    for at in 0..20 {
        let mut settings = apart(2e-3);
        settings.replicas = 3;
        settings.routing.roles.push(Role::Prefill);
        let spec = format!("0@{}..{}", f64::from(at) * 0.01, f64::from(at) * 0.01 + 0.05);
        settings.routing.failures = vec![spec.parse().unwrap()];
        let report = replay(&trace, &settings, &SlowPrefill, &mut |_| {}).unwrap();
        assert_eq!(report.completed, 40);
    }
}

#[test]
fn roles_are_those_of_the_replicas() {
    let refused = |roles: &[Role], arrivals| {
        let mut settings = Settings { replicas: 2, arrivals, ..settings(16, 100) };
        settings.routing.roles = roles.to_vec();
        settings.validate().unwrap_err().to_string()
    };
    let (prefill, decode) = (Role::Prefill, Role::Decode);
    let three = refused(&[prefill, decode, decode], Arrivals::TRACED);
    assert_eq!(three, "3 roles for 2 replicas; give one role for each replica");
    assert_eq!(refused(&[prefill, prefill], Arrivals::TRACED), "no replica has the role 'decode' or 'both'");
    assert_eq!(refused(&[decode, decode], Arrivals::TRACED), "no replica has the role 'prefill' or 'both'");
    assert!(refused(&[prefill, decode], Arrivals::AtOnce).ends_with("give a speed instead of a load"));
}
