//! What retention hints gain those who send them, and cost the others.

use trunkline_core::Usage;
use trunkline_sim_report::report::{HintedReport, HintsReport};
use trunkline_sim_workload::summary::Histogram;

/// Completed requests without hints, and those with some, and prefetches.
#[derive(Default)]
pub(super) struct Hinted {
    groups: [Group; 2],
    prefetches: u64,
    prefetched_tokens: u64,
}

#[derive(Default)]
struct Group {
    requests: u64,
    prompt_tokens: u64,
    cached_tokens: u64,
    ttft: Histogram,
}

impl Hinted {
    /// Counts a request that completed.
    pub fn record(&mut self, has_hints: bool, usage: &Usage, ttft_ns: u64) {
        let group = &mut self.groups[usize::from(has_hints)];
        group.requests += 1;
        group.prompt_tokens += u64::from(usage.prompt_tokens);
        group.cached_tokens += u64::from(usage.cached_tokens);
        group.ttft.record(ttft_ns, 1);
    }

    /// Counts a prefetch that loaded so many tokens.
    pub fn prefetched(&mut self, tokens: u32) {
        self.prefetches += 1;
        self.prefetched_tokens += u64::from(tokens);
    }

    /// Returns the report of a replay that followed the hints or not; `None` if no request has any.
    pub fn report(&self, followed: bool) -> Option<HintsReport> {
        let report = |group: &Group| HintedReport {
            requests: group.requests,
            prompt_tokens: group.prompt_tokens,
            prefix_hit_tokens: group.cached_tokens,
            ttft_s: group.ttft.summary(),
        };
        let [others, hinted] = &self.groups;
        let Self { prefetches, prefetched_tokens, .. } = *self;
        (hinted.requests + prefetches > 0).then(|| HintsReport {
            followed,
            hinted: report(hinted),
            others: report(others),
            prefetches,
            prefetched_tokens,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_with_hints_are_counted_apart() {
        let usage = |cached_tokens| Usage { prompt_tokens: 100, cached_tokens, ..Usage::default() };
        let mut hinted = Hinted::default();
        hinted.record(false, &usage(7), 1_000_000);
        assert_eq!(hinted.report(true), None, "no request has hints");
        hinted.prefetched(512);
        let report = hinted.report(true).unwrap();
        assert_eq!((report.prefetches, report.prefetched_tokens, report.hinted.requests), (1, 512, 0));
        hinted.record(true, &usage(64), 2_000_000);
        hinted.record(true, &usage(32), 2_000_000);
        let report = hinted.report(false).unwrap();
        let counts = |of: &HintedReport| (of.requests, of.prompt_tokens, of.prefix_hit_tokens);
        assert_eq!((counts(&report.hinted), counts(&report.others)), ((2, 200, 96), (1, 100, 7)));
        assert!(!report.followed && report.hinted.ttft_s.mean > report.others.ttft_s.mean);
    }
}
