//! What is measured of requests, by tenant, and the state of each request that it takes.

use trunkline_core::{StepSeq, Token, Usage};

use crate::fairness::{Contention, OUTPUT_UNITS};
use crate::latency::{Exact, Histogram, Summary};
use crate::outcome::Outcome;
use crate::report::{FairnessReport, TenantReport};
use crate::tenants::Shares;
use crate::trace::{Trace, generated_token};

/// What is known of a request while it runs.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    submitted_ns: u64,
    /// When a step first ran it.
    began_ns: u64,
    first_token_ns: u64,
    last_token_ns: u64,
    /// Tokens its client has.
    n_generated: u32,
    /// Of those, how many the replica has generated where it is now: fewer after it was sent elsewhere.
    n_here: u32,
    /// Leading prompt tokens that were computed or found at some time.
    prompt_served: u32,
    tenant: u8,
    /// Whether a step ran it where it is now.
    began: bool,
}

/// What is measured of a tenant.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantMeters {
    pub requests: u64,
    pub completed: u64,
    pub refused: u64,
    pub prompt_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    pub ttft: Exact,
    pub tpot: Exact,
    pub e2e: Exact,
}

/// All meters of a replay.
pub(crate) struct Meters<'a> {
    trace: &'a Trace,
    shares: &'a Shares,
    /// By number.
    requests: Vec<Progress>,
    tenants: Vec<TenantMeters>,
    itl: Histogram,
    /// By replica; empty if there is one tenant, who competes with nobody.
    contentions: Vec<Contention>,
}

impl<'a> Meters<'a> {
    pub(crate) fn new(trace: &'a Trace, shares: &'a Shares, replicas: usize) -> Self {
        let n_tenants = shares.as_slice().len();
        Self {
            trace,
            shares,
            requests: vec![Progress::default(); trace.requests.len()],
            tenants: vec![TenantMeters::default(); n_tenants],
            itl: Histogram::default(),
            contentions: if n_tenants == 1 { Vec::new() } else { vec![Contention::new(n_tenants); replicas] },
        }
    }

    /// A request goes to `replica`, having asked at `asked_ns`. Gives its tenant.
    pub(crate) fn submit(&mut self, now_ns: u64, asked_ns: u64, replica: usize, request: usize) -> usize {
        let tenant = self.shares.tenant_of(request as u64);
        self.requests[request] = Progress { submitted_ns: asked_ns, tenant: tenant as u8, ..Progress::default() };
        self.tenants[tenant].requests += 1;
        if let Some(contention) = self.contentions.get_mut(replica) {
            contention.wait(now_ns, tenant);
        }
        tenant
    }

    /// A request was turned away.
    pub(crate) fn refuse(&mut self, now_ns: u64, replica: usize, request: usize) -> Outcome {
        let progress = &self.requests[request];
        let tenant = usize::from(progress.tenant);
        self.tenants[tenant].refused += 1;
        if let Some(contention) = self.contentions.get_mut(replica) {
            contention.leave(now_ns, tenant);
        }
        Outcome {
            request: request as u64,
            arrival_ns: progress.submitted_ns,
            replica: replica as u32,
            tenant: tenant as u32,
            prompt_tokens: self.trace.requests[request].input_tokens,
            cached_tokens: 0,
            output_tokens: 0,
            queue_ns: None,
            ttft_ns: None,
            tpot_ns: None,
            e2e_ns: None,
            preemptions: 0,
            refused: true,
        }
    }

    /// A request was taken from `replica` and is to start over elsewhere.
    pub(crate) fn take_back(&mut self, now_ns: u64, replica: usize, request: usize) {
        let progress = &mut self.requests[request];
        progress.n_here = 0;
        let began = std::mem::replace(&mut progress.began, false);
        if let (false, Some(contention)) = (began, self.contentions.get_mut(replica)) {
            contention.leave(now_ns, usize::from(progress.tenant));
        }
    }

    /// A request that was taken back goes to `replica`. Gives its tenant.
    pub(crate) fn resubmit(&mut self, now_ns: u64, replica: usize, request: usize) -> usize {
        let tenant = usize::from(self.requests[request].tenant);
        if let Some(contention) = self.contentions.get_mut(replica) {
            contention.wait(now_ns, tenant);
        }
        tenant
    }

    /// A step with these sequences begins.
    pub(crate) fn step_began(&mut self, now_ns: u64, replica: usize, seqs: &[StepSeq]) {
        for seq in seqs.iter().filter(|seq| seq.start) {
            let progress = &mut self.requests[seq.request.0 as usize];
            if std::mem::replace(&mut progress.began, true) {
                continue;
            }
            if progress.n_generated == 0 {
                progress.began_ns = now_ns;
            }
            if let Some(contention) = self.contentions.get_mut(replica) {
                contention.leave(now_ns, usize::from(progress.tenant));
            }
        }
    }

