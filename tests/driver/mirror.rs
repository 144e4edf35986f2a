//! What the worker of a test knows of a sequence.

use trunkline_core::{RequestId, Token};

use crate::groups::GroupTables;
use crate::memory::Cell;

/// The worker's copy of a block table.
#[derive(Clone, Debug)]
pub(crate) struct Mirror {
    /// Request of the sequence.
    pub(crate) request: RequestId,
    /// Number of the request's truth, if it was expected.
    pub(crate) number: Option<u64>,
    /// Cell before the first of the request.
    pub(crate) before: Cell,
    /// Block table of the first layer group.
    pub(crate) table: Vec<u32>,
    /// Block tables of the layer groups after the first, and what the sequence dropped from them.
    pub(crate) groups: GroupTables,
    /// Token that the last step of the sequence sampled.
    pub(crate) sampled: Option<Token>,
    /// First position of what the worker failed to compute, if the sequence holds such, and the last step that may read it.
    pub(crate) spoiled: Option<(usize, u64)>,
}

impl Mirror {
    /// Returns what outlives the sequence's place in the worker.
    pub(crate) fn into_groups(self) -> ((RequestId, Option<u64>), GroupTables) {
        ((self.request, self.number), self.groups)
    }
}
