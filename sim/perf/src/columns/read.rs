//! Reader of files of columns.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;

use parquet::basic::Repetition;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, RowGroupReader};
use parquet::file::serialized_reader::SerializedFileReader;
use parquet::schema::types::ColumnDescriptor;

use super::{Cell, ColumnError, ColumnFault, Columns};

/// Records per read of a column.
const BATCH_ROWS: usize = 1 << 16;

/// Reads all columns of a file.
///
/// # Errors
///
/// [`ColumnError`] if the file is missing, is not Parquet, or has a column of an unsupported type.
pub fn read(path: &Path) -> Result<Columns, ColumnError> {
    guarded(path, None)
}

/// Reads the columns called `names`, in that order.
///
/// # Errors
///
/// [`ColumnError`] if the file is missing, is not Parquet, lacks one of the columns, or has one of an unsupported type.
pub fn read_some(path: &Path, names: &[&str]) -> Result<Columns, ColumnError> {
    guarded(path, Some(names))
}

/// Reads columns; a panic of the library is a fault of the file.
fn guarded(path: &Path, names: Option<&[&str]>) -> Result<Columns, ColumnError> {
    let columns = trunkline_foreign::call(|| open(path).and_then(|file| all(&file, names)));
    let columns = columns.unwrap_or_else(|panicked| Err(ParquetError::General(panicked.to_string()).into()));
    columns.map_err(|fault| ColumnError { path: path.into(), fault })
}

fn open(path: &Path) -> Result<SerializedFileReader<File>, ColumnFault> {
    let file = File::open(path).map_err(|fault| match fault.kind() {
        ErrorKind::NotFound => ColumnFault::NotFound,
        _ => fault.into(),
    })?;
    Ok(SerializedFileReader::new(file)?)
}

fn all(file: &SerializedFileReader<File>, names: Option<&[&str]>) -> Result<Columns, ColumnFault> {
    let metadata = file.metadata().file_metadata();
    let schema = metadata.schema_descr();
    let known: Vec<String> = schema.columns().iter().map(|column| column.path().string()).collect();
    let wanted: Vec<usize> = match names {
        None => (0..known.len()).collect(),
        Some(names) => {
            let at = |name: &&str| known.iter().position(|known| known == name);
            let find = |name| at(name).ok_or_else(|| ColumnFault::MissingColumn(name.to_string()));
            names.iter().map(find).collect::<Result<_, _>>()?
        }
    };
    let mut cells = vec![Vec::new(); wanted.len()];
    for number in 0..file.num_row_groups() {
        let group = file.get_row_group(number)?;
        for (cells, at) in cells.iter_mut().zip(&wanted) {
            column(&*group, *at, &schema.column(*at), cells)?;
        }
    }
    let about = metadata.key_value_metadata().into_iter().flatten();
    Ok(Columns {
        names: wanted.iter().map(|at| known[*at].clone()).collect(),
        cells,
        about: about.map(|pair| (pair.key.clone(), pair.value.clone().unwrap_or_default())).collect(),
    })
}

/// Adds the cells of column `at` in one row group.
fn column(
    group: &dyn RowGroupReader,
    at: usize,
    descriptor: &ColumnDescriptor,
    cells: &mut Vec<Cell>,
) -> Result<(), ColumnFault> {
    let flat = descriptor.path().parts().len() == 1
        && descriptor.self_type().get_basic_info().repetition() != Repetition::REPEATED;
    if !flat {
        return Err(ColumnFault::Unread(descriptor.path().string()));
    }
    let optional = descriptor.max_def_level() > 0;
    match group.get_column_reader(at)? {
        ColumnReader::BoolColumnReader(reader) => values(reader, optional, cells, Cell::Flag)?,
        ColumnReader::Int32ColumnReader(reader) => values(reader, optional, cells, |n| Cell::Int(n.into()))?,
        ColumnReader::Int64ColumnReader(reader) => values(reader, optional, cells, Cell::Int)?,
        ColumnReader::FloatColumnReader(reader) => values(reader, optional, cells, |x| Cell::Real(x.into()))?,
        ColumnReader::DoubleColumnReader(reader) => values(reader, optional, cells, Cell::Real)?,
        ColumnReader::ByteArrayColumnReader(reader) => values(reader, optional, cells, |text: ByteArray| {
            Cell::Text(String::from_utf8_lossy(text.data()).into_owned())
        })?,
        ColumnReader::Int96ColumnReader(_) | ColumnReader::FixedLenByteArrayColumnReader(_) => {
            return Err(ColumnFault::Unread(descriptor.path().string()));
        }
    }
    Ok(())
}

fn values<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    optional: bool,
    cells: &mut Vec<Cell>,
    cell: impl Fn(T::T) -> Cell,
) -> Result<(), ParquetError> {
    let (mut levels, mut values) = (Vec::new(), Vec::new());
    loop {
        levels.clear();
        values.clear();
        let defined = optional.then_some(&mut levels);
        let (records, _, _) = reader.read_records(BATCH_ROWS, defined, None, &mut values)?;
        if records == 0 {
            return Ok(());
        }
        let mut values = values.drain(..);
        match optional {
            false => cells.extend(values.map(&cell)),
            true => cells.extend(levels.iter().map(|level| match level {
                0 => Cell::None,
                _ => values.next().map_or(Cell::None, &cell),
            })),
        }
    }
}
