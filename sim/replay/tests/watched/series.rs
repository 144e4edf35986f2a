//! Buckets computed by hand, and whole replays whose buckets must sum up to their reports.

use std::ops::ControlFlow;

use trunkline_core::Place;
use trunkline_core::{Stats, TierConfig, TokenCounters, Write};
use trunkline_sim_perf::cost::{StepShape, WeightReads};
use trunkline_sim_replay::{Settings, replay, replay_watched};
use trunkline_sim_report::observer::{Observer, ReplicaChange, StepSeen, TransferSeen};
use trunkline_sim_report::outcome::Outcome;
use trunkline_sim_report::report::Report;
use trunkline_sim_report::series::{Series, SeriesReport};
use trunkline_sim_workload::Trace;
use trunkline_sim_workload::trace::formats;

use super::{SlowPrefill, mixed, settings, trace};

/// The width of the first buckets, nanoseconds.
const W: u64 = 1_953_125;

fn replayed(settings: &Settings, trace: &Trace) -> (Report, SeriesReport) {
    let mut series = Series::new(settings.fleet_shape());
    let report = replay_watched(trace, settings, &SlowPrefill, &mut series).unwrap();
    let told = series.finish(&report);
    (report, told)
}

/// A report of any replay that took so long.
fn report(settings: &Settings, duration_ns: u64) -> Report {
    let trace = Trace { format: formats::MOONCAKE, requests: Vec::new() };
    let report = replay_watched(&trace, settings, &SlowPrefill, &mut |_: &Outcome| ControlFlow::Continue(())).unwrap();
    Report { duration_s: duration_ns as f64 / 1e9, ..report }
}

fn stats(waiting: u32, running: u32, private_blocks: u32, idle_blocks: u32, generated_tokens: u64) -> Stats {
    let free_blocks = 100 - private_blocks - idle_blocks;
    let tokens = TokenCounters { generated_tokens, ..TokenCounters::default() };
    Stats { waiting, running, private_blocks, idle_blocks, free_blocks, tokens, ..Stats::default() }
}

/// Sum over the buckets of a rate.
fn total(told: &SeriesReport, rates: &[f64]) -> f64 {
    let ends = told.begin_s.iter().skip(1).chain([&told.end_s]);
    told.begin_s.iter().zip(ends).zip(rates).map(|((begin, end), rate)| (end - begin) * rate).sum()
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-4 * a.abs().max(b.abs())
}

