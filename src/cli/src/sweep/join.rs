//! Joins the results of a sweep from folders and files, and finds missing cells.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use trunkline_sim_perf::columns::{Cell as Value, Columns};
use trunkline_sim_report::figures;

use super::folder::{self, OK, PARAMETER, Plan};

/// Result of one cell.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub id: String,
    /// Status: `ok` or `failed`.
    pub status: String,
    /// Error of a cell that failed.
    pub error: Option<String>,
    pub version: String,
    pub trace_digest: String,
    /// Values of [`Joined::parameters`]; `None` for parameters that the cell's sweep does not name.
    pub values: Vec<Option<String>>,
    /// Values of [`figures::columns`].
    pub figures: Vec<Value>,
}

impl Row {
    pub fn ok(&self) -> bool {
        self.status == OK
    }

    /// Returns the value of parameter number `parameter`, for tables.
    pub fn value(&self, parameter: usize) -> &str {
        self.values[parameter].as_deref().unwrap_or("-")
    }
}

/// Results of one or more sweeps.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Joined {
    pub parameters: Vec<String>,
    /// Indexes of the parameters that vary, grouped by axis.
    pub axes: Vec<Vec<usize>>,
    pub rows: Vec<Row>,
    /// Parameters of the planned cells without a result.
    pub missing: Vec<Vec<Option<String>>>,
    /// Number of rows in no plan, from another version or another spec.
    pub strays: usize,
}

/// Reads all results in `paths`: folders of `sweep`, folders of Parquet files, or Parquet files.
///
/// # Errors
/// If a file cannot be read, or there are no results.
pub(super) fn load(paths: &[PathBuf]) -> anyhow::Result<Joined> {
    let (mut plans, mut planned_rows, mut other_rows) = (Vec::new(), Vec::new(), Vec::new());
    for path in paths {
        let plan = if path.is_dir() { Plan::load(path)? } else { None };
        let rows = if plan.is_some() { &mut planned_rows } else { &mut other_rows };
        for file in files(path, plan.is_some())? {
            rows.extend(read(&file)?);
        }
        plans.extend(plan);
    }
    let joined = join(&plans, planned_rows, other_rows);
    if joined.rows.is_empty() {
        bail!(
            "there are no results in {}",
            paths.iter().map(|it| it.display().to_string()).collect::<Vec<_>>().join(", ")
        );
    }
    Ok(joined)
}

/// Returns the files of results in `path`, sorted by name.
fn files(path: &Path, planned: bool) -> anyhow::Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.into()]);
    }
    let folder = if planned { path.join("cells") } else { path.into() };
    let list = || -> std::io::Result<Vec<PathBuf>> { fs::read_dir(&folder)?.map(|it| Ok(it?.path())).collect() };
    let mut files = list().with_context(|| format!("cannot read the folder {}", folder.display()))?;
    files.retain(|file| file.extension().is_some_and(|it| it == "parquet"));
    files.sort();
    Ok(files)
}

/// A row of a file, with parameters by name.
type Loose = (Row, Vec<(String, Option<String>)>);

fn read(file: &Path) -> anyhow::Result<Vec<Loose>> {
    let columns = folder::read(file)?;
    Ok((0..columns.rows()).map(|at| row(&columns, at)).collect())
}

fn row(columns: &Columns, at: usize) -> Loose {
    let cell = |name: &str| columns.column(name).map_or(Value::None, |column| column[at].clone());
    let text = |name: &str| cell(name).text().map(String::from);
    let parameters =
        columns.names.iter().filter_map(|name| Some((name.strip_prefix(PARAMETER)?.to_string(), text(name))));
    let row = Row {
        id: text("cell").unwrap_or_default(),
        status: text("status").unwrap_or_default(),
        error: text("error"),
        version: text("version").unwrap_or_default(),
        trace_digest: text("trace_digest").unwrap_or_default(),
        values: Vec::new(),
        figures: figures::columns().iter().map(|(column, _)| cell(&column.name)).collect(),
    };
    (row, parameters.collect())
}

