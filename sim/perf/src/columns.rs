//! Files of rows with typed columns: Parquet, written row by row and read whole.
//!
//! The writer supports four types of column (64-bit integers, doubles, UTF-8 text, booleans), optional or required, compressed by
//! Zstandard. The reader also accepts 32-bit numbers and files of other writers, plain or compressed by Snappy or Zstandard; an
//! error names any nested column or other type. Builds without the feature `parquet` have the types of this module, but every read
//! or write fails.

use std::path::PathBuf;

use trunkline_quote::quoted;

#[cfg(feature = "parquet")]
mod read;
#[cfg(not(feature = "parquet"))]
mod unavailable;
#[cfg(feature = "parquet")]
mod write;

#[cfg(feature = "parquet")]
pub use self::{
    read::{read, read_some},
    write::ColumnWriter,
};
#[cfg(not(feature = "parquet"))]
pub use unavailable::{ColumnWriter, read, read_some};

/// Type of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whole numbers, 64 bits.
    Int,
    /// Real numbers, stored as doubles.
    Real,
    /// Text, encoded in UTF-8.
    Text,
    /// Booleans, `true` or `false`.
    Flag,
}

/// Description of a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Name of the column.
    pub name: String,
    /// Type of its cells.
    pub kind: Kind,
    /// `true` if cells may be empty.
    pub optional: bool,
}

impl Column {
    /// Describes a column without empty cells.
    pub fn new(name: impl Into<String>, kind: Kind) -> Self {
        Self { name: name.into(), kind, optional: false }
    }

    /// Describes a column with optional cells.
    pub fn optional(name: impl Into<String>, kind: Kind) -> Self {
        Self { optional: true, ..Self::new(name, kind) }
    }
}

/// Cell of one column in one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Cell {
    /// Empty cell of an optional column.
    #[default]
    None,
    /// Cell of a [`Kind::Int`] column.
    Int(i64),
    /// Cell of a [`Kind::Real`] column.
    Real(f64),
    /// Cell of a [`Kind::Text`] column.
    Text(String),
    /// Cell of a [`Kind::Flag`] column.
    Flag(bool),
}

impl Cell {
    /// Returns a cell with a count, capped at 2^63 - 1.
    pub fn count(n: u64) -> Self {
        Self::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }

    /// Returns the value of a numeric cell.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Int(n) => Some(*n as f64),
            Self::Real(x) => Some(*x),
            Self::None | Self::Text(_) | Self::Flag(_) => None,
        }
    }

    /// Returns the text of a text cell.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Formats the cell for CSV: empty cells as nothing, numbers with all digits needed to read back the same value.
    pub fn to_text(&self) -> String {
        match self {
            Self::None => String::new(),
            Self::Int(n) => n.to_string(),
            Self::Real(x) => x.to_string(),
            Self::Text(text) => text.clone(),
            Self::Flag(flag) => flag.to_string(),
        }
    }
}

/// Error of a file of columns: the path and the fault.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct ColumnError {
    /// Path of the file.
    pub path: PathBuf,
    /// Fault found at that place.
    pub fault: ColumnFault,
}

/// Fault in reading or writing a file of columns.
#[derive(Debug, thiserror::Error)]
pub enum ColumnFault {
    /// File not found at the path.
    #[error("no such file; check the path")]
    NotFound,
    /// File cannot be opened or created.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Not Parquet, damaged, or not writable.
    #[cfg(feature = "parquet")]
    #[error("{0}")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// Build without the feature `parquet`.
    #[cfg(not(feature = "parquet"))]
    #[error(
        "this build neither reads nor writes Parquet; build with the feature 'parquet', or give another kind of file"
    )]
    Unavailable,
    /// Column missing from the file.
    #[error("there is no column {}", quoted(.0))]
    MissingColumn(String),
    /// Column of an unsupported type.
    #[error("column {} is nested, or neither numbers, text nor booleans", quoted(.0))]
    Unread(String),
    /// Cell of another type than its column: a fault of the caller.
    #[error("column {} does not take what was written to it", quoted(.0))]
    WrongCell(String),
}

/// Contents of a file of columns.
#[derive(Clone, Debug, PartialEq)]
pub struct Columns {
    /// Names of the columns.
    pub names: Vec<String>,
    /// Cells of each column, equally many in each.
    pub cells: Vec<Vec<Cell>>,
    /// Key-value metadata from the writer.
    pub about: Vec<(String, String)>,
}

impl Columns {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.cells.first().map_or(0, Vec::len)
    }

    /// Returns the cells of the column called `name`.
    pub fn column(&self, name: &str) -> Option<&[Cell]> {
        let at = self.names.iter().position(|known| known == name)?;
        Some(&self.cells[at])
    }
}
