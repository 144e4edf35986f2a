//! Log probabilities of the tokens of a prompt.
//!
//! The row of a position says how likely the token behind it was, so a prompt of `n` tokens has `n - 1` values. Steps ask for those of their chunks,
//! and each counts once, whether the sequence is preempted, fails with its worker or computes its prompt again.

use super::Sequence;

/// Values of a prompt that a request asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Valued {
    /// Most likely tokens to report with each token; `None` for no log probabilities of the prompt.
    pub n_top: Option<u32>,
    /// Leading positions whose values were reported.
    pub reported: u32,
}

impl Valued {
    /// Begins with the values of a prompt of which `imported_tokens` generated tokens are known already.
    pub fn new(n_top: Option<u32>, prompt_tokens: u32, imported_tokens: u32) -> Self {
        // The answer with the first token has the last values.
        Self { n_top, reported: if imported_tokens > 0 { prompt_tokens } else { 0 } }
    }
}

impl Sequence {
    /// Returns the first position whose value is still to be reported: from there on every position of the prompt MUST be run, also if it is cached.
    pub fn unvalued_from(&self) -> Option<u32> {
        let Valued { n_top, reported } = self.cold.valued;
        n_top.map(|_| reported).filter(|from| from + 1 < self.prompt_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Namespace, Request, RequestId};

    #[test]
    fn all_but_the_last_position_of_a_prompt_have_a_value_if_it_is_asked_for() {
        let root = Namespace::default().root();
        let of = |n_prompt: usize, prompt_logprobs, generated: &[u32]| {
            let request = Request::new(RequestId(1), root, vec![7; n_prompt], 9);
            Sequence::new(Request { prompt_logprobs, generated: generated.to_vec(), ..request }, 0, 0)
        };
        assert_eq!(of(4, None, &[]).unvalued_from(), None);
        assert_eq!(of(1, Some(3), &[]).unvalued_from(), None);
        assert_eq!(of(4, Some(3), &[5]).unvalued_from(), None, "the first token came with them");
        let mut seq = of(4, Some(0), &[]);
        let from = [0, 1, 2, 3].map(|reported| {
            seq.cold.valued.reported = reported;
            seq.unvalued_from()
        });
        assert_eq!(from, [Some(0), Some(1), Some(2), None]);
    }
}