fn join(plans: &[Plan], planned_rows: Vec<Loose>, other_rows: Vec<Loose>) -> Joined {
    let mut parameters: Vec<String> = Vec::new();
    let named = plans.iter().flat_map(|plan| plan.parameters.iter());
    let found = other_rows.iter().flat_map(|(_, parameters)| parameters.iter().map(|(parameter, _)| parameter));
    for parameter in named.chain(found) {
        if !parameters.contains(parameter) {
            parameters.push(parameter.clone());
        }
    }
    let values = |of: &HashMap<&str, Option<String>>| {
        parameters.iter().map(|it| of.get(it.as_str()).cloned().flatten()).collect()
    };

    let mut joined = Joined::default();
    let mut by_id: HashMap<String, Row> = HashMap::new();
    for (row, _) in planned_rows {
        let better = by_id.get(&row.id).is_none_or(|known| !known.ok());
        if better {
            by_id.insert(row.id.clone(), row);
        }
    }
    let mut seen = HashSet::new();
    for plan in plans {
        for cell in plan.cells.iter() {
            let of = plan.parameters.iter().map(String::as_str).zip(cell.values.iter().cloned().map(Some)).collect();
            let values: Vec<Option<String>> = values(&of);
            // Shards have the same plan each.
            if !seen.insert((cell.id.clone(), values.clone())) {
                continue;
            }
            match by_id.get(&cell.id) {
                Some(row) => joined.rows.push(Row { values, ..row.clone() }),
                None => joined.missing.push(values),
            }
        }
    }
    let planned: HashSet<&str> = joined.rows.iter().map(|row| row.id.as_str()).collect();
    joined.strays = by_id.keys().filter(|id| !planned.contains(id.as_str())).count();
    let mut others: HashMap<_, Row> = HashMap::new();
    for (row, of) in other_rows {
        let of = of.iter().map(|(parameter, value)| (parameter.as_str(), value.clone())).collect();
        let row = Row { values: values(&of), ..row };
        let known = others.entry((row.id.clone(), row.values.clone())).or_insert_with(|| row.clone());
        if !known.ok() {
            *known = row;
        }
    }
    let mut others: Vec<Row> = others.into_values().collect();
    // Files of results say nothing of the order of their cells.
    others.sort_by(|a, b| order(&a.values, &b.values).then_with(|| a.id.cmp(&b.id)));
    joined.rows.extend(others);
    let cells = joined.rows.iter().map(|row| &row.values).chain(&joined.missing);
    joined.axes = axes(plans, &parameters, &cells.collect::<Vec<_>>());
    joined.parameters = parameters;
    joined
}

/// Returns the parameters that vary among `cells`, grouped by axis as in the plans.
fn axes(plans: &[Plan], parameters: &[String], cells: &[&Vec<Option<String>>]) -> Vec<Vec<usize>> {
    let varies = |parameter: &usize| cells.iter().any(|values| values[*parameter] != cells[0][*parameter]);
    let mut left: Vec<usize> = (0..parameters.len()).filter(varies).collect();
    let mut axes = Vec::new();
    while let Some(parameter) = left.first().copied() {
        let together = plans.iter().flat_map(|plan| &plan.axes).find(|axis| axis.contains(&parameters[parameter]));
        let is_of =
            |other: &usize| *other == parameter || together.is_some_and(|axis| axis.contains(&parameters[*other]));
        axes.push(left.iter().copied().filter(is_of).collect());
        left.retain(|other| !is_of(other));
    }
    axes
}

/// Compares rows value by value: numbers by size, other values as text.
fn order(a: &[Option<String>], b: &[Option<String>]) -> std::cmp::Ordering {
    let number = |value: &Option<String>| value.as_deref().and_then(|text| text.parse::<f64>().ok());
    let pairs = a.iter().zip(b).map(|(a, b)| match (number(a), number(b)) {
        (Some(x), Some(y)) => x.total_cmp(&y),
        _ => a.cmp(b),
    });
    pairs.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then)
}
