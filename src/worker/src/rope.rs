//! Rotary position embeddings: pairs of a head's elements are turned by an angle proportional to the position.
//!
//! Element `i` is paired with element `i + head_dim / 2`, the layout of Hugging Face checkpoints. Frequencies and angles are
//! rounded to F32 where the reference implementation rounds: at far positions the model was trained with this rounding.

use std::f64::consts::TAU;

use crate::config::{ModelConfig, RopeScaling};

/// The frequencies of one model, radians per position.
pub(crate) struct Rope {
    frequencies: Vec<f32>,
}

impl Rope {
    /// The frequencies for `config`.
    pub(crate) fn new(config: &ModelConfig) -> Self {
        let dim = config.head_dim as usize;
        let frequencies = (0..dim / 2)
            .map(|i| {
                let frequency = 1.0 / config.rope_theta.powf((2 * i) as f64 / dim as f64);
                config.rope_scaling.map_or(frequency, |scaling| scaled(frequency, &scaling)) as f32
            })
            .collect();
        Self { frequencies }
    }

    /// Appends the cosines and sines of the angles at `position`, `head_dim / 2` each.
    pub(crate) fn angles(&self, position: u32, cos: &mut Vec<f32>, sin: &mut Vec<f32>) {
        for frequency in &self.frequencies {
            let (s, c) = f64::from(position as f32 * frequency).sin_cos();
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

/// Llama 3.1: wavelengths longer than the original context divided by `low_freq_factor` are stretched by `factor`, wavelengths
/// shorter than the original context divided by `high_freq_factor` are kept, and between the two is a straight line.
fn scaled(frequency: f64, scaling: &RopeScaling) -> f64 {
    let turns = f64::from(scaling.original_context) * frequency / TAU;
    let kept = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
    let kept = kept.clamp(0.0, 1.0);
    frequency * kept + frequency / scaling.factor * (1.0 - kept)
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
        let scaling = RopeScaling { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context: 1000 };
        let got = rope(8, 10_000.0, Some(scaling)).frequencies;
        let third = 0.01 * 0.197_183 + 0.01 / 8.0 * (1.0 - 0.197_183);
        for (got, expected) in got.iter().zip([1.0, 0.1, third, 0.001 / 8.0]) {
            assert!((got - expected).abs() < 1e-6 * expected, "{got} is not {expected}");
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
        // A quarter turn maps the first half to the second.
        let mut head = [1.0, 0.0];
        rotate(&mut head, &[0.0], &[1.0]);
        assert_eq!(head, [0.0, 1.0]);
    }
}
