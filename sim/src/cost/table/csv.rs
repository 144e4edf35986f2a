//! CSV files with a header, plain or gzip, some columns of which are of interest. No field is quoted in any profile.

use std::path::{Path, PathBuf};

use super::{TableError, TableFault};
use crate::lines::Lines;

/// Calls `row` with the columns of each row that were asked for, in the order they were asked for.
pub(super) fn read<const N: usize>(
    path: &Path,
    columns: [&'static str; N],
    mut row: impl FnMut(&Row<N>) -> Result<(), TableFault>,
) -> Result<(), TableError> {
    let path = find(path);
    let fail = |line, fault| TableError { path: path.clone(), line, fault };
    let mut lines = Lines::open(&path).map_err(|fault| fail(0, fault.into()))?;
    let mut at: Option<[usize; N]> = None;
    loop {
        let number = lines.number() + 1;
        let line = lines.next().map_err(|fault| fail(number, fault.into()))?;
        let Some(line) = line else { break };
        let text = String::from_utf8_lossy(line);
        let text = text.trim_start_matches('\u{feff}').trim_ascii();
        if text.is_empty() {
            continue;
        }
        let result = match &at {
            None => places(text, columns).map(|found| at = Some(found)),
            Some(at) => row(&Row { text, at, columns }),
        };
        result.map_err(|fault| fail(number, fault))?;
    }
    match at {
        Some(_) => Ok(()),
        None => Err(fail(0, TableFault::Empty("a header".into()))),
    }
}

/// `path`, or the compressed file of its name if there is no other.
fn find(path: &Path) -> PathBuf {
    let mut compressed = path.as_os_str().to_owned();
    compressed.push(".gz");
    let compressed = PathBuf::from(compressed);
    if !path.exists() && compressed.exists() { compressed } else { path.into() }
}

fn places<const N: usize>(header: &str, columns: [&'static str; N]) -> Result<[usize; N], TableFault> {
    let mut at = [0; N];
    for (place, column) in at.iter_mut().zip(columns) {
        let found = header.split(',').position(|name| name.trim() == column);
        *place = found.ok_or(TableFault::MissingColumn(column))?;
    }
    Ok(at)
}

/// A row of a file.
pub(super) struct Row<'a, const N: usize> {
    text: &'a str,
    at: &'a [usize; N],
    columns: [&'static str; N],
}

impl<const N: usize> Row<'_, N> {
    pub fn text(&self, i: usize) -> Result<&str, TableFault> {
        self.text.split(',').nth(self.at[i]).map(str::trim).ok_or(TableFault::ShortRow(self.columns[i]))
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
