//! Side tables next to the segments: a predicted frame can be decoded only with the frame's table.
//!
//! A file is `TKVT`, version:u32, layout:u64, XXH3 of the table:u64, and the table. A file gets the name when whole. There are two files of each table,
//! since all frames of a layer group need the table: one that is damaged or missing is written again from the other.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::time::SystemTime;

use trunkline_files::private;
use xxhash_rust::xxh3::xxh3_64;

use crate::counters::Fault;

const MAGIC: [u8; 4] = *b"TKVT";
const VERSION: u32 = 1;
const HEADER: usize = 24;
/// Beginnings of the names of a table's two files.
const NAMES: [&str; 2] = ["table-", "copy-of-table-"];
/// Longest table read, bytes.
const TABLE_MAX: u64 = 64 << 20;

/// Wraps a table with its checksum.
pub fn wrap(layout: u64, table: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + table.len());
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(layout.to_le_bytes());
    bytes.extend(xxh3_64(table).to_le_bytes());
    bytes.extend(table);
    bytes
}

/// Returns the table wrapped in `bytes`.
///
/// # Errors
/// If the bytes are not whole, or the table is of another layout.
pub fn unwrap(layout: u64, bytes: &[u8]) -> Result<&[u8], Fault> {
    let header = bytes.first_chunk::<HEADER>().ok_or(Fault::Short)?;
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| header[at + i]));
    if header[..4] != MAGIC || xxh3_64(&bytes[HEADER..]) != long(16) {
        return Err(Fault::Flipped);
    }
    if header[4..8] != VERSION.to_le_bytes() || long(8) != layout {
        return Err(Fault::Stale);
    }
    Ok(&bytes[HEADER..])
}

/// Writes a table into a folder, twice; a file that has the table already stays as it is.
///
/// # Errors
/// If the system refuses; no part of a table is left under its name then.
pub fn save(folder: &Path, layout: u64, id: u64, table: &[u8]) -> io::Result<()> {
    NAMES.iter().try_for_each(|name| save_as(folder, &format!("{name}{id:016x}.tkt"), &wrap(layout, table)))
}

fn save_as(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    if fs::read(folder.join(name)).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let unfinished = folder.join(format!("{name}.new"));
    let mut file = private::create(&unfinished)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(unfinished, folder.join(name))
}

/// Returns `true` for the name of a side table.
pub fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "tkt")
}

/// Returns the time of the last change of a file, and its bytes.
fn read(path: &Path) -> io::Result<(SystemTime, Vec<u8>)> {
    let metadata = fs::metadata(path)?;
    if metadata.len() > TABLE_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    Ok((metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH), fs::read(path)?))
}

/// Reads all tables of a layout in a folder, the newest last. Damaged and unreadable files are left out, with a line in the log;
/// those of another layout without. The other file of the table serves in their place.
///
/// # Errors
/// If the folder cannot be read.
pub fn load(folder: &Path, layout: u64) -> io::Result<Vec<Vec<u8>>> {
    let mut tables: BTreeMap<Vec<u8>, SystemTime> = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if !is_table(&path) {
            continue;
        }
        match read(&path) {
            Ok((modified, bytes)) => match unwrap(layout, &bytes) {
                Ok(table) => {
                    let time = tables.entry(table.to_vec()).or_insert(modified);
                    *time = modified.min(*time);
                }
                // Of another layout, as segments of the folder may be.
                Err(Fault::Stale) => {}
                Err(fault) => tracing::warn!("{}: the side table is not used: {fault}", path.display()),
            },
            Err(error) => tracing::warn!("{}: the side table is not used: {error}", path.display()),
        }
    }
    let mut tables: Vec<(SystemTime, Vec<u8>)> = tables.into_iter().map(|(table, time)| (time, table)).collect();
    tables.sort_unstable();
    Ok(tables.into_iter().map(|(_, table)| table).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damage(path: &Path) {
        let mut bytes = fs::read(path).unwrap();
        bytes[HEADER] ^= 1;
        fs::write(path, bytes).unwrap();
    }

    #[test]
    fn a_table_outlives_one_of_its_files() {
        for name in NAMES {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(format!("{name}0000000000000001.tkt"));
            save(folder.path(), 7, 1, b"one").unwrap();
            let whole = fs::read(&path).unwrap();
            damage(&path);
            assert_eq!(load(folder.path(), 7).unwrap(), [b"one"]);
            save(folder.path(), 7, 1, b"one").unwrap();
            assert_eq!(fs::read(&path).unwrap(), whole, "repaired");
            fs::remove_file(&path).unwrap();
            assert_eq!(load(folder.path(), 7).unwrap(), [b"one"]);
        }
    }

    #[test]
    fn tables_come_back_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        save(folder.path(), 7, 1, b"one").unwrap();
        save(folder.path(), 8, 2, b"of another layout").unwrap();
        save(folder.path(), 7, 3, b"changed").unwrap();
        for name in NAMES {
            damage(&folder.path().join(format!("{name}0000000000000003.tkt")));
        }
        fs::write(folder.path().join("table-0000000000000004.tkt.new"), wrap(7, b"unfinished")).unwrap();
        // Neither can be read: a folder, and a link to nothing.
        fs::create_dir(folder.path().join("table-0000000000000005.tkt")).unwrap();
        std::os::unix::fs::symlink("missing", folder.path().join("table-0000000000000006.tkt")).unwrap();
        assert_eq!(load(folder.path(), 7).unwrap(), [b"one"]);
        assert_eq!(unwrap(7, &wrap(7, b"")), Ok(&b""[..]));
        assert_eq!((unwrap(7, &[0; 10]), unwrap(9, &wrap(7, b"x"))), (Err(Fault::Short), Err(Fault::Stale)));
    }
}
