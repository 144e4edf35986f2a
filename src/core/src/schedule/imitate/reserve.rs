//! Room for output at admission: SGLang's new-token ratio (`PrefillAdder` and `NewTokenRatioTracker`, version 0.5).
//!
//! An engine running prompts first would fill the device with prompts, and preempt requests when the answers grow. With a reserve, a
//! request is admitted if the prompt and the whole output fit in addition to a share of the tokens left to generate for the running requests.
//! Most answers end early, so the share falls with every step of decodes; a preemption shows a share too small, and estimates the
//! share from the output of the remaining requests. After a request found no room, none is tried until the batch is smaller.

use crate::config::OutputReserve;
use crate::request::sequence::Sequence;

/// Maximum number of tokens of output that count of one request.
const OUTPUT_MAX: u32 = 4096;
/// Further tokens expected of each remaining request after a preemption.
const AFTER_PREEMPTION: u64 = 20;

/// The reserve of a core, and the tokens reserved in the scheduling pass under way.
#[derive(Debug, Default)]
pub(crate) struct Reserve {
    settings: Option<OutputReserve>,
    /// Share of the tokens left to generate for running requests, 0 to 1.
    share: f64,
    /// Tokens reserved in the scheduling pass under way.
    tokens: f64,
    /// Decodes when the pass began.
    decodes: u32,
    /// Running requests at the time a request found no room: none is admitted until fewer run.
    full_at: Option<u32>,
    /// `true` if a request was preempted in the scheduling pass under way.
    preempted: bool,
    /// Slots of ended sequences in steps in flight, with the tokens of the blocks free after the steps.
    ended: Vec<(usize, u64)>,
}

impl Reserve {
    /// Creates the reserve of a configuration; without settings, nothing is kept free.
    pub fn new(settings: Option<OutputReserve>) -> Self {
        let mut reserve = Self { settings, ..Self::default() };
        reserve.reset();
        reserve
    }

    /// Returns the share to its first value: the core has no request.
    pub fn reset(&mut self) {
        self.share = self.settings.map_or(0.0, |settings| f64::from(settings.permille) / 1e3);
    }

    /// Begins a scheduling pass with `running` requests in the batch. Returns `false` if none may be admitted.
    pub fn begin_pass<'a>(&mut self, running: impl Iterator<Item = &'a Sequence>) -> bool {
        self.preempted = false;
        if self.settings.is_none() {
            return true;
        }
        let (mut batched, mut decodes, mut left) = (0, 0, 0);
        for seq in running {
            batched += 1;
            if seq.decodes_next() {
                decodes += 1;
                left += u64::from((seq.max_tokens - seq.generated()).min(OUTPUT_MAX));
            }
        }
        self.decodes = decodes;
        self.tokens = left as f64 * self.share;
        self.full_at = self.full_at.filter(|full_at| batched >= *full_at && decodes > 0);
        self.full_at.is_none()
    }

    /// Adds a request whose prompt ends in this pass, with the whole output.
    pub fn begin_output(&mut self, seq: &Sequence) {
        self.tokens += f64::from(seq.max_tokens.min(OUTPUT_MAX) + 1);
    }

    /// Returns `true` if a request in need of `tokens` of the `usable` tokens may be admitted without touching the reserve.
    pub fn has_room(&self, seq: &Sequence, tokens: u64, usable: u64) -> bool {
        // A request alone always fits, or would have been refused.
        if self.settings.is_none() || self.tokens == 0.0 {
            return true;
        }
        let output = (seq.max_tokens - seq.generated()).min(OUTPUT_MAX);
        let usable = usable + self.ended.iter().map(|(_, tokens)| tokens).sum::<u64>();
        ((tokens + u64::from(output) + 1) as f64) < usable as f64 - self.tokens
    }

    /// Takes note of a request that found no room, while `batched` requests are in the batch.
    pub fn found_full(&mut self, batched: u32) {
        // Without decodes there is nothing to wait for but prompts.
        if self.settings.is_some() && self.decodes > 0 {
            self.full_at = Some(batched);
        }
    }

    /// Counts tokens of an ended sequence as usable, although steps in flight still use the blocks.
    pub fn end(&mut self, slot: usize, tokens: impl FnOnce() -> u64) {
        if self.settings.is_some() {
            self.ended.push((slot, tokens()));
        }
    }

    /// Takes note of the release of an ended sequence's blocks.
    pub fn released(&mut self, slot: usize) {
        self.ended.retain(|(ended, _)| *ended != slot);
    }

    /// Takes note of a step of decodes.
    pub fn decode_step(&mut self) {
        let Some(settings) = self.settings.filter(|_| !self.preempted) else { return };
        let [first, least] = [settings.permille, settings.least_permille].map(|permille| f64::from(permille) / 1e3);
        self.share = (self.share - (first - least) / f64::from(settings.decay_steps)).max(least);
    }

    /// Takes note of a step of decodes without a scheduling pass.
    pub fn skip_decode_step(&mut self) {
        self.preempted = false;
        self.decode_step();
    }

    /// Takes note of a preemption; `remaining` requests run on.
    pub fn preempted<'a>(&mut self, remaining: impl Iterator<Item = &'a Sequence>) {
        if self.settings.is_none() {
            return;
        }
        let (mut expected, mut most) = (0, 1);
        for seq in remaining {
            expected += u64::from(seq.generated()) + AFTER_PREEMPTION;
            most += u64::from(seq.max_tokens);
        }
        self.share = (expected as f64 / most as f64).min(1.0);
        self.preempted = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::blocks::hash::Namespace;
    use crate::names::ids::RequestId;
    use crate::request::Request;

    fn sequence(id: u64, max_tokens: u32) -> Sequence {
        Sequence::new(Request::new(RequestId(id), Namespace::default().root(), vec![1; 8], max_tokens), id, 0)
    }

    fn reserve(permille: u32) -> Reserve {
        Reserve::new(Some(OutputReserve { permille, least_permille: 100, decay_steps: 100 }))
    }

    #[test]
    fn a_preemption_sets_the_share_to_what_the_remaining_ones_generated_and_20_more_each() {
        let (mut reserve, [mut one, other]) = (reserve(700), [sequence(1, 100), sequence(2, 60)]);
        (0..5).for_each(|token| one.push(token));
        reserve.preempted([&one, &other].into_iter());
        assert_eq!(reserve.share, 45.0 / 161.0);
        reserve.preempted([&sequence(3, 4)].into_iter());
        assert_eq!(reserve.share, 1.0, "no more than all");
    }

    #[test]
    fn requests_are_admitted_beside_the_whole_output_of_prompts_that_end_in_the_pass() {
        let mut reserve = reserve(700);
        assert!(reserve.begin_pass(std::iter::empty()));
        let (first, next) = (sequence(1, 100), sequence(2, 30));
        assert!(reserve.has_room(&next, 8, 0), "a request alone fits");
        reserve.begin_output(&first);
        // 8 tokens, an output of 30 and one more, in addition to 101.
        assert!(!reserve.has_room(&next, 8, 140) && reserve.has_room(&next, 8, 141));
        reserve.end(5, || 4);
        assert!(reserve.has_room(&next, 8, 137), "blocks of an ended request count");
        reserve.released(5);
        assert!(!reserve.has_room(&next, 8, 137));
    }
}
