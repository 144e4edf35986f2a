//! Picking a token from logits.
//!
//! The order of steps: bias, repetition penalty, frequency penalty and presence penalty on the logits, temperature, top-k, top-p among the tokens
//! left by top-k, min-p, then one draw. Up to the temperature this is vLLM's order (the docs of `Sampler` in its `v1/sample/sampler.py`), and the
//! penalties are OpenAI's: `logit - count * frequency_penalty - (count > 0) * presence_penalty`, with the counts of generated tokens. The number drawn for the n-th token of a request is a function of the request's seed and n, so neither batching, nor
//! preemption, nor another order of requests changes the number.

use std::cmp::Ordering;

use trunkline_port::{Sampling, Token};

use crate::error::SamplingError;
use crate::kernels::kernel::{exp, vectorised};
use crate::kernels::noise::Noise;
use crate::worker::past::Past;

/// Candidates sorted at first in the search for a nucleus; grows eightfold until the nucleus fits.
const NUCLEUS_GUESS: usize = 256;

/// Refuses parameters without a token to pick. A server calls this function before accepting a request; a worker refuses the whole
/// step.
///
/// # Errors
///
/// `temperature` below 0, `top_p` not above 0 and at most 1, `min_p` not from 0 to 1, `repetition_penalty` not above 0, `frequency_penalty` or
/// `presence_penalty` not from -2 to 2, a bias not from -100 to 100, a biased token not below `vocab`, or any parameter not a finite number.
pub fn check_sampling(sampling: &Sampling, vocab: u32) -> Result<(), SamplingError> {
    let at_least_0 = |value: f32| value >= 0.0 && value.is_finite();
    let within = |value: f32, bound: f32| value.abs() <= bound;
    let checks = [
        ("temperature", sampling.temperature, at_least_0(sampling.temperature), "a number of at least 0"),
        ("top_p", sampling.top_p, sampling.top_p > 0.0 && sampling.top_p <= 1.0, "above 0 and at most 1"),
        ("min_p", sampling.min_p, (0.0..=1.0).contains(&sampling.min_p), "from 0 to 1"),
        (
            "repetition_penalty",
            sampling.repetition_penalty,
            at_least_0(sampling.repetition_penalty) && sampling.repetition_penalty > 0.0,
            "above 0",
        ),
        ("frequency_penalty", sampling.frequency_penalty, within(sampling.frequency_penalty, 2.0), "from -2 to 2"),
        ("presence_penalty", sampling.presence_penalty, within(sampling.presence_penalty, 2.0), "from -2 to 2"),
    ];
    let biases = sampling.logit_bias.entries().iter().map(|(token, bias)| match *token < vocab {
        true => ("logit_bias", *bias, within(*bias, 100.0), "from -100 to 100"),
        false => ("a token of logit_bias", *token as f32, false, "below the number of token ids"),
    });
    match checks.into_iter().chain(biases).find(|(_, _, good, _)| !good) {
        Some((field, value, _, expected)) => Err(SamplingError { field, value, expected }),
        None => Ok(()),
    }
}

/// Picks the next token. `past` are the sequence's tokens, read only if there is a penalty; `n_generated` is the index of the token picked. The
/// parameters MUST have passed [`check_sampling`] and the logits MUST be finite.
pub(crate) fn sample(logits: &[f32], sampling: &Sampling, past: &Past, n_generated: u32) -> Token {
    if !sampling.needs_history() && sampling.logit_bias.is_empty() {
        return pick(logits, sampling, n_generated);
    }
    let mut logits = logits.to_vec();
    for (token, bias) in sampling.logit_bias.entries() {
        logits[*token as usize] += bias;
    }
    for token in past.seen() {
        let logit = &mut logits[token as usize];
        let is_left = *logit > f32::NEG_INFINITY;
        *logit = if *logit > 0.0 { *logit / sampling.repetition_penalty } else { *logit * sampling.repetition_penalty };
        // However large the penalty, a token is not left out: of a structure it may be the only one.
        if is_left {
            *logit = logit.max(f32::MIN);
        }
    }
    for (token, n) in past.counts() {
        let logit = &mut logits[token as usize];
        *logit = *logit - n as f32 * sampling.frequency_penalty - sampling.presence_penalty;
    }
    pick(&logits, sampling, n_generated)
}

