//! Meters of requests by tenant.
//!
//! | metric | definition | memory |
//! |---|---|---|
//! | TTFT | arrival to first token | exact, 8 bytes per request; within 0.05 % beyond a million requests |
//! | TPOT | (E2E - TTFT) / (output tokens - 1), of requests with more than one token | as TTFT |
//! | E2E | arrival to end | as TTFT |
//! | queue | arrival to first step, or to the end of a request that never ran | as TTFT |
//! | ITL | every gap between two tokens of a request | in a [`Histogram`], within 0.05 % |

mod hinted;
mod waits;

use trunkline_core::{StepSeq, Token, Usage};

use self::hinted::Hinted;
use self::waits::Waits;
use crate::in_flight::{InFlightRequest, InFlightRequests};
use trunkline_sim_report::fairness::{Contention, OUTPUT_UNITS};
use trunkline_sim_report::numbers::ratio;
use trunkline_sim_report::outcome::Outcome;
use trunkline_sim_report::report::{ClassReport, DeadlineReport, FairnessReport, HintsReport, TenantReport};
use trunkline_sim_workload::summary::{Histogram, Kept, Summary};
use trunkline_sim_workload::tenants::Shares;

/// Meters of one tenant.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantMeters {
    pub requests: u64,
    pub completed: u64,
    pub refused: u64,
    pub deadlines: DeadlineReport,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub copied_tokens: u64,
    pub output_tokens: u64,
    pub ttft: Kept,
    pub tpot: Kept,
    pub e2e: Kept,
    pub queue: Kept,
}

/// All meters of a replay.
pub(crate) struct Meters<'a> {
    shares: &'a Shares,
    tenants: Vec<TenantMeters>,
    itl: Histogram,
    waits: Waits,
    hinted: Hinted,
    /// Competition at each replica; empty with a single tenant.
    contentions: Vec<Contention>,
}

impl<'a> Meters<'a> {
    pub(crate) fn new(shares: &'a Shares, replicas: usize) -> Self {
        let n_tenants = shares.as_slice().len();
        Self {
            shares,
            tenants: vec![TenantMeters::default(); n_tenants],
            itl: Histogram::default(),
            waits: Waits::default(),
            hinted: Hinted::default(),
            contentions: if n_tenants == 1 { Vec::new() } else { vec![Contention::new(n_tenants); replicas] },
        }
    }

    /// Returns `true` with a single tenant, for whom the division of service among steps is irrelevant.
    pub(crate) fn is_alone(&self) -> bool {
        self.contentions.is_empty()
    }

    /// Counts the submission of a request to `replica`.
    pub(crate) fn submit(&mut self, flight: &InFlightRequest, now_ns: u64, replica: usize) {
        self.tenants[usize::from(flight.tenant)].requests += u64::from(!flight.traced.is_prefetch());
        self.resubmit(flight, now_ns, replica);
    }

    /// Counts the refusal of a request and returns the outcome.
    pub(crate) fn refuse(&mut self, flight: &InFlightRequest, now_ns: u64, replica: usize, request: u64) -> Outcome {
        let tenant = usize::from(flight.tenant);
        self.tenants[tenant].refused += 1;
        self.tenants[tenant].deadlines.missed += u64::from(flight.traced.terms.deadline_ns.is_some());
        if let Some(contention) = self.contentions.get_mut(replica) {
            contention.leave(now_ns, tenant);
        }
        let usage = Usage { prompt_tokens: flight.traced.input_tokens, ..Usage::default() };
        let deadline_met = flight.traced.terms.deadline_ns.map(|_| false);
        Outcome { refused: true, deadline_met, ..outcome(flight, replica, request, &usage) }
    }

    /// Removes a request from `replica`; it continues elsewhere.
    pub(crate) fn take_back(&mut self, flight: &mut InFlightRequest, now_ns: u64, replica: usize) {
        let began = std::mem::replace(&mut flight.began, false);
        let contention = self.contentions.get_mut(replica).filter(|_| !flight.traced.is_prefetch());
        if let (false, Some(contention)) = (began, contention) {
            contention.leave(now_ns, usize::from(flight.tenant));
        }
    }

    /// Adds a removed request to `replica`.
    pub(crate) fn resubmit(&mut self, flight: &InFlightRequest, now_ns: u64, replica: usize) {
        if let Some(contention) = self.contentions.get_mut(replica).filter(|_| !flight.traced.is_prefetch()) {
            contention.wait(now_ns, usize::from(flight.tenant));
        }
    }

    /// Counts the start of a step with the given sequences.
    pub(crate) fn step_began(&mut self, flights: &mut InFlightRequests, now_ns: u64, replica: usize, seqs: &[StepSeq]) {
        for seq in seqs.iter().filter(|seq| seq.start && !seq.request.is_inner()) {
            let flight = flights.get(seq.request.0);
            if std::mem::replace(&mut flight.began, true) {
                continue;
            }
            if flight.n_generated == 0 {
                flight.began_ns = now_ns;
            }
            if let Some(contention) = self.contentions.get_mut(replica) {
                contention.leave(now_ns, usize::from(flight.tenant));
            }
        }
    }