    /// A step ended; `ends` are those of its result. Nobody has been told its tokens yet.
    pub(crate) fn step_ended(&mut self, replica: usize, seqs: &[StepSeq], ends: &[u32]) {
        let Some(contention) = self.contentions.get_mut(replica) else { return };
        let mut begin = 0;
        for (seq, end) in seqs.iter().zip(ends) {
            let progress = &mut self.requests[seq.request.0 as usize];
            let mut units = u64::from(end - begin) * OUTPUT_UNITS;
            begin = *end;
            if seq.n_generated == 0 {
                let prompt_tokens = self.trace.requests[seq.request.0 as usize].input_tokens;
                let served = (seq.computed + seq.n_tokens).min(prompt_tokens);
                units += u64::from(served.saturating_sub(progress.prompt_served.max(seq.computed)));
                progress.prompt_served = progress.prompt_served.max(served);
            }
            contention.serve(usize::from(progress.tenant), units);
        }
        contention.step_ended();
    }

    /// A request was given its next token.
    pub(crate) fn token(&mut self, now_ns: u64, request: u64, token: Token) {
        let progress = &mut self.requests[request as usize];
        assert_eq!(token, generated_token(request, progress.n_here), "tokens of a request come once and in order");
        progress.n_here += 1;
        if progress.n_here <= progress.n_generated {
            // Its client has it from the replica that failed.
            return;
        }
        if progress.n_generated == 0 {
            progress.first_token_ns = now_ns;
            self.tenants[usize::from(progress.tenant)].ttft.record(now_ns - progress.submitted_ns);
        } else {
            self.itl.record(now_ns - progress.last_token_ns);
        }
        progress.last_token_ns = now_ns;
        progress.n_generated += 1;
    }

    /// A request has all its tokens.
    pub(crate) fn finish(&mut self, now_ns: u64, replica: usize, request: usize, usage: &Usage) -> Outcome {
        let progress = &self.requests[request];
        let asked = self.trace.requests[request].output_tokens;
        assert_eq!((progress.n_generated, progress.n_here), (asked, asked), "a request ends when it has its tokens");
        let tenant = &mut self.tenants[usize::from(progress.tenant)];
        let e2e_ns = now_ns - progress.submitted_ns;
        tenant.e2e.record(e2e_ns);
        let tpot_ns = (asked > 1).then(|| (now_ns - progress.first_token_ns) / u64::from(asked - 1));
        tpot_ns.into_iter().for_each(|ns| tenant.tpot.record(ns));
        tenant.completed += 1;
        tenant.prompt_tokens += u64::from(usage.prompt_tokens);
        tenant.cached_tokens += u64::from(usage.cached_tokens);
        tenant.output_tokens += u64::from(usage.completion_tokens);
        Outcome {
            request: request as u64,
            arrival_ns: progress.submitted_ns,
            replica: replica as u32,
            tenant: u32::from(progress.tenant),
            prompt_tokens: usage.prompt_tokens,
            cached_tokens: usage.cached_tokens,
            output_tokens: usage.completion_tokens,
            queue_ns: Some(progress.began_ns - progress.submitted_ns),
            ttft_ns: Some(progress.first_token_ns - progress.submitted_ns),
            tpot_ns,
            e2e_ns: Some(e2e_ns),
            preemptions: usage.preemptions,
            refused: false,
        }
    }

    /// What was measured over all tenants, every gap between two tokens, and how the tenants fared if there are several.
    pub(crate) fn end(mut self) -> (TenantMeters, Summary, Option<FairnessReport>) {
        let itl = self.itl.summary();
        match self.tenants.len() {
            1 => (self.tenants.remove(0), itl, None),
            _ => (self.total(), itl, Some(self.fairness())),
        }
    }

    fn total(&self) -> TenantMeters {
        let mut total = TenantMeters::default();
        for tenant in &self.tenants {
            total.requests += tenant.requests;
            total.completed += tenant.completed;
            total.refused += tenant.refused;
            total.prompt_tokens += tenant.prompt_tokens;
            total.cached_tokens += tenant.cached_tokens;
            total.output_tokens += tenant.output_tokens;
            total.ttft.extend(&tenant.ttft);
            total.tpot.extend(&tenant.tpot);
            total.e2e.extend(&tenant.e2e);
        }
        total
    }

    fn fairness(self) -> FairnessReport {
        let contended = |tenant: usize| {
            let contenders = self.contentions.iter().map(|contention| contention.tenants()[tenant]);
            contenders.fold((0, 0), |(ns, service), it| (ns + it.contended_ns, service + it.contended_service))
        };
        let report = |(number, meters): (usize, TenantMeters)| {
            let (contended_ns, service) = contended(number);
            TenantReport::new(self.shares.as_slice()[number], meters, contended_ns, service)
        };
        FairnessReport {
            service_gap_max: self.contentions.iter().map(Contention::gap_max).max().unwrap_or(0),
            tenants: self.tenants.into_iter().enumerate().map(report).collect(),
        }
    }
}