fn pick(logits: &[f32], sampling: &Sampling, n_generated: u32) -> Token {
    let best = greedy(logits);
    if sampling.temperature == 0.0 || sampling.top_k == 1 {
        return best;
    }
    // Shares of the most likely token's probability, so that the largest is exactly 1. A tiny temperature overflows to
    // minus infinity, which `exp` maps to next to nothing.
    let (maximum, heat) = (logits[best as usize], sampling.temperature);
    let mut shares = vec![0.0; logits.len()];
    vectorised(
        #[inline(always)]
        || {
            for (share, logit) in shares.iter_mut().zip(logits) {
                *share = if *logit == maximum { 1.0 } else { exp((logit - maximum) / heat) };
            }
        },
    );
    let draw = draw(sampling.seed, n_generated);
    // Tokens that a structure leaves out are at minus infinity.
    let is_left = |token: &Token| logits[*token as usize] > f32::NEG_INFINITY;
    let mut candidates: Vec<Token> = (0..logits.len() as Token).filter(is_left).collect();
    let by_share = |a: &Token, b: &Token| most_first(&shares, *a, *b);
    let k = sampling.top_k as usize;
    // All tokens of the vocabulary stay in the order of their ids.
    if k > 0 && k < logits.len() {
        if k < candidates.len() {
            candidates.select_nth_unstable_by(k, by_share);
            candidates.truncate(k);
        }
        candidates.sort_unstable_by(by_share);
    }
    if sampling.top_p < 1.0 {
        keep_nucleus(&mut candidates, &shares, sampling.top_p);
    }
    candidates.retain(|token| shares[*token as usize] >= sampling.min_p);
    draw_from(&candidates, &shares, draw)
}

/// The most likely token; the lowest id of several.
pub(crate) fn greedy(logits: &[f32]) -> Token {
    let mut best = 0;
    for (token, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = token;
        }
    }
    best as Token
}

/// Larger values come first, then lower ids: an order without ties.
fn most_first(values: &[f32], a: Token, b: Token) -> Ordering {
    values[b as usize].total_cmp(&values[a as usize]).then(a.cmp(&b))
}

/// Keeps the smallest set of most likely candidates with a total share of at least `top_p`.
fn keep_nucleus(candidates: &mut Vec<Token>, shares: &[f32], top_p: f32) {
    let by_share = |a: &Token, b: &Token| most_first(shares, *a, *b);
    let share = |token: &Token| f64::from(shares[*token as usize]);
    let goal = candidates.iter().map(share).sum::<f64>() * f64::from(top_p);
    let mut head = NUCLEUS_GUESS;
    loop {
        if head < candidates.len() {
            candidates.select_nth_unstable_by(head, by_share);
        }
        let sorted = head.min(candidates.len());
        candidates[..sorted].sort_unstable_by(by_share);
        let mut sum = 0.0;
        let reached = candidates[..sorted].iter().position(|token| {
            sum += share(token);
            sum >= goal
        });
        match reached {
            Some(last) => return candidates.truncate(last + 1),
            None if sorted == candidates.len() => return,
            None => head *= 8,
        }
    }
}

/// The candidate at which the running sum of shares passes `draw`, a number in `0 .. 1`, times the total of shares.
fn draw_from(candidates: &[Token], shares: &[f32], draw: f64) -> Token {
    let share = |token: &Token| f64::from(shares[*token as usize]);
    let goal = candidates.iter().map(share).sum::<f64>() * draw;
    let mut sum = 0.0;
    let drawn = candidates.iter().find(|token| {
        sum += share(token);
        sum > goal
    });
    // Rounding can leave the goal a hair above the sum: then it is the last.
    *drawn.or(candidates.last()).expect("the most likely token is never dropped")
}

/// The number for the `n`-th token: the `n`-th of a stream starting at the first number of the stream of `seed`. Streams of seeds
/// such as 0, 1, 2 therefore lie far apart.
fn draw(seed: u64, n: u32) -> f64 {
    let mut noise = Noise::new(Noise::new(seed).bits());
    noise.skip(n.into());
    noise.unit()
}

