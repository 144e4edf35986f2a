//! Rows of profile files under named columns: CSV with a header, plain or compressed, or Parquet. No profile quotes CSV fields.

use std::path::{Path, PathBuf};

use super::{TableError, TableFault};
use crate::columns::{self, Cell, ColumnFault};
use trunkline_sim_workload::lines::{LineFault, Lines};

/// Calls `row` with the requested columns of each row, in the order of the request. Without a CSV file of this name, plain or gzip,
/// reads the Parquet file with the same name and columns.
pub(super) fn read<const N: usize>(
    path: &Path,
    columns: [&'static str; N],
    row: impl FnMut(&Row<'_, N>) -> Result<(), TableFault>,
) -> Result<(), TableError> {
    let path = find(path);
    match path.extension().is_some_and(|extension| extension == "parquet") {
        true => read_parquet(&path, columns, row),
        false => read_csv(path, columns, row),
    }
}

fn read_csv<const N: usize>(
    path: PathBuf,
    columns: [&'static str; N],
    mut row: impl FnMut(&Row<'_, N>) -> Result<(), TableFault>,
) -> Result<(), TableError> {
    let fail = |line, fault| TableError { path: path.clone(), line, fault };
    let mut lines = Lines::open(&path).map_err(|fault| fail(0, fault.into()))?;
    let mut at: Option<[usize; N]> = None;
    loop {
        let number = lines.number() + 1;
        let line = lines.next_line().map_err(|fault| fail(number, fault.into()))?;
        let Some(line) = line else { break };
        let text = String::from_utf8_lossy(line);
        let text = text.trim_start_matches('\u{feff}').trim_ascii();
        if text.is_empty() {
            continue;
        }
        let result = match &at {
            None => places(text, columns).map(|found| at = Some(found)),
            Some(at) => row(&Row { fields: Fields::Text { text, at }, columns }),
        };
        result.map_err(|fault| fail(number, fault))?;
    }
    match at {
        Some(_) => Ok(()),
        None => Err(fail(0, TableFault::Empty("a header".into()))),
    }
}

fn read_parquet<const N: usize>(
    path: &Path,
    columns: [&'static str; N],
    mut row: impl FnMut(&Row<'_, N>) -> Result<(), TableFault>,
) -> Result<(), TableError> {
    let fail = |fault| TableError { path: path.into(), line: 0, fault };
    let found = columns::read_some(path, &columns).map_err(|error| match error.fault {
        ColumnFault::NotFound => fail(LineFault::NotFound.into()),
        fault => fail(TableFault::Columns(fault)),
    })?;
    for at in 0..found.rows() {
        // As in CSV, so that one set of rules says what is a number.
        let fields = found.cells.iter().map(|column| Cell::to_text(&column[at])).collect();
        row(&Row { fields: Fields::Cells(fields), columns })
            .map_err(|fault| fail(TableFault::InRow(at as u64 + 1, Box::new(fault))))?;
    }
    Ok(())
}

/// Returns `path`, its gzip variant, or its Parquet variant, whichever exists first.
pub(super) fn find(path: &Path) -> PathBuf {
    let mut compressed = path.as_os_str().to_owned();
    compressed.push(".gz");
    let others = [PathBuf::from(compressed), path.with_extension("parquet")];
    let there = others.into_iter().find(|other| !path.exists() && other.exists());
    there.unwrap_or_else(|| path.into())
}

fn places<const N: usize>(header: &str, columns: [&'static str; N]) -> Result<[usize; N], TableFault> {
    let mut at = [0; N];
    for (place, column) in at.iter_mut().zip(columns) {
        let found = header.split(',').position(|name| name.trim() == column);
        *place = found.ok_or(TableFault::MissingColumn(column))?;
    }
    Ok(at)
}

/// Row of a file.
pub(super) struct Row<'a, const N: usize> {
    fields: Fields<'a, N>,
    columns: [&'static str; N],
}

enum Fields<'a, const N: usize> {
    /// Line with the positions of the columns.
    Text { text: &'a str, at: &'a [usize; N] },
    /// Cells of the columns.
    Cells(Vec<String>),
}

impl<const N: usize> Row<'_, N> {
    pub fn text(&self, i: usize) -> Result<&str, TableFault> {
        let field = match &self.fields {
            Fields::Text { text, at } => text.split(',').nth(at[i]),
            Fields::Cells(fields) => fields.get(i).map(String::as_str),
        };
        field.map(str::trim).ok_or(TableFault::ShortRow(self.columns[i]))
    }

    pub fn number(&self, i: usize) -> Result<f64, TableFault> {
        let text = self.text(i)?;
        match text.parse::<f64>() {
            Ok(number) if number >= 0.0 && number.is_finite() => Ok(number),
            _ => Err(TableFault::BadNumber { column: self.columns[i], value: text.into() }),
        }
    }

    pub fn count(&self, i: usize) -> Result<u64, TableFault> {
        let number = self.number(i)?;
        // No table counts more tokens or bytes than a number of this kind holds exactly.
        match number.fract() == 0.0 && number < 9e15 {
            true => Ok(number as u64),
            false => Err(TableFault::BadNumber { column: self.columns[i], value: self.text(i)?.into() }),
        }
    }
}
