//! Roofline: each part of a step takes the time of its FLOPs or of its bytes, whichever is longer, at the share of the peak reached
//! by kernels.
//!
//! The time of a step is the sum of
//!
//! * the matrices of the layers that every token passes through: `max(FLOPs / (peak * e), (weights + KV written) / (bandwidth * e))`,
//! * of layers with experts the products, by the same formula, and the activations moved between their kernels: see [`super::experts`],
//! * the output matrix for the sampled positions, by the same formula,
//! * attention of prefill chunks: `max(FLOPs / (peak * e), KV read / (bandwidth * e))`,
//! * states of recurrent layers, read and written once for each sequence, by the same formula,
//! * attention of decodes, by the same formula; in one call with prefills if there are any, see below,
//! * an overhead per step, per layer, and once more per layer with experts,
//!
//! with the factors `e` of [`crate::hardware::Efficiency`]. The maxima are smooth, as in measurements: `max(a, b)` stands for the
//! fourth root of `a^4 + b^4`.
//!
//! **Mixed calls** of prefills and decodes compute `mixed_rows` rows for each decode. The decode with the longest context runs on
//! one multiprocessor per head, from its first token to its last, however idle the others are. Such a call takes the longest of its
//! FLOPs, its bytes, and that one decode. A latent cache has a call for prefills, which computes keys and values of every head, and
//! another for decodes, whose heads multiply with the cached vector itself, as in vLLM.
//!
//! **Tensor parallelism**: each of `n` devices does `1 / n` of everything, and two all-reduces per layer add up the results:
//! `latency + 2 (n - 1) / n * bytes / bandwidth`, not overlapped with anything. KV that cannot be divided among all devices is read and
//! written by each that holds a copy: that of a latent cache, and of fewer KV heads than devices.
//!
//! **Experts**: the devices share the products as whole experts or as slices of each. Data-parallel attention adds an all-gather before
//! the experts and a reduce-scatter behind them, each `latency + (n - 1) / n * bytes / bandwidth` for the tokens of all `n` ranks, as
//! vLLM's default `allgather_reducescatter` does. A step of ranks in lock step takes the slowest rank's attention and matrices,
//! and the experts for the tokens of all. Ranks with whole experts wait for the one with the most pairs.
//!
//! **Pipeline parallelism**: a stage has as many layers as the largest, and sends the tokens to the next one over the peer link:
//! `latency + bytes / bandwidth`, not overlapped with anything. The last stage has the output matrix too. With several steps in flight the
//! stages run different steps. With one step in flight, stages wait for each other: a step passes whole, or split into as many parts as
//! stages, which follow one another: the time of all stages, and that of the largest for each further part, whichever is less. A split saves waiting, but reads the
//! weights once more per part.

use super::experts::ExpertShape;
use super::work::{Demand, Parts, Work};
use super::{CostModel, LowerBound, Parallel, PipelinedStep, StepErrors, StepShape, TimeRange, nanoseconds};
use crate::hardware::Hardware;
use crate::model::Model;

mod decodes;
mod stated;

use self::decodes::Decodes;

/// Bytes per element of the residual stream.
pub(super) const RESIDUAL_BYTES: f64 = 2.0;

/// Roofline of one model on one device, or on several of a kind.
#[derive(Clone, Debug)]
pub struct Roofline {
    hardware: Hardware,
    parallel: Parallel,
    demand: Demand,
    /// Experts of a layer on one device, and layers with experts; `None` for a dense model.
    experts: Option<(ExpertShape, f64)>,
    limit: LowerBound,
    /// FLOP/s that kernels reach in feed-forward networks that every token passes through, and in experts.
    linear_flops_s: f64,
    expert_flops_s: f64,
    /// FLOPs of the common matrices at `linear_flops_s` that take as long as all of them at their own rates, as a factor.
    common_share: f64,
    /// Share of the layers in the largest stage.
    stage_share: f64,
    /// Share of the model's work on one device of the largest stage.
    share: f64,
    /// FLOPs and bytes of attention per second.
    attention_rates: (f64, f64),
    /// Layers in the largest stage.
    stage_layers: f64,
    token_bytes: f64,
    /// FLOPs per (query, key) pair in one query head, all layers.
    head_pair_flops: f64,
    /// `true` if prefills and decodes have a call each: those of a latent cache compute in two ways.
    separate_calls: bool,
    /// Terms of steps of decodes alone; empty with stages.
    decodes: Vec<Decodes>,
    errors: StepErrors,
    range: TimeRange,
    name: String,
}

