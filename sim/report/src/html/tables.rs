//! The figures of a page that need no chart: cards of one run, a table of several, percentiles.

use std::fmt::Write as _;

use super::figures::{number, per_cent, seconds};
use super::{Run, escape};
use crate::numbers::grouped;
use crate::numbers::ratio;
use trunkline_sim_workload::summary::Summary;

/// Which of two values is better.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    Less,
    More,
    Neither,
}

/// How a value is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unit {
    Seconds,
    Rate,
    Share,
    Count,
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Self::Seconds => seconds(value),
            Self::Rate => number(value),
            Self::Share => per_cent(value),
            Self::Count => grouped(value as u64),
        }
    }

    /// How far `value` is from `first`.
    fn difference(self, value: f64, first: f64) -> String {
        let sign = |d: f64| if d >= 0.0 { "+" } else { "−" };
        match self {
            _ if value == first => "same".into(),
            Self::Share => {
                let points = (value - first) * 100.0;
                format!("{}{:.2} points", sign(points), points.abs())
            }
            _ if first == 0.0 => format!("{}{}", sign(value), self.show(value.abs())),
            _ => {
                let per_cent = (value / first - 1.0) * 100.0;
                format!("{}{:.1} %", sign(per_cent), per_cent.abs())
            }
        }
    }
}

struct Row {
    name: &'static str,
    unit: Unit,
    better: Better,
    value: fn(&Run<'_>) -> f64,
}

const fn row(name: &'static str, unit: Unit, better: Better, value: fn(&Run<'_>) -> f64) -> Row {
    Row { name, unit, better, value }
}

/// What runs are compared by.
const ROWS: [Row; 18] = [
    row("Requests/s", Unit::Rate, Better::More, |it| it.report.requests_s),
    row("Output tokens/s", Unit::Rate, Better::More, output_tokens_s),
    row("TTFT mean", Unit::Seconds, Better::Less, |it| it.report.ttft_s.mean),
    row("TTFT p50", Unit::Seconds, Better::Less, |it| it.report.ttft_s.p50),
    row("TTFT p90", Unit::Seconds, Better::Less, |it| it.report.ttft_s.p90),
    row("TTFT p99", Unit::Seconds, Better::Less, |it| it.report.ttft_s.p99),
    row("TPOT p50", Unit::Seconds, Better::Less, |it| it.report.tpot_s.p50),
    row("TPOT p99", Unit::Seconds, Better::Less, |it| it.report.tpot_s.p99),
    row("E2E p50", Unit::Seconds, Better::Less, |it| it.report.e2e_s.p50),
    row("E2E p99", Unit::Seconds, Better::Less, |it| it.report.e2e_s.p99),
    row("Queue p99", Unit::Seconds, Better::Less, |it| it.series.queue.summary.p99),
    row("Prefix hits", Unit::Share, Better::More, |it| it.report.prefix_hit_ratio),
    row("Preemptions", Unit::Count, Better::Less, |it| it.report.preemptions as f64),
    row("Refused", Unit::Count, Better::Less, |it| it.report.refused as f64),
    row("Rerouted", Unit::Count, Better::Neither, |it| it.report.rerouted as f64),
    row("Evicted blocks", Unit::Count, Better::Neither, |it| it.report.evicted_blocks as f64),
    row("Utilisation", Unit::Share, Better::Neither, |it| it.report.utilisation),
    row("Duration", Unit::Seconds, Better::Neither, |it| it.report.duration_s),
];

fn output_tokens_s(run: &Run<'_>) -> f64 {
    ratio(run.report.output_tokens as f64, run.report.duration_s)
}

/// The colour of a run, as its lines have.
fn key(at: usize) -> String {
    let dash = if at >= 8 { " dash" } else { "" };
    format!("<i class=\"key{dash}\" style=\"border-top-color:var(--s{})\"></i>", at % 8)
}

