//! Objects in a folder, which several servers may share over a network filesystem.

use std::collections::hash_map::RandomState;
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use trunkline_files::private;

use crate::error::StoreError;

use super::objects::{Objects, Unanswered};
use super::patience::Patience;

/// Files of a folder, each an object. A call of the system that hangs, as one of a network filesystem may, is left to itself.
#[derive(Debug)]
pub struct FolderObjects {
    root: Arc<PathBuf>,
    patience: Patience,
}

impl FolderObjects {
    /// Opens a folder, and makes it if need be.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn open(root: PathBuf) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Disk { path: root.clone(), task: "create the folder", source };
        private::create_folder(&root).map_err(failed)?;
        Ok(Self { root: Arc::new(root), patience: Patience::new()? })
    }

    /// Runs `task` on a thread of its own, for as long as the deadline allows.
    fn run<T: Send + 'static>(
        &self,
        deadline: Instant,
        task: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> Result<T, Unanswered> {
        let root = Arc::clone(&self.root);
        let task = async { tokio::task::spawn_blocking(move || task(&root)).await };
        match self.patience.wait(deadline, task)? {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(Unanswered::Failed(error.to_string())),
            Err(panicked) => Err(Unanswered::Failed(panicked.to_string())),
        }
    }
}

impl Objects for FolderObjects {
    fn put(&self, name: &str, bytes: Vec<u8>, deadline: Instant) -> Result<(), Unanswered> {
        let name = name.to_owned();
        self.run(deadline, move |root| put(&root.join(name), &bytes))
    }

    fn get(&self, name: &str, limit: usize, deadline: Instant) -> Result<Option<Vec<u8>>, Unanswered> {
        let name = name.to_owned();
        self.run(deadline, move |root| get(&root.join(name), limit))
    }

    fn has(&self, names: &[String], deadline: Instant) -> Result<Vec<bool>, Unanswered> {
        let names = names.to_vec();
        self.run(deadline, move |root| names.iter().map(|name| root.join(name).try_exists()).collect())
    }
}

/// Writes an object next to its place, then gives it its name.
fn put(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let random = RandomState::new().build_hasher().finish();
    let unfinished = path.with_file_name(format!(".{random:016x}"));
    let create = || private::open(File::options().create_new(true), &unfinished);
    let mut file = match create() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            private::create_folder(path.parent().unwrap_or(path))?;
            create()?
        }
        created => created?,
    };
    let written = file.write_all(bytes).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        drop(fs::remove_file(&unfinished));
    }
    written
}

/// Reads an object, or the first `limit` bytes of one.
fn get(path: &Path, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take(limit as u64).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    use super::*;

    fn modes(folder: &Path, out: &mut Vec<(String, u32)>) {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let (path, mode) = (entry.path(), entry.metadata().unwrap().mode() & 0o777);
            if path.is_dir() {
                modes(&path, out);
            }
            out.push((path.file_name().unwrap().to_string_lossy().into_owned(), mode));
        }
    }

    #[test]
    fn objects_come_back_and_only_one_user_may_read_them() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("store");
        let objects = FolderObjects::open(root.clone()).unwrap();
        let soon = || Instant::now() + Duration::from_secs(60);
        assert_eq!(objects.get("v1/a/b", 9, soon()), Ok(None));
        objects.put("v1/a/b", vec![1, 2, 3], soon()).unwrap();
        objects.put("v1/a/b", vec![4, 5, 6], soon()).unwrap();
        assert_eq!(objects.get("v1/a/b", 9, soon()), Ok(Some(vec![4, 5, 6])));
        assert_eq!(objects.get("v1/a/b", 2, soon()), Ok(Some(vec![4, 5])));
        assert_eq!(objects.has(&["v1/a/b".into(), "v1/a/c".into()], soon()), Ok(vec![true, false]));
        let mut found = Vec::new();
        modes(dir.path(), &mut found);
        found.sort();
        let expected = [("a", 0o700), ("b", 0o600), ("store", 0o700), ("v1", 0o700)];
        assert_eq!(found, expected.map(|(name, mode)| (name.to_owned(), mode)), "and nothing unfinished is left");
        // A folder that was removed meanwhile is made again.
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(objects.get("v1/a/b", 9, soon()), Ok(None));
        objects.put("v1/a/b", vec![7], soon()).unwrap();
        assert_eq!(objects.get("v1/a/b", 9, soon()), Ok(Some(vec![7])));
    }

    #[test]
    fn a_folder_that_cannot_be_made_or_written_is_an_error_and_no_answer() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(FolderObjects::open(dir.path().join("file")).is_err());
        let objects = FolderObjects::open(dir.path().join("store")).unwrap();
        fs::write(dir.path().join("store/v1"), "in the way").unwrap();
        let put = objects.put("v1/a", vec![1], Instant::now() + Duration::from_secs(60));
        assert!(matches!(put, Err(Unanswered::Failed(_))), "{put:?}");
    }
}