impl Roofline {
    /// Returns the roofline of `model` on one device.
    pub fn new(hardware: &Hardware, model: &Model) -> Self {
        Self::parallel(hardware, model, Parallel::ONE)
    }

    /// Returns the roofline of `model` spread over several devices.
    pub fn parallel(hardware: &Hardware, model: &Model, parallel: Parallel) -> Self {
        let stage_layers = parallel.stage_layers(model) as f64;
        let stage_share = stage_layers / model.layers as f64;
        let e = &hardware.efficiency;
        let (errors, trust) = stated::of(hardware, model, parallel);
        let spread = match parallel {
            Parallel::ONE => String::new(),
            Parallel { data: 1, .. } => format!(" {parallel}"),
            _ => format!(" {parallel}, ranks in lock step"),
        };
        let roofline = Self {
            hardware: *hardware,
            parallel,
            demand: Demand::new(model, parallel),
            experts: ExpertShape::of(model).map(|shape| (shape.among(parallel), model.expert_layers() as f64)),
            limit: LowerBound::new(hardware, model, parallel),
            linear_flops_s: hardware.linear_flops_s(model.precision.arithmetic, model.precision.feed_forward),
            expert_flops_s: hardware.linear_flops_s(model.precision.arithmetic, model.precision.experts),
            common_share: common_share(hardware, model),
            stage_share,
            share: stage_share / f64::from(parallel.tensor),
            attention_rates: (hardware.peak_flops_s * e.attention_flops, hardware.bandwidth_bytes_s * e.kv_bandwidth),
            stage_layers,
            head_pair_flops: model.pair_flops() as f64 / model.heads as f64,
            separate_calls: model.latent.is_some(),
            token_bytes: RESIDUAL_BYTES * model.hidden as f64,
            decodes: Vec::new(),
            errors,
            range: TimeRange::of(hardware, model, parallel),
            name: format!(
                "roofline{spread} ({trust}{}{})",
                unused(hardware, model, parallel),
                across(hardware, parallel)
            ),
        };
        Self { decodes: roofline.all_decodes(), ..roofline }
    }

    /// Returns the lower bound of the step time, seconds.
    pub fn limit_s(&self, shape: &StepShape) -> f64 {
        self.limit.step_s(shape)
    }

    /// Returns the time of a step of one stage without experts and their exchange, seconds.
    pub(super) fn without_experts_s(&self, shape: &StepShape) -> f64 {
        let parts = self.demand.parts(shape);
        self.common_s(shape, &parts, 1.0) + self.head_s(&parts) + self.hardware.step_overhead_s
    }

    /// Returns the time of the largest stage for one of `n` equal parts of a step, without the output matrix, seconds.
    fn stage_s(&self, shape: &StepShape, parts: &Parts, n: f64) -> f64 {
        self.common_s(shape, parts, n) + self.experts_s(shape.tokens as f64 / n)
    }

    /// Returns the time of the experts in the largest stage, and of the exchange among ranks, for `tokens` of all ranks, seconds.
    fn experts_s(&self, tokens: f64) -> f64 {
        let Some((shape, layers)) = &self.experts else { return 0.0 };
        let Hardware { bandwidth_bytes_s, efficiency: e, .. } = self.hardware;
        let products = shape.products(tokens * shape.busiest(tokens));
        let products_s = products.blended_s(self.expert_flops_s, bandwidth_bytes_s * e.weight_bandwidth);
        let moved_s = shape.moved_bytes(tokens) / (bandwidth_bytes_s * e.kv_bandwidth);
        let exchange_s = 2.0 * self.parallel.all_gather_s(&self.hardware, tokens, self.token_bytes);
        layers * self.stage_share * (products_s + moved_s + exchange_s + self.hardware.layer_overhead_s)
    }

