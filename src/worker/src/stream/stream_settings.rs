//! Settings of streamed weights, and the placement of a model's groups.

use std::path::PathBuf;
use std::time::Duration;

use crate::stream::packed::form::Form;
use crate::stream::packed::learned::{Compression, Learned};

/// Settings of weights of which only a part is in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSettings {
    /// Memory for weights, bytes: the ones that are always in memory, pinned groups, and the windows of all workers.
    pub memory_bytes: u64,
    /// Folder of the file with packed weights; `None` for the folder of the model.
    pub folder: Option<PathBuf>,
    /// Hash of the weights: a file with packed weights of another one is written again.
    pub identity: String,
    /// Workers that stream the model's weights, each through a window of its own.
    pub workers: u32,
    /// Groups read ahead of the one in use, at least 1, in steps of decodes alone.
    pub ahead: u32,
    /// The same for steps that run prompts.
    pub prefill_ahead: u32,
    /// Reads in flight at most, at least 1, in steps of decodes alone.
    pub reads: u32,
    /// The same for steps that run prompts.
    pub prefill_reads: u32,
    /// Form of a file that is written.
    pub compression: Compression,
    /// Pause before a failed read is tried again; the pauses before the second, third and fourth time double.
    pub retry_pause: Duration,
}

impl StreamSettings {
    /// Value of [`Self::retry_pause`] for servers: faults of up to 1.5 s pass.
    pub const RETRY_PAUSE: Duration = Duration::from_millis(100);
}

/// A group of weights, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedGroup {
    /// Bytes of the group in memory, whole pages.
    pub bytes: u64,
    /// Bytes of the group on the disk, whole pages: fewer if it is compressed.
    pub stored_bytes: u64,
    /// `true` if the group stays in memory, `false` if each step reads the group.
    pub is_pinned: bool,
}

/// Placement of a model's weights, for logs and reports.
#[derive(Clone, Debug, PartialEq)]
pub struct StreamInfo {
    /// File with the packed weights.
    pub path: PathBuf,
    /// Reason for which the file was written by this process; `None` if the file was there.
    pub written: Option<String>,
    /// `true` if reads bypass the page cache.
    pub is_direct: bool,
    /// Form of groups of floats on the disk.
    pub form: Form,
    /// What decided about the form when the file was written, if it was measured.
    pub learned: Option<Learned>,
    /// Groups of all layers, in the order of a step.
    pub groups: Vec<PlacedGroup>,
    /// Bytes of the output matrix, which is computed with after the last group.
    pub head_bytes: u64,
    /// Slots of each worker's window.
    pub slots: u32,
    /// Bytes of weights in memory at any time.
    pub memory_bytes: u64,
}

impl StreamInfo {
    /// Returns the number of groups pinned in memory.
    pub fn pinned(&self) -> usize {
        self.groups.iter().filter(|group| group.is_pinned).count()
    }

    /// Returns the bytes that each step reads.
    pub fn step_bytes(&self) -> u64 {
        self.groups.iter().filter(|group| !group.is_pinned).map(|group| group.stored_bytes).sum()
    }
}
