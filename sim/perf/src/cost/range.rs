//! How long real steps take, next to modelled ones: a range of factors, with its reason.

use std::fmt;

use serde::Serialize;

use crate::hardware::Hardware;
use crate::model::{Arithmetic, Model};

use super::Parallel;

/// Times of real steps over modelled ones, in runs of engines rather than of kernels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TimeRange {
    /// Least factor.
    pub low: f64,
    /// Greatest factor.
    pub high: f64,
    /// Time that a step takes beyond the greatest factor if launches are not hidden, seconds; 0 if they are known to be.
    pub launches_s: f64,
    /// Reason of the width.
    pub why: &'static str,
}

/// Dense models on devices with measured kernels. Published runs take 0.87 to 1.39 times as long: TensorRT-LLM's performance overview (Llama-3.3-70B in
/// FP8 on H200), SGLang (Qwen3-32B in FP8 on H200, ai-dynamo/aisimulate#120), vLLM 0.10 (Qwen2-7B on A100, dennislee22/vLLM-benchmarking).
const DENSE: (f64, f64, &str) = (
    0.75,
    1.5,
    "runs of dense models that engines' users published take 0.87 to 1.39 times as long: kernels differ, and the work of the engine between them is not modelled",
);
/// What nobody measured here. Published runs of models with experts, but for the next ones, take 0.9 to 1.9 times as long: TensorRT-LLM's overview (Qwen3 and
/// DeepSeek-R1 in FP8 on H200, Qwen3 in NVFP4 on B200, gpt-oss on H100).
const WIDE: (f64, f64) = (0.5, 2.5);
/// Experts of FP8 in one tensor-parallel replica: runs of MiniMax-M2.5 on 8 H200 in vLLM that SemiAnalysisAI/InferenceX published as experimental take 2.6
/// to 3.3 times as long, the longest with the smallest batches.
const SHARED_EXPERTS: (f64, f64, &str) = (
    0.5,
    3.0,
    "published runs of experts in FP8 on 8 devices take 2.6 to 3.3 times as long, most in small batches; launches explain a part, the rest is not known",
);

/// Launches of a product with weights in blocks of FP8, seconds, each with the rounding of its input: least time of a product of more than 31 tokens by
/// aiconfigurator's tables of vLLM 0.24 on H100 and H200, whatever its size (59 us of fewer). A CUDA graph hides most of it.
const BLOCK_LAUNCH_S: f64 = 84e-6;
/// Time that a small all-reduce takes outside of a CUDA graph, and not within one, seconds: 21 us less 4.5 by the same tables.
const REDUCE_LAUNCH_S: f64 = 16.5e-6;
/// Products of attention with weights in a layer: queries, keys and values in one, and the output.
const ATTENTION_PRODUCTS: f64 = 2.0;

impl TimeRange {
    /// Returns the range for the steps of a roofline.
    pub(super) fn of(hardware: &Hardware, model: &Model, parallel: Parallel) -> Self {
        let Some(why) = unmeasured(hardware, model, parallel) else {
            let (low, high, why) = DENSE;
            return Self { low, high, launches_s: 0.0, why };
        };
        let launches_s = launches_s(model, parallel);
        let is_shared = launches_s > 0.0 && parallel.tensor > 1;
        let (low, high, why) = if is_shared { SHARED_EXPERTS } else { (WIDE.0, WIDE.1, why) };
        Self { low, high, launches_s, why }
    }

    /// Returns the range for the steps of a table of kernels.
    pub(super) fn of_table(model: &Model) -> Self {
        let (low, high, why) = DENSE;
        match model.experts {
            None => Self { low, high, launches_s: 0.0, why },
            Some(_) => Self { low: WIDE.0, high: WIDE.1, launches_s: 0.0, why: EXPERTS },
        }
    }

    /// Returns the widest of the ranges; `None` if there is none, or one is unknown.
    pub fn widest(ranges: impl Iterator<Item = Option<Self>>) -> Option<Self> {
        ranges.reduce(|a, b| Some(a?.or_wider(b?))).flatten()
    }

    /// Returns the range that contains both; the reason is that of the wider one.
    #[must_use]
    pub fn or_wider(self, other: Self) -> Self {
        let why = if other.high / other.low > self.high / self.low { other.why } else { self.why };
        Self {
            low: self.low.min(other.low),
            high: self.high.max(other.high),
            launches_s: self.launches_s.max(other.launches_s),
            why,
        }
    }

    /// Returns the least time of a step that is modelled as `ns`, nanoseconds, and the greatest.
    pub fn ns(&self, ns: u64) -> [u64; 2] {
        let high = ns as f64 * self.high + self.launches_s * 1e9;
        [(ns as f64 * self.low).round() as u64, high.round() as u64]
    }
}

/// Returns the launches of a step of a model with experts that no CUDA graph hides.
fn launches_s(model: &Model, parallel: Parallel) -> f64 {
    let has_blocks = model.experts.is_some() && model.precision.arithmetic == Arithmetic::Float8;
    let reduces_s = if parallel.tensor > 1 { 2.0 * REDUCE_LAUNCH_S } else { 0.0 };
    if has_blocks { model.layers as f64 * (ATTENTION_PRODUCTS * BLOCK_LAUNCH_S + reduces_s) } else { 0.0 }
}