    /// Returns the time of all but the experts in the largest stage, for one of `n` equal parts of a step, seconds.
    fn common_s(&self, shape: &StepShape, parts: &Parts, n: f64) -> f64 {
        let attention_s = if shape.prefills > 0 && shape.decodes > 0 && !self.separate_calls {
            let (e, (flops_s, bytes_s)) = (self.hardware.efficiency, self.attention_rates);
            let rows = Work { flops: parts.decode.flops * e.mixed_rows, ..parts.decode };
            let all_s = parts.prefill.plus(rows).times(self.share / n).blended_s(flops_s, bytes_s);
            let longest_flops = self.head_pair_flops * self.stage_share * e.mixed_rows * shape.decode_kv_max as f64;
            all_s.max(longest_flops * self.hardware.processors / flops_s)
        } else {
            self.attention_s(parts.prefill, n) + self.attention_s(parts.decode, n)
        };
        self.layers_s(parts, n) + attention_s + self.overheads_s(shape.tokens as f64 / n)
    }

    /// Returns the time of the matrices and recurrent states of the layers in the largest stage, for one of `n` equal parts of a step, seconds.
    fn layers_s(&self, parts: &Parts, n: f64) -> f64 {
        let Hardware { bandwidth_bytes_s, efficiency: e, .. } = self.hardware;
        let mut layers = parts.layers.times(self.share);
        // Every part reads all weights, but does its share of the computing.
        layers.flops = layers.flops * self.common_share / n;
        let layers_s = layers.blended_s(self.linear_flops_s, bandwidth_bytes_s * e.weight_bandwidth);
        layers_s + self.attention_s(parts.recurrent, n)
    }

    /// Returns the time of attention of one kind in the largest stage, for one of `n` equal parts of a step, seconds.
    fn attention_s(&self, work: Work, n: f64) -> f64 {
        let (flops_s, bytes_s) = self.attention_rates;
        work.times(self.share / n).blended_s(flops_s, bytes_s)
    }

    /// Returns the overheads of the layers in the largest stage, with all-reduces of `tokens` tokens, seconds.
    fn overheads_s(&self, tokens: f64) -> f64 {
        self.stage_layers * (self.hardware.layer_overhead_s + 2.0 * self.all_reduce_s(tokens))
    }

    fn all_reduce_s(&self, tokens: f64) -> f64 {
        self.parallel.all_reduce_s(&self.hardware, tokens, self.token_bytes)
    }

    /// Returns the time of all stages for a step in `n` parts, seconds.
    fn stages_s(&self, shape: &StepShape, parts: &Parts, n: u32) -> f64 {
        let stages = f64::from(self.parallel.pipeline);
        let n = f64::from(n);
        let send_s = self.parallel.send_s(&self.hardware, shape.tokens as f64 / n, self.token_bytes);
        // Stages of fewer layers than the largest take less; parts follow one another at the pace of the largest.
        (1.0 / self.stage_share + n - 1.0) * self.stage_s(shape, parts, n) + (stages - 1.0) * send_s
    }

    /// Returns the time of a step before applying the lower bound, seconds.
    fn step_s(&self, shape: &StepShape) -> f64 {
        let parts = self.demand.parts(shape);
        let mut stages_s = self.stages_s(shape, &parts, 1);
        let n = self.parallel.pipeline;
        if n > 1 && shape.tokens >= u64::from(n) {
            stages_s = stages_s.min(self.stages_s(shape, &parts, n));
        }
        stages_s + self.head_s(&parts) + self.hardware.step_overhead_s
    }

    /// Returns the time of a step of ranks in lock step before applying the lower bound, seconds.
    fn ranks_s(&self, shapes: &[StepShape]) -> f64 {
        let rank_s = |shape: &StepShape| {
            let parts = self.demand.parts(shape);
            self.common_s(shape, &parts, 1.0) + self.head_s(&parts)
        };
        let tokens: u64 = shapes.iter().map(|shape| shape.tokens).sum();
        let slowest_s = shapes.iter().map(rank_s).fold(0.0, f64::max);
        slowest_s + self.experts_s(tokens as f64) + self.hardware.step_overhead_s
    }

