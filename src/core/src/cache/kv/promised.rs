//! Blocks of prompts under way: taken at admission, or chunk by chunk.
//!
//! A model whose layer groups keep all positions takes the blocks of a prompt at once. With a window, each chunk takes its blocks when it
//! runs: the blocks behind the window are given back between chunks, so that a long prompt has few blocks in the group at a time. The blocks
//! still to be taken are *promised*: nobody else takes them ([`Kv::usable`]). A promise may still fail, when blocks given back behind the
//! window are read by another prompt, or a transfer has them: then the prompt waits for the transfer, or is preempted.
//!
//! Without [`Config::reserve_prompts`] chunks take their blocks too, and nothing is promised. With
//! [`crate::config::Chunks::takes_together`] they do so behind the admissions of a step, so that no prompt evicts a prefix found by another.

use trunkline_port::Keeps;

use super::Kv;
use crate::blocks::entries::Entries;
use crate::config::Config;
use crate::request::sequence::Sequence;

/// Rule for the blocks of prompts, and the sum of the promises.
#[derive(Debug)]
pub(crate) struct Promised {
    /// `true` if a prompt takes the blocks of a chunk when the chunk runs.
    by_chunk: bool,
    /// `true` if the blocks still to be taken are kept free.
    keeps_free: bool,
    /// Entries with a block of one prompt at one time, at most, in each group after the first.
    most: Vec<u32>,
    /// Blocks promised to all sequences.
    total: u32,
}

impl Promised {
    /// Creates the rule of a configuration, with nothing promised.
    pub fn new(config: &Config) -> Self {
        let size = config.block_size;
        // A chunk may begin and end inside a block, and its blocks are given back when its step has ended.
        let chunk = config.max_batch_tokens.div_ceil(size).saturating_add(1);
        let chunks = chunk.saturating_mul(config.max_steps_in_flight.saturating_add(1));
        let most = |keeps: &Keeps| match keeps {
            Keeps::Window(window) => window.div_ceil(size).saturating_add(1).saturating_add(chunks),
            Keeps::All | Keeps::Scored => u32::MAX,
        };
        let groups = config.worker.groups.iter().skip(1);
        let has_windows = groups.clone().any(|keeps| matches!(keeps, Keeps::Window(_)));
        Self {
            by_chunk: has_windows || !config.reserve_prompts || config.prefill_first.takes_together(),
            keeps_free: config.reserve_prompts,
            most: groups.map(most).collect(),
            total: 0,
        }
    }

    /// Returns the number of blocks promised.
    pub fn total(&self) -> u32 {
        self.total
    }

    /// Returns the number of blocks taken by a prompt for `entries` more entries of its tables, at most: the blocks of one time. `held` are
    /// the last entries with a block in a group after the first so far.
    fn at_most(&self, entries: u32, held: impl Fn(usize) -> u32) -> u32 {
        let in_group = |(group, most): (usize, &u32)| match self.by_chunk {
            true => entries.min(most.saturating_sub(held(group))),
            false => entries,
        };
        (1..).zip(&self.most).map(in_group).fold(entries, u32::saturating_add)
    }

    /// Forgets all promises: the sequences lost their blocks.
    pub fn clear(&mut self) {
        self.total = 0;
    }
}

impl Kv {
    /// Returns `true` if prompts take their blocks chunk by chunk.
    pub fn takes_chunks(&self) -> bool {
        self.promised.by_chunk
    }

    /// Returns the number of blocks taken by a prompt after a hit of `hit` entries: `loaded` entries at once, and up to `entries` in all.
    pub fn blocks_for(&self, hit: u32, loaded: u32, entries: u32) -> u32 {
        let loaded = if self.takes_chunks() { loaded } else { entries };
        let at_once = loaded.saturating_mul(self.entry_blocks());
        let held = |group| hit - self.groups.first_read(group, hit as usize) as u32;
        at_once.saturating_add(self.promised.at_most(entries - loaded, held))
    }

    /// Returns the number of blocks promised to a prompt that comes back from the host, for `entries` entries of its tables behind those with the
    /// last of the blocks `hosts`, from entry `from` on.
    pub fn blocks_behind(&self, hosts: &Entries<u32>, from: usize, entries: u32) -> u32 {
        self.promised.at_most(entries, |group| hosts.last_held(group, from) as u32)
    }

    /// Promises a sequence the blocks lacking in its tables.
    pub fn promise(&mut self, seq: &mut Sequence) {
        debug_assert_eq!(seq.cold.promised, 0);
        if !self.promised.by_chunk || !self.promised.keeps_free {
            return;
        }
        let rest = seq.n_tokens().div_ceil(self.block_size).saturating_sub(seq.table.len() as u32);
        seq.cold.promised = self.promised.at_most(rest, |group| seq.last_held(group));
        self.promised.total += seq.cold.promised;
    }

    /// Takes the promise to a sequence back.
    pub fn withdraw_promise(&mut self, seq: &mut Sequence) {
        self.promised.total -= std::mem::take(&mut seq.cold.promised);
    }

    /// Ensures that a sequence has the blocks of its first `end` tokens. Returns `false`, and changes nothing, if too few are usable.
    #[must_use]
    pub fn take_chunk(&mut self, seq: &mut Sequence, end: u32) -> bool {
        let missing = end.div_ceil(self.block_size).saturating_sub(seq.table.len() as u32);
        if missing == 0 {
            return true;
        }
        self.withdraw_promise(seq);
        let taken = self.grow(seq, missing);
        self.promise(seq);
        taken
    }
}
