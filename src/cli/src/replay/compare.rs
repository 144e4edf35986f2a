//! Reports of several replays of one trace, side by side.

use comfy_table::Table;
use trunkline_sim_perf::columns::Cell;
use trunkline_sim_report::Report;
use trunkline_sim_report::figures::{self, Latency, Statistic};
use trunkline_sim_report::report::{Latencies, TenantReport};

use super::render;
use crate::output::{align_right, grouped, seconds, table as empty_table};

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
    hints: bool,
    autoscale: bool,
}

impl Differing {
    fn of(reports: &[Report]) -> Self {
        let first = &reports[0].settings;
        let any = |differs: fn(&Report, &Report) -> bool| reports.iter().any(|report| differs(report, &reports[0]));
        let eviction = any(|a, b| a.settings.core.eviction != b.settings.core.eviction);
        let preemption = any(|a, b| a.settings.core.preemption != b.settings.core.preemption);
        let router = any(|a, b| a.settings.router != b.settings.router);
        let hints =
            any(|a, b| a.tokens.hints.map(|hints| hints.followed) != b.tokens.hints.map(|hints| hints.followed));
        let autoscale = any(|a, b| a.settings.autoscale != b.settings.autoscale);
        // A row needs a label even if the same policy is given twice.
        let policy = reports.iter().any(|report| report.settings.core.policy != first.core.policy)
            || !(eviction || preemption || router || hints || autoscale);
        Self { policy, eviction, preemption, router, hints, autoscale }
    }

    fn names(&self) -> Vec<&'static str> {
        let all = [
            ("policy", self.policy),
            ("eviction", self.eviction),
            ("preemption", self.preemption),
            ("router", self.router),
            ("hints", self.hints),
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
            (report.tokens.hints.map_or_else(String::new, |hints| hints.followed.to_string()), self.hints),
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
    if differing.hints {
        text.push_str("\n\n");
        text.push_str(&hint_rows(reports, &differing).trim_fmt());
    }
    text
}

fn rows(reports: &[Report], differing: &Differing) -> Table {
    let mut table = empty_table();
    let mut header = differing.names();
    header.extend(COMPARED.map(|(title, _, _)| title));
    let figures: Vec<Vec<_>> = reports.iter().map(|report| figures::whole(report).collect()).collect();
    let has = |at: usize, is_rare: bool| {
        let mut cells = figures.iter().map(|figures| &figures[at].1);
        cells.any(|cell| *cell != Cell::None && (!is_rare || render::has(cell)))
    };
    let titled = figures[0].iter().enumerate().filter_map(|(at, (about, _))| Some((at, *about, about.column?)));
    let columns: Vec<_> = titled.filter(|(at, about, _)| has(*at, about.is_rare)).collect();
    header.extend(columns.iter().map(|(_, _, title)| *title));
    let timed = reports.iter().any(|report| report.latencies.deadlines.is_some());
    header.extend(timed.then_some("deadlines met"));
    table.set_header(header);
    for (report, figures) in reports.iter().zip(&figures) {
        let mut cells = differing.values(report);
        cells.extend(compared(&report.latencies, report.completed));
        cells.extend(columns.iter().map(|(at, about, _)| render::shown(about, &figures[*at].1)));
        if timed {
            cells.push(report.latencies.deadlines.as_ref().map_or_else(String::new, render::met));
        }
        table.add_row(cells);
    }
    align_right(&mut table, differing.names().len());
    table
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

/// Returns what hints gained those who sent them, and cost the others.
fn hint_rows(reports: &[Report], differing: &Differing) -> Table {
    let mut table = empty_table();
    let mut header = differing.names();
    header.extend(["of requests", "requests", "prompt tokens", "hits", "TTFT mean", "p99"]);
    table.set_header(header);
    for (report, hints) in reports.iter().filter_map(|report| Some((report, report.tokens.hints?))) {
        for (name, of) in [("with hints", hints.hinted), ("without", hints.others)] {
            let mut cells = differing.values(report);
            cells.extend([name.into(), grouped(of.requests), grouped(of.prompt_tokens), grouped(of.prefix_hit_tokens)]);
            cells.extend([Statistic::Mean, Statistic::P99].map(|statistic| seconds(statistic.of(&of.ttft_s))));
            table.add_row(cells);
        }
        if hints.prefetches > 0 {
            let mut cells = differing.values(report);
            cells.extend(["prefetched".into(), grouped(hints.prefetches), grouped(hints.prefetched_tokens)]);
            table.add_row(cells);
        }
    }
    align_right(&mut table, differing.names().len() + 1);
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
