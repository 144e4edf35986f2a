//! `slo`: share of the requests of a window that met limits of TTFT and of TPOT.
//!
//! TTFT counts at the first token, TPOT at the end of a request. Requests without a token past the limit count as missed, since an
//! overloaded fleet serves too few requests to show by the served ones alone. The lower of both shares decides.

use std::collections::VecDeque;

use trunkline_core::names::spec::Param;

use super::{Observed, SECOND_NS, ScalingPolicy, with_limits};

const MS_NS: u64 = 1_000_000;

pub(super) const PARAMS: [Param; 11] = with_limits(&[
    Param { key: "ttft_ms", about: "limit of TTFT; 0 is none", default: 2_000, min: 0, max: 3_600_000 },
    Param { key: "tpot_ms", about: "limit of TPOT; 0 is none", default: 0, min: 0, max: 3_600_000 },
    Param { key: "share_percent", about: "requests that must meet them", default: 95, min: 1, max: 100 },
    Param { key: "window_s", about: "time over which requests count", default: 60, min: 1, max: 3_600 },
    Param { key: "step_percent", about: "replicas to add at once", default: 25, min: 1, max: 1_000 },
    Param {
        key: "slack_percent",
        about: "part of the limits to meet before a replica stops",
        default: 50,
        min: 1,
        max: 100,
    },
]);

/// Requests judged against one limit: all, within the limit, and within the slack.
#[derive(Clone, Copy, Debug, Default)]
struct Judged {
    all: u64,
    met: u64,
    met_slack: u64,
}

impl Judged {
    fn add(&mut self, other: Self) {
        self.all += other.all;
        self.met += other.met;
        self.met_slack += other.met_slack;
    }

    /// Returns `true` if at least `percent` of the requests are among `met`; `true` without requests.
    fn reaches(&self, met: u64, percent: u64) -> bool {
        met * 100 >= self.all * percent
    }
}

/// Policy on the share of requests within limits.
#[derive(Debug)]
pub(super) struct Slo {
    /// Limits of TTFT and TPOT, nanoseconds; 0 is none.
    limits_ns: [u64; 2],
    share_percent: u64,
    window_ns: u64,
    step_percent: u64,
    slack_percent: u64,
    /// Time of each observation within the window, with the requests judged on TTFT and on TPOT.
    window: VecDeque<(u64, [Judged; 2])>,
}

impl Slo {
    pub(super) fn new(values: &[u64]) -> Self {
        Self {
            limits_ns: [values[0] * MS_NS, values[1] * MS_NS],
            share_percent: values[2],
            window_ns: values[3] * SECOND_NS,
            step_percent: values[4],
            slack_percent: values[5],
            window: VecDeque::new(),
        }
    }

    fn judge(&self, of: usize, latencies_ns: &[u64]) -> Judged {
        let limit_ns = self.limits_ns[of];
        if limit_ns == 0 {
            return Judged::default();
        }
        let within = |limit_ns: u64| latencies_ns.iter().filter(|ns| **ns <= limit_ns).count() as u64;
        let met_slack = within(limit_ns * self.slack_percent / 100);
        Judged { all: latencies_ns.len() as u64, met: within(limit_ns), met_slack }
    }

    /// Returns the requests of the window on TTFT and on TPOT, overdue ones without a token included.
    fn window(&mut self, observed: &Observed) -> [Judged; 2] {
        let judged = [self.judge(0, &observed.ttft_ns), self.judge(1, &observed.tpot_ns)];
        self.window.push_back((observed.now_ns, judged));
        while self.window.front().is_some_and(|(at_ns, _)| at_ns + self.window_ns <= observed.now_ns) {
            self.window.pop_front();
        }
        let mut sums = [Judged::default(); 2];
        for (_, judged) in &self.window {
            sums.iter_mut().zip(judged).for_each(|(sum, judged)| sum.add(*judged));
        }
        let ttft_ns = self.limits_ns[0];
        if ttft_ns > 0 {
            sums[0].all += observed.unserved_ns.iter().filter(|ns| **ns > ttft_ns).count() as u64;
        }
        sums
    }
}

impl ScalingPolicy for Slo {
    fn desired(&mut self, observed: &Observed) -> u32 {
        let sums = self.window(observed);
        let present = observed.provisioned();
        if !sums.iter().all(|sum| sum.reaches(sum.met, self.share_percent)) {
            let settled = present - observed.starting;
            let more = (u64::from(settled) * self.step_percent).div_ceil(100).max(1) as u32;
            return settled + more.max(observed.starting);
        }
        let has_slack = sums.iter().all(|sum| sum.reaches(sum.met_slack, self.share_percent));
        if has_slack { present.saturating_sub(1) } else { present }
    }
}
