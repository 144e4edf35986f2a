//! Files with packed weights that are being written.
//!
//! **Rule:** a file `.NAME-` with 16 random hex digits belongs to the process that holds an exclusive lock on it, and no name is used twice. The process that gets the lock of a
//! file that another process made may remove it: its writer has ended, or finds its file gone before anything is written. A filesystem without locks keeps what a
//! killed process left.

use std::collections::hash_map::RandomState;
use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::path::{Path, PathBuf};

use trunkline_files::{BlockFile, Files, PAGE, SystemFiles};

/// Random hex digits of a name.
const DIGITS: usize = 16;
/// Files made until one stays: another process that starts may take each for one that was left behind.
const TRIES: usize = 8;

/// The name and the lock of a file being written; the file is removed unless finished.
pub(super) struct Unfinished {
    path: PathBuf,
    /// Locked, where the filesystem has locks, until the file is renamed or removed.
    _lock: File,
    is_finished: bool,
}

impl Unfinished {
    /// Creates a file next to `path`, the final place, with the permissions `mode` at most.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub(super) fn create(path: &Path, mode: u32) -> io::Result<(Self, Box<dyn BlockFile>)> {
        let folder = folder(path);
        let files = SystemFiles::new(folder).with_mode(mode);
        for _ in 0..TRIES {
            let random = RandomState::new().build_hasher().finish();
            let unfinished = folder.join(format!("{}{random:0DIGITS$x}", prefix(path)));
            let file = files.create(&unfinished, PAGE as u64)?;
            if let Some(unfinished) = Self::lock(unfinished)? {
                return Ok((unfinished, file));
            }
        }
        Err(io::Error::other("other processes remove each new file; start again"))
    }

    /// Takes the lock of a new file; `None` if another process took it first, and removes the file.
    fn lock(path: PathBuf) -> io::Result<Option<Self>> {
        let lock = match open(&path) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                drop(fs::remove_file(&path));
                return Err(error);
            }
        };
        let is_taken = matches!(lock.try_lock(), Err(TryLockError::WouldBlock));
        let unfinished = Self { path, _lock: lock, is_finished: false };
        // From here on nobody removes the file.
        Ok((!is_taken && unfinished.path.try_exists()?).then_some(unfinished))
    }

    /// Returns the present path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Gives the file its final name.
    ///
    /// # Errors
    ///
    /// The system refuses.
    pub(super) fn finish(mut self, path: &Path) -> io::Result<()> {
        fs::rename(&self.path, path)?;
        self.is_finished = true;
        Ok(())
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if !self.is_finished {
            drop(fs::remove_file(&self.path));
        }
    }
}

/// Removes files for `path` whose writers were killed. What cannot be removed stays.
pub(super) fn remove_left_behind(path: &Path) {
    let Ok(entries) = fs::read_dir(folder(path)) else { return };
    let prefix = prefix(path);
    for entry in entries.flatten().filter(|entry| is_unfinished(&entry.file_name(), &prefix)) {
        // The lock is held until the file is gone.
        if let Ok(file) = open(&entry.path())
            && file.try_lock().is_ok()
        {
            drop(fs::remove_file(entry.path()));
        }
    }
}

fn is_unfinished(name: &OsStr, prefix: &str) -> bool {
    let digits = name.to_str().and_then(|name| name.strip_prefix(prefix));
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn prefix(path: &Path) -> String {
    format!(".{}-", path.file_name().unwrap_or_default().to_string_lossy())
}

/// Opens a file for a lock; some filesystems lock only what may be written.
fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_writers_of_one_model_have_files_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.packed");
        let (first, _) = Unfinished::create(&path, 0o666).unwrap();
        remove_left_behind(&path);
        let (second, _) = Unfinished::create(&path, 0o666).unwrap();
        assert!(first.path.exists() && second.path.exists() && first.path != second.path);
        fs::write(&first.path, "first").unwrap();
        first.finish(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"first");
        let left = second.path.clone();
        drop(second);
        assert!(path.exists() && !left.exists());
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.packed");
        let left = ".m.packed-00c0ffee00c0ffee";
        let others = [".m.packed-0123456789abcde", ".m.packed-b.packed-00c0ffee00c0ffee", ".n.packed-00c0ffee00c0ffee"];
        for name in [left, "m.packed"].iter().chain(&others) {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let writer = open(&folder.path().join(left)).unwrap();
        writer.lock().unwrap();
        remove_left_behind(&path);
        assert!(folder.path().join(left).exists(), "its writer lives");
        drop(writer);
        remove_left_behind(&path);
        assert!(!folder.path().join(left).exists());
        assert!(path.exists() && others.iter().all(|name| folder.path().join(name).exists()));
    }

    #[test]
    fn a_new_file_that_another_process_locked_or_removed_is_given_up() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(".m.packed-00c0ffee00c0ffee");
        fs::write(&path, "").unwrap();
        let other = open(&path).unwrap();
        other.lock().unwrap();
        assert!(Unfinished::lock(path.clone()).unwrap().is_none());
        assert!(!path.exists());
        assert!(Unfinished::lock(path).unwrap().is_none());
    }
}
