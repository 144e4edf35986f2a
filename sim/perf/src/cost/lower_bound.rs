//! Physical lower bound of the step time.

use super::experts::ExpertShape;
use super::work::{Demand, Work};
use super::{Parallel, StepShape};
use crate::hardware::Hardware;
use crate::model::Model;

/// Lower bound of the step time on a group of devices: all FLOPs at peak, or all bytes at full bandwidth, spread evenly over the
/// devices. Of the experts, those are read that the tokens cannot do without: as many as each token uses.
///
/// The bound would be wrong only for steps with their KV in the L2 cache. Weights never fit there.
#[derive(Clone, Copy, Debug)]
pub struct LowerBound {
    demand: Demand,
    flops_s: f64,
    bytes_s: f64,
    /// Experts of a layer, and layers with experts; `None` for a dense model.
    experts: Option<(ExpertShape, f64)>,
    /// Ranks that share the experts.
    ranks: f64,
}

impl LowerBound {
    /// Returns the lower bound for `model` on `hardware`.
    pub fn new(hardware: &Hardware, model: &Model, parallel: Parallel) -> Self {
        let devices = f64::from(parallel.devices());
        Self {
            demand: Demand::new(model, parallel),
            flops_s: hardware.flops_s(model.precision.arithmetic) * devices,
            bytes_s: hardware.bandwidth_bytes_s * devices,
            experts: ExpertShape::of(model).map(|shape| (shape, model.expert_layers() as f64)),
            ranks: parallel.data.into(),
        }
    }

    /// Returns the lower bound for a step, seconds; with data-parallel attention of a rank whose other ranks idle.
    pub fn step_s(&self, shape: &StepShape) -> f64 {
        self.among_s(shape, shape.tokens)
    }

    /// Returns the lower bound for the ranks of a group in lock step, seconds.
    pub fn lock_step_s(&self, shapes: &[StepShape]) -> f64 {
        let tokens = shapes.iter().map(|shape| shape.tokens).sum();
        shapes.iter().map(|shape| self.among_s(shape, tokens)).fold(0.0, f64::max)
    }

    /// Returns the lower bound for a rank among ranks with `tokens` in all, seconds.
    fn among_s(&self, shape: &StepShape, tokens: u64) -> f64 {
        self.total_s(self.demand.parts(shape).total(), tokens)
    }

    /// Returns the lower bound for work without experts, of a rank among ranks with `tokens` in all, seconds.
    pub(super) fn total_s(&self, total: Work, tokens: u64) -> f64 {
        let least = |(shape, layers): (ExpertShape, f64)| shape.least(tokens as f64).times(layers / self.ranks);
        let experts = self.experts.map_or(Work::default(), least);
        total.plus(experts).time_s(self.flops_s, self.bytes_s)
    }

    /// Returns the greater of `time_s` and the lower bound, seconds, and besides the time of copies within the device: a read and a write of each
    /// byte.
    pub fn hold(&self, time_s: f64, shape: &StepShape) -> f64 {
        let held_s = time_s.max(self.step_s(shape));
        match shape.copied_tokens {
            0 => held_s,
            n => held_s + 2.0 * self.demand.kv_bytes(n) / self.bytes_s,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::{CostModel, Fitted, Resident, Roofline, StepTime, Streaming, StreamingPlan};
    use crate::{hardware, model};

    /// Uniform from 0 to 2^exponent, exponent uniform up to `bits`: as many small as large ones.
    fn draw(state: &mut u64, bits: u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 20) & ((1 << (*state % (bits + 1))) - 1)
    }

    fn random_shape(state: &mut u64) -> StepShape {
        let mut shape = StepShape::decodes(draw(state, 12), 1 + draw(state, 17));
        for _ in 0..draw(state, 3) {
            shape = shape.and(StepShape::prefill(2 + draw(state, 14), draw(state, 17)));
        }
        shape
    }

    #[test]
    fn no_model_is_faster_than_the_hardware() {
        let mut state = 0x9e37_79b9_7f4a_7c15;
        let nothing = StepTime { model: "", ..StepTime::default() };
        for hardware in hardware::presets() {
            for model in model::PRESETS {
                for (tensor, pipeline) in [(1, 1), (4, 1), (2, 2), (1, 8)] {
                    let parallel = Parallel { tensor, pipeline, ..Parallel::ONE };
                    let devices = f64::from(tensor * pipeline);
                    let limit = LowerBound::new(hardware, model, parallel);
                    let roofline = Roofline::parallel(hardware, model, parallel);
                    let fitted = Fitted::new(nothing, limit);
                    let streaming = Streaming::new(
                        StreamingPlan::new(model, Resident::all_in_host(model)),
                        Box::new(Roofline::parallel(hardware, model, parallel)),
                    )
                    .unwrap();
                    let models: [&dyn CostModel; 3] = [&roofline, &fitted, &streaming];
                    for _ in 0..20 {
                        let shape = random_shape(&mut state);
                        // Computed apart from the lower_bound.
                        let flops = 2.0 * (model.active_elements() * shape.tokens) as f64
                            + 2.0 * (model.head_elements() * shape.sampled) as f64
                            + (model.pair_flops() * (shape.prefill_pairs + shape.decode_pairs)) as f64;
                        let elements = if shape.tokens > 0 { model.active_elements() } else { model.common_elements() };
                        let bytes = model.precision.feed_forward.bytes(elements) as f64
                            + model.kv_bytes_per_token() as f64
                                * (shape.prefill_kv_tokens + shape.decode_kv_tokens) as f64;
                        for cost in models {
                            let time_s = cost.step_ns(&shape) as f64 / 1e9;
                            let place =
                                format!("{} {} {} {parallel} {shape:?}", cost.name(), hardware.name, model.name);
                            assert!(
                                time_s >= flops / hardware.flops_s(model.precision.arithmetic) / devices,
                                "{place}"
                            );
                            assert!(time_s >= bytes / hardware.bandwidth_bytes_s / devices, "{place}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_slow_enough_is_left_alone() {
        let limit = LowerBound::new(
            hardware::by_name("h100-80g").unwrap(),
            model::by_name("llama-3.1-8b").unwrap(),
            Parallel::ONE,
        );
        let shape = StepShape::decodes(1, 1);
        // 15 GB at 3.35 TB/s.
        assert!((0.0044..0.0046).contains(&limit.step_s(&shape)), "{}", limit.step_s(&shape));
        assert_eq!(limit.hold(1.0, &shape), 1.0);
        // 1,000 tokens of 128 KiB are read and written at 3.35 TB/s.
        let copied = limit.hold(1.0, &StepShape { copied_tokens: 1_000, ..shape }) - 1.0;
        assert!((copied / (2.0 * 1_000.0 * 131_072.0 / limit.bytes_s) - 1.0).abs() < 1e-6, "{copied}");
        assert_eq!(limit.hold(0.001, &shape), limit.step_s(&shape));
    }
}
