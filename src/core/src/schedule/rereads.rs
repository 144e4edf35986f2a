//! Second readings of prompts, for scorers that ask for them ([`crate::h2o::Needs::reread_tokens`]).
//!
//! After the first token of an answer the prompt is read again, part by part: an *inner request* runs the prompt, found in the
//! cache, and a copy of the part behind it. How much the copy reads of the part is the score of the part's blocks. No later question
//! counts, so the scores are kept with published blocks, for every request with the prefix.
//!
//! To a worker an inner request is one like any other. It waits, is preempted and moves between places as others do, in the place of the
//! request it is for; but an inner request reports nothing, publishes nothing, and ends with the other.

use std::ops::Range;

use crate::names::ids::{BlockHandle, RequestId};

/// A prompt being read again.
#[derive(Debug)]
pub(crate) struct Reading {
    /// Request whose prompt is read.
    pub request: RequestId,
    /// Slot of the request.
    pub slot: usize,
    /// Scores of the prompt's full blocks, 0 for those to be read.
    pub scores: Vec<f32>,
    /// Blocks read by the inner request; the next part begins behind.
    pub part: Range<usize>,
    /// Inner request under way, and the slot.
    pub inner: Option<(RequestId, usize)>,
    /// `true` once all rows of the part were run.
    pub is_read: bool,
}

/// All prompts being read again, and the scores kept with published blocks.
#[derive(Debug, Default)]
pub(crate) struct Rereads {
    /// Readings, the first begun first.
    pub readings: Vec<Reading>,
    /// Scores of published blocks by slot, with the generation of the block.
    kept: Vec<(u32, f32)>,
    /// Inner requests so far.
    begun: u64,
}

impl Rereads {
    /// Begins to read the prompt of the request in `slot` again, unless a reading is under way: that goes on after a preemption.
    pub fn begin(&mut self, request: RequestId, slot: usize) {
        if self.readings.iter().any(|reading| reading.request == request) {
            return;
        }
        self.readings.push(Reading { request, slot, scores: Vec::new(), part: 0..0, inner: None, is_read: false });
    }

    /// Returns an id for the next inner request.
    pub fn next_id(&mut self) -> RequestId {
        self.begun += 1;
        RequestId(RequestId::INNER | self.begun)
    }

    /// Takes in the scores of a step of an inner request, by block of the table, in `n_lists` lists. `is_last` says that the last rows were run.
    pub fn observe(&mut self, inner: RequestId, scores: &[f32], n_lists: usize, is_last: bool) {
        let Some(reading) = self.readings.iter_mut().find(|reading| reading.inner.is_some_and(|(id, _)| id == inner))
        else {
            return;
        };
        reading.is_read |= is_last;
        for scores in scores.chunks_exact((scores.len() / n_lists).max(1)) {
            let reported = scores.get(reading.part.clone()).unwrap_or_default();
            for (score, new) in reading.scores[reading.part.clone()].iter_mut().zip(reported) {
                *score = score.max(*new);
            }
        }
    }

    /// Keeps the score of a published block.
    pub fn keep(&mut self, block: BlockHandle, score: f32) {
        let at = block.index as usize;
        if self.kept.len() <= at {
            self.kept.resize(at + 1, (u32::MAX, 0.0));
        }
        self.kept[at] = (block.generation, score);
    }

    /// Returns the score kept with a published block.
    pub fn kept(&self, block: BlockHandle) -> Option<f32> {
        let (generation, score) = *self.kept.get(block.index as usize)?;
        (generation == block.generation).then_some(score)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_stay_with_a_block_until_its_slot_is_freed() {
        let mut rereads = Rereads::default();
        let block = BlockHandle { index: 3, generation: 7 };
        assert_eq!(rereads.kept(block), None);
        rereads.keep(block, 0.5);
        assert_eq!(rereads.kept(block), Some(0.5));
        assert_eq!(rereads.kept(BlockHandle { generation: 8, ..block }), None, "another block has the slot");
        assert_eq!(rereads.kept(BlockHandle { index: 2, ..block }), None);
    }

    #[test]
    fn a_part_takes_the_highest_score_of_its_own_blocks() {
        let mut rereads = Rereads::default();
        rereads.begin(RequestId(1), 0);
        let inner = rereads.next_id();
        assert!(inner.is_inner() && inner != rereads.next_id());
        let reading = &mut rereads.readings[0];
        (reading.scores, reading.part, reading.inner) = (vec![0.0; 4], 1..3, Some((inner, 1)));
        rereads.observe(inner, &[0.9, 0.2, 0.4, 0.8, 0.7], 1, false);
        rereads.observe(inner, &[0.9, 0.3, 0.1, 0.8, 0.7, 0.6], 1, true);
        rereads.observe(RequestId(9), &[1.0; 4], 1, true);
        assert_eq!(rereads.readings[0].scores, [0.0, 0.3, 0.4, 0.0]);
        assert!(rereads.readings[0].is_read);
    }
}
