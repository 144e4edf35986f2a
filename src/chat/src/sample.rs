//! Sampling of a long text for a summary: the beginning, the end, and short spans of the middle.
//!
//! The first and the last quarter of the budget go to the first and the last tokens. The other half goes to spans of
//! [`SPAN_TOKENS`] tokens in equal distances over the whole middle, so that no part of the middle is left out.

use trunkline_port::Token;

/// Tokens of a span of the middle: about a clause of text, where a single token says nothing.
pub const SPAN_TOKENS: usize = 16;

/// Returns `budget` tokens of a text, at most; the whole text if the budget has room.
pub fn sample(tokens: &[Token], budget: usize) -> Vec<Token> {
    if tokens.len() <= budget {
        return tokens.to_vec();
    }
    let (head, tail) = (budget / 4, budget / 4);
    let middle = &tokens[head..tokens.len() - tail];
    let wanted = budget - head - tail;
    let spans = wanted.div_ceil(SPAN_TOKENS);
    let mut out = tokens[..head].to_vec();
    let left_out = middle.len() - wanted;
    for at in 0..spans {
        // Tokens before the span: those of earlier spans, and a share of what is left out, half of it before the first span.
        let (taken, next) = (wanted * at / spans, wanted * (at + 1) / spans);
        let from = taken + left_out * (2 * at + 1) / (2 * spans);
        out.extend_from_slice(&middle[from..from + next - taken]);
    }
    out.extend_from_slice(&tokens[tokens.len() - tail..]);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_text_within_the_budget_is_taken_whole() {
        let text: Vec<Token> = (0..100).collect();
        assert_eq!(sample(&text, 100), text);
        assert_eq!(sample(&text, 1000), text);
    }

    #[test]
    fn the_middle_is_sampled_to_its_end() {
        // With a step rounded down to 1, the second half of such a middle is never seen.
        let text: Vec<Token> = (0..383).collect();
        let sampled = sample(&text, 256);
        assert_eq!(sampled.len(), 256);
        assert_eq!((&sampled[..64], &sampled[192..]), (&text[..64], &text[319..]));
        let gaps = sampled.windows(2).map(|pair| pair[1] - pair[0]).max();
        assert!(gaps.is_some_and(|gap| gap <= 17), "{gaps:?}");
        assert!(sampled[64..192].iter().any(|token| *token > 290), "the end of the middle is there");
    }

    proptest! {
        #[test]
        fn samples_keep_the_order_and_the_budget(len in 0_u32..3000, budget in 0_usize..1500) {
            let text: Vec<Token> = (0..len).collect();
            let sampled = sample(&text, budget);
            prop_assert_eq!(sampled.len(), text.len().min(budget));
            prop_assert!(sampled.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }
}
