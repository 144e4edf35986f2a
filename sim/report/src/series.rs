//! Replays over time, and distributions of latencies: the data behind the charts of a report.
//!
//! [`Series`] is an observer. It sums events in at most 240 time buckets of equal width; when all are used, it merges pairs of
//! buckets and doubles the width, so its memory does not grow with the length of a replay (except 32 bytes per request for the
//! latencies). All sums are over all replicas.
//!
//! | event | accounting |
//! |---|---|
//! | tokens, time and sequences of a step | evenly over the step; an interrupted step gives no token |
//! | blocks of a copy | evenly over the time of the bytes; interrupted copies are not counted |
//! | arrivals, ends, first admissions, preemptions | at their instant; admissions and preemptions at the start of the next step |
//! | gauges: requests waiting and running, blocks | means over time, and the greatest sum over replicas that lasted |
//!
//! Gauges are sampled at the start of a step and hold until the next step. Without a next step, the batch is empty from the end of
//! the last step, and its blocks count as cached. Requests that arrive at a failed replica are not visible until its return.

use std::ops::ControlFlow;

use trunkline_core::{Stats, TIERS_MAX};

use crate::completed_steps::{CompletedStep, PendingSteps};
use crate::fleet_shape::FleetShape;
use crate::observer::{Observer, ReplicaChange, StepSeen, TransferSeen};
use crate::outcome::Outcome;
use crate::report::Report;
use trunkline_sim_perf::link::direction;

mod buckets;
mod distribution;
mod gauges;
mod report;

pub use self::distribution::Distribution;
pub use self::report::{
    BlockSeries, FlowSeries, LatencyDistributions, LinkSeries, ReadySeries, ReplicaTotals, RequestSeries, SeriesReport,
    StepSeries, TierSeries,
};

use self::buckets::{Buckets, Sum};
use self::gauges::Gauges;

/// Sampler of a replay.
#[derive(Clone, Debug)]
pub struct Series {
    buckets: Buckets,
    gauges: Gauges,
    pending_steps: PendingSteps,
    /// Last counters of each replica.
    counted: Vec<Counted>,
    replicas: Vec<ReplicaTotals>,
    /// Changes of replicas not yet counted; those after the end of the last request never count.
    changes: Vec<(u64, u32, ReplicaChange)>,
    /// Failures after which the replica does not come back.
    lost: Vec<(u64, u32)>,
    block_bytes: u64,
    device_blocks: u64,
    /// Name of each tier and its blocks over all replicas.
    tiers: Vec<(String, u64)>,
    /// `true` if the number of ready replicas changes.
    has_changes: bool,
    latencies_ns: Latencies,
}

/// Counters of a replica's core at the last sample.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    generated_tokens: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    preemptions: u64,
}

/// Latencies of all completed requests, nanoseconds.
#[derive(Clone, Debug, Default)]
struct Latencies {
    ttft: Vec<u64>,
    tpot: Vec<u64>,
    e2e: Vec<u64>,
    queue: Vec<u64>,
}

impl Series {
    /// Returns a series of a replay on the fleet `shape`, with nothing observed yet.
    pub fn new(shape: FleetShape) -> Self {
        let n = shape.replicas();
        let FleetShape { device_blocks, block_bytes, mut tiers, lost, off, changes } = shape;
        tiers.truncate(TIERS_MAX);
        Self {
            buckets: Buckets::default(),
            gauges: Gauges::new(&device_blocks, off),
            pending_steps: PendingSteps::new(n),
            counted: vec![Counted::default(); n as usize],
            replicas: vec![ReplicaTotals::default(); n as usize],
            changes: Vec::new(),
            lost,
            block_bytes,
            device_blocks: device_blocks.iter().sum(),
            tiers,
            has_changes: changes,
            latencies_ns: Latencies::default(),
        }
    }

    /// Returns the series of the replay with the given `report`.
    pub fn finish(mut self, report: &Report) -> SeriesReport {
        let duration_ns = (report.duration_s * 1e9).round() as u64;
        self.changes.retain(|(at_ns, ..)| *at_ns < duration_ns);
        self.count_changes();
        for step in self.pending_steps.end() {
            // No core says what came of its last step. A sequence that samples gives a token at least; drafts come on top.
            let tokens = step.shape.sampled.min(step.shape.decodes + step.shape.prefills);
            self.count_step(&step, tokens);
        }
        self.gauges.pass(duration_ns, &mut self.buckets);
        SeriesReport::from_series(self, report, duration_ns)
    }

