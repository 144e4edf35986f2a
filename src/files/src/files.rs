//! Operations on files, behind traits for tests with failing files.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, OFlags, fallocate};
use rustix::io::Errno;

use crate::aligned::{Aligned, PAGE};
use crate::private::FILE_MODE;

/// Operations on the files of a folder.
pub trait Files: Debug + Send + Sync {
    /// Creates a file with room for `bytes`, for reading and writing.
    ///
    /// # Errors
    /// If the file is there already, or the system refuses.
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn BlockFile>>;

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// If the system refuses.
    fn open(&self, path: &Path) -> io::Result<Box<dyn BlockFile>>;

    /// Removes a file; an open one stays readable.
    ///
    /// # Errors
    /// If the system refuses.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Returns `true` if reads and writes bypass the page cache.
    fn is_direct(&self) -> bool;

    /// Returns the bytes free on the filesystem of a folder; `None` if nobody knows.
    fn free_bytes(&self, _folder: &Path) -> Option<u64> {
        None
    }

    /// Returns the paths of all files in a folder, sorted.
    ///
    /// # Errors
    /// If the system refuses.
    fn list(&self, folder: &Path) -> io::Result<Vec<PathBuf>> {
        let mut paths: Vec<PathBuf> =
            fs::read_dir(folder)?.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<_>>()?;
        paths.sort_unstable();
        Ok(paths)
    }
}

/// File read and written in whole pages, at offsets that are multiples of a page, from memory that begins at a page.
pub trait BlockFile: Debug + Send + Sync {
    /// Writes the parts one behind another. Returns the bytes written, which may be fewer than asked for.
    ///
    /// # Errors
    /// If the system refuses.
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;

    /// Reads bytes. Returns the bytes read, which may be fewer than asked for, and 0 at the end of the file.
    ///
    /// # Errors
    /// If the system refuses.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Waits until all bytes written are on the medium.
    ///
    /// # Errors
    /// If the system refuses.
    fn sync(&self) -> io::Result<()>;

    /// Changes the length of the file.
    ///
    /// # Errors
    /// If the system refuses.
    fn truncate(&self, bytes: u64) -> io::Result<()>;

    /// Returns the length of the file, bytes.
    ///
    /// # Errors
    /// If the system refuses.
    fn size(&self) -> io::Result<u64>;

    /// Returns `false` if the file has no name any more, because somebody removed it.
    fn is_linked(&self) -> bool {
        true
    }
}

/// Files of the operating system, past the page cache where the filesystem allows.
#[derive(Debug)]
pub struct SystemFiles {
    is_direct: bool,
    is_read_only: bool,
    /// Permissions of new files, before the mask of the process takes more away.
    mode: u32,
}

impl SystemFiles {
    /// Finds out if files in `folder` can be read and written past the page cache.
    pub fn new(folder: &Path) -> Self {
        let probe = folder.join(".trunkline-probe");
        // Left behind by a process that was killed.
        drop(fs::remove_file(&probe));
        let is_direct = is_direct(&probe_direct(&probe));
        drop(fs::remove_file(&probe));
        if !is_direct {
            tracing::warn!(
                "{}: the filesystem allows no direct reads and writes (O_DIRECT); the page cache will hold their bytes, too",
                folder.display()
            );
        }
        Self { is_direct, is_read_only: false, mode: FILE_MODE }
    }

    /// Gives new files the permissions `mode` at most, instead of those for one user.
    #[must_use]
    pub fn with_mode(self, mode: u32) -> Self {
        Self { mode, ..self }
    }

    /// Returns the operations for reading alone, through the page cache.
    pub fn for_reading() -> Self {
        Self { is_direct: false, is_read_only: true, mode: FILE_MODE }
    }

    fn options(&self) -> OpenOptions {
        let mut options = File::options();
        options.read(true).write(!self.is_read_only).mode(self.mode);
        if self.is_direct {
            options.custom_flags(OFlags::DIRECT.bits().cast_signed());
        }
        options
    }
}

/// Opens a regular file for reading alone, past the page cache where the filesystem allows. Returns the file, and `true` if it is read past the page cache.
///
/// # Errors
/// If the system refuses, or a pipe, a folder or the like has the name.
pub fn open_for_reading(path: &Path) -> io::Result<(File, bool)> {
    let probed = open_regular(path, OFlags::DIRECT).and_then(|file| {
        let mut page = Aligned::with_capacity(PAGE);
        page.resize(PAGE);
        FileExt::read_at(&file, page.as_mut_slice(), 0).map(|_| file)
    });
    match probed {
        refused if is_direct(&refused) => refused.map(|file| (file, true)),
        _ => Ok((open_regular(path, OFlags::empty())?, false)),
    }
}

