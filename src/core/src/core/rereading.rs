//! The course of second readings ([`crate::schedule::rereads`]): parts one after another, and the end.

use super::Core;
use crate::core::event::Action;
use crate::h2o::Mode;
use crate::journal::digest::Decision;
use crate::request::sequence::Sequence;
use crate::request::{FinishReason, Request};
use crate::schedule::planners::Planners;
use crate::schedule::rereads::{Reading, Rereads};
use crate::schedule::state::State;

impl Core {
    /// Begins and ends parts of the prompts being read again.
    pub(super) fn tend_rereads(&mut self, actions: &mut Vec<Action>) {
        let mut at = 0;
        while at < self.state.rereads.readings.len() {
            if self.tend_reread(at, actions) {
                at += 1;
            } else {
                self.state.rereads.readings.remove(at);
            }
        }
    }

    /// Goes on with a reading. Returns `false` at the end.
    fn tend_reread(&mut self, at: usize, actions: &mut Vec<Action>) -> bool {
        let State { sequences, rereads, .. } = &mut self.state;
        let reading = &mut rereads.readings[at];
        let waits = |seq: &Sequence| seq.cold.planner.as_ref().is_some_and(|planner| planner.state.awaits_reread());
        let seq = sequences.get(reading.slot).filter(|seq| seq.id == reading.request && seq.ending.is_none());
        let is_awaited = seq.is_some_and(waits);
        if let Some((id, slot)) = reading.inner {
            let is_under_way = self.by_id.get(&id) == Some(&slot);
            if is_under_way && !is_awaited {
                self.end(slot, FinishReason::Abort, actions);
                return false;
            }
            if is_under_way {
                return true;
            }
            reading.inner = None;
            if !std::mem::take(&mut reading.is_read) {
                self.give_up_reading(at);
                return false;
            }
        }
        is_awaited && self.read_on(at)
    }

    /// Notes that a reading failed, so that a prompt that fails the worker when repeated does so once.
    fn give_up_reading(&mut self, at: usize) {
        let State { sequences, rereads, .. } = &mut self.state;
        let reading = &rereads.readings[at];
        let Some(seq) = sequences.get_mut(reading.slot).filter(|seq| seq.id == reading.request) else { return };
        seq.cold.history.reread_failed = true;
        if let Some(planner) = &mut seq.cold.planner {
            planner.state.give_up_reread();
        }
    }

    /// Gives up the readings with an inner request in one of the slots of a failed step.
    pub(super) fn give_up_readings(&mut self, failed: impl Fn(usize) -> bool) {
        for at in 0..self.state.rereads.readings.len() {
            if self.state.rereads.readings[at].inner.is_some_and(|(_, slot)| failed(slot)) {
                self.give_up_reading(at);
            }
        }
    }

    /// Begins the next part of a reading, or hands the scores to the planner. Returns `false` after the last part.
    fn read_on(&mut self, at: usize) -> bool {
        let State { sequences, rereads, planners, config, .. } = &mut self.state;
        let slot = rereads.readings[at].slot;
        let seq = &mut sequences[slot];
        seq.settle();
        keep_scores(rereads, at, seq);
        let Some(part) = next_part(rereads, at, seq, planners, config.max_context, config.device_blocks) else {
            let n = seq.computed.div_ceil(planners.block_size) as usize;
            let Reading { scores, part, .. } = &mut rereads.readings[at];
            let Some(planner) = &mut seq.cold.planner else { return false };
            if part.end < scores.len() {
                // There is no room to read the rest, whose blocks would all be dropped.
                planner.state.give_up_reread();
            } else {
                scores.resize(n.max(scores.len()), 0.0);
                planner.state.report_reread(&*planners.scorer, &planners.settings[0], scores, planners.block_size);
            }
            return false;
        };
        rereads.readings[at].part = part;
        self.begin_part(at);
        true
    }

    /// Lets the inner request of a part wait for admission, in the background.
    fn begin_part(&mut self, at: usize) {
        let now_ns = self.now_ns;
        let State { sequences, rereads, config, journal, waiting, .. } = &mut self.state;
        let id = rereads.next_id();
        let reading = &mut rereads.readings[at];
        let size = config.block_size;
        let (outer, part) = (&sequences[reading.slot], reading.part.clone());
        let prompt = &outer.tokens()[..outer.prompt_tokens as usize];
        let lead = part.start.saturating_sub(1)..part.start;
        let tokens =
            |blocks: &std::ops::Range<usize>| &prompt[blocks.start * size as usize..blocks.end * size as usize];
        let mut request = Request::new(id, outer.cold.root, [prompt, tokens(&lead), tokens(&part)].concat(), 1);
        request.hashes = outer.cold.hashes[..prompt.len() / size as usize].to_vec();
        request.hash_prompt(size);
        (request.tenant, request.priority, request.background) = (outer.tenant, outer.cold.view.priority, true);
        (request.deadline_ns, request.h2o) = (outer.cold.view.deadline_ns, Some(Mode::Off));
        let mut inner = Sequence::new(request, outer.cold.view.arrival + 1, now_ns);
        inner.read_again(outer.prompt_tokens + (lead.len() as u32) * size);
        journal.stats.h2o.h2o_reread_tokens += u64::from(inner.n_tokens() - outer.prompt_tokens);
        journal.decide(Decision::Reread, outer.id.0, (part.start as u64) << 32 | part.end as u64);
        waiting.joined(inner.tenant);
        let slot = sequences.insert(inner);
        reading.inner = Some((id, slot));
        self.by_id.insert(id, slot);
        self.state.background.enter(slot, &self.state.sequences[slot]);
        self.state.wait(slot);
    }
}

/// Keeps the scores of the part just read with the blocks that are published.
fn keep_scores(rereads: &mut Rereads, at: usize, seq: &Sequence) {
    let Reading { part, scores, .. } = &rereads.readings[at];
    if part.end > scores.len() {
        return;
    }
    let published = part.clone().take_while(|block| *block < seq.published as usize);
    let scored: Vec<_> = published.filter_map(|block| Some((*seq.table.get(block)?, scores[block]))).collect();
    scored.into_iter().for_each(|(block, score)| rereads.keep(block, score));
}

/// Returns the next part of a prompt to be read again: blocks without kept scores, as many as the scorer asks for and context and
/// device have room for. `None` if there is none.
fn next_part(
    rereads: &mut Rereads,
    at: usize,
    seq: &Sequence,
    planners: &Planners,
    max_context: u32,
    device_blocks: u32,
) -> Option<std::ops::Range<usize>> {
    let size = planners.block_size;
    let n = (seq.prompt_tokens / size) as usize;
    let kept = |rereads: &Rereads, block: usize| seq.table.get(block).and_then(|block| rereads.kept(*block));
    rereads.readings[at].scores.resize(n, 0.0);
    let mut start = rereads.readings[at].part.end;
    while start < n
        && let Some(score) = kept(rereads, start)
    {
        rereads.readings[at].scores[start] = score;
        start += 1;
    }
    // Behind the prompt: the block before the part, the part, and a token sampled for nothing.
    let room = max_context.min(device_blocks.saturating_mul(size)).saturating_sub(seq.prompt_tokens + size + 1);
    let most = (planners.scorer.needs().reread_tokens.min(room) / size) as usize;
    let blocks = (start..n).take(most).take_while(|block| kept(rereads, *block).is_none()).count();
    rereads.readings[at].part = start..start;
    (blocks > 0).then(|| start..start + blocks)
}