    /// Counts pending changes of replicas before a later event.
    fn count_changes(&mut self) {
        for (at_ns, replica, change) in std::mem::take(&mut self.changes) {
            self.gauges.change(at_ns, replica, change, &mut self.buckets);
            if !change.ends_worker() {
                continue;
            }
            let returns = change == ReplicaChange::Failed && !self.lost.contains(&(at_ns, replica));
            self.gauges.fail(at_ns, replica, returns, &mut self.buckets);
            if let Some(step) = self.pending_steps.fail(at_ns, replica) {
                // One that ended in the instant of the failure was answered if that came later; its tokens are counted with the next step.
                self.count_step(&step, 0);
            }
        }
    }

    fn count_step(&mut self, step: &CompletedStep, output_tokens: u64) {
        let busy_ns = step.end_ns - step.begin_ns;
        self.replicas[step.replica as usize].busy_ns += busy_ns;
        let shape = &step.shape;
        let sums = [
            (Sum::OutputTokens, output_tokens),
            (Sum::Steps, 1),
            (Sum::BusyNs, busy_ns),
            (Sum::Decodes, shape.decodes),
            (Sum::Prefills, shape.prefills),
            (Sum::DecodeTokens, shape.tokens - shape.prefill_tokens),
            (Sum::PrefillTokens, shape.prefill_tokens),
        ];
        self.buckets.spread(step.begin_ns, step.end_ns, &sums.map(|(sum, n)| (sum, n as f64)));
    }

    /// Adds the increase of a core's counters. Returns the tokens generated since the start of its last step.
    fn count_counters(&mut self, now_ns: u64, replica: u32, stats: &Stats) -> u64 {
        let now = Counted {
            generated_tokens: stats.tokens.generated_tokens,
            prompt_tokens: stats.tokens.prompt_tokens,
            cached_tokens: stats.tokens.cached_tokens,
            preemptions: stats.preemptions,
        };
        let last = std::mem::replace(&mut self.counted[replica as usize], now);
        for (sum, n) in [
            (Sum::PromptTokens, now.prompt_tokens - last.prompt_tokens),
            (Sum::CachedTokens, now.cached_tokens - last.cached_tokens),
            (Sum::Preemptions, now.preemptions - last.preemptions),
        ] {
            if n > 0 {
                self.buckets.add(sum, now_ns, n as f64);
            }
        }
        now.generated_tokens - last.generated_tokens
    }
}

impl Observer for Series {
    fn ended(&mut self, outcome: &Outcome) -> ControlFlow<()> {
        self.count_changes();
        self.buckets.add(Sum::Arrived, outcome.arrival_ns, 1.0);
        let totals = &mut self.replicas[outcome.replica as usize];
        let (Some(ttft_ns), Some(e2e_ns)) = (outcome.ttft_ns, outcome.e2e_ns) else {
            totals.refused += 1;
            return ControlFlow::Continue(());
        };
        totals.completed += 1;
        totals.prompt_tokens += u64::from(outcome.prompt_tokens);
        totals.cached_tokens += u64::from(outcome.cached_tokens);
        totals.output_tokens += u64::from(outcome.output_tokens);
        self.buckets.add(Sum::Ended, outcome.arrival_ns + e2e_ns, 1.0);
        self.buckets.add(Sum::TtftNs, outcome.arrival_ns, ttft_ns as f64);
        self.buckets.add(Sum::TtftRequests, outcome.arrival_ns, 1.0);
        let latencies = &mut self.latencies_ns;
        latencies.ttft.push(ttft_ns);
        latencies.e2e.push(e2e_ns);
        latencies.tpot.extend(outcome.tpot_ns);
        latencies.queue.extend(outcome.queue_ns);
        ControlFlow::Continue(())
    }

    fn wants_steps(&self) -> bool {
        true
    }

    fn step(&mut self, seen: &StepSeen<'_>) {
        self.count_changes();
        let tokens = self.count_counters(seen.begin_ns, seen.replica, seen.stats);
        match self.pending_steps.step(seen) {
            Some(past) => self.count_step(&past, tokens),
            // The step that gave them ended in the instant of a failure.
            None if tokens > 0 => self.buckets.add(Sum::OutputTokens, seen.begin_ns, tokens as f64),
            None => {}
        }
        self.gauges.step(seen.begin_ns, seen.end_ns, seen.replica, seen.stats, &mut self.buckets);
    }

    fn transfer(&mut self, seen: &TransferSeen) {
        // Of a copy that was cut, what had passed is not known; it did not arrive.
        if !seen.interrupted {
            self.buckets.spread_copy(seen.begin_ns, seen.end_ns, direction(seen.from, seen.to), seen.blocks.into());
        }
    }

    fn replica(&mut self, now_ns: u64, replica: u32, change: ReplicaChange) {
        self.changes.push((now_ns, replica, change));
    }
}
