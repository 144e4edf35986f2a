//! Changes of files that are read again while the server runs.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

/// Time of the last change and length of each file; `None` for a file that cannot be read.
type Stamps = Vec<Option<(SystemTime, u64)>>;

/// Files watched for changes by time and length.
pub(crate) struct Watched {
    paths: Vec<PathBuf>,
    stamps: Mutex<Stamps>,
}

impl Watched {
    /// Watches files for changes from now on. Call before reading the files, so that no change is missed.
    pub(crate) fn new(paths: Vec<PathBuf>) -> Self {
        let stamps = Mutex::new(stamps(&paths));
        Self { paths, stamps }
    }

    /// Returns `true` if a file has changed since the last call.
    pub(crate) fn have_changed(&self) -> bool {
        let now = stamps(&self.paths);
        let mut before = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = *before != now;
        *before = now;
        changed
    }
}

fn stamps(paths: &[PathBuf]) -> Stamps {
    let stamp = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len()))
    };
    paths.iter().map(|path| stamp(path)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_changes_when_it_is_written_or_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let watched = Watched::new(vec![path.clone()]);
        assert!(!watched.have_changed());
        fs::write(&path, "a").unwrap();
        assert!(watched.have_changed() && !watched.have_changed());
        fs::write(&path, "longer").unwrap();
        assert!(watched.have_changed());
        fs::remove_file(&path).unwrap();
        assert!(watched.have_changed() && !watched.have_changed());
    }
}