/// The log probability of `token` and the `n` most likely tokens with theirs, from the model's own logits: before
/// penalty, temperature and truncation. All are finite, because the logits MUST be.
pub(crate) fn log_probabilities(logits: &[f32], token: Token, n: u32) -> (f32, Vec<(Token, f32)>) {
    let maximum = f64::from(logits[greedy(logits) as usize]);
    let sum = logits.iter().map(|logit| (f64::from(*logit) - maximum).exp()).sum::<f64>();
    let normaliser = maximum + sum.ln();
    // Finite logits can lie further apart than the numbers of 32 bits reach.
    let logprob = |token: Token| ((f64::from(logits[token as usize]) - normaliser) as f32).max(f32::MIN);
    let n = logits.len().min(n as usize);
    let mut ranked: Vec<Token> = if n == 0 { Vec::new() } else { (0..logits.len() as Token).collect() };
    let by_logit = |a: &Token, b: &Token| most_first(logits, *a, *b);
    if n < ranked.len() {
        ranked.select_nth_unstable_by(n, by_logit);
        ranked.truncate(n);
    }
    ranked.sort_unstable_by(by_logit);
    (logprob(token), ranked.into_iter().map(|token| (token, logprob(token))).collect())
}

#[cfg(test)]
mod golden;

#[cfg(test)]
mod tests {
    use super::*;

    fn noise(seed: u64, n: usize) -> Vec<f32> {
        let mut noise = Noise::new(seed);
        (0..n).map(|_| noise.uniform(4.0)).collect()
    }

    fn draws(logits: &[f32], sampling: &Sampling, n: u32) -> Vec<Token> {
        (0..n).map(|i| sample(logits, sampling, &Past::default(), i)).collect()
    }

    fn hot() -> Sampling {
        Sampling { temperature: 1.0, seed: 42, ..Sampling::default() }
    }

    #[test]
    fn greedy_takes_the_lowest_id_of_equals() {
        let logits = [1.0, 3.0, -2.0, 3.0];
        assert_eq!(draws(&logits, &Sampling::default(), 1), [1]);
        assert_eq!(draws(&logits, &Sampling { top_k: 1, ..hot() }, 50), [1; 50]);
        assert_eq!(greedy(&[-0.0, 0.0]), 0);
    }

    #[test]
    fn draws_follow_the_probabilities_of_the_temperature() {
        let logits = [0.0, 1.0, 2.0, -1.0];
        for temperature in [0.5f32, 1.0, 2.0] {
            let n = 20_000;
            let drawn = draws(&logits, &Sampling { temperature, ..hot() }, n);
            let weights = logits.map(|logit| (logit / temperature).exp());
            for (token, weight) in weights.iter().enumerate() {
                let expected = weight / weights.iter().sum::<f32>();
                let got = drawn.iter().filter(|drawn| **drawn == token as u32).count() as f32 / n as f32;
                assert!((got - expected).abs() < 0.02, "{token} at {temperature}: {got}, not {expected}");
            }
        }
        assert_eq!(draws(&logits, &Sampling { temperature: 1e-38, ..hot() }, 50), [2; 50]);
    }

    #[test]
    fn a_draw_depends_on_seed_and_index_alone() {
        let logits = noise(1, 500);
        let all = draws(&logits, &hot(), 64);
        assert_eq!(all, draws(&logits, &hot(), 64));
        assert_eq!(sample(&logits, &hot(), &Past::default(), 40), all[40]);
        assert_ne!(all, draws(&logits, &Sampling { seed: 43, ..hot() }, 64));
        // Pinned: these draws are part of what a seed means.
        assert_eq!(draws(&[0.0; 1000], &hot(), 6), [343, 955, 486, 67, 676, 67]);
    }

