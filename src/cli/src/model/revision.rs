//! Revision of a model: a hash of its files.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use trunkline_text::gguf_parts;
use xxhash_rust::xxh3::Xxh3;

/// Extensions of the files that decide about a model's KV.
const REVISION_FILES: [&str; 3] = ["json", "safetensors", "gguf"];

/// Returns a hash of the contents of a model folder or file, 32 hex digits: the revision of the model, which keeps cached blocks
/// of other weights apart.
///
/// # Errors
/// If a file cannot be read.
pub fn revision(dir: &Path) -> anyhow::Result<String> {
    let decides = |path: &Path| path.extension().is_some_and(|is| REVISION_FILES.iter().any(|of| is == *of));
    let mut files = match dir.is_file() {
        true => gguf_parts(dir)?,
        false => fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?,
    };
    files.retain(|path| path.is_file() && decides(path));
    files.sort_unstable();
    let (mut hash, mut buffer) = (Xxh3::new(), vec![0; 1 << 20]);
    for path in &files {
        if dir.is_dir() {
            // A file alone is the same model under every name.
            let name = path.file_name().unwrap_or_default().as_encoded_bytes();
            hash.update(&(name.len() as u64).to_le_bytes());
            hash.update(name);
        }
        let mut file = fs::File::open(path)?;
        hash.update(&file.metadata()?.len().to_le_bytes());
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                n => hash.update(&buffer[..n]),
            }
        }
    }
    Ok(format!("{:032x}", hash.digest128()))
}

/// Returns the revision of a model folder with the files `(name, contents)`, in the order of their names.
pub fn revision_of(files: &[(&str, &[u8])]) -> String {
    let mut hash = Xxh3::new();
    for (name, contents) in files {
        hash.update(&(name.len() as u64).to_le_bytes());
        hash.update(name.as_bytes());
        hash.update(&(contents.len() as u64).to_le_bytes());
        hash.update(contents);
    }
    format!("{:032x}", hash.digest128())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_is_of_names_and_contents() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("config.json", "{}");
        write("model.safetensors", "ab");
        let first = revision(dir.path()).unwrap();
        assert_eq!((first.len(), revision(dir.path()).unwrap()), (32, first.clone()));
        write("README.md", "no part of the model");
        assert_eq!(revision(dir.path()).unwrap(), first);
        write("model.safetensors", "ac");
        assert_ne!(revision(dir.path()).unwrap(), first);
        let alone = revision(&dir.path().join("config.json")).unwrap();
        write("other.json", "{}");
        assert_eq!(revision(&dir.path().join("other.json")).unwrap(), alone, "a model in one file may have any name");
        fs::remove_file(dir.path().join("other.json")).unwrap();
        write("model.safetensors", "a");
        write("model2.safetensors", "b");
        assert_ne!(revision(dir.path()).unwrap(), first);
        assert!(revision(Path::new("/nowhere")).is_err());
    }
}
