//! Comparison of the distributions of next tokens.

/// Returns the divergence (Kullback-Leibler) of log probabilities from those of a baseline, nats.
pub fn divergence(baseline: &[f32], case: &[f32]) -> f64 {
    let terms = baseline.iter().zip(case).map(|(p, q)| f64::from(p.exp()) * f64::from(p - q));
    terms.sum::<f64>().max(0.0)
}

/// Returns the logarithms of the probabilities of tokens.
pub fn log_softmax(logits: &[f32]) -> Vec<f32> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - max).exp()).sum();
    let log = sum.ln() as f32;
    logits.iter().map(|logit| logit - max - log).collect()
}
