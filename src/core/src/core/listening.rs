//! Views for those outside of the core: changes of the cache for indexes (see [`crate::cache::changes`]), preemptions, reasons, and where each
//! request stands.

use super::Core;
use crate::blocks::hash::BlockHash;
use crate::cache::changes::CacheEvent;
use crate::journal::preempted::Preempted;
use crate::journal::reasons::Reasons;
use crate::names::ids::RequestId;
use crate::request::sequence::{Ending, Sequence, SequenceState};

/// State of a request in a core at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The request.
    pub request: RequestId,
    /// Its state.
    pub state: SequenceState,
    /// Entries of its block table: the device blocks that it holds in each layer group, shared ones included.
    pub blocks: u32,
}

impl Standing {
    fn of(seq: &Sequence) -> Self {
        Self { request: seq.id, state: seq.state(), blocks: seq.table.len() as u32 }
    }
}

impl Core {
    /// Notes every preemption from now on, for [`Self::take_preempted`]. Decisions, and their digest, do not change.
    pub fn note_preempted(&mut self) {
        self.state.journal.preempted.get_or_insert_default();
    }

    /// Returns the preemptions since the last call, in order. Take them after each input: until they are taken they take memory.
    pub fn take_preempted(&mut self) -> Vec<Preempted> {
        self.state.journal.preempted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Notes the reasons behind admissions and evictions from now on, for [`Self::take_reasons`]. Decisions, and their digest, do not change.
    pub fn note_reasons(&mut self) {
        self.state.journal.not_admitted.get_or_insert_default();
        self.state.kv.note_evictions();
    }

    /// Returns the reasons noted since the last call. Take them after each input: until they are taken they take memory.
    pub fn take_reasons(&mut self) -> Reasons {
        let not_admitted = self.state.journal.not_admitted.as_mut().map(std::mem::take).unwrap_or_default();
        Reasons { not_admitted, evicted: self.state.kv.take_evicted() }
    }

    /// Returns where a request stands; `None` if the core does not have it.
    pub fn standing(&self, request: RequestId) -> Option<Standing> {
        self.by_id.get(&request).map(|slot| Standing::of(&self.state.sequences[*slot]))
    }

    /// Returns where each request stands, those left out whose end was reported and those of the core's own.
    pub fn standings(&self) -> impl Iterator<Item = Standing> + '_ {
        let live = |seq: &&Sequence| !matches!(seq.ending, Some(Ending::Reported(_))) && !seq.id.is_inner();
        self.state.sequences.iter().map(|(_, seq)| seq).filter(live).map(Standing::of)
    }

    /// Returns the number of leading blocks with these hashes that are cached on the device, by hash alone.
    pub fn cached_on_device(&self, hashes: &[BlockHash]) -> u32 {
        self.state.kv.tree.estimate(hashes)
    }

    /// Notes every change in which blocks requests can find, from now on, for [`Self::take_cache_events`]. MUST be called before the first event.
    /// Decisions, and their digest, do not change.
    ///
    /// # Panics
    /// If the cache has been used.
    pub fn listen_to_cache(&mut self) {
        self.state.kv.listen();
    }

    /// Returns the changes since the last call, in order. Take them after each input: an index that follows them equals the cache then, and
    /// until they are taken they take memory.
    pub fn take_cache_events(&mut self) -> Vec<CacheEvent> {
        self.state.kv.take_changes()
    }

    /// Returns all blocks that requests can find now, as if they were stored now, each after the one before it in its prefix. Empty unless
    /// [`Self::listen_to_cache`] was called. MUST be called after [`Self::take_cache_events`] of the last input, which gives blocks their
    /// names. O(blocks log blocks).
    pub fn cached_blocks(&self) -> Vec<CacheEvent> {
        self.state.kv.cached()
    }
}
