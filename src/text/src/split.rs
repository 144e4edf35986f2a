//! Split GGUF files: a model in several files, `NAME-00001-of-00003.gguf` and so on, as `llama-gguf-split` writes them.

use std::path::{Path, PathBuf};

use crate::error::FactsError;
use crate::metadata::Keys;
use crate::reader::open_gguf;

/// Maximum number of parts of a model; llama.cpp numbers them with 16 bits.
const PARTS_MAX: i64 = 65_535;

/// Returns the path without the number of the part and the number of parts that a name such as `NAME-00001-of-00003.gguf` ends with, and both.
fn named(path: &Path) -> Option<(PathBuf, i64, i64)> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (name, number) = rest.rsplit_once('-')?;
    let digits = |text: &str| text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(number) || !digits(count) {
        return None;
    }
    Some((path.with_file_name(name), number.parse().ok()?, count.parse().ok()?))
}

/// Returns the path of a part, counted from 1.
fn part(base: &Path, number: i64, count: i64) -> PathBuf {
    let name = base.file_name().unwrap_or_default().to_string_lossy();
    base.with_file_name(format!("{name}-{number:05}-of-{count:05}.gguf"))
}

/// Returns the name of the model in a file, without the numbers of a part.
pub fn gguf_name(path: &Path) -> String {
    let name = match named(path) {
        Some((base, _, _)) => base.file_name().map(ToOwned::to_owned),
        None => path.file_stem().map(ToOwned::to_owned),
    };
    name.map_or_else(|| "model".to_owned(), |name| name.to_string_lossy().into_owned())
}

/// Returns the files of the model of which the file at `path` is a part, the first one first; of a model in one file, `path` alone. The part
/// given may be any.
///
/// # Errors
///
/// A part is missing, or is another one than its name says.
pub fn gguf_parts(path: &Path) -> Result<Vec<PathBuf>, FactsError> {
    let alone = || Ok(vec![path.to_owned()]);
    // A name alone may mean anything: only a file that says so is split. A file that cannot be read is left to its reader.
    let (Some((base, _, _)), Some((no, count))) = (named(path), split_of(path)?) else { return alone() };
    if count <= 1 {
        return alone();
    }
    let paths: Vec<PathBuf> = (1..=count.min(PARTS_MAX)).map(|number| part(&base, number, count)).collect();
    for (at, sibling) in paths.iter().enumerate() {
        let (no, at) = (no + 1, at + 1);
        if !sibling.exists() {
            let name = sibling.file_name().unwrap_or_default().to_string_lossy();
            let problem = format!(
                "part {no} of {count} of a split model, of which part {at}, {name}, is missing; put all parts into one folder"
            );
            return Err(FactsError::invalid(path, problem));
        }
        if let Some(found) = split_of(sibling)? {
            check_name(sibling, found)?;
        }
    }
    Ok(paths)
}

/// Checks that the name of a file goes with its metadata.
///
/// # Errors
///
/// The file is a part of a split model under another name.
pub(crate) fn check(path: &Path, keys: Keys<'_>) -> Result<(), FactsError> {
    split(keys).map_err(|problem| FactsError::invalid(path, problem))?.map_or(Ok(()), |found| check_name(path, found))
}

fn check_name(path: &Path, (no, count): (i64, i64)) -> Result<(), FactsError> {
    if count <= 1 || named(path).is_some_and(|(_, number, all)| (number, all) == (no + 1, count)) {
        return Ok(());
    }
    let ends = format!("-{:05}-of-{count:05}.gguf", no + 1);
    let problem = format!(
        "part {} of {count} of a split model, but its name does not end in {ends}; give all parts their names back",
        no + 1
    );
    Err(FactsError::invalid(path, problem))
}

/// Returns the number of a part, from 0, and the number of parts, if the file says so.
fn split_of(path: &Path) -> Result<Option<(i64, i64)>, FactsError> {
    let Ok(reader) = open_gguf(path) else { return Ok(None) };
    split(Keys { metadata: reader.metadata() }).map_err(|problem| FactsError::invalid(path, problem))
}

fn split(keys: Keys<'_>) -> Result<Option<(i64, i64)>, String> {
    Ok(keys.integer("split.no")?.zip(keys.integer("split.count")?))
}

#[cfg(test)]
#[path = "split_tests.rs"]
mod tests;
