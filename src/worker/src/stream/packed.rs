//! Packed weights: a file with the groups of all layers as kernels read them, written once and reused.
//!
//! ```text
//! page 0     "TRKWTS01" | place:u64 | bytes:u64 | checksum:u64 of the manifest | zeros        numbers are little-endian
//! groups     each from a multiple of 4096 bytes on, as `pair.rs` lays them out, or compressed as in `form.rs`
//! manifest   JSON: version, identity of the weights, form, and of each group layer, part, place, bytes, frames, checksum (XXH3) and matrices
//! ```
//!
//! The file is written under another name, which no other process has, and renamed when whole: a file with the final name is whole, and a server that reads an older
//! one is not disturbed. What a killed process left is removed at the next start; [`unfinished`] has the rule.

mod current;
pub(crate) mod form;
pub(crate) mod learned;
mod manifest;
mod unfinished;
mod writing;

use std::fs::{self, File, Metadata, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tracing::warn;
use trunkline_files::{Aligned, BlockFile, PAGE, open_for_reading, read_full};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{GroupFault, ModelError, WeightsFault};
use crate::files::weights::Keep;
use crate::kernels::matrix::Matrix;
use crate::layers::pair::{PackedGroup, Pair, Part};
pub(crate) use crate::stream::packed::current::CurrentFile;
use crate::stream::packed::form::{Form, Packing};
use crate::stream::packed::learned::{FormChoice, Learned};
use crate::stream::packed::manifest::Manifest;
use crate::stream::packed::unfinished::remove_left_behind;
use crate::stream::packed::writing::Writing;
use crate::stream::retries::{FailedReads, try_again};

/// First bytes of a file.
const MAGIC: &[u8; 8] = b"TRKWTS01";
/// Longest manifest, bytes.
const MANIFEST_MAX: u64 = 1 << 28;

/// A file with packed weights, and its manifest.
pub(crate) struct PackedFile {
    path: PathBuf,
    file: Box<dyn BlockFile>,
    /// Device and number of the file on its filesystem.
    id: (u64, u64),
    is_direct: bool,
    manifest: Manifest,
    failed_reads: FailedReads,
}

impl PackedFile {
    /// Opens a file with the weights of `identity`.
    ///
    /// # Errors
    ///
    /// A reason to write the file again, for people.
    fn open(path: &Path, identity: &str) -> Result<Self, String> {
        let unreadable = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound => "there is none yet".to_owned(),
            _ => format!("the one there cannot be read: {error}"),
        };
        let (file, is_direct) = open_for_reading(path).map_err(unreadable)?;
        let mut page = Aligned::with_capacity(PAGE);
        page.resize(PAGE);
        let n = read_full(&file, page.as_mut_slice(), 0).map_err(unreadable)?;
        let foreign = || "the one there is no file of packed weights, or of another version".to_owned();
        let damaged = || "the one there is damaged".to_owned();
        if n < PAGE || page.as_slice()[..8] != MAGIC[..] {
            return Err(foreign());
        }
        let number = |i: usize| u64::from_le_bytes(*page.as_slice()[8 * i..].first_chunk().expect("a page"));
        let (place, bytes, checksum) = (number(1), number(2), number(3));
        let metadata = file.metadata().map_err(unreadable)?;
        let (size, id) = (metadata.len(), id_of(&metadata));
        if bytes > MANIFEST_MAX
            || !place.is_multiple_of(PAGE as u64)
            || place.checked_add(bytes).is_none_or(|end| end > size)
        {
            return Err(damaged());
        }
        let mut text = Aligned::default();
        text.resize((bytes as usize).next_multiple_of(PAGE));
        let n = read_full(&file, text.as_mut_slice(), place).map_err(unreadable)?;
        let text = text.as_slice().get(..bytes as usize).filter(|_| n as u64 >= bytes).ok_or_else(damaged)?;
        if xxh3_64(text) != checksum {
            return Err(damaged());
        }
        let manifest: Manifest = serde_json::from_slice(text).map_err(|_| foreign())?;
        manifest.check(identity, place)?;
        Ok(Self {
            path: path.to_owned(),
            file: Box::new(file),
            id,
            is_direct,
            manifest,
            failed_reads: FailedReads::default(),
        })
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

    /// Returns the bytes of each group in memory, in the order of a step.
    pub(crate) fn group_bytes(&self) -> Vec<u64> {
        self.manifest.groups.iter().map(|entry| entry.bytes).collect()
    }

    /// Returns the bytes of a group in the file.
    pub(crate) fn stored_bytes(&self, group: usize) -> u64 {
        self.manifest.groups[group].stored
    }

    /// Returns the form of the groups, and what decided about it.
    pub(crate) fn form(&self) -> (Form, Option<Learned>) {
        (self.manifest.form, self.manifest.learned)
    }

    /// Returns layer and part of a group.
    pub(crate) fn group(&self, group: usize) -> (u32, Part) {
        let entry = &self.manifest.groups[group];
        (entry.layer, entry.part)
    }

    /// Reads a group into the first bytes of `memory`, and compares the checksum. The memory MUST be long enough and begin at a page.
    ///
    /// # Errors
    ///
    /// The group cannot be read whole, or has other bytes than were written.
    pub(crate) fn read(&self, group: usize, memory: &mut [u8], packing: &mut Packing) -> Result<(), GroupFault> {
        let entry = &self.manifest.groups[group];
        let memory = &mut memory[..entry.bytes as usize];
        let stored = &mut memory[(entry.bytes - entry.stored) as usize..];
        let n = read_full(self.file.as_ref(), stored, entry.place);
        if n.map_err(|error| GroupFault::Read(error.to_string()))? < stored.len() {
            return Err(GroupFault::Short);
        }
        let is_sound = xxh3_64(stored) == entry.checksum;
        let is_whole = is_sound && (entry.frames.is_empty() || packing.decode(&entry.frames, memory));
        if is_whole { Ok(()) } else { Err(GroupFault::Checksum) }
    }

    /// Reads a group as [`Self::read`] does, and tries again after a fault, the first time after `pause`. The thread sleeps meanwhile.
    ///
    /// # Errors
    ///
    /// As [`Self::read`]; a damaged file is removed.
    pub(crate) fn read_in_time(&self, group: usize, memory: &mut [u8], pause: Duration) -> Result<(), WeightsFault> {
        let mut packing = Packing::default();
        let read = try_again(
            pause,
            || self.read(group, memory, &mut packing),
            |fault, pause| {
                self.note(group, fault);
                std::thread::sleep(pause);
                true
            },
        );
        read.map_err(|fault| self.fail(group, fault))
    }

    /// Logs a failed read of a group before the next try, unless the last line is recent.
    pub(crate) fn note(&self, group: usize, fault: &GroupFault) {
        if let Some(failed_reads) = self.failed_reads.note(Instant::now()) {
            let ((layer, part), path) = (self.group(group), self.path.display());
            let part = part.name();
            warn!(failed_reads, "cannot read the {part} weights of layer {layer} from {path}: {fault}; trying again");
        }
    }

    /// Describes the fault of a group, and removes a damaged file, so that the next start writes another.
    pub(crate) fn fail(&self, group: usize, fault: GroupFault) -> WeightsFault {
        let is_removed = fault.is_damage() && self.remove();
        WeightsFault { is_removed, ..self.fault(group, fault) }
    }

    /// Describes the fault of a group.
    pub(crate) fn fault(&self, group: usize, fault: GroupFault) -> WeightsFault {
        let (layer, part) = self.group(group);
        WeightsFault { path: self.path.clone(), layer, part: part.name(), fault, is_removed: false }
    }

    /// Removes the file, unless another one has the name by now. Returns `false` if the file stays. Other servers may go on with an open file.
    fn remove(&self) -> bool {
        // Servers with this file take turns, so that none removes the file that another has written since.
        let lock = File::open(&self.path).ok();
        let is_taken = lock.as_ref().is_some_and(|file| matches!(file.try_lock(), Err(TryLockError::WouldBlock)));
        let is_there = fs::metadata(&self.path).is_ok_and(|there| id_of(&there) == self.id);
        is_taken || !is_there || fs::remove_file(&self.path).is_ok()
    }

    /// Takes permissions beyond `mode` away.
    fn restrict(&self, mode: u32) {
        let Ok(metadata) = fs::metadata(&self.path) else { return };
        let found = metadata.mode() & 0o777;
        if found & !mode != 0
            && let Err(error) = fs::set_permissions(&self.path, Permissions::from_mode(found & mode))
        {
            warn!("{} may be read by users who may not read the model: {error}", self.path.display());
        }
    }
}

fn id_of(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

/// Receives the groups of a model: writes them to a file, or leaves them out if the file is there.
pub(crate) struct Packer {
    path: PathBuf,
    identity: String,
    /// Widest permissions of a new file.
    mode: u32,
    choice: FormChoice,
    state: State,
    /// Number of groups so far.
    n: usize,
    /// The group being packed.
    group: PackedGroup,
}

enum State {
    Reuse(Box<PackedFile>),
    /// `writing` begins with the first group.
    Write {
        writing: Option<Box<Writing>>,
        reason: String,
    },
}

impl Packer {
    /// Opens the file at `path` for the weights of `identity`, in a form that `choice` takes; without such a file, the first group begins one with the permissions `mode`
    /// at most. Removes what killed processes left of the file.
    ///
    /// # Errors
    ///
    /// Something other than a file has the name.
    pub(crate) fn new(path: &Path, identity: &str, mode: u32, choice: FormChoice) -> Result<Self, ModelError> {
        if fs::metadata(path).is_ok_and(|there| !there.is_file()) {
            return Err(ModelError::NoFile { path: path.to_owned() });
        }
        remove_left_behind(path);
        let state = match PackedFile::open(path, identity) {
            Ok(file) if choice.takes(file.manifest.form, file.manifest.is_compressible()) => {
                file.restrict(mode);
                State::Reuse(Box::new(file))
            }
            Ok(file) => {
                let reason = format!("the one there has the {} form", file.manifest.form.name());
                State::Write { writing: None, reason }
            }
            Err(reason) => State::Write { writing: None, reason },
        };
        let group = PackedGroup::default();
        Ok(Self { path: path.to_owned(), identity: identity.to_owned(), mode, choice, state, n: 0, group })
    }

    /// Takes memory for groups of `bytes` at most, if groups will be written.
    pub(crate) fn reserve(&mut self, bytes: u64) {
        if self.needs_weights() {
            self.group = PackedGroup::with_capacity(bytes as usize);
        }
    }

    /// Takes the weights of the next matrix of a group that is to be written.
    pub(crate) fn take(&mut self, matrix: &mut Matrix) {
        self.group.take(matrix);
    }

    /// Returns the file when all groups have passed, and the reason for which the file was written, if it was.
    ///
    /// # Errors
    ///
    /// The file cannot be written or read.
    pub(crate) fn finish(self) -> Result<(PackedFile, Option<String>), ModelError> {
        match self.state {
            State::Reuse(file) if file.manifest.groups.len() == self.n => Ok((*file, None)),
            State::Reuse(file) => Err(ModelError::packed(&file.path, "it has the groups of another model")),
            State::Write { writing, reason } => {
                let writing =
                    writing.map_or_else(|| Writing::create(&self.path, self.mode, self.choice).map(Box::new), Ok)?;
                writing.finish(self.identity.clone())?;
                let file = PackedFile::open(&self.path, &self.identity);
                let file = file.map_err(|problem| ModelError::packed(&self.path, &problem))?;
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

    fn matrix(&mut self, mut matrix: Matrix) -> Matrix {
        self.take(&mut matrix);
        matrix
    }

    fn keep(&mut self, layer: u32, part: Part, mut group: Pair) -> Result<Pair, ModelError> {
        match &mut self.state {
            State::Write { writing, .. } => {
                let writing = match writing {
                    Some(writing) => writing,
                    None => writing.insert(Box::new(Writing::create(&self.path, self.mode, self.choice)?)),
                };
                writing.append(layer, part, &group, self.group.bytes())?;
                self.group.clear();
            }
            State::Reuse(file) => {
                let entry = file.manifest.groups.get(self.n);
                if !entry.is_some_and(|entry| entry.is_of(layer, part, &mut group)) {
                    return Err(ModelError::packed(&file.path, "it has the groups of another model"));
                }
            }
        }
        self.n += 1;
        Ok(group)
    }
}

/// Receives the groups of a model without weights, for their sizes alone.
#[derive(Default)]
pub(crate) struct Sizes {
    /// Bytes of each group, in the order of a step.
    pub(crate) bytes: Vec<u64>,
}

impl Keep for Sizes {
    fn in_memory(&self) -> bool {
        false
    }

    fn needs_weights(&self) -> bool {
        false
    }

    fn matrix(&mut self, matrix: Matrix) -> Matrix {
        matrix
    }

    fn keep(&mut self, _: u32, _: Part, mut group: Pair) -> Result<Pair, ModelError> {
        self.bytes.push(group.bytes() as u64);
        Ok(group)
    }
}
