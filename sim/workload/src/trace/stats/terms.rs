//! Tenants, priorities and deadlines in a trace.

use std::collections::HashSet;

use serde::Serialize;

use crate::trace::{Terms, TraceRequest};

/// Tenants, priorities and deadlines of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TermStats {
    /// Number of distinct tenants.
    pub tenants: u64,
    /// Most urgent priority: the lowest number.
    pub priority_min: i32,
    /// Least urgent priority: the highest number.
    pub priority_max: i32,
    /// Requests with a deadline.
    pub deadlines: u64,
    /// Shortest deadline, seconds after the arrival; `None` without deadlines.
    pub deadline_min_s: Option<f64>,
    /// Longest deadline, seconds after the arrival; `None` without deadlines.
    pub deadline_max_s: Option<f64>,
}

/// Counters of [`TermStats`].
#[derive(Default)]
pub(super) struct TermCounts {
    tenants: HashSet<u32>,
    any: bool,
    priorities: Option<(i32, i32)>,
    deadlines: u64,
    deadlines_ns: Option<(u64, u64)>,
}

impl TermCounts {
    pub(super) fn add(&mut self, request: &TraceRequest) {
        let Terms { tenant, priority, deadline_ns, .. } = request.terms;
        self.any |= request.terms != Terms::default();
        self.tenants.insert(tenant);
        let (least, most) = self.priorities.unwrap_or((priority, priority));
        self.priorities = Some((least.min(priority), most.max(priority)));
        if let Some(ns) = deadline_ns {
            self.deadlines += 1;
            let (least, most) = self.deadlines_ns.unwrap_or((ns, ns));
            self.deadlines_ns = Some((least.min(ns), most.max(ns)));
        }
    }

    /// Returns the statistics; `None` if every request has default terms.
    pub(super) fn stats(&self) -> Option<TermStats> {
        let (priority_min, priority_max) = self.priorities.filter(|_| self.any)?;
        let seconds = |ns: u64| ns as f64 / 1e9;
        Some(TermStats {
            tenants: self.tenants.len() as u64,
            priority_min,
            priority_max,
            deadlines: self.deadlines,
            deadline_min_s: self.deadlines_ns.map(|(least, _)| seconds(least)),
            deadline_max_s: self.deadlines_ns.map(|(_, most)| seconds(most)),
        })
    }
}
