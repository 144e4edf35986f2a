//! The tokens that may be next.

use trunkline_port::Token;

/// Bits of a word of [`Allowed`].
const BITS: u32 = u32::BITS;

/// A set of tokens of one vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    words: Vec<u32>,
}

impl Allowed {
    /// Makes the set whose token `n` is bit `n % 32` of word `n / 32`.
    pub fn of_words(words: Vec<u32>) -> Self {
        Self { words }
    }

    /// Returns `true` if the set has the token.
    pub fn has(&self, token: Token) -> bool {
        self.words.get((token / BITS) as usize).is_some_and(|word| word >> (token % BITS) & 1 == 1)
    }

    /// Returns the tokens, ascending.
    pub fn tokens(&self) -> impl Iterator<Item = Token> {
        self.words.iter().zip(0..).flat_map(|(word, at)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros())?;
                left &= left - 1;
                Some(at * BITS + bit)
            })
        })
    }

    /// Takes all other tokens out of logits: minus infinity in their places.
    pub fn masked(&self, logits: &[f32]) -> Vec<f32> {
        let mut masked = vec![f32::NEG_INFINITY; logits.len()];
        for token in self.tokens() {
            if let Some(logit) = masked.get_mut(token as usize) {
                *logit = logits[token as usize];
            }
        }
        masked
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_a_set_keep_their_logits_and_no_others() {
        let set = Allowed::of_words(vec![1 << 31 | 1, 0, 0b110]);
        assert_eq!(set.tokens().collect::<Vec<_>>(), [0, 31, 65, 66]);
        assert!(set.has(65) && !set.has(64) && !set.has(1000));
        let logits: Vec<f32> = (0..66u8).map(f32::from).collect();
        let masked = set.masked(&logits);
        assert_eq!(masked.len(), 66, "a set may reach beyond the logits");
        let left: Vec<f32> = masked.into_iter().filter(|logit| logit.is_finite()).collect();
        assert_eq!(left, [0.0, 31.0, 65.0]);
    }
}
