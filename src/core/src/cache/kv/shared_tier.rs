//! Look-ups in a shared tier for requests about to be admitted.

use super::Kv;
use super::tier_copies::tier_place;
use crate::blocks::content_key;
use crate::blocks::hash::BlockHash;
use crate::cache::lookups::{BLOCKS_MAX, Blocks, Question};
use crate::journal::Journal;
use crate::journal::digest::Decision;
use crate::request::sequence::Sequence;
use crate::request::wait::Wait;

/// Bit in the digest of a look-up with requests that wait.
const AWAITED: u64 = 1 << 63;

impl Kv {
    /// Looks up the blocks of a waiting sequence after all blocks known of its prompt, once for each sequence, if the answer may
    /// pay. MUST follow [`Self::find`] for the sequence. Returns the hash under which to wait for the answer; `None` if there is
    /// nothing to wait for, or waiting is not expected to pay.
    pub fn look_up(&mut self, seq: &mut Sequence, journal: &mut Journal) -> Option<BlockHash> {
        let tier = self.tiers.shared()?;
        if seq.cold.history.looked_up {
            return None;
        }
        let now_ns = self.transfers.now_ns;
        let is_open = !self.transfers.is_stuck(tier_place(tier)) && self.lookups.is_open(now_ns);
        if !is_open && !self.lookups.is_any_awaited() {
            // A plan asks the tiers for every block of the prompt.
            return None;
        }
        self.plan_all(seq);
        let before = self.hit() + self.plan.len();
        let first = *self.findable(seq).get(before)?;
        if self.lookups.is_pending(first) {
            return self.lookups.is_awaited(first).then_some(first);
        }
        if !is_open {
            return None;
        }
        seq.cold.history.looked_up = true;
        let n = (self.findable(seq).len() - before).min(BLOCKS_MAX / self.entry_blocks() as usize);
        let copies = n * self.groups.whole().count() + self.windows(before, n).count();
        let links = &mut self.transfers.links;
        let (saved_ns, compute_ns) = (links.saved_ns(tier, n, copies), links.compute_ns(n));
        if saved_ns <= 0.0 {
            links.passed_over(tier, n);
            return None;
        }
        let blocks = self.chain_behind(seq, before, n);
        let is_awaited = self.lookups.pays(saved_ns);
        let wait = Wait::for_answer(now_ns, compute_ns as u64);
        let question = Question { first, before, blocks, found: None, wait, is_awaited };
        self.ask(tier, question, journal);
        is_awaited.then_some(first)
    }

    /// Asks a shared tier.
    fn ask(&mut self, tier: usize, question: Question, journal: &mut Journal) {
        let (n, first, is_awaited) = (question.blocks.keys.len(), question.first, question.is_awaited);
        let id = self.lookups.begin(tier as u8, question);
        self.tiers.count_looked_up(tier, n);
        journal.decide(Decision::Lookup, id | if is_awaited { AWAITED } else { 0 }, n as u64);
        journal.digest.fold(first.0 as u64);
    }

    /// Returns the `n` blocks of a sequence after the first `before`, in each of the groups of which a prompt needs every block.
    fn chain_behind(&self, seq: &Sequence, before: usize, n: usize) -> Blocks {
        let size = self.block_size as usize;
        let tokens = &seq.tokens()[before * size..][..n * size];
        let chain = self.findable(seq)[before..].iter().zip(tokens.chunks_exact(size));
        let keys = self.tiers.keys_behind(seq.cold.root, self.last_on_device(), self.plan.first.last().copied(), chain);
        let mut blocks = Blocks::default();
        for (key, tokens) in keys.iter().zip(tokens.chunks_exact(size)) {
            self.groups.whole().for_each(|group| blocks.push(content_key::in_group(key, group), tokens));
        }
        blocks
    }

    /// Returns the blocks of windows that a token behind `before + n` blocks of a prompt reads, of the last `n`: index among these, and
    /// group, from 0 for the tree's.
    fn windows(&self, before: usize, n: usize) -> impl Iterator<Item = (usize, usize)> {
        let read = move |group: usize| self.groups.first_read(group, before + n).saturating_sub(before)..n;
        self.groups.windows().iter().flat_map(move |group| read(*group).map(move |at| (at, *group)))
    }

    /// Ends a look-up: the blocks found can be loaded, unless the tier has to be asked for their windows first. Returns the hash under which
    /// requests wait that need wait no longer.
    pub fn end_lookup(&mut self, id: u64, n: u32, journal: &mut Journal) -> Option<BlockHash> {
        let mut question = self.lookups.end(id)?;
        journal.decide(Decision::LookupEnded, id, n.into());
        let (asked, first) = (question.blocks.keys.len(), question.first);
        let tier = self.tiers.shared().filter(|_| asked > 0);
        let Some(tier) = tier else { return Some(first) };
        let n = asked.min(n as usize);
        let share = n as f64 / asked as f64;
        let (found, share) = match question.found.take() {
            None => {
                question.blocks.truncate(n);
                let windows = self.windows_of(&question);
                if !windows.keys.is_empty() {
                    let chain = std::mem::replace(&mut question.blocks, windows);
                    self.ask(tier, Question { found: Some((chain, share)), ..question }, journal);
                    return None;
                }
                (vec![question.blocks], share)
            }
            Some((chain, share)) if n == asked => (vec![chain, question.blocks], share),
            Some(_) => (Vec::new(), 0.0),
        };
        self.lookups.learn(question.wait.begun_ns, share, self.transfers.now_ns);
        for Blocks { keys, tokens } in found.iter().filter(|blocks| !blocks.keys.is_empty()) {
            self.tiers.take_in(tier, keys, tokens);
        }
        Some(first)
    }

    /// Returns the blocks of windows that the tokens behind the chain of a question read.
    fn windows_of(&self, question: &Question) -> Blocks {
        let groups = self.groups.whole().count();
        let Blocks { keys, tokens } = &question.blocks;
        let size = self.block_size as usize;
        let mut blocks = Blocks::default();
        for (at, group) in self.windows(question.before, keys.len() / groups) {
            let at = at * groups;
            blocks.push(content_key::in_group(&keys[at], group), &tokens[at * size..][..size]);
        }
        blocks
    }

    /// Ends the wait for a look-up that is due by now. Returns the hash under which requests wait for the look-up.
    pub fn take_overdue_lookup(&mut self, journal: &mut Journal) -> Option<BlockHash> {
        let (id, first) = self.lookups.take_overdue(self.transfers.now_ns)?;
        journal.decide(Decision::LookupOverdue, id, 0);
        Some(first)
    }
}
