//! Steps of decodes alone: most steps of a replay. What depends on the number of decodes alone is computed once, in the same way.

use super::super::StepShape;
use super::super::work::Work;
use super::Roofline;

/// Maximum number of decodes in a step with terms kept.
const DECODES_MAX: u64 = 512;

/// Terms of a step of one number of decodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decodes {
    /// Time of the matrices of the layers, seconds.
    layers_s: f64,
    /// Overheads of the layers, seconds.
    overheads_s: f64,
    experts_s: f64,
    head_s: f64,
    /// Matrices and recurrent states of the layers, and the output matrix, for the lower bound.
    matrices: Work,
}

impl Roofline {
    /// Returns the terms of steps of 0 decodes, of 1, and so on. Empty with several stages, which a step may pass in parts.
    pub(super) fn all_decodes(&self) -> Vec<Decodes> {
        if self.parallel.pipeline > 1 {
            return Vec::new();
        }
        let of = |n| {
            let shape = StepShape::decodes(n, 0);
            let parts = self.demand.parts(&shape);
            Decodes {
                layers_s: self.layers_s(&parts, 1.0),
                overheads_s: self.overheads_s(n as f64),
                experts_s: self.experts_s(n as f64),
                head_s: self.head_s(&parts),
                matrices: parts.layers.plus(parts.recurrent).plus(parts.head),
            }
        };
        (0..=DECODES_MAX).map(of).collect()
    }

    /// Returns the time of a step of decodes alone, each of one token, seconds; `None` of another step. The sum has the order of the general
    /// one, so that both are equal to the last bit.
    pub(super) fn decodes_s(&self, shape: &StepShape) -> Option<f64> {
        let n = shape.decodes;
        if shape.prefills + shape.copied_tokens > 0 || (shape.tokens, shape.sampled) != (n, n) {
            return None;
        }
        let terms = self.decodes.get(usize::try_from(n).ok()?)?;
        let attention = self.demand.decode(shape);
        let layers_s = terms.layers_s + self.attention_s(attention, 1.0) + terms.overheads_s;
        let step_s = layers_s + terms.experts_s + terms.head_s + self.hardware.step_overhead_s;
        Some(step_s.max(self.limit.total_s(terms.matrices.plus(attention), shape.tokens)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Parallel;
    use super::*;
    use crate::model::tests::qwen3_next;
    use crate::{hardware, model};

    #[test]
    fn decodes_alone_take_as_long_as_in_general() {
        let mut checked = 0;
        let preset = |name: &str| *model::by_name(name).unwrap();
        for (model, parallel) in [
            (preset("llama-3.1-8b"), "tp1"),
            (preset("llama-3.1-70b"), "tp4"),
            (preset("qwen3-30b-a3b"), "tp2ep2"),
            (preset("mixtral-8x7b"), "tp2"),
            (preset("llama-3.1-70b"), "tp2pp2"),
            (qwen3_next(), "tp2"),
        ] {
            for hardware in hardware::presets() {
                let parallel: Parallel = parallel.parse().unwrap();
                let roofline = Roofline::parallel(hardware, &model, parallel);
                for (n, context) in (0..=DECODES_MAX + 2).map(|n| (n, 1 + n * n * 7_919 % 100_003)) {
                    let shape = StepShape { decode_kv_tokens: n * context + n % 3, ..StepShape::decodes(n, context) };
                    let general_s = roofline.limit.hold(roofline.step_s(&shape), &shape);
                    let step_s = roofline.decodes_s(&shape);
                    assert_eq!(step_s.is_some(), n <= DECODES_MAX && parallel.pipeline == 1, "{shape:?}");
                    assert_eq!(step_s.unwrap_or(general_s).to_bits(), general_s.to_bits(), "{} {shape:?}", model.name);
                    checked += usize::from(step_s.is_some());
                }
                assert_eq!(roofline.decodes_s(&StepShape::decodes(2, 9).and(StepShape::prefill(3, 0))), None);
                assert_eq!(roofline.decodes_s(&StepShape { tokens: 6, ..StepShape::decodes(2, 9) }), None);
            }
        }
        assert!(checked > 10_000);
    }
}