    #[test]
    fn top_k_draws_only_from_the_k_most_likely() {
        let logits = noise(2, 1000);
        let mut ranked: Vec<Token> = (0..1000).collect();
        ranked.sort_by(|a, b| most_first(&logits, *a, *b));
        for k in [2, 5, 100, 999, 1000, 5000] {
            let drawn = draws(&logits, &Sampling { top_k: k, temperature: 10.0, ..hot() }, 3000);
            let kept = &ranked[..1000.min(k as usize)];
            assert!(drawn.iter().all(|token| kept.contains(token)));
            assert!(k > 5 || kept.iter().all(|token| drawn.contains(token)));
        }
    }

    #[test]
    fn top_p_keeps_the_smallest_set_that_reaches_it() {
        for (n, top_p) in [(10, 0.5), (1000, 0.9), (5000, 0.99), (5000, 0.1), (3, 1e-6)] {
            let shares: Vec<f32> = noise(n as u64, n).into_iter().map(f32::exp).collect();
            let total: f64 = shares.iter().map(|share| f64::from(*share)).sum();
            let mut kept: Vec<Token> = (0..n as Token).collect();
            keep_nucleus(&mut kept, &shares, top_p);
            let mut ranked: Vec<Token> = (0..n as Token).collect();
            ranked.sort_by(|a, b| most_first(&shares, *a, *b));
            assert_eq!(kept, ranked[..kept.len()]);
            let sum = |tokens: &[Token]| tokens.iter().map(|token| f64::from(shares[*token as usize])).sum::<f64>();
            assert!(sum(&kept) >= total * f64::from(top_p));
            assert!(sum(&kept[..kept.len() - 1]) < total * f64::from(top_p));
        }
    }

    #[test]
    fn min_p_drops_what_is_too_far_below_the_most_likely() {
        // Shares 1, 0.5, 0.25, 0.125.
        let logits = [0.0, -1.0, -2.0, -3.0].map(|x: f32| x * std::f32::consts::LN_2);
        let drawn = draws(&logits, &Sampling { min_p: 0.2, ..hot() }, 500);
        assert!(drawn.iter().all(|token| *token < 3) && drawn.contains(&2));
        assert_eq!(draws(&logits, &Sampling { min_p: 1.0, ..hot() }, 50), [0; 50]);
    }

    #[test]
    fn the_penalty_lowers_seen_tokens_of_either_sign_and_only_those() {
        let sampling = |repetition_penalty| Sampling { repetition_penalty, ..Sampling::default() };
        let pick = |logits: &[f32], penalty| {
            let mut past = Past::default();
            past.put(&sampling(penalty), 3, 0, &[0, 1, 130]);
            sample(logits, &sampling(penalty), &past, 0)
        };
        let mut logits = vec![-10.0; 200];
        (logits[0], logits[7]) = (4.0, 3.0);
        assert_eq!([1.0, 1.3, 1.4].map(|penalty| pick(&logits, penalty)), [0, 0, 7]);
        // Negative logits are multiplied: -1 becomes -2, below -1.5.
        let mut logits = vec![-10.0; 200];
        (logits[130], logits[131]) = (-1.0, -1.5);
        assert_eq!([2.0, 0.5].map(|penalty| pick(&logits, penalty)), [131, 130]);
    }

    /// The token that greedy sampling takes of logits 3, 2, 1 and 0, after a prompt of token 3 and generated tokens.
    fn greedy_after(generated: &[Token], change: impl Fn(&mut Sampling)) -> Token {
        let mut sampling = Sampling::default();
        change(&mut sampling);
        let mut past = Past::default();
        past.put(&sampling, 1, 0, &[3]);
        generated.iter().for_each(|token| past.push(&sampling, *token));
        sample(&[3.0, 2.0, 1.0, 0.0], &sampling, &past, generated.len() as u32)
    }

    #[test]
    fn a_frequency_penalty_counts_and_a_presence_penalty_does_not() {
        let frequency = |penalty| move |sampling: &mut Sampling| sampling.frequency_penalty = penalty;
        let presence = |penalty| move |sampling: &mut Sampling| sampling.presence_penalty = penalty;
        let after =
            |generated: &[Token]| [greedy_after(generated, frequency(0.6)), greedy_after(generated, presence(0.6))];
        assert_eq!(after(&[]), [0, 0]);
        assert_eq!(after(&[0]), [0, 0]);
        assert_eq!(after(&[0, 0]), [1, 0]);
        assert_eq!(greedy_after(&[0], presence(1.5)), 1);
        assert_eq!(greedy_after(&[0, 0, 0, 1, 1], presence(1.5)), 0);
        // The prompt does not count: a bonus for what was said leaves token 3 alone.
        assert_eq!(greedy_after(&[2], presence(-2.0)), 0);
        assert_eq!(greedy_after(&[2, 2], frequency(-2.0)), 2);
        assert_eq!(greedy_after(&[], frequency(-2.0)), 0);
    }

