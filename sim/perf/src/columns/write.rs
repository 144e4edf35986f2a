//! Writer of files of columns, row by row.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterPropertiesBuilder};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

use super::{Cell, Column, ColumnError, ColumnFault, Kind};

/// Rows per row group. A group of 13 numeric columns takes 7 MB of memory.
const GROUP_ROWS: usize = 1 << 16;

/// Cells of one column, not yet written.
enum Buffer {
    Int(Vec<i64>),
    Real(Vec<f64>),
    Text(Vec<ByteArray>),
    Flag(Vec<bool>),
}

impl Buffer {
    fn new(kind: Kind) -> Self {
        match kind {
            Kind::Int => Self::Int(Vec::new()),
            Kind::Real => Self::Real(Vec::new()),
            Kind::Text => Self::Text(Vec::new()),
            Kind::Flag => Self::Flag(Vec::new()),
        }
    }

    /// Adds a cell; returns `false` if its type does not fit.
    fn push(&mut self, cell: Cell) -> bool {
        match (self, cell) {
            (Self::Int(values), Cell::Int(n)) => values.push(n),
            (Self::Real(values), Cell::Real(x)) => values.push(x),
            (Self::Text(values), Cell::Text(text)) => values.push(text.into_bytes().into()),
            (Self::Flag(values), Cell::Flag(flag)) => values.push(flag),
            _ => return false,
        }
        true
    }
}

/// Row-by-row writer of a file of columns, in row groups of bounded size.
pub struct ColumnWriter {
    path: PathBuf,
    file: SerializedFileWriter<BufWriter<File>>,
    columns: Vec<Column>,
    buffers: Vec<Buffer>,
    /// Definition levels of each optional column: 1 for a value, 0 for an empty cell.
    levels: Vec<Vec<i16>>,
    rows: usize,
}

impl ColumnWriter {
    /// Creates or truncates the file. `about` becomes the key-value metadata in the footer.
    ///
    /// # Errors
    ///
    /// [`ColumnError`] if the file cannot be created.
    pub fn create(path: &Path, columns: Vec<Column>, about: &[(&str, &str)]) -> Result<Self, ColumnError> {
        Self::with(path, columns, about, WriterProperties::builder())
    }

    /// Creates a file for a few rows, without dictionaries, statistics and indexes, which would be most of the file.
    ///
    /// # Errors
    ///
    /// [`ColumnError`] if the file cannot be created.
    pub fn create_small(path: &Path, columns: Vec<Column>, about: &[(&str, &str)]) -> Result<Self, ColumnError> {
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_statistics_enabled(EnabledStatistics::None)
            .set_offset_index_disabled(true);
        Self::with(path, columns, about, properties)
    }

    fn with(
        path: &Path,
        columns: Vec<Column>,
        about: &[(&str, &str)],
        properties: WriterPropertiesBuilder,
    ) -> Result<Self, ColumnError> {
        let fail = |fault| ColumnError { path: path.into(), fault };
        let file = BufWriter::new(File::create(path).map_err(|fault| fail(fault.into()))?);
        let about = about.iter().map(|(name, value)| KeyValue::new(name.to_string(), value.to_string())).collect();
        let properties = properties
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_created_by(concat!("trunkline ", env!("CARGO_PKG_VERSION")).into())
            .set_key_value_metadata(Some(about))
            .build();
        let schema = schema(&columns).map_err(|fault| fail(fault.into()))?;
        let file = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties));
        Ok(Self {
            path: path.into(),
            file: file.map_err(|fault| fail(fault.into()))?,
            buffers: columns.iter().map(|column| Buffer::new(column.kind)).collect(),
            levels: vec![Vec::new(); columns.len()],
            columns,
            rows: 0,
        })
    }

    /// Adds a row with one cell per column, in the order of the columns.
    ///
    /// # Errors
    ///
    /// [`ColumnError`] if a cell does not fit its column or the file cannot be written.
    pub fn push(&mut self, row: impl IntoIterator<Item = Cell>) -> Result<(), ColumnError> {
        let mut cells = row.into_iter();
        for (at, column) in self.columns.iter().enumerate() {
            let cell = cells.next().unwrap_or_default();
            let empty = cell == Cell::None;
            let taken = if empty { column.optional } else { self.buffers[at].push(cell) };
            if !taken {
                return Err(self.fail(ColumnFault::WrongCell(column.name.clone())));
            }
            if column.optional {
                self.levels[at].push(i16::from(!empty));
            }
        }
        self.rows += 1;
        if self.rows == GROUP_ROWS { self.flush() } else { Ok(()) }
    }

    fn fail(&self, fault: ColumnFault) -> ColumnError {
        ColumnError { path: self.path.clone(), fault }
    }

    /// Writes the buffered rows as one row group.
    fn flush(&mut self) -> Result<(), ColumnError> {
        let result = self.write_group();
        result.map_err(|fault| self.fail(fault.into()))
    }

    fn write_group(&mut self) -> Result<(), ParquetError> {
        let mut group = self.file.next_row_group()?;
        for ((column, buffer), levels) in self.columns.iter().zip(&mut self.buffers).zip(&mut self.levels) {
            let defined = column.optional.then_some(&levels[..]);
            match buffer {
                Buffer::Int(values) => write_column::<Int64Type>(&mut group, values, defined)?,
                Buffer::Real(values) => write_column::<DoubleType>(&mut group, values, defined)?,
                Buffer::Text(values) => write_column::<ByteArrayType>(&mut group, values, defined)?,
                Buffer::Flag(values) => write_column::<BoolType>(&mut group, values, defined)?,
            }
            levels.clear();
        }
        group.close()?;
        self.rows = 0;
        Ok(())
    }

    /// Writes the buffered rows and the footer. A file without a footer is unreadable.
    ///
    /// # Errors
    ///
    /// [`ColumnError`] if the file cannot be written.
    pub fn finish(mut self) -> Result<(), ColumnError> {
        if self.rows > 0 {
            self.flush()?;
        }
        let result = self.file.finish().map(|_| ());
        result.map_err(|fault| self.fail(fault.into()))
    }
}

fn write_column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, BufWriter<File>>,
    values: &mut Vec<T::T>,
    defined: Option<&[i16]>,
) -> Result<(), ParquetError> {
    let missing = || ParquetError::General("there are more columns than the schema has".into());
    let mut column = group.next_column()?.ok_or_else(missing)?;
    column.typed::<T>().write_batch(values, defined, None)?;
    values.clear();
    column.close()
}

fn schema(columns: &[Column]) -> Result<Type, ParquetError> {
    let field = |column: &Column| {
        let (physical, logical) = match column.kind {
            Kind::Int => (Physical::INT64, None),
            Kind::Real => (Physical::DOUBLE, None),
            Kind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
            Kind::Flag => (Physical::BOOLEAN, None),
        };
        let repetition = if column.optional { Repetition::OPTIONAL } else { Repetition::REQUIRED };
        let of = Type::primitive_type_builder(&column.name, physical);
        Ok(Arc::new(of.with_repetition(repetition).with_logical_type(logical).build()?))
    };
    let fields = columns.iter().map(field).collect::<Result<_, ParquetError>>()?;
    Type::group_type_builder("schema").with_fields(fields).build()
}

#[cfg(test)]
mod tests;
