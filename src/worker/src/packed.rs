//! Packed weights: a file with the groups of all layers as kernels read them, written once and reused.
//!
//! ```text
//! page 0     "TRKWTS01" | place:u64 | bytes:u64 | checksum:u64 of the manifest | zeros        numbers are little-endian
//! groups     each from a multiple of 4096 bytes on, as `pair.rs` lays them out
//! manifest   JSON: version, identity of the weights, and of each group layer, part, place, bytes, checksum (XXH3) and matrices
//! ```
//!
//! The file is written under another name, which no other process has, and renamed when whole: a file with the final name is whole, and a server that reads an older
//! one is not disturbed. What a killed process left is removed at the next start; [`unfinished`] has the rule.

mod manifest;
mod unfinished;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use tracing::warn;
use trunkline_files::{Aligned, BlockFile, PAGE, open_for_reading, read_full, write_all};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{GroupFault, ModelError};
use crate::packed::manifest::{Entry, Manifest};
use crate::packed::unfinished::{Unfinished, remove_left_behind};
use crate::pair::{Pair, Part};
use crate::retries::{FailedReads, try_again};
use crate::weights::Keep;

/// First bytes of a file.
const MAGIC: &[u8; 8] = b"TRKWTS01";
/// Longest manifest, bytes.
const MANIFEST_MAX: u64 = 1 << 28;

/// A file with packed weights, and its manifest.
pub(crate) struct PackedFile {
    path: PathBuf,
    file: Box<dyn BlockFile>,
    is_direct: bool,
    manifest: Manifest,
    failed_reads: FailedReads,
}

impl PackedFile {
    /// Opens a file with the weights of `identity`.
    ///
    /// # Errors
    ///
    /// A reason to write the file anew, for people.
    fn open(path: &Path, identity: &str) -> Result<Self, String> {
        let unreadable = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => "there is none yet".to_owned(),
            _ => format!("the one there cannot be read: {error}"),
        };
        let (file, is_direct) = open_for_reading(path).map_err(unreadable)?;
        let mut page = Aligned::with_capacity(PAGE);
        page.resize(PAGE);
        let n = read_full(file.as_ref(), page.as_mut_slice(), 0).map_err(unreadable)?;
        let foreign = || "the one there is no file of packed weights, or of another version".to_owned();
        let damaged = || "the one there is damaged".to_owned();
        if n < PAGE || page.as_slice()[..8] != MAGIC[..] {
            return Err(foreign());
        }
        let number = |i: usize| u64::from_le_bytes(*page.as_slice()[8 * i..].first_chunk().expect("a page"));
        let (place, bytes, checksum) = (number(1), number(2), number(3));
        let size = file.size().map_err(unreadable)?;
        if bytes > MANIFEST_MAX
            || !place.is_multiple_of(PAGE as u64)
            || place.checked_add(bytes).is_none_or(|end| end > size)
        {
            return Err(damaged());
        }
        let mut text = Aligned::default();
        text.resize((bytes as usize).next_multiple_of(PAGE));
        let n = read_full(file.as_ref(), text.as_mut_slice(), place).map_err(unreadable)?;
        let text = text.as_slice().get(..bytes as usize).filter(|_| n as u64 >= bytes).ok_or_else(damaged)?;
        if xxh3_64(text) != checksum {
            return Err(damaged());
        }
        let manifest: Manifest = serde_json::from_slice(text).map_err(|_| foreign())?;
        manifest.check(identity, place)?;
        Ok(Self { path: path.to_owned(), file, is_direct, manifest, failed_reads: FailedReads::default() })
    }

    /// Reads from another file.
    #[cfg(test)]
    pub(crate) fn set_file(&mut self, file: Box<dyn BlockFile>) {
        self.file = file;
    }

    /// Returns the path, for messages.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns `true` if reads bypass the page cache.
    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Returns the bytes of each group, in the order of a step.
    pub(crate) fn group_bytes(&self) -> Vec<u64> {
        self.manifest.groups.iter().map(|entry| entry.bytes).collect()
    }

    /// Returns layer and part of a group.
    pub(crate) fn group(&self, group: usize) -> (u32, Part) {
        let entry = &self.manifest.groups[group];
        (entry.layer, entry.part)
    }

    /// Reads a group into the first bytes of `memory`, and compares the checksum. The memory MUST be long enough and begin at a page. A failed read is tried again after
    /// pauses, `pause` and longer, for which `wait` waits; `wait` returns `false` to give up.
    ///
    /// # Errors
    ///
    /// The group cannot be read whole, or has other bytes than were written.
    pub(crate) fn read(
        &self,
        group: usize,
        memory: &mut [u8],
        pause: Duration,
        mut wait: impl FnMut(Duration) -> bool,
    ) -> Result<(), GroupFault> {
        let failed = |fault: &GroupFault, pause| {
            if let Some(failed_reads) = self.failed_reads.note(Instant::now()) {
                let ((layer, part), path) = (self.group(group), self.path.display());
                let part = part.name();
                warn!(
                    failed_reads,
                    "cannot read the {part} weights of layer {layer} from {path}: {fault}; trying again"
                );
            }
            wait(pause)
        };
        try_again(pause, || self.read_once(group, memory), failed)
    }

    fn read_once(&self, group: usize, memory: &mut [u8]) -> Result<(), GroupFault> {
        let entry = &self.manifest.groups[group];
        let bytes = &mut memory[..entry.bytes as usize];
        let n = read_full(self.file.as_ref(), bytes, entry.place);
        if n.map_err(|error| GroupFault::Read(error.to_string()))? < bytes.len() {
            return Err(GroupFault::Short);
        }
        if xxh3_64(bytes) == entry.checksum { Ok(()) } else { Err(GroupFault::Checksum) }
    }
}