const EXPERTS: &str = "kernels of experts differ by engine, number format and choice of experts: single ones measured on H100 and H200 take 0.6 to 3 times as long, whole published runs 0.9 to 1.9";

/// Returns why no run of this kind was compared; `None` for dense models on devices with measured kernels.
fn unmeasured(hardware: &Hardware, model: &Model, parallel: Parallel) -> Option<&'static str> {
    let devices = parallel.devices() * parallel.data;
    let reasons = [
        (model.experts.is_some(), EXPERTS),
        (model.latent.is_some(), "no run with latent attention was compared"),
        (model.hybrid.is_some(), "no run with recurrent layers was compared"),
        (model.windows.is_some(), "no dense run with sliding windows was compared"),
        (
            !model.extras.unread.is_empty() || model.extras.planned_as_full.is_some(),
            "the model has attention or fields that are not modelled",
        ),
        (model.precision.arithmetic == Arithmetic::Float4, "no dense run in 4-bit arithmetic was compared"),
        (hardware.errors.is_empty(), "no kernel was measured on the device: shares of the peaks are assumed"),
        (parallel.pipeline > 1, "no run with pipelines was compared"),
        (devices > hardware.peer_devices, "no run over several nodes was compared"),
    ];
    reasons.into_iter().find_map(|(is, why)| is.then_some(why))
}

impl fmt::Display for TimeRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { low, high, launches_s, why } = self;
        write!(f, "{low} to {high} times")?;
        if *launches_s > 0.0 {
            write!(f, " and up to {:.1} ms of each for launches that no graph hides", launches_s * 1e3)?;
        }
        write!(f, "; {why}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::qwen3_next;
    use crate::model::{Bits, Precision};
    use crate::{hardware, model};

    fn of(device: &str, model: &Model, parallel: &str) -> TimeRange {
        TimeRange::of(hardware::by_name(device).unwrap(), model, parallel.parse().unwrap())
    }

    fn preset(name: &str) -> Model {
        *model::by_name(name).unwrap()
    }

    #[test]
    fn dense_models_on_measured_devices_have_a_range_of_two() {
        let in_8_bits = Precision::quantised(Bits::each(8), Arithmetic::Float8);
        let quantised = Model { precision: in_8_bits, kv_dtype_bytes: 1, ..preset("llama-3.1-70b") };
        for (device, model, parallel) in
            [("a100-80g", preset("qwen3-8b"), "tp1"), ("h200-141g", quantised, "tp2"), ("h100-80g", quantised, "tp8")]
        {
            let range = of(device, &model, parallel);
            assert!(range.high / range.low <= 2.0 && range.launches_s == 0.0, "{range:?}");
            assert_eq!(range.ns(1000), [750, 1500]);
        }
    }

    #[test]
    fn what_was_not_measured_has_a_wide_range_and_says_why() {
        let dense = preset("llama-3.1-70b");
        let four = Precision::quantised(Bits::grouped(4, 8, 16), Arithmetic::Float4);
        for (range, why) in [
            (of("b200-180g", &dense, "tp2"), "shares of the peaks are assumed"),
            (of("h100-80g", &preset("mixtral-8x7b"), "tp2"), "kernels of experts differ"),
            (of("h100-80g", &qwen3_next(), "tp2"), "kernels of experts differ"),
            (of("h100-80g", &dense, "tp4pp2"), "pipelines"),
            (of("h100-80g", &dense, "tp16"), "several nodes"),
            (of("h100-80g", &Model { precision: four, ..dense }, "tp2"), "4-bit arithmetic"),
        ] {
            assert_eq!((range.low, range.high), (0.5, 2.5));
            assert!(range.why.contains(why), "{} for {why}", range.why);
        }
    }

    #[test]
    fn experts_in_blocks_of_fp8_may_wait_for_launches() {
        let in_8_bits = Precision::quantised(Bits::each(8), Arithmetic::Float8);
        let qwen = Model { precision: in_8_bits, ..preset("qwen3-30b-a3b") };
        let range = of("h200-141g", &qwen, "tp2ep2");
        assert!((range.launches_s - 48.0 * 201e-6).abs() < 1e-9, "two products and two all-reduces in each layer");
        assert_eq!(range.ns(1_000_000), [500_000, 3_000_000 + 9_648_000]);
        let text = range.to_string();
        assert!(
            text.starts_with("0.5 to 3 times and up to 9.6 ms of each for launches that no graph hides; published"),
            "{text}"
        );
        assert!((of("h200-141g", &qwen, "dp2ep2").launches_s - 48.0 * 168e-6).abs() < 1e-9, "no all-reduces");
        assert_eq!(of("h200-141g", &preset("qwen3-30b-a3b"), "tp2").launches_s, 0.0);
        let both = of("h200-141g", &preset("qwen3-8b"), "tp1").or_wider(range);
        assert_eq!(both, range);
    }
}