    /// Counts the end of a step, before its tokens are delivered; `ends` are those of its result.
    pub(crate) fn step_ended(
        &mut self,
        flights: &mut InFlightRequests,
        replica: usize,
        seqs: &[StepSeq],
        ends: &[u32],
    ) {
        let Some(contention) = self.contentions.get_mut(replica) else { return };
        let mut begin = 0;
        for (seq, end) in seqs.iter().zip(ends) {
            let tokens = u64::from(end - begin);
            begin = *end;
            // The deadline of a request may pass while its step runs.
            if flights.find(seq.request.0).is_none() {
                continue;
            }
            let flight = flights.get(seq.request.0);
            let mut units = tokens * OUTPUT_UNITS;
            if seq.n_generated == 0 {
                let served = (seq.computed + seq.n_tokens).min(flight.traced.input_tokens);
                units += u64::from(served.saturating_sub(flight.prompt_served.max(seq.computed)));
                flight.prompt_served = flight.prompt_served.max(served);
            }
            contention.serve(usize::from(flight.tenant), units);
        }
        contention.step_ended();
    }

    /// Counts the next token of a request.
    pub(crate) fn token(&mut self, flight: &mut InFlightRequest, now_ns: u64, request: u64, token: Token) {
        assert_eq!(
            token,
            flight.traced.output_token(request, flight.n_generated),
            "tokens of a request come once and in order"
        );
        if flight.n_generated == 0 {
            flight.first_token_ns = now_ns;
        } else {
            self.itl.record(now_ns - flight.last_token_ns, 1);
        }
        flight.last_token_ns = now_ns;
        flight.n_generated += 1;
    }

    /// Counts the gaps of a fast-forwarded step: `n` requests received a token at the start and at the end.
    pub(crate) fn gaps(&mut self, duration_ns: u64, n: u64) {
        self.itl.record(duration_ns, n);
    }

    /// Counts the tokens of a fast-forward for one request: the gap before the token at `first_ns`, and the tokens until `last_ns`,
    /// whose gaps are counted already.
    pub(crate) fn fast_forwarded(&mut self, flight: &mut InFlightRequest, first_ns: u64, last_ns: u64, tokens: u32) {
        debug_assert!(flight.n_generated > 0);
        self.itl.record(first_ns - flight.last_token_ns, 1);
        flight.last_token_ns = last_ns;
        flight.n_generated += tokens;
    }

    /// Counts the end of a request with all its tokens and returns the outcome.
    pub(crate) fn finish(
        &mut self,
        flight: &InFlightRequest,
        now_ns: u64,
        replica: usize,
        request: u64,
        usage: &Usage,
    ) -> Outcome {
        let asked = flight.traced.output_tokens;
        assert_eq!(flight.n_generated, asked, "a request ends when it has its tokens");
        let tenant = &mut self.tenants[usize::from(flight.tenant)];
        let e2e_ns = now_ns - flight.submitted_ns;
        // A prefill replica's first token is that of a request which a decode replica may still refuse.
        tenant.ttft.record(flight.first_token_ns - flight.submitted_ns);
        tenant.e2e.record(e2e_ns);
        let queue_ns = flight.began_ns - flight.submitted_ns;
        tenant.queue.record(queue_ns);
        self.waits.record(&flight.traced.terms, queue_ns);
        let ttft_ns = flight.first_token_ns - flight.submitted_ns;
        self.hinted.record(!flight.traced.retention.is_empty(), usage, ttft_ns);
        let tpot_ns = (asked > 1).then(|| (now_ns - flight.first_token_ns) / u64::from(asked - 1));
        tpot_ns.into_iter().for_each(|ns| tenant.tpot.record(ns));
        tenant.completed += 1;
        tenant.deadlines.met += u64::from(flight.traced.terms.deadline_ns.is_some());
        tenant.prompt_tokens += u64::from(usage.prompt_tokens);
        tenant.cached_tokens += u64::from(usage.cached_tokens);
        tenant.copied_tokens += u64::from(usage.copied_tokens);
        tenant.output_tokens += u64::from(usage.completion_tokens);
        Outcome {
            queue_ns: Some(queue_ns),
            ttft_ns: Some(flight.first_token_ns - flight.submitted_ns),
            tpot_ns,
            e2e_ns: Some(e2e_ns),
            deadline_met: flight.traced.terms.deadline_ns.map(|_| true),
            ..outcome(flight, replica, request, usage)
        }
    }

