//! `trunkline sweep report`: results of a sweep, as tables and as files of all rows.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use comfy_table::Table;
use serde_json::{Map, Value as Json, json};
use trunkline_quote::quoted;
use trunkline_sim_perf::columns::{Cell as Value, Kind};
use trunkline_sim_report::figures::{self, Direction};

use super::effects::{Effect, best, effects, front};
use super::folder;
use super::join::{self, Joined, Row};
use crate::output::{align_right, grouped, per_cent, print, seconds, table, write_json};

/// Maximum number of failed or missing cells to name.
const NAMED_MAX: usize = 20;

/// Join the results of a sweep and show them as tables.
///
/// The first table has a row for each cell: the parameters that vary, and figures, the best of each marked with `*`. A
/// second table shows the effect of each value of each axis: the mean over all cells with the value, and the mean
/// difference to cells that differ only in having the axis's first value.
#[derive(Clone, Debug, Args)]
pub(super) struct ReportArgs {
    /// Folders of one or more shards, or Parquet files of results.
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,

    /// Figures to show, separated by commas; an unknown name lists all.
    #[arg(
        long,
        value_name = "NAMES",
        value_delimiter = ',',
        default_value = "ttft_p50,ttft_p99,tpot_p50,tpot_p99,e2e_p99,prefix_hit_ratio,requests_s"
    )]
    metrics: Vec<String>,

    /// Sort rows by this figure, best first [default: the order of the grid].
    #[arg(long, value_name = "NAME")]
    sort: Option<String>,

    /// Show a row for each value of this parameter, with figures averaged over the others. May be given more than once.
    #[arg(long, value_name = "PARAMETER")]
    by: Vec<String>,

    /// Show only cells on the Pareto front of two figures: no other cell is at least as good in both and better in one.
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', num_args = 1, conflicts_with = "by")]
    pareto: Vec<String>,

    /// Write all rows as JSON to a file, or to standard output if it is `-`, instead of tables.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Write all rows as CSV to a file, or to standard output if it is `-`, instead of tables.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Write all rows as one Parquet file.
    #[arg(long, value_name = "FILE")]
    parquet: Option<PathBuf>,
}

/// Beginnings of the names of latencies.
const LATENCIES: [&str; 4] = ["ttft_", "tpot_", "itl_", "e2e_"];

/// A figure to show in tables.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Metric {
    pub name: String,
    kind: Kind,
    better: Direction,
    /// Index in [`Row::figures`].
    at: usize,
}

impl Metric {
    pub fn find(name: &str) -> anyhow::Result<Self> {
        let columns = figures::columns();
        let numbers = || columns.iter().enumerate().filter(|(_, (column, _))| column.kind != Kind::Text);
        let found = numbers().find(|(_, (column, _))| column.name == name.trim());
        let Some((at, (column, better))) = found else {
            let known: Vec<&str> = numbers().map(|(_, (column, _))| column.name.as_str()).collect();
            bail!("unknown metric {name}; there are: {}", known.join(", "), name = quoted(name));
        };
        Ok(Self { name: column.name.clone(), kind: column.kind, better: *better, at })
    }

    /// Returns the value of a cell; `None` for latencies of no requests, which reports have as 0.
    pub fn of(&self, row: &Row) -> Option<f64> {
        let is_latency = LATENCIES.iter().any(|latency| self.name.starts_with(latency));
        row.figures[self.at].number().filter(|x| !is_latency || *x > 0.0)
    }

