//! Bandwidth of a disk without a store, to compare a store's with.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use trunkline_files::{Aligned, BlockFile, Files, PAGE, SystemFiles, read_full, write_all};

/// Runs `work` for each of `n` records, on `depth` threads.
fn spread(n: u64, depth: usize, work: impl Fn(&mut Aligned, u64) -> io::Result<()> + Sync) -> io::Result<Duration> {
    let (next, begin) = (AtomicU64::new(0), Instant::now());
    let run = || {
        let mut buffer = Aligned::default();
        loop {
            match next.fetch_add(1, Relaxed) {
                at if at < n => work(&mut buffer, at)?,
                _ => return Ok::<(), io::Error>(()),
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..depth.max(1)).map(|_| scope.spawn(run)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into())))
    })?;
    Ok(begin.elapsed())
}

/// Writes a file of `records` records of `record_bytes` in `folder`, reads the file again, and deletes it. Reads and writes bypass the page cache
/// where the filesystem allows, and `depth` of them are under way at once. Returns the durations of writing and reading.
///
/// # Errors
/// If the system refuses.
pub fn plain_disk(folder: &Path, record_bytes: usize, records: u64, depth: usize) -> io::Result<(Duration, Duration)> {
    let len = record_bytes.next_multiple_of(PAGE);
    let (files, path) = (SystemFiles::new(folder), folder.join("plain"));
    let file = files.create(&path, len as u64 * records)?;
    let file: &dyn BlockFile = file.as_ref();
    let write = spread(records, depth, |buffer, at| {
        buffer.resize(len);
        buffer.as_mut_slice()[0] = at as u8;
        write_all(file, &[buffer.as_slice()], at * len as u64)
    });
    let read = spread(records, depth, |buffer, at| {
        buffer.resize(len);
        let n = read_full(file, buffer.as_mut_slice(), at * len as u64)?;
        if n == len && buffer.as_slice()[0] == at as u8 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    });
    files.remove(&path)?;
    Ok((write?, read?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_written_and_read() {
        let folder = tempfile::tempdir().unwrap();
        assert!(plain_disk(folder.path(), 5000, 30, 3).is_ok());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(plain_disk(&folder.path().join("missing"), 5000, 30, 3).is_err());
    }
}
