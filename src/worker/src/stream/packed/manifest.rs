//! Manifest of a file of packed weights: JSON, for people as well.

use serde::{Deserialize, Serialize};
use trunkline_codec::Dtype;
use trunkline_files::PAGE;

use crate::kernels::kernel::LANES;
use crate::kernels::matrix::WeightKind;
use crate::layers::pair::{Pair, Part, Shape};
use crate::stream::packed::form::{Form, dtype_of};
use crate::stream::packed::learned::Learned;

/// Version of the layout of groups; a change of the order of a kernel's weights MUST raise the number.
const VERSION: u32 = 3;

/// Contents of a file.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Manifest {
    version: u32,
    /// Outputs of a panel.
    lanes: usize,
    /// Order of the bytes of a number.
    byte_order: String,
    /// Hash of the weights that were packed.
    identity: String,
    /// Form of groups of floats.
    pub(super) form: Form,
    /// What decided about the form.
    pub(super) learned: Option<Learned>,
    pub(super) groups: Vec<Entry>,
}

/// A group of weights.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Entry {
    pub(super) layer: u32,
    pub(super) part: Part,
    /// First byte in the file.
    pub(super) place: u64,
    /// Bytes in memory, whole pages.
    pub(super) bytes: u64,
    /// Bytes in the file, whole pages.
    pub(super) stored: u64,
    /// Bytes of each frame of a compressed group, in the order of their pieces; none of a plain one.
    pub(super) frames: Vec<u32>,
    /// XXH3 of the bytes in the file.
    pub(super) checksum: u64,
    /// Kind, outputs and inputs of each matrix.
    pub(super) matrices: Vec<(String, usize, usize)>,
}

impl Manifest {
    /// Describes groups packed by this program on this machine.
    pub(super) fn new(identity: String, form: Form, learned: Option<Learned>, groups: Vec<Entry>) -> Self {
        let byte_order = byte_order().to_owned();
        Self { version: VERSION, lanes: LANES, byte_order, identity, form, learned, groups }
    }

    /// Returns `true` if groups could have another form.
    pub(super) fn is_compressible(&self) -> bool {
        self.groups.iter().any(|group| group.dtype().is_some())
    }

    /// Checks that the groups are of the weights `identity`, laid out for this program and machine, and within the bytes before `end`.
    ///
    /// # Errors
    ///
    /// A reason to write the file again, for people.
    pub(super) fn check(&self, identity: &str, end: u64) -> Result<(), String> {
        if (self.version, self.lanes, self.byte_order.as_str()) != (VERSION, LANES, byte_order()) {
            return Err("the one there has the layout of another version or machine".to_owned());
        }
        if self.identity != identity {
            return Err("the one there is of other weights".to_owned());
        }
        let page = PAGE as u64;
        let lies_within = |entry: &Entry| {
            let whole = [entry.place, entry.bytes, entry.stored].iter().all(|bytes| bytes.is_multiple_of(page));
            whole && entry.place >= page && entry.place.checked_add(entry.stored).is_some_and(|at| at <= end)
        };
        if self.groups.iter().all(|entry| lies_within(entry) && entry.has_frames()) {
            Ok(())
        } else {
            Err("the one there is damaged".to_owned())
        }
    }
}

impl Entry {
    /// Returns shapes of matrices as the manifest has them.
    pub(super) fn matrices(shapes: &[Shape]) -> Vec<(String, usize, usize)> {
        shapes.iter().map(|(kind, outputs, inputs)| (kind.name().to_owned(), *outputs, *inputs)).collect()
    }

    /// Returns the type of the weights, if they can be compressed.
    fn dtype(&self) -> Option<Dtype> {
        let kind_of = |name: &str| WeightKind::ALL.into_iter().find(|kind| kind.name() == name);
        let kinds: Option<Vec<_>> = self.matrices.iter().map(|(name, ..)| kind_of(name)).collect();
        dtype_of(kinds?.into_iter())
    }

    /// Returns `true` if the bytes in the file are those of the frames, or of the group itself.
    fn has_frames(&self) -> bool {
        let all: u64 = self.frames.iter().map(|bytes| u64::from(*bytes)).sum();
        match self.frames.is_empty() {
            true => self.stored == self.bytes,
            false => all <= self.stored && self.stored <= self.bytes,
        }
    }

    /// Returns `true` if the entry is of this group.
    pub(super) fn is_of(&self, layer: u32, part: Part, group: &mut Pair) -> bool {
        let place = (self.layer, self.part, self.bytes) == (layer, part, group.bytes() as u64);
        place && self.matrices == Self::matrices(&group.shapes())
    }
}

fn byte_order() -> &'static str {
    if cfg!(target_endian = "little") { "little" } else { "big" }
}