    fn show(&self, x: f64) -> String {
        match self.kind {
            _ if self.name.ends_with("ratio") || self.name == "utilisation" => per_cent(x),
            Kind::Int if x >= 0.0 => grouped(x.round() as u64),
            _ => seconds(x),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// If there are no results, a name is unknown, or a file cannot be written.
pub(super) fn run(args: &ReportArgs) -> anyhow::Result<()> {
    let find = |names: &[String]| names.iter().map(|name| Metric::find(name)).collect::<anyhow::Result<Vec<_>>>();
    let (metrics, pareto) = (find(&args.metrics)?, find(&args.pareto)?);
    let sort = args.sort.as_deref().map(Metric::find).transpose()?;
    let joined = join::load(&args.paths)?;
    let by = args.by.iter().map(|parameter| parameter_at(&joined, parameter)).collect::<anyhow::Result<Vec<_>>>()?;
    if let Some(to) = &args.csv {
        if to.as_os_str() == "-" {
            return print(csv(&joined).trim_end());
        }
        fs::write(to, csv(&joined)).with_context(|| format!("cannot write {}", to.display()))?;
    }
    if let Some(to) = &args.parquet {
        write_parquet(&joined, to)?;
    }
    if let Some(to) = &args.json {
        return write_json("report", to, &serde_json::to_string_pretty(&to_json(&joined))?);
    }
    print(&text(&joined, &metrics, sort.as_ref(), &by, &pareto)?)
}

fn parameter_at(joined: &Joined, parameter: &str) -> anyhow::Result<usize> {
    let at = joined.parameters.iter().position(|known| known == parameter);
    at.with_context(|| {
        format!(
            "unknown parameter {parameter}; there are: {}",
            joined.parameters.join(", "),
            parameter = quoted(parameter)
        )
    })
}

/// Returns all tables as text.
pub(super) fn text(
    joined: &Joined,
    metrics: &[Metric],
    sort: Option<&Metric>,
    by: &[usize],
    pareto: &[Metric],
) -> anyhow::Result<String> {
    let ok: Vec<&Row> = joined.rows.iter().filter(|row| row.ok()).collect();
    let refused = Metric::find("refused")?;
    let refusing = ok.iter().filter(|row| refuses(&refused, row)).count();
    let mut parts = vec![facts(joined)];
    let shown: Vec<usize> = if by.is_empty() { joined.axes.iter().flatten().copied().collect() } else { by.to_vec() };
    let rows = match pareto {
        [] => ok.clone(),
        [a, b] => {
            let all: Vec<&Row> = ok.iter().copied().filter(|row| !refuses(&refused, row)).collect();
            on_front(&all, a, b)?
        }
        _ => bail!("--pareto takes two figures, such as ttft_p99,prefix_hit_ratio"),
    };
    // The figures of the front are what it is about.
    let mut metrics = metrics.to_vec();
    for metric in pareto.iter().chain(sort).chain((refusing > 0).then_some(&refused)) {
        if !metrics.contains(metric) {
            metrics.push(metric.clone());
        }
    }
    if !ok.is_empty() {
        parts.push(cells(joined, lines(&rows, &shown, &metrics, !by.is_empty()), &shown, &metrics, sort).trim_fmt());
        let of_interest = |axis: &&Vec<usize>| by.is_empty() || axis.iter().any(|parameter| by.contains(parameter));
        for axis in joined.axes.iter().filter(of_interest) {
            parts.push(effect_table(joined, &ok, axis, &metrics).trim_fmt());
        }
    }
    if refusing > 0 {
        let cells =
            if refusing == 1 { "1 cell refuses".into() } else { format!("{} cells refuse", grouped(refusing as u64)) };
        parts.push(format!(
            "warning: {cells} requests as too large for the device: latencies are of the others, and such a cell counts in the means by parameter, but is never marked as best, nor on a Pareto front"
        ));
    }
    parts.extend(named(
        "failed",
        joined
            .rows
            .iter()
            .filter(|row| !row.ok())
            .map(|row| format!("{}: {}", name(joined, &row.values), row.error.as_deref().unwrap_or("unknown"))),
    ));
    parts.extend(named("missing", joined.missing.iter().map(|values| name(joined, values))));
    Ok(parts.join("\n\n"))
}

/// Returns `true` if requests were refused in a cell.
fn refuses(refused: &Metric, row: &Row) -> bool {
    refused.of(row).is_some_and(|n| n > 0.0)
}

/// Returns the number of cells, and the parameters with one value.
fn facts(joined: &Joined) -> String {
    let ok = joined.rows.iter().filter(|row| row.ok()).count();
    let failed = joined.rows.len() - ok;
    let counts = [(ok, "ok"), (failed, "failed"), (joined.missing.len(), "missing")];
    let counts: Vec<String> =
        counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{} {what}", grouped(*n as u64))).collect();
    let mut facts = table();
    facts.add_row(["cells", &counts.join(", ")]);
    if joined.strays > 0 {
        let strays = format!("{} rows of other versions or specs", grouped(joined.strays as u64));
        facts.add_row(["left out", &strays]);
    }
    for (parameter, name) in
        joined.parameters.iter().enumerate().filter(|(at, _)| !joined.axes.iter().any(|it| it.contains(at)))
    {
        facts.add_row([name.as_str(), joined.rows[0].value(parameter)]);
    }
    facts.trim_fmt()
}

/// Returns the rows on the Pareto front of `a` and `b`.
fn on_front<'a>(rows: &[&'a Row], a: &Metric, b: &Metric) -> anyhow::Result<Vec<&'a Row>> {
    for metric in [a, b] {
        if metric.better == Direction::Neither {
            bail!("no value of {} is better than another, so it has no Pareto front", metric.name);
        }
    }
    let both: Vec<_> = rows.iter().filter_map(|row| Some((*row, (a.of(row)?, b.of(row)?)))).collect();
    let points: Vec<_> = both.iter().map(|(_, point)| *point).collect();
    let kept = front(&points, [a.better, b.better]);
    Ok(both.into_iter().zip(kept).filter(|(_, kept)| *kept).map(|((row, _), _)| row).collect())
}

