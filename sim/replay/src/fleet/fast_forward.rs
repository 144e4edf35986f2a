//! Fast-forward of steady decode steps, with all effects on the driver at once.
//!
//! No event elsewhere affects a replica before the next arrival, which may go to this replica and is routed by the loads of all. If replicas
//! take turns, only the replica's own next arrival does. If arrivals depend on ends, the next end anywhere can cause one, but not before
//! the session has reacted: the source knows how long that takes at least. If requests are handed over, the next end anywhere counts.
//! Fast-forward is disabled with failures, which can come at any time; with several tenants, compared at every step; and with observers of
//! steps.

use std::ops::Range;

use trunkline_core::{FastForwardDriver, FastForwardResult, RequestId, SteadyBatch, SteadySteps, Token};

use super::pipeline::slowed;
use super::{Fleet, SimEvent, TIME_MAX_NS, engine};
use crate::in_flight::InFlightRequests;
use crate::meters::Meters;
use crate::settings::Arrivals;
use trunkline_sim_perf::cost::{CostModel, StepShape, WeightReads};
use trunkline_sim_workload::trace::Source;

/// State affected by a fast-forward of one replica.
struct FastForward<'a, 'b> {
    cost: &'a dyn CostModel,
    replica: usize,
    slowness: f64,
    /// Limit: steps that end at this time or later are not fast-forwarded.
    until_ns: u64,
    /// End of the first step of the fast-forward, and of the last step so far.
    first_ns: u64,
    last_ns: u64,
    flights: &'a mut InFlightRequests,
    meters: &'a mut Meters<'b>,
    steps: u64,
    seqs_run: u64,
    busy_ns: u64,
    weights: WeightReads,
}

impl FastForwardDriver for FastForward<'_, '_> {
    fn on_steps_begin(&mut self, begin_ns: u64, batch: &SteadyBatch, most: u32) -> SteadySteps {
        let n = u64::from(batch.seqs);
        let kv_tokens = batch.computed + n;
        let mut shape = StepShape {
            tokens: n,
            decodes: n,
            sampled: n,
            decode_pairs: kv_tokens,
            decode_kv_tokens: kv_tokens,
            decode_kv_max: u64::from(batch.computed_max) + 1,
            ..StepShape::default()
        };
        let until_ns = self.until_ns.min(TIME_MAX_NS);
        let (mut begun, mut end_ns) = (0, begin_ns);
        loop {
            let step = self.cost.timed_step(self.replica, &shape);
            let duration_ns = slowed(step.ns, self.slowness);
            self.meters.gaps(duration_ns, n);
            self.weights += step.reads;
            begun += 1;
            end_ns += duration_ns;
            let skip = end_ns < until_ns;
            if skip {
                self.last_ns = end_ns;
            }
            if !skip || begun == most {
                self.busy_ns += end_ns - begin_ns;
                self.steps += u64::from(begun);
                self.seqs_run += u64::from(begun) * n;
                return SteadySteps { begun, end_ns, skip };
            }
            shape.decode_pairs += n;
            shape.decode_kv_tokens += n;
            shape.decode_kv_max += 1;
        }
    }

    fn generate(&mut self, request: RequestId, numbers: Range<u32>, tokens: &mut Vec<Token>) {
        self.flights.get(request.0).traced.extend_output(request.0, numbers, tokens);
    }

    fn on_tokens(&mut self, request: RequestId, tokens: u32) {
        self.meters.fast_forwarded(self.flights.get(request.0), self.first_ns, self.last_ns, tokens);
    }
}

impl Fleet<'_> {
    /// Ends the step in flight and fast-forwards the following steady steps up to the next event. Returns `false` if no step could
    /// be fast-forwarded.
    pub(super) fn fast_forward(&mut self, replica: usize) -> bool {
        let until_ns = self.undisturbed_until_ns(replica);
        let it = &mut self.replicas[replica];
        if !it.in_flight.is_empty() {
            it.fast_forward_first_ns = self.now_ns;
        }
        let mut driver = FastForward {
            cost: self.cost,
            replica,
            slowness: it.slowness,
            until_ns,
            first_ns: it.fast_forward_first_ns,
            last_ns: self.now_ns,
            flights: &mut self.flights,
            meters: &mut self.meters,
            steps: 0,
            seqs_run: 0,
            busy_ns: 0,
            weights: WeightReads::default(),
        };
        let result = self.cluster.fast_forward(self.now_ns, engine(replica), &mut driver, &mut self.spare.outputs);
        if result == FastForwardResult::NotSteady {
            return false;
        }
        it.pipeline.busy_ns += driver.busy_ns;
        self.totals.fast_forwarded += driver.steps;
        self.totals.fast_forwards += 1;
        self.totals.weights += driver.weights;
        self.totals.seqs_run += driver.seqs_run;
        self.totals.tokens_run += driver.seqs_run;
        if let Some(step) = it.in_flight.pop_front() {
            self.cluster.recycle(engine(replica), step);
        }
        let life = it.life;
        match result {
            FastForwardResult::NotSteady => unreachable!("returned above"),
            FastForwardResult::Paused { end_ns, .. } => self.schedule(end_ns, SimEvent::StepEnd { replica, life }),
            FastForwardResult::Ended { begin_ns, .. } => {
                let outputs = std::mem::take(&mut self.spare.outputs);
                self.perform_all(begin_ns, outputs);
            }
        }
        true
    }

    /// Returns the earliest time of an external event that may reach a replica, other than the end of its own copies.
    fn undisturbed_until_ns(&mut self, replica: usize) -> u64 {
        let deadline_ns = self.cluster.next_deadline_ns().unwrap_or(u64::MAX);
        deadline_ns.min(self.undisturbed_by_others_until_ns(replica))
    }

    /// Returns the earliest time at which a request may arrive at a replica, or be handed over to it.
    fn undisturbed_by_others_until_ns(&mut self, replica: usize) -> u64 {
        let end_ns = self.queue.peek().map_or(u64::MAX, |next| next.0.at_ns);
        let hands_over = self.settings.hands_over();
        let waits_for_ends = self.pending.source.waits_for_ends() || self.pending.routes_at_once;
        let next_ns = match (&self.pending.turns, self.pending.arrivals) {
            (Some(turns), _) => turns.next_at(replica).unwrap_or(u64::MAX),
            (None, Arrivals::Traced { .. } | Arrivals::Closed(_)) => self.pending.next_ns.unwrap_or(u64::MAX),
            (None, Arrivals::Serial | Arrivals::AtOnce) => u64::MAX,
        };
        // An end elsewhere may cause an arrival, or hand a request over to this replica.
        let any_ns = if waits_for_ends || hands_over { next_ns.min(end_ns) } else { next_ns };
        if !waits_for_ends || hands_over || !self.pending.arrivals.is_timed() {
            return any_ns;
        }
        let n = self.replicas.len();
        let next = (self.totals.taken % n as u64) as usize;
        let turn = if self.pending.in_turn { (replica + n - next) % n } else { 0 };
        any_ns.max(self.pending.source.earliest_arrival_ns(turn, end_ns))
    }
}
