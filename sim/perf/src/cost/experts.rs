//! Work of a mixture of experts on one of the devices that share the layer.
//!
//! A layer computes, for each of `n` tokens and each of the `k` experts of a token, two products: with the gate and up matrices, and
//! with the down matrix. The kernels are separate ones, as in vLLM's fused experts (`fused_moe.py`, version 0.24): product,
//! activation, product, sum. A *pair* is a token and one of its experts.
//!
//! | work | amount |
//! |---|---|
//! | FLOPs | `6 * hidden * width` for each pair |
//! | weights read | those of the experts chosen by at least one token: `E * (1 - (1 - k / E)^n)` of `E` are expected if tokens choose evenly and independently |
//! | activations moved | for each pair the outputs of both products, input and output of the activation, the input of the sum; and the inputs of both products |
//!
//! The activations of the pairs are between kernels, so their time is added to that of the products. Of `r` devices with whole experts
//! each has `1 / r` of the FLOPs, of the weights, and of the inputs of the products. The rest of the activations is moved on every
//! device, because the kernels run over the pairs of all tokens and write zeros for experts elsewhere. Devices with slices of each expert have
//! all pairs at `1 / r` of the width. So more devices help the products, but not the hidden states of the pairs.
//!
//! Launches take as long as those of an attention call, `layer_us` of the device's file: a handful of kernels each.
//!
//! Against the kernels of all shapes that aiconfigurator measured on H100 and H200 with an even choice, the median error of the sum above
//! 1,024 tokens is -1 to -3 % on one device, -5 to -7 % in slices and -10 to -12 % as whole experts on 2 to 8 devices; products alone are -15
//! to -41 % off. No number in the sum is fitted to kernels of experts.
//!
//! Of ranks with whole experts the one with the most pairs keeps the others waiting: see [`ExpertShape::busiest`].

use super::Parallel;
use super::work::Work;
use crate::model::Model;

/// Bytes per element of the activations.
const ACTIVATION_BYTES: f64 = 2.0;

/// How unevenly tokens choose experts: standard deviation over mean of the tokens of an expert. By the power law that aiconfigurator measures
/// with, exponent 1.2 between 0.01 and 2: mean 0.261, mean square 0.236.
const CHOICE_SPREAD: f64 = 1.57;
/// Expected largest of 1, 2, 4, and so on up to 128 independent standard normal numbers.
const LARGEST_OF: [f64; 8] = [0.0, 0.564, 1.029, 1.424, 1.766, 2.070, 2.344, 2.594];

/// Experts of one layer, and the devices that share them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ExpertShape {
    /// Width of the vectors that experts read and write, elements.
    pub hidden: f64,
    /// Width of an expert, elements.
    pub width: f64,
    /// Experts of a token.
    pub active: f64,
    /// Experts of a layer.
    pub count: f64,
    /// Devices that each hold a slice of every expert.
    pub slices: f64,
    /// Devices that each hold whole experts.
    pub ranks: f64,
    /// Bytes per element of the weights, scales included.
    pub element_bytes: f64,
    /// Matrices of an expert.
    pub matrices: f64,
}

impl ExpertShape {
    /// Returns the experts of a layer of `model` on one device; `None` for a dense model.
    pub fn of(model: &Model) -> Option<Self> {
        let moe = model.experts?;
        Some(Self {
            hidden: moe.latent_width.unwrap_or(model.hidden) as f64,
            width: moe.width as f64,
            active: moe.active as f64,
            count: moe.count as f64,
            slices: 1.0,
            ranks: 1.0,
            element_bytes: model.precision.experts.bytes_each(),
            matrices: model.feed_forward_matrices() as f64,
        })
    }

    /// Returns the same experts shared by the devices of `parallel`.
    pub fn among(self, parallel: Parallel) -> Self {
        let devices = f64::from(parallel.expert_devices());
        let (slices, ranks) = if parallel.expert > 1 { (1.0, devices) } else { (devices, 1.0) };
        Self { slices, ranks, ..self }
    }

    /// Returns the elements of the matrices of one expert.
    fn elements(&self) -> f64 {
        self.matrices * self.hidden * self.width
    }

    /// Returns the expected number of experts chosen by `tokens` tokens.
    pub fn touched(&self, tokens: f64) -> f64 {
        self.count * (1.0 - (1.0 - self.active / self.count).powf(tokens))
    }

    /// Returns the products of `tokens` tokens on one device, in one layer.
    pub fn products(&self, tokens: f64) -> Work {
        let share = 1.0 / (self.slices * self.ranks);
        let flops = 2.0 * self.elements() * self.active * tokens;
        Work { flops, bytes: self.touched(tokens) * self.elements() * self.element_bytes }.times(share)
    }

    /// Returns the pairs of the rank with the most over those of the mean rank, expected for `tokens` tokens: the largest of as many normal
    /// numbers as ranks, with the variance of few pairs and that of [`CHOICE_SPREAD`]. No rank has more than all pairs, or than its experts can take.
    pub fn busiest(&self, tokens: f64) -> f64 {
        let pairs = self.active * tokens;
        if self.ranks <= 1.0 || pairs <= 0.0 {
            return 1.0;
        }
        let variance = (self.ranks - 1.0) / pairs + CHOICE_SPREAD * CHOICE_SPREAD * (self.ranks - 1.0) / self.count;
        let most = self.ranks * (self.count / self.ranks / self.active).min(1.0);
        (1.0 + largest_of(self.ranks) * variance.sqrt()).min(most.max(1.0))
    }