/// A line of the table: parameters, number of cells averaged, figures.
struct Line {
    values: Vec<String>,
    cells: usize,
    /// `true` if requests were refused in any of the cells.
    refuses: bool,
    figures: Vec<Option<f64>>,
}

/// Returns a line for each row, or for each set of values of the parameters shown.
fn lines(rows: &[&Row], shown: &[usize], metrics: &[Metric], grouped: bool) -> Vec<Line> {
    let refused = metrics.iter().find(|metric| metric.name == "refused");
    let values = |row: &Row| shown.iter().map(|parameter| row.value(*parameter).to_string()).collect::<Vec<_>>();
    let mut groups: Vec<(Vec<String>, Vec<&Row>)> = Vec::new();
    for row in rows {
        let value = values(row);
        let known = if grouped { groups.iter_mut().find(|(known, _)| *known == value) } else { None };
        match known {
            Some((_, members)) => members.push(row),
            None => groups.push((value, vec![row])),
        }
    }
    let mean = |members: &[&Row], metric: &Metric| {
        let found: Vec<f64> = members.iter().filter_map(|row| metric.of(row)).collect();
        (!found.is_empty()).then(|| found.iter().sum::<f64>() / found.len() as f64)
    };
    let line = |(values, members): (Vec<String>, Vec<&Row>)| Line {
        values,
        cells: members.len(),
        refuses: refused.is_some_and(|refused| members.iter().any(|row| refuses(refused, row))),
        figures: metrics.iter().map(|metric| mean(&members, metric)).collect(),
    };
    groups.into_iter().map(line).collect()
}

fn cells(joined: &Joined, mut lines: Vec<Line>, shown: &[usize], metrics: &[Metric], sort: Option<&Metric>) -> Table {
    if let Some((at, metric)) = sort.and_then(|sort| metrics.iter().enumerate().find(|(_, metric)| *metric == sort)) {
        let sign = if metric.better == Direction::Higher { -1.0 } else { 1.0 };
        let key = |line: &Line| line.figures[at].map_or(f64::INFINITY, |x| sign * x);
        lines.sort_by(|a, b| a.refuses.cmp(&b.refuses).then(key(a).total_cmp(&key(b))));
    }
    let means = lines.iter().any(|line| line.cells > 1);
    let mut table = table();
    let mut header: Vec<&str> = shown.iter().map(|parameter| joined.parameters[*parameter].as_str()).collect();
    header.extend(means.then_some("cells"));
    header.extend(metrics.iter().map(|metric| metric.name.as_str()));
    table.set_header(header);
    let best: Vec<Option<f64>> = metrics
        .iter()
        .enumerate()
        .map(|(at, metric)| {
            best(lines.iter().filter(|line| !line.refuses).filter_map(|line| line.figures[at]), metric.better)
        })
        .collect();
    for line in &lines {
        let mut row = line.values.clone();
        row.extend(means.then(|| line.cells.to_string()));
        for ((metric, figure), best) in metrics.iter().zip(&line.figures).zip(&best) {
            let is_best = lines.len() > 1 && !line.refuses && figure.is_some() && figure == best;
            let mark = if is_best { "* " } else { "" };
            row.push(figure.map_or("-".into(), |x| format!("{mark}{}", metric.show(x))));
        }
        table.add_row(row);
    }
    align_right(&mut table, shown.len());
    table
}

