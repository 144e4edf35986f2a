//! What is written is read back, and what cannot be read is said in one line.

use super::*;
use crate::columns::{read, read_some};

fn some_columns() -> Vec<Column> {
    vec![
        Column::new("n", Kind::Int),
        Column::optional("x", Kind::Real),
        Column::optional("name", Kind::Text),
        Column::new("good", Kind::Flag),
    ]
}

fn row(n: i64) -> [Cell; 4] {
    let x = if n % 3 == 0 { Cell::None } else { Cell::Real(n as f64 / 7.0) };
    let name = if n % 2 == 0 { Cell::None } else { Cell::Text(format!("ü {}", n % 10)) };
    [Cell::Int(n), x, name, Cell::Flag(n % 5 == 0)]
}

#[test]
fn rows_come_back_over_several_groups() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let rows = GROUP_ROWS as i64 + 3;
    let mut writer = ColumnWriter::create(&path, some_columns(), &[("rows", "numbers")]).unwrap();
    (0..rows).for_each(|n| writer.push(row(n)).unwrap());
    writer.finish().unwrap();
    let found = read(&path).unwrap();
    assert_eq!((found.rows(), &found.names[..]), (rows as usize, &["n", "x", "name", "good"].map(String::from)[..]));
    assert_eq!(found.about, [("rows".to_string(), "numbers".to_string())]);
    for n in 0..rows {
        for (column, cell) in found.cells.iter().zip(row(n)) {
            assert_eq!(column[n as usize], cell, "row {n}");
        }
    }
    let some = read_some(&path, &["good", "n"]).unwrap();
    assert_eq!(some.names, ["good", "n"]);
    assert_eq!(some.column("n"), found.column("n"));
    assert_eq!(some.column("x"), None);
}

#[test]
fn a_small_file_reads_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let [whole, small] = ["a.parquet", "b.parquet"].map(|name| folder.path().join(name));
    let write = |mut writer: ColumnWriter| {
        (0..3).for_each(|n| writer.push(row(n)).unwrap());
        writer.finish().unwrap();
    };
    write(ColumnWriter::create(&whole, some_columns(), &[]).unwrap());
    write(ColumnWriter::create_small(&small, some_columns(), &[]).unwrap());
    assert_eq!(read(&small).unwrap(), read(&whole).unwrap());
    let bytes = |path: &Path| std::fs::metadata(path).unwrap().len();
    assert!(bytes(&small) < bytes(&whole));
}

#[test]
fn faults_are_told_with_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.parquet");
    let told = |error: ColumnError| error.to_string().replace(&format!("{}/", folder.path().display()), "");
    assert_eq!(told(read(&path).unwrap_err()), "a.parquet: no such file; check the path");
    let mut writer = ColumnWriter::create(&path, some_columns(), &[]).unwrap();
    let wrong = writer.push([Cell::None]).unwrap_err();
    assert_eq!(told(wrong), "a.parquet: column 'n' does not take what was written to it");
    writer.finish().unwrap();
    assert_eq!(told(read_some(&path, &["m"]).unwrap_err()), "a.parquet: there is no column 'm'");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    assert!(told(read(&path).unwrap_err()).starts_with("a.parquet: "));
}
