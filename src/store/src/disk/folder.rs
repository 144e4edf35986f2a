//! The folder of a disk tier: its lock, and the side tables next to the segments. Somebody may remove the folder under a running server; then it is made again.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use trunkline_files::{Files, private};

use crate::error::StoreError;

use super::{segment, tables};

/// Folder that this process alone uses as a disk tier.
#[derive(Debug)]
pub struct TierFolder {
    path: PathBuf,
    /// Layout of the side tables.
    layout: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Held open, so that no other process uses the folder.
    lock: File,
    /// Side tables by id, for a folder made again.
    tables: BTreeMap<u64, Vec<u8>>,
}

impl TierFolder {
    /// Makes the folder if need be, and locks it.
    ///
    /// # Errors
    /// If the folder cannot be used, or another process uses it.
    pub fn open(path: &Path, layout: u64) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Disk { path: path.to_owned(), task: "create the folder", source };
        private::create_folder(path).map_err(failed)?;
        let state = Mutex::new(State { lock: lock(path)?, tables: BTreeMap::new() });
        Ok(Self { path: path.to_owned(), layout, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the rights of other users from the files of a tier that an earlier version made.
    pub fn close_to_others(&self, files: &dyn Files) {
        let is_own = |path: &PathBuf| segment::number_of(path).is_some() || tables::is_table(path);
        private::close_all(&self.path, files.list(&self.path).unwrap_or_default().into_iter().filter(is_own));
    }

    /// Makes the folder again, with its side tables, if it is another one than the one that was locked, or gone. Returns `true` if it was.
    ///
    /// # Errors
    /// If the system refuses, or another process uses the new folder.
    pub fn restore(&self) -> io::Result<bool> {
        let mut state = self.state();
        let id = |found: fs::Metadata| (found.dev(), found.ino());
        let own = id(state.lock.metadata()?);
        if fs::metadata(lock_path(&self.path)).is_ok_and(|found| id(found) == own) {
            return Ok(false);
        }
        private::create_folder(&self.path)?;
        state.lock = lock(&self.path).map_err(io::Error::other)?;
        for (id, table) in &state.tables {
            tables::save(&self.path, self.layout, *id, table)?;
        }
        Ok(true)
    }

    /// Keeps a side table for the frames of the tier.
    pub fn save_table(&self, id: u64, table: &[u8]) {
        self.state().tables.insert(id, table.to_owned());
        if let Err(error) = tables::save(&self.path, self.layout, id, table) {
            tracing::warn!("{}: cannot keep side table {id:016x}: {error}", self.path.display());
        }
    }

    /// Returns the side tables in the folder, the newest last.
    pub fn tables(&self) -> Vec<Vec<u8>> {
        tables::load(&self.path, self.layout).unwrap_or_else(|error| {
            tracing::warn!("{}: cannot read the side tables: {error}", self.path.display());
            Vec::new()
        })
    }
}

fn lock_path(folder: &Path) -> PathBuf {
    folder.join("lock")
}

fn lock(folder: &Path) -> Result<File, StoreError> {
    let path = lock_path(folder);
    let failed = |task, source| StoreError::Disk { path: path.clone(), task, source };
    let file = private::open(File::options().create(true).truncate(false), &path);
    let file = file.map_err(|source| failed("open the lock file", source))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(StoreError::Locked { path: folder.to_owned() }),
        // Without locks of the filesystem the folder is the user's to keep apart.
        Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => Ok(file),
        Err(TryLockError::Error(source)) => Err(failed("lock the folder", source)),
    }
}