/// Returns the table of the effect of each value of an axis on each figure.
fn effect_table(joined: &Joined, rows: &[&Row], axis: &[usize], metrics: &[Metric]) -> Table {
    let mut table = table();
    let mut header: Vec<String> =
        axis.iter().map(|parameter| format!("mean by {}", joined.parameters[*parameter])).collect();
    header.push("cells".into());
    header.extend(metrics.iter().flat_map(|metric| [metric.name.clone(), "paired".into()]));
    table.set_header(header);
    let of: Vec<Vec<Effect>> = metrics.iter().map(|metric| effects(rows, axis, |row| metric.of(row))).collect();
    // A figure that some cells lack may lack a value of the axis as well.
    let Some(longest) = of.iter().max_by_key(|effects| effects.len()) else { return table };
    for effect in longest {
        let mut row = effect.value.clone();
        row.push(effect.cells.to_string());
        for (metric, effects) in metrics.iter().zip(&of) {
            let found = effects.iter().find(|other| other.value == effect.value);
            row.push(found.map_or("-".into(), |effect| metric.show(effect.mean)));
            row.push(found.map_or("-".into(), paired));
        }
        table.add_row(row);
    }
    align_right(&mut table, axis.len());
    table
}

/// Formats the difference to the first value, as a share of the first value; absolute where the first value is 0.
fn paired(effect: &Effect) -> String {
    match effect.paired {
        None => "-".into(),
        Some(paired) if paired.base == 0.0 => format!("{:+.4}", paired.difference),
        Some(paired) => format!("{:+.1} %", 100.0 * paired.difference / paired.base.abs()),
    }
}

/// Returns the parameters of one cell that vary.
fn name(joined: &Joined, values: &[Option<String>]) -> String {
    let of = |parameter: &usize| {
        format!("{}={}", joined.parameters[*parameter], values[*parameter].as_deref().unwrap_or("-"))
    };
    joined.axes.iter().flatten().map(of).collect::<Vec<_>>().join(" ")
}

/// Returns a heading and a line for each item; nothing if there are none.
fn named(what: &str, all: impl Iterator<Item = String>) -> Option<String> {
    let all: Vec<String> = all.collect();
    let more = all.len().saturating_sub(NAMED_MAX);
    let mut lines: Vec<String> = all.into_iter().take(NAMED_MAX).map(|line| format!("  {line}")).collect();
    if more > 0 {
        lines.push(format!("  and {more} more"));
    }
    (!lines.is_empty()).then(|| format!("{what}:\n{}", lines.join("\n")))
}

/// Returns a row as values of [`folder::schema`].
fn cells_of(row: &Row) -> Vec<Value> {
    let text = |text: &str| Value::Text(text.into());
    let optional = |of: &Option<String>| of.as_deref().map_or(Value::None, text);
    let mut cells = vec![text(&row.id), text(&row.status), optional(&row.error), text(&row.version)];
    cells.push(text(&row.trace_digest));
    cells.extend(row.values.iter().map(optional));
    cells.extend(row.figures.iter().cloned());
    cells
}

fn write_parquet(joined: &Joined, to: &Path) -> anyhow::Result<()> {
    let parameters: Vec<&str> = joined.parameters.iter().map(String::as_str).collect();
    folder::write_rows(to, &parameters, joined.rows.iter().map(cells_of))
}

fn columns(joined: &Joined) -> Vec<String> {
    let parameters: Vec<&str> = joined.parameters.iter().map(String::as_str).collect();
    folder::schema(&parameters).into_iter().map(|column| column.name).collect()
}

/// Formats the columns of the Parquet file as CSV. Fields with a comma, a quote or a line end are quoted.
pub(super) fn csv(joined: &Joined) -> String {
    let quoted = |text: String| match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    };
    let line = |fields: Vec<String>| fields.into_iter().map(quoted).collect::<Vec<_>>().join(",") + "\n";
    let rows = joined.rows.iter().map(|row| line(cells_of(row).iter().map(Value::to_text).collect()));
    [line(columns(joined))].into_iter().chain(rows).collect()
}

/// Returns a list of objects with the columns of the Parquet file.
fn to_json(joined: &Joined) -> Json {
    let columns = columns(joined);
    let value = |cell: Value| match cell {
        Value::None => Json::Null,
        Value::Int(n) => json!(n),
        Value::Real(x) => json!(x),
        Value::Text(text) => json!(text),
        Value::Flag(flag) => json!(flag),
    };
    let object = |row: &Row| columns.iter().cloned().zip(cells_of(row).into_iter().map(value)).collect::<Map<_, _>>();
    joined.rows.iter().map(object).map(Json::Object).collect()
}
