//! Bytes of earlier programs, kept as text next to the tests of a crate, in `tests/fixtures/VERSION/FILE`.
//!
//! A test of a crate includes this file by its path. A fixture stays as it is for as long as programs read its version. For a format that is
//! new, or a new version in a folder of its own, `TRUNKLINE_WRITE_GOLDEN=1 cargo test -p CRATE --test old_files` writes what is missing.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

/// Bytes of a row.
const ROW: usize = 32;

/// Returns the kept bytes by name. Asserts that the names are those of `made`, and that this program makes the same bytes today.
///
/// The text has a line `name length` for each, and rows of an offset and bytes; rows of zeros are left out.
pub fn kept(folder: &str, file: &str, made: &[(&str, Vec<u8>)]) -> BTreeMap<String, Vec<u8>> {
    let path = Path::new(folder).join("tests/fixtures").join(file);
    if std::env::var_os("TRUNKLINE_WRITE_GOLDEN").is_some() && !path.exists() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text(made)).unwrap();
    }
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let kept = parse(&text);
    for (name, bytes) in made {
        let old = kept.get(*name).unwrap_or_else(|| panic!("{} has no {name}", path.display()));
        let first = old.iter().zip(bytes).position(|(old, new)| old != new);
        assert!(
            old == bytes,
            "{name} is written otherwise than in {} ({} bytes, {} before; first difference at {first:?}): that is a new version of the format, \
             with a folder of its own, unless readers of this version can tell no difference",
            path.display(),
            bytes.len(),
            old.len()
        );
    }
    assert_eq!(kept.len(), made.len(), "{} has more than the test makes", path.display());
    kept
}

fn text(made: &[(&str, Vec<u8>)]) -> String {
    let mut text = String::new();
    for (name, bytes) in made {
        writeln!(text, "{name} {}", bytes.len()).unwrap();
        for (at, row) in bytes.chunks(ROW).enumerate().filter(|(_, row)| row.iter().any(|byte| *byte != 0)) {
            write!(text, "  {:06x} ", at * ROW).unwrap();
            row.iter().for_each(|byte| write!(text, "{byte:02x}").unwrap());
            text.push('\n');
        }
    }
    text
}

fn parse(text: &str) -> BTreeMap<String, Vec<u8>> {
    let mut kept: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut name = "";
    for line in text.lines() {
        let (first, second) = line.trim_start().split_once(' ').expect("two words in a line");
        if line.starts_with(' ') {
            let at = usize::from_str_radix(first, 16).expect("an offset");
            let byte = |at: usize| u8::from_str_radix(&second[2 * at..2 * at + 2], 16).expect("two digits");
            let row: Vec<u8> = (0..second.len() / 2).map(byte).collect();
            kept.get_mut(name).expect("a name before the rows")[at..at + row.len()].copy_from_slice(&row);
        } else {
            name = first;
            kept.insert(name.to_owned(), vec![0; second.parse().expect("a length")]);
        }
    }
    kept
}
