//! Files of rows with typed columns: Parquet, written a row at a time and read whole.
//!
//! What is written has four types of column (64-bit integers, doubles, UTF-8 text, booleans), each of which may be empty where it says
//! so, compressed by Zstandard. What is read may have those and 32-bit numbers, from any writer, plain or compressed by Snappy or
//! Zstandard; nested columns and other types are told by name.

use std::path::PathBuf;

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

/// What a column holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Whole numbers.
    Int,
    /// Doubles.
    Real,
    /// UTF-8.
    Text,
    /// Yes or no.
    Flag,
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// What it holds.
    pub kind: Kind,
    /// Whether it may be empty in some rows.
    pub optional: bool,
}

impl Column {
    /// A column that is never empty.
    pub fn new(name: impl Into<String>, kind: Kind) -> Self {
        Self { name: name.into(), kind, optional: false }
    }

    /// A column that may be empty.
    pub fn optional(name: impl Into<String>, kind: Kind) -> Self {
        Self { optional: true, ..Self::new(name, kind) }
    }
}

/// One column of one row.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Cell {
    /// Empty.
    #[default]
    None,
    /// Of [`Kind::Int`].
    Int(i64),
    /// Of [`Kind::Real`].
    Real(f64),
    /// Of [`Kind::Text`].
    Text(String),
    /// Of [`Kind::Flag`].
    Flag(bool),
}

impl Cell {
    /// A count. None here comes near 2^63; one that did would be held to it.
    pub fn count(n: u64) -> Self {
        Self::Int(i64::try_from(n).unwrap_or(i64::MAX))
    }

    /// The number, if it is one.
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Int(n) => Some(*n as f64),
            Self::Real(x) => Some(*x),
            Self::None | Self::Text(_) | Self::Flag(_) => None,
        }
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// As in CSV: nothing if it is empty, numbers so that they read back the same.
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

/// A file of columns that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct ColumnError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub fault: ColumnFault,
}

/// Why a file of columns cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ColumnFault {
    /// There is no such file.
    #[error("no such file; check the path")]
    NotFound,
    /// The file cannot be opened or created.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The file is not Parquet, is damaged, or cannot be written.
    #[cfg(feature = "parquet")]
    #[error("{0}")]
    Parquet(#[from] parquet::errors::ParquetError),
    /// This build has no Parquet.
    #[cfg(not(feature = "parquet"))]
    #[error(
        "this build neither reads nor writes Parquet; build with the feature 'parquet', or give another kind of file"
    )]
    Unavailable,
    /// It lacks a column.
    #[error("there is no column '{0}'")]
    MissingColumn(String),
    /// A column is of a type that is not read here.
    #[error("column '{0}' is nested, or neither numbers, text nor booleans")]
    Unread(String),
    /// A row has a cell that its column does not take. A fault of the caller.
    #[error("column '{0}' does not take what was written to it")]
    WrongCell(String),
}

/// What a file of columns holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Columns {
    /// The names of its columns.
    pub names: Vec<String>,
    /// The cells of each column, as many in each.
    pub cells: Vec<Vec<Cell>>,
    /// What its writer said of it.
    pub about: Vec<(String, String)>,
}

impl Columns {
    /// How many rows there are.
    pub fn rows(&self) -> usize {
        self.cells.first().map_or(0, Vec::len)
    }

    /// The cells of the column called `name`, if there is one.
    pub fn column(&self, name: &str) -> Option<&[Cell]> {
        let at = self.names.iter().position(|known| known == name)?;
        Some(&self.cells[at])
    }
}