    #[test]
    fn a_bias_forces_and_bans_and_comes_before_the_penalties() {
        let bias = |entries: &[(Token, f32)]| entries.iter().copied().collect::<trunkline_port::LogitBias>();
        assert_eq!(greedy_after(&[], |sampling| sampling.logit_bias = bias(&[(3, 100.0)])), 3);
        assert_eq!(greedy_after(&[], |sampling| sampling.logit_bias = bias(&[(0, -100.0), (1, -100.0)])), 2);
        // (3 - 2.5) / 2 is above (2 - 1.8) and 1 - 0.8; divided first, 3 / 2 - 2.5 would be below.
        let both = |sampling: &mut Sampling| {
            sampling.logit_bias = bias(&[(0, -2.5), (1, -1.8), (2, -0.8)]);
            sampling.repetition_penalty = 2.0;
        };
        assert_eq!(greedy_after(&[0], both), 0);
        let drawn = Sampling { logit_bias: bias(&[(1, 100.0)]), ..hot() };
        assert_eq!(draws(&[0.0; 50], &drawn, 50), [1; 50]);
    }

    #[test]
    fn log_probabilities_are_a_softmax_of_the_raw_logits() {
        let logits = noise(3, 300);
        let (logprob, top) = log_probabilities(&logits, 17, 300);
        let total: f64 = top.iter().map(|(_, logprob)| f64::from(*logprob).exp()).sum();
        assert!((total - 1.0).abs() < 1e-5);
        assert!(top.windows(2).all(|pair| pair[0].1 >= pair[1].1));
        assert_eq!(top.iter().find(|(token, _)| *token == 17).unwrap().1, logprob);
        assert_eq!(log_probabilities(&logits, 17, 5), (logprob, top[..5].to_vec()));
        assert_eq!(log_probabilities(&logits, 17, 0), (logprob, Vec::new()));
        assert_eq!(log_probabilities(&[5.0, 5.0], 1, 2).1, [(0, 0.5f32.ln()), (1, 0.5f32.ln())]);
    }

    #[test]
    fn parameters_out_of_range_are_refused_by_name() {
        let good = Sampling::default;
        assert_eq!(check_sampling(&good(), 9), Ok(()));
        let bias = |entry: (Token, f32)| Sampling { logit_bias: [entry].into_iter().collect(), ..good() };
        for (sampling, field) in [
            (Sampling { temperature: -1.0, ..good() }, "temperature"),
            (Sampling { temperature: f32::NAN, ..good() }, "temperature"),
            (Sampling { top_p: 0.0, ..good() }, "top_p"),
            (Sampling { top_p: 1.5, ..good() }, "top_p"),
            (Sampling { min_p: -0.1, ..good() }, "min_p"),
            (Sampling { min_p: f32::NAN, ..good() }, "min_p"),
            (Sampling { repetition_penalty: 0.0, ..good() }, "repetition_penalty"),
            (Sampling { repetition_penalty: f32::INFINITY, ..good() }, "repetition_penalty"),
            (Sampling { frequency_penalty: 2.1, ..good() }, "frequency_penalty"),
            (Sampling { presence_penalty: f32::NAN, ..good() }, "presence_penalty"),
            (bias((1, 101.0)), "logit_bias"),
            (bias((1, f32::NAN)), "logit_bias"),
            (bias((9, 1.0)), "a token of logit_bias"),
        ] {
            assert_eq!(check_sampling(&sampling, 9).unwrap_err().field, field);
        }
        assert_eq!(check_sampling(&bias((8, -100.0)), 9), Ok(()));
    }
}
