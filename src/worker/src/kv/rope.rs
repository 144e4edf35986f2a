//! Rotary position embeddings: pairs of a head's elements are turned by an angle proportional to the position.
//!
//! Element `i` is paired with element `i + head_dim / 2`, the layout of Hugging Face checkpoints. Frequencies and angles are
//! rounded to F32 where the reference implementation rounds: at far positions the model was trained with this rounding.

use std::f64::consts::TAU;

use crate::config::{ModelConfig, RopeScaling};

/// The frequencies of one model.
pub(crate) struct Rope {
    /// Radians per position, one for each pair of elements.
    frequencies: Vec<f32>,
    /// Multiplier of cosines and sines; 1 except for YaRN.
    attention_factor: f32,
}

impl Rope {
    /// The frequencies for `config`.
    pub(crate) fn new(config: &ModelConfig) -> Self {
        let dim = config.head_dim as usize;
        let plain = |i: usize| 1.0 / config.rope_theta.powf((2 * i) as f64 / dim as f64);
        let scaled = |i: usize| match &config.rope_scaling {
            None => plain(i),
            Some(RopeScaling::Linear { factor }) => plain(i) / factor,
            Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context }) => {
                // Wavelengths longer than the original context divided by `low_freq_factor` are stretched by `factor`, wavelengths
                // shorter than the original context divided by `high_freq_factor` are kept, and between is a straight line.
                let turns = f64::from(*original_context) * plain(i) / TAU;
                let kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
                stretched(plain(i), *factor, kept)
            }
            Some(RopeScaling::Yarn { factor, .. }) => stretched(plain(i), *factor, yarn_kept(config, i)),
            Some(RopeScaling::Divisors(divisors)) => plain(i) / f64::from(divisors[i]),
        };
        let attention_factor = match &config.rope_scaling {
            Some(RopeScaling::Yarn { attention_factor, .. }) => *attention_factor as f32,
            _ => 1.0,
        };
        Self { frequencies: (0..dim / 2).map(|i| scaled(i) as f32).collect(), attention_factor }
    }

    /// Returns the radians per position of each pair of elements.
    pub(crate) fn frequencies(&self) -> &[f32] {
        &self.frequencies
    }

    /// Appends the cosines and sines of the angles at `position`, `head_dim / 2` each.
    pub(crate) fn angles(&self, position: u32, cos: &mut Vec<f32>, sin: &mut Vec<f32>) {
        for frequency in &self.frequencies {
            let (s, c) = f64::from(position as f32 * frequency).sin_cos();
            cos.push(c as f32 * self.attention_factor);
            sin.push(s as f32 * self.attention_factor);
        }
    }
}

impl Rope {
    /// Appends the cosines and sines of the angles by which a key is turned that moves by `shift` positions to `position`, `head_dim / 2` each:
    /// differences of the rounded angles at both positions.
    pub(crate) fn turns(&self, position: u32, shift: i32, cos: &mut Vec<f32>, sin: &mut Vec<f32>) {
        let before = i64::from(position) - i64::from(shift);
        for frequency in &self.frequencies {
            let turn = f64::from(position as f32 * frequency) - f64::from(before as f32 * frequency);
            let (s, c) = turn.sin_cos();
            cos.push(c as f32);
            sin.push(s as f32);
        }
    }
}

/// Turns the element pairs of one head.
pub(crate) fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// Returns `frequency`, of which the share `kept` (bounded by 0 and 1) stays and the rest is divided by `factor`.
fn stretched(frequency: f64, factor: f64, kept: f64) -> f64 {
    let kept = kept.clamp(0.0, 1.0);
    frequency * kept + frequency / factor * (1.0 - kept)
}

