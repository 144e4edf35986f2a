//! Figures without charts: cards of one run, the comparison of several, percentiles.

use std::fmt::Write as _;

use super::figures::{number, per_cent, seconds};
use super::{Run, escape};
use crate::figures::{self, About, Direction, Figure, Latency, Statistic, Unit};
use crate::numbers::grouped;
use crate::numbers::ratio;
use crate::report::Report;
use trunkline_core::Stats;
use trunkline_sim_workload::summary::Summary;

/// Returns a value with the unit.
fn show(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Seconds => seconds(value),
        Unit::PerSecond => number(value),
        Unit::Share => per_cent(value),
        Unit::Count => grouped(value as u64),
        Unit::Text => String::new(),
    }
}

/// Returns the difference of `value` to `first`: in points for shares, else in per cent.
fn difference(unit: Unit, value: f64, first: f64) -> String {
    let sign = |d: f64| if d >= 0.0 { "+" } else { "−" };
    match unit {
        _ if value == first => "same".into(),
        Unit::Share => {
            let points = (value - first) * 100.0;
            format!("{}{:.2} points", sign(points), points.abs())
        }
        _ if first == 0.0 => format!("{}{}", sign(value), show(unit, value.abs())),
        _ => {
            let per_cent = (value / first - 1.0) * 100.0;
            format!("{}{:.1} %", sign(per_cent), per_cent.abs())
        }
    }
}

/// Row of the comparison of runs.
#[derive(Clone, Copy)]
enum Row {
    /// Figure of the catalogue, by name.
    Figure(&'static str),
    /// Counter of the core.
    Counted(&'static Figure<Stats>),
    /// Latency and statistic.
    Latency(Latency, Statistic),
    /// Output tokens per second.
    OutputRate,
    /// 99th percentile of the queueing time.
    QueueP99,
}

/// Rows of the comparison of runs, in order; before the last, the counters of the core.
const ROWS: [Row; 20] = [
    Row::Figure("requests_s"),
    Row::OutputRate,
    Row::Latency(Latency::Ttft, Statistic::Mean),
    Row::Latency(Latency::Ttft, Statistic::P50),
    Row::Latency(Latency::Ttft, Statistic::P90),
    Row::Latency(Latency::Ttft, Statistic::P99),
    Row::Latency(Latency::Tpot, Statistic::P50),
    Row::Latency(Latency::Tpot, Statistic::P99),
    Row::Latency(Latency::E2e, Statistic::P50),
    Row::Latency(Latency::E2e, Statistic::P99),
    Row::QueueP99,
    Row::Figure("prefix_hit_ratio"),
    Row::Figure("copied_ratio"),
    Row::Figure("preemptions"),
    Row::Figure("refused"),
    Row::Figure("rerouted"),
    Row::Figure("utilisation"),
    Row::Figure("replica_hours"),
    Row::Figure("total_cost"),
    Row::Figure("duration_s"),
];

impl Row {
    fn figure(name: &str) -> &'static Figure<Report> {
        figures::figure(name).expect("the rows name figures of the catalogue")
    }

    /// Returns all rows, in order.
    fn all() -> impl Iterator<Item = Self> {
        let (last, rows) = ROWS.split_last().expect("there are rows");
        rows.iter().copied().chain(figures::COUNTED.iter().map(Self::Counted)).chain([*last])
    }

    /// Returns what the figure of the row is; `None` for a row with none of the catalogue.
    fn about(&self) -> Option<&'static About> {
        match self {
            Self::Figure(name) => Some(&Self::figure(name).about),
            Self::Counted(figure) => Some(&figure.about),
            Self::Latency(..) | Self::OutputRate | Self::QueueP99 => None,
        }
    }

    fn title(&self) -> String {
        match self {
            Self::Figure(_) | Self::Counted(_) => self.about().map_or_else(String::new, |about| about.title.into()),
            Self::Latency(latency, statistic) => format!("{} {}", latency.title(), statistic.name()),
            Self::OutputRate => "Output tokens/s".into(),
            Self::QueueP99 => "Queue p99".into(),
        }
    }

    fn unit(&self) -> Unit {
        match self {
            Self::Figure(name) => Self::figure(name).unit,
            Self::Counted(figure) => figure.unit,
            Self::Latency(..) | Self::QueueP99 => Unit::Seconds,
            Self::OutputRate => Unit::PerSecond,
        }
    }

    fn direction(&self) -> Direction {
        match self {
            // The arrivals set how long a replay lasts, so no run wins by that.
            Self::Figure("duration_s") => Direction::Neither,
            Self::Figure(name) => Self::figure(name).direction,
            Self::Counted(figure) => figure.direction,
            Self::Latency(..) | Self::QueueP99 => Direction::Lower,
            Self::OutputRate => Direction::Higher,
        }
    }