/// Which colour is which run; nothing of one alone.
pub(super) fn legend(runs: &[Run<'_>]) -> String {
    if runs.len() < 2 {
        return String::new();
    }
    let item = |(at, run): (usize, &Run<'_>)| format!("<li>{}<span>{}</span></li>", key(at), escape(&run.label));
    format!("<ul class=\"legend runs\">{}</ul>", runs.iter().enumerate().map(item).collect::<String>())
}

/// The headline figures of one run.
pub(super) fn cards(run: &Run<'_>) -> String {
    let report = run.report;
    let latency = |summary: &Summary| (seconds(summary.p50), format!("median; p99 {}", seconds(summary.p99)));
    let (ttft, ttft_more) = latency(&report.ttft_s);
    let (tpot, tpot_more) = latency(&report.tpot_s);
    let (e2e, e2e_more) = latency(&report.e2e_s);
    let completed = match (report.refused, report.rerouted) {
        (0, 0) => format!("of {} completed", grouped(report.requests)),
        (0, n) => format!("of {} completed; {} rerouted", grouped(report.requests), grouped(n)),
        (n, _) => format!("of {} completed; {} refused as too large", grouped(report.requests), grouped(n)),
    };
    let cards = [
        ("Requests", grouped(report.completed), completed),
        ("Output", unit(output_tokens_s(run), "tokens/s"), format!("{} tokens in all", grouped(report.output_tokens))),
        ("Throughput", unit(report.requests_s, "requests/s"), format!("over {}", seconds(report.duration_s))),
        ("TTFT", ttft, ttft_more),
        ("TPOT", tpot, tpot_more),
        ("E2E", e2e, e2e_more),
        (
            "Prefix hits",
            per_cent(report.prefix_hit_ratio),
            format!("of {} prompt tokens", grouped(report.prompt_tokens)),
        ),
        ("Utilisation", per_cent(report.utilisation), format!("{} steps", grouped(report.steps))),
        (
            "Batch",
            unit(report.mean_batch, "sequences"),
            format!("{} tokens in a step, mean", number(report.mean_step_tokens)),
        ),
        ("Preemptions", grouped(report.preemptions), format!("{} of them swapped out", grouped(report.swap_outs))),
    ];
    let card = |(name, value, more): (&str, String, String)| {
        format!(
            "<div class=\"card\"><p class=\"name\">{name}</p><p class=\"value\">{value}</p><p class=\"more\">{}</p></div>\n",
            escape(&more)
        )
    };
    format!("<div class=\"cards\">\n{}</div>", cards.into_iter().map(card).collect::<String>())
}

fn unit(value: f64, unit: &str) -> String {
    format!("{} <small>{unit}</small>", number(value))
}

/// Charts of the figures that matter most, and a table of all: a column for each run, the best of each row marked.
pub(super) fn comparison(runs: &[Run<'_>]) -> String {
    let head = |(at, run): (usize, &Run<'_>)| format!("<th scope=\"col\">{} {}</th>", key(at), escape(&run.label));
    let mut out = String::from(CONTESTS);
    out.push_str("<p class=\"caption\">Beside each figure, how far it is from the first run's. The best of a row is marked.</p>\n");
    let _ = writeln!(
        out,
        "<div class=\"scroll\"><table><thead><tr><th></th>{}</tr></thead><tbody>",
        runs.iter().enumerate().map(head).collect::<String>()
    );
    for row in &ROWS {
        let values: Vec<f64> = runs.iter().map(row.value).collect();
        if matches!(row.name, "Refused" | "Rerouted" | "Preemptions") && values.iter().all(|value| *value == 0.0) {
            continue;
        }
        let best = best(&values, row.better);
        let cells: String = values
            .iter()
            .enumerate()
            .map(|(at, value)| cell(row.unit, *value, (at > 0).then_some(values[0]), best == Some(*value)))
            .collect();
        let _ = writeln!(out, "<tr><th scope=\"row\">{}</th>{cells}</tr>", row.name);
    }
    out.push_str("</tbody></table></div>");
    out
}

/// The best of the values, if they differ.
fn best(values: &[f64], better: Better) -> Option<f64> {
    let differ = values.iter().any(|value| *value != values[0]);
    match better {
        Better::Less if differ => values.iter().copied().reduce(f64::min),
        Better::More if differ => values.iter().copied().reduce(f64::max),
        _ => None,
    }
}

fn cell(unit: Unit, value: f64, first: Option<f64>, best: bool) -> String {
    let difference =
        first.map_or_else(String::new, |first| format!("<small>{}</small>", unit.difference(value, first)));
    let (class, mark) = if best { (" class=\"best\"", "<span class=\"hidden\"> (best)</span>") } else { ("", "") };
    format!("<td{class}>{}{mark}{difference}</td>", unit.show(value))
}

const CONTESTS: &str = r#"<div class="charts">
    <figure data-chart="contest-ttft"><h3>TTFT, p99</h3><figcaption>99 of 100 requests had their first token within this time. Less is better.</figcaption></figure>
    <figure data-chart="contest-tpot"><h3>TPOT, p99</h3><figcaption>99 of 100 requests took no longer than this for each further token. Less is better.</figcaption></figure>
    <figure data-chart="contest-e2e"><h3>E2E, p99</h3><figcaption>99 of 100 requests had all tokens within this time. Less is better.</figcaption></figure>
    <figure data-chart="contest-hits"><h3>Prefix hits</h3><figcaption>Prompt tokens found in the cache (%). More is better.</figcaption></figure>
  </div>
"#;

/// A latency's name, and where it is.
type Latency = (&'static str, fn(&Run<'_>) -> Summary);

/// Latencies of all runs.
pub(super) fn percentiles(runs: &[Run<'_>]) -> String {
    let mut out = String::from("<div class=\"scroll\"><table><thead><tr><th></th>");
    for name in ["mean", "p50", "p90", "p95", "p99", "max"] {
        let _ = write!(out, "<th scope=\"col\">{name}</th>");
    }
    out.push_str("</tr></thead>\n");
    let latencies: [Latency; 5] = [
        ("TTFT", |it| it.report.ttft_s),
        ("TPOT", |it| it.report.tpot_s),
        ("ITL", |it| it.report.itl_s),
        ("E2E", |it| it.report.e2e_s),
        ("Queue", |it| it.series.queue.summary),
    ];
    for (name, summary) in latencies {
        if runs.len() == 1 {
            let _ = writeln!(out, "<tbody>{}</tbody>", summary_row(name, &summary(&runs[0])));
            continue;
        }
        let _ = writeln!(
            out,
            "<tbody class=\"group\"><tr><th class=\"head\" scope=\"rowgroup\" colspan=\"7\">{name}</th></tr>"
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
    let Summary { mean, p50, p90, p95, p99, max } = *summary;
    let cells: String = [mean, p50, p90, p95, p99, max].map(|s| format!("<td>{}</td>", seconds(s))).concat();
    format!("<tr><th scope=\"row\">{name}</th>{cells}</tr>\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_a_row_is_marked_unless_all_are_the_same() {
        assert_eq!(best(&[2.0, 1.0, 3.0], Better::Less), Some(1.0));
        assert_eq!(best(&[2.0, 1.0, 3.0], Better::More), Some(3.0));
        assert_eq!(best(&[2.0, 1.0, 3.0], Better::Neither), None);
        assert_eq!(best(&[2.0, 2.0], Better::Less), None);
        assert_eq!(
            cell(Unit::Seconds, 0.5, None, true),
            "<td class=\"best\">500 ms<span class=\"hidden\"> (best)</span></td>"
        );
    }

    #[test]
    fn differences_are_to_the_first() {
        assert_eq!(Unit::Seconds.difference(1.1, 1.0), "+10.0 %");
        assert_eq!(Unit::Seconds.difference(0.5, 1.0), "−50.0 %");
        assert_eq!(Unit::Share.difference(0.25, 0.3), "−5.00 points");
        assert_eq!(Unit::Count.difference(12.0, 0.0), "+12");
        assert_eq!(Unit::Count.difference(12.0, 12.0), "same");
    }
}
