//! Reports of several replays of one trace, side by side.

use comfy_table::Table;
use trunkline_sim_report::Report;
use trunkline_sim_report::figures::{Latency, Statistic};
use trunkline_sim_report::report::{Latencies, TenantReport};

use super::render;
use crate::output::{align_right, grouped, per_cent, seconds, table as empty_table};

/// Returns a label for each report: the values of the settings with differences among the reports.
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
    autoscale: bool,
}

impl Differing {
    fn of(reports: &[Report]) -> Self {
        let first = &reports[0].settings;
        let any = |differs: fn(&Report, &Report) -> bool| reports.iter().any(|report| differs(report, &reports[0]));
        let eviction = any(|a, b| a.settings.core.eviction != b.settings.core.eviction);
        let preemption = any(|a, b| a.settings.core.preemption != b.settings.core.preemption);
        let router = any(|a, b| a.settings.router != b.settings.router);
        let autoscale = any(|a, b| a.settings.autoscale != b.settings.autoscale);
        // A row needs a label even if the same policy is given twice.
        let policy = reports.iter().any(|report| report.settings.core.policy != first.core.policy)
            || !(eviction || preemption || router || autoscale);
        Self { policy, eviction, preemption, router, autoscale }
    }

    fn names(&self) -> Vec<&'static str> {
        let all = [
            ("policy", self.policy),
            ("eviction", self.eviction),
            ("preemption", self.preemption),
            ("router", self.router),
            ("autoscale", self.autoscale),
        ];
        all.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }

    fn values(&self, report: &Report) -> Vec<String> {
        let settings = &report.settings;
        let all = [
            (settings.core.policy.clone(), self.policy),
            (settings.core.eviction.clone(), self.eviction),
            (settings.core.preemption.name().to_string(), self.preemption),
            (settings.router.clone(), self.router),
            (render::autoscale(settings), self.autoscale),
        ];
        all.into_iter().filter(|(_, differs)| *differs).map(|(value, _)| value).collect()
    }
}

/// Latencies to compare, each with the head of its column.
const COMPARED: [(&str, Latency, Statistic); 7] = [
    ("TTFT p50", Latency::Ttft, Statistic::P50),
    ("p90", Latency::Ttft, Statistic::P90),
    ("p99", Latency::Ttft, Statistic::P99),
    ("TPOT p50", Latency::Tpot, Statistic::P50),
    ("p99", Latency::Tpot, Statistic::P99),
    ("E2E p50", Latency::E2e, Statistic::P50),
    ("p99", Latency::E2e, Statistic::P99),
];

/// Returns the latencies to compare, each `-` if no request completed.
fn compared(latencies: &Latencies, completed: u64) -> [String; COMPARED.len()] {
    if completed == 0 {
        return COMPARED.map(|_| "-".into());
    }
    COMPARED.map(|(_, latency, statistic)| seconds(statistic.of(&latency.of(latencies))))
}

/// Returns a table with a row for each report, followed by one with a row for each of its tenants, and one for each of its classes.
pub(super) fn table(reports: &[Report]) -> String {
    let differing = Differing::of(reports);
    let names = differing.names();
    let mut text = reports[0].baseline.as_ref().map_or(String::new(), render::baseline);
    text.push_str(&render::facts(reports, &names).trim_fmt());
    text.push_str("\n\n");
    text.push_str(&rows(reports, &differing).trim_fmt());
    if reports.iter().any(|report| report.fairness.is_some()) {
        text.push_str("\n\n");
        text.push_str(&tenant_rows(reports, &differing).trim_fmt());
    }
    if reports.iter().any(|report| !report.classes.is_empty()) {
        text.push_str("\n\n");
        text.push_str(&class_rows(reports, &differing).trim_fmt());
    }
    text
}

fn rows(reports: &[Report], differing: &Differing) -> Table {
    let mut table = empty_table();
    let mut header = differing.names();
    header.extend(COMPARED.map(|(title, _, _)| title));
    let copying = reports.iter().any(Report::copies);
    header.push("hits");
    header.extend(copying.then_some("copied"));
    header.extend(["preemptions", "swaps"]);
    let fair = reports.iter().any(|report| report.fairness.is_some());
    if fair {
        header.push("service gap");
    }
    let timed = reports.iter().any(|report| report.latencies.deadlines.is_some());
    if timed {
        header.push("deadlines met");
    }
    let changing = reports.iter().any(|report| report.fleet.service.is_some());
    if changing {
        header.extend(["ready", "replica-hours", "cost"]);
    }
    table.set_header(header);
    for report in reports {
        let mut cells = differing.values(report);
        cells.extend(compared(&report.latencies, report.completed));
        cells.push(per_cent(report.tokens.prefix_hit_ratio));
        cells.extend(copying.then(|| per_cent(report.tokens.copied_ratio)));
        cells.extend([report.preemptions, report.swaps.swap_outs].map(grouped));
        if fair {
            cells.push(report.fairness.as_ref().map_or_else(String::new, |it| grouped(it.service_gap_max)));
        }
        if timed {
            cells.push(report.latencies.deadlines.as_ref().map_or_else(String::new, render::met));
        }
        if changing {
            cells.extend(in_service(report));
        }
        table.add_row(cells);
    }
    align_right(&mut table, differing.names().len());
    table
}

/// Returns the mean of ready replicas, the replica-hours and the cost; empty cells for a figure that the report lacks.
fn in_service(report: &Report) -> [String; 3] {
    let Some(service) = &report.fleet.service else { return <[String; 3]>::default() };
    let cost = service.total_cost.map_or_else(String::new, |cost| format!("{cost:.2}"));
    [format!("{:.2}", service.ready_mean), format!("{:.3}", service.replica_hours), cost]
}

fn tenant_rows(reports: &[Report], differing: &Differing) -> Table {
    let mut table = empty_table();
    let mut header = differing.names();
    header.extend(["tenant", "requests"]);
    header.extend(COMPARED.map(|(title, _, _)| title));
    header.push("service/s");
    table.set_header(header);
    for report in reports {
        for (number, tenant) in report.fairness.iter().flat_map(|fairness| fairness.tenants.iter().enumerate()) {
            let mut cells = differing.values(report);
            cells.extend([number.to_string(), grouped(tenant.requests)]);
            let TenantReport { ttft_s, tpot_s, e2e_s, .. } = *tenant;
            let latencies = Latencies { ttft_s, tpot_s, e2e_s, ..Latencies::default() };
            cells.extend(compared(&latencies, tenant.completed));
            cells.push(grouped(tenant.contended_service_s.round() as u64));
            table.add_row(cells);
        }
    }
    align_right(&mut table, differing.names().len());
    table
}

fn class_rows(reports: &[Report], differing: &Differing) -> Table {
    let mut table = empty_table();
    let mut header = differing.names();
    header.extend(["class", "requests"]);
    let titles = Statistic::ALL.map(|statistic| format!("queue {}", statistic.name()));
    header.extend(titles.iter().map(String::as_str));
    table.set_header(header);
    for report in reports {
        for class in &report.classes {
            let mut cells = differing.values(report);
            cells.extend([class.to_string(), grouped(class.requests)]);
            cells.extend(Statistic::ALL.map(|statistic| seconds(statistic.of(&class.queue_s))));
            table.add_row(cells);
        }
    }
    align_right(&mut table, differing.names().len() + 1);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_completes_nothing_has_no_latencies() {
        assert_eq!(compared(&Latencies::default(), 0), [const { "-" }; COMPARED.len()]);
        assert_eq!(compared(&Latencies::default(), 1)[0], "0.0000");
    }
}