/// Returns the share of frequency `i` that YaRN keeps: all below the dimension that turns `beta_fast` times within the original
/// context, nothing above the dimension that turns `beta_slow` times, and a straight line over dimensions between.
///
/// Bounds and roundings are those of `_compute_yarn_parameters` in Hugging Face transformers.
fn yarn_kept(config: &ModelConfig, i: usize) -> f64 {
    let Some(RopeScaling::Yarn { beta_fast, beta_slow, original_context, truncate, .. }) = &config.rope_scaling else {
        return 1.0;
    };
    let dim = f64::from(config.head_dim);
    let dimension = |turns: f64| {
        let wavelength = f64::from(*original_context) / (turns * TAU);
        dim * wavelength.ln() / (2.0 * config.rope_theta.ln())
    };
    let (mut low, mut high) = (dimension(*beta_fast), dimension(*beta_slow));
    if *truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(dim - 1.0));
    if low == high {
        high += 0.001;
    }
    1.0 - (i as f64 - low) / (high - low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;

    fn rope(head_dim: u32, rope_theta: f64, rope_scaling: Option<RopeScaling>) -> Rope {
        Rope::new(&ModelConfig { head_dim, rope_theta, rope_scaling, ..Model::seeded(0).config().clone() })
    }

    #[test]
    fn frequencies_by_hand() {
        assert_eq!(rope(4, 10_000.0, None).frequencies, [1.0, 0.01]);
        assert_eq!(rope(8, 10_000.0, None).frequencies, [1.0, 0.1, 0.01, 0.001]);
    }

    #[test]
    fn llama3_scaling_by_hand() {
        // Wavelengths of head_dim 8, theta 10000: 6.28, 62.8, 628, 6283 positions. With an original context of 1000 they
        // fit 159, 15.9, 1.59 and 0.159 times. Factors 1 and 4 keep the first two, divide the last by 8, and keep
        // (1.59155 - 1) / 3 = 0.19718 of the third.
        let scaling =
            RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 1000 };
        let got = rope(8, 10_000.0, Some(scaling)).frequencies;
        let third = 0.01 * 0.197_183 + 0.01 / 8.0 * (1.0 - 0.197_183);
        for (got, expected) in got.iter().zip([1.0, 0.1, third, 0.001 / 8.0]) {
            assert!((got - expected).abs() < 1e-6 * expected, "{got} is not {expected}");
        }
    }

    #[test]
    fn linear_scaling_and_divisors_divide_every_frequency() {
        let linear = rope(8, 10_000.0, Some(RopeScaling::Linear { factor: 4.0 }));
        assert_eq!(linear.frequencies, [0.25, 0.025, 0.0025, 0.00025]);
        let divisors = RopeScaling::Divisors(vec![1.0, 2.0, 4.0, 8.0]);
        assert_eq!(rope(8, 10_000.0, Some(divisors)).frequencies, [1.0, 0.05, 0.0025, 0.000125]);
    }

    #[test]
    fn yarn_scaling_by_hand() {
        // Theta 10000 and head_dim 16: frequencies 10^(-i/2). With an original context of 1000, 32 turns are at dimension
        // 16 ln(1000 / (32 tau)) / (2 ln 10000) = 1.39, rounded down to 1; one turn is at 4.40, rounded up to 5.
        let yarn = |truncate| {
            Some(RopeScaling::Yarn {
                factor: 4.0,
                attention_factor: 1.5,
                beta_fast: 32.0,
                beta_slow: 1.0,
                original_context: 1000,
                truncate,
            })
        };
        let kept = |i: f64, low: f64, high: f64| (1.0 - (i - low) / (high - low)).clamp(0.0, 1.0);
        for (truncate, low, high) in [(true, 1.0, 5.0), (false, 1.393_340, 4.403_640)] {
            let got = rope(16, 10_000.0, yarn(truncate));
            for (i, got) in got.frequencies.iter().enumerate() {
                let (i, kept) = (i as f64, kept(i as f64, low, high));
                let expected = 10f64.powf(-i / 2.0) * (kept + (1.0 - kept) / 4.0);
                assert!((f64::from(*got) - expected).abs() < 1e-6 * expected, "{got} is not {expected}");
            }
            let (mut cos, mut sin) = (Vec::new(), Vec::new());
            got.angles(0, &mut cos, &mut sin);
            assert_eq!((cos[7], sin[7]), (1.5, 0.0));
        }
    }

    #[test]
    fn rotation_keeps_lengths_and_scores_depend_on_the_distance_alone() {
        let rope = rope(8, 100.0, None);
        let turned = |vector: [f32; 8], position| {
            let (mut cos, mut sin, mut vector) = (Vec::new(), Vec::new(), vector);
            rope.angles(position, &mut cos, &mut sin);
            rotate(&mut vector, &cos, &sin);
            vector
        };
        let q = [1.0, -2.0, 0.5, 3.0, -1.0, 0.25, 2.0, 1.5];
        let k = [0.5, 1.0, -1.5, 2.0, 1.0, -0.5, 0.75, -2.0];
        let dot = |a: [f32; 8], b: [f32; 8]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
        assert_eq!(turned(q, 0), q);
        assert!((dot(turned(q, 77), turned(q, 77)) - dot(q, q)).abs() < 1e-4);
        let near = dot(turned(q, 9), turned(k, 4));
        let far = dot(turned(q, 905), turned(k, 900));
        assert!((near - far).abs() < 1e-3, "{near} {far}");
        let (mut cos, mut sin, mut moved) = (Vec::new(), Vec::new(), turned(k, 900));
        rope.turns(37, 37 - 900, &mut cos, &mut sin);
        rotate(&mut moved, &cos, &sin);
        assert!(moved.iter().zip(turned(k, 37)).all(|(a, b)| (a - b).abs() < 1e-5), "{moved:?}");
        // A quarter turn maps the first half to the second.
        let mut head = [1.0, 0.0];
        rotate(&mut head, &[0.0], &[1.0]);
        assert_eq!(head, [0.0, 1.0]);
    }
}
