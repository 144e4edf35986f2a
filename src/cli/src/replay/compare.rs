//! Reports of several replays of one trace, side by side.

use comfy_table::Table;
use trunkline_sim_report::Report;

use super::render;
use crate::output::{align_right, grouped, per_cent, seconds, table as empty_table};

/// Returns a label for each report: the values of the settings that differ between them.
pub(super) fn labels(reports: &[Report]) -> Vec<String> {
    let Some(_) = reports.first() else { return Vec::new() };
    let differing = Differing::of(reports);
    reports.iter().map(|report| differing.values(report).join(", ")).collect()
}

/// Settings that differ between reports.
struct Differing {
    policy: bool,
    eviction: bool,
    preemption: bool,
    router: bool,
}

impl Differing {
    fn of(reports: &[Report]) -> Self {
        let first = &reports[0].settings;
        let any = |differs: fn(&Report, &Report) -> bool| reports.iter().any(|report| differs(report, &reports[0]));
        let eviction = any(|a, b| a.settings.eviction != b.settings.eviction);
        let preemption = any(|a, b| a.settings.preemption != b.settings.preemption);
        let router = any(|a, b| a.settings.router != b.settings.router);
        // A row needs a label even if the same policy is given twice.
        let policy =
            reports.iter().any(|report| report.settings.policy != first.policy) || !(eviction || preemption || router);
        Self { policy, eviction, preemption, router }
    }

    fn names(&self) -> Vec<&'static str> {
        let all = [
            ("policy", self.policy),
            ("eviction", self.eviction),
            ("preemption", self.preemption),
            ("router", self.router),
        ];
        all.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }

    fn values(&self, report: &Report) -> Vec<String> {
        let settings = &report.settings;
        let all = [
            (settings.policy.clone(), self.policy),
            (settings.eviction.clone(), self.eviction),
            (settings.preemption.name().to_string(), self.preemption),
            (settings.router.clone(), self.router),
        ];
        all.into_iter().filter(|(_, differs)| *differs).map(|(value, _)| value).collect()
    }
}

/// Returns a table with a row for each report, followed by one with a row for each of its tenants.
pub(super) fn table(reports: &[Report]) -> String {
    let differing = Differing::of(reports);
    let names = differing.names();
    let mut text = render::facts(reports, &names).trim_fmt();
    text.push_str("\n\n");
    text.push_str(&rows(reports, &differing).trim_fmt());
    if reports.iter().any(|report| report.fairness.is_some()) {
        text.push_str("\n\n");
        text.push_str(&tenant_rows(reports, &differing).trim_fmt());
    }
    text
}

fn rows(reports: &[Report], differing: &Differing) -> Table {
    let mut table = empty_table();
    let mut header = differing.names();
    header.extend(["TTFT p50", "p90", "p99", "TPOT p50", "p99", "E2E p50", "p99", "hits", "preemptions", "swaps"]);
    let fair = reports.iter().any(|report| report.fairness.is_some());
    if fair {
        header.push("service gap");
    }
    table.set_header(header);
    for report in reports {
        let mut cells = differing.values(report);
        let Report { ttft_s, tpot_s, e2e_s, .. } = report;
        let latencies = [ttft_s.p50, ttft_s.p90, ttft_s.p99, tpot_s.p50, tpot_s.p99, e2e_s.p50, e2e_s.p99];
        cells.extend(latencies.map(seconds));
        cells.push(per_cent(report.prefix_hit_ratio));
        cells.extend([report.preemptions, report.swap_outs].map(grouped));
        if fair {
            cells.push(report.fairness.as_ref().map_or_else(String::new, |it| grouped(it.service_gap_max)));
        }
        table.add_row(cells);
    }
    align_right(&mut table, differing.names().len());
    table
}

fn tenant_rows(reports: &[Report], differing: &Differing) -> Table {
    let mut table = empty_table();
    let mut header = differing.names();
    header.extend(["tenant", "requests", "TTFT p50", "p90", "p99", "TPOT p50", "p99", "E2E p50", "p99", "service/s"]);
    table.set_header(header);
    for report in reports {
        for (number, tenant) in report.fairness.iter().flat_map(|fairness| fairness.tenants.iter().enumerate()) {
            let mut cells = differing.values(report);
            cells.extend([number.to_string(), grouped(tenant.requests)]);
            let (ttft_s, tpot_s, e2e_s) = (tenant.ttft_s, tenant.tpot_s, tenant.e2e_s);
            let latencies = [ttft_s.p50, ttft_s.p90, ttft_s.p99, tpot_s.p50, tpot_s.p99, e2e_s.p50, e2e_s.p99];
            cells.extend(latencies.map(seconds));
            cells.push(grouped(tenant.contended_service_s.round() as u64));
            table.add_row(cells);
        }
    }
    align_right(&mut table, differing.names().len());
    table
}