fn open_regular(path: &Path, flags: OFlags) -> io::Result<File> {
    // To open a pipe that nobody writes would take for ever.
    let flags = (flags | OFlags::NONBLOCK).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

fn probe_direct(path: &Path) -> io::Result<()> {
    let files = SystemFiles { is_direct: true, is_read_only: false, mode: FILE_MODE };
    let file = files.options().create_new(true).open(path)?;
    let mut page = Aligned::with_capacity(PAGE);
    page.resize(PAGE);
    file.write_all_at(page.as_slice(), 0)?;
    file.read_exact_at(page.as_mut_slice(), 0)
}

/// Returns `true` unless the system refused a direct write or read as such. Any other error, as of a full disk, says nothing of direct ones.
fn is_direct<T>(probed: &io::Result<T>) -> bool {
    let error = probed.as_ref().err().and_then(Errno::from_io_error);
    !matches!(error, Some(Errno::INVAL | Errno::OPNOTSUPP))
}

impl Files for SystemFiles {
    fn create(&self, path: &Path, bytes: u64) -> io::Result<Box<dyn BlockFile>> {
        let file = self.options().create_new(true).open(path)?;
        match fallocate(&file, FallocateFlags::empty(), 0, bytes) {
            // Without room in advance a write may find the disk full, and fail alone.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(Box::new(file)),
            Err(error) => {
                drop(fs::remove_file(path));
                Err(error.into())
            }
        }
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn BlockFile>> {
        Ok(Box::new(self.options().open(path)?))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn is_direct(&self) -> bool {
        self.is_direct
    }

    fn free_bytes(&self, folder: &Path) -> Option<u64> {
        let system = rustix::fs::statvfs(folder).ok()?;
        system.f_bavail.checked_mul(system.f_frsize)
    }
}

impl BlockFile for File {
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pwritev(self, parts, offset)?)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn truncate(&self, bytes: u64) -> io::Result<()> {
        self.set_len(bytes)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn is_linked(&self) -> bool {
        // A file of which the system says nothing is taken to be there.
        !self.metadata().is_ok_and(|found| found.nlink() == 0)
    }
}

/// Writes all parts, in as many calls as the system needs.
///
/// # Errors
/// If the system refuses, or writes nothing.
pub fn write_all(file: &dyn BlockFile, parts: &[&[u8]], mut offset: u64) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut rest = &mut slices[..];
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match file.write_at(rest, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            // A direct write that ended within a page begins the page again.
            Ok(n) if n < PAGE => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                let n = n - n % PAGE;
                offset += n as u64;
                IoSlice::advance_slices(&mut rest, n);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads until `bytes` is full or the file ends. Returns the bytes read.
///
/// # Errors
/// If the system refuses.
pub fn read_full(file: &dyn BlockFile, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut at = 0;
    while at < bytes.len() {
        match file.read_at(&mut bytes[at..], offset + at as u64) {
            Ok(0) => break,
            Ok(n) => at += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        // The end of a file within a page cannot be passed by direct reads.
        if !at.is_multiple_of(PAGE) {
            break;
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_refused_direct_write_shows_that_there_are_none() {
        for (error, expected) in [(Errno::INVAL, false), (Errno::OPNOTSUPP, false), (Errno::NOSPC, true)] {
            assert_eq!(is_direct::<()>(&Err(error.into())), expected, "{error}");
        }
        assert!(is_direct(&Ok(())));
    }

    #[test]
    fn a_file_opened_for_reading_is_read_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert_eq!(open_for_reading(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        fs::write(&path, vec![7; PAGE + 5]).unwrap();
        let (file, _) = open_for_reading(&path).unwrap();
        let mut bytes = Aligned::with_capacity(2 * PAGE);
        bytes.resize(2 * PAGE);
        assert_eq!(read_full(&file, bytes.as_mut_slice(), 0).unwrap(), PAGE + 5);
        assert!(bytes.as_slice()[..PAGE + 5].iter().all(|byte| *byte == 7));
    }

    #[test]
    fn pipes_and_folders_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR, 0).unwrap();
        for path in [&pipe, folder.path()] {
            assert_eq!(open_for_reading(path).unwrap_err().to_string(), "it is not a regular file");
        }
    }

    #[test]
    fn the_probe_for_direct_writes_leaves_other_files_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("probe"), "of the user").unwrap();
        fs::write(folder.path().join(".trunkline-probe"), "left behind").unwrap();
        let files = SystemFiles::new(folder.path());
        assert_eq!(fs::read(folder.path().join("probe")).unwrap(), b"of the user");
        assert_eq!(files.list(folder.path()).unwrap(), [folder.path().join("probe")]);
    }
}
