//! Drafts for speculative decoding, taken from the sequence's own past, without a second model.
//!
//! Text repeats itself: answers quote prompts, code repeats names, tables repeat rows. The last few tokens are therefore looked up
//! earlier in the sequence, and the tokens found after the earlier occurrence are the draft: prompt lookup decoding (Saxena 2023),
//! the n-gram proposer of vLLM. A wrong draft costs the rows of the draft, never a token: see
//! [`trunkline_port::StepSeq::n_drafts`].

use trunkline_port::Token;

/// The longest run of last tokens to look for. Longer runs seldom draft better and are seldom found.
const NGRAM_MAX: usize = 4;

/// The shortest run of last tokens to look for. A single token is found nearly always, and says nearly nothing of the next token.
const NGRAM_MIN: usize = 2;

/// Maximum number of tokens searched back from the end: some microseconds. Earlier occurrences are not found.
const WINDOW_TOKENS: usize = 8192;

/// Drafts `n` tokens to follow `tokens`; none if the end of `tokens` has not occurred before.
///
/// The longest run counts that ends `tokens` and occurs earlier, and of the occurrences of the run the last. Where the occurrence
/// runs into the end of `tokens` the draft continues with the draft's own tokens: a sequence going round in a circle is drafted
/// whole.
pub(crate) fn draft(tokens: &[Token], n: usize) -> Vec<Token> {
    let Some(distance) = (if n == 0 { None } else { last_occurrence(tokens) }) else { return Vec::new() };
    tokens[tokens.len() - distance..].iter().copied().cycle().take(n).collect()
}

/// Returns the distance in tokens from the end of `tokens` back to the end of the last occurrence of the longest known run.
fn last_occurrence(tokens: &[Token]) -> Option<usize> {
    let tokens = &tokens[tokens.len().saturating_sub(WINDOW_TOKENS)..];
    let (last, before) = tokens.split_last()?;
    let mut best = None;
    let mut best_len = NGRAM_MIN - 1;
    for (at, _) in before.iter().enumerate().rev().filter(|(_, token)| *token == last) {
        let len = run_length(&tokens[..=at], tokens);
        if len > best_len {
            (best, best_len) = (Some(before.len() - at), len);
        }
        // At `at` tokens from the beginning no longer run can end.
        if best_len == NGRAM_MAX || at <= best_len {
            break;
        }
    }
    best
}

/// Returns the number of tokens common to the ends of two sequences, [`NGRAM_MAX`] at most.
fn run_length(a: &[Token], b: &[Token]) -> usize {
    a.iter().rev().zip(b.iter().rev()).take(NGRAM_MAX).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_followed_the_longest_run_follows_again() {
        // After 1 2 came 3; after 9 1 2 came 4.
        assert_eq!(draft(&[9, 1, 2, 4, 5, 6, 1, 2, 3, 7, 9, 1, 2], 3), [4, 5, 6]);
        // Of runs of the same length the later one counts.
        assert_eq!(draft(&[1, 2, 4, 5, 1, 2, 3, 7, 1, 2], 2), [3, 7]);
        // A run of four is long enough, however much longer the earlier one is.
        assert_eq!(draft(&[7, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 6, 7, 1, 2, 3, 4], 1), [6]);
    }

    #[test]
    fn what_never_occurred_is_not_guessed() {
        assert!(draft(&[], 5).is_empty());
        assert!(draft(&[1], 5).is_empty());
        assert!(draft(&[1, 2, 3, 4, 5], 5).is_empty());
        assert!(draft(&[1, 2, 1, 2], 0).is_empty());
        // One token alone says too little.
        assert!(draft(&[3, 2, 1, 2], 5).is_empty());
        assert!(draft(&[2, 2], 5).is_empty());
    }

    #[test]
    fn a_circle_is_guessed_round_and_round() {
        assert_eq!(draft(&[5, 5, 5], 4), [5, 5, 5, 5]);
        assert_eq!(draft(&[0, 1, 2, 3, 1, 2, 3, 1, 2], 7), [3, 1, 2, 3, 1, 2, 3]);
        assert_eq!(draft(&[1, 2, 1, 2], 3), [1, 2, 1]);
    }

    #[test]
    fn the_search_ends_at_the_window() {
        let mut tokens = vec![1, 2, 3, 4];
        tokens.extend(10..WINDOW_TOKENS as Token + 3);
        tokens.extend([1, 2, 3]);
        assert_eq!(draft(&tokens, 1), [4]);
        // One token further away only the run of two is left; then none.
        tokens.insert(4, 5);
        assert_eq!(draft(&tokens, 1), [4]);
        tokens.insert(4, 6);
        assert!(draft(&tokens, 1).is_empty());
    }

    #[test]
    fn the_search_finds_what_a_plain_one_finds() {
        let mut noise = crate::kernels::noise::Noise::new(3);
        for _ in 0..500 {
            let len = (noise.unit() * 60.0) as usize;
            let tokens: Vec<Token> = (0..len).map(|_| (noise.unit() * 3.0) as Token).collect();
            let plain = (NGRAM_MIN..=NGRAM_MAX).rev().find_map(|n| {
                let end = tokens.len().checked_sub(n)?;
                (0..end).rev().find(|at| tokens[*at..at + n] == tokens[end..]).map(|at| end - at)
            });
            assert_eq!(last_occurrence(&tokens), plain, "{tokens:?}");
        }
    }
}