    /// Counts the end of a request at its deadline, before it has all its tokens, and returns the outcome.
    pub(crate) fn time_out(
        &mut self,
        flight: &InFlightRequest,
        now_ns: u64,
        replica: usize,
        request: u64,
        usage: &Usage,
    ) -> Outcome {
        let tenant = usize::from(flight.tenant);
        self.tenants[tenant].deadlines.missed += 1;
        let queue_ns = flight.began.then(|| flight.began_ns - flight.submitted_ns);
        let waited_ns = queue_ns.unwrap_or(now_ns - flight.submitted_ns);
        self.tenants[tenant].queue.record(waited_ns);
        self.waits.record(&flight.traced.terms, waited_ns);
        if let (false, Some(contention)) = (flight.began, self.contentions.get_mut(replica)) {
            contention.leave(now_ns, tenant);
        }
        Outcome {
            queue_ns,
            ttft_ns: (flight.n_generated > 0).then(|| flight.first_token_ns - flight.submitted_ns),
            deadline_met: Some(false),
            ..outcome(flight, replica, request, usage)
        }
    }

    /// Counts a prefetch that loaded so many tokens from tiers.
    pub(crate) fn prefetched(&mut self, loaded_tokens: u32) {
        self.hinted.prefetched(loaded_tokens);
    }

    /// Returns what retention hints did, if there were any.
    pub(crate) fn hints(&self, followed: bool) -> Option<HintsReport> {
        self.hinted.report(followed)
    }

    /// Returns the totals over all tenants, the summary of ITL, the fairness among several tenants, and the waits of several classes.
    pub(crate) fn end(mut self) -> (TenantMeters, Summary, Option<FairnessReport>, Vec<ClassReport>) {
        let (itl, classes) = (self.itl.summary(), std::mem::take(&mut self.waits).end());
        match self.tenants.len() {
            1 => (self.tenants.remove(0), itl, None, classes),
            _ => (self.total(), itl, Some(self.fairness()), classes),
        }
    }

    fn total(&self) -> TenantMeters {
        let mut total = TenantMeters::default();
        for tenant in &self.tenants {
            total.requests += tenant.requests;
            total.completed += tenant.completed;
            total.refused += tenant.refused;
            total.deadlines.met += tenant.deadlines.met;
            total.deadlines.missed += tenant.deadlines.missed;
            total.prompt_tokens += tenant.prompt_tokens;
            total.cached_tokens += tenant.cached_tokens;
            total.copied_tokens += tenant.copied_tokens;
            total.output_tokens += tenant.output_tokens;
            total.ttft.extend(&tenant.ttft);
            total.tpot.extend(&tenant.tpot);
            total.e2e.extend(&tenant.e2e);
            total.queue.extend(&tenant.queue);
        }
        total
    }

    fn fairness(self) -> FairnessReport {
        let contended = |tenant: usize| {
            let contenders = self.contentions.iter().map(|contention| contention.tenants()[tenant]);
            contenders.fold((0, 0), |(ns, service), it| (ns + it.contended_ns, service + it.contended_service))
        };
        let requests: u64 = self.tenants.iter().map(|tenant| tenant.requests).sum();
        let report = |(number, meters): (usize, TenantMeters)| {
            let (contended_ns, service) = contended(number);
            let share = match self.shares.is_traced() {
                true => ratio(meters.requests as f64, requests as f64),
                false => self.shares.as_slice()[number],
            };
            tenant_report(share, meters, contended_ns, service)
        };
        FairnessReport {
            service_gap_max: self.contentions.iter().map(Contention::gap_max).max().unwrap_or(0),
            tenants: self.tenants.into_iter().enumerate().map(report).collect(),
        }
    }
}

/// Returns the outcome of a request on a replica, without times.
fn outcome(flight: &InFlightRequest, replica: usize, request: u64, usage: &Usage) -> Outcome {
    Outcome {
        request,
        arrival_ns: flight.submitted_ns,
        replica: replica as u32,
        tenant: flight.tenant.into(),
        prompt_tokens: usage.prompt_tokens,
        cached_tokens: usage.cached_tokens,
        output_tokens: usage.completion_tokens,
        preemptions: usage.preemptions,
        copied_tokens: usage.copied_tokens,
        session: flight.traced.turn.map(|turn| turn.session),
        ..Outcome::default()
    }
}

fn tenant_report(share: f64, meters: TenantMeters, contended_ns: u64, contended_service: u64) -> TenantReport {
    let contended_s = contended_ns as f64 / 1e9;
    TenantReport {
        share,
        requests: meters.requests,
        completed: meters.completed,
        refused: meters.refused,
        deadlines: meters.deadlines.if_any(),
        prompt_tokens: meters.prompt_tokens,
        output_tokens: meters.output_tokens,
        prefix_hit_tokens: meters.cached_tokens,
        ttft_s: meters.ttft.summary(),
        tpot_s: meters.tpot.summary(),
        e2e_s: meters.e2e.summary(),
        queue_s: meters.queue.summary(),
        contended_s,
        contended_service_s: ratio(contended_service as f64, contended_s),
    }
}
