//! Tests of folders and segments that somebody removes under a running tier, and of the rights of others in them.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;

/// Writes blocks, and returns those that a start afterwards finds.
fn found(disk: Disk, written: std::ops::Range<u32>, folder: &TempDir) -> Vec<u32> {
    assert!(written.clone().all(|seed| write(&disk, seed, seed) == Ok(RECORD)));
    assert!((0..written.end).all(|seed| read(&disk, seed, seed) == Ok(())), "open files stay readable");
    drop(disk);
    seeds(&open(&settings(folder, 16 << 20)).unwrap().1)
}

#[test]
fn a_folder_that_is_removed_is_made_anew_with_the_side_tables_and_locked() {
    let folder = TempDir::new().unwrap();
    let (disk, _) = open(&settings(&folder, 16 << 20)).unwrap();
    assert!((0..3).all(|seed| write(&disk, seed, seed) == Ok(RECORD)));
    disk.save_table(9, b"a table");
    fs::remove_dir_all(folder.path()).unwrap();
    // The write that finds the segment gone is the last one there.
    assert_eq!(write(&disk, 3, 3), Ok(RECORD));
    assert!(matches!(open(&settings(&folder, 16 << 20)), Err(StoreError::Locked { .. })), "it is this process's again");
    assert_eq!(disk.tables(), [b"a table"]);
    assert_eq!(fs::metadata(folder.path()).unwrap().mode() & 0o777, 0o700);
    assert_eq!(found(disk, 4..8, &folder), [4, 5, 6, 7]);
}

#[test]
fn a_folder_put_in_the_place_of_the_removed_one_is_taken_unless_another_process_has_it() {
    let folder = TempDir::new().unwrap();
    let (disk, _) = open(&settings(&folder, 16 << 20)).unwrap();
    write(&disk, 0, 0).unwrap();
    let moved = folder.path().with_extension("moved");
    fs::rename(folder.path(), &moved).unwrap();
    fs::create_dir(folder.path()).unwrap();
    let other = TierFolder::open(folder.path(), LAYOUT).unwrap();
    assert!(disk.log.folder.restore().unwrap_err().to_string().contains("another process uses this folder"));
    drop(other);
    assert_eq!((disk.log.folder.restore().unwrap(), disk.log.folder.restore().unwrap()), (true, false));
    fs::remove_dir_all(moved).unwrap();
    assert_eq!(write(&disk, 1, 1), Ok(RECORD));
    assert_eq!(found(disk, 2..4, &folder), [2, 3]);
}

#[test]
fn segments_that_are_removed_alone_are_noticed_by_the_next_write_and_by_the_next_segment() {
    let folder = TempDir::new().unwrap();
    let (disk, _) = open(&settings(&folder, 16 << 20)).unwrap();
    // A segment has room for 25 of these.
    assert!((0..30).all(|seed| write(&disk, seed, seed) == Ok(RECORD)));
    let paths = segments(&folder);
    assert_eq!(paths.len(), 2);
    fs::remove_file(&paths[1]).unwrap();
    assert_eq!(write(&disk, 30, 30), Ok(RECORD));
    fs::remove_file(&paths[0]).unwrap();
    assert_eq!(write(&disk, 31, 31), Ok(RECORD));
    assert!(disk.log.segments().values().filter(|segment| !segment.file.is_linked()).count() == 2);
    assert!(disk.log.segments().values().all(|segment| !segment.is_newly_removed()), "both are noted");
    let expected: Vec<u32> = (31..34).collect();
    assert_eq!(found(disk, 32..34, &folder), expected);
}

#[test]
fn only_one_user_may_read_a_tier_even_one_from_before() {
    let folder = TempDir::new().unwrap();
    let (path, settings) = (folder.path().join("tier"), settings(&folder, 16 << 20));
    let settings = DiskSettings { path: path.clone(), ..settings };
    let (disk, _) = open(&settings).unwrap();
    write(&disk, 0, 0).unwrap();
    disk.save_table(9, b"a table");
    drop(disk);
    let modes = || -> Vec<u32> {
        let files = fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().metadata().unwrap().mode() & 0o777);
        let mut modes: Vec<u32> = files.chain([fs::metadata(&path).unwrap().mode() & 0o777]).collect();
        modes.sort_unstable();
        modes
    };
    assert_eq!(modes(), [0o600, 0o600, 0o600, 0o600, 0o700], "lock, segment, table, and its second file");
    for entry in fs::read_dir(&path).unwrap() {
        fs::set_permissions(entry.unwrap().path(), fs::Permissions::from_mode(0o644)).unwrap();
    }
    drop(open(&settings).unwrap());
    assert_eq!(modes(), [0o600, 0o600, 0o600, 0o600, 0o700]);
}
