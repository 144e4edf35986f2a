//! Stand-ins for reading and writing in builds without the feature `parquet`: each fails with [`ColumnFault::Unavailable`].

use std::convert::Infallible;
use std::path::Path;

use super::{Cell, Column, ColumnError, ColumnFault, Columns};

fn unavailable<T>(path: &Path) -> Result<T, ColumnError> {
    Err(ColumnError { path: path.into(), fault: ColumnFault::Unavailable })
}

/// Fails, since this build has no Parquet.
///
/// # Errors
///
/// Always fails with [`ColumnFault::Unavailable`].
pub fn read(path: &Path) -> Result<Columns, ColumnError> {
    unavailable(path)
}

/// Fails, since this build has no Parquet.
///
/// # Errors
///
/// Always fails with [`ColumnFault::Unavailable`].
pub fn read_some(path: &Path, _: &[&str]) -> Result<Columns, ColumnError> {
    unavailable(path)
}

/// A writer of files of columns, of which this build can make none.
pub struct ColumnWriter(Infallible);

impl ColumnWriter {
    /// Fails, since this build has no Parquet.
    ///
    /// # Errors
    ///
    /// Always fails with [`ColumnFault::Unavailable`].
    pub fn create(path: &Path, _: Vec<Column>, _: &[(&str, &str)]) -> Result<Self, ColumnError> {
        unavailable(path)
    }

    /// Fails, since this build has no Parquet.
    ///
    /// # Errors
    ///
    /// Always fails with [`ColumnFault::Unavailable`].
    pub fn create_small(path: &Path, _: Vec<Column>, _: &[(&str, &str)]) -> Result<Self, ColumnError> {
        unavailable(path)
    }

    /// Cannot be called: no writer exists.
    ///
    /// # Errors
    ///
    /// None, since it cannot be called.
    pub fn push(&mut self, _: impl IntoIterator<Item = Cell>) -> Result<(), ColumnError> {
        match self.0 {}
    }

    /// Cannot be called: no writer exists.
    ///
    /// # Errors
    ///
    /// None, since it cannot be called.
    pub fn finish(self) -> Result<(), ColumnError> {
        match self.0 {}
    }
}
