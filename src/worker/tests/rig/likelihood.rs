//! Log probabilities from logits, for comparisons with other libraries.

/// Natural logarithm of the probability that `logits` give to `token`.
pub fn log_probability(logits: &[f32], token: u32) -> f64 {
    let largest = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    f64::from(logits[token as usize] - largest) - sum.ln()
}