    fn value(&self, run: &Run<'_>) -> f64 {
        match self {
            Self::Figure(name) => Self::figure(name).cell(run.report).number().unwrap_or(0.0),
            Self::Counted(figure) => figure.cell(&run.report.counters).number().unwrap_or(0.0),
            Self::Latency(latency, statistic) => statistic.of(&latency.of(&run.report.latencies)),
            Self::OutputRate => output_tokens_s(run),
            Self::QueueP99 => run.series.latencies.queue.summary.p99,
        }
    }
}

fn output_tokens_s(run: &Run<'_>) -> f64 {
    ratio(run.report.tokens.output_tokens as f64, run.report.duration_s)
}

/// Returns the colour key of a run, like its lines in the charts.
fn key(at: usize) -> String {
    let dash = if at >= 8 { " dash" } else { "" };
    format!("<i class=\"key{dash}\" style=\"border-top-color:var(--s{})\"></i>", at % 8)
}

/// Returns the legend of several runs; empty for a single run.
pub(super) fn legend(runs: &[Run<'_>]) -> String {
    if runs.len() < 2 {
        return String::new();
    }
    let item = |(at, run): (usize, &Run<'_>)| format!("<li>{}<span>{}</span></li>", key(at), escape(&run.label));
    format!("<ul class=\"legend runs\">{}</ul>", runs.iter().enumerate().map(item).collect::<String>())
}

/// Returns the headline figures of one run.
pub(super) fn cards(run: &Run<'_>) -> String {
    let report = run.report;
    let latency = |summary: &Summary| (seconds(summary.p50), format!("median; p99 {}", seconds(summary.p99)));
    let (ttft, ttft_more) = latency(&report.latencies.ttft_s);
    let (tpot, tpot_more) = latency(&report.latencies.tpot_s);
    let (e2e, e2e_more) = latency(&report.latencies.e2e_s);
    let completed = match (report.refused, report.fleet.rerouted) {
        (0, 0) => format!("of {} completed", grouped(report.requests)),
        (0, n) => format!("of {} completed; {} rerouted", grouped(report.requests), grouped(n)),
        (n, _) => format!("of {} completed; {} refused as too large", grouped(report.requests), grouped(n)),
    };
    let cards = [
        ("Requests", grouped(report.completed), completed),
        (
            "Output",
            unit(output_tokens_s(run), "tokens/s"),
            format!("{} tokens in all", grouped(report.tokens.output_tokens)),
        ),
        ("Throughput", unit(report.requests_s, "requests/s"), format!("over {}", seconds(report.duration_s))),
        ("TTFT", ttft, ttft_more),
        ("TPOT", tpot, tpot_more),
        ("E2E", e2e, e2e_more),
        ("Prefix hits", per_cent(report.tokens.prefix_hit_ratio), hits_more(report)),
        ("Utilisation", per_cent(report.fleet.utilisation), format!("{} steps", grouped(report.batches.steps))),
        (
            "Batch",
            unit(report.batches.mean_batch, "sequences"),
            format!("{} tokens in a step, mean", number(report.batches.mean_step_tokens)),
        ),
        (
            "Preemptions",
            grouped(report.preemptions),
            format!("{} of them swapped out", grouped(report.swaps.swap_outs)),
        ),
    ];
    let card = |(name, value, more): (&str, String, String)| {
        format!(
            "<div class=\"card\"><p class=\"name\">{name}</p><p class=\"value\">{value}</p><p class=\"more\">{}</p></div>\n",
            escape(&more)
        )
    };
    format!("<div class=\"cards\">\n{}</div>", cards.into_iter().map(card).collect::<String>())
}

fn hits_more(report: &Report) -> String {
    let of = format!("of {} prompt tokens", grouped(report.tokens.prompt_tokens));
    if report.copies() { format!("{of}; {} copied", per_cent(report.tokens.copied_ratio)) } else { of }
}

fn unit(value: f64, unit: &str) -> String {
    format!("{} <small>{unit}</small>", number(value))
}

/// Returns charts of the main figures and a table of all: one column per run, with the best value of each row marked.
pub(super) fn comparison(runs: &[Run<'_>]) -> String {
    let head = |(at, run): (usize, &Run<'_>)| format!("<th scope=\"col\">{} {}</th>", key(at), escape(&run.label));
    let mut out = String::from(CONTESTS);
    out.push_str("<p class=\"caption\">Next to each figure, how far it is from the first run's. The best of a row is marked.</p>\n");
    let _ = writeln!(
        out,
        "<div class=\"scroll\"><table><thead><tr><th></th>{}</tr></thead><tbody>",
        runs.iter().enumerate().map(head).collect::<String>()
    );
    for row in Row::all() {
        let values: Vec<f64> = runs.iter().map(|run| row.value(run)).collect();
        if row.about().is_some_and(|about| about.is_rare) && values.iter().all(|value| *value == 0.0) {
            continue;
        }
        let best = best(&values, row.direction());
        let cells: String = values
            .iter()
            .enumerate()
            .map(|(at, value)| cell(row.unit(), *value, (at > 0).then_some(values[0]), best == Some(*value)))
            .collect();
        let _ = writeln!(out, "<tr><th scope=\"row\">{}</th>{cells}</tr>", row.title());
    }
    out.push_str("</tbody></table></div>");
    out
}

/// Returns the best of several different values.
fn best(values: &[f64], direction: Direction) -> Option<f64> {
    let differ = values.iter().any(|value| *value != values[0]);
    match direction {
        Direction::Lower if differ => values.iter().copied().reduce(f64::min),
        Direction::Higher if differ => values.iter().copied().reduce(f64::max),
        _ => None,
    }
}

fn cell(unit: Unit, value: f64, first: Option<f64>, best: bool) -> String {
    let difference =
        first.map_or_else(String::new, |first| format!("<small>{}</small>", difference(unit, value, first)));
    let (class, mark) = if best { (" class=\"best\"", "<span class=\"hidden\"> (best)</span>") } else { ("", "") };
    format!("<td{class}>{}{mark}{difference}</td>", show(unit, value))
}

const CONTESTS: &str = r#"<div class="charts">
    <figure data-chart="contest-ttft"><h3>TTFT, p99</h3><figcaption>99 of 100 requests had their first token within this time. Less is better.</figcaption></figure>
    <figure data-chart="contest-tpot"><h3>TPOT, p99</h3><figcaption>99 of 100 requests took no longer than this for each further token. Less is better.</figcaption></figure>
    <figure data-chart="contest-e2e"><h3>E2E, p99</h3><figcaption>99 of 100 requests had all tokens within this time. Less is better.</figcaption></figure>
    <figure data-chart="contest-hits"><h3>Prefix hits</h3><figcaption>Prompt tokens found in the cache (%). More is better.</figcaption></figure>
  </div>
"#;

/// Returns the table of latencies of all runs.
pub(super) fn percentiles(runs: &[Run<'_>]) -> String {
    let mut out = String::from("<div class=\"scroll\"><table><thead><tr><th></th>");
    for statistic in Statistic::ALL {
        let _ = write!(out, "<th scope=\"col\">{}</th>", statistic.name());
    }
    out.push_str("</tr></thead>\n");
    let named = Latency::ALL.into_iter().map(|latency| (latency.title(), Some(latency)));
    for (name, latency) in named.chain([("Queue", None)]) {
        let summary = |run: &Run<'_>| match latency {
            Some(latency) => latency.of(&run.report.latencies),
            None => run.series.latencies.queue.summary,
        };
        if runs.len() == 1 {
            let _ = writeln!(out, "<tbody>{}</tbody>", summary_row(name, &summary(&runs[0])));
            continue;
        }
        let _ = writeln!(
            out,
            "<tbody class=\"group\"><tr><th class=\"head\" scope=\"rowgroup\">{name}</th><td colspan=\"6\"></td></tr>"
        );
        for (at, run) in runs.iter().enumerate() {
            let label = format!("{} {}", key(at), escape(&run.label));
            out.push_str(&summary_row(&label, &summary(run)));
        }
        out.push_str("</tbody>\n");
    }
    out.push_str("</table></div>");
    out
}

fn summary_row(name: &str, summary: &Summary) -> String {
    let cell = |statistic: Statistic| format!("<td>{}</td>", seconds(statistic.of(summary)));
    let cells = Statistic::ALL.map(cell).concat();
    format!("<tr><th scope=\"row\">{name}</th>{cells}</tr>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_a_row_is_marked_unless_all_are_the_same() {
        assert_eq!(best(&[2.0, 1.0, 3.0], Direction::Lower), Some(1.0));
        assert_eq!(best(&[2.0, 1.0, 3.0], Direction::Higher), Some(3.0));
        assert_eq!(best(&[2.0, 1.0, 3.0], Direction::Neither), None);
        assert_eq!(best(&[2.0, 2.0], Direction::Lower), None);
        assert_eq!(
            cell(Unit::Seconds, 0.5, None, true),
            "<td class=\"best\">500 ms<span class=\"hidden\"> (best)</span></td>"
        );
    }

    #[test]
    fn differences_are_to_the_first() {
        assert_eq!(difference(Unit::Seconds, 1.1, 1.0), "+10.0 %");
        assert_eq!(difference(Unit::Seconds, 0.5, 1.0), "−50.0 %");
        assert_eq!(difference(Unit::Share, 0.25, 0.3), "−5.00 points");
        assert_eq!(difference(Unit::Count, 12.0, 0.0), "+12");
        assert_eq!(difference(Unit::Count, 12.0, 12.0), "same");
    }
}
