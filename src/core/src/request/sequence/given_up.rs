//! What a sequence preempted at once had, while steps in flight still run it.

use super::Sequence;
use crate::names::ids::BlockHandle;

/// Blocks that a sequence preempted at once had, and that others may have found.
#[derive(Debug)]
pub(crate) struct GivenUp {
    /// Published blocks, from the first of the table on.
    published: Vec<BlockHandle>,
    /// Sources of its copies, each with the blocks before it.
    sources: Vec<BlockHandle>,
}

impl GivenUp {
    /// Takes note of what a sequence has.
    pub fn of(seq: &Sequence) -> Self {
        let (published, sources) = seq.read_in_steps();
        Self { published: published.to_vec(), sources: sources.to_vec() }
    }
}

impl Sequence {
    /// Returns the published blocks that steps in flight read or compute, and the sources of copies with all before them.
    pub fn read_in_steps(&self) -> (&[BlockHandle], &[BlockHandle]) {
        match &self.cold.given_up {
            Some(given_up) => (&given_up.published, &given_up.sources),
            None => (
                &self.table[..(self.published as usize).min(self.table.len())],
                self.cold.copied.as_ref().map_or(&[], |copied| &copied.sources),
            ),
        }
    }
}