#[test]
fn buckets_by_hand() {
    let settings = settings(2);
    let mut series = Series::new(settings.fleet_shape());
    let mut step = |replica, begin_ns, end_ns, shape, stats: Stats| {
        series.step(&StepSeen { replica, begin_ns, end_ns, shape, weights: WeightReads::default(), stats: &stats });
    };
    // A prefill over one bucket and a half, a decode over another half, and nothing until the fifth bucket, where it decodes again.
    let prefill = StepShape::prefill(64, 0);
    let generated = |generated_tokens| TokenCounters {
        prompt_tokens: 96,
        cached_tokens: 32,
        generated_tokens,
        ..TokenCounters::default()
    };
    let admitted = Stats { tokens: generated(0), ..stats(3, 1, 4, 2, 0) };
    step(0, 0, W + W / 2, prefill, admitted);
    let decode = StepShape::decodes(2, 65);
    let counted = Stats { tokens: generated(1), ..admitted };
    step(0, W + W / 2, 2 * W, decode, Stats { waiting: 0, running: 2, ..counted });
    step(1, 2 * W, 3 * W, decode, stats(7, 1, 10, 0, 0));
    step(0, 4 * W, 5 * W, decode, Stats { waiting: 0, running: 2, tokens: generated(3), ..admitted });
    let told = series.finish(&report(&settings, 5 * W));

    let seconds = W as f64 / 1e9;
    let counts = |rates: &[f64]| rates.iter().map(|rate| (rate * seconds * 1e4).round() / 1e4).collect::<Vec<_>>();
    assert_eq!((told.bucket_s, told.begin_s.len(), told.end_s), (seconds, 5, 5.0 * seconds));
    // One token of the prefill: two thirds in the first bucket. Two of each decode that is followed, two of the last ones.
    assert_eq!(counts(&told.flow.output_tokens_s), [0.6667, 2.3333, 2.0, 0.0, 2.0]);
    assert_eq!(counts(&told.flow.cached_tokens_s), [32.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(counts(&told.flow.uncached_tokens_s), [64.0, 0.0, 0.0, 0.0, 0.0]);
    assert_eq!(told.flow.hit_ratio, [Some(0.333333), None, None, None, None]);
    assert_eq!(
        told.requests.waiting,
        [3.0, 1.5, 7.0, 7.0, 7.0],
        "the second replica's wait for a copy when no step follows"
    );
    assert_eq!(told.requests.waiting_max, [3, 3, 7, 7, 7]);
    assert_eq!(told.requests.running, [1.0, 1.5, 1.0, 0.0, 2.0]);
    // Of 200 blocks: 4 in use and 2 cached; then all 6 cached; the other has 10, then cached.
    assert_eq!(told.blocks.blocks_in_use, [4.0, 4.0, 10.0, 0.0, 4.0]);
    assert_eq!(told.blocks.blocks_cached, [2.0, 2.0, 6.0, 16.0, 12.0]);
    assert_eq!(told.blocks.blocks_free, [194.0, 194.0, 184.0, 184.0, 184.0]);
    assert_eq!(told.utilisation, [0.5, 0.5, 0.5, 0.0, 0.5]);
    let means = |column: &[Option<f64>]| column.iter().map(|it| it.map(|it| (it * 100.0).round())).collect::<Vec<_>>();
    // Two thirds of a step in the first bucket; one third of it and a whole one in the second.
    assert_eq!(
        means(&told.steps.prefill_tokens),
        [6400.0, 1600.0, 0.0].map(Some).into_iter().chain([None, Some(0.0)]).collect::<Vec<_>>()
    );
    assert_eq!(
        means(&told.steps.decodes),
        [0.0, 150.0, 200.0].map(Some).into_iter().chain([None, Some(200.0)]).collect::<Vec<_>>()
    );
    assert!(near(told.steps.step_s[0].unwrap(), 1.5 * seconds));
    assert_eq!(told.replicas.iter().map(|it| it.busy_ns).collect::<Vec<_>>(), [3 * W, W]);
}

#[test]
fn a_failure_cuts_the_step_and_empties_the_device() {
    let mut settings = settings(1);
    settings.routing.failures = vec!["0@0.005..0.008".parse().unwrap()];
    let mut series = Series::new(settings.fleet_shape());
    let shape = StepShape::decodes(2, 65);
    let seen = Stats { swapped: 1, ..stats(3, 2, 10, 20, 0) };
    let (weights, end_ns) = (WeightReads::default(), 10_000_000);
    series.step(&StepSeen { replica: 0, begin_ns: 0, end_ns, shape, weights, stats: &seen });
    let (from, to) = (Place::Device, Place::Host);
    let (asked_ns, begin_ns) = (0, 1_000);
    for (end_ns, interrupted) in [(2_000_000, false), (4_000_000, false), (5_000_000, true)] {
        series.transfer(&TransferSeen { replica: 0, asked_ns, begin_ns, end_ns, interrupted, from, to, blocks: 5 });
    }
    series.replica(5_000_000, 0, ReplicaChange::Failed);
    series.replica(8_000_000, 0, ReplicaChange::Back);
    // A failure after the last end is none.
    series.replica(u64::MAX / 2, 0, ReplicaChange::Failed);
    let told = series.finish(&report(&settings, 4 * W));
    assert_eq!(told.replicas[0].busy_ns, 5_000_000);
    assert_eq!(told.flow.output_tokens_s, [0.0; 4], "a step that was cut gives no token");
    assert_eq!(told.bucket_s, W as f64 / 1e9, "a far failure does not widen the buckets");
    assert_eq!(
        (told.requests.running[3], told.requests.waiting[3], told.requests.swapped[3]),
        (0.0, 6.0, 0.0),
        "they wait for it to be back"
    );
    assert_eq!((told.blocks.blocks_free[3], told.blocks.blocks_cached[3]), (100.0, 0.0));
    let [link] = &told.links[..] else { panic!("one direction") };
    assert_eq!(link.name, "to host");
    let block_bytes = 2_097_152.0;
    assert!(near(total(&told, &link.bytes_s), 10.0 * block_bytes), "the third copy did not arrive");
}

#[test]
fn buckets_sum_up_to_the_report() {
    let mut plain = settings(2);
    plain.core.device_blocks = 1000;
    let mut tight = settings(1);
    tight.core.device_blocks = 120;
    tight.core.tiers = vec![TierConfig {
        name: "host".into(),
        blocks: 2000,
        write: Write::Through,
        eviction: "lru".into(),
        shared: false,
    }];
    let trace = trace(200);
    for settings in [plain, tight, mixed()] {
        let (report, told) = replayed(&settings, &trace);
        assert!(report.tokens.prefix_hit_tokens > 0 && report.completed == 200);
        assert!(near(total(&told, &told.flow.output_tokens_s), report.tokens.output_tokens as f64));
        assert!(near(total(&told, &told.flow.cached_tokens_s), report.tokens.prefix_hit_tokens as f64));
        let prompt = total(&told, &told.flow.cached_tokens_s) + total(&told, &told.flow.uncached_tokens_s);
        assert!(near(prompt, report.tokens.prompt_tokens as f64));
        assert!(near(total(&told, &told.flow.completed_s), 200.0) && near(total(&told, &told.flow.arrived_s), 200.0));
        assert!(near(total(&told, &told.utilisation), report.fleet.utilisation * report.duration_s));
        assert_eq!(told.latencies.ttft.summary, report.latencies.ttft_s);
        assert_eq!(told.latencies.tpot.summary, report.latencies.tpot_s);
        assert_eq!(told.latencies.e2e.summary, report.latencies.e2e_s);
        for i in 0..told.begin_s.len() {
            let blocks = told.blocks.blocks_in_use[i] + told.blocks.blocks_cached[i] + told.blocks.blocks_free[i];
            assert!(near(blocks, told.blocks.device_blocks as f64), "bucket {i}: {blocks}");
        }
        assert_eq!(told.replicas.iter().map(|it| it.completed).sum::<u64>(), 200);
        let stored: u64 = report.tiers.iter().map(|tier| tier.link_out.blocks).sum();
        let copied = told.links.iter().find(|link| link.name == "to host").map_or(0.0, |it| total(&told, &it.bytes_s));
        assert!(near(copied, stored as f64 * 2_097_152.0));
        assert_eq!(stored > 0, !settings.core.tiers.is_empty());
        for (tier, end) in told.tiers.iter().zip(&report.tiers) {
            let last = *tier.blocks.last().unwrap();
            assert!(
                last > 0.5 * end.blocks as f64 && last <= end.blocks as f64,
                "it fills up to what it had at the end"
            );
        }
    }
}

#[test]
fn watching_changes_nothing_and_is_the_same_each_time() {
    let mut settings = settings(3);
    settings.routing.failures = vec!["1@2..5".parse().unwrap(), "2@3".parse().unwrap()];
    let trace = trace(100);
    let (report, told) = replayed(&settings, &trace);
    assert_eq!(told, replayed(&settings, &trace).1);
    let blind = replay(&trace, &settings, &SlowPrefill, &mut |_| {}).unwrap();
    assert_eq!(blind.digest, report.digest);
    let busy_s = told.replicas.iter().map(|it| it.busy_ns as f64 / 1e9).sum::<f64>();
    assert!(
        near(busy_s, report.fleet.utilisation * report.duration_s * 3.0),
        "steps that were cut count as far as they ran"
    );
}

#[test]
fn ready_replicas_are_means_over_time() {
    let mut settings = settings(3);
    let policy = "load:max=3,target=2,interval_s=1,start_delay_s=1,stabilisation_s=0".into();
    settings.routing.autoscale = Some(trunkline_sim_replay::autoscale::Autoscale { policy, initial: 1 });
    let (report, told) = replayed(&settings, &trace(200));
    let (ready, service) = (told.ready.as_ref().unwrap(), report.fleet.service.as_ref().unwrap());
    assert!(near(total(&told, &ready.ready), service.ready_mean * report.duration_s), "{service:?}");
    assert_eq!(ready.ready_max.iter().max(), Some(&u64::from(service.ready_max)));
    assert_eq!((ready.ready[0], service.ready_max > 1, service.stops > 0), (1.0, true, true));
    // What failed is not ready until the return.
    let mut failing = self::settings(2);
    failing.routing.failures = vec!["0@5..10".parse().unwrap()];
    let (report, told) = replayed(&failing, &trace(200));
    let ready = total(&told, &told.ready.as_ref().unwrap().ready);
    assert!(near(ready, 2.0 * report.duration_s - 5.0), "{ready}");
    assert!(replayed(&self::settings(2), &trace(50)).1.ready.is_none(), "nothing changes");
}