    /// Returns the time of the output matrix, seconds.
    fn head_s(&self, parts: &Parts) -> f64 {
        let Hardware { bandwidth_bytes_s, efficiency: e, .. } = self.hardware;
        let head = parts.head.times(1.0 / f64::from(self.parallel.tensor));
        head.blended_s(self.hardware.peak_flops_s * e.linear_flops, bandwidth_bytes_s * e.weight_bandwidth)
    }
}

/// Returns a note on step times in the device's file that are not those of `model` spread like this, if there are any.
fn unused(hardware: &Hardware, model: &Model, parallel: Parallel) -> String {
    let Some(time) = hardware.step_time.filter(|time| !time.is_of(model, &parallel.to_string())) else {
        return String::new();
    };
    let what = if time.is_of(model, time.parallel) { "the model spread otherwise" } else { "another model" };
    let spread = if ["", "tp1pp1"].contains(&time.parallel) { "one device" } else { time.parallel };
    format!("; the file has step times of {what}: {} on {spread}", time.model)
}

/// Returns notes on devices that exchange over the host link for want of a peer link, and on more devices than a peer link joins.
fn across(hardware: &Hardware, parallel: Parallel) -> String {
    let (exchanging, all) = (parallel.tensor * parallel.data, parallel.devices() * parallel.data);
    let link = if hardware.peers_use_host_link && all > 1 {
        "; devices exchange over the host link, as the file has no peer_link"
    } else {
        ""
    };
    let per_node = hardware.peer_devices;
    match hardware.node_link {
        Some(node) if all > per_node => {
            format!("{link}; nodes of {per_node} devices, {:.0} GB/s a device between them", node.bytes_s / 1e9)
        }
        None if exchanging > per_node => format!(
            "{link}; {exchanging} devices that exchange tokens in each layer, as if the peer link of {per_node} joined them, because the hardware file has no node_link"
        ),
        _ => link.into(),
    }
}

/// Returns the factor on the FLOPs of the matrices that every token passes through, where attention is multiplied at another rate than the
/// feed-forward networks; else 1.
fn common_share(hardware: &Hardware, model: &Model) -> f64 {
    let precision = model.precision;
    let rate = hardware.linear_flops_s(precision.arithmetic, precision.feed_forward);
    let of_attention = hardware.linear_flops_s(precision.attention_arithmetic(), precision.attention);
    let (all, attention) = (model.common_elements() as f64, model.mixer_elements() as f64);
    if rate == of_attention { 1.0 } else { (all - attention + attention * rate / of_attention) / all }
}

impl CostModel for Roofline {
    fn name(&self) -> &str {
        &self.name
    }

    fn errors(&self, _: usize) -> StepErrors {
        self.errors
    }

    fn range(&self, _: usize) -> Option<TimeRange> {
        Some(self.range)
    }

    fn step_ns(&self, shape: &StepShape) -> u64 {
        let step_s = self.decodes_s(shape).unwrap_or_else(|| self.limit.hold(self.step_s(shape), shape));
        nanoseconds(step_s)
    }

    fn lock_step_ns(&self, _: usize, shapes: &[StepShape]) -> u64 {
        nanoseconds(self.ranks_s(shapes).max(self.limit.lock_step_s(shapes)))
    }

