//! The work of steps and the time that they take, for routers that learn from both.
//!
//! A fast-forward skips decode steps of one batch, and must change no decision. So of the steps of the same decodes only the first counts, in a
//! fast-forward as without one.

use std::collections::VecDeque;

use trunkline_core::{Step, StepSeq};

/// Work of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepWork {
    /// Prompt tokens computed.
    pub tokens: u64,
    /// Pairs of these tokens and those that they attend to.
    pub pairs: u64,
    /// Sequences that decode.
    pub decodes: u64,
    /// Tokens that the decodes attend to.
    pub read: u64,
}

impl StepWork {
    /// Returns the work of a step without drafts.
    pub fn of(step: &Step) -> Self {
        let mut work = Self::default();
        for seq in &step.seqs {
            let (n, before) = (u64::from(seq.n_tokens), u64::from(seq.computed));
            if is_decode(seq) {
                work.decodes += 1;
                work.read += before + 1;
            } else {
                work.tokens += n;
                work.pairs += n * before + n * (n + 1) / 2;
            }
        }
        work
    }
}

fn is_decode(seq: &StepSeq) -> bool {
    seq.n_tokens == 1 && seq.n_generated > 0
}

/// A step in flight, with its work if it counts.
#[derive(Clone, Copy, Debug)]
struct Begun {
    id: u64,
    work: Option<StepWork>,
}

/// The steps in flight of one engine.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepWatch {
    begun: VecDeque<Begun>,
    /// Names the sequences of the last step; 0 before the first.
    batch: u64,
}

impl StepWatch {
    /// Notes that a step begins.
    pub fn begin(&mut self, step: &Step) {
        // A sum: decodes of one batch may change places.
        let name = |seq: &StepSeq| seq.request.0.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let batch = step.seqs.iter().fold(0, |sum: u64, seq| sum.wrapping_add(name(seq)));
        let is_new = std::mem::replace(&mut self.batch, batch) != batch;
        let counts = is_new || step.seqs.last().is_some_and(|seq| !is_decode(seq));
        self.begun.push_back(Begun { id: step.id, work: counts.then(|| StepWork::of(step)) });
    }

    /// Notes that the step `id` was answered. Returns its work if it counts. Steps before it that were not answered are lost.
    pub fn end(&mut self, id: u64) -> Option<StepWork> {
        while self.begun.front().is_some_and(|begun| begun.id < id) {
            self.begun.pop_front();
        }
        self.begun.pop_front_if(|begun| begun.id == id)?.work
    }

    /// Notes that the step in flight was answered, and others of its batch with it.
    pub fn end_first(&mut self) -> Option<StepWork> {
        self.begun.pop_front()?.work
    }
}

#[cfg(test)]
mod tests {
    use trunkline_core::RequestId;

    use super::*;

    fn step(id: u64, seqs: &[(u64, u32, u32, u32)]) -> Step {
        let seq = |(request, computed, n_tokens, n_generated): &(u64, u32, u32, u32)| StepSeq {
            request: RequestId(*request),
            computed: *computed,
            n_tokens: *n_tokens,
            n_generated: *n_generated,
            ..StepSeq::default()
        };
        Step { id, seqs: seqs.iter().map(seq).collect(), ..Step::default() }
    }

    #[test]
    fn prompts_make_pairs_and_decodes_read() {
        let work = StepWork::of(&step(1, &[(1, 99, 1, 5), (2, 0, 1, 0), (3, 10, 4, 0), (4, 6, 2, 3)]));
        // A prompt of one token, a chunk of four after ten, and two tokens again after a preemption.
        assert_eq!(work, StepWork { tokens: 7, pairs: 1 + 50 + 15, decodes: 1, read: 100 });
    }

    #[test]
    fn of_the_steps_of_a_batch_the_first_counts_and_of_prompts_all() {
        let mut watch = StepWatch::default();
        let mut counts = |id, seqs: &[(u64, u32, u32, u32)]| {
            watch.begin(&step(id, seqs));
            watch.end(id).is_some()
        };
        assert!(counts(1, &[(1, 0, 8, 0)]) && counts(2, &[(1, 8, 8, 0)]), "chunks of one prompt");
        assert!(counts(3, &[(1, 16, 1, 1), (2, 30, 1, 4)]));
        assert!(!counts(4, &[(2, 31, 1, 5), (1, 17, 1, 2)]), "the same batch");
        assert!(counts(5, &[(2, 32, 1, 6)]));
        // Steps that are lost are not taken for later ones.
        watch.begin(&step(6, &[(3, 0, 8, 0)]));
        watch.begin(&step(7, &[(4, 0, 9, 0)]));
        assert_eq!((watch.end(5), watch.end(7).map(|work| work.tokens), watch.end(7)), (None, Some(9), None));
        watch.begin(&step(8, &[(5, 0, 3, 0)]));
        assert_eq!((watch.end_first().map(|work| work.tokens), watch.end_first()), (Some(3), None));
    }
}
