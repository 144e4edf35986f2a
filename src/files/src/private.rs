//! Files and folders for the user of the process alone: those with prompts and answers of clients.
//!
//! A file or folder that these functions make has no rights for anybody else from the moment that it is there, whatever the mask of the process. A
//! file that was there before loses the rights of others, as it is about to get contents of clients. A folder that was there before keeps
//! its rights: it may be a disk of the machine, or be shared on purpose.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Permissions of a file for one user: reading and writing.
pub const FILE_MODE: u32 = 0o600;
/// Permissions of a folder for one user.
const FOLDER_MODE: u32 = 0o700;
/// Rights of the group and of others.
const OTHERS: u32 = 0o077;

/// Creates a file for writing, or empties the one that is there.
///
/// # Errors
/// If the system refuses.
pub fn create(path: &Path) -> io::Result<File> {
    // Emptied once nobody else can open the file.
    let file = open(File::options().create(true).truncate(false), path)?;
    if file.metadata()?.is_file() {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Opens a file for writing, with further options such as [`OpenOptions::create`]. A file from before loses the rights of others; a pipe or a device
/// keeps them.
///
/// # Errors
/// If the system refuses.
pub fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = options.write(true).mode(FILE_MODE).open(path)?;
    close_to_others(&file, path)?;
    Ok(file)
}

/// Takes the rights of others from an open file. If the file belongs to another user, a line in the log says who can read it.
///
/// # Errors
/// If the system does not say whose file it is.
pub fn close_to_others(file: &File, path: &Path) -> io::Result<()> {
    let found = file.metadata()?;
    if !found.is_file() || found.mode() & OTHERS == 0 {
        return Ok(());
    }
    let mode = found.mode() & 0o777;
    match file.set_permissions(Permissions::from_mode(mode & !OTHERS)) {
        Ok(()) => tracing::info!("{}: took the rights of other users (mode was {mode:03o})", path.display()),
        Err(error) => warn(path, mode, &error.to_string()),
    }
    Ok(())
}

/// Takes the rights of others from those of the files `paths` in `folder` where they have some, with one line in the log.
pub fn close_all(folder: &Path, paths: impl IntoIterator<Item = PathBuf>) {
    let (mut closed, mut failed) = (0, None);
    for path in paths {
        let Ok(found) = path.symlink_metadata() else { continue };
        if found.is_file() && found.mode() & OTHERS != 0 {
            match fs::set_permissions(&path, Permissions::from_mode(found.mode() & 0o777 & !OTHERS)) {
                Ok(()) => closed += 1,
                Err(error) => failed = Some((path, found.mode() & 0o777, error)),
            }
        }
    }
    if closed > 0 {
        tracing::info!("{}: took the rights of other users from {closed} files", folder.display());
    }
    if let Some((path, mode, error)) = failed {
        warn(&path, mode, &error.to_string());
    }
}

/// Makes a folder with the folders above it, where missing. If the folder is there and others have rights in it, a line in the log says so.
///
/// # Errors
/// If the system refuses.
pub fn create_folder(path: &Path) -> io::Result<()> {
    let is_new = !path.is_dir();
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)?;
    let mode = fs::metadata(path)?.mode() & 0o777;
    if !is_new && mode & OTHERS != 0 {
        warn(path, mode, "a folder that was there keeps its mode");
    }
    Ok(())
}

fn warn(path: &Path, mode: u32, reason: &str) {
    let path = path.display();
    tracing::warn!(
        "{path}: other users have rights here (mode {mode:03o}), and prompts of clients are kept here: {reason}; chmod go= {path}"
    );
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn new_files_and_folders_are_for_one_user() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b");
        create_folder(&folder).unwrap();
        create_folder(&folder).unwrap();
        assert_eq!([mode(&folder), mode(&dir.path().join("a"))], [0o700; 2]);
        let path = folder.join("file");
        create(&path).unwrap().write_all(b"first").unwrap();
        create(&path).unwrap().write_all(b"2nd").unwrap();
        assert_eq!((mode(&path), fs::read(&path).unwrap().as_slice()), (0o600, &b"2nd"[..]));
        open(File::options().append(true), &path).unwrap().write_all(b" more").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"2nd more");
    }

    #[test]
    fn a_file_from_before_is_closed_and_a_folder_or_a_device_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (path, folder) = (dir.path().join("file"), dir.path().join("folder"));
        fs::write(&path, "old").unwrap();
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o664)).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        create(&path).unwrap();
        create_folder(&folder).unwrap();
        assert_eq!((mode(&path), mode(&folder)), (0o600, 0o755));
        let old = folder.join("old");
        fs::write(&old, "old").unwrap();
        fs::set_permissions(&old, Permissions::from_mode(0o644)).unwrap();
        close_all(&folder, [old.clone(), folder.join("none"), dir.path().join("folder")]);
        assert_eq!((mode(&old), mode(&folder)), (0o600, 0o755));
        let null = Path::new("/dev/null");
        let before = mode(null);
        create(null).unwrap().write_all(b"nothing").unwrap();
        assert_eq!(mode(null), before);
    }
}
