//! The tokens of a sequence as far as sampling depends on them: those that occur at all, and how often each was generated.

use std::collections::BTreeMap;

use trunkline_port::{Sampling, Token};

/// Tokens of a sequence that sampling depends on. Empty for parameters that need none.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Past {
    /// Tokens that occur, in the prompt or behind: one bit each. Kept with a repetition penalty.
    words: Vec<u64>,
    /// Generated tokens in order, and the number of each. Kept with a frequency or presence penalty.
    generated: Vec<Token>,
    counts: BTreeMap<Token, u32>,
}

impl Past {
    /// Takes in tokens of the sequence, the first at position `at`; those from position `n_prompt` on were generated. A step may send tokens again that
    /// are known already: they take the place of all from `at` on.
    pub(crate) fn put(&mut self, sampling: &Sampling, n_prompt: u32, at: u32, tokens: &[Token]) {
        if sampling.repetition_penalty != 1.0 {
            tokens.iter().for_each(|token| self.insert(*token));
        }
        if sampling.counts_generated() {
            self.cut(at.saturating_sub(n_prompt) as usize);
            let generated = tokens.iter().skip(n_prompt.saturating_sub(at) as usize);
            generated.for_each(|token| self.count(*token));
        }
    }

    /// Takes in a token that was generated.
    pub(crate) fn push(&mut self, sampling: &Sampling, token: Token) {
        if sampling.repetition_penalty != 1.0 {
            self.insert(token);
        }
        if sampling.counts_generated() {
            self.count(token);
        }
    }

    /// Returns the tokens that occur, ascending.
    pub(crate) fn seen(&self) -> impl Iterator<Item = Token> {
        self.words
            .iter()
            .enumerate()
            .flat_map(|(i, word)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| i as Token * 64 + bit))
    }

    /// Returns the generated tokens with their numbers.
    pub(crate) fn counts(&self) -> impl Iterator<Item = (Token, u32)> {
        self.counts.iter().map(|(token, n)| (*token, *n))
    }

    fn insert(&mut self, token: Token) {
        let word = token as usize / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (token % 64);
    }

    fn count(&mut self, token: Token) {
        self.generated.push(token);
        *self.counts.entry(token).or_default() += 1;
    }

    /// Forgets the generated tokens from number `n` on.
    fn cut(&mut self, n: usize) {
        for token in self.generated.drain(n.min(self.generated.len())..) {
            if let Some(count) = self.counts.get_mut(&token) {
                *count -= 1;
                if *count == 0 {
                    self.counts.remove(&token);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting() -> Sampling {
        Sampling { presence_penalty: 1.0, ..Sampling::default() }
    }

    fn counts(past: &Past) -> Vec<(Token, u32)> {
        past.counts().collect()
    }

    #[test]
    fn only_generated_tokens_are_counted_wherever_the_prompt_ends() {
        let whole = [7, 7, 8, 9, 9];
        for cut in 0..=whole.len() {
            let mut past = Past::default();
            past.put(&counting(), 3, 0, &whole[..cut]);
            past.put(&counting(), 3, cut as u32, &whole[cut..]);
            assert_eq!(counts(&past), [(9, 2)], "{cut}");
            assert_eq!(past.seen().count(), 0);
        }
    }

    #[test]
    fn tokens_that_come_again_count_once_and_others_in_their_place_replace_them() {
        let mut past = Past::default();
        past.put(&counting(), 2, 0, &[1, 2]);
        [3, 3, 4].into_iter().for_each(|token| past.push(&counting(), token));
        // The last one is run by the next step, twice as after a failure.
        for _ in 0..2 {
            past.put(&counting(), 2, 4, &[4]);
            assert_eq!(counts(&past), [(3, 2), (4, 1)]);
        }
        past.put(&counting(), 2, 3, &[5]);
        assert_eq!(counts(&past), [(3, 1), (5, 1)]);
    }

    #[test]
    fn nothing_is_kept_that_no_parameter_needs() {
        let mut past = Past::default();
        past.put(&Sampling::default(), 0, 0, &[1, 2]);
        past.push(&Sampling::default(), 3);
        assert_eq!(past, Past::default());
        let repetition = Sampling { repetition_penalty: 1.5, ..Sampling::default() };
        past.put(&repetition, 1, 0, &[0, 130]);
        past.push(&repetition, 1);
        assert_eq!(past.seen().collect::<Vec<_>>(), [0, 1, 130]);
        assert_eq!(past.counts().count(), 0);
    }
}