    fn pipelined(&self, shape: &StepShape) -> PipelinedStep {
        if self.parallel.pipeline == 1 {
            return PipelinedStep::undivided(self.step_ns(shape));
        }
        // The step is not divided: the other steps in flight fill the pipeline.
        let parts = self.demand.parts(shape);
        let stage_s = self.stage_s(shape, &parts, 1.0);
        let send_s = self.parallel.send_s(&self.hardware, shape.tokens as f64, self.token_bytes);
        let last_s = stage_s + self.head_s(&parts) + self.hardware.step_overhead_s;
        PipelinedStep::at_least(self.limit.step_s(shape), stage_s + send_s, last_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::recompute_token_ns;
    use crate::model::tests::qwen3_next;
    use crate::model::{Arithmetic, Bits, Hybrid, Latent, Precision};
    use crate::{hardware, model};

    fn preset(name: &str) -> Model {
        *model::by_name(name).unwrap()
    }

    fn roofline(hardware: &str, model: &str) -> Roofline {
        Roofline::new(hardware::by_name(hardware).unwrap(), model::by_name(model).unwrap())
    }

    fn seconds(cost: &dyn CostModel, shape: StepShape) -> f64 {
        cost.step_ns(&shape) as f64 / 1e9
    }

    #[test]
    fn more_work_takes_longer() {
        let cost = roofline("h100-80g", "llama-3.1-8b");
        let ns = |shape| cost.step_ns(&shape);
        let (prefill, decodes) = (StepShape::prefill, StepShape::decodes);
        assert!(ns(prefill(8_192, 0)) > ns(prefill(4_096, 0)));
        assert!(ns(prefill(8_192, 8_192)) > ns(prefill(8_192, 0)));
        assert!(ns(decodes(64, 2_000)) > ns(decodes(64, 1_000)));
        assert!(ns(decodes(64, 1_000)) > ns(decodes(32, 1_000)));
        assert!(ns(prefill(2, 0)) > ns(StepShape { sampled: 0, ..prefill(2, 0) }));
    }

    #[test]
    fn drafts_cost_rows_but_no_second_reading_of_the_context() {
        let cost = roofline("h100-80g", "llama-3.1-8b");
        let plain = StepShape::decodes(64, 2_000);
        let drafting = StepShape { tokens: 64 * 5, sampled: 64 * 5, decode_pairs: 64 * 5 * 2_002, ..plain };
        let (plain_ns, drafting_ns) = (cost.step_ns(&plain), cost.step_ns(&drafting));
        assert!(drafting_ns > plain_ns && drafting_ns < 2 * plain_ns, "{plain_ns} {drafting_ns}");
    }

    #[test]
    fn known_orders_of_magnitude() {
        // The matrices alone need 366 ms at the full peak of an A100.
        let prefill_s = seconds(&roofline("a100-80g", "llama-3.1-8b"), StepShape::prefill(8_192, 0));
        assert!((0.42..0.8).contains(&prefill_s), "{prefill_s}");
        // 16 GB of weights at 3.35 TB/s need 4.5 ms.
        let decode_s = seconds(&roofline("h100-80g", "llama-3.1-8b"), StepShape::decodes(1, 1_000));
        assert!((0.005..0.009).contains(&decode_s), "{decode_s}");
        // 14 GFLOP at the peak are 14.1 and 44.7 us; kernels reach two thirds to nine tenths of it.
        assert!((16_000..28_000).contains(&recompute_token_ns(&roofline("h100-80g", "llama-3.1-8b"))));
        assert!((50_000..80_000).contains(&recompute_token_ns(&roofline("a100-80g", "llama-3.1-8b"))));
    }

    #[test]
    fn devices_share_the_work_and_pay_for_talking() {
        let (h100, llama) = (hardware::by_name("h100-80g").unwrap(), model::by_name("llama-3.1-70b").unwrap());
        let of = |text: &str, shape| seconds(&Roofline::parallel(h100, llama, text.parse().unwrap()), shape);
        for shape in [StepShape::prefill(2_048, 0), StepShape::decodes(32, 1_000)] {
            let (one, two, eight) = (of("tp1", shape), of("tp2", shape), of("tp8", shape));
            assert!(two < one && two > one / 2.0, "{one} {two}");
            assert!(eight < two && eight > one / 8.0, "{two} {eight}");
        }
        let talking = |text| of(text, StepShape::prefill(2_048, 0));
        let slow = Hardware { peer_link_bytes_s: 1e9, ..*h100 };
        let slow_s = seconds(&Roofline::parallel(&slow, llama, "tp8".parse().unwrap()), StepShape::prefill(2_048, 0));
        // 160 all-reduces of 32 MiB, of which 1.75 times as much goes over the wire.
        let expected_s = 160.0 * 1.75 * f64::from(2_048 * 8_192 * 2) * (1.0 / 1e9 - 1.0 / h100.peer_link_bytes_s);
        assert!((slow_s - talking("tp8") - expected_s).abs() < 1e-6);
    }

    #[test]
    fn devices_with_a_copy_of_the_kv_each_read_all_of_it() {
        // So many FLOPs that bytes alone count, without overheads.
        let h200 = hardware::by_name("h200-141g").unwrap();
        let fast = Hardware { peak_flops_s: 1e21, ..*h200 };
        let rate = h200.bandwidth_bytes_s * h200.efficiency.kv_bandwidth;
        let latent =
            Latent { query_rank: 1536, kv_rank: 512, rope_dim: 64, nope_dim: 128, value_dim: 128, index: None };
        let latent = Model { latent: Some(latent), ..preset("llama-3.1-70b") };
        let four_heads = preset("qwen3-30b-a3b");
        for (model, parallel, shares) in [
            (latent, "tp1", 1),
            (latent, "tp8", 1),
            (four_heads, "tp2", 2),
            (four_heads, "tp4", 4),
            (four_heads, "tp8", 4),
        ] {
            let roofline = Roofline::parallel(&fast, &model, parallel.parse().unwrap());
            let more_s =
                seconds(&roofline, StepShape::decodes(64, 30_000)) - seconds(&roofline, StepShape::decodes(64, 10_000));
            let bytes = 64 * 20_000 * model.kv_bytes_per_token() / shares;
            let share = more_s / (bytes as f64 / rate);
            assert!((share - 1.0).abs() < 1e-3, "{} {parallel}: {share}", model.name);
        }
    }

    #[test]
    fn decodes_over_a_latent_cache_multiply_with_the_cached_vectors() {
        let latent =
            Latent { query_rank: 1536, kv_rank: 512, rope_dim: 64, nope_dim: 128, value_dim: 128, index: None };
        let model = Model { latent: Some(latent), ..preset("llama-3.1-70b") };
        assert_eq!(model.decode_pair_flops() * 320, model.pair_flops() * 1088);
        // Prefills and decodes have calls of their own: nothing waits for the longest decode.
        let cost = Roofline::parallel(hardware::by_name("h200-141g").unwrap(), &model, "tp8".parse().unwrap());
        let (prefill, decodes) = (StepShape::prefill(2_048, 0), StepShape::decodes(8, 60_000));
        let attention_s = |shape: &StepShape| {
            let parts = cost.demand.parts(shape);
            cost.common_s(shape, &parts, 1.0) - cost.layers_s(&parts, 1.0) - cost.overheads_s(shape.tokens as f64)
        };
        let apart_s = attention_s(&prefill) + attention_s(&decodes);
        assert!((attention_s(&prefill.and(decodes)) / apart_s - 1.0).abs() < 1e-9);
    }

    #[test]
    fn stages_wait_for_each_other() {
        let (h100, llama) = (hardware::by_name("h100-80g").unwrap(), model::by_name("llama-3.1-70b").unwrap());
        let of = |text: &str, shape| seconds(&Roofline::parallel(h100, llama, text.parse().unwrap()), shape);
        // Decodes read weights: stages do not help, they only send.
        let decodes = StepShape::decodes(8, 1_000);
        assert!(of("pp4", decodes) > of("tp1", decodes) && of("pp4", decodes) < 1.02 * of("tp1", decodes));
        // Stages of 32 layers in five have six or seven.
        let llama = model::by_name("llama-3.1-8b").unwrap();
        let of_five = |text: &str| seconds(&Roofline::parallel(h100, llama, text.parse().unwrap()), decodes);
        assert!(of_five("pp5") < 1.02 * of_five("tp1"), "{} {}", of_five("pp5"), of_five("tp1"));
        // A prefill in four parts keeps them busy but for the bubble: 7 part-stages instead of 16.
        let prefill = StepShape::prefill(8_192, 0);
        let share = of("pp4", prefill) / of("tp1", prefill);
        assert!((0.43..0.48).contains(&share), "{share}");
    }

    #[test]
    fn recurrent_states_are_read_and_written_once_for_each_sequence() {
        let (h200, qwen) = (hardware::by_name("h200-141g").unwrap(), qwen3_next());
        let stateless = Model {
            hybrid: qwen.hybrid.map(|hybrid| Hybrid { convolution_bytes: 0, state_elements: 0, ..hybrid }),
            ..qwen
        };
        let tp2: Parallel = "tp2".parse().unwrap();
        let of = |model: &Model, shape| seconds(&Roofline::parallel(h200, model, tp2), shape);
        let rate = h200.bandwidth_bytes_s * h200.efficiency.kv_bandwidth;
        for (shape, sequences) in [(StepShape::decodes(64, 1_000), 64.0), (StepShape::decodes(64, 9_000), 64.0)] {
            let moved_s = 2.0 * sequences * 36.0 * f64::from((32 * 128 * 128 + 3 * 8192) * 2) / 2.0 / rate;
            let found_s = of(&qwen, shape) - of(&stateless, shape);
            assert!((found_s / moved_s - 1.0).abs() < 0.01, "{found_s} {moved_s}");
        }
        // A long prefill is bound by the products of the matrices, and reads one state.
        let prefill = StepShape::prefill(8_192, 0);
        assert!(of(&qwen, prefill) < 1.1 * of(&stateless, prefill) && of(&qwen, prefill) > of(&stateless, prefill));
    }

    #[test]
    fn quantised_weights_are_read_faster_and_multiplied_as_their_arithmetic_says() {
        let (h100, llama) = (hardware::by_name("h100-80g").unwrap(), preset("llama-3.1-8b"));
        let of = |precision, shape| seconds(&Roofline::new(h100, &Model { precision, ..llama }), shape);
        let awq = Precision::quantised(Bits::grouped(4, 20, 128), Arithmetic::Bits16);
        let fp8 = Precision::quantised(Bits::each(8), Arithmetic::Float8);
        let decode = StepShape::decodes(1, 100);
        let [full, eight, four] = [Precision::BITS_16, fp8, awq].map(|precision| of(precision, decode));
        assert!(four < eight && eight < 0.7 * full, "{four} {eight} {full}");
        let prefill = StepShape::prefill(8_192, 0);
        let [full, eight, four] = [Precision::BITS_16, fp8, awq].map(|precision| of(precision, prefill));
        // Products in 8 bits reach a smaller share of a peak twice as high; products that widen weights do not use all of Hopper's tensor cores.
        assert!(eight < 0.8 * full && (1.2..1.6).contains(&(four / full)), "{four} {eight} {full}");
        let a100 = hardware::by_name("a100-80g").unwrap();
        let of = |precision| seconds(&Roofline::new(a100, &Model { precision, ..llama }), prefill);
        let [full, eight, four] = [Precision::BITS_16, fp8, awq].map(of);
        assert!((eight / full - 1.0).abs() < 0.02 && (four / full - 1.0).abs() < 0.02, "{four} {eight} {full}");
    }

    #[test]
    fn few_tokens_read_few_experts() {
        let (h100, qwen) = (hardware::by_name("h200-141g").unwrap(), model::by_name("qwen3-30b-a3b").unwrap());
        let of = |n| seconds(&Roofline::new(h100, qwen), StepShape::decodes(n, 100));
        assert!(of(16) > 3.0 * of(1), "{} {}", of(1), of(16));
        assert!(of(256) < 1.7 * of(64), "all experts are read already");
    }
    #[test]
    fn a_step_of_ranks_is_the_slowest_rank_and_the_experts_of_all_tokens() {
        let (h100, qwen) = (hardware::by_name("h100-80g").unwrap(), model::by_name("qwen3-30b-a3b").unwrap());
        let cost = Roofline::parallel(h100, qwen, "dp2ep2".parse().unwrap());
        let ns = |shapes: &[StepShape]| cost.lock_step_ns(0, shapes) as f64;
        let (few, many, idle) = (StepShape::decodes(8, 500), StepShape::decodes(64, 500), StepShape::default());
        assert_eq!(ns(&[many, idle]), cost.step_ns(&many) as f64, "the other rank idles in a step of one");
        assert_eq!(ns(&[many, few]), ns(&[few, many]));
        assert!(ns(&[many, many]) > ns(&[many, few]) && ns(&[many, few]) > ns(&[many, idle]));
        assert!(ns(&[many, many]) < 1.2 * ns(&[many, idle]), "weights are read once for both");
        // A prefill of one rank holds the other rank's decodes up.
        let prefill = StepShape::prefill(4096, 0);
        assert!(ns(&[prefill, few]) > ns(&[prefill, idle]) && ns(&[prefill, few]) < 1.05 * ns(&[prefill, idle]));
    }

    #[test]
    fn ranks_pay_for_the_exchange_of_tokens_and_not_for_two_all_reduces() {
        let (h100, qwen) = (hardware::by_name("h100-80g").unwrap(), model::by_name("qwen3-30b-a3b").unwrap());
        let slow = Hardware { peer_link_bytes_s: 1e9, ..*h100 };
        let shapes = [StepShape::prefill(1024, 0), StepShape::prefill(3072, 0)];
        let s = |hardware| Roofline::parallel(hardware, qwen, "dp2ep2".parse().unwrap()).ranks_s(&shapes);
        // 48 layers, an all-gather and a reduce-scatter of half of 4,096 tokens of 4 KiB.
        let expected_s = 48.0 * 2.0 * 0.5 * 4096.0 * 4096.0 * (1.0 / 1e9 - 1.0 / h100.peer_link_bytes_s);
        assert!((s(&slow) - s(h100) - expected_s).abs() < 1e-6, "{} {expected_s}", s(&slow) - s(h100));
    }

    #[test]
    fn whole_experts_move_more_than_slices() {
        let (h100, qwen) = (hardware::by_name("h100-80g").unwrap(), model::by_name("qwen3-30b-a3b").unwrap());
        let of =
            |text: &str| seconds(&Roofline::parallel(h100, qwen, text.parse().unwrap()), StepShape::prefill(8192, 0));
        let (one, slices, whole) = (of("tp1"), of("tp4"), of("tp4ep4"));
        assert!(slices < whole && whole < one, "{one} {slices} {whole}");
        // The pairs' hidden states and the activation's rows of all 65,536 pairs in 48 layers.
        let more = 2.0 * 65_536.0 * 48.0 * (4096.0 + 5.0 * 768.0 + 704.0 - (6144.0 + 6.0 * 192.0));
        let moved_s = more / (h100.bandwidth_bytes_s * h100.efficiency.kv_bandwidth);
        // The rank with the most pairs has more products than a device with slices.
        let shape = ExpertShape::of(qwen).unwrap().among("tp4ep4".parse().unwrap());
        let rates = (h100.peak_flops_s * h100.efficiency.linear_flops, h100.bandwidth_bytes_s * 0.782);
        let products_s = |tokens| shape.products(tokens).blended_s(rates.0, rates.1);
        let expected_s = moved_s + 48.0 * (products_s(8192.0 * shape.busiest(8192.0)) - products_s(8192.0));
        assert!((whole - slices - expected_s).abs() < 1e-5, "{} {expected_s}", whole - slices);
    }

    #[test]
    fn a_file_without_peer_link_is_named_where_devices_exchange() {
        let least = "name = 'x'\nbf16_tflops = 100\nmemory_gb_s = 1000\nmemory_mib = 81920\nprocessors = 9\n\
                     host_link = { gb_s = 10, latency_us = 5 }\n";
        let name = |file: &str, parallel: &str| {
            let hardware = hardware::parse(file).unwrap();
            Roofline::parallel(&hardware, &preset("llama-3.1-8b"), parallel.parse().unwrap()).name().to_owned()
        };
        let note = "; devices exchange over the host link, as the file has no peer_link)";
        assert!(name(least, "tp2").ends_with(note) && name(least, "pp2").ends_with(note), "{}", name(least, "tp2"));
        assert!(!name(least, "tp1").contains("host link"));
        let linked = format!("{least}peer_link = {{ gb_s = 300, latency_us = 6 }}\n");
        assert!(!name(&linked, "tp2").contains("host link"));
    }
}