/// A file being written; removed unless finished.
struct Writing {
    path: PathBuf,
    unfinished: Unfinished,
    file: Box<dyn BlockFile>,
    end: u64,
    groups: Vec<Entry>,
    /// Memory of one group.
    buffer: Aligned,
}

impl Writing {
    fn create(path: &Path) -> Result<Self, ModelError> {
        let folder = path.parent().unwrap_or(Path::new("."));
        let failed = |source| ModelError::Write { path: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(failed)?;
        let (unfinished, file) = Unfinished::create(path).map_err(failed)?;
        let (path, groups) = (path.to_owned(), Vec::new());
        Ok(Self { path, unfinished, file, end: PAGE as u64, groups, buffer: Aligned::default() })
    }

    fn failed(&self, source: io::Error) -> ModelError {
        ModelError::Write { path: self.path.clone(), source }
    }

    fn append(&mut self, layer: u32, part: Part, group: &mut Pair) -> Result<(), ModelError> {
        group.pack(&mut self.buffer);
        let bytes = self.buffer.as_slice();
        write_all(self.file.as_ref(), &[bytes], self.end).map_err(|source| self.failed(source))?;
        let (bytes, checksum, place) = (bytes.len() as u64, xxh3_64(bytes), self.end);
        self.groups.push(Entry { layer, part, place, bytes, checksum, matrices: Entry::matrices(&group.shapes()) });
        self.end += bytes;
        Ok(())
    }

    fn finish(mut self, identity: String) -> Result<(), ModelError> {
        let manifest = Manifest::new(identity, std::mem::take(&mut self.groups));
        let mut text = Aligned::from(serde_json::to_vec_pretty(&manifest).expect("plain values"));
        let (bytes, checksum) = (text.as_slice().len() as u64, xxh3_64(text.as_slice()));
        text.pad();
        let mut page = Aligned::with_capacity(PAGE);
        page.resize(PAGE);
        page.as_mut_slice()[..8].copy_from_slice(MAGIC);
        for (place, number) in page.as_mut_slice()[8..].chunks_exact_mut(8).zip([self.end, bytes, checksum]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let written = write_all(self.file.as_ref(), &[text.as_slice()], self.end)
            .and_then(|()| write_all(self.file.as_ref(), &[page.as_slice()], 0))
            .and_then(|()| self.file.sync())
            .and_then(|()| self.unfinished.finish(&self.path));
        written.map_err(|source| ModelError::Write { path: self.path, source })
    }
}

/// Receives the groups of a model: writes them to a file, or leaves them out if the file is there.
pub(crate) struct Packer {
    identity: String,
    state: State,
    /// Number of groups so far.
    n: usize,
}

enum State {
    Reuse(PackedFile),
    Write { writing: Writing, reason: String },
}

impl Packer {
    /// Opens the file at `path` for the weights of `identity`, or begins to write the file. Removes what killed processes left of it.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn new(path: &Path, identity: &str) -> Result<Self, ModelError> {
        remove_left_behind(path);
        let state = match PackedFile::open(path, identity) {
            Ok(file) => State::Reuse(file),
            Err(reason) => State::Write { writing: Writing::create(path)?, reason },
        };
        Ok(Self { identity: identity.to_owned(), state, n: 0 })
    }

    /// Returns the file when all groups have passed, and the reason for which the file was written, if it was.
    ///
    /// # Errors
    ///
    /// The file cannot be written or read.
    pub(crate) fn finish(self) -> Result<(PackedFile, Option<String>), ModelError> {
        match self.state {
            State::Reuse(file) if file.manifest.groups.len() == self.n => Ok((file, None)),
            State::Reuse(file) => Err(ModelError::packed(&file.path, "it has the groups of another model")),
            State::Write { writing, reason } => {
                let path = writing.path.clone();
                writing.finish(self.identity.clone())?;
                let file = PackedFile::open(&path, &self.identity);
                let file = file.map_err(|problem| ModelError::packed(&path, &problem))?;
                Ok((file, Some(reason)))
            }
        }
    }
}

impl Keep for Packer {
    fn in_memory(&self) -> bool {
        false
    }

    fn needs_weights(&self) -> bool {
        matches!(self.state, State::Write { .. })
    }

    fn keep(&mut self, layer: u32, part: Part, mut group: Pair) -> Result<Pair, ModelError> {
        match &mut self.state {
            State::Write { writing, .. } => writing.append(layer, part, &mut group)?,
            State::Reuse(file) => {
                let entry = file.manifest.groups.get(self.n);
                if !entry.is_some_and(|entry| entry.is_of(layer, part, &mut group)) {
                    return Err(ModelError::packed(&file.path, "it has the groups of another model"));
                }
            }
        }
        self.n += 1;
        group.release();
        Ok(group)
    }
}