    /// Returns the bytes of activations that one device moves in one layer.
    pub fn moved_bytes(&self, tokens: f64) -> f64 {
        let (pairs, width) = (self.active * tokens, self.width / self.slices);
        let everywhere = 5.0 * width + 2.0 * self.hidden;
        let here = (self.hidden + width) / self.ranks;
        ACTIVATION_BYTES * pairs * (everywhere + here)
    }

    /// Returns the least work of `tokens` tokens on one device, in one layer: all choose the same experts.
    pub fn least(&self, tokens: f64) -> Work {
        let read = if tokens > 0.0 { self.active } else { 0.0 };
        Work { bytes: read * self.elements() * self.element_bytes, ..self.products(tokens) }
    }
}

/// Returns [`LARGEST_OF`] for any number, between its entries by the logarithm.
fn largest_of(n: f64) -> f64 {
    let (at, last) = (n.log2(), LARGEST_OF.len() - 1);
    let below = (at as usize).min(last - 1);
    let share = (at - below as f64).min(1.0);
    LARGEST_OF[below] + share * (LARGEST_OF[below + 1] - LARGEST_OF[below])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;

    fn shape(parallel: &str) -> ExpertShape {
        ExpertShape::of(model::by_name("qwen3-30b-a3b").unwrap()).unwrap().among(parallel.parse().unwrap())
    }

    #[test]
    fn products_and_weights_are_shared_but_not_the_hidden_states_of_the_pairs() {
        let one = shape("tp1");
        let expert = 3.0 * 2048.0 * 768.0;
        let products = one.products(1.0);
        assert_eq!(products.flops, 2.0 * 8.0 * expert);
        assert!((products.bytes / (8.0 * expert * 2.0) - 1.0).abs() < 1e-9, "one token reads its eight experts");
        assert!((one.products(4096.0).bytes / (128.0 * expert * 2.0) - 1.0).abs() < 1e-9, "many read all");
        // Per pair and element of two bytes: written and read 2 * 768, written 768, twice 2,048, read 2,048 and 768.
        assert_eq!(one.moved_bytes(10.0), 2.0 * 80.0 * f64::from(5 * 768 + 2 * 2048 + 2048 + 768));
        for text in ["tp8", "tp8ep8", "dp8ep8", "dp8", "tp2dp4ep8"] {
            let eight = shape(text);
            assert_eq!(eight.products(64.0).flops * 8.0, one.products(64.0).flops, "{text}");
            assert_eq!(eight.products(64.0).bytes * 8.0, one.products(64.0).bytes, "{text}");
        }
        assert_eq!(shape("tp8").moved_bytes(10.0), 2.0 * 80.0 * f64::from(5 * 96 + 3 * 2048 + 96));
        assert_eq!(shape("dp8ep8").moved_bytes(10.0), 2.0 * 80.0 * f64::from(5 * 768 + 2 * 2048 + 256 + 96));
    }

    #[test]
    fn the_busiest_rank_has_more_pairs_than_the_mean_and_never_more_than_all() {
        for text in ["tp1", "tp8", "dp8"] {
            assert_eq!(shape(text).busiest(64.0), 1.0, "{text}: every device has a slice of each expert");
        }
        let eight = shape("tp8ep8");
        // Many pairs: 1.424 of 1.57 * sqrt(7 / 128) remain of an uneven choice.
        assert!((eight.busiest(1e9) - (1.0 + 1.424 * 1.57 * (7f64 / 128.0).sqrt())).abs() < 1e-6);
        assert!(eight.busiest(1.0) > eight.busiest(16.0) && eight.busiest(16.0) > eight.busiest(4096.0));
        assert!(eight.busiest(1.0) <= 8.0);
        assert!(shape("tp2ep2").busiest(4096.0) < shape("tp4ep4").busiest(4096.0));
        // Of two experts of a token a rank with one expert has at most one: half of the pairs of the token.
        let mixtral = ExpertShape::of(model::by_name("mixtral-8x7b").unwrap()).unwrap();
        assert!(mixtral.among("tp8ep8".parse().unwrap()).busiest(4096.0) <= 4.0);
        assert_eq!(eight.busiest(0.0), 1.0);
        assert!((largest_of(6.0) - 1.26).abs() < 0.01, "between 4 and 8");
    }

    #[test]
    fn as_many_experts_are_read_as_independent_tokens_choose() {
        let one = shape("tp1");
        assert_eq!((one.touched(0.0), one.touched(1.0)), (0.0, 8.0));
        // The second token finds each of its experts among the first one's with the chance of 1 to 16.
        assert!((one.touched(2.0) - (8.0 + 7.5)).abs() < 1e-12);
        assert!((128.0 - one.touched(512.0)).abs() < 1e-9);
        assert_eq!(one.least(512.0).bytes, one.least(1.0).bytes);
        assert_eq!(one.least(0.0), Work::default());
    }
}
