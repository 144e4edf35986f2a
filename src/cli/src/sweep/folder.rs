//! Folder of a sweep: the plan, and a small file for each ended cell.
//!
//! | file | content |
//! |---|---|
//! | `sweep.json` | the plan: the grid's text, axes, and all cells |
//! | `cells/ID.parquet` | one row: the parameters of a cell, and its figures or its error |
//!
//! Files are written under a temporary name and then renamed: readers see all of a file or none, and shards may share a
//! folder.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use trunkline_quote::quoted;
use trunkline_sim_perf::columns::Cell as Value;
use trunkline_sim_perf::columns::{self, Column, ColumnWriter, Columns, Kind};
use trunkline_sim_report::{Report, figures};

use super::cells::Cell;
use super::spec::Spec;

/// Prefix of the columns of parameters.
pub(super) const PARAMETER: &str = "param.";
/// Status of a cell with figures.
pub(super) const OK: &str = "ok";
/// Status of a cell that failed.
pub(super) const FAILED: &str = "failed";
/// Description of the rows, in the footer of each file.
const ABOUT: [(&str, &str); 1] = [("trunkline.rows", "a cell of a sweep each; times in seconds")];
/// Columns before those of the parameters, and `true` for those that may be empty.
const BEFORE: [(&str, bool); 5] =
    [("cell", false), ("status", false), ("error", true), ("version", false), ("trace_digest", false)];

/// Plan of a sweep: the cells to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Plan {
    /// Version of the program.
    pub version: String,
    /// Text of the grid's file.
    pub spec: String,
    /// Parameters of each axis with more than one step.
    pub axes: Vec<Vec<String>>,
    /// All parameters, in the order of the spec.
    #[serde(rename = "parameters")]
    pub parameters: Vec<String>,
    pub cells: Vec<Planned>,
}

/// A cell of the plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Planned {
    pub id: String,
    /// A value for each of [`Plan::parameters`].
    pub values: Vec<String>,
}

impl Plan {
    pub fn of(spec: &Spec, cells: &[Cell]) -> Self {
        let planned = |cell: &Cell| Planned {
            id: cell.id.clone(),
            values: cell.parameters.iter().map(|(_, value)| value.clone()).collect(),
        };
        let varied = spec.axes.iter().filter(|axis| axis.steps.len() > 1);
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            spec: spec.text.clone(),
            axes: varied.map(|axis| axis.parameters.clone()).collect(),
            parameters: spec.parameters().map(|(_, parameter)| parameter.to_string()).collect(),
            cells: cells.iter().map(planned).collect(),
        }
    }

    /// Reads the plan in `folder`; `None` if there is none.
    ///
    /// # Errors
    /// If the plan cannot be read.
    pub fn load(folder: &Path) -> anyhow::Result<Option<Self>> {
        let path = folder.join("sweep.json");
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let plan = serde_json::from_str(&text).with_context(|| format!("{} is not a plan", path.display()))?;
        Ok(Some(plan))
    }

    /// Creates the folder and writes the plan.
    ///
    /// # Errors
    /// If the folder or the file cannot be written.
    pub fn save(&self, folder: &Path) -> anyhow::Result<()> {
        let cells = folder.join("cells");
        fs::create_dir_all(&cells).with_context(|| format!("cannot make the folder {}", cells.display()))?;
        let path = folder.join("sweep.json");
        let json = serde_json::to_string_pretty(self)?;
        let write = |to: &Path| fs::write(to, json).map_err(Into::into);
        replace(&path, write).with_context(|| format!("cannot write {}", path.display()))
    }
}

/// Writes a file under a temporary name and renames the complete file.
fn replace(path: &Path, write: impl FnOnce(&Path) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    // Another process may be writing the same file into the same folder, and in containers all have one number: so it is drawn.
    unfinished.push(format!(".{:016x}.tmp", RandomState::new().build_hasher().finish()));
    let unfinished = PathBuf::from(unfinished);
    let result = write(&unfinished).and_then(|()| Ok(fs::rename(&unfinished, path)?));
    if result.is_err() {
        // Nobody would read it; that it cannot be removed either is no news.
        let _ = fs::remove_file(&unfinished);
    }
    result
}

/// Returns the path of the row of a cell.
pub(super) fn path(folder: &Path, id: &str) -> PathBuf {
    folder.join("cells").join(format!("{id}.parquet"))
}

/// Returns `true` if the figures of a cell exist. Cells that failed run again.
pub(super) fn has(folder: &Path, cell: &Cell) -> bool {
    let row = columns::read_some(&path(folder, &cell.id), &["cell", "status"]);
    row.is_ok_and(|row| {
        row.rows() == 1 && row.cells[0][0].text() == Some(cell.id.as_str()) && row.cells[1][0].text() == Some(OK)
    })
}

/// Writes the row of a cell.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn write(folder: &Path, cell: &Cell, result: &Result<Report, String>) -> anyhow::Result<()> {
    let path = path(folder, &cell.id);
    let parameters: Vec<&str> = cell.parameters.iter().map(|(parameter, _)| parameter.as_str()).collect();
    let text = |text: &str| Value::Text(text.into());
    let (status, error) = match result {
        Ok(_) => (OK, Value::None),
        Err(message) => (FAILED, text(message)),
    };
    let mut row = vec![text(&cell.id), text(status), error, text(env!("CARGO_PKG_VERSION")), text(&cell.trace_digest)];
    row.extend(cell.parameters.iter().map(|(_, value)| text(value)));
    match result {
        Ok(report) => row.extend(figures::row(report)),
        Err(_) => row.resize(row.len() + figures::columns().len(), Value::None),
    }
    let write = |to: &Path| push(ColumnWriter::create_small(to, schema(&parameters), &ABOUT)?, [row]);
    replace(&path, write).with_context(|| format!("cannot write {}", path.display()))
}

/// Writes rows with these parameters to one file.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn write_rows(
    to: &Path,
    parameters: &[&str],
    rows: impl IntoIterator<Item = Vec<Value>>,
) -> anyhow::Result<()> {
    push(ColumnWriter::create(to, schema(parameters), &ABOUT)?, rows)
}

fn push(mut writer: ColumnWriter, rows: impl IntoIterator<Item = Vec<Value>>) -> anyhow::Result<()> {
    for row in rows {
        writer.push(row)?;
    }
    Ok(writer.finish()?)
}

/// Returns the columns of rows with these parameters. A parameter may be empty where rows of several sweeps are joined.
pub(super) fn schema(parameters: &[&str]) -> Vec<Column> {
    let before = BEFORE.iter().map(|(name, optional)| Column { optional: *optional, ..Column::new(*name, Kind::Text) });
    let parameters = parameters.iter().map(|parameter| Column::optional(format!("{PARAMETER}{parameter}"), Kind::Text));
    before.chain(parameters).chain(figures::columns().into_iter().map(|(column, _)| column)).collect()
}

/// Reads all rows of a file.
///
/// # Errors
/// If the file cannot be read.
pub(super) fn read(path: &Path) -> anyhow::Result<Columns> {
    let columns = columns::read(path)?;
    for (name, _) in BEFORE {
        columns.column(name).with_context(|| {
            format!("{}: no result of a sweep: it has no {name}", path.display(), name = quoted(name))
        })?;
    }
    Ok(columns)
}
